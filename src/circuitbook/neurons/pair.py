"""How an MLP blurs the pair: who reads the previous-token head's write in gelu-2l, and for what.

Chapter 06 cut the pair's own edges. Here the reader is the MLP between the two heads.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from circuitbook import spine
from circuitbook.cut import Head
from circuitbook.model import Transformer
from circuitbook.neurons.expansion import seen, split_pre, variance_shares
from circuitbook.neurons.norms import logits_of, placed
from circuitbook.probe import paired_difference
from circuitbook.stream import UNEMBEDDING_BIAS, components, head_name, unembedding_bias

READS = 0.1  # a neuron reads a head when the head makes this share of its pre-activation's variance


def readers(
    model: Transformer, tokens: Int[Tensor, "window pos"], pair: tuple[Head, Head]
) -> dict[str, Any]:
    """Per part of MLP 0's pre-activations: mean variance share, and how many neurons read it."""
    shares = variance_shares(split_pre(model, tokens))
    previous = shares[head_name(pair[0])]
    return {
        "parts": {name: x.mean() for name, x in shares.items()},
        "readers": {name: int((x >= READS).sum()) for name, x in shares.items()},
        "neurons": len(previous),
        "most": previous.max(),
        "previous": torch.quantile(previous, torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95]).double()),
    }


@torch.no_grad()
def edges_into_mlp(
    model: Transformer,
    tokens: Int[Tensor, "window pos"],
    doc: Int[Tensor, " window"],
    k: Int[Tensor, " chosen"],
) -> dict[str, dict[str, list[float]]]:
    """Each head of layer 0: rise of the loss when MLP 0 alone gets its mean write in its place.

    Cut: the edge head -> MLP 0, to the mean over the given text, position by position. The stream,
    and so layer 1, still holds the write itself. Recomputed: MLP 0, with the scale of its norm if
    there is one, and everything after it.
    """
    first, second = model.blocks[0], model.blocks[1]
    names = ["blocks.0.attn.hook_z", "blocks.0.hook_resid_mid"]
    cache = seen(model, tokens, names)
    write = torch.einsum("wphk,hkd->wphd", cache[names[0]], first.attn.W_O)
    mid = cache[names[1]]
    place = placed(model, tokens.shape[1])

    def loss_with(read: Tensor) -> Tensor:
        rows = []
        for m, x, t in zip(mid.split(4), read.split(4), tokens.split(4), strict=True):
            at = None if place is None else place.expand_as(m)
            logits = logits_of(model, second(m + first.mlp(first.ln2(x)), at)[:, k - 1])
            rows.append((logits.logsumexp(-1) - logits.gather(-1, t[:, k, None])[..., 0]).mean(1))
        return torch.cat(rows)

    clean, out = loss_with(mid), {}
    for h in range(model.cfg.n_heads):
        w = write[:, :, h]
        rise = paired_difference(loss_with(mid - w + w.mean(0)), clean, doc)
        out[f"head 0.{h}"] = {"rise": list(rise[:2]), "size": [w.norm(dim=-1).mean().item()]}
    return out


def name_prompts(model: Transformer) -> dict[str, list[float]]:
    """part -> (mean, error over prompts) of its contribution to the name against rivals.

    The parts add up to the logit; with a norm they are read at its frozen scale, and the
    unembedding's bias is the last part.
    """
    prompts = spine.name_prompts()
    way = spine.name_directions(model, prompts)[1]
    writes = components(model, prompts.tokens).writes
    parts = {name: (write[:, -1] * way).sum(-1) for name, write in writes.items()}
    if unembedding_bias(model) is not None:
        parts[UNEMBEDDING_BIAS] = spine.name_biases(model, prompts)[1]
    return {n: [x.mean().item(), (x.std() / len(x) ** 0.5).item()] for n, x in parts.items()}
