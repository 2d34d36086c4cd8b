"""Neurons with LayerNorm, positions in the stream and biases: sums of chapter 07, and mutants."""

import numpy as np
import own_peak
import pytest
import torch
from neuron_hooks import falls
from small_model import gen, model_of

from circuitbook import bases, cut, fold, paths
from circuitbook.config import Config
from circuitbook.model import Transformer
from circuitbook.neurons import (
    ablate,
    context_learning,
    contexts,
    counts,
    draw,
    evidence,
    expansion,
    norms,
    pair,
    series_rows,
    study,
    survive,
    tables,
)

ch07 = pytest.importorskip("circuitbook.taught.ch07", reason="run tools/derive.py taught")
DTYPES = [(torch.float32, 1e-5), (torch.float64, 1e-12)]
TWO = Config(
    n_layers=2, d_model=32, n_heads=2, d_head=16, d_mlp=48, n_ctx=32, d_vocab=120, act="gelu",
    norm="layernorm", positions="standard", pos_kind="learned", attn_bias=True, unembed_bias=True,
)  # fmt: skip
ONE = TWO.replace(n_layers=1)


def raw(config=ONE, dtype=torch.float64, seed=0):
    """As published: gains that are not 1, biases that are not 0."""
    model = model_of(config, dtype, seed)
    for name, p in model.named_parameters():
        if name.endswith(".w"):
            p.add_(1 + 0.2 * torch.randn(p.shape, generator=gen(seed + 1)).to(p))
    return model


def folded(config=ONE, dtype=torch.float64, seed=0):
    """As `zoo.load` gives a published model."""
    model = fold.center_writing_weights(fold.fold_layer_norm(raw(config, dtype, seed)))
    return fold.center_unembed(fold.fold_value_biases(model)).requires_grad_(False)


def tokens_of(n=6, length=20, seed=3):
    tokens = torch.randint(1, 120, (n, length), generator=gen(seed))
    tokens[:, 0] = 119  # BOS is not token 0 here
    return tokens


# ---- the wires in -------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [raw, folded])
@pytest.mark.parametrize(("dtype", "limit"), DTYPES)
def test_a_pre_activation_is_the_sum_of_its_parts(make, dtype, limit):
    model, tokens = make(dtype=dtype), tokens_of()
    errors = expansion.identity_errors(model, tokens, ch07.neuron_terms)
    assert max(errors.values()) <= limit, errors
    unbiased = expansion.identity_errors(model, tokens, ch07.neuron_terms, biased=False)
    missed = expansion.split_mutants(model, tokens)
    assert set(missed) == {"position", "attention bias", "scale"}
    assert min([*unbiased.values(), *missed.values()]) > 1e-2, (unbiased, missed)


def test_each_part_is_what_it_is_called():
    model, tokens = folded(), tokens_of()
    split = expansion.split_pre(model, tokens)
    names = ["blocks.0.attn.hook_result", "blocks.0.ln2.hook_scale"]
    cache = cut.run(model, tokens, names=names)[1]
    s, W = cache[names[1]], model.blocks[0].mlp.W_in
    torch.testing.assert_close(split.parts["token"], model.W_E[tokens] @ W / s)
    table = tables.direct_inputs(model.W_E, W)
    torch.testing.assert_close(split.parts["token"] * s, (table.A @ table.B).T[tokens])
    torch.testing.assert_close(split.parts["position"][2], model.W_pos[:20] @ W / s[2])
    for h in range(2):
        torch.testing.assert_close(split.parts[f"head 0.{h}"], cache[names[0]][:, :, h] @ W / s)
    shares = expansion.variance_shares(split)
    torch.testing.assert_close(sum(shares.values()), torch.ones(48).double())
    assert {"position", "attention bias"} <= set(shares)


def test_through_a_head_the_table_is_right_up_to_both_scales():
    """One token attended to with weight one: what it adds to a neuron, divided by two scales."""
    model, tokens = folded(), tokens_of(1)
    attn, W_in = model.blocks[0].attn, model.blocks[0].mlp.W_in
    names = [f"blocks.0.{n}" for n in ("ln1.hook_scale", "ln2.hook_scale", "attn.hook_v")]
    s1, s2, v = (cut.run(model, tokens, names=names)[1][n] for n in names)
    s1 = s1.flatten(0, 1).unique() if s1.ndim == 4 else s1
    table = tables.head_inputs(model.W_E, attn.W_V[1], attn.W_O[1], W_in)
    dense = (table.A @ table.B).T  # [token, neuron]
    x = model.W_E[tokens] + model.W_pos[:20]
    scale = (x.var(-1, correction=0, keepdim=True) + model.cfg.eps).sqrt()
    place = model.W_pos[:20] @ attn.W_V[1] @ attn.W_O[1] @ W_in / scale
    bias = attn.b_V[1] @ attn.W_O[1] @ W_in
    added = v[:, :, 1] @ attn.W_O[1] @ W_in  # before the attention and the second scale
    torch.testing.assert_close(added, dense[tokens] / scale + place + bias)
    assert (added - dense[tokens] - place - bias).abs().max() > 0.1  # mutant: no scale
    assert s2.min() > 0
    found = tables.most_read_by_head(model, 0, 1, 4)
    assert torch.equal(found.ids, dense.T.topk(4, 1).indices)
    assert torch.equal(tables.most_read(model, 0, 4).ids, (model.W_E @ W_in).T.topk(4, 1).indices)
    for table in (tables.most_read, tables.most_read_by_head):
        with pytest.raises(ValueError, match="fold"):
            table(raw(), 0, *([1] if table is tables.most_read_by_head else []), k=3)


