"""A head's derivative has three routes: what is moved, who looks, and what is looked at.

With q = (x + p) W_Q + b_Q, k = (x + p) W_K + b_K, v = x W_V + b_V and s = q k^T / sqrt(d_head), a
small change dx of what the head reads changes what it writes by

    value   sum_j A_ij dx_j W_OV                          the pattern is left alone
    query   sum_j dA_ij v_j W_O,  ds_ij = dq_i k_j^T / sqrt(d_head)
    key     sum_j dA_ij v_j W_O,  ds_ij = q_i dk_j^T / sqrt(d_head)

where dA_ij = A_ij (ds_ij - sum_k A_ik ds_ik). The sum over k is there because a row of A always
sums to one. With frozen patterns only the value route is left. p is there with shortformer
positions only, the biases where the model has them. (b_K moves all scores of a query alike: no
pattern and no route sees it.)

With a norm the heads read n = x P/s, and a change of the stream reaches them as dx J, J = (P -
n^T n / d)/s. `read` gives both; with the scale held it is dx P/s: another level of "frozen".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from circuitbook.conditional.operators import held, moved
from circuitbook.layers import plus
from circuitbook.model import Transformer

ROUTES = ("value", "query", "key")


class Head(NamedTuple):
    """What one layer's heads read with, write with, and see. Weights [head, d_model, d_head].

    Biases [head, d_head], or None where there are none. b_O belongs to the layer, not to a head.
    """

    W_Q: Float[Tensor, "head d_model d_head"]
    W_K: Float[Tensor, "head d_model d_head"]
    W_V: Float[Tensor, "head d_model d_head"]
    W_O: Float[Tensor, "head d_head d_model"]
    b_Q: Float[Tensor, "head d_head"] | None = None
    b_K: Float[Tensor, "head d_head"] | None = None
    b_V: Float[Tensor, "head d_head"] | None = None


def weights(model: Transformer, layer: int, heads: Sequence[int] | None = None) -> Head:
    """The four matrices of a layer's heads, or of some of them, and their biases."""
    attn = model.blocks[layer].attn
    keep = slice(None) if heads is None else list(heads)
    biases = (None if b is None else b[keep] for b in (attn.b_Q, attn.b_K, attn.b_V))
    return Head(attn.W_Q[keep], attn.W_K[keep], attn.W_V[keep], attn.W_O[keep], *biases)


def read(
    model: Transformer,
    layer: int,
    x: Float[Tensor, "batch pos d_model"],
    dx: Float[Tensor, "batch pos d_model"],
    *,
    scale_held: bool = False,
) -> tuple[Tensor, Tensor]:
    """(n, dn): what a layer's heads read of the stream x, and what a small change dx makes of it.

    dn = dx (P - n^T n/d)/s, or dx P/s with the norm's scale held. Without a norm x and dx.
    """
    norm = model.blocks[layer].ln1
    op = held(norm, x) if scale_held else None
    return norm(x), moved(norm, x, dx) if op is None else dx @ op


class Routes(NamedTuple):
    """dx J of each head, in its three summands."""

    value: Float[Tensor, "batch head pos d_model"]
    query: Float[Tensor, "batch head pos d_model"]
    key: Float[Tensor, "batch head pos d_model"]

    def total(self) -> Float[Tensor, "batch head pos d_model"]:
        """The whole derivative."""
        return self.value + self.query + self.key

    def missed(self) -> Float[Tensor, "batch head pos d_model"]:
        """What frozen patterns leave out."""
        return self.query + self.key


def attend(
    x: Float[Tensor, "batch pos d_model"], place: Float[Tensor, "pos d_model"] | None, w: Head
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(q, k, v, A) of every head; q, k, v [batch, head, pos, d_head], A [batch, head, pos, key]."""
    located = x if place is None else x + place
    q, k, v = (
        plus(torch.einsum("bpd,hde->bhpe", y, W), None if b is None else b[:, None])
        for y, W, b in ((located, w[0], w.b_Q), (located, w[1], w.b_K), (x, w[2], w.b_V))
    )
    scores = q @ k.mT / w.W_Q.shape[-1] ** 0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
    return q, k, v, scores.masked_fill(later, -torch.inf).softmax(-1)


def heads_write(
    x: Float[Tensor, "batch pos d_model"], place: Float[Tensor, "pos d_model"] | None, w: Head
) -> Float[Tensor, "batch head pos d_model"]:
    """A (x W_V + b_V) W_O for each head: the function whose derivative `routes` takes apart."""
    _, _, v, pattern = attend(x, place, w)
    return pattern @ v @ w.W_O


def routes(
    x: Float[Tensor, "batch pos d_model"],
    dx: Tensor,
    place: Float[Tensor, "pos d_model"] | None,
    w: Head,
) -> Routes:
    """dx J = value + query + key, exactly: the derivative of every head's write along dx.

    x: what the heads read (any norm already applied: see `read`). dx: its change, shaped as x; it
    carries no position. place: added to x for queries and keys only, or None. Linear in dx.
    Raises ValueError when x and dx differ in shape.
    """
    if x.shape != dx.shape:
        raise ValueError(f"x {tuple(x.shape)} and dx {tuple(dx.shape)} must have one shape")
    q, k, v, pattern = attend(x, place, w)
    dq, dk, dv = (torch.einsum("bpd,hde->bhpe", dx, W) for W in w[:3])

    def through_pattern(ds: Tensor) -> Tensor:
        ds = ds / w.W_Q.shape[-1] ** 0.5
        moved = pattern * (ds - (pattern * ds).sum(-1, keepdim=True))
        return moved @ v @ w.W_O

    return Routes(pattern @ dv @ w.W_O, through_pattern(dq @ k.mT), through_pattern(q @ dk.mT))
