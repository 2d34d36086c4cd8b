"""The read side: a logit is a sum over (path through heads, source position), patterns frozen.

In an attention-only model without norm, x the embeddings and u the direction of a logit,

    direct       x_last . u
    0.g, 1.h     A[last, j]  x_j W_OV . u
    0.g -> 1.h   (A1_h A0_g)[last, j]  x_j W_OV_g W_OV_h . u        a virtual head

Every term names the token that was read, at j. An attribution graph of 2025 adds up the paths and
draws one edge from each token. What it cannot say is why A[last, j] is what it is.
Source: Elhage et al. 2021 (path expansion); Ameisen et al. 2025 (graphs with frozen patterns).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.aunt_sally.prompts import Frame, rivals
from circuitbook.model import Transformer


def check(model: Transformer) -> None:
    """One or two attention-only layers, no norm, no biases, positions on queries and keys only."""
    c = model.cfg
    plain = c.attn_only and c.norm == "none" and not c.attn_bias and c.n_layers in (1, 2)
    if not plain or c.positions != "shortformer":
        raise ValueError(f"needs one or two attention-only layers without norm and biases, got {c}")


def path_names(model: Transformer) -> list[str]:
    """ "direct", "0.0" ..., "1.0" ..., "0.0 → 1.0", ...: the order of `paths_to_logit`."""
    n, L = model.cfg.n_heads, model.cfg.n_layers
    heads = [f"{l}.{h}" for l in range(L) for h in range(n)]
    virtual = [f"0.{g} → 1.{h}" for g in range(n) for h in range(n)] if L == 2 else []
    return ["direct", *heads, *virtual]


@torch.no_grad()
def paths_to_logit(
    model: Transformer,
    tokens: Int[Tensor, "n pos"],
    patterns: list[Tensor],
    u: Float[Tensor, "n d_model"],
) -> Float[Tensor, "n path pos"]:
    """What each path brings from each source position to x_last . u; sums to it.

    patterns: of each layer [n, head, pos, key], from a run on any tokens of this length.
    """
    check(model)
    x, out = model.W_E[tokens], []
    direct = torch.zeros_like(x[:, None, :, 0])
    direct[:, 0, -1] = (x[:, -1] * u).sum(-1)
    out.append(direct)
    reads = []  # of each layer: W_OV u, [n, head, d_model]
    for l in range(model.cfg.n_layers):
        back = torch.einsum("nd,hed->nhe", u, model.W_O[l])
        reads.append(torch.einsum("nhe,hde->nhd", back, model.W_V[l]))
        out.append(patterns[l][:, :, -1] * torch.einsum("nhd,npd->nhp", reads[l], x))
    if model.cfg.n_layers == 2:
        back = torch.einsum("nhd,ged->nghe", reads[1], model.W_O[0])
        read = torch.einsum("nghe,gde->nghd", back, model.W_V[0])
        mixed = torch.einsum("nhk,ngkj->nghj", patterns[1][:, :, -1], patterns[0])
        out.append((mixed * torch.einsum("nghd,npd->nghp", read, x)).flatten(1, 2))
    return torch.cat(out, 1)


def directions(
    model: Transformer, frame: Frame
) -> tuple[Float[Tensor, "n d_model"], Float[Tensor, "n d_model"]]:
    """(centred, named) u: W_U's column of the name minus the mean column, or minus its rivals'.

    Along `named` only what helps this name more than other names of the same sex counts.
    """
    columns = model.W_U.T
    answer = columns[frame.answer]
    return answer - columns.mean(0), answer - columns[rivals(frame)].mean(1)
