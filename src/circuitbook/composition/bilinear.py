"""A later head's score as a sum of bilinear terms: one for each (query source, key source).

In an attention-only model without norm the stream that a second-layer head reads is token + writes
of the first layer's heads, and queries and keys add the position. Both sides of a score are sums of
the same sources, so the score is a sum over pairs of sources. Nothing is approximated.

With standard positions the position is in the stream. With biases there is one source more, the
last: b_O of the first layer, and with it b_Q on the query side and b_K on the key side; so 11 x 11
terms. With LayerNorm a source is read as (x P / s) W, P = I - 11^T/d, with the scale s frozen at
its value in this run: one number for each position, whatever the head.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.expansion import expand
from circuitbook.model import Transformer

CLASSES = ("neither", "query side", "key side", "both")
DIRECT = 2  # the first two sources, token and position, came through no head


def source_names(model: Transformer) -> list[str]:
    """ "token", "position", the first layer's heads, "bias" if any: the order of `Window.parts`."""
    heads = [f"0.{h}" for h in range(model.cfg.n_heads)]
    return ["token", "position", *heads, *(["bias"] if model.cfg.attn_bias else [])]


class Window(NamedTuple):
    """One window, taken apart before the second layer (and before its norm)."""

    parts: Float[Tensor, "source pos d_model"]  # token, position, first-layer heads' writes, bias
    patterns: Float[Tensor, "head pos key"]  # the first layer's
    scale: Float[Tensor, "pos 1"] | None = None  # of the second layer's norm, if there is one


@torch.no_grad()
def take_apart(model: Transformer, tokens: Int[Tensor, " pos"]) -> Window:
    """parts.sum(0) is what a second-layer query or key reads, before its norm.

    A value reads the same, without the position if positions are for queries and keys only.
    Raises ValueError unless the model is attention-only with two layers, and its norm, if it has
    one, is folded as `zoo.load` does, with positions in the stream; value biases too, or a head's
    write would lack b_V W_O.
    """
    c = model.cfg
    plain = c.norm == "none" and c.positions == "shortformer" and not c.attn_bias
    folded = c.norm == "layernorm_pre" and c.positions == "standard" and c.attn_bias
    if c.n_layers != 2 or not c.attn_only or not (plain or folded):
        raise ValueError(
            f"needs two attention-only layers without norm and biases, or folded ones, got {c}"
        )
    first, second = model.blocks
    if any(b.attn.b_V is not None and bool(b.attn.b_V.any()) for b in model.blocks):
        raise ValueError("fold the value biases first: fold.fold_value_biases(model)")
    x, p = model.W_E[tokens], model.W_pos[: len(tokens)].to(model.W_E)
    q, k = (side(first.ln1(x + p), first.attn, name) for name in "QK")
    A = causal(q @ k.mT / c.d_head**0.5)
    v = torch.einsum("pd,hde->hpe", x if plain else first.ln1(x + p), first.attn.W_V)
    writes = A @ v @ first.attn.W_O
    if plain:
        return Window(torch.cat([torch.stack([x, p]), writes]), A)
    parts = torch.cat([torch.stack([x, p]), writes, first.attn.b_O.expand_as(x)[None]])
    stream = parts.sum(0)
    centred = stream - stream.mean(-1, keepdim=True)
    scale = (centred.square().mean(-1, keepdim=True) + second.ln1.eps).sqrt()
    return Window(parts, A, scale)


def side(
    x: Float[Tensor, "pos d_model"], attn: torch.nn.Module, name: str
) -> Float[Tensor, "head pos d_head"]:
    """x W + b for every head; `name` is "Q", "K" or "V"."""
    out = torch.einsum("pd,hde->hpe", x, getattr(attn, f"W_{name}"))
    b = getattr(attn, f"b_{name}")
    return out if b is None else out + b[:, None]


def reads(model: Transformer, window: Window) -> Float[Tensor, "source pos d_model"]:
    """Each source as the second layer reads it: (x P / s) with a norm, s frozen; else as it is."""
    return expand.read(model.blocks[1].ln1, window.parts, window.scale)


def sides(
    model: Transformer, window: Window, head: int
) -> tuple[Float[Tensor, "source pos d_head"], Float[Tensor, "source pos d_head"]]:
    """(queries, keys) of a second-layer head by source; b_Q and b_K belong to the source "bias"."""
    attn, x = model.blocks[1].attn, reads(model, window)
    q, k = x @ attn.W_Q[head], x @ attn.W_K[head]
    if attn.b_Q is not None:
        q[-1] += attn.b_Q[head]
        k[-1] += attn.b_K[head]
    return q, k


def causal(scores: Float[Tensor, "*lead pos key"]) -> Float[Tensor, "*lead pos key"]:
    """Each row's softmax over the keys that it may see."""
    ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(ahead, -torch.inf).softmax(-1)


