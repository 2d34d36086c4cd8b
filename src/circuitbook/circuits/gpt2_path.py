"""The published circuits, asked the course's questions: one run of every tool on GPT-2.

`path` takes a model, prompts of both tasks and the literature's lists, and returns plain numbers.
The same call runs on random weights of the exact shape, which is how it is tested and timed; the
numbers then mean nothing, the identities among them still hold.

What is kept, and what is not:
    names   Wang et al. list heads only. All MLPs stay; the other heads write their mean over ABC
            prompts (three people, no repeat), template by template and position by position. They
            keep each head at its own place alone (movers at the end, duplicate-token heads at S2,
            previous-token heads behind S1) and cut it elsewhere. Here a head stays at all places:
            the circuit is larger than theirs, so F(C) is not to be compared with their number.
    years   Hanna et al. cut edges, with the write of the "01" prompt as stand-in. Here whole nodes
            are cut: their heads and MLPs stay, once alone and once with all earlier MLPs, which
            prepare the words. So the number is near theirs in kind, not the same measurement.

Source of the lists: results/reference/series.json, entries gallery.ioi and gallery.greater_than.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from circuitbook import fold, paths, probe, scan, zoo
from circuitbook.circuits import ablation, direct, faithful, patching
from circuitbook.circuits.gpt2_prompts import (
    NAME_TEMPLATES,
    YEAR_TEMPLATES,
    Batch,
    local_encoder,
    name_batch,
    single_tokens,
    year_batch,
)
from circuitbook.circuits.metrics import Metric, logit_difference
from circuitbook.circuits.nodes import MLP, Node, masks, nodes_of, random_masks
from circuitbook.cut import Head, cut_path, run
from circuitbook.model import Transformer
from circuitbook.published import fetch, pins
from circuitbook.series.reference import entries
from circuitbook.stream import heads_of
from circuitbook.tasks.years import year_gap

END_OF_TEXT = "<|endoftext|>"  # opens a text; one token, 50256 in GPT-2 itself
Circuits = Mapping[str, Sequence[Node]]


def literature() -> dict[str, list[Node]]:
    """The published lists: classes of name heads, and "years" with its heads and MLPs."""
    found = {entry.id: entry.value for entry in entries()}
    names, years = found["gallery.ioi"], found["gallery.greater_than"]
    lists: dict[str, list[Node]] = {k: [_head(h) for h in v] for k, v in names["heads"].items()}
    lists["years"] = [*map(_head, years["heads"]), *((layer, MLP) for layer in years["mlps"])]
    return lists


def _head(name: str) -> Node:
    layer, head = name.split(".")
    return int(layer), int(head)


def stand_in_batch(kind: str, n: int, rng: np.random.Generator, d_vocab: int) -> Batch:
    """Prompts with the layout of the real ones and random ids: for a model without a tokenizer.

    kind: "names" (the repeated name last but few, ABC beside it) or "years" ("01" beside it).
    """
    length = 13 if kind == "names" else 12
    row = rng.permutation(d_vocab)[: length + 120]
    tokens = np.repeat(row[None, :length], n, 0)
    others = tokens.copy()
    if kind == "names":
        people = np.stack([row[length + rng.permutation(40)[:5]] for _ in range(n)])
        io, s, *abc = people.T
        tokens[:, [2, 4, 10]] = np.stack([io, s, s], 1)
        others[:, [2, 4, 10]] = np.stack(abc, 1)
        right, wrong, years = io, s, np.array([], dtype=np.int64)
    else:
        years, yy = row[length : length + 100], rng.integers(2, 99, n)
        tokens[:, 7], others[:, 7] = years[yy], years[1]
        right = wrong = yy
    arrays = (tokens, others, np.full(n, length - 1), right, wrong, years)
    return Batch(*(torch.from_numpy(np.ascontiguousarray(x)) for x in arrays))


def _asked(
    model: Transformer,
    batch: Batch,
    metric: Metric,
    standin: ablation.Standin,
    circuits: Mapping[str, Sequence[Node]],
    n_random: int,
    generator: torch.Generator,
) -> dict[str, Any]:
    """F of the model, of nothing, of each circuit, and of random sets of the first one's size."""
    F = faithful.Runner(model, batch.tokens, metric, standin)
    first = next(iter(circuits.values()))
    fixed = [node for node in first if node[1] == MLP]
    heads = [node for node in first if node[1] != MLP]
    # random heads beside the same MLPs: the MLPs of the circuit are given, the heads are asked
    others = random_masks(model, heads, n_random, generator, among=heads_of(model))
    others = others | masks(model, [fixed])
    return {
        "model": F.of(nodes_of(model)),
        "preferred": (F.per_prompt(masks(model, [nodes_of(model)])) > 0).double().mean().item(),
        "nothing": F.of([]),
        "circuit": {name: F.of(nodes) for name, nodes in circuits.items()},
        "random": F(others).tolist(),
        "prompts": len(batch.tokens),
    }


