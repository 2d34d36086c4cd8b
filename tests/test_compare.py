"""Two runs agree by the kind of each number; the commands say so and exit accordingly."""

import json

import pytest

from circuitbook import results
from circuitbook.claims import atleast, claim
from circuitbook.compare import chapters, compare, main, plain_kinds

CHAPTER = "98_toy"


def failing(new, old, **kinds):
    return [v.path for v in compare(new, old, kinds) if not v.ok]


@pytest.mark.parametrize(
    ("kind", "inside", "outside"),
    [
        ("exact", 2.0, 2.00001),
        ("closed_form", 2.000009, 2.00002),
        (("closed_form", 0.1), 2.09, 2.11),
        ("readout", 2.0019, 2.0025),
        (("readout", 0.1), 2.2, 2.3),
        (("readout", 0, 0.5), 2.49, 2.6),
        (("statistic", "se"), 2.29, 2.31),
        (("statistic", 0.1), 2.2, 2.3),
    ],
)
def test_each_kind_has_its_edge(kind, inside, outside):
    old = {"x": 2.0, "se": 0.3}
    for value, bad in ((2.0, []), (inside, []), (outside, ["x"]), (-2.0, ["x"])):
        assert failing({"x": value, "se": 0.3}, old, x=kind) == bad, (kind, value)


def test_the_larger_of_the_two_sets_the_scale():
    for new, old in ((1.0, 1.1), (1.1, 1.0), (-1.0, -1.1)):
        assert failing({"x": new}, {"x": old}, x=("readout", 0.095)) == []


def test_stochastic_may_be_anything_but_must_be_there():
    assert failing({"x": 9.0}, {"x": 2.0}, x="stochastic") == []
    assert failing({}, {"x": 2.0}, x="stochastic") == ["x"]


def test_defaults_numbers_are_readouts_and_words_are_exact():
    old = {"n": 1000, "f": 1.0, "small": 1e-7, "word": "a", "flag": True, "none": None}
    assert failing({**old, "n": 1001, "f": 1.0005, "small": -3e-7}, old) == []
    new = {"n": 1002, "f": 1.01, "small": 1e-4, "word": "b", "flag": False, "none": 0}
    assert failing(new, old) == list(old)
    assert failing({"flag": 1}, {"flag": True}) == ["flag"]
    assert failing({"n": 5}, {"n": 6}) == ["n"]


def test_paths_patterns_and_errors_that_go_with_them():
    old = {"loss": {"a": [1.0, 2.0]}, "se": {"a": [0.1, 0.5]}, "other": [1.0]}
    new = {"loss": {"a": [1.2, 2.4]}, "se": {"a": [0.1, 0.5]}, "other": [1.0]}
    kinds = {"loss.*": ("statistic", "se.*")}
    assert [v.path for v in compare(new, old, kinds) if not v.ok] == ["loss.a.0"]
    with pytest.raises(KeyError, match=r"wrong\.a\.0"):
        compare(new, old, {"loss.*": ("statistic", "wrong.*")})
    # The first pattern that matches decides.
    assert [v.kind for v in compare(old, old, {"other.0": "exact", "other.*": "stochastic"})][
        -1
    ] == ("exact")


def test_a_change_of_shape_is_a_disagreement():
    assert failing({"a": [1, 2, 3]}, {"a": [1, 2]}) == ["a.2"]
    assert failing({"a": [1]}, {"a": [1, 2]}) == ["a.1"]
    assert failing({"a": 1}, {"a": {"b": 1}}) == ["a.b", "a"]


def test_the_most_specific_pattern_is_taken_whatever_the_order():
    """Saved kinds are sorted by name, so `*` comes first in a file."""
    kinds = {"*": ("readout", 1e-2), "*.seconds.*": "stochastic", "a.*": ("closed_form", 0.5)}
    new = {"a": {"seconds": {"b": 9.0}, "c": 1.4}, "d": 1.0}
    old = {"a": {"seconds": {"b": 1.0}, "c": 1.0}, "d": 2.0}
    for order in (kinds, dict(sorted(kinds.items())), dict(reversed(kinds.items()))):
        verdicts = {v.path: (v.kind, v.ok) for v in compare(new, old, plain_kinds(order))}
        assert verdicts == {
            "a.seconds.b": ("stochastic", True),
            "a.c": ("closed_form", True),
            "d": ("readout", False),
        }


@pytest.mark.parametrize("bad", ["close", ("near", 1), [], "statistic", ("statistic", 1, 2)])
def test_unknown_kinds_are_refused(bad):
    with pytest.raises(ValueError, match="kinds"):
        plain_kinds({"x": bad})


# ---- the commands -------------------------------------------------------------------------------


