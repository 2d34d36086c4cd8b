"""What chapter 05 asks about pairs of heads: baselines, cuts on repeats, the ladder.

What the chapter teaches stands in its lesson; this is the bookkeeping around it. Writers are the
first layer's heads, readers the second layer's; tables are [writer, reader].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook import compose, cut, gauge, probe, scan, spine
from circuitbook.composition import bilinear, edges
from circuitbook.composition.bilinear import DIRECT
from circuitbook.curves import Bench
from circuitbook.expansion import expand
from circuitbook.model import Transformer
from circuitbook.stream import window_loss

Thin = tuple[Tensor, Tensor]  # the two thin factors of a matrix


def writer(model: Transformer, h: int) -> Thin:
    """W_OV of a first-layer head, as its factors."""
    return model.W_V[0, h], model.W_O[0, h]


def reader(model: Transformer, h: int, into: str) -> Thin:
    """What a second-layer head does with a query (W_QK), a key (W_QK^T) or a value (W_OV)."""
    Q, K = model.W_Q[1, h], model.W_K[1, h]
    return {"q": (Q, K.mT), "k": (K, Q.mT), "v": (model.W_V[1, h], model.W_O[1, h])}[into]


def scores(model: Transformer) -> compose.Scores:
    """Q-, K- and V-composition of every pair of a two-layer model."""
    first = model.W_V[0], model.W_O[0]
    return compose.composition_scores(
        *first, model.W_Q[1], model.W_K[1], model.W_V[1], model.W_O[1]
    )


def dense_scores(model: Transformer) -> Float[Tensor, "input writer reader"]:
    """The same by the definition, with d_model x d_model matrices, one pair at a time."""
    n = model.cfg.n_heads
    out = torch.zeros(3, n, n, dtype=model.W_E.dtype)
    for i, j in np.ndindex(n, n):
        M = torch.matmul(*writer(model, i))
        for s, into in enumerate(edges.INPUTS):
            N = torch.matmul(*reader(model, j, into))
            out[s, i, j] = (M @ N).norm() / (M.norm() * N.norm())
    return out


def rotated_scores(model: Transformer, score: Callable[..., Tensor]) -> Tensor:
    """Another score (left, right, left, right) of every pair, [input, writer, reader]."""
    n = model.cfg.n_heads
    rows = [
        [[score(*writer(model, i), *reader(model, j, c)) for j in range(n)] for i in range(n)]
        for c in edges.INPUTS
    ]
    return torch.tensor(rows, dtype=torch.float64)


def baselines(model: Transformer, n: int = 100) -> dict[str, Float[Tensor, "input writer reader"]]:
    """Mean and 97.5 % point of n random pairs, at the smaller effective rank of each real pair.

    The smaller rank is the careful choice: scores of few directions scatter most.
    """
    d, heads = model.cfg.d_model, range(model.cfg.n_heads)

    def rank(left: Tensor, right: Tensor) -> float:
        triangles = torch.linalg.qr(left)[1] @ torch.linalg.qr(right.mT)[1].mT
        return gauge.effective_rank(torch.linalg.svdvals(triangles)).item()

    first = [rank(*writer(model, h)) for h in heads]
    second = [[rank(*reader(model, h, c)) for h in heads] for c in edges.INPUTS]
    smaller = torch.tensor([[[min(a, b) for b in row] for a in first] for row in second])
    whole = smaller.round().clamp(1, model.cfg.d_head).long()
    generator = torch.Generator().manual_seed(0)
    drawn = {r: compose.simulated(r, d, n, generator) for r in whole.unique().tolist()}
    mean, high = torch.zeros(whole.shape), torch.zeros(whole.shape)
    for r, sample in drawn.items():
        mean[whole == r], high[whole == r] = sample.mean(), sample.quantile(0.975)
    return {"rank": smaller, "mean": mean, "high": high}


@torch.no_grad()
def virtual_eigenvalue_score(model: Transformer, h1: int, h2: int) -> float:
    """sum(Re l) / sum(|l|) of the virtual QK table W_E W_QK (W_E W_OV)^T, keys through a writer.

    Rows are centred over the keys. Every factor of the table meets the next inside the stream, so
    no change of coordinates of stream or heads can move it. 1: tokens look for themselves.
    """
    A = model.W_E @ model.W_Q[1, h2]
    B = (model.W_E @ model.W_V[0, h1] @ (model.W_O[0, h1] @ model.W_K[1, h2])).mT
    return scan.copying_score(A, B - B.mean(-1, keepdim=True)).item()


def controls() -> dict[str, float]:
    """Scores with known answers: a K-only pair, no transpose, not a cosine, random pairs."""
    e = torch.eye(8)
    weights = e[:, :2], e[2:4], e[:, 4:6], e[:, 2:4], e[:, 6:], e[6:]  # V, O; Q, K, V, O
    tuned = compose.composition_scores(*(w[None] for w in weights))
    one, two = (e[None, :, :1], e[None, 1:2]), (e[None, :, 1:2], e[None, 2:3])
    inner = (one[0] @ one[1] * (two[0] @ two[1])).sum()
    random = compose.simulated(32, 256, 50, torch.Generator().manual_seed(0))
    return {
        "tuned for keys": tuned.k.item(),
        "the same, transpose forgotten": tuned.q.item(),
        "not a cosine: score": compose.pair_scores(*one, *two).item(),
        "not a cosine: inner product": inner.item(),
        "random": random.mean().item(),
    }


def followed(model: Transformer, n: int) -> tuple[tuple[int, int], probe.RepeatedBatch]:
    """(the course's pair as (writer, reader), n sequences of repeated frequent tokens)."""
    (_, h1), (_, h2) = spine.heads_pair(model)
    generator = torch.Generator().manual_seed(0)
    return (h1, h2), probe.repeated_batch(Bench.frequent(), n, generator=generator)


# ---------------------------------------------------------------- cuts on repeats


@torch.no_grad()
def repeat_cuts(
    model: Transformer, batch: probe.RepeatedBatch, wanted: list[tuple[int, int, str]]
) -> dict[str, Any]:
    """On repeated tokens: prefix matching of the readers whole, and after each edge's cut.

    whole: by reader.  prefix, loss: for each wanted edge, the reader's prefix matching under the
    cut, and the rise of the loss (nats) on the second copy.
    """
    whole, prefix, loss = [], [], []
    for tokens, second in zip(batch.tokens, batch.second, strict=True):
        tokens = tokens.to(model.W_E.device)
        window = bilinear.take_apart(model, tokens)
        r = edges.readers(model, window)
        at = second[1:].to(tokens.device) - 1

        def loss_of(last: Tensor, at: Tensor = at, tokens: Tensor = tokens) -> Tensor:
            both = last[at][:, None].expand(-1, 2, -1)
            return window_loss(model, torch.stack([tokens[at], tokens[at + 1]], 1), both).mean()

        clean = loss_of(r.last)
        whole.append(probe.prefix_matching_score(r.pattern[None], tokens[None])[0])
        rows = [
            (
                probe.prefix_matching_score(c.pattern[None, None], tokens[None])[0, 0],
                loss_of(r.last + c.write - r.write[c.edge[1]]) - clean,
            )
            for c in edges.cuts(model, window, r, wanted)
        ]
        prefix.append(torch.stack([p for p, _ in rows]))
        loss.append(torch.stack([x for _, x in rows]))
    return {
        k: torch.stack(v).mean(0) for k, v in (("whole", whole), ("prefix", prefix), ("loss", loss))
    }


@torch.no_grad()
def frozen_cut(model: Transformer, tokens: Int[Tensor, "n pos"], pair: tuple[int, int]) -> float:
    """The largest logit change of the K-cut with all patterns held: what path sums see."""
    change = cut.cut_path(model, (0, pair[0]), (1, pair[1]), "k")
    frozen = change + cut.freeze_patterns(model, tokens)
    return cut.logit_change(model, tokens, frozen).abs().max().item()


@torch.no_grad()
def local_changes(
    model: Transformer, tokens: Int[Tensor, "n pos"], pair: tuple[int, int]
) -> dict[str, int]:
    """How many of the second layer's tensors change at all, bit for bit, under two cuts.

    "K-cut": reader's q and v, other readers' q, k, v and patterns (must stay).  "K-cut, own": the
    reader's k and pattern (must change).  "same layer": q, k, v, patterns of the other readers when
    the reader's write is removed.
    """
    h1, h2 = pair
    names = [f"blocks.1.attn.hook_{x}" for x in ("q", "k", "v", "pattern")]
    clean = cut.run(model, tokens, names=names)[1]

    def changed(how: cut.Cut) -> dict[str, Tensor]:
        now = cut.run(model, tokens, how, names=names)[1]
        out = {}
        for name in names:
            axis = 1 if name.endswith("pattern") else 2
            moved = (now[name] != clean[name]).transpose(0, axis).flatten(1).any(1)
            out[name.rsplit("_", 1)[1]] = moved
        return out

    k_cut = changed(cut.cut_path(model, (0, h1), (1, h2), "k"))
    own = int(k_cut["k"][h2]) + int(k_cut["pattern"][h2])
    removed = changed(cut.ablate_heads(model, tokens, [(1, h2)]))
    return {
        "K-cut": sum(int(x.sum()) for x in k_cut.values()) - own,
        "K-cut, own": own,
        "same layer": sum(int(x.sum()) for x in removed.values()),
    }


def slow_error(
    model: Transformer, tokens: Int[Tensor, " pos"], some: list[tuple[int, int, str]]
) -> float:
    """The largest error of `edges.cuts` against a run under `cut.cut_path`, scales recomputed."""
    window = bilinear.take_apart(model, tokens)
    r, worst = edges.readers(model, window), 0.0
    for c in edges.cuts(model, window, r, some):
        h1, h2, into = c.edge
        want = cut.run(model, tokens[None], cut.cut_path(model, (0, h1), (1, h2), into))[0][0]
        got = model.unembed(model.ln_final((r.last + c.write - r.write[h2])[None]))[0]
        worst = max(worst, ((got - want).abs().max() / want.abs().max()).item())
    return worst


@torch.no_grad()
def virtual_head_error(
    model: Transformer, tokens: Int[Tensor, " pos"], pair: tuple[int, int]
) -> float:
    """max |logit change of the V-cut + A2 A1 X W_OV1 W_OV2 W_U| over the term's largest entry.

    With a norm all scales are held during the cut, and the term is read at them.
    """
    h1, h2 = pair
    ran = expand.record(model, tokens[None])
    window = bilinear.take_apart(model, tokens)
    first, second = model.blocks[0], model.blocks[1]
    x = sum(s for _, layer, s in expand.sources(model, tokens[None], ran) if layer == 0)
    moved = expand.read(first.ln1, x, ran.scales[0])[0] @ first.attn.W_V[h1] @ first.attn.W_O[h1]
    write = expand.read(second.ln1, window.patterns[h1] @ moved, window.scale)
    A2 = edges.readers(model, window).pattern[h2]
    virtual = A2 @ (write @ second.attn.W_V[h2]) @ second.attn.W_O[h2]
    virtual = expand.logits(model, virtual[None], ran)[0]
    held = cut.cut_path(model, (0, h1), (1, h2), "v") + expand.hold_scales(model, ran)
    change = cut.logit_change(model, tokens[None], held)[0]
    return ((change + virtual).abs().max() / virtual.abs().max()).item()


def rungs(d: dict[str, Any], frozen: float) -> list[dict[str, Any]]:
    """The evidence ladder of "the writer feeds the reader's keys": what each rung asks and gets.

    `frozen` is the largest logit change of the cut with all patterns held.
    """
    h1, h2 = d["pair"]
    score, high = float(d["scores"]["k"][h1, h2]), float(d["baseline"]["high"][1, h1, h2])
    share = float(d["sources"][:, DIRECT + h1].sum())
    left = float(d["repeats"]["prefix"][h1, h2] / d["repeats"]["whole"][h2])
    rows = (
        ("measurement", "score over twice its baseline", score / (2 * high), 1.0),
        (
            "identity, split into terms",
            "(measured) share of the key terms over 0.25",
            share / 0.25,
            1.0,
        ),
        ("intervention, patterns frozen", "logit change over 0.01", frozen / 0.01, 1.0),
        ("intervention, run again", "prefix matching lost over 0.8", (1 - left) / 0.8, 1.0),
    )
    return [
        {"rung": rung, "asked": asked, "got": got, "ok": got >= need}
        for rung, asked, got, need in rows
    ]


@torch.no_grad()
def several_tokens_back(
    patterns: Float[Tensor, "window head pos key"], low: int = 2, high: int = 6
) -> Float[Tensor, " head"]:
    """Mean attention to the keys `low` ... `high` tokens back together, queries from `high` on."""
    diagonals = [patterns.diagonal(-k, -2, -1)[..., high - k :] for k in range(low, high + 1)]
    return torch.stack(diagonals).sum(0).mean((0, -1))
