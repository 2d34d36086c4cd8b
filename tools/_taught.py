"""The taught functions are the lesson's own: `save` cells become circuitbook/taught/chNN.py."""

import ast
import builtins
import sys

from _lesson import Lesson, LessonError
from _strip import quiet_magics

from circuitbook.codehash import globals_used

_HEAD = '''"""{title}: what chapter {number} teaches, for later chapters to use.

Generated from scripts/{name}.py; do not edit.
"""
'''

_INIT = '''"""What the lessons teach, by name: `from circuitbook.taught import copying_score`.

Generated from the lessons in scripts/; do not edit.
"""

import importlib
from typing import Any

_HOME = {{
{home}}}


def __getattr__(name: str) -> Any:
    """The taught object of this name, from the chapter that teaches it."""
    if name not in _HOME:
        raise AttributeError(f"no lesson teaches {{name!r}}; taught are {{', '.join(_HOME)}}")
    return getattr(importlib.import_module(f"{{__name__}}.{{_HOME[name]}}"), name)
'''


def module(lesson: Lesson) -> tuple[str, list[str]] | None:
    """The text of the lesson's taught module and the names it defines; None without save cells."""
    saved = [c for c in lesson.cells if "save" in c.tags]
    if not saved:
        return None
    body, names, used = [], [], set()
    for cell in saved:
        where = f"{lesson.name}, cell {cell.index} (save)"
        if quiet_magics(cell.source) != cell.source:
            raise LessonError(f"{where}: a save cell holds plain Python, no % or ! lines")
        tree = ast.parse(cell.source)
        for node in tree.body:
            names += _defined(node, where)
        used |= globals_used(compile(tree, where, "exec"))
        kept = [n for n in tree.body if not isinstance(n, ast.Import | ast.ImportFrom)]
        start = min([kept[0].lineno, *(d.lineno for d in getattr(kept[0], "decorator_list", ()))])
        above = cell.source.splitlines()[: start - 1]
        if not any(isinstance(n, ast.Import | ast.ImportFrom) for n in tree.body):
            above = []
        body.append("\n".join(cell.source.splitlines()[len(above) :]).strip("\n"))
    twice = {n for n in names if names.count(n) > 1}
    if twice:
        raise LessonError(f"{lesson.name}: save cells define {', '.join(sorted(twice))} twice")
    imports, unknown = _imports(lesson, used - set(names))
    if unknown:
        raise LessonError(
            f"{lesson.name}: save cells use {', '.join(sorted(unknown))}, which no save cell "
            "defines and the lesson does not import. Pass it as an argument, or tag its cell save."
        )
    head = _HEAD.format(title=lesson.title, number=lesson.number, name=lesson.name)
    return "\n".join([head, *imports, "\n", "\n\n\n".join(body), ""]), names


def _defined(node: ast.stmt, where: str) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign) and all(isinstance(t, ast.Name) for t in node.targets):
        return [t.id for t in node.targets]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return []
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return []
    raise LessonError(
        f"{where}: save cells hold functions, classes, constants and imports, nothing that runs: "
        f"{ast.unparse(node)[:60]!r}"
    )


def _imports(lesson: Lesson, wanted: set[str]) -> tuple[list[str], set[str]]:
    """Import lines for the wanted names, in the usual three groups, and the names without one."""
    wanted = wanted - set(dir(builtins))
    plain: dict[str, str] = {}
    froms: dict[str, set[str]] = {}
    found: set[str] = set()
    for cell in lesson.cells:
        if cell.kind != "code":
            continue
        for node in ast.parse(quiet_magics(cell.source)).body:
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                if bound not in wanted or bound in found:
                    continue
                found.add(bound)
                text = alias.name + (f" as {alias.asname}" if alias.asname else "")
                if isinstance(node, ast.Import):
                    plain[text] = alias.name
                else:
                    froms.setdefault(node.module or "", set()).add(text)
    groups: list[list[str]] = [[], [], []]
    for text, name in sorted(plain.items()):
        groups[_group(name)].append(f"import {text}")
    for name, texts in sorted(froms.items()):
        groups[_group(name)].append(f"from {name} import {', '.join(sorted(texts))}")
    lines: list[str] = []
    for group in groups:
        lines += ([""] if lines and group else []) + group
    return lines, wanted - found


def _group(name: str) -> int:
    top = name.partition(".")[0]
    return 2 if top == "circuitbook" else 0 if top in sys.stdlib_module_names else 1


def package(taught: dict[str, list[str]]) -> str:
    """The text of taught/__init__.py, from chapter → names; a name taught twice is an error."""
    home: dict[str, str] = {}
    for chapter, names in taught.items():
        for name in names:
            if name in home:
                raise LessonError(f"{name} is taught in {home[name]} and {chapter}: rename one")
            home[name] = chapter
    return _INIT.format(home="".join(f'    "{n}": "{c}",\n' for n, c in home.items()))
