"""The training pass: the same function as :mod:`circuitbook.model`, arranged to be cheap.

Three things make it fast on a small machine. Matrix products run in bfloat16, five times the
float32 rate where the processor has the instructions. Attention skips the blocks above the causal
diagonal. And the loss never builds the table of all logits: one chunk of rows at a time is
multiplied out, turned into its own gradient, and forgotten.

Needs torch only. Parameters come as a dictionary with TransformerLens names.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from circuitbook.config import Config

QUERY_BLOCK = 128
ROW_CHUNK = 1024
ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu}


def sinusoid(cfg: Config) -> Tensor:
    """W_pos[t, 2i] = a sin(t b^(-2i/d)) and W_pos[t, 2i+1] = a cos(same), float64 [n_ctx, d]."""
    t = torch.arange(cfg.n_ctx, dtype=torch.float64)[:, None]
    even = torch.arange(0, cfg.d_model, 2, dtype=torch.float64)
    angle = t * cfg.pos_base ** (-even / cfg.d_model)
    table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)
    return cfg.pos_amplitude * table


def shapes(cfg: Config) -> dict[str, tuple[int, ...]]:
    """Name and shape of every trained parameter of a course model.

    Raises ValueError for a config that the trainer does not cover (LayerNorm, attention biases, …).
    """
    plain = cfg.norm == "none" and not cfg.attn_bias and not cfg.unembed_bias
    course = plain and cfg.positions == "shortformer" and cfg.pos_kind == "sinusoidal"
    mixture = cfg.n_experts == 0 or (cfg.act in ACTIVATIONS and cfg.top_k > 1)
    if not course or not mixture or cfg.act not in ("none", "relu", "gelu", "swiglu"):
        raise ValueError(
            f"The trainer covers the course family only (no norm, no attention biases, sinusoidal "
            f"positions on queries and keys, MLP none, relu, gelu or swiglu, mixtures of relu or "
            f"gelu experts with top_k of 2 or more); got {cfg}."
        )
    h, d, k, m = cfg.n_heads, cfg.d_model, cfg.d_head, cfg.d_mlp
    out: dict[str, tuple[int, ...]] = {
        "embed.W_E": (cfg.d_vocab, d),
        "unembed.W_U": (d, cfg.d_vocab),
    }
    for layer in range(cfg.n_layers):
        at = f"blocks.{layer}."
        for name in ("W_Q", "W_K", "W_V"):
            out[f"{at}attn.{name}"] = (h, d, k)
        out[f"{at}attn.W_O"] = (h, k, d)
        if cfg.n_experts:
            e = cfg.n_experts
            out[f"{at}mlp.W_router"] = (d, e)
            out[f"{at}mlp.W_in"], out[f"{at}mlp.W_out"] = (e, d, m), (e, m, d)
            if cfg.mlp_bias:
                out[f"{at}mlp.b_in"], out[f"{at}mlp.b_out"] = (e, m), (e, d)
        elif m:
            out[f"{at}mlp.W_in"], out[f"{at}mlp.W_out"] = (d, m), (m, d)
            if cfg.act == "swiglu":
                out[f"{at}mlp.W_gate"] = (d, m)
            if cfg.mlp_bias:
                out[f"{at}mlp.b_in"], out[f"{at}mlp.b_out"] = (m,), (d,)
                if cfg.act == "swiglu":
                    out[f"{at}mlp.b_gate"] = (m,)
    return out


def init(cfg: Config, seed: int, *, embed_std: float = 0.1) -> dict[str, Tensor]:
    """Starting weights from an explicit generator, float32 on the CPU.

    Reading matrices have standard deviation 1/sqrt(fan in); W_O, W_out and W_U start at zero, so
    every model begins as the same flat guess and the first steps decide nothing by chance.
    """
    generator = torch.Generator().manual_seed(seed)
    params = {}
    for name, shape in shapes(cfg).items():
        kind = name.rsplit(".", 1)[1]
        if kind in ("W_O", "W_out", "W_U") or kind.startswith("b_"):
            params[name] = torch.zeros(shape)
            continue
        std = embed_std if kind == "W_E" else cfg.d_model**-0.5
        params[name] = torch.randn(shape, generator=generator) * std
    return params


class CausalAttention(torch.autograd.Function):
    """z = softmax(q kᵀ + mask) v in blocks of queries, each against the keys it may see.

    q, k, v [batch * head, pos, d_head]; q already carries the factor 1/sqrt(d_head).
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = q.shape[1]
        z, patterns = torch.empty_like(v), []
        for a in range(0, n, QUERY_BLOCK):
            b = min(a + QUERY_BLOCK, n)
            scores = torch.bmm(q[:, a:b], k[:, :b].transpose(1, 2))
            hidden = torch.ones(b - a, b - a, dtype=torch.bool, device=q.device).triu(1)
            scores[:, :, a:b].masked_fill_(hidden, -torch.inf)
            patterns.append(torch.softmax(scores, -1))
            z[:, a:b] = torch.bmm(patterns[-1], v[:, :b])
        ctx.save_for_backward(q, k, v, z, *patterns)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, z, *patterns = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        # softmax's Jacobian: ds = p (dp - sum p dp), and sum_j p_ij dp_ij = dz_i . z_i
        inner = (dz.float() * z.float()).sum(-1, keepdim=True).to(dz.dtype)
        for block, p in enumerate(patterns):
            a = block * QUERY_BLOCK
            b = a + p.shape[1]
            g = dz[:, a:b]
            dv[:, :b] += torch.bmm(p.transpose(1, 2), g)
            ds = torch.bmm(g, v[:, :b].transpose(1, 2))
            ds.sub_(inner[:, a:b]).mul_(p)
            dq[:, a:b] = torch.bmm(ds, k[:, :b])
            dk[:, :b] += torch.bmm(ds.transpose(1, 2), q[:, a:b])
        return dq, dk, dv


