"""A hash of what a function means: its syntax tree and that of everything it reaches by name.

Comments, docstrings, layout and the place in the file do not count, so editing prose never makes a
result stale. What counts: the function, every function, class and constant of the lesson that it
reaches through global names, and every circuitbook module it reaches (with the modules that those
import). The house machinery (results, figures, claims, checks) is left out: it does not compute.
"""

import ast
import dis
import functools
import hashlib
import importlib.util
import inspect
import json
import sys
import textwrap
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

__all__ = ["code_hash", "globals_used", "imported", "module_file", "reached_modules", "tree_text"]

PACKAGE = "circuitbook"
MACHINERY = frozenset(
    f"{PACKAGE}.{name}"
    for name in ("paths", "results", "codehash", "compare", "measure", "claims", "plots", "display",
                 "marks", "gallery", "check", "checks", "doctor", "published.disk",
                 "published.fetch", "published.patience", "published.pins",
                 "published.provenance", "published.status")
) | {PACKAGE}  # fmt: skip


def tree_text(source: str) -> str:
    """A text of the syntax tree that is the same in every Python version we support.

    `ast.dump` is not used: it gains empty fields from one version to the next.
    """
    return _dump(ast.parse(source))


def _dump(node: Any) -> str:
    if isinstance(node, list):
        return "[" + ",".join(_dump(n) for n in node) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = []
    for name in node._fields:
        value = getattr(node, name, None)
        if name == "body" and isinstance(value, list):
            value = _without_docstring(node, value)
        if value is None or value == [] or name in {"ctx", "kind", "type_comment"}:
            continue
        fields.append(f"{name}={_dump(value)}")
    return f"{type(node).__name__}({','.join(fields)})"


def _without_docstring(node: ast.AST, body: list) -> list:
    owners = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    first = body[0] if body else None
    is_doc = (
        isinstance(node, owners)
        and isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    )
    return body[1:] if is_doc else body


# ---- modules of the package ---------------------------------------------------------------------


def module_file(name: str) -> Path | None:
    """The source file of a circuitbook module, or None if there is no such module."""
    parts = name.split(".")
    if parts[0] != PACKAGE:
        return None
    base = Path(__file__).resolve().parent.joinpath(*parts[1:])
    for path in (base.with_suffix(".py") if parts[1:] else base, base / "__init__.py"):
        if path.is_file():
            return path
    return None


