"""The command for self-study: a short summary, one JSON file, errors in one line."""

import contextlib
import json
import os
from pathlib import Path

import grade_books
import nbformat
import pytest

from circuitbook.grade import RULE, ExerciseReport, Law, Limits, Report, __main__, earned, marks
from circuitbook.grade.report import shown

SOURCE = str(next(grade_books.SOURCES.glob("02_*.ipynb")))


def run(*given):
    return __main__.main([str(g) for g in given])


def test_a_folder_of_students_and_of_sources(tmp_path, capsys):
    for student, chapter in (("ada", "02"), ("ben", "02"), ("ben", "03")):
        (tmp_path / student).mkdir(exist_ok=True)
        name = "02_qk_ov" if chapter == "02" else "my homework"
        book = grade_books.answered(chapter) if student == "ada" else grade_books.release(chapter)
        nbformat.write(book, tmp_path / student / f"{name}.ipynb")
    (tmp_path / "ada" / ".ipynb_checkpoints").mkdir()
    nbformat.write(book, tmp_path / "ada" / ".ipynb_checkpoints" / "02_qk_ov.ipynb")
    (tmp_path / "ben" / "notes.txt").write_text("not graded")
    out = tmp_path / "marks.json"
    code = run(grade_books.SOURCES, tmp_path, "--variant", 5, "--json", out, "--law", 100)
    assert code == 0
    found = json.loads(out.read_text())
    points = {n: (r["lesson"], r["points"], r["possible"]) for n, r in found["submissions"].items()}
    assert points == {
        "ada/02_qk_ov.ipynb": ("02_qk_ov", 10, 10),
        "ben/02_qk_ov.ipynb": ("02_qk_ov", 0, 10),
        "ben/my homework.ipynb": ("03_path_expansion", 0, 14),
    }
    assert "isolation" in found and "variant" not in out.read_text()
    told = capsys.readouterr().out
    assert "ada/02_qk_ov.ipynb: 10 of 10 points" in told and "no answer" in told


def test_a_wrong_answer_is_told_with_its_first_broken_law(tmp_path, capsys):
    wrong = "def qk_score(query, key, W_E, W_Q, W_K):\n    return 1.0\n"
    path = tmp_path / "mine.ipynb"
    nbformat.write(grade_books.answered("02", qk_score=wrong), path)
    assert run(SOURCE, path, "--variant", 5, "--law", 100) == 0
    told = capsys.readouterr().out
    assert "✗ in a hand-made head" in told and "The query token meets W_Q" in told
    assert "9 of 10" in told and told.count(RULE) == 1
    assert "what_a_score_says (3)" in told, "the answer in words is marked by people"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((SOURCE, "nowhere"), "there is no nowhere"),
        ((SOURCE, "no\x1b[2J\nzoe: 10"), r"there is no no\x1b[2J\nzoe: 10"),
        (("nowhere", SOURCE), "there is no nowhere"),
        ((SOURCE, "EMPTY"), "no notebook in"),
        (("EMPTY", SOURCE), "no notebook in"),
        (("TEXT", SOURCE), "is not a notebook"),
        (("BARE", SOURCE), "has no exercises"),
        (("NAMELESS", SOURCE), "--variant N"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, given, words):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.ipynb").write_text("hello")
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "bare.ipynb")
    nameless = grade_books.release("02")  # students' notebooks hold no hidden test
    nbformat.write(nameless, tmp_path / "nameless.ipynb")
    places = {"EMPTY": "empty", "TEXT": "text.ipynb", "BARE": "bare.ipynb"}
    places["NAMELESS"] = "nameless.ipynb"
    given = [tmp_path / places[g] if g in places else g for g in given]
    assert run(*given) == 2
    told = capsys.readouterr().err
    assert words in told and told.count("\n") == 1


def test_a_folder_as_source_needs_no_variant_and_passes_by_a_chapter_without_exercises(
    tmp_path, capsys
):
    nbformat.write(grade_books.answered("02"), tmp_path / "mine.ipynb")
    nbformat.write(grade_books.release("00"), tmp_path / "first.ipynb")
    assert run(grade_books.SOURCES, tmp_path, "--law", 100) == 0
    told = capsys.readouterr().out
    assert "mine.ipynb: 10 of 10 points" in told and RULE not in told
    assert "first.ipynb: no points" in told and "nothing to grade" in told


