"""Instruments that look at one head at a time: planted heads, one source's writes, tables, ranks.

What chapter 02 teaches stands in its lesson; this file is the bookkeeping around it. Heads are
(layer, head); a table's row is the source (OV) or the query (QK). With LayerNorm a token is read at
its own scale; OV rows without it, since a positive number moves nothing within a row (`inputs`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook import corpus, curves, gauge, inputs, probe, scan, tokenizer, zoo
from circuitbook.model import Transformer
from circuitbook.stream import last_logits_only

Head = tuple[Tensor, Tensor]  # W_V, W_O


def planted_heads(
    n: int = 400, d_model: int = 64, d_head: int = 32, seed: int = 0
) -> tuple[Tensor, Tensor, dict[str, Head]]:
    """W_E, W_U = W_E^T of n made-up tokens, and five heads whose copying is known by construction.

    "copies": W_OV is a projection P P^T, so T = (W_E P)(W_E P)^T has no negative eigenvalue.
    "anti-copies": its negative. "turns": P J P^T with J^T = -J, imaginary eigenvalues only.
    "random": Gaussian. "three topics": a projection on three directions: score 1,
    few tokens copied. float64.
    """
    generator = torch.Generator().manual_seed(seed)
    W_E, noise = (torch.randn(m, d_model, generator=generator).double() for m in (n, 2 * d_head))
    P = torch.linalg.qr(noise[:d_head].mT)[0]  # [d_model, d_head], orthonormal columns
    J = torch.randn(d_head, d_head, generator=generator).double()
    three = torch.diag((torch.arange(d_head) < 3).double())
    heads = {
        "copies": (P, P.mT),
        "anti-copies": (P, -P.mT),
        "turns": (P, (J - J.mT) @ P.mT),
        "random": (noise[:d_head].mT, noise[d_head:]),
        "three topics": (P, three @ P.mT),
    }
    return W_E, W_E.mT, heads


@torch.no_grad()
def writes_from(
    model: Transformer, tokens: Int[Tensor, "batch pos"], layer: int, sources: Sequence[int]
) -> Float[Tensor, "batch head pos d_model"]:
    """What every head of a layer writes when only `sources` have values: one or a few columns of A.

    Cut: the values of all other positions of this layer, to zero. Queries, keys and patterns stay.
    """
    kept = {}

    def silence(v: Tensor, hook: Any) -> Tensor:
        keep = torch.zeros(v.shape[1], 1, 1, device=v.device, dtype=v.dtype)
        keep[list(sources)] = 1
        return v * keep

    def look(z: Tensor, hook: Any) -> None:
        kept["z"] = z

    at = f"blocks.{layer}.attn.hook_"
    with model.hooks(fwd_hooks=[(at + "v", silence), (at + "z", look)]):
        model.stream(tokens)
    return torch.einsum("bphe,hed->bhpd", kept["z"], model.W_O[layer])


@torch.no_grad()
def spine_pair(
    model: Transformer, windows: Int[Tensor, "window pos"], repeats: Int[Tensor, "n length"]
) -> dict[str, Any]:
    """The head pair that the course follows, each as its place among all heads, with its score.

    "previous": the first-layer head with the highest previous-token score on text. "induction":
    the second-layer head with the highest prefix-matching score on `repeats` (course protocol).
    """
    at = [f"blocks.{layer}.attn.hook_pattern" for layer in (0, 1)]
    with last_logits_only(model):
        text = model.run_with_cache(windows, names_filter=[at[0]])[1][at[0]]
        repeated = model.run_with_cache(repeats, names_filter=[at[1]])[1][at[1]]
    before = probe.previous_token_score(text).mean(0)
    prefix = probe.prefix_matching_score(repeated, repeats).mean(0)
    return {
        "previous": int(before.argmax()),
        "previous_score": before.max(),
        "induction": model.cfg.n_heads + int(prefix.argmax()),
        "prefix_score": prefix.max(),
    }


# ---------------------------------------------------------------- positions


def causal_pattern(scores: Float[Tensor, "*lead pos key"]) -> Float[Tensor, "*lead pos key"]:
    """Each row's softmax over the keys that it may see."""
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1)


def mean_by_offset(
    table: Float[Tensor, "*lead pos key"], offsets: int, first: int = 64
) -> Float[Tensor, "*lead offset"]:
    """The mean of table[t, t - k] over the queries t >= first, for k = 0 ... offsets - 1.

    Early queries are left out: they have few keys, and position 0 is where idle heads rest.
    """
    if not offsets <= first < table.shape[-1]:
        raise ValueError(
            f"needs offsets <= first < positions, got {offsets}, {first}, {table.shape[-1]}"
        )
    diagonals = [table.diagonal(-k, -2, -1)[..., first - k :] for k in range(offsets)]
    return torch.stack([d.mean(-1) for d in diagonals], -1)


