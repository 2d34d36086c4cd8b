"""The learner's checks accept right answers, reject typical wrong ones, and give nothing away.

tests/variants/chNN.py holds RIGHT and WRONG: exercise → functions. Every exercise of every lesson
has at least three right ones and five wrong ones.
"""

import traceback

import numpy as np
import pytest
from right_and_wrong import EXERCISES, HERE, LESSONS, answers

from circuitbook import check as checks
from circuitbook.check import Law, Stopped, check, checker, count, laws, near, untouched, variant
from circuitbook.checks import draws

# ---- every exercise of the course ---------------------------------------------------------------


@pytest.mark.parametrize(("number", "name"), EXERCISES)
def test_right_answers_are_accepted(number, name, capsys):
    right = answers(number)[0].get(name, [])
    assert len(right) >= 3, f"{name}: three right answers, written in different ways"
    assert len({fn.__code__.co_code for fn in right}) == len(right), f"{name}: two are the same"
    for fn in right:
        check(name, fn)


@pytest.mark.parametrize(("number", "name"), EXERCISES)
def test_wrong_answers_are_rejected(number, name, capsys):
    wrong = answers(number)[1].get(name, [])
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
        right, wrong = answers(path.stem[2:])
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


# ---- law by law, on other draws -----------------------------------------------------------------


@pytest.fixture
def total(monkeypatch):
    monkeypatch.setattr(checks, "_checkers", {})

    @checker("97.total")
    def rules(fn):
        x = draws.draw(3)
        yield "nothing sums to zero", lambda: near(fn([]), 0.0)
        yield "it is the sum", lambda: near(fn(x.tolist()), x.sum(), 1e-9), "Add all of them."
        yield (
            "it is the sum of others too",
            lambda: near(fn(draws.draw(2, seed=1)), draws.draw(2, seed=1).sum()),
        )

    return "97.total"


def test_every_law_is_told_and_a_failed_one_does_not_stop_the_rest(total):
    assert count(total) == 3
    assert list(laws(total, sum)) == [
        Law("nothing sums to zero", None, True, None),
        Law("it is the sum", "Add all of them.", True, None),
        Law("it is the sum of others too", None, True, None),
    ]
    assert [law.passed for law in laws(total, lambda xs: sum(xs) if len(xs) else 1)] == [0, 1, 1]
    assert [law.passed for law in laws(total, lambda xs: xs[0] and sum(xs))] == [0, 1, 1]


def test_an_answer_that_knows_the_visible_draws_only_fails_on_others(total):
    seen = [float(draws.draw(3).sum()), float(draws.draw(2, seed=1).sum())]

    def by_heart(xs):
        return [0.0, None, seen[1], seen[0]][len(xs)]

    assert all(law.passed for law in laws(total, by_heart))
    with variant(7):
        assert [law.passed for law in laws(total, by_heart)] == [1, 0, 0]
        with pytest.raises(AssertionError, match="it is the sum"):
            check(total, by_heart)


def test_the_variant_is_that_of_the_call_and_holds_to_the_last_law(total):
    heard = []

    def listen(xs):
        heard.append(list(map(float, xs)))
        return sum(xs)

    with variant(3):
        later = laws(total, listen)
    assert heard == [] and draws.current() == 0
    for _ in later:
        assert draws.current() == 0  # between the laws nothing is left of it
    with variant(3):
        assert heard == [[], draws.draw(3).tolist(), draws.draw(2, seed=1).tolist()]


@pytest.mark.parametrize(
    ("raised", "seen", "graded"),
    [
        (ValueError("at 41.75"), "stopped with ValueError: at 41.75", "stopped with ValueError"),
        (type("Drawn41", (Exception,), {})("41.75"), "an error: 41.75", "stopped with an error"),
        (NotImplementedError("41.75"), checks.NO_ANSWER, checks.NO_ANSWER),
        (Stopped("it did not come back"), "it did not come back", "it did not come back"),
    ],
)
def test_an_error_is_told_but_never_with_what_was_drawn(total, raised, seen, graded):
    def fails(xs):
        raise raised

    assert [law.problem.endswith(seen) for law in laws(total, fails)] == [True] * 3
    with variant(1):
        assert [law.problem.endswith(graded) for law in laws(total, fails)] == [True] * 3
        assert "41" not in str(list(laws(total, fails)))


