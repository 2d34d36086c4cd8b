"""Chapters 02 and 04 on models with LayerNorm, biases and positions in the stream: sums, mutants.

Small random models of the published kind. Each identity is compared with the running model, in both
dtypes, and misses once a scale, a bias or a position is forgotten.
"""

import numpy as np
import pytest
import torch
from trigram_toys import a_text, gen

from circuitbook import cut, fold, gauge, heads, inputs, scan
from circuitbook.config import Config
from circuitbook.model import Transformer
from circuitbook.skip_trigrams import (
    bug_pairs,
    copying,
    trigrams,
    triple_runs,
    triple_study,
    triple_text,
)
from circuitbook.taught import ch02, ch04

LIMIT = {torch.float32: 1e-5, torch.float64: 1e-12}
FOLDED = (True, False)


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request):
    return request.param


def published(layers=1, dtype=torch.float64, folded=True, scale=3.0):
    """A random model of the published kind, gains and biases drawn; folded as `zoo.load` does."""
    cfg = Config(
        layers, d_model=32, n_heads=3, d_head=8, n_ctx=80, d_vocab=90, norm="layernorm",
        positions="standard", pos_kind="learned", attn_bias=True, unembed_bias=True,
    )  # fmt: skip
    model, g = Transformer(cfg, seed=1).double().eval().requires_grad_(False), gen(7)
    for name, p in model.named_parameters():
        kind = name.rsplit(".", 1)[-1]
        if kind.startswith("b"):
            p.copy_(0.3 * torch.randn(p.shape, generator=g))
        elif kind == "w":
            p.copy_(1 + 0.3 * torch.randn(p.shape, generator=g))
        elif kind in ("W_Q", "W_O"):
            p.mul_(scale)
    if folded:
        model = fold.center_writing_weights(fold.fold_layer_norm(model))
        model = fold.center_unembed(fold.fold_value_biases(model))
    return model.to(dtype)


def some_tokens(n=20, batch=2, seed=3):
    return torch.randint(1, 90, (batch, n), generator=gen(seed))


def off(found, truth):
    """max |found - truth| / max |truth|."""
    return ((found - truth).abs().max() / truth.abs().max()).item()


def centred(scores):
    """Scores minus their mean over the keys that a query sees; zero elsewhere."""
    seen = torch.ones_like(scores).tril()
    scores = scores.masked_fill(seen == 0, 0.0)
    return (scores - scores.sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)) * seen


def model_scores(model, tokens, layer=0):
    _, cache = model.run_with_cache(tokens)
    return cache[f"blocks.{layer}.attn.hook_attn_scores"]


# ---- token tables -------------------------------------------------------------------------------


@pytest.mark.parametrize("folded", FOLDED)
def test_the_qk_table_is_the_score_of_tokens_alone(dtype, folded):
    model = published(dtype=dtype, folded=folded)
    still = gauge.with_weights(model, W_pos=torch.zeros_like(model.W_pos))
    row = some_tokens()[0]
    truth = centred(model_scores(still, row[None])[0])

    def table(**more):
        rows = []
        for h in range(3):
            A, B = inputs.qk_factors(model, 0, h, **more)
            rows.append(A[row] @ B[:, row])
        return centred(torch.stack(rows))

    assert off(table(), truth) <= LIMIT[dtype]
    assert off(table(centre=False), truth) <= LIMIT[dtype]  # b_K and all constants go with the mean
    W_Q, W_K = model.W_Q[0], model.W_K[0]
    E, b_Q = inputs.alone(model), inputs.bias(model, "Q", 0)

    def factors(E, b):
        A, B = scan.qk_factors(E, W_Q, W_K, b_Q=b)
        return centred(A[:, row] @ B[:, :, row])

    assert off(factors(E, b_Q), truth) <= LIMIT[dtype]
    assert off(factors(model.W_E, b_Q), truth) > 0.1  # mutant: the scale forgotten
    assert off(factors(E, None), truth) > 0.05  # mutant: the bias of the queries forgotten
    assert off(table(), centred(model_scores(model, row[None])[0])) > 0.05  # position forgotten
    assert inputs.scale_share(model, row[None]) > 0.01  # and that is why it is an approximation


