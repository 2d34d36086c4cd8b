"""Bases of the stream and of the MLP: random ones, changes of weights, and what survives them.

`circuitbook.gauge` holds the change of the whole stream by an invertible matrix. Here are its
random rotations, the changes it lacks, and a harness that says which numbers move under which.
Rows, as everywhere: x becomes x G.

With LayerNorm fewer changes are free. It reads x P / s, P = I - 11^T/d and s the size of x P. So G
must turn what lies across the all-ones direction (P G P orthogonal there) and bring nothing from
along it into sight (1 G P = 0). What G adds along the ones is free: a shear x -> x + (x . v) 1 is
as unseen as a turn, and it moves whatever counts lengths of writes. See `gauge.is_free`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.cut import Cut
from circuitbook.gauge import (
    change_stream,
    free_change,
    free_turn,
    invertible,
    turn_heads,
    with_weights,
)
from circuitbook.model import Transformer


def rotation(d: int, generator: torch.Generator) -> Float[Tensor, "d d"]:
    """A random orthogonal matrix in float64, uniform over rotations and reflections (Haar).

    The signs of R's diagonal are moved into Q: without that the draw is not uniform.
    """
    q, r = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64))
    return q * r.diagonal().sign()


def free_rotation(model: Transformer, generator: torch.Generator) -> Float[Tensor, "d d"]:
    """A random rotation of the stream that this model cannot see: any, or one about the vector 1.

    The second is for models with LayerNorm; more is free there, see `gauge.free_change`.
    """
    d = model.cfg.d_model
    return rotation(d, generator) if model.cfg.norm == "none" else free_turn(d, generator)


def change_heads(model: Transformer, R: Float[Tensor, "d_head d_head"]) -> Transformer:
    """W_Q R, W_K R^-T, W_V R, R^-1 W_O in every head: q k^T and v W_O stay what they are.

    Biases of queries, keys and values live in head coordinates, so they turn too.
    """
    R = R.to(model.W_E)
    inverse = torch.linalg.inv(R)
    return turn_heads(model, lambda Q, K, V, O, R: (Q @ R, K @ inverse.mT, V @ R, inverse @ O), R)


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

    rotated: float  # stream, orthogonal G that the model cannot see
    stretched: float  # stream, `gauge.free_change`: stretched, or with LayerNorm sheared
    positions_left: float  # the same, with W_pos forgotten
    hidden: float  # the MLP's hidden coordinates, orthogonal R


@torch.no_grad()
def logit_moves(
    model: Transformer,
    tokens: Int[Tensor, "batch pos"],
    generator: torch.Generator,
    condition: float = 10.0,
) -> Moves:
    """max |logit' - logit| over the tokens for four changes of basis; a model with a plain MLP.

    One other model at a time.
    """
    clean = model(tokens)
    stretched = change_stream(model, free_change(model, generator, condition))

    def others() -> Iterator[Transformer]:
        yield change_stream(model, free_rotation(model, generator))
        yield stretched
        yield with_weights(stretched, W_pos=model.W_pos)
        yield change_hidden(model, rotation(model.cfg.d_mlp, generator))

    return Moves(*[(other(tokens) - clean).abs().max().item() for other in others()])


def stretch_words(model: Transformer) -> str:
    """How `logit_moves` changes the stream of this model, for a sentence."""
    if model.cfg.norm == "none":
        return "rotated and stretched"
    return "turned about the all-ones direction and sheared along it, which LayerNorm cannot see"


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
    With LayerNorm the orthogonal G fixes the all-ones direction and the invertible one is a
    `gauge.free_change`: such a turn, then a shear.
    """
    d, d_head = model.cfg.d_model, model.cfg.d_head
    R = invertible(d_head, d_head, condition=condition, generator=generator)
    G = free_change(model, generator, condition)
    c = torch.randn(d, generator=generator)

    def constant(scores: Tensor, hook: object) -> Tensor:
        return scores + torch.randn(*scores.shape[:-1], 1, generator=generator, dtype=scores.dtype)

    names = [f"blocks.{l}.attn.hook_attn_scores" for l in range(model.cfg.n_layers)]
    before, after = numbers(model, Cut()), {}
    after["head coordinates R"] = numbers(change_heads(model, R), Cut())
    after["stream, orthogonal G"] = numbers(
        change_stream(model, free_rotation(model, generator)), Cut()
    )
    after["stream, invertible G"] = numbers(change_stream(model, G), Cut())
    after["W_U + c 1ᵀ"] = numbers(shift_unembed(model, c), Cut())
    after["constant per query"] = numbers(model, Cut(tuple((name, constant) for name in names)))
    return {
        name: [int(relative_change(a, b) < 1e-8) for a, b in zip(before, found)]
        for name, found in after.items()
    }
