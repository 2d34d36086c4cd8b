"""The measurement of chapter 11's name task: what the model can do, which heads do it, and how.

The heads are found on prompts of the training split and measured on other names and templates.
Errors are clustered by introduction: prompts of one template are not independent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from circuitbook import zoo
from circuitbook.circuits import ablation, criteria, direct, patching
from circuitbook.circuits.edges import edge_effects, edge_name
from circuitbook.circuits.faithful import Runner
from circuitbook.circuits.nodes import masks, node_name, nodes_of, random_masks
from circuitbook.cut import Head
from circuitbook.model import Transformer
from circuitbook.probe import clustered_mean
from circuitbook.tasks import names, names_circuit, names_rules
from circuitbook.tasks.names import SPLITS
from circuitbook.tasks.names_circuit import INPUTS, Found, Set

ROLE = "names-task"
SHARE = 0.05  # of F(M) - F(nothing): from which effect on a head counts; fixed before looking


def _mean(x: Tensor, cluster: Tensor) -> list[float]:
    """[mean, standard error by introduction]; absent places (NaN) are left out."""
    there = ~x.isnan()
    return list(clustered_mean(x[there].double().cpu(), cluster.cpu()[there])[:2])


# ---------------------------------------------------------------- what it can do


@torch.no_grad()
def logits_at_end(model: Transformer, p: names.Prompts) -> Tensor:
    """Logits after the last word, [prompt, d_vocab]."""
    width = int(p.end.max()) + 1
    tokens = torch.from_numpy(p.tokens[:, :width]).to(model.W_E.device)
    stream = model.stream(tokens)
    rows = torch.arange(len(tokens), device=stream.device)
    last = stream[rows, torch.from_numpy(p.end).to(stream.device)]  # [prompt, d_model]
    return model.unembed(last[:, None])[:, 0]


def accuracy(model: Transformer, p: names.Prompts) -> dict[str, Any]:
    """`accuracy_of` the model's logits after the last word."""
    return accuracy_of(logits_at_end(model, p).cpu(), p)


def accuracy_of(logits: Float[Tensor, "prompt d_vocab"], p: names.Prompts) -> dict[str, Any]:
    """Share of prompts whose largest logit is the answer's: of all words, and of the names there.

    By kind: where the third person stands. difference: logit of IO minus that of S.
    """
    cluster = torch.from_numpy(p.cluster)
    io, s = torch.from_numpy(p.io), torch.from_numpy(p.s)
    right = (logits.argmax(-1) == io).double()
    here = torch.zeros_like(logits, dtype=torch.bool)
    said = torch.from_numpy(np.where(names.is_name(p.tokens), p.tokens, p.io[:, None]))
    here.scatter_(1, said, True)
    present = (logits.masked_fill(~here, -torch.inf).argmax(-1) == io).double()
    rows, kind = torch.arange(len(io)), torch.from_numpy(p.kind)
    gap = logits[rows, io] - logits[rows, s]
    return {
        "all words": _mean(right, cluster),
        "names there": _mean(present, cluster),
        "kinds": {k: right[kind == i].mean().item() for i, k in enumerate(names.KINDS)},
        "difference": _mean(gap, cluster),
        "io over s": (gap > 0).double().mean().item(),
    }


def skill(model: Transformer, n: int) -> dict[str, Any]:
    """Accuracy in every split, rules of position on the same prompts, and four examples.

    unknown: accuracy with known names and an introduction whose phrase training never had.
    """
    train = names.prompts(min(n, 2000), np.random.default_rng(100), "seen")
    out: dict[str, Any] = {"n": n, "splits": {}, "rules": {}}
    for k, split in enumerate(SPLITS[1:]):
        p = names.prompts(n, np.random.default_rng(101 + k), split)
        out["splits"][split] = accuracy(model, p)
        if split == "unseen":
            out["rules"] = names_rules.rules(p, train)
            rng = np.random.default_rng(200)
            layouts = names.draw_layouts(n, rng, split, unknown=True)
            q = names.prompts(n, rng, "seen", layouts)
            out["unknown"] = (logits_at_end(model, q).argmax(-1).cpu().numpy() == q.io).mean()
            best = logits_at_end(model, p).argmax(-1).tolist()
            out["examples"] = [
                [names.words(p.tokens[i]), names.VOCAB[p.io[i]], names.VOCAB[best[i]]]
                for i in range(4)
            ]
    return out


