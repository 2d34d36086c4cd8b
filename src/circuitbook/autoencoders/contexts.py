"""How single-minded a unit's contexts are: does one word stand wherever it is strongest?

Take the strongest position of each window, keep the n windows where it is largest, and look at two
places there: the token itself and the one before it. The share of the most common token at the
better of the two places is the unit's *single-mindedness*: 1 if always the same word stands there,
1/n if never twice. Every unit is judged on the same number of positions, one in a window, so
neither how often it fires nor a word repeated in one document counts for it. Counting and not
weighting by strength, one huge activation cannot decide.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.autoencoders.quality import Codes

PLACES = ("previous token", "token")


class Peaks(NamedTuple):
    """The strongest position of every window for every unit: how strong, and where."""

    value: Float[Tensor, "window unit"]
    at: Int[Tensor, "window unit"]  # column of tokens


def peaks(x: Float[Tensor, "window read unit"]) -> Peaks:
    """Of activations at positions 1, 2, … of each window (the first column of tokens is BOS)."""
    value, at = x.max(1)
    return Peaks(value, at + 1)


def code_peaks(c: Codes, windows: int, latents: int, block: int = 8) -> Peaks:
    """The same for latents that are given without their zeros."""
    read = c.value.shape[0] // windows
    parts = []
    for value, latent in zip(c.value.split(block * read), c.latent.split(block * read)):
        dense = value.new_zeros(value.shape[0], latents).scatter_(1, latent, value)
        parts.append(peaks(dense.unflatten(0, (-1, read))))
    return Peaks(torch.cat([p.value for p in parts]), torch.cat([p.at for p in parts]))


class Minds(NamedTuple):
    """For every unit: its single-mindedness, at which place, for which token, and its n events."""

    share: Float[Tensor, " unit"]
    place: Int[Tensor, " unit"]  # index into PLACES
    token: Int[Tensor, " unit"]
    enough: Float[Tensor, " unit"]  # 1 if it was above 0 in all n windows, else 0
    window: Int[Tensor, "n unit"]
    at: Int[Tensor, "n unit"]


def most_common(words: Int[Tensor, "n unit"]) -> tuple[Int[Tensor, " unit"], Tensor]:
    """(how often the most common entry of each column occurs, that entry).

    Of several, the smallest.
    """
    ordered = words.sort(0).values
    counts = torch.stack([(ordered == row).sum(0) for row in ordered])
    best = counts.argmax(0)
    return counts.gather(0, best[None])[0], ordered.gather(0, best[None])[0]


def minds(p: Peaks, tokens: Int[Tensor, "window pos"], n: int) -> Minds:
    """Single-mindedness of every unit on its n strongest windows.

    Raises ValueError when there are fewer than n windows.
    """
    if p.value.shape[0] < n:
        raise ValueError(f"{n} windows are needed, {p.value.shape[0]} are there")
    value, window = p.value.topk(n, dim=0)
    at = p.at.gather(0, window)
    found = [most_common(tokens[window, at - back]) for back in (1, 0)]
    counts = torch.stack([f[0] for f in found])
    place = counts.argmax(0)
    token = torch.stack([f[1] for f in found]).gather(0, place[None])[0]
    share = counts.max(0).values / n
    return Minds(share, place, token, (value[-1] > 0).float(), window, at)


def above(a: Float[Tensor, " a"], b: Float[Tensor, " b"]) -> float:
    """P(a > b) + P(a = b) / 2 for a random unit of each kind: 0.5 if neither is ahead."""
    b = b.sort().values
    below = torch.searchsorted(b, a, right=False) + torch.searchsorted(b, a, right=True)
    return float(below.double().mean() / 2 / len(b))


def spread(values: Float[Tensor, " unit"]) -> dict[str, Any]:
    """Quartiles, mean and number of units."""
    q = torch.quantile(values.double(), torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
    return {"quartiles": q.tolist(), "mean": float(values.mean()), "n": len(values)}
