"""Eleven submissions of chapter 02 for `make grade`, in every state that students leave one in."""

import importlib.util
import json
from functools import partial
from pathlib import Path

import _assignment
import nbformat
from _lesson import read

HERE = Path(__file__).resolve().parent
LESSON = read(HERE.parent / "scripts" / "02_qk_ov.py")
NAME, VARIANT = LESSON.name, 860421
ASKED = LESSON.written[0]
ANSWERS = {c.exercise.name: c.source.replace("# solution", "# mine") for c in LESSON.cells
           if c.exercise}  # fmt: skip
PARTIAL = """def qk_score(query, key, W_E, W_Q, W_K):
    return W_E[query] @ W_Q @ (W_E[key] @ W_K)
"""
HEADED = ANSWERS["02.qk_score"].splitlines()[0] + "\n"
BROKEN = HEADED + "def qk_score(query, key, W_E, W_Q, W_K):\n    return my_best(query,,)\n"
RENAMED = "def my_own_score(query, key, W_E, W_Q, W_K):\n    return my_best(query)\n"


def command(*args):
    """`python tools/grade.py ...`: its name is that of our package, so it is loaded by path."""
    spec = importlib.util.spec_from_file_location("grade_tool", HERE.parent / "tools" / "grade.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main([str(a) for a in args])


def fresh(source):
    """A release, as a student gets it."""
    return _assignment.release(nbformat.from_dict(json.loads(json.dumps(source))))


def answered(source, words="", **answers):
    """A release with answers written into it."""
    book = fresh(source)
    for cell in book.cells:
        kind = cell.metadata.get("circuitbook", {}).get("kind")
        name = cell.metadata.get("circuitbook", {}).get("name", "")
        if kind == "code":
            cell.source = answers.get(name.partition(".")[2], ANSWERS[name]) or cell.source
        elif kind == "written":
            cell.source = words or cell.source
    return book


def without(book, *kinds):
    book.cells = [c for c in book.cells if not str(
        c.metadata.get("nbgrader", {}).get("grade_id", "")).startswith(kinds)]  # fmt: skip
    return book


def mangled(book):
    """Ids twice, points raised, an old schema, a test that gives all points."""
    for cell in book.cells:
        meta = cell.metadata.get("nbgrader")
        if meta:
            meta.update(grade_id="test-02-qk_score", schema_version=1, points=100, locked=False)
            if meta.get("grade") and cell.cell_type == "code":
                cell.source = "100.0"
    return book


def plain(book):
    for cell in book.cells:
        cell.metadata.clear()
    book.cells = book.cells[::-1]
    return book


def one_cell(book):
    """Everything that was answered, in one cell, and nothing else."""
    code = "\n\n".join(c.source for c in book.cells if c.metadata.get("circuitbook", {}).get("kind")
                       == "code")  # fmt: skip
    book.cells = [nbformat.v4.new_code_cell(code)]
    return book


def hand_in(folder, source):
    """Eleven submissions in both layouts."""
    give = partial(answered, source)
    words = (
        "It **proves** <script>alert(1)</script> ![x](http://example.org/x.png) nothing."
        " [a](javascript:alert(2)) [r]\n\n[r]: data:text/html,3\n"
    )
    leave = "def qk_score(*args):\n    import os\n    os._exit(0)\n"
    opening = ANSWERS["02.qk_score"] + "\n### BEGIN HIDDEN TESTS\n"
    books = {
        f"ada_{NAME}.ipynb": give(words),
        f"bob/{NAME}.ipynb": fresh(source),
        f"cy_{NAME}.ipynb": without(give(qk_score=PARTIAL), "test", "check"),
        f"dot_{NAME} (1).ipynb": plain(give(words)),
        f"eve/{NAME}.ipynb": mangled(give(source_writes=None)),
        f"fay/{NAME}.ipynb": give(qk_score=leave),
        f"gus_{NAME}.ipynb": one_cell(give()),
        f"hal_{NAME}.ipynb": give(qk_score=opening),
        f"jo_{NAME}.ipynb": give(qk_score=BROKEN),
        f"kim_{NAME}.ipynb": give(qk_score=HEADED + RENAMED),
    }
    for name, book in books.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(nbformat.writes(nbformat.from_dict(book)), encoding="utf-8")
    (folder / f"ivy_{NAME}.ipynb").write_bytes(b"\xff not a notebook")
    (folder / "notes.ipynb").write_text("{}")
