"""Interventions: identities with the algebra, what must not move, and clear refusals."""

import pytest
import torch

from circuitbook import cut
from circuitbook.config import Config
from circuitbook.model import Transformer

V, D, H, E = 50, 24, 4, 6


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def make(n_layers=2, **options):
    cfg = Config(n_layers=n_layers, d_model=D, n_heads=H, d_head=E, n_ctx=16, d_vocab=V, **options)
    model = Transformer(cfg, seed=1)
    with torch.no_grad():  # larger than at the start of training, so that patterns are not flat
        for name, p in model.named_parameters():
            if name.rsplit(".", 1)[-1] in ("W_Q", "W_K", "W_V", "W_E"):
                p.mul_(3)
    return model.double().eval()


@pytest.fixture(scope="module")
def model():
    return make()


@pytest.fixture(scope="module")
def tokens():
    t = torch.randint(1, V, (5, 12), generator=gen())
    t[:, 0] = 0
    return t


def everything(model, tokens, c=None):
    out, cache = cut.run(model, tokens, c, names=None)
    return cache | {"logits": out}


def moved(a, b):
    return (a - b).abs().max().item()


# ---------------------------------------------------------------- runs


def test_run_without_cut_is_the_model_and_leaves_it_alone(model, tokens):
    flags = model.use_attn_result, model.use_split_qkv_input
    out, cache = cut.run(model, tokens, names=["blocks.0.attn.hook_pattern"])
    assert moved(out, model(tokens)) < 1e-12
    assert list(cache) == ["blocks.0.attn.hook_pattern"]
    assert (model.use_attn_result, model.use_split_qkv_input) == flags
    cut.run(model, tokens, cut.cut_path(model, (0, 0), (1, 0), "k"))
    assert moved(out, model(tokens)) < 1e-12  # no hook stays behind
    assert cut.run(model, tokens, return_type="loss_per_token")[0].shape == (5, 11)


# ---------------------------------------------------------------- path cuts


def test_v_cut_is_minus_the_virtual_head(model, tokens):
    c = everything(model, tokens)
    for h1, h2 in ((0, 0), (2, 1), (3, 3)):
        A1 = c["blocks.0.attn.hook_pattern"][:, h1]
        A2 = c["blocks.1.attn.hook_pattern"][:, h2]
        OV1 = model.W_V[0, h1] @ model.W_O[0, h1]
        OV2 = model.W_V[1, h2] @ model.W_O[1, h2]
        term = A2 @ A1 @ c["hook_embed"] @ OV1 @ OV2 @ model.W_U
        change = cut.logit_change(model, tokens, cut.cut_path(model, (0, h1), (1, h2), "v"))
        scale = c["logits"].abs().max()
        assert moved(change, -term) <= 1e-12 * scale
        # mutants: the patterns or the matrices in the wrong order
        for wrong in (
            A1 @ A2 @ c["hook_embed"] @ OV1 @ OV2 @ model.W_U,
            A2 @ A1 @ c["hook_embed"] @ OV2 @ OV1 @ model.W_U,
        ):
            assert moved(change, -wrong) > 1e-2 * term.abs().max()


def test_v_cut_in_float32(tokens):
    model = make().float()
    c = everything(model, tokens)
    A2A1 = c["blocks.1.attn.hook_pattern"][:, 1] @ c["blocks.0.attn.hook_pattern"][:, 2]
    OV = model.W_V[0, 2] @ model.W_O[0, 2] @ model.W_V[1, 1] @ model.W_O[1, 1]
    change = cut.logit_change(model, tokens, cut.cut_path(model, (0, 2), (1, 1), "v"))
    assert moved(change, -(A2A1 @ c["hook_embed"] @ OV @ model.W_U)) <= 1e-5


@pytest.mark.parametrize("into", ["q", "k", "v"])
def test_only_the_named_input_moves_bit_for_bit(model, tokens, into):
    before = everything(model, tokens)
    after = everything(model, tokens, cut.cut_path(model, (0, 2), (1, 1), into))
    same = [n for n in before if n.startswith("blocks.0")]
    same += [f"blocks.1.hook_{x}_input" for x in "qkv" if x != into]
    same += [f"blocks.1.attn.hook_{x}" for x in "qkv" if x != into]
    for name in same:
        assert torch.equal(before[name], after[name]), name
    others = [h for h in range(H) if h != 1]
    pattern = [x["blocks.1.attn.hook_pattern"] for x in (before, after)]
    assert torch.equal(pattern[0][:, others], pattern[1][:, others])
    for name in (f"blocks.1.attn.hook_{into}", "blocks.1.attn.hook_result"):
        assert torch.equal(before[name][:, :, others], after[name][:, :, others]), name
        assert moved(before[name][:, :, 1], after[name][:, :, 1]) > 1e-3, name
    if into == "v":
        assert torch.equal(*pattern)  # a value cannot change where the head looks
    else:
        assert moved(pattern[0][:, 1], pattern[1][:, 1]) > 1e-3
    assert moved(before["logits"], after["logits"]) > 1e-3


