"""Every tool on circuits that are known: what it finds, what it misses, what fools it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from circuitbook.circuits import ablation, planted
from circuitbook.circuits.ablation import Standin
from circuitbook.circuits.criteria import criteria
from circuitbook.circuits.direct import attribute, self_repair
from circuitbook.circuits.edges import edge_effects, edge_name, strongest_other
from circuitbook.circuits.faithful import Runner, completeness
from circuitbook.circuits.nodes import masks, node_name, nodes_of, random_masks
from circuitbook.circuits.planted import Planted


def standins(p: Planted) -> dict[str, Standin]:
    """The three stand-ins: nothing, the mean over the other prompts, another prompt's write."""
    return {
        "zero": ablation.zero(p.model, p.tokens),
        "mean": ablation.mean(p.model, p.others),
        "resample": ablation.resample(p.model, p.others),
    }


def node_table(p: Planted) -> dict[str, dict[str, float]]:
    """stand-in -> node -> fall of F when it is cut; "direct" -> node -> its direct term."""
    nodes = nodes_of(p.model)
    clean = ablation.whole(p.model, p.tokens, p.metric)
    out = {}
    for kind, standin in standins(p).items():
        now = ablation.without(p.model, p.tokens, p.metric, standin, [[v] for v in nodes])
        out[kind] = {
            node_name(v): (clean - x).mean().item() for v, x in zip(nodes, now, strict=True)
        }
    terms = attribute(p.model, p.tokens, p.question).terms
    out["direct"] = {node_name(v): terms[node_name(v)].mean().item() for v in nodes}
    return out


def edge_table(p: Planted, kind: str, mlps: str = "frozen") -> dict[str, Any]:
    """Every edge of a planted model, path-patched: the known ones, and the strongest other one."""
    found = edge_effects(p.model, p.tokens, standins(p)[kind], p.metric, mlps=mlps)
    weakest, other = strongest_other(found, p.edges)
    size: dict[str, float] = {edge_name(e): x.mean().item() for e, x in found.items()}
    return {
        "edges": len(found),
        "known": {edge_name(e): size[edge_name(e)] for e in p.edges},
        "seen": {name: x for name, x in size.items() if abs(x) >= 0.05 * weakest},
        "weakest": weakest,
        "other": other,
        "share": other / weakest,
    }


def repair_table(p: Planted) -> dict[str, dict[str, float]]:
    """stand-in -> what the first node's direct term promises, what its cut costs, and the share."""
    out = {}
    for kind, standin in standins(p).items():
        found = self_repair(p.model, p.tokens, p.question, standin, p.nodes[:1])
        gained: dict[str, Tensor] = found.gained
        most = max(gained, key=lambda name: gained[name].mean().item())
        out[kind] = {
            "predicted": found.predicted.mean().item(),
            "actual": found.actual.mean().item(),
            "share": found.share,
            "helper": most,
            "gained": gained[most].mean().item(),
        }
    return out


def half_a_circuit(p: Planted) -> dict[str, dict[str, float]]:
    """The backup model: the first head alone, and both: share recovered, completeness gap."""
    F = Runner(p.model, p.tokens, p.metric, standins(p)["mean"])
    everything, nothing = F.of(nodes_of(p.model)), F.of([])
    out = {}
    for name, nodes in (("first head", p.nodes[:1]), ("both heads", p.nodes)):
        C = masks(p.model, [nodes])[0]
        out[name] = {
            "recovered": (F.of(nodes) - nothing) / (everything - nothing),
            "gap": completeness(F, C).gap / abs(everything - nothing),
        }
    return out


def study(prompts: int = 16, sets: int = 100, seed: int = 0) -> dict[str, Any]:
    """All numbers about planted circuits. Nothing here is trained; weights come from the seed.

    models: name -> nodes, constant, table (see node_table), edges by stand-in, with MLPs frozen;
    through: the conjunction's edges with MLPs recomputed. repair, half: the backup model.
    criteria: the planted induction pair among more idle heads, so that there are enough other sets.
    """

    def gen(more: int = 0) -> torch.Generator:
        return torch.Generator().manual_seed(seed + more)

    models = {name: make(prompts, gen()) for name, make in planted.ALL.items()}
    crowd = planted.induction(prompts, gen(), idle=7)
    F = Runner(crowd.model, crowd.tokens, crowd.metric, standins(crowd)["mean"])
    others = random_masks(crowd.model, crowd.nodes, sets, gen(1))
    return {
        "models": {
            name: {
                "nodes": [node_name(v) for v in p.nodes],
                "constant": [node_name(v) for v in p.constant],
                "all": len(nodes_of(p.model)),
                "F": ablation.whole(p.model, p.tokens, p.metric).mean().item(),
                "table": node_table(p),
                "edges": {kind: edge_table(p, kind) for kind in ("zero", "mean", "resample")},
            }
            for name, p in models.items()
        },
        "through": edge_table(models["conjunction"], "mean", "recomputed"),
        "repair": repair_table(models["backup"]),
        "half": half_a_circuit(models["backup"]),
        "criteria": criteria(F, masks(crowd.model, [crowd.nodes])[0], others),
    }
