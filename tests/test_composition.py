"""Instruments of chapter 05: coordinates of a pair, every edge's cut, rank correlations."""

import numpy as np
import pytest
import torch

from circuitbook import cut, gauge, probe
from circuitbook.composition import coordinates, edges, pairs
from circuitbook.config import Config
from circuitbook.model import Transformer

ch05 = pytest.importorskip("circuitbook.taught.ch05", reason="run tools/derive.py taught")
TOY = Config(2, d_model=24, n_heads=3, d_head=6, n_ctx=40, d_vocab=70)


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=gen(seed), dtype=torch.float64)


def toy(dtype=torch.float64, config=TOY):
    """Random weights, large enough for patterns to differ from uniform ones."""
    model = Transformer(config, seed=1).to(dtype).eval().requires_grad_(False)
    for name, p in model.named_parameters():
        p.mul_(3.0 if "W_O" not in name else 8.0)
    return model


def some_tokens(model, n=20):
    tokens = torch.randint(1, model.cfg.d_vocab, (1, n), generator=gen(3))
    tokens[:, 0] = 0
    return tokens


# ---- coordinates of the stream ------------------------------------------------------------------


def test_favouring_makes_the_meeting_norms_as_small_as_they_can_be():
    model = toy()
    for i, j in ((0, 0), (2, 1)):
        one, two = pairs.writer(model, i), pairs.reader(model, j, "k")
        M1, M2 = one[0] @ one[1], two[0] @ two[1]
        least = torch.linalg.matrix_norm(M1 @ M2, "nuc").item()
        G = coordinates.favouring(one, two)
        there = (M1 @ G).norm() * (torch.linalg.inv(G) @ M2).norm()
        assert there.item() == pytest.approx(least, rel=1e-7)
        for seed in range(3):  # no other coordinates make them smaller
            H = gauge.invertible(24, 24, generator=gen(seed))
            assert (M1 @ H).norm() * (torch.linalg.inv(H) @ M2).norm() > least
        changed, tokens = gauge.change_stream(model, G), some_tokens(model)
        torch.testing.assert_close(changed(tokens), model(tokens), rtol=0, atol=1e-6)
        assert pairs.scores(changed).k[i, j] > pairs.scores(model).k[i, j]


def test_stretch_lowers_the_score_and_changes_nothing_else():
    model = toy()
    one, two = pairs.writer(model, 1), pairs.reader(model, 2, "k")
    g = coordinates.stretch(one, two)
    assert set(g.tolist()) <= {1.0, 10.0}
    there = gauge.change_stream(model, torch.diag(g))
    assert pairs.scores(there).k[1, 2] < 0.7 * pairs.scores(model).k[1, 2]
    tokens = some_tokens(model)
    torch.testing.assert_close(there(tokens), model(tokens), rtol=0, atol=1e-8)
    before, after = (pairs.virtual_eigenvalue_score(m, 1, 2) for m in (model, there))
    assert before == pytest.approx(after, abs=1e-8)


def test_other_coordinates_on_a_toy():
    model = toy()
    c = coordinates.other_coordinates(model, some_tokens(model), (0, 1))
    assert c["logits"] < 1e-6
    low = tuple(c["low"])
    assert c["before"][low] == c["before"].min()
    assert c["favoured"][low] > 2 * c["before"][low]
    assert c["stretched"][0, 1] < c["before"][0, 1]
    assert c["shrunk"].max() < 0.2 * c["before"].min()


def test_eigenvalue_score_is_that_of_the_dense_table():
    model = toy()
    moved = model.W_E @ model.OV[0, 1].AB
    table = model.W_E @ model.QK[1, 2].AB @ moved.T
    values = torch.linalg.eigvals(table - table.mean(1, keepdim=True))
    want = (values.real.sum() / values.abs().sum()).item()
    assert pairs.virtual_eigenvalue_score(model, 1, 2) == pytest.approx(want, abs=1e-6)
    other = model.W_E @ model.QK[1, 2].AB.T @ moved.T  # mutant: the sides swapped
    values = torch.linalg.eigvals(other - other.mean(1, keepdim=True))
    assert abs((values.real.sum() / values.abs().sum()).item() - want) > 1e-2


def test_what_survives():
    model = toy()
    moves = coordinates.survival(model, some_tokens(model)[0], (1, 2), ch05.rotated_score)
    R, G, C, K = moves.values()
    assert all(m["probabilities"] < 1e-8 for m in moves.values())
    assert all(m["effect of the K-cut on the pattern"] < 1e-8 for m in moves.values())
    assert all(m["covariance share of the pair's term"] < 1e-8 for m in moves.values())
    assert all(m["eigenvalue score of the virtual table"] < 1e-7 for m in moves.values())
    assert R["K-composition score"] < 1e-8 < 1e-2 < R["score of the rotated product"]
    assert G["K-composition score"] > 0.1 and C["logits"] > 1e-2
    assert K["raw share of the pair's term"] > 1e-2 and K["logits"] < 1e-9


# ---- every edge ----------------------------------------------------------------------------------