# ---------------------------------------------------------------- which heads


def circuit(found: Found) -> dict[str, Any]:
    """The heads, and the effect of every head tried on every way, as shares of the whole."""
    return {
        "heads": [node_name(h) for h in found.heads],
        "share": found.share,
        "span": found.span,
        "ways": {
            node_name(h): {k: x.mean().item() / found.span for k, x in ways.items()}
            for h, ways in sorted(found.ways.items())
        },
        "others": max(
            (names_circuit.strength(w) for h, w in found.ways.items() if h not in found.heads),
            default=0.0,
        )
        / found.span,
    }


def drawn_edges(model: Transformer, data: Set, heads: list[Head]) -> dict[str, list[float]]:
    """Every edge among the heads and into the logits cut alone: [fall of IO - S, error].

    Resampled from renamed prompts, direct edge only, all that follows recomputed; shares of F(M).
    """
    whole = ablation.whole(model, data.tokens, data.metric).mean().item()
    into = [(*h, x) for h in heads for x in INPUTS]
    found = edge_effects(
        model, data.tokens, data.resample, data.metric, senders=heads, receivers=[*into, None]
    )
    return {edge_name(e): [v / whole for v in _mean(x, data.cluster)] for e, x in found.items()}


def composition(model: Transformer, data: Set, heads: list[Head]) -> dict[str, Any]:
    """All edges from earlier circuit heads into the q, or k, or v of one layer's, cut at once.

    "layer 1", "layer 2": the readers' layer -> input -> [fall of IO - S as a share of F(M), error].
    Resampled from renamed prompts at all places, direct edges only, what follows recomputed.
    """
    whole = ablation.whole(model, data.tokens, data.metric)
    out: dict[str, Any] = {}
    for layer in range(1, model.cfg.n_layers):
        readers = [h for h in heads if h[0] == layer]
        writers = [h for h in heads if h[0] < layer]
        row = out[f"layer {layer}"] = {into: [0.0, 0.0] for into in INPUTS}  # no edge: no fall
        if not readers or not writers:
            continue
        for into in INPUTS:
            after = patching.path_patch(
                model, data.tokens, data.resample, [writers],
                [(*h, into) for h in readers], data.metric,
            )[0]  # fmt: skip
            scale = whole.mean().item()
            row[into] = [v / scale for v in _mean(whole - after, data.cluster)]
    return out


def three_tests(
    model: Transformer, data: Set, heads: list[Head], sets: int, draws: int, seed: int = 0
) -> dict[str, Any]:
    """Faithfulness, completeness, minimality beside random sets (mean ablation), and faithfulness
    again with resampling and with zeros."""
    table = masks(model, [heads])[0]
    coins = torch.Generator().manual_seed(seed)
    others = random_masks(model, heads, sets, coins, fewer=True)
    F = Runner(model, data.tokens, data.metric, data.mean)
    out = criteria.criteria(F, table, others, draws=draws, cluster=data.cluster)
    zero = ablation.zero(model, data.tokens)
    some = torch.stack([table, torch.ones_like(table), torch.zeros_like(table)])
    for kind, standin in (("resample", data.resample), ("zero", zero)):
        G = Runner(model, data.tokens, data.metric, standin)
        C, M, none = G(some).tolist()
        out[kind] = {
            "circuit": C,
            "model": M,
            "nothing": none,
            "recovered": (C - none) / (M - none),
            "random": ((G(others) - none) / (M - none)).tolist(),
        }
    return out


# ---------------------------------------------------------------- what they do


