"""Chapter 02: taught functions against brute force, acceptance with mutants, its evidence."""

import math

import own_peak
import pytest
import saved
import torch

from circuitbook import gauge, heads, scan, shapes
from circuitbook.config import Config
from circuitbook.model import Transformer

ch02 = pytest.importorskip("circuitbook.taught.ch02", reason="run tools/derive.py taught")
CHAPTER = "02_qk_ov"
DTYPES = [torch.float32, torch.float64]


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=gen(seed)).to(dtype)


def toy(dtype=torch.float64, **more):
    sizes = {"d_model": 24, "n_heads": 3, "d_head": 6, "n_ctx": 32, "d_vocab": 70}
    cfg = Config(2, **{**sizes, **more})
    model = Transformer(cfg, seed=1).to(dtype).eval().requires_grad_(False)
    return gauge.with_weights(model, W_Q=3 * model.W_Q, W_U=model.W_U + 0.2)


def trained(dtype=torch.float64, role="attn-only-2l", **more):
    from circuitbook import zoo

    return zoo.load(role, dtype=dtype, device="cpu", **more)


WEIGHTS = pytest.mark.weights
KINDS = ["random float32", "random float64"]
KINDS += [pytest.param(f"trained {name}", marks=WEIGHTS) for name in ("float32", "float64")]


@pytest.fixture(params=KINDS)
def any_model(request):
    kind, name = request.param.split()
    dtype = getattr(torch, name)
    return toy(dtype) if kind == "random" else trained(dtype, center=False)


def some_tokens(model, n=20):
    return torch.randint(1, model.cfg.d_vocab, (1, n), generator=gen(3))


# ---- taught functions ---------------------------------------------------------------------------


def test_head_coordinates_keep_both_products():
    Q, K, V, O, R = draw(2, 9, 4), draw(2, 9, 4, seed=1), draw(2, 9, 4, seed=2), draw(2, 4, 9), 0
    R = gauge.invertible(2, 4, 4, generator=gen(4))
    q, k, v, o = ch02.change_head_coordinates(Q, K, V, O, R)
    torch.testing.assert_close(q @ k.mT, Q @ K.mT, rtol=0, atol=1e-11)
    torch.testing.assert_close(v @ o, V @ O, rtol=0, atol=1e-11)
    assert (torch.linalg.matrix_norm(v) / torch.linalg.matrix_norm(V) - 1).abs().max() > 0.1
    assert (q @ (K @ R).mT - Q @ K.mT).abs().max() > 0.1  # mutant: R where R^-T belongs


def test_second_direction():
    line = torch.outer(draw(7).squeeze(), draw(5, seed=1).squeeze())
    assert ch02.second_direction(line) < 1e-12
    assert ch02.second_direction(torch.diag(torch.tensor([4.0, 1.0, 0.5]))) == 0.25
    assert ch02.second_direction(torch.zeros(3, 4)) == 0


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_thin_svd_is_the_dense_one(batch):
    left, right = draw(*batch, 15, 4), draw(*batch, 4, 11, seed=1)
    u, s, v = ch02.thin_svd(left, right)
    torch.testing.assert_close(u * s[..., None, :] @ v, left @ right, rtol=0, atol=1e-11)
    torch.testing.assert_close(s, torch.linalg.svdvals(left @ right)[..., :4], rtol=0, atol=1e-11)


def test_keep_directions_is_the_nearest_matrix():
    left, right = draw(15, 4), draw(4, 11, seed=1)
    U, S, V = torch.linalg.svd(left @ right, full_matrices=False)
    for keep in ([], [0], [0, 1], [2], range(4)):
        a, b = ch02.keep_directions(left, right, keep)
        at = list(keep)
        torch.testing.assert_close(a @ b, (U[:, at] * S[at]) @ V[at], rtol=0, atol=1e-10)
        assert a.shape == left.shape and b.shape == right.shape
    a, b = ch02.keep_directions(left, right, [0])
    crude = left[:, :1] @ right[:1]  # mutant: a head coordinate is not a singular direction
    assert (a @ b - left @ right).norm() < 0.9 * (crude - left @ right).norm()


