"""Grading: answers by name, run apart from the grader, checked by laws on draws nobody knows.

report = grade_notebook(book, source, variant=7, limits=Limits())
marks("02.qk_score", qk_score, variant=7, points=1)      # in this process, without a sandbox
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from circuitbook.grade.report import RULE, ExerciseReport, Law, Limits, Report, earned
from circuitbook.grade.source import GradeError

if TYPE_CHECKING:
    from nbformat import NotebookNode  # takes over a second to import

__all__ = [
    "RULE", "ExerciseReport", "GradeError", "Law", "Limits", "Report", "earned", "grade_notebook",
    "marks",
]  # fmt: skip


def grade_notebook(
    book: NotebookNode,
    source: NotebookNode,
    variant: int | None = None,
    limits: Limits | None = None,
) -> Report:
    """The marks of one submission, whose code runs in processes of its own and nowhere else.

    book: the student's notebook, in any order and state. source: the assignment notebook that
    tells exercises and points. variant: of the hidden draws; None takes the source's own.
    """
    from circuitbook.grade.client import grade

    return grade(book, source, variant, limits or Limits())


def marks(name: str, fn: Callable, *, variant: int, points: float | int) -> float:
    """The points that `fn` earns in exercise `name`; prints the laws that it does not obey.

    For a test cell in a trusted kernel: `fn` runs in this process.
    """
    from circuitbook import check
    from circuitbook.checks.floors import FLOORS

    with check.variant(variant):
        found = [
            Law(law.sentence, law.passed, law.hint or "", law.problem or "")
            for law in check.laws(name, fn)
        ]
    for law in found:
        if not law.passed:
            print(law.words())
    passed = sum(law.passed for law in found)
    if passed < len(found):
        print(RULE)
    return earned(points, passed, len(found), FLOORS.get(name, 0))
