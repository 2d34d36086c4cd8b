"""Where a mixture jumps, by how much, and that nothing else is missing from the path integral."""

import inspect

import pytest
import torch
from small_model import gen

from circuitbook.conditional import finite, jumps
from circuitbook.conditional.jumps import (
    Crossing,
    all_on_curve,
    crossings,
    crossings_on_curve,
    jump,
    take_apart,
)
from circuitbook.conditional.radial import small_block
from circuitbook.config import Config
from circuitbook.mlp import make_mlp


def block(k=2, act="gelu", seed=3, experts=6):
    """A random mixture with biases, k of 6 experts."""
    mlp = small_block(act, bias=True, experts=experts, seed=seed)
    mlp.top_k = k
    return mlp


def pairs(n, seed=1):
    x = 2 * torch.randn(n, 2, 16, generator=gen(seed), dtype=torch.float64)
    return [(a, b) for a, b in x]


def line(mlp, x0, x1):
    return lambda t: torch.lerp(x0[None], x1[None], t[:, None]) @ mlp.W_router


@pytest.mark.parametrize("k", [1, 2, 3])
def test_crossings_are_those_of_a_fine_grid(k):
    mlp, seen = block(k), 0
    for x0, x1 in pairs(8):
        found = crossings(x0 @ mlp.W_router, x1 @ mlp.W_router, k)
        t = torch.linspace(0, 1, 20001, dtype=torch.float64)
        sets = line(mlp, x0, x1)(t).topk(k).indices.sort(-1).values
        at = (sets[1:] != sets[:-1]).any(-1).nonzero()[:, 0]
        assert len(at) == len(found)
        for i, c in zip(at.tolist(), found, strict=True):
            assert t[i] <= c.t <= t[i + 1]
            assert set(sets[i].tolist()) == {*c.kept, c.out}
            assert set(sets[i + 1].tolist()) == {*c.kept, c.into}
        seen += len(found)
    assert seen >= 8


@pytest.mark.parametrize("k", [1, 2])
def test_a_jump_is_what_is_left_between_both_sides(k):
    """The output just after minus just before, for both kinds of router that the model has."""
    mlp, seen = block(k), 0
    f = finite.rows(mlp)
    for x0, x1 in pairs(8, seed=2):
        for c in crossings(x0 @ mlp.W_router, x1 @ mlp.W_router, k):
            sides = torch.stack([torch.lerp(x0, x1, c.t + e) for e in (-1e-9, 1e-9)])
            before, after = f(sides)
            found = jump(mlp, torch.lerp(x0, x1, c.t), c)
            assert (after - before - found).norm() <= 1e-6 * found.norm()
            seen += 1
    assert seen >= 5


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("act", ["gelu", "swiglu"])
def test_the_gap_is_the_sum_of_the_jumps(k, act):
    mlp, seen = block(k, act), 0
    for x0, x1 in pairs(4, seed=4):
        apart = take_apart(mlp, x0, x1, steps=16)
        f0, f1 = finite.rows(mlp)(torch.stack([x0, x1]))
        change = f1 - f0
        assert (change - apart.smooth - apart.jumps.sum(0)).norm() <= 1e-9 * change.norm()
        if len(apart.crossings):
            assert (change - apart.smooth).norm() > 1e-2 * change.norm()
            seen += 1
    assert seen >= 2


def test_more_steps_do_not_close_the_gap():
    mlp = block()
    x0, x1 = pairs(1, seed=4)[0]
    f = finite.rows(mlp)
    total = take_apart(mlp, x0, x1).jumps.sum(0)
    change = (f(torch.stack([x0, x1]))).diff(dim=0)[0]
    gaps = [(change - finite.integral(f, x0[None], x1[None], k)[0]).norm() for k in (64, 256, 1024)]
    assert all(abs(g / total.norm() - 1) <= 0.05 for g in gaps)
    assert abs(gaps[-1] / total.norm() - 1) <= 0.01
    errors = finite.errors(f, x0[None], x1[None], (64, 1024), missing=total[None])
    assert errors[1] < errors[0] / 4


def test_a_hand_made_crossing():
    """Two experts that write constants, top 1, logits (1 - 2t, 0): they meet in the middle."""
    cfg = Config(1, d_model=2, n_heads=1, d_head=1, d_mlp=1, act="relu", n_experts=2, top_k=1,
                 d_vocab=2, n_ctx=2)  # fmt: skip
    mlp = make_mlp(cfg).double().requires_grad_(False)
    mlp.b_out.copy_(torch.tensor([[1.0, 0.0], [0.0, 3.0]]))
    mlp.W_router.copy_(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    x0, x1 = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).double()
    apart = take_apart(mlp, x0, x1)
    assert apart.crossings == [Crossing(0.5, 0, 1)]
    assert torch.allclose(apart.jumps, torch.tensor([[-0.5, 1.5]]).double())


