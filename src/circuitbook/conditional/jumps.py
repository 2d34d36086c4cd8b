"""A mixture of experts jumps where its selection changes, and the path integral cannot see it.

Where expert `into` overtakes expert `out` both have the same logit and so the same weight pi, and
the output jumps by pi (E_into - E_out). Everything else is continuous there:

    renormalised       pi = e^l_into / sum over the new selection of e^l
    softmax            pi = e^l_into / sum over all experts of e^l     (not renormalised: Switch)

So F(x1) - F(x0) = integral of D J dt + sum of the jumps. On a line in the stream the router's
logits are linear in t, and the crossings are found exactly; on a curve, by bisection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from circuitbook.conditional.finite import integral, rows
from circuitbook.conditional.gate_cuts import experts
from circuitbook.mlp import MoE


class Crossing(NamedTuple):
    """At t the selection loses expert `out` and gains `into`; `kept` are its other members."""

    t: float
    out: int
    into: int
    kept: tuple[int, ...] = ()


def crossings(l0: Float[Tensor, " expert"], l1: Float[Tensor, " expert"], k: int) -> list[Crossing]:
    """Every change of the top k of l0 + t (l1 - l0), 0 < t < 1, in order. Exact: no search.

    A selected and an unselected logit meet where their difference, which is linear in t, is zero;
    the first such meeting is the next change. Raises ValueError when two happen at once.
    """
    a, slope = l0.double(), (l1 - l0).double()
    inside, t, found = set(a.topk(k).indices.tolist()), 0.0, []
    while True:
        nearest: list[tuple[float, int, int]] = []
        for i in inside:
            for j in set(range(len(a))) - inside:
                closing = float(slope[j] - slope[i])
                if closing > 0:  # the gap shrinks; it is not negative now
                    nearest.append((max(t, float(a[i] - a[j]) / closing), i, j))
        nearest.sort()
        if not nearest or nearest[0][0] >= 1:
            return found
        if len(nearest) > 1 and nearest[0][0] == nearest[1][0] and nearest[0][0] > t:
            raise ValueError(f"two crossings at t = {nearest[0][0]}: move an end a little")
        t, out, into = nearest[0]
        inside = inside - {out} | {into}
        found.append(Crossing(t, out, into, tuple(sorted(inside - {into}))))


def tied_weight(
    logits: Float[Tensor, " expert"], crossing: Crossing, *, renormalised: bool
) -> Float[Tensor, ""]:
    """pi, the common weight of the two tied experts at the crossing."""
    if renormalised:
        among = logits[[crossing.into, *crossing.kept]]
        return among.softmax(0)[0]
    return logits.softmax(0)[crossing.into]


def jump(mlp: MoE, x: Float[Tensor, " d_model"], crossing: Crossing) -> Float[Tensor, " d_model"]:
    """pi (E_into(x) - E_out(x)) at the crossing x; the experts' biases are part of E."""
    pi = tied_weight(x @ mlp.W_router, crossing, renormalised=mlp.top_k > 1)
    written = experts(mlp, x)
    return pi * (written[crossing.into] - written[crossing.out])


class Apart(NamedTuple):
    """A finite change of a mixture, in its smooth part and its jumps."""

    smooth: Float[Tensor, " d_model"]  # integral of D J, from crossing to crossing
    jumps: Float[Tensor, "crossing d_model"]
    crossings: list[Crossing]


def take_apart(
    mlp: MoE,
    x0: Float[Tensor, " d_model"],
    x1: Float[Tensor, " d_model"],
    steps: int = 4,
) -> Apart:
    """F(x1) - F(x0) = smooth + sum of jumps. The integral is taken piece by piece (Gauss, `steps`).

    Between two crossings F is as smooth as its experts, so the sum is exact for GELU experts up to
    the quadrature, far below the jumps.
    """
    found = crossings(x0 @ mlp.W_router, x1 @ mlp.W_router, mlp.top_k)
    ends = [0.0, *(c.t for c in found), 1.0]
    smooth = sum(
        integral(rows(mlp), x0[None], x1[None], steps, "gauss", ends=(a, b))[0]
        for a, b in zip(ends[:-1], ends[1:], strict=True)
        if b > a
    )
    each = [jump(mlp, torch.lerp(x0, x1, c.t), c) for c in found]
    return Apart(smooth, torch.stack(each) if each else x0.new_zeros(0, len(x0)), found)


# ---------------------------------------------------------------- along any curve


def crossings_on_curve(
    logits: Callable[[Tensor], Float[Tensor, "m expert"]],
    k: int,
    grid: int = 64,
    halvings: int = 40,
) -> list[Crossing]:
    """Changes of the top k of logits(t), t from 0 to 1, by bisection to 2^-halvings of a cell.

    logits takes a vector of t. A pair of changes that undo each other inside one cell of the grid
    is not seen: `all_on_curve` compares with finer grids. Raises ValueError when more than one
    expert is exchanged at one t.
    """

    def chosen(t: float) -> frozenset[int]:
        return frozenset(logits(torch.tensor([t], dtype=torch.float64))[0].topk(k).indices.tolist())

    t = torch.linspace(0, 1, grid + 1, dtype=torch.float64)
    sets = [frozenset(s) for s in logits(t).topk(k).indices.tolist()]
    found = []
    for i in range(grid):
        low, now = float(t[i]), sets[i]
        while now != sets[i + 1]:
            left, right = low, float(t[i + 1])
            for _ in range(halvings):
                middle = (left + right) / 2
                left, right = (middle, right) if chosen(middle) == now else (left, middle)
            new = chosen(right)
            if len(now - new) != 1:
                raise ValueError(f"{len(now - new)} experts are exchanged at t = {right}")
            (out,), (into,) = now - new, new - now
            found.append(Crossing(right, out, into, tuple(sorted(new - {into}))))
            low, now = right, new
    return found


def all_on_curve(
    logits: Callable[[Tensor], Float[Tensor, "m expert"]], k: int, grid: int = 32, limit: int = 1024
) -> list[Crossing]:
    """The crossings that a grid and one twice as fine agree on, refined until they do.

    Raises ValueError when no two grids up to `limit` cells agree.
    """
    found = crossings_on_curve(logits, k, grid)
    while grid < limit:
        grid, before = 2 * grid, found
        found = crossings_on_curve(logits, k, grid)
        if [c[1:] for c in found] == [c[1:] for c in before]:
            return found
    raise ValueError(f"the selection changes too often: grids up to {grid} cells do not agree")
