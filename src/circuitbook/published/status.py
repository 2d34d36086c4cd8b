"""What of the published track is on this disk, in rows and words; asks nobody else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from circuitbook.published import disk
from circuitbook.published.pins import ALL, Pin


def row(pin: Pin) -> dict[str, Any]:
    """A pin's state, revision and megabytes here, and about how many are still to come."""
    found = disk.look(pin)
    here = found.bytes / 1e6
    if found.whole:
        state, to_come = "cached", 0.0
    elif found.damaged:
        state, to_come = "damaged", pin.megabytes
    elif len(found.missing) < len(pin.files):
        state, to_come = "partly cached", max(pin.megabytes - here, 0.1)
    else:
        state, to_come = "missing", pin.megabytes
    return {
        "name": pin.name, "state": state, "where": found.where, "megabytes": round(here, 1),
        "to_fetch": round(to_come, 1), "damaged": dict(found.damaged), "licence": pin.licence,
    }  # fmt: skip


def rows(pins: Iterable[Pin] = tuple(ALL.values())) -> list[dict[str, Any]]:
    """One row for each of these pins."""
    return [row(pin) for pin in pins]


def lines(told: list[dict[str, Any]]) -> list[str]:
    """Rows as a table to read."""
    out = []
    for one in told:
        size = f"{one['megabytes']:,.1f} MB"
        if one["state"] != "cached":
            size = f"about {one['to_fetch']:,.0f} MB"
        licence = f"  ({one['licence']})" if one["licence"] else ""
        out.append(f"  {one['name']:<14} {one['state']:<14} {size:>12}  {one['where']}{licence}")
    return out


def summary(told: list[dict[str, Any]]) -> str:
    """What the next download would be, in one line."""
    needed = [row for row in told if row["state"] != "cached"]
    if not needed:
        return "Nothing to download."
    total = sum(row["to_fetch"] for row in needed)
    names = ", ".join(row["name"] for row in needed)
    return f"To download, about {max(total, 1.0):,.0f} MB: {names}"
