"""Processed weights: TransformerLens' numbers, the same function, and refusals where it is not."""

from __future__ import annotations

import pytest
import torch
from lens_reference import IS_BRIDGE, lens_config, lens_model, lens_processed, lens_state
from model_reference import assert_close, random_model, random_tokens

from circuitbook.config import Config
from circuitbook.fold import (
    center_unembed,
    center_writing_weights,
    fold_layer_norm,
    fold_value_biases,
    process,
)
from circuitbook.model import Transformer

STEPS = ("fold_layer_norm", "center_writing_weights", "center_unembed", "fold_value_biases")
COURSE = Config(n_layers=2, d_model=16, n_heads=3, d_head=4, n_ctx=12, d_vocab=29)
CLASSIC = COURSE.replace(
    norm="layernorm",
    positions="standard",
    pos_kind="learned",
    attn_bias=True,
    unembed_bias=True,
)
CONFIGS = {
    "attention-only": CLASSIC,
    "gelu": CLASSIC.replace(act="gelu", d_mlp=20),
    "swiglu": CLASSIC.replace(act="swiglu", d_mlp=20, mlp_bias=False),
    "few biases": CLASSIC.replace(act="relu", d_mlp=20, attn_bias=False, unembed_bias=False),
    "sinusoidal": CLASSIC.replace(act="gelu", d_mlp=20, pos_kind="sinusoidal"),
    "zero layers": CLASSIC.replace(n_layers=0),
}


def log_probs(model: Transformer) -> torch.Tensor:
    return model(random_tokens(model.cfg)).log_softmax(-1)


@pytest.mark.parametrize("name", CONFIGS)
def test_processed_weights_are_transformer_lens(name: str) -> None:
    model = random_model(CONFIGS[name], seed=3)
    ours, theirs = process(model), lens_processed(model)
    assert ours.processing == frozenset(STEPS)
    assert ours.cfg.norm == "layernorm_pre"
    for key, value in ours.state_dict().items():
        assert_close(value, theirs[key], 1e-5, key)


@pytest.mark.parametrize("name", CONFIGS)
def test_processing_keeps_every_probability(name: str) -> None:
    model = random_model(CONFIGS[name], seed=3).double()
    want = log_probs(model)
    for step in (
        fold_layer_norm,
        center_writing_weights,
        center_unembed,
        fold_value_biases,
        process,
        lambda m: process(center_writing_weights(m)),
        lambda m: process(fold_layer_norm(m)),
        lambda m: center_writing_weights(fold_value_biases(fold_layer_norm(m))),
    ):
        assert_close(log_probs(step(model)), want, 1e-11, getattr(step, "__name__", "steps"))


def test_each_step_alone_is_transformer_lens() -> None:
    model = random_model(CONFIGS["gelu"], seed=4)
    off = dict.fromkeys(
        ("fold_ln", "center_writing_weights", "center_unembed", "fold_value_biases"), False
    )
    for step, flag in (
        (fold_layer_norm, "fold_ln"),
        (center_writing_weights, "center_writing_weights"),
        (center_unembed, "center_unembed"),
        (fold_value_biases, "fold_value_biases"),
    ):
        done = step(model)
        assert done.processing == {step.__name__}
        theirs = lens_processed(model, **{**off, flag: True})
        for key, value in done.state_dict().items():
            assert_close(value, theirs[key], 1e-5, f"{flag}: {key}")


@pytest.mark.skipif(IS_BRIDGE, reason="4.x has no HookedTransformer; its ProcessWeights is tested")
@pytest.mark.parametrize("name", ["attention-only", "gelu", "few biases"])
def test_the_loader_of_transformer_lens_3_gives_the_same_model(name: str) -> None:
    from transformer_lens import HookedTransformer

    model = random_model(CONFIGS[name], seed=3)
    lens = HookedTransformer(lens_config(model.cfg))
    lens.load_and_process_state_dict(lens_state(model))
    ours, tokens = process(model), random_tokens(model.cfg)
    theirs = lens.state_dict()
    for key, value in ours.state_dict().items():
        assert_close(value, theirs[key], 1e-5, key)
    got, cache = ours.run_with_cache(tokens)
    want, their_cache = lens.run_with_cache(tokens)
    size = max(1.0, want.abs().max().item())
    assert_close(got / size, want / size, 1e-5, "logits")
    for key in cache:
        size = max(1.0, cache[key][cache[key].isfinite()].abs().max().item())
        assert_close(cache[key] / size, their_cache[key] / size, 1e-5, key)


