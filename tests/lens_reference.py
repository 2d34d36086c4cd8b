"""TransformerLens' own model with our weights in it, for whichever major is installed.

3.x has HookedTransformer. 4.0 removed it; there the model is a native bridge, which differs:
* `hook_attn_scores` holds the pattern, and editing it does nothing. An edit of our scores is
  compared with the pattern that it implies, put in at the bridge's `hook_pattern`.
* `hook_resid_mid` is the MLP's input only. Our `hook_resid_mid`, which moves the skip too as in
  HookedTransformer, is compared with the same change made at the bridge's `hook_attn_out`; our
  `hook_mlp_in` with the bridge's `hook_resid_mid`.
* it caches no `hook_result` and no per-head `hook_q_input`, `hook_k_input`, `hook_v_input`.
* it has no shortformer positions, so the course's own kind of model is compared on 3.x only (and
  with the derivation by hand everywhere).
Both majors have no b_gate and add b_in after the gated product, so swiglu is compared without MLP
biases. Neither has a bilinear MLP. Their mixtures of experts hold one module per expert and other
hooks; ours is tested against loops instead. TransformerLens stores positions as a parameter: a
sinusoidal table of ours is copied into it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformer_lens.weight_processing import ProcessWeights

from circuitbook.config import Config
from circuitbook.model import Transformer

try:
    from transformer_lens import HookedTransformer, HookedTransformerConfig
except ImportError:  # 4.x: the bridge
    HookedTransformer = None
IS_BRIDGE = HookedTransformer is None

NORMS = {"none": None, "layernorm": "LN", "layernorm_pre": "LNPre"}
ACTS = {"none": "relu", "relu": "relu", "gelu": "gelu", "gelu_new": "gelu_new", "swiglu": "silu"}


def lens_config(cfg: Config, dtype: torch.dtype = torch.float32) -> Any:
    same = ("n_layers", "d_model", "n_heads", "d_head", "n_ctx", "d_vocab", "eps")
    args = {name: getattr(cfg, name) for name in same} | {
        "d_mlp": cfg.d_mlp or 4,  # unused, and must not be 0, when attn_only
        "act_fn": ACTS[cfg.act],
        "attn_only": cfg.attn_only,
        "gated_mlp": cfg.gated,
        "normalization_type": NORMS[cfg.norm],
        "positional_embedding_type": cfg.positions,
        "dtype": dtype,
        "device": "cpu",
    }
    if not IS_BRIDGE:
        return HookedTransformerConfig(**args)
    from transformer_lens.config import TransformerBridgeConfig

    return TransformerBridgeConfig(**args, architecture="TransformerLensNative")


def lens_state(model: Transformer) -> dict[str, Tensor]:
    """Our weights under TransformerLens' names, with zeros for the biases that we leave out."""
    cfg = model.cfg
    full = cfg.replace(attn_bias=True, unembed_bias=True, mlp_bias=True, pos_kind="learned")
    state = {k: v.detach().clone() for k, v in Transformer(full, seed=None).state_dict().items()}
    state = {k: v.to(model.W_E.dtype) for k, v in state.items() if not k.endswith("b_gate")}
    state |= {k: v.detach().clone() for k, v in model.state_dict().items()}
    state["pos_embed.W_pos"] = model.W_pos.detach().clone()
    return state


def lens_model(model: Transformer) -> Any:
    """HookedTransformer or native bridge with exactly our weights, unprocessed, in our dtype."""
    cfg, state = lens_config(model.cfg, model.W_E.dtype), lens_state(model)
    if not IS_BRIDGE:
        lens = HookedTransformer(cfg)
        report = lens.load_state_dict(state, strict=False)
        assert not report.unexpected_keys, report
        assert all(k.endswith(("mask", "IGNORE")) for k in report.missing_keys), report
        return lens.eval()
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.utilities.tl_checkpoint_conversion import convert_tl_checkpoint

    if model.cfg.gated:  # the bridge's gated MLP has no biases
        state = {k: v for k, v in state.items() if ".mlp.b_" not in k}
    lens = TransformerBridge.boot_native(cfg, dtype=model.W_E.dtype)
    lens.load_state_dict(convert_tl_checkpoint(state, cfg), strict=True)
    return lens.eval()


def lens_processed(model: Transformer, **steps: bool) -> dict[str, Tensor]:
    """TransformerLens' processed weights, by its own code for its own format."""
    return ProcessWeights.process_weights(lens_state(model), lens_config(model.cfg), **steps)
