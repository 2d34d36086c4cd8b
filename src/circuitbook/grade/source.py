"""An assignment notebook tells its exercises, their points, and the number of the hidden variant.

All of it stands in the cells' text, so a source made by hand or by nbgrader's own tools will do:
`# exercise: 02.qk_score points=1 ...` opens an answer, `marks(..., variant=7)` a hidden test.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbformat import NotebookNode

__all__ = ["Exercise", "GradeError", "exercises", "helpers", "lesson", "text", "variant", "written"]

_EXERCISE = re.compile(r"^# exercise: (?P<name>\d\d\.(?P<function>[a-z0-9_]+)) (?P<rest>.*)$", re.M)
_POINTS = re.compile(r"\bpoints=(\d+(?:\.\d+)?)")
_VARIANT = re.compile(r"\bmarks\([^\n]*\bvariant=(\d+)")


class GradeError(Exception):
    """Nothing can be graded; the message says why, and what to do."""


@dataclass(frozen=True)
class Exercise:
    """`02.qk_score` asks for a function `qk_score` and is worth `points`."""

    name: str
    function: str
    points: float


def text(cell: NotebookNode) -> str:
    """The cell's source as one string; files by hand may hold a list of lines."""
    source = cell.get("source", "")
    return "".join(map(str, source)) if isinstance(source, list) else str(source)


def exercise_name(cell_text: str) -> str:
    """The exercise that a cell opens, or ""."""
    found = _EXERCISE.search(cell_text)
    return found["name"] if found else ""


def _code(book: NotebookNode) -> list[NotebookNode]:
    return [c for c in book.get("cells", []) if c.get("cell_type") == "code"]


def exercises(source: NotebookNode) -> list[Exercise]:
    """The exercises of an assignment, in order."""
    found = []
    for cell in _code(source):
        for match in _EXERCISE.finditer(text(cell)):
            points = _POINTS.search(match["rest"])
            if points is None:
                raise GradeError(f"the source gives no points for {match['name']}: write points=N")
            found.append(Exercise(match["name"], match["function"], float(points[1])))
    if len({e.name for e in found}) != len(found):
        raise GradeError("the source has one exercise twice; take a notebook of assignments/source")
    return found


def written(source: NotebookNode) -> dict[str, float]:
    """exercise -> points, of those that are answered in words and marked by people."""
    metas = [c.get("metadata", {}) for c in source.get("cells", [])]
    return {
        str(m["circuitbook"]["name"]): float(m["circuitbook"]["points"])
        for m in metas
        if m.get("circuitbook", {}).get("kind") == "written"
    }


def variant(source: NotebookNode) -> int:
    """The number of the hidden variant that the source's tests name."""
    numbers = {int(n) for c in _code(source) for n in _VARIANT.findall(text(c))}
    if len(numbers) != 1:
        raise GradeError(
            "the source names no single variant of the hidden tests; say which with --variant N"
        )
    return numbers.pop()


def lesson(source: NotebookNode) -> str:
    """The lesson's name, e.g. "02_qk_ov", or ""."""
    ours = source.get("metadata", {}).get("circuitbook", {})
    name = ours.get("lesson", "") if isinstance(ours, dict) else ""
    return name if isinstance(name, str) else ""


def helpers(source: NotebookNode) -> list[str]:
    """The lesson's own code: no answer, no test."""

    def ours(cell):
        tags = cell.get("metadata", {}).get("tags", [])
        body = text(cell)
        return not ({"exercise", "solution", "draw"} & set(tags)) and not (
            exercise_name(body) or "marks(" in body or "### BEGIN" in body
        )

    return [text(c) for c in _code(source) if ours(c)]