def names_path(
    model: Transformer, batch: Batch, lists: Circuits, n_random: int, generator: torch.Generator
) -> dict[str, Any]:
    """Indirect object: faithfulness, path patching and self-repair of the name movers.

    The metric is logit(IO) - logit(S). The norms of `model` must be folded.
    """
    metric = logit_difference(batch.end, batch.right, batch.wrong)
    standin = ablation.mean(model, batch.others)
    mlps = [(layer, MLP) for layer in range(model.cfg.n_layers)]
    heads = [h for name, group in lists.items() if name != "years" for h in group]
    out = _asked(
        model, batch, metric, standin, {"heads and all MLPs": [*heads, *mlps]}, n_random, generator
    )
    movers, inhibition = lists["name_mover"], lists["s_inhibition"]
    patched = patching.path_patch(model, batch.tokens, batch.others, movers, None, metric)
    into = [(*head, "q") for head in movers]
    queries = patching.path_patch(model, batch.tokens, batch.others, inhibition, into, metric)
    question = direct.Question(batch.end, batch.right, batch.wrong)
    repair = direct.self_repair(model, batch.tokens, question, standin, movers)
    out["movers to logits"] = (patched.mean(1) - out["model"]).tolist()
    out["inhibition to queries"] = (queries.mean(1) - out["model"]).tolist()
    out["repair"] = {
        "predicted": repair.predicted.mean().item(),
        "actual": repair.actual.mean().item(),
        "gained": sum(x.mean().item() for x in repair.gained.values()),
        "frozen scale": repair.frozen.mean().item(),
    }
    return out


def years_path(
    model: Transformer, batch: Batch, lists: Circuits, n_random: int, generator: torch.Generator
) -> dict[str, Any]:
    """Greater-than: faithfulness, and path patching of the heads into the late MLPs.

    The metric is P(> YY) - P(<= YY).
    """
    metric = year_gap(batch.end, batch.right, batch.year_ids)
    standin = ablation.resample(model, batch.others)
    circuit = list(lists["years"])
    mlps = [layer for layer, at in circuit if at == MLP]
    early = [(layer, MLP) for layer in range(min(mlps))]
    circuits = {"heads and late MLPs": circuit, "with the early MLPs": [*circuit, *early]}
    out = _asked(model, batch, metric, standin, circuits, n_random, generator)
    heads = [node for node in circuit if node[1] != MLP]
    into = [(layer, MLP, "in") for layer in mlps]
    patched = patching.path_patch(model, batch.tokens, standin, heads, into, metric)
    out["heads into MLPs"] = (patched.mean(1) - out["model"]).tolist()
    return out


def path(
    model: Transformer,
    names: Batch,
    years: Batch,
    lists: Circuits | None = None,
    *,
    n_random: int = 20,
    seed: int = 0,
) -> dict[str, Any]:
    """Both tasks on one model; norms are folded first when they are not. Plain numbers."""
    lists = literature() if lists is None else lists
    model = fold.process(model) if model.cfg.norm == "layernorm" else model
    generator = torch.Generator().manual_seed(seed)
    return {
        "names": names_path(model, names, lists, n_random, generator),
        "years": years_path(model, years, lists, n_random, generator),
    }


