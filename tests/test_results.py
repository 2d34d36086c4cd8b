"""Saved results: what is kept, when it is measured again, and what can never overwrite it."""

import dataclasses
import json
import os

import numpy as np
import pytest

from circuitbook import results
from circuitbook.claims import atleast, claim
from circuitbook.results import bound, built_path, evidence_path, load, measured, quick_path

CHAPTER = "98_toy"
calls: list[int] = []


@dataclasses.dataclass(frozen=True)
class Config:
    n: int = 3


def compute(cfg):
    calls.append(cfg.n)
    values = np.arange(cfg.n) / 3
    return {
        "data": {"x": values, "sum": values.sum()},
        "claims": [
            claim("toy.sum", "It is {value}.", label="measurement", holds=atleast(1.0, 0.5))
        ],
    }


@pytest.fixture(autouse=True)
def _start(project, monkeypatch):
    calls.clear()
    # The hash would cover `calls`, a global that this file changes on purpose.
    monkeypatch.setattr(results, "code_hash", lambda compute: "code one")


def run(**config):
    return measured(CHAPTER, compute, Config(**config))


def accept_now():
    run()
    results.accept(CHAPTER)


# ---- plain data ---------------------------------------------------------------------------------


def test_floats_are_kept_to_six_digits_and_arrays_become_lists():
    torch = pytest.importorskip("torch")
    data = {
        "pi": np.float32(3.14159265),
        "zero": -0.0,
        "int": np.int64(7),
        "flag": np.bool_(True),
        "tensor": torch.tensor([[1.0, 1 / 3]]),
        3: (1, None, "a"),
    }
    assert results.plain(data) == {
        "pi": 3.14159,
        "zero": 0.0,
        "int": 7,
        "flag": True,
        "tensor": [[1.0, 0.333333]],
        "3": [1, None, "a"],
    }
    assert str(results.plain({"zero": -0.0})["zero"]) == "0.0"
    assert isinstance(results.plain(np.bool_(True)), bool)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), np.float64("-inf")])
def test_numbers_that_are_not_finite_are_refused_by_place(bad):
    with pytest.raises(ValueError, match=r"data\.heads\.1\.loss"):
        results.plain({"heads": [{"loss": 1.0}, {"loss": bad}]})


@pytest.mark.parametrize("bad", [1j, {1, 2}, object(), b"x"])
def test_what_json_cannot_hold_is_refused_by_place(bad):
    with pytest.raises(TypeError, match=r"data\.a"):
        results.plain({"a": bad})


def test_keys_are_words_or_whole_numbers():
    with pytest.raises(TypeError, match=r"\(0, 1\)"):
        results.plain({(0, 1): 1})
    with pytest.raises(TypeError, match="twice"):
        results.plain({1: "a", "1": "b"})


def test_bound_keeps_no_raw_error():
    assert bound(3.2e-8, 1e-5) == {"limit": 1e-5, "ok": True}
    assert bound(-2e-5, 1e-5) == {"limit": 1e-5, "ok": False}
    with pytest.raises(ValueError, match="NaN"):
        bound(float("nan"), 1e-5)


# ---- measuring once -----------------------------------------------------------------------------


def test_a_result_is_measured_once_and_read_like_a_dict():
    r = run()
    again = run()
    assert calls == [3]
    assert r == again == {"x": [0.0, 0.333333, 0.666667], "sum": 1.0}
    assert r.claims["toy.sum"]["holds"] and again.chapter == CHAPTER and again.config == {"n": 3}
    with pytest.raises(KeyError, match="sum, x"):
        _ = r["y"]


