"""A folder of notebooks goes through all of nbgrader's steps, whatever state each of them is in.

One run with eleven students of chapter 02 is made once; the tests read what came of it.
"""

import csv
import json
import re
import shutil
from unittest import mock

import _assignment
import _nbgrader
import nbformat
import pytest
from nbconvert.filters.markdown_mistune import markdown2html_mistune as html
from nbgrader.api import Gradebook
from nbgrader.preprocessors import Execute
from nbgrader_books import ANSWERS, ASKED, LESSON, NAME, VARIANT, command, hand_in, without

from circuitbook.grade import client
from circuitbook.grade.__main__ import main as small_grader


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A teacher's folder after `make grade`: sources with a private variant, submissions, marks."""
    root = tmp_path_factory.mktemp("grading")
    (root / "source").mkdir()
    source = _assignment.source(LESSON, lambda *a: pytest.fail("02 draws nothing"), VARIANT)
    (root / "source" / f"{NAME}.ipynb").write_text(nbformat.writes(source), encoding="utf-8")
    hand_in(root / "sent", source)
    before = {p: p.read_bytes() for p in (root / "sent").rglob("*.ipynb")}
    with mock.patch.object(Execute, "preprocess", side_effect=AssertionError("a kernel")):
        status = command(root / "sent", "--source", root / "source", "--to", root / "course")
    assert status == 0
    assert {p: p.read_bytes() for p in (root / "sent").rglob("*.ipynb")} == before
    return root


def table(root):
    with (root / "course" / "grades.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def points(root, student):
    rows = [row for row in table(root) if row["student"] == student]
    return {row["exercise"].partition(".")[2]: float(row["points"]) for row in rows}


def page(root, student):
    return (root / "course" / "feedback" / student / NAME / f"{NAME}.html").read_text()


FULL = {e.function: e.points for e in LESSON.exercises} | {ASKED.function: 0}


# ---- marks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("student", "lost"),
    [
        ("ada", {}),
        ("bob", {e.function: 0 for e in LESSON.exercises}),
        ("dot", {}),
        ("eve", {"source_writes": 0}),
        ("fay", {"qk_score": 0}),
        ("gus", {}),
        ("hal", {}),
        ("ivy", {e.function: 0 for e in LESSON.exercises}),
        ("jo", {"qk_score": 0}),
        ("kim", {"qk_score": 0}),
    ],
)
def test_whatever_was_done_to_a_notebook_its_answers_are_marked(made, student, lost):
    assert points(made, student) == FULL | lost


def test_part_of_the_laws_gives_the_points_that_the_report_says(made):
    got = points(made, "cy")
    book = nbformat.read(made / "sent" / f"cy_{NAME}.ipynb", as_version=4)
    source = nbformat.read(made / "source" / f"{NAME}.ipynb", as_version=4)
    report = _nbgrader.grade.grade_notebook(book, source)
    assert report.exercises["02.qk_score"].status == "partly right"
    assert got == FULL | {"qk_score": report.exercises["02.qk_score"].points}
    assert got["qk_score"] < FULL["qk_score"]


def test_the_small_grader_gives_the_same_marks(made, tmp_path):
    out = tmp_path / "marks.json"
    for name in (f"cy_{NAME}.ipynb", f"eve/{NAME}.ipynb", f"fay/{NAME}.ipynb"):
        status = small_grader(
            [str(made / "source" / f"{NAME}.ipynb"), str(made / "sent" / name), "--json", str(out)]
        )
        assert status == 0
        marks = json.dumps(json.loads(out.read_text()))
        for exercise, value in points(made, re.match("[a-z]+", name)[0]).items():
            if exercise != ASKED.function:
                found = re.search(rf'"02\.{exercise}": {{"points": ([0-9.]+)', marks)
                assert float(found[1]) == value, (name, exercise)


def test_the_table_has_a_row_for_each_exercise_and_says_what_waits(made):
    rows = [row for row in table(made) if row["student"] == "ada"]
    assert [row["exercise"] for row in rows] == [e.name for e in LESSON.exercises + LESSON.written]
    total = sum(e.points for e in LESSON.exercises)
    assert {row["total"] for row in rows} == {f"{total:.1f}"}
    assert {row["total_max"] for row in rows} == {f"{total + ASKED.points:.1f}"}
    waiting = {(r["student"], r["exercise"]) for r in table(made) if r["needs_manual"] == "yes"}
    assert waiting == {("ada", ASKED.name), ("dot", ASKED.name)}  # nobody else wrote anything
    assert {r["exercise"] for r in table(made) if r["written"] == "yes"} == {ASKED.name}


def test_what_was_irregular_is_told_on_top(made):
    assert "nothing unusual" in page(made, "ada")
    assert "its test cell was edited or deleted" in page(made, "cy")
    assert "found in another cell" in page(made, "gus") or "stands in" in page(made, "gus")
    assert "is not a notebook" in page(made, "ivy")


# ---- feedback -----------------------------------------------------------------------------------


