"""Features are independent: each is on with probability p, and then uniform between zero and one.

`train_toys` trains one toy for every start and setting, all in one batch. `toy_loss` reads the loss
with little noise: the number of features that are on is summed over exactly, and only the rest is
drawn. Loss is summed over features, weighted by importance, averaged over inputs.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from circuitbook.superposition import batch
from circuitbook.superposition.batch import Params

EVERY = 64  # so many choices of features are all taken, more are drawn


class Toys(NamedTuple):
    """Trained toys: `loss` with its standard error `loss_se`, both from one fixed sample."""

    W: Float[Tensor, "instance m n"]
    b: Float[Tensor, "instance n"]
    loss: Float[Tensor, " instance"]
    loss_se: Float[Tensor, " instance"]


def gen(seed: int) -> torch.Generator:
    """A generator of its own for every use of chance."""
    return torch.Generator().manual_seed(seed)


def sparse_inputs(v: Tensor, p: Tensor | float) -> Tensor:
    """max(0, 1 - v/p): zero with probability 1 - p, else uniform on (0, 1], from one uniform v."""
    return (1 - v / p).clamp_(min=0)


def starts(instances: int, m: int, n: int, seed: int = 0) -> Params:
    """W ~ normal / √n (so that |W_i|² is m/n in the mean), b = 0; instance i is the i-th draw.

    Drawn one after another, so the first k of many starts are the k starts of a smaller call. (One
    large draw would not do: torch fills it in blocks of sixteen.)
    """
    g = gen(seed)
    W = torch.stack([torch.randn(m, n, generator=g) for _ in range(instances)]) / n**0.5
    return Params(W, torch.zeros(instances, n))


def independent(n: int, p: Tensor, importance: Tensor, size: int, seed: int) -> batch.Data:
    """One stream of uniform draws for all instances; p [instance] says how many of them are on."""
    stream, same = gen(seed), bool((p == p[0]).all())
    factor = importance[:, None] / size

    def data(step: int) -> batch.Batch:
        v = torch.rand(n, size, generator=stream)
        x = sparse_inputs(v, p[0])
        if same:
            return lambda part: (x, factor)
        return lambda part: (sparse_inputs(v, p[part, None, None]), factor)

    return data


def train_toys(
    n: int, m: int, p: float | Tensor, *, instances: int = 1, importance: Tensor | None = None,
    relu: bool = True, steps: int = 4000, size: int = 512, lr: float = 0.01,
    seed: int = 0, data_seed: int = 1000, samples: int = 1024, start: Params | None = None,
) -> Toys:  # fmt: skip
    """Train `instances` toys of n features in m dimensions at once; see `Toys` for what comes back.

    p: probability that a feature is on, a number or one for each instance. importance [n], ones if
    not given. seed: of the starts. data_seed: of the one stream of inputs that all instances see.
    size: inputs a step. samples: of the reading of the loss, for each number of features on.
    """
    start = start or starts(instances, m, n, seed)
    importance = torch.ones(n) if importance is None else importance.float()
    each = torch.as_tensor(p, dtype=torch.float32).expand(len(start.W))
    data = independent(n, each, importance, size, data_seed)
    W, b = batch.train(start, data, size, steps=steps, lr=lr, relu=relu).params
    return Toys(W, b, *toy_loss(W, b, each, importance, relu=relu, samples=samples))


def number_on(n: int, p: float) -> list[float]:
    """P(k of n features are on), k = 0 ... n: the binomial distribution."""
    return [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]


def inputs_with(n: int, k: int, samples: int, seed: int) -> Float[Tensor, "n inputs"]:
    """About `samples` inputs with exactly k of n features on, uniform on (0, 1] (float64).

    All choices of k features when there are few, else random ones. The values are Sobol points,
    scrambled by `seed`: they fill the cube evenly, so a mean over them has little noise.
    """
    if k == 0:
        return torch.zeros(n, 1, dtype=torch.float64)
    few = math.comb(n, k) <= EVERY
    each = max(1, samples // math.comb(n, k)) if few else samples
    values = torch.quasirandom.SobolEngine(k, scramble=True, seed=seed)
    value = values.draw(each, dtype=torch.float64)
    if few:
        on = torch.tensor(list(itertools.combinations(range(n), k)))
        on, value = on.repeat_interleave(each, 0), value.repeat(len(on), 1)
    else:
        on = torch.rand(each, n, generator=gen(seed)).argsort(1)[:, :k]
    return torch.zeros(len(on), n, dtype=torch.float64).scatter_(1, on, value).T


@torch.no_grad()
def toy_loss(
    W: Float[Tensor, "instance m n"], b: Float[Tensor, "instance n"], p: Tensor | float,
    importance: Tensor, *, relu: bool = True, samples: int = 1024, repeats: int = 4,
) -> tuple[Float[Tensor, " instance"], Float[Tensor, " instance"]]:  # fmt: skip
    """(loss, standard error): Σ_k P(k on) · mean loss with k on; the same inputs for all instances.

    The error comes from `repeats` scrambles of the points. Numbers of features that are on less
    often than one time in 10^9 are left out.
    """
    W, b, importance = W.double(), b.double(), importance.double()
    each = torch.as_tensor(p, dtype=torch.float64).expand(len(W))
    chance = torch.tensor([number_on(W.shape[-1], q) for q in each.tolist()], dtype=torch.float64)
    loss = torch.zeros(repeats, len(W), dtype=torch.float64)
    for k in (chance.max(0).values > 1e-9).nonzero().flatten().tolist():
        for i in range(repeats):
            x = inputs_with(W.shape[-1], k, samples, 100 * i + k)
            error = torch.cat(
                [
                    ((batch.read_out(w, c, x, relu) - x).square().mean(-1) @ importance)
                    for w, c in zip(W.split(32), b.split(32))
                ]
            )
            loss[i] += chance[:, k] * error
    return loss.mean(0), loss.std(0) / repeats**0.5