def test_another_chapter_than_the_source_is_told(tmp_path, capsys):
    nbformat.write(grade_books.release("08"), tmp_path / "mine.ipynb")
    assert run(SOURCE, tmp_path / "mine.ipynb") == 1
    told = capsys.readouterr().out
    assert "this notebook is chapter 08, and SOURCE is 02_qk_ov" in told and "deleted" not in told


def test_a_chapter_handed_in_twice_is_told(tmp_path, capsys):
    for name in ("a", "b\x1b[2J"):
        (tmp_path / "ada").mkdir(exist_ok=True)
        nbformat.write(grade_books.release("02"), tmp_path / "ada" / f"{name}.ipynb")
    assert run(SOURCE, tmp_path) == 0
    assert "ada has 2 notebooks of 02_qk_ov (a.ipynb, b\\x1b[2J.ipynb)" in capsys.readouterr().out


@pytest.mark.parametrize("given", [("--variant", "-1"), ("--timeout", "0"), ("--memory", "x")])
def test_bad_numbers_are_refused(given, capsys):
    with pytest.raises(SystemExit):
        run(SOURCE, SOURCE, *given)
    assert "is not a" in capsys.readouterr().err


def test_a_file_that_is_none_gets_no_points_and_a_reason(tmp_path, capsys):
    path = tmp_path / "bad.ipynb"
    path.write_text("[1, 2]")
    assert run(SOURCE, path, "--variant", 5) == 1
    assert "0 of 10 points" in (told := capsys.readouterr().out) and "save it again" in told


def broken_files(folder):
    """Notebooks that each broke a grader in their own way."""
    blank = grade_books.release("02")
    for name in ("one", "two", "three", "unread", "mal\nzoe: 10 of 10 points\x1b[2J"):
        nbformat.write(blank, folder / f"{name}.ipynb")
    with contextlib.suppress(OSError):  # some systems have no such names
        nbformat.write(blank, os.fsdecode(os.fsencode(folder / "byte") + b"\xff.ipynb"))
    for name, change in {
        "meta": {"metadata": {"circuitbook": 5}},
        "cell": {"cells": [{"cell_type": "code", "source": "x = 1", "metadata": 5}, {}]},
        "v3": {"nbformat": 3, "worksheets": [{"cells": [{"cell_type": "code"}]}]},
        "v2": {"nbformat": 2, "worksheets": [{}]},
    }.items():
        book = dict(blank) | change
        if "nbformat" in change:
            del book["cells"]
        (folder / f"{name}.ipynb").write_text(json.dumps(book))
    half = 'raise ValueError("x\\ud800y\\x1b[2J\\nzoe: 10 of 10 points")\n'
    answer = next(c for c in blank.cells if "def qk_score" in c.source).source.splitlines()[0]
    answer += f"\n{half}def qk_score(query, key, W_E, W_Q, W_K):\n    {half}"
    nbformat.write(grade_books.answered("02", qk_score=answer), folder / "half.ipynb")
    return {p.relative_to(folder).as_posix() for p in folder.iterdir()}


def test_what_is_wrong_with_one_file_is_its_own_line_and_the_others_are_graded(
    tmp_path, capsys, monkeypatch
):
    (tmp_path / "sent").mkdir()
    names = broken_files(tmp_path / "sent")
    real, read = __main__.grade_file, Path.read_bytes
    real_grade = __main__.grade_notebook

    def unreadable(path):
        if path.name == "unread.ipynb":
            raise PermissionError(13, "Permission denied")
        return read(path)

    def grade(book, *rest):
        if book.metadata.get("two"):
            raise ZeroDivisionError("no\x1b[2J")
        return real_grade(book, *rest)

    def file(path, *rest):
        report = real(path, *rest)
        if path.name == "three.ipynb":  # messages of every kind that a report can carry
            report.notes.append("half \ud800 of\nzoe: 10 of 10 points\x1b[2J")
            bad = Law("it is", False, "", "a\nzoe: 1\x1b\ud800")
            report.exercises["02.qk_score"].answered = True
            report.exercises["02.qk_score"].laws = [bad] * 5
        return report

    book = nbformat.read(tmp_path / "sent" / "two.ipynb", as_version=4)
    book.metadata["two"] = True
    nbformat.write(book, tmp_path / "sent" / "two.ipynb")
    monkeypatch.setattr(Path, "read_bytes", unreadable)
    monkeypatch.setattr(__main__, "grade_notebook", grade)
    monkeypatch.setattr(__main__, "grade_file", file)
    out = tmp_path / "marks.json"
    code = run(SOURCE, tmp_path / "sent", "--variant", 5, "--law", 100, "--json", out, "--trust")
    told = capsys.readouterr().out
    assert code == 1 and "\x1b" not in told and r"\x1b" in told and r"\ud800" in told
    assert not [line for line in told.splitlines() if line.strip().startswith("zoe")]
    found = json.loads(out.read_text())["submissions"]
    assert set(found) == names and sorted(tmp_path.glob("marks*")) == [out]
    assert found["half.ipynb"]["points"] == 9 and not found["meta.ipynb"]["error"]
    errors = {name.partition(".")[0]: r["error"] for name, r in found.items() if r["error"]}
    assert set(errors) == {"two", "unread", "v3", "v2"}
    assert "ZeroDivisionError" in errors["two"] and "cannot be read" in errors["unread"]
    assert "is not a notebook" in errors["v3"] and "is not a notebook" in errors["v2"]


