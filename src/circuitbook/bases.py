"""Bases of the stream and of the MLP: random ones, changes of weights, and what survives them.

`circuitbook.gauge` holds the change of the whole stream by an invertible matrix. Here are its
random rotations, the changes it lacks, and a harness that says which numbers move under which.
Rows, as everywhere: x becomes x G.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.cut import Cut
from circuitbook.gauge import change_stream, invertible, with_weights
from circuitbook.model import Transformer


def rotation(d: int, generator: torch.Generator) -> Float[Tensor, "d d"]:
    """A random orthogonal matrix in float64, uniform over rotations and reflections (Haar).

    The signs of R's diagonal are moved into Q: without that the draw is not uniform.
    """
    q, r = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64))
    return q * r.diagonal().sign()


def change_heads(model: Transformer, R: Float[Tensor, "d_head d_head"]) -> Transformer:
    """W_Q R, W_K R^-T, W_V R, R^-1 W_O in every head: q k^T and v W_O stay what they are.

    Raises ValueError for a model with attention biases, which would have to turn too.
    """
    if model.cfg.attn_bias:
        raise ValueError(
            "attention biases live in head coordinates: this change leaves them behind"
        )
    R = R.to(model.W_E)
    inverse = torch.linalg.inv(R)
    return with_weights(
        model,
        W_Q=model.W_Q @ R,
        W_K=model.W_K @ inverse.mT,
        W_V=model.W_V @ R,
        W_O=inverse @ model.W_O,
    )


def shift_unembed(model: Transformer, c: Float[Tensor, " d_model"]) -> Transformer:
    """W_U + c 1^T: every logit of a position moves by x . c, no probability does."""
    return with_weights(model, W_U=model.W_U + c.to(model.W_U)[:, None])


@torch.no_grad()
def change_hidden(model: Transformer, R: Float[Tensor, "d_mlp d_mlp"]) -> Transformer:
    """W_in R, b_in R, R^-1 W_out in every MLP: not the same function, unless phi is linear.

    A pointwise function keeps its meaning only under permutations (ReLU: and positive scalings).
    Raises ValueError for a model without a plain two-matrix MLP.
    """
    if model.cfg.attn_only or model.cfg.gated or model.cfg.n_experts:
        raise ValueError("this change needs a plain MLP: W_in, a pointwise function, W_out")
    new = copy.deepcopy(model)
    R = R.to(model.W_E.device, torch.float64)
    for block in new.blocks:
        block.mlp.W_in.copy_(block.mlp.W_in.double() @ R)
        block.mlp.W_out.copy_(torch.linalg.inv(R) @ block.mlp.W_out.double())
        if block.mlp.b_in is not None:
            block.mlp.b_in.copy_(block.mlp.b_in.double() @ R)
    return new


def relative_change(a: Tensor, b: Tensor) -> float:
    """max |a - b| / max |a|: about 1e-15 for equal numbers in float64, of order 1 for others."""
    return ((a - b).abs().max() / a.abs().max()).item()


class Moves(NamedTuple):
    """Largest change of any logit under each change of the weights."""

    rotated: float  # stream, orthogonal G
    stretched: float  # stream, invertible G
    positions_left: float  # the same, with W_pos forgotten
    hidden: float  # the MLP's hidden coordinates, orthogonal R


@torch.no_grad()
def logit_moves(
    model: Transformer,
    tokens: Int[Tensor, "batch pos"],
    generator: torch.Generator,
    condition: float = 10.0,
) -> Moves:
    """max |logit' - logit| over the tokens for four changes of basis; a model with a plain MLP."""
    d, clean = model.cfg.d_model, model(tokens)
    stretched = change_stream(model, invertible(d, d, condition=condition, generator=generator))
    others = (
        change_stream(model, rotation(d, generator)),
        stretched,
        with_weights(stretched, W_pos=model.W_pos),
        change_hidden(model, rotation(model.cfg.d_mlp, generator)),
    )
    return Moves(*[(other(tokens) - clean).abs().max().item() for other in others])


def survival(
    model: Transformer,
    numbers: Callable[[Transformer, Cut], tuple[Tensor, ...]],
    generator: torch.Generator,
    condition: float = 10.0,
) -> dict[str, list[int]]:
    """For five changes that keep all probabilities: 1 where a number survives, 0 where it moves.

    numbers(model, cut) gives the numbers in question, in float64. Changes: head coordinates, stream
    (orthogonal, invertible), W_U + c 1^T, and a constant for each query added to all its scores. A
    number survives when it moves by less than 1e-8 of its largest entry.
    """
    d, d_head = model.cfg.d_model, model.cfg.d_head
    R = invertible(d_head, d_head, condition=condition, generator=generator)
    G = invertible(d, d, condition=condition, generator=generator)
    c = torch.randn(d, generator=generator)

    def constant(scores: Tensor, hook: object) -> Tensor:
        return scores + torch.randn(*scores.shape[:-1], 1, generator=generator, dtype=scores.dtype)

    names = [f"blocks.{l}.attn.hook_attn_scores" for l in range(model.cfg.n_layers)]
    before, after = numbers(model, Cut()), {}
    after["head coordinates R"] = numbers(change_heads(model, R), Cut())
    after["stream, orthogonal G"] = numbers(change_stream(model, rotation(d, generator)), Cut())
    after["stream, invertible G"] = numbers(change_stream(model, G), Cut())
    after["W_U + c 1ᵀ"] = numbers(shift_unembed(model, c), Cut())
    after["constant per query"] = numbers(model, Cut(tuple((name, constant) for name in names)))
    return {
        name: [int(relative_change(a, b) < 1e-8) for a, b in zip(before, found)]
        for name, found in after.items()
    }