def test_k_cut_removes_exactly_the_write_from_the_scores(model, tokens):
    before = everything(model, tokens)
    after = everything(model, tokens, cut.cut_path(model, (0, 2), (1, 1), "k"))
    write = before["blocks.0.attn.hook_result"][:, :, 2]
    lost = before["blocks.1.attn.hook_q"][:, :, 1] @ (write @ model.W_K[1, 1]).mT / E**0.5
    gone = [x["blocks.1.attn.hook_attn_scores"][:, 1] for x in (before, after)]
    allowed = torch.ones(12, 12, dtype=torch.bool).tril()
    assert moved((gone[0] - gone[1])[:, allowed], lost[:, allowed]) < 1e-12


def test_all_edges_together_equal_an_ablation_for_that_reader(model, tokens):
    """Cut into all inputs of all last-layer heads, the writer keeps its own direct effect only."""
    edges = [((0, 2), (1, h), x) for h in range(H) for x in "qkv"]
    total = everything(model, tokens, cut.cut_paths(model, edges))
    ablated = everything(model, tokens, cut.ablate_heads(model, tokens, [(0, 2)]))
    direct = total["blocks.0.attn.hook_result"][:, :, 2] @ model.W_U
    assert moved(total["logits"] - direct, ablated["logits"]) < 1e-11


@pytest.mark.parametrize("kind", ["mean", "resample"])
def test_path_cut_with_a_replacement(model, tokens, kind):
    c = cut.cut_path(model, (0, 2), (1, 1), "v", kind, generator=gen(3))
    before, after = everything(model, tokens), everything(model, tokens, c)
    write = before["blocks.0.attn.hook_result"][:, :, 2]
    new = write.mean(0) if kind == "mean" else write[cut.other_window(5, gen(3))]
    got = [x["blocks.1.hook_v_input"][:, :, 1] for x in (after, before)]
    assert moved(got[0] - got[1], new - write) < 1e-12
    again = everything(model, tokens, c)
    assert torch.equal(again["logits"], after["logits"])  # the same cut twice is the same cut


def test_only_the_direct_edge_is_cut_in_a_model_with_mlps(tokens):
    model = make(act="gelu", d_mlp=32)
    c = cut.cut_path(model, (0, 2), (1, 1), "k")
    before, after = everything(model, tokens), everything(model, tokens, c)
    assert torch.equal(before["blocks.0.hook_mlp_out"], after["blocks.0.hook_mlp_out"])
    write = before["blocks.0.attn.hook_result"][:, :, 2]
    lost = before["blocks.1.hook_k_input"][:, :, 1] - after["blocks.1.hook_k_input"][:, :, 1]
    assert moved(lost, write) < 1e-12
    assert "direct edge only" in c.describe()


# ---------------------------------------------------------------- ablations


def test_zero_ablation_is_the_model_without_the_head(model, tokens):
    bare = Transformer.from_state_dict(model.cfg, model.state_dict()).double()
    with torch.no_grad():
        bare.blocks[0].attn.W_O[3] = 0
        bare.blocks[1].attn.W_O[[0, 1]] = 0
    c = cut.ablate_heads(model, tokens, [(0, 3), (1, 0), (1, 1)])
    assert moved(cut.run(model, tokens, c)[0], bare(tokens)) < 1e-12


def test_mean_ablation_is_the_mean_over_windows_at_each_position(model, tokens):
    before = everything(model, tokens)
    after = everything(model, tokens, cut.ablate_heads(model, tokens, [(1, 2)], "mean"))
    mean = before["blocks.1.attn.hook_z"][:, :, 2].mean(0)
    assert moved(after["blocks.1.attn.hook_z"][:, :, 2], mean) < 1e-15
    over_all = before["blocks.1.attn.hook_z"][:, :, 2].mean((0, 1))
    assert moved(mean, over_all) > 1e-3  # another mean would be another intervention


def test_resampling_comes_from_the_run_without_cuts(model, tokens):
    heads = [(0, 1), (1, 2)]
    before = everything(model, tokens)
    c = cut.ablate_heads(model, tokens, heads, "resample", generator=gen(4))
    after = everything(model, tokens, c)
    partner = cut.other_window(5, gen(4))
    for layer, head in heads:
        name = f"blocks.{layer}.attn.hook_z"
        assert torch.equal(after[name][:, :, head], before[name][partner][:, :, head])


