"""The measurement of chapter 09's graphs: built, pruned, described, and put to the test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from circuitbook import corpus, cut, spine, tokenizer, zoo
from circuitbook.attribution import graph as graphs
from circuitbook.attribution import label, prune, switch
from circuitbook.attribution.claims import claims
from circuitbook.attribution.graph import Frozen, Graph, Transcoder
from circuitbook.attribution.held import back
from circuitbook.autoencoders import bundle
from circuitbook.layers import plus
from circuitbook.model import Transformer

ROLE = "gelu-2l"
SALLY = spine.TEMPLATE.format(title="Aunt", name="Sally")
# Name, text, and the token that should follow. Chosen by hand: a name prompt of the spine, and
# three whose answer the model gives with confidence. "prize" is a phrase of a held-out article.
PROMPTS = (
    ("Sally", SALLY, " Sally"),
    ("prize", "She was awarded the 2015 Nobel Prize in Liter", "ature"),
    ("self", "class Tree:\n    def __init__(", "self"),
    ("God", "I am the LORD thy", " God"),
)
RANDOM = 20  # random writes as long as the latent's, taken away in its place
FACTORS = (1.0, 0.75, 0.5, 0.25, 0.0, -0.5, -1.0)


class Built(NamedTuple):
    """One prompt with its graph."""

    name: str
    answer: int
    frozen: Frozen
    graph: Graph
    pruned: prune.Pruned


def load(dtype: torch.dtype = torch.float32) -> tuple[Transformer, list[Transcoder]]:
    """The model and its two transcoders, on the CPU: the prompts are short."""
    names = [f"transcoder-{ROLE}-{l}" for l in (0, 1)]
    model = zoo.load(ROLE, dtype=dtype, device="cpu")
    return model, [bundle.load(name).to(dtype) for name in names]


def built(
    model: Transformer,
    transcoders: Sequence[Transcoder],
    prompt: tuple[str, str, str],
    nodes: int,
    edges: int,
) -> Built:
    """The whole graph of one prompt, and which part of it is kept."""
    name, text, answer = prompt
    tok = tokenizer.load()
    tokens = torch.tensor(tok.encode(text))
    frozen = graphs.freeze(model, transcoders, tokens)
    whole = graphs.build(model, transcoders, frozen, tok.token(answer))
    return Built(name, tok.token(answer), frozen, whole, prune.prune(whole, nodes, edges))


# ---------------------------------------------------------------- as data


def _short(value: Any) -> Any:
    """Four decimals: pictures and lists need no more, and the file stays small."""
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_short(v) for v in value]
    return round(value, 4) if isinstance(value, float) else value


def as_data(model: Transformer, b: Built) -> dict[str, Any]:
    """The pruned graph as columns of numbers, with the sums of what was dropped.

    value: a latent's activation, an error's norm, the logit minus the mean logit. into, dropped:
    sums of kept and of dropped edges into the node (0 where nothing enters).
    """
    tok, g, p = tokenizer.load(), b.graph, b.pruned
    keep = p.keep.nonzero()[:, 0].tolist()
    place = {old: new for new, old in enumerate(keep)}
    value = g.value.clone()
    for i in g.of("error"):
        n = g.nodes[i]
        value[i] = b.frozen.error[n.layer][n.pos].norm()
    nodes = [g.nodes[i] for i in keep]
    source, target = p.edges.T.nonzero().T.tolist()
    # Order: by target, then by source, so that the list reads like the sums.
    order = sorted(range(len(source)), key=lambda e: (target[e], source[e]))
    into = (g.edges * p.edges).sum(1)
    p_answer = plus(b.frozen.last @ model.W_U, model.unembed.b_U).softmax(0)
    return {
        "tokens": [tok.text(t) for t in b.frozen.tokens.tolist()],
        "answer": tok.text(b.answer),
        "p": p_answer[b.answer],
        "rank": 1 + int((p_answer > p_answer[b.answer]).sum()),
        "logit": g.value[-1],
        "nodes": {
            "kind": [n.kind for n in nodes],
            "layer": [n.layer for n in nodes],
            "pos": [n.pos for n in nodes],
            "index": [n.index for n in nodes],
            "value": _short(value[keep]),
            "influence": _short(p.influence[keep]),
            "into": _short(into[keep]),
            "dropped": _short(p.dropped[keep]),
        },
        "edges": {
            "source": [place[source[e]] for e in order],
            "target": [place[target[e]] for e in order],
            "weight": _short([g.edges[target[e], source[e]].item() for e in order]),
        },
        "whole": {
            "nodes": len(g.nodes),
            "edges": int((g.edges != 0).sum()),
            "latents": [len(g.of("latent", l)) for l in range(model.cfg.n_layers)],
            "node_share": p.node_share,
            "edge_share": p.edge_share,
            "into_logit": list(p.into_logit),
            "bos_errors": sum(p.influence[i].item() for i in g.of("error") if not g.nodes[i].pos),
        },
        "leaves": prune.leaf_shares(g),
    }


def wanted(all_built: Sequence[Built], layers: int, extra: Sequence[tuple[int, int]]) -> list:
    """Per layer the indices of all latents that a pruned graph keeps, and of `extra` ones."""
    kept = {
        (n.layer, n.index)
        for b in all_built
        for i, n in enumerate(b.graph.nodes)
        if n.kind == "latent" and bool(b.pruned.keep[i])
    } | set(extra)
    return [sorted(i for l, i in kept if l == layer) for layer in range(layers)]


# ---------------------------------------------------------------- dictionaries that explain nothing


def controls(transcoders: Sequence[Transcoder]) -> dict[str, list[Transcoder]]:
    """Two sets of dictionaries for comparison, of the same shapes.

    "no latents": none is ever on, so all that an MLP writes, but for b_dec, is error.
    "shuffled": the same encoder, but latents write each other's rows of W_dec (seeded).
    """
    generator = torch.Generator().manual_seed(0)
    silent, shuffled = [], []
    for t in transcoders:
        order = torch.randperm(len(t.W_dec), generator=generator)
        silent.append(replace(t, W_enc=torch.zeros_like(t.W_enc), b_enc=-torch.ones_like(t.b_enc)))
        shuffled.append(replace(t, W_dec=t.W_dec[order]))
    return {"no latents": silent, "shuffled": shuffled}


def control_errors(
    model: Transformer, transcoders: Sequence[Transcoder], b: Built
) -> tuple[dict[str, float], float]:
    """(share of influence that errors hold with each control, largest error of the sums)."""
    out, worst = {}, 0.0
    for name, others in controls(transcoders).items():
        frozen = graphs.freeze(model, others, b.frozen.tokens)
        g = graphs.build(model, others, frozen, b.answer)
        worst = max(worst, graphs.sum_error(g))
        leaves = prune.leaf_shares(g)
        out[name] = sum(v for k, v in leaves.items() if k.startswith("errors"))
    return out, worst


# ---------------------------------------------------------------- tests of the prediction


def edges_off(
    model: Transformer, transcoders: Sequence[Transcoder], b: Built, n: int
) -> tuple[dict[str, Any], float]:
    """(the n strongest latent-to-latent edges switched off, the frozen run's largest error)."""
    some = switch.strongest_edges(b.graph, n)
    found = switch.edges_off(model, transcoders, b.frozen, b.graph, some)
    error = (found["edge"] - found["patterns held"]).abs().max() / found["before"].abs().max()
    nodes = b.graph.nodes
    return {
        "source": [_where(nodes[s]) for s, _ in some],
        "target": [_where(nodes[t]) for _, t in some],
        **{k: _short(found[k]) for k in ("edge", "re-run", "before", "after")},
    }, error.item()


def _where(node: graphs.Node) -> str:
    return f"{node.layer}.{node.index} @ {node.pos}"


def nodes_off(
    model: Transformer, transcoders: Sequence[Transcoder], b: Built, n: int
) -> tuple[dict[str, Any], float]:
    """(n first-layer latents of largest predicted effect, off at every level, replay's error).

    Numbers are falls of the centred logit. The graph's prediction is "all held". Latents of the
    last layer would be no test: nothing reads them but the logit, so every level agrees.
    direct: the edge into the logit alone, without paths through later latents. skip: what the
    latent's row writes into the last stream itself. It is in the prediction and the same at every
    level, so it is no test either; 0 for a latent before the last position.
    """
    effect = switch.total_effect(b.graph)
    latents = torch.tensor(b.graph.of("latent", 0))
    order = effect[latents].abs().argsort(descending=True, stable=True)[:n]
    some = latents[order].tolist()
    nodes = [b.graph.nodes[i] for i in some]
    levels = switch.all_levels(model, transcoders, b.frozen, nodes, [0.0] * len(nodes))
    falls = {
        name: b.graph.value[-1] - switch.logit_of(model, after, b.answer)[0]
        for name, after in levels.items()
    }
    error = (falls["all held"] - effect[some]).abs().max() / b.graph.value[-1].abs()
    u = back(model.ln_final, graphs.direction(model, b.answer), b.frozen.scales.last)
    rows = torch.stack([transcoders[0].W_dec[x.index] for x in nodes]) @ u
    ends = torch.tensor([x.pos == len(b.frozen.tokens) - 1 for x in nodes])
    return {
        "node": [_where(x) for x in nodes],
        "predicted": _short(effect[some]),
        "direct": _short(b.graph.edges[-1, some]),
        "skip": _short(b.graph.value[some] * rows * ends),
    } | {name: _short(falls[name]) for name in switch.LEVELS[1:]}, error.item()


def hidden_step(graph: Graph) -> int:
    """The first-layer latent that does most for the logit *through later latents*, in size."""
    through = switch.total_effect(graph) - graph.edges[-1]
    first = graph.of("latent", 0)
    return first[int(through[first].abs().argmax())]


def turn_down(
    model: Transformer, transcoders: Sequence[Transcoder], b: Built
) -> tuple[dict[str, Any], tuple[int, int], list[tuple[int, int]]]:
    """(one hidden step scaled by FACTORS at every level, the latent, the later latents it feeds).

    followers: the later latents that carry most of its effect; their activation before and after
    it is switched off, with patterns held (the edge) and run again.
    restored: the fall when it is switched off and run again, but the last MLP writes what it wrote.
    random: falls when random writes as long as the latent's are taken away in its place, run again.
    """
    s = hidden_step(b.graph)
    node, effect = b.graph.nodes[s], switch.total_effect(b.graph)
    levels = switch.all_levels(model, transcoders, b.frozen, [node] * len(FACTORS), list(FACTORS))
    out: dict[str, Any] = {
        "node": _where(node),
        "layer": node.layer,
        "index": node.index,
        "pos": node.pos,
        "value": b.graph.value[s],
        "total": effect[s],
        "direct": b.graph.edges[-1, s],
        "factors": list(FACTORS),
    }
    for name, after in levels.items():
        logit, _, p = switch.logit_of(model, after, b.answer)
        out[name] = {"logit": _short(logit), "p": _short(p)}
    held = switch.hold_write(transcoders, b.frozen, model.cfg.n_layers - 1)
    off = switch.run_scaled(
        model, transcoders, b.frozen, [node], [0.0], hold_patterns=False, also=held
    )
    out["restored"] = b.graph.value[-1] - graphs.centred_logit(model, off.last[0], b.answer)
    write = b.graph.value[s] * transcoders[node.layer].W_dec[node.index]
    without = switch.run_without(model, b.frozen, node, switch.random_writes(write, RANDOM))
    out["random"] = _short(b.graph.value[-1] - graphs.centred_logit(model, without, b.answer))
    later = b.graph.of("latent", 1)
    value = b.graph.value
    carries = b.graph.edges[later, s] / value[later] * effect[later]
    best = [later[i] for i in carries.abs().argsort(descending=True, stable=True)[:4].tolist()]
    found = switch.edges_off(model, transcoders, b.frozen, b.graph, [(s, t) for t in best])
    out["followers"] = {"node": [_where(b.graph.nodes[t]) for t in best]} | {
        k: _short(found[k]) for k in ("before", "edge", "re-run", "after")
    }
    return out, (node.layer, node.index), [b.graph.nodes[t][1::2] for t in best]


@torch.no_grad()
def blind(model: Transformer, transcoders: Sequence[Transcoder], b: Built) -> dict[str, Any]:
    """The previous-token head cut out of the induction head's keys: the graph, and the model.

    changed: edges that differ, bit for bit, when the cut is made with patterns frozen.
    """
    pair = spine.heads_pair(model, 8)
    k_cut = cut.cut_path(model, *pair, "k")
    held = k_cut + cut.freeze_patterns(model, b.frozen.tokens[None])
    under = graphs.freeze(model, transcoders, b.frozen.tokens, held)
    again = graphs.freeze(model, transcoders, b.frozen.tokens, k_cut)
    same = graphs.build(model, transcoders, under, b.answer)
    rerun = graphs.build(model, transcoders, again, b.answer)
    at = int((b.frozen.tokens == b.answer).nonzero()[0])
    return {
        "pair": [f"{l}.{h}" for l, h in pair],
        "changed": int((same.edges != b.graph.edges).sum()) if _same(same, b.graph) else -1,
        "edges": int((b.graph.edges != 0).sum()),
        "name": [b.graph.edges[-1, at], rerun.edges[-1, at]],
        "p": [_p(model, b.frozen, b.answer), _p(model, again, b.answer)],
        "attention": [f.patterns[1][pair[1][1], -1, at] for f in (b.frozen, again)],
    }


def _same(a: Graph, b: Graph) -> bool:
    return a.nodes == b.nodes


def _p(model: Transformer, frozen: Frozen, answer: int) -> Tensor:
    return plus(frozen.last @ model.W_U, model.unembed.b_U).softmax(0)[answer]


# ---------------------------------------------------------------- all of it


def study(
    nodes: int = 20, edges: int = 72, tested: int = 10, windows: int = 256
) -> tuple[dict[str, Any], list[dict]]:
    """(data, claims). nodes, edges: how much of each graph is kept. tested: edges and latents of
    each prompt that are switched off. windows: held-out text behind the latents' labels.
    """
    model, transcoders = load()
    some = [built(model, transcoders, prompt, nodes, edges) for prompt in PROMPTS]
    exact, exact_transcoders = load(torch.float64)
    short = built(exact, exact_transcoders, PROMPTS[2], nodes, edges)
    errors = {
        "sum": max(graphs.sum_error(b.graph) for b in some),
        "sum64": graphs.sum_error(short.graph),
        "leaves": max(abs(sum(prune.leaf_shares(b.graph).values()) - 1) for b in some),
        "edge": 0.0,
        "replay": 0.0,
    }
    names = ("prompts", "controls", "edges_off", "nodes_off", "hidden")
    data: dict[str, Any] = {name: {} for name in names}
    extra: list[tuple[int, int]] = []
    for b in some:
        data["prompts"][b.name] = as_data(model, b)
        data["controls"][b.name], others = control_errors(model, transcoders, b)
        errors["sum"] = max(errors["sum"], others)
        data["edges_off"][b.name], edge = edges_off(model, transcoders, b, tested)
        data["nodes_off"][b.name], replay = nodes_off(model, transcoders, b, tested)
        errors["edge"], errors["replay"] = max(errors["edge"], edge), max(errors["replay"], replay)
        data["hidden"][b.name], step, followers = turn_down(model, transcoders, b)
        extra += [step, *followers]
    data["blind"] = blind(model, transcoders, some[0])
    text = torch.from_numpy(corpus.heldout_windows(windows, length=128).tokens)
    chosen = wanted(some, model.cfg.n_layers, extra)
    data["latents"] = label.describe(model, transcoders, text, chosen)
    data["width"] = [t.W_dec.shape[0] for t in transcoders]
    return data, claims(data, errors)