@torch.no_grad()
def offset_profiles(
    model: Transformer,
    tokens: Int[Tensor, "window pos"],
    position_scores: Float[Tensor, "layer head pos pos"],
    n: int,
) -> dict[str, Tensor]:
    """By head and offset: mean attention on text, with positions alone, and the positional score.

    "score" is minus its mean over the keys that a query may see, as softmax sees it.
    `position_scores`: of the positions of `inputs.positional`, as many as the windows have.
    """
    at = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.cfg.n_layers)]
    with last_logits_only(model):
        cache = model.run_with_cache(tokens, names_filter=at)[1]
    patterns = {
        "text": torch.stack([cache[name] for name in at]).mean(1).flatten(0, 1),
        "alone": causal_pattern(position_scores).flatten(0, 1),
    }
    out = {name: mean_by_offset(p, n) for name, p in patterns.items()}
    seen = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)[:, None]
    mean = position_scores.tril().sum(-1, keepdim=True) / seen  # over keys 0 ... t
    out["score"] = mean_by_offset((position_scores - mean).flatten(0, 1), n)
    return out | {f"{name}_previous": probe.previous_token_score(p) for name, p in patterns.items()}


# ---------------------------------------------------------------- spectra and ranks

ThinSVD = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


@torch.no_grad()
def spectra(model: Transformer, thin_svd: ThinSVD) -> dict[str, Tensor]:
    """Singular values (largest = 1) and effective ranks of every head's W_QK and W_OV, no bias."""
    pairs = {"QK": (model.W_Q, model.W_K.mT), "OV": (model.W_V, model.W_O)}
    s = {name: thin_svd(*pair)[1].flatten(0, 1) for name, pair in pairs.items()}
    out = {name: v / v[:, :1].clamp_min(1e-30) for name, v in s.items()}
    return out | {f"{name}_rank": gauge.effective_rank(v) for name, v in s.items()}


def random_spectra(
    d_model: int, d_head: int, thin_svd: ThinSVD, n: int = 64, seed: int = 0
) -> dict[str, Tensor]:
    """The mean over n products of Gaussian factors: what a spectrum of this shape is by chance."""
    generator = torch.Generator().manual_seed(seed)
    left, right = torch.randn(2, n, d_model, d_head, generator=generator)
    s = thin_svd(left, right.mT)[1]
    return {"values": (s / s[:, :1]).mean(0), "rank": gauge.effective_rank(s).mean()}


@torch.no_grad()
def rank_losses(
    model: Transformer,
    tokens: Int[Tensor, "window pos"],
    doc: Int[Tensor, " window"],
    ranks: Sequence[int],
    keep_directions: Callable[[Tensor, Tensor, Sequence[int]], tuple[Tensor, Tensor]],
) -> dict[str, Any]:
    """Extra loss (nats) when every head keeps r singular directions of W_QK, or of W_OV.

    Cut: the other directions, in all heads at once, from the weights; everything is recomputed.
    "strongest" keeps directions 0 ... r-1, "random" keeps r of the same ones by a seeded draw
    (the same places in every head). "gain" is random minus strongest. Paired by window, errors
    clustered by document. Every fourth position counts: the unembedding is most of the cost.
    Biases of queries, keys and values are one more row of their matrices, and are cut with them.
    """
    at = torch.arange(0, tokens.shape[1] - 1, 4, device=tokens.device)

    def loss(m: Transformer) -> Tensor:
        logits = m.unembed(m.stream(tokens)[:, at]).flatten(0, 1)
        each = F.cross_entropy(logits, tokens[:, at + 1].flatten(), reduction="none")
        return each.view(len(tokens), -1).mean(1).cpu()  # documents are counted on the CPU

    def cut(which: str, keep: Sequence[int]) -> Tensor:
        both = gauge.with_bias(model, "Q" if which == "QK" else "V")
        if which == "QK":
            left, right = keep_directions(both, gauge.with_bias(model, "K").mT, keep)
            keys = gauge.split_bias(model, "K", right.mT)
            return loss(gauge.with_weights(model, **gauge.split_bias(model, "Q", left), **keys))
        left, right = keep_directions(both, model.W_O, keep)
        return loss(gauge.with_weights(model, **gauge.split_bias(model, "V", left), W_O=right))

    whole, n = loss(model), model.cfg.d_head
    order = np.random.default_rng(0).permutation(n).tolist()
    out: dict[str, Any] = {"loss": whole.mean(), "full_rank_error": 0.0}
    for which in ("QK", "OV"):
        error = (cut(which, range(n)) - whole).abs().max().item()
        out["full_rank_error"] = max(out["full_rank_error"], error)
        rows: dict[str, list] = {"strongest": [], "random": [], "gain": []}
        for r in ranks:
            top = cut(which, range(min(r, n)))
            drawn = cut(which, order[:r]) if r else top
            for name, pair in zip(rows, ((top, whole), (drawn, whole), (drawn, top)), strict=True):
                rows[name].append(probe.paired_difference(*pair, doc))
        for name, estimates in rows.items():
            out[f"{which}_{name}"] = [e.mean for e in estimates]
            out[f"{which}_{name}_se"] = [e.se for e in estimates]
    return out


