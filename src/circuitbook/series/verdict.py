"""Two values agree when their largest difference is inside the tolerance of their kind.

| kind        | a field agrees when                                                           |
|-------------|-------------------------------------------------------------------------------|
| exact       | it is equal                                                                   |
| closed_form | every number differs by at most tol                                           |
| readout     | every number differs by at most tol, every word is equal                      |
| external    | the same; without a stated tolerance it is only shown                         |
| statistic   | `score` differs by at most two standard errors of the difference; others show |
|             | (where zero would agree as well, agreement says nothing: not judged)          |
| stochastic  | the structure is equal; loss, gaps and echoes are inside their tolerances     |

A field is one named part of an entry (`loss`, `norms`), or the entry itself. Lists are compared
number by number, also when they are nested. A list of another shape does not agree.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from circuitbook.series.reference import KINDS, Entry

__all__ = [
    "WIDE", "Field", "NoRule", "allowed", "compare", "fields", "gap", "is_setting",
    "tolerance_words", "unlike",
]  # fmt: skip

# What goes into a training run. Equal settings are no success: they were copied.
SETTINGS = {"features", "dims", "off", "latents", "l1", "steps", "batch"}
# What a training outcome is made of; these are counts and settings, not luck of the start.
STRUCTURE = SETTINGS | {"represented"}
WIDE = "too wide to tell: zero would agree as well"
NO_NUMBER = "is no number"
_SLACK = 1e-12  # 0.667 - 0.6665 is 0.0005 and a few last bits


class NoRule(ValueError):
    """An entry's kind and tolerance do not say how to judge it."""


@dataclass(frozen=True)
class Field:
    """One named part of an entry beside ours. `ok` is None when it is shown and not judged."""

    path: tuple[str, ...]
    theirs: Any
    ours: Any
    ok: bool | None
    gap: float = 0.0
    allowed: float | None = None
    why: str = ""  # why it is not judged; or what differs, where the gap is no number


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def gap(theirs: Any, ours: Any) -> float:
    """max |theirs − ours| over all numbers inside; infinite if a word or a shape differs."""
    if _number(theirs) and _number(ours):
        return float(abs(theirs - ours)) if math.isfinite(ours) else math.inf
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        return max((gap(a, b) for a, b in zip(theirs, ours)), default=0.0)
    return 0.0 if type(theirs) is type(ours) and theirs == ours else math.inf


def unlike(theirs: Any, ours: Any) -> str:
    """What makes a gap infinite, in words, as far as the two values tell."""
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        inside = next(unlike(a, b) for a, b in zip(theirs, ours) if gap(a, b) == math.inf)
        return "holds what is no number" if inside == NO_NUMBER else inside
    if isinstance(theirs, str) and isinstance(ours, str):
        return "has another word"
    return NO_NUMBER if _number(theirs) and not isinstance(ours, list) else "has another shape"


def _absent(path: tuple[str, ...], mine: Mapping[tuple[str, ...], Any]) -> str:
    """A field that ours lacks: is something else there, a group for a value or the reverse?"""
    there = any(path[: len(p)] == p or p[: len(path)] == path for p in mine)
    return "has another shape" if there else "is missing"


def is_setting(entry: Entry, field: Field) -> bool:
    """Whether a field says what went into a training run, and not what came out."""
    return entry.kind == "stochastic" and bool(field.path) and field.path[-1] in SETTINGS


def fields(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(path, value) of each named part; a value without names is its own only part."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from fields(item, (*path, str(key)))
    else:
        yield path, value


def _two_errors(entry: Entry, ours: Any) -> float | None:
    """Two standard errors of a difference, from both sides' `plus_minus`."""
    if not (isinstance(entry.value, Mapping) and isinstance(ours, Mapping)):
        return None
    errors = (entry.value.get("plus_minus"), ours.get("plus_minus"))
    return 2 * math.hypot(*errors) if all(_number(x) for x in errors) else None


def allowed(entry: Entry, path: tuple[str, ...], theirs: Any, ours: Any = None) -> float | None:
    """How far a field may be off; None when nothing is stated. `ours` is the whole of our value.

    Errors: NoRule for a kind that nobody defined, and for a closed form without a tolerance.
    """
    name = path[-1] if path else ""
    if entry.kind not in KINDS:
        raise NoRule(f"the kind {entry.kind!r} is not known; known are {', '.join(KINDS)}")
    if entry.kind == "exact":
        return 0.0
    if entry.kind == "closed_form" and not _number(entry.tol):
        raise NoRule("a closed form needs a tolerance, one number")
    if entry.kind == "statistic":
        return _two_errors(entry, ours) if name == "score" else None
    if entry.kind != "stochastic":
        return float(entry.tol) if _number(entry.tol) else None
    if name in STRUCTURE:
        return 0.0
    named = entry.tol if isinstance(entry.tol, Mapping) else {}
    if name == "loss" and "loss_rel" in named:
        return named["loss_rel"] * abs(theirs)
    if name == "gap_degrees" and "gap_abs" in named:
        return float(named["gap_abs"])
    return float(named["abs"]) if "abs" in named else None


def compare(entry: Entry, ours: Any, *, judged: bool) -> list[Field]:
    """Every field of the entry beside ours, then what only we have. Unjudged fields have ok None.

    A field that ours lacks does not agree (judged), or is shown as empty. A score that agrees with
    an error as wide as itself is not judged; one that differs by more than that does differ.
    """
    mine = dict(fields(ours))
    out = []
    for path, theirs in fields(entry.value):
        have = path in mine
        value = mine.pop(path, None)
        limit = allowed(entry, path, theirs, ours) if judged else None
        distance = gap(theirs, value) if have else math.inf
        ok, why = None if limit is None else distance <= limit + _SLACK, ""
        if ok is False and distance == math.inf:
            why = unlike(theirs, value) if have else _absent(path, mine)
        elif ok and entry.kind == "statistic" and gap(theirs, 0) <= limit + _SLACK:
            ok, why = None, WIDE
        out.append(Field(path, theirs, value, ok, distance, limit, why))
    return out + [Field(path, None, value, None) for path, value in mine.items()]


def _about(limit: int | float, unit: str = "") -> str:
    return f"±\u00a0{limit:g}{unit}".replace("e-0", "e-")  # no line break after the sign


def tolerance_words(entry: Entry) -> str:
    """The tolerance of an entry in words."""
    if entry.kind == "exact" or entry.tol == 0:
        return "equal"
    if entry.kind == "statistic":
        return "score within two standard errors of the difference"
    if isinstance(entry.tol, Mapping):
        known = {"loss_rel": ("loss ", 100, " %"), "gap_abs": ("gaps ", 1, "°"), "abs": ("", 1, "")}
        words = []
        for name, limit in entry.tol.items():
            what, times, unit = known.get(name, (f"{name} ", 1, ""))
            words.append(what + _about(times * limit, unit))
        return ", ".join(words)
    return "none stated" if entry.tol is None else _about(entry.tol)
