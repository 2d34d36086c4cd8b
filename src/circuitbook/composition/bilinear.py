"""A later head's score as a sum of bilinear terms: one for each (query source, key source).

In an attention-only model without norm the stream that a second-layer head reads is token + writes
of the first layer's heads, and queries and keys add the position. Both sides of a score are sums of
the same sources, so the score is a sum over pairs of sources. Nothing is approximated.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.model import Transformer

CLASSES = ("neither", "query side", "key side", "both")
DIRECT = 2  # the first two sources, token and position, came through no head


def source_names(model: Transformer) -> list[str]:
    """ "token", "position", then the first layer's heads, in the order of `Window.parts`."""
    return ["token", "position", *(f"0.{h}" for h in range(model.cfg.n_heads))]


class Window(NamedTuple):
    """One window, taken apart before the second layer."""

    parts: Float[Tensor, "source pos d_model"]  # token, position, each first-layer head's write
    patterns: Float[Tensor, "head pos key"]  # the first layer's


@torch.no_grad()
def take_apart(model: Transformer, tokens: Int[Tensor, " pos"]) -> Window:
    """parts.sum(0) is what a second-layer query or key reads; a value reads all but the position.

    Raises ValueError unless the model is attention-only with two layers, no norm, no biases, and
    positions on queries and keys: with a norm the sources would not add up.
    """
    c = model.cfg
    plain = c.n_layers == 2 and c.attn_only and c.norm == "none" and not c.attn_bias
    if not plain or c.positions != "shortformer":
        raise ValueError(f"needs two attention-only layers without norm and biases, got {c}")
    x, p = model.W_E[tokens], model.W_pos[: len(tokens)].to(model.W_E)
    q, k = (torch.einsum("pd,hde->hpe", x + p, W[0]) for W in (model.W_Q, model.W_K))
    A = causal(q @ k.mT / c.d_head**0.5)
    writes = A @ torch.einsum("pd,hde->hpe", x, model.W_V[0]) @ model.W_O[0]
    return Window(torch.cat([torch.stack([x, p]), writes]), A)


def causal(scores: Float[Tensor, "*lead pos key"]) -> Float[Tensor, "*lead pos key"]:
    """Each row's softmax over the keys that it may see."""
    ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(ahead, -torch.inf).softmax(-1)


def term(
    model: Transformer, window: Window, head: int, query_source: int, key_source: int
) -> Float[Tensor, "pos key"]:
    """a W_QK b^T / sqrt(d_head): one term of a second-layer head's score, before the mask."""
    q = window.parts[query_source] @ model.W_Q[1, head]
    k = window.parts[key_source] @ model.W_K[1, head]
    return q @ k.mT / model.cfg.d_head**0.5


@torch.no_grad()
def sum_error(
    model: Transformer, tokens: Int[Tensor, "one pos"], *, position: bool = True
) -> float:
    """max |sum of the 100 terms - score| / max |score| over heads; the model's own q and k.

    position=False leaves the position out of the sources: the mutant.
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
    one; a negative share opposes what the whole score does. Position pairs count as "neither".
    """
    n = len(windows[0].parts)
    numerator = torch.zeros(n, n, dtype=torch.float64)
    for window in windows:
        q, k = (window.parts @ W[1, head] for W in (model.W_Q, model.W_K))
        whole = centre(q.sum(0) @ k.sum(0).mT)
        seen = torch.arange(1, whole.shape[-1] + 1, device=whole.device, dtype=whole.dtype)
        # Both factors centred or one: the covariance is the same, so the terms stay as they are.
        weighted = whole / seen[:, None]  # [pos, key]
        read = torch.einsum("qk,bke->bqe", weighted, k)
        numerator += torch.einsum("aqe,bqe->ab", q, read).double().cpu()
    share = numerator / numerator.sum()
    d = DIRECT
    blocks = (share[:d, :d], share[d:, :d], share[:d, d:], share[d:, d:])
    return {name: b.sum().item() for name, b in zip(CLASSES, blocks, strict=True)}, share


@torch.no_grad()
def value_shares(model: Transformer, windows: list[Window], head: int) -> Float[Tensor, " source"]:
    """share_c = sum Cov_t(write_c, write) / sum Var_t(write): who supplied what a head moves.

    write = A x W_V W_O split by the sources of x: the token (0) and first-layer heads (2 ...);
    positions are in no value. The inner product is the stream's, so the shares depend on its
    coordinates. They sum to one.
    """
    total = torch.zeros(len(windows[0].parts), dtype=torch.float64)
    for window in windows:
        q, k = (window.parts.sum(0) @ W[1, head] for W in (model.W_Q, model.W_K))
        A = causal(q @ k.mT / model.cfg.d_head**0.5)
        each = A @ (window.parts @ model.W_V[1, head]) @ model.W_O[1, head]
        each[1] = 0
        each = each - each.mean(1, keepdim=True)
        total += (each * each.sum(0)).sum((-2, -1)).double().cpu()
    return total / total.sum()
