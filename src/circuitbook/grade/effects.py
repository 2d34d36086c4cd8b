"""What a statement changes besides the names that it binds: CFG["p"] = 1, P.append(1), fill(T).

Nothing is run, so this is what the text says. A call that may do anything, of a module's function
or of print, counts as nothing, but for the few that notebooks use to set something up.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from circuitbook.grade.statements import Statement

__all__ = ["Effects", "effects", "origins"]

_SETTERS = {
    "numpy.random.seed", "numpy.seterr", "random.seed", "sys.setrecursionlimit",
    "torch.manual_seed", "torch.set_default_dtype", "torch.set_grad_enabled",
    "torch.random.manual_seed",
}  # fmt: skip
_IN_PLACE = {
    "heapq.heapify", "heapq.heappush", "numpy.copyto", "numpy.fill_diagonal", "numpy.put",
    "numpy.random.shuffle", "random.shuffle", "setattr",
}  # fmt: skip
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_CLOSED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True)
class Effects:
    """touches: the names whose objects it changes. calls: the student's functions that it calls.

    sets_up: whether it is one of the few calls that set up a module.
    unclear: names of objects that it hands to a function that may change them or not.
    """

    touches: frozenset[str]
    calls: frozenset[str]
    sets_up: bool
    unclear: frozenset[str]


def origins(code: list[Statement]) -> dict[str, str]:
    """name -> where it was imported from: np -> numpy."""
    found = {}
    for node in (s.node for s in code if s.is_import):
        for alias in node.names:
            if isinstance(node, ast.ImportFrom):
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            elif alias.asname:
                found[alias.asname] = alias.name
            else:
                first = alias.name.partition(".")[0]
                found[first] = first
    return found


def dotted(node: ast.expr, imported: dict[str, str]) -> str:
    """The full name of what an expression names: np.random.seed -> numpy.random.seed, or ""."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([imported.get(node.id, node.id), *reversed(parts)])


def effects(s: Statement, imported: dict[str, str], changing: dict[str, bool]) -> Effects:
    """changing: the student's functions, and whether each changes an argument."""
    if isinstance(s.node, _CLOSED) or s.is_import:
        return Effects(frozenset(), frozenset(), False, frozenset())
    touches, calls, unclear = set(_stored(s.node)), set(), set()
    for call in _calls(s.node):
        name = dotted(call.func, imported)
        given = {a.id for a in [*call.args, *(k.value for k in call.keywords)]
                 if isinstance(a, ast.Name)}  # fmt: skip
        if isinstance(call.func, ast.Name) and call.func.id in changing:
            calls.add(call.func.id)
            touches |= given if changing[call.func.id] else set()
        elif name in _IN_PLACE or (name.endswith("_") and given):  # torch's nn.init.zeros_(T)
            touches |= given
        elif not isinstance(call.func, ast.Name) and _root(call.func) not in {"", *imported}:
            touches.add(_root(call.func))
        elif name not in _SETTERS:
            unclear |= given
    one = s.node.value if isinstance(s.node, ast.Expr) else None
    sets_up = isinstance(one, ast.Call) and dotted(one.func, imported) in _SETTERS
    return Effects(frozenset(touches), frozenset(calls), sets_up, frozenset(unclear))


def changes_an_argument(node: ast.stmt) -> bool:
    """Whether a function's own text changes what it is given."""
    if not isinstance(node, _FUNCTION):
        return False
    given = {a.arg for a in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]}
    body = ast.Module(node.body, [])
    called = {_root(c.func) for c in _calls(body) if not isinstance(c.func, ast.Name)}
    return bool(given & ({*_stored(body)} | called))


def _root(node: ast.AST) -> str:
    """The name at the start of T[0].view(-1).real, or ""."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a statement that run with it: not those of functions that it defines."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [n for n in ast.iter_child_nodes(node) if not isinstance(n, _CLOSED)]


def _stored(node: ast.AST) -> Iterator[str]:
    """Names of which a part is given a value: T[0] = 1, Cfg.p += 1, del CFG["x"]."""
    for part in _inside(node):
        if isinstance(part, ast.Attribute | ast.Subscript) and not isinstance(part.ctx, ast.Load):
            yield _root(part)


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """The calls that stand alone, so that only what they change can be wanted of them."""
    for part in _inside(node):
        if isinstance(part, ast.Expr) and isinstance(part.value, ast.Call):
            yield part.value
