"""The model against TransformerLens' own, on identical random weights. See lens_reference."""

from __future__ import annotations

import pytest
import torch
from lens_reference import IS_BRIDGE, lens_model
from model_reference import assert_close, random_model, random_tokens
from torch import Tensor

from circuitbook.config import Config
from circuitbook.model import Transformer

CLASSIC = Config(
    n_layers=2,
    d_model=32,
    n_heads=4,
    d_head=8,
    n_ctx=20,
    d_vocab=50,
    norm="layernorm",
    positions="standard",
    pos_kind="learned",
    attn_bias=True,
    unembed_bias=True,
)
GELU = CLASSIC.replace(act="gelu", d_mlp=48)
SWIGLU = CLASSIC.replace(act="swiglu", d_mlp=48, mlp_bias=False)
NO_NORM = GELU.replace(norm="none", pos_kind="sinusoidal")
COURSE = Config(n_layers=2, d_model=32, n_heads=4, d_head=8, n_ctx=20, d_vocab=50)

CONFIGS = {
    "attention-only": CLASSIC,
    "gelu": GELU,
    "gelu_new": CLASSIC.replace(act="gelu_new", d_mlp=48),
    "relu": CLASSIC.replace(act="relu", d_mlp=48),
    "swiglu": SWIGLU,
    "layernorm_pre": GELU.replace(norm="layernorm_pre"),
    "no norm": NO_NORM,
    "shortformer": COURSE,
    "shortformer, learned, gelu": COURSE.replace(pos_kind="learned", act="gelu", d_mlp=48),
    "shortformer, layernorm": CLASSIC.replace(positions="shortformer"),
}
PER_HEAD = [*(f"hook_{x}_input" for x in "qkv"), "attn.hook_result"]
if IS_BRIDGE:  # what a bridge does not have; see lens_reference
    CONFIGS = {name: cfg for name, cfg in CONFIGS.items() if cfg.positions == "standard"}
    PER_HEAD = []


def pair(name: str) -> tuple[Transformer, object, Tensor]:
    cfg = CONFIGS[name]
    # Weights of the size of a real model's: activations of order 1, so 1e-5 means 1e-5.
    model = random_model(cfg, seed=2, scale=0.1)
    return model, lens_model(model), random_tokens(cfg, batch=3, length=15)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_every_shared_activation(name: str) -> None:
    model, lens, tokens = pair(name)
    if not IS_BRIDGE:
        for one in (model, lens):
            one.set_use_attn_result(True)
            one.set_use_split_qkv_input(True)
            if not model.cfg.attn_only:
                one.set_use_hook_mlp_in(True)
    logits, cache = model.run_with_cache(tokens)
    theirs, their_cache = lens.run_with_cache(tokens)
    assert_close(logits, theirs, 1e-5, "logits")
    shared = [n for n in cache if n in their_cache]
    if IS_BRIDGE:
        # Holds the pattern under this name; the scores are compared through the pattern.
        shared = [n for n in shared if not n.endswith("hook_attn_scores")]
        missing = {n.rsplit(".", 1)[-1] for n in cache.keys() - set(shared)}
        assert missing == {"hook_attn_scores"}
    else:
        assert cache.keys() == set(shared)
    for n in shared:
        assert_close(cache[n], their_cache[n], 1e-5, n)


def change(x: Tensor, hook: object = None) -> Tensor:
    """A smooth, position-dependent edit that no LayerNorm undoes."""
    ramp = torch.linspace(-1, 1, x.shape[-1], dtype=x.dtype)
    return x * 1.3 + 0.5 * ramp.cos() * torch.arange(x.shape[1], dtype=x.dtype)[:, None]


def ablate_head(z: Tensor, hook: object = None) -> Tensor:
    return z.index_fill(2, torch.tensor([1]), 0.0)


def attend_to_self(pattern: Tensor, hook: object = None) -> Tensor:
    pattern = pattern.clone()
    pattern[:, 2] = torch.eye(pattern.shape[-1], dtype=pattern.dtype)
    return pattern


