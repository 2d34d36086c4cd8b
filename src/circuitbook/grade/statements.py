"""A notebook's code as single statements, each with the names that it binds and those it needs.

Nothing is run here. Python's own `ast` and `symtable` read the text; a cell they refuse is told.
"""

import ast
import re
import symtable
from dataclasses import dataclass
from functools import cached_property

__all__ = ["Statement", "Unreadable", "statements"]

MAX_CELL = 500_000  # characters of one cell; no answer needs them
_AT_ONCE = {"listcomp", "setcomp", "dictcomp", "genexpr"}  # the functions that nobody calls later
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_MAGIC = re.compile(
    r"(?P<space>[ \t]*)(?:[%!?]|[\w.]+(?:, *\w+)*[ \t]*=[ \t]*[%!](?!=)|[\w.]+\?\??[ \t]*$).*", re.M
)
# What may hide the end of a line from the statement that it stands in.
_PIECE = re.compile(
    r"(?P<long>\"\"\"|''')|\"(?:\\.|[^\"\\\n])*\"?|'(?:\\.|[^'\\\n])*'?|\#[^\n]*"
    r"|(?P<open>[(\[{])|(?P<close>[)\]}])|\\\n|(?P<end>\n)",
    re.DOTALL,
)
_CLOSING = {q: re.compile(rf"(?:\\.|[^\\])*?{q}", re.DOTALL) for q in ('"""', "'''")}


class Unreadable(Exception):
    """A cell that Python cannot read; the message says why."""


@dataclass(frozen=True)
class Statement:
    """One top-level statement: its syntax tree, its text, and the number of its cell."""

    node: ast.stmt
    text: str
    cell: int

    @cached_property
    def binds(self) -> frozenset[str]:
        """The top-level names that it gives a value."""
        return frozenset(self._symbols[0])

    @cached_property
    def needs(self) -> frozenset[str]:
        """The top-level names that it reads, also inside the functions that it defines."""
        return self.now | self.later

    @cached_property
    def now(self) -> frozenset[str]:
        """The names that it reads while it runs: of a function only defaults and decorators."""
        return frozenset(self._symbols[1])

    @cached_property
    def later(self) -> frozenset[str]:
        """The names that the functions in it read when they are called."""
        return frozenset(self._symbols[2])

    @cached_property
    def announces(self) -> frozenset[str]:
        """The names that the functions in it call `global`: calling them may bind these."""
        return frozenset(self._symbols[3])

    @cached_property
    def _symbols(self) -> tuple[set[str], set[str], set[str], set[str]]:
        top = symtable.symtable(self.text, "answer", "exec")
        bound = {
            s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()
            or s.is_namespace()
        }  # fmt: skip
        if isinstance(self.node, ast.Delete):
            bound = set()  # tidying up at a notebook's end; it takes nothing from the answer
        now, later, announced = set(), set(), set()
        for node in ast.walk(self.node):  # symtable takes x += 1 for a plain assignment
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                now.add(node.target.id)
        waiting = [(top, False)]
        while waiting:
            table, called = waiting.pop()
            for child in table.get_children():
                waits = child.get_type() == "function" and child.get_name() not in _AT_ONCE
                waiting.append((child, called or waits))
            for symbol in table.get_symbols():
                if table is not top and symbol.is_declared_global():
                    announced.add(symbol.get_name())
                    (later if called else now).add(symbol.get_name())
                elif (table is top or symbol.is_global()) and symbol.is_referenced():
                    (later if called else now).add(symbol.get_name())
        if not self.is_function:
            now |= later  # a function that is made here may be called here
        now -= _own_loop_names(self.node)
        return bound, now, later, announced

    @property
    def is_function(self) -> bool:
        """Whether it is a `def`, an `async def`, or a lambda with a name."""
        return isinstance(self.node, _FUNCTION) or isinstance(
            getattr(self.node, "value", None), ast.Lambda
        )

    @property
    def is_import(self) -> bool:
        """Whether it imports something."""
        return isinstance(self.node, ast.Import | ast.ImportFrom)

    @property
    def is_future(self) -> bool:
        """Whether it is `from __future__ import ...`."""
        return isinstance(self.node, ast.ImportFrom) and self.node.module == "__future__"

    @property
    def is_star(self) -> bool:
        """Whether it is `from somewhere import *`."""
        return isinstance(self.node, ast.ImportFrom) and self.node.names[0].name == "*"

    @property
    def is_stub(self) -> bool:
        """Whether it is a function that nobody has written yet."""
        if not isinstance(self.node, _FUNCTION):
            return False
        body = [n for n in self.node.body if not _is_words(n)]
        return all(isinstance(n, ast.Pass) or _is_not_implemented(n) for n in body)


