"""What was handed in: whose a file is, and a notebook that nbgrader can open, whatever it holds.

Two layouts are read: FOLDER/STUDENT/02_qk_ov.ipynb, also with folders between, and
FOLDER/STUDENT_02_qk_ov.ipynb. Nothing in the folder is changed.
"""

import csv
import hashlib
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from circuitbook.grade.__main__ import read
from circuitbook.grade.report import shown
from circuitbook.grade.source import text


class SubmissionError(Exception):
    """Nothing can be graded; the message says why, and what to do."""


@dataclass(frozen=True)
class Submission:
    """One file of one student."""

    student: str
    chapter: str
    path: Path


@dataclass(frozen=True)
class Mark:
    """One line of the table of marks for written answers."""

    student: str
    exercise: str
    points: float
    comment: str


def find(
    folder: Path, chapters: Iterable[str], ungraded: Iterable[str] = ()
) -> tuple[list[Submission], list[str], list[str]]:
    """(the submissions by student and chapter, what was passed over and why, what is unclear).

    ungraded: chapters without an exercise. Of several files of one student for one chapter, the one
    with the plain name counts; without one, or with two, none does. Both are unclear.
    """
    if not folder.is_dir():
        raise SubmissionError(f"{folder} is not a folder: name the one with the notebooks in it")
    chapters, ungraded, passed, unclear = list(chapters), list(ungraded), [], []
    every: dict[tuple[str, str], list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        part = path.relative_to(folder)
        chapter = next((c for c in [*chapters, *ungraded] if c in path.stem), "")
        student = _student(part, chapter)
        if any(name.startswith(".") for name in part.parts):
            continue
        try:
            link, within = path.is_symlink(), path.is_dir()
        except OSError as error:
            passed.append(f"{part}: it cannot be read ({error.strerror})")
            continue
        if link:
            passed.append(f"{part}: it is a link, nothing of its own")
        elif within or (path.suffix.lower() != ".ipynb" and not chapter):
            continue
        elif path.suffix.lower() != ".ipynb":
            passed.append(f"{part}: it is not a notebook, whose name ends with .ipynb")
        elif not chapter or not student:
            passed.append(f"{part}: call it STUDENT_CHAPTER.ipynb or STUDENT/CHAPTER.ipynb")
        elif chapter in ungraded:
            passed.append(f"{part}: chapter {chapter} has no exercise, so nothing to grade")
        else:
            every.setdefault((student, chapter), []).append(part)
    found = []
    for (student, chapter), files in sorted(every.items()):
        plain = [p for p in files if _is_plain(p, chapter)] if len(files) > 1 else files
        names = ", ".join(map(str, files))
        if len(plain) != 1:
            unclear.append(f"{student}, {chapter}: {names}: keep one of these files")
            continue
        found.append(Submission(student, chapter, folder / plain[0]))
        if len(files) > 1:
            unclear.append(f"{student}, {chapter}: of {names} only {plain[0]} counts; keep one")
    if not found:
        more = "; ".join([*unclear, *passed][:1])
        raise SubmissionError(
            f"{folder} holds no submission of {', '.join(chapters)}"
            + (f" ({more})" if more else "")
        )
    return found, passed, unclear


def _student(part: Path, chapter: str) -> str:
    """The folder that a file lies in, at whatever depth, or what stands before the chapter."""
    if len(part.parts) > 1:
        return _name(part.parts[0])
    return _name(part.stem.partition(chapter)[0]) if chapter else ""


def _is_plain(part: Path, chapter: str) -> bool:
    """02_qk_ov.ipynb or ada_02_qk_ov.ipynb, and not `02_qk_ov (1).ipynb`."""
    return part.stem == chapter if len(part.parts) > 1 else part.stem.endswith(chapter)


def _name(text: str) -> str:
    """A student's name as a name of folders and of cells in a table that runs no formula.

    Letters of all languages stay. A name that had to be changed gets a few letters of its hash, so
    that no two students share one.
    """
    written = unicodedata.normalize("NFC", text).strip(" _-")
    letters = (c if _stays(c) else "_" for c in written)
    name = "".join(letters).strip("_-.@ ")
    if not name or name == written:
        return name
    return f"{name}-{hashlib.sha256(written.encode('utf-8', 'surrogateescape')).hexdigest()[:4]}"


def _stays(letter: str) -> bool:
    return letter.isalnum() or letter in " _.@-" or unicodedata.category(letter) in {"Mn", "Mc"}


def opened(path: Path) -> NotebookNode:
    """The notebook's cells and nothing else; one note in their place where it cannot be read."""
    try:
        return _book([_cell(i, c) for i, c in enumerate(read(path)["cells"])])
    except Exception as error:  # whatever it is, it is this student's own note
        return _only(f"Nothing could be graded: {shown(error)}.")


def _cell(number: int, cell: NotebookNode) -> NotebookNode:
    make = new_code_cell if cell.get("cell_type") == "code" else new_markdown_cell
    node = make(_whole(text(cell)), id=f"cell-{number}")
    meta = cell.get("metadata")
    meta = meta.get("nbgrader") if isinstance(meta, dict) else None
    if isinstance(meta, dict) and isinstance(meta.get("grade_id"), str):
        plain = {"grade": False, "solution": False, "locked": False, "schema_version": 3}
        node.metadata["nbgrader"] = {"grade_id": _whole(meta["grade_id"]), **plain}
    return node


def _whole(words: str) -> str:
    """The words without halves of letters, which no file can hold."""
    return words.encode("utf-8", "replace").decode()


def _only(problem: str) -> NotebookNode:
    book = _book([new_markdown_cell(problem, id="problem")])
    book.metadata["circuitbook"] = {"problem": problem}
    return book


def _book(cells: list[NotebookNode]) -> NotebookNode:
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})


