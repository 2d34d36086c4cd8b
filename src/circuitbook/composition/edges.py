"""Every edge (first-layer head, second-layer head, query | key | value) cut alone.

Only the reader changes when one edge is cut, and in a two-layer attention-only model nobody reads
the reader. So a cut needs one head's pattern and write again, and one last stream: no model is run.
`cut.cut_path` says the same slowly; tests compare them. With a norm the cut is before it, and its
scale is computed again for the input that was cut, as the final one is for the last stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.composition import bilinear
from circuitbook.composition.bilinear import DIRECT, Window, causal
from circuitbook.model import Transformer
from circuitbook.probe import paired_difference
from circuitbook.stream import window_loss

INPUTS = ("q", "k", "v")


class Readers(NamedTuple):
    """What the second layer's heads read and write in one window; `last` is before any norm."""

    q: Float[Tensor, "head pos d_head"]
    k: Float[Tensor, "head pos d_head"]
    v: Float[Tensor, "head pos d_head"]
    pattern: Float[Tensor, "head pos key"]
    write: Float[Tensor, "head pos d_model"]
    last: Float[Tensor, "pos d_model"]


@torch.no_grad()
def readers(model: Transformer, window: Window) -> Readers:
    """The second layer in a window that is taken apart: the model's own numbers, up to rounding."""
    stream, norm, attn = window.parts.sum(0), model.blocks[1].ln1, model.blocks[1].attn
    q, k = (bilinear.side(norm(stream), attn, name) for name in "QK")
    if model.cfg.positions == "shortformer":  # positions are for queries and keys only
        stream = stream - window.parts[1]
    v = bilinear.side(norm(stream), attn, "V")
    pattern = causal(q @ k.mT / model.cfg.d_head**0.5)
    write = pattern @ v @ attn.W_O
    last = stream + write.sum(0)
    return Readers(q, k, v, pattern, write, last if attn.b_O is None else last + attn.b_O)


class Change(NamedTuple):
    """One edge (writer, reader, into) cut: the reader's pattern and write as they then are."""

    edge: tuple[int, int, str]
    pattern: Float[Tensor, "pos key"]
    write: Float[Tensor, "pos d_model"]


@torch.no_grad()
def cuts(
    model: Transformer, window: Window, r: Readers, edges: list[tuple[int, int, str]] | None = None
) -> Iterator[Change]:
    """The reader after x - w in one input, w the writer's write (zero cut, direct edge only)."""
    heads, attn, x = range(model.cfg.n_heads), model.blocks[1].attn, window.parts.sum(0)
    scale, lost = model.cfg.d_head**-0.5, {}
    for h1, h2, into in edges or [(a, b, c) for c in INPUTS for b in heads for a in heads]:
        if h1 not in lost:  # by how much what is read changes: -w, or what the norm makes of x - w
            w, norm = window.parts[DIRECT + h1], model.blocks[1].ln1
            lost[h1] = w if window.scale is None else norm(x) - norm(x - w)
        q, k, v, pattern = r.q[h2], r.k[h2], r.v[h2], r.pattern[h2]
        if into == "v":
            v = v - lost[h1] @ attn.W_V[h2]
        else:
            q = q - lost[h1] @ attn.W_Q[h2] if into == "q" else q
            k = k - lost[h1] @ attn.W_K[h2] if into == "k" else k
            pattern = causal(q @ k.mT * scale)
        yield Change((h1, h2, into), pattern, pattern @ v @ attn.W_O[h2])


def visible(model: Transformer, window: Window, r: Readers, edge: tuple) -> tuple[float, float]:
    """(spread over keys, share of its mean square that varies over keys) of an edge's score term.

    The term is what the cut takes out of the score: w W_Q k^T or q (w W_K)^T over sqrt(d_head).
    What does not vary over the keys of a query cannot reach the pattern. With a norm the term is
    read at the frozen scale, which the cut itself recomputes.
    """
    h1, h2, into = edge
    w = bilinear.reads(model, window)[DIRECT + h1]
    if into == "q":
        table = (w @ model.W_Q[1, h2]) @ r.k[h2].mT
    else:
        table = r.q[h2] @ (w @ model.W_K[1, h2]).mT
    table = table / model.cfg.d_head**0.5
    seen = torch.arange(1, len(w) + 1, device=w.device, dtype=w.dtype)
    whole = (table.tril().square().sum(-1) / seen).mean()
    varies = bilinear.spread(table)
    return varies.item(), (varies.square() / whole.clamp_min(1e-30)).item()