@pytest.mark.parametrize("name", ["attention-only", "gelu"])
def test_a_processed_model_loads_into_transformer_lens(name: str) -> None:
    ours = process(random_model(CONFIGS[name], seed=3, scale=0.1))
    tokens = random_tokens(ours.cfg)
    assert_close(ours(tokens), lens_model(ours)(tokens), 1e-5)


def test_models_without_norm_may_be_centred_at_the_unembedding_only() -> None:
    model = random_model(COURSE).double()
    with pytest.raises(ValueError, match="norm='none'.*center_unembed is allowed"):
        center_writing_weights(model)
    with pytest.raises(ValueError, match="norm='none' has no LayerNorm weights"):
        fold_layer_norm(model)
    done = process(model)
    assert done.processing == {"center_unembed", "fold_value_biases"}
    assert done.cfg == model.cfg
    assert_close(log_probs(done), log_probs(model), 1e-12)
    assert done.W_U.mean(-1).abs().max() < 1e-15
    assert torch.equal(done.W_E, model.W_E) and torch.equal(done.W_O, model.W_O)


def test_the_refusal_is_earned_centring_writes_without_norm_changes_the_function() -> None:
    model = random_model(COURSE).double()
    state = dict(model.state_dict())
    for key in state:
        if key.endswith(("W_E", "W_O")):
            state[key] = state[key] - state[key].mean(-1, keepdim=True)
    moved = log_probs(Transformer.from_state_dict(COURSE, state)) - log_probs(model)
    assert moved.abs().max() > 1e-2


def test_shortformer_with_layernorm_centres_but_does_not_fold() -> None:
    cfg = COURSE.replace(norm="layernorm", attn_bias=True)
    model = random_model(cfg).double()
    with pytest.raises(ValueError, match="scale the position"):
        fold_layer_norm(model)
    done = process(model)
    assert done.processing == set(STEPS) - {"fold_layer_norm"}
    assert_close(log_probs(done), log_probs(model), 1e-12)
    assert torch.equal(done.W_pos, model.W_pos)  # not written to the stream: it keeps its mean


def test_experts_fold_unless_the_router_would_need_a_bias() -> None:
    cfg = CLASSIC.replace(act="swiglu", d_mlp=20, n_experts=4, top_k=2)
    model = random_model(cfg).double()
    with pytest.raises(ValueError, match=r"ln2.b is not zero and .*W_router has no bias"):
        fold_layer_norm(model)
    with torch.no_grad():
        for block in model.blocks:
            block.ln2.b.zero_()
    assert_close(log_probs(process(model)), log_probs(model), 1e-11)


def test_a_wrong_fold_is_caught() -> None:
    # The mutation: the gain multiplies columns of the next matrix instead of rows.
    model = random_model(CLASSIC.replace(d_head=16, n_heads=1)).double()
    done = fold_layer_norm(model)
    with torch.no_grad():
        block, gain = done.blocks[0].attn, model.blocks[0].ln1.w
        wrong = model.blocks[0].attn.W_V * gain[None, None, :]
        block.W_V.copy_(wrong - wrong.mean(-2, keepdim=True))
    with pytest.raises(AssertionError, match="largest difference"):
        assert_close(log_probs(done), log_probs(model), 1e-3)


def test_the_old_model_is_left_alone_and_its_switches_are_kept() -> None:
    model = random_model(CONFIGS["gelu"]).eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    model.set_use_attn_result(True)
    done = process(model)
    assert model.processing == frozenset() and not done.training and done.use_attn_result
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    name = "blocks.0.attn.hook_result"
    assert set(done.run_with_cache(random_tokens(model.cfg), names_filter=name)[1]) == {name}


def test_an_edited_position_table_survives() -> None:
    model = random_model(COURSE).double()
    model.pos_embed.W_pos = model.W_pos.roll(1, 0)
    assert_close(log_probs(process(model)), log_probs(model), 1e-12)