def test_position_scores_by_hand():
    Q, K, P = draw(6, 3), draw(6, 3, seed=1), draw(5, 6, seed=2)
    table = ch02.position_scores(Q, K, P)
    for t in range(5):
        for j in range(5):
            want = (P[t] @ Q) @ (P[j] @ K) / 3**0.5
            assert table[t, j].item() == pytest.approx(want.item(), abs=1e-12)
    assert not torch.allclose(table, table.T)  # mutant: queries and keys swapped


# ---- instruments --------------------------------------------------------------------------------


def test_mean_by_offset_by_hand():
    table = draw(2, 10, 10)
    got = heads.mean_by_offset(table, 3, first=4)
    for k in range(3):
        want = sum(table[1, t, t - k] for t in range(4, 10)) / 6
        assert got[1, k].item() == pytest.approx(want.item(), abs=1e-12)
    shifted = sum(table[1, t, t - 1] for t in range(5, 10)) / 5  # mutant: one query lost
    assert abs(got[1, 1].item() - shifted.item()) > 1e-3
    with pytest.raises(ValueError, match="first"):
        heads.mean_by_offset(table, 3, first=64)


def test_causal_pattern_never_looks_ahead():
    pattern = heads.causal_pattern(draw(2, 6, 6))
    assert (pattern.triu(1) == 0).all()
    torch.testing.assert_close(pattern.sum(-1), torch.ones(2, 6, dtype=torch.float64))


def test_offset_profiles_on_a_toy():
    model, tokens = toy(), torch.randint(1, 70, (2, 30), generator=gen(2))
    table = ch02.position_scores(model.W_Q, model.W_K, model.W_pos[:30])
    with pytest.raises(ValueError, match="first"):
        heads.offset_profiles(model, tokens, table, 4)  # 30 positions have no query after 64
    long = toy(n_ctx=80)
    table = ch02.position_scores(long.W_Q, long.W_K, long.W_pos)
    got, row = heads.offset_profiles(long, torch.ones(1, 80).long(), table, 4), table[1, 2]
    want = sum(row[t, t - 1] - row[t, : t + 1].mean() for t in range(64, 80)) / 16
    assert got["score"][5, 1].item() == pytest.approx(want.item(), abs=1e-10)
    assert got["text"].shape == (6, 4) and (got["alone"] >= 0).all()


def test_effective_rank():
    assert gauge.effective_rank(torch.tensor([3.0] * 5 + [0.0] * 4)).item() == pytest.approx(5)
    assert gauge.effective_rank(torch.tensor([2.0, 1.0])).item() == pytest.approx(25 / 17)
    assert gauge.effective_rank(torch.zeros(4)) == 0


def test_planted_heads_and_the_uncentred_mutant():
    W_E, W_U, planted = heads.planted_heads()
    score = {name: heads.two_copying_tests(W_E, *head, W_U) for name, head in planted.items()}
    assert score["copies"][0] == pytest.approx(1, abs=1e-9) and score["copies"][1] > 0.9
    assert score["anti-copies"][0] == pytest.approx(-1, abs=1e-9)
    assert score["turns"][0] == pytest.approx(0, abs=1e-9)
    assert abs(score["random"][0]) < 0.3
    assert score["three topics"][0] > 0.9 and score["three topics"][1] < 0.2
    moved = W_U + 3 * draw(64, 1)
    raw = scan.ov_factors(W_E, *planted["random"], moved, centre=False)
    assert abs(scan.copying_score(*raw).item() - score["random"][0]) > 0.05
    again = heads.two_copying_tests(W_E, *planted["random"], moved)
    assert again == pytest.approx(score["random"], abs=1e-8)


