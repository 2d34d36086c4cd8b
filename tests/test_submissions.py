"""Whose a file is, cells in any state, words in any place, marks that are typed or made ahead."""

import json
import os
import re
from pathlib import Path
from unittest import mock

import _nbgrader
import _submissions
import nbformat
import pytest
from _submissions import SubmissionError, find, opened, read_marks
from nbconvert.filters.markdown_mistune import markdown2html_mistune as html
from nbgrader.utils import determine_grade

NAME = "02_qk_ov"


def handed_in(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    return find(folder, [NAME], ["00_models"])


def test_whose_a_file_is(tmp_path):
    (tmp_path / f"z_{NAME}.ipynb").symlink_to(tmp_path / f"{NAME}.ipynb")
    (tmp_path / "linked").symlink_to(tmp_path)
    found, passed, unclear = handed_in(
        tmp_path, f"a b_{NAME}.ipynb", f"{NAME}.ipynb", f"x/{NAME} (1).ipynb", "y/03_other.ipynb",
        f".hidden/{NAME}.ipynb", f"mia/hw2/{NAME}.ipynb", f"mia/.ipynb_checkpoints/{NAME}.ipynb",
        f"v_{NAME}.py", "x/notes.txt", f"w_{NAME}.IPYNB", "mia/00_models.ipynb",
    )  # fmt: skip
    assert [(s.student, s.path.relative_to(tmp_path).as_posix()) for s in found] == [
        ("a b", f"a b_{NAME}.ipynb"), ("mia", f"mia/hw2/{NAME}.ipynb"), ("w", f"w_{NAME}.IPYNB"),
        ("x", f"x/{NAME} (1).ipynb"),
    ]  # fmt: skip
    told = dict(text.split(": ", 1) for text in passed)
    assert set(told) == {
        f"z_{NAME}.ipynb", "linked", "y/03_other.ipynb", f"{NAME}.ipynb", f"v_{NAME}.py",
        "mia/00_models.ipynb",
    }  # fmt: skip
    assert "link" in told["linked"] and "link" in told[f"z_{NAME}.ipynb"]
    assert "call it STUDENT" in told[f"{NAME}.ipynb"] and "call it" in told["y/03_other.ipynb"]
    assert "not a notebook" in told[f"v_{NAME}.py"]
    assert "no exercise" in told["mia/00_models.ipynb"] and not unclear


@pytest.mark.parametrize(
    ("files", "counts"),
    [
        ((f"x/{NAME} (1).ipynb", f"x/{NAME}.ipynb"), f"x/{NAME}.ipynb"),
        ((f"x_{NAME}-new.ipynb", f"x_{NAME}.ipynb"), f"x_{NAME}.ipynb"),
        ((f"x/{NAME}.ipynb", f"x/old_{NAME}.ipynb"), f"x/{NAME}.ipynb"),
        ((f"x/{NAME}.ipynb", f"x_{NAME}.ipynb"), None),
        ((f"x/a/{NAME}.ipynb", f"x/b/{NAME}.ipynb"), None),
        ((f"x/{NAME}-1.ipynb", f"x/{NAME}-2.ipynb"), None),
    ],
)
def test_of_two_files_the_plain_name_counts_and_both_are_told(tmp_path, files, counts):
    found, _, unclear = handed_in(tmp_path, f"y_{NAME}.ipynb", *files)
    taken = [s.path.relative_to(tmp_path).as_posix() for s in found if s.student == "x"]
    assert taken == ([counts] if counts else [])
    assert len(unclear) == 1 and unclear[0].startswith(f"x, {NAME}: ")
    assert all(name in unclear[0] for name in files)


def test_no_two_students_share_a_name_and_letters_of_all_languages_stay(tmp_path):
    names = ("Ada L", "Ada_L", "Ada=L", "Ada+L", "=cmd", "cmd", "Zoe\u0308", "Łukasz", "किशोर")
    found, *_ = handed_in(tmp_path, *(f"{name}/{NAME}.ipynb" for name in names))
    got = {s.path.parent.name: s.student for s in found}
    assert len(set(got.values())) == len(names)
    assert got["Zoe\u0308"] == "Zo\u00eb"
    for name in ("Ada L", "Ada_L", "cmd", "Łukasz", "किशोर"):
        assert got[name] == name
    assert re.fullmatch("Ada_L-[0-9a-f]{4}", got["Ada=L"])
    assert re.fullmatch("cmd-[0-9a-f]{4}", got["=cmd"])
    table = tmp_path / "marks.csv"  # a mark finds its student, however the name was typed
    table.write_text("student,exercise,points\n" + "".join(f"{n},02.why,1\n" for n in names))
    marked = {m.student for m in read_marks(table, {"02.why": 2.0})}
    assert marked == set(got.values())


def test_a_folder_with_nothing_to_grade_says_why(tmp_path):
    with pytest.raises(SubmissionError, match="00_models has no exercise, so nothing to grade"):
        handed_in(tmp_path, "ada_00_models.ipynb")
    with pytest.raises(SubmissionError, match="keep one of these files"):
        handed_in(tmp_path, f"x/{NAME}.ipynb", f"x_{NAME}.ipynb")


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
    "book",
    [
        {"nbformat": 3, "worksheets": [{"cells": [{"cell_type": "code"}]}]},
        {"nbformat": 2, "worksheets": [{}]},
        {"cells": [], "x": [{}] * 400_000},
    ],
)
def test_what_cannot_be_opened_is_a_note(tmp_path, book):
    (tmp_path / "x\n# y.ipynb").write_text(json.dumps(book))
    (cell,) = opened(tmp_path / "x\n# y.ipynb").cells
    assert cell.source.startswith(r"Nothing could be graded: x\n# y.ipynb ")
    assert len(cell.source.splitlines()) == 1


