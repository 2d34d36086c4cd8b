"""Positions of held-out text, drawn before anybody looks: a few in each of many windows.

Everything that chapter 10 says about a trained model's shares is said about one such draw.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook import corpus
from circuitbook.conditional.product import pick
from circuitbook.model import Transformer
from circuitbook.stream import components


class Spots(NamedTuple):
    """Windows [window, pos], the positions drawn in each, and the document of each window."""

    tokens: Int[Tensor, "window pos"]
    at: Int[Tensor, "window chosen"]
    doc: Int[Tensor, " window"]

    @property
    def n(self) -> int:
        """The number of positions."""
        return self.at.numel()

    def following(self) -> Int[Tensor, "window chosen"]:
        """The next token at each position: the one that the text goes on with."""
        return self.tokens.gather(1, self.at + 1)

    def doc_of_each(self) -> Int[Tensor, " n"]:
        """The document of each position, windows first."""
        return self.doc.repeat_interleave(self.at.shape[1])

    def direction(self, model: Transformer) -> Float[Tensor, "window chosen d_model"]:
        """u: W_U's column of the next token minus the mean column; x . u is its centred logit."""
        columns = model.W_U.T
        return columns[self.following()] - columns.mean(0)


def draw(windows: int = 40, length: int = 96, chosen: int = 5, seed: int = 10) -> Spots:
    """`chosen` positions without replacement in each window, none among the first 16 tokens."""
    text = corpus.heldout_windows(windows, length=length, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    order = torch.stack([torch.randperm(length - 17, generator=generator) for _ in text.doc])
    at = (order[:, :chosen] + 16).sort(-1).values
    return Spots(torch.from_numpy(text.tokens), at, torch.from_numpy(text.doc))


class Read(NamedTuple):
    """What the last MLP reads at the drawn positions, taken apart: the writes add up to x."""

    names: list[str]
    writes: Float[Tensor, "part n d_model"]
    x: Float[Tensor, "n d_model"]
    u: Float[Tensor, "n d_model"]


def read_by_mlp(model: Transformer, spots: Spots) -> Read:
    """The parts of what the last MLP reads, one by one; x is their sum. For models without norm."""
    if model.cfg.norm != "none" or model.cfg.attn_only:
        raise ValueError(
            "this takes the input of an MLP apart; it needs one, and no norm before it"
        )
    parts = components(model, spots.tokens).writes
    parts.pop(f"MLP {model.cfg.n_layers - 1}")
    writes = torch.stack([pick(w, spots.at).flatten(0, 1) for w in parts.values()])
    return Read(list(parts), writes, writes.sum(0), spots.direction(model).flatten(0, 1))
