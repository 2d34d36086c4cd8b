"""What directions in a small space can be read for: their share of a dimension, their angles.

W's columns are directions, W [..., m, n]. Ŵ_i is column i at length one. All in the dtype of W.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Columns = Float[Tensor, "*batch m n"]
PerFeature = Float[Tensor, "*batch n"]


def unit(W: Columns) -> Columns:
    """Columns at length one; a column shorter than 1e-9 becomes zero."""
    size = W.norm(dim=-2, keepdim=True)
    return torch.where(size > 1e-9, W / size.clamp(min=1e-9), torch.zeros_like(W))


def overlaps(W: Columns) -> PerFeature:
    """Σ_j (Ŵ_i·W_j)²: all that is written along the direction of feature i, its own part too."""
    direction = unit(W)
    return (direction * (W @ W.mT @ direction)).sum(-2)  # Ŵᵀ (WWᵀ) Ŵ: no table of all pairs


def dimensionality(W: Columns) -> PerFeature:
    """D_i = |W_i|² / Σ_j (Ŵ_i·W_j)²: the share of a dimension that feature i has; at most one.

    An orthogonal feature has one, a pair of opposite ones a half each, a pentagon two fifths each.
    A feature without length has none. Elhage et al. 2022.
    """
    size = W.square().sum(-2)
    return torch.where(size > 1e-18, size / overlaps(W).clamp(min=1e-18), torch.zeros_like(size))


def leverage(W: Columns) -> PerFeature:
    """ℓ_i = W_iᵀ (WWᵀ)⁺ W_i: the squared length of feature i's row in W's row space.

    The leverages sum to the rank of W. D_i <= ℓ_i, by the inequality of Cauchy and Schwarz: with
    M = WWᵀ, |W_i|⁴ = (W_iᵀ M^½ M^-½ W_i)² <= (W_iᵀ M W_i)(W_iᵀ M⁺ W_i).
    """
    return (torch.linalg.pinv(W) * W.mT).sum(-1)


def mixed_dimensionality(W: Columns) -> PerFeature:
    """|W_i|² / Σ_j (Ŵ_i·Ŵ_j)², a mixture of two formulas: no share of anything.

    The numerator knows lengths, the denominator does not. Doubling W multiplies it by four.
    """
    return W.square().sum(-2) / (unit(W).mT @ unit(W)).square().sum(-1).clamp(min=1e-18)


def represented(W: Columns, least: float = 0.5) -> Bool[Tensor, "*batch n"]:
    """|W_i| > least: the series' criterion of a feature that is stored."""
    return W.norm(dim=-2) > least


def gaps(W: Float[Tensor, "2 n"]) -> Float[Tensor, " n"]:
    """Angles in degrees between neighbours around the circle, in order; they sum to 360."""
    angle = torch.atan2(W[1], W[0]).rad2deg().sort().values
    return torch.cat([angle.diff(), 360 + angle[:1] - angle[-1:]])


def is_pentagon(W: Float[Tensor, "2 5"], allowed: float = 3.0) -> bool:
    """All five features stored, and every gap within `allowed` degrees of 72."""
    return bool(represented(W).all()) and bool(((gaps(W) - 72).abs() <= allowed).all())


def features_per_unit(W: Columns, least: float = 0.3) -> Tensor:
    """How many features move each hidden unit by more than `least` [..., m]."""
    return (W.abs() > least).sum(-1)


def best_cosine(W: Float[Tensor, "m n"], axes: Float[Tensor, "m k"]) -> Float[Tensor, " n"]:
    """Each feature's largest |cosine| with any of k axes (columns)."""
    return (unit(W).mT @ unit(axes)).abs().amax(-1)


def hidden_axes(W: Float[Tensor, "m n"], p: float) -> Float[Tensor, "m m"]:
    """The principal axes of h = Wx, largest variance first; features independent, so Cov h = v WWᵀ.

    v = p/3 - p²/4 is the variance of one feature.
    """
    return torch.linalg.eigh((p / 3 - p * p / 4) * W @ W.mT).eigenvectors.flip(-1)