NEEDS = "GPT-2's weights: `make published` fetches them and runs this."


def published_study(n: int = 16, n_random: int = 100, seed: int = 0) -> dict[str, Any]:
    """With MODELS=published the path on GPT-2, fetched if need be; else what is needed.

    The course's own results never depend on what else lies on a machine.

    n prompts in all, in equal parts from the four name templates (IO first and S first), with the
    two year templates beside them. Each part has its own means; all have the same random sets. The
    numbers are means over the parts.
    """
    if paths.models() != "published":
        return {"there": False, "needs": NEEDS}
    where = fetch.folder(pins.MODELS["gpt2"])
    encode, rng = local_encoder(where), np.random.default_rng(seed)
    start = single_tokens(encode, [END_OF_TEXT])
    model, parts = zoo.load("gpt2"), []
    for k in range(len(NAME_TEMPLATES)):
        names, years = (
            make(encode, max(2, n // len(NAME_TEMPLATES)), rng, k % many, start=start)
            for make, many in (
                (name_batch, len(NAME_TEMPLATES)),
                (year_batch, len(YEAR_TEMPLATES)),
            )
        )
        parts.append(path(model, names, years, n_random=n_random, seed=seed))
    return {"there": True, "templates": len(parts), **mean_of(parts)}


def mean_of(parts: Sequence[Any]) -> Any:
    """The mean of equally built results: numbers are averaged, lists and dicts entry by entry."""
    first = parts[0]
    if isinstance(first, Mapping):
        return {key: mean_of([part[key] for part in parts]) for key in first}
    if isinstance(first, list):
        return [mean_of(values) for values in zip(*parts, strict=True)]
    return sum(parts) / len(parts)


# ---------------------------------------------------------------- induction in every size


def induction_row(
    model: Transformer, words: torch.Tensor, n: int = 8, *, bos: int | None = None, others: int = 5
) -> dict[str, Any]:
    """One model's induction: the head that matches prefixes best, its copying, and a K-cut.

    The K-cut (zero) removes the best previous-token head's write from the key input of that head,
    direct edge only; "other cuts" are the same cut of up to `others` other heads of earlier layers,
    evenly spaced. Scores are means over n sequences (words: ids to draw from; bos: what opens them,
    the start token of today's model set unless given).
    """
    batch = probe.repeated_batch(words, n, bos=bos, generator=torch.Generator().manual_seed(0))
    tokens = batch.tokens.to(model.W_E.device)
    at = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.cfg.n_layers)]
    cache = run(model, tokens, names=at)[1]
    matching = torch.stack([probe.prefix_matching_score(cache[a], tokens).mean(0) for a in at])
    previous = torch.stack([probe.previous_token_score(cache[a]).mean(0) for a in at])
    layer, head = divmod(int(matching[1:].argmax()), model.cfg.n_heads)
    reader: Head = (layer + 1, head)
    before = previous[: reader[0]]
    writer: Head = divmod(int(before.argmax()), model.cfg.n_heads)
    rest = [h for h in heads_of(model) if h[0] < reader[0] and h != writer]
    rest = rest[:: max(1, len(rest) // others)][:others]

    def score(sender: Head) -> float:
        kept = run(model, tokens, cut_path(model, sender, reader, "k"), names=[at[reader[0]]])[1]
        pattern = kept[at[reader[0]]]
        return probe.prefix_matching_score(pattern, tokens).mean(0)[reader[1]].item()

    ov = model.blocks[reader[0]].attn
    A = model.W_E @ ov.W_V[reader[1]]
    B = ov.W_O[reader[1]] @ (model.W_U - model.W_U.mean(-1, keepdim=True))
    return {
        "layers": model.cfg.n_layers,
        "heads": model.cfg.n_layers * model.cfg.n_heads,
        "induction head": f"{reader[0]}.{reader[1]}",
        "previous-token head": f"{writer[0]}.{writer[1]}",
        "prefix matching": matching[reader].item(),
        "previous token": previous[writer].item(),
        "copying": scan.copying_score(A, B).item(),
        "after the K-cut": score(writer),
        "after other cuts": [score(sender) for sender in rest],
    }
