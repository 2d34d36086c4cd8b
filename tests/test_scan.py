"""Full-vocabulary scans: equal to dense tables, the same at every chunk size, ties included."""

import pytest
import torch

from circuitbook import scan


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def weights(v=512, d=40, r=8, dtype=torch.float64, seed=0):
    g = gen(seed)
    W_E, W_Q, W_K, W_V = (
        torch.randn(*shape, generator=g, dtype=dtype) for shape in ((v, d), (d, r), (d, r), (d, r))
    )
    W_O, W_U = (torch.randn(*shape, generator=g, dtype=dtype) for shape in ((r, d), (d, v)))
    return W_E, W_Q, W_K, W_V, W_O, W_U + 0.3  # deliberately not centred


def dense_ov(W_E, W_V, W_O, W_U):
    return W_E @ (W_V @ W_O) @ (W_U - W_U.mean(1, keepdim=True))


def dense_rank(T):
    own = T.diagonal().unsqueeze(1)
    return (T >= own).sum(1)  # includes itself, so rank 1 is best


def dense_top(T, k):
    """By value and then by id: a stable descending sort."""
    values, ids = T.sort(dim=1, descending=True, stable=True)
    return values[:, :k], ids[:, :k]


@pytest.fixture(scope="module")
def ov():
    W_E, _, _, W_V, W_O, W_U = weights()
    return scan.ov_factors(W_E, W_V, W_O, W_U), dense_ov(W_E, W_V, W_O, W_U)


# ---------------------------------------------------------------- against dense tables


def test_factors_are_the_table(ov):
    (A, B), T = ov
    torch.testing.assert_close(A @ B, T, rtol=0, atol=1e-10)


def test_top_k_equals_dense(ov):
    (A, B), T = ov
    for k in (1, 10, 40):
        values, ids = dense_top(T, k)
        got = scan.top_k(A, B, k)
        torch.testing.assert_close(got.values, values, rtol=0, atol=1e-9)
        assert torch.equal(got.ids, ids)


def test_self_rank_equals_dense(ov):
    (A, B), T = ov
    rank = scan.self_rank(A, B)
    assert torch.equal(rank, dense_rank(T))
    assert scan.self_shares(rank) == {
        k: (dense_rank(T) <= k).double().mean().item() for k in (1, 10)
    }
    # mutants: the transposed table, and the own column shifted by one
    assert not torch.equal(rank, dense_rank(T.T))
    assert not torch.equal(rank, dense_rank(T.roll(1, 1)))


def test_eigenvalues_equal_dense(ov):
    (A, B), T = ov
    want = torch.linalg.eigvals(T)
    want = want[want.abs().argsort(descending=True)][: A.shape[1]]
    got = scan.eigenvalues(A, B)
    key = lambda z: (z.real * 1e3 + z.imag).sort().values  # noqa: E731  conjugates may swap
    torch.testing.assert_close(key(got), key(want), rtol=0, atol=1e-6)
    full = torch.linalg.eigvals(T)
    score = (full.real.sum() / full.abs().sum()).item()
    assert scan.copying_score(A, B).item() == pytest.approx(score, abs=1e-9)


def test_rows_and_columns_can_be_chosen(ov):
    (A, B), T = ov
    rows = torch.tensor([500, 3, 3, 77, 410])
    columns = torch.arange(1, 512, 3)
    values, at = dense_top(T[rows][:, columns], 6)
    got = scan.top_k(A, B, 6, rows=rows, columns=columns)
    torch.testing.assert_close(got.values, values, rtol=0, atol=1e-9)
    assert torch.equal(got.ids, columns[at])
    rivals = T[rows][:, columns].masked_fill(rows[:, None] == columns, -torch.inf)
    want = 1 + (rivals >= T[rows, rows][:, None]).sum(1)
    assert torch.equal(scan.self_rank(A, B, rows=rows, columns=columns), want)
    assert torch.equal(scan.self_rank(A, B, rows=rows), dense_rank(T)[rows])


def test_tables_wider_than_a_tile():
    v = 2 * scan.COLUMNS + 37
    W_E, _, _, W_V, W_O, W_U = weights(v=v, r=4, seed=1)
    A, B = scan.ov_factors(W_E, W_V, W_O, W_U)
    T = A @ B
    rows = torch.tensor([0, 255, 256, 1023, 1024, 2047, 2048, v - 1])
    assert torch.equal(scan.self_rank(A, B, rows=rows), dense_rank(T)[rows])
    assert torch.equal(scan.top_k(A, B, 9, rows=rows).ids, dense_top(T[rows], 9)[1])
    some = torch.arange(0, v, 2)
    rivals = T[rows][:, some].masked_fill(rows[:, None] == some, -torch.inf)
    want = 1 + (rivals >= T[rows, rows][:, None]).sum(1)
    assert torch.equal(scan.self_rank(A, B, rows=rows, columns=some), want)


def test_negative_tables_do_not_meet_the_padding():
    A, B = -torch.ones(300, 1), torch.arange(1.0, 301)[None]  # every entry below zero
    assert scan.top_k(A, B, 2).ids.unique(dim=0).tolist() == [[0, 1]]
    assert scan.self_rank(A, B).tolist() == list(range(1, 301))


