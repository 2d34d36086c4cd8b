"""Every edge of a model, one at a time: what the answer loses when a stand-in travels along it.

An edge goes from a node to a receiver: query, key or value of a later head, the input of a later
MLP, or the logits (None). All of them by `path_patch`, so each is an intervention: sender's write
replaced at all positions, other heads frozen up to the receiver, all that follows recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Int
from torch import Tensor

from circuitbook.circuits.ablation import AT_ONCE, Standin, whole
from circuitbook.circuits.metrics import Metric
from circuitbook.circuits.nodes import MLP, Node, node_name, nodes_of
from circuitbook.circuits.patching import Receiver, path_patch
from circuitbook.model import Transformer

Edge = tuple[Node, "Receiver | None"]


def receivers_of(model: Transformer) -> list[Receiver | None]:
    """Every input of every node, and the logits (None)."""
    each = {True: ("in",), False: ("q", "k", "v")}
    found = [(*node, into) for node in nodes_of(model) for into in each[node[1] == MLP]]
    return [*found, None]


def before(sender: Node, receiver: Receiver | None) -> bool:
    """Whether the sender writes before the receiver reads: heads of a layer, then its MLP."""
    if receiver is None:
        return True
    if sender[0] != receiver[0]:
        return sender[0] < receiver[0]
    return sender[1] != MLP and receiver[1] == MLP


def edge_name(edge: Edge) -> str:
    """((0, 1), (1, 2, "k")) -> "0.1 → 1.2 k"; the logits and an MLP's input have no letter."""
    sender, receiver = edge
    if receiver is None:
        return f"{node_name(sender)} → logits"
    end = "" if receiver[2] == "in" else f" {receiver[2]}"
    return f"{node_name(sender)} → {node_name(receiver[:2])}{end}"


def edge_effects(
    model: Transformer,
    tokens: Int[Tensor, "prompt pos"],
    standin: Standin,
    metric: Metric,
    *,
    senders: Sequence[Node] | None = None,
    receivers: Sequence[Receiver | None] | None = None,
    mlps: str = "frozen",
    at_once: int = AT_ONCE,
) -> dict[Edge, Tensor]:
    """edge -> [prompt], how much the metric falls when it is cut (positive: it helps).

    All edges by default. mlps: see `path_patch`. "frozen" makes an edge from a head to the logits
    the head's direct term; with "recomputed" what the MLPs made of it belongs to it too.
    Cost: 2 passes for an edge into a node, 1 for an edge into the logits, and 1 for each receiver.
    """
    senders = nodes_of(model) if senders is None else senders
    receivers = receivers_of(model) if receivers is None else receivers
    clean, out = whole(model, tokens, metric, at_once), {}
    for receiver in receivers:
        earlier = [s for s in senders if before(s, receiver)]
        if not earlier:
            continue
        to = None if receiver is None else [receiver]
        now = path_patch(model, tokens, standin, earlier, to, metric, mlps=mlps, at_once=at_once)
        out |= {(s, receiver): clean - row for s, row in zip(earlier, now, strict=True)}
    return out


def strongest_other(effects: dict[Edge, Tensor], known: Sequence[Edge]) -> tuple[float, float]:
    """(weakest known edge, strongest other edge), both as |mean over prompts|."""
    size = {edge: x.mean().abs().item() for edge, x in effects.items()}
    missing = [edge_name(e) for e in known if e not in size]
    if missing:
        raise ValueError(f"these known edges were not measured: {', '.join(missing)}")
    others = [x for edge, x in size.items() if edge not in set(known)]
    return min(size[e] for e in known), max(others, default=0.0)
