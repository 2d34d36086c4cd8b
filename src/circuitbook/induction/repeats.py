"""Bookkeeping around chapter 06: tables for its figures, from the instruments that measure.

What the chapter teaches stands in its lesson; here heads are named, curves are thinned and runs are
put side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook import cut, paths, probe, scan, spine, tokenizer, zoo
from circuitbook.cut import Head
from circuitbook.induction import circuit, phase
from circuitbook.model import Transformer
from circuitbook.probe import RepeatedBatch

CONTROLS = ("uniform", "first", "previous", "duplicate")


def named(head: Head) -> str:
    """(1, 4) -> "1.4"."""
    return f"{head[0]}.{head[1]}"


def at_hand(roles: Sequence[str]) -> dict[str, Transformer]:
    """role -> model, for those of the roles that today's model set has."""
    if paths.models() == "published":
        from circuitbook.published import models

        roles = [role for role in roles if role in models.ROLES]
    return {role: zoo.load(role) for role in roles}


def control_scores(
    batch: RepeatedBatch, fixed_offsets: Callable[[Tensor], Tensor]
) -> dict[str, float]:
    """Prefix matching of heads whose rule is known; "one too far" looks one key too late.

    fixed_offsets(tokens) gives the score of every fixed-offset head; the best one is kept.
    """
    tokens = batch.tokens

    def score(pattern: Tensor) -> float:
        return probe.prefix_matching_score(pattern, tokens).mean().item()

    scores = {kind: score(probe.synthetic_pattern(kind, tokens)) for kind in CONTROLS}
    scores["fixed offset, best"] = fixed_offsets(tokens).max().item()
    ideal = probe.synthetic_pattern("induction", tokens)
    scores["one too far"] = score(ideal.roll(1, -1).tril())
    return scores | {"ideal": score(ideal)}


def profile(model: Transformer, batch: RepeatedBatch) -> dict[str, Any]:
    """Loss and rank at every copy: means with errors, medians, and the mean loss by place in it."""
    seen = circuit.readout(model, batch)
    copies = range(seen.loss.shape[1])
    each = [circuit.estimate(seen.loss[:, c].mean(-1)) for c in copies]
    drops = [circuit.estimate(seen.loss[:, 0].mean(-1), seen.loss[:, c].mean(-1)) for c in copies]
    return {
        "loss": [x.mean for x in each],
        "loss_se": [x.se for x in each],
        "drop": [x.mean for x in drops[1:]],
        "drop_se": [x.se for x in drops[1:]],
        "rank": [seen.rank[:, c].double().median().item() for c in copies],
        "by_place": seen.loss.mean(0),
        "prefix": seen.prefix.mean(0),
    }


def shuffled_copies(batch: RepeatedBatch, seed: int = 0) -> RepeatedBatch:
    """The same text with the words of every later copy in another order: words repeat, runs do not.

    The queries that have a match stay matched: each word still has its earlier copies.
    """
    tokens, generator = batch.tokens.clone(), torch.Generator().manual_seed(seed)
    for row, where in zip(tokens, circuit.copy_positions(batch), strict=True):
        for at in where[1:]:
            row[at] = row[at[torch.randperm(len(at), generator=generator)]]
    return batch._replace(tokens=tokens)


def protocols(
    model: Transformer, head: Head, words: Int[Tensor, " pool"], course: RepeatedBatch
) -> dict[str, float]:
    """One head's prefix matching by the course's protocol, on shuffled copies, and as published."""
    own, mixed = (
        circuit.readout(model, batch).prefix.mean(0)[head[1]].item()
        for batch in (course, shuffled_copies(course))
    )
    published = spine.other_protocols(model, head, words, len(course.tokens))
    return {"course": own, "shuffled copies": mixed} | published


def example(
    model: Transformer, head: Head, words: Int[Tensor, " pool"], seed: int = 0
) -> dict[str, Any]:
    """One short repeat of frequent words: the head's pattern, and the same weighted by values."""
    generator = torch.Generator().manual_seed(seed)
    batch = probe.repeated_batch(words, 1, copies=2, block=6, gap=(3, 3), generator=generator)
    pattern, moved = circuit.shown(model, batch.tokens.to(model.W_E.device), head)
    text = tokenizer.load().text
    return {
        "tokens": ["BOS", *(text(t) for t in batch.tokens[0, 1:].tolist())],
        "pattern": pattern[0],
        "moved": moved[0],
    }


def virtual_tables(
    model: Transformer,
    words: Int[Tensor, " n"],
    virtual_qk: Callable[..., tuple[Tensor, Tensor]],
) -> dict[str, Any]:
    """Every pair's table of queries against "the token before the key", read through the writer.

    eigen, on_top: [writer in layer 0][reader in the last layer]; on_top is the share of `words`
    whose own column is the largest among `words`. ov: each reader's copying score (W_U centred).
    direct: on_top without any writer, the key's own token.
    With LayerNorm the tables are those of the folded weights. What they leave out: the query's
    scale, one positive number for a row; the scales of the keys and the query's bias, which can
    change an order within a row.
    """
    heads = range(model.cfg.n_heads)
    eigen, on_top = np.zeros((2, len(heads), len(heads)))
    own = []
    ids = words.sort().values.to(model.W_E.device)

    def share(A: Tensor, B: Tensor) -> float:
        return scan.self_shares(scan.self_rank(A, B, rows=ids, columns=ids))[1]

    for reader in heads:
        W_Q, W_K = model.W_Q[-1, reader], model.W_K[-1, reader]
        own.append(share(*scan.qk_factors(model.W_E, W_Q, W_K)))
        for writer in heads:
            A, B = virtual_qk(model.W_E, model.W_V[0, writer], model.W_O[0, writer], W_Q, W_K)
            eigen[writer, reader] = scan.copying_score(A, B).item()
            on_top[writer, reader] = share(A, B)
    ov = scan.copying_score(*scan.ov_factors(model.W_E, model.W_V[-1], model.W_O[-1], model.W_U))
    return {"eigen": eigen, "on_top": on_top, "ov": ov.tolist(), "direct": own, "words": len(ids)}


