"""The three criteria of one circuit beside random sets of equal size, as one plain dict.

The random sets get exactly the search that the circuit gets: the same number of sets K to take out,
drawn by the same kind of coin. What a longer search finds for the circuit is kept apart.

At the empty K the completeness gap is |F(C) - F(M)|, which is faithfulness once more. So the
comparison leaves it out, and says how far the gap still goes with faithfulness ("like").
Nodes of the circuit have rivals too: every node outside, added to it, under the same search.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from circuitbook.circuits.faithful import (
    Runner,
    cell_node,
    completeness,
    faithfulness,
    minimality,
    random_subsets,
)
from circuitbook.circuits.nodes import Set, Sets, node_name
from circuitbook.probe import clustered_mean


def cell_name(model: Any, cell: tuple[int, ...], roles: tuple[str, ...] = ()) -> str:
    """ "1.3", "MLP 0", or "1.3 at END" for a place in a table with roles."""
    layer, at, *where = cell_node(model, cell)
    name = node_name((layer, at))
    return name if not where else f"{name} at {roles[where[0]] if roles else where[0]}"


def names(F: Runner, K: Set, roles: tuple[str, ...] = ()) -> list[str]:
    """The nodes of a set in words."""
    return [cell_name(F.model, tuple(c), roles) for c in K.nonzero().tolist()]


def _kinds(F: Runner, circuit: Set) -> Set:
    """Cells of the kinds that the circuit holds: heads, MLPs or both."""
    out, heads = torch.zeros_like(circuit), F.model.cfg.n_heads
    out[:, :heads], out[:, heads:] = circuit[:, :heads].any(), circuit[:, heads:].any()
    return out


def criteria(
    F: Runner,
    circuit: Set,
    others: Sets,
    *,
    draws: int = 4,
    removals: int = 8,
    search: int = 64,
    seed: int = 0,
    roles: tuple[str, ...] = (),
    cluster: Tensor | None = None,
) -> dict[str, Any]:
    """Faithfulness, completeness and minimality of `circuit` beside those of `others`.

    circuit, others: tables (see nodes.masks, nodes.random_masks). For each random set and for the
    circuit: draws, sets K of minimality, the empty one included; removals, sets K of completeness,
    never empty (all there are when there are no more). search: sets K for the circuit alone, with a
    greedy search on top. cluster: prompts that are not independent (default: all are). Keys:
      nodes, size, model, nothing    names; number of nodes; F(M); F of nothing
      faithfulness    circuit: F(C), recovered, se (of F(C) - F(M), by cluster, as a share of
                      F(M) - F(nothing)); random: recovered of each; beats: share of random sets
                      that recover a share further from 1
      completeness    gap (same search as random), random: gap of each, beats: share of random sets
                      with a larger gap; like: correlation, over random sets, of the gap with
                      |1 - recovered| (none for fewer than 3); searched: gap of the long
                      search; removed: its K; exact: whether all subsets were tried. All as shares
                      of F(M) - F(nothing)
      minimality      nodes: name -> searched gap; least: smallest over nodes (same search as
                      random); random: least of each; beats: share of random sets with a smaller
                      one; outside: name -> the same search for each node of its kinds that is
                      outside, added to the circuit; best outside: the largest, with the
                      search of `least`. Shares too
    Cost: about others * (1 + 2 removals + 2 draws * size) passes, fewer as equal sets are run once.
    """
    whole = faithfulness(F, ())
    span = whole.model - whole.nothing
    if abs(span) < 1e-9:
        raise ValueError("F(M) equals F(nothing): there is nothing for a circuit to recover")
    ones = torch.ones_like(circuit)
    C, M = F.per_prompt(torch.stack([circuit, ones])).double()
    cluster = torch.arange(len(C)) if cluster is None else cluster.cpu()
    se = clustered_mean(C - M, cluster).se / abs(span)

    def recovered(sets: Sets) -> Tensor:
        return (F(sets) - whole.nothing) / span

    def some(K: Set, index: int) -> Sets:
        coins = torch.Generator().manual_seed(seed + index)
        drawn = random_subsets(K, draws, coins)
        drawn[0] = False  # the empty K: nothing is taken out
        return drawn

    def taken(K: Set, index: int) -> Sets:
        drawn = random_subsets(K, removals + 1, torch.Generator().manual_seed(seed + index))
        drawn = drawn[1:]  # all subsets: the empty one goes; drawn ones: any
        drawn[~drawn.flatten(1).any(1)] = K  # nor may a coin leave it in
        return drawn

    def outside(cell: tuple[int, ...], K: Sets) -> float:
        rest = circuit & ~K
        more = rest.clone()
        more[(slice(None), *cell)] = True
        return (F(more) - F(rest)).abs().max().item() / abs(span)

    def least(K: Set, index: int) -> float:
        return min(x.gap for x in minimality(F, K, some(K, index)).values()) / abs(span)

    own, rest = recovered(circuit[None]).item(), recovered(others)
    gap = completeness(F, circuit, taken(circuit, 0)).gap / abs(span)
    gaps = [completeness(F, K, taken(K, 1 + i)).gap / abs(span) for i, K in enumerate(others)]
    far = torch.stack([(rest - 1).abs(), torch.tensor(gaps, dtype=torch.float64)])
    tried = random_subsets(circuit, search, torch.Generator().manual_seed(seed))
    long = completeness(F, circuit, tried, search=True)
    each = minimality(F, circuit, tried)
    smallest = [least(K, 1 + i) for i, K in enumerate(others)]
    mine = least(circuit, 0)
    rivals = [tuple(c) for c in (~circuit & _kinds(F, circuit)).nonzero().tolist()]
    n = len(others)
    return {
        "nodes": names(F, circuit, roles),
        "size": int(circuit.sum()),
        "sets": n,
        "model": whole.model,
        "nothing": whole.nothing,
        "faithfulness": {
            "circuit": F(circuit[None]).item(),
            "recovered": own,
            "se": se,
            "random": rest.tolist(),
            "beats": ((rest - 1).abs() > abs(own - 1)).sum().item() / n,
        },
        "completeness": {
            "gap": gap,
            "random": gaps,
            "beats": sum(g > gap for g in gaps) / n,
            "like": torch.corrcoef(far)[0, 1].nan_to_num().item() if n > 2 else None,
            "searched": long.gap / abs(span),
            "removed": names(F, long.removed, roles),
            "exact": 2 ** int(circuit.sum()) <= search,
        },
        "minimality": {
            "nodes": {
                cell_name(F.model, cell, roles): each[cell_node(F.model, cell)].gap / abs(span)
                for cell in map(tuple, circuit.nonzero().tolist())
            },
            "least": mine,
            "random": smallest,
            "beats": sum(x < mine for x in smallest) / n,
            "outside": {cell_name(F.model, cell, roles): outside(cell, tried) for cell in rivals},
            "best outside": max((outside(c, some(circuit, 0)) for c in rivals), default=0.0),
        },
    }