# ---- marks for written answers -------------------------------------------------------------------

HEAD = "student,exercise,points,comment"


def read_marks(path: Path, worth: dict[str, float]) -> list[Mark]:
    """The table of marks for written answers: student, exercise, points and, if wanted, comment.

    worth: written exercise → its points.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            first = reader.fieldnames or []
            if not {"student", "exercise", "points"} <= set(first):
                with_commas = "" if len(first) > 1 else ", with commas between the columns"
                raise SubmissionError(f"{path}, line 1: it should be {HEAD}{with_commas}")
            lines = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SubmissionError(f"{path} cannot be read as a table ({error})") from None
    marks: dict[tuple[str, str], Mark] = {}
    for number, row in lines:
        try:
            mark = _mark(row, worth)
        except ValueError as error:
            raise SubmissionError(f"{path}, line {number}: {error}") from None
        if mark and (mark.student, mark.exercise) in marks:
            raise SubmissionError(
                f"{path}, line {number}: {mark.student} has two marks for {mark.exercise}"
            )
        if mark:
            marks[mark.student, mark.exercise] = mark
    return list(marks.values())


def _mark(row: dict, worth: dict[str, float]) -> Mark | None:
    """One line; None where all its columns are empty. Errors: ValueError, in words."""
    if None in row:
        raise ValueError("too many commas: write 2.5 for points, and put a comment with commas in "
                         'double quotes')  # fmt: skip
    cells = {key: (value or "").strip() for key, value in row.items()}
    if not any(cells.values()):
        return None
    student, exercise, points = _name(cells["student"]), cells["exercise"], cells["points"]
    comment = cells.get("comment", "")
    if not student:
        raise ValueError("it names no student")
    if exercise not in worth:
        known = ", ".join(worth) or "none"
        raise ValueError(f"{exercise!r} is not answered in words; known: {known}")
    try:
        value = float(points)
    except ValueError:
        value = float("nan")
    if not 0 <= value <= worth[exercise]:
        point = "; write 2.5, not 2,5" if "," in points else ""
        raise ValueError(f"{points!r} points; {exercise} gives 0 to {worth[exercise]:g}{point}")
    if re.fullmatch(r"\d{1,2}", comment):  # what a spreadsheet makes of 2,5 without quotes
        raise ValueError(f"the comment is only a number: write {points}.{comment} if that is meant")
    return Mark(student, exercise, value, comment)
