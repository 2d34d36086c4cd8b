"""Each column of the page shows its own number; what may not be judged is not, at any depth."""

import json

import pytest

from circuitbook.series import page
from circuitbook.series.reference import Entry
from circuitbook.series.rows import Row, Subject


@pytest.fixture
def build(project):
    """The page of a few made-up rows of chapter 07: `build(rows, entries, course=…, …)`."""

    def made(rows, listed, **saved):
        for place, values in saved.items():
            models = "published" if place == "published" else "course"
            root = project / "build" if place in {"quick", "own"} else project
            part = {"quick": "quick", "own": "results"}.get(place, "results")
            envelope = {
                "schema": 1, "chapter": "07_toy", "config": {}, "kinds": {}, "claims": [],
                "made_with": {}, "data": {"series": values},
            }  # fmt: skip
            path = root / part / models / "07_toy.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(envelope), encoding="utf-8")
        return page.build(listed, [Subject("Toy", "A toy.", tuple(rows))])

    return made


def lines(built):
    """Name of a line → the line, of the first section."""
    return {line.label: line for line in built.sections[0].lines}


def external(value, tol=0.05):
    return Entry("toy.a", value, "external", "a test", tol)


# ---- columns -------------------------------------------------------------------------------------


def test_each_column_shows_its_own_number(build):
    theirs = external(0.25)
    found = lines(build([Row("toy.a", "a", "07")], [theirs], course={"toy.a": 0.5},
                        published={"toy.a": 0.26}))["a"]  # fmt: skip
    assert (found.series, found.published, found.course) == ("0.25", "0.26", "0.5")
    assert (found.state, found.said) == ("ok", ())


def test_each_named_part_shows_its_own_number_in_each_column(build):
    theirs = external({"one": 0.25, "two": 2.5})
    found = lines(build(
        [Row("toy.a", "a", "07")], [theirs], course={"toy.a": {"one": 0.5, "two": 5.5}},
        published={"toy.a": {"one": 0.26, "two": 2.51}},
    ))  # fmt: skip
    shown = {k: (v.series, v.published, v.course) for k, v in found.items()}
    assert shown == {
        "a": ("", "", ""), "one": ("0.25", "0.26", "0.5"), "two": ("2.5", "2.51", "5.5"),
    }  # fmt: skip


def test_a_long_table_belongs_to_the_one_who_measured_it(build):
    theirs, ours, course = ([[k / 10] * 5 for _ in range(5)] for k in (1, 2, 3))
    built = build([Row("toy.a", "a", "07")], [external(theirs)], course={"toy.a": course},
                  published={"toy.a": ours})  # fmt: skip
    found = {t.title: t.rows[0][0] for t in built.sections[0].tables}
    assert found == {
        "a: series or public": "0.10", "a: ours, published models": "0.20",
        "a: ours, no download": "0.30",
    }  # fmt: skip


# ---- judging -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shown, state", [(("heads",), "ok"), (("name_mover",), "off"), ((), "off")]
)
def test_a_shown_field_is_unjudged_with_all_that_is_inside(build, shown, state):
    theirs = external({"heads": {"name_mover": ["9.9"], "induction": ["5.5"]}, "drop": 0.5})
    ours = {"heads": {"name_mover": ["1.1"], "induction": ["2.2"]}, "drop": 0.51}
    row = Row("toy.a", "a", "07", none="another task", shown=shown)
    built = build([row], [theirs], published={"toy.a": ours})
    assert lines(built)["a"].state == state
    assert lines(built)["heads · name mover"].published == "1.1"
    if state == "ok":
        assert lines(built)["a"].verdict == "published weights: agrees where judged"
        ours["drop"] = 0.6
        again = lines(build([row], [theirs], published={"toy.a": ours}))["a"]
        assert again.verdict == "published weights: DIFFERS: drop by 0.1, allowed 0.05"


@pytest.mark.parametrize("one, two, by", [(3, 9, "1"), (9, 3, "7")])
def test_of_two_fields_that_differ_the_first_is_named(build, one, two, by):
    # Fields may have different units, so no gap is larger than another one.
    theirs = Entry("toy.a", {"good": 1, "one": 2, "two": 2}, "exact", "a test")
    built = build([Row("toy.a", "a", "07", "same")], [theirs],
                  course={"toy.a": {"good": 1, "one": one, "two": two}})  # fmt: skip
    found = lines(built)
    assert found["a"].verdict == f"DIFFERS: one by {by}, allowed 0"
    assert [found[k].verdict for k in ("good", "one", "two")] == ["agrees", "differs", "differs"]
    assert built.problems == [f"toy.a: {found['a'].verdict}"]


def test_a_number_with_two_rows_is_a_problem_and_stands_once(build):
    row = Row("toy.a", "a", "07", "same")
    built = build([row, Row("toy.a", "again", "07", "same")], [external(0.25)],
                  course={"toy.a": 0.25})  # fmt: skip
    assert built.problems == ["toy.a has two rows"]
    assert list(lines(built)) == ["a"] and sum(built.counts.values()) == 1


# ---- where the number comes from -----------------------------------------------------------------


@pytest.mark.parametrize("switch, number", [(None, "0.1"), ("QUICK", "0.3"), ("RECOMPUTE", "0.2")])
def test_a_switch_decides_whose_number_is_shown_when_all_are_there(
    build, monkeypatch, switch, number
):
    if switch:
        monkeypatch.setenv(switch, "1")
    row = Row("toy.a", "a", "07", "same")
    built = build([row], [external(0.1, None)], course={"toy.a": 0.1}, own={"toy.a": 0.2},
                  quick={"toy.a": 0.3})  # fmt: skip
    assert lines(built)["a"].course == number


def test_without_a_rehearsal_quick_shows_the_evidence_and_never_an_own_run(build, monkeypatch):
    monkeypatch.setenv("QUICK", "1")
    built = build([Row("toy.a", "a", "07", "same")], [external(0.1, None)],
                  course={"toy.a": 0.1}, own={"toy.a": 0.2})  # fmt: skip
    assert lines(built)["a"].course == "0.1"
