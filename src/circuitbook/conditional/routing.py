"""What the trained `moe-1l` loses when its router, or its experts, read something else.

All interventions: the block's weights or experts at chosen places of held-out text, everything else
as it was. Recomputed: the block and the logits; one layer, so nothing else comes after.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuitbook import corpus, zoo
from circuitbook.conditional import local, moe, swiglu
from circuitbook.conditional.gate_cuts import Judge, mixed, own_weights
from circuitbook.conditional.reads import mixed_values, read_parts, removed
from circuitbook.conditional.routes import (
    chosen,
    margin,
    router_weights,
    routes,
    too_near,
    weight_change,
)
from circuitbook.probe import clustered_mean


def softmax_on(logits: Tensor, keep: Tensor) -> Tensor:
    """Renormalised weights on a set of our choice: softmax over the kept logits."""
    return logits.masked_fill(~keep, -torch.inf).softmax(-1)


def runner_up(logits: Float[Tensor, "*lead expert"], k: int) -> Float[Tensor, "*lead expert"]:
    """Weights when the weakest selected expert gives its place to the strongest of the others."""
    order = logits.topk(k + 1, dim=-1).indices
    keep = chosen(logits, k).scatter(-1, order[..., k - 1 : k], False)
    return softmax_on(logits, keep.scatter(-1, order[..., k : k + 1], True))


def old_weights_on_new_set(old: Tensor, new: Tensor) -> Tensor:
    """The new selection with the old weights: who stays keeps its weight, who enters inherits.

    Among those that leave and enter, the largest old weight goes to the largest new one, and so on.
    """
    stays = (old > 0) & (new > 0)
    left = old.masked_fill(stays, 0).sort(dim=-1, descending=True).values
    order = new.masked_fill(stays, 0).argsort(dim=-1, descending=True, stable=True)
    return torch.zeros_like(new).scatter(-1, order, left) + old * stays


def other_routings(judge: Judge, seed: int) -> dict[str, Tensor]:
    """name -> weights [window, place, expert] that stand in for the router's own."""
    generator = torch.Generator().manual_seed(seed)
    logits, k = judge.x @ judge.mlp.W_router, judge.mlp.top_k
    pi = own_weights(judge.mlp, judge.x)
    flat = pi.flatten(0, 1)
    dealt = flat[torch.randperm(len(flat), generator=generator).to(flat.device)].view_as(pi)
    used = (pi > 0).double().mean((0, 1)).topk(k).indices
    fixed = torch.zeros_like(pi)
    fixed[..., used] = 1 / k
    return {
        "same experts, equal weights": (pi > 0).to(pi) / k,
        "the strongest expert alone": router_weights(logits, 1, "renormalised"),
        "runner-up for the weakest": runner_up(logits, k),
        "the most used experts, always": fixed,
        "another position's routing": dealt,
    }


def set_and_weights(judge: Judge, name: str, kind: str) -> dict[str, list[float]]:
    """The router misses a part: loss when set and weights follow, when only one of them does.

    "set only": the new set, old weights (`old_weights_on_new_set`). "weights only": the old set,
    weights from the new logits, as at the course's frozen level "expert set".
    """
    gone = removed(judge.reads.part(name), kind)
    before, after = (x @ judge.mlp.W_router for x in (judge.x, judge.x - gone))
    k = judge.mlp.top_k
    old, new = (softmax_on(logits, chosen(logits, k)) for logits in (before, after))
    ways = {
        "both": new,
        "weights only": softmax_on(after, chosen(before, k)),
        "set only": old_weights_on_new_set(old, new),
    }
    rise = {n: judge.judge(mixed(pi, judge.outs)).loss - judge.clean for n, pi in ways.items()}
    out = {n: judge.mean(v) for n, v in rise.items()}
    out["set minus weights"] = judge.mean(rise["set only"] - rise["weights only"])
    return out


def set_held(judge: Judge) -> dict[str, dict[str, Any]]:
    """head -> what its absence from the router does with the selected set free, and with it held.

    "refused": share of positions where `check_margin` asks for a smaller step; "moved past": where
    the margin is smaller than the step itself.
    "free", "held": KL of the prediction; "free minus held", paired. "off": |change with the set
    held - first-order change|, mean over places, against the mean length of the first-order change.
    The derivative is the held cut up to its curvature, and knows nothing of the free one.
    """
    before, k, out = judge.x @ judge.mlp.W_router, judge.mlp.top_k, {}
    for name in judge.reads.names[1:]:
        w = judge.reads.part(name)
        change = w @ judge.mlp.W_router
        first = mixed(weight_change(before, change, k), judge.outs)
        write = mixed(softmax_on(before - change, chosen(before, k)), judge.outs)
        free, held = judge.without(w, "select").kl, judge.judge(write).kl
        off, length = (v.norm(dim=-1).mean() for v in (write - judge.whole + first, first))
        out[name] = {
            "free": judge.mean(free), "held": judge.mean(held), "off": off / length,
            "free minus held": judge.mean(free - held),
            "moved past": too_near(before, change, k, 1.0).double().mean(),
            "refused": too_near(before, change, k).double().mean(),
        }  # fmt: skip
    return out