@pytest.fixture
def saved(project):
    """Writes a measurement, or evidence, without a lesson."""
    (project / "scripts" / f"{CHAPTER}.py").write_text("")

    def save(x=1.0, holds=True, label="measurement", accept=False):
        c = claim("toy.a", "It is {value}.", label=label, holds=atleast(x, 0.5 if holds else 9))
        path = results.built_path(CHAPTER)
        path.unlink(missing_ok=True)
        results.measured(CHAPTER, lambda cfg: {"data": {"x": x}, "claims": [c]}, {})
        if accept:
            results.accept(CHAPTER)

    # An answer that is not taken from the evidence: each call measures.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RECOMPUTE", "force")
        patch.setattr(results, "code_hash", lambda compute: "code")
        yield save


def test_compare_says_agree_or_what_disagrees(saved, capsys):
    saved(1.0)
    assert main(["compare"]) == 0
    assert "no committed evidence yet" in capsys.readouterr().out
    saved(1.0, accept=True)
    saved(1.0004)
    assert main(["compare"]) == 0
    assert "98_toy: agrees" in capsys.readouterr().out
    saved(1.1)
    assert main(["compare"]) == 1
    out = capsys.readouterr().out
    assert "1 DISAGREE" in out and "x: 1.1 now, 1.0 before (readout" in out


def test_a_claim_that_changes_its_state_disagrees(saved, capsys):
    saved(accept=True)
    saved(holds=False)
    assert main(["compare"]) == 1
    assert "toy.a: False now, True before" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("holds", "label", "status"),
    [(True, "measurement", 0), (False, "measurement", 1), (False, "conjecture", 0)],
)
def test_claims_are_all_printed_and_a_failing_one_counts(saved, capsys, holds, label, status):
    saved(holds=holds, label=label)
    assert main(["claims"]) == status
    out = capsys.readouterr().out
    state = "holds" if holds else "FAILS"
    assert f"toy.a [{label} · {state}] It is 1.0." in out and "1 claims" in out


def test_no_claims_at_all_is_not_success(project, capsys):
    assert main(["claims"]) == 1


def test_evidence_edited_by_hand_is_noticed(saved, capsys):
    saved(accept=True)
    path = results.evidence_path(CHAPTER)
    original = path.read_text()
    for old, new in (
        ("It is 1.0.", "It is 2.0."),
        ('"value": 1.0', '"value": 0.1'),
        ('"holds": true', '"holds": false'),
    ):
        assert old in original
        path.write_text(original.replace(old, new))
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("RECOMPUTE")
            assert main(["claims"]) == 1, new
    assert "NOT AS SAVED" in capsys.readouterr().out


def test_claims_say_when_the_weights_have_changed(saved, project, capsys):
    (project / "weights").mkdir()
    manifest = project / "weights" / "MANIFEST.json"
    manifest.write_text(json.dumps({"gelu-1l": {"sha256": "aa"}}))
    results.note_weights("gelu-1l", "aa")
    saved()
    assert main(["claims"]) == 0
    manifest.write_text(json.dumps({"gelu-1l": {"sha256": "bb"}}))
    assert main(["claims"]) == 1
    assert "OUT OF DATE: the weights of gelu-1l changed" in capsys.readouterr().out


def test_a_rehearsal_decides_nothing(saved, monkeypatch, capsys):
    monkeypatch.setenv("QUICK", "1")
    saved(holds=False)
    assert main(["claims"]) == 0
    assert main(["compare"]) == 0
    assert main(["accept"]) == 2
    assert "FAILS" in capsys.readouterr().out


def test_an_unknown_chapter_is_named(saved, capsys):
    assert main(["claims", "77_none"]) == 2
    assert "77_none" in capsys.readouterr().out


def test_measure_runs_a_lesson_once(toy, capfd):
    assert main(["measure"]) == 0
    assert "running the lesson" in capfd.readouterr().out
    assert main(["measure"]) == 0
    assert "nothing changed" in capfd.readouterr().out
    lesson = toy / "scripts" / "98_toy.py"
    lesson.write_text(lesson.read_text() + "\n# only a comment\n")
    assert main(["measure"]) == 0
    assert "nothing changed" in capfd.readouterr().out
    assert not results.evidence_path(CHAPTER).exists()
    lesson.write_text(lesson.read_text() + "\nraise SystemExit(3)\n")
    assert main(["measure"]) == 1
    assert "stopped with an error" in capfd.readouterr().out


def test_the_claims_of_the_course_are_in_order(monkeypatch, capsys):
    for name in ("CIRCUITBOOK_ROOT", "QUICK", "MODELS", "RECOMPUTE"):
        monkeypatch.delenv(name, raising=False)
    if not any(results.evidence_path(c).is_file() for c in chapters()):
        pytest.skip("no evidence was accepted yet")
    assert main(["claims"]) == 0, capsys.readouterr().out