def test_halves_of_letters_do_not_come_into_the_course(tmp_path):
    meta = {"nbgrader": {"grade_id": "\ud800"}}
    cell = {"cell_type": "code", "source": "x = '\udcff'", "metadata": meta}
    (tmp_path / "x.ipynb").write_text(json.dumps({"cells": [cell], "metadata": 5}))
    book = nbformat.writes(opened(tmp_path / "x.ipynb"))
    assert "x = '?'" in book and book.encode()
    names = [os.fsdecode(b"a\xff"), os.fsdecode(b"a\xfe")]
    students = {_submissions._name(n) for n in names}
    assert len(students) == 2 and all(s.isascii() for s in students)


def test_a_place_that_cannot_be_looked_at_is_passed_over(tmp_path, monkeypatch):
    real = Path.is_dir

    def is_dir(path):
        if path.name.startswith("shut"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(Path, "is_dir", is_dir)
    found, passed, _ = handed_in(tmp_path, f"shut_{NAME}.ipynb", f"ada_{NAME}.ipynb")
    assert [one.student for one in found] == ["ada"]
    assert passed == [f"shut_{NAME}.ipynb: it cannot be read (Permission denied)"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name,points\n", "line 1: it should be student,exercise,points,comment"),
        ("student;exercise;points\nada;02.why;1\n", "with commas between the columns"),
        ("student,exercise,points\n,02.why,1\n", "line 2: it names no student"),
        ("student,exercise,points\nada,02.why,1,5\n", "line 2: too many commas"),
        ('student,exercise,points\nada,02.why,"1,5"\n', "write 2.5, not 2,5"),
        ("student,exercise,points,comment\nada,02.why,1,5\n", "line 2: the comment is only a num"),
        ("student,exercise,points,comment\n,,,\nada,02.why\n", "line 3: '' points"),
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


HOSTILE = [
    "It <script>alert(1)</script> <IMG src=x onerror=y> </div> <!-- x --> <?x?> no",
    "[a](javascript:alert(1)) [b](&#106;avascript:x) ![p](http://x/p.png) ![q][r]",
    "[a][r] [r] [r][]\n\n[r]: javascript:alert(1)\n  [b]: <data:text/html,x>\n\n> [a]: vbscript:x",
    "<javascript:alert(1)>",
    "cost $5 <script> and $6, `$` <script>`$` \\$<script>$ \\begin{x}<b>\\end{x}\n\n    <b>",
    r"$\href{javascript:alert(1)}{x}$ \href{x}{y} $$\require{html}\style{x}{y}$$",
    "[a\n](javascript:x)\n```\n<b>\n``` \n<b>x</b>",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_tag_link_or_picture_of_a_student_comes_to_be(text):
    page = html(_nbgrader.only_words(text))
    allowed = r"</?(p|code|pre|blockquote|br|strong)( ?/)?>"
    assert "<" not in re.sub(allowed, "", page).replace('<a href="http://x/p.png">', "").replace(
        "</a>", ""
    )
    assert not re.search(r"\\(href|style|require)\b", page)


def test_words_code_and_maths_look_as_they_were_written():
    text = "**a** < 1, `x[i](y) <b>` and `vector<int>`; see https://a.org\n\n- $a_i < b$\n"
    page = html(_nbgrader.only_words(text))
    assert page.replace("\u200b", "") == html(text)
    maths = _nbgrader.only_words(r"$a<b$, $W[i](x)$ and $$c</d$$")
    assert maths == r"$a< b$, $W[i] (x)$ and $$c< /d$$"
    for one in [*HOSTILE, text, maths]:  # it may be done twice
        assert _nbgrader.only_words(_nbgrader.only_words(one)) == _nbgrader.only_words(one)


def test_notes_cannot_forge_lines_nor_hold_half_letters():
    bad = "a <b>\n- [forged](javascript:x)\ud800\x1b[2J"
    one = _nbgrader.grade.ExerciseReport("02.a", 1.0, error=bad)
    report = _nbgrader.grade.Report("02_qk_ov", {"02.a": one}, [bad], error=bad)
    empty = nbformat.v4.new_notebook(metadata={"circuitbook": {}})
    (note,) = _nbgrader.rebuilt(empty, empty, report).cells
    assert note.source.encode() and len(note.source.splitlines()) == 2 + 3
    assert "<b" not in note.source and "](" not in note.source
    text = _nbgrader.sentences(one)
    assert text.encode() and len(text.splitlines()) == 2 and "\x1b" not in text


# ---- marks made ahead --------------------------------------------------------------------------


def test_marks_made_ahead_are_taken_for_the_same_notebook_source_and_variant_only(tmp_path):
    def source(text="x = 1", variant=1, points=1):
        call = f'{text}\nmarks("02.a", a, variant={variant}, points={points})'
        return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(call)])

    def sent(*texts, **meta):
        cells = [nbformat.v4.new_code_cell(t, metadata={"nbgrader": meta}) for t in texts]
        return nbformat.v4.new_notebook(cells=cells)

    one = _nbgrader.grade.ExerciseReport("02.a", 1.0)
    report = _nbgrader.grade.Report("02_qk_ov", {"02.a": one}, ["made ahead"])
    with mock.patch.object(_nbgrader.grade, "grade_notebook", lambda *a: report):
        _nbgrader.grade_before(tmp_path, "ada", sent("a = 1", "b"), source())
    for student, *other in (
        ("bob", sent("a = 1", "b"), source()),
        ("ada", sent("a = 2", "b"), source()),
        ("ada", sent("a = 1"), source()),
        ("ada", sent("b", "a = 1"), source()),
        ("ada", sent("a = 1", "b", grade_id="x"), source()),
        ("ada", sent("a = 1", "b"), source("x = 2")),
        ("ada", sent("a = 1", "b"), source(variant=2)),
        ("ada", sent("a = 1", "b"), source(points=2)),
    ):
        assert _nbgrader.taken(tmp_path, student, *other) is None
    same = (tmp_path, "ada", sent("a = 1", "b"), source())
    assert _nbgrader.taken(*same).notes == ["made ahead"] and _nbgrader.taken(*same) is None


def test_a_test_without_a_mark_gives_no_points():
    meta = {"grade": True, "solution": False, "locked": True, "points": 3, "grade_id": "test-02-x"}
    cell = nbformat.v4.new_code_cell("1", metadata={"nbgrader": meta})
    other = _nbgrader.grade.ExerciseReport("02.other", 1.0)
    report = _nbgrader.grade.Report("02_qk_ov", {"02.other": other})
    book = nbformat.v4.new_notebook(cells=[cell], metadata={})
    book.metadata["circuitbook"] = {"report": json.dumps(report.plain())}
    _nbgrader.WriteMarks().preprocess(book, {})
    assert determine_grade(book.cells[0]) == (0, 3)
