"""A norm whose scale is held is linear: x -> (x - mean x) / s * w, read forwards and backwards.

"Frozen" in this package: the attention patterns, and with LayerNorm every scale s of one pass.
Without a norm nothing but the patterns is to be held, and each function here does nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from circuitbook.cut import Cut, run
from circuitbook.model import Transformer


def scale_of(
    norm: nn.Module, x: Float[Tensor, "*axes d_model"]
) -> Float[Tensor, "*axes one"] | None:
    """s = sqrt(var x + eps), with the norm's own arithmetic; None without a norm."""
    eps = getattr(norm, "eps", None)
    if eps is None:
        return None
    centred = x - x.mean(-1, keepdim=True)
    return (centred.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def back(
    norm: nn.Module, r: Float[Tensor, "*axes d_model"], scale: Tensor | float | None
) -> Float[Tensor, "*axes d_model"]:
    """The reader r of a norm's output as a reader of its input: read(x) . r = x . back(r).

    (w r - mean(w r)) / s; r itself without a norm. The norm's own bias is a constant beside it.
    """
    if not hasattr(norm, "eps") or scale is None:
        return r
    r = r if norm.w is None else r * norm.w
    return (r - r.mean(-1, keepdim=True)) / scale


def scale_names(model: Transformer) -> list[str]:
    """The hooks of all scales, in the order of the forward pass; none without a norm."""
    return [name for name in model.hook_dict if name.endswith("hook_scale")]


def hold_scales(model: Transformer, tokens: Int[Tensor, "batch pos"]) -> Cut:
    """Every norm divides by what it divided by in the run without cuts on these tokens."""
    names = scale_names(model)
    if not names:
        return Cut()
    # The shapes differ with split inputs (a head axis), so they are taken in that kind of run.
    cache = run(model, tokens, names=names)[1]

    def hook_for(scale: Tensor) -> Callable:
        return lambda now, hook: scale.expand_as(now)

    return Cut(tuple((n, hook_for(cache[n])) for n in names), frozen=("all scales of norms",))


@torch.no_grad()
def last_stream(
    model: Transformer, x: Float[Tensor, "row d_model"], scale: Tensor | None = None
) -> Float[Tensor, "row d_model"]:
    """What the unembedding reads of a last stream x; with a norm, at this scale or at x's own."""
    norm = model.ln_final
    if scale is None or not hasattr(norm, "eps"):
        return norm(x)
    n = (x - x.mean(-1, keepdim=True)) / scale
    return n if norm.w is None else n * norm.w + norm.b
