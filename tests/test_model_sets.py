"""Two model sets, one code path: which set is meant where, and what results say of it."""

import json
import os
import subprocess
import sys

import pytest

from circuitbook import claims, paths, results, zoo
from circuitbook.claims import atleast, claim, line, ours


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
    assert ours([say()]) == [say()]


def test_course_only_marks_all_but_the_named(published):
    marked = ours([say("sets.one"), say("sets.two")], but=("sets.two",))
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


# ---- which files a result was made with ----------------------------------------------------------


@pytest.fixture
def files(monkeypatch):
    """Published files as a list of one hash that a test may change; None is "not here"."""
    from circuitbook.published import provenance

    today = ["one"]
    monkeypatch.setattr(provenance, "identity", lambda: today[0])
    return today


def test_other_published_files_make_a_result_stale(project, published, files, monkeypatch):
    def compute(cfg):
        return {"x": int(os.environ["TOY_X"]), "claims": []}

    def now(x):
        monkeypatch.setenv("TOY_X", str(x))
        return results.measured("99_toy", compute, {})

    assert now(1).made_with["published"] == "one"
    assert now(2)["x"] == 1, "read, not measured again"
    files[0] = None  # the files are gone: nobody can say, and reading on is what a reader wants
    assert now(2)["x"] == 1
    files[0] = "two"
    r = now(2)
    assert r["x"] == 2 and r.made_with["published"] == "two"


def test_the_stamp_of_a_lesson_knows_the_published_files(project, published, files):
    from circuitbook import compare

    script = project / "scripts" / "99_toy.py"
    script.write_text("x = 1\n")
    before = compare._inputs(script)
    files[0] = "two"
    assert compare._inputs(script) != before


def test_a_text_of_ones_own_is_no_evidence(project, published, files, monkeypatch):
    monkeypatch.setenv("CIRCUITBOOK_TEXT", "mine.txt")
    assert measured([say()]).made_with["local_text"] is True
    with pytest.raises(ValueError, match="measured on a local text"):
        results.accept("99_toy")


def test_nothing_is_accepted_unless_all_can_be(project, published, files, capsys):
    from circuitbook import compare

    for name in ("98_toy", "99_toy"):
        (project / "scripts" / f"{name}.py").write_text("")
    results.measured("98_toy", lambda cfg: {"x": 1, "claims": [say()]}, {})
    assert compare.main(["accept"]) == 1
    assert "nothing accepted: 99_toy was not measured here" in capsys.readouterr().err
    assert not (project / "results").exists()
    measured([say("sets.two")])
    assert compare.main(["accept"]) == 0
    assert (project / "results" / "published" / "98_toy.json").is_file()


@pytest.mark.parametrize("size, fits", [(4096, True), (4000, True), (4097, False), (3000, False)])
def test_a_model_and_a_tokenizer_must_fit(published, monkeypatch, size, fits):
    from types import SimpleNamespace

    from circuitbook.published import models, tokens

    model = zoo.Transformer(zoo.recipe("attn-only-0l").config)
    monkeypatch.setattr(models, "load", lambda role, **more: model)
    monkeypatch.setattr(tokens, "load", lambda: SimpleNamespace(vocab_size=size))
    if fits:
        assert zoo.load("attn-only-1l", device="cpu").cfg.d_vocab == 4096
    else:
        with pytest.raises(zoo.WeightsError, match=r"4,096 tokens and its tokenizer"):
            zoo.load("attn-only-1l")
    assert zoo.load("gpt2", device="cpu").cfg.d_vocab == 4096, "gpt2 has its own tokenizer"


def test_a_missing_file_is_one_line_in_a_script(tmp_path):
    code = "from circuitbook import zoo; zoo.load('gelu-1l')"
    env = os.environ | {"MODELS": "published", "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1 and "make published" in done.stderr
    done = subprocess.run(
        [sys.executable, "-c", "import circuitbook; 1 / 0"], capture_output=True, text=True
    )
    assert "Traceback" in done.stderr, "a mistake in the code keeps its frames"


def test_the_courses_gallery_never_depends_on_what_else_lies_here(monkeypatch, tmp_path):
    from circuitbook.circuits import gpt2_path

    monkeypatch.delenv("MODELS", raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert gpt2_path.published_study() == {"there": False, "needs": gpt2_path.NEEDS}