def test_tables_of_the_published_shape_fit_in_two_gigabytes():
    code = """
import torch
from circuitbook.config import Config
from circuitbook.model import Transformer
from circuitbook.neurons import tables
torch.set_num_threads(1)
model = Transformer(Config(n_layers=1, d_model=512, n_heads=8, d_head=64, d_mlp=2048, n_ctx=1024,
    d_vocab=48262, act="gelu", norm="layernorm_pre", positions="standard", pos_kind="learned",
    attn_bias=True, unembed_bias=True)).requires_grad_(False)
found = tables.most_read_by_head(model, 0, 3, 8)
table = tables.head_inputs(model.W_E, model.blocks[0].attn.W_V[3], model.blocks[0].attn.W_O[3],
                           model.blocks[0].mlp.W_in)
assert torch.equal((table.A[99] @ table.B).topk(8).indices, found.ids[99])
"""
    peak = own_peak.of(code)
    assert peak < 2e9, f"peak memory {peak / 1e9:.2f} GB"


# ---- what is read on text -----------------------------------------------------------------------


def text_of(model, n=24):
    tokens, doc = tokens_of(n), torch.arange(n) // 3
    return tokens, doc, contexts.read_text(model, tokens, doc)


@pytest.mark.parametrize("make", [raw, folded])
def test_activations_are_those_of_the_run(make):
    model = make()
    tokens, _, text = text_of(model)
    names = ["blocks.0.mlp.hook_post", "blocks.0.hook_resid_mid"]
    post, mid = (cut.run(model, tokens, names=names)[1][n][:, 1:-1].flatten(0, 1) for n in names)
    torch.testing.assert_close(contexts.activations(model, text.read, slice(None)), post)
    torch.testing.assert_close(text.stream, mid)
    off = contexts.activations(model, text.stream, slice(None))  # mutant: the norm forgotten
    assert (off - post).abs().max() > 0.1


def test_agreement_in_coordinates_that_layernorm_leaves():
    model = folded()
    _, _, text = text_of(model)
    whiten = contexts.without_ones(model, ch07.whiten)
    x = whiten(text.read)[0]
    assert x.shape[1] == 31
    torch.testing.assert_close(x.T @ x / len(x), torch.eye(31).double(), atol=1e-8, rtol=0)
    fires = (contexts.activations(model, text.read, torch.arange(9)) - 0.1).clamp_min(0)
    G = bases.free_rotation(model, gen(4))
    turned = whiten(text.read @ G)[0]
    a, b = (ch07.agreement(z, fires, text.doc) for z in (x, turned))
    torch.testing.assert_close(a, b, atol=1e-8, rtol=0)
    plain = Transformer(ONE.replace(norm="none"))
    assert contexts.without_ones(plain, ch07.whiten) is ch07.whiten


def test_what_survives_with_layernorm():
    model, tokens = folded(TWO.replace(d_mlp=64)), tokens_of(12)
    whiten = contexts.without_ones(model, ch07.whiten)
    moves = survive.survival(model, tokens, whiten, ch07.agreement)
    for change, row in moves.items():
        for name in ("probabilities", "activations", "agreement of its contexts"):
            assert row[name] == 0, (change, name, row[name])
    assert moves["W_U + c 1ᵀ"]["what it writes, raw"] > 0.1
    assert moves["stream coordinates G"]["cosine of k and v"] > 0.1  # a shear lengthens v
    assert moves["stream coordinates G"]["input times output, k · v"] == 0
    assert survive.any_stream(model, tokens) > 0.05  # a G that is not free is another function


# ---- silence ------------------------------------------------------------------------------------


