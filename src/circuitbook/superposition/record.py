"""The sweeps as the chapter keeps them: plain numbers and tensors under names that figures read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from circuitbook.superposition import (
    closed_forms,
    computing,
    geometry,
    recovery,
    study,
    sweeps,
    toy,
)
from circuitbook.superposition.toy import Toys

ALLOWED = 0.5  # |cos| of directions that still count as almost orthogonal
TRIES = 20_000  # draws of directions, of which all that fit are kept


def over(W: Tensor) -> tuple[float, float]:
    """(largest D_i - leverage, largest ΣD_i - m) over toys W [..., m, n]: neither is above zero."""
    D = geometry.dimensionality(W.double())
    above = (D - geometry.leverage(W.double())).max(), (D.sum(-1) - W.shape[-2]).max()
    return above[0].item(), above[1].item()


def sticky(steps: int) -> dict[str, Any]:
    """Shares of a dimension over sparsity: many small toys (2 dimensions), one large one (12).

    random: the lengths of the trained features at random angles. sum: ΣD_i, least and most of all
    toys. over: the errors of the bounds, to be judged and not kept.
    """
    small, large = torch.logspace(0, 1.2, 13), torch.logspace(0, 1.2, 17)
    W, D = sweeps.dimension_sweep(8, 2, small, starts=16, steps=steps, size=256)
    V, E = sweeps.dimension_sweep(60, 12, large, starts=1, steps=steps, size=256)
    length = W.norm(dim=-2)
    noise = geometry.unit(torch.randn(W.shape, generator=toy.gen(8))) * length[..., None, :]
    chance, sums = geometry.dimensionality(noise), (D.sum(-1), E.sum(-1))
    return {
        "small": {
            "inverse": small, "D": D, "length": length, "near": sweeps.near_sticky(D, W),
            "random": sweeps.near_sticky(chance, noise), "random_D": chance,
            "sum": [sums[0].min(), sums[0].max()],
        },
        "large": {
            "inverse": large, "D": E[:, 0], "length": V[:, 0].norm(dim=-2),
            "sum": [sums[1].min(), sums[1].max()],
        },
        "over": over(W) + over(V),
    }  # fmt: skip


def border() -> tuple[dict[str, Any], dict[str, Any]]:
    """(the trained border beside the derived one, both plans by chance at two derived borders)."""
    ratio = torch.arange(1, 11, dtype=torch.float64) / 10
    p = torch.arange(1, 41, dtype=torch.float64) / 40
    found = sweeps.phase_border(ratio, p, steps=1200)
    sides = {str(r): sweeps.plans_by_chance(closed_forms.border(r), r, 200_000) for r in (0.3, 1.0)}
    return {"ratio": ratio, "p": p, **found._asdict()}, sides


def company(starts: int) -> dict[str, Any]:
    """Who stands opposite to whom, by p and by kind of pair, among starts that store all four.

    hits: starts in which every feature's most negative cosine is its partner's (by chance one in
    three). cosine: of every pair. merged: starts with at least one pair above 0.9, and with both.
    """
    out: dict[str, Any] = {}
    for p in (0.1, 0.3):
        rows = sweeps.pair_geometry(p, instances=starts, steps=2000, size=256)
        out[str(p)] = {}
        for kind, row in rows.items():
            hits, of = int(row["opposite"].all(1).sum()), int(row["stored"])
            one = row["partner"] > 0.9
            out[str(p)][kind] = {
                "hits": hits, "of": of, "interval": recovery.wilson(hits, of),
                "cosine": row["partner"].flatten().sort().values,
                "merged": [one.any(1).sum(), one.all(1).sum()],
            }  # fmt: skip
    return out


def learning(starts: int) -> dict[str, Any]:
    """Loss and shares of the start with the largest late jump; jumps and moves of all starts.

    moves: Σ|change of D_i| inside each start's largest late jump, in the order of the jumps. calm:
    the same in all windows of that length in which the loss falls by less than a hundredth.
    correlation: of falls and moves between two kept steps, from three steps of training on.
    """
    run = sweeps.levels(
        5, 2, 0.1, study.importance(5).float(), starts=starts, steps=4000, size=512, every=40
    )
    jump, place, fall, move = run.late_jump()
    order = jump.argsort(descending=True)
    i = int(order[0])

    def correlation(step: int) -> Tensor:
        k = step // 40
        both = torch.stack([run.falls()[k:].flatten(), run.moves()[k:].flatten()])
        return torch.corrcoef(both)[0, 1]

    since = (120, 800, 2000)
    calm = move[fall < 0.01]
    return {
        "moves": move.gather(0, place[None])[0][order], "since": since,
        "calm": [calm.median(), calm.max()], "correlation": [correlation(s) for s in since],
        "steps": run.steps, "loss": run.loss[:, i], "D": run.D[:, i], "run": i,
        "jumps": jump[order],
    }  # fmt: skip


def shared() -> dict[str, Any]:
    """Networks for |x|: loss in units of the dedicated plan's, features of each neuron."""
    p = torch.tensor([1.0, 0.3, 0.1, 0.03])
    each = p.repeat_interleave(4)
    net = computing.train(20, 10, each, steps=2500, size=256)
    loss, se = computing.loss(net, each, 20_000)
    plan = torch.tensor([computing.dedicated(20, 10, q) for q in p.tolist()])[:, None]
    features = computing.features_of_neurons(net).view(4, 4, 10)
    return {
        "p": p, "ratio": loss.view(4, 4) / plan, "se": se.view(4, 4) / plan, "features": features,
    }  # fmt: skip


