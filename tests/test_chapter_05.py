"""Chapter 05: terms, scores, coordinates and cuts, each beside the mistake that must fail."""

from pathlib import Path

import numpy as np
import pytest
import saved
import torch

from circuitbook import bases, compose, cut, gauge
from circuitbook.composition import bilinear, edges, pairs
from circuitbook.config import Config
from circuitbook.model import Transformer

ch05 = pytest.importorskip("circuitbook.taught.ch05", reason="run tools/derive.py taught")
ROOT = Path(__file__).resolve().parent.parent
CHAPTER = "05_composition"
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


def trained(dtype):
    from circuitbook import zoo

    return zoo.load("attn-only-2l", dtype=dtype, device="cpu")


KINDS = ["random float32", "random float64"]
KINDS += [
    pytest.param(f"trained {name}", marks=pytest.mark.weights) for name in ("float32", "float64")
]


@pytest.fixture(params=KINDS)
def any_model(request):
    kind, name = request.param.split()
    return (toy if kind == "random" else trained)(getattr(torch, name))


def some_tokens(model, n=20):
    tokens = torch.randint(1, model.cfg.d_vocab, (1, n), generator=gen(3))
    tokens[:, 0] = 0
    return tokens


# ---- (a) the hundred terms ----------------------------------------------------------------------


def test_terms_add_up_to_the_models_score(any_model):
    tokens = some_tokens(any_model)
    limit = 1e-12 if any_model.W_E.dtype == torch.float64 else 1e-5
    assert bilinear.sum_error(any_model, tokens) <= limit
    assert bilinear.sum_error(any_model, tokens, position=False) > 1e-2  # mutant


def test_the_window_is_the_models_own():
    model = toy()
    tokens = some_tokens(model)
    window = bilinear.take_apart(model, tokens[0])
    names = ["blocks.0.attn.hook_result", "blocks.0.attn.hook_pattern"]
    cache = cut.run(model, tokens, names=names)[1]
    writes = cache[names[0]][0].transpose(0, 1)
    torch.testing.assert_close(window.parts[bilinear.DIRECT :], writes, rtol=0, atol=1e-11)
    torch.testing.assert_close(window.patterns, cache[names[1]][0], rtol=0, atol=1e-12)
    assert len(bilinear.source_names(model)) == len(window.parts) == 2 + TOY.n_heads
    deep = Transformer(Config(3, d_model=24, n_heads=3, d_head=6, n_ctx=40, d_vocab=70))
    with pytest.raises(ValueError, match="two attention-only layers"):
        bilinear.take_apart(deep, tokens[0])


def test_two_heads_in_one_term_need_three_axes():
    model, (a, b, h) = toy(), (1, 2, 0)
    tokens = some_tokens(model)[0]
    window, x = bilinear.take_apart(model, tokens), model.W_E[tokens]
    d = bilinear.DIRECT
    W = model.OV[0, a].AB @ model.QK[1, h].AB @ model.OV[0, b].AB.T
    got = ch05.both_sides_term(window.patterns[a], window.patterns[b], W, x) / TOY.d_head**0.5
    want = bilinear.term(model, window, h, d + a, d + b)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
    swapped = ch05.both_sides_term(window.patterns[b], window.patterns[a], W, x)  # mutant
    assert (swapped / TOY.d_head**0.5 - want).abs().max() > 1e-3
    eye = torch.eye(len(tokens), dtype=torch.float64)
    direct = ch05.both_sides_term(eye, eye, model.QK[1, h].AB, x) / TOY.d_head**0.5
    torch.testing.assert_close(direct, bilinear.term(model, window, h, 0, 0), rtol=0, atol=1e-11)


def brute_shares(tables):
    """Query by query, from whole tables [n, pos, key]."""
    together = torch.zeros(len(tables), dtype=torch.float64)
    for i in range(tables.shape[1]):
        rows = tables[:, i, : i + 1]
        rows = rows - rows.mean(1, keepdim=True)
        together += (rows * rows.sum(0)).mean(1)
    return together / together.sum()


def test_covariance_shares_against_brute_force():
    model = toy()
    window = bilinear.take_apart(model, some_tokens(model)[0])
    n = len(window.parts)
    by_class, share = bilinear.shares(model, [window], 1)
    tables = [bilinear.term(model, window, 1, a, b) for a in range(n) for b in range(n)]
    want = brute_shares(torch.stack(tables)).view(n, n)
    torch.testing.assert_close(share, want, rtol=0, atol=1e-10)
    assert sum(by_class.values()) == pytest.approx(1, abs=1e-12)
    assert by_class["query side"] == pytest.approx(want[2:, :2].sum().item(), abs=1e-10)
    assert by_class["key side"] == pytest.approx(want[:2, 2:].sum().item(), abs=1e-10)
    raw = torch.stack([t.tril() for t in tables])  # mutant: uncentred
    raw = (raw * raw.sum(0)).sum((-2, -1))
    assert (raw / raw.sum() - want.flatten()).abs().max() > 1e-2


