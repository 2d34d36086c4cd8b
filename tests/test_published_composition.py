"""Chapter 05 on folded LayerNorm models with biases and positions: terms, cuts, coordinates.

A score is a sum over pairs of sources, biases among them, at the frozen scale; cuts run the scale
again. Each identity stands beside slips that must miss.
"""

import pytest
import torch
from published_toy import DTYPES, LIMIT, gap, gen, published, tokens_of
from published_toy import HEADS as H

from circuitbook import bases, cut, gauge
from circuitbook.composition import bilinear, coordinates, edges, pairs
from circuitbook.config import Config
from circuitbook.expansion import expand
from circuitbook.model import Transformer

ch05 = pytest.importorskip("circuitbook.taught.ch05", reason="run tools/derive.py taught")


@pytest.fixture
def loose(monkeypatch):
    """Call it, and `hold_scales` holds nothing."""
    return lambda: monkeypatch.setattr(expand, "hold_scales", lambda *a: cut.Cut())


# ---- a score as a sum -----------------------------------------------------------------------


def apart(model, tokens):
    window = bilinear.take_apart(model, tokens[0])
    return window, edges.readers(model, window)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_window_and_its_readers_are_the_models_own(dtype):
    model, tokens = published(dtype), tokens_of(1)
    window, r = apart(model, tokens)
    names = ["hook_result", "hook_pattern", "hook_q", "hook_k", "hook_v"]
    cache = cut.run(model, tokens, names=lambda n: n.endswith((*names, "hook_resid_post")))[1]
    scales = model.run_with_cache(tokens, names_filter="blocks.1.ln1.hook_scale")[1]
    assert bilinear.source_names(model) == ["token", "position", "0.0", "0.1", "0.2", "bias"]
    heads = slice(bilinear.DIRECT, bilinear.DIRECT + H)
    limit = 10 * LIMIT[dtype]
    writes = cache["blocks.0.attn.hook_result"][0].transpose(0, 1)
    assert gap(window.parts[heads], writes) <= limit
    assert gap(window.parts.sum(0), cache["blocks.0.hook_resid_post"][0]) <= limit
    assert gap(window.scale, scales.popitem()[1][0]) <= limit
    assert gap(window.patterns, cache["blocks.0.attn.hook_pattern"][0]) <= limit
    for name in "qkv":
        assert (
            gap(getattr(r, name), cache[f"blocks.1.attn.hook_{name}"][0].transpose(0, 1)) <= limit
        )
    assert gap(r.pattern, cache["blocks.1.attn.hook_pattern"][0]) <= limit
    assert gap(r.last, cache["blocks.1.hook_resid_post"][0]) <= limit


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_terms_are_the_score_and_each_slip_misses(dtype):
    model, tokens = published(dtype), tokens_of(1)
    window, _ = apart(model, tokens)
    scores = cut.run(model, tokens, names=["blocks.1.attn.hook_attn_scores"])[1].popitem()[1][0]
    n = len(window.parts)
    assert n == H + 3
    seen = scores.isfinite()[0]
    for h in range(H):
        terms = {(a, b): bilinear.term(model, window, h, a, b) for a in range(n) for b in range(n)}
        want = scores[h][seen]
        assert gap(sum(terms.values())[seen], want) <= 10 * LIMIT[dtype]
        for source in (1, n - 1):  # mutants: no position, no bias, on either side
            for side in (0, 1):
                lost = sum(t for at, t in terms.items() if at[side] != source)
                assert gap(lost[seen], want) > 1e-2
        q, k = bilinear.sides(model, window, h)
        torch.testing.assert_close(terms[2, n - 1], q[2] @ k[-1].mT / 12**0.5)
        unscaled = window._replace(scale=torch.ones_like(window.scale))  # mutant: no scale
        q, k = (x.sum(0) for x in bilinear.sides(model, unscaled, h))
        assert gap((q @ k.mT / 12**0.5)[seen], want) > 1e-2
    assert bilinear.sum_error(model, tokens) <= LIMIT[dtype]
    assert bilinear.sum_error(model, tokens, position=False) > 1e-2


