"""Attention heads, the only place of the model where information moves between positions.

Shapes: batch, pos (query), key (the same positions, read from), head, d_model, d_head.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from circuitbook.config import Config
from circuitbook.layers import parameter, plus


def project(x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    """x W per head; x is [batch, pos, d_model], or one copy for each head in a fourth axis."""
    heads = "b p h d" if x.ndim == 4 else "b p d"
    return plus(torch.einsum(f"{heads}, h d e -> b p h e", x, W), b)  # [batch, pos, head, d_head]


def causal_mask(length: int, device: torch.device) -> Tensor:
    """True where a query would look at a later key. [pos, key]"""
    return torch.ones(length, length, dtype=torch.bool, device=device).triu(1)


class Attention(nn.Module):
    """out = sum over heads of A X W_V W_O + b_O, with A = softmax(Q K^T / sqrt(d_head)), causal.

    The scores are masked with -inf before `hook_attn_scores`, so the hook sees what softmax sees.
    """

    def __init__(self, cfg: Config):
        super().__init__()
        h, d, e = cfg.n_heads, cfg.d_model, cfg.d_head
        self.d_head = cfg.d_head
        self.use_attn_result = False
        self.W_Q, self.W_K, self.W_V = parameter(h, d, e), parameter(h, d, e), parameter(h, d, e)
        self.W_O = parameter(h, e, d)
        self.b_Q = parameter(h, e, on=cfg.attn_bias)
        self.b_K = parameter(h, e, on=cfg.attn_bias)
        self.b_V = parameter(h, e, on=cfg.attn_bias)
        self.b_O = parameter(d, on=cfg.attn_bias)
        self.hook_q, self.hook_k, self.hook_v = HookPoint(), HookPoint(), HookPoint()
        self.hook_attn_scores, self.hook_pattern = HookPoint(), HookPoint()
        self.hook_z, self.hook_result = HookPoint(), HookPoint()

    def forward(
        self,
        query_input: Float[Tensor, "batch pos *head d_model"],
        key_input: Float[Tensor, "batch pos *head d_model"],
        value_input: Float[Tensor, "batch pos *head d_model"],
    ) -> Float[Tensor, "batch pos d_model"]:
        q = self.hook_q(project(query_input, self.W_Q, self.b_Q))  # [batch, pos, head, d_head]
        k = self.hook_k(project(key_input, self.W_K, self.b_K))  # [batch, key, head, d_head]
        v = self.hook_v(project(value_input, self.W_V, self.b_V))  # [batch, key, head, d_head]

        scores = torch.einsum("b q h e, b k h e -> b h q k", q, k) / math.sqrt(self.d_head)
        scores = scores.masked_fill(causal_mask(q.shape[1], q.device), float("-inf"))
        scores = self.hook_attn_scores(scores)  # [batch, head, pos, key]
        pattern = scores.softmax(-1)
        if self.hook_attn_scores.has_hooks("fwd"):
            # A hook may forbid every key of a query. Such a query attends to nothing (zeros, as in
            # TransformerLens) instead of spreading NaN. Without a hook this cannot happen.
            nothing = (scores == float("-inf")).all(-1, keepdim=True)
            pattern = pattern.masked_fill(nothing, 0.0)
        pattern = self.hook_pattern(pattern)  # [batch, head, pos, key]

        z = self.hook_z(torch.einsum("b h q k, b k h e -> b q h e", pattern, v))
        if self.use_attn_result:
            result = torch.einsum("b p h e, h e d -> b p h d", z, self.W_O)
            out = self.hook_result(result).sum(2)  # [batch, pos, head, d_model] summed over heads
        else:
            out = z.flatten(2) @ self.W_O.flatten(0, 1)  # the same sum as one matrix product
        return plus(out, self.b_O)  # [batch, pos, d_model]
