"""What a unit's page shows of its activations: contexts, bands, a histogram. A unit is a column.

Contexts are the strongest positions, one from each document, or one book would fill the list.
Bands cut (floor, maximum] in three equal intervals and draw positions from each, because a unit's
strongest positions may say nothing about what it does on most days.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

BANDS = ("weak", "middle", "strong")  # lower, middle and upper third of (floor, maximum]


class Reading(NamedTuple):
    """Held-out windows, and where each position stands in them; BOS (place 0) is left out."""

    tokens: Int[Tensor, "window pos"]
    doc: Int[Tensor, " window"]
    sources: list[str]
    per_window: int  # positions read in each window: places 1, 2, … per_window

    def where(self, position: int) -> tuple[int, int]:
        """(window, place) of a position."""
        window, place = divmod(position, self.per_window)
        return window, place + 1


def excerpt(reading: Reading, a: Float[Tensor, " n"], position: int, around: int) -> dict[str, Any]:
    """The tokens `around` a position with the activation on each, and which of them it is."""
    window, place = reading.where(position)
    first = max(1, place - around)
    last = min(reading.per_window, place + around)
    start = window * reading.per_window + first - 1
    return {
        "at": place - first,
        "ids": reading.tokens[window, first : last + 1].tolist(),
        "values": _three(a[start : start + last - first + 1]),
        "source": reading.sources[window],
    }


def _three(values: Tensor) -> list[float]:
    return [round(v, 3) + 0.0 for v in values.tolist()]


def strongest(reading: Reading, a: Float[Tensor, " n"], n: int, around: int) -> list[dict]:
    """The n largest activations above 0, at most one from each document, largest first."""
    known: set[int] = set()
    out: list[dict] = []
    for position in a.argsort(descending=True, stable=True).tolist():
        if len(out) == n or a[position] <= 0:
            break
        document = int(reading.doc[reading.where(position)[0]])
        if document not in known:
            known.add(document)
            out.append(excerpt(reading, a, position, around))
    return out


def bands(
    reading: Reading, a: Float[Tensor, " n"], floor: float, n: int, around: int, seed: int
) -> list[dict[str, Any]]:
    """For each third of (floor, maximum]: its ends, how many positions fall in it, n drawn ones.

    Empty when nothing is above the floor. The draw comes from a generator of this seed.
    """
    high, out = float(a.max()), []
    if high <= floor:
        return []
    generator = torch.Generator().manual_seed(seed)
    cuts = [floor + (high - floor) * i / len(BANDS) for i in range(len(BANDS))] + [high]
    for name, low, top in zip(BANDS, cuts, cuts[1:]):
        at = ((a > low) & (a <= top)).nonzero().flatten()
        drawn = at[torch.randperm(len(at), generator=generator)[:n]].tolist()
        out.append({
            "band": name, "from": low, "to": top, "positions": len(at),
            "contexts": [excerpt(reading, a, p, around) for p in drawn],
        })  # fmt: skip
    return out


def histogram(a: Float[Tensor, " n"], bins: int) -> dict[str, Any]:
    """Counts of activations in equal bins from the smallest to the largest; exact zeros apart.

    A value on an inner edge belongs to the bin above it, the largest value to the last bin.
    """
    rest = a[a != 0].double()
    if not len(rest):
        return {"zero": len(a), "from": 0.0, "to": 0.0, "counts": []}
    low, high = min(float(rest.min()), 0.0), max(float(rest.max()), 0.0)
    at = ((rest - low) / (high - low) * bins).long().clamp_max(bins - 1)
    return {
        "zero": len(a) - len(rest), "from": low, "to": high,
        "counts": torch.bincount(at, minlength=bins).tolist(),
    }  # fmt: skip


def words(top: Any, low: Any, row: int) -> dict[str, list]:
    """One row of two `scan.Top`: the ids and values of its largest and of its smallest entries."""
    return {
        "top": top.ids[row].tolist(), "top values": top.values[row].tolist(),
        "low": low.ids[row].tolist(), "low values": (-low.values[row]).tolist(),
    }  # fmt: skip


def ids_of(entries: list[dict[str, Any]]) -> set[int]:
    """Every token id that the entries of a view name."""
    found: set[int] = set()
    for entry in entries:
        shown = entry["contexts"] + [c for band in entry["bands"] for c in band["contexts"]]
        for context in shown:
            found.update(context["ids"])
        for side in ("writes", "reads"):
            found.update(entry[side]["top"], entry[side].get("low", ()))
    return found
