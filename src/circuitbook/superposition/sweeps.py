"""Many settings as one batch: sticky shares of a dimension, the phase border, pairs, levels.

Every function returns plain tensors and numbers; each states what it trains. Losses as in `toy`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from circuitbook.superposition import batch, closed_forms, geometry, toy
from circuitbook.superposition.batch import Params

STICKY = {"1/2": 1 / 2, "2/5": 2 / 5, "2/3": 2 / 3, "3/8": 3 / 8, "1/3": 1 / 3, "3/4": 3 / 4}


# ---- how much of a dimension does a feature get? ------------------------------------------------


def dimension_sweep(
    n: int, m: int, inverse: Tensor, *, starts: int, steps: int, size: int, seed: int = 3
) -> tuple[Float[Tensor, "setting start m n"], Float[Tensor, "setting start n"]]:
    """(W, D) of toys with equal importance, one setting for each 1/(1 - S) in `inverse`."""
    p = (1 / inverse).repeat_interleave(starts)
    toys = toy.train_toys(
        n, m, p, instances=len(p), steps=steps, size=size, seed=seed, samples=1
    )  # the loss is not used
    W = toys.W.view(len(inverse), starts, m, n)
    return W, geometry.dimensionality(W)


def near_sticky(D: Tensor, W: Tensor, allowed: float = 0.01) -> dict[str, float]:
    """The share of stored features whose D lies within `allowed` of each sticky value."""
    stored = D[geometry.represented(W)]
    return {
        name: ((stored - at).abs() <= allowed).double().mean().item() for name, at in STICKY.items()
    }


# ---- the phase border of two features in one number ---------------------------------------------


class Border(NamedTuple):
    """ratio: r = I_2/I_1. trained: up to this p the best start stores both features."""

    second: Float[Tensor, "ratio p"]  # |W_2| / |W_1| of the best start
    gain: Float[Tensor, "ratio p"]  # by which part its loss is below that of the better plan
    trained: Float[Tensor, " ratio"]
    predicted: Float[Tensor, " ratio"]


def phase_border(
    ratios: Float[Tensor, " ratio"], p: Float[Tensor, " p"], *, steps: int, points: int = 24
) -> Border:
    """n = 2, m = 1 with biases, for every pair (r, p); no sampling, the loss is a weighted sum.

    Three starts each: the opposite pair, and the first feature alone with a trace of the second,
    of either sign. The lowest loss counts. Both stored: |W_2| > 0.5, the series' criterion.
    """
    x, rows = closed_forms.quadrature(points)
    r, q = (g.flatten() for g in torch.meshgrid(ratios, p, indexing="ij"))
    weight = torch.stack([(1 - q) ** 2, 2 * q * (1 - q), q * q], 1) @ rows  # [setting, input]
    factor = torch.stack([torch.ones_like(r), r], 1)[:, :, None] * weight[:, None]
    factor = factor.repeat(3, 1, 1)
    W = torch.tensor([[1.0, -1.0], [1.0, 0.05], [1.0, -0.05]], dtype=torch.float64)
    plan = torch.tensor([[1.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    W = W.repeat_interleave(len(r), 0)[:, None]  # [instance, 1, 2]
    b = torch.zeros(len(W), 2, dtype=torch.float64)
    b[len(r) :, 1] = q.repeat(2) / 2

    def data(step: int) -> batch.Batch:
        return lambda part: (x, factor[part])

    def loss(W: Tensor, b: Tensor) -> Tensor:
        error = (batch.read_out(W, b, x) - x).square() * factor[: len(W)]
        return error.sum((1, 2)).view(-1, len(r))

    found = batch.train(Params(W, b), data, x.shape[1], steps=steps, lr=0.01).params
    least, best = loss(*found).min(0)
    plan = plan.repeat_interleave(len(r), 0)[:, None]
    derived = loss(plan, b[: len(plan)]).amin(0)  # on the same grid; b: none, then the mean
    gain = (1 - least / derived).view(len(ratios), len(p))
    W = found.W.view(3, len(r), 2)[best, torch.arange(len(r))].abs().view(len(ratios), len(p), 2)
    both = (W[..., 1] > 0.5).double().cumprod(1)  # from the sparse end on, without a gap
    trained = (both * p).amax(1)
    predicted = torch.tensor([closed_forms.border(float(i)) for i in ratios], dtype=torch.float64)
    return Border(W[..., 1] / W[..., 0], gain, trained, predicted)


def plans_by_chance(p: float, r: float, samples: int, seed: int = 0) -> dict[str, tuple]:
    """(mean, standard error) of the losses of both plans on random inputs: pair, first alone."""
    v = torch.rand(2, samples, generator=toy.gen(seed), dtype=torch.float64)
    x, importance = toy.sparse_inputs(v, p), torch.tensor([1.0, r], dtype=torch.float64)
    plans = {"pair": ([1.0, -1.0], [0.0, 0.0]), "first alone": ([1.0, 0.0], [0.0, p / 2])}
    out = {}
    for name, (W, b) in plans.items():
        W, b = (torch.tensor([v], dtype=torch.float64) for v in (W, b))
        loss = ((batch.read_out(W, b[0], x) - x).square() * importance[:, None]).sum(0)
        out[name] = loss.mean().item(), (loss.std() / samples**0.5).item()
    return out


# ---- features that come together, or never do ---------------------------------------------------

KINDS = ("come together", "independent", "never together")


def paired_inputs(kind: str, p: float, size: int, generator: torch.Generator) -> Tensor:
    """Four features [4, size], (0, 1) and (2, 3) are pairs; each is on with probability p.

    come together: both of a pair on, or none. never together: at most one of a pair is on.
    """
    value, gate = torch.rand(2, 2, 2, size, generator=generator)
    if kind == "come together":
        on = gate[:, :1] < p
    elif kind == "never together":
        on = torch.cat([gate[:, :1] < p, gate[:, :1] > 1 - p], 1)
    else:
        on = gate < p
    return (value * on).view(4, size)


def _paired(kind: str, p: float, size: int) -> batch.Data:
    stream, factor = toy.gen(11), torch.ones(4, 1) / size

    def data(step: int) -> batch.Batch:
        x = paired_inputs(kind, p, size, stream)
        return lambda part: (x, factor)

    return data


def pair_geometry(
    p: float, *, instances: int, steps: int, size: int
) -> dict[str, dict[str, Tensor]]:
    """Four features in two dimensions, by kind of pair: who is near, who is opposite.

    partner: cos(W_0, W_1) and cos(W_2, W_3) [instance, 2]. opposite: whether the feature's most
    negative cosine is with its partner [instance, 4]. Only starts that store all four count.
    """
    out = {}
    for kind in KINDS:
        first = toy.starts(instances, 2, 4, seed=5)
        W = batch.train(first, _paired(kind, p, size), size, steps=steps, lr=0.01).params.W
        W = W[geometry.represented(W).all(-1)]
        cos = geometry.unit(W).mT @ geometry.unit(W)
        partner = torch.tensor([1, 0, 3, 2])
        out[kind] = {
            "partner": torch.stack([cos[:, 0, 1], cos[:, 2, 3]], 1),
            "opposite": cos.argmin(-1) == partner,
            "stored": torch.tensor(len(W)),
        }
    return out


# ---- levels while learning ----------------------------------------------------------------------


class Levels(NamedTuple):
    """Every start of one toy while it learns, at the kept steps (constant learning rate)."""

    steps: list[int]
    loss: Float[Tensor, "kept start"]
    D: Float[Tensor, "kept start n"]

    def falls(self) -> Float[Tensor, "between start"]:
        """The part of the loss that goes between two kept steps."""
        return -self.loss.diff(dim=0) / self.loss[:-1]

    def moves(self) -> Float[Tensor, "between start"]:
        """Σ_i |change of D_i| between two kept steps."""
        return self.D.diff(dim=0).abs().sum(-1)

    def late_jump(self, window: int = 5, calm: float = 0.01) -> tuple[Tensor, ...]:
        """(jump, place [start], fall, move [at, start]) over windows of `window` kept steps.

        fall, move: the sums of `falls` and `moves` in every window. jump: the largest fall that
        comes after a calm time, `place` its window. Calm: a window in which the loss fell by less
        than `calm`. A start that never rests, or rests for good, has a jump of about zero.
        """
        fall = self.falls().unfold(0, window, 1).sum(-1)
        move = self.moves().unfold(0, window, 1).sum(-1)
        rested = fall.cummin(0).values.roll(window, 0) < calm
        rested[:window] = False
        jump, place = (fall * rested).max(0)
        return jump, place, fall, move


def levels(
    n: int, m: int, p: float, importance: Tensor, *, starts: int, steps: int, size: int, every: int
) -> Levels:
    """Many starts of one toy, looked at every `every` steps of Adam at 0.002."""
    data = toy.independent(n, torch.full((starts,), p), importance, size, 99)
    keep = range(0, steps + 1, every)
    first = toy.starts(starts, m, n)
    run = batch.train(first, data, size, steps=steps, lr=0.002, keep=keep, final=1.0)
    W, b = (torch.cat(x) for x in zip(*run.kept, strict=True))
    loss, _ = toy.toy_loss(W, b, p, importance, samples=256, repeats=2)
    D = geometry.dimensionality(W.double()).view(len(keep), starts, n)
    return Levels(run.steps, loss.view(len(keep), starts), D)
