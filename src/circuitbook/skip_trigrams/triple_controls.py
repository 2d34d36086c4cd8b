"""Made-up tables and texts whose skip-trigrams are known: the controls of chapter 04."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from circuitbook.skip_trigrams.triple_text import Text, contrast, gain


def planted_tables(
    n: int, seed: int = 0
) -> tuple[Float[Tensor, "destination source"], Float[Tensor, "source output"]]:
    """(QK, OV) of small noise with one planted triple, 7 … 11 → 13, and a trap of two negatives.

    The trap: QK[20, 21] and OV[21, 22] are far below their rows' means; their product is the
    largest of all. Every QK row also holds a constant of its own, which softmax cannot see.
    """
    generator = torch.Generator().manual_seed(seed)
    QK, OV = 0.1 * torch.randn(2, n, n, generator=generator).double()
    QK += torch.randn(n, 1, generator=generator).double() * 20
    QK[11, 7] += 5
    OV[7, 13] += 4
    QK[20, 21] -= 9
    OV[21, 22] -= 9
    return QK, OV


MADE_UP = {"source": 2, "destination": 1, "output": 3, "control": 4}


def made_up_text(rule: str, *, docs: int = 60, length: int = 400, seed: int = 0) -> Text:
    """Random documents in which we know whether the source matters (reach 8, tokens of MADE_UP).

    "rule": after source … destination the output follows four times in five, else hardly ever.
    "topic": half of the documents are full of the source, and there the output follows the
    destination half of the time, wherever the source stands. The source itself changes nothing.
    Raises ValueError for another rule.
    """
    if rule not in ("rule", "topic"):
        raise ValueError(f"rule must be 'rule' or 'topic', got {rule!r}")
    rng, reach = np.random.default_rng(seed), 8
    s, d, o, c = (MADE_UP[k] for k in ("source", "destination", "output", "control"))
    written = []
    for i in range(docs):
        x = rng.integers(10, 50, size=length)
        likes = rule == "rule" or i % 2 == 0
        x[rng.random(length) < (0.05 if likes else 0.005)] = s
        x[rng.random(length) < 0.05] = c
        x[rng.random(length) < 0.1] = d
        at = np.flatnonzero(x[:-1] == d)
        before = np.array([(x[max(0, t - reach) : t] == s).any() for t in at])
        chance = np.where(before, 0.8, 0.02) if rule == "rule" else 0.5 if likes else 0.02
        x[at[rng.random(len(at)) < chance] + 1] = o
        written.append(x)
    return Text(written, 50, reach)


def naive(text: Text, source: int, destination: int, output: int) -> float:
    """P(output | destination, source before) - P(output | destination, no source before): a trap.

    Over all documents at once. It cannot tell a source that matters from a topic.
    """
    at = text.places(destination)
    at = at[text.follows[at] >= 0]
    before = np.isin(at, text.after(source))
    right = text.follows[at] == output
    return float(right[before].mean() - right[~before].mean())


def made_up_controls() -> dict[str, dict[str, float]]:
    """Both comparisons on both made-up texts; the one inside documents with its interval."""
    s, d, o, c = (MADE_UP[k] for k in ("source", "destination", "output", "control"))
    out = {}
    for rule in ("rule", "topic"):
        text = made_up_text(rule)
        found = gain(contrast(text, [s], [[c]], [d], np.array([[o]])))
        names = ("inside", "low", "high")
        out[rule] = {"naive": naive(text, s, d, o), **dict(zip(names, found, strict=True))}
    return out
