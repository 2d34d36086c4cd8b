"""Notebooks to grade: a chapter's source with its answers, and what students make of it."""

import copy
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell

from circuitbook.grade.source import exercise_name, text

SOURCES = Path(__file__).resolve().parents[1] / "assignments" / "source"
RELEASE = SOURCES.with_name("release")


def source(chapter):
    """The assignment of a chapter, e.g. "03"."""
    (path,) = SOURCES.glob(f"{chapter}_*.ipynb")
    return nbformat.read(path, as_version=4)


def release(chapter):
    """The chapter as a student gets it."""
    (path,) = RELEASE.glob(f"{chapter}_*.ipynb")
    return nbformat.read(path, as_version=4)


def answered(chapter, **answers):
    """The release with the source's answers; answers: function name -> the whole cell instead."""
    book = release(chapter)
    right = {exercise_name(text(c)): text(c) for c in source(chapter).cells}
    for cell in book.cells:
        name = exercise_name(text(cell))
        if name:
            own = answers.get(name.partition(".")[2])
            cell.source = right[name] if own is None else head(cell) + own
    return book


def head(cell):
    """The line that opens an exercise."""
    return text(cell).splitlines()[0] + "\n"


def with_cells(book, *sources, at=None):
    """A copy with more code cells, at the end or at a place."""
    book = copy.deepcopy(book)
    place = len(book.cells) if at is None else at
    book.cells[place:place] = [new_code_cell(s) for s in sources]
    return book


def place(book, name):
    """Where the cell of an exercise stands."""
    return next(i for i, c in enumerate(book.cells) if exercise_name(text(c)) == name)
