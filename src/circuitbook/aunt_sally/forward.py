"""One pass over name prompts, and what follows from it when one head of the last layer changes.

In the last layer a head's query at the last position decides one row of attention, and that row one
write. Nobody reads the write but the last MLP, if there is one. So a cut of one edge into the head
needs that row again and nothing else: the same numbers as a whole run under `cut.cut_path`, which
tests compare.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.cut import Cut
from circuitbook.model import Transformer


class Pass(NamedTuple):
    """What one pass over [n, pos] tokens saw."""

    embed: Float[Tensor, "n pos d_model"]  # the token part of every stream

    patterns: list[Tensor]  # each layer [n, head, pos, key]
    writes: Float[
        Tensor, "n source pos d_model"
    ]  # first layer's heads (and MLP); none in one layer
    stream: Float[Tensor, "n pos d_model"]  # entering the last layer
    last: Float[Tensor, "n d_model"]  # the last stream at the last position


@torch.no_grad()
def forward(model: Transformer, tokens: Int[Tensor, "n pos"], change: Cut | None = None) -> Pass:
    """One pass, under a cut if one is given. Per-head inputs and results are on in every pass.

    Raises ValueError with a norm or attention biases (parts would not sum) or over two layers.
    """
    c = model.cfg
    if c.norm != "none" or c.attn_bias or c.positions != "shortformer" or c.n_layers > 2:
        raise ValueError(f"needs at most two layers, no norm, no attention biases, got {c}")
    top = c.n_layers - 1
    kept: dict[str, Tensor] = {}

    def keep(x: Tensor, hook: object) -> None:
        kept[hook.name] = x

    names = [f"blocks.{l}.attn.hook_pattern" for l in range(c.n_layers)]
    names += [f"blocks.{top}.hook_resid_pre", "blocks.0.attn.hook_result", "hook_embed"]
    names += [] if c.attn_only else ["blocks.0.hook_mlp_out"]
    before = model.use_attn_result, model.use_split_qkv_input
    model.set_use_attn_result(True)
    model.set_use_split_qkv_input(change is not None)
    try:
        hooks = [*(change.hooks if change else ()), *((name, keep) for name in names)]
        with model.hooks(fwd_hooks=hooks):
            last = model.stream(tokens)[:, -1]
    finally:
        model.set_use_attn_result(before[0])
        model.set_use_split_qkv_input(before[1])
    stream = kept[f"blocks.{top}.hook_resid_pre"]
    writes = stream.new_zeros(len(tokens), 0, *stream.shape[1:])
    if top:
        writes = kept["blocks.0.attn.hook_result"].transpose(1, 2)
        if not c.attn_only:
            writes = torch.cat([writes, kept["blocks.0.hook_mlp_out"][:, None]], 1)
    patterns = [kept[f"blocks.{l}.attn.hook_pattern"] for l in range(top + 1)]
    return Pass(kept["hook_embed"], patterns, writes, stream, last)


class Reader(NamedTuple):
    """A last-layer head at the last position: one query, all keys and values, and the rest."""

    head: int
    q: Float[Tensor, "n d_head"]
    k: Float[Tensor, "n pos d_head"]
    v: Float[Tensor, "n pos d_head"]
    rest: Float[Tensor, "n d_model"]  # the stream that the last MLP reads, without this head


@torch.no_grad()
def reader(model: Transformer, seen: Pass, head: int) -> Reader:
    """q, k, v of a last-layer head; position enters q and k only."""
    x, attn = seen.stream, model.blocks[-1].attn
    p = model.W_pos[: x.shape[1]].to(x)
    v = torch.einsum("npd,hde->nhpe", x, attn.W_V)
    row = seen.patterns[-1][:, :, -1]  # [n, head, key]
    write = torch.einsum("nhk,nhke,hed->nhd", row, v, attn.W_O)
    q, k = (x[:, -1] + p[-1]) @ attn.W_Q[head], (x + p) @ attn.W_K[head]
    others = [h for h in range(model.cfg.n_heads) if h != head]
    return Reader(head, q, k, v[:, head], x[:, -1] + write[:, others].sum(1))


@torch.no_grad()
def attend(
    model: Transformer, r: Reader
) -> tuple[Float[Tensor, "n pos"], Float[Tensor, "n d_model"]]:
    """(attention of the last query, the last stream there) for this q, k and v."""
    A = torch.einsum("ne,nke->nk", r.q, r.k).div(model.cfg.d_head**0.5).softmax(-1)
    mid = r.rest + torch.einsum("nk,nke->ne", A, r.v) @ model.W_O[-1, r.head]
    if model.cfg.attn_only:
        return A, mid
    return A, mid + model.blocks[-1].mlp(mid[:, None])[:, 0]