def test_a_file_that_would_fill_the_memory_is_refused_unparsed(tmp_path, monkeypatch):
    (tmp_path / "many.ipynb").write_text('{"cells":[],"x":[' + "{}," * 400_000 + "{}]}")
    with (tmp_path / "large.ipynb").open("wb") as file:
        file.truncate(21_000_000)
    monkeypatch.setattr(__main__.json, "loads", lambda _: pytest.fail("parsed"))
    for name, words in (("many", "too many parts"), ("large", "larger than 20 MB")):
        with pytest.raises(__main__.GradeError, match=words):
            __main__.read(tmp_path / f"{name}.ipynb")


def test_words_of_others_are_one_printable_line():
    assert shown("a\nb\x1b[2J\u202e\ud800\x9b2") == r"a\nb\x1b[2J\u202e\ud800\x9b2"
    assert shown("Łukasz किशोर ✓ 'x' \\n") == "Łukasz किशोर ✓ 'x' \\n"
    told = Law("it is so", False, "look again", "it stopped: \nada: 10").words()
    assert told == "✗ it is so\n  it stopped: \\nada: 10\n  look again"


# ---- the numbers --------------------------------------------------------------------------------


def test_partial_credit():
    assert earned(3, 5, 7) == 1.07 and earned(1, 0, 5) == 0 and earned(4, 8, 8) == 4
    assert earned(4, 6, 8, floor=4) == 1 and earned(4, 3, 8, 4) == 0 and earned(4, 8, 8, 4) == 4
    for laws, floor in ((0, 0), (3, 3), (3, -1)):
        with pytest.raises(ValueError, match="at least one law"):
            earned(3, 0, laws, floor)


def test_marks_in_this_process(capsys):
    def right(query, key, W_E, W_Q, W_K):
        return W_E[query] @ W_Q @ (W_E[key] @ W_K) / W_Q.shape[1] ** 0.5

    assert marks("02.qk_score", right, variant=9, points=3) == 3
    assert capsys.readouterr().out == ""
    half = marks("02.qk_score", lambda *a: right(*a) * 2, variant=9, points=3)
    told = capsys.readouterr().out
    assert (
        0 < half < 1.5
        and told.count(RULE) == 1
        and "✗ six times one" in told
        and "Divide by the square root" in told
    )


def test_a_report_is_plain_data_and_back():
    laws = [Law("it is so", True), Law("it is not", False, "look again", "your function stopped")]
    report = Report(
        "02_qk_ov", {"02.a": ExerciseReport("02.a", 3, laws, ["a note"], found="x = 1")}
    )
    report.notes, report.by_hand = ["another"], {"02.words": 3.0}
    plain = json.loads(json.dumps(report.plain()))
    assert plain["exercises"]["02.a"]["points"] == 0.75 and plain["points"] == 0.75
    assert plain["exercises"]["02.a"]["status"] == "partly right"
    assert Report.of(plain) == report
    assert isinstance(Report("00_models").points, float)
    unanswered = ExerciseReport("02.b", 2, laws, answered=False)
    assert unanswered.points == 0 and unanswered.status == "no answer"
    assert ExerciseReport("02.c", 2).status == "not graded" and Limits().isolation == "auto"
