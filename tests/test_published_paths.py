"""Chapter 03 on folded LayerNorm models with biases and positions: every sum beside its slips.

Small random models in the form that `zoo.load` gives the published ones. Identities hold once the
scales are frozen, with positions and biases written out; each test leaves one of these out and
must miss.
"""

import pytest
import torch
from published_toy import DTYPES, LIMIT, gap, gen, published, tokens_of
from published_toy import HEADS as H

from circuitbook import cut, fold, spine
from circuitbook.config import Config
from circuitbook.expansion import expand, frozen, importance, pathchecks
from circuitbook.model import Transformer

ch03 = pytest.importorskip("circuitbook.taught.ch03", reason="run tools/derive.py taught")


@pytest.fixture
def loose(monkeypatch):
    """Call it, and `hold_scales` holds nothing."""
    return lambda: monkeypatch.setattr(expand, "hold_scales", lambda *a: cut.Cut())


# ---- paths of heads -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_sums_by_path_are_the_logits(layers, dtype):
    model, tokens = published(dtype, layers=layers), tokens_of()
    ran = expand.record(model, tokens)
    terms = list(expand.expand(model, tokens, ran, direct=True))
    by_path = expand.gather(terms, lambda t: t.path)
    assert len(by_path) == (1 + H) ** layers  # biases and positions make no path of their own
    want, always = model(tokens), expand.unembed_bias(model)

    def missed(writes, scales=ran, bias=always):
        return gap(sum(expand.logits(model, w, scales) for w in writes) + bias, want)

    assert missed(by_path.values()) <= LIMIT[dtype]
    assert missed(by_path.values(), bias=0) > 1e-2
    ones = torch.ones_like(ran.last_scale)
    assert missed(by_path.values(), expand.Frozen(ran.patterns, ran.scales, ones)) > 1e-2
    assert missed([t.write for t in terms if "bias" not in t.source]) > 1e-2
    assert missed([w for path, w in by_path.items() if len(path) < layers]) > 1e-2
    apart = list(expand.expand(model, tokens, ran))
    assert missed([t.write for t in apart if t.source != "position"]) > 1e-2


def loss_by_hand(model, window, keep, first=0, scale=None, bias=True):
    """Loss of one window from whole tables, with the terms whose path and source `keep` wants."""
    ran = expand.record(model, window)
    kept = [t.write for t in expand.expand(model, window, ran) if keep(t.path, t.source)]
    read = expand.read(model.ln_final, sum(kept), ran.last_scale if scale is None else scale)
    logits = read @ model.W_U + (model.unembed.b_U if bias else 0)
    log_probs = logits[0, first:-1].log_softmax(-1)
    return -log_probs.gather(1, window[0, first + 1 :, None]).mean().item()


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_term_losses_are_those_of_whole_tables(dtype, first, monkeypatch):
    monkeypatch.setattr(importance, "ROWS", 5)
    model, tokens = published(dtype), tokens_of()
    got, near = importance.term_losses(model, tokens, first=first), {torch.float32: 1e-4}
    tight, named = {"abs": near.get(dtype, 1e-10)}, importance.path_name
    assert len(got.names) == len(set(got.names)) == 2 * H + H * H
    for w, window in enumerate(tokens.split(1)):
        for k in range(3):
            want = loss_by_hand(model, window, lambda p, s, k=k: len(p) <= k, first)
            assert got.orders[w, k].item() == pytest.approx(want, **tight)
        for l in range(2):
            want = loss_by_hand(
                model, window, lambda p, s, l=l: p in {(), *(((l, h),) for h in range(H))}, first
            )
            assert got.layers[w, l].item() == pytest.approx(want, **tight)
        for i, name in enumerate(got.names):
            added = loss_by_hand(model, window, lambda p, s, n=name: named(p) in ("", n), first)
            removed = loss_by_hand(model, window, lambda p, s, n=name: named(p) != n, first)
            assert got.added[w, i].item() == pytest.approx(added, **tight)
            assert got.removed[w, i].item() == pytest.approx(removed, **tight)


