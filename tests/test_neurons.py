"""Counts, tables, splits and silent MLPs of chapter 07: by brute force, with the mutants."""

import own_peak
import pytest
import torch
from small_model import TINY, gen, model_of, tokens_of

from circuitbook import cut
from circuitbook.config import Config
from circuitbook.model import Transformer
from circuitbook.neurons import counts, expansion, tables

MLP = TINY.replace(d_mlp=20, act="gelu")
ch07 = pytest.importorskip("circuitbook.taught.ch07", reason="run tools/derive.py taught")
WEIGHTS = pytest.mark.weights
DTYPES = [(torch.float32, 1e-5), (torch.float64, 1e-12)]

# ---- (a) counts ---------------------------------------------------------------------------------

CONFIGS = {
    "attention only": TINY,
    "no layers": TINY.replace(n_layers=0),
    "gelu": MLP,
    "gelu without biases": MLP.replace(mlp_bias=False),
    "narrow heads": MLP.replace(n_heads=3, d_head=4, attn_bias=True),
    "swiglu": MLP.replace(act="swiglu"),
    "mixture": MLP.replace(n_experts=4, top_k=2),
    "gated mixture": MLP.replace(n_experts=4, top_k=1, act="swiglu"),
    "as published": MLP.replace(
        norm="layernorm", positions="standard", pos_kind="learned", attn_bias=True,
        unembed_bias=True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_counts_are_those_of_a_built_model(name):
    cfg = CONFIGS[name]
    sizes = {n: p.numel() for n, p in Transformer(cfg).named_parameters()}
    c = counts.count(cfg)
    assert sum(s for n, s in sizes.items() if ".attn." in n) == c.attention
    assert sum(s for n, s in sizes.items() if ".mlp." in n) == c.mlp
    assert sum(sizes.values()) == c.total
    assert c.mlp_active <= c.mlp and 0 <= c.mlp_share() < 1


def test_published_counts_to_the_digit():
    for name, cfg in counts.PUBLISHED.items():
        c = counts.count(cfg)
        assert (c.attention, c.mlp) == counts.PRINTED[name]
    one = counts.count(counts.PUBLISHED["gelu-1l"])
    d, m = 512, 2048
    assert one.mlp == 2 * d * m + m + d  # mutants: a bias forgotten, or one for each matrix
    assert one.mlp not in (2 * d * m, 2 * d * m + m, 2 * d * m + 2 * m)
    assert counts.count(counts.PUBLISHED["gpt2"], tied=True).total == 124_439_808
    assert counts.series()["part7.params.gpt2.mlp"] == 56_669_184


def test_where_two_thirds_ends():
    shape = counts.shapes()
    assert shape["GELU, 4 d"].mlp_share() == pytest.approx(2 / 3, abs=1e-12)
    assert shape["SwiGLU, 4 d"].mlp_share() == pytest.approx(3 / 4, abs=1e-12)
    assert shape["SwiGLU, 8/3 d"].mlp_share() == pytest.approx(2 / 3, abs=1e-12)
    experts = shape["8 experts of 4 d, 2 used"]
    assert experts.mlp_share() > 0.94 > 0.81 > experts.mlp_share(active=True) > 0.79


@WEIGHTS
def test_counts_of_the_bundled_models():
    from circuitbook import zoo

    assert counts.tensors_differ(zoo.MAIN_ROLES) == 0


# ---- tables -------------------------------------------------------------------------------------


def random_model(**more):
    return model_of(MLP.replace(n_layers=1, **more), scale=1.0)


def test_tables_are_the_dense_ones():
    model = random_model()
    mlp, attn = model.blocks[0].mlp, model.blocks[0].attn
    dense = {
        "read": (model.W_E @ mlp.W_in).T,
        "head": (model.W_E @ attn.W_V[1] @ attn.W_O[1] @ mlp.W_in).T,
        "written": mlp.W_out @ (model.W_U - model.W_U.mean(1, keepdim=True)),
    }
    found = {
        "read": tables.most_read(model, 0, 5),
        "head": tables.most_read_by_head(model, 0, 1, 5),
        "written": tables.most_written(model, 0, 5),
    }
    for name, table in dense.items():
        want = table.topk(5, 1)
        assert torch.equal(found[name].ids, want.indices), name
        torch.testing.assert_close(found[name].values, want.values)
    each = torch.stack([(model.W_E @ V @ O @ mlp.W_in).T for V, O in zip(attn.W_V, attn.W_O)])
    heads, top = tables.most_read_by_strongest_head(model, 5)
    assert torch.equal(heads, each.amax(-1).argmax(0)) and len(heads.unique()) > 1
    want = each[heads, torch.arange(len(heads))].topk(5, 1)
    assert torch.equal(top.ids, want.indices)
    torch.testing.assert_close(top.values, want.values)
    lowered = tables.most_written(model, 0, 3, sign=-1)
    assert torch.equal(lowered.ids, dense["written"].topk(3, 1, largest=False).indices)
    mean, sd = tables.spread(tables.direct_inputs(model.W_E, mlp.W_in), part=7)
    assert mean == pytest.approx(dense["read"].mean().item(), abs=1e-9)
    assert sd == pytest.approx(dense["read"].std(correction=0).item(), abs=1e-9)


def test_what_a_neuron_writes_is_blind_to_a_constant():
    model = random_model()
    W_out, W_U = model.blocks[0].mlp.W_out, model.W_U
    shifted = W_U + torch.randn(len(W_U), 1, generator=gen(4)).double()
    a, b = (tables.written(W_out, U) for U in (W_U, shifted))
    torch.testing.assert_close(a.A @ a.B, b.A @ b.B, rtol=0, atol=1e-12)
    assert (W_out @ W_U - W_out @ shifted).abs().max() > 0.1  # mutant: not centred


def test_tables_refuse_what_they_cannot_do():
    with pytest.raises(ValueError, match="gain"):
        tables.most_read(random_model(norm="layernorm"), 0, 3)  # not folded
    with pytest.raises(ValueError, match="layer 0"):
        tables.most_read_by_head(random_model(), 1, 0, 3)


def test_the_published_shape_fits_in_two_gigabytes():
    code = """
import torch
from circuitbook.neurons import tables
from circuitbook.scan import top_k
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(0)
def draw(*shape):
    return torch.randn(*shape, generator=generator) * shape[0] ** -0.5
head = tables.head_inputs(draw(48262, 512), draw(512, 64), draw(64, 512), draw(512, 2048))
written = tables.written(draw(2048, 512), draw(512, 48262))
for factors in (head, written):
    found = top_k(*factors, k=8)
    row = factors.A[1234] @ factors.B
    assert torch.equal(row.topk(8).indices, found.ids[1234])
    assert found.ids.shape == (2048, 8)
"""
    peak = own_peak.of(code)
    assert peak < 2e9, f"peak memory {peak / 1e9:.2f} GB"


# ---- (b), (c) the split and the expansion -------------------------------------------------------


@pytest.mark.parametrize(("dtype", "limit"), DTYPES)
def test_identities_on_random_weights(dtype, limit):
    model, tokens = model_of(MLP, dtype), tokens_of(MLP)
    errors = expansion.identity_errors(model, tokens, ch07.neuron_terms)
    assert max(errors.values()) <= limit, errors
    mutants = expansion.identity_errors(model, tokens, ch07.neuron_terms, biased=False)
    assert min(mutants.values()) > 1e-3, mutants  # mutant: biases dropped


@WEIGHTS
@pytest.mark.parametrize(("dtype", "limit"), DTYPES)
@pytest.mark.parametrize("role", ["gelu-1l", "gelu-2l"])
def test_identities_on_trained_models(role, dtype, limit):
    from circuitbook import zoo

    model = zoo.load(role, dtype=dtype, device="cpu")
    tokens = torch.randint(1, 4096, (2, 40), generator=gen(1))
    tokens[:, 0] = 0
    errors = expansion.identity_errors(model, tokens, ch07.neuron_terms)
    assert max(errors.values()) <= limit, errors
    mutants = expansion.identity_errors(model, tokens, ch07.neuron_terms, biased=False)
    assert min(mutants.values()) > 1e-3


def test_the_parts_are_what_they_are_called():
    model, tokens = model_of(MLP), tokens_of(MLP)
    split = expansion.split_pre(model, tokens)
    attn, W_in = model.blocks[0].attn, model.blocks[0].mlp.W_in
    name = "blocks.0.attn.hook_pattern"
    pattern = cut.run(model, tokens, names=[name])[1][name]
    x = model.W_E[tokens]
    torch.testing.assert_close(split.parts["token"], x @ W_in)
    for h in range(2):
        write = pattern[:, h] @ x @ attn.W_V[h] @ attn.W_O[h]
        torch.testing.assert_close(split.parts[f"head 0.{h}"], write @ W_in)
    few = expansion.split_pre(model, tokens, torch.tensor([3, 11]))
    torch.testing.assert_close(few.pre, split.pre[..., [3, 11]])


def test_variance_shares_sum_to_one():
    split = expansion.split_pre(model_of(MLP), tokens_of(MLP, n=6))
    shares = expansion.variance_shares(split)
    torch.testing.assert_close(sum(shares.values()), torch.ones(20).double())
    assert "bias" not in shares and set(shares) == {"token", "head 0.0", "head 0.1"}
    pre = split.pre[:, 1:].flatten(0, 1)[:, 4]
    part = split.parts["head 0.1"][:, 1:].flatten(0, 1)[:, 4]
    both = torch.stack([part, pre])
    want = torch.cov(both)[0, 1] / torch.var(pre)
    assert shares["head 0.1"][4].item() == pytest.approx(want.item(), abs=1e-9)


def test_both_forms_of_gelu():
    z = torch.linspace(-4, 4, 33, dtype=torch.float64)
    for name, form in (("erf", "none"), ("tanh", "tanh")):
        want = torch.nn.functional.gelu(z, approximate=form)
        ours = torch.tensor([expansion.GELUS[name](x) for x in z.tolist()]).double()
        torch.testing.assert_close(ours, want, rtol=0, atol=1e-6)
    both = [sum(f(s) for s in (1.0, -1.0)) for f in expansion.GELUS.values()]
    assert [f"{x:.3f}" for x in both] == ["0.683", "0.682"]


# ---- silent MLPs --------------------------------------------------------------------------------


def losses_of(model, tokens, way):
    k = torch.arange(1, tokens.shape[1])
    return expansion.losses(model, tokens, k, lambda t: expansion.silenced(model, t, way))


def test_a_stand_in_that_is_the_mlp_changes_nothing():
    model, tokens = model_of(MLP), tokens_of(MLP)
    clean = model(tokens, return_type="loss_per_token")
    for kept in (False, True):
        way = expansion.Silence(tuple(b.mlp for b in model.blocks), kept)
        torch.testing.assert_close(losses_of(model, tokens, way), clean)
    way = expansion.Silence((None, None))
    torch.testing.assert_close(losses_of(model, tokens, way), clean)


def test_zero_writes_are_those_of_a_model_without_mlps():
    model, tokens = model_of(MLP), tokens_of(MLP)
    state = {k: v for k, v in model.state_dict().items() if ".mlp." not in k}
    bare = Transformer.from_state_dict(TINY, state)
    zero = (lambda x: torch.zeros_like(x),) * 2
    want = bare(tokens, return_type="loss_per_token").detach()
    torch.testing.assert_close(losses_of(model, tokens, expansion.Silence(zero)), want)
    frozen = losses_of(model, tokens, expansion.Silence(zero, True))
    assert (frozen - want).abs().max() > 1e-3  # patterns of the whole model are other patterns
    one = losses_of(model, tokens, expansion.Silence((zero[0], None)))
    assert (one - want).abs().max() > 1e-3


def test_kept_patterns_are_frozen_patterns():
    model, tokens = model_of(MLP), tokens_of(MLP)
    ablation = cut.ablate_heads(model, tokens, [(0, 1)])
    a, b = (f(model, tokens) for f in (expansion.kept_patterns, cut.freeze_patterns))
    torch.testing.assert_close(
        cut.run(model, tokens, ablation + a)[0], cut.run(model, tokens, ablation + b)[0]
    )


def test_affine_fit_finds_an_affine_map():
    x, B = torch.randn(200, 6, generator=gen()), torch.randn(6, 4, generator=gen(1))
    y = x @ B + torch.tensor([1.0, -2.0, 0.5, 3.0])
    f = expansion.affine_fit(x, y, ridge=1e-9)
    torch.testing.assert_close(f(x), y, rtol=0, atol=1e-4)
    assert (f(x) - x @ B).abs().max() > 1  # mutant: no constant


def test_attention_only_study_reports_every_way():
    model, bare = model_of(MLP), model_of(TINY)
    tokens, unigram = tokens_of(MLP, n=6), torch.full((24,), -3.0)
    found = expansion.attention_only_study(
        model, bare, unigram, tokens, torch.arange(6) // 2, tokens_of(MLP, n=4), every=2
    )
    assert found["whole model"]["rise"][0] == 0 and found["whole model"]["explained"] == [1]
    assert found["word frequencies"]["loss"][0] == pytest.approx(3.0)
    assert found["word frequencies"]["explained"][0] == pytest.approx(0.0, abs=1e-12)
    zero = losses_of(model, tokens, expansion.Silence((lambda x: torch.zeros_like(x),) * 2))
    want = zero[:, ::2].mean().item()
    assert found["zero, re-run"]["loss"][0] == pytest.approx(want)
    assert len(found) == 10 and "only MLP 1 to its mean" in found


def test_config_of_the_lesson_is_that_of_the_models():
    one = Config(n_layers=1, d_mlp=1024, act="gelu")
    assert counts.count(one).mlp == 2 * 256 * 1024 + 1024 + 256