@pytest.mark.weights
def test_shares_sum_to_one_on_the_trained_model():
    model = trained(torch.float32)
    window = bilinear.take_apart(model, some_tokens(model, 100)[0])
    for h in range(model.cfg.n_heads):
        assert sum(bilinear.shares(model, [window], h)[0].values()) == pytest.approx(1, abs=1e-5)


def test_spread_sees_what_softmax_sees():
    table = draw(9, 9)
    want = sum(table[i, : i + 1].var(correction=0) for i in range(9)) / 9
    assert bilinear.spread(table).item() == pytest.approx(want.sqrt().item(), abs=1e-12)
    per_query = table + 100 * draw(9, 1, seed=1)
    torch.testing.assert_close(bilinear.spread(per_query), bilinear.spread(table))
    assert bilinear.spread(draw(9, 1).expand(9, 9)) < 1e-12  # constant over keys


def test_value_shares_by_hand():
    model = toy()
    tokens = some_tokens(model)
    window = bilinear.take_apart(model, tokens[0])
    share = bilinear.value_shares(model, [window], 2)
    r = edges.readers(model, window)
    whole = r.write[2] - r.write[2].mean(0)
    token = r.pattern[2] @ (model.W_E[tokens[0]] @ model.W_V[1, 2]) @ model.W_O[1, 2]
    want = ((token - token.mean(0)) * whole).sum() / whole.square().sum()
    assert share[0].item() == pytest.approx(want.item(), abs=1e-10)
    assert share[1] == 0 and share.sum().item() == pytest.approx(1, abs=1e-12)


# ---- (b) scores ---------------------------------------------------------------------------------


def test_scores_of_all_pairs_are_the_definition(any_model):
    got, want = torch.stack(list(pairs.scores(any_model))), pairs.dense_scores(any_model)
    assert (got - want).abs().max() <= 1e-5
    wrong = torch.stack([got[0], got[0], got[2]])  # mutant: K without the transpose is Q
    assert (wrong - want).abs().max() > 1e-2


def test_controls_have_their_known_answers():
    c = pairs.controls()
    assert c["tuned for keys"] == pytest.approx(0.5**0.5, abs=1e-6)
    assert c["the same, transpose forgotten"] < 1e-6
    assert c["not a cosine: score"] == pytest.approx(1) and c["not a cosine: inner product"] == 0
    assert c["random"] == pytest.approx(1 / 16, abs=1e-3)


def test_random_pairs_keep_their_baseline():
    sample = compose.simulated(32, 256, 200, gen())
    assert sample.mean().item() == pytest.approx(0.0625, abs=5e-4)
    one = compose.simulated(1, 256, 4000, gen(1))
    assert 0.77 <= one.mean().item() * 16 <= 0.83
    turned = [compose.simulated(4, 32, 1, gen(i)).square() for i in range(300)]
    assert torch.stack(turned).mean().item() == pytest.approx(1 / 32, rel=0.1)


def test_baselines_follow_the_effective_rank():
    model = toy()
    base = pairs.baselines(model, 40)
    assert base["rank"].shape == (3, 3, 3) and (base["rank"] <= TOY.d_head).all()
    assert (base["high"] > base["mean"]).all()
    narrow = gauge.with_weights(model, W_O=model.W_O * (torch.arange(6) == 0)[:, None])
    assert (pairs.baselines(narrow, 40)["rank"] < 1.5).all()  # writers with one direction


@pytest.mark.parametrize("seed", range(3))
def test_squared_score_is_the_sum_over_directions(seed):
    L1, R1, L2, R2 = (draw(20, 5, seed=4 * seed + i) for i in range(4))
    parts = ch05.overlap_parts(L1, R1.mT, L2, R2.mT)
    score = compose.pair_scores(L1[None], R1.mT[None], L2[None], R2.mT[None]).item()
    assert parts.sum().item() == pytest.approx(score**2, abs=1e-6)
    u, s, v = torch.linalg.svd(L1 @ R1.mT)
    a, t, _ = torch.linalg.svd(L2 @ R2.mT)
    top = (s[0] * t[0] * (v[0] @ a[:, 0])) ** 2 / (s.square().sum() * t.square().sum())
    assert parts[0, 0].item() == pytest.approx(top.item(), abs=1e-10)
    unweighted = (v[:5] @ a[:, :5]).square().mean()  # mutant: the sizes left out
    assert abs(unweighted.item() - score**2) > 1e-4


# ---- (d) the erratum ----------------------------------------------------------------------------


def test_the_small_example():
    X, Y = torch.tensor(ch05.SLIP_X), torch.tensor(ch05.SLIP_Y)
    assert (X @ Y).norm().item() == pytest.approx(10**0.5, abs=1e-6)
    assert (Y @ X).norm().item() == pytest.approx(18**0.5, abs=1e-6)
    assert (X @ Y).trace() == (Y @ X).trace() == 3
    small, large = torch.linalg.eigvals(X @ Y).real, torch.linalg.eigvals(Y @ X).real
    assert small.max().item() == pytest.approx(large.max().item(), abs=1e-5)


