"""Everything is derived from the lesson, repeats its bytes, and any drift is found."""

import copy
import functools
import json
import shutil

import _notebook
import _target
import derive
import nbformat
import pytest
from _assignment import PUBLIC_VARIANT

from circuitbook import codehash, results, sources

NAME = "98_toy"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A toy project, measured, accepted and derived once; tests work on copies of it."""
    return tmp_path_factory.mktemp("derived") / "project"


@pytest.fixture
def done(toy, built, monkeypatch, capsys):
    """A copy of the derived toy project, and the active one."""
    if not built.exists():
        from circuitbook.compare import main

        assert main(["measure"]) == 0
        assert results.accept(NAME)
        assert derive.main(["all"]) == 0
        shutil.copytree(toy, built)
    shutil.rmtree(toy)
    shutil.copytree(built, toy)
    capsys.readouterr()
    return toy


def drift(capsys):
    """The lines of --check, and that its exit status agrees with them."""
    capsys.readouterr()
    status = derive.main(["all", "--check"])
    out, err = capsys.readouterr()
    lines = (out + err).splitlines()
    assert status == (0 if lines == ["all derived files are up to date"] else 1), lines
    return "" if status == 0 else "\n".join(lines)


def edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text, (path, old)
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


# ---- building -----------------------------------------------------------------------------------


def test_built_is_up_to_date_and_a_second_time_does_nothing(done, capsys):
    assert drift(capsys) == ""
    before = {p: p.stat().st_mtime_ns for p in done.rglob("*") if p.is_file()}
    assert derive.main(["all"]) == 0
    assert capsys.readouterr().out == ""
    assert {p: p.stat().st_mtime_ns for p in done.rglob("*") if p.is_file()} == before


def test_running_again_gives_the_same_bytes(done):
    path = done / "notebooks" / f"{NAME}.ipynb"
    before = path.read_bytes()
    path.unlink()
    assert derive.main(["notebooks"]) == 0
    assert path.read_bytes() == before


def test_the_notebook_holds_outputs_and_nothing_of_this_machine(done):
    text = (done / "notebooks" / f"{NAME}.ipynb").read_text()
    book = nbformat.reads(text, as_version=4)
    nbformat.validate(book)
    assert [c.id for c in book.cells] == [f"98-{i:03d}" for i in range(len(book.cells))]
    kinds = {k for c in book.cells for o in c.get("outputs", ()) for k in o.get("data", {})}
    assert {"image/png", "text/plain", "text/markdown"} <= kinds and "text/html" not in kinds
    pictures = [
        o for c in book.cells for o in c.get("outputs", ()) if "image/png" in o.get("data", {})
    ]
    assert len(pictures) == 1 and "highest score" in pictures[0].metadata["image/png"]["alt"]
    assert "Head" in text and "[measurement · holds]" in text
    for word in ("jupytext", "iopub", 'execution"', str(done)):
        assert word not in text
    assert book.metadata.language_info == {"name": "python"}


def test_the_readme_has_its_tables(done):
    text = (done / "README.md").read_text()
    assert "| 98 | [A toy lesson](notebooks/98_toy.ipynb) | Part 0 | 5 minutes |" in text
    assert "| 98 | 2 | 1 | – | 1 | – | – | – |" in text
    ledger = (done / "results" / "claims.md").read_text()
    assert "| 98 | `toy.best` | measurement | yes | Head" in ledger
    assert text.startswith("# Toy\n") and text.endswith("\nend\n")


def test_the_readme_can_have_times_and_sources(done):
    path = done / "README.md"
    for what in ("times", "sources"):
        path.write_text(path.read_text() + f"<!-- derive:{what} -->\n<!-- /derive:{what} -->\n")
    assert derive.main(["readme"]) == 0
    assert "Not measured yet." in path.read_text()
    for source in sources.SOURCES:
        assert f"`{source.name}` {source.version} | {source.licence} |" in path.read_text()
    kept = {"cores": 2, "chapters": {NAME: 12.4, "97_gone": 1.0}}
    (done / "results" / "times.json").write_text(json.dumps(kept))
    assert derive.main(["readme"]) == 0
    assert "Measured on 2 cores in |" in path.read_text()
    assert "| 98 | A toy lesson | 12 s |" in path.read_text() and "97_gone" not in path.read_text()


# ---- drift --------------------------------------------------------------------------------------

BOOK = f"notebooks/{NAME}.ipynb"
DRIFT = {
    "code of the lesson": (f"scripts/{NAME}.py", "heads: int = 3", "heads: int = 4", BOOK),
    "prose of the lesson": (f"scripts/{NAME}.py", "one cell of each kind", "cells", BOOK),
    "an output": (BOOK, "[measurement · holds] Head", "[measurement · holds] head", "outputs"),
    "an output's picture": (BOOK, '"image/png": "iVBOR', '"image/png": "iVBOr', "outputs"),
    "an alt text": (BOOK, '"alt": "Head', '"alt": "head', "outputs"),
    "a cell of the notebook": (BOOK, "SCALE = 2.0", "SCALE = 2.5", "98-002"),
    "the notebook's layout": (BOOK, '"cells": [', '"cells":  [', "edited"),
    "the notebook's metadata": (BOOK, '"edition": "lesson"', '"edition": "mine"', "metadata"),
    "a broken notebook": (BOOK, '"nbformat": 4', '"nbformat": 4,,', "not a notebook"),
    "the evidence": (f"results/course/{NAME}.json", '"best": ', '"best":  ', "evidence"),
    "a taught function": ("src/circuitbook/taught/ch98.py", ".real", ".imag", "ch98"),
    "the taught list": ("src/circuitbook/taught/__init__.py", "ch98", "ch97", "__init__"),
    "a student's copy": (
        f"assignments/release/{NAME}.ipynb",
        "total = 0.0",
        "total = 1",
        "release",
    ),
    "a teacher's copy": (f"assignments/source/{NAME}.ipynb", "the secret", "secret", "source"),
    "the solutions": (f"assignments/solutions/{NAME}.ipynb", "the secret", "secret", "solutions"),
    "the chapters table": ("README.md", "5 minutes", "6 minutes", "README"),
    "the claims table": ("README.md", "| 98 | 2 |", "| 98 | 3 |", "README"),
    "the claims' page": ("results/claims.md", "| measurement | yes", "| identity | yes", "claims"),
    "the README's marks": ("README.md", "<!-- /derive:claims -->", "", "needs"),
}


@pytest.mark.parametrize("what", DRIFT)
def test_drift_is_found(done, capsys, what):
    path, old, new, word = DRIFT[what]
    edit(done / path, old, new)
    assert word in drift(capsys)


@pytest.mark.parametrize(
    "path",
    [
        BOOK,
        f"assignments/release/{NAME}.ipynb",
        f"assignments/solutions/{NAME}.ipynb",
        "src/circuitbook/taught/ch98.py",
        "README.md",
        "results/claims.md",
    ],
)
def test_a_missing_file_is_found(done, capsys, path):
    (done / path).unlink()
    assert path.split("/")[-1] in drift(capsys)


def test_what_a_removed_lesson_left_is_found_and_removed(done, capsys):
    old = [f"assignments/{edition}/97_old.ipynb" for edition in ("release", "source", "solutions")]
    old += ["notebooks/97_old.ipynb", "src/circuitbook/taught/ch97.py"]
    for path in old:
        (done / path).write_text("{}")
    told = drift(capsys)
    assert all(f"{path}: its lesson is gone" in told for path in old)
    assert derive.main(["all"]) == 0
    assert not any((done / path).exists() for path in old) and drift(capsys) == ""


def test_changed_modules_that_shape_the_outputs_are_found(done, capsys, monkeypatch, tmp_path):
    copy = tmp_path / "marks.py"
    real = _notebook.module_file
    shutil.copy(real("circuitbook.marks"), copy)
    for owner in (_notebook, __import__("circuitbook.codehash").codehash):
        monkeypatch.setattr(
            owner, "module_file", lambda n: copy if n == "circuitbook.marks" else real(n)
        )
    assert drift(capsys) == ""
    edit(copy, "_WRITE_LIMIT = 150", "_WRITE_LIMIT = 151")
    assert "a module that it uses, changed" in drift(capsys)


def test_how_a_cell_is_displayed_is_no_drift(done, capsys):
    path = done / BOOK
    book = nbformat.reads(path.read_text(), as_version=4)
    book.cells[2].metadata["scrolled"] = True
    path.write_text(_notebook.text(book))
    assert drift(capsys) == ""


def test_evidence_that_is_missing_or_made_with_other_weights_is_found(done, capsys):
    path = results.evidence_path(NAME)
    envelope = json.loads(path.read_text())
    envelope["made_with"]["weights"] = {"gelu-1l": "aa"}
    path.write_text(json.dumps(envelope))
    book = nbformat.reads((done / BOOK).read_text(), as_version=4)
    lesson = derive.lessons(done / "scripts")[0]
    book.metadata["circuitbook"]["evidence"] = _notebook.evidence(lesson)
    (done / BOOK).write_text(_notebook.text(book))
    assert "the weights of gelu-1l changed" in drift(capsys)
    path.unlink()
    book.metadata["circuitbook"]["evidence"] = "none"
    (done / BOOK).write_text(_notebook.text(book))
    assert "never accepted" in drift(capsys)


def test_a_notebook_is_not_built_on_outdated_evidence(done, capsys):
    edit(done / "scripts" / f"{NAME}.py", "heads: int = 3", "heads: int = 4")
    before = (done / BOOK).read_bytes()
    assert derive.main(["notebooks"]) == 1
    assert "committed evidence is out of date (the c" in capsys.readouterr().err
    assert (done / BOOK).read_bytes() == before


def test_check_starts_no_kernel(done, monkeypatch, capsys):
    monkeypatch.setattr(_notebook, "_run", lambda *a: pytest.fail("a kernel was started"))
    assert drift(capsys) == ""


# ---- outputs that are refused -------------------------------------------------------------------


def _output(**data):
    metadata = data.pop("metadata", {})
    return nbformat.v4.new_output("display_data", data=data, metadata=metadata)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (_output(**{"text/html": "<b>x</b>", "text/plain": "x"}), "plots.table"),
        (_output(**{"application/javascript": "x"}), "javascript"),
        (_output(**{"text/plain": "<object at 0x7f12ab34cd56>"}), "memory address"),
        (_output(**{"image/png": "aaaa"}), "alt text"),
        (_output(**{"text/plain": "x" * 1_000_001}), "bytes"),
        (nbformat.v4.new_output("stream", name="stderr", text="careful"), "stderr"),
        (nbformat.v4.new_output("stream", name="stdout", text="Wall time: 3 s"), "time"),
        (nbformat.v4.new_output("stream", name="stdout", text="at 0x7f12ab34cd56"), "address"),
    ],
)
def test_outputs_that_would_change_or_fail_are_refused(project, output, words):
    with pytest.raises(derive.LessonError, match=words):
        _notebook._refuse("here", output)


def test_folders_of_this_machine_are_refused_and_plain_words_are_not(project):
    stream = nbformat.v4.new_output("stream", name="stdout", text=f"see {project}/x")
    with pytest.raises(derive.LessonError, match="folder of this machine"):
        _notebook._refuse("here", stream)
    _notebook._refuse("here", nbformat.v4.new_output("stream", name="stdout", text="0x1f, fine"))
    picture = _output(**{"image/png": "aa"}, metadata={"image/png": {"alt": "A line that falls."}})
    _notebook._refuse("here", picture)


# ---- the switches -------------------------------------------------------------------------------


def test_a_rehearsal_or_other_models_never_write_the_notebooks(done, monkeypatch):
    assert derive.notebooks_folder() == done / "notebooks"
    monkeypatch.setenv("QUICK", "1")
    assert derive.notebooks_folder() == done / "build/quick/course/notebooks"
    monkeypatch.setenv("QUICK", "0")
    monkeypatch.setenv("MODELS", "published")
    assert derive.notebooks_folder() == done / "build/published/notebooks"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--variant", "5"], "--variant N --to FOLDER"),
        (["--to", "x"], "--variant N --to FOLDER"),
        (["--variant", "0", "--to", "x"], "positive"),
        (["--variant", str(PUBLIC_VARIANT), "--to", "x"], "other than"),
        (["--variant", "5", "--to", "assignments/mine"], "committed"),
        (["--variant", "5", "--to", "pyproject.toml"], "cannot be a folder"),
        (["--variant", "5", "--to", "pyproject.toml/x"], "cannot be a folder"),
    ],
)
def test_a_variant_that_would_not_be_private_is_refused(toy, monkeypatch, capsys, more, words):
    monkeypatch.chdir(toy)
    assert derive.main(["assignments", *more]) == 1
    assert words in capsys.readouterr().err and not (toy / "x").exists()


# ---- the course itself --------------------------------------------------------------------------


def test_the_course_has_not_drifted(monkeypatch, capsys):
    for name in ("CIRCUITBOOK_ROOT", "QUICK", "MODELS"):
        monkeypatch.delenv(name, raising=False)
    if not derive.notebooks_folder().exists():
        pytest.skip("no notebook was built yet")
    for name in ("imported", "tree_text"):  # twelve chapters reach the same files: read each once
        once = functools.cache(getattr(codehash, name))
        for owner in (codehash, _notebook, _target):
            monkeypatch.setattr(owner, name, lambda *a, once=once: copy.copy(once(*a)))
    assert drift(capsys) == ""
