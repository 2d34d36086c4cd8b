"""The picture that an exercise's answer should draw is drawn by its own cell, with the answer.

Only what that cell needs is run: the imports and functions that it reaches by name. The picture is
kept in the built notebook beside a hash of all this, and drawn again when the hash changes, not
because another machine draws a letter one shade lighter.
"""

import ast
import base64
import builtins
import hashlib
from pathlib import Path
from typing import Any

import nbformat
from _lesson import Cell, Exercise, Lesson, LessonError
from _strip import quiet_magics

from circuitbook.codehash import imported, module_file, reached_modules, tree_text

MAX_PICTURE = 40_000


def needed(lesson: Lesson, drawing: Cell) -> str:
    """The lesson's code that the drawing reaches by name, in order, and the drawing itself."""
    statements = [
        node
        for cell in lesson.cells[: drawing.index]
        if cell.kind == "code"
        for node in ast.parse(quiet_magics(cell.source)).body
    ]
    taken: set[int] = set()
    todo = _names(ast.parse(quiet_magics(drawing.source)))
    while todo:
        name = todo.pop()
        for i in range(len(statements) - 1, -1, -1):  # the last one to bind a name wins
            if name in _binds(statements[i]):
                if i not in taken:
                    taken.add(i)
                    todo |= _names(statements[i])
                break
        else:
            if not hasattr(builtins, name) and name not in _inner(statements, taken, drawing):
                raise LessonError(
                    f"{lesson.name}, cell {drawing.index} draws with {name}, which no cell before "
                    "it imports or defines"
                )
    return "\n".join([ast.unparse(statements[i]) for i in sorted(taken)] + [drawing.source])


def _names(tree: ast.AST) -> set[str]:
    loads = (n for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
    return {n.id for n in loads}


def _inner(statements: list[ast.stmt], taken: set[int], drawing: Cell) -> set[str]:
    """Names that are local to what was taken: arguments, loop variables, inner assignments."""
    trees = [*(statements[i] for i in taken), ast.parse(quiet_magics(drawing.source))]
    nodes = [n for tree in trees for n in ast.walk(tree)]
    return {n.arg for n in nodes if isinstance(n, ast.arg)} | {
        n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }


def _binds(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(a.asname or a.name).partition(".")[0] for a in node.names}
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - _names(node)
    return set()


def stamp(code: str) -> str:
    """A hash of the code and of every module of ours that it reaches."""
    parts = [tree_text(code)]
    for name in reached_modules(imported(code), frozenset({"circuitbook"})):
        parts.append(name + tree_text(module_file(name).read_text(encoding="utf-8")))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def draw(where: str, code: str) -> Any:
    """What the last line of `code` shows: a figure of the house."""
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body else None
    if not isinstance(last, ast.Expr):
        raise LessonError(f"{where}: the last line of a cell tagged draw is the figure")
    scope: dict[str, Any] = {"__name__": "drawing"}
    try:
        exec(compile(tree, where, "exec"), scope)
        return eval(compile(ast.Expression(last.value), where, "eval"), scope)
    except Exception as error:
        raise LessonError(
            f"{where}: drawing stopped with {type(error).__name__}: {error}"
        ) from error


def target(built: Path, lesson: Lesson, drawing: Cell, exercise: Exercise) -> tuple:
    """(alt text, picture in base64, metadata), taken from the notebook `built` if it still fits."""
    where = f"{lesson.name}, cell {drawing.index}"
    code = needed(lesson, drawing)
    mark = stamp(code)
    kept = _kept(built, exercise)
    if kept and kept[2]["target"] == mark and kept[2]["picture"] == _hash(kept[0] + kept[1]):
        return kept[0], kept[1].encode("ascii"), kept[2]
    figure = draw(where, code)
    if not hasattr(figure, "png"):
        raise LessonError(
            f"{where}: the last line of a cell tagged draw is a figure, not {figure!r}"
        )
    if len(figure.png) > MAX_PICTURE:
        raise LessonError(f"{where}: a picture of {len(figure.png):,} bytes; draw a smaller one")
    alt = figure.alt.replace("[", "(").replace("]", ")")
    png = base64.b64encode(figure.png)
    return alt, png, {"target": mark, "picture": _hash(alt + png.decode("ascii"))}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _kept(built: Path, exercise: Exercise) -> tuple[str, str, dict] | None:
    """What an earlier build drew for this exercise; None when there is nothing readable."""
    name = f"{exercise.name.replace('.', '_')}.png"
    try:
        book = nbformat.reads(built.read_text(encoding="utf-8"), as_version=4)
        cell = next(c for c in book.cells if name in c.get("attachments", {}))
        alt = cell.source.partition("![")[2].partition("](attachment:")[0]
        meta = {k: cell.metadata.circuitbook[k] for k in ("target", "picture")}
        return alt, cell.attachments[name]["image/png"], meta
    except (OSError, ValueError, KeyError, AttributeError, StopIteration):
        return None
