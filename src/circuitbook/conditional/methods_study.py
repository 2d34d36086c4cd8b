"""Four patching methods on the same prompt pairs, the same components and the same metric.

Two tasks, each a pair of prompts of one layout; `tokens` is the run that is changed, `others` the
one that answers rightly:

    name exchanged   "... visiting Aunt Mary. ... Aunt": the other run has another name there. What
                     is copied changes; where the heads look does not
    match broken     random words, some of them twice. In `tokens` the earlier copy of the last word
                     is another word, so nothing says what follows: where a head looks changes

Metric: logit of the right word minus logit of a wrong one. Of a name: the other name. Of a broken
match: a word that stands in the text as often.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook import corpus, spine, tokenizer, zoo
from circuitbook.circuits import ablation, patching
from circuitbook.circuits.metrics import Metric, logit_difference
from circuitbook.circuits.nodes import MLP, Node, masks, node_name, nodes_of
from circuitbook.composition.edges import rank_correlation
from circuitbook.conditional import methods
from circuitbook.conditional.methods_claims import CONTENT, REASON, claims
from circuitbook.curves import Bench
from circuitbook.model import Transformer

WAYS = ("attribution", "integrated", "direct")  # compared with activation patching


class Task(NamedTuple):
    """Prompt pairs, both of one layout, read at the last position."""

    tokens: Int[Tensor, "prompt pos"]
    others: Int[Tensor, "prompt pos"]
    right: Int[Tensor, " prompt"]
    wrong: Int[Tensor, " prompt"]

    @property
    def metric(self) -> Metric:
        """Logit of right minus logit of wrong, at the last position."""
        at = torch.full((len(self.tokens),), self.tokens.shape[1] - 1)
        return logit_difference(at, self.right, self.wrong)


def logit_of(
    model: Transformer, task: Task, tokens: Int[Tensor, "prompt pos"]
) -> Float[Tensor, " prompt"]:
    """The task's metric in a run on these tokens."""
    device = model.W_E.device
    rows = torch.arange(len(tokens), device=device)
    return task.metric(model, model.stream(tokens.to(device)), rows)


def name_pairs(p: spine.Prompts) -> list[tuple[int, int]]:
    """Numbers of two prompts with one title; no prompt is in two pairs."""
    pairs = []
    for female in (True, False):
        ids = [i for i, f in enumerate(p.female) if f == female]
        pairs += list(zip(ids[0::2], ids[1::2], strict=False))
    return pairs


def exchanged_names(n: int) -> Task:
    """n pairs of the spine's prompts that differ in the name alone; no name is in two pairs."""
    p = spine.name_prompts()
    pairs = name_pairs(p)
    if n > len(pairs):
        raise ValueError(f"there are {len(pairs)} pairs of names, {n} were asked for")
    step = len(pairs) / n  # spread over both titles
    a, b = (torch.tensor([pairs[int(i * step)][side] for i in range(n)]) for side in (0, 1))
    return Task(p.tokens[b], p.tokens[a], p.answer[a], p.answer[b])


def broken_match(n: int, seed: int, *, block: int = 12, filler: int = 30) -> Task:
    """n sequences: filler, a block of distinct words, filler, and half of the block again.

    The last word occurs once before; `others` is the sequence, in `tokens` that earlier copy is a
    word that stands nowhere else. right: what followed it. wrong: the block's last word. Where the
    block begins differs between the sequences.
    """
    generator, pool = torch.Generator().manual_seed(seed), torch.as_tensor(Bench.frequent(500))
    keys = torch.rand(n, len(pool), generator=generator)
    drawn = pool[keys.argsort(-1)[:, : block + filler + 1]]
    words, fill, new = drawn[:, :block], drawn[:, block:-1], drawn[:, -1]
    before, half = torch.randint(0, filler - 7, (n,), generator=generator), block // 2
    start = torch.tensor([tokenizer.load().bos])
    others = torch.stack(
        [
            torch.cat([start, fill[i, :k], words[i], fill[i, k:], words[i, :half]])
            for i, k in enumerate(before.tolist())
        ]
    )
    tokens = others.clone()
    tokens[torch.arange(n), before + half] = new
    return Task(tokens, others, words[:, half], words[:, -1])