def test_rank_losses_on_a_toy():
    model, tokens = toy(), torch.randint(1, 70, (4, 30), generator=gen(2))
    got = heads.rank_losses(model, tokens, torch.arange(4), (0, 2, 6), ch02.keep_directions)
    assert got["full_rank_error"] < 1e-10
    for which in ("QK", "OV"):
        assert got[f"{which}_strongest"][2] == pytest.approx(0, abs=1e-10)
        assert abs(got[f"{which}_strongest"][0]) > 1e-5  # no direction: something is lost
        gain = got[f"{which}_random"][1] - got[f"{which}_strongest"][1]
        assert got[f"{which}_gain"][1] == pytest.approx(gain, abs=1e-12)


def test_hidden_share_against_the_table():
    model = toy()
    T = scan.qk_factors(model.W_E, model.W_Q[1, 2], model.W_K[1, 2], centre=False)
    T = T.A @ T.B
    want = (T.mean(1) ** 2).sum() * T.shape[1] / (T**2).sum()
    assert heads.hidden_share(model)[5].item() == pytest.approx(want.item(), abs=1e-10)


def test_head_shapes_have_equal_parameters_and_repeat_themselves():
    from circuitbook import fast

    configs = [shapes.byte_recipe(n, steps=1).config for n in (4, 8, 16)]
    sizes = [sum(math.prod(s) for s in fast.shapes(c).values()) for c in configs]
    assert len(set(sizes)) == 1
    with pytest.raises(ValueError, match="evenly"):
        shapes.byte_recipe(3, steps=1)


# ---- acceptance (a): small matrices and chunks equal the dense table ----------------------------


