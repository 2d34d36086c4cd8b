"""The heads of the name task, found backwards from the logits by path patching.

A head belongs to the circuit when the answer falls (or rises) by a set share of the whole as soon
as what it writes on renamed prompts travels one way: into the logits, or into the queries, keys or
values of the heads that are already found. Found on prompts of the training split; all
that is measured of it afterwards is measured on other names and templates.
Source: Wang et al. 2023 (the search backwards, renamed prompts as the other run).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from circuitbook.circuits import ablation, direct, metrics, nodes, patching
from circuitbook.cut import Head
from circuitbook.model import Transformer
from circuitbook.tasks import names
from circuitbook.tasks.names import KINDS, Layout, Prompts

INPUTS = ("q", "k", "v")
PLACES = ("IO", "S1", "S2", "third 1", "third 2", "start")


class Set(NamedTuple):
    """Prompts with what every tool asks for: tensors, the metric, the stand-ins, the clusters."""

    p: Prompts
    tokens: Int[Tensor, "prompt pos"]
    renamed: Int[Tensor, "prompt pos"]  # the same sentences, nobody named twice
    question: direct.Question
    metric: metrics.Metric
    mean: ablation.Standin  # mean over renamed prompts of the same layout, place by place
    resample: ablation.Standin  # the write on the prompt's own renamed version
    cluster: Int[Tensor, " prompt"]  # prompts that share their introduction


def layouts_of(
    split: str, each: int, seed: int, *, short: bool = False
) -> Int[np.ndarray, "layout part"]:
    """`each` layouts for every place of a third person; short: without openings and fillers."""
    kind = np.repeat(np.arange(len(KINDS)), each)
    out = names.draw_layouts(len(kind), np.random.default_rng(seed), split, kind)
    if short:
        out[:, Layout._fields.index("opening") :] = 0
    return out


def make(
    model: Transformer,
    layouts: Int[np.ndarray, "layout part"],
    each: int,
    seed: int,
    split: str = "unseen",
    reference: int = 16,
) -> Set:
    """`each` prompts of every layout, and what stands in.

    reference: renamed prompts of each layout whose mean write is the stand-in "mean". They are
    drawn apart from the prompts' own renamed versions.
    """
    rng = np.random.default_rng(seed)
    p = names.prompts(len(layouts) * each, rng, split, layouts.repeat(each, axis=0))
    width = int(p.end.max()) + 1
    others = names.prompts(len(layouts) * reference, rng, split, layouts.repeat(reference, axis=0))
    device = model.W_E.device

    def tensor(x: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(x)).to(device)

    tokens, renamed = tensor(p.tokens[:, :width]), tensor(names.renamed(p, rng, split)[:, :width])
    question = direct.Question(tensor(p.end), tensor(p.io), tensor(p.s))
    order = torch.arange(len(layouts), device=device)[:, None] * width
    place = order + torch.arange(width, device=device)  # a role for every place of every layout
    mean = ablation.mean(
        model,
        tensor(names.renamed(others, rng, split)[:, :width]),
        reference_roles=place.repeat_interleave(reference, 0),
        roles=place.repeat_interleave(each, 0),
    )
    resample = ablation.resample(model, renamed)
    metric = metrics.logit_difference(*question)
    return Set(p, tokens, renamed, question, metric, mean, resample, tensor(p.cluster))


class Found(NamedTuple):
    """What the search found: heads, and for every head tried its effect on each way as [prompt]."""

    heads: list[Head]
    ways: dict[Head, dict[str, Tensor]]  # "logits", "q", "k", "v" of all heads found later: fall
    span: float  # F(M) - F(nothing): what the shares are of
    share: float


def find(model: Transformer, data: Set, share: float) -> Found:
    """Backwards, layer by layer: into the logits, and into the q, k or v of what was found.

    A head joins when the mean of IO - S moves by `share` of the whole or more, in either direction,
    as its write on the prompt's own renamed version (resample) goes straight into the logits, or
    into the queries (or keys, or values) of all heads found in later layers together. Other heads
    are frozen up to the receivers; all that follows is recomputed. Cost: about 7 passes a head.
    """
    run = (model, data.tokens, data.resample)
    whole = ablation.whole(model, data.tokens, data.metric)
    none = ablation.value(*run[:2], data.metric, data.resample, [])
    span = (whole.mean() - none.mean()).item()
    found: list[Head] = []
    ways: dict[Head, dict[str, Tensor]] = {}
    for layer in reversed(range(model.cfg.n_layers)):
        mine = [(layer, h) for h in range(model.cfg.n_heads)]
        for way in ("logits", *INPUTS):
            into = None if way == "logits" else [(*h, way) for h in found]
            if into == []:
                continue
            after = patching.path_patch(*run, mine, into, data.metric)
            for head, row in zip(mine, after, strict=True):
                ways.setdefault(head, {})[way] = whole - row
        found = found + [h for h in mine if strength(ways[h]) >= share * abs(span)]
    return Found(sorted(found), ways, span, share)


def strength(ways: dict[str, Tensor]) -> float:
    """Largest |mean effect| over the ways of one head."""
    return max(x.mean().abs().item() for x in ways.values())


@torch.no_grad()
def attention(
    model: Transformer, tokens: Int[Tensor, "prompt pos"], p: Prompts, heads: list[Head]
) -> dict[str, dict[str, dict[str, Tensor]]]:
    """name of head -> where from -> place -> attention [prompt]; NaN where a place is absent.

    Read from the patterns of one run. From "END" to PLACES, from "S2" to S1 and to itself.
    """
    wanted = {f"blocks.{l}.attn.hook_pattern" for l, _ in heads}
    _, cache = model.run_with_cache(tokens, names_filter=lambda n: n in wanted)
    n = torch.arange(len(tokens))
    places = {
        "IO": p.at_io, "S1": p.at_s1, "S2": p.at_s2, "third 1": p.at[:, 3], "third 2": p.at[:, 4],
        "start": np.zeros_like(p.end),
    }  # fmt: skip

    def read(pattern: Tensor, query: np.ndarray, key: np.ndarray) -> Tensor:
        seen = pattern.cpu()[n, torch.from_numpy(query), torch.from_numpy(np.maximum(key, 0))]
        return torch.where(torch.from_numpy(key >= 0), seen, torch.nan)

    out = {}
    for layer, head in heads:
        pattern = cache[f"blocks.{layer}.attn.hook_pattern"][:, head]
        end = {k: read(pattern, p.end, at) for k, at in places.items()}
        s2 = {"S1": read(pattern, p.at_s2, p.at_s1), "S2": read(pattern, p.at_s2, p.at_s2)}
        s2 |= {"IO": read(pattern, p.at_s2, p.at_io)}
        out[nodes.node_name((layer, head))] = {"END": end, "S2": s2}
    return out
