"""Composition scores: dense formula, planted pairs, gauge, baseline."""

import math

import pytest
import torch

from circuitbook import compose


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def heads(n, d, r, dtype=torch.float64, seed=0):
    """Random W_Q, W_K, W_V [n, d, r] and W_O [n, r, d]."""
    g = gen(seed)
    W_Q, W_K, W_V = (torch.randn(n, d, r, generator=g, dtype=dtype) for _ in range(3))
    return W_Q, W_K, W_V, torch.randn(n, r, d, generator=g, dtype=dtype)


def dense(W_V, W_O, W_Q2, W_K2, W_V2, W_O2):
    """The definition, one pair at a time, with d_model x d_model matrices."""
    out = torch.zeros(3, W_V.shape[0], W_Q2.shape[0], dtype=W_V.dtype)
    for i in range(W_V.shape[0]):
        for j in range(W_Q2.shape[0]):
            OV = W_V[i] @ W_O[i]
            QK, OV2 = W_Q2[j] @ W_K2[j].T, W_V2[j] @ W_O2[j]
            for s, reader in enumerate((QK, QK.T, OV2)):
                out[s, i, j] = (OV @ reader).norm() / (OV.norm() * reader.norm())
    return out


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize(("d", "r"), [(24, 5), (6, 6), (4, 7)])
def test_equal_to_dense(dtype, atol, d, r):
    _, _, W_V, W_O = heads(3, d, r, dtype, 1)
    second = heads(4, d, r, dtype, 2)
    got = compose.composition_scores(W_V, W_O, *second)
    want = dense(W_V, W_O, *second)
    torch.testing.assert_close(torch.stack(list(got)), want, rtol=0, atol=atol)


def test_planted_k_only_pair_and_the_missing_transpose():
    d, r = 40, 4
    basis = torch.linalg.qr(torch.randn(d, d, generator=gen(), dtype=torch.float64))[0]
    W_V, W_O = basis[:, :r][None], basis[:, r : 2 * r].T[None]  # writes into block 1
    W_K2, W_Q2 = basis[:, r : 2 * r][None], basis[:, 2 * r : 3 * r][None]  # keys read block 1
    W_V2, W_O2 = basis[:, 3 * r : 4 * r][None], basis[:, :r].T[None]
    got = compose.composition_scores(W_V, W_O, W_Q2, W_K2, W_V2, W_O2)
    assert got.k.item() == pytest.approx(0.5)  # ||P|| / (sqrt(r) sqrt(r)) with r = 4
    assert got.q.item() < 1e-12
    assert got.v.item() < 1e-7  # the root of a rounded zero
    mutant_k = compose.pair_scores(W_V, W_O, W_Q2, W_K2.mT)  # K without the transpose is Q
    assert mutant_k.item() == got.q.item()
    assert abs(mutant_k.item() - got.k.item()) > 0.4


def test_order_of_factors_by_hand():
    # The series' example. A cyclic rotation keeps the trace and the eigenvalues, not the norm.
    X = torch.tensor([[1.0, 2, 0], [0, 1, 1]], dtype=torch.float64)
    Y = torch.tensor([[1.0, 0], [0, 1], [1, 1]], dtype=torch.float64)
    assert (X @ Y).trace() == (Y @ X).trace() == 3
    eye2, eye3 = torch.eye(2).double()[None], torch.eye(3).double()[None]
    scale = (X.norm() * Y.norm()).item()
    xy = compose.pair_scores(X[None], eye3, Y[None], eye2).item() * scale
    yx = compose.pair_scores(Y[None], eye2, X[None], eye3).item() * scale
    assert xy == pytest.approx(math.sqrt(10), abs=1e-12)
    assert yx == pytest.approx(math.sqrt(18), abs=1e-12)


def test_head_gauge_leaves_scores_alone():
    _, _, W_V, W_O = heads(3, 20, 4, seed=1)
    W_Q2, W_K2, W_V2, W_O2 = heads(3, 20, 4, seed=2)
    R = torch.randn(4, 3, 4, 4, generator=gen(3), dtype=torch.float64) + 3 * torch.eye(4)
    inv = torch.linalg.inv(R)
    before = compose.composition_scores(W_V, W_O, W_Q2, W_K2, W_V2, W_O2)
    after = compose.composition_scores(
        W_V @ R[0], inv[0] @ W_O, W_Q2 @ R[1], W_K2 @ inv[1].mT, W_V2 @ R[2], inv[2] @ W_O2
    )
    for x, y in zip(before, after, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-10)
    # An invertible change of the stream is not a gauge of the score: it moves.
    G = torch.diag(torch.linspace(0.1, 5, 20, dtype=torch.float64))
    stretched = compose.composition_scores(
        W_V, W_O @ G, torch.linalg.inv(G) @ W_Q2, W_K2, W_V2, W_O2
    )
    assert (stretched.q - before.q).abs().max() > 1e-2


def test_score_is_a_weighted_sum_of_squared_overlaps():
    _, _, W_V, W_O = heads(1, 18, 3, seed=4)
    W_Q2, W_K2, *_ = heads(1, 18, 3, seed=5)
    _, sigma, v = torch.linalg.svd(W_V[0] @ W_O[0])
    u, tau, _ = torch.linalg.svd(W_Q2[0] @ W_K2[0].T)
    squares = (sigma[:, None] * tau * (v @ u)).square().sum()
    want = squares / (sigma.square().sum() * tau.square().sum())
    got = compose.pair_scores(W_V, W_O, W_Q2, W_K2.mT).item() ** 2
    assert got == pytest.approx(want.item(), abs=1e-12)


def test_a_silent_head_scores_zero():
    _, _, W_V, W_O = heads(2, 10, 3)
    second = heads(2, 10, 3, seed=1)
    W_O[1] = 0
    got = compose.composition_scores(W_V, W_O, *second)
    assert (got.k[1] == 0).all() and (got.k[0] > 0).all()


def test_random_baseline():
    assert compose.random_baseline(256) == 0.0625
    full = compose.simulated(32, 256, 200, gen())
    assert full.mean().item() == pytest.approx(0.0625, abs=5e-4)
    assert full.std().item() < 0.003
    thin = compose.simulated(1, 256, 4000, gen(1))
    assert thin.square().mean().item() == pytest.approx(1 / 256, rel=0.1)  # exact in the mean
    assert 0.77 < thin.mean().item() * 16 < 0.83  # sqrt(2/pi)
    with pytest.raises(ValueError, match="rank"):
        compose.simulated(9, 8, 2)
