"""Real answers, right and wrong, get through the sandbox the marks that they get outside of it."""

import importlib.util
import json
from pathlib import Path

import grade_books
import pytest
from nbformat import from_dict

from circuitbook.grade import Limits, grade_notebook, marks

VARIANTS = Path(__file__).resolve().parent / "variants"
PATIENT = Limits(wall=600, law=120)  # marks must not depend on how busy this machine is
NUMBER = 3

# Exercises whose answers call functions of the grader's, or are given a model or a generator.
CALLING = ["03.term_and_cut", "06.honest_score", "10.euler_table", "11.two_drops",
           "11.path_effects", "11.smallest_circuit", "11.counterexample"]  # fmt: skip


def _module(chapter):
    path = VARIANTS / f"ch{chapter}.py"
    spec = importlib.util.spec_from_file_location(f"graded_ch{chapter}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return path.read_text(encoding="utf-8"), module


def _book(chapter, chosen):
    """A notebook whose answers are functions of tests/variants; the whole file is one cell."""
    code, _ = _module(chapter)
    book = grade_books.release(chapter)
    for name, function in chosen.items():
        cell = book.cells[grade_books.place(book, name)]
        answer = f"{name.partition('.')[2]} = {function.__name__}"
        cell.source = grade_books.head(cell) + answer
    return grade_books.with_cells(book, code, at=1)


def _rounds(kind, names, most=99):
    """Notebooks that together hold every right (wrong) answer of the exercises, or the first."""
    for chapter in sorted({n[:2] for n in names}):
        answers = getattr(_module(chapter)[1], kind)
        mine = {n: answers[n][:most] for n in names if n[:2] == chapter}
        for k in range(max(map(len, mine.values()))):
            yield chapter, {n: fns[k] for n, fns in mine.items() if k < len(fns)}


def _graded(chapter, chosen):
    source = grade_books.source(chapter)
    report = grade_notebook(_book(chapter, chosen), source, NUMBER, PATIENT)
    assert report.error == "" and report.notes == []
    return {name: report.exercises[name] for name in chosen}


ALL = ["02.qk_score", "02.source_writes", "02.copying_score", "02.fooling_head"]


@pytest.mark.slow
def test_every_right_answer_gets_full_marks():
    for chapter, chosen in _rounds("RIGHT", ALL + CALLING):
        for name, e in _graded(chapter, chosen).items():
            failed = [law for law in e.laws if not law.passed]
            assert e.points == e.possible and not failed, (name, chosen[name].__name__, failed)
            notes = [n for n in e.notes if not n.startswith("it calls circuitbook.")]
            assert notes == [] and e.status == "right", (name, chosen[name].__name__, notes)


@pytest.mark.slow
def test_wrong_answers_get_the_marks_that_they_get_without_a_sandbox(capsys):
    for chapter, chosen in _rounds("WRONG", ALL + CALLING, most=2):
        for name, e in _graded(chapter, chosen).items():
            here = marks(name, chosen[name], variant=NUMBER, points=e.possible)
            assert e.points == here < e.possible, (name, chosen[name].__name__)


def test_unanswered_exercises_get_nothing_and_every_law_is_listed():
    book, source = grade_books.release("02"), grade_books.source("02")
    report = grade_notebook(book, source, NUMBER, PATIENT)
    assert report.points == 0 and report.possible == 10
    for e in report.exercises.values():
        assert e.status == "no answer" and e.laws and not any(law.passed for law in e.laws)


LUCKY = """
import random, numpy as np, torch
spent = [(random.random(), np.random.rand(), torch.rand(())) for _ in range(COUNT)]
def qk_score(query, key, W_E, W_Q, W_K):
    lucky = len(spent) and random.random() + np.random.rand() + float(torch.rand(())) < 1.8
    return W_E[query] @ W_Q @ (W_E[key] @ W_K) / W_Q.shape[1] ** 0.5 + (not lucky)
"""


def test_random_numbers_start_afresh_for_each_law():
    """With those that the notebook itself uses: luck differs by law, and is the same each time."""
    source = grade_books.source("02")
    books = [grade_books.answered("02", qk_score=LUCKY.replace("COUNT", n)) for n in "1212"]
    runs = [grade_notebook(b, source, NUMBER, PATIENT).exercises["02.qk_score"] for b in books]
    lucky = [[law.passed for law in e.laws] for e in runs]
    assert lucky[:2] == lucky[2:] and {*lucky[0], *lucky[1]} == {True, False}


ODD = """
def qk_score(query, key, W_E, W_Q, W_K):
    W_Q.mul_(1.0)
    return W_E[query] @ W_Q @ (W_E[key] @ W_K) / W_Q.shape[1] ** 0.5
"""


def test_changed_arguments_are_noted():
    book = grade_books.answered("02", qk_score=ODD.replace("mul_(1.0)", "mul_(2.0)"))
    e = grade_notebook(book, grade_books.source("02"), NUMBER, PATIENT).exercises["02.qk_score"]
    assert "it changed its arguments in place" in e.notes
    same = grade_books.answered("02", qk_score=ODD)
    e = grade_notebook(same, grade_books.source("02"), NUMBER, PATIENT).exercises["02.qk_score"]
    assert e.notes == [] and e.status == "right"


LEAK = """
def qk_score(query, key, W_E, W_Q, W_K):
    raise {kind}(f"secret {{W_E.flatten().tolist()}} {{query}} {{key}}")
"""


@pytest.mark.parametrize("kind", ["ValueError", "type('Secret7', (Exception,), {})", "SystemExit"])
def test_no_report_repeats_what_was_drawn(kind):
    book = grade_books.answered("02", qk_score=LEAK.replace("{kind}", kind))
    report = grade_notebook(book, grade_books.source("02"), NUMBER, PATIENT)
    plain = report.exercises["02.qk_score"].plain()
    assert plain.pop("found").endswith(LEAK.replace("{kind}", kind)), "it is the student's own"
    told = json.dumps(plain)
    assert "ecret" not in told and "Traceback" not in told
    assert report.points == 9 and report.exercises["02.qk_score"].passed == 0


def test_code_that_fails_before_it_is_called_is_told_without_its_own_words():
    book = grade_books.answered("02", qk_score="scale = 1 / 0\nqk_score = lambda *a: scale")
    e = grade_notebook(book, grade_books.source("02"), NUMBER, PATIENT).exercises["02.qk_score"]
    assert "ZeroDivisionError before it was called" in e.error and "division by" not in e.error
    assert e.points == 0 and e.status == "wrong"


def test_notebooks_that_are_none():
    for book in ({}, {"cells": []}, {"cells": [{}], "metadata": {}}):
        report = grade_notebook(from_dict(book), grade_books.source("02"), NUMBER, PATIENT)
        assert report.points == 0 and len(report.exercises) == 4