# ---------------------------------------------------------------- copying


def frequent_words(n: int) -> Int[Tensor, " n"]:
    """The n tokens most frequent in the training text among those that are a blank and letters."""
    words = tokenizer.load()
    counts = np.bincount(corpus.train_tokens(), minlength=words.vocab_size)
    return curves.frequent_words(counts, [words.text(t) for t in range(words.vocab_size)], n)


PASS_SCORE, PASS_TOP10 = 0.9, 0.3  # the two tests of copying: eigenvalue score, frequent words


def two_copying_tests(
    W_E: Float[Tensor, "d_vocab d_model"],
    W_V: Float[Tensor, "d_model d_head"],
    W_O: Float[Tensor, "d_head d_model"],
    W_U: Float[Tensor, "d_model d_vocab"],
    rows: Tensor | None = None,
) -> tuple[float, float, float]:
    """(eigenvalue score, top-1 share, top-10 share); `rows` are the tokens asked, default all."""
    A, B = scan.ov_factors(W_E, W_V, W_O, W_U)
    shares = scan.self_shares(scan.self_rank(A, B, rows=rows))
    return scan.copying_score(A, B).item(), shares[1], shares[10]


def copying_table(role: str, frequent: Int[Tensor, " words"]) -> dict[str, list]:
    """Both copying tests for every head of a role, on frequent words and on all tokens.

    Beside them the score without centring: with W_U "as_trained", and "shifted" by one random
    c 1^T whose entries are as large as those of W_U. Neither changes a probability.
    """
    model, raw = zoo.load(role), zoo.load(role, center=False)
    c = torch.randn(model.cfg.d_model, 1, generator=torch.Generator().manual_seed(0))
    raws = (raw.W_U, raw.W_U + c.to(raw.W_U) * raw.W_U.std())
    names = ("head", "score", "top1", "top10", "all1", "all10", "as_trained", "shifted")
    out: dict[str, list] = {name: [] for name in names}
    for layer, head in np.ndindex(model.cfg.n_layers, model.cfg.n_heads):
        W_E, W_V, W_O = model.W_E, model.W_V[layer, head], model.W_O[layer, head]
        row = [f"{layer}.{head}", *two_copying_tests(W_E, W_V, W_O, model.W_U, frequent)]
        row += two_copying_tests(W_E, W_V, W_O, model.W_U)[1:]
        for U in raws:
            factors = scan.ov_factors(W_E, W_V, W_O, U, centre=False)
            row.append(scan.copying_score(*factors).item())
        for name, value in zip(names, row, strict=True):
            out[name].append(value)
    return out


@torch.no_grad()
def constant_against(model: Transformer, place: int) -> float:
    """How far `W_U + c 1^T` moves one head's copying score if W_U is not centred; place = 8 l + h.

    c 1^T adds 1^T W_E W_OV c to the trace of the head's table, its rank-one eigenvalue. Against the
    score's sign and a hundred times as large as all eigenvalues together, it turns the sign round,
    whatever the weights are, unless the mean token's write is zero.
    """
    layer, head = divmod(place, model.cfg.n_heads)
    W_E, W_V, W_O = model.W_E, model.W_V[layer, head], model.W_O[layer, head]
    sizes = scan.eigenvalues(*scan.ov_factors(W_E, W_V, W_O, model.W_U, centre=False)).abs().sum()
    write = W_E.sum(0) @ W_V @ W_O

    def score(W_U: Tensor) -> float:
        return scan.copying_score(*scan.ov_factors(W_E, W_V, W_O, W_U, centre=False)).item()

    before = score(model.W_U)
    c = -math.copysign(100, before) * sizes * write / write.square().sum().clamp_min(1e-30)
    return abs(score(model.W_U + c[:, None]) - before)


def eigenvalue_pairs(model: Transformer, place: int) -> list[list[float]]:
    """(real, imaginary) of a head's eigenvalues, divided by the largest size; place = 8 l + h."""
    layer, head = divmod(place, model.cfg.n_heads)
    W_V, W_O = model.W_V[layer, head], model.W_O[layer, head]
    values = scan.eigenvalues(*scan.ov_factors(model.W_E, W_V, W_O, model.W_U))
    values = values / values.abs().max().clamp_min(1e-300)
    # Conjugates have one size: the upper one first, so that rounding does not decide the order.
    order = sorted(values.tolist(), key=lambda z: (-round(abs(z), 5), -z.imag))
    return [[z.real, z.imag] for z in order]