def test_stand_ins_read_what_the_mlp_reads():
    model, tokens = folded(TWO), tokens_of()
    k = torch.arange(1, 20)
    clean = model(tokens, return_type="loss_per_token")

    def losses(way):
        return expansion.losses(model, tokens, k, lambda t: expansion.silenced(model, t, way))

    for kept in (False, True):
        same = expansion.Silence(tuple(b.mlp for b in model.blocks), kept)
        torch.testing.assert_close(losses(same), clean)
    zero = losses(expansion.Silence((lambda x: torch.zeros_like(x),) * 2))
    bare = Transformer.from_state_dict(
        TWO.replace(norm="layernorm_pre", d_mlp=0, act="none"),
        {n: p for n, p in model.state_dict().items() if ".mlp." not in n},
    )
    torch.testing.assert_close(zero, bare(tokens, return_type="loss_per_token").detach())
    ways = expansion.ways(model, tokens_of(4, seed=5))
    for name, way in ways.items():
        assert losses(way).isfinite().all(), name
    assert (losses(ways["best affine map, re-run"]) - clean).mean() < (zero - clean).mean()


# ---- taken away ---------------------------------------------------------------------------------


def effects_of(model):
    tokens, _, text = text_of(model)
    words = tables.most_written(model, model.cfg.n_layers - 1, 4).ids
    found = contexts.survey(
        model, text, contexts.without_ones(model, ch07.whiten), ch07.agreement, words, firing=5
    )
    partner = ablate.partners(found.share, found.share > 0.02)
    common = ablate.as_frequent(words, torch.bincount(text.token, minlength=120))
    e = ablate.effects(model, text, found, words, common, partner, rows=50)
    return tokens, text, words, found, partner, e


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-4), (torch.float64, 1e-10)])
@pytest.mark.parametrize("make", [raw, folded])
def test_effects_with_a_final_norm(make, dtype, limit):
    """Frozen, the fall of a logit is algebra; probabilities are those of a run with a hook."""
    model = make(dtype=dtype)
    tokens, text, words, found, partner, e = effects_of(model)
    largest = e.algebra.abs().max()
    assert (e.logit - e.algebra).abs().max() <= limit * largest
    assert (e.logit_again - e.algebra).abs().max() > 1e-3 * largest  # mutant: scale run again
    ids = (partner >= 0).nonzero().flatten().tolist()
    place = torch.cat([found.firing[i] for i in ids])
    clean = model(tokens).log_softmax(-1)
    for i in range(0, len(e.neuron), 41):
        n, p = int(e.neuron[i]), int(place[i])
        w, t = int(text.window[p]), int(text.place[p])
        change = ablate.ablation(0, n, found.mean[n])
        again = cut.run(model, tokens[[w]], change)[0].log_softmax(-1)[0, t]
        want = clean[w, t, words[n]].logsumexp(0) - again[words[n]].logsumexp(0)
        assert e.own[i].item() == pytest.approx(want.item(), abs=1e-8 if limit < 1e-8 else 1e-4)
    base = ablate.base_rates(text, words, 120)
    s = ablate.study(e, base, torch.tensor(ids))
    assert 0 < s["scale run again"] < 1 and s["algebra gap"] <= limit


def test_one_layer_earlier_by_hooks():
    model, tokens = folded(TWO), tokens_of(6)
    neurons, doc = (2, 9, 15), torch.arange(6) // 2
    found = ablate.earlier_layer(model, tokens, doc, neurons, k=3)
    shown = falls(model, tokens, neurons, tables.most_written(model, 0, 3).ids)
    for mine, want in zip(found["by neuron"], shown, strict=True):
        assert mine == pytest.approx(want, abs=1e-9)  # direct, total
    fewer = ablate.earlier_layer(model, tokens, doc, neurons, k=3, most=120 * 8)
    assert 3 <= fewer["positions"] <= 24 < found["positions"]
    model.blocks[0].mlp.b_in.fill_(-1e3)  # nobody fires
    assert ablate.earlier_layer(model, tokens, doc, neurons)["by neuron"] == []


# ---- the pair's MLP, contexts -------------------------------------------------------------------


def test_edges_into_the_mlp_by_hooks():
    model, tokens, doc = folded(TWO), tokens_of(), torch.arange(6)
    k = torch.arange(2, 20)
    found = pair.edges_into_mlp(model, tokens, doc, k)
    name = "blocks.0.attn.hook_result"
    write = cut.run(model, tokens, names=[name])[1][name][:, :, 1]
    clean = model(tokens, return_type="loss_per_token")[:, k - 1].mean()
    model.set_use_hook_mlp_in(True)
    hook = ("blocks.0.hook_mlp_in", lambda x, hook: x - write + write.mean(0))
    with model.hooks(fwd_hooks=[hook]):
        again = model(tokens, return_type="loss_per_token")[:, k - 1].mean()
    assert found["head 0.1"]["rise"][0] == pytest.approx((again - clean).item(), abs=1e-9)