def by_margin(judge: Judge, bins: int = 4) -> dict[str, Any]:
    """Rise of the loss when the runner-up replaces the weakest selected, by size of the margin.

    Near a border the two experts have nearly equal weights: to lose one for the other is a jump of
    pi (E_in - E_out), however small the margin.
    """
    logits, k = judge.x @ judge.mlp.W_router, judge.mlp.top_k
    gap = margin(logits, k)
    new = mixed(runner_up(logits, k), judge.outs)
    rise = judge.losses(new) - judge.losses(judge.whole)
    step = (new - judge.whole).norm(dim=-1) / judge.whole.norm(dim=-1)
    edges = gap.flatten().double().quantile(torch.linspace(0, 1, bins + 1).double())
    doc = judge.reads.doc[:, None].expand(gap.shape)
    rows = []
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        at = (gap >= low) & (gap <= high)
        rows.append({
            "from": low, "to": high, "margin": gap[at].mean(),
            "rise": list(clustered_mean(rise[at], doc[at])[:2]),
            "moved": list(clustered_mean(step[at], doc[at])[:2]),
        })  # fmt: skip
    low, high = (gap <= edges[1]), (gap >= edges[-2])
    trend = (rise * high - rise * low) * bins
    return {"bins": rows, "largest minus smallest": judge.mean(trend.double().mean(1))}


def shared_part(judge: Judge) -> dict[str, float]:
    """The router route ignores whatever all selected experts write alike, and needs their biases.

    "cancels": the same vector added to every expert, relative change of the route; "added": its
    length against an expert's write. "switch": the same for un-renormalised weights, where it does
    not cancel. "bias left out": relative error of the route with E_e without b_out.
    """
    mlp, x = judge.mlp, judge.x[:8, 0]
    dx = judge.reads.parts[1:, :8, 0].sum(0)
    logits, change = x @ mlp.W_router, dx @ mlp.W_router
    c = judge.outs[:8, 0].mean((0, 1))
    out: dict[str, float] = {"added": (c.norm() / judge.outs[:8, 0].norm(dim=-1).mean()).item()}
    for name, kind in (("cancels", "renormalised"), ("switch", "softmax")):
        d_pi = weight_change(logits, change, mlp.top_k, kind)
        route = mixed(d_pi, judge.outs[:8, 0])
        out[name] = ((mixed(d_pi, judge.outs[:8, 0] + c) - route).norm() / route.norm()).item()
        if kind == "renormalised" and mlp.b_out is not None:
            bare = mixed(d_pi, judge.outs[:8, 0] - mlp.b_out)
            out["bias left out"] = ((bare - route).norm() / route.norm()).item()
    one = weight_change(logits, change, 1, "renormalised")
    out["top-1 renormalised"] = one.abs().max().item()
    return out


def first_order(judge: Judge) -> dict[str, Any]:
    """Length of each route's first-order write, for every part and for all heads together."""
    out = {}
    for name in (*judge.reads.names, "all heads"):
        moved = routes(judge.mlp, judge.act, judge.x, judge.reads.part(name))
        norm = {k: v.norm(dim=-1).mean(1) for k, v in moved.items()}
        row = {k: judge.mean(v) for k, v in norm.items()}
        row["router minus content"] = judge.mean(norm["router"] - norm["content"])
        out[name] = row
    return out


def study(
    role: str = "moe-1l", windows: int = 150, places: int = 10, seed: int = 10
) -> dict[str, Any]:
    """All numbers of the mixture's section; see the keys."""
    model = zoo.load(role)
    text = corpus.heldout_windows(windows, seed=seed)
    tokens, doc = torch.from_numpy(text.tokens), torch.from_numpy(text.doc)
    mixed_once = list(mixed_values(model, tokens))
    reads = read_parts(model, tokens, doc, places, mixed_once)
    routing = moe.router_parts(model, tokens, doc, mixed_once)
    judge = Judge(model, reads)
    exact = swiglu.route_errors(swiglu.doubled(model), reads)
    found = swiglu.cuts(judge, seed)
    with torch.no_grad():
        first = first_order(judge)
        return {
            "role": role,
            "windows": windows,
            "documents": len(reads.doc.unique()),
            "positions": reads.token.numel(),
            "tokens routed": len(routing.token),
            "experts": model.cfg.n_experts,
            "k": model.cfg.top_k,
            "loss": judge.mean(judge.clean),
            "errors": exact | {"block": swiglu.block_error(judge), **linear(judge, routing)},
            "shared": shared_part(judge),
            "load": moe.load(routing.logits, routing.k),
            "words": moe.experts_in_words(routing, model.cfg.d_vocab),
            "deciders": moe.who_decides(routing, seed),
            "foretold": moe.foretold(routing, model.cfg.d_vocab, seed),
            "cuts": found,
            "against": swiglu.against_controls(judge, seed),
            "first order": first,
            "used more": swiglu.used_more(
                found,
                {"first-order length": {n: x["router minus content"] for n, x in first.items()}},
            ),
            "routings": {
                name: judge.mean(judge.judge(mixed(pi, judge.outs)).loss - judge.clean)
                for name, pi in other_routings(judge, seed).items()
            },
            "set and weights": {
                name: set_and_weights(judge, name, "mean") for name in ("direct", "all heads")
            },
            "set held": set_held(judge),
            "by margin": by_margin(judge),
            "local": locality(judge),
        }


def linear(judge: Judge, routing: moe.Routing) -> dict[str, float]:
    """The router's logits as the sum of their parts, against x W_router at the judged places."""
    n, length = judge.reads.tokens.shape
    rows = routing.logits.view(n, length - 1, -1)[:, judge.reads.place - 1]
    return {"router logits": swiglu.gap(rows, judge.x @ judge.mlp.W_router)}


def locality(judge: Judge, factor: float = 1.0) -> dict[str, Any]:
    """Share of positions reached from elsewhere through the block, without and with capacity."""
    x, other = swiglu.halves(judge)
    free = local.reached(judge.mlp, x, other)
    full = local.reached(judge.mlp, x, other, factor)
    return {
        "positions": len(free),
        "reached": int(free.sum()),
        "reached, capacity": int(full.sum()),
        "factor": factor,
    }
