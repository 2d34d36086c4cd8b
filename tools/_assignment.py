"""A chapter as an assignment: source for teachers, release for students, solutions for later.

The source is a notebook of nbgrader's (metadata schema 3). For each exercise it holds the answer,
the check that everybody sees (read-only), and a graded cell with the hidden tests; for each
question that is answered in words, a cell that is marked by hand. nbgrader makes the release from
it; `release` makes the same cells without nbgrader.
"""

import hashlib
from collections.abc import Callable

import _notebook
from _lesson import Cell, Exercise, Lesson
from _strip import HIDDEN, HIDDEN_END, TEXT_STUB, clear, mark
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

# The hidden draws of the committed source. Everybody can read it here: teachers take their own.
PUBLIC_VARIANT = 41021
# Exercise name → the markdown cell's text and the picture that its answer should draw.
Target = Callable[[Lesson, Cell, Exercise], tuple[str, bytes, dict]]
TEST = """# Hidden tests of {name} run here when your notebook is graded. Leave this cell as it is.
{begin}
from circuitbook.grade import marks

marks("{name}", {function}, variant={variant}, points={points})
{end}"""


def grade_id(kind: str, exercise: Exercise) -> str:
    """nbgrader's name of a cell: "answer-02-qk_score"; stable, because it comes from the name."""
    return f"{kind}-{exercise.name.replace('.', '-')}"


def source(lesson: Lesson, target: Target, variant: int = PUBLIC_VARIANT) -> NotebookNode:
    """The teachers' notebook: answers, checks, hidden tests, model answers to the questions."""
    cells: list[NotebookNode] = []
    for cell, before in zip(lesson.cells, (None, *lesson.cells), strict=False):
        if before is not None and before.question:
            cells.append(_answer_in_words(lesson, cell, before.question))
        elif "solution" in cell.tags:
            continue  # nbgrader cannot take a cell away: these are in the solutions only
        elif cell.question:
            cells.append(_asked(lesson, cell))
        elif cell.exercise:
            cells += [*_target(lesson, cell, target), _answer(lesson, cell)]
        elif checked := _checked(lesson, cell):
            cells += [_check(lesson, cell, checked), _test(lesson, cell, checked, variant)]
        else:
            cells.append(_notebook.node(lesson, cell, cell.source))
    return _notebook.notebook(lesson, _with_sheet(lesson, cells), "source")


def release(made: NotebookNode) -> NotebookNode:
    """The students' notebook, made of a source: no answer, no hidden test."""
    book = NotebookNode({**made, "metadata": _copy(made.metadata), "cells": []})
    book.metadata.circuitbook.edition = "release"
    for cell in made.cells:
        cell = _copy(cell)
        book.cells.append(cell)
        meta = cell.metadata.get("nbgrader")
        if not meta:
            continue
        in_words = meta.solution and cell.cell_type == "markdown"
        cell.source = TEXT_STUB if in_words else clear(cell.source)
        cell.metadata.deletable = False
        if not meta.solution:
            cell.metadata.editable = False
        meta.checksum = checksum(cell)
    return book


def solutions(lesson: Lesson, target: Target) -> NotebookNode:
    """The lesson with all answers, for the time after the deadline: no hidden test, no marks."""
    cells: list[NotebookNode] = []
    for cell in lesson.cells:
        if cell.exercise:
            cells += _target(lesson, cell, target)
        text = _question_text(cell) if cell.question else cell.source
        cells.append(_notebook.node(lesson, cell, text))
    return _notebook.notebook(lesson, _with_sheet(lesson, cells), "solutions")


def checksum(cell: NotebookNode) -> str:
    """nbgrader's own checksum of a cell (`nbgrader.utils.compute_checksum`)."""
    meta = cell.metadata.nbgrader
    locked = not meta.solution and (meta.grade or meta.locked)
    parts = [cell.source, cell.cell_type, *map(str, (meta.grade, meta.solution, locked))]
    parts.append(meta.grade_id)
    if meta.grade:
        parts.append(str(float(meta.points)))
    return hashlib.md5("".join(parts).encode(), usedforsecurity=False).hexdigest()


# ---- cells --------------------------------------------------------------------------------------


def _copy(node: NotebookNode) -> NotebookNode:
    return NotebookNode({k: _copy(v) if isinstance(v, dict) else v for k, v in node.items()})


def _nbgrader(kind: str, exercise: Exercise, **more: object) -> NotebookNode:
    markdown = kind in {"question", "written"}
    plain = {"grade": False, "locked": False, "solution": False, "task": False}
    cell_type = {"cell_type": "markdown" if markdown else "code"}
    named = {"schema_version": 3, "grade_id": grade_id(kind, exercise)}
    return NotebookNode({**named, **cell_type, **plain, **more})


