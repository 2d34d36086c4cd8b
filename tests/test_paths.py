"""Folders and switches: right when set, refused in words when wrong, and never torch."""

import subprocess
import sys

import pytest

from circuitbook import paths


def test_folders_follow_the_root(project, monkeypatch):
    assert paths.ROOT == project
    assert paths.SCRIPTS == project / "scripts"
    assert paths.BUILD == project / "build"
    assert paths.CACHE == project / ".cache"
    monkeypatch.setenv("CIRCUITBOOK_CACHE", str(project / "elsewhere"))
    assert paths.CACHE == project / "elsewhere"


def test_unknown_folder_and_missing_root(project, monkeypatch):
    with pytest.raises(AttributeError):
        _ = paths.NOWHERE
    monkeypatch.setenv("CIRCUITBOOK_ROOT", str(project / "gone"))
    with pytest.raises(NotADirectoryError, match="CIRCUITBOOK_ROOT"):
        _ = paths.ROOT


def test_the_checkout_is_found_without_help(monkeypatch):
    monkeypatch.delenv("CIRCUITBOOK_ROOT", raising=False)
    assert (paths.ROOT / "pyproject.toml").is_file()


def test_defaults(project):
    assert paths.models() == "course"
    assert not (paths.quick() or paths.recompute() or paths.force())
    assert not (paths.accept() or paths.evidence_only())


@pytest.mark.parametrize(
    ("name", "value", "ask"),
    [
        ("DEVICE", "mps", paths.device),
        ("MODELS", "mine", paths.models),
        ("QUICK", "yes", paths.quick),
        ("RECOMPUTE", "2", paths.recompute),
        ("ACCEPT", "true", paths.accept),
    ],
)
def test_a_bad_value_is_named_with_the_good_ones(project, monkeypatch, name, value, ask):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name}='{value}'.*{name}=.*\\|"):
        ask()


def test_recompute_and_force(project, monkeypatch):
    monkeypatch.setenv("RECOMPUTE", "1")
    assert paths.recompute() and not paths.force()
    monkeypatch.setenv("RECOMPUTE", "force")
    assert paths.recompute() and paths.force()


def test_a_quick_run_is_never_accepted(project, monkeypatch):
    monkeypatch.setenv("ACCEPT", "1")
    assert paths.accept()
    monkeypatch.setenv("QUICK", "1")
    with pytest.raises(ValueError, match="not evidence"):
        paths.accept()


def test_device(project, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert paths.device() == "cpu"
    monkeypatch.setenv("DEVICE", "cuda")
    with pytest.raises(RuntimeError, match="DEVICE=cpu"):
        paths.device()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert paths.device() == "cuda"
    monkeypatch.setenv("DEVICE", "auto")
    assert paths.device() == "cuda"
    monkeypatch.setenv("DEVICE", "cpu")
    assert paths.device() == "cpu"


@pytest.mark.parametrize(
    "name", ["paths", "results", "claims", "plots", "gallery", "check", "compare"]
)
def test_no_torch_and_no_pyplot(name):
    code = (
        f"import sys, circuitbook.{name}; "
        "assert not {'torch', 'matplotlib.pyplot', 'transformer_lens'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