@pytest.mark.parametrize("folded", FOLDED)
def test_the_ov_table_is_what_a_token_alone_writes(dtype, folded):
    model = published(dtype=dtype, folded=folded)
    no_bias = torch.zeros(1, 3, 8).to(dtype)
    still = gauge.with_weights(model, W_pos=torch.zeros_like(model.W_pos), b_V=no_bias)
    if not folded:  # the norm's own bias is a constant of every message, not a token's
        still.blocks[0].ln1.b.zero_()
    tokens, at = some_tokens(batch=1), 4
    write = heads.writes_from(still, tokens, 0, [at])[0, 1, -1]
    pattern = still.run_with_cache(tokens)[1]["blocks.0.attn.hook_pattern"][0, 1, -1, at]
    n = write - write.mean()
    W_U = model.W_U if folded else model.ln_final.w[:, None] * model.W_U
    truth = n @ (W_U - W_U.mean(1, keepdim=True)) / pattern
    A, B = inputs.ov_factors(still, 0, 1)
    assert off(A[tokens[0, at]] @ B, truth) <= 2 * LIMIT[dtype]
    plain = scan.ov_factors(model.W_E, model.W_V[0, 1], model.W_O[0, 1], model.W_U)
    assert off(plain.A[tokens[0, at]] @ plain.B, truth) > 0.1  # mutant: the scale forgotten


def test_a_scale_moves_no_rank_but_orders_keys():
    model = published()
    A, B = inputs.ov_factors(model, 0, 1)
    plain = scan.ov_factors(model.W_E, model.W_V[0, 1], model.W_O[0, 1], model.W_U)
    assert torch.equal(scan.self_rank(A, B), scan.self_rank(*plain))
    ids = scan.top_k(*inputs.qk_factors(model, 0, 1), 5).ids
    mutant = scan.top_k(*scan.qk_factors(model.W_E, model.W_Q[0, 1], model.W_K[0, 1]), 5).ids
    assert not torch.equal(ids, mutant)  # a column's scale is another matter


def test_tables_of_some_tokens_and_of_a_model_without_norm():
    model, few = published(), torch.tensor([3, 50, 8, 20])
    A, B = inputs.qk_factors(model, 0, 2, tokens=few, centre=False)
    whole = inputs.qk_factors(model, 0, 2, centre=False)
    torch.testing.assert_close(A @ B, (whole.A @ whole.B)[few][:, few])
    bare = Transformer(Config(1, d_model=24, n_heads=3, d_head=6, n_ctx=32, d_vocab=70)).double()
    got = inputs.qk_factors(bare, 0, 1)
    want = scan.qk_factors(bare.W_E, bare.W_Q[0, 1], bare.W_K[0, 1])
    assert torch.equal(got.A, want.A) and torch.equal(got.B, want.B)
    assert inputs.positional(bare, few[None])[2] is bare.W_pos
    assert inputs.scale_share(bare, few[None]) == 0


# ---- positions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("folded", FOLDED)
def test_the_parts_of_a_score(dtype, folded):
    model, row = published(dtype=dtype, folded=folded), some_tokens()[0]
    parts, truth = triple_runs.score_parts(model, row), centred(model_scores(model, row[None])[0])
    assert parts.shape[:2] == (3, 6)
    assert off(centred(parts.sum(1)), truth) <= LIMIT[dtype]
    assert off(centred(parts[:, :4].sum(1)), truth) > 0.05  # mutant: the bias of the queries
    assert off(centred(parts[:, [0, 4]].sum(1)), truth) > 0.05  # mutant: positions
    s = inputs.scales(model, row[None])[0][0]
    assert off(centred(parts.sum(1) * s), truth) > 0.05  # mutant: the scale
    shares = triple_runs.score_shares(model, row[None])
    torch.testing.assert_close(shares.sum(1), torch.ones_like(shares[:, 0]))
    # positions alone, at the text's own scale: the same numbers by another way
    alone = ch02.position_scores(*inputs.positional(model, row[None]))
    if folded:
        assert off(centred(alone[0]), centred(parts[:, 3] + parts[:, 5])) <= 10 * LIMIT[dtype]
        assert off(centred(alone[0]), centred(parts[:, 3])) > 0.05  # mutant: the bias


