"""Editing an activation really changes what follows it, and nothing else."""

from __future__ import annotations

import copy

import pytest
import torch
from model_reference import assert_close, random_model, random_tokens

from circuitbook.config import Config
from circuitbook.model import Transformer

CFG = Config(
    n_layers=2, d_model=16, n_heads=3, d_head=4, n_ctx=12, d_vocab=29, d_mlp=20, act="gelu"
)
TOKENS = random_tokens(CFG)


@pytest.fixture
def model() -> Transformer:
    model = random_model(CFG.replace(attn_bias=True)).double()
    model.set_use_attn_result(True)
    model.set_use_split_qkv_input(True)
    model.set_use_hook_mlp_in(True)
    return model


def upstream(name: str, model: Transformer) -> set[str]:
    """Hooks that run before `name`: hooks fire in the order of the forward pass."""
    order: list[str] = []
    hooks = [(n, lambda x, hook: order.append(hook.name)) for n in model.hook_dict]
    model.run_with_hooks(TOKENS, fwd_hooks=hooks)
    return set(order[: order.index(name)])


def test_a_cache_holds_every_hook_with_the_documented_shape(model: Transformer) -> None:
    logits, cache = model.run_with_cache(TOKENS)
    assert cache.keys() == model.hook_dict.keys()
    assert torch.equal(logits, model(TOKENS))
    b, t, h, d, e, m = 2, 9, 3, 16, 4, 20
    shapes = {
        "hook_resid_pre": (b, t, d),
        "hook_resid_mid": (b, t, d),
        "hook_attn_out": (b, t, d),
        "hook_q_input": (b, t, h, d),
        "attn.hook_q": (b, t, h, e),
        "attn.hook_attn_scores": (b, h, t, t),
        "attn.hook_pattern": (b, h, t, t),
        "attn.hook_z": (b, t, h, e),
        "attn.hook_result": (b, t, h, d),
        "mlp.hook_pre": (b, t, m),
        "mlp.hook_post": (b, t, m),
    }
    for name, shape in shapes.items():
        assert cache["blocks.1." + name].shape == shape, name
    assert cache["hook_pos_embed"].shape == (b, t, d)


def test_switching_the_costly_hooks_on_changes_no_logit(model: Transformer) -> None:
    plain = copy.deepcopy(model)
    plain.set_use_attn_result(False)
    plain.set_use_split_qkv_input(False)
    plain.set_use_hook_mlp_in(False)
    assert_close(model(TOKENS), plain(TOKENS), 1e-12)
    for norm in ("layernorm", "layernorm_pre"):
        one = random_model(CFG.replace(norm=norm)).double()
        before = one(TOKENS)
        one.set_use_split_qkv_input(True)
        assert_close(one(TOKENS), before, 1e-12, norm)


def test_an_edit_at_any_hook_moves_the_logits_and_nothing_before_it(model: Transformer) -> None:
    before, clean = model.run_with_cache(TOKENS)
    for name in model.hook_dict:
        cache: dict[str, torch.Tensor] = {}

        def look(x: torch.Tensor, hook, cache=cache) -> None:
            cache[hook.name] = x.clone()

        def edit(x: torch.Tensor, hook) -> torch.Tensor:
            return x * 0.7 + 0.01 * torch.arange(x.shape[-1], dtype=x.dtype)

        after = model.run_with_hooks(TOKENS, fwd_hooks=[*((n, look) for n in clean), (name, edit)])
        assert (after - before).abs().max() > 1e-4, f"an edit at {name} does nothing"
        for earlier in upstream(name, model):
            assert torch.equal(cache[earlier], clean[earlier]), f"{name} moved {earlier}"
    assert_close(model(TOKENS), before, 0.0, "hooks are gone after the run")


@pytest.mark.parametrize("letter", ["q", "k", "v"])
def test_an_input_cut_reaches_only_its_own_letter_and_head(model: Transformer, letter: str) -> None:
    _, clean = model.run_with_cache(TOKENS)

    def cut(x: torch.Tensor, hook) -> torch.Tensor:
        x[:, :, 1] = 0.0  # in place, on purpose: the copies must not share memory
        return x

    hook = (f"blocks.1.hook_{letter}_input", cut)
    with model.hooks(fwd_hooks=[hook]):
        _, cache = model.run_with_cache(TOKENS)
    for other in "qkv":
        now, then = cache[f"blocks.1.attn.hook_{other}"], clean[f"blocks.1.attn.hook_{other}"]
        assert torch.equal(now[:, :, [0, 2]], then[:, :, [0, 2]])
        assert torch.equal(now[:, :, 1], then[:, :, 1]) == (other != letter)
    pattern = "blocks.1.attn.hook_pattern"
    assert torch.equal(cache[pattern], clean[pattern]) == (letter == "v")
    # q_input and k_input hold the stream before the position: without content, position is left.
    if letter != "v":
        attn = model.blocks[1].attn
        W, b = getattr(attn, f"W_{letter.upper()}")[1], getattr(attn, f"b_{letter.upper()}")[1]
        want = (model.W_pos[:9] @ W + b).expand(2, 9, 4)
        assert_close(cache[f"blocks.1.attn.hook_{letter}"][:, :, 1], want, 1e-12)


