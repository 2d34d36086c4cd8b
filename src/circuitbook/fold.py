"""Weight processing: other weights, the same function. Each step says when that is true.

Every function returns a new model and leaves the old one as it was. What has been done stands in
`model.processing`, a frozenset of names of this file. Each step computes in float64 and casts its
result back. The results equal TransformerLens' processed weights; where TransformerLens would skip
a step with a warning, or change the function, the step here refuses and says why.
"""

from __future__ import annotations

import torch
from torch import Tensor

from circuitbook.config import Config
from circuitbook.model import Transformer

State = dict[str, Tensor]


def center_unembed(model: Transformer) -> Transformer:
    """Softmax ignores a constant: W_U (and b_U) minus their vocabulary mean change no probability.

    Allowed for every model. Logits move by one number per position, so that their mean over the
    vocabulary is zero. It is needed before any logit is attributed to a component.
    """
    state = _state(model)
    for name in ("unembed.W_U", "unembed.b_U"):
        if name in state:
            state[name] -= state[name].mean(-1, keepdim=True)
    return _rebuild(model, model.cfg, state, "center_unembed")


def center_writing_weights(model: Transformer) -> Transformer:
    """LayerNorm subtracts the mean of the stream, so what is written may lose its mean beforehand.

    W_E, W_O, b_O, W_out, b_out, and W_pos where it is written to the stream (standard positions),
    lose their mean over d_model. Refuses a model without norm: there every direction of the
    stream is read, the all-ones direction too, and the logits would change.
    """
    cfg = model.cfg
    if cfg.norm == "none":
        raise ValueError(
            "center_writing_weights would change what this model computes: with norm='none' the "
            "mean of the stream is read like any other direction. Only LayerNorm makes it "
            "invisible. (center_unembed is allowed for every model.)"
        )
    state = _state(model)
    written = ["embed.W_E"]
    if cfg.positions == "standard":
        written.append("pos_embed.W_pos")
        state.setdefault("pos_embed.W_pos", model.W_pos.detach().double())
        cfg = cfg.replace(pos_kind="learned")  # the centred table is no longer the sinusoid's
    for i in range(cfg.n_layers):
        written += [f"blocks.{i}.attn.W_O", f"blocks.{i}.attn.b_O"]
        written += [f"blocks.{i}.mlp.W_out", f"blocks.{i}.mlp.b_out"]
    for name in written:
        if name in state:
            state[name] = state[name] - state[name].mean(-1, keepdim=True)
    return _rebuild(model, cfg, state, "center_writing_weights")


def fold_value_biases(model: Transformer) -> Transformer:
    """Rows of a pattern sum to 1, so b_V adds b_V W_O whatever the pattern: move it into b_O.

    Exact while patterns sum to 1: an edited pattern that does not would see the difference.
    """
    state = _state(model)
    if model.cfg.attn_bias:
        for i in range(model.cfg.n_layers):
            b_V, W_O = state[f"blocks.{i}.attn.b_V"], state[f"blocks.{i}.attn.W_O"]
            moved = torch.einsum("h e, h e d -> d", b_V, W_O)
            state[f"blocks.{i}.attn.b_O"] = state[f"blocks.{i}.attn.b_O"] + moved
            state[f"blocks.{i}.attn.b_V"] = torch.zeros_like(b_V)
    return _rebuild(model, model.cfg, state, "fold_value_biases")


def fold_layer_norm(model: Transformer) -> Transformer:
    """(n w + b) W = n (diag(w) W) + b W: gains and biases of LayerNorm move into the next matrix.

    n is the centred and rescaled stream; as its mean is zero, diag(w) W may lose its mean over
    d_model too, and does. The result has norm "layernorm_pre" and all biases. Refuses models
    without LayerNorm weights; shortformer models, where the position joins between LayerNorm and
    W_Q, W_K and would be scaled by w with them; and a router that would need a bias.
    """
    cfg = model.cfg
    if cfg.norm != "layernorm":
        raise ValueError(f"norm={cfg.norm!r} has no LayerNorm weights to fold")
    if cfg.positions == "shortformer" and cfg.n_layers:
        raise ValueError(
            "with shortformer positions LayerNorm cannot be folded: queries and keys read "
            "n w + b + position, and diag(w) W_Q would scale the position as well"
        )
    state = _state(model)
    bare = cfg.replace(norm="layernorm_pre", attn_bias=True, mlp_bias=True, unembed_bias=True)
    zeros = {k: v.detach().double() for k, v in Transformer(bare, seed=None).state_dict().items()}
    for name, zero in zeros.items():  # the biases that folding may fill
        state.setdefault(name, zero.to(model.W_E.device))

    def fold(norm: str, weight: str, bias: str | None, center: bool = True) -> None:
        w, b, W = state[f"{norm}.w"], state[f"{norm}.b"], state[weight]  # W [..., d_model, out]
        shift = b @ W  # [..., out]
        if bias is not None:
            state[bias] = state[bias] + shift
        elif shift.abs().max() > 0:
            raise ValueError(f"{norm}.b is not zero and {weight} has no bias to take it up")
        state[weight] = w[:, None] * W
        if center:
            state[weight] -= state[weight].mean(-2, keepdim=True)

    for i in range(cfg.n_layers):
        for x in "QKV":
            fold(f"blocks.{i}.ln1", f"blocks.{i}.attn.W_{x}", f"blocks.{i}.attn.b_{x}")
        # Gate and router keep their mean, as in TransformerLens; it is never read.
        if not cfg.attn_only:
            fold(f"blocks.{i}.ln2", f"blocks.{i}.mlp.W_in", f"blocks.{i}.mlp.b_in")
        if cfg.gated:
            fold(f"blocks.{i}.ln2", f"blocks.{i}.mlp.W_gate", f"blocks.{i}.mlp.b_gate", False)
        if cfg.n_experts:
            fold(f"blocks.{i}.ln2", f"blocks.{i}.mlp.W_router", None, False)
    fold("ln_final", "unembed.W_U", "unembed.b_U")
    state = {k: v for k, v in state.items() if k in zeros}
    return _rebuild(model, bare, state, "fold_layer_norm")


def process(model: Transformer, *, center: bool = True) -> Transformer:
    """TransformerLens' default processing, leaving out each step that would change this model.

    In order: fold_layer_norm, center_writing_weights, center_unembed, fold_value_biases. Without
    norm only the last two apply; with shortformer positions the first does not. `center` False
    leaves out center_unembed.
    """
    if model.cfg.norm == "layernorm" and model.cfg.positions == "standard":
        model = fold_layer_norm(model)
    if model.cfg.norm != "none":
        # b_V W_O is centred with W_O, so folding the value biases afterwards keeps b_O centred.
        model = center_writing_weights(model)
    return fold_value_biases(center_unembed(model) if center else model)


def _state(model: Transformer) -> State:
    return {k: v.detach().double().clone() for k, v in model.state_dict().items()}


def _rebuild(model: Transformer, cfg: Config, state: State, done: str) -> Transformer:
    dtype, device = model.W_E.dtype, model.W_E.device
    new = Transformer.from_state_dict(cfg, {k: v.to(dtype) for k, v in state.items()}).to(device)
    if cfg.pos_kind == "sinusoidal":  # not in the state: it may have been edited (rotated, say)
        new.pos_embed.W_pos = model.pos_embed.W_pos.detach().clone()
    new.set_use_attn_result(model.use_attn_result)
    new.set_use_split_qkv_input(model.use_split_qkv_input)
    new.set_use_hook_mlp_in(model.use_hook_mlp_in)
    new.processing = model.processing | {done}
    return new.train(model.training)