def term(
    model: Transformer, window: Window, head: int, query_source: int, key_source: int
) -> Float[Tensor, "pos key"]:
    """a W_QK b^T / sqrt(d_head): one term of a second-layer head's score, before the mask."""
    last, out = len(window.parts) - 1, []
    for source, name in ((query_source, "Q"), (key_source, "K")):
        attn, part = model.blocks[1].attn, window.parts[source]
        x = expand.read(model.blocks[1].ln1, part, window.scale)
        out.append(x @ getattr(attn, f"W_{name}")[head])
        if window.scale is not None and source == last:
            out[-1] += getattr(attn, f"b_{name}")[head]
    return out[0] @ out[1].mT / model.cfg.d_head**0.5


@torch.no_grad()
def sum_error(
    model: Transformer, tokens: Int[Tensor, "one pos"], *, position: bool = True
) -> float:
    """max |sum of all terms - score| / max |score| over heads; the model's own q and k.

    position=False leaves the position out of the sources: the mutant. Scores are before the mask.
    """
    names = ["blocks.1.attn.hook_q", "blocks.1.attn.hook_k"]
    cache = model.run_with_cache(tokens, names_filter=names)[1]
    window, worst = take_apart(model, tokens[0]), 0.0
    sources = [i for i in range(len(window.parts)) if position or i != 1]
    for h in range(model.cfg.n_heads):
        q, k = (cache[name][0, :, h] for name in names)
        want = q @ k.mT / model.cfg.d_head**0.5
        got = sum(term(model, window, h, a, b) for a in sources for b in sources)
        worst = max(worst, ((got - want).abs().max() / want.abs().max()).item())
    return worst


def centre(table: Float[Tensor, "*lead pos key"]) -> Float[Tensor, "*lead pos key"]:
    """Each row minus its mean over the keys 0 ... t that it may see; zero elsewhere."""
    seen = torch.arange(1, table.shape[-1] + 1, device=table.device, dtype=table.dtype)[:, None]
    table = table.tril()
    return (table - table.sum(-1, keepdim=True) / seen).tril()


def spread(table: Float[Tensor, "*lead pos key"]) -> Float[Tensor, "*lead"]:
    """sqrt of the mean over queries of Var_j(table[t, j]): all of a score that softmax can see."""
    c = centre(table).square()
    seen = torch.arange(1, c.shape[-1] + 1, device=c.device, dtype=c.dtype)
    return (c.sum(-1) / seen).mean(-1).sqrt()


@torch.no_grad()
def shares(
    model: Transformer, windows: list[Window], head: int
) -> tuple[dict[str, float], Float[Tensor, "source source"]]:
    """share_c = sum_t Cov_j(s_c, s) / sum_t Var_j(s): by class and for every pair of sources.

    Over the allowed keys j of each query t, which a constant per query cannot move. Shares sum to
    one; a negative share opposes what the whole score does. Positions and biases came through no
    head: pairs of them count as "neither".
    """
    n, heads = len(windows[0].parts), range(DIRECT, DIRECT + model.cfg.n_heads)
    numerator = torch.zeros(n, n, dtype=torch.float64)
    for window in windows:
        q, k = sides(model, window, head)
        whole = centre(q.sum(0) @ k.sum(0).mT)
        seen = torch.arange(1, whole.shape[-1] + 1, device=whole.device, dtype=whole.dtype)
        # Both factors centred or one: the covariance is the same, so the terms stay as they are.
        weighted = whole / seen[:, None]  # [pos, key]
        read = torch.einsum("qk,bke->bqe", weighted, k)
        numerator += torch.einsum("aqe,bqe->ab", q, read).double().cpu()
    share = numerator / numerator.sum()
    late = torch.tensor([i in heads for i in range(n)])
    blocks = [share[i][:, j].sum().item() for j in (~late, late) for i in (~late, late)]
    return dict(zip(CLASSES, blocks, strict=True)), share


@torch.no_grad()
def value_shares(model: Transformer, windows: list[Window], head: int) -> Float[Tensor, " source"]:
    """share_c = sum Cov_t(write_c, write) / sum Var_t(write): who supplied what a head moves.

    write = A x W_V W_O split by the sources of x, as in `Window.parts`; shortformer positions are
    in no value. The inner product is the stream's, so the shares depend on its coordinates. They
    sum to one.
    """
    total = torch.zeros(len(windows[0].parts), dtype=torch.float64)
    for window in windows:
        q, k = (x.sum(0) for x in sides(model, window, head))
        A = causal(q @ k.mT / model.cfg.d_head**0.5)
        each = A @ (reads(model, window) @ model.W_V[1, head]) @ model.W_O[1, head]
        if model.cfg.positions == "shortformer":
            each[1] = 0
        each = each - each.mean(1, keepdim=True)
        total += (each * each.sum(0)).sum((-2, -1)).double().cpu()
    return total / total.sum()
