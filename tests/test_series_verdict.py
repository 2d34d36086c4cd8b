"""Kinds and tolerances: what agrees, what does not, and what nobody may judge."""

import math

import pytest

from circuitbook.series import show
from circuitbook.series.reference import Entry
from circuitbook.series.verdict import WIDE, allowed, compare, gap, tolerance_words, unlike


def entry(kind, value, tol=None):
    return Entry("a.b", value, kind, "a test", tol)


def states(kind, theirs, ours, tol=None, judged=True):
    found = compare(entry(kind, theirs, tol), ours, judged=judged)
    return {".".join(f.path): f.ok for f in found}


@pytest.mark.parametrize(
    "kind, theirs, ours, tol, ok",
    [
        ("exact", 1050624, 1050624, None, True),
        ("exact", 3, 3.0, None, True),  # results keep some whole numbers as floats
        ("exact", 1050624, 1050620, None, False),  # six digits are not enough for a count
        ("exact", [[1, 2], [0, 1]], [[1, 2], [0, 1]], None, True),
        ("exact", [[1, 2], [0, 1]], [[1, 0], [2, 1]], None, False),  # transposed
        ("exact", [[1, 2], [0, 1]], [1, 2, 0, 1], None, False),
        ("exact", "10 of 12", "9 of 12", None, False),
        ("closed_form", 0.667, 0.666504, 0.0005, True),
        ("closed_form", 0.667, 0.6665, 0.0005, True),  # the border itself
        ("closed_form", 0.667, 0.66649, 0.0005, False),
        ("closed_form", -0.159, 0.159, 0.0005, False),  # a lost sign
        ("closed_form", 0.0, 0.0, 0, True),
        ("closed_form", 0.0, 1e-9, 0, False),
        ("closed_form", [3, 0, 0], [3.0, 0.0, -0.0], 1e-6, True),
        ("closed_form", [3, 0, 0], [3.0, 0.0], 1e-6, False),
        ("readout", [[" Sally", 0.294]], [[" Sally", 0.297]], 0.005, True),
        ("readout", [[" Sally", 0.294]], [[" Sally", 0.300]], 0.005, False),
        ("readout", [[" Sally", 0.294]], [["Sally", 0.294]], 0.005, False),  # the space counts
        ("readout", ["0.3", 0.28], ["0.4", 0.28], 0.01, False),
        ("readout", 3, 3.0, 0, True),
        ("readout", 3, 4, 0, False),  # no tolerance is one, too
        ("external", [0.9, 0.1], [0.91, 0.11], 0.02, True),
        ("external", [0.9, 0.1], [0.1, 0.9], 0.02, False),
        ("external", 3.56, 99.0, None, None),
    ],
)
def test_a_value_agrees_inside_the_tolerance_of_its_kind(kind, theirs, ours, tol, ok):
    assert states(kind, theirs, ours, tol) == {"": ok}


def test_a_training_outcome_is_judged_by_structure_and_named_tolerances():
    theirs = {"represented": 4, "loss": 0.1, "norms": [1.0, 0.0], "gap_degrees": [71, 73]}
    tol = {"loss_rel": 0.03, "gap_abs": 3}
    ours = {"represented": 4, "loss": 0.1029, "norms": [0.0, 1.0], "gap_degrees": [69, 76]}
    good = {"represented": True, "loss": True, "norms": None, "gap_degrees": True}
    assert states("stochastic", theirs, ours, tol) == good
    for name, wrong in (("represented", 5), ("loss", 0.1031), ("gap_degrees", [67.9, 73])):
        found = states("stochastic", theirs, ours | {name: wrong}, tol)
        assert found == good | {name: False}
    lower = states("stochastic", theirs, ours | {"loss": 0.0969}, tol)
    assert lower["loss"] is False, "the tolerance has two sides"
    echo = {"leak": [0.14, 0.18]}
    assert states("stochastic", echo, {"leak": [0.1, 0.2]}, {"abs": 0.05}) == {"leak": True}
    assert states("stochastic", echo, {"leak": [0.1, 0.24]}, {"abs": 0.05}) == {"leak": False}


def test_settings_of_a_run_are_structure_and_counts_that_come_out_are_not():
    theirs = {"latents": 40, "l1": 0.3, "steps": 15000, "batch": 4096, "cos_gt_0.99": 32}
    assert states("stochastic", theirs, theirs | {"cos_gt_0.99": 38})["cos_gt_0.99"] is None
    for name in ("latents", "l1", "steps", "batch"):
        assert states("stochastic", theirs, theirs | {name: 7})[name] is False, name


def test_a_mean_is_judged_by_two_errors_of_the_difference():
    theirs = {"score": -1.682, "plus_minus": 0.3, "loss_50": 5.5}
    near = {"score": -1.682 + 0.99, "plus_minus": 0.4, "loss_50": 3.0}  # 2 · √(0.3² + 0.4²) = 1
    assert states("statistic", theirs, near) == {"score": True, "plus_minus": None, "loss_50": None}
    assert states("statistic", theirs, near | {"score": -1.682 - 1.01})["score"] is False
    assert states("statistic", theirs, {"score": -1.682})["score"] is None  # no error, no verdict


@pytest.mark.parametrize(
    "published, ours, ok, why",
    [
        (-0.682, -0.682, None, WIDE),  # 2 · √(0.3² + 0.4²) = 1 reaches from the score over zero
        (-1.0, -0.5, None, WIDE),  # the border: zero itself would agree
        (-1.01, -0.5, True, ""),
        (0.682, 0.0, None, WIDE),
        (-0.682, 0.4, False, ""),  # so wide an error can still not explain this
    ],
)
def test_a_score_that_zero_would_agree_with_never_agrees(published, ours, ok, why):
    theirs = {"score": published, "plus_minus": 0.3}
    found = compare(entry("statistic", theirs), {"score": ours, "plus_minus": 0.4}, judged=True)
    assert (found[0].ok, found[0].why) == (ok, why)


