"""An overcomplete set is not a basis: what can be read back from h = Wx, and how much fits in n.

Codes are non-negative (features are): x >= 0 with k entries on. W's columns are the directions.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.superposition import toy


def pentagon(size: float = 1.0) -> Float[Tensor, "2 5"]:
    """Five directions 72 degrees apart, all of length `size` (float64)."""
    angle = 2 * math.pi * torch.arange(5, dtype=torch.float64) / 5
    return size * torch.stack([angle.cos(), angle.sin()])


def same_shadow(W: Float[Tensor, "m n"]) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Two different codes x, y >= 0 with Wx = Wy; together they use at most m + 1 features.

    Any m + 1 directions in m dimensions depend on each other: Σ c_i W_i = 0. The positive c go to
    x, the negative ones to y. Needs n > m.
    """
    m, n = W.shape
    if n <= m:
        raise ValueError(f"{n} directions in {m} dimensions may be a basis: give more than {m}")
    c = torch.zeros(n, dtype=W.dtype)
    c[: m + 1] = torch.linalg.svd(W[:, : m + 1])[2][-1]
    c = c / c.abs().max()
    return c.clamp(min=0), (-c).clamp(min=0)


def codes(
    n: int, k: int, count: int, seed: int
) -> tuple[Float[Tensor, "count n"], Int[Tensor, "count k"]]:
    """(x, which): codes with k of n features on, values uniform on (0.2, 1), in float64.

    Values near zero are left out: a feature that is hardly on would decide what counts as found.
    """
    g = toy.gen(seed)
    which = torch.rand(count, n, generator=g).argsort(1)[:, :k]
    value = 0.2 + 0.8 * torch.rand(count, k, generator=g, dtype=torch.float64)
    return torch.zeros(count, n, dtype=torch.float64).scatter_(1, which, value), which


def sparse_decode(
    W: Float[Tensor, "m n"], h: Float[Tensor, "count m"], iterations: int = 2500
) -> Float[Tensor, "count n"]:
    """argmin Σ x_i over x >= 0 with Wx = h: the shortest explanation, found by ADMM.

    One step moves to the nearest x that explains h, the next sets negative entries to zero.
    """
    pull = torch.linalg.pinv(W)  # [n, m]
    x = z = torch.zeros(len(h), W.shape[1], dtype=W.dtype)
    u = torch.zeros_like(x)
    step = 0.05
    for _ in range(iterations):
        x = z - u
        x = x - (x @ W.T - h) @ pull.T
        z = (x + u - step).clamp(min=0)
        u = u + x - z
    return z


def greedy_decode(
    W: Float[Tensor, "m n"], h: Float[Tensor, "count m"], k: int
) -> Int[Tensor, "count k"]:
    """Orthogonal matching pursuit: k times, take the direction that fits the rest best, refit."""
    sizes = W.norm(dim=0)
    chosen = torch.zeros(len(h), 0, dtype=torch.long)
    rest = h
    for _ in range(k):
        fit = (rest @ W) / sizes
        fit = fit.scatter(1, chosen, -torch.inf)
        chosen = torch.cat([chosen, fit.argmax(1, keepdim=True)], 1)
        part = W.T[chosen].mT  # [count, m, chosen]
        rest = h - (part @ torch.linalg.lstsq(part, h[..., None]).solution)[..., 0]
    return chosen


class Recovered(NamedTuple):
    """Shares of codes whose features were all found and no others, by number k of features on."""

    shortest: float  # the shortest non-negative code
    greedy: float  # matching pursuit that is told k
    own: float  # the toy's own ReLU(Wᵀh + b): which outputs are above a tenth


def recovery(
    W: Float[Tensor, "m n"], b: Float[Tensor, " n"], k: int, count: int, seed: int = 0
) -> Recovered:
    """How often the k features that are on can be named from h = Wx alone."""
    W, b = W.double(), b.double()
    x, which = codes(W.shape[1], k, count, seed)
    h = x @ W.T
    found = (
        sparse_decode(W, h) > 0.05,
        torch.zeros_like(x, dtype=torch.bool).scatter_(1, greedy_decode(W, h, k), True),
        (h @ W + b) > 0.1,
    )
    return Recovered(*((f == (x > 0)).all(1).double().mean().item() for f in found))


def wilson(hits: int, n: int) -> tuple[float, float]:
    """The 95 % interval of a rate from `hits` of n (Wilson): inside (0, 1) even at none or all."""
    z, rate = 1.959964, hits / n
    middle = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


# ---- almost orthogonal directions ---------------------------------------------------------------


def chance_of_overlap(n: int, allowed: float, points: int = 20_000) -> float:
    """P(|cos| > allowed) for two random directions in n dimensions, by its integral.

    The cosine t has the density (1 - t²)^((n - 3)/2), up to its norm; written with t = sin a.
    """
    a = (torch.arange(points, dtype=torch.float64) + 0.5) / points * (math.pi / 2)
    density = a.cos() ** (n - 2)
    return (density * (a.sin() > allowed)).sum().item() / density.sum().item()


def birthday(chance: float) -> float:
    """√(2 ln 2 / q): draws until two clash in half of the cases, when each pair may with q."""
    return math.sqrt(2 * math.log(2) / chance)


def before_first_overlap(
    n: int, allowed: float, *, repeats: int, seed: int, most: int = 4000
) -> Float[Tensor, " repeats"]:
    """How many random directions can be drawn until two have |cos| > allowed, for each repeat.

    `most` is an upper end: a repeat that reaches it counts as `most`.
    """
    g, out = toy.gen(seed), torch.empty(repeats)
    for i in range(repeats):
        kept, block = torch.zeros(0, n), 64
        while len(kept) < most:
            new = torch.nn.functional.normalize(torch.randn(block, n, generator=g), dim=1)
            drawn = torch.cat([kept, new])
            clash = ((new @ drawn.T).abs() > allowed).tril(len(kept) - 1)
            if clash.any():
                kept = drawn[: len(kept) + int(clash.any(1).nonzero()[0])]
                break
            kept, block = drawn, min(2 * block, 1024)
        out[i] = min(len(kept), most)
    return out


def packed(n: int, allowed: float, *, tries: int, seed: int) -> int:
    """How many directions with |cos| <= allowed fit when every random one that fits is kept.

    Stops after `tries` draws in all: a lower bound of what is possible.
    """
    g, kept = toy.gen(seed), torch.zeros(0, n)
    for _ in range(tries // 500):
        new = torch.nn.functional.normalize(torch.randn(500, n, generator=g), dim=1)
        new = new[((new @ kept.T).abs() <= allowed).all(1)]
        fits = (new @ new.T).abs() <= allowed
        taken: list[int] = []
        for i in range(len(new)):
            if bool(fits[i, taken].all()):
                taken.append(i)
        kept = torch.cat([kept, new[taken]])
    return len(kept)


def growth(n: Tensor, count: Tensor) -> float:
    """The slope of ln(count) against n, by least squares: count grows like exp(slope · n)."""
    x, y = n.double() - n.double().mean(), count.double().log()
    return ((x * (y - y.mean())).sum() / x.square().sum()).item()