def test_feedback_shows_no_hidden_test_and_no_solution(made):
    model = next(c.source for c in LESSON.cells if "solution" in c.tags)
    for path in (made / "course" / "feedback").rglob("*.html"):
        text = path.read_text()
        words = re.sub(r"<[^>]+>", "", text)
        for secret in (str(VARIANT), "marks(", "circuitbook.grade", "BEGIN HIDDEN", model[:60]):
            assert secret not in text and secret not in words, (path, secret)
    blank = re.sub(r"<[^>]+>", "", page(made, "bob"))
    for answer in ANSWERS.values():
        assert answer.rstrip().splitlines()[-1].strip() not in blank


def test_feedback_says_which_law_failed(made):
    text = page(made, "cy")
    assert "✗" in text and "✓" in text and "of 1 points (partly right)" in text
    assert "(no answer)" in page(made, "bob")


@pytest.mark.parametrize("student", ["jo", "kim"])
def test_what_is_no_answer_is_shown_as_it_was_written(made, student):
    words = re.sub(r"<[^>]+>", "", page(made, student))
    assert "my_best(query" in words and "YOUR CODE HERE" not in words
    kept = made / "course" / "autograded" / student / NAME / f"{NAME}.ipynb"  # the teacher's page
    assert "my_best(query" in kept.read_text() and "raise NotImpl" not in kept.read_text()


def test_the_table_of_contents_names_the_exercises(made):
    contents = page(made, "cy").partition('<div id="toc">')[2].partition("</div>")[0]
    names = re.findall(r'<a href="#[^"]*">([^<]*)</a>', contents)
    every = [e.name for e in LESSON.exercises + LESSON.written]
    assert names == [*every, f"Comment on {ASKED.name}"]  # nbgrader comments what is missing
    for target in re.findall(r'<a href="#([^"]*)">', contents):
        assert f'<a name="{target}">' in page(made, "cy")


def test_feedback_loads_nothing_and_runs_nothing(made):
    for path in (made / "course" / "feedback").rglob("*.html"):
        text = path.read_text()
        loads = re.findall(r"<(?:script|link|img|iframe|object)\b[^>]*>", text)
        assert not [tag for tag in loads if "data:" not in tag], path
        assert not re.search(r"url\(['\"]?(https?:)?//", text)
        assert "default-src 'none'" in text
        assert not re.search(r"href=\S*(javascript|data|vbscript|3A):?", text)
    words = page(made, "ada").replace("\u200b", "")
    assert "alert(1)" in words and "&lt;script" in words and "alert(2)" in words


def test_no_tag_nor_link_of_a_student_is_in_what_the_formgrader_shows(made):
    path = made / "course" / "autograded" / "ada" / NAME / f"{NAME}.ipynb"
    book = nbformat.read(path, as_version=4)
    (words,) = [c.source for c in book.cells if "alert(2)" in c.source]
    assert not re.search(r"<[a-zA-Z/!?]|\]\(|\]:|!\[", words)
    assert not re.search(r'<(script|img)\b|href="(?!http)', html(words))


# ---- written answers, and a second time -------------------------------------------------------


def call(root, *more):
    return command(root / "sent", "--source", root / "source", "--to", root / "course", *more)


def test_marks_for_words_are_entered_and_kept(made, tmp_path, monkeypatch, capsys):
    root = tmp_path / "copy"
    shutil.copytree(made, root)
    (root / "marks.csv").write_text(
        f"student,exercise,points,comment\nada,{ASKED.name},1.5,Which control?\n"
        f"nobody,{ASKED.name},1,\n"
    )
    monkeypatch.setattr(_nbgrader.grade, "grade_notebook", lambda *a: pytest.fail("run again"))
    assert call(root, "--written", root / "marks.csv") == 0
    out = capsys.readouterr().out
    assert "11 submissions, 0 of them new or changed" in out
    assert f"nobody has a mark for {ASKED.name}, but no answer" in out
    assert points(root, "ada")[ASKED.function] == 1.5
    assert "Which control?" in page(root, "ada")
    waiting = {r["student"] for r in table(root) if r["needs_manual"] == "yes"}
    assert waiting == {"dot"}
    assert call(root) == 0  # and a run without the table forgets nothing
    assert points(root, "ada")[ASKED.function] == 1.5


def test_only_what_changed_is_graded_again(made, tmp_path, monkeypatch, capsys):
    root, runs = tmp_path / "copy", []
    shutil.copytree(made, root)
    real = _nbgrader.grade.grade_notebook
    monkeypatch.setattr(_nbgrader.grade, "grade_notebook", lambda *a: runs.append(1) or real(*a))
    shutil.copy(root / "sent" / f"ada_{NAME}.ipynb", root / "sent" / "bob" / f"{NAME}.ipynb")
    assert call(root) == 0
    assert len(runs) == 1 and points(root, "bob") == FULL
    assert points(root, "cy") == points(made, "cy")