def test_other_window_never_keeps_its_own():
    for n in (2, 3, 9):
        for seed in range(20):
            partner = cut.other_window(n, gen(seed))
            assert sorted(partner.tolist()) == list(range(n))
            assert (partner != torch.arange(n)).all()
    with pytest.raises(ValueError, match="two windows"):
        cut.other_window(1, gen())


def test_pattern_preserving_ablation(model, tokens):
    before = everything(model, tokens)
    c = cut.pattern_preserving_ablation(model, tokens, [(0, 2)])
    kept = everything(model, tokens, c)
    for layer in (0, 1):
        name = f"blocks.{layer}.attn.hook_pattern"
        assert torch.equal(before[name], kept[name])
    # By hand: with frozen patterns the loss is the head's direct write and its virtual heads.
    write = before["blocks.0.attn.hook_result"][:, :, 2]
    OV = (model.W_V[1] @ model.W_O[1])[None]
    virtual = (before["blocks.1.attn.hook_pattern"] @ (write[:, None] @ OV)).sum(1)
    want = -(write + virtual) @ model.W_U
    assert moved(kept["logits"] - before["logits"], want) < 1e-11
    full = everything(model, tokens, cut.ablate_heads(model, tokens, [(0, 2)]))
    assert moved(full["blocks.1.attn.hook_pattern"], kept["blocks.1.attn.hook_pattern"]) > 1e-3


def test_frozen_patterns_make_the_model_linear(model, tokens):
    """f(a X + b Y) = a f(X) + b f(Y) with patterns frozen, and not without."""
    X, Y = (torch.randn(5, 12, D, generator=gen(s), dtype=torch.float64) for s in (5, 6))

    def run_on(stream, frozen):
        swap = cut.Cut((("hook_embed", lambda x, hook: stream),))
        return cut.run(model, tokens, swap + frozen)[0]

    frozen = cut.freeze_patterns(model, tokens)
    gap = [
        moved(run_on(2 * X - Y, c), 2 * run_on(X, c) - run_on(Y, c)) for c in (frozen, cut.Cut())
    ]
    assert gap[0] < 1e-11
    assert gap[1] > 0.1


def test_replace_one_pattern(model, tokens):
    eye = torch.eye(12, dtype=torch.float64).expand(5, -1, -1)
    c = cut.replace_patterns(model, {(0, 1): eye})
    before, after = everything(model, tokens), everything(model, tokens, c)
    assert torch.equal(after["blocks.0.attn.hook_pattern"][:, 1], eye)
    others = [0, 2, 3]
    pattern = [x["blocks.0.attn.hook_pattern"][:, others] for x in (before, after)]
    assert torch.equal(*pattern)
    assert torch.equal(
        after["blocks.0.attn.hook_z"][:, :, 1], before["blocks.0.attn.hook_v"][:, :, 1]
    )
    assert "frozen: patterns of 0.1" in c.describe()


# ---------------------------------------------------------------- words and refusals


def test_cuts_say_what_they_do(model, tokens):
    c = cut.cut_path(model, (0, 2), (1, 1), "k") + cut.freeze_patterns(model, tokens, [(1, 0)])
    words = c.describe()
    assert "0.2 -> key of 1.1" in words
    assert "recomputed: key of 1.1, its pattern" in words
    assert "frozen: patterns of 1.0" in words
    assert cut.Cut().describe() == "cut: nothing; recomputed: nothing; frozen: nothing"


def test_clear_errors(model, tokens):
    for call, words in (
        (lambda: cut.ablate_heads(model, tokens, [(2, 0)]), "no head 2.0"),
        (lambda: cut.ablate_heads(model, tokens, [(0, -1)]), "no head 0.-1"),
        (lambda: cut.ablate_heads(model, tokens, [(0, 0)], "median"), "unknown kind"),
        (lambda: cut.ablate_heads(model, tokens, [(0, 0)], "resample"), "generator"),
        (lambda: cut.cut_path(model, (0, 0), (1, 0), "o"), "unknown input"),
        (lambda: cut.cut_path(model, (1, 0), (1, 1), "k"), "does not come before"),
        (lambda: cut.cut_path(model, (0, 9), (1, 1), "k"), "no head 0.9"),
        (lambda: cut.replace_patterns(model, {(0, 7): torch.eye(3)}), "no head 0.7"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    short = cut.replace_patterns(model, {(0, 1): torch.eye(3).double()})
    with pytest.raises(ValueError, match="this run needs"):
        cut.run(model, tokens, short)
    assert not model.use_attn_result  # flags are restored after an error
    assert moved(model(tokens), cut.run(model, tokens)[0]) < 1e-12
