"""Losses of plans that can be written down: what a toy should do at best, without training one.

A feature is on with probability p, then uniform on (0, 1): mean p/2, variance p/3 - p²/4. Losses
are summed over features, weighted by importance, averaged over inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def variance(p: float) -> float:
    """E x² - (E x)² = p/3 - p²/4: what a feature costs when it is answered by its mean."""
    return p / 3 - p * p / 4


def dropped(importance: Sequence[float], p: float) -> float:
    """The loss of features that are not stored, each answered by its mean p/2."""
    return sum(importance) * variance(p)


def opposite_pair(importance: Sequence[float], p: float) -> float:
    """p² (I_1 + I_2) / 6: two features in one number, W = [1, -1], b = 0.

    One on: perfect. Both on: the larger is answered too low by the smaller, and the smaller by
    zero; both err by the smaller one, and E min² = 1/6.
    """
    return p * p * sum(importance) / 6


def border(r: float) -> float:
    """p* = 4r/(2 + 5r): below it two in one number beat storing the first and giving up the second.

    r = I_2/I_1. From r (p/3 - p²/4) = p² (1 + r)/6, the bias of the dropped feature at its mean.
    """
    return 4 * r / (2 + 5 * r)


def series_floors(importance: Sequence[float]) -> dict[str, float]:
    """The closed forms beside the series' five-in-two runs, by name of the run."""
    return {
        "S0.0": dropped(importance[2:], 1.0),
        "S0.7": opposite_pair(importance[:4], 0.3) + dropped(importance[4:], 0.3),
        "linear_S0.9": dropped(importance[2:], 0.1),
    }


def quadrature(points: int = 24) -> tuple[Float[Tensor, "2 inputs"], Float[Tensor, "3 inputs"]]:
    """(x, rows): inputs of two features, and weights of the three cases none, one, both on.

    Gauss-Legendre points for one feature on, a product of midpoints for both (the loss has kinks
    there). Each row of weights sums to one: `rows.T @ (P(none), P(one), P(both))` weighs a batch.
    """
    nodes, weights = _gauss(points)
    zero = torch.zeros(1, points, dtype=torch.float64)
    middle = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    both = torch.stack([g.flatten() for g in torch.meshgrid(middle, middle, indexing="ij")])
    alone = torch.cat([torch.cat([nodes[None], zero]), torch.cat([zero, nodes[None]])], 1)
    x = torch.cat([torch.zeros(2, 1, dtype=torch.float64), alone, both], 1)
    rows = torch.zeros(3, x.shape[1], dtype=torch.float64)
    rows[0, 0] = 1
    rows[1, 1 : 1 + 2 * points] = torch.cat([weights, weights]) / 2
    rows[2, 1 + 2 * points :] = 1 / points**2
    return x, rows


def _gauss(points: int) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes and weights on (0, 1), from the eigenvalues of Jacobi's matrix."""
    k = torch.arange(1, points, dtype=torch.float64)
    beta = k / (4 * k * k - 1).sqrt()
    values, vectors = torch.linalg.eigh(torch.diag(beta, 1) + torch.diag(beta, -1))
    return (values + 1) / 2, vectors[0].square()
