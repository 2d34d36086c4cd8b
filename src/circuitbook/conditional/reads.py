"""x = direct + sum of heads: what the block of a one-layer model reads, part by part, and no more.

In a one-layer model without norms nothing comes after the block but the unembedding. So a question
about one position needs only what the block reads there: the embedding of its token ("direct") and
each head's write. That is kept for a few places of many windows, and every cut is then a small
computation instead of a run of the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook import corpus
from circuitbook.cut import other_window
from circuitbook.model import Transformer

# What stands for a part that is removed; the last two are controls as long as the part itself.
CONTROLS = ("random", "elsewhere")
KINDS = ("zero", "mean", "resample", *CONTROLS)


class Reads(NamedTuple):
    """Parts of what the block reads at chosen places of windows, the token there, and the next."""

    names: tuple[str, ...]  # "direct", "head 0.0", …
    parts: Float[Tensor, "part window place d_model"]
    tokens: Int[Tensor, "window pos"]
    doc: Int[Tensor, " window"]
    place: Int[Tensor, " place"]  # position in the window; BOS stands at 0

    @property
    def token(self) -> Int[Tensor, "window place"]:
        """The token at each place."""
        return self.tokens[:, self.place]

    @property
    def following(self) -> Int[Tensor, "window place"]:
        """The token that comes next, which the model has to predict there."""
        return self.tokens[:, self.place + 1]

    @property
    def x(self) -> Float[Tensor, "window place d_model"]:
        """All that the block reads: the sum of the parts."""
        return self.parts.sum(0)

    def part(self, name: str) -> Float[Tensor, "window place d_model"]:
        """One part by name; "all heads" is their sum. Raises KeyError with the known names."""
        if name == "all heads":
            return self.parts[1:].sum(0)
        if name not in self.names:
            raise KeyError(f"no part {name!r}: choose one of {', '.join(self.names)}, all heads")
        return self.parts[self.names.index(name)]


def check_one_layer(model: Transformer) -> None:
    """ValueError unless the model has one layer, an MLP, no norm and no position in the stream."""
    cfg = model.cfg
    if cfg.n_layers != 1 or cfg.attn_only or cfg.norm != "none" or cfg.positions != "shortformer":
        raise ValueError(
            "needs a one-layer model with an MLP, without norm and with positions in queries and "
            f"keys only; this one has n_layers={cfg.n_layers}, d_mlp={cfg.d_mlp}, "
            f"norm={cfg.norm!r}, positions={cfg.positions!r}"
        )


@torch.no_grad()
def mixed_values(
    model: Transformer, tokens: Int[Tensor, "window pos"], part: int = 8
) -> Iterator[tuple[Tensor, Float[Tensor, "some pos head d_head"]]]:
    """(tokens, A V of every head) for a few windows at a time; neither block nor logits are run."""
    check_one_layer(model)
    attn, kept = model.blocks[0].attn, []
    hook = ("blocks.0.attn.hook_z", lambda z, hook: kept.append(z))
    for piece in tokens.split(part):
        piece = piece.to(model.W_E.device)
        with model.hooks(fwd_hooks=[hook]):
            x = model.embed(piece)
            moved = x + model.pos_embed(piece)
            attn(moved, moved, x)
        yield piece, kept.pop()


@torch.no_grad()
def read_parts(
    model: Transformer,
    tokens: Int[Tensor, "window pos"],
    doc: Int[Tensor, " window"],
    places: int,
    mixed: Iterable[tuple[Tensor, Tensor]] | None = None,
) -> Reads:
    """`Reads` at evenly spaced places of each window, the first eighth of the window left out.

    mixed: what `mixed_values` gave for these tokens, where somebody has asked already.
    Raises ValueError for a model with norms or more than one layer.
    """
    length = tokens.shape[1]
    at = torch.linspace(length // 8, length - 2, places).round().long().unique()
    at = at.to(model.W_E.device)
    W_O = model.blocks[0].attn.W_O
    rows = []
    for piece, z in mixed or mixed_values(model, tokens):
        writes = torch.einsum("wphk,hkd->hwpd", z[:, at], W_O)
        rows.append(torch.cat([model.embed(piece[:, at])[None], writes]))
    tokens = tokens.to(model.W_E.device)
    names = ("direct", *(f"head 0.{h}" for h in range(model.cfg.n_heads)))
    parts = torch.cat(rows, dim=1)
    return Reads(names, parts, tokens, doc.to(tokens.device), at)


def held_out(model: Transformer, windows: int, places: int, seed: int, length: int = 512) -> Reads:
    """`read_parts` on seeded held-out windows, each inside one document."""
    text = corpus.heldout_windows(windows, length=length, seed=seed)
    return read_parts(model, torch.from_numpy(text.tokens), torch.from_numpy(text.doc), places)


def removed(
    w: Float[Tensor, "window place d_model"], kind: str, generator: torch.Generator | None = None
) -> Float[Tensor, "window place d_model"]:
    """What a cut takes away from a read: w minus what stands in its place.

    zero       w                       mean      w - its mean over the windows, place by place
    resample   w - the write of another window at the same place
    random     a random direction, as long as w here        (control: w stays where it is)
    elsewhere  another window's write, made as long as w    (control: w stays; not a resample)
    Raises ValueError for another kind, or without a generator where one is needed.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}: choose one of {', '.join(KINDS)}")
    if kind == "zero":
        return w
    if kind == "mean":
        return w - w.mean(0, keepdim=True)
    if generator is None:
        raise ValueError(f"{kind!r} needs generator=torch.Generator().manual_seed(...)")
    if kind == "random":
        other = torch.randn(w.shape, generator=generator, dtype=torch.float64).to(w)
    else:
        other = w[other_window(len(w), generator).to(w.device)]
    if kind == "resample":
        return w - other
    tiny = torch.finfo(w.dtype).tiny
    return other * (w.norm(dim=-1, keepdim=True) / other.norm(dim=-1, keepdim=True).clamp_min(tiny))
