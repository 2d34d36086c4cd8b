"""The reason side: a later head's score at one (query, key) as a sum over pairs of sources.

Query and key are sums of the same sources: the token, its position, every write of the first
layer's heads, and the first MLP's write if there is one. So the score is a sum of bilinear terms,
one for each (query source, key source):

    s[q, j] = sum_ab  parts_a[q] W_QK parts_b[j]^T / sqrt(d_head)

Softmax does not see what is equal for all keys of a query. So a term counts minus its mean over the
keys that the query may see: by how much does it prefer *this* key? These differences also sum.
Source: Elhage et al. 2021 (chapter 05 of this course); the follow-up of July 2025 to Circuit
Tracing splits scores of large models over pairs of features in the same way ("QK attributions").
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.aunt_sally.forward import Pass
from circuitbook.composition.bilinear import CLASSES, DIRECT
from circuitbook.model import Transformer


def source_names(model: Transformer) -> list[str]:
    """ "token", "position", then what the first layer wrote: "0.0" ..., "MLP 0"."""
    if model.cfg.n_layers == 1:
        return ["token", "position"]
    mlp = [] if model.cfg.attn_only else ["MLP 0"]
    return ["token", "position", *(f"0.{h}" for h in range(model.cfg.n_heads)), *mlp]


def parts(
    model: Transformer, tokens: Int[Tensor, "n pos"], seen: Pass
) -> Float[Tensor, "n source pos d_model"]:
    """What the last layer's queries and keys are sums of, in the order of `source_names`."""
    x = model.W_E[tokens]
    p = model.W_pos[: x.shape[1]].to(x).expand_as(x)
    return torch.cat([torch.stack([x, p], 1), seen.writes], 1)


@torch.no_grad()
def terms(
    model: Transformer, parts: Float[Tensor, "n source pos d_model"], head: int, key: int
) -> tuple[Float[Tensor, "n source source"], Float[Tensor, "n source source"]]:
    """(raw, centred) terms [query source, key source] of the last query's score at position `key`.

    centred: minus the term's mean over all keys of that query. Both sum to the score: raw to s,
    centred to s minus its mean over keys.
    """
    W_Q, W_K = model.W_Q[-1, head], model.W_K[-1, head]
    q = parts[:, :, -1] @ W_Q / model.cfg.d_head**0.5  # [n, source, d_head]
    k = parts @ W_K  # [n, source, pos, d_head]
    raw = torch.einsum("nae,nbe->nab", q, k[:, :, key])
    mean = torch.einsum("nae,nbe->nab", q, k.mean(2))
    return raw, raw - mean


def by_class(centred: Float[Tensor, "n source source"]) -> dict[str, Float[Tensor, " n"]]:
    """Terms summed by the side that came through the first layer; the four sum to the whole."""
    d = DIRECT
    blocks = (centred[:, :d, :d], centred[:, d:, :d], centred[:, :d, d:], centred[:, d:, d:])
    return {name: b.sum((1, 2)) for name, b in zip(CLASSES, blocks, strict=True)}


def through_key(centred: Float[Tensor, "n source source"], writer: int) -> Float[Tensor, " n"]:
    """All terms whose key side is the write of first-layer head `writer`."""
    return centred[:, :, DIRECT + writer].sum(1)


@torch.no_grad()
def key_term_by_token(
    model: Transformer,
    tokens: Int[Tensor, "n pos"],
    pattern: Float[Tensor, "n pos key"],
    pair: tuple[int, int],
    key: int,
) -> Float[Tensor, "n pos"]:
    """The term (query token, writer's write in the key), split by the token that the writer read.

    x_q W_QK (A[key, j] x_j W_OV)^T / sqrt(d_head), centred over keys; sums over j to that term of
    `terms`. pattern: of the writer. pair: (first-layer head, last-layer head).
    """
    g, h = pair
    x = model.W_E[tokens]
    q = x[:, -1] @ model.W_Q[-1, h] / model.cfg.d_head**0.5
    asked = q @ model.W_K[-1, h].mT @ model.W_O[0, g].mT @ model.W_V[0, g].mT  # [n, d_model]
    match = torch.einsum("nd,npd->np", asked, x)
    return (pattern[:, key] - pattern.mean(1)) * match