def test_positions_of_a_later_layer_and_of_several_windows():
    model, tokens = published(layers=2), some_tokens(30)
    alone = ch02.position_scores(*inputs.positional(model, tokens))
    assert alone.shape == (2, 3, 30, 30)
    s = model.run_with_cache(tokens)[1]["blocks.1.ln1.hook_scale"]
    p, attn = model.W_pos[:30] * (1 / s).mean(0), model.blocks[1].attn
    q, k = (p @ W[2] + b[2] for W, b in ((attn.W_Q, attn.b_Q), (attn.W_K, attn.b_K)))
    torch.testing.assert_close(alone[1, 2], q @ k.T / 8**0.5)
    first = ch02.position_scores(*inputs.positional(model, tokens[:1]))
    assert (first - alone).abs().max() > 1e-3  # other text, other scales: an approximation
    profiles = heads.offset_profiles(
        published(layers=2), some_tokens(80), alone.new_zeros(2, 3, 80, 80), 4
    )
    assert profiles["alone"].shape == (6, 4)


# ---- gauges -------------------------------------------------------------------------------------


def test_head_coordinates_carry_their_biases():
    model, tokens = published(layers=2), some_tokens()
    R = gauge.invertible(2, 3, 8, 8, generator=gen(4))
    turned = gauge.turn_heads(model, ch02.change_head_coordinates, R)
    assert off(turned(tokens), model(tokens)) <= 1e-11
    parts = ch02.change_head_coordinates(model.W_Q, model.W_K, model.W_V, model.W_O, R)
    named = dict(zip(("W_Q", "W_K", "W_V", "W_O"), parts, strict=True))
    assert off(gauge.with_weights(model, **named)(tokens), model(tokens)) > 1e-3  # biases left
    with pytest.raises(ValueError, match="missing"):
        bare = Transformer(Config(1, d_model=24, n_heads=3, d_head=6, n_ctx=32, d_vocab=70))
        gauge.with_weights(bare, b_Q=torch.zeros(1, 3, 6))


def test_survival_and_its_sentence():
    model, tokens = published(layers=2), some_tokens(batch=1)
    raw = gauge.with_weights(model, W_U=model.W_U + 0.2)
    moves, products = gauge.survival(raw, tokens, ch02.change_head_coordinates)
    R, G, C, K = moves.values()
    assert products <= 1e-10 and max(R["attention pattern"], R["probabilities"]) <= 1e-10
    assert R["size of W_V"] >= 0.1 and C["probabilities"] <= 1e-8
    assert K["attention pattern"] <= 1e-9 and K["raw attention score"] >= 0.01
    told = gauge.stream_claim(G)
    assert told["holds"]["ok"] and "all-ones" in told["text"] and G[gauge.ANY_G] > 0.01
    assert G["size of W_OV"] > 0.5 and max(G["logits"], G["attention pattern"]) < 1e-9
    for slip in ({"size of W_OV": 0.0}, {"logits": 0.1}, {gauge.ANY_G: 0.0}):
        assert not gauge.stream_claim(G | slip)["holds"]["ok"]


def test_entries_survive():
    model = published(folded=True)
    raw = gauge.with_weights(model, W_U=model.W_U + 0.2)
    found = trigrams.search(trigrams.head_tables(raw, 0, 1, torch.arange(1, 90)), 20)
    moves = triple_study.survival(raw, found, 1, ch02.change_head_coordinates)
    assert max(x for row in moves.values() for q, x in row.items() if "centred" in q) <= 1e-8
    assert moves["constant per query"]["QK entry, raw"] > 0.01
    assert moves["W_U + c 1ᵀ"]["OV entry, raw"] > 0.01


def test_ranks_with_biases(monkeypatch):
    model, tokens, doc = published(layers=2), some_tokens(30, batch=4), torch.arange(4)

    def error():
        ranks = heads.rank_losses(model, tokens, doc, (0, 2), ch02.keep_directions)
        return ranks["full_rank_error"]

    assert error() <= 1e-10
    monkeypatch.setattr(gauge, "with_bias", lambda m, x: getattr(m, f"W_{x}"))
    monkeypatch.setattr(gauge, "split_bias", lambda m, x, both: {f"W_{x}": both})
    assert error() > 1e-5  # mutant: biases stay in the old head coordinates


# ---- the running model --------------------------------------------------------------------------


