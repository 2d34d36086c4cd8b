"""A zero-layer model is a table of next-token probabilities; this file compares it with the text's.

The text's table has d_vocab^2 entries, nearly all zero, so pairs are counted sparsely. The model's
table has none that is zero; it is made a few rows at a time and never kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from circuitbook import paths, tokenizer, zoo
from circuitbook.display import token as visible
from circuitbook.model import Transformer

ROWS = 512  # 512 rows of 4,096 float64 numbers are 17 MB


class Pairs(NamedTuple):
    """How often `target` stands right after `source`; ordered by source, then target; no zeros."""

    source: Int[np.ndarray, " pairs"]
    target: Int[np.ndarray, " pairs"]
    count: Int[np.ndarray, " pairs"]

    @property
    def total(self) -> int:
        """N, the number of predictions."""
        return int(self.count.sum())

    def share(self) -> Float[np.ndarray, " pairs"]:
        """p(source, target) = n / N."""
        return self.count / self.total

    def log_conditional(self) -> Float[np.ndarray, " pairs"]:
        """log p(target | source) = log n(source, target) - log n(source)."""
        rows = np.bincount(self.source, self.count)
        return np.log(self.count) - np.log(rows[self.source])


def count_pairs(tokens: Integer[np.ndarray, "*windows length"], d_vocab: int) -> Pairs:
    """n(a, b) = number of places with a followed by b; pairs never cross from one row to the next.

    One sort of the pairs: memory 4 bytes each, no d_vocab x d_vocab table.
    Raises ValueError for ids outside the vocabulary, or when nothing has a next token.
    """
    tokens = np.atleast_2d(np.asarray(tokens))
    if tokens.shape[-1] < 2:
        raise ValueError(f"a pair needs two tokens in a row, got shape {tokens.shape}")
    if int(tokens.min()) < 0 or int(tokens.max()) >= d_vocab:
        raise ValueError(f"token ids must lie between 0 and {d_vocab - 1}")
    key = tokens[..., :-1].astype(np.uint32) * np.uint32(d_vocab) + tokens[..., 1:]
    key, count = np.unique(key.ravel(), return_counts=True)
    return Pairs((key // d_vocab).astype(np.int64), (key % d_vocab).astype(np.int64), count)


def entropies(pairs: Pairs) -> tuple[float, float]:
    """(H1, H2) in nats: -sum p(b) log p(b) over targets, and -sum p(a, b) log p(b | a).

    Plug-in entropies: the counts are taken for probabilities. So they belong to this text, and on
    a short text H2 is far below the entropy of the language.
    """
    p = np.bincount(pairs.target, pairs.count)
    p = p[p > 0] / pairs.total
    return float(-(p * np.log(p)).sum()), float(-(pairs.share() * pairs.log_conditional()).sum())


class Fit(NamedTuple):
    """Cross-entropy of a table on the pairs, mean KL, the model's log-probability of each pair."""

    loss: float
    kl: float
    log_q: Float[np.ndarray, " pairs"]
    best: Int[np.ndarray, " d_vocab"]  # the table's likeliest continuation of each token


@torch.no_grad()
def fit(
    pairs: Pairs, A: Float[Tensor, "d_vocab d"], B: Float[Tensor, "d d_vocab"], rows: int = ROWS
) -> Fit:
    """loss = -sum p(a, b) log q(b | a), kl = sum p(a) KL(p(.|a) || q(.|a)), q = softmax(A B).

    loss - H2 = kl >= 0 for every table q, trained or not (Gibbs). loss <= H1 needs a good one.
    Log-probabilities in float64, `rows` rows at a time.
    """
    log_q = np.empty(len(pairs.count))
    best = np.empty(len(A), dtype=np.int64)
    for low in range(0, len(A), rows):
        table = (A[low : low + rows] @ B).double().log_softmax(-1).cpu().numpy()
        best[low : low + rows] = table.argmax(-1)
        at = slice(*np.searchsorted(pairs.source, [low, low + rows]))
        log_q[at] = table[pairs.source[at] - low, pairs.target[at]]
    p = pairs.share()
    kl = float((p * (pairs.log_conditional() - log_q)).sum())
    return Fit(float(-(p * log_q).sum()), kl, log_q, best)


class Agreement(NamedTuple):
    """How a table's rows compare with the text's, on pairs counted at least `seen` times."""

    correlation: float
    pairs: int
    same_best: float


def agreement(pairs: Pairs, fitted: Fit, seen: int = 50) -> Agreement:
    """Pearson correlation of log p and log q, and how often both name the same likeliest word.

    correlation: over pairs with count >= seen, each once. same_best: each source token weighs as
    often as it occurs. Raises ValueError when fewer than three pairs are that frequent.
    """
    often = pairs.count >= seen
    if often.sum() < 3:
        raise ValueError(f"only {often.sum()} pairs occur {seen} times: lower `seen`")
    correlation = np.corrcoef(pairs.log_conditional()[often], fitted.log_q[often])[0, 1]
    source, start = np.unique(pairs.source, return_index=True)  # pairs are ordered by source
    most = np.repeat(
        np.maximum.reduceat(pairs.count, start), np.diff(start, append=len(pairs.count))
    )
    top = np.flatnonzero(pairs.count == most)
    best = pairs.target[top[np.unique(pairs.source[top], return_index=True)[1]]]
    weight = np.add.reduceat(pairs.count, start)
    same = (weight * (fitted.best[source] == best)).sum() / weight.sum()
    return Agreement(float(correlation), int(often.sum()), float(same))


