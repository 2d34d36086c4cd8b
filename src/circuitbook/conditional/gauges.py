"""Which of chapter 10's numbers are about the model, and which about how its weights are written.

Head coordinates R and stream coordinates G keep every output, W_U + c 1^T every probability, and
another order of the neurons keeps the MLP. A rotation of the hidden layer is not the same function,
because gamma works on each neuron by itself: that is what makes the neurons' basis special.

With LayerNorm the stream's coordinates are less free. G may turn the stream about the all-ones
direction and add along it, x -> x + (x . v) 1 (`gauge.free_change`). An invertible G drawn at
random is another function: it has a row of its own there, and is no change of coordinates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from circuitbook.bases import (
    change_heads,
    change_hidden,
    relative_change,
    rotation,
    shift_unembed,
)
from circuitbook.conditional.operators import forward, of_stream
from circuitbook.conditional.shares import all_shares
from circuitbook.conditional.spots import Spots, read_by_mlp
from circuitbook.gauge import change_stream, free_change, invertible
from circuitbook.model import Transformer
from circuitbook.stream import read_through

GENERAL = "invertible G, not free"  # the row that LayerNorm models have besides

QUANTITIES = (
    "logits", "probabilities", "forward share", "Jacobian share", "effect",
    "forward share, raw W_U", "operator B(x)", "trace of B(x)",
)  # fmt: skip


def numbers(model: Transformer, spots: Spots) -> dict[str, Tensor]:
    """The quantities of one weight set at the drawn positions; a model with a plain MLP."""
    read = read_by_mlp(model, spots)
    shares = all_shares(model, read)
    column = model.W_U.T[spots.following()].flatten(0, 1)
    raw = read._replace(u=read_through(model, column, read.scale))
    logits = model(spots.tokens)
    B = forward(of_stream(model.blocks[-1]), model.cfg.act, read.x[:3]).matrix()
    kinds = (shares["forward"], shares["Jacobian"], shares["effect"])
    raw_share = all_shares(model, raw)["forward"]
    trace = B.diagonal(dim1=-2, dim2=-1).sum(-1)
    values = (logits, logits.softmax(-1), *kinds, raw_share, B, trace)
    return dict(zip(QUANTITIES, values, strict=True))


@torch.no_grad()
def survival(model: Transformer, spots: Spots, seed: int = 0) -> dict[str, dict[str, float]]:
    """Change -> quantity -> largest move, relative to the largest value; 0 below 1e-8. Float64.

    One other model at a time. With a norm, G is one that LayerNorm cannot see, and `GENERAL` is
    another function.
    """
    generator, cfg = torch.Generator().manual_seed(seed), model.cfg
    R = invertible(cfg.d_head, cfg.d_head, generator=generator)
    G = free_change(model, generator)
    c = torch.randn(cfg.d_model, generator=generator, dtype=torch.float64) * model.W_U.std()
    order = torch.eye(cfg.d_mlp, dtype=torch.float64)[
        torch.randperm(cfg.d_mlp, generator=generator)
    ]
    changes = {
        "head coordinates R": lambda: change_heads(model, R),
        "stream coordinates G": lambda: change_stream(model, G),
        "W_U + c 1ᵀ": lambda: shift_unembed(model, c),
        "neurons reordered": lambda: change_hidden(model, order),
        "neurons rotated": lambda: change_hidden(model, rotation(cfg.d_mlp, generator)),
    }
    if cfg.norm != "none":
        any_G = invertible(cfg.d_model, cfg.d_model, generator=generator)
        changes[GENERAL] = lambda: change_stream(model, any_G, free=False)
    before, out = numbers(model, spots), {}
    for name, other in changes.items():
        after = numbers(other(), spots)
        moves = {q: relative_change(before[q], after[q]) for q in QUANTITIES}
        out[name] = {q: m if m > 1e-8 else 0.0 for q, m in moves.items()}
    return out
