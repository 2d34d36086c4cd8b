"""A claim is data: a sentence, the numbers in it, its kind of evidence, and whether it holds.

Nobody types a measured number into prose. A lesson makes claims inside `compute`, they are saved
with the results, and `show(r, "models.loss_falls_with_depth")` prints them.

The sentence is a format string, filled only from `values` (and from the comparison's own `value`,
`bound`, `limit`). It must hold no digit of its own, except inside `backticks` and in the names
"layer 0", "chapter 2", "part 3", "order 1", "top-10", "float32". Every other number is a value.
"""

import math
import re
import string
import textwrap
from collections.abc import Mapping
from typing import Any

from circuitbook import paths

__all__ = [
    "LABELS", "all_of", "atleast", "atmost", "between", "bound", "claim", "close", "ours",
    "equal", "recheck", "round6", "show",
]  # fmt: skip

LABELS = ("identity", "approximation", "measurement", "intervention", "conjecture")

WIDTH = 100  # of a printed claim: a page shows outputs without breaking their lines

_ID = re.compile(r"[a-z0-9_]+\.[a-z0-9_]+")
_ALLOWED = re.compile(
    r"`[^`]*`"
    r"|\b(?:layers?|chapters?|parts?|orders?)[ -]\d+\b"
    r"|\btop[ -]\d+\b"
    r"|\b(?:b?float|int)\d+\b",
    re.IGNORECASE,
)


def round6(x: float | int) -> float:
    """x to six significant digits, the precision at which results are kept."""
    x = float(f"{float(x):.6g}")
    return 0.0 if x == 0 else x  # no minus zero: it would make equal results differ in bytes


def _number(x: Any, what: str) -> int | float:
    """A plain finite int or rounded float, from a Python number, a numpy scalar or a 0-d tensor."""
    if hasattr(x, "tolist"):
        x = x.tolist()
    if isinstance(x, bool) or not isinstance(x, int | float):
        raise TypeError(f"{what} must be one number, not {type(x).__name__}")
    if not math.isfinite(x):
        raise ValueError(f"{what} is {x}: a result must be a finite number")
    return x if isinstance(x, int) else round6(x)


# ---- comparisons -----------------------------------------------------------------------------
# Each gives a small dict with "ok". The stored number is compared, so that anyone can check the
# verdict from the file alone.


def atleast(value: Any, bound: Any) -> dict:
    """ok when value >= bound."""
    v, b = _number(value, "value"), _number(bound, "bound")
    return {"test": "at least", "value": v, "bound": b, "ok": v >= b}


def atmost(value: Any, bound: Any) -> dict:
    """ok when value <= bound."""
    v, b = _number(value, "value"), _number(bound, "bound")
    return {"test": "at most", "value": v, "bound": b, "ok": v <= b}


def between(value: Any, low: Any, high: Any) -> dict:
    """ok when low <= value <= high."""
    v, lo, hi = _number(value, "value"), _number(low, "low"), _number(high, "high")
    return {"test": "between", "value": v, "low": lo, "high": hi, "ok": lo <= v <= hi}


def close(value: Any, target: Any, tolerance: Any) -> dict:
    """ok when |value - target| <= tolerance."""
    v, t, tol = _number(value, "value"), _number(target, "target"), _number(tolerance, "tolerance")
    return {"test": "close", "value": v, "target": t, "tolerance": tol, "ok": abs(v - t) <= tol}


def equal(value: Any, target: Any) -> dict:
    """ok when value == target (counts, words, true or false)."""
    for x in (value, target):
        if not isinstance(x, bool | int | str):
            raise TypeError("equal() compares ints, strings or booleans; use close() for decimals")
    return {"test": "equal", "value": value, "target": target, "ok": value == target}


