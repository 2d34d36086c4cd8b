"""Answers are found by the exercise's name, in whatever cell they stand, with all that they need.

What an answer needs and the student's notebook lacks is taken from the lesson's own cells. No
answer is ever taken from there.
"""

import ast
import builtins
from dataclasses import dataclass, field

from nbformat import NotebookNode

from circuitbook.grade.source import Exercise, exercise_name, helpers, text
from circuitbook.grade.statements import Statement, Unreadable, statements

__all__ = ["Answer", "collect"]

_GIVEN = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__"}
_BEGIN, _END = "### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS"


@dataclass
class Answer:
    """The code of one answer, in an order that runs; "" where there is none."""

    function: str
    code: str = ""
    notes: list[str] = field(default_factory=list)


def collect(
    book: NotebookNode, source: NotebookNode, exercises: list[Exercise]
) -> tuple[dict[str, Answer], list[str]]:
    """(exercise name -> its answer, notes on the notebook as a whole)."""
    cells = [text(c) if c.get("cell_type") == "code" else "" for c in book.get("cells", [])]
    own, notes = [], []
    for number, cell in enumerate(cells, 1):
        try:
            own += statements(cell, number)
        except Unreadable as error:
            notes.append(f"cell {number} was skipped, Python cannot read it ({error})")
    lesson = []
    for cell in helpers(source):
        lesson += statements(cell, 0)
    names = {e.function for e in exercises}
    found = {e.name: _answer(e, own, lesson, names, cells) for e in exercises}
    for e in exercises:
        found[e.name].notes += _test_notes(e, own, book, source)
    return found, notes


def _answer(
    exercise: Exercise,
    own: list[Statement],
    lesson: list[Statement],
    exercises: set[str],
    cells: list[str],
) -> Answer:
    answer = Answer(exercise.function)
    stated = [s for s in own if exercise.function in s.binds]
    real = [s for s in stated if not s.is_stub]
    if not stated:
        answer.notes.append(f"no function {exercise.function} was found; the answer was deleted")
    if not real:
        return answer
    chosen = real[-1]
    if exercise_name(cells[chosen.cell - 1]) != exercise.name:
        answer.notes.append(f"the answer was found in another cell, number {chosen.cell}")
    others = [s for s in real if s.is_function and s.cell != chosen.cell]
    if chosen.is_function and others:
        same = all(ast.dump(s.node) == ast.dump(chosen.node) for s in others)
        answer.notes.append(
            f"the answer stands in {len(others) + 1} cells"
            if same
            else f"{len(others) + 1} definitions; the last was taken"
        )
    answer.code = _Closure(own, lesson, exercises).of(chosen, exercise.function)
    return answer


class _Closure:
    """An answer and everything it needs, each before what needs it."""

    def __init__(self, own: list[Statement], lesson: list[Statement], exercises: set[str]):
        self.own, self.lesson, self.exercises = own, lesson, exercises
        self.order: list[Statement] = []
        self.seen: set[int] = set()
        self.unknown: set[str] = set()

    def of(self, chosen: Statement, name: str) -> str:
        """The statements' texts, one below the other."""
        for statement in _rebinding(chosen, name, self.own):
            self._add(statement)
        stars = [s for s in self.own if s.is_star] if self.unknown else []
        futures = [s for s in self.own if s.is_future]
        return "\n".join(s.text for s in [*futures, *stars, *self.order])

    def _add(self, statement: Statement) -> None:
        if id(statement) in self.seen or statement.is_future:
            return
        self.seen.add(id(statement))
        for name in sorted(statement.needs):
            changes_it = name in statement.binds and not statement.is_function
            pool = self.own if statement.cell else self.lesson
            earlier = _rebinding(statement, name, pool)[:-1] if changes_it else []
            for provider in earlier if changes_it else self._providers(name):
                self._add(provider)
        self.order.append(statement)

    def _providers(self, name: str) -> list[Statement]:
        own = [s for s in self.own if name in s.binds and not s.is_stub]
        if own:
            return _rebinding(own[-1], name, self.own)
        ours = [s for s in self.lesson if name in s.binds]
        if ours and name not in self.exercises:
            return _rebinding(ours[-1], name, self.lesson)
        if name not in _GIVEN:
            self.unknown.add(name)
        return []


def _rebinding(last: Statement, name: str, pool: list[Statement]) -> list[Statement]:
    """`last`, and the earlier statements that gave `name` the value it starts from: x = 1; x += 1.

    A function that calls itself reads its own name later, not while it is defined.
    """
    chain = [last]
    earlier = [s for s in pool if name in s.binds and not s.is_stub]
    earlier = earlier[: earlier.index(last)] if last in earlier else []
    while earlier and name in chain[0].needs and not chain[0].is_function:
        chain.insert(0, earlier.pop())
    return chain


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