def _own_loop_names(node: ast.stmt) -> set[str]:
    """The names that a loop gives to its items and only then reads: `for i in ...: T[i] = i`."""
    if not isinstance(node, ast.For):
        return set()
    read = {n.id for n in ast.walk(node.iter) if isinstance(n, ast.Name)}
    return {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}.union(
        *map(_own_loop_names, node.body)
    ) - read


def _is_words(node: ast.stmt) -> bool:
    """A docstring, or three dots."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_not_implemented(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Raise) or node.exc is None:
        return False
    named = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    return isinstance(named, ast.Name) and named.id == "NotImplementedError"


def _parse(source: str) -> tuple[str, ast.Module]:
    """The cell and its tree; IPython's own lines (%magic, !shell, name?) become `pass`."""
    try:
        return source, ast.parse(source)
    except SyntaxError:
        quiet = _without_magics(source)
        return quiet, ast.parse(quiet)


def _without_magics(source: str) -> str:
    """Only a line that starts a statement can be a magic: not one inside a string or brackets."""
    kept, at, depth, new = [], 0, 0, True
    while at < len(source):
        magic = _MAGIC.match(source, at) if new and not depth else None
        if magic:
            end = magic.end()
            while source[end - 1] == "\\" and end < len(source):  # it goes on below
                end = source.find("\n", end + 1) % (len(source) + 1)
            kept.append(f"{magic['space']}pass" + "\n" * source.count("\n", at, end))
            at, new = end, False
            continue
        piece = _PIECE.search(source, at)
        end = piece.end() if piece else len(source)
        if piece and piece["long"]:
            closing = _CLOSING[piece["long"]].match(source, end)
            end = closing.end() if closing else len(source)
        elif piece:
            depth = max(0, depth + bool(piece["open"]) - bool(piece["close"]))
        new = bool(piece and piece["end"])
        kept.append(source[at:end])
        at = end
    return "".join(kept)


def statements(source: str, cell: int) -> list[Statement]:
    """The statements of one cell, imports one name at a time. Errors: Unreadable."""
    if len(source) > MAX_CELL:
        raise Unreadable(f"it has more than {MAX_CELL:,} characters")
    try:
        text, tree = _parse(re.sub("\r\n?", "\n", source.replace("\0", "")))
        raw = text.encode()
        lines = [0, *(m.end() for m in re.finditer(b"\n", raw))]
        found = []
        for node in tree.body:
            found += [Statement(n, t, cell) for n, t in _split(raw, lines, node)]
        for statement in found:
            # What only fails later (deep nesting, a stray return) must fail here, inside the try.
            compile(statement.text, "answer", "exec", dont_inherit=True)
            _ = statement.binds, statement.needs
        return found
    except SyntaxError as error:
        raise Unreadable(f"line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise Unreadable(f"{type(error).__name__} while reading it") from None


def _split(raw: bytes, lines: list[int], node: ast.stmt) -> list[tuple[ast.stmt, str]]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        parts = [type(node)(**{**vars(node), "names": [name]}) for name in node.names]
        return [(part, ast.unparse(part)) for part in parts]
    start = lines[node.lineno - 1] + node.col_offset
    decorators = getattr(node, "decorator_list", [])
    if decorators:  # the node itself starts at `def`, below its decorators
        start = lines[min(d.lineno for d in decorators) - 1]
    end = lines[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
    return [(node, raw[start:end].decode())]