def passes(table: dict[str, list], place: int) -> tuple[bool, bool]:
    """Whether a head passes (the eigenvalue test, the top-10 test on frequent words)."""
    return table["score"][place] >= PASS_SCORE, table["top10"][place] >= PASS_TOP10


def telling_heads(tables: dict[str, dict[str, list]]) -> dict[str, tuple[str, int]]:
    """Three heads by rule, as (role, place): most words copied; best score without that; least.

    When no head but the first fails the word test, the second is the one that comes nearest to it.
    """
    every = [(role, i) for role, t in tables.items() for i in range(len(t["head"]))]

    def value(name: str) -> Callable[[tuple[str, int]], float]:
        return lambda h: tables[h[0]][name][h[1]]

    most = max(every, key=value("top10"))
    fails = [h for h in every if value("top10")(h) < PASS_TOP10 and h != most]
    return {
        "copies most words": most,
        "high score, few words": max(fails or every, key=value("score" if fails else "top10")),
        "lowest score": min(every, key=value("score")),
    }


def token_rows(
    model: Transformer, layer: int, head: int, frequent: Int[Tensor, " words"], n: int = 6
) -> list[dict[str, Any]]:
    """What a head does with n frequent words of a seeded draw: their own rank, what reading them
    raises (OV row), and which keys they look for when they are the query (centred QK row)."""
    chosen = np.random.default_rng(0).choice(len(frequent), n, replace=False)
    ids = frequent[torch.from_numpy(chosen)]
    ov = scan.ov_factors(model.W_E, model.W_V[layer, head], model.W_O[layer, head], model.W_U)
    qk = inputs.qk_factors(model, layer, head)
    text = tokenizer.load().text
    columns = (
        ids,
        scan.self_rank(*ov, rows=ids),
        scan.top_k(*ov, 5, rows=ids).ids,
        scan.top_k(*qk, 5, rows=ids).ids,
    )
    return [
        {
            "token": text(token),
            "own_rank": int(own),
            "raises": [text(t) for t in raised],
            "looks_for": [text(t) for t in sought],
        }
        for token, own, raised, sought in zip(*columns, strict=True)
    ]


def small_against_dense(
    model: Transformer, layer: int, head: int, sub: Int[Tensor, " tokens"]
) -> float:
    """The largest error of chunked and d_head x d_head answers against the dense table of `sub`.

    top-10, eigenvalues and copying score. An own rank outside what entries within 1e-9 of each
    other allow counts as an error of 1: columns of W_U that were never trained are equal, and
    rounding decides between them.
    """
    W_V, W_O = model.W_V[layer, head], model.W_O[layer, head]
    A, B = scan.ov_factors(model.W_E[sub], W_V, W_O, model.W_U[:, sub])
    T = model.W_E[sub] @ (W_V @ W_O) @ (model.W_U[:, sub] - model.W_U[:, sub].mean(1, keepdim=True))
    dense = T.sort(dim=1, descending=True)
    values = torch.linalg.eigvals(T)
    top = scan.top_k(A, B, 10, chunk=7)
    own, rank = T.diagonal()[:, None], scan.self_rank(A, B, chunk=7)
    best, worst = 1 + (T > own + 1e-9).sum(1), (T >= own - 1e-9).sum(1)
    if bool(((rank < best) | (rank > worst)).any()):
        return 1.0
    largest = values.abs().sort(descending=True).values[: A.shape[1]]
    errors = (
        (top.values - dense.values[:, :10]).abs().max(),
        (T.gather(1, top.ids) - dense.values[:, :10]).abs().max(),
        (scan.eigenvalues(A, B).abs() - largest).abs().max() / largest.max().clamp_min(1e-300),
        scan.copying_score(A, B) - values.real.sum() / values.abs().sum().clamp_min(1e-300),
    )
    return max(abs(e.item()) for e in errors)


def hidden_share(model: Transformer) -> Float[Tensor, " heads"]:
    """The share of ||T||^2 that is constant along rows of T, the token QK table: softmax is blind.

    ||A B||^2 = tr(A^T A  B B^T) and the row means of A B are A times the mean column of B.
    """
    shares = []
    for at in np.ndindex(model.cfg.n_layers, model.cfg.n_heads):
        A, B = inputs.qk_factors(model, *at, centre=False, dtype=torch.float64)
        energy = ((A.mT @ A) * (B @ B.mT)).sum()
        constant = (A @ B.mean(-1, keepdim=True)).square().sum() * B.shape[-1]
        shares.append(constant / energy.clamp_min(1e-300))
    return torch.stack(shares)