def test_term_losses_need_scale_bias_and_position():
    model, tokens = published(), tokens_of(1)
    whole = importance.term_losses(model, tokens, single=False).orders[0, -1].item()
    assert whole == pytest.approx(model(tokens, return_type="loss").item(), abs=1e-10)
    slips = (
        loss_by_hand(model, tokens, lambda p, s: True, scale=torch.ones(1).double()),
        loss_by_hand(model, tokens, lambda p, s: True, bias=False),
        loss_by_hand(model, tokens, lambda p, s: "bias" not in s),
        loss_by_hand(model, tokens, lambda p, s: s != "position"),
    )
    assert min(abs(slip - whole) for slip in slips) > 1e-2


def test_few_rows_at_a_large_vocabulary(monkeypatch):
    model, tokens = published(), tokens_of(1, 40)
    whole = importance.term_losses(model, tokens)
    monkeypatch.setattr(importance, "ENTRIES", 1)  # 16 rows at a time, the least
    pieces = importance.term_losses(model, tokens)
    assert len(list(importance._rows(39, 110))) == 3
    torch.testing.assert_close(whole.removed, pieces.removed, rtol=0, atol=1e-12)
    monkeypatch.undo()
    rows = next(importance._rows(511, 48262))
    assert rows.stop * 48262 <= importance.ENTRIES and next(importance._rows(511, 4096)).stop == 256


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_papers_runs_with_norm_and_biases(layers, loose):
    model, tokens = published(layers=layers), tokens_of()
    assert pathchecks.procedure_gap(model, tokens, ch03.streams_by_order) < 1e-12

    def without_bias(model, tokens, patterns):  # mutant: the biases come with the heads
        bare = fold.fold_value_biases(model)
        for block in bare.blocks:
            block.attn.b_O = None
        return ch03.streams_by_order(bare, tokens, patterns)

    assert pathchecks.procedure_gap(model, tokens, without_bias) > 1e-2
    loose()  # mutant: the scales of each run are its own
    assert pathchecks.procedure_gap(model, tokens, ch03.streams_by_order) > 1e-2


def test_order_losses_with_norm():
    model, tokens = published(), tokens_of()
    orders = importance.term_losses(model, tokens, single=False).orders
    assert max(pathchecks.order_loss_gaps(model, tokens, orders)) < 1e-10
    assert min(pathchecks.order_loss_gaps(model, tokens, orders.roll(1, 1))) > 1e-3
    alone = pathchecks.order_loss_gaps(model, tokens, orders)[1]
    model.blocks[1].attn.b_O += 1.0 * torch.randn(36, generator=gen(5)).double()  # mutant: a bias
    assert pathchecks.order_loss_gaps(model, tokens, orders)[1] > 1e-3 > alone


@pytest.mark.parametrize("dtype", DTYPES)
def test_frozen_is_linear_with_patterns_over_scales(dtype):
    model, tokens = published(dtype), tokens_of()
    held, free = pathchecks.linearity_gaps(model, tokens, ch03.frozen_stream)
    assert held <= LIMIT[dtype] and free > 0.1
    # the linear map is the model's own: the terms of token and position
    ran = expand.record(model, tokens[:1])
    terms = expand.expand(model, tokens[:1], ran)
    want = expand.gather(t for t in terms if "bias" not in t.source)["all"]
    X = model.W_E[tokens[:1]] + model.W_pos[: tokens.shape[1]]
    over = pathchecks.over_scales(ran)
    W_V = torch.stack([expand.read_weights(b.ln1, b.attn.W_V) for b in model.blocks])
    assert gap(ch03.frozen_stream(X, over, W_V, model.W_O), want) <= LIMIT[dtype]
    assert gap(ch03.frozen_stream(X, ran.patterns, W_V, model.W_O), want) > 1e-2
    across = [A / s[:, None] for A, s in zip(ran.patterns, ran.scales, strict=True)]  # queries
    assert gap(ch03.frozen_stream(X, across, W_V, model.W_O), want) > 1e-2


