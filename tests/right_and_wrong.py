"""The exercises of all lessons, and the right and wrong answers to them in tests/variants."""

import importlib.util
from functools import cache
from pathlib import Path

from _lesson import lessons

HERE = Path(__file__).resolve().parent
LESSONS = lessons(HERE.parent / "scripts")
EXERCISES = [(lesson.number, e.name) for lesson in LESSONS for e in lesson.exercises]


@cache
def answers(number):
    """(RIGHT, WRONG) of a chapter: exercise -> functions."""
    path = HERE / "variants" / f"ch{number}.py"
    assert path.is_file(), f"chapter {number} has exercises: write tests/variants/ch{number}.py"
    spec = importlib.util.spec_from_file_location(f"variants_ch{number}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.RIGHT, module.WRONG