def test_all_effects_against_whole_runs():
    model = toy()
    tokens = torch.randint(1, 70, (3, 16), generator=gen(2))
    doc = torch.arange(3)
    got = edges.all_effects(model, tokens, doc, every=1)
    clean = model(tokens, return_type="loss_per_token").mean(-1)
    assert got["clean"] == pytest.approx(clean.mean().item(), abs=1e-9)
    for h1, h2, into in ((0, 1, "q"), (2, 0, "k"), (1, 2, "v")):
        name = "blocks.1.attn.hook_pattern"
        edge = cut.cut_path(model, (0, h1), (1, h2), into)
        per_token, cache = cut.run(model, tokens, edge, names=[name], return_type="loss_per_token")
        rise = probe.paired_difference(per_token.mean(-1), clean, doc)
        at = edges.INPUTS.index(into), h1, h2
        assert got["loss"][at].item() == pytest.approx(rise.mean, abs=1e-9)
        assert got["loss_se"][at].item() == pytest.approx(rise.se, abs=1e-9)
        before = cut.run(model, tokens, names=[name])[1][name]
        moved = (cache[name] - before)[:, h2].abs().sum(-1).mean().item() / 2
        assert got["pattern"][at].item() == pytest.approx(moved, abs=1e-9)
    assert (got["pattern"][2] == 0).all() and (got["pattern"][:2] > 0).all()
    ablated = cut.run(
        model, tokens, cut.ablate_heads(model, tokens, [(1, 0)]), return_type="loss_per_token"
    )[0]
    want = (ablated.mean(-1) - clean).mean().item()
    assert got["reader"][0].item() == pytest.approx(want, abs=1e-6)


def test_repeat_cuts_against_whole_runs():
    model = toy(config=Config(2, d_model=24, n_heads=3, d_head=6, n_ctx=64, d_vocab=70))
    words = torch.arange(1, 70)
    batch = probe.repeated_batch(words, 2, copies=3, block=6, gap=(2, 9), generator=gen(1))
    got = pairs.repeat_cuts(model, batch, [(0, 1, "k"), (2, 1, "v")])
    name = "blocks.1.attn.hook_pattern"
    before = cut.run(model, batch.tokens, names=[name])[1][name]
    whole = probe.prefix_matching_score(before, batch.tokens).mean(0)
    torch.testing.assert_close(got["whole"], whole, rtol=0, atol=1e-10)
    edge = cut.cut_path(model, (0, 0), (1, 1), "k")
    logits, cache = cut.run(model, batch.tokens, edge, names=[name])
    after = probe.prefix_matching_score(cache[name], batch.tokens).mean(0)[1]
    assert got["prefix"][0].item() == pytest.approx(after.item(), abs=1e-10)
    assert got["prefix"][1].item() == pytest.approx(whole[1].item(), abs=1e-12)  # a V-cut
    losses = [
        probe.repeat_effect(x, batch.tokens, batch.first, batch.second).loss_second.mean()
        for x in (logits, model(batch.tokens))
    ]
    assert got["loss"][0].item() == pytest.approx((losses[0] - losses[1]).item(), abs=1e-9)


def test_several_tokens_back_by_hand():
    pattern = draw(2, 3, 12, 12).exp().tril()
    pattern = pattern / pattern.sum(-1, keepdim=True)
    got = pairs.several_tokens_back(pattern, 2, 4)
    want = torch.stack([pattern[..., t, t - 4 : t - 1].sum(-1) for t in range(4, 12)]).mean(0)
    torch.testing.assert_close(got, want.mean(0), rtol=0, atol=1e-12)
    tokens = torch.arange(24).view(2, 12)
    previous = probe.synthetic_pattern("previous", tokens)
    assert pairs.several_tokens_back(previous)[0] == 0  # one back is not several


# ---- rank correlations --------------------------------------------------------------------------


def test_rank_correlation_with_ties():
    import pandas as pd

    x, y = np.array([3.0, 1, 1, 2, 5, 0]), np.array([2.0, 2, 0, 1, 9, -4])
    want = pd.Series(x).rank().corr(pd.Series(y).rank())
    assert float(edges.rank_correlation(x, y)) == pytest.approx(want)
    assert float(edges.rank_correlation(x, np.exp(x))) == pytest.approx(1)
    assert float(edges.rank_correlation(x, -x)) == pytest.approx(-1)
    assert float(edges.rank_correlation(x, np.ones(6))) == 0
    ordinal = np.corrcoef(x.argsort().argsort(), y.argsort().argsort())[0, 1]  # mutant: ties split
    assert abs(ordinal - want) > 1e-3


def test_rank_interval_knows_that_edges_share_heads():
    x = draw(2, 8, 8).numpy()
    rho, low, high = edges.rank_interval(x, x**3, 100)
    assert rho == pytest.approx(1) and low > 0.99 and high <= 1 + 1e-9
    rho, low, high = edges.rank_interval(x, draw(2, 8, 8, seed=1).numpy(), 200)
    assert low < rho < high and low < 0 < high
    # One value per writer: eight independent numbers, not sixty-four. The interval must be wide.
    a, b = (np.repeat(draw(8, 1, seed=s).numpy(), 8, 1) for s in (2, 3))
    noise = 1e-6 * draw(2, 8, 8, seed=4).numpy()
    _, low, high = edges.rank_interval(a + noise[0], b + noise[1], 300)
    assert high - low > 0.6
    assert edges.rank_interval(a, b, 50) == edges.rank_interval(a, b, 50)  # seeded
