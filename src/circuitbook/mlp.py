"""The MLPs of a block: plain, gated, or a mixture of experts. Rows in, rows out.

All of them read the (normalised) stream x [batch, pos, d_model] and return what is added to it.
Parameters are named and shaped as in TransformerLens; `W_router` is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from circuitbook.config import Config
from circuitbook.layers import parameter, plus


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The pointwise function phi; for the gated kinds, the function applied to the gate."""
    return {
        "relu": F.relu,
        "gelu": F.gelu,  # z * Phi(z), the exact erf form
        "gelu_new": partial(F.gelu, approximate="tanh"),  # GPT-2's
        "bilinear": nn.Identity(),
        "swiglu": F.silu,
    }[name]


class MLP(nn.Module):
    """M(x) = phi(x W_in + b_in) W_out + b_out."""

    def __init__(self, cfg: Config):
        super().__init__()
        self.act = activation(cfg.act)
        self.W_in = parameter(cfg.d_model, cfg.d_mlp)
        self.b_in = parameter(cfg.d_mlp, on=cfg.mlp_bias)
        self.W_out = parameter(cfg.d_mlp, cfg.d_model)
        self.b_out = parameter(cfg.d_model, on=cfg.mlp_bias)
        self.hook_pre = HookPoint()
        self.hook_post = HookPoint()

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        pre = self.hook_pre(plus(x @ self.W_in, self.b_in))  # [batch, pos, d_mlp]
        post = self.hook_post(self.act(pre))  # [batch, pos, d_mlp]
        return plus(post @ self.W_out, self.b_out)  # [batch, pos, d_model]


class GatedMLP(nn.Module):
    """M(x) = (phi(g) * u) W_out + b_out, with gate g = x W_gate + b_gate and u = x W_in + b_in.

    phi is the identity (bilinear) or SiLU (swiglu). As in TransformerLens `hook_pre` is the gate
    g and `hook_pre_linear` is u. TransformerLens has no b_gate, and adds b_in after the product.
    """

    def __init__(self, cfg: Config):
        super().__init__()
        self.act = activation(cfg.act)
        self.W_gate = parameter(cfg.d_model, cfg.d_mlp)
        self.b_gate = parameter(cfg.d_mlp, on=cfg.mlp_bias)
        self.W_in = parameter(cfg.d_model, cfg.d_mlp)
        self.b_in = parameter(cfg.d_mlp, on=cfg.mlp_bias)
        self.W_out = parameter(cfg.d_mlp, cfg.d_model)
        self.b_out = parameter(cfg.d_model, on=cfg.mlp_bias)
        self.hook_pre = HookPoint()
        self.hook_pre_linear = HookPoint()
        self.hook_post = HookPoint()

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        gate = self.hook_pre(plus(x @ self.W_gate, self.b_gate))  # [batch, pos, d_mlp]
        linear = self.hook_pre_linear(plus(x @ self.W_in, self.b_in))  # [batch, pos, d_mlp]
        post = self.hook_post(self.act(gate) * linear)  # [batch, pos, d_mlp]
        return plus(post @ self.W_out, self.b_out)  # [batch, pos, d_model]


class MoE(nn.Module):
    """M(x) = sum over the top-k experts e of weight_e(x) E_e(x); each E_e is an MLP of kind `act`.

    The router is linear and has no bias: logits = x W_router. Weights are the softmax over the
    selected experts when k >= 2, and the plain softmax over all experts when k = 1: renormalising
    a single weight would fix it at 1, and the router could never learn.

    Every expert is computed for every token and the unused ones are multiplied by zero. That costs
    n_experts / top_k times too much and keeps each quantity visible: `hook_expert_weights` and
    `hook_expert_out` hold one slot per expert, so a hook can freeze or change the routing.
    """

    def __init__(self, cfg: Config):
        super().__init__()
        e, d, m, bias = cfg.n_experts, cfg.d_model, cfg.d_mlp, cfg.mlp_bias
        self.act, self.gated, self.top_k = activation(cfg.act), cfg.gated, cfg.top_k
        self.W_router = parameter(d, e)
        if self.gated:
            self.W_gate = parameter(e, d, m)
            self.b_gate = parameter(e, m, on=bias)
        self.W_in = parameter(e, d, m)
        self.b_in = parameter(e, m, on=bias)
        self.W_out = parameter(e, m, d)
        self.b_out = parameter(e, d, on=bias)
        self.hook_router_logits = HookPoint()
        self.hook_expert_weights = HookPoint()
        self.hook_pre = HookPoint()
        if self.gated:
            self.hook_pre_linear = HookPoint()
        self.hook_post = HookPoint()
        self.hook_expert_out = HookPoint()

    def route(self, logits: Float[Tensor, "batch pos expert"]) -> Float[Tensor, "batch pos expert"]:
        """Expert weights: zero outside the top k, positive inside (they sum to 1 when k >= 2)."""
        kept = logits.topk(self.top_k, dim=-1).indices  # [batch, pos, k]
        chosen = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, kept, True)
        if self.top_k == 1:
            return logits.softmax(-1).masked_fill(~chosen, 0.0)
        return logits.masked_fill(~chosen, float("-inf")).softmax(-1)

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        logits = self.hook_router_logits(x @ self.W_router)  # [batch, pos, expert]
        weights = self.hook_expert_weights(self.route(logits))  # [batch, pos, expert]
        into = "b p d, e d m -> b p e m"
        linear = plus(torch.einsum(into, x, self.W_in), self.b_in)  # [batch, pos, expert, d_mlp]
        if self.gated:
            gate = self.hook_pre(plus(torch.einsum(into, x, self.W_gate), self.b_gate))
            post = self.act(gate) * self.hook_pre_linear(linear)
        else:
            post = self.act(self.hook_pre(linear))
        post = self.hook_post(post)  # [batch, pos, expert, d_mlp]
        out = plus(torch.einsum("b p e m, e m d -> b p e d", post, self.W_out), self.b_out)
        out = self.hook_expert_out(out)  # [batch, pos, expert, d_model]
        return torch.einsum("b p e, b p e d -> b p d", weights, out)  # [batch, pos, d_model]


def make_mlp(cfg: Config) -> nn.Module:
    """The MLP that the config asks for: MoE, gated, or plain."""
    if cfg.n_experts:
        return MoE(cfg)
    return GatedMLP(cfg) if cfg.gated else MLP(cfg)
