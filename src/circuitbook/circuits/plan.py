"""A transformer written down block by block: named coordinates, and what each head moves.

The stream is cut into named blocks of coordinates. A head is given by what its query and key
compare and by which block it copies into which. Nothing is trained and nothing is random.
`with_idle_heads` then hides the circuit among heads that read everything and reach nothing.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from circuitbook.config import Config
from circuitbook.model import Transformer

GAIN = 40.0  # a score ahead by 1 leaves exp(-GAIN) of a row to the rest


class Plan:
    """A model under construction; all weights start at zero, in float64."""

    def __init__(
        self, blocks: dict[str, int], n_layers: int, n_heads: int, d_head: int, **more: Any
    ) -> None:
        starts = [0, *torch.tensor(list(blocks.values())).cumsum(0).tolist()]
        self.at = {name: slice(a, b) for name, a, b in zip(blocks, starts, starts[1:])}
        self.cfg = Config(n_layers, starts[-1], n_heads, d_head, pos_kind="learned", **more)
        shapes = Transformer(self.cfg, seed=None).state_dict()
        self.state = {k: torch.zeros(v.shape, dtype=torch.float64) for k, v in shapes.items()}
        self.used: dict[tuple[int, int], int] = {}

    def embed(self, token: int, **blocks: Tensor | float) -> None:
        """The embedding of a token: each named block gets a value or a row."""
        for name, value in blocks.items():
            self.state["embed.W_E"][token, self.at[name]] = torch.as_tensor(value).double()

    def unembed(self, block: str, token: int, value: Tensor | float) -> None:
        """W_U: the logit of a token reads a block."""
        self.state["unembed.W_U"][self.at[block], token] = torch.as_tensor(value).double()

    def compare(self, layer: int, head: int, query: str, key: str, gain: float) -> None:
        """score += gain * (query block of the query's place) . (key block of the key's place)."""
        first = self.used.setdefault((layer, head), 0)
        n = self.at[query].stop - self.at[query].start
        if n != self.at[key].stop - self.at[key].start:
            raise ValueError(f"blocks {query} and {key} differ in size")
        # Only here the eye is scaled; the model divides scores by sqrt(d_head).
        scale, eye = gain * math.sqrt(self.cfg.d_head), torch.eye(n, dtype=torch.float64)
        for name, block, M in (("Q", query, scale * eye), ("K", key, eye)):
            W = self.state[f"blocks.{layer}.attn.W_{name}"]
            W[head, self.at[block], first : first + n] += M
        self.used[layer, head] = first + n

    def copy(self, layer: int, head: int, source: str, target: str, size: float = 1.0) -> None:
        """The head reads `source` where it looks and adds size times it to `target`."""
        first = self.used.setdefault((layer, -1 - head), 0)
        n = self.at[source].stop - self.at[source].start
        eye = torch.eye(n, dtype=torch.float64)
        at = f"blocks.{layer}.attn.W_"
        self.state[at + "V"][head, self.at[source], first : first + n] += eye
        self.state[at + "O"][head, first : first + n, self.at[target]] += size * eye
        self.used[layer, -1 - head] = first + n

    def neuron(
        self, layer: int, i: int, reads: dict[str, float], bias: float, writes: dict[str, float]
    ) -> None:
        """Neuron i: phi(sum of what it reads + bias), added to what it writes."""
        at = f"blocks.{layer}.mlp."
        for name, value in reads.items():
            self.state[at + "W_in"][self.at[name], i] = value
        self.state[at + "b_in"][i] = bias
        for name, value in writes.items():
            self.state[at + "W_out"][i, self.at[name]] = value

    def model(self) -> Transformer:
        """The transformer with these weights, float64."""
        return Transformer.from_state_dict(self.cfg, self.state).eval().requires_grad_(False)


def with_idle_heads(
    model: Transformer, idle: int, generator: torch.Generator, junk: int = 8
) -> tuple[Transformer, list[list[int]]]:
    """The same function with `idle` more heads in each layer, in a shuffled order.

    An idle head has random weights: it attends by content, it reads every coordinate, also what
    other idle heads wrote, and it writes about as much as a working head. But it writes only to
    `junk` new coordinates, which no working part reads. So no cut of it can move a logit.
    Returns (model, where): where[layer][h] is the new number of head h.
    """
    c, state = model.cfg, model.state_dict()
    d, h = c.d_model, c.n_heads
    cfg = c.replace(d_model=d + junk, n_heads=h + idle)
    old, new = state, Transformer(cfg, seed=None).to(model.W_E.dtype).state_dict()
    if c.pos_kind == "sinusoidal":
        raise ValueError("planted models hold their positions in W_pos: pos_kind='learned'")
    where = [torch.randperm(h + idle, generator=generator).tolist() for _ in range(c.n_layers)]
    for name, small in old.items():
        large = new[name]
        if ".attn." not in name:
            large[tuple(slice(n) for n in small.shape)] = small
            continue
        layer = int(name.split(".")[1])
        draw = torch.randn(large.shape, generator=generator).to(large) / d**0.5
        if name.endswith("W_O"):
            draw *= 3
            draw[..., :d] = 0  # junk coordinates only
        large.copy_(draw)
        for i in range(h):
            row = torch.zeros_like(large[0])
            row[tuple(slice(n) for n in small[i].shape)] = small[i]
            large[where[layer][i]] = row
    made = Transformer.from_state_dict(cfg, new).eval().requires_grad_(False)
    return made, [row[:h] for row in where]
