"""Scores that say what an attention head does, and the batches they are measured on.

Every score reads a pattern `[..., head, query, key]` whose rows sum to one, averages over
queries, and keeps the leading axes, so that errors can be clustered by document afterwards.
Position 0 holds the begin-of-sequence token. Needs torch only: the trainer uses this file.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from circuitbook import paths

with suppress(ModuleNotFoundError):  # the trainer may run without it; annotations are text here
    from jaxtyping import Bool, Float, Int

KINDS = ("uniform", "first", "previous", "duplicate", "fixed_offset", "induction")


# ---------------------------------------------------------------- scores on patterns


def previous_token_score(
    pattern: Float[Tensor, "*lead head pos pos"],
) -> Float[Tensor, "*lead head"]:
    """score = mean over queries t >= 2 of A[t, t-1].

    Query 0 has no previous token. Query 1 has only the begin-of-sequence token before it, where
    every idle head rests, so counting it would flatter them. Both are left out.

    Raises ValueError for patterns with fewer than three positions.
    Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits".
    """
    if pattern.shape[-1] < 3:
        raise ValueError(f"needs at least 3 positions, got a pattern {tuple(pattern.shape)}")
    return pattern.diagonal(offset=-1, dim1=-2, dim2=-1)[..., 1:].mean(-1)


def earlier_copies(tokens: Int[Tensor, "*lead pos"]) -> Bool[Tensor, "*lead pos pos"]:
    """mask[t, j] = (token j = token t) and j < t: where the current token stood before."""
    same = tokens.unsqueeze(-1) == tokens.unsqueeze(-2)
    return same.tril(diagonal=-1)


def after_earlier_copies(tokens: Int[Tensor, "*lead pos"]) -> Bool[Tensor, "*lead pos pos"]:
    """mask[t, j] = (token j-1 = token t) and 1 <= j < t: the positions just after earlier copies.

    j = t is left out. It would say that the token at t-1 equals the token at t, and attending to
    oneself is not looking back.
    """
    same = tokens.unsqueeze(-1) == tokens.unsqueeze(-2)  # [t, j]
    shifted = torch.zeros_like(same)
    shifted[..., :, 1:] = same[..., :, :-1]  # column j now holds: token j-1 equals token t
    return shifted.tril(diagonal=-1)


def _mean_over_matches(pattern: Tensor, mask: Tensor, wanted: str) -> Tensor:
    """Mean over queries that have a wanted key, of the attention summed over those keys."""
    if (n := pattern.shape[-1]) != mask.shape[-1]:
        raise ValueError(f"pattern has {n} positions, tokens {mask.shape[-1]}: mixed runs")
    queries = mask.any(-1)  # [*lead, pos]
    n_queries = queries.sum(-1)
    if bool((n_queries == 0).any()):
        raise ValueError(f"a sequence has no query with {wanted}: use tokens that repeat")
    hit = torch.einsum("...hqk,...qk->...h", pattern, mask.to(pattern.dtype))
    return hit / n_queries.unsqueeze(-1).to(pattern.dtype)


def prefix_matching_score(
    pattern: Float[Tensor, "*lead head pos pos"], tokens: Int[Tensor, "*lead pos"]
) -> Float[Tensor, "*lead head"]:
    """score = mean over queries t of the sum of A[t, j] over j < t with token j-1 = token t.

    All earlier copies count. Queries whose token never occurred earlier do not count.
    A pattern that always attends to a fixed offset scores 1 when all repeats have the same gap, so
    measure on `repeated_batch`, whose gap differs between sequences.

    Raises ValueError when a sequence has no repeated token, or when the lengths differ.
    Source: Olsson et al. 2022, "In-context Learning and Induction Heads" (prefix matching score).
    """
    return _mean_over_matches(
        pattern, after_earlier_copies(tokens), "an earlier copy to look after"
    )


def duplicate_token_score(
    pattern: Float[Tensor, "*lead head pos pos"], tokens: Int[Tensor, "*lead pos"]
) -> Float[Tensor, "*lead head"]:
    """score = mean over queries t of the sum of A[t, j] over j < t with token j = token t.

    Queries whose token never occurred earlier do not count.
    Raises ValueError when a sequence has no repeated token, or when the lengths differ.
    Source: Wang et al. 2023, "Interpretability in the Wild" (duplicate token heads).
    """
    return _mean_over_matches(pattern, earlier_copies(tokens), "an earlier copy")


def stripe_score(
    pattern: Float[Tensor, "*lead head pos pos"], period: int
) -> Float[Tensor, "*lead head"]:
    """score = mean over the queries t of the second copy of A[t, t-(period-1)]: one diagonal.

    The layout is `published_batch("2x50", ...)`: position 0, then a block of `period` tokens twice.
    Second-copy queries are t = period+1 ... 2*period. A fixed-offset head scores 1 here.
    Raises ValueError when the pattern is shorter than 2*period + 1.
    """
    if period < 1 or pattern.shape[-1] < 2 * period + 1:
        raise ValueError(
            f"period {period} needs at least {2 * period + 1} positions, got {pattern.shape[-1]}"
        )
    stripe = pattern.diagonal(offset=-(period - 1), dim1=-2, dim2=-1)  # i is query i + period-1
    return stripe[..., 2 : period + 2].mean(-1)


# ---------------------------------------------------------------- batches of repeats


class RepeatedBatch(NamedTuple):
    """Sequences that hold one block several times; `second - first` is the offset of each."""

    tokens: Int[Tensor, "n pos"]
    first: Int[Tensor, "n block"]  # positions of the block's first copy
    second: Int[Tensor, "n block"]  # positions of the same tokens in the second copy
    gap: Int[Tensor, "n gaps"]  # filler tokens before each later copy


def start_token() -> int:
    """The id of the begin-of-sequence token in today's model set: 0 for the course's own models."""
    if paths.models() == "course":
        return 0
    from circuitbook import tokenizer

    return tokenizer.load().bos


def _distinct(vocab_ids: Tensor, n: int, length: int, generator: torch.Generator | None) -> Tensor:
    """[n, length] ids; within a row all are distinct and every order is equally likely."""
    keys = torch.rand(n, vocab_ids.numel(), generator=generator)
    return vocab_ids[keys.argsort(-1)[:, :length]]


def repeated_batch(
    vocab_ids: Int[Tensor, " pool"],
    n: int,
    *,
    copies: int = 4,
    block: int = 25,
    gap: tuple[int, int] = (16, 79),
    bos: int | None = None,
    generator: torch.Generator | None = None,
) -> RepeatedBatch:
    """Course protocol: BOS, a block, then filler of jittered length and the block again, 3 times.

    This is the published 4 x 25 protocol with frequent tokens and a jittered gap. All tokens of a
    sequence except the later copies are distinct, so the queries of the later copies are exactly
    the queries that have a match. Each gap g (filler tokens before a copy) runs over `gap` (both
    ends included) in a random order without repeats until all values are used, so no fixed offset
    fits more than a few sequences. With `copies=2` a fixed-offset head scores at most 1/n_values
    for n = n_values. With `gap=(g, g)` the jitter is off and one such head scores 1.

    vocab_ids: distinct frequent tokens to draw from (without BOS), at least
    block + (copies - 1) * gap[1] of them; filler at the end brings all sequences to the length
    1 + copies * block + (copies - 1) * gap[1]. bos: by default `start_token()`.
    Raises ValueError for a pool too small, repeated ids, BOS in the pool, or an empty gap range.
    Source: Olsson et al. 2022 (4 x 25, no gap); the jitter is this course's.
    """
    (low, high), bos = gap, start_token() if bos is None else bos
    pool = torch.as_tensor(vocab_ids).flatten().cpu()
    if n < 1 or block < 2 or copies < 2 or low < 0 or high < low:
        raise ValueError(
            "needs n >= 1, copies >= 2, block >= 2 and 0 <= gap[0] <= gap[1], "
            f"got {n}, {copies}, {block}, {gap}"
        )
    if pool.unique().numel() != pool.numel() or bool((pool == bos).any()):
        raise ValueError("vocab_ids must be distinct and must not hold the begin-of-sequence token")
    distinct = block + (copies - 1) * high
    if pool.numel() < distinct:
        raise ValueError(
            f"needs {distinct} distinct tokens (block + longest gaps), got {pool.numel()}"
        )
    drawn = _distinct(pool, n, distinct, generator)  # [n, distinct]: the block, then all filler
    n_values = high - low + 1
    rounds = [torch.randperm(n_values, generator=generator) for _ in range(-(-n // n_values))]
    gaps = torch.cat(rounds)[:n]
    shuffles = [torch.randperm(n, generator=generator) for _ in range(copies - 2)]
    gaps = torch.stack([gaps, *(gaps[order] for order in shuffles)], dim=1)
    gaps = low + gaps  # [n, copies - 1]
    starts = torch.arange(1, copies) * block + gaps.cumsum(1)  # of later copies, BOS not counted
    p = torch.arange(distinct + (copies - 1) * block).expand(n, -1)
    begun = (p.unsqueeze(-1) >= starts.unsqueeze(1)).sum(-1)  # later copies begun up to p
    latest = torch.cat([torch.zeros(n, 1, dtype=starts.dtype), starts], 1).gather(1, begun)
    column = torch.where(p < latest + block, p - latest, p - begun * block)
    tokens = torch.cat([torch.full((n, 1), bos, dtype=drawn.dtype), drawn.gather(1, column)], 1)
    first = (1 + torch.arange(block)).expand(n, -1).contiguous()
    return RepeatedBatch(tokens, first, 1 + starts[:, :1] + torch.arange(block), gaps)


PUBLISHED = {"4x25": (4, 25), "2x50": (2, 50)}  # protocol: copies, block


def published_batch(
    protocol: str,
    vocab_ids: Int[Tensor, " pool"],
    n: int,
    *,
    bos: int | None = None,
    generator: torch.Generator | None = None,
) -> RepeatedBatch:
    """Published protocols: BOS, then one random block repeated with no filler, 4 x 25 or 2 x 50.

    Tokens of a block are drawn with replacement, as published. Score "4x25" with
    `prefix_matching_score` (all earlier copies count) and "2x50" with `stripe_score(.., 50)`.
    `first` and `second` are the positions of copies 1 and 2. The gap is 0.

    A head that attends a fixed number of tokens back scores 1 on both.
    Raises ValueError for an unknown protocol.
    Source: Olsson et al. 2022 (4 x 25); TransformerLens and ARENA tutorials (2 x 50).
    """
    if protocol not in PUBLISHED:
        raise ValueError(f"unknown protocol {protocol!r}: choose one of {sorted(PUBLISHED)}")
    copies, block = PUBLISHED[protocol]
    pool = torch.as_tensor(vocab_ids).flatten().cpu()
    drawn = pool[torch.randint(pool.numel(), (n, block), generator=generator)]
    head = torch.full((n, 1), start_token() if bos is None else bos, dtype=drawn.dtype)
    first = (1 + torch.arange(block)).expand(n, -1).contiguous()
    gaps = torch.zeros(n, copies - 1, dtype=torch.long)
    return RepeatedBatch(torch.cat([head, drawn.repeat(1, copies)], 1), first, first + block, gaps)


# ---------------------------------------------------------------- patterns with known answers


def synthetic_pattern(
    kind: str, tokens: Int[Tensor, "n pos"], *, offset: int | None = None
) -> Float[Tensor, "n 1 pos pos"]:
    """A pattern whose scores are known: one head that follows one rule, rows summing to one.

    kind: "uniform" (every allowed key alike), "first" (always position 0), "previous" (t-1),
    "duplicate" (earlier copies of the current token), "fixed_offset" (`offset` positions back,
    whatever the tokens are), "induction" (just after earlier copies: the ideal head).
    Where a rule has no key, the head rests on position 0. Float64, one head.

    Raises ValueError for an unknown kind, and for fixed_offset without a positive offset.
    """
    n, length = tokens.shape
    ones = torch.ones(length, length, dtype=torch.bool)
    if kind == "uniform":
        mask = ones.tril().expand(n, -1, -1)
    elif kind == "first":
        mask = torch.zeros(n, length, length, dtype=torch.bool)
    elif kind in ("previous", "fixed_offset"):
        back = 1 if kind == "previous" else offset
        if back is None or back < 1:
            raise ValueError(f"fixed_offset needs offset >= 1, got {offset}")
        mask = (ones.tril(-back) & ones.triu(-back)).expand(n, -1, -1)
    elif kind == "duplicate":
        mask = earlier_copies(tokens)
    elif kind == "induction":
        mask = after_earlier_copies(tokens)
    else:
        raise ValueError(f"unknown kind {kind!r}: choose one of {KINDS}")
    weight = mask.double()
    weight[..., 0] += (~mask.any(-1)).double()
    return (weight / weight.sum(-1, keepdim=True)).unsqueeze(1)


# ---------------------------------------------------------------- what a repeat does to the output


class RepeatEffect(NamedTuple):
    """Rank (1 is best) and loss (nats) of the right token at first and second copy, paired."""

    rank_first: Int[Tensor, "n pairs"]
    rank_second: Int[Tensor, "n pairs"]
    loss_first: Float[Tensor, "n pairs"]
    loss_second: Float[Tensor, "n pairs"]


def repeat_effect(
    logits: Float[Tensor, "n pos vocab"],
    tokens: Int[Tensor, "n pos"],
    first: Int[Tensor, "n block"],
    second: Int[Tensor, "n block"],
) -> RepeatEffect:
    """Rank and -log p of each block token but the first, at its first and second copy, paired.

    logits[:, t] predict token t+1, so the token at position s is read from logits[:, s-1].
    The block's first token is left out: what precedes its second copy is filler, so nothing in the
    text foretells it. Both columns hold the same tokens, so differences are paired.
    rank = number of words whose logit is at least the right one's. Ties count against the model,
    so constant logits give the rank of the last word.

    Raises ValueError when `first` and `second` do not hold the same tokens.
    Source: Elhage et al. 2021 (repeated random tokens). On random tokens a model can be worse than
    uniform even after the repeat, so rank and paired drop are reported, not the bare loss.
    """
    if not torch.equal(tokens.gather(1, first), tokens.gather(1, second)):
        raise ValueError("first and second hold different tokens: give those of the same batch")
    right = tokens.gather(1, first[:, 1:])  # [n, block-1]
    rows = torch.arange(tokens.shape[0], device=tokens.device).unsqueeze(-1)

    def read(at: Tensor) -> tuple[Tensor, Tensor]:
        here = logits[rows, at - 1]  # [n, block-1, vocab]
        correct = here.gather(-1, right.unsqueeze(-1))
        return (here >= correct).sum(-1), (here.logsumexp(-1) - correct.squeeze(-1))

    rank_1, loss_1 = read(first[:, 1:])
    rank_2, loss_2 = read(second[:, 1:])
    return RepeatEffect(rank_1, rank_2, loss_1, loss_2)


# ---------------------------------------------------------------- means with honest errors


class Estimate(NamedTuple):
    """A mean, its standard error, and the number of independent clusters behind it."""

    mean: float
    se: float
    n_clusters: int


def clustered_mean(values: Float[Tensor, " n"], cluster: Int[Tensor, " n"]) -> Estimate:
    """mean = sum x / n, se^2 = G/(G-1) * sum_g (sum_{i in g} (x_i - mean))^2 / n^2, G clusters.

    Windows cut from one document are not independent. The error therefore comes from sums within
    documents. With one window per document this is the usual s / sqrt(n).

    Raises ValueError for fewer than two clusters, or for lengths that differ.
    Source: Liang and Zeger 1986 (cluster-robust variance), for a mean.
    """
    if values.shape != cluster.shape or values.ndim != 1:
        raise ValueError(f"values {list(values.shape)}, cluster {list(cluster.shape)} must match")
    _, index = cluster.unique(return_inverse=True)
    n_clusters = int(index.max()) + 1 if index.numel() else 0
    if n_clusters < 2:
        raise ValueError(f"an error needs at least two documents, got {n_clusters}")
    x = values.detach().double()
    mean = x.mean()
    sums = torch.zeros(n_clusters, dtype=x.dtype, device=x.device).index_add_(0, index, x - mean)
    variance = sums.square().sum() * n_clusters / (n_clusters - 1) / x.numel() ** 2
    return Estimate(mean.item(), variance.sqrt().item(), n_clusters)


def paired_difference(
    a: Float[Tensor, " n"], b: Float[Tensor, " n"], cluster: Int[Tensor, " n"]
) -> Estimate:
    """mean of a_i - b_i over the same windows, errors clustered by document."""
    if a.shape != b.shape:
        raise ValueError(f"a {tuple(a.shape)} and b {tuple(b.shape)} must be the same windows")
    return clustered_mean(a.detach().double() - b.detach().double(), cluster)


def in_context_scores(
    loss: Float[Tensor, "window k"],
    early: tuple[int, int] = (41, 60),
    late: tuple[int, int] = (491, 510),
) -> Float[Tensor, " window"]:
    """score = mean of loss_k over k in `late` minus mean of loss_k over k in `early`, per window.

    loss[:, k-1] is the loss of predicting the k-th token after BOS (the model's
    `return_type="loss_per_token"`). Both ends of a range count. The defaults are the broad score;
    `early=(50, 50), late=(500, 500)` is the published single-index score. Negative is better.

    Raises ValueError when a range is empty or leaves the window.
    Source: Olsson et al. 2022 (500th minus 50th); broad windows: this course.
    """
    for low, high in (early, late):
        if not 1 <= low <= high <= loss.shape[-1]:
            raise ValueError(f"range ({low}, {high}) does not fit k = 1 ... {loss.shape[-1]}")
    x = loss.detach().double()
    return x[:, late[0] - 1 : late[1]].mean(-1) - x[:, early[0] - 1 : early[1]].mean(-1)


def in_context_score(
    loss: Float[Tensor, "window k"],
    doc: Int[Tensor, " window"],
    early: tuple[int, int] = (41, 60),
    late: tuple[int, int] = (491, 510),
) -> Estimate:
    """score = mean over windows of (late loss - early loss), errors clustered by document.

    For two models use `paired_difference(in_context_scores(a), in_context_scores(b), doc)`.
    """
    return clustered_mean(in_context_scores(loss, early, late), doc)
