"""One step of training a dictionary: explicit gradients over the few latents that are on.

With |.| over columns and B rows in a batch the loss is L = (1/B) sum_b |y_b - out_b|^2
+ (lambda/B) sum_bj f_bj |D_j|. Its gradient needs, for each latent that is on, only

    dL/dout  = (2/B) (out - y)                               [B, d_out]
    dL/df_bj = dL/dout_b . D_j + (lambda/B) |D_j|            where f_bj > 0, else 0
    dL/dD_j  = sum_b f_bj dL/dout_b + (lambda/B) sum_b f_bj D_j/|D_j|
    dL/dE_j  = sum_b dL/df_bj x_b,     dL/db_j = sum_b dL/df_bj

where D_j is the latent's row of W_dec and E_j its column of W_enc. All sums run over the pairs
(row, latent) that are on: a few dozen of thousands. So after the encoder's product a step costs
little, and the encoder's product is done in bfloat16.

`torch.nn.functional.embedding_bag` is the weighted sum over such pairs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

DENSE = 0.04  # a larger share of pairs on: plain matrix products are faster


class Grads(NamedTuple):
    """Gradients of E [latents, d_in], b_enc, D [latents, d_out], b_dec; and what was seen."""

    E: Tensor
    b_enc: Tensor
    D: Tensor
    b_dec: Tensor
    error: Tensor  # out - y, [B, d_out]
    fired: Tensor  # how many rows each latent was on in, [latents]


def pre(x: Float[Tensor, "b d_in"], E: Tensor, b_enc: Tensor) -> Float[Tensor, "b latents"]:
    """x E^T + b, the product in bfloat16."""
    return (x.bfloat16() @ E.bfloat16().T).float().add_(b_enc)


class On(NamedTuple):
    """The pairs that are on, ordered by row: row r holds places first[r] .. first[r+1] - 1."""

    row: Int[Tensor, " pair"]
    latent: Int[Tensor, " pair"]
    value: Float[Tensor, " pair"]
    first: Int[Tensor, " b"]


def on(p: Float[Tensor, "b latents"], k: int) -> On:
    """Which pairs are on: the k largest of each row (some may be 0), or with k = 0 all above 0."""
    if k:
        value, latent = p.topk(k, dim=1, sorted=False)
        row = torch.arange(p.shape[0]).repeat_interleave(k)
        return On(row, latent.flatten(), value.relu_().flatten(), torch.arange(p.shape[0]) * k)
    row, latent = (p > 0).nonzero(as_tuple=True)
    first = torch.searchsorted(row, torch.arange(p.shape[0]))
    return On(row, latent, p[row, latent], first)


def by_latent(pairs: On, weight: Tensor, rows: Tensor, latents: int) -> Tensor:
    """out_j = sum over the pairs of latent j of weight times the row's vector, [latents, d]."""
    latent, order = torch.sort(pairs.latent, stable=True)
    first = torch.searchsorted(latent, torch.arange(latents))
    return F.embedding_bag(
        pairs.row[order], rows, first, per_sample_weights=weight[order], mode="sum"
    )


def gradients(
    params: dict[str, Tensor],
    x: Float[Tensor, "b d_in"],
    y: Float[Tensor, "b d_out"],
    k: int,
    penalty: float,
    p: Float[Tensor, "b latents"] | None = None,
) -> Grads:
    """The gradient of L at the batch (x, y); `p` holds the pre-activations where they are known."""
    E, D = params["E"], params["D"]
    n, latents = x.shape[0], D.shape[0]
    p = pre(x, E, params["b_enc"]) if p is None else p
    if not k and (p > 0).float().mean() > DENSE:
        return _dense(params, x, y, p.relu_(), penalty)
    pairs = on(p, k)
    value = pairs.value.requires_grad_()
    with torch.enable_grad():
        out = F.embedding_bag(pairs.latent, D, pairs.first, per_sample_weights=value, mode="sum")
    error = out.detach() + params["b_dec"] - y
    d_out = error * (2 / n)
    (d_value,) = torch.autograd.grad(out, value, d_out)  # d_out_b . D_j for each pair
    value = value.detach()
    norm = D.norm(dim=1)
    d_value = (d_value + (penalty / n) * norm[pairs.latent]) * (value > 0)
    total = torch.zeros(latents).index_add_(0, pairs.latent, value)
    d_dec = by_latent(pairs, value, d_out, latents)
    if penalty:
        d_dec.add_(D * (total * penalty / n / norm.clamp_min(1e-12))[:, None])
    return Grads(
        by_latent(pairs, d_value, x, latents),
        torch.zeros(latents).index_add_(0, pairs.latent, d_value),
        d_dec,
        d_out.sum(0),
        error,
        torch.bincount(pairs.latent[value > 0], minlength=latents),
    )


def _dense(params: dict[str, Tensor], x: Tensor, y: Tensor, f: Tensor, penalty: float) -> Grads:
    """The same gradient by matrix products over all latents, in bfloat16; f is used up."""
    n, D, half = x.shape[0], params["D"], torch.bfloat16
    norm, fired, total = D.norm(dim=1), (f > 0).sum(0), f.sum(0)
    fh, dh = f.to(half), D.to(half)
    error = (fh @ dh).float() + params["b_dec"] - y
    d_out = error * (2 / n)
    d_f = (d_out.to(half) @ dh.T).float().add_((penalty / n) * norm).mul_(f > 0)
    d_dec = (fh.T @ d_out.to(half)).float()
    d_dec.add_(D * (total * penalty / n / norm.clamp_min(1e-12))[:, None])
    return Grads(
        (d_f.to(half).T @ x.to(half)).float(), d_f.sum(0), d_dec, d_out.sum(0), error, fired
    )


def without_radial(gradient: Tensor, D: Tensor) -> Tensor:
    """The gradient minus its part along each (unit) row: rows turn and do not grow."""
    return gradient - (gradient * D).sum(1, keepdim=True) * D
