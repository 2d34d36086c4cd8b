"""What of the published track is on this disk, in rows and words; asks nobody else."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from circuitbook.published import disk, text
from circuitbook.published.pins import ALL, TEXT, Pin

HERE = ("cached", "local", "not there")  # nothing is to be fetched; the last two are local texts


def row(pin: Pin) -> dict[str, Any]:
    """A pin's state, revision and megabytes here, and about how many are still to come.

    "known" is where its commit comes from, "checked" how far its files are known to be the right
    ones: verified, unchanged (since they were first used), unverified, or random weights.
    """
    if pin.name == TEXT.name and text.asked():
        return _local_text(pin)
    found = disk.look(pin)
    here, some = found.bytes / 1e6, len(found.missing) < len(pin.files)
    if found.whole:
        state, to_come = "cached", 0.0
    elif found.damaged:
        state, to_come = "damaged", pin.megabytes
    elif some:
        state, to_come = "partly cached", max(pin.megabytes - here, 0.1)
    else:
        state, to_come = "missing", pin.megabytes
    known = "pinned" if pin.revision else "locked" if found.pin.revision else ""
    if disk.stand_in() or found.marked:
        known = "random weights"
    return {
        "name": pin.name, "state": state, "where": found.where, "megabytes": round(here, 1),
        "to_fetch": round(to_come, 1), "damaged": dict(found.damaged), "licence": pin.licence,
        "commit": found.commit, "known": known, "fault": "",
        "checked": disk.checked(found) if some and not found.damaged else "",
    }  # fmt: skip


def _local_text(pin: Pin) -> dict[str, Any]:
    """The row of a text that CIRCUITBOOK_TEXT names: nothing of it is ever fetched."""
    made = {
        "name": pin.name, "state": "local", "where": os.environ["CIRCUITBOOK_TEXT"],
        "megabytes": 0.0, "to_fetch": 0.0, "damaged": {}, "licence": "", "commit": None,
        "known": "a file of your own", "fault": "", "checked": "",
    }  # fmt: skip
    try:
        place = text.local()
    except disk.PublishedError as error:
        return made | {"state": "not there", "fault": str(error)}
    size = place.stat().st_size if place else 0
    return made | {"where": str(place), "megabytes": round(size / 1e6, 1)}


def rows(pins: Iterable[Pin] = tuple(ALL.values())) -> list[dict[str, Any]]:
    """One row for each of these pins."""
    return [row(pin) for pin in pins]


def lines(told: list[dict[str, Any]]) -> list[str]:
    """Rows as a table to read."""
    out = []
    for one in told:
        size = f"{one['megabytes']:,.1f} MB"
        if one["state"] not in HERE:
            size = f"about {one['to_fetch']:,.0f} MB"
        more = ", ".join(filter(None, (one["known"], one["checked"], one["licence"])))
        out.append(f"  {one['name']:<14} {one['state']:<14} {size:>12}  {one['where']}  ({more})")
    if any(one["checked"] == "unverified" for one in told):
        out.append("  unverified: a plain copy, and no hash on record to compare it with")
    if any(one["checked"] == "unchanged" for one in told):
        out.append("  unchanged: the same as when it was first used here; nothing else is known")
    return out


def to_come(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of which something must be fetched."""
    return [row for row in told if row["state"] not in HERE]


def summary(told: list[dict[str, Any]]) -> str:
    """What the next download would be, in one line."""
    needed = to_come(told)
    if not needed:
        return "Nothing to download."
    total = sum(row["to_fetch"] for row in needed)
    names = ", ".join(row["name"] for row in needed)
    return f"To download, about {max(total, 1.0):,.0f} MB: {names}"
