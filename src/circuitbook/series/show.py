"""A number is shown with the digits that its reader can use, and a list on one line if it is short.

Published numbers keep the digits they were printed with. Ours get as many decimals, and one more
where the two are judged, so that a reader sees how a printed number was rounded.
"""

from typing import Any

__all__ = ["LONG", "count", "decimals", "fixed", "limits", "long", "number", "value"]

LONG = 24  # lists with more numbers go below the table


def number(x: int | float, digits: int | None = None) -> str:
    """x as text. digits: decimals to round to; None keeps what was printed."""
    if isinstance(x, bool):
        return "yes" if x else "no"
    if isinstance(x, int):
        return f"{x:,}"
    if abs(x) >= 1e5:
        return f"{float(f'{x / 1e6:.4g}'):,}".removesuffix(".0") + " M"
    text = f"{x:.6g}" if digits is None else f"{x:.{digits}f}"
    if digits is not None and "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in {"-0", "0.0"} else text


def fixed(matrix: list[list[int | float]], digits: int) -> list[list[str]]:
    """A matrix as text, every number with the same number of decimals."""
    return [[f"{x:.{digits}f}" for x in row] for row in matrix]


def decimals(value: Any) -> int:
    """The most decimals that any number inside was printed with."""
    if isinstance(value, float):
        text = f"{value:.10g}"
        return len(text.partition(".")[2]) if "e" not in text else 0
    if isinstance(value, dict):
        value = list(value.values())
    return max((decimals(v) for v in value), default=0) if isinstance(value, list) else 0


def count(value: Any) -> int:
    """How many numbers and words are inside."""
    return sum(count(v) for v in value) if isinstance(value, list) else 1


def long(value: Any) -> bool:
    """Whether this is a matrix with too many numbers for one line."""
    rows = isinstance(value, list) and bool(value) and all(isinstance(row, list) for row in value)
    return rows and count(value) > LONG


def limits(value: Any) -> tuple[int | float, int | float]:
    """The smallest and the largest number inside a nested list."""
    flat = [x for v in value for x in limits(v)] if isinstance(value, list) else [value]
    return min(flat), max(flat)


def _token(word: str) -> str:
    """A token with its spaces visible, as everywhere in the course."""
    return word.replace(" ", "␣")


def _counted(value: Any) -> bool:
    """Whether this is [word, number] or [word, next word, number]."""
    if not isinstance(value, list) or len(value) not in (2, 3) or isinstance(value[-1], str):
        return False
    return all(isinstance(word, str) for word in value[:-1])


def value(v: Any, digits: int | None = None) -> str:
    """A field as one line of text: `0.35, 0.38`, `(1, 2) (0, 1)`, `␣Sally 0.294, ie 0.144`.

    `digits` as in `number`. A matrix with more than LONG numbers is only described.
    """
    if v is None:
        return ""
    if isinstance(v, str):
        return v
    if not isinstance(v, list):
        return number(v, digits)
    if long(v):
        low, high = limits(v)
        return f"{len(v)} × {len(v[0])} numbers, {number(low, digits)} to {number(high, digits)}"
    if _counted(v):  # a head with its number
        return f"head {v[0]}: {number(v[-1], digits)}"
    if v and all(_counted(item) for item in v):
        words = [(" → ".join(map(_token, item[:-1])), item[-1]) for item in v]
        return ", ".join(f"{word}\u00a0{number(x, digits)}" for word, x in words)
    if any(isinstance(item, list) for item in v):
        return " ".join(f"({value(item, digits)})" for item in v)
    return ", ".join(value(item, digits) for item in v)