@pytest.mark.parametrize("folded", FOLDED)
def test_the_parts_of_a_logit(dtype, folded, monkeypatch):
    model, tokens = published(dtype=dtype, folded=folded), some_tokens(12, batch=5)
    place, outputs = torch.tensor([3, 4, 10, 1, 2]), torch.randint(1, 90, (5, 3), generator=gen(2))
    out = triple_runs.read(model, tokens, place, outputs)
    logits = model(tokens)[:, -1]
    truth = (logits - logits.mean(-1, keepdim=True)).gather(1, outputs)
    assert off(out.logit, truth) <= LIMIT[dtype]
    assert off(out.log_prob, logits.log_softmax(-1).gather(1, outputs)) <= LIMIT[dtype]
    assert off(out.part.sum(1) + out.direct, truth) <= LIMIT[dtype]

    def missed():
        again = triple_runs.read(model, tokens, place, outputs)
        return off(again.part.sum(1) + again.direct, truth)

    honest = triple_runs._without_heads
    with monkeypatch.context() as m:  # mutants: b_O, then the position, then the bias of W_U
        b_O = model.blocks[0].attn.b_O
        m.setattr(triple_runs, "_without_heads", lambda model, t: honest(model, t) - b_O)
        assert missed() > 1e-2
        m.setattr(triple_runs, "_without_heads", lambda model, t: model.W_E[t[:, -1]] + b_O)
        assert missed() > 1e-2
    with monkeypatch.context() as m:
        m.setattr(triple_runs, "unembed_bias", lambda model: 0 * model.unembed.b_U)
        assert missed() > 1e-2
    with monkeypatch.context() as m:  # and the scale
        plain = triple_runs.through
        m.setattr(triple_runs, "through", lambda norm, x, s: plain(norm, x, torch.ones_like(s)))
        assert missed() > 1e-2


def test_boosts_add_up_to_the_head_and_have_no_determinant(dtype):
    model, tokens = published(dtype=dtype), some_tokens(14, batch=8).view(2, 4, 14)
    tokens[:, :, 9] = 33
    tokens[0, :, -1], tokens[1, :, -1] = 20, 21
    table = bug_pairs.boost_table(model, tokens, 9, 1, [40, 41])
    assert bug_pairs.determinant(table) <= (1e-6 if dtype == torch.float64 else 1e-4)
    two = bug_pairs.boost_table(model, tokens, 9, 1, [40, 41], also=[5])
    assert bug_pairs.determinant(two) > 1e-3  # mutant: a second message
    every = bug_pairs.boost_table(model, tokens, 0, 1, [40, 41], also=range(1, 14))
    flat, asked = tokens.flatten(0, 1), torch.tensor([40, 41]).expand(8, 2)
    part = triple_runs.read(model, flat, torch.full((8,), 9), asked).part[:, 1].view(2, 4, 2)
    assert off(every, part.mean(1)) <= 2 * LIMIT[dtype]
    # by hand: attention times message, each context at its own final scale
    _, cache = model.run_with_cache(flat)
    A = cache["blocks.0.attn.hook_pattern"][:, 1, -1, 9] / cache["ln_final.hook_scale"][:, -1, 0]
    message = cache["blocks.0.attn.hook_v"][0, 9, 1] @ model.W_O[0, 1]
    W_U = (model.W_U - model.W_U.mean(1, keepdim=True))[:, [40, 41]]
    assert off(table, ch04.boosts(A.view(2, 4).mean(1), message @ W_U)) <= 10 * LIMIT[dtype]
    unscaled = cache["blocks.0.attn.hook_pattern"][:, 1, -1, 9]  # mutant: the final scale
    assert off(table, ch04.boosts(unscaled.view(2, 4).mean(1), message @ W_U)) > 0.05


def test_one_message_with_biases():
    for folded in FOLDED:
        model, tokens = published(folded=folded), some_tokens(batch=1)
        assert ch02.second_direction(heads.writes_from(model, tokens, 0, [4])).max() <= 1e-10
        assert ch02.second_direction(heads.writes_from(model, tokens, 0, [4, 5])).max() > 1e-3
        model.set_use_attn_result(True)
        result = model.run_with_cache(tokens)[1]["blocks.0.attn.hook_result"].transpose(1, 2)
        every = sum(heads.writes_from(model, tokens, 0, [j]) for j in range(20))
        assert off(every, result) <= 1e-12


