"""Fixtures of the whole suite: a project of their own for tests that write, switches off."""

import shutil
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tools"))

SWITCHES = (
    "DEVICE", "MODELS", "QUICK", "RECOMPUTE", "ACCEPT", "EVIDENCE", "CIRCUITBOOK_ROOT",
    "CIRCUITBOOK_TEXT",
)  # fmt: skip


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty project in a temporary folder, with every switch at its default."""
    from circuitbook import results

    for name in SWITCHES:
        monkeypatch.delenv(name, raising=False)
    root = tmp_path / "project"
    (root / "scripts").mkdir(parents=True)
    (root / "pyproject.toml").write_text("")
    monkeypatch.setenv("CIRCUITBOOK_ROOT", str(root))
    monkeypatch.setattr(results, "_weights", {})
    monkeypatch.setattr(results, "_random", [])
    return root


@pytest.fixture
def toy(project):
    """A project with the toy lesson (tests/toy) and a README that has its marks."""
    shutil.copy(HERE / "toy" / "98_toy.py", project / "scripts")
    marks = [f"<!-- {end}derive:{what} -->" for what in ("chapters", "claims") for end in ("", "/")]
    (project / "README.md").write_text("\n".join(["# Toy", *marks, "end", ""]))
    return project