def repair(model: Transformer, data: Set, heads: list[Head]) -> dict[str, Any]:
    """Direct attribution against mean ablation: each head alone, and movers together.

    A mover is a circuit head of the last layer that has one; strongest: by its direct term.

    predicted, actual: fall of IO - S, [mean, error]. gained: what other parts' terms rose by, the
    five largest. By an identity actual = predicted - sum of all that was gained.
    """
    clean = direct.attribute(model, data.tokens, data.question)
    terms = {h: clean.terms[node_name(h)].mean().item() for h in nodes_of(model)}
    last = max(layer for layer, _ in heads)
    movers = sorted((h for h in heads if h[0] == last), key=lambda h: -terms[h])
    cuts = {node_name(h): [h] for h in heads}
    cuts["two movers"], cuts["all movers"] = movers[:2], movers
    out: dict[str, Any] = {"terms": {node_name(h): x for h, x in terms.items()}, "cuts": {}}
    worst = late = 0.0
    scale = clean.total.abs().max()
    for name, cut in cuts.items():
        r = direct.self_repair(model, data.tokens, data.question, data.mean, cut)
        gained = {k: x.mean().item() for k, x in r.gained.items()}
        largest = sorted(gained, key=lambda k: -abs(gained[k]))[:5]
        total = sum(r.gained.values())
        worst = max(worst, ((r.predicted - total - r.actual).abs().max() / scale).item())
        if min(layer for layer, _ in cut) == model.cfg.n_layers - 1:  # nobody reads after them
            late = max(late, ((r.predicted - r.actual).abs().max() / scale).item())
        out["cuts"][name] = {
            "heads": [node_name(h) for h in cut],
            "predicted": _mean(r.predicted, data.cluster),
            "actual": _mean(r.actual, data.cluster),
            "made_up": _mean(r.predicted - r.actual, data.cluster),
            "gained": {k: gained[k] for k in largest},
        }
    out["strongest"] = node_name(movers[0])
    out["error"], out["late"] = worst, late
    return out


def looks(model: Transformer, data: Set, heads: list[Head]) -> dict[str, Any]:
    """Attention of the circuit's heads: from END and S2, on the prompts and on renamed ones."""
    out: dict[str, Any] = {}
    for name, tokens in (("prompts", data.tokens), ("renamed", data.renamed)):
        seen = names_circuit.attention(model, tokens, data.p, heads)
        out[name] = {
            h: {q: {k: _mean(x, data.cluster) for k, x in keys.items()} for q, keys in rows.items()}
            for h, rows in seen.items()
        }
    return out


def study(quick: bool = False) -> dict[str, Any]:
    """Everything about the name task, as plain numbers; about 25 s on two idle cores.

    quick: few prompts and sets, for a rehearsal.
    """
    model = zoo.load(ROLE)
    each, many, few, sets = (2, 200, 1, 10) if quick else (10, 2000, 3, 100)
    unseen = names_circuit.make(model, names_circuit.layouts_of("unseen", each, 2), 2, 3)
    # many sets are run on few prompts, and short ones
    brief = names_circuit.layouts_of("unseen", few, 4, short=True)
    small = names_circuit.make(model, brief, 1, 5)
    search = names_circuit.layouts_of("seen", each, 0)
    found = names_circuit.find(model, names_circuit.make(model, search, 2, 1, "seen"), SHARE)
    heads = found.heads
    return {
        "role": ROLE,
        "layers": model.cfg.n_layers,
        "heads": model.cfg.n_heads,
        "names": len(names.NAMES),
        "held_names": len(names.HELD_OUT_NAMES),
        "templates": len(names.text.INTROS) * len(names.text.ACTIONS),
        "held_introductions": len(names.text.HELD_OUT_INTROS),
        "held_templates": len(names.text.HELD_OUT_INTROS) * len(names.text.HELD_OUT_ACTIONS),
        "skill": skill(model, many),
        "circuit": circuit(found),
        "edges": drawn_edges(model, small, heads),
        "composition": composition(model, unseen, heads),
        "tests": three_tests(model, small, heads, sets, draws=2),
        "repair": repair(model, unseen, heads),
        "attention": looks(model, unseen, heads),
    }