def test_scores_read_the_same_columns():
    k = context_learning.scored()
    assert len(k) == 40 and {50, 500, 41, 510} <= set(k.tolist())
    loss = torch.randn(9, 511, generator=gen(), dtype=torch.float64)
    s = context_learning.scores(loss[:, k - 1], k)
    every = context_learning.indices(every=24)
    torch.testing.assert_close(context_learning.scores(loss[:, every - 1], every).broad, s.broad)
    doc = torch.arange(9) // 2
    row = context_learning.series_row(context_learning.level(s, doc))
    assert row["score"] == pytest.approx((row["loss_500"] - row["loss_50"]).item())
    assert row["plus_minus"] > 0


# ---- windows, draws, kinds ----------------------------------------------------------------------


def test_windows_of_another_tokenizer():
    articles = [list(range(100 * a, 100 * a + n)) for a, n in enumerate((70, 5, 900, 33))]
    w = series_rows.windows_of(articles, 7, 6, length=12, seed=1)
    assert w.tokens.shape == (6, 12) and (w.tokens[:, 0] == 7).all()
    for row, doc in zip(w.tokens[:, 1:], w.doc, strict=True):
        assert (np.diff(row) == 1).all() and (row[0] - 100 * doc) % 11 == 0  # no overlap
        assert row[-1] < 100 * doc + len(articles[doc])
    assert np.bincount(w.doc).max() <= 4 and 1 not in w.doc
    everything = series_rows.windows_of(articles[:2], 7, 600, length=12)
    assert len(everything.tokens) == 6  # all that there are


def test_fewer_neurons_than_asked():
    share, documents = torch.linspace(0, 1e-4, 30), torch.arange(30)
    allowed = draw.ranked(share, documents, 1e-3, 10, least=11)
    assert allowed.nonzero().flatten().tolist() == list(range(19, 30))
    busy = torch.full((30,), 0.1)
    assert draw.ranked(busy, documents, 1e-3, 10, least=11).sum() == 20
    assert len(draw.drawn(ch07.DRAW_SEED, 14, 2048)) == 14
    assert draw.drawn(ch07.DRAW_SEED, 14, 1024) == ch07.DRAWN


def test_kinds_of_one_source(monkeypatch):
    from circuitbook import vocabulary

    monkeypatch.setattr(vocabulary, "texts", lambda: [str(i) if i < 10 else "a" for i in range(99)])
    tokens = torch.full((6, 8), 20)
    for i, digits in enumerate((8, 0, 3, 1, 6, 4)):
        tokens[i, :digits] = 5
    kinds = context_learning.kinds_of(["W"] * 6, tokens)
    assert kinds == [f"{x} digits" for x in ("many", "few", "some", "few", "many", "some")]
    assert context_learning.kinds_of(["a", "b"], tokens[:2]) == ["a", "b"]


def test_nothing_is_added_on_the_course_models(monkeypatch):
    monkeypatch.delenv("MODELS", raising=False)
    assert series_rows.rows({}, 3, 0) == {}
    model = folded()
    top = tables.most_read(model, 0, 10)
    assert series_rows.neurons(model, effects_of(model)[3], top, top) == {}
    assert study.roles()[0] == "attn-only-0l" and len(study.roles()) == 5
    assert evidence.published() is False
    monkeypatch.setenv("MODELS", "published")
    assert "attn-only-0l" not in study.roles() and len(study.roles()) == 4
    assert study.beside({}) == {} and evidence.published() is True
    with paths.model_set("course"):
        assert evidence.published() is False


def test_the_series_neurons_under_their_own_keys(monkeypatch):
    import json

    monkeypatch.setenv("MODELS", "published")
    monkeypatch.setattr(series_rows, "NEURONS", (3, 40, 4000))
    monkeypatch.setattr(series_rows, "words_of", lambda ids: [f"w{int(i)}" for i in ids])
    model = folded()
    found = effects_of(model)[3]
    writes, reads = tables.most_written(model, 0, 10), tables.most_read(model, 0, 10)
    rows = series_rows.neurons(model, found, writes, reads)["series neurons"]
    assert set(rows) == {"3", "40"}  # the third is not in this model
    reference = json.loads((paths.ROOT / "results/reference/series.json").read_text("utf-8"))
    printed = next(x["value"] for x in reference["entries"] if x["id"] == "part7.neuron.847")
    assert set(rows["3"]) == set(printed) and len(rows["3"]["writes"]) == len(printed["writes"])
    word, value = rows["40"]["writes"][0]
    boost = model.blocks[0].mlp.W_out[40] @ model.W_U
    assert value == pytest.approx((boost - boost.mean()).max().item())
    assert word == f"w{int(boost.argmax())}"
    assert rows["40"]["reads"][0][1] == pytest.approx(
        (model.W_E @ model.blocks[0].mlp.W_in[:, 40]).max().item()
    )
    assert norms.output_reader(model).shape == (32, 120)
    assert counts.PUBLISHED["gelu-1l"].d_mlp > max((847, 1996))