def run_loss(model: Transformer, windows: Integer[np.ndarray, "n length"], batch: int = 8) -> float:
    """The model's mean loss on windows by running it, with no counting: nats per prediction."""
    parts = torch.from_numpy(np.asarray(windows).astype(np.int64)).split(batch)
    return torch.cat([model(p, return_type="loss_per_token").double() for p in parts]).mean().item()


def continuations(pairs: Pairs, source: int, k: int = 3) -> list[tuple[int, float]]:
    """The k commonest words after `source`, with their shares; ties by token id."""
    low, high = np.searchsorted(pairs.source, [source, source + 1])
    count, target = pairs.count[low:high], pairs.target[low:high]
    order = np.lexsort((target, -count))[:k]
    return [(int(target[i]), float(count[i] / count.sum())) for i in order]


def top_rows(
    pairs: Pairs, A: Float[Tensor, "d_vocab d"], B: Float[Tensor, "d d_vocab"], words: list[str]
) -> list[dict[str, str]]:
    """For each word its three likeliest successors, with probabilities, in the text and the table.

    Words are single tokens, with their leading blank. Ready to be printed.
    """
    tok, rows = tokenizer.load(), []

    def words_of(found: Iterable[tuple[int, float]]) -> str:
        return ", ".join(f"{visible(tok.decode([i]))} {p:.2f}" for i, p in found)

    for word in words:
        source = tok.token(word)
        p, ids = (A[source] @ B).softmax(-1).topk(3)
        text = words_of(continuations(pairs, source))
        table = words_of(zip(ids.tolist(), p.tolist(), strict=True))
        rows.append({"after": visible(word), "in the text": text, "in the model": table})
    return rows


# First words of the pairs that a public measurement of the published model printed.
PAIRS = " United| according| Hong| import| prime| New| San| Barack".split("|")


@torch.no_grad()
def direct_path(model: Transformer, words: list[str]) -> list[tuple[str, str, float]]:
    """(word, its likeliest successor, probability) by softmax(Norm(W_E[word]) W_U + b_U).

    The logits of the model if no head wrote and no position stood in the stream. With LayerNorm the
    embedding is divided by its own scale, not by that of a text's stream. The biases b_O, which a
    text's stream always holds, are left out. Words that are not one token are left out too.
    """
    tok, out = tokenizer.load(), []
    for word in words:
        if len(tok.encode(word, bos=False)) == 1:
            x = model.W_E[tok.token(word)][None, None]  # [batch, pos, d_model]
            row = model.unembed(model.ln_final(x))[0, 0]
            p, best = row.softmax(-1).max(-1)
            out.append((word, tok.decode([best]), p.item()))
    return out


def series() -> dict[str, dict]:
    """{"series": ...}: the public row about the direct path; nothing for the course's models."""
    if paths.models() == "course":
        return {}
    return {"series": {"heads.attn-only-1l.bigrams": direct_path(zoo.load("attn-only-1l"), PAIRS)}}


def study(
    roles: list[str], text: Integer[np.ndarray, " n"], counted: int, seed: int
) -> tuple[dict, float]:
    """(numbers, error of loss - H2 = mean KL) for the roles' direct paths as tables.

    The first role's model has no layers. The error compares its loss when it is run on `counted`
    windows of the text with what the counts of the same windows say. All other numbers come from
    the whole text.
    points: 400 pairs counted at least 50 times, log-probabilities in the text and in each table.
    """
    vocabulary = tokenizer.load().vocab_size
    windows = np.asarray(text[: counted * 512]).reshape(-1, 512)
    small, pairs = count_pairs(windows, vocabulary), count_pairs(text, vocabulary)
    often = np.flatnonzero(pairs.count >= 50)
    some = np.random.default_rng(seed).choice(often, 400, replace=False)
    tables, points = {}, {"text": pairs.log_conditional()[some]}
    models = {role: zoo.load(role) for role in roles}
    for role, model in models.items():
        table = fit(pairs, model.W_E, model.W_U)
        tables[role] = {"loss": table.loss, **agreement(pairs, table)._asdict()}
        points[role] = table.log_q[some]
    first = models[roles[0]]
    kl = fit(small, first.W_E, first.W_U).kl
    H1, H2 = entropies(pairs)
    top = top_rows(pairs, first.W_E, first.W_U, [" Aunt", " Mr", " said", " March"])
    numbers = {"tables": tables, "points": points, "top": top, "H1": H1, "H2": H2}
    return numbers | {"run_on": small.total}, run_loss(first, windows) - entropies(small)[1] - kl
