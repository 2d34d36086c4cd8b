"""Path expansion: sums, mutants, patterns from terms, losses of terms, memory."""

import itertools

import own_peak
import pytest
import torch
from small_model import TINY, model_of, tokens_of

from circuitbook import cut, fold
from circuitbook.expansion import expand, importance, pathchecks

DTYPES = [torch.float32, torch.float64]
LIMIT = {torch.float32: 1e-5, torch.float64: 1e-12}
WEIGHTS = pytest.mark.weights


def trained(layers, dtype):
    from circuitbook import zoo

    return zoo.load(f"attn-only-{layers}l", dtype=dtype, device="cpu")


def any_model(where, layers, dtype):
    return trained(layers, dtype) if where == "trained" else model_of(TINY.replace(n_layers=layers))


PLACES = ["random", pytest.param("trained", marks=WEIGHTS)]


def windows(n=2, length=96):
    from circuitbook import corpus

    return torch.from_numpy(corpus.heldout_windows(n).tokens)[:, :length]


# ---- the terms -----------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", range(5))
def test_there_are_as_many_terms_as_paths(layers):
    model = model_of(TINY.replace(n_layers=layers))
    tokens = tokens_of()
    terms = list(expand.expand(model, tokens, expand.record(model, tokens)))
    assert len(terms) == len({t.path for t in terms}) == 3**layers
    orders = [sum(t.order == k for t in terms) for k in range(layers + 1)]
    combinations = [
        len(list(itertools.combinations(range(layers), k))) * 2**k for k in range(layers + 1)
    ]
    assert orders == combinations
    assert all(list(t.path) == sorted(t.path) for t in terms)  # heads in order of their layers
    assert len({t.name for t in terms}) == len(terms)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_terms_add_up_on_random_weights(layers, dtype):
    model, tokens = model_of(TINY.replace(n_layers=layers)).to(dtype), tokens_of()
    assert expand.sum_error(model, tokens) <= LIMIT[dtype]
    ran = expand.record(model, tokens)
    terms = expand.expand(model, tokens, ran)
    total = sum(expand.logits(model, t.write, ran) for t in terms) + expand.unembed_bias(model)
    torch.testing.assert_close(
        total, model(tokens), rtol=0, atol=1e-4 if dtype.itemsize < 8 else 1e-11
    )
    lost = expand.gather(t for t in expand.expand(model, tokens, ran) if t.order < layers)["all"]
    assert (expand.logits(model, lost, ran) - model(tokens)).abs().max() > 1e-2  # one order lost