def test_head_coordinates_move_the_slip_and_not_the_score(any_model):
    n = any_model.cfg.d_head
    turned = bases.change_heads(any_model, gauge.invertible(n, n, generator=gen(5)))
    for old, new in zip(pairs.scores(any_model), pairs.scores(turned), strict=True):
        assert (old - new).abs().max() <= 1e-6
    slips = [pairs.rotated_scores(m, ch05.rotated_score) for m in (any_model, turned)]
    assert (slips[0] - slips[1]).abs().max() > 1e-2
    one, two = pairs.writer(any_model, 0), pairs.reader(any_model, 1, "k")
    product = two[1] @ one[0] @ one[1] @ two[0]
    size = (one[1] @ one[0]).norm() * (two[1] @ two[0]).norm()
    assert slips[0][1, 0, 1].item() == pytest.approx((product.norm() / size).item(), rel=1e-4)


# ---- (c) cuts -----------------------------------------------------------------------------------


def test_fast_cuts_are_the_slow_ones(any_model):
    tokens = some_tokens(any_model)
    double = any_model.W_E.dtype == torch.float64
    some = [(a, b, c) for a in range(3) for b in range(2) for c in edges.INPUTS]
    assert pairs.slow_error(any_model, tokens[0], some) <= (1e-10 if double else 1e-5)
    window = bilinear.take_apart(any_model, tokens[0])
    r = edges.readers(any_model, window)
    one, other = (next(edges.cuts(any_model, window, r, [e])) for e in ((0, 1, "k"), (1, 1, "k")))
    assert (one.pattern - other.pattern).abs().max() > 1e-4  # mutant: another writer
    v = next(edges.cuts(any_model, window, r, [(0, 1, "v")]))
    assert torch.equal(v.pattern, r.pattern[1])


def test_v_cut_is_the_virtual_head(any_model):
    tokens = some_tokens(any_model)[0]
    error = pairs.virtual_head_error(any_model, tokens, (1, 2))
    if any_model.W_E.dtype == torch.float64:
        assert error <= 1e-9
    else:  # the change is a small difference of large logits, whose rounding is 1e-7 of theirs
        change = cut.cut_path(any_model, (0, 1), (1, 2), "v")
        size = cut.logit_change(any_model, tokens[None], change).abs().max()
        assert error * size <= 1e-5 * any_model(tokens[None]).abs().max()
    window = bilinear.take_apart(any_model, tokens)
    r = edges.readers(any_model, window)
    moved = any_model.W_E[tokens] @ any_model.OV[0, 1].AB @ any_model.OV[1, 2].AB
    right = r.pattern[2] @ window.patterns[1] @ moved
    wrong = window.patterns[1] @ r.pattern[2] @ moved  # mutant: A1 A2
    assert (right - wrong).abs().max() > 1e-2 * right.abs().max()


def test_k_cut_is_local_and_one_layer_cannot_compose(any_model):
    changed = pairs.local_changes(any_model, some_tokens(any_model), (0, 1))
    assert changed == {"K-cut": 0, "K-cut, own": 2, "same layer": 0}


def test_held_patterns_hide_the_key(any_model):
    tokens = some_tokens(any_model)
    assert pairs.frozen_cut(any_model, tokens, (0, 1)) == 0
    loose = cut.logit_change(any_model, tokens, cut.cut_path(any_model, (0, 0), (1, 1), "k"))
    assert loose.abs().max() > 1e-4  # mutant: not held


def test_a_write_constant_over_keys_is_invisible():
    model = toy()
    window = bilinear.take_apart(model, some_tokens(model)[0])
    parts = window.parts.clone()
    parts[bilinear.DIRECT] = 50 * draw(24)  # head 0.0 now writes the same at every position
    window = window._replace(parts=parts)
    r = edges.readers(model, window)
    spread, share = edges.visible(model, window, r, (0, 1, "k"))
    assert share < 1e-12 and spread < 1e-6
    change = next(edges.cuts(model, window, r, [(0, 1, "k")]))
    assert (change.pattern - r.pattern[1]).abs().max() < 1e-10  # softmax cannot see it
    assert edges.visible(model, window, r, (1, 1, "k"))[1] > 1e-2  # another write is seen
    assert edges.visible(model, window, r, (0, 1, "q"))[0] > 1e-2  # and so is a constant query


# ---- the evidence -------------------------------------------------------------------------------


def test_claims_follow_from_their_numbers():
    data, by_id = saved.rechecked(CHAPTER, 20)
    h1, h2 = data["pair"]
    place = 1 + sum(s > data["scores"]["k"][h1][h2] for row in data["scores"]["k"] for s in row)
    assert by_id["compose.pair_scores_high"]["values"]["place"] == place
    losses = np.array(data["effects"]["loss"])
    rank = 1 + int((losses > losses[1, h1, h2]).sum())
    assert by_id["compose.pair_edge"]["test"]["value"] == rank
    assert [row["ok"] for row in data["rungs"]] == [row["got"] >= 1 for row in data["rungs"]]


def test_figures_need_no_torch():
    more = """
assert len(ch05.disagreement_rows(r)) == 6 and len(ch05.virtual_rows(r)) == 5
"""
    saved.draw_without_torch(CHAPTER, 8, more)
