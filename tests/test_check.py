"""The learner's checks accept right answers, reject typical wrong ones, and give nothing away.

tests/variants/chNN.py holds RIGHT and WRONG: exercise → functions. Every exercise of every lesson
has at least three right ones and five wrong ones.
"""

import importlib.util
import traceback
from pathlib import Path

import numpy as np
import pytest
from _lesson import lessons

from circuitbook import check as checks
from circuitbook.check import check, checker, near

HERE = Path(__file__).resolve().parent
LESSONS = lessons(HERE.parent / "scripts")
EXERCISES = [(lesson.number, e.name) for lesson in LESSONS for e in lesson.exercises]


def variants(number):
    path = HERE / "variants" / f"ch{number}.py"
    assert path.is_file(), f"chapter {number} has exercises: write tests/variants/ch{number}.py"
    spec = importlib.util.spec_from_file_location(f"variants_ch{number}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.RIGHT, module.WRONG


# ---- every exercise of the course ---------------------------------------------------------------


@pytest.mark.parametrize(("number", "name"), EXERCISES)
def test_right_answers_are_accepted(number, name, capsys):
    right = variants(number)[0].get(name, [])
    assert len(right) >= 3, f"{name}: three right answers, written in different ways"
    assert len({fn.__code__.co_code for fn in right}) == len(right), f"{name}: two are the same"
    for fn in right:
        check(name, fn)


@pytest.mark.parametrize(("number", "name"), EXERCISES)
def test_wrong_answers_are_rejected(number, name, capsys):
    wrong = variants(number)[1].get(name, [])
    assert len(wrong) >= 5, f"{name}: five typical wrong answers"
    for fn in wrong:
        try:
            check(name, fn)
        except AssertionError as error:
            assert len(str(error)) > 20, f"{name}: {fn.__name__} is rejected without words"
        else:
            pytest.fail(f"{name}: the wrong answer {fn.__name__} was accepted")


def test_variants_and_checkers_have_an_exercise():
    known = {name for _, name in EXERCISES}
    for path in sorted((HERE / "variants").glob("ch*.py")):
        right, wrong = variants(path.stem[2:])
        assert set(right) | set(wrong) <= known, path.name
    for lesson in LESSONS:
        registered = {n for n in checks.names(lesson.number) if not n.startswith("97.")}
        assert registered == {e.name for e in lesson.exercises}


# ---- the machinery ------------------------------------------------------------------------------

SECRET = 41.75


@pytest.fixture
def mean(monkeypatch):
    monkeypatch.setattr(checks, "_checkers", {})

    @checker("97.mean")
    def laws(fn):
        yield "the mean of equal numbers is that number", lambda: near(fn([SECRET] * 3), SECRET)
        yield "doubling doubles", lambda: near(fn([2.0, 4.0]), 2 * fn([1.0, 2.0])), "Divide last."

    return "97.mean"


def right(xs):
    return sum(xs) / len(xs)


def test_a_right_answer_is_told_what_it_obeys(mean, capsys):
    check(mean, right)
    assert capsys.readouterr().out.splitlines() == [
        "✓ the mean of equal numbers is that number",
        "✓ doubling doubles",
        "97.mean: all 2 checks passed",
    ]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda xs: 1.0, "the mean of equal numbers"),
        (lambda xs: xs[0] if len(set(xs)) == 1 else 3.0, "doubling doubles.\nDivide last."),
        (lambda xs: None, "the mean of equal numbers"),
        (lambda xs: float("nan"), "the mean of equal numbers"),
        (
            lambda xs: xs.mean(),
            "stopped with AttributeError: 'list' object has no attribute 'mean'",
        ),
        (lambda xs, ys: 1.0, "stopped with TypeError"),
        (lambda xs: [][0], "stopped with IndexError"),
    ],
)
def test_a_wrong_answer_is_told_which_law_it_breaks(mean, answer, words):
    with pytest.raises(AssertionError) as error:
        check(mean, answer)
    assert str(error.value).startswith("97.mean: not yet") and words in str(error.value)
    shown = "".join(traceback.format_exception(error.value))
    assert "41.75" not in shown and "SECRET" not in shown


def test_no_answer_yet_stays_not_implemented(mean):
    def empty(xs):
        raise NotImplementedError("secret 41.75")

    with pytest.raises(NotImplementedError, match="97.mean has no answer yet") as error:
        check(mean, empty)
    assert "41.75" not in "".join(traceback.format_exception(error.value))


def test_an_error_before_the_first_law_is_told_too(monkeypatch):
    monkeypatch.setattr(checks, "_checkers", {})

    @checker("97.early")
    def laws(fn):
        out = fn(1)
        yield "it is one", lambda: out == 1

    with pytest.raises(AssertionError, match="stopped with ZeroDivisionError"):
        check("97.early", lambda x: x / 0)
    with pytest.raises(NotImplementedError):
        check("97.early", lambda x: (_ for _ in ()).throw(NotImplementedError))


def test_a_checker_without_laws_or_a_second_one_is_an_error(monkeypatch):
    monkeypatch.setattr(checks, "_checkers", {})

    @checker("97.empty")
    def laws(fn):
        yield from ()

    with pytest.raises(RuntimeError, match="no law"):
        check("97.empty", right)
    with pytest.raises(ValueError, match="97.empty"):
        checker("97.empty")(right)
    with pytest.raises(KeyError, match="97.other"):
        check("97.other", right)


def test_near():
    torch = pytest.importorskip("torch")
    assert near(1.0, 1.0 + 1e-7) and not near(1.0, 1.0 + 1e-5) and near(1.0, 1.1, 0.2)
    assert near(np.eye(2), [[1, 0], [0, 1]]) and near(torch.ones(2), np.ones(2))
    assert near(torch.tensor(1.0), 1) and near([1j], [1j])
    for bad in (float("nan"), None, "1", [1.0], np.ones((1, 1)), torch.ones(3)):
        assert not near(bad, 1.0), bad
    assert not near([1, 2, 3], [1, 2]) and not near(1.0, [1.0]) and not near(1.0, float("nan"))
    assert not near(float("inf"), float("inf"))