def reading(toys: Toys, codes: int, most: int = 8) -> dict[str, Any]:
    """Shares of codes read back rightly by k = 1 ... most, for toy 0 and for random directions."""
    noise = torch.nn.functional.normalize(torch.randn(10, 40, generator=toy.gen(1)), dim=0)
    out = {}
    for name, W in (("toy", toys.W[0]), ("random", noise)):
        rows = [recovery.recovery(W, toys.b[0], k, codes) for k in range(1, most + 1)]
        out[name] = {f: [getattr(row, f) for row in rows] for f in recovery.Recovered._fields}
    return out


def room(repeats: int) -> dict[str, Any]:
    """How many almost orthogonal directions: until the first clash, and when all that fit stay."""
    n, wide = torch.arange(10, 81, 10), torch.arange(4, 25, 4)
    first = [
        recovery.before_first_overlap(k, ALLOWED, repeats=repeats, seed=k).median()
        for k in n.tolist()
    ]
    chance = [recovery.chance_of_overlap(k, ALLOWED) for k in n.tolist()]
    return {
        "n": n, "first": torch.stack(first), "wide": wide, "tries": TRIES,
        "expected": torch.tensor([recovery.birthday(q) for q in chance]),
        "packed": torch.tensor(
            [recovery.packed(k, ALLOWED, tries=TRIES, seed=k) for k in wide.tolist()]
        ),
    }  # fmt: skip


def tidy(moves: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Rounding errors become zero, so that the evidence does not hold them."""
    return {k: {q: v if v > 1e-9 else 0.0 for q, v in row.items()} for k, row in moves.items()}


def series(d: dict[str, Any]) -> dict[str, Any]:
    """Our value for every published number of this chapter, under the series' ids and shapes."""
    best = {name: run["best"] for name, run in d["runs"].items()}
    echo, F, pentagon = d["echo"], d["forty"], best["S0.9"]

    def some(name: str, *keys: str) -> dict[str, Any]:
        return {key: best[name][key] for key in keys}

    return {
        "part7.toy_one_dim": {
            "W": [1, -1], "in": [list(x) for x in study.HAND_X], "out": d["hand"],
        },
        "part7.toy.S0.0": some("S0.0", "represented", "loss", "norms", "bias"),
        "part7.toy.S0.7": some("S0.7", "represented", "loss", "norms"),
        "part7.toy.S0.9": {
            **some("S0.9", "represented", "loss", "norms"), "bias_about": pentagon["bias"].mean(),
            "gap_degrees": [pentagon["gaps"].min(), pentagon["gaps"].max()],
        },
        "part7.toy.S0.9.echo": {
            "neighbours_of_feature_1": echo["neighbours"], "leak_after_bias": echo["leak"],
        },
        "part7.toy.linear_S0.9": some("linear_S0.9", "represented", "loss"),
        "part7.toy40": {
            "features": 40, "dims": 10, "off": 0.95, "represented": F["represented"][0],
            "loss": F["loss"][0], "features_per_unit": F["features_per_unit"],
            "best_unit_cos_median": F["median"]["hidden units"],
            "best_unit_cos_max": F["largest"]["hidden units"],
        },
    }  # fmt: skip


def errors(toys: Toys, five: dict[str, Toys], code: tuple[Tensor, Tensor], cfg: Any) -> dict:
    """The errors of the chapter's identities, to be judged and not kept."""
    W = toys.W.double()
    two, one = torch.zeros(2, 5, dtype=torch.float64)
    two[[1, 4]], one[0] = 1.0, (5**0.5 - 1) / 2
    orthogonal = (12 / 5) ** 0.5 * torch.eye(5, dtype=torch.float64)
    exact = {"dtype": torch.float64}
    hand = torch.tensor(study.hand_case(), **exact)
    hand = hand - torch.tensor([[0.7, 0], [0, 0.4], [0.3, 0]], **exact)
    alone = [
        study.alone_error(five[name], i, p, cfg.steps, cfg.size)
        for name, p, i in (("S0.7", 0.3, 1), ("S0.9", 0.1, 2))
    ]
    return {
        "hand": hand.abs().max(), "pentagon": (recovery.pentagon() @ (two - one)).abs().max(),
        "codes": (W[0] @ (code[0] - code[1])).abs().max(), "alone": max(alone),
        "over": max(v for w in (toys, *five.values()) for v in over(w.W)),
        "mixed": geometry.mixed_dimensionality(orthogonal).sum() - 12,
        "mixed toy": geometry.mixed_dimensionality(W[0]).sum(),
    }  # fmt: skip
