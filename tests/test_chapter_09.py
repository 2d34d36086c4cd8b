"""Chapter 09: what its evidence says, tied together; taught functions; the box and its mutants."""

import statistics

import pytest
import saved
import torch

from circuitbook import gauge, spine
from circuitbook.autoencoders import survive
from circuitbook.composition import bilinear

ch09 = pytest.importorskip("circuitbook.taught.ch09", reason="run tools/derive.py taught")
CHAPTER = "09_sparse_autoencoders"
LEAST = 40


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---- taught functions ---------------------------------------------------------------------------


def test_the_forward_pass_is_affine_where_latents_are_on():
    E, b, D, c = draw(5, 9), draw(9, seed=1), draw(9, 5, seed=2), draw(5, seed=3)
    x = draw(20, 5, seed=4)
    f, copy = ch09.sae_forward(x, E, b, D, c)
    assert (f >= 0).all() and (f == 0).any() and (f > 0).any()
    on = (f > 0).double()
    torch.testing.assert_close(((x @ E + b) * on) @ D + c, copy)
    loss = ch09.naive_loss(x, E, b, D, c, 0.3)
    torch.testing.assert_close(loss, (x - copy).square().sum(1) + 0.3 * f.sum(1))
    assert (ch09.naive_loss(x, E, b, D, c, 0.0) < loss).all()


def test_reason_terms_are_those_of_the_hundred():
    q, k = draw(4, 12), draw(4, 7, 12, seed=1)
    W_Q, W_K = draw(12, 3, seed=2), draw(12, 3, seed=3)
    got = ch09.reason_terms(q, k, W_Q, W_K)
    score = (q.sum(0) @ W_Q) @ (k.sum(0) @ W_K).T / 3**0.5
    assert got.sum().item() == pytest.approx((score[-1] - score.mean()).item(), abs=1e-10)
    one = (q[1] @ W_Q) @ (k[2] @ W_K).T / 3**0.5
    assert got[1, 2].item() == pytest.approx((one[-1] - one.mean()).item(), abs=1e-10)
    assert (got.T - got).abs().max() > 1e-2  # mutant: query and key exchanged
    moved = ch09.reason_terms(q, k + draw(4, 1, 12, seed=5), W_Q, W_K)
    torch.testing.assert_close(moved, got)  # what is equal at all keys does not count


@pytest.mark.weights
def test_reason_terms_on_the_trained_pair():
    from circuitbook import zoo

    model = zoo.load("attn-only-2l", dtype=torch.float64, device="cpu")
    tokens = torch.randint(1, 4096, (24,), generator=torch.Generator().manual_seed(1))
    window, h = bilinear.take_apart(model, tokens), spine.heads_pair(model, 8)[1][1]
    got = ch09.reason_terms(window.parts[:, -1], window.parts, model.W_Q[1, h], model.W_K[1, h])
    whole = bilinear.centre(
        sum(bilinear.term(model, window, h, a, b) for a in range(10) for b in range(10))
    )
    assert got.sum().item() == pytest.approx(whole[-1, -1].item(), abs=1e-9)


# ---- the box ------------------------------------------------------------------------------------


@pytest.mark.weights
def test_a_dictionary_that_is_carried_along_survives():
    from circuitbook import zoo
    from circuitbook.autoencoders import bundle

    model = zoo.load("gelu-2l", dtype=torch.float64, center=False, device="cpu")
    both = [bundle.load(f"transcoder-gelu-2l-{l}").to(torch.float64) for l in (0, 1)]
    moves = survive.survival(model, both, 7, seed=1)
    right, of = survive.right_predictions(moves)
    assert right == of == 40
    left_behind = survive.numbers(  # mutant: the transcoders stay in the old coordinates
        gauge.change_stream(
            model, gauge.invertible(256, 256, generator=torch.Generator().manual_seed(2))
        ),
        both,
        7,
    )
    old = survive.numbers(model, both, 7)
    assert gauge.movement(old, left_behind)["latents"] > 1e-2
    assert gauge.movement(old, left_behind)["probabilities"] < 1e-9


# ---- the evidence -------------------------------------------------------------------------------


def test_toys_are_tied_to_the_bounds_of_the_issue():
    data, by_id = saved.rechecked(CHAPTER, LEAST)
    toys = data["toys"]
    plain, mended, n = toys["plain"], toys["mended"], 40
    lanes = len(plain["found"])
    assert lanes >= 10 and toys["setting"]["steps"] == 15_000 and toys["setting"]["batch"] == 4096
    assert sum(f == n for f in mended["found"]) >= 0.9 * lanes
    assert min(plain["median"]) >= 0.98
    for way in ("plain", "mended", "blind"):
        t = toys[way]
        for i in range(lanes):
            assert t["shared"][i] == t["spare"][i] and t["lost"][i] == n - t["found"][i]
            assert t["crowded"][i] <= t["lost"][i] and t["idle"][i] <= t["spare"][i]
            assert t["found"][i] == sum(c > 0.99 for c in t["best"][i])
            assert t["near"][i] == sum(c > 0.9 for c in t["best"][i])
            assert t["worst"][i] == min(t["best"][i]) and t["found"][i] <= t["near"][i]
    assert sum(plain["moved"]) == 0 < sum(mended["moved"])
    row = data["series"]["part7.sae40"]
    assert row["cos_gt_0.99"] == statistics.median(plain["found"])
    assert row["l1"] == 0.3 and row["steps"] == 15_000
    hand = data["series"]["part7.sae_by_hand"]
    assert hand["f"] == [0.4, 0] and hand["err"] == [0.01, 0.0025]
    value = by_id["saes.mended_finds_all"]["test"]["value"]
    assert value == sum(f == n for f in mended["found"])


def test_every_published_row_has_a_counterpart():
    data, _ = saved.rechecked(CHAPTER, LEAST)
    rows = {"part7.sae_by_hand", "part7.sae40", "part7.aunt_sally.tokens"}
    for role in ("attn-only-1l", "attn-only-2l"):
        rows |= {f"part7.aunt_sally.{role}.{what}" for what in ("p_sally", "top5", "head")}
    assert rows <= set(data["series"])


def test_figures_need_no_torch():
    saved.draw_without_torch(CHAPTER, 12)