def test_a_law_may_say_itself_why_it_cannot_be_tested(monkeypatch):
    monkeypatch.setattr(checks, "_checkers", {})

    @checker("97.asks")
    def rules(fn):
        def listen():
            raise Stopped("Your function never asks.")

        yield "it asks", listen

    with pytest.raises(AssertionError, match=r"it asks\.\nYour function never asks\.$"):
        check("97.asks", sum)
    with variant(5):
        assert [law.problem for law in laws("97.asks", sum)] == ["Your function never asks."]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "it returned None"),
        ("abc", "it returned a text of length 3"),
        ([41.75, 1], "it returned a list of length 2"),
        (np.ones((2, 3)), "it returned an array of shape (2, 3)"),
        (41, "it returned a whole number"),
        (object(), "it returned an object"),
    ],
)
@pytest.mark.parametrize("number", [0, 4])
def test_a_value_that_a_law_cannot_use_is_told_by_its_kind(monkeypatch, value, words, number):
    monkeypatch.setattr(checks, "_checkers", {})

    @checker("97.asks")
    def rules(fn):
        yield "its sum is small", lambda: fn(2)["total"].sum() < 5

    if number:  # a size could tell what was drawn
        words = words.partition(" of ")[0]
    with variant(number):
        assert [law.problem for law in laws("97.asks", lambda x: value)] == [words]
        assert list(laws("97.asks", lambda x: x["a"]))[0].problem.startswith(
            "your function stopped with TypeError"
        )
        with pytest.raises(AssertionError, match=r"small\.\nIt returned"):
            check("97.asks", lambda x: value)


def test_a_law_that_forbids_changes_needs_a_call_that_came_back(monkeypatch):
    monkeypatch.setattr(checks, "_checkers", {})

    @checker("97.keeps")
    def rules(fn):
        xs = [3, 1]
        yield "it comes back", lambda: fn(xs) is None
        yield "xs is left as it was", untouched(fn, lambda: xs == [3, 1])

    def changing(xs):
        xs.sort()

    def failing(xs):
        raise ValueError

    class Elsewhere:
        """Stands for a function in another process."""

        changed = False

        def __call__(self, xs):
            self.changed = self.changes

    def passed(fn):
        return [law.passed for law in laws("97.keeps", fn)]

    assert passed(len) == [False, True] and passed(lambda xs: None) == [True, True]
    assert passed(changing) == [True, False] and passed(failing) == [False, False]
    for changes in (False, True):
        stand_in = Elsewhere()
        stand_in.changes = changes
        assert passed(stand_in) == [True, not changes]


def test_none_is_told_also_where_the_law_is_only_false(total):
    assert {law.problem for law in laws(total, lambda xs: None)} == {"it returned None"}
    assert {law.problem for law in laws(total, lambda xs: 5.5)} == {None}


def test_what_cannot_be_reached_is_told_as_such(monkeypatch):
    monkeypatch.setattr(checks, "_checkers", {})

    @checker("97.broken")
    def rules(fn):
        ready = []
        yield "the first", lambda: ready.append(1) or True
        yield "the second", lambda: True
        if ready:
            raise OSError("the checker itself breaks")
        yield "the third", lambda: True
        yield "the fourth", lambda: True

    problems = [law.problem for law in laws("97.broken", sum)]
    assert problems[:2] == [None, None] and problems[3] == "not reached"
    assert "OSError" in problems[2]


def test_laws_are_counted_without_an_answer_or_not_at_all(monkeypatch):
    monkeypatch.setattr(checks, "_checkers", {})

    @checker("97.early")
    def rules(fn):
        out = fn(1)
        yield "it is one", lambda: out == 1

    @checker("97.empty")
    def none(fn):
        yield from ()

    with pytest.raises(RuntimeError, match="97.early calls the answer outside of its tests"):
        count("97.early")
    with pytest.raises(RuntimeError, match="97.empty has no law"):
        laws("97.empty", sum)
    with pytest.raises(KeyError, match="97.other"):
        count("97.other")


def test_variant_zero_draws_the_seeds_themselves_and_others_draw_anew():
    torch = pytest.importorskip("torch")
    g = torch.Generator().manual_seed(5)
    assert draws.draw(4, seed=5).equal(torch.randn(4, generator=g, dtype=torch.float64))
    assert draws.torch_generator(5).initial_seed() == 5
    assert draws.numpy_generator(5).random() == np.random.default_rng(5).random()
    assert draws.pick(4, 10, 20, seed=0) == 4 and draws.shuffled("abc", 0) == ["a", "b", "c"]
    found = set()
    for number in range(4):
        with variant(number):
            found |= {float(draws.draw(1, seed=s)) for s in range(4)}
            found |= {draws.numpy_generator(s).random() for s in range(4)}
            again = draws.draw(9, seed=2)
            assert again.equal(draws.draw(9, seed=2))
            assert number == 0 or 10 <= draws.pick(4, 10, 20, seed=0) <= 20
            assert sorted(draws.shuffled(range(9), 0)) == list(range(9))
    assert len(found) == 32
    with variant(2**70):  # any number will do
        assert draws.draw(1).isfinite()


def test_variants_end_with_their_block_and_are_whole_numbers():
    with variant(2):
        with variant(9):
            assert draws.current() == 9
        assert draws.current() == 2
        with pytest.raises(ZeroDivisionError), variant(4):
            _ = 1 / 0
        assert draws.current() == 2
    assert draws.current() == 0
    for bad in (-1, True):
        with pytest.raises(ValueError, match="whole number"), variant(bad):
            pass
