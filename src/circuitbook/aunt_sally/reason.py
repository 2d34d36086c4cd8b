"""The reason side: a later head's score at one (query, key) as a sum over pairs of sources.

Query and key are sums of the same sources: the token, its position, every write of the first
layer's heads, and the first MLP's write if there is one. So the score is a sum of bilinear terms,
one for each (query source, key source):

    s[q, j] = sum_ab  parts_a[q] W_QK parts_b[j]^T / sqrt(d_head)

Softmax does not see what is equal for all keys of a query. So a term counts minus its mean over the
keys that the query may see: by how much does it prefer *this* key? These differences also sum.

With LayerNorm the scale at each position is frozen, and a part is what it is after the norm. Biases
are sources too: "bias 0" is the first layer's b_O in the stream; "own bias" is the head's b_Q on
the query side and b_K on the key side (with what the norm's own bias makes of W_Q and W_K).
Source: Elhage et al. 2021 (chapter 05 of this course); the follow-up of July 2025 to Circuit
Tracing splits scores of large models over pairs of features in the same way ("QK attributions").
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.aunt_sally.forward import Pass
from circuitbook.composition.bilinear import CLASSES
from circuitbook.expansion.expand import norm_bias, read
from circuitbook.layers import plus
from circuitbook.model import Transformer

DIRECT = 2  # the first two sources, token and position, came through no head
POSITION, BIAS = "position", "bias"  # classes of their own where positions stand in the stream


def source_names(model: Transformer) -> list[str]:
    """ "token", "position", what the first layer wrote ("0.0" ..., "MLP 0"), then the biases."""
    c, names = model.cfg, ["token", "position"]
    if c.n_layers > 1:
        names += [f"0.{h}" for h in range(c.n_heads)]
        names += [] if c.attn_only else ["MLP 0"]
    return names + _biases(model)


def _biases(model: Transformer) -> list[str]:
    first = ["bias 0"] if model.cfg.attn_bias and model.cfg.n_layers > 1 else []
    return first + (["own bias"] if _own(model) else [])


def _own(model: Transformer) -> bool:
    return model.cfg.attn_bias or model.cfg.norm == "layernorm"


def parts(
    model: Transformer, tokens: Int[Tensor, "n pos"], seen: Pass
) -> Float[Tensor, "n source pos d_model"]:
    """What the last layer's W_Q and W_K read, source by source, in the order of `source_names`.

    All but "own bias", which is not in the stream. With a norm: after it, at the frozen scale.
    """
    x = model.W_E[tokens]
    p = model.W_pos[: x.shape[1]].to(x).expand_as(x)
    in_stream = [x, p, *seen.writes.unbind(1)]
    if "bias 0" in _biases(model):
        in_stream.append(model.blocks[0].attn.b_O.expand_as(x))
    out = [read(model.blocks[-1].ln1, part, seen.scales[-1]) for part in in_stream]
    if model.cfg.positions == "shortformer":  # joins behind the norm
        out[1] = p
    return torch.stack(out, 1)


@torch.no_grad()
def terms(
    model: Transformer, parts: Float[Tensor, "n source pos d_model"], head: int, key: int
) -> tuple[Float[Tensor, "n term term"], Float[Tensor, "n term term"]]:
    """(raw, centred) terms [query source, key source] of the last query's score at position `key`.

    "own bias", if any, is the last source. centred: minus the term's mean over all keys of that
    query. Both sum to the score: raw to s,
    centred to s minus its mean over keys.
    """
    q, k = (_projected(model, x, head, into) for x, into in ((parts[:, :, -1:], "Q"), (parts, "K")))
    q = q[:, :, 0] / model.cfg.d_head**0.5  # [n, source, d_head]
    raw = torch.einsum("nae,nbe->nab", q, k[:, :, key])
    mean = torch.einsum("nae,nbe->nab", q, k.mean(2))
    return raw, raw - mean


def _projected(model: Transformer, parts: Tensor, head: int, into: str) -> Tensor:
    """parts W_Q or parts W_K of a last-layer head, "own bias" as one more source at the end."""
    block = model.blocks[-1]
    W, b = (getattr(block.attn, f"{x}_{into}") for x in "Wb")
    out = parts @ W[head]
    if not _own(model):
        return out
    own = plus(norm_bias(block.ln1, parts[0, 0, 0]) @ W[head], None if b is None else b[head])
    return torch.cat([out, own.expand_as(out[:, :1])], 1)


def by_class(
    centred: Float[Tensor, "n source source"], model: Transformer | None = None
) -> dict[str, Float[Tensor, " n"]]:
    """Terms summed by the side that came through the first layer; the sums add to the whole.

    Give the model where positions stand in the stream or there are biases: then pairs with a bias
    on either side are "bias", direct pairs with a position "position", and "neither" is what the
    two tokens alone do.
    """
    d = DIRECT
    if model is None or not classes(model)[len(CLASSES) :]:
        blocks = (centred[:, :d, :d], centred[:, d:, :d], centred[:, :d, d:], centred[:, d:, d:])
        return {name: b.sum((1, 2)) for name, b in zip(CLASSES, blocks, strict=True)}
    n = centred.shape[1] - len(_biases(model))
    inner = centred[:, :n, :n]
    found = by_class(inner)
    direct = found["neither"]
    found["neither"] = inner[:, 0, 0]
    found[POSITION] = direct - inner[:, 0, 0]
    found[BIAS] = centred.sum((1, 2)) - inner.sum((1, 2))
    return {name: found[name] for name in classes(model)}


def classes(model: Transformer) -> tuple[str, ...]:
    """The classes of `by_class` for this model."""
    plain = model.cfg.positions == "shortformer" and not _biases(model)
    return tuple(CLASSES) if plain else (*CLASSES, POSITION, BIAS)


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
    seen: Pass | None = None,
) -> Float[Tensor, "n pos"]:
    """The term (query token, writer's write in the key), split by the place that the writer read.

    x_q W_QK (A[key, j] x_j W_OV)^T / sqrt(d_head), centred over keys; sums over j to that term of
    `terms`. pattern: of the writer. pair: (first-layer head, last-layer head). With a norm give
    `seen`, whose scales are frozen: x_q and x_j W_OV then stand behind the norms, and x_j holds all
    that stands at j before the first layer, its position included.
    """
    g, h = pair
    first, last = model.blocks[0], model.blocks[-1]
    at = [None, None] if seen is None else seen.scales
    if model.cfg.norm != "none" and seen is None:
        raise ValueError("with a norm the scales of the run must be given")
    token = model.W_E[tokens]
    x = token
    if model.cfg.positions == "standard":
        x = x + model.W_pos[: x.shape[1]].to(x)
    q = read(last.ln1, token[:, -1], None if at[-1] is None else at[-1][:, -1])
    q = q @ model.W_Q[-1, h] / model.cfg.d_head**0.5
    asked = q @ model.W_K[-1, h].mT  # what the query asks of a key's input [n, d_model]
    v = read(first.ln1, x, at[0]) + norm_bias(first.ln1, x[0, 0])
    v = plus(v @ first.attn.W_V[g], None if first.attn.b_V is None else first.attn.b_V[g])
    write = v @ first.attn.W_O[g]  # [n, pos, d_model], from each place
    one = None if at[-1] is None else torch.ones_like(at[-1])
    match = (read(last.ln1, write, one) * asked[:, None]).sum(-1)
    if at[-1] is not None:  # a key divides by the scale of the place where it stands
        pattern = pattern / at[-1]
    return (pattern[:, key] - pattern.mean(1)) * match
