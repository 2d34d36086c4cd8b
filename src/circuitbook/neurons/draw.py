"""A draw of neurons from a seed: fixed before anybody looks, and repeatable by anybody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def drawn(seed: int, n: int, d_mlp: int) -> tuple[int, ...]:
    """The first n entries of a random order of 0 ... d_mlp - 1, from a generator of this seed."""
    order = torch.randperm(d_mlp, generator=torch.Generator().manual_seed(seed))
    return tuple(order[:n].tolist())


def beside(values: Float[Tensor, " d_mlp"], chosen: tuple[int, ...]) -> dict[str, Any]:
    """One statistic of the drawn neurons and of all: values, means, spread, and how far apart.

    off: (mean of the draw - mean of all) in standard errors that a random draw of this size has,
    sd / sqrt(n) times sqrt(1 - n / d_mlp), since it is drawn without replacement.
    """
    x = values.double()
    mine = x[list(chosen)]
    n, everyone = len(chosen), len(x)
    se = x.std() / n**0.5 * (1 - n / everyone) ** 0.5
    quartiles = torch.quantile(x, torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], dtype=x.dtype))
    return {
        "drawn": mine,
        "drawn mean": mine.mean(),
        "mean": x.mean(),
        "sd": x.std(),
        "quartiles": quartiles,
        "off": (mine.mean() - x.mean()) / se.clamp_min(1e-30),
    }


def ranked(
    share: Float[Tensor, " d_mlp"],
    documents: Int[Tensor, " d_mlp"],
    least_share: float,
    least_documents: int,
    least: int,
) -> Bool[Tensor, " d_mlp"]:
    """The neurons that fire on so large a share of tokens, in so many documents.

    Where fewer than `least` do, the `least` that fire on most tokens.
    """
    allowed = (share >= least_share) & (documents >= least_documents)
    if int(allowed.sum()) < least:
        allowed = torch.zeros_like(allowed)
        allowed[share.topk(min(least, len(share))).indices] = True
    return allowed


def extremes(
    score: Float[Tensor, " d_mlp"], allowed: Int[Tensor, " d_mlp"] | Tensor, n: int
) -> tuple[list[int], list[int]]:
    """(the n highest, the n lowest) among the allowed neurons, best first, worst first."""
    ids = allowed.nonzero().flatten()
    if len(ids) < 2 * n:
        raise ValueError(f"{len(ids)} neurons are allowed, 2 x {n} are needed")
    order = ids[score[ids].argsort(descending=True, stable=True)]
    return order[:n].tolist(), order.flip(0)[:n].tolist()


def chance_level(
    share: Float[Tensor, " n"], random: Float[Tensor, " n"], near: int = 101, q: float = 0.95
) -> Float[Tensor, " n"]:
    """The q-quantile of the scores of the `near` random directions nearest in firing rate.

    share, random: rate and score, one random direction for each neuron. At the ends of the order
    the nearest are all on one side.
    """
    near = min(near, len(share))
    order = share.argsort(stable=True)
    rows = random[order].double().unfold(0, near, 1)
    level = torch.quantile(rows, q, dim=1)
    start = (torch.arange(len(share)) - near // 2).clamp(0, len(rows) - 1)
    out = torch.empty(len(share), dtype=torch.double)
    out[order] = level[start]
    return out


def summary(statistics: Mapping[str, Tensor], chosen: tuple[int, ...]) -> dict[str, Any]:
    """`beside` for every statistic by name."""
    return {name: beside(values, chosen) for name, values in statistics.items()}


def rank_correlation(a: Float[Tensor, " n"], b: Float[Tensor, " n"]) -> float:
    """Spearman's: the correlation of the ranks; equal values are ranked in the order given."""
    ranks = torch.stack([x.argsort(stable=True).argsort(stable=True).double() for x in (a, b)])
    return torch.corrcoef(ranks)[0, 1].item()