class ChunkedLoss(torch.autograd.Function):
    """Mean cross-entropy of softmax(x W_U) against the targets, one chunk of rows at a time.

    x [rows, d_model], W_U [d_model, d_vocab], targets [rows]. The gradient of a chunk is known as
    soon as its logits are: softmax minus one-hot. It is folded into dx and dW at once.
    In bfloat16 one token's loss is good to about 0.004 nats, without a preferred sign; the
    held-out losses of the course are measured in float32 elsewhere.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w_u: Tensor, targets: Tensor) -> Tensor:
        rows = x.shape[0]
        dx = torch.empty_like(x)
        dw = torch.zeros(w_u.shape, dtype=torch.float32, device=x.device)
        total = torch.zeros((), dtype=torch.float32, device=x.device)
        for a in range(0, rows, ROW_CHUNK):
            xs, ts = x[a : a + ROW_CHUNK], targets[a : a + ROW_CHUNK, None]
            logits = xs @ w_u
            p = torch.softmax(logits, -1)
            # a probability that underflows to 0 counts as the smallest number there is
            total -= p.gather(1, ts).float().clamp_min(2**-149).log().sum()
            p.scatter_add_(1, ts, torch.full_like(ts, -1, dtype=p.dtype))
            dx[a : a + ROW_CHUNK] = p @ w_u.T
            dw += (xs.T @ p).float()
        ctx.save_for_backward(dx, dw)
        ctx.rows, ctx.dtype = rows, w_u.dtype
        return total / rows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, Tensor, None]:
        dx, dw = ctx.saved_tensors
        scale = scale / ctx.rows
        return dx * scale.to(dx.dtype), (dw * scale).to(ctx.dtype), None


def hidden_stream(
    cfg: Config,
    params: dict[str, Tensor],
    tokens: Tensor,
    w_pos: Tensor,
    dtype: torch.dtype,
    unevenness: list[Tensor] | None = None,
) -> Tensor:
    """The final residual stream [batch, pos, d_model], products in `dtype`, sums in float32.

    A mixture of experts appends `uneven` of its routing, one number a layer, to `unevenness`.
    """
    batch, n = tokens.shape
    h, k = cfg.n_heads, cfg.d_head
    x = F.embedding(tokens, params["embed.W_E"])
    for layer in range(cfg.n_layers):
        at = f"blocks.{layer}."
        w_q, w_k, w_v = (
            params[f"{at}attn.{w}"].transpose(0, 1).flatten(1) for w in ("W_Q", "W_K", "W_V")
        )
        w_qk = torch.cat([w_q / math.sqrt(k), w_k], dim=1).to(dtype)
        placed = (x + w_pos[:n]).to(dtype)  # positions reach queries and keys only
        q, key = (placed @ w_qk).split(h * k, dim=-1)
        v = x.to(dtype) @ w_v.to(dtype)
        q, key, v = (
            t.view(batch, n, h, k).transpose(1, 2).reshape(batch * h, n, k) for t in (q, key, v)
        )
        z = CausalAttention.apply(q, key, v)
        z = z.view(batch, h, n, k).transpose(1, 2).reshape(batch, n, h * k)
        x = x + z @ params[f"{at}attn.W_O"].flatten(0, 1).to(dtype)
        if cfg.n_experts:
            write, unbalance = mixture(cfg, params, f"{at}mlp.", x, dtype)
            x = x + write
            if unevenness is not None:
                unevenness.append(unbalance)
        elif cfg.d_mlp:
            x = x + mlp(cfg, params, f"{at}mlp.", x.to(dtype), dtype)
    return x


def mlp(cfg: Config, params: dict[str, Tensor], at: str, x: Tensor, dtype: torch.dtype) -> Tensor:
    """The MLP write of a plain or SwiGLU block, [batch, pos, d_model]."""

    def affine(inputs: Tensor, weight: str, bias: str) -> Tensor:
        product = inputs @ params[at + weight].to(dtype)
        return product + params[at + bias].to(dtype) if cfg.mlp_bias else product

    pre = affine(x, "W_in", "b_in")
    if cfg.act == "swiglu":
        post = F.silu(affine(x, "W_gate", "b_gate")) * pre
    else:
        post = ACTIVATIONS[cfg.act](pre)
    return affine(post, "W_out", "b_out")


def mixture(
    cfg: Config, params: dict[str, Tensor], at: str, x: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """(write [batch, pos, d_model], `uneven`) of a mixture whose k >= 2 weights are renormalised.

    The experts side by side are one wide MLP whose hidden units are multiplied by their expert's
    weight, 0 for those that are not selected. The routing itself is in float32.
    """
    logits = x @ params[at + "W_router"]  # [batch, pos, expert]
    kept = logits.topk(cfg.top_k, dim=-1).indices
    chosen = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, kept, True)
    weights = logits.masked_fill(~chosen, -torch.inf).softmax(-1).to(dtype)
    w_in = params[at + "W_in"].transpose(0, 1).flatten(1).to(dtype)  # [d_model, expert * d_mlp]
    w_out = params[at + "W_out"].flatten(0, 1).to(dtype)  # [expert * d_mlp, d_model]
    pre = x.to(dtype) @ w_in
    if cfg.mlp_bias:
        pre = pre + params[at + "b_in"].flatten().to(dtype)
    post = ACTIVATIONS[cfg.act](pre).unflatten(-1, (cfg.n_experts, cfg.d_mlp))
    write = (post * weights[..., None]).flatten(-2) @ w_out
    if cfg.mlp_bias:
        write = write + weights @ params[at + "b_out"].to(dtype)
    return write, uneven(logits, chosen)


def uneven(logits: Tensor, chosen: Tensor) -> Tensor:
    """n_experts · sum_e f_e p_e: f_e the share of the selections that went to expert e, p_e the
    mean of its softmax over all experts. 1 when all are used alike, n_experts when one is.

    Only p has a gradient. Without this term a few experts win early and the others are never
    trained. Source: Fedus et al. 2021, arXiv 2101.03961, equation 4 (there for one expert a token).
    """
    share = chosen.flatten(0, -2).float().mean(0) / chosen.sum(-1).float().mean()
    return logits.shape[-1] * (share * logits.softmax(-1).flatten(0, -2).mean(0)).sum()


def loss(
    cfg: Config,
    params: dict[str, Tensor],
    tokens: Tensor,
    targets: Tensor,
    w_pos: Tensor,
    dtype: torch.dtype = torch.bfloat16,
    unevenness: list[Tensor] | None = None,
) -> Tensor:
    """Mean loss in nats of predicting `targets` [batch, pos] from `tokens` [batch, pos].

    A target of -1 does not count.
    """
    x = hidden_stream(cfg, params, tokens, w_pos, dtype, unevenness).to(dtype).flatten(0, 1)
    targets = targets.flatten()
    if (targets < 0).any():
        x, targets = x[targets >= 0], targets[targets >= 0]
    return ChunkedLoss.apply(x, params["unembed.W_U"].to(dtype), targets)
