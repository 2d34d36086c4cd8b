"""A head's derivative has three routes: what is moved, who looks, and what is looked at.

With q = (x + p) W_Q, k = (x + p) W_K, v = x W_V and s = q k^T / sqrt(d_head), a small change dx
of what the head reads changes what it writes by

    value   sum_j A_ij dx_j W_OV                          the pattern is left alone
    query   sum_j dA_ij v_j W_O,  ds_ij = dq_i k_j^T / sqrt(d_head)
    key     sum_j dA_ij v_j W_O,  ds_ij = q_i dk_j^T / sqrt(d_head)

where dA_ij = A_ij (ds_ij - sum_k A_ik ds_ik). The sum over k is there because a row of A always
sums to one. With frozen patterns only the value route is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from circuitbook.model import Transformer

ROUTES = ("value", "query", "key")


class Head(NamedTuple):
    """What one layer's heads read with, write with, and see. Weights [head, d_model, d_head]."""

    W_Q: Float[Tensor, "head d_model d_head"]
    W_K: Float[Tensor, "head d_model d_head"]
    W_V: Float[Tensor, "head d_model d_head"]
    W_O: Float[Tensor, "head d_head d_model"]


def weights(model: Transformer, layer: int, heads: Sequence[int] | None = None) -> Head:
    """The four matrices of a layer's heads, or of some of them."""
    if model.cfg.attn_bias or model.cfg.norm != "none":
        raise ValueError("routes are written for heads without bias that read the stream itself")
    attn = model.blocks[layer].attn
    keep = slice(None) if heads is None else list(heads)
    return Head(attn.W_Q[keep], attn.W_K[keep], attn.W_V[keep], attn.W_O[keep])


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
        torch.einsum("bpd,hde->bhpe", y, W)
        for y, W in ((located, w[0]), (located, w[1]), (x, w[2]))
    )
    scores = q @ k.mT / w.W_Q.shape[-1] ** 0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
    return q, k, v, scores.masked_fill(later, -torch.inf).softmax(-1)


def heads_write(
    x: Float[Tensor, "batch pos d_model"], place: Float[Tensor, "pos d_model"] | None, w: Head
) -> Float[Tensor, "batch head pos d_model"]:
    """A x W_V W_O for each head: the function whose derivative `routes` takes apart."""
    _, _, v, pattern = attend(x, place, w)
    return pattern @ v @ w.W_O


def routes(
    x: Float[Tensor, "batch pos d_model"],
    dx: Tensor,
    place: Float[Tensor, "pos d_model"] | None,
    w: Head,
) -> Routes:
    """dx J = value + query + key, exactly: the derivative of every head's write along dx.

    x: what the heads read (any norm already applied). dx: the direction, shaped as x; it carries
    no position. place: added to x for queries and keys only, or None. Linear in dx.
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
