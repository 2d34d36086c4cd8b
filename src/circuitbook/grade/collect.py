"""Answers are found by the exercise's name, in whatever cell they stand, with all that they need.

What an answer needs and the student's notebook lacks is taken from the lesson's own cells. No
answer is ever taken from there.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from circuitbook.grade.closure import Closure, Tangled
from circuitbook.grade.effects import dotted, origins
from circuitbook.grade.source import Exercise, exercise_name, helpers, text
from circuitbook.grade.statements import Statement, Unreadable, statements

if TYPE_CHECKING:
    from nbformat import NotebookNode

__all__ = ["Answer", "collect"]

_BEGIN, _END = "### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS"


@dataclass
class Answer:
    """The code of one answer, in an order that runs; "" where there is none.

    found: the student's cell as it stands, or None. why: what keeps that cell from being run.
    """

    function: str
    code: str = ""
    notes: list[str] = field(default_factory=list)
    found: str | None = None
    why: str = ""


def collect(
    book: NotebookNode, source: NotebookNode, exercises: list[Exercise]
) -> tuple[dict[str, Answer], list[str]]:
    """(exercise name -> its answer, notes on the notebook as a whole)."""
    cells = [text(c) if c.get("cell_type") == "code" else "" for c in book.get("cells", [])]
    own, notes, unread = [], [], {}
    for number, cell in enumerate(cells, 1):
        try:
            own += statements(cell, number)
        except Unreadable as error:
            unread[number] = str(error)
            notes.append(f"cell {number} was skipped, Python cannot read it ({error})")
    lesson = []
    for cell in helpers(source):
        lesson += statements(cell, 0)
    names = {e.function for e in exercises}
    closure = Closure(own, lesson, names)
    found = {e.name: _answer(e, own, closure, source, cells) for e in exercises}
    for e in exercises:
        if not found[e.name].code and not found[e.name].why:
            _explain(found[e.name], e, own, cells, unread)
        found[e.name].notes += _test_notes(e, own, book, source)
    return found, notes


def _answer(
    exercise: Exercise,
    own: list[Statement],
    closure: Closure,
    source: NotebookNode,
    cells: list[str],
) -> Answer:
    answer = Answer(exercise.function)
    stated = [s for s in own if exercise.function in s.binds]
    real = [s for s in stated if not s.is_stub]
    if not real:
        return answer
    chosen = real[-1]
    if exercise_name(cells[chosen.cell - 1]) != exercise.name:
        answer.notes.append(f"the answer was found in another cell, number {chosen.cell}")
    answer.found = cells[chosen.cell - 1]
    try:
        code, left = closure.of(exercise.function)
    except Tangled as error:
        answer.why = str(error)
        answer.notes.append(answer.why)
        return answer
    used = {id(s) for s in code} - {id(chosen)}  # an earlier one that the last calls
    others = [s for s in real if s.is_function and s.cell != chosen.cell and id(s) not in used]
    if chosen.is_function and others:
        same = all(ast.dump(s.node) == ast.dump(chosen.node) for s in others)
        answer.notes.append(
            f"the answer stands in {len(others) + 1} cells"
            if same
            else f"{len(others) + 1} definitions; the last was taken"
        )
    answer.code = "\n".join(s.text for s in code)
    answer.notes += left
    answer.notes += [f"it calls {n}" for n in _course_calls(code, source, exercise)]
    return answer


def _explain(
    answer: Answer, e: Exercise, own: list[Statement], cells: list[str], unread: dict[int, str]
) -> None:
    """Say what the student's cell holds instead of an answer; no two reasons look alike."""
    named = re.compile(rf"^\s*(?:async )?def {e.function}\b|^{e.function} *=", re.M)
    headed = [n for n, cell in enumerate(cells, 1) if exercise_name(cell) == e.name]
    broken = [n for n in unread if n in headed or named.search(cells[n - 1])]
    stated = [s.cell for s in own if e.function in s.binds]
    place = next(iter([*broken[-1:], *stated[-1:], *headed[-1:]]), 0)
    answer.found = cells[place - 1] if place else None
    other = [s.node.name for s in own if s.cell == place and isinstance(s.node, ast.FunctionDef)]
    if broken:
        answer.why = f"your cell does not parse: {unread[place]}"
    elif stated:
        return  # the stub, as it was given out
    elif other:
        answer.why = f"your cell defines {', '.join(other)}, not {e.function}"
    elif headed:
        answer.why = f"your cell defines no function {e.function}"
    else:
        answer.notes.append(f"no function {e.function} was found; the answer was deleted")
    if answer.why:
        answer.notes.append(answer.why)


def _course_calls(code: list[Statement], source: NotebookNode, exercise: Exercise) -> list[str]:
    """Functions of the course that the student's own code uses and the source's does not."""
    ours = [text(c) for c in source.get("cells", []) if c.get("cell_type") == "code"]
    given = [s for cell in helpers(source) for s in statements(cell, 0)]
    given += [s for c in ours if exercise_name(c) == exercise.name for s in statements(c, 0)]
    known = {s.text for s in given}
    named = _course_names([*given, *code], [s for s in code if s.text not in known])
    return sorted(named - _course_names(given, given))


def _course_names(imports: list[Statement], code: list[Statement]) -> set[str]:
    """circuitbook.module.function, for those named in the code."""
    imported = origins(imports)
    parts = [n for s in code if not s.is_import for n in ast.walk(s.node)]
    names = {dotted(n, imported) for n in parts if isinstance(n, ast.Attribute | ast.Name)}
    return {n for n in names if n.startswith("circuitbook.") and n.count(".") == 2}


# ---- test cells ---------------------------------------------------------------------------------


def _visible(cell: str) -> str:
    """A test cell as a student sees it: without its hidden part."""
    kept, hidden = [], False
    for line in cell.splitlines():
        hidden = hidden or line.strip() == _BEGIN
        if not hidden:
            kept.append(line)
        hidden = hidden and line.strip() != _END
    return "\n".join(kept).strip()


def _test_notes(
    exercise: Exercise, own: list[Statement], book: NotebookNode, source: NotebookNode
) -> list[str]:
    """Tests are run from the source alone; a changed one is told so that nobody wonders."""
    call = f"check({exercise.name!r}, {exercise.function})"
    notes = []
    if not any(ast.unparse(s.node) == call for s in own if isinstance(s.node, ast.Expr)):
        notes.append("its check was edited or deleted; that changes nothing")
    graded = {_grade_id(c): text(c) for c in source.get("cells", []) if _is_test(c)}
    mine = {i: t for i, t in graded.items() if f'marks("{exercise.name}"' in t}
    theirs = {_grade_id(c): text(c) for c in book.get("cells", [])}
    for grade_id, expected in mine.items():
        if theirs.get(grade_id, "").strip() not in (_visible(expected), expected.strip()):
            notes.append("its test cell was edited or deleted; it was ignored")
    return notes


def _is_test(cell: NotebookNode) -> bool:
    return cell.get("cell_type") == "code" and bool(_grade_id(cell)) and "marks(" in text(cell)


def _grade_id(cell: NotebookNode) -> str:
    meta = cell.get("metadata", {})
    meta = meta.get("nbgrader", {}) if isinstance(meta, dict) else {}
    return str(meta.get("grade_id", "")) if isinstance(meta, dict) else ""
