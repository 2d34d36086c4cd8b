"""A node is what writes to the stream: a head or an MLP. A circuit is a set of nodes.

Heads are pairs (layer, head), as everywhere in the course; the MLP of a layer is (layer, "mlp").
Many sets at once are one table of booleans [set, layer, slot]: slots 0 ... n_heads - 1 are the
heads of a layer, the last slot is its MLP (there only when the model has MLPs).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from circuitbook.model import Transformer
from circuitbook.stream import heads_of

MLP = "mlp"
Node = tuple[int, "int | str"]
Set = Bool[Tensor, "*cells"]  # [layer, slot], or [layer, slot, pos or role]
Sets = Bool[Tensor, "set *cells"]


def nodes_of(model: Transformer) -> list[Node]:
    """Every head and every MLP, in the order in which they write."""
    if model.cfg.attn_only:
        return list(heads_of(model))
    heads = range(model.cfg.n_heads)
    return [(l, at) for l in range(model.cfg.n_layers) for at in (*heads, MLP)]


def node_name(node: Node) -> str:
    """(1, 3) -> "1.3"; (0, "mlp") -> "MLP 0"."""
    layer, at = node
    return f"MLP {layer}" if at == MLP else f"{layer}.{at}"


def slots(model: Transformer) -> int:
    """Nodes of a layer: its heads, and its MLP if there is one."""
    return model.cfg.n_heads + (not model.cfg.attn_only)


def place(model: Transformer, node: Node) -> tuple[int, int]:
    """(layer, slot) of a node; ValueError when the model has no such node."""
    layer, at = node
    slot = model.cfg.n_heads if at == MLP else at
    if not (isinstance(slot, int) and 0 <= layer < model.cfg.n_layers and 0 <= slot < slots(model)):
        raise ValueError(
            f"no node {node!r}: this model has layers 0 ... {model.cfg.n_layers - 1}, heads 0 ... "
            f"{model.cfg.n_heads - 1}, and {'no' if model.cfg.attn_only else 'an'} MLP in each"
        )
    return layer, slot


def masks(model: Transformer, sets: Sequence[Iterable[Node]]) -> Bool[Tensor, "set layer slot"]:
    """The sets as one table: True where a node is in the set."""
    table = torch.zeros(len(sets), model.cfg.n_layers, slots(model), dtype=torch.bool)
    for row, nodes in zip(table, sets, strict=True):
        for node in nodes:
            row[place(model, node)] = True
    return table


def members(model: Transformer, mask: Bool[Tensor, "layer slot"]) -> list[Node]:
    """The nodes of one set, in the order in which they write: the inverse of `masks`."""
    return [node for node in nodes_of(model) if mask[place(model, node)]]


def random_masks(
    model: Transformer,
    like: Iterable[Node],
    n: int,
    generator: torch.Generator,
    among: Iterable[Node] | None = None,
    *,
    fewer: bool = False,
) -> Bool[Tensor, "set layer slot"]:
    """n different random sets with as many heads and as many MLPs as `like`, none of them `like`.

    All such sets are equally likely. among: the nodes to draw from (default: all). Heads and MLPs
    are counted apart because an MLP is not the size of a head. fewer, errors: see `random_like`.
    """
    pool = masks(model, [nodes_of(model) if among is None else among])[0]
    kinds = torch.zeros(pool.shape, dtype=torch.long)
    kinds[:, model.cfg.n_heads :] = 1
    return random_like(masks(model, [like])[0], n, generator, pool, kinds, fewer=fewer)


def random_like(
    like: Set,
    n: int,
    generator: torch.Generator,
    pool: Set | None = None,
    kinds: Int[Tensor, "*cells"] | None = None,
    *,
    fewer: bool = False,
) -> Sets:
    """n different random tables with as many cells of each kind as `like`, none of them `like`.

    For any table of cells, such as [layer, slot, role]. pool: the cells to draw from (default:
    all). kinds: a number for each cell (default: one kind). All such tables are equally likely.
    Raises ValueError when there are fewer than n; with `fewer` it gives all there are.
    """
    pool = torch.ones_like(like) if pool is None else pool
    kinds = torch.zeros(like.shape, dtype=torch.long) if kinds is None else kinds
    parts = [
        ((pool & (kinds == k)).flatten().nonzero()[:, 0], int((like & (kinds == k)).sum()))
        for k in kinds.unique().tolist()
    ]
    possible = math.prod(math.comb(len(cells), size) for cells, size in parts)
    possible -= bool((like <= pool).all())
    n = min(n, possible) if fewer else n
    if possible < n:
        raise ValueError(
            f"there are {possible} other sets of this size, and {n} were asked for: ask for "
            "fewer, allow it with fewer=True, or split the nodes"
        )
    seen, rows = {tuple(like.flatten().tolist())}, []
    while len(rows) < n:
        row = torch.zeros(like.numel(), dtype=torch.bool)
        for cells, size in parts:
            row[cells[torch.randperm(len(cells), generator=generator)[:size]]] = True
        if (key := tuple(row.tolist())) not in seen:
            seen.add(key)
            rows.append(row.view(like.shape))
    return torch.stack(rows) if rows else like.new_zeros(0, *like.shape)