def test_a_single_renormalised_weight_would_be_one():
    logits = torch.tensor([0.3, 0.3, -1.0])
    c = Crossing(0.5, 0, 1)
    assert jumps.tied_weight(logits, c, renormalised=True) == 1
    assert abs(jumps.tied_weight(logits, c, renormalised=False) - logits.softmax(0)[1]) < 1e-7
    kept = Crossing(0.5, 0, 1, (2,))
    want = torch.tensor([0.3, -1.0]).softmax(0)[0]
    assert abs(jumps.tied_weight(logits, kept, renormalised=True) - want) < 1e-7


def test_two_crossings_at_once_are_refused():
    with pytest.raises(ValueError, match="two crossings"):
        crossings(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([-1.0, 0.0, 0.0]), 1)


def test_no_crossing_no_jump():
    mlp = block()
    x = pairs(1)[0][0]
    apart = take_apart(mlp, x, x + 1e-6)
    assert apart.crossings == [] and apart.jumps.shape == (0, 16)


# ---- curves --------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2])
def test_bisection_finds_the_same_on_a_line(k):
    mlp = block(k)
    for x0, x1 in pairs(4, seed=6):
        exact = crossings(x0 @ mlp.W_router, x1 @ mlp.W_router, k)
        found = crossings_on_curve(line(mlp, x0, x1), k, grid=7)
        assert [c[1:] for c in found] == [c[1:] for c in exact]
        assert all(abs(a.t - b.t) <= 1e-11 for a, b in zip(found, exact, strict=True))


def test_a_curve_that_turns_back():
    """logits (cos 2 pi t, 0): the first expert loses at 1/4 and wins again at 3/4."""

    def logits(t):
        return torch.stack([torch.cos(2 * torch.pi * t), torch.zeros_like(t)], -1)

    found = crossings_on_curve(logits, 1)
    assert [c[1:] for c in all_on_curve(logits, 1, grid=8)] == [c[1:] for c in found]
    assert [(c.out, c.into) for c in found] == [(0, 1), (1, 0)]
    assert abs(found[0].t - 0.25) < 1e-11 and abs(found[1].t - 0.75) < 1e-11
    with pytest.raises(ValueError, match="exchanged at"):
        crossings_on_curve(lambda t: torch.stack([1 - 2 * t, 1 - 2 * t, t - 1, t - 1], -1), 2)


def test_a_pair_of_changes_inside_one_cell_is_found_by_a_finer_grid():
    """Ahead only from t = 0.30 to 0.32: inside a cell of 8; a grid of 16 has a node there."""

    def logits(t):
        return torch.stack([1e-4 - (t - 0.31) ** 2, torch.zeros_like(t)], -1)

    assert crossings_on_curve(logits, 1, grid=8) == []
    found = all_on_curve(logits, 1, grid=64)
    assert [(c.out, c.into) for c in found] == [(1, 0), (0, 1)]
    with pytest.raises(ValueError, match="do not agree"):
        all_on_curve(lambda t: torch.stack([torch.sin(300 * t), 0 * t], -1), 1, grid=16, limit=64)


# ---- mistakes ------------------------------------------------------------------------------------

SOURCE = inspect.getsource(jumps)
MUTANTS = {
    "the other expert's sign": (".into] - written[", ".into] + written["),
    "weight of both selections": (
        "[crossing.into, *crossing.kept]",
        "[crossing.into, crossing.out, *crossing.kept]",
    ),
    "always renormalised": ("renormalised=mlp.top_k > 1", "renormalised=True"),
    "never renormalised": ("renormalised=mlp.top_k > 1", "renormalised=False"),
    "at the start of the line": ("jump(mlp, torch.lerp(x0, x1, c.t), c)", "jump(mlp, x0, c)"),
    "selection not updated": ("inside = inside - {out} | {into}", "inside = inside"),
    "only the first piece": ("[0.0, *(c.t for c in found), 1.0]", "[0.0, 1.0]"),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mistake_shows(mutant):
    old, new = MUTANTS[mutant]
    assert SOURCE.count(old) == 1
    broken, seen = {"__name__": "broken"}, 0.0
    if mutant == "selection not updated":  # it would never end
        new += "\n        if len(found) > 50: return found"
    exec(SOURCE.replace(old, new), broken)
    for k in (1, 2):
        mlp = block(k)
        for x0, x1 in pairs(4, seed=4):
            apart = broken["take_apart"](mlp, x0, x1)
            f0, f1 = finite.rows(mlp)(torch.stack([x0, x1]))
            gap = (f1 - f0 - apart.smooth - apart.jumps.sum(0)).norm() / (f1 - f0).norm()
            seen = max(seen, float(gap))
    assert seen > 1e-4