def imported(source: str, inside: str = "") -> set[str]:
    """Names of the circuitbook modules that `source` (of module `inside`) imports, as written."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names if module_file(a.name)}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = importlib.util.resolve_name("." * node.level + base, _package_of(inside))
            if not module_file(base):
                continue
            found.add(base)
            for alias in node.names:
                if module_file(f"{base}.{alias.name}"):
                    found.add(f"{base}.{alias.name}")
                elif base == f"{PACKAGE}.taught":  # flat names are looked up when used: take all
                    found |= {f"{base}.{p.stem}" for p in module_file(base).parent.glob("ch*.py")}
    return found


def _package_of(module: str) -> str:
    path = module_file(module)
    is_package = path is not None and path.name == "__init__.py"
    return module if is_package else module.rpartition(".")[0]


def reached_modules(start: Iterable[str], leave_out: frozenset[str] = MACHINERY) -> list[str]:
    """Every circuitbook module reached from `start` by imports, sorted, machinery left out."""

    def left_out(name: str) -> bool:
        return name in leave_out or any(name.startswith(f"{m}.") for m in leave_out - {PACKAGE})

    todo, seen = [m for m in start if not left_out(m)], set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        path = module_file(name)
        if path is None:
            raise ModuleNotFoundError(f"{name}: no source file for it was found")
        more = imported(path.read_text(encoding="utf-8"), name)
        todo += [m for m in more if m not in seen and not left_out(m)]
    return sorted(seen)


# ---- the functions of a lesson ------------------------------------------------------------------


def _source(obj: Any) -> str:
    try:
        source = textwrap.dedent(inspect.getsource(obj))
        ast.parse(source)  # a lambda in the middle of a line cannot be cut out of it
        return source
    except (OSError, TypeError, SyntaxError):
        if inspect.isclass(obj):
            found = _class_in_notebook(obj.__name__)
            if found:
                return found
        raise OSError(
            f"the source of {getattr(obj, '__qualname__', obj)!r} cannot be read: it has no hash. "
            "Define it with def or class in the lesson (a script or a notebook cell)."
        ) from None


def _class_in_notebook(name: str) -> str | None:
    # inspect cannot find classes of a notebook (its __main__ has no file): search the cells.
    for cell in reversed(getattr(sys.modules.get("__main__"), "In", [])):
        try:
            body = ast.parse(cell).body
        except SyntaxError:
            continue
        for node in body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return ast.unparse(node)
    return None


def globals_used(code: types.CodeType) -> set[str]:
    """Names that the code looks up among globals and builtins, in inner functions too."""
    used = {
        i.argval
        for i in dis.get_instructions(code)
        if i.opname in {"LOAD_GLOBAL", "LOAD_NAME"} and isinstance(i.argval, str)
    }
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            used |= globals_used(const)
    return used


def _names_outside_bodies(source: str) -> set[str]:
    # Defaults, decorators, bases and class attributes are evaluated outside any function's code.
    names: set[str] = set()

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            names.add(node.id)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            args = node.args
            for part in (*getattr(node, "decorator_list", ()), *args.defaults, *args.kw_defaults):
                if part is not None:
                    walk(part)
            inner = node.body if isinstance(node.body, list) else []
            for part in (n for s in inner for n in ast.walk(s) if isinstance(n, _DEFINITIONS)):
                walk(part)
            return
        for child in ast.iter_child_nodes(node):
            walk(child)

    walk(ast.parse(source))
    return names


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def _constant(value: Any) -> str:
    def plain(x: Any) -> Any:
        if hasattr(x, "tolist"):
            return x.tolist()
        if isinstance(x, set | frozenset):
            return sorted(x, key=repr)
        raise TypeError(type(x).__name__)

    try:
        return json.dumps(value, sort_keys=True, default=plain)
    except (TypeError, ValueError):  # a model, a tokenizer: its class counts, the weights are noted
        return f"{type(value).__module__}.{type(value).__qualname__}"


class _Walk:
    """Collects `parts`, a name → text map of all that a function reaches."""

    def __init__(self, compute: Callable) -> None:
        self.parts: dict[str, str] = {}
        self.modules: set[str] = set()
        self.seen: set[int] = set()
        self.lesson = inspect.unwrap(compute).__module__
        self._definition("compute", compute)

    def _visit(self, name: str, value: Any) -> None:
        if isinstance(value, functools.partial):
            self.parts[f"partial {name}"] = _constant([value.args, value.keywords])
            value = value.func
        home = value.__name__ if isinstance(value, types.ModuleType) else None
        home = home or getattr(value, "__module__", None) or type(value).__module__
        if home.split(".")[0] == PACKAGE:
            self.modules.add(home)
        elif isinstance(value, types.ModuleType):
            self.parts[f"module {name}"] = home
        elif not (inspect.isclass(value) or hasattr(value, "__qualname__")):
            self.parts[f"constant {name}"] = _constant(value)
            if type(value).__module__.split(".")[0] == PACKAGE:
                self.modules.add(type(value).__module__)
        elif home in {"__main__", self.lesson}:
            self._definition(name, value)
        else:
            self.parts[f"name {name}"] = f"{home}.{value.__qualname__}"

    def _definition(self, name: str, value: Any) -> None:
        value = inspect.unwrap(value)
        if id(value) in self.seen:
            return
        self.seen.add(id(value))
        source = _source(value)
        self.parts[f"definition {name}"] = tree_text(source)
        members = [value]
        if inspect.isclass(value):
            scope = vars(sys.modules[value.__module__])
            members = list(vars(value).values())
        else:
            scope = value.__globals__
        names = _names_outside_bodies(source)
        for member in members:
            member = inspect.unwrap(getattr(member, "__func__", getattr(member, "fget", member)))
            code = getattr(member, "__code__", None)
            if code is None or code.co_filename == "<string>":  # made by @dataclass, not written
                continue
            names |= globals_used(code)
            for cell_name, cell in zip(code.co_freevars, member.__closure__ or (), strict=True):
                if cell_name != "__class__":
                    self._visit(f"{name}.{cell_name}", _content(cell))
        for used in sorted(names):
            if used in scope and not used.startswith("__"):
                self._visit(used, scope[used])


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # filled later, as in a function that calls itself
        return None


def code_hash(compute: Callable) -> str:
    """The sha256 of `compute` and of everything of ours that it reaches by global name."""
    found = _Walk(compute)
    for name in reached_modules(found.modules):
        found.parts[f"file {name}"] = tree_text(module_file(name).read_text(encoding="utf-8"))
    return hashlib.sha256(json.dumps(found.parts, sort_keys=True).encode()).hexdigest()