def two_texts(n: int, seed: int, length: int = 24) -> Task:
    """n pairs of openings of held-out windows, each pair from two documents; the answer moves too.

    right, wrong: the token that follows in `others`, in `tokens`. A large change of everything.
    """
    tokens = torch.from_numpy(corpus.heldout_windows(2 * n, length=length + 1, seed=seed).tokens)
    text, follows = tokens[:, :-1], tokens[:, -1]
    return Task(text[0::2], text[1::2], follows[1::2], follows[0::2])


def study(*, prompts: int = 24, steps: int = 8, seed: int = 0) -> tuple[dict[str, Any], list[dict]]:
    """(data, claims) of both tasks on the two-layer models, and the worst cases of first order.

    Another tokenizer may know fewer names: then there are fewer pairs of name prompts.
    """
    named = min(prompts, len(name_pairs(spine.name_prompts())))
    tasks = {CONTENT: exchanged_names(named), REASON: broken_match(prompts, seed)}
    models = {role: zoo.load(role) for role in ("attn-only-2l", "gelu-2l")}
    d: dict[str, Any] = {"steps": steps, "prompts": prompts, "runs": {}}
    for role, model in models.items():
        pair = spine.heads_pair(model)
        d["runs"][role] = {
            name: one(model, task, steps, pair, seed) for name, task in tasks.items()
        }
    d["cases"] = {
        "largest": worst_case(models["attn-only-2l"], tasks[REASON]),
        "signs": worst_case(models["gelu-2l"], tasks[CONTENT], signed=True),
    }
    return d, claims(d)


# ---------------------------------------------------------------- one task, one model


def linear_by_construction(model: Transformer, node: Node) -> bool:
    """True when the logits are linear in the node's write: then first order cannot be wrong."""
    last = node[0] == model.cfg.n_layers - 1 and model.cfg.norm == "none"
    return last and (model.cfg.attn_only or node[1] == MLP)


