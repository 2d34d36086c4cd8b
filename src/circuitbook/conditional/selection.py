"""Attention, gate and router: one read selects, another is selected; and where the likeness ends.

The same knife for all three. What earlier heads wrote is taken from what the selecting read sees
(queries and keys; the gate; the router), or from what the content read sees (values; the content
branch; the experts), or from both. In attention that needs two layers, so it is another model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook import corpus, zoo
from circuitbook.conditional.reads import removed
from circuitbook.model import Transformer
from circuitbook.neurons.expansion import seen
from circuitbook.probe import clustered_mean

INPUTS = {"select": "qk", "content": "v", "both": "qkv"}
REPLACED = ("zero", "mean", "resample")


@torch.no_grad()
def window_losses(
    model: Transformer,
    tokens: Int[Tensor, "window pos"],
    entering: Float[Tensor, "window pos d_model"],
    k: Int[Tensor, " chosen"],
    gone: Float[Tensor, "window pos d_model"] | None = None,
    route: str = "both",
    part: int = 8,
) -> Float[Tensor, " window"]:
    """Mean loss of the k-th tokens of each window when some reads of layer 1 miss `gone`.

    entering: the stream that enters layer 1. Cut: direct edges from layer 0 into all heads of layer
    1: queries and keys ("select"), values ("content"), or all. The stream keeps what is missed.
    Recomputed: layer 1, its patterns too when queries or keys are cut, and the logits.
    """
    out, attn = [], model.blocks[1].attn
    where = model.W_pos[: tokens.shape[1]]
    for i in range(0, len(tokens), part):
        x, piece = entering[i : i + part], tokens[i : i + part]
        less = x if gone is None else x - gone[i : i + part]
        reads = {letter: less if letter in INPUTS[route] else x for letter in "qkv"}
        last = x + attn(reads["q"] + where, reads["k"] + where, reads["v"])
        logits = model.unembed(last[:, k - 1])
        right = logits.gather(-1, piece[:, k, None])[..., 0]
        out.append((logits.logsumexp(-1) - right).mean(1))
    return torch.cat(out)


def attention_costs(
    role: str = "attn-only-2l",
    windows: int = 60,
    length: int = 256,
    places: int = 24,
    seed: int = 10,
) -> dict[str, Any]:
    """kind -> route -> [rise of the loss, error by document], for layer 0 read by layer 1.

    Also how many keys a head attends to (1 / sum of squares of its pattern, mean), and how many
    positions of the second half layer 1's writes change in when only the first half is exchanged.
    """
    model = zoo.load(role)
    text = corpus.heldout_windows(windows, length=length, seed=seed)
    tokens = torch.from_numpy(text.tokens).to(model.W_E.device)
    doc, length = torch.from_numpy(text.doc), tokens.shape[1]
    k = torch.linspace(length // 8, length - 1, places).round().long().unique()
    first = ["blocks.0.hook_attn_out", "blocks.0.hook_resid_post"]
    kept = seen(model, tokens, first, part=8)
    write, entering = (kept[n].to(tokens.device) for n in first)
    generator = torch.Generator().manual_seed(seed)
    clean = window_losses(model, tokens, entering, k).cpu()
    out: dict[str, Any] = {"role": role, "windows": windows, "loss": _mean(clean, doc)}
    for kind in REPLACED:
        gone = removed(write, kind, generator)
        rise = {r: window_losses(model, tokens, entering, k, gone, r).cpu() - clean for r in INPUTS}
        out[kind] = {r: _mean(v, doc) for r, v in rise.items()}
        out[kind]["select minus content"] = _mean(rise["select"] - rise["content"], doc)
        out[kind]["interaction"] = _mean(rise["both"] - rise["select"] - rise["content"], doc)
    few, half = tokens[:8], length // 2
    names = ["blocks.1.hook_attn_out", "blocks.1.attn.hook_pattern"]
    own = seen(model, few, names)
    other = seen(model, torch.cat([few.roll(1, 0)[:, :half], few[:, half:]], 1), names[:1])
    moved = (own[names[0]] != other[names[0]]).any(-1)[:, half:]
    keys = 1 / own[names[1]].square().sum(-1)
    return out | {"keys": keys.mean(), "positions": moved.numel(), "reached": int(moved.sum())}


def _mean(values: Tensor, doc: Tensor) -> list[float]:
    return list(clustered_mean(values, doc)[:2])


def rows(
    attention: Mapping[str, Any], gated: Mapping[str, Any], experts: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The table selection / content: what each block selects, and what its two reads cost."""

    def cost(found: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "selection read cut (nats)": found["zero"]["select"],
            "content read cut (nats)": found["zero"]["content"],
            "not additive (nats)": found["zero"]["interaction"],
        }

    reach = experts["local"]
    return [
        {
            "block": "attention", "model": attention["role"], "selection": "queries and keys",
            "content": "values and outputs", "selects among": "earlier positions",
            "weights": "positive, sum to 1",
            "in use": f"{float(attention['keys']):.0f} keys a head",
            "other positions reach": attention["reached"] / attention["positions"],
            **cost(attention),
        },
        {
            "block": "SwiGLU", "model": gated["role"], "selection": "gate",
            "content": "content branch", "selects among": f"{gated['channels wide']} channels",
            "weights": f"{float(gated['gates']['below zero']):.0%} negative, no sum",
            "in use": f"{gated['gates']['carry'][0]:.0f} channels carry the write",
            "other positions reach": gated["reached"] / gated["asked"],
            **cost(gated["cuts"]["all heads"]),
        },
        {
            "block": "mixture of experts", "model": experts["role"], "selection": "router",
            "content": "experts", "selects among": f"{experts['experts']} experts",
            "weights": "positive, sum to 1, all but a few exactly 0",
            "in use": f"{experts['k']} experts",
            "other positions reach": reach["reached"] / reach["positions"],
            **cost(experts["cuts"]["all heads"]),
        },
    ]  # fmt: skip
