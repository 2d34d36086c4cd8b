"""What was handed in: whose a file is, and a notebook that nbgrader can open, whatever it holds.

Two layouts are read: FOLDER/STUDENT/02_qk_ov.ipynb and FOLDER/STUDENT_02_qk_ov.ipynb. Nothing in
the folder is changed.
"""

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from circuitbook.grade import GradeError
from circuitbook.grade.__main__ import read
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


def find(folder: Path, chapters: Iterable[str]) -> tuple[list[Submission], list[str]]:
    """(the submissions by student and chapter, what was passed over and why)."""
    if not folder.is_dir():
        raise SubmissionError(f"{folder} is not a folder: name the one with the notebooks in it")
    chapters, found, passed = list(chapters), {}, []
    for path in sorted([*folder.glob("*.ipynb"), *folder.glob("*/*.ipynb")]):
        shown = path.relative_to(folder)
        if any(part.startswith(".") for part in shown.parts):
            continue
        if path.is_symlink() or not path.is_file():
            passed.append(f"{shown}: it is a link, not a file")
            continue
        chapter = next((c for c in chapters if c in path.stem), "")
        before = path.stem.partition(chapter)[0] if chapter else ""
        student = _name(before if path.parent == folder else path.parent.name)
        if not chapter or not student:
            passed.append(f"{shown}: call it STUDENT_CHAPTER.ipynb or STUDENT/CHAPTER.ipynb")
        elif (student, chapter) in found:
            first = found[student, chapter].path.relative_to(folder)
            passed.append(f"{shown}: {student} already handed in {first}, which was graded")
        else:
            found[student, chapter] = Submission(student, chapter, path)
    if not found:
        more = f" ({passed[0]})" if passed else ""
        raise SubmissionError(f"{folder} holds no submission of {', '.join(chapters)}{more}")
    return [found[key] for key in sorted(found)], passed


def _name(text: str) -> str:
    """A student's name as a name of folders and of cells in a table that runs no formula."""
    return re.sub(r"[^\w.@-]+", "_", text).strip("_-.@ ")


def opened(path: Path) -> NotebookNode:
    """The notebook's cells and nothing else; one note in their place where it cannot be read."""
    try:
        book = read(path)
    except (GradeError, OSError) as error:
        return _only(f"Nothing could be graded: {error}.")
    return _book([_cell(i, c) for i, c in enumerate(book["cells"])])


def _cell(number: int, cell: NotebookNode) -> NotebookNode:
    make = new_code_cell if cell.get("cell_type") == "code" else new_markdown_cell
    node = make(text(cell).encode("utf-8", "replace").decode(), id=f"cell-{number}")
    meta = cell.get("metadata")
    meta = meta.get("nbgrader") if isinstance(meta, dict) else None
    if isinstance(meta, dict) and isinstance(meta.get("grade_id"), str):
        plain = {"grade": False, "solution": False, "locked": False, "schema_version": 3}
        node.metadata["nbgrader"] = {"grade_id": meta["grade_id"], **plain}
    return node


def _only(problem: str) -> NotebookNode:
    book = _book([new_markdown_cell(problem, id="problem")])
    book.metadata["circuitbook"] = {"problem": problem}
    return book


def _book(cells: list[NotebookNode]) -> NotebookNode:
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})


def read_marks(path: Path, worth: dict[str, float]) -> list[Mark]:
    """The table of marks for written answers: student, exercise, points and, if wanted, comment.

    worth: written exercise → its points.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            if not {"student", "exercise", "points"} <= set(reader.fieldnames or ()):
                raise SubmissionError(f"{path}: its first line is student,exercise,points,comment")
            lines = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SubmissionError(f"{path} cannot be read as a table ({error})") from None
    marks: dict[tuple[str, str], Mark] = {}
    for number, row in lines:
        where = f"{path}, line {number}"
        student, exercise = _name(row["student"] or ""), (row["exercise"] or "").strip()
        if exercise not in worth:
            known = ", ".join(worth) or "none"
            raise SubmissionError(f"{where}: {exercise!r} is not answered in words; known: {known}")
        try:
            points = float(row["points"] or "")
        except ValueError:
            points = float("nan")
        if not 0 <= points <= worth[exercise]:
            raise SubmissionError(
                f"{where}: {row['points']!r} points; {exercise} gives 0 to {worth[exercise]:g}"
            )
        if (student, exercise) in marks:
            raise SubmissionError(f"{where}: {student} has two marks for {exercise}")
        marks[student, exercise] = Mark(
            student, exercise, points, (row.get("comment") or "").strip()
        )
    return list(marks.values())
