"""What one prompt does in a model, as plain numbers; every one of them comes from the model's run.

The share of a part (a head, the embedding, an MLP) in the centred logit of a token t is w . u',
with w the part's write at that position and u' what the unembedding's column W_U[:, t], minus the
mean column, reads of the stream. With a norm before the unembedding u' holds its scale frozen at
the value of this run. Then the shares sum to the logit minus the mean logit, up to rounding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook import cut
from circuitbook.cut import Head
from circuitbook.explore.prompts import Tokens, shown
from circuitbook.model import Transformer
from circuitbook.stream import (
    UNEMBEDDING_BIAS,
    components,
    final_scale,
    head_name,
    heads_of,
    read_through,
    unembedding_bias,
)

TOP = 10  # next tokens shown at each position
SHARES = 30_000  # shares kept in one view, so that it stays below 1 MB
FROZEN = (
    "This model has a norm before the unembedding. Shares hold its scale frozen at the value of "
    "this run: they sum to the logit, but removing a part would also change the scale."
)


class Reading(NamedTuple):
    """pattern: A. size: |v W_O|. top: the likeliest next tokens. share: of `parts` in their logits.

    top, probability and logit (centred, in nats) have one row for each position, likeliest first.
    share has the parts of the first few of these tokens only when the model is large.
    """

    name: str
    tokens: list[str]
    next: list[list[str]]
    pattern: Float[Tensor, "layer head pos key"]
    size: Float[Tensor, "layer head key"]
    top: Int[Tensor, "pos rank"]
    probability: Float[Tensor, "pos rank"]
    logit: Float[Tensor, "pos rank"]
    parts: list[str]
    share: Float[Tensor, "pos few part"]
    notes: list[str]

    @property
    def heads(self) -> list[Head]:
        """All heads, layer by layer."""
        return [(l, h) for l in range(self.pattern.shape[0]) for h in range(self.pattern.shape[1])]


def _kept(name: str) -> bool:
    return name.endswith((".hook_pattern", ".attn.hook_v"))


@torch.no_grad()
def read(model: Transformer, tokens: Tokens, name: str) -> Reading:
    """All numbers of a view, from one run for the patterns and one for the writes.

    Raises ValueError when the model gives numbers that are not finite.
    """
    ids = torch.tensor([tokens.ids], device=model.W_E.device)
    logits, cache = cut.run(model, ids, names=_kept)
    logits = logits[0]  # [pos, d_vocab]
    if not bool(logits.isfinite().all()):
        raise ValueError(f"{name} gives numbers that are not finite on this prompt")
    layers = range(model.cfg.n_layers)
    pattern = torch.stack([cache[f"blocks.{l}.attn.hook_pattern"][0] for l in layers])
    values = torch.stack([cache[f"blocks.{l}.attn.hook_v"][0] for l in layers])
    written = torch.einsum("l k h e, l h e d -> l h k d", values, model.W_O)

    # A stable sort, so that tokens of equal probability keep the order of their ids.
    order = logits.sort(dim=-1, descending=True, stable=True).indices[:, :TOP]  # [pos, rank]
    probability = logits.softmax(-1).gather(-1, order)
    centred = logits.gather(-1, order) - logits.mean(-1, keepdim=True)
    parts, share = shares(model, ids, order)
    notes = [*tokens.notes, *([FROZEN] if model.cfg.norm != "none" else [])]
    return Reading(
        name,
        [shown(i, tokens.known) for i in tokens.ids],
        [[shown(i, tokens.known) for i in row] for row in order.tolist()],
        pattern.cpu(),
        written.norm(dim=-1).cpu(),
        order.cpu(),
        probability.cpu(),
        centred.cpu(),
        parts,
        share.cpu(),
        notes,
    )


def shares(
    model: Transformer, ids: Int[Tensor, "one pos"], targets: Int[Tensor, "pos rank"]
) -> tuple[list[str], Float[Tensor, "pos few part"]]:
    """(names of the parts, what each adds to the centred logit of the first few targets)."""
    writes, last = components(model, ids)
    bias = unembedding_bias(model)
    names = [*writes, *([UNEMBEDDING_BIAS] if bias is not None else [])]
    few = max(1, min(targets.shape[1], SHARES // (len(names) * targets.shape[0])))
    targets = targets[:, :few]
    ways = (model.W_U - model.W_U.mean(-1, keepdim=True)).T[targets]  # [pos, few, d_model]
    scale = final_scale(model, last[0])  # [pos, 1], or None without a norm
    if scale is not None:
        scale = scale[:, None].expand(-1, few, -1)  # [pos, few, 1]
    ways = read_through(model, ways, scale)
    share = torch.einsum(
        "n p d, p f d -> p f n", torch.stack([w[0] for w in writes.values()]), ways
    )
    if bias is not None:
        share = torch.cat([share, (bias[targets] - bias.mean())[..., None]], -1)
    return names, share


def choice(model: Transformer, layer: Any, head: Any) -> list[Head]:
    """The heads that `layer` and `head` leave to choose from.

    Raises ValueError when there is none, TypeError when they are no whole numbers.
    """
    for word, given, n in (("layer", layer, model.cfg.n_layers), ("head", head, model.cfg.n_heads)):
        if given is None:
            continue
        if isinstance(given, bool) or not isinstance(given, int):
            raise TypeError(f"{word} must be a whole number or None, not {given!r}")
        if not 0 <= given < n:
            raise ValueError(f"there is no {word} {given}: {word}s run from 0 to {n - 1}")
    return [(l, h) for l, h in heads_of(model) if layer in (None, l) and head in (None, h)]


def best(read: Reading, heads: list[Head]) -> Head:
    """The head, of these, that adds most to the likeliest token after the last position."""
    last = dict(zip(read.parts, read.share[-1, 0].tolist(), strict=True))
    return max(heads, key=lambda at: last[head_name(at)])
