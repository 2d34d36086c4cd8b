"""Composition of an earlier write w with channel j: what weights promise, what a text realises.

Channel j of a gated MLP reads w twice and writes along W_out[j]. On one input, w changes what the
channel writes, to first order, by

    content   phi(g_j) (w . W_in[:, j]) |W_out[j]|
    gate      u_j phi'(g_j) (w . W_gate[:, j]) |W_out[j]|

The weights alone know w . W only, through W_OV; whether the channel is open (phi) and whether there
is content to be let through (u) is decided by the text. `scores` is the weight-only composition,
with its baseline: the same matrices, the stream between them turned at random.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuitbook import compose, gauge
from circuitbook.bases import rotation
from circuitbook.conditional.gate_cuts import Judge
from circuitbook.conditional.gates import slope
from circuitbook.conditional.reads import Reads, removed
from circuitbook.conditional.routes import routes
from circuitbook.layers import plus
from circuitbook.model import Transformer
from circuitbook.neurons.draw import rank_correlation

BRANCHES = {"gate": "W_gate", "content": "W_in"}


def channels(
    model: Transformer,
    reads: Reads,
    parts: Float[Tensor, "part window place d_model"] | None = None,
) -> dict[str, Float[Tensor, "part window place channel"]]:
    """Branch -> signed realised composition of every part with every channel, at every place.

    parts: writes to ask about in place of the stream's own; gate and content stay as they are.
    """
    mlp, x = model.blocks[0].mlp, reads.x
    parts = reads.parts if parts is None else parts
    g, u = plus(x @ mlp.W_gate, mlp.b_gate), plus(x @ mlp.W_in, mlp.b_in)
    size = mlp.W_out.norm(dim=1)
    return {
        "gate": (parts @ mlp.W_gate) * (u * slope(model.cfg.act, g) * size),
        "content": (parts @ mlp.W_in) * (mlp.act(g) * size),
    }


def gains(model: Transformer, reads: Reads) -> dict[str, Float[Tensor, " channel"]]:
    """Branch -> root mean square over the text of what multiplies a channel's read of w."""
    mlp, x = model.blocks[0].mlp, reads.x
    g, u = plus(x @ mlp.W_gate, mlp.b_gate), plus(x @ mlp.W_in, mlp.b_in)
    each = {"gate": u * slope(model.cfg.act, g), "content": mlp.act(g)}
    return {name: v.square().mean((0, 1)).sqrt() for name, v in each.items()}


def promised(model: Transformer) -> dict[str, Float[Tensor, "head channel"]]:
    """Branch -> |W_OV W[:, j]| |W_out[j]|: what head and channel promise without any text."""
    attn, mlp = model.blocks[0].attn, model.blocks[0].mlp
    thin = torch.linalg.qr(attn.W_V)[1] @ attn.W_O  # as long as W_OV on every column
    size = mlp.W_out.norm(dim=1)
    return {name: (thin @ getattr(mlp, W)).norm(dim=1) * size for name, W in BRANCHES.items()}


def scores(model: Transformer, turns: int = 40, seed: int = 0) -> dict[str, Any]:
    """Branch -> ||W_OV W|| / (||W_OV|| ||W||) of every head, and of the same with a turned stream.

    "turned": mean and highest for each head over `turns` rotations between the two matrices. If the
    weights knew nothing of each other, the own score would be the highest of all in one case of
    turns + 1. E[score^2] = 1/d_model exactly, whatever the ranks; the spread depends on them.
    """
    attn, mlp = model.blocks[0].attn, model.blocks[0].mlp
    generator, d = torch.Generator().manual_seed(seed), model.cfg.d_model
    thin = torch.linalg.qr(attn.W_V)[1] @ attn.W_O  # [head, d_head, d_model]
    unit = torch.eye(mlp.W_in.shape[1]).to(mlp.W_in)[None]
    turn = [rotation(d, generator).to(thin) for _ in range(turns)]
    out: dict[str, Any] = {"1/sqrt(d)": compose.random_baseline(d)}
    out["turns"] = turns
    out["effective rank"] = gauge.effective_rank(torch.linalg.svdvals(thin))
    for name, weight in BRANCHES.items():
        W = getattr(mlp, weight)
        own = compose.pair_scores(attn.W_V, attn.W_O, W[None], unit)[:, 0]
        size = thin.norm(dim=(1, 2)) * W.norm()
        chance = torch.stack([(thin @ (R @ W)).norm(dim=(1, 2)) / size for R in turn])
        out[name] = {
            "score": own,
            "turned": chance.mean(0),
            "turned, high": chance.amax(0),
            "square": chance.square().mean(),
        }
    return out


@torch.no_grad()
def study(model: Transformer, judge: Judge, seed: int = 0) -> dict[str, Any]:
    """Sizes of both routes for every part, and promised against realised.

    By chance: a random direction in place of each head's write, as long in the stream.
    """
    reads, act, mlp = judge.reads, model.cfg.act, model.blocks[0].mlp
    found, promise = channels(model, reads), promised(model)
    rms = {name: c.square().mean((1, 2)).sqrt() for name, c in found.items()}  # [part, channel]
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.stack([removed(w, "random", generator) for w in reads.parts[1:]])
    random = {
        name: c.square().mean((1, 2)).sqrt() for name, c in channels(model, reads, drawn).items()
    }
    slope_of_loss, sizes = judge.slope(), {}
    for name in (*reads.names, "all heads"):
        w = reads.part(name)
        moved = routes(mlp, act, reads.x, w)
        norm = {k: v.norm(dim=-1).mean(1) for k, v in moved.items()}
        row: dict[str, Any] = {"write": judge.mean(w.norm(dim=-1).mean(1))}
        row |= {k: judge.mean(v) for k, v in norm.items()}
        row["gate minus content"] = judge.mean(norm["gate"] - norm["content"])
        first = {k: -(v * slope_of_loss).sum(-1).mean(1) for k, v in moved.items()}
        row |= {f"{k}, loss": judge.mean(v) for k, v in first.items()}
        row["gate minus content, loss"] = judge.mean(first["gate"] - first["content"])
        if name in reads.names:
            at = reads.names.index(name)
            row["channels"] = {k: gauge.effective_rank(v[at]).item() for k, v in rms.items()}
            if at:
                row["channels, random"] = {
                    k: gauge.effective_rank(v[at - 1]).item() for k, v in random.items()
                }
        sizes[name] = row
    heads = {k: v[1:] for k, v in rms.items()}
    gain = gains(model, reads)
    agree = {}
    for k in BRANCHES:
        real, weights, open_ = heads[k].flatten(), promise[k], gain[k].expand_as(promise[k])
        agree[k] = {
            "weights": rank_correlation(real, weights.flatten()),
            "another head's weights": rank_correlation(real, weights.roll(1, 0).flatten()),
            "openness of the channel": rank_correlation(real, open_.flatten()),
            "openness, random writes": rank_correlation(random[k].flatten(), open_.flatten()),
            "weights and openness": rank_correlation(real, (weights * open_).flatten()),
        }
    return {
        "sizes": sizes,
        "scores": scores(model, seed=seed),
        "promised and realised": agree,
    }