def test_the_envelope_has_no_clock_and_repeats_its_bytes(monkeypatch):
    run()
    first = built_path(CHAPTER).read_bytes()
    monkeypatch.setenv("RECOMPUTE", "force")
    run()
    assert built_path(CHAPTER).read_bytes() == first and calls == [3, 3]
    envelope = json.loads(first)
    assert set(envelope) == {
        "schema", "chapter", "config", "made_with", "kinds", "data", "claims",
    }  # fmt: skip
    assert set(envelope["made_with"]) == {
        "code", "weights", "models", "packages", "device", "dtype", "threads",
    }  # fmt: skip
    assert os.uname().nodename not in first.decode()
    assert list(envelope) == sorted(envelope)


def test_data_may_stand_beside_the_claims():
    r = measured(CHAPTER, lambda cfg: {"a": 1, "claims": []}, {"n": 1})
    assert r == {"a": 1}


@pytest.mark.parametrize("what", ["config", "code", "models", "kinds", "schema"])
def test_a_change_makes_it_stale(monkeypatch, what):
    run()
    kinds, n = None, 3
    if what == "config":
        n = 4
    elif what == "code":
        monkeypatch.setattr(results, "code_hash", lambda compute: "code two")
    elif what == "models":
        monkeypatch.setenv("MODELS", "published")
    elif what == "kinds":
        kinds = {"x.*": "exact"}
    else:
        monkeypatch.setattr(results, "SCHEMA", 99)
    measured(CHAPTER, compute, Config(n), kinds=kinds)
    assert len(calls) == 2


def test_a_file_of_the_other_model_set_is_not_taken():
    run()
    envelope = json.loads(built_path(CHAPTER).read_text())
    envelope["made_with"]["models"] = "published"
    built_path(CHAPTER).write_text(json.dumps(envelope))
    run()
    assert len(calls) == 2


def test_changed_weights_make_it_stale(project):
    manifest = project / "weights" / "MANIFEST.json"
    manifest.parent.mkdir()
    manifest.write_text(json.dumps({"attn-only-2l": {"sha256": "aa"}, "gelu-1l": {"sha256": "bb"}}))
    results.note_weights("attn-only-2l", "aa")
    assert run().made_with["weights"] == {"attn-only-2l": "aa"}
    manifest.write_text(json.dumps({"attn-only-2l": {"sha256": "aa"}, "gelu-1l": {"sha256": "cc"}}))
    run()
    assert len(calls) == 1  # a role that was not used may change
    manifest.write_text(json.dumps({"models": {"attn-only-2l": {"sha256": "dd"}}}))
    run()
    assert len(calls) == 2
    with pytest.raises(RuntimeError, match="restart"):
        results.note_weights("attn-only-2l", "dd")


def test_published_weights_carry_their_own_commit_and_are_not_stale(project, monkeypatch):
    monkeypatch.setenv("MODELS", "published")
    monkeypatch.setenv("HF_HUB_CACHE", str(project / "nothing_here"))
    key = f"owner/name@{'0123456789' * 4}"
    results.note_weights(key, "aa")
    assert run().made_with["weights"] == {key: "aa"}  # no manifest knows it
    assert run().source == built_path(CHAPTER) and len(calls) == 1
    manifest = project / "weights" / "MANIFEST.json"
    manifest.parent.mkdir()
    manifest.write_text(json.dumps({"gelu-1l": {"sha256": "bb"}}))
    assert results.stale_weights({"weights": {key: "aa", "gelu-1l": "bb"}}) == ""
    # Weights of the course beside them are still compared.
    for both in ({key: "aa", "gelu-1l": "cc"}, {"gelu-1l": "cc", key: "aa"}):
        assert results.stale_weights({"weights": both}) == "the weights of gelu-1l changed"


def test_two_claims_with_one_id_are_refused():
    c = claim("toy.a", "Yes.", label="identity", holds=atleast(1, 0))
    with pytest.raises(ValueError, match=r"toy\.a"):
        measured(CHAPTER, lambda cfg: {"data": {}, "claims": [c, c]}, {})


def test_config_must_be_plain_data():
    with pytest.raises(TypeError, match="dataclass or a dict"):
        measured(CHAPTER, compute, 3)


