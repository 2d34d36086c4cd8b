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
from circuitbook.stream import components, final_scale, read_through, unembedding_bias


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
        """u: W_U's column of the next token minus the mean column; x . u is its centred logit.

        x is what the unembedding reads: after the final norm, where there is one.
        """
        columns = model.W_U.T
        return columns[self.following()] - columns.mean(0)

    def constant(self, model: Transformer) -> Float[Tensor, " n"] | None:
        """The part of that logit that no stream makes: the unembedding's bias, centred; or None."""
        bias = unembedding_bias(model)
        return None if bias is None else (bias[self.following()] - bias.mean()).flatten()


def draw(windows: int = 40, length: int = 96, chosen: int = 5, seed: int = 10) -> Spots:
    """`chosen` positions without replacement in each window, none among the first 16 tokens."""
    text = corpus.heldout_windows(windows, length=length, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    order = torch.stack([torch.randperm(length - 17, generator=generator) for _ in text.doc])
    at = (order[:, :chosen] + 16).sort(-1).values
    return Spots(torch.from_numpy(text.tokens), at, torch.from_numpy(text.doc))


class Read(NamedTuple):
    """What the last MLP reads at the drawn positions, taken apart: the writes add up to x.

    u: y . u is what a write y into the last stream adds to the next token's centred logit, the
    scale of the final norm held where there is one. A norm before the MLP is part of the MLP here
    (`operators.of_stream`): x and its parts are the stream's.
    """

    names: list[str]
    writes: Float[Tensor, "part n d_model"]
    x: Float[Tensor, "n d_model"]
    u: Float[Tensor, "n d_model"]
    scale: Float[Tensor, "n 1"] | None = None  # of the final norm, in the plain run


def read_by_mlp(model: Transformer, spots: Spots) -> Read:
    """The parts of the stream before the last MLP, one by one; x is their sum.

    Token, heads and earlier MLPs; where the model has them also position and attention biases.
    Raises ValueError for a model without MLPs.
    """
    if model.cfg.attn_only:
        raise ValueError("this takes the input of an MLP apart, and this model has no MLP")
    parts, last = components(model, spots.tokens)
    parts.pop(f"MLP {model.cfg.n_layers - 1}")
    writes = torch.stack([pick(w, spots.at).flatten(0, 1) for w in parts.values()])
    scale = final_scale(model, pick(last, spots.at))
    scale = None if scale is None else scale.flatten(0, 1)
    u = read_through(model, spots.direction(model).flatten(0, 1), scale)
    return Read(list(parts), writes, writes.sum(0), u, scale)
