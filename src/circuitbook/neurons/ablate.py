"""Does a neuron do what its output row claims? Take it away where it fires, and read its own words.

Mean ablation: the activation a becomes its mean over the text, at every position. In the last
layer nothing but the final norm, if there is one, and the unembedding comes after, so running again
means subtracting one vector, (a - mean) v, from the last stream. In an earlier layer everything
after it is run again.

Its logits must fall by (a - mean) v W_U: that is algebra. With a final norm so they do, divided by
its scale, when that scale is frozen; probabilities are those of a run with the new scale. Whether
its words lose probability, and whether they were the right words, is not algebra.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.cut import Cut
from circuitbook.model import Transformer
from circuitbook.neurons.contexts import FIRES, Survey, Text, activations
from circuitbook.neurons.expansion import seen
from circuitbook.neurons.norms import logits_of, output_reader, placed
from circuitbook.neurons.tables import written
from circuitbook.probe import clustered_mean, paired_difference
from circuitbook.stream import final_scale


def partners(
    share: Float[Tensor, " d_mlp"], allowed: Tensor, seed: int = 0
) -> Int[Tensor, " d_mlp"]:
    """For each allowed neuron another that fires about as often, one of its 16 nearest.

    Neurons are put in the order of their firing rate; the partner is one of the eight before or
    after. -1 for neurons that are not allowed.
    """
    ids = allowed.nonzero().flatten()
    if len(ids) < 3:
        raise ValueError(f"{len(ids)} neurons fire often enough; a partner needs at least 3")
    order = ids[share[ids].argsort(stable=True)]
    generator = torch.Generator().manual_seed(seed)
    step = torch.randint(1, 9, (len(order),), generator=generator)
    sign = torch.randint(0, 2, (len(order),), generator=generator) * 2 - 1
    place = torch.arange(len(order))
    to = place + step * sign
    # Reflect at the ends, so that nobody is its own partner.
    to = torch.where((to < 0) | (to >= len(order)), place - step * sign, to).clamp(
        0, len(order) - 1
    )
    to = torch.where(to == place, (place + 1) % len(order), to)
    out = torch.full_like(share, -1, dtype=torch.long)
    out[order] = order[to]
    return out


class Effect(NamedTuple):
    """A row for each neuron and position where it fires. Falls: nats, before minus after."""

    neuron: Int[Tensor, " n"]
    doc: Int[Tensor, " n"]
    own: Float[Tensor, " n"]  # fall of log P(its own words) when it is ablated
    other_words: Float[Tensor, " n"]  # fall of log P(the partner's words) when it is ablated
    common_words: Float[Tensor, " n"]  # fall of log P(words as frequent in the text)
    partner: Float[Tensor, " n"]  # fall of log P(its own words) when the partner is ablated
    same_push: Float[Tensor, " n"]  # the same, the partner's write being as long as its own
    logit: Float[Tensor, " n"]  # fall of the mean centred logit of its words, measured
    algebra: Float[Tensor, " n"]  # (a - mean) times its mean boost over the scale, from weights
    logit_again: Float[Tensor, " n"]  # as logit, the final norm's scale not frozen but run again
    right: Float[Tensor, " n"]  # 1 where the next token is one of its words
    other_right: Float[Tensor, " n"]  # 1 where it is one of the partner's words
    loss: Float[Tensor, " n"]  # rise of the loss when it is ablated


@torch.no_grad()
def effects(
    model: Transformer,
    text: Text,
    found: Survey,
    words: Int[Tensor, "d_mlp k"],
    common: Int[Tensor, "d_mlp k"],
    partner: Int[Tensor, " d_mlp"],
    rows: int = 1024,
) -> Effect:
    """Every allowed neuron at positions where it fires, ablated alone; last layer of the model.

    Only "logit" has the final norm's scale frozen; with every other number it is run again.
    """
    layer, normed = model.cfg.n_layers - 1, model.cfg.norm != "none"
    mlp, W_U = model.blocks[layer].mlp, output_reader(model)
    rows = min(rows, 2**25 // model.cfg.d_vocab)  # a row holds some copies of the vocabulary
    ids = (partner >= 0).nonzero().flatten().tolist()
    neuron = torch.cat([torch.full_like(found.firing[i], i) for i in ids])
    place = torch.cat([found.firing[i] for i in ids])
    boost = written(mlp.W_out, W_U)
    out: list[tuple[Tensor, ...]] = []
    for n, p in zip(neuron.split(rows), place.split(rows), strict=True):
        x, q = text.stream[p], partner[n]
        post = activations(model, text.read[p], slice(None), layer)
        last = x + post @ mlp.W_out + (mlp.b_out if mlp.b_out is not None else 0)
        excess = post.gather(1, n[:, None]) - found.mean[n, None]
        push = excess * mlp.W_out[n]
        drift = (post.gather(1, q[:, None]) - found.mean[q, None]) * mlp.W_out[q]
        length = mlp.W_out[q].norm(dim=1).clamp_min(1e-30)
        strict = mlp.W_out[q] * (push.norm(dim=1) / length)[:, None]
        before, s = logits_of(model, last), final_scale(model, last)
        mine, theirs, target = words[n], words[q], text.following[p]

        def read(logits: Tensor, *sets: Tensor) -> list[Tensor]:
            total = logits.logsumexp(-1)
            return [logits.gather(1, s).logsumexp(-1) - total for s in sets]

        sets = mine, theirs, common[n], target[:, None]
        clean = read(before, *sets)
        gone = logits_of(model, last - push) if normed else before - push @ W_U
        after = read(gone, *sets)
        weak, strong = (
            read(logits_of(model, last - move) if normed else before - move @ W_U, mine)[0]
            for move in (drift, strict)
        )
        frozen = logits_of(model, last - push, s) if normed else gone
        centred = [(t.gather(1, mine).mean(-1) - t.mean(-1)) for t in (before, frozen, gone)]
        algebra = excess[:, 0] * (boost.A[n] * boost.B[:, mine].mean(-1).T).sum(-1)
        algebra = algebra / s[:, 0] if normed else algebra
        out.append((
            clean[0] - after[0], clean[1] - after[1], clean[2] - after[2], clean[0] - weak,
            clean[0] - strong, centred[0] - centred[1], algebra, centred[0] - centred[2],
            (mine == target[:, None]).any(1).to(x),
            (theirs == target[:, None]).any(1).to(x), clean[3] - after[3],
        ))  # fmt: skip
    return Effect(neuron, text.doc[place], *(torch.cat(c) for c in zip(*out, strict=True)))


def as_frequent(
    words: Int[Tensor, "d_mlp k"], counts: Int[Tensor, " d_vocab"], seed: int = 0
) -> Int[Tensor, "d_mlp k"]:
    """For each of a neuron's words another one that is as frequent in the text, none of its own.

    Tokens are put in the order of their counts, equal counts at random; the control word is the
    nearest further down the list that is neither a word of the neuron nor taken already.
    """
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(len(counts), generator=generator)
    order = shuffled[counts[shuffled].argsort(stable=True)].tolist()
    place = {t: i for i, t in enumerate(order)}
    out = []
    for row in words.tolist():
        taken, mine = set(row), []
        for t in row:
            at = place[t]
            while order[at % len(order)] in taken:
                at += 1
            mine.append(order[at % len(order)])
            taken.add(mine[-1])
        out.append(mine)
    return torch.tensor(out)


def study(e: Effect, base_right: Float[Tensor, " d_mlp"], ids: Tensor) -> dict[str, Any]:
    """Means over all firings, errors by document; and the share of neurons that behave so.

    base_right: for each neuron, the share of *all* text whose next token is one of its words.
    """

    def paired(a: Tensor, b: Tensor | float = 0.0) -> list[float]:
        return list(paired_difference(a, torch.zeros_like(a) + b, e.doc)[:2])

    def level(on: Tensor) -> list[float]:
        there = e.doc[on].unique().numel() > 1  # no error from one document or none
        return list(clustered_mean(e.loss[on], e.doc[on])[:2]) if there else [0.0, 0.0]

    def per_neuron(x: Tensor) -> Tensor:
        total = torch.zeros(int(e.neuron.max()) + 1, dtype=torch.double)
        counts = torch.bincount(e.neuron, minlength=len(total)).clamp_min(1)
        return (total.index_add_(0, e.neuron, x.double()) / counts)[ids]

    controls = {
        "the partner's words": e.other_words, "words as frequent": e.common_words,
        "the partner ablated": e.partner, "the partner's write, as long": e.same_push,
    }  # fmt: skip
    own, apart = per_neuron(e.own), (e.logit_again - e.logit).abs()
    right = e.right.bool()
    return {
        "neurons": len(ids),
        "positions": len(e.neuron),
        "own": paired(e.own),
        "controls": {name: paired(x) for name, x in controls.items()},
        "more": {name: paired(e.own, x) for name, x in controls.items()},
        "neurons where own falls more": {
            name: (own > per_neuron(x)).double().mean() for name, x in controls.items()
        },
        "own by neuron": torch.quantile(own, torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95]).double()),
        "right": list(clustered_mean(e.right, e.doc)[:2]),
        "base": base_right[e.neuron].double().mean(),
        "partner right": list(clustered_mean(e.other_right, e.doc)[:2]),
        "right more": paired(e.right, e.other_right),
        "neurons that lower the loss": (per_neuron(e.loss) > 0).double().mean(),
        "lift": paired(e.right, base_right[e.neuron]),
        "loss": paired(e.loss),
        "loss where right": level(right),
        "loss where wrong": level(~right),
        "algebra gap": (e.logit - e.algebra).abs().max() / e.algebra.abs().max().clamp_min(1e-30),
        **({"scale run again": apart.mean() / e.logit.abs().mean()} if apart.any() else {}),
    }


def of_one(e: Effect, neuron: int) -> dict[str, Any]:
    """The mean over one neuron's firings: fall of its own words, rise of the loss (nats); or {}."""
    mine = e.neuron == neuron
    if not mine.any():
        return {}
    held = {"its words fall": e.own[mine].mean(), "loss rises": e.loss[mine].mean()}
    return {"held": held | {"firings": int(mine.sum())}}


