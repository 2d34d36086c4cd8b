"""Whose a file is, cells in any state, words in any place, and marks that teachers type."""

import json
import re

import _nbgrader
import nbformat
import pytest
from _submissions import SubmissionError, find, opened, read_marks

NAME = "02_qk_ov"


def test_whose_a_file_is(tmp_path):
    for name in (f"a b_{NAME}.ipynb", f"{NAME}.ipynb", f"=cmd/{NAME}.ipynb", f"x/{NAME}.ipynb",
                 f"x/{NAME} (1).ipynb", f".hidden/{NAME}.ipynb", "y/03_other.ipynb"):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / f"z_{NAME}.ipynb").symlink_to(tmp_path / f"{NAME}.ipynb")
    found, passed = find(tmp_path, [NAME])
    assert [(s.student, s.path.name) for s in found] == [
        ("a_b", f"a b_{NAME}.ipynb"), ("cmd", f"{NAME}.ipynb"), ("x", f"{NAME} (1).ipynb"),
    ]  # fmt: skip
    told = "\n".join(passed)
    assert "it is a link" in told and "x already handed in" in told and "03_other" in told
    assert f"{NAME}.ipynb: call it STUDENT" in told


@pytest.mark.parametrize(
    ("cells", "kept"),
    [
        ([{"cell_type": "code", "source": ["a\n", "b"], "metadata": 3}], ["a\nb"]),
        ([{"cell_type": "odd", "source": None}, {"source": 5}, {}], ["None", "5", ""]),
        ([{"cell_type": "code", "source": "x", "metadata": {"nbgrader": []}, "outputs": 1}], ["x"]),
    ],
)
def test_cells_in_any_state_can_be_opened(tmp_path, cells, kept):
    path = tmp_path / "x.ipynb"
    path.write_text(json.dumps({"cells": cells, "nbformat": 4}))
    book = opened(path)
    nbformat.validate(book)
    assert [c.source for c in book.cells] == kept and "circuitbook" not in book.metadata


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name,points\n", "first line is student,exercise,points"),
        ("student,exercise,points\nada,02.no,1\n", "line 2: '02.no' is not answered in words"),
        ("student,exercise,points\nada,02.why,3\n", "0 to 2"),
        ("student,exercise,points\nada,02.why,-1\n", "0 to 2"),
        ("student,exercise,points\nada,02.why,nan\n", "0 to 2"),
        ("student,exercise,points\nada,02.why,\n", "0 to 2"),
        ("student,exercise,points\nada,02.why,1\nada,02.why,2\n", "line 3: ada has two marks"),
    ],
)
def test_a_mark_that_cannot_be_is_refused(tmp_path, text, words):
    (tmp_path / "marks.csv").write_text(text)
    with pytest.raises(SubmissionError, match=re.escape(words)):
        read_marks(tmp_path / "marks.csv", {"02.why": 2.0})
    with pytest.raises(SubmissionError, match="cannot be read"):
        read_marks(tmp_path / "none.csv", {})


# ---- answers in words ----------------------------------------------------------------------------

QUESTION = "**Written exercise 02.why** · 2 points · about 5 minutes\n\nWhy?"
NAMED = {"nbgrader": {"grade_id": "written-02-why"}}


@pytest.mark.parametrize(
    ("cells", "answer", "stray"),
    [
        ([("Because.", NAMED)], "Because.", "Because."),
        ([(QUESTION, {}), ("Because.", {})], "Because.", "Because."),
        ([("Because.", NAMED), ("YOUR ANSWER HERE", NAMED)], "Because.", "Because."),
        ([("One.", NAMED), ("Two.", NAMED), ("Two.", NAMED)], "One.\n\nTwo.", "Two."),
        ([(QUESTION, {}), ("prose of the lesson", {}), ("Because.", {})], None, "Because."),
        ([(QUESTION + " Because.", {})], None, "Because."),
        ([(QUESTION, {}), ("YOUR ANSWER HERE", NAMED)], None, ""),
    ],
)
def test_words_are_found_and_never_lost(cells, answer, stray):
    book = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_markdown_cell(text, metadata=meta) for text, meta in cells]
    )
    known = {"", "YOUR ANSWER HERE", QUESTION, "prose of the lesson"}
    found, every = _nbgrader.in_words(book, known)
    assert found.get("written-02-why") == answer
    assert stray in every and bool(stray) == bool(every)