def test_loss_without_heads_runs_the_final_norm_again():
    model, tokens, doc = published(), some_tokens(20, batch=3), np.arange(3)
    got = copying.loss_without(model, tokens, doc, {"one": [1], "none": []})
    change = cut.ablate_heads(model, tokens, [(0, 1)], "mean")
    clean, without = (
        cut.run(model, tokens, c, return_type="loss_per_token")[0] for c in (None, change)
    )
    right = tokens[:, 1:]
    seen = torch.stack(
        [(tokens[:, : t + 1] == right[:, t : t + 1]).any(1) for t in range(right.shape[1])], 1
    )
    for which, mask in (("seen", seen), ("new", ~seen)):
        want = (without - clean)[mask].mean().item()
        assert got["one"][which][0] == pytest.approx(want, abs=1e-8)
        assert got["none"][which][0] == 0


# ---- other texts, and nothing found -------------------------------------------------------------


def test_contexts_open_with_the_start_token_of_their_text():
    text = triple_text.Text([np.arange(3, 60)] * 2, 90, 6, bos=2)
    ends = triple_runs.contexts(text, np.array([40, 50]), 12, np.random.default_rng(0))
    assert ends.tokens[:, 0].tolist() == [2, 2] and ends.tokens[:, -1].tolist() == [40, 50]
    none = triple_runs.contexts(text, np.arange(0), 12, np.random.default_rng(0))
    assert none.tokens.shape == (0, 12)


def test_a_head_without_triples_is_no_crash():
    model, text, counts = published(), a_text(vocab=90), np.full(90, 50)
    silent = gauge.with_weights(model, W_O=torch.zeros_like(model.W_O))
    lists = [triple_study.listed(m, 0, counts, text, 10, 12, 20) for m in (silent, model)]
    assert len(lists[0].triples.qk) == 0 and len(lists[1].triples.qk) == 12
    runs = [triple_study.in_model(model, x, 0, text, (1, 4), 20, 0) for x in lists]
    assert runs[0]["n"] == 0 and runs[0].keys() == runs[1].keys()
    assert runs[0]["sums"].keys() == runs[1]["sums"].keys()
    assert triple_study.pooled(runs)["true"] == runs[1]["true"]
    found = [triple_study.in_text(x, text, 4, 2, 0) for x in lists]
    rows = triple_study.text_rows(found)
    assert rows["triples"]["true"][0] == [0.0, -1.0, 1.0]  # nothing counted, nothing known
    assert rows["triples"]["rates"][0] == [0.0, 0.0] and rows["triples"]["places"][0] == 0
    kinds, table = triple_study.readable(lists[:1], ["x"] * 90, text, 3)
    assert table == [] and sum(map(sum, kinds.values())) == 0


def test_a_short_list_takes_its_controls_from_all_allowed_tokens():
    model, text, counts = published(), a_text(vocab=90), np.arange(90) + 20
    found = triple_study.listed(model, 0, counts, text, 10, 3, 20)
    assert 0 < len(found.controls) <= 3
    assert all(len(x) == 6 and s not in x for s, x in found.controls.items())


def test_pictures_without_bugs():
    from circuitbook.gallery import ch04 as pictures

    nothing = {"bugs": [], "table": []}
    assert "No bug" in pictures.bug_squares(nothing).alt
    assert len(pictures.bug_table(nothing)) == len(pictures.kind_table(nothing)) == 1


def test_public_rows_belong_to_the_published_models(monkeypatch):
    one, two = published(), published(layers=2)
    table = {"score": [0.1] * 6, "head": [f"{l}.{h}" for l in (0, 1) for h in range(3)]}
    monkeypatch.delenv("MODELS", raising=False)
    assert inputs.public_rows(one, two, table, 4) == {}
    factors = scan.ov_factors(one.W_E, one.W_V[0, 2], one.W_O[0, 2], one.W_U)
    T, ids = factors.A @ factors.B, torch.tensor([5, 5, 70])
    own = (T[ids] >= T[ids, ids][:, None]).sum(1)
    assert inputs.own_row(one, 2, ids)[1] == pytest.approx((own == 1).double().mean().item())