@torch.no_grad()
def all_effects(
    model: Transformer,
    tokens: Int[Tensor, "window pos"],
    doc: Int[Tensor, " window"],
    every: int = 4,
) -> dict[str, Any]:
    """What each cut does, as tables [input, writer, reader]; losses in nats, paired by window.

    loss, loss_se: rise of the held-out loss on every `every`-th position, error by document.
    pattern: mean over queries of half the sum of |A' - A| (0 to 1; exactly 0 for values).
    spread, visible: see `visible` (queries and keys). size: mean norm of the change of the reader's
    write. write: rms norm of every first-layer head's write. reader: rise of the loss when a
    second-layer head writes nothing.
    """
    n, m = model.cfg.n_heads, len(tokens)
    shape = (m, len(INPUTS), n, n)
    loss, pattern, size = (torch.zeros(shape, dtype=torch.float64) for _ in range(3))
    varies, share = torch.zeros(shape), torch.zeros(shape)
    clean, reader = torch.zeros(m, dtype=torch.float64), torch.zeros(m, n, dtype=torch.float64)
    write = torch.zeros(m, n)
    at = torch.arange(0, tokens.shape[1] - 1, every, device=tokens.device)

    for i, row in enumerate(tokens):
        window = bilinear.take_apart(model, row)
        r = readers(model, window)
        pair = torch.stack([row[at], row[at + 1]], 1)  # a two-token window for each position

        def loss_of(last: Tensor, pair: Tensor = pair) -> Tensor:
            both = last[at][:, None].expand(-1, 2, -1)
            return window_loss(model, pair, both).mean().double().cpu()

        clean[i] = loss_of(r.last)
        write[i] = window.parts[DIRECT : DIRECT + n].square().sum(-1).mean(-1).sqrt().cpu()
        for h in range(n):
            reader[i, h] = loss_of(r.last - r.write[h])
        for c in cuts(model, window, r):
            h1, h2, into = c.edge
            place = (i, INPUTS.index(into), h1, h2)
            change = c.write - r.write[h2]
            loss[place] = loss_of(r.last + change)
            size[place] = change.norm(dim=-1).mean().cpu()
            if into != "v":
                pattern[place] = (c.pattern - r.pattern[h2]).abs().sum(-1).mean().cpu() / 2
                varies[place], share[place] = visible(model, window, r, c.edge)
    rises = loss.flatten(1).T  # [edge, window]
    estimates = [paired_difference(x, clean, doc) for x in rises]
    tables = {"loss": [e.mean for e in estimates], "loss_se": [e.se for e in estimates]}
    out = {k: torch.tensor(v, dtype=torch.float64).view(shape[1:]) for k, v in tables.items()}
    means = {"pattern": pattern, "size": size, "spread": varies, "visible": share}
    used = [paired_difference(x, clean, doc) for x in reader.T]
    return out | {k: v.mean(0) for k, v in means.items()} | {
        "clean": clean.mean().item(),
        "write": write.square().mean(0).sqrt(),
        "reader": torch.tensor([e.mean for e in used]),
        "reader_se": torch.tensor([e.se for e in used]),
    }  # fmt: skip


# ---------------------------------------------------------------- ranks


def ranks(x: np.ndarray) -> np.ndarray:
    """Rank of each entry along the last axis, from 0; equal entries share their mean rank."""
    below = (x[..., :, None] > x[..., None, :]).sum(-1)
    equal = (x[..., :, None] == x[..., None, :]).sum(-1)
    return below + (equal - 1) / 2


def rank_correlation(x: Any, y: Any) -> np.ndarray:
    """Spearman's rho = the correlation of the ranks, along the last axis; 0 if one is constant."""
    a, b = (ranks(np.asarray(v, dtype=float)) for v in (x, y))
    a, b = (v - v.mean(-1, keepdims=True) for v in (a, b))
    size = np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
    return np.where(size > 0, (a * b).sum(-1) / np.where(size > 0, size, 1), 0.0)


def rank_interval(
    x: Any, y: Any, n: int = 1000, seed: int = 0, level: float = 0.95
) -> tuple[float, float, float]:
    """(rho, low, high) of two tables [writer, reader] (or a stack of them), by a two-way bootstrap.

    Edges share heads, so they are not independent: writers and readers are drawn with replacement,
    each on its own axis, and the same draw serves all tables of a stack.
    """
    x, y = (np.asarray(v, dtype=float) for v in (x, y))
    x, y = (v.reshape(-1, *v.shape[-2:]) for v in (x, y))
    rng = np.random.default_rng(seed)
    rows, columns = (rng.integers(0, k, (n, k)) for k in x.shape[-2:])

    def drawn(table: np.ndarray, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        return table[:, i[:, None], j].reshape(-1)

    draws = [
        rank_correlation(drawn(x, i, j), drawn(y, i, j)) for i, j in zip(rows, columns, strict=True)
    ]
    tail = (1 - level) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return float(rank_correlation(x.reshape(-1), y.reshape(-1))), float(low), float(high)