@pytest.mark.parametrize("where", ["random", pytest.param("trained", marks=WEIGHTS)])
def test_small_equals_dense(where, monkeypatch):
    model = toy() if where == "random" else trained()
    step = max(1, model.cfg.d_vocab // 512)
    sub = torch.arange(0, model.cfg.d_vocab, step)[:512]
    assert heads.small_against_dense(model, 1, 0, sub) <= 1e-9
    honest = scan.ov_factors  # mutant: the uncentred table, and a transposed one
    monkeypatch.setattr(scan, "ov_factors", lambda *a, **k: honest(*a, centre=False))
    assert heads.small_against_dense(model, 1, 0, sub) > 1e-3
    monkeypatch.setattr(scan, "ov_factors", lambda E, V, O, U: honest(U.mT, O.mT, V.mT, E.mT))
    assert heads.small_against_dense(model, 1, 0, sub) > 1e-3


@pytest.mark.slow
def test_the_published_vocabulary_stays_below_two_gigabytes():
    code = """
import torch
from circuitbook import scan
g = torch.Generator().manual_seed(0)
shapes = ((48262, 512), (512, 64), (64, 512), (512, 48262))
A, B = scan.ov_factors(*(torch.randn(s, generator=g) for s in shapes))
rows = torch.arange(0, 48262, 50)
scan.self_rank(A, B, rows=rows), scan.top_k(A, B, 10, rows=rows), scan.copying_score(A, B)
"""
    assert own_peak.of(code) < 2e9


# ---- acceptance (b) and (c): what survives -------------------------------------------------------


def test_head_gauge(any_model):
    model, tokens = any_model, some_tokens(any_model)
    limit = 1e-10 if model.W_E.dtype == torch.float64 else 1e-3
    moves, products = gauge.survival(model, tokens, ch02.change_head_coordinates)
    R = moves["head coordinates R"]
    kept = ("attention pattern", "copying score, centred W_U", "probabilities")
    assert products <= limit and all(R[name] <= limit for name in kept)
    assert R["size of W_V"] >= 0.1

    def wrong(Q, K, V, O, R):  # mutant: keys are turned like queries
        q, k, v, o = ch02.change_head_coordinates(Q, K, V, O, R)
        return q, K @ R, v, o

    moves, products = gauge.survival(model, tokens, wrong)
    assert products > 1e-2 and moves["head coordinates R"]["attention pattern"] > 1e-2


def test_constants_and_the_stream(any_model):
    model, tokens = any_model, some_tokens(any_model)
    double = model.W_E.dtype == torch.float64
    limit, looser = (1e-8, 1e-8) if double else (1e-3, 2e-3)
    moves, _ = gauge.survival(model, tokens, ch02.change_head_coordinates)
    C, G, K = (moves[c] for c in ("W_U + c 1ᵀ", "stream coordinates G", "constant per query"))
    assert C["copying score, centred W_U"] <= limit and C["probabilities"] <= limit
    assert C["copying score, raw W_U"] >= 0.05  # the uncentred mutant
    assert G["logits"] <= looser and G["copying score, centred W_U"] <= looser
    assert G["size of W_OV"] >= 0.1
    assert K["attention pattern"] <= limit and K["raw attention score"] >= 0.01


def test_the_stream_turns_its_positions_too():
    for more in ({}, {"d_mlp": 30, "act": "gelu"}):
        model = toy(**more)
        tokens, G = some_tokens(model), gauge.invertible(24, 24, generator=gen(5))
        turned = gauge.change_stream(model, G)
        torch.testing.assert_close(turned(tokens), model(tokens), rtol=0, atol=1e-9)
        mutant = gauge.with_weights(turned, W_pos=model.W_pos)  # positions left as they were
        assert (mutant(tokens) - model(tokens)).abs().max() > 1e-2
    with pytest.raises(ValueError, match="LayerNorm"):
        gauge.change_stream(toy(norm="layernorm"), torch.eye(24).double())


def test_refusals():
    with pytest.raises(ValueError, match="W_X"):
        gauge.with_weights(toy(), W_X=torch.zeros(1))
    with pytest.raises(ValueError, match="W_U"):
        gauge.with_weights(toy(), W_U=torch.zeros(1, 1))
    with pytest.raises(ValueError, match="condition"):
        gauge.invertible(3, 3, condition=0.5)
    s = torch.linalg.svdvals(gauge.invertible(5, 8, 8, generator=gen()))
    torch.testing.assert_close(s[:, 0] / s[:, -1], torch.full((5,), 10.0, dtype=torch.float64))


# ---- acceptance (d): one source, one message -----------------------------------------------------


def test_one_source_sends_one_message(any_model):
    model, tokens = any_model, some_tokens(any_model)
    for layer in range(2):
        one = heads.writes_from(model, tokens, layer, [4])
        assert ch02.second_direction(one).max() <= 1e-5
        two = heads.writes_from(model, tokens, layer, [4, 5])  # mutant: two messages
        assert ch02.second_direction(two).max() > 1e-3
    model.set_use_attn_result(True)
    _, cache = model.run_with_cache(tokens)
    every = sum(heads.writes_from(model, tokens, 1, [j]) for j in range(tokens.shape[1]))
    result = cache["blocks.1.attn.hook_result"].transpose(1, 2)
    assert (every - result).abs().max() <= 1e-5 * result.abs().max()
    one = heads.writes_from(model, tokens, 1, [4])[0, 0]
    column = cache["blocks.1.attn.hook_pattern"][0, 0, :, 4]
    message = cache["blocks.1.attn.hook_v"][0, 4, 0] @ model.W_O[1, 0]
    torch.testing.assert_close(one, column[:, None] * message, rtol=1e-4, atol=1e-5)
    model.set_use_attn_result(False)


# ---- the evidence -------------------------------------------------------------------------------


def test_claims_follow_from_their_numbers():
    data, by_id = saved.rechecked(CHAPTER, 12)
    one = data["copying"]["attn-only-1l"]
    both = sum(s >= 0.9 and t >= 0.3 for s, t in zip(one["score"], one["top10"], strict=True))
    assert by_id["qkov.copying_heads"]["test"]["value"] == both
    two = data["copying"]["attn-only-2l"]
    every = [pair for t in (one, two) for pair in zip(t["score"], t["top10"], strict=True)]
    only = sum(s >= 0.9 and t < 0.3 for s, t in every)
    assert by_id["qkov.score_is_not_enough"]["test"]["value"] == only


def test_figures_need_no_torch():
    more = """
assert len(ch02.token_table(r, "copier")) == len(ch02.token_table(r, "induction")) == 6
assert len(ch02.copying_rows(r)) == 32
"""
    saved.draw_without_torch(CHAPTER, 5, more)
