"""The laws that answers of chapter 05 must obey."""

import torch

from circuitbook import compose, gauge
from circuitbook.check import checker, draw, near, torch_generator
from circuitbook.checks.draws import pick


@checker("05.covariance_shares")
def covariance_shares(fn):
    parts = draw(3, 7, 7)
    per_query = 50 * draw(3, 7, 1, seed=1)
    ahead = 9 * draw(3, 7, 7, seed=2).triu(1)
    hand = torch.tensor([[[0.0, 9], [1, 3]], [[5, 9], [0, 6]]], dtype=torch.float64)

    yield "the shares sum to one", lambda: near(sum(torch.as_tensor(fn(parts)).tolist()), 1, 1e-9)
    yield (
        "a two-token case by hand: slopes of 2 and 6 give a quarter and three quarters",
        lambda: near(fn(hand), [0.25, 0.75], 1e-9),
        "Only the second query has two keys. Its parts vary by 2 and 6, the whole by 8.",
    )
    yield (
        "a constant per query changes nothing",
        lambda: near(fn(parts + per_query), fn(parts), 1e-7),
        "Subtract from each row its mean over the keys that the query may see.",
    )
    yield (
        "keys that a query may not see change nothing",
        lambda: near(fn(parts + ahead), fn(parts), 1e-9),
        "Query i sees keys 0 ... i. Leave the others out of the means too.",
    )
    yield "twice the scores, the same shares", lambda: near(fn(2 * parts), fn(parts), 1e-9)

    def slowly():
        together = torch.zeros(3, dtype=torch.float64)
        for i in range(7):
            rows = parts[:, i, : i + 1]
            rows = rows - rows.mean(1, keepdim=True)
            together += (rows * rows.sum(0)).mean(1)
        return together / together.sum()

    yield (
        "it equals the sum over queries, one by one",
        lambda: near(fn(parts), slowly(), 1e-9),
        "Each query's covariance is a mean over its own number of keys.",
    )


@checker("05.k_score")
def k_score(fn):
    e = torch.eye(8, dtype=torch.float64)
    planted = e[:, :2], e[2:4], e[:, 4:6], e[:, 2:4]  # writes where the key reads
    V, O, Q, K = draw(12, 3), draw(3, 12, seed=1), draw(12, 3, seed=2), draw(12, 3, seed=3)
    R = gauge.invertible(3, 3, generator=torch_generator(4))
    back = torch.linalg.inv(R)

    yield (
        "a pair tuned to compose through keys scores 1/√2",
        lambda: near(fn(*planted), 0.5**0.5, 1e-6),
        "The key is the second factor of W_QK, so the earlier head's write meets W_QK^T.",
    )
    yield (
        "the same pair read by queries instead scores zero",
        lambda: near(fn(*planted[:2], planted[3], planted[2]), 0.0, 1e-6),
    )
    yield (
        "five times the writer or the reader, the same score",
        lambda: near(fn(V, 5 * O, Q, 5 * K), fn(V, O, Q, K), 1e-6),
    )
    yield (
        "other head coordinates, the same score",
        lambda: near(fn(V @ R, back @ O, Q @ R, K @ back.mT), fn(V, O, Q, K), 1e-6),
        "A norm of a product of inner factors, turned round, is another number.",
    )
    yield (
        "it equals the definition, entry by entry",
        lambda: near(
            fn(V, O, Q, K),
            (V @ O @ K @ Q.mT).square().sum().sqrt().item()
            / ((V @ O).square().sum() * (Q @ K.mT).square().sum()).sqrt().item(),
            1e-6,
        ),
    )


def _widths():
    return {"narrow": 4 * pick(16, 14, 19, seed=0), "wide": 4 * pick(25, 22, 30, seed=1)}


def _weights(fn, d):
    W = tuple(torch.as_tensor(w).double() for w in fn(d))
    if len(W) != 4 or any(tuple(w.shape) != (d, d) for w in W):
        raise ValueError(f"return W_V, W_O, W_Q, W_K, each {d} by {d}")
    return W


def _score(fn, d):
    V, O, Q, K = (w[None] for w in _weights(fn, d))
    return compose.pair_scores(V, O, K, Q.mT).item()


def _causal(scores):
    return scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf).softmax(-1)


def _stream(W, d, seed, n=24):
    """(queries, stream, first head's write, W_K) on random vectors whose coordinate 0 is one."""
    V, O, Q, K = W
    x = draw(n, d, seed=seed)
    x[:, 0] = 1
    write = _causal(draw(n, n, seed=seed + 50)) @ x @ V @ O
    return (x + write) @ Q, x, write, K


def _varies(fn, d, seed=0):
    """How much the edge's score term differs between the keys of a query, over its largest size."""
    q, _, write, K = _stream(_weights(fn, d), d, seed)
    table = q @ (write @ K).mT
    return ((table - table[:, :1]).tril().abs().max() / table.abs().max()).item()


def _effect(fn, d, seeds):
    """Mean over texts and queries of half the summed change of the pattern under the K-cut."""
    W, total = _weights(fn, d), 0.0
    for seed in seeds:
        q, x, write, K = _stream(W, d, seed)
        with_it, without = (_causal(q @ (k @ K).mT / d**0.5) for k in (x + write, x))
        total += (with_it - without).abs().sum(-1)[1:].mean().item() / 2
    return total / len(seeds)


# One text may miss a quiet pair by chance. Seeds of queries are these and 50 more.
TEXTS = {"eight texts": range(8), "eight other texts": range(8, 16)}


@checker("05.blind_pair")
def blind_pair(fn):
    for kind, d in _widths().items():
        yield (
            f"in a {kind} stream the K-score is at least five times the baseline",
            lambda d=d: _score(fn, d) >= 5 / d**0.5,
            "Let the later head's keys read the coordinate that the first head writes.",
        )
        yield (
            f"the later head reads: no matrix is zero ({kind})",
            lambda d=d: all(w.abs().max() > 0 for w in _weights(fn, d)),
        )
        yield (
            f"the edge adds the same to all scores of a query, however loud it is ({kind})",
            lambda d=d: _varies(fn, d) < 1e-9,
            "Small is not blind. The write itself must be equal at all keys.",
        )
        for texts, seeds in TEXTS.items():
            yield (
                f"cutting the edge moves no attention weight ({kind} stream, {texts})",
                lambda d=d, seeds=seeds: _effect(fn, d, seeds) < 1e-6,
                "The write must be equal at all keys. What is equal in all stream vectors?",
            )


@checker("05.quiet_pair")
def quiet_pair(fn):
    for kind, d in _widths().items():
        yield (
            f"in a {kind} stream the K-score is above zero and below the baseline",
            lambda d=d: 1e-12 < _score(fn, d) < 1 / d**0.5,
            "The score divides by the whole write. Let most of the write go where nobody reads.",
        )
        for texts, seeds in TEXTS.items():
            yield (
                f"cutting the edge moves a fifth of the attention ({kind} stream, {texts})",
                lambda d=d, seeds=seeds: _effect(fn, d, seeds) >= 0.2,
                "The score does not see how loud W_Q and W_K are. The softmax does.",
            )
