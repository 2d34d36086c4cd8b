"""The command for self-study: a short summary, one JSON file, errors in one line."""

import json

import grade_books
import nbformat
import pytest

from circuitbook.grade import RULE, ExerciseReport, Law, Limits, Report, __main__, earned, marks

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
    for name in ("a", "b"):
        (tmp_path / "ada").mkdir(exist_ok=True)
        nbformat.write(grade_books.release("02"), tmp_path / "ada" / f"{name}.ipynb")
    assert run(SOURCE, tmp_path) == 0
    assert "ada has 2 notebooks of 02_qk_ov (a.ipynb, b.ipynb)" in capsys.readouterr().out


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
    unanswered = ExerciseReport("02.b", 2, laws, answered=False)
    assert unanswered.points == 0 and unanswered.status == "no answer"
    assert ExerciseReport("02.c", 2).status == "not graded" and Limits().isolation == "auto"
