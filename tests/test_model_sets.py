"""Two model sets, one code path: which set is meant where, and what results say of it."""

import json

import pytest

from circuitbook import claims, paths, results, zoo
from circuitbook.claims import atleast, claim, course_only, line


@pytest.fixture
def published(monkeypatch):
    """MODELS=published, with no file of it on this machine."""
    monkeypatch.setenv("MODELS", "published")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty project in which nothing was measured yet; random weights are forgotten after."""
    (tmp_path / "scripts").mkdir()
    monkeypatch.setenv("CIRCUITBOOK_ROOT", str(tmp_path))
    monkeypatch.setattr(results, "_random", [])
    monkeypatch.setattr(results, "_weights", {})
    for switch in ("QUICK", "RECOMPUTE", "ACCEPT"):
        monkeypatch.delenv(switch, raising=False)
    return tmp_path


def say(id="sets.one", label="measurement", value=1.0):
    """A claim that holds when `value` is at least one."""
    return claim(id, "It is {value:.0f}.", label=label, holds=atleast(value, 1))


# ---- the set that is meant -----------------------------------------------------------------------


def test_a_block_wins_over_the_switch_and_ends(published):
    assert paths.models() == "published" and paths.inside_set() is None
    with paths.model_set("course"):
        assert paths.models() == "course" and paths.inside_set() == "course"
        with paths.model_set("published"):
            assert paths.models() == "published" and paths.inside_set() is None
        assert paths.models() == "course"
    assert paths.models() == "published"
    with pytest.raises(RuntimeError, match="broken"), paths.model_set("course"):
        raise RuntimeError("broken")
    assert paths.models() == "published"


def test_an_unknown_set_is_refused():
    with pytest.raises(ValueError, match="no model set is called 'theirs'; there are course"):
        paths.model_set("theirs").__enter__()


def test_sizes_follow_both_switches(monkeypatch):
    asked = {"quick": {"n": 2}, "published": {"n": 5, "m": 7}}
    for name, quick, wanted in (
        ("course", "0", {}),
        ("course", "1", {"n": 2}),
        ("published", "0", {"n": 5, "m": 7}),
        ("published", "1", {"n": 2, "m": 7}),
    ):
        monkeypatch.setenv("MODELS", name)
        monkeypatch.setenv("QUICK", quick)
        assert paths.sizes(**asked) == wanted
    assert asked["published"] == {"n": 5, "m": 7}, "the caller's own dict must not change"


def test_a_role_without_a_counterpart_says_where_it_is(published):
    with pytest.raises(zoo.WeightsError, match=r"moe-1l has no published counterpart.*model_set"):
        zoo.load("moe-1l")
    with paths.model_set("course"):
        assert zoo.load("attn-only-0l", device="cpu").cfg.norm == "none"
    with pytest.raises(KeyError, match="There is no role 'gpt-9'"):
        zoo.load("gpt-9")


# ---- what a claim says of its models -------------------------------------------------------------


def test_a_claim_made_in_a_course_block_says_so(published):
    with paths.model_set("course"):
        inside = say()
    assert inside["models"] == "course" and "models" not in say()
    assert line(inside) == "[measurement · holds · course models] It is 1."
    assert claims.recheck(inside) == ""


def test_in_course_mode_a_block_leaves_no_trace(monkeypatch):
    monkeypatch.delenv("MODELS", raising=False)
    with paths.model_set("course"):
        assert "models" not in say()
    assert course_only([say()]) == [say()]


def test_course_only_marks_all_but_the_named(published):
    marked = course_only([say("sets.one"), say("sets.two")], but=("sets.two",))
    assert [c.get("models") for c in marked] == ["course", None]


# ---- random weights ------------------------------------------------------------------------------


def measured(made):
    return results.measured("99_toy", lambda cfg: {"x": 1, "claims": made}, {})


def test_random_weights_mark_all_claims_that_need_training(project, published):
    results.note_random()
    with paths.model_set("course"):
        inside = say("sets.inside", value=0.0)
    r = measured([say("sets.one"), say("sets.law", label="identity", value=0.0), inside])
    assert results.random_weights(r.made_with)
    said = {id: line(c) for id, c in r.claims.items()}
    assert said["sets.one"] == "[measurement · random weights: not expected to hold] It is 1."
    assert said["sets.law"].startswith("[identity · FAILS]"), "an identity must hold on any weights"
    assert said["sets.inside"].startswith("[measurement · FAILS · course models]")


def test_random_weights_never_become_evidence(project, published, monkeypatch):
    results.note_random()
    measured([say()])
    with pytest.raises(ValueError, match="random weights: never evidence"):
        results.accept("99_toy")
    assert not (project / "results").exists()
    monkeypatch.setenv("ACCEPT", "1")
    monkeypatch.setenv("RECOMPUTE", "force")
    with pytest.raises(ValueError, match="never evidence"):
        measured([say()])


def test_trained_weights_are_accepted_as_before(project, published):
    r = measured([say()])
    assert not results.random_weights(r.made_with) and "random_weights" not in r.made_with
    assert results.accept("99_toy")
    saved = json.loads((project / "results" / "published" / "99_toy.json").read_text())
    assert saved["made_with"]["models"] == "published"


def test_the_lists_exit_code_counts_identities_only(project, published, capsys):
    from circuitbook import compare

    (project / "scripts" / "99_toy.py").write_text("")
    measured([say("sets.one", value=0.0), say("sets.law", label="identity")])
    assert compare.main(["claims"]) == 0
    assert "sets.one [measurement · FAILS]" in capsys.readouterr().out
    (project / "build" / "results" / "published" / "99_toy.json").unlink()
    measured([say("sets.law", label="identity", value=0.0)])
    assert compare.main(["claims"]) == 1
    assert "to look at: sets.law" in capsys.readouterr().out


def test_a_lesson_on_published_models_says_whose_numbers_follow(project, published, capsys):
    measured([say()])
    out = capsys.readouterr().out
    assert out.startswith("What follows was measured on the series' own models")
    assert "random weights" not in out
    results.note_random()
    (project / "build" / "results" / "published" / "99_toy.json").unlink()
    measured([say()])
    assert results.RANDOM in capsys.readouterr().out


def test_a_lesson_on_the_courses_models_says_nothing(project, monkeypatch, capsys):
    monkeypatch.delenv("MODELS", raising=False)
    measured([say()])
    assert capsys.readouterr().out == ""