def base_rates(text: Text, words: Int[Tensor, "d_mlp k"], d_vocab: int) -> Float[Tensor, " d_mlp"]:
    """For each neuron the share of all positions whose next token is one of its words."""
    counts = torch.bincount(text.following, minlength=d_vocab).double()
    return (counts[words].sum(-1) / len(text.following)).float()


def ablation(layer: int, neuron: int, mean: float | Tensor) -> Cut:
    """One neuron of a layer is held at its mean over the text; what follows is run again."""

    def hold(post: Tensor, hook: object) -> Tensor:
        post = post.clone()
        post[..., neuron] = mean
        return post

    return Cut(
        ((f"blocks.{layer}.mlp.hook_post", hold),),
        cut=(f"neuron {layer}.{neuron} (mean)",),
        recomputed=("everything after",),
    )


@torch.no_grad()
def earlier_layer(
    model: Transformer,
    tokens: Int[Tensor, "window pos"],
    doc: Int[Tensor, " window"],
    neurons: tuple[int, ...],
    k: int = 10,
    most: int = 2**25,
) -> dict[str, Any]:
    """Neurons of layer 0 of a deeper model: the fall of the log P of their own words, two ways.

    direct: the write is taken out of the last stream only. total: the neuron is ablated and layer 1
    run again. The final norm, if there is one, is run again in both. Positions: where the neuron
    fires, thinned evenly until their logits have no more than `most` entries. A write of layer 0 is
    read by layer 1, so the two differ, and the sign of the total is not given by algebra.
    """
    first, second = model.blocks
    names = ("blocks.0.mlp.hook_post", "blocks.0.hook_resid_post", "blocks.1.hook_resid_post")
    cache = seen(model, tokens, names)
    post, below, last = (cache[name] for name in names)
    place = placed(model, tokens.shape[1])
    mean = post[:, 1:].mean((0, 1))
    boost = written(first.mlp.W_out[list(neurons)], output_reader(model))
    words = (boost.A @ boost.B).topk(k, -1).indices
    direct, total, where = [], [], []
    for i, n in enumerate(neurons):
        at = post[:, :, n] > FIRES
        at[:, 0] = False
        busy = at.any(1)
        if not busy.any():
            continue
        at = at[busy].flatten().nonzero().flatten()
        at = at[:: -(-len(at) * model.cfg.d_vocab // most)]
        push = (post[busy][..., n] - mean[n])[..., None] * first.mlp.W_out[n]
        changed = below[busy] - push
        again = second(changed, None if place is None else place.expand_as(push))
        stream, push, again = (x.flatten(0, 1)[at] for x in (last[busy], push, again))
        logp = [_log_p(logits_of(model, x), words[i]) for x in (stream, stream - push, again)]
        direct.append(logp[0] - logp[1])
        total.append(logp[0] - logp[2])
        where.append(doc[busy].repeat_interleave(tokens.shape[1])[at])
    if len(torch.cat(where or [doc[:0]]).unique()) < 2:  # hardly a neuron fires: nothing to average
        none = {name: [0.0, 0.0] for name in ("direct", "total", "fewer")}
        return {"neurons": 0, "positions": 0, **none, "neurons that lower": 0.0, "by neuron": []}
    values = [torch.cat(x) for x in (direct, total)]
    document = torch.cat(where)
    return {
        "neurons": len(direct),
        "positions": len(document),
        "direct": list(clustered_mean(values[0], document)[:2]),
        "total": list(clustered_mean(values[1], document)[:2]),
        "fewer": list(paired_difference(values[0], values[1], document)[:2]),
        "neurons that lower": sum(float(x.mean() > 0) for x in total) / len(total),
        "by neuron": [
            [a.mean().item(), b.mean().item()] for a, b in zip(direct, total, strict=True)
        ],
    }


def _log_p(logits: Tensor, words: Tensor) -> Tensor:
    return logits[:, words].logsumexp(-1) - logits.logsumexp(-1)
