"""The chapter's measurements on trained toys, each one a dict of plain numbers and tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from circuitbook.superposition import batch, closed_forms, geometry, recovery, toy
from circuitbook.superposition.batch import Params
from circuitbook.superposition.toy import Toys

SETTINGS = {  # name: (p, with a ReLU)
    "S0.0": (1.0, True),
    "S0.7": (0.3, True),
    "S0.9": (0.1, True),
    "linear_S0.9": (0.1, False),
}
HAND_X = ((0.7, 0.0), (0.0, 0.4), (0.7, 0.4))


def importance(n: int, decay: float = 0.9) -> Tensor:
    """I_i = 0.9^i, i = 0 ... n - 1."""
    return decay ** torch.arange(n, dtype=torch.float64)


# ---- five features in two dimensions ------------------------------------------------------------


def five_in_two(starts: int, steps: int, size: int) -> dict[str, Toys]:
    """Every setting from the same starts on the same stream; those with a ReLU are one batch."""
    I, first = importance(5), toy.starts(starts, 2, 5)
    curved = [p for p, relu in SETTINGS.values() if relu]
    p = torch.tensor(curved).repeat_interleave(starts)
    many = Params(first.W.repeat(len(curved), 1, 1), first.b.repeat(len(curved), 1))
    how: dict[str, Any] = {"importance": I, "steps": steps, "size": size, "samples": 4096}
    all_three = toy.train_toys(5, 2, p, start=many, **how)
    out = {}
    for name, (q, relu) in SETTINGS.items():
        if relu:
            i = curved.index(q) * starts
            out[name] = Toys(*(x[i : i + starts] for x in all_three))
        else:
            out[name] = toy.train_toys(5, 2, q, start=first, relu=False, **how)
    return out


def best_of(toys: Toys, n: int = 3) -> int:
    """The start with the lowest loss among the first n."""
    return int(toys.loss[:n].argmin())


def summary(toys: Toys, floor: float | None) -> dict[str, Any]:
    """The best of the first three starts, as in the series, and the spread over all."""
    i, stored = best_of(toys), geometry.represented(toys.W).sum(-1)
    W = toys.W[i].double()
    return {
        "best": {
            "W": W, "norms": W.norm(dim=0), "bias": toys.b[i], "loss": toys.loss[i],
            "se": toys.loss_se[i], "represented": stored[i], "gaps": geometry.gaps(W),
        },
        "loss": toys.loss.sort().values, "se": toys.loss_se.max(), "floor": floor,
        "stored": stored.bincount(minlength=6),
        "least": toys.loss.min(), "median": toys.loss.median(),
    }  # fmt: skip


def pentagons(toys: Toys) -> dict[str, Any]:
    """How many starts end in a pentagon, with the interval of that rate, and the losses of both."""
    yes = torch.tensor([geometry.is_pentagon(w) for w in toys.W])
    low, high = recovery.wilson(int(yes.sum()), len(yes))
    gaps = torch.stack([geometry.gaps(w) for w in toys.W[yes]]) if yes.any() else torch.zeros(1, 5)
    return {
        "hits": int(yes.sum()), "of": len(yes), "low": low, "high": high,
        "gaps": [gaps.min(), gaps.max()],
        "loss": toys.loss[yes].mean() if yes.any() else 0.0,
        "others": toys.loss[~yes].mean() if (~yes).any() else 0.0,
    }  # fmt: skip


def loss_by_state(W: Tensor, b: Tensor, p: float, samples: int = 4096) -> tuple[float, float]:
    """(part of features that are on, part of those that are off) of one toy's loss.

    On the inputs of `toy.toy_loss`: the two parts sum to its loss.
    """
    W, b, n, parts = W.double(), b.double(), W.shape[-1], torch.zeros(2, dtype=torch.float64)
    for k, chance in enumerate(toy.number_on(n, p)):
        for repeat in range(4):
            x = toy.inputs_with(n, k, samples, 100 * repeat + k)
            error = (batch.read_out(W, b, x) - x).square() * importance(n)[:, None]
            for i, some in enumerate((x > 0, x == 0)):
                parts[i] += chance * (error * some).sum(0).mean() / 4
    return parts[0].item(), parts[1].item()


def pays_back(toys: Toys, i: int, p: float) -> dict[str, Any]:
    """The biases of stored features in two opposite pairs, and the loss with those set to zero.

    cosines: of each stored feature with the one most opposite to it. on: the part of the loss that
    comes from features that are on, with those biases and without.
    """
    W, stored = toys.W[i].double(), geometry.represented(toys.W[i])
    b = torch.where(stored, 0, toys.b[i])
    cut, _ = toy.toy_loss(toys.W[i : i + 1], b[None], p, importance(5), samples=4096)
    unit = geometry.unit(W[:, stored])
    return {
        "biases": toys.b[i][stored], "loss": toys.loss[i], "without": cut[0],
        "cosines": (unit.T @ unit).amin(1),
        "on": [loss_by_state(W, c.double(), p)[0] for c in (toys.b[i], b)],
    }  # fmt: skip


def echoes(toys: Toys, i: int, p: float) -> dict[str, Any]:
    """What features 1's neighbours hear when it is on at one, before and after the bias.

    without_bias: the loss of the same weights with b set to zero, nothing trained again; `on` and
    `off`: its parts, by `loss_by_state`, with and without biases. rescaled: without biases, at the
    best common factor of all lengths, since W was trained to live with its biases.
    """
    W, b = toys.W[i].double(), toys.b[i].double()
    heard = W.T @ W[:, 0]
    near = heard.clone()
    near[0] = -torch.inf
    two = near.topk(2).indices
    factor = torch.linspace(0.6, 1, 41)
    many = factor[:, None, None] * toys.W[i]  # the last one is W itself
    cut, _ = toy.toy_loss(many, torch.zeros(len(many), 5), p, importance(5), samples=4096)
    kept, none = loss_by_state(W, b, p), loss_by_state(W, 0 * b, p)
    return {
        "on": [kept[0], none[0]], "off": [kept[1], none[1]],
        "rescaled": cut.min(), "factor": factor[cut.argmin()],
        "gram": W.T @ W, "before": heard, "after": (heard + b).relu(),
        "neighbours": heard[two].sort().values, "leak": (heard + b)[two].sort().values,
        "square_plus_bias": W.square().sum(0) + b, "published_formula": 1 / (1 - b),
        "norms": W.norm(dim=0), "loss": toys.loss[i], "without_bias": cut[-1],
    }  # fmt: skip


# ---- forty features in ten dimensions -----------------------------------------------------------


def forty(toys: Toys, p: float, draws: int = 400) -> dict[str, Any]:
    """Toy 0 in detail, beside axes that were not learned; the other starts by loss.

    axes: hidden units; principal axes of h; random orthonormal bases, as those two are (`draws`
    times, each sorted, the median of each place). spread: the least and the largest eigenvalue of
    WWᵀ. units: the median with hidden units, for each toy. Loss baselines: the linear optimum keeps
    m features and gives the rest their mean; keeping none gives it to all.
    """
    W = toys.W[0].double()
    m, n = W.shape
    g = toy.gen(4)
    noise = torch.linalg.qr(torch.randn(draws, m, m, generator=g, dtype=torch.float64))[0]
    by_chance = torch.stack([geometry.best_cosine(W, axes).sort().values for axes in noise])
    cosines = {
        "hidden units": geometry.best_cosine(W, torch.eye(m, dtype=torch.float64)),
        "principal axes of h": geometry.best_cosine(W, geometry.hidden_axes(W, p)),
        "random axes": by_chance.median(0).values,
    }
    medians = by_chance.median(1).values
    return {
        "W": W, "loss": toys.loss, "se": toys.loss_se.max(),
        "represented": geometry.represented(toys.W).sum(-1),
        "features_per_unit": geometry.features_per_unit(W),
        "cosines": {k: v.sort(descending=True).values for k, v in cosines.items()},
        "median": {k: v.median() for k, v in cosines.items()},
        "largest": {k: v.max() for k, v in cosines.items()},
        "random_range": medians.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)),
        "D": geometry.dimensionality(W).sort().values,
        "spread": torch.linalg.eigvalsh(W @ W.T)[[0, -1]],
        "units": [geometry.best_cosine(w, torch.eye(m)).median() for w in toys.W],
        "linear": closed_forms.dropped([1.0] * (n - m), p),
        "nothing": closed_forms.dropped([1.0] * n, p),
    }  # fmt: skip


# ---- other coordinates --------------------------------------------------------------------------

TOY_NUMBERS = (
    "outputs", "loss", "lengths |W_i|", "angles between features", "D_i", "leverages",
    "features per unit", "best cosine to a unit",
)  # fmt: skip


def toy_numbers(W: Tensor, out: Tensor, b: Tensor, x: Tensor) -> dict[str, Tensor]:
    """What people print about a toy whose read-out `out` [n, m] may be another matrix than Wᵀ."""
    y = (out @ (W @ x) + b[:, None]).relu()
    unit = geometry.unit(W)
    values = (
        y, (y - x).square().sum(0).mean()[None], W.norm(dim=0), unit.T @ unit,
        geometry.dimensionality(W), geometry.leverage(W), geometry.features_per_unit(W).double(),
        geometry.best_cosine(W, torch.eye(len(W), dtype=W.dtype)),
    )  # fmt: skip
    return dict(zip(TOY_NUMBERS, values, strict=True))


def toy_survival(W: Tensor, b: Tensor, p: float, seed: int = 6) -> dict[str, dict[str, float]]:
    """change of the hidden coordinates -> number -> largest move, of its largest value (float64).

    A rotation keeps W and Wᵀ tied. Any other change must be undone in the read-out, which is then
    a matrix of its own: W -> GW, Wᵀ -> Wᵀ G^-1. No output moves in either case.
    """
    W, b, g = W.double(), b.double(), toy.gen(seed)
    m, n = W.shape
    x = toy.sparse_inputs(torch.rand(n, 2000, generator=g, dtype=torch.float64), p)
    Q = torch.linalg.qr(torch.randn(m, m, generator=g, dtype=torch.float64))[0]
    stretch = torch.diag(torch.logspace(0, 1, m, dtype=torch.float64))
    long = torch.ones(m, dtype=torch.float64)
    long[0] = 10
    turned = -torch.eye(m, dtype=torch.float64)[torch.randperm(m, generator=g)]
    changes = {
        "units permuted, signs flipped": turned,
        "rotation R": Q,
        "one unit times ten, undone": torch.diag(long),
        "invertible G, undone": Q @ stretch @ Q.T,
    }  # fmt: skip
    old = toy_numbers(W, W.T, b, x)
    moves: dict[str, dict[str, float]] = {}
    for name, G in changes.items():
        new = toy_numbers(G @ W, W.T @ torch.linalg.inv(G), b, x)
        if name.startswith("units"):  # a list by unit is compared as a list, not unit by unit
            new["features per unit"] = new["features per unit"].sort().values
            kept = {**old, "features per unit": old["features per unit"].sort().values}
        else:
            kept = old
        moves[name] = _moved(kept, new)
    return moves


def _moved(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> dict[str, float]:
    return {k: ((new[k] - old[k]).abs().max() / old[k].abs().max()).item() for k in old}


def alone_error(toys: Toys, i: int, p: float, steps: int, size: int) -> float:
    """|loss of start i trained alone - its loss in the batch|, five features in two dimensions."""
    first = toy.starts(i + 1, 2, 5)
    start = Params(first.W[i:], first.b[i:])
    how: dict[str, Any] = {"importance": importance(5), "steps": steps, "size": size}
    alone = toy.train_toys(5, 2, p, start=start, samples=4096, **how)
    return (alone.loss[0] - toys.loss[i]).abs().item()


def hand_case() -> list[list[float]]:
    """ReLU(Wᵀ W x) for W = [1, -1], b = 0 and the three inputs of the series."""
    W, b = torch.tensor([[[1.0, -1.0]]], dtype=torch.float64), torch.zeros(1, 2).double()
    return batch.read_out(W, b, torch.tensor(HAND_X, dtype=torch.float64).T)[0].T.tolist()
