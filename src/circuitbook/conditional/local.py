"""y_i depends on x_i alone: a mixture moves nothing between positions, until capacity is limited.

Attention is the only part of a block through which one position can reach another. A router sorts
positions onto experts, and as long as every expert takes all that come, nobody notices the others.
With a capacity, an expert that is full drops what comes later: then what happens here depends on
who stood before in the batch. That is a property of the system, no longer of the function x -> y.
Source: Fedus et al. 2021 (capacity factor, dropped tokens).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from circuitbook.conditional.gate_cuts import experts, mixed, own_weights
from circuitbook.mlp import MoE


def with_capacity(pi: Float[Tensor, "pos expert"], capacity: int) -> Float[Tensor, "pos expert"]:
    """The same weights, each expert serving its first `capacity` positions only; the rest get 0."""
    if capacity < 1:
        raise ValueError(f"an expert must serve at least one position, got capacity={capacity}")
    asked = pi > 0
    return pi.masked_fill(asked.cumsum(0) > capacity, 0.0)


def even_capacity(positions: int, n_experts: int, k: int, factor: float = 1.0) -> int:
    """ceil(factor * positions * k / n_experts): what an even load would need, times a factor."""
    return math.ceil(factor * positions * k / n_experts)


@torch.no_grad()
def reached(
    mlp: nn.Module,
    x: Float[Tensor, "pos d_model"],
    other: Float[Tensor, "pos d_model"],
    factor: float | None = None,
) -> Bool[Tensor, " half"]:
    """True at positions of the second half whose write changes when only the first half changes.

    The first half of x is exchanged for that of `other`. factor: capacity factor, None for no
    limit; blocks without a router have none. Compared bit for bit.
    """
    half = len(x) // 2
    changed = torch.cat([other[:half], x[half:]])

    def write(v: Tensor) -> Tensor:
        if not isinstance(mlp, MoE):
            return mlp(v[None])[0, half:]
        pi = own_weights(mlp, v)
        if factor is not None:
            pi = with_capacity(pi, even_capacity(len(v), pi.shape[1], mlp.top_k, factor))
        return mixed(pi, experts(mlp, v))[half:]

    return (write(x) != write(changed)).any(-1)