def test_a_head_bias_belongs_to_the_bias_source():
    model, tokens = published(), tokens_of(1)
    model.blocks[1].attn.b_Q += 1.5  # larger than any other query
    window, _ = apart(model, tokens)
    assert bilinear.sum_error(model, tokens) < 1e-12
    before = bilinear.term(model, window, 0, 5, 0)
    model.blocks[1].attn.b_Q -= 1.5
    after = bilinear.term(model, window, 0, 5, 0)
    assert gap(before, after) > 1e-2
    assert not torch.equal(before, bilinear.term(model, window, 0, 1, 0))


def test_shares_with_a_bias_sum_to_one_and_are_covariances():
    model, tokens = published(), tokens_of(2)
    windows = [bilinear.take_apart(model, row) for row in tokens]
    n = H + 3
    for h in range(H):
        by_class, share = bilinear.shares(model, windows, h)
        assert sum(by_class.values()) == pytest.approx(1, abs=1e-10) and share.shape == (n, n)
        want = torch.zeros(n, n, dtype=torch.float64)
        for window in windows:
            tables = [[bilinear.term(model, window, h, a, b) for b in range(n)] for a in range(n)]
            tables = torch.stack([torch.stack(row) for row in tables])
            for t in range(tables.shape[-1]):
                rows = tables[:, :, t, : t + 1]
                rows = rows - rows.mean(-1, keepdim=True)
                want += (rows * rows.sum((0, 1))).mean(-1)
        want = want / want.sum()
        torch.testing.assert_close(share, want, rtol=0, atol=1e-10)
        late = [2, 3, 4]
        early = [0, 1, 5]  # the bias came through no head
        assert by_class["key side"] == pytest.approx(want[early][:, late].sum().item(), abs=1e-10)
        assert by_class["query side"] == pytest.approx(want[late][:, early].sum().item(), abs=1e-10)
        assert by_class["both"] == pytest.approx(want[late][:, late].sum().item(), abs=1e-10)
        assert share[:, 5].abs().max() > 1e-6  # a bias varies over keys: its scale does


def test_value_shares_hold_position_and_bias():
    model, tokens = published(), tokens_of(1)
    window, r = apart(model, tokens)
    share = bilinear.value_shares(model, [window], 2)
    assert share.shape == (H + 3,) and share.sum().item() == pytest.approx(1, abs=1e-12)
    assert abs(share[1]) > 1e-4 and abs(share[-1]) > 1e-5
    whole = r.write[2] - r.write[2].mean(0)
    x = expand.read(model.blocks[1].ln1, window.parts[0], window.scale)
    token = r.pattern[2] @ (x @ model.W_V[1, 2]) @ model.W_O[1, 2]
    want = ((token - token.mean(0)) * whole).sum() / whole.square().sum()
    assert share[0].item() == pytest.approx(want.item(), abs=1e-10)


# ---- cuts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_fast_cuts_run_the_scale_again(dtype):
    model, tokens = published(dtype), tokens_of(1)
    window, r = apart(model, tokens)
    limit, off = (2e-5, 1e-10)[dtype == torch.float64], 0.0
    names = ["blocks.1.attn.hook_pattern", "blocks.1.hook_resid_post"]
    for c in edges.cuts(model, window, r):
        h1, h2, into = c.edge
        edge = cut.cut_path(model, (0, h1), (1, h2), into)
        pattern, last = (cut.run(model, tokens, edge, names=names)[1][n][0] for n in names)
        assert (c.pattern - pattern[h2]).abs().max() <= limit, c.edge
        assert gap(r.last + c.write - r.write[h2], last) <= limit, c.edge
        if into == "k":  # mutant: w taken out at the frozen scale
            w = bilinear.reads(model, window)[bilinear.DIRECT + h1] @ model.W_K[1, h2]
            held = bilinear.causal(r.q[h2] @ (r.k[h2] - w).mT / 12**0.5)
            off = max(off, (held - pattern[h2]).abs().max().item())
    assert off > 1e-2
    some = [(0, 1, "q"), (1, 2, "k"), (2, 0, "v")]
    assert pairs.slow_error(model, tokens[0], some) <= limit


def test_v_cut_term_k_cut_and_held_patterns_with_norm(loose):
    model, tokens = published(), tokens_of(2)
    assert pairs.virtual_head_error(model, tokens[0], (1, 2)) < 1e-10
    for dtype in DTYPES:
        changed = pairs.local_changes(published(dtype), tokens, (0, 1))
        assert changed == {"K-cut": 0, "K-cut, own": 2, "same layer": 0}
    assert pairs.frozen_cut(model, tokens, (0, 1)) == 0
    loose()  # mutant: scales run again
    assert pairs.virtual_head_error(model, tokens[0], (1, 2)) > 1e-3


