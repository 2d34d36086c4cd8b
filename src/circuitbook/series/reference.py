"""A published number is an id, a value, a kind with its tolerance, and a source.

The file is results/reference/series.json, taken over as it is. Kinds: exact, closed_form, readout,
statistic, stochastic, external. A tolerance is one number, or a dict of named ones for a training
outcome ({"loss_rel": 0.02}). Source: Part 7 of the series and the public results it lists.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from circuitbook import paths

__all__ = ["KINDS", "Entry", "entries", "reference_path"]

KINDS = ("exact", "closed_form", "readout", "statistic", "stochastic", "external")


@dataclass(frozen=True)
class Entry:
    """One published number, or a small group of numbers that belong together."""

    id: str
    value: Any
    kind: str
    source: str
    tol: int | float | Mapping[str, int | float] | None = None
    note: str = ""


def reference_path() -> Path:
    """Where the published numbers stand."""
    return paths.RESULTS / "reference" / "series.json"


def entries(path: Path | None = None) -> list[Entry]:
    """Every published number, in the order of the file.

    Errors: ValueError for a damaged file, a field that is missing or unknown, or an id used twice.
    An unknown *kind* is kept: the page shows it and says so.
    """
    path = path or reference_path()
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))["entries"]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}). Restore it from the repository.") from None
    found: dict[str, Entry] = {}
    for fields in listed:
        name = fields.get("id", "an entry without id")
        try:
            entry = Entry(**fields)
        except TypeError as error:
            raise ValueError(f"{path}: {name} cannot be read ({error})") from None
        if entry.id in found:
            raise ValueError(f"{path}: {entry.id} stands there twice")
        found[entry.id] = entry
    return list(found.values())
