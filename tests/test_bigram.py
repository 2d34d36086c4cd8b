"""Counting pairs sparsely and comparing a model's table with them; by hand and by brute force."""

import numpy as np
import pytest
import torch

from circuitbook import bigram


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def dense(windows, vocabulary):
    counts = np.zeros((vocabulary, vocabulary))
    for row in windows:
        for a, b in zip(row[:-1], row[1:]):
            counts[a, b] += 1
    return counts


@pytest.fixture(scope="module")
def pairs_and_counts():
    windows = np.random.default_rng(0).integers(0, 7, (5, 30)).astype(np.uint16)
    return windows, bigram.count_pairs(windows, 9), dense(windows, 9)


def test_sparse_counts_are_the_dense_ones(pairs_and_counts):
    windows, pairs, counts = pairs_and_counts
    assert np.array_equal(pairs.count, counts[pairs.source, pairs.target])
    assert pairs.total == counts.sum() == 5 * 29
    p = counts / counts.sum()
    single, seen = p.sum(0)[p.sum(0) > 0], counts > 0
    given = (counts / np.maximum(counts.sum(1, keepdims=True), 1))[seen]
    h1, h2 = bigram.entropies(pairs)
    assert h1 == pytest.approx(-(single * np.log(single)).sum())
    assert h2 == pytest.approx(-(p[seen] * np.log(given)).sum())
    assert h2 < h1
    with pytest.raises(ValueError, match="between 0 and 4"):
        bigram.count_pairs(windows, 5)
    with pytest.raises(ValueError, match="two tokens"):
        bigram.count_pairs(windows[:, :1], 9)


def test_the_texts_own_table_has_no_divergence_and_single_counts_reach_the_other_end():
    text = np.array([0, 1, 0, 1, 2, 0, 2, 1, 0, 1, 2, 0])
    pairs = bigram.count_pairs(text, 3)
    h1, h2 = bigram.entropies(pairs)
    rows = torch.from_numpy(dense(text[None], 3) + 1e-12).log()
    own = bigram.fit(pairs, torch.eye(3).double(), rows)
    assert own.loss == pytest.approx(h2, abs=1e-9) and own.kl == pytest.approx(0, abs=1e-9)
    column = torch.from_numpy(np.bincount(pairs.target, pairs.count)).log()[None]
    assert bigram.fit(pairs, torch.ones(3, 1).double(), column).loss == pytest.approx(h1)


@pytest.mark.parametrize("rows", [1, 4, 512])
def test_loss_minus_entropy_is_the_mean_divergence(pairs_and_counts, rows):
    _, pairs, counts = pairs_and_counts
    A, B = torch.randn(9, 3, generator=gen()).double(), torch.randn(3, 9, generator=gen(1)).double()
    fit = bigram.fit(pairs, A, B, rows)
    log_q = (A @ B).log_softmax(-1).numpy()
    p = counts / counts.sum(1, keepdims=True).clip(1)
    kl = sum(
        counts[a].sum() / counts.sum() * (p[a, b] * (np.log(p[a, b]) - log_q[a, b]))
        for a, b in zip(*np.nonzero(counts))
    )
    assert fit.kl == pytest.approx(kl, abs=1e-12)
    assert fit.loss - bigram.entropies(pairs)[1] == pytest.approx(kl, abs=1e-12)
    assert np.array_equal(fit.best, log_q.argmax(-1))


def test_rows_and_continuations_by_hand():
    text = np.array([0, 1, 0, 1, 0, 2, 0, 1, 0, 2, 1, 2])
    pairs = bigram.count_pairs(text, 3)
    assert bigram.continuations(pairs, 0, 2) == [(1, 0.6), (2, 0.4)]
    perfect = bigram.fit(
        pairs, torch.eye(3), torch.from_numpy(dense(text[None], 3) + 1e-9).log().float()
    )
    found = bigram.agreement(pairs, perfect, seen=1)
    assert found.correlation == pytest.approx(1) and found.same_best == 1
    with pytest.raises(ValueError, match="lower"):
        bigram.agreement(pairs, perfect, seen=50)