def prefer_first(scores: Tensor, hook: object = None) -> Tensor:
    scores = scores.clone()
    scores[:, 2, :, 0] += 3.0
    return scores


def compare_edit(name: str, ours: tuple, theirs: tuple) -> None:
    model, lens, tokens = pair(name)
    before = model(tokens)
    if "mlp_in" in ours[0]:
        model.set_use_hook_mlp_in(True)
        if not IS_BRIDGE:
            lens.set_use_hook_mlp_in(True)
    got = model.run_with_hooks(tokens, fwd_hooks=[ours])
    want = lens.run_with_hooks(tokens, fwd_hooks=[theirs])
    assert (got - before).abs().max() > 1e-2, "the edit did nothing"
    assert_close(got, want, 1e-5, f"logits after an edit of {ours[0]}")


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("name", CONFIGS)
def test_ablating_a_head_and_editing_a_pattern(name: str, layer: int) -> None:
    z = (f"blocks.{layer}.attn.hook_z", ablate_head)
    compare_edit(name, z, z)
    pattern = (f"blocks.{layer}.attn.hook_pattern", attend_to_self)
    compare_edit(name, pattern, pattern)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("hook", ["hook_resid_pre", "attn.hook_k", "attn.hook_v", "hook_attn_out"])
def test_other_plain_edits(name: str, hook: str) -> None:
    edit = (f"blocks.1.{hook}", ablate_head if hook in ("attn.hook_k", "attn.hook_v") else change)
    compare_edit(name, edit, edit)


@pytest.mark.parametrize("name", CONFIGS)
def test_editing_scores(name: str) -> None:
    hook = "blocks.0.attn.hook_attn_scores"
    ours = theirs = (hook, prefer_first)
    if IS_BRIDGE:
        model, _, tokens = pair(name)
        scores = model.run_with_cache(tokens)[1][hook]
        pattern = prefer_first(scores).softmax(-1)
        theirs = ("blocks.0.attn.hook_pattern", lambda p, hook: pattern)
    compare_edit(name, ours, theirs)


@pytest.mark.parametrize("name", [n for n, c in CONFIGS.items() if not c.attn_only])
def test_editing_resid_mid_moves_mlp_and_skip(name: str) -> None:
    ours = theirs = ("blocks.0.hook_resid_mid", change)
    if IS_BRIDGE:
        model, _, tokens = pair(name)
        resid_pre = model.run_with_cache(tokens)[1]["blocks.0.hook_resid_pre"]
        theirs = ("blocks.0.hook_attn_out", lambda a, hook: change(resid_pre + a) - resid_pre)
    compare_edit(name, ours, theirs)


@pytest.mark.parametrize("name", [n for n, c in CONFIGS.items() if not c.attn_only])
def test_editing_the_input_of_the_mlp_alone(name: str) -> None:
    ours = theirs = ("blocks.0.hook_mlp_in", change)
    if IS_BRIDGE:
        theirs = ("blocks.0.hook_resid_mid", change)
    compare_edit(name, ours, theirs)


@pytest.mark.parametrize(("name", "hook"), [(name, hook) for name in CONFIGS for hook in PER_HEAD])
def test_editing_per_head_inputs_and_results(name: str, hook: str) -> None:
    model, lens, tokens = pair(name)
    for one in (model, lens):
        one.set_use_attn_result(True)
        one.set_use_split_qkv_input(True)
    hooks = [(f"blocks.1.{hook}", lambda x, hook: ablate_head(x) * 1.2 + 0.1 * x.cos())]
    got = model.run_with_hooks(tokens, fwd_hooks=hooks)
    want = lens.run_with_hooks(tokens, fwd_hooks=hooks)
    assert (got - model(tokens)).abs().max() > 1e-3
    assert_close(got, want, 1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_float64_agrees_to_float64(name: str) -> None:
    model, _, tokens = pair(name)
    model = model.double()
    assert_close(model(tokens), lens_model(model)(tokens), 1e-12)
