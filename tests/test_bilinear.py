"""Scores in terms, and pairs of heads in numbers: every law beside the slip that breaks it."""

import math

import pytest
import torch
from published_toy import published
from published_toy import tokens_of as published_tokens
from small_model import gen, model_of, tokens_of

from circuitbook import bases, compose, cut, fold, gauge
from circuitbook.composition import bilinear, coordinates, pairs
from circuitbook.config import Config

ch05 = pytest.importorskip("circuitbook.taught.ch05", reason="run tools/derive.py taught")
SMALL = Config(2, d_model=24, n_heads=3, d_head=6, n_ctx=40, d_vocab=70)
WEIGHTS = pytest.mark.weights
ROLES = ("attn-only-2l", "attn-only-2l-again")
MODELS = [pytest.param(("random", name), id=f"random {name}") for name in ("float32", "float64")]
MODELS += [
    pytest.param((role, name), id=f"{role} {name}", marks=WEIGHTS)
    for role in ROLES
    for name in ("float32", "float64")
]


@pytest.fixture(params=MODELS)
def any_model(request):
    role, name = request.param
    dtype = getattr(torch, name)
    if role == "random":
        return model_of(SMALL, dtype, seed=2)
    from circuitbook import zoo

    return zoo.load(role, dtype=dtype, device="cpu")


@pytest.fixture(params=["random", pytest.param("trained", marks=WEIGHTS)])
def exact_model(request):
    if request.param == "random":
        return model_of(SMALL, seed=2)
    from circuitbook import zoo

    return zoo.load(ROLES[0], dtype=torch.float64, device="cpu")


def is_double(model):
    return model.W_E.dtype == torch.float64


def gap(got, want):
    """Largest difference where `want` is a number, over its largest size."""
    seen = want.isfinite()
    return ((got - want)[seen].abs().max() / want[seen].abs().max()).item()


def own_scores(model, tokens):
    """What the model itself puts into its second softmax: -inf where a query may not look."""
    return cut.run(model, tokens, names=["blocks.1.attn.hook_attn_scores"])[1].popitem()[1][0]


def score_of(one, two):
    return compose.pair_scores(*(x[None] for x in (*one, *two))).item()


# ---- the terms ----------------------------------------------------------------------------------


def test_every_term_is_needed_and_together_they_are_the_score(any_model):
    tokens = tokens_of(any_model.cfg, n=1, length=24)
    want = own_scores(any_model, tokens)
    window = bilinear.take_apart(any_model, tokens[0])
    sources = range(len(window.parts))
    assert len(sources) ** 2 == (100 if any_model.cfg.n_heads == 8 else 25)
    limit = 1e-12 if is_double(any_model) else 1e-5
    for h in range(any_model.cfg.n_heads):
        terms = {
            (a, b): bilinear.term(any_model, window, h, a, b) for a in sources for b in sources
        }
        assert gap(sum(terms.values()), want[h]) <= limit
        # mutants: no positions on either side, positions on queries only, no scale
        assert gap(sum(t for (a, b), t in terms.items() if 1 not in (a, b)), want[h]) > 1e-3
        assert gap(sum(t for (a, b), t in terms.items() if b != 1), want[h]) > 1e-3
        unscaled = sum(terms.values()) * any_model.cfg.d_head**0.5
        assert gap(unscaled, want[h]) == pytest.approx(any_model.cfg.d_head**0.5 - 1, rel=1e-3)


def test_the_error_sees_a_missing_scale_and_missing_positions(exact_model, monkeypatch):
    tokens = tokens_of(exact_model.cfg, n=1, length=16)
    assert bilinear.sum_error(exact_model, tokens) <= 1e-12
    assert bilinear.sum_error(exact_model, tokens, position=False) > 1e-2
    honest = bilinear.term
    root = exact_model.cfg.d_head**0.5
    monkeypatch.setattr(bilinear, "term", lambda *a: honest(*a) * root)
    assert bilinear.sum_error(exact_model, tokens) == pytest.approx(root - 1, rel=1e-6)


