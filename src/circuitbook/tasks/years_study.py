"""The study of the greater-than model: one call, plain numbers.

Order: can it do the task and could it be cheated; what removing each node costs, by three
stand-ins; the edges; a circuit found on other prompts than it is judged on, beside all other sets
of its size (there are fewer than a hundred); who writes the step; whether neurons are thresholds;
what direct attribution promises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from circuitbook import zoo
from circuitbook.circuits import ablation, direct
from circuitbook.circuits.criteria import criteria
from circuitbook.circuits.edges import edge_effects, edge_name
from circuitbook.circuits.nodes import MLP, masks, node_name, nodes_of, random_like
from circuitbook.model import Transformer
from circuitbook.stream import heads_of
from circuitbook.tasks import years, years_neurons
from circuitbook.tasks.years_circuit import (
    ROLES,
    Maps,
    Setting,
    bodies,
    everything,
    find_circuit,
    kinds,
    logit_maps,
    runner,
    setting,
    step,
    summary,
    value_maps,
)
from circuitbook.tasks.years_rules import accuracy, baselines, scores_below

ROLE = "years-task"
QUESTIONS = {"above": "heldout", "below": "below"}  # the second on training sentences


def study(
    model: Transformer | None = None,
    *,
    prompts: int = 48,
    judged: int = 16,
    random_sets: int = 100,
    scored: int = 1000,
    layouts: int = 4,
    seed: int = 0,
) -> dict[str, Any]:
    """All numbers of the greater-than part. model: default the bundled one.

    prompts: for ablations and edges. judged: for the criteria (many passes). scored: for the
    accuracy of each split. layouts: prompts for each YY in the logit maps.
    """
    model = zoo.load(ROLE) if model is None else model
    at = {name: setting(model, prompts, seed, split) for name, split in QUESTIONS.items()}
    maps = {name: logit_maps(model, layouts, seed, split) for name, split in QUESTIONS.items()}
    values = {name: value_maps(model, layouts, seed, split) for name, split in QUESTIONS.items()}
    cut = {name: ablations(model, x) for name, x in at.items()}
    # the MLP that the question "below" needs most, and where
    mlps = [node for node in nodes_of(model) if node[1] == MLP]
    most = max(mlps, key=lambda node: cut["below"]["mean"][node_name(node)]["drop"]["mean"])
    return {
        "sizes": {
            "nouns": len(years.NOUNS),
            "centuries": len(years.CENTURIES),
            "training bodies": len(years.TRAIN_BODIES),
            "held-out bodies": len(years.HELD_OUT_BODIES),
            "openers": len(years.OPENERS),
            "shortest": int(years.LENGTHS.min()),
            "longest": int(years.LENGTHS.max()),
            "near": years.NEAR,
            "prompts": prompts,
            "judged": judged,
        },
        "accuracy": accuracy(model, scored, seed),
        "below": scores_below(model, scored, seed),
        "rules": baselines(scored, seed),
        "cells": everything(model).numel(),
        "looks": {name: looks(model, x) for name, x in at.items()},
        "ablation": cut,
        "edges": {name: edges(model, x) for name, x in at.items()},
        "criteria": {
            name: judged_circuit(model, split, judged, random_sets, seed)
            for name, split in QUESTIONS.items()
        },
        "maps": {name: thin(x) for name, x in values.items()},
        "steps": {name: steps(x) for name, x in maps.items()},
        "value steps": {name: steps(x) for name, x in values.items()},
        "turning": node_name(most),
        "neurons": years_neurons.neurons(model, at["below"], most[0], "year_at", layouts, seed),
        "repair": {name: repair(model, x) for name, x in at.items()},
    }


def judged_circuit(
    model: Transformer, split: str, judged: int, random_sets: int, seed: int
) -> dict[str, Any]:
    """The circuit of one question, found on some prompts and judged on others, by two stand-ins."""
    search, judge = setting(model, judged, seed + 1, split), setting(model, judged, seed + 2, split)
    circuit = find_circuit(runner(model, search, search.mean))
    coins = torch.Generator().manual_seed(seed)
    other = random_like(circuit, random_sets, coins, kinds=kinds(model), fewer=True)
    return {
        name: criteria(
            runner(model, judge, standin),
            circuit,
            other,
            draws=2,
            search=32,
            roles=ROLES,
            cluster=bodies(judge.prompts),
        )
        for name, standin in (("resample", judge.other), ("mean", judge.mean))
    }


@torch.no_grad()
def looks(model: Transformer, at: Setting) -> dict[str, dict[str, float]]:
    """Mean attention of each head: from the end to YY, to other years, to itself; from YY to the
    word that marks it (two places before)."""
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.cfg.n_layers)]
    given = at.prompts
    _, cache = model.run_with_cache(given.tokens, return_type="logits", names_filter=names)
    rows, out = torch.arange(len(given.tokens)), {}
    for layer, h in heads_of(model):
        A = cache[names[layer]][:, h]
        end, year = A[rows, given.end], A[rows, given.year_at]
        out[node_name((layer, h))] = {
            "end to YY": end[rows, given.year_at].mean().item(),
            "end to other years": (end * given.distractor).sum(-1).mean().item(),
            "end to itself": end[rows, given.end].mean().item(),
            "YY to its marker": year[rows, given.year_at - 2].mean().item(),
        }
    return out


def ablations(model: Transformer, at: Setting) -> dict[str, Any]:
    """near_gap and P(> YY) - P(<= YY) without each node, and without all heads or all MLPs.

    Stand-ins: mean (of the layout), "01" (the same prompt with YY = 01), twin (another noun,
    century and YY), zero. Cut: the whole write at all positions. Recomputed: everything after.
    "drop" is paired over prompts.
    """
    heads, every = list(heads_of(model)), nodes_of(model)
    mlps = [node for node in every if node[1] == MLP]
    sets = {node_name(n): [n] for n in every}
    sets |= {"all heads": heads, "all MLPs": mlps, "everything": every}
    keep = ~masks(model, list(sets.values()))
    standins = {
        "mean": at.mean, "01": at.other, "twin": at.twin,
        "zero": ablation.zero(model, at.prompts.tokens),
    }  # fmt: skip
    tokens, body = at.prompts.tokens, bodies(at.prompts)
    clean = {
        "near": ablation.whole(model, tokens, at.near),
        "gap": ablation.whole(model, tokens, at.gap),
    }
    out: dict[str, Any] = {"clean": {name: summary(x, body) for name, x in clean.items()}}
    for kind, standin in standins.items():
        near = ablation.evaluate(model, tokens, at.near, standin, keep)
        out[kind] = {
            name: {"near": row.mean().item(), "drop": summary(clean["near"] - row, body)}
            for name, row in zip(sets, near, strict=True)
        }
        gap = ablation.evaluate(model, tokens, at.gap, standin, keep[-3:])
        for name, row in zip(list(sets)[-3:], gap, strict=True):
            out[kind][name]["gap"] = row.mean().item()
    return out


def edges(model: Transformer, at: Setting, n: int = 24, top: int = 12) -> dict[str, Any]:
    """The strongest edges by path patching from the "01" prompts; MLPs frozen: direct edges only.

    Effect: how much near_gap falls when the sender's "01" write reaches this receiver alone.
    """
    few = ablation.Standin(*(_first(x, n) for x in at.other))
    effects = edge_effects(model, at.prompts.tokens[:n], few, at.near)
    means = {edge_name(e): x.double().mean().item() for e, x in effects.items()}
    order = sorted(means, key=lambda name: -abs(means[name]))
    return {
        "edges": len(means),
        "prompts": n,
        "strongest": {name: means[name] for name in order[:top]},
        "median": float(np.median(np.abs(list(means.values())))),
    }


def _first(x: Any, n: int) -> Any:
    return x if isinstance(x, str) else [part[:n] for part in x]


def thin(maps: Maps, every: int = 3) -> dict[str, Any]:
    """Every third YY and answer year of the total and of each part that counts; two decimals."""
    rows = slice(every - 1, None, every)

    def small(table: Tensor) -> list[list[float]]:
        return [[round(x, 2) for x in row] for row in table[rows, ::every].tolist()]

    shown = {"all": maps.total} | maps.parts
    return {
        "yy": maps.yy[rows].tolist(),
        "year": list(range(0, 100, every)),
        "tables": {name: small(table) for name, table in shown.items()},
    }


def steps(maps: Maps) -> dict[str, Any]:
    """The step at the cut-off, part by part; and the same for a shuffled YY, as a control.

    An identity in the logits of the untouched model: the parts sum to the total. "shuffled" gives
    each row of the total the cut-off of another YY.
    """
    parts = {name: step(x, maps.yy).mean().item() for name, x in maps.parts.items()}
    order = torch.randperm(len(maps.yy), generator=torch.Generator().manual_seed(0))
    total = step(maps.total, maps.yy)
    error = (sum(step(x, maps.yy) for x in maps.parts.values()) - total).abs().max()
    return {
        "parts": parts,
        "total": total.mean().item(),
        "least": total.min().item(),
        "shuffled": step(maps.total[order], maps.yy).mean().item(),
        "error": error.item() / maps.scale,
    }


def repair(model: Transformer, at: Setting) -> dict[str, Any]:
    """Direct attribution against mean ablation, for the head and the MLP that cost most.

    The question: the logit of YY + 2 minus that of YY - 2 (or the other way round). Cut: the write
    at all positions, its mean over the layout instead; everything after is recomputed.
    """
    given = at.prompts
    high, low = years.YEAR_0 + given.yy + 2, years.YEAR_0 + given.yy - 2
    right, wrong = (low, high) if at.split == "below" else (high, low)
    question = direct.Question(given.end, right, wrong)
    out: dict[str, Any] = {}
    every = nodes_of(model)
    found = {n: direct.self_repair(model, given.tokens, question, at.mean, [n]) for n in every}
    for kind in ("head", "MLP"):
        group = [n for n in every if (n[1] == MLP) == (kind == "MLP")]
        node = max(group, key=lambda n: found[n].actual.mean().item())
        r = found[node]
        gained = {name: x.mean().item() for name, x in r.gained.items()}
        most = max(gained, key=lambda name: abs(gained[name]))
        out[kind] = {
            "node": node_name(node),
            "predicted": summary(r.predicted, bodies(given)),
            "actual": summary(r.actual, bodies(given)),
            "difference": summary(r.actual - r.predicted, bodies(given)),
            "repaired share": r.share,
            "moved most": most,
            "by": gained[most],
        }
    return out


def claims(d: Mapping[str, Any]) -> list[dict]:
    """The claims of this part; see years_claims."""
    from circuitbook.tasks import years_claims

    return years_claims.claims(d)