def test_all_effects_with_norm_against_whole_runs():
    model, tokens = published(), tokens_of(3, 14)
    got = edges.all_effects(model, tokens, torch.arange(3), every=1)
    clean = model(tokens, return_type="loss_per_token").mean(-1)
    assert got["clean"] == pytest.approx(clean.mean().item(), abs=1e-9)
    for h1, h2, into in ((0, 1, "q"), (2, 0, "k"), (1, 2, "v")):
        edge = cut.cut_path(model, (0, h1), (1, h2), into)
        per_token = cut.run(model, tokens, edge, return_type="loss_per_token")[0]
        rise = (per_token.mean(-1) - clean).mean().item()
        at = edges.INPUTS.index(into), h1, h2
        assert got["loss"][at].item() == pytest.approx(rise, abs=1e-9)
    assert (got["pattern"][2] == 0).all() and (got["pattern"][:2] > 0).all()
    assert got["write"].shape == (H,)


# ---- coordinates ----------------------------------------------------------------------------


def test_a_turn_about_the_ones_keeps_scores_a_shear_moves_them_and_others_are_not_free():
    model, tokens = published(), tokens_of(1)
    turned = gauge.change_stream(model, gauge.free_turn(36, gen(6)))
    sheared = gauge.change_stream(model, gauge.shear(torch.randn(36, generator=gen(6))))
    for other in (turned, sheared):
        assert gap(other(tokens), model(tokens)) < 1e-10
    for old, new, far in zip(*(pairs.scores(m) for m in (model, turned, sheared)), strict=True):
        assert (old - new).abs().max() < 1e-8
        assert ((old - far) / old).min() > 0.3
    anywhere = bases.rotation(36, gen(6))
    with pytest.raises(ValueError, match="all-ones"):
        gauge.change_stream(model, anywhere)
    assert gap(gauge.change_stream(model, anywhere, free=False)(tokens), model(tokens)) > 1e-2


def test_box_of_chapter_05_with_norm():
    model, tokens = published(), tokens_of(1)[0]
    moves = coordinates.survival(model, tokens, (1, 2), ch05.rotated_score)
    R, G, C, K = moves.values()
    numbers = coordinates.box_numbers(model, tokens, (1, 2), ch05.rotated_score)
    assert gap(numbers["logits"], model(tokens[None])[0]) < 1e-10
    kept = (
        "probabilities", "effect of the K-cut on the pattern",
        "effect of the V-cut on probabilities", "covariance share of the pair's term",
        "eigenvalue score of the virtual table",
    )  # fmt: skip
    assert max(m[name] for m in moves.values() for name in kept) < 1e-7
    assert R["K-composition score"] < 1e-8 < 1e-2 < R["score of the rotated product"]
    assert max(m for q, m in G.items() if q != "K-composition score") < 1e-7
    new = numbers["K-composition score"] * (1 - G["K-composition score"])
    assert G["K-composition score"] >= 1 - (1 + 4 * 36 / 12) ** -0.5  # falls that far at least
    writer = pairs.writer(model, 1)
    lower = gauge.change_stream(model, coordinates.shear_against(writer))
    assert pairs.scores(lower).k[1, 2].item() == pytest.approx(new.item(), rel=1e-9)
    assert C["logits"] > 1e-2 and K["raw share of the pair's term"] > 1e-2
    told = coordinates.stream_claim(G, 0.5, 0.1, None)
    assert told["holds"]["ok"] and "LayerNorm" in told["text"]
    for slip in ({"K-composition score": 0.0}, {"logits": 0.1}):
        assert not coordinates.stream_claim(G | slip, 0.5, 0.1, None)["holds"]["ok"]
    assert "from {before:.3f} to" in coordinates.stream_claim(G, 0.5, 0.1, 0.05)["text"]


def test_other_forms_are_refused():
    model = published()
    raw = Config(2, 36, H, 12, n_ctx=40, d_vocab=110, norm="layernorm", positions="standard")
    for cfg in (raw, raw.replace(norm="none"), model.cfg.replace(n_layers=3)):
        with pytest.raises(ValueError, match="two attention-only layers"):
            bilinear.take_apart(Transformer(cfg), tokens_of(1)[0])