@WEIGHTS
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layers", [1, 2])
def test_terms_add_up_on_trained_weights(layers, dtype):
    model, tokens = trained(layers, dtype), windows()
    ran = expand.record(model, tokens)
    assert len(list(expand.expand(model, tokens, ran))) == 9**layers
    assert expand.sum_error(model, tokens) <= LIMIT[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("where", PLACES)
def test_both_orders_matter(where, dtype):
    model = any_model(where, 2, dtype).to(dtype)
    tokens = windows(1) if where == "trained" else tokens_of()
    errors = expand.swapped(model, tokens)
    assert errors.keys() == {"positions", "features"}
    assert all(x >= 1e-2 for x in errors.values())


def test_swapped_without_a_swap_is_the_sum():
    # With commuting maps and patterns the two mutants must be right: they differ in order alone.
    model, tokens = model_of(), tokens_of()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.W_V[:] = block.attn.W_V[:1]
            block.attn.W_O[:] = block.attn.W_O[:1]
            block.attn.W_V.copy_(model.blocks[0].attn.W_V)
            block.attn.W_O.copy_(model.blocks[0].attn.W_O)
    assert expand.swapped(model, tokens)["features"] < 1e-10
    assert expand.swapped(model, tokens)["positions"] > 1e-3


def test_terms_come_lazily(monkeypatch):
    model, tokens = model_of(), tokens_of()
    ran, calls = expand.record(model, tokens), []
    honest = expand.read
    monkeypatch.setattr(expand, "read", lambda *a: (calls.append(1), honest(*a))[1])
    terms = expand.expand(model, tokens, ran)
    assert not calls and next(terms).order == 0 and not calls
    assert next(terms).path == ((0, 0),) and len(calls) == 1


def test_gather_sums_by_key_and_leaves_terms_alone():
    model, tokens = model_of(), tokens_of()
    ran = expand.record(model, tokens)
    terms = list(expand.expand(model, tokens, ran))
    before = [t.write.clone() for t in terms]
    sums = expand.gather(terms, lambda t: t.order)
    for k in range(3):
        want = sum(w for t, w in zip(terms, before, strict=True) if t.order == k)
        torch.testing.assert_close(sums[k], want)
    assert all(torch.equal(t.write, w) for t, w in zip(terms, before, strict=True))
    torch.testing.assert_close(sum(sums.values()), model.stream(tokens))


def test_below_gives_the_stream_that_a_layer_reads():
    model, tokens = model_of(TINY.replace(n_layers=3)), tokens_of()
    ran = expand.record(model, tokens)
    _, cache = model.run_with_cache(tokens)
    for layer in range(3):
        terms = list(expand.expand(model, tokens, ran, below=layer))
        assert len(terms) == 3**layer
        want = cache[f"blocks.{layer}.hook_resid_pre"]
        torch.testing.assert_close(expand.gather(terms)["all"], want)


def test_a_model_with_an_mlp_is_refused():
    model = model_of(TINY.replace(d_mlp=8, act="gelu"))
    with pytest.raises(ValueError, match="chapter 10"):
        expand.record(model, tokens_of())


# ---- LayerNorm, biases, positions in the stream --------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_of_scales_biases_and_positions_is_needed(dtype):
    model, tokens = pathchecks.normed_model(1, dtype)
    errors = expand.left_out(model, tokens)
    assert errors.pop("nothing") <= LIMIT[dtype]
    assert errors.keys() == {"scales", "biases", "positions"}
    assert all(x > 1e-2 for x in errors.values())


def test_the_sources_of_a_norm_model():
    model, tokens = pathchecks.normed_model(1)
    ran = expand.record(model, tokens)
    terms = list(expand.expand(model, tokens, ran))
    count = {s: sum(t.source == s for t in terms) for s in {t.source for t in terms}}
    assert count == {"token": 16, "position": 16, "bias 0": 4, "bias 1": 1}
    everything = sum(expand.logits(model, t.write, ran) for t in terms)
    bias = expand.unembed_bias(model)
    torch.testing.assert_close(everything + bias, model(tokens))
    assert bias.abs().max() > 1e-2  # and it is needed
    grouped = list(expand.expand(model, tokens, ran, direct=True))
    assert {t.source for t in grouped} == {"direct", "bias 0", "bias 1"}
    pair = [t.write for t in terms if t.path == ((0, 1),) and t.source in ("token", "position")]
    (direct,) = (t.write for t in grouped if t.path == ((0, 1),) and t.source == "direct")
    torch.testing.assert_close(sum(pair), direct)


def test_folding_does_not_change_the_sum():
    cfg = TINY.replace(norm="layernorm", positions="standard", pos_kind="learned", attn_bias=True)
    model, tokens = model_of(cfg.replace(unembed_bias=True)), tokens_of()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith(".w"):
                p.add_(1.0)
    for one in (model, fold.fold_layer_norm(model)):
        assert expand.sum_error(one, tokens) < 1e-12
        assert expand.left_out(one, tokens)["biases"] > 1e-2
    # the value bias alone, the output bias alone, the unembedding bias alone
    for name in ("blocks.0.attn.b_V", "blocks.1.attn.b_O", "unembed.b_U"):
        other = fold.fold_layer_norm(model)
        with torch.no_grad():
            dict(other.named_parameters())[name].add_(0.7)
        assert expand.sum_error(other, tokens) < 1e-12


def test_shortformer_positions_are_not_a_source():
    model, tokens = model_of(TINY.replace(norm="layernorm")), tokens_of()
    ran = expand.record(model, tokens)
    assert {t.source for t in expand.expand(model, tokens, ran)} >= {"token"}
    assert "position" not in {t.source for t in expand.expand(model, tokens, ran)}
    assert expand.sum_error(model, tokens) < 1e-12


# ---- patterns from scores ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("where", PLACES)
def test_patterns_rebuilt_from_terms(where, dtype):
    model = any_model(where, 2, dtype).to(dtype)
    tokens = windows(1) if where == "trained" else tokens_of()
    right, undivided = pathchecks.pattern_gaps(model, tokens)
    assert right <= (1e-5 if dtype == torch.float32 else 1e-12)
    assert undivided > 1e-2  # no 1/sqrt(d_head): a sum of replayed patterns cannot see it
    assert expand.sum_error(model, tokens) <= LIMIT[dtype]


def test_patterns_of_three_layers_and_of_a_norm_model():
    model = model_of(TINY.replace(n_layers=3))
    assert pathchecks.pattern_gaps(model, tokens_of())[0] < 1e-12
    normed, tokens = pathchecks.normed_model(2)
    right, undivided = pathchecks.pattern_gaps(normed, tokens)
    assert right < 1e-12 and undivided > 1e-2
    with pytest.raises(ValueError, match="scales"):
        expand.patterns_from_terms(normed, tokens)


def test_patterns_need_the_position(monkeypatch):
    model, tokens = model_of(), tokens_of()
    rebuilt = expand.patterns_from_terms(model, tokens)
    monkeypatch.setattr(model.pos_embed, "W_pos", torch.zeros_like(model.W_pos))  # mutant
    lost = expand.patterns_from_terms(model, tokens)
    assert (rebuilt[1] - lost[1]).abs().max() > 1e-2


# ---- a term is a V-cut ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("where", PLACES)
def test_every_virtual_head_is_a_v_cut(where, dtype):
    model = any_model(where, 2, dtype).to(dtype)
    tokens = windows(1, 48) if where == "trained" else tokens_of()
    heads = range(model.cfg.n_heads) if where == "random" else (0, 5)
    for pair in (((0, g), (1, h)) for g in heads for h in heads):
        term, change = pathchecks.term_and_cut(model, tokens, pair)
        assert (term + change).abs().max() <= 1e-5 * model(tokens).abs().max()
        other = cut.logit_change(model, tokens, cut.cut_path(model, *pair, "k"))
        assert (term + other).abs().max() > 1e-3 * term.abs().max()  # mutant: the keys


# ---- losses of terms -----------------------------------------------------------------------------


def by_hand(model, window, keep, first=0):
    """Loss of one window with the terms for which keep(path) is true, from whole tables."""
    ran = expand.record(model, window)
    kept = [t.write for t in expand.expand(model, window, ran) if keep(t.path)]
    log_probs = (sum(kept) @ model.W_U)[0, first:-1].log_softmax(-1)
    return -log_probs.gather(1, window[0, first + 1 :, None]).mean()


@pytest.mark.parametrize("first", [0, 4])
@pytest.mark.parametrize("rows", [3, 256])
def test_term_losses_against_whole_tables(first, rows, monkeypatch):
    monkeypatch.setattr(importance, "ROWS", rows)
    model, tokens = model_of(), tokens_of()
    got = importance.term_losses(model, tokens, first=first)
    assert got.orders.shape == (3, 3) and got.added.shape == got.removed.shape == (3, 8)
    for w, window in enumerate(tokens.split(1)):
        for k in range(3):
            want = by_hand(model, window, lambda path, k=k: len(path) <= k, first)
            assert got.orders[w, k].item() == pytest.approx(want.item(), abs=1e-10)
        for l in range(2):
            alone = {(), ((l, 0),), ((l, 1),)}
            want = by_hand(model, window, alone.__contains__, first)
            assert got.layers[w, l].item() == pytest.approx(want.item(), abs=1e-10)
        for i, name in enumerate(got.names):
            added = by_hand(
                model, window, lambda p, n=name: importance.path_name(p) in ("", n), first
            )
            removed = by_hand(model, window, lambda p, n=name: importance.path_name(p) != n, first)
            assert got.added[w, i].item() == pytest.approx(added.item(), abs=1e-10)
            assert got.removed[w, i].item() == pytest.approx(removed.item(), abs=1e-10)


def test_term_losses_survive_huge_terms():
    model = model_of(dtype=torch.float32)
    with torch.no_grad():
        model.unembed.W_U.mul_(3000)  # exponents that float32 cannot hold
    got = importance.term_losses(model, tokens_of())
    assert got.removed.isfinite().all() and got.added.max() > 100
    want = by_hand(model, tokens_of()[:1], lambda p: importance.path_name(p) != got.names[0])
    assert got.removed[0, 0].item() == pytest.approx(want.item(), rel=1e-4)


def test_last_order_is_the_model_and_order_zero_the_table():
    model, tokens = model_of(), tokens_of()
    orders = importance.term_losses(model, tokens, single=False).orders
    assert max(pathchecks.order_loss_gaps(model, tokens, orders)) < 1e-10
    assert pathchecks.order_loss_gaps(model, tokens, orders.roll(1, 1))[0] > 1e-3  # mutant


@WEIGHTS
def test_last_order_is_the_trained_model():
    model, tokens = trained(2, torch.float32), windows(2, 128)
    orders = importance.term_losses(model, tokens, single=False).orders
    assert max(pathchecks.order_loss_gaps(model, tokens, orders)) <= 1e-4


def test_a_norm_model_has_orders_too():  # more of this in test_published_paths.py
    model, tokens = pathchecks.normed_model(0)
    orders = importance.term_losses(model, tokens, single=False).orders
    assert max(pathchecks.order_loss_gaps(model, tokens, orders)) < 1e-10


def test_study_by_hand():
    losses = importance.TermLosses(
        orders=torch.tensor([[3.0, 2.0, 1.5], [4.0, 2.0, 1.0], [3.5, 2.5, 1.0]]).double(),
        layers=torch.tensor([[2.5, 2.2], [3.0, 2.5], [3.0, 2.9]]).double(),
        names=["0.0", "1.0"],
        added=torch.tensor([[2.5, 2.2], [3.0, 2.5], [3.0, 2.9]]).double(),
        removed=torch.tensor([[2.0, 1.4], [2.0, 1.0], [2.0, 1.3]]).double(),
    )
    doc = torch.tensor([0, 1, 1])
    got = importance.study(losses, doc)
    assert [x.mean for x in got["orders"]] == pytest.approx([3.5, 6.5 / 3, 3.5 / 3])
    assert [x.mean for x in got["steps"]] == pytest.approx([4 / 3, 1.0])
    assert [x.mean for x in got["first"]] == pytest.approx([2 / 3, 2.9 / 3])
    # second: layer 0 after layer 1, then layer 1 after layer 0
    assert [x.mean for x in got["second"]] == pytest.approx([1.1 / 3, 2 / 3])
    shared = got["first"][0].mean - got["second"][0].mean
    assert got["shared"].mean == pytest.approx(shared)
    assert shared == pytest.approx(got["first"][1].mean - got["second"][1].mean)
    assert got["added"][1].mean == pytest.approx(2.9 / 3)
    assert got["removed"][0].mean == pytest.approx(2.5 / 3)
    assert got["removed"][1].mean == pytest.approx((3.7 - 3.5) / 3)
    mean, x = got["steps"][1].mean, torch.tensor([0.5, 1.0, 1.5])
    by_doc = torch.stack([x[0] - mean, (x[1:] - mean).sum()])  # errors go by document
    assert got["steps"][1].se == pytest.approx((2 * by_doc.square().sum()).sqrt().item() / 3)


@pytest.mark.parametrize("kind", importance.PLANTED)
def test_planted_models_do_what_they_say(kind):
    model, tokens = importance.planted(kind)
    assert expand.sum_error(model, tokens) < 1e-5
    losses = importance.planted_losses()[kind]
    level = torch.tensor(12.0).log().item()
    want = {
        "direct path": [0, 0, 0],
        "one head": [level, 0, 0],
        "virtual head": [level, level, 0],
        "cancelling pair": [level, 0, level],
    }[kind]
    assert losses["orders"] == pytest.approx(want, abs=0.01)
    added, removed = losses["first head"]
    assert added == pytest.approx(want[1], abs=0.01)
    if kind == "cancelling pair":
        assert removed > 10  # what the second head wrote against it is left alone
    with pytest.raises(ValueError, match="kind"):
        importance.planted("another")


# ---- memory --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_published_shape_stays_below_four_gigabytes():
    code = """
import torch
from circuitbook import fold
from circuitbook.expansion import expand
from circuitbook.config import Config
from circuitbook.model import Transformer
cfg = Config(2, 512, 8, 64, n_ctx=1024, d_vocab=48262, norm="layernorm", positions="standard",
             pos_kind="learned", attn_bias=True, unembed_bias=True)
model = Transformer(cfg, seed=0).requires_grad_(False)
generator = torch.Generator().manual_seed(0)
for name, p in model.named_parameters():
    if name.rsplit(".", 1)[-1][0] in "bw":
        p.add_(0.1 * torch.randn(p.shape, generator=generator))
model = fold.fold_layer_norm(model)
tokens = torch.randint(0, 48262, (1, 1024), generator=generator)
ran = expand.record(model, tokens)
assert sum(1 for _ in expand.expand(model, tokens, ran)) == 2 * 81 + 9 + 1
assert expand.sum_error(model, tokens, ran) <= 1e-5
table = expand.logits(model, next(expand.expand(model, tokens, ran)).write, ran)
assert table.shape == (1, 1024, 48262)
"""
    assert own_peak.of(code) < 4e9


def test_record_reads_the_run_and_leaves_no_hook():
    model, tokens = model_of(), tokens_of()
    ran = expand.record(model, tokens)
    _, cache = model.run_with_cache(tokens)
    for l in range(2):
        assert torch.equal(ran.patterns[l], cache[f"blocks.{l}.attn.hook_pattern"])
    assert all(not h.fwd_hooks for h in model.hook_dict.values())
    uniform = torch.ones(3, 10, 10).double().tril()
    uniform = uniform / uniform.sum(-1, keepdim=True)
    held = expand.record(model, tokens, cut.replace_patterns(model, {(0, 1): uniform}))
    torch.testing.assert_close(held.patterns[0][:, 1], uniform)
