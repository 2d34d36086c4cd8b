"""Influence of a node on the logit: all paths from it, each edge a share of what enters a node.

Let S be |edges| with every row that is not empty divided by its sum. The influence of node s on the
logit is the logit's row of (I - S)^-1 - I: one path gives the product of its shares, and paths are
summed. A share is a size without a sign, so influence says what is *involved*, not what helps.

Nothing enters a token, an error or the biases. So all influence ends there, and the influences of
these leaves sum to one. The errors' part is what the transcoders did not explain.
Source: Ameisen et al. 2025, "Circuit Tracing" (graph pruning, replacement score).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from circuitbook.attribution.graph import Graph


def shares(edges: Float[Tensor, "node node"]) -> Float[Tensor, "node node"]:
    """|edges| over the sum of its row; rows of zeros stay zeros."""
    size = edges.abs()
    total = size.sum(1, keepdim=True)
    return torch.where(total > 0, size / torch.where(total > 0, total, 1.0), 0.0)


def influence(edges: Float[Tensor, "node node"]) -> Float[Tensor, " node"]:
    """The last node's row of (I - S)^-1 - I = S + S^2 + ...; the graph has no cycle, so it ends."""
    S = shares(edges)
    reach = S[-1].clone()
    total = reach.clone()
    while bool((reach > 0).any()):
        reach = reach @ S
        total += reach
    return total


def edge_influence(
    edges: Float[Tensor, "node node"], node: Float[Tensor, " node"]
) -> Float[Tensor, "node node"]:
    """Share of an edge in its target, times the target's influence; the last node's is one."""
    weight = node.clone()
    weight[-1] = 1.0
    return shares(edges) * weight[:, None]


def leaf_shares(graph: Graph) -> dict[str, float]:
    """Where all influence ends: tokens, errors of each layer, biases; the shares sum to one.

    "positions" too, where they stand in the stream.
    """
    score = influence(graph.edges)
    layers = sorted({n.layer for n in graph.nodes if n.kind == "error"})
    out = {"tokens": score[graph.of("token")].sum(), "biases": score[graph.of("biases")].sum()}
    if positions := graph.of("position"):
        out["positions"] = score[positions].sum()
    out |= {f"errors {l}": score[graph.of("error", l)].sum() for l in layers}
    return {name: x.item() for name, x in out.items()}


class Pruned(NamedTuple):
    """What is kept of a graph, and what that drops."""

    keep: Bool[Tensor, " node"]
    edges: Bool[Tensor, "node node"]  # kept edges, both ends kept
    influence: Float[Tensor, " node"]  # of all nodes, in the whole graph
    node_share: float  # influence of the kept latents and errors over that of all of them
    edge_share: float  # influence of the kept edges over that of all edges
    into_logit: tuple[float, float]  # the logit's edges: sum of the kept, sum of the dropped
    dropped: Float[Tensor, " node"]  # sum of the dropped edges into each node


def _best(score: Tensor, most: int) -> Tensor:
    """Places of the `most` largest scores above zero."""
    order = score.argsort(descending=True, stable=True)[:most]
    return order[score[order] > 0]


def prune(graph: Graph, nodes: int = 30, edges: int = 100) -> Pruned:
    """The `nodes` latents and errors of most influence, and the `edges` edges of most among them.

    Tokens, biases and the logit stay. A latent that is left without a kept edge on its way to the
    logit goes too, and what only fed it. Influence is that of the whole graph, so numbers of kept
    nodes do not depend on how many are kept.
    """
    score = influence(graph.edges)
    inner = torch.tensor([n.kind in ("latent", "error") for n in graph.nodes])
    keep = ~inner
    keep[_best(score * inner, nodes)] = True
    weight = edge_influence(graph.edges, score)
    inside = weight * keep[:, None] * keep[None, :]
    chosen = torch.zeros_like(inside, dtype=torch.bool)
    chosen.view(-1)[_best(inside.flatten(), edges)] = True
    while True:  # whoever leads nowhere any more goes, from the top down
        stray = inner & keep & ~chosen.any(0)
        if not bool(stray.any()):
            break
        keep &= ~stray
        chosen[stray] = False
    into = graph.edges[-1]
    kept = chosen[-1]
    return Pruned(
        keep,
        chosen,
        score,
        (score[keep & inner].sum() / score[inner].sum()).item(),
        (weight[chosen].sum() / weight.sum()).item(),
        (into[kept].sum().item(), into[~kept].sum().item()),
        (graph.edges * ~chosen).sum(1),
    )