def _timed(run: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    return run(), time.perf_counter() - start


def four_ways(model: Transformer, task: Task, steps: int) -> dict[str, Any]:
    """The four methods, [node, prompt] each, with passes counted and seconds taken in this run.

    "activation": restore, F(tokens with the write of others) - F(tokens). "break": F(others) -
    F(others with the write of tokens); "attribution, other end": its first order.
    """
    t, o, metric, n = task.tokens, task.others, task.metric, len(task.tokens)
    with torch.no_grad():
        before, after = (logit_of(model, task, x) for x in (t, o))
    runs: dict[str, Callable[[], Any]] = {
        "activation": lambda: patching.patch_nodes(model, t, o, metric) - before,
        "direct": lambda: (
            patching.path_patch(model, t, o, nodes_of(model), None, metric, mlps="frozen") - before
        ),
        "attribution": lambda: methods.attribution_patching(model, t, o, metric),
        "integrated": lambda: methods.integrated_gradients(model, t, o, metric, steps=steps),
    }
    found, passes, seconds = {}, {}, {}
    for name, run in runs.items():
        with methods.counting(model) as count:
            found[name], seconds[name] = _timed(run)
        passes[name] = [count.forward / n, count.backward / n]
    whole = found.pop("integrated")
    found["integrated"] = whole.own
    found["break"] = after - patching.patch_nodes(model, o, t, metric)
    found["attribution, other end"] = -methods.attribution_patching(model, o, t, metric)
    change = after - before
    missing = [(s - change).abs().mean() / change.abs().mean() for s in whole.sums.values()]
    return {"effects": found, "change": change, "before": before, "passes": passes,
            "seconds": seconds, "incomplete": max(missing).item()}  # fmt: skip


def bootstrap(n: int, draws: int, seed: int) -> np.ndarray:
    """[draws, n] prompt numbers drawn with replacement."""
    return np.random.default_rng(seed).integers(0, n, (draws, n))


def interval(values: np.ndarray, level: float = 0.95) -> list[float]:
    """The middle share of bootstrap values."""
    return [float(x) for x in np.quantile(values, [(1 - level) / 2, (1 + level) / 2])]


def agreement(
    estimate: np.ndarray, truth: np.ndarray, change: np.ndarray, draws: np.ndarray
) -> dict[str, Any]:
    """How an estimate [node, prompt] agrees with activation patching, each with an interval.

    rank: Spearman over nodes of their means over prompts. error: mean |estimate - truth| over mean
    |truth|. worst: the largest mean |estimate - truth| of one node over mean |change|. Intervals
    by drawing prompts again; the nodes are all there are, so they are not drawn.
    """

    def of(index: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        e, t = (x[:, index].mean(-1).T for x in (estimate, truth))  # [draw, node]
        gap = np.abs(estimate - truth)[:, index].mean(-1).T
        size = np.abs(truth)[:, index].mean(-1).T
        whole = np.abs(change)[index].mean(-1)
        return rank_correlation(e, t), gap.mean(-1) / size.mean(-1), gap.max(-1) / whole

    once = of(np.arange(estimate.shape[1])[None])
    many = of(draws)
    names = ("rank", "error", "worst")
    return {k: [float(x[0]), *interval(y)] for k, x, y in zip(names, once, many, strict=True)}


def one(
    model: Transformer,
    task: Task,
    steps: int,
    pair: tuple[Node, Node],
    seed: int,
    draws: int = 1000,
) -> dict[str, Any]:
    """What the lesson shows of one model on one task."""
    ran = four_ways(model, task, steps)
    effects = {k: x.double().cpu().numpy() for k, x in ran["effects"].items()}
    change = ran["change"].double().cpu().numpy()
    index = bootstrap(len(change), draws, seed)
    nodes = nodes_of(model)
    free = np.array([not linear_by_construction(model, node) for node in nodes])
    writer = nodes.index(pair[0])
    truth, after = effects["activation"], effects["break"]
    both = {w: agreement(effects[w][free], truth[free], change, index) for w in WAYS}
    both["attribution, other end"] = agreement(
        effects["attribution, other end"][free], after[free], change, index
    )
    gaps = {w: np.abs(effects[w] - truth)[free][:, index].mean((0, 2)) for w in WAYS}
    better = gaps["attribution"] - gaps["integrated"]
    return {
        "nodes": [node_name(node) for node in nodes],
        "free": free.tolist(),
        "effects": {k: x.mean(1).tolist() for k, x in effects.items()},
        "writer": {k: _mean(x[writer]) for k, x in effects.items()},
        "change": _mean(change),
        "before": ran["before"].mean().item(),
        "agreement": both,
        "integrated_better": interval(better),
        "passes": ran["passes"],
        "seconds": ran["seconds"],
        "incomplete": ran["incomplete"],
        "edges": edges(model, task, pair, ran["before"]),
        "pair": [node_name(node) for node in pair],
    }


def _mean(x: np.ndarray) -> list[float]:
    """[mean, standard error] over prompts, which are drawn independently."""
    return [float(x.mean()), float(x.std(ddof=1) / len(x) ** 0.5)]


def edges(
    model: Transformer, task: Task, pair: tuple[Node, Node], before: Tensor
) -> dict[str, Any]:
    """Path patching of one pair: the writer's new write reaches one input of the reader only.

    "query", "key", "value": MLPs held. "key, MLPs answer": into the keys, with the MLPs between the
    two recomputed; "key, MLPs against": held minus answering, paired. "rival": every other head of
    the writer's layer into the same keys, its name -> [mean, SE].
    """
    (layer, head), out = pair[1], {}

    def into(word: str, senders: Sequence[Node], mlps: str = "frozen") -> np.ndarray:
        to = [(layer, head, word[0])]
        t, o = task.tokens, task.others
        changed = patching.path_patch(model, t, o, senders, to, task.metric, mlps=mlps)
        return (changed - before).double().cpu().numpy()

    for word in ("query", "key", "value"):
        out[word] = _mean(into(word, [pair[0]])[0])
    rivals = [(pair[0][0], h) for h in range(model.cfg.n_heads) if h != pair[0][1]]
    found = into("key", rivals)
    out["rival"] = {node_name(n): _mean(x) for n, x in zip(rivals, found, strict=True)}
    if not model.cfg.attn_only:
        held, answered = (into("key", [pair[0]], m)[0] for m in ("frozen", "recomputed"))
        out["key, MLPs answer"], out["key, MLPs against"] = _mean(answered), _mean(held - answered)
    return out


# ---------------------------------------------------------------- where first order fails


def dose(
    model: Transformer, task: Task, prompt: int, node: Node, t: Sequence[float]
) -> Float[Tensor, " t"]:
    """F of one prompt when one node writes w(tokens) + t (w(others) - w(tokens)), for each t."""
    here = slice(prompt, prompt + 1)
    tokens = task.tokens[here].expand(len(t), -1)
    both = [ablation.resample(model, x[here]) for x in (task.tokens, task.others)]
    share = torch.tensor(t, dtype=model.W_E.dtype, device=model.W_E.device)

    def mixed(a: Tensor, b: Tensor) -> Tensor:
        return a + share.view(-1, *[1] * (a.ndim - 1)) * (b - a)

    z, mlp = ([mixed(a, b) for a, b in zip(*parts, strict=True)]
              for parts in ((both[0].z, both[1].z), (both[0].mlp, both[1].mlp)))  # fmt: skip
    standin = ablation.Standin("mixed", z, mlp)

    def metric(model: Transformer, stream: Tensor, rows: Tensor) -> Tensor:
        return task.metric(model, stream, torch.full_like(rows, prompt))

    return ablation.evaluate(model, tokens, metric, standin, ~masks(model, [[node]]))[0]


def worst_case(model: Transformer, task: Task, points: int = 21, signed: bool = False) -> dict:
    """The (node, prompt) where first order is farthest from the true effect, with its dose.

    signed: among those where the two have opposite signs, the one with the largest smaller size.
    Found by program over all nodes whose effect is not linear by construction, at the `tokens` end.
    {} when no signs are opposite.
    """
    nodes = nodes_of(model)
    free = torch.tensor([not linear_by_construction(model, node) for node in nodes])
    with torch.no_grad():
        before = logit_of(model, task, task.tokens)
    truth = patching.patch_nodes(model, task.tokens, task.others, task.metric) - before
    first = methods.attribution_patching(model, task.tokens, task.others, task.metric)
    gap = (first - truth).abs() * free[:, None].to(first)
    if signed:
        gap = torch.minimum(first.abs(), truth.abs()) * ((first * truth < 0) & free[:, None])
    if signed and not bool((gap > 0).any()):
        return {}
    at, prompt = divmod(int(gap.argmax()), gap.shape[1])
    t = np.linspace(0, 1, points).tolist()
    tok = tokenizer.load()
    shown = {
        k: [tok.decode([i]) for i in x[prompt].tolist()]
        for k, x in (("tokens", task.tokens), ("others", task.others))
    }
    curve = dose(model, task, prompt, nodes[at], t)
    return {
        "node": node_name(nodes[at]),
        "truth": truth[at, prompt].item(),
        "first_order": first[at, prompt].item(),
        "t": t,
        "metric": curve.tolist(),
        "right": tok.decode([int(task.right[prompt])]),
        "wrong": tok.decode([int(task.wrong[prompt])]),
        "opposite": int(((first * truth < 0) & free[:, None]).sum()),
        "cells": int(free.sum()) * gap.shape[1],
    } | shown
