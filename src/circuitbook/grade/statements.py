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
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_MAGIC = re.compile(r"(?P<space>\s*)(?:[%!?]|[\w.]+(?:, *\w+)*\s*=\s*[%!](?!=)|[\w.]+\?\??\s*$)")


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
        return frozenset(self._symbols[1])

    @cached_property
    def _symbols(self) -> tuple[set[str], set[str]]:
        top = symtable.symtable(self.text, "answer", "exec")
        bound = {
            s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()
            or s.is_namespace()
        }  # fmt: skip
        read, waiting = set(), [top]
        for node in ast.walk(self.node):  # symtable takes x += 1 for a plain assignment
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                read.add(node.target.id)
        while waiting:
            table = waiting.pop()
            waiting += table.get_children()
            for symbol in table.get_symbols():
                outside = table is top or symbol.is_global()
                if outside and symbol.is_referenced():
                    read.add(symbol.get_name())
                if outside and table is not top and symbol.is_declared_global():
                    read.add(symbol.get_name())
        return bound, read

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
        lines = []
        for line in source.split("\n"):
            magic = _MAGIC.match(line)
            lines.append(f"{magic['space']}pass" if magic else line)
        quiet = "\n".join(lines)
        return quiet, ast.parse(quiet)


def statements(source: str, cell: int) -> list[Statement]:
    """The statements of one cell, imports one name at a time. Errors: Unreadable."""
    if len(source) > MAX_CELL:
        raise Unreadable(f"it has more than {MAX_CELL:,} characters")
    try:
        text, tree = _parse(source)
        found = []
        for node in tree.body:
            found += [Statement(n, t, cell) for n, t in _split(text, node)]
        for statement in found:
            # What only fails later (deep nesting, a stray return) must fail here, inside the try.
            compile(statement.text, "answer", "exec", dont_inherit=True)
            _ = statement.binds, statement.needs
        return found
    except SyntaxError as error:
        raise Unreadable(f"line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise Unreadable(f"{type(error).__name__} while reading it") from None


def _split(text: str, node: ast.stmt) -> list[tuple[ast.stmt, str]]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        parts = [type(node)(**{**vars(node), "names": [name]}) for name in node.names]
        return [(part, ast.unparse(part)) for part in parts]
    decorators = getattr(node, "decorator_list", [])
    if decorators:  # the node itself starts at `def`, below its decorators
        start = min(d.lineno for d in decorators)
        return [(node, "\n".join(text.splitlines()[start - 1 : node.end_lineno]))]
    return [(node, ast.get_source_segment(text, node) or ast.unparse(node))]
