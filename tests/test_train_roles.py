"""From a role's recipe to its bundled file, and the command that does it."""

import json
import subprocess
import sys

import pytest
import torch
from train_toy import settled, stream, tiny  # noqa: F401  settled is a fixture

from circuitbook import paths, recipes, train, weightfile


@pytest.fixture
def role(project, monkeypatch):
    """A tiny role on a made-up text, in a project of its own."""
    from circuitbook import corpus, curves

    paths.WEIGHTS.mkdir()
    monkeypatch.setitem(recipes.RECIPES, "toy", tiny())
    monkeypatch.setattr(corpus, "train_tokens", stream)
    monkeypatch.setattr(corpus, "corpus_sha256", lambda: "c" * 64)

    def note(role, rec, folder, losses):
        path = weightfile.curves_path(role)
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"recipe_sha256": rec.sha256(), "losses": losses}))

    monkeypatch.setattr(curves, "write", note)
    return "toy"


def test_a_role_is_trained_once(role, capsys):
    train.train_role(role)
    data = weightfile.weight_path(role).read_bytes()
    entry = weightfile.read_manifest()[role]
    assert entry["bytes"] == len(data) and entry["tokens"] == 24 * 2 * 40
    metadata = weightfile.read_metadata(weightfile.weight_path(role))
    assert metadata["recipe_sha256"] == tiny().sha256() and metadata["corpus_sha256"] == "c" * 64
    assert json.loads(metadata["recipe"]) == tiny().to_dict()
    assert sorted(p.name for p in paths.WEIGHTS.iterdir() if p.suffix != ".lock") == [
        "MANIFEST.json", "curves", "toy.safetensors",
    ]  # fmt: skip
    capsys.readouterr()
    train.train_role(role)
    assert capsys.readouterr().out == "toy: up to date\n"


def test_what_is_gone_is_written_again_without_training(role, monkeypatch):
    train.train_role(role)
    data = weightfile.weight_path(role).read_bytes()
    monkeypatch.setattr(train.Run, "advance", None)
    for harm in (
        lambda: weightfile.weight_path(role).unlink(),
        lambda: weightfile.weight_path(role).write_bytes(data[:-1]),
        lambda: weightfile.curves_path(role).unlink(),
        lambda: weightfile.curves_path(role).write_text("{"),
        lambda: weightfile.manifest_path().unlink(),
    ):
        harm()
        assert not train.up_to_date(role, tiny(), "c" * 64)
        train.train_role(role)
        assert weightfile.weight_path(role).read_bytes() == data
        assert train.up_to_date(role, tiny(), "c" * 64)
    assert not train.up_to_date(role, tiny(), "d" * 64)
    assert not train.up_to_date(role, tiny(lr=0.3), "c" * 64)


def test_a_role_without_snapshots_has_no_curves_and_is_up_to_date(role, monkeypatch):
    monkeypatch.setitem(recipes.RECIPES, role, tiny(snapshots=()))
    train.train_role(role)
    assert not weightfile.curves_path(role).exists()
    assert train.up_to_date(role, tiny(snapshots=()), "c" * 64)


def test_force_trains_a_finished_role_anew(role, monkeypatch):
    train.train_role(role)
    data, steps = weightfile.weight_path(role).read_bytes(), []
    advance = train.Run.advance
    monkeypatch.setattr(train.Run, "advance", lambda *a: (steps.append(1), advance(*a))[1])
    train.train_role(role, force=True)
    assert len(steps) == 24 and weightfile.weight_path(role).read_bytes() == data


def test_leavings_of_a_killed_run_are_cleared(role):
    folder = paths.BUILD / "train" / role
    (folder / "snapshots").mkdir(parents=True)
    half = [folder / ".checkpoint.pt.123", folder / "snapshots" / ".step-000004.safetensors.123"]
    for path in half:
        path.write_bytes(b"half")
    train.train_role(role)
    assert not any(path.exists() for path in half)


def test_weights_out_of_half_precision_are_not_written(project):
    with pytest.raises(FloatingPointError, match="toy: a not finite in half precision"):
        weightfile.write_weights("toy", {"a": torch.tensor([1e6]).half()}, tiny(), "c")
    assert not weightfile.weight_path("toy").exists()


# ---- the command


def test_command_refuses_an_unknown_role(capsys):
    with pytest.raises(SystemExit) as stop:
        train.main(["nosuch"])
    assert stop.value.code == 2
    assert "nosuch" in (said := capsys.readouterr().err) and "attn-only-2l" in said


def test_command_says_that_the_text_is_missing(project, monkeypatch, capsys):
    monkeypatch.delenv("CIRCUITBOOK_CACHE", raising=False)
    assert train.main(["attn-only-0l", "--device", "cpu"]) == 1
    assert "tokenizer" in capsys.readouterr().err
    monkeypatch.setenv("DEVICE", "cuda")
    if not torch.cuda.is_available():
        assert train.main(["attn-only-0l"]) == 1
        assert "DEVICE=cuda was asked for" in capsys.readouterr().err


def test_several_roles_run_in_processes_of_their_own(project, monkeypatch, capsys):
    calls = project / "calls"
    fake = project / "python"
    fake.write_text(f'#!/bin/sh\necho "$3 $OMP_NUM_THREADS" >> {calls}\n[ "$3" != gelu-1l ]\n')
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    assert train.main(["attn-only-0l", "gelu-2l", "--device", "cpu", "--jobs", "1"]) == 0
    assert calls.read_text().split("\n")[:2] == ["gelu-2l 1", "attn-only-0l 1"]
    assert train.main(["all", "--device", "cpu"]) == 1, "one role failed"
    assert len(calls.read_text().splitlines()) == 2 + len(recipes.RECIPES)


def test_an_interrupted_command_leaves_no_run_behind(project, monkeypatch, capsys):
    """Ctrl-C while two roles train: both are ended, and the message says how to go on."""
    begun, popen = [], subprocess.Popen

    def sleeper(*_, **__):
        begun.append(popen(["sleep", "60"]))
        return begun[-1]

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(train.subprocess, "Popen", sleeper)
    monkeypatch.setattr(train.time, "sleep", interrupt)
    assert train.main(["attn-only-0l", "gelu-2l", "--device", "cpu", "--jobs", "2"]) == 130
    assert "goes on from the last checkpoint" in capsys.readouterr().out
    assert len(begun) == 2 and all(process.returncode is not None for process in begun)


NEEDS = """
import sys
for name in ("transformer_lens", "tokenizers", "datasets", "pandas", "matplotlib", "jaxtyping",
             "einops", "beartype", "plotly", "nbformat", "jupytext"):
    sys.modules[name] = None  # an import of it fails
import circuitbook.train, circuitbook.curves, circuitbook.corpus
from circuitbook import vocabulary
print(len(vocabulary.texts()))
"""


def test_the_trainer_needs_torch_numpy_and_safetensors_only():
    done = subprocess.run([sys.executable, "-c", NEEDS], capture_output=True, text=True)
    assert done.stdout == "4096\n", done.stderr
