"""Change the reason and nothing else: another first title, another write in the keys, a cut."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook import bases
from circuitbook.aunt_sally.forward import Pass, attend, projected, reader
from circuitbook.aunt_sally.prompts import Frame
from circuitbook.aunt_sally.read_side import directions, offsets
from circuitbook.cut import Cut, Head
from circuitbook.expansion.expand import read
from circuitbook.model import Transformer


class Odds(NamedTuple):
    """How the name stands among the next tokens."""

    probability: Float[Tensor, " n"]
    rank: Int[Tensor, " n"]  # 1 is best
    named: Float[Tensor, " n"]  # the name's logit minus the mean of its rivals
    other: Float[Tensor, " n"]  # probability of all names of the other sex together


def odds(model: Transformer, frame: Frame, last: Float[Tensor, "n d_model"]) -> Odds:
    """Probability, rank and logit of the name, from what the unembedding reads."""
    logits = model.unembed(last[:, None])[:, 0]
    right = logits.gather(1, frame.answer[:, None])
    named = (last * directions(model, frame)[1]).sum(-1) + offsets(model, frame)[1]
    p = logits.softmax(1)
    female = torch.tensor(frame.female)
    other = (p[:, frame.answer] * (female[:, None] != female)).sum(1)
    return Odds(p.gather(1, frame.answer[:, None])[:, 0], 1 + (logits > right).sum(1), named, other)


TURNS = 5  # random rotations


@torch.no_grad()
def edge_cuts(
    model: Transformer, seen: Pass, pair: tuple[Head, Head], seed: int = 0
) -> dict[str, tuple[Tensor, Tensor]]:
    """name -> (attention [n, pos], last stream) of the reader after one edge is cut (zero, direct).

    "none".  "key", "query", "value": the writer out of the reader's keys, query or values.
    "turned.i": w R_i out of the keys, w the writer's write, R_i a random rotation: as large, not w.
    "0.g": first-layer head g out of the keys.

    The input becomes x - w before the norm, if there is one, and gets a scale of its own.
    """
    (_, h1), (_, h2) = pair
    r, x, w = reader(model, seen, h2), seen.stream, seen.writes[:, h1]

    def of(input: Tensor, into: str) -> Tensor:
        return projected(model, input, h2, into)

    generator = torch.Generator().manual_seed(seed)
    changed = {
        "none": r,
        "key": r._replace(k=of(x - w, "k")),
        "query": r._replace(q=of(x - w, "q")[:, -1]),
        "value": r._replace(v=of(x - w, "v")),
    }
    for i in range(TURNS):
        R = bases.rotation(w.shape[-1], generator).to(w)
        changed[f"turned.{i}"] = r._replace(k=of(x - w @ R, "k"))
    for g in range(model.cfg.n_heads):
        if g != h1:
            changed[f"0.{g}"] = r._replace(k=of(x - seen.writes[:, g], "k"))
    return {name: attend(model, new) for name, new in changed.items()}


@torch.no_grad()
def patched(
    model: Transformer, seen: Pass, other: Pass, pair: tuple[Head, Head]
) -> tuple[Float[Tensor, "n pos"], Float[Tensor, "n d_model"]]:
    """The reader with the writer's write of another pass in its keys: x - w + w'.

    A path patch of one edge. Query, values and every other head keep what they had in `seen`.
    """
    (_, h1), (_, h2) = pair
    r = reader(model, seen, h2)
    x = seen.stream - seen.writes[:, h1] + other.writes[:, h1]
    return attend(model, r._replace(k=projected(model, x, h2, "k")))


def other_reason(pair: tuple[Head, Head], write: Float[Tensor, "n pos d_model"]) -> Cut:
    """`patched` as hooks on the whole model: the reader's key input becomes x - w + `write`."""
    (l1, h1), (l2, h2) = pair
    kept: list[Tensor] = []

    def remember(result: Tensor, hook: object) -> None:
        kept[:] = [result[:, :, h1]]

    def replace(x: Tensor, hook: object) -> Tensor:
        x = x.clone()
        x[:, :, h2] = x[:, :, h2] - kept.pop() + write
        return x

    return Cut(
        ((f"blocks.{l1}.attn.hook_result", remember), (f"blocks.{l2}.hook_k_input", replace)),
        cut=(f"{l1}.{h1} -> key of {l2}.{h2}, direct edge only (from another run)",),
        recomputed=(f"key of {l2}.{h2}, its pattern, its write, all later layers",),
    )


def copied(
    model: Transformer, seen: Pass, head: int, key: int
) -> tuple[Float[Tensor, "n d_model"], Float[Tensor, "n d_model"]]:
    """(x0 W_OV, all) of a last-layer head at a key, as this run had them.

    x0 is the token part of the stream there: what the head copies of the token itself. With a norm
    it is the part before the scale, which belongs to the whole stream: x0 (W_V centred) W_O. The
    second is all that the head copies, first-layer writes, position, scale and bias included.
    """
    norm, W_O = model.blocks[-1].ln1, model.W_O[-1, head]
    own = read(norm, seen.embed[:, key], scale_one(seen)) @ model.W_V[-1, head]
    return own @ W_O, projected(model, seen.stream, head, "v")[:, key] @ W_O


def scale_one(seen: Pass) -> Tensor | None:
    """A scale of 1 where there is a norm: its reading without its division."""
    return None if seen.scales[-1] is None else torch.ones_like(seen.scales[-1][:, 0])