def test_read_weights_is_the_norm_before_a_matrix():
    model, x = published(), torch.randn(5, 36, generator=gen(2)).double() + 1
    cfg = model.cfg.replace(norm="layernorm")
    norm = Transformer(cfg, seed=0).double().requires_grad_(False).ln_final
    norm.w.copy_(torch.rand(36, generator=gen(3)) + 0.5)
    W, one = torch.randn(36, 7, generator=gen(4)).double(), torch.ones(5, 1).double()
    torch.testing.assert_close(x @ expand.read_weights(norm, W), expand.read(norm, x, one) @ W)
    assert gap(x @ (norm.w[:, None] * W), expand.read(norm, x, one) @ W) > 1e-2  # no centring
    assert expand.read_weights(torch.nn.Identity(), W) is W


@pytest.mark.parametrize("dtype", DTYPES)
def test_both_orders_matter_with_norm(dtype):
    errors = expand.swapped(published(dtype), tokens_of())
    assert errors.keys() == {"positions", "features"} and min(errors.values()) > 1e-2


def test_swapped_with_equal_layers_is_the_sum():
    model, tokens = published(), tokens_of()
    for block in model.blocks:  # heads alike: their order cannot matter, patterns still do
        for name in ("W_V", "W_O"):
            getattr(block.attn, name).copy_(
                getattr(model.blocks[0].attn, name)[:1].expand(H, -1, -1)
            )
    assert expand.swapped(model, tokens)["features"] < 1e-12
    assert expand.swapped(model, tokens)["positions"] > 1e-3


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_v_cut_is_minus_its_term_when_scales_are_held(dtype, loose):
    model, tokens = published(dtype), tokens_of()
    every = [((0, g), (1, h)) for g in range(H) for h in range(H)]
    size = model(tokens).abs().max()
    for pair in every:
        term, change = pathchecks.term_and_cut(model, tokens, pair)
        assert (term + change).abs().max() <= (1e-5 if dtype == torch.float32 else 1e-12) * size
    loose()
    assert min(pathchecks.cut_gap(model, tokens, pair) for pair in every) > 1e-3


def test_held_scales_are_the_runs_own():
    model, tokens = published(), tokens_of()
    hold = expand.hold_scales(model, expand.record(model, tokens))
    assert "norm scales" in hold.describe() and len(hold.hooks) == 3
    assert gap(cut.run(model, tokens, hold)[0], cut.run(model, tokens)[0]) < 1e-12
    removed = cut.ablate_heads(model, tokens, [(0, 1)])
    a, b = (cut.logit_change(model, tokens, c) for c in (removed, removed + hold))
    assert gap(a, b) > 1e-2
    bare = Transformer(Config(2, 16, 2, 8, n_ctx=16, d_vocab=24))
    assert expand.hold_scales(bare, expand.record(bare, tokens_of(1, 4) % 24)) == cut.Cut()


# ---- names ----------------------------------------------------------------------------------


def name_prompts():
    tokens = tokens_of(6, 9, seed=8)
    tokens[:, 3] = torch.tensor([20, 21, 20, 21, 20, 21])  # titles, then names
    tokens[:, 4] = torch.tensor([30, 31, 32, 33, 34, 35])
    tokens[:, 5:] = tokens[:1, 5:] % 10 + 40
    female = [i % 2 == 0 for i in range(6)]
    return spine.Prompts(tokens, tokens[:, 4], [str(i) for i in range(6)], female)


def unfolded():
    """Random weights, gains and biases, and nothing folded: norms keep their own w and b."""
    model = Transformer(published().cfg.replace(norm="layernorm"), generator=gen(6)).double()
    for i, (name, p) in enumerate(model.requires_grad_(False).named_parameters()):
        p.mul_(3) if "W_" in name else p.add_(torch.randn(p.shape, generator=gen(i)) * 0.3)
    return model