def _checked(lesson: Lesson, cell: Cell) -> Exercise | None:
    """The exercise that this cell checks; the lesson's rules let nothing else stand in it."""
    found = (
        e for e in lesson.exercises if cell.kind == "code" and f'check("{e.name}"' in cell.source
    )
    return next(found, None)


def _answer(lesson: Lesson, cell: Cell) -> NotebookNode:
    node = _notebook.node(lesson, cell, mark(cell.source))
    node.metadata["circuitbook"] = {"kind": "code", **vars(cell.exercise)}
    node.metadata["nbgrader"] = _nbgrader("answer", cell.exercise, solution=True)
    return node


def _check(lesson: Lesson, cell: Cell, exercise: Exercise) -> NotebookNode:
    node = _notebook.node(lesson, cell, cell.source)
    node.metadata["nbgrader"] = _nbgrader("check", exercise, locked=True)
    return node


def _test(lesson: Lesson, cell: Cell, exercise: Exercise, variant: int) -> NotebookNode:
    text = TEST.format(
        begin=HIDDEN,
        end=HIDDEN_END,
        name=exercise.name,
        function=exercise.function,
        variant=variant,
        points=exercise.points,
    )
    meta = _nbgrader("test", exercise, grade=True, locked=True, points=exercise.points)
    return new_code_cell(
        text, metadata={"nbgrader": meta}, id=f"{lesson.number}-{cell.index:03d}-test"
    )


def _question_text(cell: Cell) -> str:
    """The question, with a line that says what it is worth in place of the lesson's own line."""
    q = cell.question
    worth = f"**Written exercise {q.name}** · {_points(q)} · about {q.minutes} minutes"
    return worth + "\n\n" + cell.source.strip().partition("\n")[2].strip()


def _points(exercise: Exercise) -> str:
    return "1 point" if exercise.points == 1 else f"{exercise.points} points"


def _asked(lesson: Lesson, cell: Cell) -> NotebookNode:
    text = _question_text(cell) + "\n\nWrite your answer in the next cell."
    node = _notebook.node(lesson, cell, text)
    node.metadata["nbgrader"] = _nbgrader("question", cell.question, locked=True)
    return node


def _answer_in_words(lesson: Lesson, cell: Cell, question: Exercise) -> NotebookNode:
    node = _notebook.node(lesson, cell, cell.source)
    node.metadata["tags"] = ["written"]  # `solution` would tell other tools to take it away
    node.metadata["circuitbook"] = {"kind": "written", **vars(question)}
    node.metadata["nbgrader"] = _nbgrader(
        "written", question, grade=True, solution=True, points=question.points
    )
    return node


def _target(lesson: Lesson, cell: Cell, target: Target) -> list[NotebookNode]:
    """The picture that this exercise's answer draws, as a cell above it; or nothing."""
    drawing = lesson.drawing(cell.exercise)
    if not drawing:
        return []
    alt, png, more = target(lesson, drawing, cell.exercise)
    name = f"{cell.exercise.name.replace('.', '_')}.png"
    text = "Your picture, drawn after the check, should look like this."
    text += f"\n\n![{alt}](attachment:{name})"
    node = new_markdown_cell(
        text, metadata={"circuitbook": more}, id=f"{lesson.number}-{cell.index:03d}-target"
    )
    node["attachments"] = {name: {"image/png": png.decode("ascii")}}
    return [node]


def _with_sheet(lesson: Lesson, cells: list[NotebookNode]) -> list[NotebookNode]:
    if not lesson.exercises + lesson.written:
        return cells
    sheet = new_markdown_cell(_sheet(lesson), id=f"{lesson.number}-points")
    return [cells[0], sheet, *cells[1:]]


def _sheet(lesson: Lesson) -> str:
    lines = ["**What the exercises of this chapter are worth**", ""]
    lines.append("| exercise | answered | points | minutes | difficulty (1 to 5) |")
    lines.append("| --- | --- | ---: | ---: | ---: |")
    every = [c.exercise or c.question for c in lesson.cells if c.exercise or c.question]
    for e in every:
        how = "in words" if e in lesson.written else "in code"
        lines.append(f"| `{e.name}` | {how} | {e.points} | {e.minutes} | {e.difficulty} |")
    total = sum(e.points for e in every), sum(e.minutes for e in every)
    return "\n".join([*lines, f"| all | | {total[0]} | {total[1]} | |"])
