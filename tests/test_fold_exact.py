"""Folding in float64: the old model stays, float32 is cast once a step, switches are kept."""

from __future__ import annotations

import pytest
import torch
from model_reference import assert_close, random_model, random_tokens
from test_fold import CLASSIC, CONFIGS, COURSE, STEPS, log_probs

from circuitbook import fold
from circuitbook.model import Transformer

ALL = [getattr(fold, name) for name in (*STEPS, "process")]
MIXED = CLASSIC.replace(act="swiglu", d_mlp=20, n_experts=4, top_k=2)


def both_kinds(name: str) -> tuple[Transformer, Transformer]:
    """A float32 model, and a float64 one of the same numbers."""
    small, large = (random_model(CONFIGS[name], seed=3) for _ in range(2))
    large = large.double()
    if small.cfg.pos_kind == "sinusoidal":  # a cast computes the table anew, with more digits
        large.pos_embed.W_pos = small.W_pos.double()
    return small, large


@pytest.mark.parametrize("step", ALL, ids=lambda step: step.__name__)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_float64_model_is_left_as_it_was(name, step) -> None:
    # In float64 nothing is cast, so what is written in place would be the model's own weights.
    model = random_model(CONFIGS[name], seed=3).double()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    done = step(model)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    held = {p.data_ptr() for p in model.parameters()}
    assert not held & {p.data_ptr() for p in done.parameters()}, "the two models share weights"


@pytest.mark.parametrize("step", ALL[:-1], ids=lambda step: step.__name__)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_in_float32_is_the_step_in_float64_cast_once(name, step) -> None:
    small, large = both_kinds(name)
    ours, wanted = step(small).state_dict(), step(large).state_dict()
    assert set(ours) == set(wanted)
    for key, value in wanted.items():
        assert ours[key].dtype == torch.float32 and value.dtype == torch.float64
        assert torch.equal(ours[key], value.float()), key


@pytest.mark.parametrize("name", CONFIGS)
def test_processing_in_float32_loses_one_rounding_for_each_step(name) -> None:
    small, large = both_kinds(name)
    ours, wanted = fold.process(small).state_dict(), fold.process(large).state_dict()
    half = torch.finfo(torch.float32).eps / 2
    for key, value in wanted.items():
        size = value.abs().max().item()
        assert_close(ours[key].double(), value, 4 * half * size, key)


def test_the_router_keeps_its_mean() -> None:
    model = random_model(MIXED).double()
    with torch.no_grad():
        for block in model.blocks:
            block.ln2.b.zero_()
    done = fold.fold_layer_norm(model)
    for old, new in zip(model.blocks, done.blocks, strict=True):
        wanted = old.ln2.w[:, None] * old.mlp.W_router
        assert torch.equal(new.mlp.W_router, wanted) and wanted.mean(0).abs().max() > 1e-3
        assert torch.equal(new.mlp.W_gate, old.ln2.w[:, None] * old.mlp.W_gate)
        assert new.mlp.W_in.mean(-2).abs().max() < 1e-15


def test_without_layers_shortformer_positions_are_read_by_nobody_and_folding_is_allowed() -> None:
    model = random_model(COURSE.replace(n_layers=0, norm="layernorm")).double()
    done = fold.fold_layer_norm(model)
    assert done.cfg.norm == "layernorm_pre" and done.cfg.positions == "shortformer"
    assert_close(log_probs(done), log_probs(model), 1e-12)


@pytest.mark.parametrize("step", ALL, ids=lambda step: step.__name__)
def test_switches_are_kept(step) -> None:
    model = random_model(CONFIGS["gelu"])
    model.set_use_split_qkv_input(True)
    model.set_use_hook_mlp_in(True)
    done = step(model)
    assert (done.use_split_qkv_input, done.use_hook_mlp_in, done.use_attn_result) == (1, 1, 0)
    names = ["blocks.1.hook_q_input", "blocks.1.hook_mlp_in"]  # they run, too
    assert set(done.run_with_cache(random_tokens(model.cfg), names_filter=names)[1]) == set(names)