def test_resid_mid_feeds_mlp_and_skip_but_mlp_in_feeds_the_mlp_alone(model: Transformer) -> None:
    def shift(x: torch.Tensor, hook) -> torch.Tensor:
        return x + 1.0

    _, clean = model.run_with_cache(TOKENS)
    mid = clean["blocks.1.hook_resid_mid"]
    with model.hooks(fwd_hooks=[("blocks.1.hook_resid_mid", shift)]):
        _, cache = model.run_with_cache(TOKENS)
    mlp_of_shifted = model.blocks[1].mlp(mid + 1.0)
    assert_close(cache["blocks.1.hook_mlp_out"], mlp_of_shifted, 1e-12, "mlp_out")
    assert_close(cache["blocks.1.hook_resid_post"], mid + 1.0 + mlp_of_shifted, 1e-12, "skip moves")
    with model.hooks(fwd_hooks=[("blocks.1.hook_mlp_in", shift)]):
        _, cache = model.run_with_cache(TOKENS)
    assert_close(cache["blocks.1.hook_resid_post"], mid + mlp_of_shifted, 1e-12, "skip stays")


def test_results_sum_to_attn_out_and_a_head_is_ablated_alike_at_z_and_result(
    model: Transformer,
) -> None:
    _, cache = model.run_with_cache(TOKENS)
    total = cache["blocks.0.attn.hook_result"].sum(2) + model.blocks[0].attn.b_O
    assert_close(total, cache["blocks.0.hook_attn_out"], 1e-12)

    def ablate(x: torch.Tensor, hook) -> torch.Tensor:
        return x.index_fill(2, torch.tensor([1]), 0.0)

    at_z = model.run_with_hooks(TOKENS, fwd_hooks=[("blocks.0.attn.hook_z", ablate)])
    at_result = model.run_with_hooks(TOKENS, fwd_hooks=[("blocks.0.attn.hook_result", ablate)])
    assert_close(at_z, at_result, 1e-12)


def test_scores_are_masked_before_the_hook_and_a_query_with_no_key_attends_to_nothing(
    model: Transformer,
) -> None:
    _, cache = model.run_with_cache(TOKENS)
    scores, pattern = (cache[f"blocks.0.attn.hook_{n}"] for n in ("attn_scores", "pattern"))
    future = torch.ones(9, 9, dtype=torch.bool).triu(1)
    assert (scores[..., future] == -torch.inf).all() and scores[..., ~future].isfinite().all()
    assert (pattern[..., future] == 0).all()
    assert_close(pattern.sum(-1), torch.ones(2, 3, 9, dtype=torch.float64), 1e-12)

    def forbid_first(x: torch.Tensor, hook) -> torch.Tensor:
        x[..., 0] = -torch.inf
        return x

    with model.hooks(fwd_hooks=[("blocks.0.attn.hook_attn_scores", forbid_first)]):
        logits, cache = model.run_with_cache(TOKENS)
    assert logits.isfinite().all()
    assert (cache["blocks.0.attn.hook_pattern"][:, :, 0] == 0).all()
    rest = cache["blocks.0.attn.hook_pattern"][:, :, 1:].sum(-1)
    assert_close(rest, torch.ones_like(rest), 1e-12)


def test_a_hook_that_would_never_run_is_refused() -> None:
    model = random_model(CFG)

    def nothing(x: torch.Tensor, hook) -> None:
        return None

    for name, call in {
        "blocks.0.attn.hook_result": r"set_use_attn_result\(True\)",
        "blocks.1.hook_v_input": r"set_use_split_qkv_input\(True\)",
        "blocks.1.hook_mlp_in": r"set_use_hook_mlp_in\(True\)",
    }.items():
        with pytest.raises(ValueError, match=call):
            model.run_with_hooks(TOKENS, fwd_hooks=[(name, nothing)])
        with pytest.raises(ValueError, match=call):
            model.run_with_hooks(TOKENS, fwd_hooks=[(lambda n, name=name: n == name, nothing)])
        with pytest.raises(ValueError, match=call):
            model.run_with_cache(TOKENS, names_filter=name)
        with pytest.raises(ValueError, match=call):
            model.add_hook(name, nothing)
    with pytest.raises(KeyError, match="blocks.1.attn.hook_pattern"):
        model.run_with_hooks(TOKENS, fwd_hooks=[("blocks.1.hook_patern", nothing)])
    with pytest.raises(KeyError, match="matches none"):
        model.run_with_hooks(TOKENS, fwd_hooks=[(lambda n: False, nothing)])
    _, cache = model.run_with_cache(TOKENS, names_filter=["hook_embed", "blocks.1.attn.hook_z"])
    assert set(cache) == {"hook_embed", "blocks.1.attn.hook_z"}
    _, cache = model.run_with_cache(TOKENS, names_filter=lambda n: n.endswith("hook_z"))
    assert len(cache) == 2


def test_expert_weights_can_be_read_and_forced() -> None:
    model = random_model(CFG.replace(n_experts=4, top_k=2)).double()
    name = "blocks.0.mlp.hook_expert_weights"
    _, cache = model.run_with_cache(TOKENS)
    weights, out = cache[name], cache["blocks.0.mlp.hook_expert_out"]
    assert weights.shape == (2, 9, 4) and out.shape == (2, 9, 4, 16)
    assert ((weights > 0).sum(-1) == 2).all()
    only = torch.tensor([0.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    with model.hooks(fwd_hooks=[(name, lambda x, hook: only.expand_as(x))]):
        _, cache = model.run_with_cache(TOKENS)
    assert_close(cache["blocks.0.hook_mlp_out"], out[:, :, 2], 1e-12)


def test_backward_hooks_see_gradients() -> None:
    model = random_model(CFG).double()
    _, cache = model.run_with_cache(TOKENS, incl_bwd=True, return_type="loss")
    assert cache["blocks.0.hook_resid_post_grad"].abs().max() > 0