def covariance_by_query(tables, whole):
    """sum over queries of Cov_j(table, whole), one torch.cov at a time."""
    total = torch.zeros(len(tables), dtype=torch.float64)
    for t in range(1, whole.shape[-1]):
        rows = torch.cat([tables[:, t, : t + 1], whole[None, t, : t + 1]]).double()
        total += torch.cov(rows, correction=0)[:-1, -1]
    return total


def class_tables(model, window, head):
    """The terms summed by class, in the order of CLASSES; "query side": only the query is late."""
    n, d = len(window.parts), bilinear.DIRECT
    terms = {(a, b): bilinear.term(model, window, head, a, b) for a in range(n) for b in range(n)}
    late = ((False, False), (True, False), (False, True), (True, True))
    return torch.stack(
        [sum(t for (a, b), t in terms.items() if (a >= d, b >= d) == x) for x in late]
    )


def test_class_shares_are_centred_covariances_over_all_windows(any_model):
    windows = [
        bilinear.take_apart(any_model, row) for row in tokens_of(any_model.cfg, n=2, length=20)
    ]
    tight = 1e-10 if is_double(any_model) else 2e-4
    for h in range(2):
        by_class, share = bilinear.shares(any_model, windows, h)
        assert sum(by_class.values()) == pytest.approx(1, abs=1e-5)
        assert share.sum().item() == pytest.approx(1, abs=1e-5)
        covariance, raw = 0, 0
        for window in windows:
            tables = class_tables(any_model, window, h)
            covariance = covariance + covariance_by_query(tables, tables.sum(0))
            raw = raw + (tables * tables.sum(0)).tril().sum((-2, -1))
        want = covariance / covariance.sum()
        got = torch.tensor([by_class[c] for c in bilinear.CLASSES], dtype=torch.float64)
        assert (got - want).abs().max() < tight
        assert (raw / raw.sum() - want).abs().max() > 5e-3  # mutant: uncentred
        alone = [bilinear.shares(any_model, [w], h)[0] for w in windows]
        halves = torch.tensor([sum(a[c] for a in alone) / 2 for c in bilinear.CLASSES])
        if is_double(any_model):  # mutant: a mean of shares, where covariances are to be summed
            assert (halves.double() - got).abs().max() > 1e-4


@pytest.mark.parametrize("layer", [0, 1])
def test_value_biases_must_be_folded_first(layer):
    model, tokens = published(), published_tokens(1)[0]
    assert pairs.virtual_head_error(model, tokens, (1, 2)) < 1e-10
    model.blocks[layer].attn.b_V += 0.1
    for needs in (bilinear.take_apart, lambda m, t: bilinear.sum_error(m, t[None])):
        with pytest.raises(ValueError, match="fold the value biases first"):
            needs(model, tokens)
    folded = fold.fold_value_biases(model)
    assert pairs.virtual_head_error(folded, tokens, (1, 2)) < 1e-10
    writes = cut.run(folded, tokens[None], names=["blocks.0.attn.hook_result"])[1].popitem()[1]
    heads = bilinear.take_apart(folded, tokens).parts[bilinear.DIRECT : -1]
    assert gap(heads, writes[0].transpose(0, 1)) < 1e-12


def test_shares_do_not_see_a_constant_per_query(exact_model):
    window = bilinear.take_apart(exact_model, tokens_of(exact_model.cfg, 1, 20)[0])
    parts = window.parts.clone()
    parts[bilinear.DIRECT] = parts[bilinear.DIRECT, 3]  # one head writes the same everywhere
    share = bilinear.shares(exact_model, [window._replace(parts=parts)], 1)[1]
    assert share[:, bilinear.DIRECT].abs().max() < 1e-9  # on the key side: nothing to see
    assert share[bilinear.DIRECT].abs().max() > 1e-4  # as a query it still asks


def test_values_come_from_the_token_when_no_head_writes(exact_model):
    W_O = exact_model.W_O.clone()
    W_O[0] = 0
    silent = gauge.with_weights(exact_model, W_O=W_O)
    tokens = tokens_of(exact_model.cfg, 1, 20)[0]
    for model, whole in ((silent, True), (exact_model, False)):
        share = bilinear.value_shares(model, [bilinear.take_apart(model, tokens)], 1)
        assert share.sum().item() == pytest.approx(1, abs=1e-10) and share[1] == 0
        assert (abs(share[0].item() - 1) < 1e-10) == whole