def test_two_files_and_withdrawn_ones_are_told_and_nothing_is_forgotten(made, tmp_path, capsys):
    root = tmp_path / "copy"
    shutil.copytree(made, root)
    (root / "sent" / f"hal_{NAME}.ipynb").unlink()
    (root / "sent" / f"cy_{NAME}.ipynb").unlink()
    shutil.copy(root / "sent" / "eve" / f"{NAME}.ipynb", root / "sent" / "bob" / f"{NAME}-2.ipynb")
    assert call(root) == 1
    out = capsys.readouterr().out
    assert "9 submissions, 0 of them new or changed" in out
    assert re.search(rf"kept from an earlier call, not in .*/sent now: {NAME}: cy, hal\n", out)
    assert f"not graded: bob, {NAME}: of " in out and f"only bob/{NAME}.ipynb counts" in out
    assert table(root) == table(made)


def test_an_assignment_that_lost_an_exercise_is_refused_and_marks_stay(made, tmp_path, capsys):
    root = tmp_path / "copy"
    shutil.copytree(made, root)
    path = root / "source" / f"{NAME}.ipynb"
    book = without(nbformat.read(path, as_version=4), "test-02-qk_score")
    nbformat.write(book, path)
    before = table(root)
    assert call(root) == 1
    assert "Cannot add or remove cells" in capsys.readouterr().err and table(root) == before
    with Gradebook(f"sqlite:///{root / 'course' / 'gradebook.db'}", "circuitbook") as gradebook:
        assert len(_nbgrader.rows(gradebook)) == len(before)


def test_a_notebook_that_nbgrader_cannot_grade_does_not_stop_the_others(made, tmp_path, monkeypatch,
                                                                        capsys):  # fmt: skip
    root = tmp_path / "copy"
    shutil.copytree(made, root)
    for student in ("bob", "ivy"):
        shutil.rmtree(root / "course" / "autograded" / student)
    real = _nbgrader.rebuilt
    monkeypatch.setattr(
        _nbgrader, "rebuilt", lambda nb, *a: 1 / 0 if len(nb.cells) > 1 else real(nb, *a)
    )
    long = root / "sent" / ("=" + "x" * 252) / f"{NAME}.ipynb"  # no room for letters of its hash
    long.parent.mkdir()
    shutil.copy(root / "sent" / f"ada_{NAME}.ipynb", long)
    assert call(root) == 1
    out = capsys.readouterr().out
    assert "not graded: xxx" in out and "File name too long" in out
    assert "failed  bob" in out and "graded  ivy" in out
    assert f"not graded: bob, {NAME}: ZeroDivisionError" in out
    assert points(root, "ada") == FULL


def test_where_answers_cannot_be_shut_in_nothing_is_graded_without_trust(
    made, tmp_path, monkeypatch, capsys
):
    root = tmp_path / "copy"
    shutil.copytree(made, root)
    monkeypatch.delenv("TRUST", raising=False)
    open_to_all = {"user": False, "full": False, "notes": ["nothing\x1b is shut"]}
    monkeypatch.setattr(client, "isolation", lambda limits=None: open_to_all)
    assert call(root) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(r"nothing\x1b is shut") and "--trust" in line and "TRUST=1" in line
    monkeypatch.setenv("TRUST", "1")
    assert call(root) == 0


# ---- folders that cannot be ---------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir()])
def test_a_folder_without_notebooks_is_one_line(made, tmp_path, capsys, make):
    make(tmp_path / "sent")
    status = command(tmp_path / "sent", "--source", made / "source", "--to", tmp_path / "course")
    err = capsys.readouterr().err.strip()
    assert status == 1 and len(err.splitlines()) == 1 and str(tmp_path / "sent") in err


def test_a_folder_without_assignments_is_one_line(tmp_path, capsys):
    assert command(tmp_path, "--source", tmp_path / "none", "--to", tmp_path / "c") == 1
    assert "make assignments" in capsys.readouterr().err
    assert command() == 1 and "SUBMISSIONS=FOLDER" in capsys.readouterr().err


def refused(root, capsys, source="source", to="new"):
    """The one line with which a call is refused; nothing was written."""
    before = sorted(root.rglob("*"))
    assert command(root / "sent", "--source", root / source, "--to", root / to) == 1
    assert sorted(root.rglob("*")) == before
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


def test_folders_that_cannot_be_are_refused_before_anything_is_written(made, tmp_path, capsys):
    root = tmp_path / "copy"
    for name in ("source", "sent"):
        shutil.copytree(made / name, root / name)
    (root / "file").write_text("mine")
    for to in ("file", "file/deeper"):
        assert "cannot be a folder" in refused(root, capsys, to=to)
    for to in ("sent", "sent/course", "source/course", "."):
        assert "take another OUT" in refused(root, capsys, to=to)
    (root / "release").mkdir()
    book = nbformat.read(root / "source" / f"{NAME}.ipynb", as_version=4)
    nbformat.write(_assignment.release(book), root / "release" / f"{NAME}.ipynb")
    assert f"no hidden tests for {NAME}" in refused(root, capsys, source="release")
    (root / "release" / f"{NAME}.ipynb").write_text("{")
    assert "is not a notebook" in refused(root, capsys, source="release")
