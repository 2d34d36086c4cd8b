"""The small parts of a transformer: embedding, positions, LayerNorm, unembedding. Rows, always."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from circuitbook.config import Config


def parameter(*shape: int, on: bool = True) -> nn.Parameter | None:
    """A zero parameter of this shape, or None for a bias that the config switches off."""
    return nn.Parameter(torch.zeros(*shape)) if on else None


def plus(x: Tensor, bias: Tensor | None) -> Tensor:
    """x + bias, or x when there is no bias."""
    return x if bias is None else x + bias


def sinusoid(cfg: Config) -> Float[Tensor, "n_ctx d_model"]:
    """W_pos[t, 2i] = a sin(t base^(-2i/d)), W_pos[t, 2i+1] = a cos(the same); in float64."""
    t = torch.arange(cfg.n_ctx, dtype=torch.float64)[:, None]  # [n_ctx, 1]
    even = torch.arange(0, cfg.d_model, 2, dtype=torch.float64)  # 2i, [d_model / 2]
    angle = t * cfg.pos_base ** (-even / cfg.d_model)  # [n_ctx, d_model / 2]
    return cfg.pos_amplitude * torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


class Embed(nn.Module):
    """The row W_E[token] for each token."""

    def __init__(self, cfg: Config):
        super().__init__()
        self.W_E = parameter(cfg.d_vocab, cfg.d_model)

    def forward(self, tokens: Tensor) -> Float[Tensor, "batch pos d_model"]:
        return self.W_E[tokens]


class PosEmbed(nn.Module):
    """The row W_pos[position]: a parameter when learned, else a buffer that no file needs to hold.

    The sinusoidal table is recomputed from float64 at every change of dtype, so that a float64
    model has float64 positions. A table that someone has edited (say, rotated) is only cast.
    """

    def __init__(self, cfg: Config):
        super().__init__()
        self.cfg = cfg
        if cfg.pos_kind == "learned":
            self.W_pos = parameter(cfg.n_ctx, cfg.d_model)
        else:
            table = sinusoid(cfg).to(torch.get_default_dtype())
            self.register_buffer("W_pos", table, persistent=False)

    def forward(self, tokens: Tensor) -> Float[Tensor, "batch pos d_model"]:
        batch, length = tokens.shape
        return self.W_pos[:length].repeat(batch, 1, 1)

    def _apply(self, fn: Any, recurse: bool = True) -> PosEmbed:
        untouched = self.cfg.pos_kind == "sinusoidal" and (
            self.W_pos.is_meta or torch.equal(self.W_pos, sinusoid(self.cfg).to(self.W_pos))
        )
        super()._apply(fn, recurse)
        if untouched:
            self.W_pos = sinusoid(self.cfg).to(self.W_pos)
        return self


class LayerNorm(nn.Module):
    """n = (x - mean x) / sqrt(var x + eps), then n w + b unless the weights have been folded away.

    Works on the last axis; any axes may come before it.
    """

    def __init__(self, cfg: Config):
        super().__init__()
        self.eps = cfg.eps
        affine = cfg.norm == "layernorm"
        self.w = parameter(cfg.d_model, on=affine)
        self.b = parameter(cfg.d_model, on=affine)
        self.hook_scale = HookPoint()
        self.hook_normalized = HookPoint()

    def forward(self, x: Float[Tensor, "*axes d_model"]) -> Float[Tensor, "*axes d_model"]:
        x = x - x.mean(-1, keepdim=True)  # [..., d_model]
        scale = self.hook_scale((x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt())  # [..., 1]
        n = self.hook_normalized(x / scale)  # [..., d_model]
        return n if self.w is None else n * self.w + self.b


def make_norm(cfg: Config) -> nn.Module:
    """LayerNorm, or the identity for a model without norm."""
    return nn.Identity() if cfg.norm == "none" else LayerNorm(cfg)


class Unembed(nn.Module):
    """logits = x W_U + b_U."""

    def __init__(self, cfg: Config):
        super().__init__()
        self.W_U = parameter(cfg.d_model, cfg.d_vocab)
        self.b_U = parameter(cfg.d_vocab, on=cfg.unembed_bias)

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_vocab"]:
        return plus(x @ self.W_U, self.b_U)