# ---- scores -------------------------------------------------------------------------------------


def test_small_matrices_give_the_dense_scores(any_model):
    W = [w.double() for w in (any_model.W_V[0] @ any_model.W_O[0],)]
    QK = any_model.W_Q[1].double() @ any_model.W_K[1].double().mT
    OV = any_model.W_V[1].double() @ any_model.W_O[1].double()

    def dense(readers):
        product = torch.einsum("aij,bjk->abik", W[0], readers).square().sum((-2, -1)).sqrt()
        sizes = [torch.linalg.matrix_norm(x) for x in (W[0], readers)]
        return product / sizes[0][:, None] / sizes[1]

    got, dense_loop = pairs.scores(any_model), pairs.dense_scores(any_model)
    limit = 1e-10 if is_double(any_model) else 1e-5
    for i, readers in enumerate((QK, QK.mT, OV)):
        want = dense(readers)
        assert (got[i] - want).abs().max() <= limit
        assert (dense_loop[i] - want).abs().max() <= max(limit, 1e-7)
        assert (got[(i + 1) % 3] - want).abs().max() > 1e-2  # mutant: another input's score


def test_a_planted_key_only_pair_needs_the_transpose(monkeypatch):
    model, e = model_of(SMALL), torch.eye(24, dtype=torch.float64)
    W_O, W_Q, W_K, W_V = (w.clone() for w in (model.W_O, model.W_Q, model.W_K, model.W_V))
    W_O[0, 2], W_K[1, 0], W_Q[1, 0] = e[:6], e[:, :6], e[:, 6:12]
    W_V[1, 0] = e[:, 12:18]
    planted = gauge.with_weights(model, W_O=W_O, W_Q=W_Q, W_K=W_K, W_V=W_V)
    got = pairs.scores(planted)
    assert got.k[2, 0].item() == pytest.approx(6**-0.5, abs=1e-12)
    assert got.q[2, 0] < 1e-7 and got.v[2, 0] < 1e-7
    assert (pairs.dense_scores(planted)[1] - got.k).abs().max() < 1e-12
    honest = pairs.reader

    def forgotten(model, h, into):  # mutant: keys read like queries
        return honest(model, h, "q" if into == "k" else into)

    monkeypatch.setattr(pairs, "reader", forgotten)
    assert pairs.dense_scores(planted)[1, 2, 0] < 1e-12


# ---- the baseline -------------------------------------------------------------------------------


def test_two_hundred_random_pairs_reach_one_sixteenth_whatever_the_seed():
    samples = [compose.simulated(32, 256, 200, gen(seed)) for seed in range(10)]
    assert all(abs(s.mean().item() - 0.0625) < 5e-4 for s in samples)
    pooled = torch.cat(samples).double()
    error = pooled.std().item() / len(pooled) ** 0.5
    assert error < 5e-5  # the window of 5e-4 is ten of these, and four of one seed's
    mean_square = pooled.square().mean().item() * 256
    assert mean_square == pytest.approx(1, abs=4 * 2 * 16 * error)
    assert abs(pooled.mean().item() - 32**-0.5) > 0.1  # mutant: by rank, not by width


def test_one_direction_is_the_cosine_of_two_random_ones():
    d = 256
    theory = math.exp(math.lgamma(d / 2) - math.lgamma((d + 1) / 2)) * (d / math.pi) ** 0.5
    assert 0.798 < theory < 0.80  # a little over sqrt(2/pi)
    sample = compose.simulated(1, d, 40_000, gen(5)).double() * d**0.5
    error = sample.std().item() / len(sample) ** 0.5
    assert sample.mean().item() == pytest.approx(theory, abs=4 * error) and error < 0.004
    means = [compose.simulated(r, 64, 4000, gen(r)).mean().item() * 8 for r in (1, 2, 4, 32)]
    assert means == sorted(means)  # more directions, closer to the bound
    assert means[-1] == pytest.approx(1, abs=0.002)


