"""What the trained `swiglu-1l` does with its two reads: identities, cuts of one read, composition.

"Used more" needs a measure. Here there are several, and they need not agree: the rise of the loss
when one read misses a part (three ways of missing it), how far the prediction moves (KL), and two
first-order numbers, the length of a route's write and what it does to the loss. A length is taken
in the stream and for a small step: it knows nothing of what the logits do with the write, nor of
the way a gate closes for good.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from circuitbook import zoo
from circuitbook.conditional import local, realised
from circuitbook.conditional.gate_cuts import ROUTES, Judge, as_long, costs, two_reads
from circuitbook.conditional.reads import CONTROLS, KINDS, Reads, held_out, removed
from circuitbook.conditional.routes import margin, matrices
from circuitbook.layers import plus
from circuitbook.mlp import MoE
from circuitbook.model import Transformer

REPLACED = ("zero", "mean", "resample")


def gap(a: Tensor, b: Tensor) -> float:
    """max |a - b| / max |b|."""
    return ((a - b).abs().max() / b.abs().max()).item()


def doubled(model: Transformer) -> Transformer:
    """The same weights in float64."""
    state = {name: w.double() for name, w in model.state_dict().items()}
    return Transformer.from_state_dict(model.cfg, state).requires_grad_(False)


def route_errors(model: Transformer, reads: Reads, n: int = 3) -> dict[str, float]:
    """How far the routes are from autograd's J on a trained block, and the same without one route.

    At n places of the text, in the model's own dtype; give a float64 model. For a mixture, from the
    half of the places that lies farther from a routing border.
    """
    mlp, act, x = model.blocks[0].mlp, model.cfg.act, reads.x.to(model.W_E.dtype).flatten(0, 1)
    if isinstance(mlp, MoE):
        x = x[margin(x @ mlp.W_router, mlp.top_k).argsort(descending=True)[: len(x) // 2]]
    places = x[torch.linspace(0, len(x) - 1, n).long()]
    out: dict[str, float] = {}
    for v in places:
        whole = torch.autograd.functional.jacobian(lambda y: mlp(y[None, None])[0, 0], v).T
        parts = matrices(mlp, act, v)
        out["sum"] = max(out.get("sum", 0.0), gap(sum(parts.values()), whole))
        for name, J in parts.items():
            key = f"without {name}"
            out[key] = min(out.get(key, torch.inf), gap(sum(parts.values()) - J, whole))
    return out


def block_error(judge: Judge) -> float:
    """|two_reads(x, x) - block(x)| relative: the cuts below start from the block itself."""
    return gap(judge.whole, judge.mlp(judge.x))


def cuts(judge: Judge, seed: int) -> dict[str, dict[str, Any]]:
    """part -> kind -> `costs`, for every part and for all heads together."""
    generator = torch.Generator().manual_seed(seed)
    names = (*judge.reads.names, "all heads")
    return {n: {kind: costs(judge, n, kind, generator) for kind in KINDS} for n in names}


def against_controls(judge: Judge, seed: int, name: str = "all heads") -> dict[str, Any]:
    """route -> control -> cost of the part's own removal minus the control's, paired, loss and KL.

    The controls take away something as long in the same read: a random direction, or another
    window's write.
    """
    generator = torch.Generator().manual_seed(seed)
    w = judge.reads.part(name)
    gone = {k: removed(w, k, generator) for k in CONTROLS}
    out: dict[str, Any] = {}
    for route in ROUTES[:2]:
        own = judge.without(w, route)
        out[route] = {}
        for k, other in gone.items():
            control = judge.without(as_long(judge.mlp, other, w, route), route)
            out[route][k] = {
                "loss": judge.mean(own.loss - control.loss),
                "kl": judge.mean(own.kl - control.kl),
            }
    return out


@torch.no_grad()
def in_neither(judge: Judge, name: str = "all heads") -> list[float]:
    """|change of the write by both cuts - sum of the changes by each| / |change by both| (zero).

    A ratio of means over places, and its error: what the product of two reads adds to their sum.
    """
    x, less = judge.x, judge.x - judge.reads.part(name)
    both, select, content = (
        two_reads(judge.mlp, *pair) - judge.whole for pair in ((less, less), (less, x), (x, less))
    )
    rest, size = ((v.norm(dim=-1)).mean(1) for v in (both - select - content, both))
    ratio = rest.mean() / size.mean()
    return [ratio.item(), judge.mean((rest - ratio * size) / size.mean())[1]]


def used_more(
    found: dict[str, dict[str, Any]], first: dict[str, dict[str, list[float]]]
) -> dict[str, dict[str, Any]]:
    """measure -> how many single heads have select ahead by two errors, or content, or neither.

    first: first-order measures, name -> part -> [select minus content, error]. "ways" holds +1, -1
    or 0 for each head; "all heads" the difference for all of them together.
    """
    heads = [n for n in found if n.startswith("head")]
    whole, measures = (*heads, "all heads"), {}
    for words, key in (("loss", ""), ("KL", "kl, ")):
        for kind in REPLACED:
            rows = {n: found[n][kind][f"{key}select minus content"] for n in whole}
            measures[f"{words}, {kind}"] = rows
    out = {}
    for measure, rows in (measures | first).items():
        ways = [(d > 2 * se) - (d < -2 * se) for d, se in (rows[n] for n in heads)]
        counts = {w: ways.count(i) for i, w in ((1, "select"), (-1, "content"), (0, "neither"))}
        out[measure] = counts | {"ways": ways, "all heads": list(rows["all heads"])}
    return out


def halves(judge: Judge) -> tuple[Tensor, Tensor]:
    """(the judged positions in one line, the same moved on by a quarter), for `local.reached`."""
    x = judge.x.transpose(0, 1).flatten(0, 1)
    return x, x.roll(len(x) // 4, 0)


def gate_shares(judge: Judge) -> dict[str, Any]:
    """What a gate is: the share of gates below zero, and how many channels carry the write.

    "carry": (sum a)^2 / sum a^2 over channels of a = (phi(g) u)^2 |W_out|^2, mean over places.
    """
    mlp, x = judge.mlp, judge.x
    gate = mlp.act(plus(x @ mlp.W_gate, mlp.b_gate))
    post = gate * plus(x @ mlp.W_in, mlp.b_in)
    size = (post * mlp.W_out.norm(dim=1)).square()
    carry = size.sum(-1).square() / size.square().sum(-1)
    return {
        "below zero": (gate < 0).double().mean(),
        "largest": gate.max(),
        "least": gate.min(),
        "carry": judge.mean(carry.mean(1)),
    }


def study(
    role: str = "swiglu-1l", windows: int = 150, places: int = 10, seed: int = 10
) -> dict[str, Any]:
    """All numbers of the SwiGLU section; see the keys. Plain data but for tensors that hold it."""
    model = zoo.load(role)
    reads = held_out(model, windows, places, seed)
    judge = Judge(model, reads)
    exact = route_errors(doubled(model), reads)
    found = cuts(judge, seed)
    with torch.no_grad():
        composed = realised.study(model, judge, seed)
        blocked = {"block": block_error(judge)}
        selected = gate_shares(judge)
        reached = local.reached(judge.mlp, *halves(judge))
    sizes = composed["sizes"]
    return {
        "role": role,
        "asked": len(reached),
        "reached": int(reached.sum()),
        "windows": windows,
        "documents": len(reads.doc.unique()),
        "positions": reads.token.numel(),
        "heads": model.cfg.n_heads,
        "channels wide": model.cfg.d_mlp,
        "loss": judge.mean(judge.clean),
        "errors": exact | blocked,
        "cuts": found,
        "against": against_controls(judge, seed),
        "used more": used_more(
            found,
            {
                "first-order length": {n: x["gate minus content"] for n, x in sizes.items()},
                "first-order loss": {n: x["gate minus content, loss"] for n, x in sizes.items()},
            },
        ),
        "gates": selected,
        "in neither": in_neither(judge),
        **composed,
    }