def previous_scores(
    model: Transformer, windows: Int[Tensor, "window pos"]
) -> Float[Tensor, " head"]:
    """Previous-token score of every first-layer head on text, one window at a time."""
    at = "blocks.0.attn.hook_pattern"
    rows = [
        probe.previous_token_score(model.run_with_cache(w, names_filter=[at])[1][at])
        for w in windows.to(model.W_E.device).split(1)
    ]
    return torch.cat(rows).mean(0)


def key_query_value(
    model: Transformer, batch: RepeatedBatch, pair: tuple[Head, Head]
) -> dict[str, Any]:
    """The pair's three edges cut one at a time: share of prefix matching lost, and loss at repeats.

    "pattern_moved": the largest change of the reader's pattern under the value cut (0 exactly).
    "key_more": how much more the key cut costs than the query cut and than the value cut.
    """
    clean, h = circuit.readout(model, batch), pair[1][1]
    runs = {
        word: circuit.readout(model, batch, cut.cut_path(model, *pair, into))
        for into, word in cut.INPUTS.items()
    }
    whole = clean.prefix[:, h].mean()
    more = [circuit.estimate(runs["key"].again(), runs[w].again()) for w in ("query", "value")]
    rise = {w: circuit.estimate(x.again(), clean.again()) for w, x in runs.items()}
    first = batch.tokens[:2].to(model.W_E.device)
    return {
        "pair": [named(head) for head in pair],
        "prefix": whole.item(),
        "lost": {w: 1 - (x.prefix[:, h].mean() / whole).item() for w, x in runs.items()},
        "rise": {w: x.mean for w, x in rise.items()},
        "rise_se": {w: x.se for w, x in rise.items()},
        "key_more": [list(x[:2]) for x in more],
        "drop": list(circuit.estimate(clean.drop())[:2]),
        "pattern_moved": circuit.pattern_movement(
            model, first, cut.cut_path(model, *pair, "v"), pair[1]
        ),
    }


def whole_heads(
    model: Transformer, batch: RepeatedBatch, pair: tuple[Head, Head], induction: Sequence[int]
) -> dict[str, Any]:
    """Heads removed as a whole: rise of the loss at repeats, drop and prefix matching that stay."""
    n, tokens, (writer, reader) = len(batch.tokens), batch.tokens.to(model.W_E.device), pair
    last = [(reader[0], h) for h in induction]
    cuts = {
        "previous-token head, re-run": cut.ablate_heads(model, tokens, [writer]),
        "previous-token head, patterns kept": cut.pattern_preserving_ablation(
            model, tokens, [writer]
        ),
        "induction heads": cut.ablate_heads(model, tokens, last),
        "all but the pair (zero)": circuit.only(model, tokens, pair),
        "all but the pair (mean)": circuit.only(model, tokens, pair, "mean"),
    }
    clean = circuit.readout(model, batch, part=n)
    out: dict[str, Any] = {}
    for name, change in cuts.items():
        now = circuit.readout(model, batch, change, part=n)
        rise, drop = circuit.estimate(now.again(), clean.again()), circuit.estimate(now.drop())
        out[name] = {
            "rise": rise.mean, "rise_se": rise.se, "drop": drop.mean, "drop_se": drop.se,
            "prefix": now.prefix[:, reader[1]].mean().item(),
        }  # fmt: skip
    return out


# ---------------------------------------------------------------- growth


def thin_events(events: Mapping[str, Any]) -> dict[str, Any]:
    """What figures and sentences need of `phase.events`: times, the order, the verdicts."""
    found = events["phase_change"]
    return {
        "t50": {k: x["t50"] for k, x in events["rises"].items() if x["rises"]},
        "order": list(events["order"]),
        "found": found["found"],
        "window": [found["start"], found["end"]] if found["found"] else [],
        "why": found["why"],
        "bump": bool(events["bump"]["found"]),
    }


def growth(seeds: Sequence[str], shallow: str, no_heads: str) -> dict[str, Any]:
    """Curves, events, their spread over seeds, and the PCA of per-token losses, from snapshots."""
    curves = {role: zoo.curves(role) for role in (*seeds, shallow, no_heads)}
    flat, one = curves.pop(no_heads), curves[shallow]
    events = {
        role: phase.events(c, shallow=None if role == shallow else one, no_heads=flat)
        for role, c in curves.items()
    }
    pca = phase.token_loss_pca(curves, since=1e6)
    traces = {
        role: {k: [x.tolist(), y.tolist()] for k, (x, y) in phase.trace(c).items()}
        for role, c in curves.items()
    }
    spread = phase.spread([events[role] for role in seeds])
    gaps = {role: phase.paired_losses(curves[role], one) for role in seeds}
    return {
        "traces": traces,
        "events": {role: thin_events(e) for role, e in events.items()},
        "times": {k: [t["low"], t["high"]] for k, t in spread["times"].items()},
        "same_order": spread["same_order"],
        "gap": gaps,
        "pca": {
            "share": pca["share"],
            "path": {k: v["coordinates"] for k, v in pca["runs"].items()},
            "tokens": {k: v["tokens"] for k, v in pca["runs"].items()},
            "peak": {k: v["peak"] or {} for k, v in pca["runs"].items()},
        },
    }