@pytest.mark.parametrize("dtype", DTYPES)
def test_terms_of_a_name_add_up_with_norm(dtype):
    model, p = published(dtype), name_prompts()
    terms = frozen.name_terms(model, p)
    assert len(terms) == (1 + H) ** 2 and "direct" in terms
    whole = frozen.last_named(model, p, model.stream(p.tokens))
    assert gap(sum(terms.values()), whole) <= 10 * LIMIT[dtype]
    logits = model(p.tokens)[:, -1]
    by_hand = logits[0, 30] - logits[0, [32, 34]].mean()
    assert whole[0].item() == pytest.approx(by_hand.item(), abs=100 * LIMIT[dtype])
    lost = sum(terms.values()) - spine.name_biases(model, p)[1]  # mutant: the unembedding's bias
    assert gap(lost, whole) > 1e-2


@pytest.mark.parametrize("folded", [True, False])
def test_frozen_prediction_holds_patterns_and_scales(folded):
    model, p = published() if folded else unfolded(), name_prompts()
    clean = frozen.last_named(model, p, model.stream(p.tokens))
    for what in ("name", "title"):
        found = frozen.frozen_and_rerun(model, p, what)
        patterns = cut.freeze_patterns(model, p.tokens)
        hold = expand.hold_scales(model, expand.record(model, p.tokens))

        def named(change, tokens=found.tokens):
            last = cut.run(model, tokens, change, ["ln_final.hook_normalized"])[1].popitem()[1]
            return frozen.last_named(model, p, last if folded else gained(last)) - clean

        def gained(last):
            return last * model.ln_final.w + model.ln_final.b

        assert gap(found.frozen, named(patterns + hold)) < 1e-10
        assert gap(found.rerun, named(None)) < 1e-10
        assert gap(found.frozen, named(patterns)) > 1e-3  # mutant: scales run again
        if not folded:  # mutant: the final norm's bias is lost; every prompt has its own share
            way = spine.unembed_directions(model, p)[1]
            assert gap(found.frozen - way @ model.ln_final.b, named(patterns + hold)) > 1e-2


def test_pair_cuts_run_scales_again():
    model, p, pair = published(), name_prompts(), ((0, 1), (1, 2))
    got = frozen.pair_cuts(model, p, pair)
    for into in "qkv":
        logits = [cut.run(model, p.tokens, c)[0][:, -1] for c in
                  (None, cut.cut_path(model, *pair, into))]  # fmt: skip
        led = [x[0, 30] - x[0, [32, 34]].mean() for x in logits]
        assert got[into][0].item() == pytest.approx((led[0] - led[1]).item(), abs=1e-10)
    term = frozen.name_terms(model, p)[importance.path_name(pair)]
    assert (got["v"] - term).abs().max() > 1e-4  # said in its docstring


def test_box_of_chapter_03_with_norm():
    model, tokens = published(), tokens_of(1)
    table = frozen.survival(model, tokens, ((0, 1), (1, 2)), gen(4))
    box = {
        "head coordinates R": (1, 1, 1, 1, 0, 1),
        "stream, orthogonal G": (1, 1, 1, 1, 1, 1),
        "stream, invertible G": (1, 1, 1, 0, 1, 1),
        "W_U + c 1ᵀ": (1, 1, 0, 1, 1, 1),
        "constant per query": (1, 1, 1, 1, 1, 0),
    }
    assert {k: tuple(v) for k, v in table.items()} == box  # a shear moves what a stretch does


def test_a_model_with_mlps_is_refused():
    cfg = published().cfg.replace(d_mlp=8, act="gelu")
    with pytest.raises(ValueError, match="chapter 10"):
        importance.term_losses(Transformer(cfg), tokens_of(1))