def test_qk_table_rows_are_queries_and_centred():
    W_E, W_Q, W_K, *_ = weights(v=300, seed=2)
    A, B = scan.qk_factors(W_E, W_Q, W_K)
    T = W_E @ W_Q @ W_K.T @ W_E.T / 8**0.5
    centred = T - T.mean(1, keepdim=True)
    torch.testing.assert_close(A @ B, centred, rtol=0, atol=1e-9)
    values, ids = dense_top(centred, 5)
    got = scan.top_k(A, B, 5)
    assert torch.equal(got.ids, ids)
    torch.testing.assert_close(got.values, values, rtol=0, atol=1e-9)
    assert not torch.equal(got.ids, dense_top(centred.T, 5)[1])  # keys and queries swapped
    raw = scan.top_k(*scan.qk_factors(W_E, W_Q, W_K, centre=False), 5)
    assert torch.equal(raw.ids, ids)  # within a row a constant cannot change the order
    assert (raw.values - values).abs().max() > 1e-2  # but it does change the values
    unscaled = T * 8**0.5
    assert (A @ B - (unscaled - unscaled.mean(1, keepdim=True))).abs().max() > 1e-2


# ---------------------------------------------------------------- exactness


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ties", [False, True])
def test_chunk_size_changes_nothing(dtype, ties):
    g = gen(3)
    if ties:  # small integers: many equal entries, and products are exact
        A = torch.randint(-1, 2, (530, 6), generator=g).to(dtype)
        B = torch.randint(-1, 2, (6, 530), generator=g).to(dtype)
    else:
        A = torch.randn(530, 6, generator=g, dtype=dtype)
        B = torch.randn(6, 530, generator=g, dtype=dtype)
    rank, top = scan.self_rank(A, B), scan.top_k(A, B, 5)
    if ties:
        T = A @ B
        assert torch.equal(rank, dense_rank(T))
        assert torch.equal(top.ids, dense_top(T, 5)[1])
        assert (T.sort(1, descending=True).values[:, 4:6].diff() == 0).double().mean() > 0.5
    for chunk in (1, 7, 1000):
        assert torch.equal(scan.self_rank(A, B, chunk=chunk), rank)
        again = scan.top_k(A, B, 5, chunk=chunk)
        assert torch.equal(again.ids, top.ids)
        assert torch.equal(again.values, top.values)  # bit for bit


def test_ties_count_against_the_token():
    A, B = torch.ones(5, 1), torch.ones(1, 5)  # all entries equal
    assert scan.self_rank(A, B).tolist() == [5] * 5
    assert scan.top_k(A, B, 3).ids.tolist() == [[0, 1, 2]] * 5
    assert scan.self_shares(torch.tensor([1, 2, 10, 11])) == {1: 0.25, 10: 0.75}


# ---------------------------------------------------------------- laws of the copying score


def test_copying_score_is_blind_to_a_constant_only_when_centred():
    W_E, _, _, W_V, W_O, W_U = weights(seed=4)
    c = 3 * torch.randn(40, 1, generator=gen(5), dtype=torch.float64)
    score = scan.copying_score(*scan.ov_factors(W_E, W_V, W_O, W_U))
    moved = scan.copying_score(*scan.ov_factors(W_E, W_V, W_O, W_U + c))
    assert (score - moved).abs() <= 1e-8
    mutant = [
        scan.copying_score(*scan.ov_factors(W_E, W_V, W_O, u, centre=False)) for u in (W_U, W_U + c)
    ]
    assert (mutant[0] - mutant[1]).abs() >= 0.05


def test_copying_score_by_hand():
    eye = torch.eye(6, dtype=torch.float64)
    assert scan.copying_score(eye, eye).item() == 1
    assert scan.copying_score(eye, -eye).item() == -1
    turn = torch.tensor([[0.0, 1], [-1, 0]], dtype=torch.float64)  # eigenvalues i and -i
    assert scan.copying_score(torch.eye(2).double(), turn).item() == pytest.approx(0, abs=1e-15)
    assert scan.copying_score(eye, 0 * eye).item() == 0


def test_head_gauge_and_many_heads_at_once():
    heads = [weights(seed=s) for s in (6, 7)]
    W_E, _, _, _, _, W_U = heads[0]
    W_V, W_O = (torch.stack([h[i] for h in heads]) for i in (3, 4))
    R = torch.randn(2, 8, 8, generator=gen(8), dtype=torch.float64) + 3 * torch.eye(8)
    score = scan.copying_score(*scan.ov_factors(W_E, W_V, W_O, W_U))
    turned = scan.copying_score(*scan.ov_factors(W_E, W_V @ R, torch.linalg.inv(R) @ W_O, W_U))
    torch.testing.assert_close(score, turned, rtol=0, atol=1e-10)
    assert score.shape == (2,)
    alone = scan.copying_score(*scan.ov_factors(W_E, W_V[1], W_O[1], W_U))
    assert alone.item() == pytest.approx(score[1].item(), abs=1e-12)


# ---------------------------------------------------------------- refusals


def test_clear_errors(ov):
    (A, B), _ = ov
    bad = A.clone()
    bad[3, 0] = torch.nan
    for call, words in (
        (lambda: scan.top_k(A, B, 0), "k must be"),
        (lambda: scan.top_k(A, B, 513), "k must be"),
        (lambda: scan.top_k(A, B, 3, chunk=0), "chunk"),
        (lambda: scan.self_rank(bad, B), "NaN"),
        (lambda: scan.self_rank(A[:9], B), "column"),
        (lambda: scan.self_rank(A, B, rows=torch.tensor([512])), "rows"),
        (lambda: scan.top_k(A, B, 1, columns=torch.tensor([4, 2])), "ascending"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