def test_what_one_side_lacks():
    theirs = {"at_50": [5.0], "score": -0.5}
    assert states("closed_form", theirs, {"score": -0.5}, 1e-6) == {"at_50": False, "score": True}
    more = states("closed_form", theirs, theirs | {"error": 0.1}, 1e-6)
    assert more == {"at_50": True, "score": True, "error": None}
    assert states("closed_form", theirs, -0.5, 1e-6)["score"] is False  # a number for a group


def test_another_model_is_never_judged():
    assert states("exact", 15, 24, judged=False) == {"": None}
    assert states("readout", {"a": 1.0}, {"a": 9.0}, 0.1, judged=False) == {"a": None}


def test_nothing_is_judged_by_a_rule_that_nobody_stated():
    with pytest.raises(ValueError, match="'guess' is not known; known are exact"):
        allowed(entry("guess", 1), (), 1)
    with pytest.raises(ValueError, match="closed form needs a tolerance"):
        compare(entry("closed_form", 1.0), 1.0, judged=True)


def test_the_gap_is_the_largest_difference():
    assert gap([[1, 2], [3, 4]], [[1, 2.5], [3, 3.75]]) == 0.5
    assert gap([], []) == 0
    for other in ([1], [1, 2, 3], "12", None, [1, "2"], [1, math.nan]):
        assert gap([1, 2], other) == math.inf, other


@pytest.mark.parametrize(
    "theirs, ours, words",
    [
        (1.5, math.nan, "is no number"),
        (1.5, math.inf, "is no number"),
        (1.5, None, "is no number"),
        (1.5, "1.5", "is no number"),
        (1.5, [1.5], "has another shape"),
        ([1.5, 2], [1.5, math.nan], "holds what is no number"),
        ([[1], [2]], [[1], [math.nan]], "holds what is no number"),
        ([1, 2], [1], "has another shape"),
        ([1, 2], 1, "has another shape"),
        (["a", 1], [1, "a"], "has another shape"),
        ("a", "b", "has another word"),
        ([["a", 1], ["b", 2]], [["a", 9], ["c", 2]], "has another word"),
    ],
)
def test_where_no_gap_can_be_told_the_page_says_what_is_there(theirs, ours, words):
    assert unlike(theirs, ours) == words
    found = compare(entry("readout", {"a": theirs}, 0.5), {"a": ours}, judged=True)
    assert (found[0].ok, found[0].why) == (False, words)


@pytest.mark.parametrize(
    "theirs, ours, words",
    [
        ({"a": 1, "b": 2}, {"b": 2}, "is missing"),
        ({"a": {"c": 1}, "b": 2}, {"b": 2}, "is missing"),
        ({"a": {"c": 1}, "b": 2}, {"a": 1, "b": 2}, "has another shape"),
        ({"a": 1, "b": 2}, {"a": {"c": 1}, "b": 2}, "has another shape"),
        ({"a": 1}, 1, "has another shape"),
        (1, {"a": 1}, "has another shape"),
        (1, {}, "is missing"),
    ],
)
def test_a_part_that_is_missing_is_no_part_of_another_shape(theirs, ours, words):
    found = compare(entry("readout", theirs, 0.5), ours, judged=True)
    assert (found[0].ok, found[0].why) == (False, words)


@pytest.mark.parametrize(
    "kind, tol, words",
    [
        ("exact", None, "equal"),
        ("closed_form", 0, "equal"),
        ("closed_form", 1e-6, "±\u00a01e-6"),
        ("readout", 0.005, "±\u00a00.005"),
        ("stochastic", {"loss_rel": 0.05, "gap_abs": 3}, "loss ±\u00a05 %, gaps ±\u00a03°"),
        ("stochastic", {"abs": 0.05}, "±\u00a00.05"),
        ("external", None, "none stated"),
        ("statistic", None, "score within two standard errors of the difference"),
    ],
)
def test_a_tolerance_is_said_in_words(kind, tol, words):
    assert tolerance_words(entry(kind, 1.0, tol)) == words


@pytest.mark.parametrize(
    "value, digits, text",
    [
        (1050624, None, "1,050,624"),
        (0.99998, None, "0.99998"),
        (0.0, None, "0"),
        (-0.0001, 3, "0"),
        (0.666504, 4, "0.6665"),
        (21.8e9, None, "21,800 M"),
        (409600.0, 3, "0.4096 M"),
        ([0.997, 1.0], None, "0.997, 1"),
        ([[1, 2, 0], [0, 1, 1]], None, "(1, 2, 0) (0, 1, 1)"),
        ([[" Sally", 0.294], ["ie", 0.1]], None, "␣Sally\u00a00.294, ie\u00a00.1"),
        ([[" New", " York", 0.715]], None, "␣New → ␣York\u00a00.715"),
        (["1.6", 0.4], None, "head 1.6: 0.4"),
        (["9.9", "10.0"], None, "9.9, 10.0"),
        ([[0.015] * 8] * 7 + [[0.124] * 8], 3, "8 × 8 numbers, 0.015 to 0.124"),
        (None, None, ""),
    ],
)
def test_a_value_is_shown_on_one_line(value, digits, text):
    assert show.value(value, digits) == text