def bound(value: Any, limit: float | int) -> dict:
    """ok when |value| <= limit; the value itself is not kept.

    For rounding errors of identities: their last digits change with the number of threads, so only
    the limit and the verdict are evidence (MATH.md, E28). Good as data and as a claim's `holds`.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    value = float(value)
    if math.isnan(value):
        raise ValueError("bound(): the error is not a number (NaN)")
    return {"limit": round6(limit), "ok": abs(value) <= limit}


def all_of(*tests: dict) -> dict:
    """ok when every one of the comparisons is ok."""
    if not tests:
        raise ValueError("all_of() needs at least one comparison")
    return {"test": "all of", "tests": list(tests), "ok": all(t["ok"] for t in tests)}


# ---- claims ----------------------------------------------------------------------------------


def _render(id: str, text: str, values: Mapping[str, Any]) -> str:
    plain = []
    for literal, field, spec, _ in string.Formatter().parse(text):
        plain.append(literal)
        if field is None:
            continue
        if not field.isidentifier() or "{" in (spec or ""):
            raise ValueError(
                f"claim {id}: use plain placeholders like {{loss:.2f}}, not {{{field}}}"
            )
        if field not in values:
            raise ValueError(f"claim {id}: {{{field}}} is not in values ({', '.join(values)})")
        plain.append("\0")
    typed = re.search(r"\d", _ALLOWED.sub("", "".join(plain)))
    if typed:
        raise ValueError(
            f"claim {id}: the sentence has a digit typed by hand: {text!r}. Put the number in "
            "values and write {name}; names with digits go inside `backticks`."
        )
    try:
        return text.format(**values)
    except (ValueError, TypeError) as error:
        raise ValueError(f"claim {id}: the sentence cannot be filled: {error}") from error


def claim(
    id: str, text: str, *, label: str, holds: dict, values: Mapping[str, Any] | None = None
) -> dict:
    """One claim, ready to be saved. `holds` is a comparison, e.g. atleast(prefix, 0.4).

    id: "chapter_word.short_name", unique in the course.  label: one of LABELS.
    values: numbers or words for the sentence; the comparison's own numbers can be used as {value},
    {bound}, {limit}, {low}, {high}, {target}, {tolerance}.
    Errors: ValueError for a bad id, label, placeholder, or a digit typed into the sentence.
    """
    if not _ID.fullmatch(id):
        raise ValueError(f"claim id {id!r}: use the form chapter_word.short_name, lower case")
    if label not in LABELS:
        raise ValueError(f"claim {id}: label {label!r} is not one of {', '.join(LABELS)}")
    if not isinstance(holds, dict) or not isinstance(holds.get("ok"), bool):
        raise TypeError(f"claim {id}: holds= needs a comparison, e.g. atleast(value, bound)")
    kept: dict[str, Any] = {}
    for name, value in (values or {}).items():
        kept[name] = value if isinstance(value, str) else _number(value, f"claim {id}: {name}")
    own = {k: v for k, v in holds.items() if k not in {"ok", "test", "tests"}}
    sentence = _render(id, text, {**own, **kept})
    made = {
        "id": id, "label": label, "text": text, "values": kept, "sentence": sentence,
        "test": {k: v for k, v in holds.items() if k != "ok"}, "holds": holds["ok"],
    }  # fmt: skip
    # A claim made inside `paths.model_set(...)` is about that set and says so.
    return made if paths.inside_set() is None else made | {"models": paths.inside_set()}


def ours(claims: list[dict], but: tuple[str, ...] = ()) -> list[dict]:
    """The claims, marked as the course's own where another model set is measured; `but` some ids.

    For a chapter that is about toys or hand-built models nearly everywhere.
    """
    if paths.models() == "course":
        return claims
    return [c if c["id"] in but else c | {"models": "course"} for c in claims]


def recheck(c: Mapping[str, Any]) -> str:
    """What is wrong with a saved claim, "" if its sentence and verdict follow from its numbers."""
    own = {k: v for k, v in c["test"].items() if k not in {"test", "tests"}}
    if c["sentence"] != _render(c["id"], c["text"], {**own, **c["values"]}):
        return "its sentence is not what its values say"
    return "" if _verdict({**c["test"], "ok": c["holds"]}) is c["holds"] else "its verdict is wrong"


def _verdict(t: Mapping[str, Any]) -> bool:
    if t.get("test") == "all of":
        return all(part["ok"] and _verdict(part) for part in t["tests"])
    if t.get("test") == "at least":
        return t["value"] >= t["bound"]
    if t.get("test") == "at most":
        return t["value"] <= t["bound"]
    if t.get("test") == "between":
        return t["low"] <= t["value"] <= t["high"]
    if t.get("test") == "close":
        return abs(t["value"] - t["target"]) <= t["tolerance"]
    if t.get("test") == "equal":
        return t["value"] == t["target"]
    return t["ok"]  # a bound: the error itself was not kept


def line(c: Mapping[str, Any]) -> str:
    """One printed line: label, state, sentence; and whose models, where that must be said."""
    state = "holds" if c["holds"] else "FAILS"
    if c.get("random_weights"):
        state = "random weights: not expected to hold"
    if c.get("models") == "course":
        state += " · course models"
    return f"[{c['label']} · {state}] {c['sentence']}"


def show(r: Any, *ids: str) -> None:
    """Print claims of the result `r` with label and state, wrapped; without ids, all of them."""
    wrapped = textwrap.TextWrapper(
        WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    for id in ids or tuple(r.claims):
        if id not in r.claims:
            raise KeyError(
                f"{r.chapter} has no claim {id!r}; it has {', '.join(r.claims) or 'none'}"
            )
        print(wrapped.fill(line(r.claims[id])))
