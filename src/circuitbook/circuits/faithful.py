"""Is a set of nodes the circuit? Three questions, each asked of random sets of equal size too.

F(K) is the mean over prompts of the metric when only the nodes of K write what they compute, and a
stand-in is written by the others (`ablation.evaluate`). M is all nodes, C the circuit.

    faithfulness   F(C) / F(M), and F(C) beside F of nothing and F(M).
    completeness   max over K in C of |F(C - K) - F(M - K)|: small when C breaks as M breaks.
    minimality     of a node v: max over K in C - v of |F(C - K - v) - F(C - K)|: small when v is
                   idle in C whatever else is gone.

The maxima run over more sets than can be tried (2^|C|), so what is found is a lower bound. It is
exact when C is small enough for all of them. Random sets get the same search, or the comparison
would favour the side that was searched less.
Source: Wang et al. 2023 (the three criteria, greedy search for K). Their faithfulness is
|F(M) - F(C)|; the two shares that are printed here are ours, and count from F of nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from circuitbook.circuits.ablation import Standin, evaluate
from circuitbook.circuits.metrics import Metric
from circuitbook.circuits.nodes import MLP, Node, Set, Sets, masks, nodes_of
from circuitbook.model import Transformer


class Runner:
    """F of many sets, mean over prompts; no set is run twice.

    Cost: one forward pass over the prompts for each set not seen before.
    """

    def __init__(
        self,
        model: Transformer,
        tokens: Tensor,
        metric: Metric,
        standin: Standin,
        **more: Any,
    ) -> None:
        self.model, self.tokens, self.metric = model, tokens, metric
        self.standin, self.more = standin, more
        self.seen: dict[bytes, float] = {}

    def __call__(self, sets: Sets) -> Float[Tensor, " set"]:
        """Mean of the metric under each set, float64."""
        flat = sets.flatten(1).to(torch.uint8).numpy()
        keys = [row.tobytes() for row in flat]
        new = {k: i for i, k in enumerate(keys) if k not in self.seen}
        if new:
            values = self.per_prompt(sets[list(new.values())]).double().mean(1).tolist()
            self.seen |= dict(zip(new, values, strict=True))
        return torch.tensor([self.seen[k] for k in keys], dtype=torch.float64)

    def per_prompt(self, sets: Sets) -> Float[Tensor, "set prompt"]:
        """The metric under each set, prompt by prompt (for errors)."""
        return evaluate(self.model, self.tokens, self.metric, self.standin, sets, **self.more).cpu()

    def of(self, nodes: Iterable[Node]) -> float:
        """F of one set of nodes."""
        return self(masks(self.model, [nodes])).item()

    def without(self, sets: Sets) -> Float[Tensor, " set"]:
        """F(M without K) for each K."""
        return self(~sets)


class Faithfulness(NamedTuple):
    """F of the circuit, the model and nothing; and two shares."""

    circuit: float
    model: float
    nothing: float
    ratio: float  # F(C) / F(M)
    recovered: float  # (F(C) - F(nothing)) / (F(M) - F(nothing))


def faithfulness(F: Runner, circuit: Iterable[Node]) -> Faithfulness:
    """F(C) beside F(M) and F of nothing. Three forward passes."""
    C, M, none = F(masks(F.model, [circuit, nodes_of(F.model), []])).tolist()
    return Faithfulness(C, M, none, C / M, (C - none) / (M - none))


def subsets(C: Set) -> Sets:
    """All 2^|C| subsets of a set, the empty one first. ValueError above 12 nodes."""
    at = torch.nonzero(C.flatten())[:, 0]
    if len(at) > 12:
        raise ValueError(f"{len(at)} nodes have {2 ** len(at):,} subsets: draw some instead")
    bits = torch.arange(2 ** len(at))[:, None] >> torch.arange(len(at)) & 1
    rows = torch.zeros(len(bits), C.numel(), dtype=torch.bool)
    rows[:, at] = bits.bool()
    return rows.view(-1, *C.shape)


def random_subsets(C: Set, n: int, generator: torch.Generator) -> Sets:
    """n subsets of a set, each node in or out by a coin; all of them when there are at most n."""
    if 2 ** int(C.sum()) <= n:
        return subsets(C)
    coins = torch.rand(n, *C.shape, generator=generator) < 0.5
    return coins & C


class Worst(NamedTuple):
    """The set K for which the gap was largest, and the gap."""

    gap: float
    removed: Set


def gaps(F: Runner, C: Set, K: Sets) -> Float[Tensor, " set"]:
    """|F(C - K) - F(M - K)| for each K. Two forward passes for each."""
    return (F(C & ~K) - F.without(K)).abs()


def greedy(F: Runner, C: Set) -> Sets:
    """A growing K: each step takes the node of C that widens |F(C - K) - F(M - K)| most.

    Returns every K on the way, from the empty set to C. |C|^2 / 2 pairs of forward passes.
    """
    K = torch.zeros_like(C)
    out = [K]
    while bool((C & ~K).any()):
        tried = torch.stack([_with(K, cell, True) for cell in cells(C & ~K)])
        K = tried[gaps(F, C, tried).argmax()]
        out.append(K)
    return torch.stack(out)


def completeness(F: Runner, C: Set, K: Sets | None = None, search: bool = False) -> Worst:
    """max over the given K of |F(C - K) - F(M - K)|, and over a greedy search when asked.

    K: subsets of C (default: all, C of at most 12 nodes). What is found is a lower bound unless all
    subsets are tried. Two forward passes for each K.
    """
    K = subsets(C) if K is None else K
    K = torch.cat([K & C, greedy(F, C)]) if search else K & C
    found = gaps(F, C, K)
    best = int(found.argmax())
    return Worst(found[best].item(), K[best])


def minimality(F: Runner, C: Set, K: Sets | None = None) -> dict[tuple, Worst]:
    """For each node v of C: max over K in C - v of |F(C - K - v) - F(C - K)|, and that K.

    K: candidates, v is taken out of each (default: all subsets). A node whose best is near zero is
    idle in C. Two forward passes for each node and K; equal sets are run once.
    """
    K, out = subsets(C) if K is None else K & C, {}
    for cell in cells(C):
        rest, more = (torch.stack([_with(row, cell, on) for row in K]) for on in (False, True))
        found = (F(C & ~more) - F(C & ~rest)).abs()
        best = int(found.argmax())
        out[cell_node(F.model, cell)] = Worst(found[best].item(), rest[best])
    return out


def cells(C: Set) -> list[tuple[int, ...]]:
    """The places of a table that are True."""
    return [tuple(place) for place in C.nonzero().tolist()]


def cell_node(model: Transformer, cell: tuple[int, ...]) -> tuple:
    """The node of a place (layer, slot): (layer, head) or (layer, "mlp"); more axes follow it."""
    layer, slot, *more = cell
    return (layer, MLP if slot == model.cfg.n_heads else slot, *more)


def _with(K: Set, cell: tuple[int, ...], on: bool) -> Set:
    K = K.clone()
    K[cell] = on
    return K


def beats(
    value: float, others: Sequence[float] | Tensor, better: Callable[[float, float], bool]
) -> float:
    """Share of the others that `value` is better than; better(a, b) says that a beats b."""
    return sum(better(value, x) for x in torch.as_tensor(others).tolist()) / len(others)
