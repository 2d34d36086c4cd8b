"""One pass over name prompts, and what follows from it when one head of the last layer changes.

In the last layer a head's query at the last position decides one row of attention, and that row one
write. Nobody reads the write but the last MLP, if there is one. So a cut of one edge into the head
needs that row again and nothing else: the same numbers as a whole run under `cut.cut_path`, which
tests compare. With LayerNorm a changed query, key or value input gets a scale of its own, as there.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.attribution.held import scale_of
from circuitbook.cut import Cut
from circuitbook.layers import plus
from circuitbook.model import Transformer


class Pass(NamedTuple):
    """What one pass over [n, pos] tokens saw."""

    embed: Float[Tensor, "n pos d_model"]  # the token part of every stream

    patterns: list[Tensor]  # each layer [n, head, pos, key]
    writes: Float[
        Tensor, "n source pos d_model"
    ]  # first layer's heads (and MLP), without b_O; none in one layer
    stream: Float[Tensor, "n pos d_model"]  # entering the last layer
    last: Float[Tensor, "n d_model"]  # what the unembedding reads at the last position
    scales: list[Tensor | None]  # each layer's norm before attention [n, pos, 1]; None without
    last_scale: Float[Tensor, "n one"] | None  # the final norm's, at the last position


@torch.no_grad()
def forward(model: Transformer, tokens: Int[Tensor, "n pos"], change: Cut | None = None) -> Pass:
    """One pass, under a cut if one is given. Per-head inputs and results are on in every pass.

    Raises ValueError over two layers: then more than one layer would write to the head.
    """
    c = model.cfg
    if not 1 <= c.n_layers <= 2:
        raise ValueError(f"needs one or two layers, got {c}")
    top = c.n_layers - 1
    kept: dict[str, Tensor] = {}

    def keep(x: Tensor, hook: object) -> None:
        kept[hook.name] = x

    names = [
        f"blocks.{l}.{n}" for l in range(top + 1) for n in ("attn.hook_pattern", "hook_resid_pre")
    ]
    names += [f"blocks.{top}.hook_resid_post", "blocks.0.attn.hook_result", "hook_embed"]
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
    streams = [kept[f"blocks.{l}.hook_resid_pre"] for l in range(top + 1)]
    writes = streams[-1].new_zeros(len(tokens), 0, *streams[-1].shape[1:])
    if top:
        writes = kept["blocks.0.attn.hook_result"].transpose(1, 2)
        if not c.attn_only:
            writes = torch.cat([writes, kept["blocks.0.hook_mlp_out"][:, None]], 1)
    return Pass(
        kept["hook_embed"],
        [kept[f"blocks.{l}.attn.hook_pattern"] for l in range(top + 1)],
        writes,
        streams[-1],
        last,
        [scale_of(b.ln1, x) for b, x in zip(model.blocks, streams, strict=True)],
        scale_of(model.ln_final, kept[f"blocks.{top}.hook_resid_post"][:, -1]),
    )


class Reader(NamedTuple):
    """A last-layer head at the last position: one query, all keys and values, and the rest."""

    head: int
    q: Float[Tensor, "n d_head"]
    k: Float[Tensor, "n pos d_head"]
    v: Float[Tensor, "n pos d_head"]
    rest: Float[Tensor, "n d_model"]  # the stream that the last MLP reads, without this head


@torch.no_grad()
def projected(
    model: Transformer, x: Float[Tensor, "n pos d_model"], head: int, into: str
) -> Float[Tensor, "n pos d_head"]:
    """q, k or v ("q", "k", "v") of a last-layer head for this input: norm, matrix, bias.

    Shortformer positions enter q and k, after the norm; standard ones are in x already.
    """
    block = model.blocks[-1]
    n = block.ln1(x)
    if into != "v" and model.cfg.positions == "shortformer":
        n = n + model.W_pos[: x.shape[1]].to(n)
    b = getattr(block.attn, f"b_{into.upper()}")
    return plus(n @ getattr(block.attn, f"W_{into.upper()}")[head], None if b is None else b[head])


@torch.no_grad()
def reader(model: Transformer, seen: Pass, head: int) -> Reader:
    """q, k, v of a last-layer head, and what all others leave in the last stream."""
    x, attn = seen.stream, model.blocks[-1].attn
    q, k = (projected(model, x, head, into) for into in "qk")
    row = seen.patterns[-1][:, :, -1]  # [n, head, key]
    v = torch.stack([projected(model, x, h, "v") for h in range(model.cfg.n_heads)], 1)
    write = torch.einsum("nhk,nhke,hed->nhd", row, v, attn.W_O)
    others = [h for h in range(model.cfg.n_heads) if h != head]
    rest = plus(x[:, -1] + write[:, others].sum(1), attn.b_O)
    return Reader(head, q[:, -1], k, v[:, head], rest)


@torch.no_grad()
def attend(
    model: Transformer, r: Reader
) -> tuple[Float[Tensor, "n pos"], Float[Tensor, "n d_model"]]:
    """(attention of the last query, what the unembedding then reads) for this q, k and v."""
    A = torch.einsum("ne,nke->nk", r.q, r.k).div(model.cfg.d_head**0.5).softmax(-1)
    mid = r.rest + torch.einsum("nk,nke->ne", A, r.v) @ model.W_O[-1, r.head]
    if model.cfg.attn_only:
        return A, model.ln_final(mid)
    block = model.blocks[-1]
    return A, model.ln_final(mid + block.mlp(block.ln2(mid[:, None]))[:, 0])
