"""The read side: a logit is a sum over (path through heads, source position), patterns frozen.

In an attention-only model without norm, x the embeddings and u the direction of a logit,

    direct       x_last . u
    0.g, 1.h     A[last, j]  x_j W_OV . u
    0.g -> 1.h   (A1_h A0_g)[last, j]  x_j W_OV_g W_OV_h . u        a virtual head

Every term names the token that was read, at j. An attribution graph of 2025 adds up the paths and
draws one edge from each token. What it cannot say is why A[last, j] is what it is.

With LayerNorm the norms' scales are frozen too, so every reader divides by the scale of the place
where it reads. Positions that stand in the stream are sources like tokens, with the same paths;
"bias l", what layer l adds whatever it reads, is a source of the later layers; "unembedding bias"
is a term without a path.
Source: Elhage et al. 2021 (path expansion); Ameisen et al. 2025 (graphs with frozen patterns).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.attribution.held import back
from circuitbook.aunt_sally.prompts import Frame, rivals
from circuitbook.expansion import expand
from circuitbook.model import Transformer

Scales = tuple[list[Tensor | None], Tensor | None]  # of each layer's norm, and of the last one


def check(model: Transformer) -> None:
    """One or two attention-only layers: paths through heads are all that there is."""
    c = model.cfg
    if not c.attn_only or c.n_layers not in (1, 2):
        raise ValueError(f"needs one or two attention-only layers, got {c}")


def _through(model: Transformer, first: int) -> list[str]:
    """The paths of a source that layer `first` can read first; "" is none at all."""
    n, L = model.cfg.n_heads, model.cfg.n_layers
    heads = [f"{l}.{h}" for l in range(first, L) for h in range(n)]
    virtual = [f"0.{g} → 1.{h}" for g in range(n) for h in range(n)] if (first, L) == (0, 2) else []
    return ["", *heads, *virtual]


def path_names(model: Transformer) -> list[str]:
    """ "direct", "0.0" ..., "1.0" ..., "0.0 → 1.0", ...: the order of `paths_to_logit`.

    These start at tokens. Then, where the model has them: "position", "position → 0.0", ...,
    "bias 0", "bias 0 → 1.0", ..., "bias 1", "unembedding bias".
    """
    names = [path or "direct" for path in _through(model, 0)]
    sources = [("position", 0)] if model.cfg.positions == "standard" else []
    if model.cfg.attn_bias or model.cfg.norm == "layernorm":
        sources += [(f"bias {l}", l + 1) for l in range(model.cfg.n_layers)]
    for source, first in sources:
        names += [f"{source} → {path}" if path else source for path in _through(model, first)]
    return names + (["unembedding bias"] if _unembedding_bias(model) else [])


def _unembedding_bias(model: Transformer) -> bool:
    return model.cfg.unembed_bias or model.cfg.norm == "layernorm"


@torch.no_grad()
def paths_to_logit(
    model: Transformer,
    tokens: Int[Tensor, "n pos"],
    patterns: list[Tensor],
    u: Float[Tensor, "n d_model"],
    scales: Scales | None = None,
    offset: Float[Tensor, " n"] | None = None,
) -> Float[Tensor, "n path pos"]:
    """What each path brings from each source position to the logit along u; sums to it.

    patterns: of each layer [n, head, pos, key], from a run on any tokens of this length; scales of
    the same run, with a norm. u reads what the unembedding reads. offset: what b_U adds to the
    logit (`offsets`); it, and every bias that no head reads, stand at the last position.
    """
    check(model)
    if scales is None and model.cfg.norm != "none":
        raise ValueError("with a norm the scales of the run must be given, beside its patterns")
    at, last = scales or ([None] * model.cfg.n_layers, None)
    out: list[Tensor] = []
    constant = (expand.norm_bias(model.ln_final, u) * u).sum(-1)
    u = back(model.ln_final, u, last)
    reads = []  # of each layer: W_OV u as a reader of what its norm gives [n, head, d_model]
    for l in range(model.cfg.n_layers):
        z = torch.einsum("nd,hed->nhe", u, model.W_O[l])
        reads.append(torch.einsum("nhe,hde->nhd", z, model.W_V[l]))
    frozen = expand.Frozen(patterns, at, last)
    for _, first, x in expand.sources(model, tokens, frozen):
        direct = torch.zeros_like(x[:, None, :, 0])
        direct[:, 0, -1] = (x[:, -1] * u).sum(-1)
        out.append(direct)
        for l in range(first, model.cfg.n_layers):
            n = expand.read(model.blocks[l].ln1, x, at[l])
            out.append(patterns[l][:, :, -1] * torch.einsum("nhd,npd->nhp", reads[l], n))
        if first == 0 and model.cfg.n_layers == 2:
            out.append(_virtual(model, x, patterns, reads[1], at))
    if _unembedding_bias(model):
        bias = torch.zeros_like(out[0])
        bias[:, 0, -1] = constant if offset is None else constant + offset
        out.append(bias)
    return torch.cat(out, 1)


def _virtual(
    model: Transformer, x: Tensor, patterns: list[Tensor], read: Tensor, at: list[Tensor | None]
) -> Float[Tensor, "n path pos"]:
    """All virtual heads: (A1 / s1) A0 on positions, the two W_OV on features."""
    row = patterns[1][:, :, -1]
    if at[1] is not None:  # the later head divides by the scale of where it reads
        row = row / at[1][:, None, :, 0]
        read = back(model.blocks[1].ln1, read, 1.0)
    z = torch.einsum("nhd,ged->nghe", read, model.W_O[0])
    first = torch.einsum("nghe,gde->nghd", z, model.W_V[0])
    mixed = torch.einsum("nhk,ngkj->nghj", row, patterns[0])
    n = expand.read(model.blocks[0].ln1, x, at[0])
    return (mixed * torch.einsum("nghd,npd->nghp", first, n)).flatten(1, 2)


def directions(
    model: Transformer, frame: Frame
) -> tuple[Float[Tensor, "n d_model"], Float[Tensor, "n d_model"]]:
    """(centred, named) u: W_U's column of the name minus the mean column, or minus its rivals'.

    Along `named` only what helps this name more than other names of the same sex counts. u is for
    what the unembedding reads: with a norm, the stream after it.
    """
    columns = model.W_U.T
    answer = columns[frame.answer]
    return answer - columns.mean(0), answer - columns[rivals(frame)].mean(1)


def offsets(model: Transformer, frame: Frame) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """(centred, named): what b_U adds to the logits along `directions`; 0 without it."""
    b = model.unembed.b_U
    if b is None:
        zero = model.W_U.new_zeros(len(frame.answer))
        return zero, zero
    return b[frame.answer] - b.mean(), b[frame.answer] - b[rivals(frame)].mean(1)
