"""The course's own pair under the circuit tools: is it the circuit of induction, or a part of it?

Prompts: frequent words, all different; a block, filler, the block's beginning again. Right: the
next word of the block. Wrong: another word of the block, so that copying just any of them does not
help. Others: the same prompt with other words in the first copy, so that nothing is foretold.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from circuitbook.circuits import ablation
from circuitbook.circuits.criteria import criteria
from circuitbook.circuits.direct import Question
from circuitbook.circuits.faithful import Runner
from circuitbook.circuits.metrics import logit_difference
from circuitbook.circuits.nodes import Node, masks, node_name, nodes_of, random_masks
from circuitbook.circuits.patching import path_patch
from circuitbook.model import Transformer
from circuitbook.probe import repeated_batch

ENOUGH = 0.9  # of what the whole model gains


class Asked(NamedTuple):
    """Prompts, their corrupted twins, and what is asked at the last place."""

    tokens: Int[Tensor, "prompt pos"]
    others: Int[Tensor, "prompt pos"]
    question: Question


def prompts(words: Int[Tensor, " pool"], n: int, generator: torch.Generator) -> Asked:
    """n prompts of a block of 10 words, 3 to 8 words of filler, and the block's first 6 again.

    The batch's later filler is cut off and prompts end where the question is asked, so that all end
    at different places; what stands behind the question cannot be seen from it.
    """
    block, asked = 10, 6
    batch = repeated_batch(words, n, copies=2, block=block, gap=(3, 8), generator=generator)
    row = torch.arange(n)
    at, right = batch.second[:, asked - 1], batch.tokens[row, batch.second[:, asked]]
    other = torch.randint(1, block, (n,), generator=generator)
    wrong = batch.tokens[row, batch.first[row, (asked + other) % block]]
    others = batch.tokens.clone()
    for i in range(n):
        unused = words[~torch.isin(words, batch.tokens[i])]
        new = unused[torch.randperm(len(unused), generator=generator)[:block]]
        others[i, batch.first[i]] = new
    return Asked(batch.tokens, others, Question(at, right, wrong))


def grow(F: Runner, start: list[Node], most: int = 10) -> list[tuple[list[Node], float]]:
    """From `start`, always add the node that brings F(C) up most; every (C, share recovered).

    Ends at ENOUGH of F(M) - F(nothing), or at `most` nodes. It is greedy, so a smaller set may
    exist.
    """
    everything = nodes_of(F.model)
    top, bottom = F(masks(F.model, [everything, []])).tolist()

    def share(value: float) -> float:
        return (value - bottom) / (top - bottom)

    C = list(start)
    steps = [(C, share(F.of(C)))]
    while steps[-1][1] < ENOUGH and len(C) < most:
        rest = [v for v in everything if v not in C]
        values = F(masks(F.model, [[*C, v] for v in rest]))
        C = [*C, rest[int(values.argmax())]]
        steps.append((C, share(values.max().item())))
    return steps


def study(
    model: Transformer,
    pair: tuple[Node, Node],
    words: Int[Tensor, " pool"],
    n: int = 48,
    sets: int = 100,
    seed: int = 0,
) -> dict[str, Any]:
    """The pair's share of the induction effect, a grown set's, and both beside random sets.

    The set is grown on prompts of its own, and judged with the pair on n others ("steps" too).
    Stand-in of all cuts: the mean over the corrupted prompts, by position; `resample` gives the two
    shares with the twin's write instead. paths: fall of the metric when the twin's write of each
    first-layer head reaches only the second head's query, key or value.
    """
    generator = torch.Generator().manual_seed(seed)
    search, asked = (prompts(words, k, generator) for k in (max(2, n // 2), n))
    metric = logit_difference(*asked.question)
    standins = {
        "mean": ablation.mean(model, asked.others),
        "resample": ablation.resample(model, asked.others),
    }
    F, again = (Runner(model, asked.tokens, metric, s) for s in standins.values())
    seen = ablation.mean(model, search.others)
    steps = grow(Runner(model, search.tokens, logit_difference(*search.question), seen), list(pair))
    grown = steps[-1][0]
    top, bottom = F.of(nodes_of(model)), F.of([])
    judged = [(F.of(C) - bottom) / (top - bottom) for C, _ in steps]
    found = {}
    for name, C in (("pair", list(pair)), ("grown", grown)):
        others = random_masks(model, C, sets, generator)
        found[name] = criteria(F, masks(model, [C])[0], others, draws=2, search=32, seed=seed)
    ends = again(masks(model, [nodes_of(model), [], list(pair), grown])).tolist()
    clean = ablation.whole(model, asked.tokens, metric)
    heads = [(0, h) for h in range(model.cfg.n_heads)]
    paths = {}
    for into in ("q", "k", "v"):
        now = path_patch(
            model, asked.tokens, standins["resample"], heads, [(*pair[1], into)], metric
        )
        paths[into] = [(clean - x).mean().item() for x in now]
    return {
        "criteria": found,
        "steps": [
            [[node_name(v) for v in C], share] for (C, _), share in zip(steps, judged, strict=True)
        ],
        "search": len(search.tokens),
        "resample": {
            "model": ends[0],
            "nothing": ends[1],
            "pair": (ends[2] - ends[1]) / (ends[0] - ends[1]),
            "grown": (ends[3] - ends[1]) / (ends[0] - ends[1]),
        },
        "paths": paths,
        "pair": [node_name(v) for v in pair],
        "heads": [node_name(v) for v in heads],
    }