def test_any_two_matrices_meet_at_one_over_d_when_one_is_turned():
    d, g = 20, gen(8)
    A = torch.randn(d, 3, generator=g, dtype=torch.float64) * torch.tensor([9.0, 1, 0.1])
    B = torch.randn(d, 7, generator=g, dtype=torch.float64)
    one, two = (A, torch.linalg.qr(A)[0].mT), (B, torch.linalg.qr(B)[0].mT)
    turned = [score_of((one[0], one[1] @ bases.rotation(d, g)), two) ** 2 for _ in range(2000)]
    sample = torch.tensor(turned)
    assert sample.mean().item() == pytest.approx(1 / d, abs=4 * sample.std().item() / 2000**0.5)
    signs = torch.randn(500, d, generator=g, dtype=torch.float64).sign()
    flipped = [score_of((one[0], one[1] * x), two) ** 2 for x in signs]  # mutant: reflections only
    assert abs(sum(flipped) / 500 * d - 1) > 0.1


# ---- the order of the factors -------------------------------------------------------------------


def test_the_rotated_number_is_no_number_of_a_pair():
    X, Y = (torch.tensor(m, dtype=torch.float64) for m in (ch05.SLIP_X, ch05.SLIP_Y))
    two, three = torch.eye(2, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    size = (X.norm() * Y.norm()).item()
    assert score_of((X, three), (three, Y)) * size == pytest.approx(10**0.5, abs=1e-12)
    assert score_of((two, X), (Y, two)) * size == pytest.approx(10**0.5, abs=1e-12)
    assert score_of((Y, two), (two, X)) * size == pytest.approx(18**0.5, abs=1e-12)
    # one and the same product (square now, with zeros), factored in two ways: two numbers
    X, Y = torch.cat([X, X.new_zeros(1, 3)]), torch.cat([Y, Y.new_zeros(3, 1)], 1)
    right, also = ((three, X), (Y, three)), ((three, X), (three, Y))
    assert score_of(*right) == score_of(*also) == pytest.approx(10**0.5 / size, abs=1e-12)
    slip = [ch05.rotated_score(*one, *two).item() * size for one, two in (right, also)]
    assert slip == pytest.approx([10**0.5, 18**0.5], abs=1e-12)


def test_head_coordinates_keep_score_and_move_slip(any_model):
    c = any_model.cfg
    R = gauge.invertible(2, c.n_heads, c.d_head, c.d_head, generator=gen(6)).to(any_model.W_E)
    back = torch.linalg.inv(R)
    turned = gauge.with_weights(  # every head in its own coordinates
        any_model,
        W_Q=any_model.W_Q @ R,
        W_K=any_model.W_K @ back.mT,
        W_V=any_model.W_V @ R,
        W_O=back @ any_model.W_O,
    )
    for old, new in zip(pairs.scores(any_model), pairs.scores(turned)):
        assert (old - new).abs().max() <= 1e-6
    slips = [pairs.rotated_scores(m, ch05.rotated_score) for m in (any_model, turned)]
    assert (slips[0] - slips[1]).abs().max() > 1e-2
    one, two = pairs.writer(turned, 1), pairs.reader(turned, 2, "k")
    M, N = one[0] @ one[1], two[0] @ two[1]
    assert (M @ N).trace().item() == pytest.approx((N @ M).trace().item(), rel=1e-3)
    mutant = gauge.with_weights(turned, W_K=any_model.W_K @ R)  # keys turned like queries
    assert (pairs.scores(mutant).k - pairs.scores(any_model).k).abs().max() > 1e-3


# ---- directions ---------------------------------------------------------------------------------


def test_the_squared_score_is_a_sum_over_directions(exact_model):
    for h1, h2, into in [(0, 1, "q"), (1, 2, "k"), (2, 0, "v")]:
        one, two = pairs.writer(exact_model, h1), pairs.reader(exact_model, h2, into)
        parts, score = ch05.overlap_parts(*one, *two), score_of(one, two)
        assert parts.sum().item() == pytest.approx(score**2, abs=1e-6)
        assert (parts >= 0).all() and parts.shape == (exact_model.cfg.d_head,) * 2
        _, s, v = torch.linalg.svd(one[0] @ one[1], full_matrices=False)
        u, t, _ = torch.linalg.svd(two[0] @ two[1], full_matrices=False)
        n = exact_model.cfg.d_head
        size = s[:n, None] * t[:n] * (v[:n] @ u[:, :n])  # mutant: sigma tau v.u, not its square
        assert abs((size / size.norm()).sum().item() - score) > 1e-3
        weights = s[:n, None] * t[:n]  # mutant: weights not squared
        wrong = (weights * (v[:n] @ u[:, :n]).square()).sum() / weights.sum()
        assert abs(wrong.item() - score**2) > 1e-5


# ---- coordinates of the stream ------------------------------------------------------------------


def test_the_stream_gauge_moves_scores_and_nothing_that_is_computed(exact_model):
    tokens, h1, h2 = tokens_of(exact_model.cfg, n=1, length=20), 1, 2
    one, two = pairs.writer(exact_model, h1), pairs.reader(exact_model, h2, "k")
    G = torch.diag(coordinates.stretch(one, two))
    new = gauge.change_stream(exact_model, G)
    assert gap(new(tokens), exact_model(tokens)) < 1e-9
    old_k, new_k = (pairs.scores(m).k[h1, h2].item() for m in (exact_model, new))
    assert new_k < 0.7 * old_k
    eigen = [pairs.virtual_eigenvalue_score(m, h1, h2) for m in (exact_model, new)]
    assert eigen[0] == pytest.approx(eigen[1], abs=1e-6)
    turn = gauge.change_stream(exact_model, bases.rotation(exact_model.cfg.d_model, gen(1)))
    assert (pairs.scores(turn).k - pairs.scores(exact_model).k).abs().max() < 1e-9
    # mutant: writers change, readers do not
    half = gauge.with_weights(new, W_K=exact_model.W_K)
    assert gap(half(tokens), exact_model(tokens)) > 1e-3
    assert abs(pairs.virtual_eigenvalue_score(half, h1, h2) - eigen[0]) > 1e-6


def test_eigenvalue_score_against_the_whole_table():
    model = model_of(SMALL, seed=2)
    for h1, h2 in [(0, 1), (2, 2)]:
        table = model.W_E @ model.QK[1, h2].AB @ (model.W_E @ model.OV[0, h1].AB).mT
        values = torch.linalg.eigvals(table - table.mean(1, keepdim=True))
        want = values.real.sum() / values.abs().sum()
        got = pairs.virtual_eigenvalue_score(model, h1, h2)
        assert got == pytest.approx(want.item(), abs=1e-6)
        values = torch.linalg.eigvals(table)  # mutant: not centred over the keys
        assert abs((values.real.sum() / values.abs().sum()).item() - got) > 1e-4


@pytest.mark.weights
@pytest.mark.parametrize("role", ROLES)
def test_other_coordinates_of_trained_models(role):
    from circuitbook import zoo

    model = zoo.load(role, dtype=torch.float64, device="cpu")
    out = coordinates.other_coordinates(model, tokens_of(model.cfg, n=1, length=16), (1, 2))
    assert out["logits"] <= 1e-6
    low = tuple(out["low"])
    assert out["before"][low] == out["before"].min()
    assert out["stretched"][1, 2] < 0.7 * out["before"][1, 2]
    g = coordinates.stretch(pairs.writer(model, 1), pairs.reader(model, 2, "k"))
    there = gauge.change_stream(model, torch.diag(g))
    assert torch.equal(out["stretched"], pairs.scores(there).k)
    lowest = pairs.writer(model, low[0]), pairs.reader(model, low[1], "k")
    assert torch.linalg.cond(coordinates.favouring(*lowest)) < 1e5
    assert out["favoured"][low] > 1.5 * out["before"][low]
    assert out["shrunk"].max() < 0.7 * out["before"].min()
    assert torch.allclose(out["before"], pairs.dense_scores(model)[1], atol=1e-8)