# ---- evidence -----------------------------------------------------------------------------------


def test_measuring_never_touches_the_evidence(monkeypatch):
    accept_now()
    before = evidence_path(CHAPTER).read_bytes()
    monkeypatch.setattr(results, "code_hash", lambda compute: "code two")
    for switch in ({}, {"RECOMPUTE": "1"}, {"RECOMPUTE": "force"}, {"QUICK": "1"}):
        for name in ("RECOMPUTE", "QUICK"):
            monkeypatch.delenv(name, raising=False)
        for name, value in switch.items():
            monkeypatch.setenv(name, value)
        run(n=5)
    assert evidence_path(CHAPTER).read_bytes() == before
    assert json.loads(built_path(CHAPTER).read_text())["config"] == {"n": 5}


def test_opening_a_lesson_reads_the_evidence_and_recompute_does_not(monkeypatch):
    accept_now()
    built_path(CHAPTER).unlink()
    assert run().source == evidence_path(CHAPTER)
    assert len(calls) == 1
    monkeypatch.setenv("RECOMPUTE", "1")
    assert run().source == built_path(CHAPTER)
    assert len(calls) == 2
    run()
    assert len(calls) == 2  # build/ holds this very measurement
    monkeypatch.setenv("RECOMPUTE", "force")
    run()
    assert len(calls) == 3


def test_accept_switch_copies(monkeypatch):
    monkeypatch.setenv("ACCEPT", "1")
    run()
    assert evidence_path(CHAPTER).read_bytes() == built_path(CHAPTER).read_bytes()
    assert results.accept(CHAPTER) is False


def test_accept_needs_a_measurement():
    with pytest.raises(FileNotFoundError, match="not measured"):
        results.accept(CHAPTER)


def test_stale_evidence_can_be_an_error(monkeypatch):
    accept_now()
    monkeypatch.setenv("EVIDENCE", "only")
    assert run() is not None
    with pytest.raises(RuntimeError, match=r"config changed.*make accept"):
        run(n=4)
    assert len(calls) == 1


def test_quick_writes_to_its_own_folder(monkeypatch, project):
    monkeypatch.setenv("QUICK", "1")
    run(n=1)
    files = list(project.rglob("*.json"))
    assert files == [quick_path(CHAPTER)]
    assert "quick" in files[0].parts
    assert load(CHAPTER)["x"] == [0.0]


def test_load_prefers_evidence_then_what_was_built(monkeypatch):
    with pytest.raises(FileNotFoundError, match="make all"):
        load(CHAPTER)
    run()
    assert load(CHAPTER).source == built_path(CHAPTER)
    results.accept(CHAPTER)
    assert load(CHAPTER).source == evidence_path(CHAPTER)
    monkeypatch.setenv("RECOMPUTE", "1")
    assert load(CHAPTER).source == built_path(CHAPTER)


# ---- files that survive -------------------------------------------------------------------------


def test_a_run_killed_while_writing_loses_nothing(monkeypatch):
    accept_now()
    before = built_path(CHAPTER).read_bytes()

    def killed(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    monkeypatch.setenv("RECOMPUTE", "force")
    with pytest.raises(KeyboardInterrupt):
        run()
    assert built_path(CHAPTER).read_bytes() == before
    assert [p.name for p in built_path(CHAPTER).parent.iterdir()] == [f"{CHAPTER}.json"]


def test_a_refused_result_is_not_saved():
    with pytest.raises(ValueError, match=r"data\.a"):
        measured(CHAPTER, lambda cfg: {"data": {"a": float("nan")}, "claims": []}, {})
    assert not built_path(CHAPTER).exists()


@pytest.mark.parametrize("content", ["", "{", '{"schema": 1}', "[1]", "\x00"])
def test_a_damaged_file_is_named(content):
    run()
    built_path(CHAPTER).write_text(content)
    with pytest.raises(ValueError, match=rf"{CHAPTER}\.json"):
        run()
