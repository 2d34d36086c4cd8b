"""The mean Jacobian on the ray: where it is the forward operator, and where it is not."""

import inspect
import math

import pytest
import torch
from small_model import gen

from circuitbook.conditional import finite, radial
from circuitbook.conditional.operators import forward

X = 1.5 * torch.randn(16, generator=gen(9), dtype=torch.float64)


def gap(a, b):
    return ((a - b).norm() / b.norm()).item()


def by_autograd(mlp, x, steps=16):
    """J_bar from automatic Jacobians at the nodes: nothing of this project's formulas."""
    f = lambda y: mlp(y[None, None])[0, 0]  # noqa: E731 (a row to a row)
    t, w = finite.rule(steps, "gauss")
    each = [torch.func.jacrev(f)(s * x).T for s in t]
    return sum(a * J for a, J in zip(w, each, strict=True))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("act", ["gelu", "gelu_new"])
def test_two_matrices_closed(act, bias):
    mlp = radial.small_block(act, bias=bias)
    want = by_autograd(mlp, X)
    assert gap(radial.two_matrices(mlp, act, X), want) <= 1e-12
    assert gap(radial.mean_jacobian(mlp, act, X, 16), want) <= 1e-12


def test_relu_closed_against_a_fine_sum():
    """Kinks leave first-order errors in any quadrature, so the limit is theirs."""
    mlp = radial.small_block("relu", bias=True)
    assert gap(radial.two_matrices(mlp, "relu", X), by_autograd(mlp, X, 60)) <= 1e-2


def test_swiglu_closed():
    mlp = radial.small_block("swiglu", bias=False)
    assert gap(radial.swiglu(mlp, X), by_autograd(mlp, X)) <= 1e-11
    content, gate = (forward(mlp, "swiglu", X[None], content=c).matrix()[0] for c in (1.0, 0.0))
    assert min(gap(radial.swiglu(mlp, X), B) for B in (content, gate, (content + gate) / 2)) > 0.05


def test_the_mean_of_silu():
    """a(g) = log(1 + e^g) - mean of log(1 + e^s) for s from 0 to g, by a fine sum; a ~ g/4."""
    g = torch.tensor([-6.0, -0.5, 0.7, 5.0], dtype=torch.float64)
    s = (torch.arange(20000, dtype=torch.float64) + 0.5) / 20000
    soft = torch.nn.functional.softplus
    want = soft(g) - soft(g[:, None] * s).mean(-1)
    assert torch.allclose(radial.gate_mean(g), want, rtol=1e-7)
    small = torch.tensor([1e-4, 0.0], dtype=torch.float64)
    assert torch.allclose(radial.gate_mean(small), small / 4, rtol=1e-3)


@pytest.mark.parametrize("act", ["gelu", "relu", "swiglu"])
def test_at_zero_the_quotient_is_the_slope(act):
    mlp = radial.small_block(act, bias=act != "swiglu")
    zero = torch.zeros_like(X)
    closed = radial.swiglu(mlp, zero) if act == "swiglu" else radial.two_matrices(mlp, act, zero)
    assert torch.isfinite(closed).all()
    slope = torch.func.jacrev(lambda y: mlp(y[None, None])[0, 0])(zero).T
    assert torch.allclose(closed, slope, atol=1e-12)


@pytest.mark.parametrize("act", ["relu", "gelu", "gelu_new"])
def test_bias_as_a_row_makes_it_the_forward_operator(act):
    mlp = radial.small_block(act, bias=True)
    one = torch.cat([X, X.new_ones(1)])
    row = radial.augmented(mlp)
    written = row(one[None, None])[0, 0]
    assert torch.allclose(written[:-1], mlp(X[None, None])[0, 0] - mlp.b_out, atol=1e-13)
    assert written[-1] == 0
    assert radial.compare(row, act, one)["operator"] <= 1e-12
    B = forward(mlp, act, X[None])
    mean = radial.two_matrices(row, act, one)
    # The first rows are B, the last row is the bias row without b_out, which no neuron carries.
    assert torch.allclose(mean[:-1, :-1], B.matrix()[0], atol=1e-12)
    assert torch.allclose(mean[-1, :-1], B.bias[0] - mlp.b_out, atol=1e-12)
    assert radial.compare(mlp, act, X)["operator"] > 0.1


def test_the_table_says_where_it_holds():
    found = radial.table(seed=4)
    same = {n for n, row in found.items() if row["operator"] <= 1e-12}
    assert same == {
        "relu, no bias", "relu, bias as a row", "gelu, no bias", "gelu, bias as a row",
        "bilinear against half and half",
    }  # fmt: skip
    assert all(row["operator"] > 0.05 for n, row in found.items() if n not in same)
    assert all(row["difference"] <= 1e-10 for row in found.values())
    away = {n for n, row in found.items() if row["output"] > 1e-10}
    assert away == {"relu, bias stays", "gelu, bias stays"}


def test_experts_keep_their_selection_on_the_ray():
    """Without a router bias the order of the logits is that of x, so nothing jumps but at zero."""
    mlp = radial.small_block("gelu", bias=False, experts=5)
    found = radial.compare(mlp, "gelu", X)
    assert found["difference"] <= 1e-12 and found["output"] <= 1e-12
    # Halves of the ray are finite changes too.
    f = finite.rows(mlp)
    half = finite.integral(f, X / 2, X, 8, "gauss")
    assert torch.allclose(half, (f(torch.stack([X / 2, X]))).diff(dim=0)[0], atol=1e-12)


SOURCE = inspect.getsource(radial)
MUTANTS = {
    "phi(b) forgotten": ("(phi(act, z) - phi(act, b))", "phi(act, z)", "gelu", True),
    "divided by z": ("torch.where(near, 1.0, z - b)", "torch.where(near, 1.0, z)", "gelu", True),
    "the gate's rest is sigma": (
        'g) - torch.where(near, 0.25', 'g) - 0 * torch.where(near, 0.25', "swiglu", False),
    "a is half of SiLU": ("near = gate_mean(g),", "near = g * g.sigmoid() / 2,", "swiglu", False),
    "gate does not carry u": ("mlp.W_gate * (u * rest)", "mlp.W_gate * rest", "swiglu", False),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mistake_shows(mutant):
    old, new, act, bias = MUTANTS[mutant]
    assert SOURCE.count(old) == 1
    broken = {"__name__": "broken"}
    exec(SOURCE.replace(old, new), broken)
    mlp = radial.small_block(act, bias=bias)
    got = broken["swiglu"](mlp, X) if act == "swiglu" else broken["two_matrices"](mlp, act, X)
    assert gap(got, by_autograd(mlp, X)) > 1e-2


def test_the_series_of_a_near_zero():
    """a(g) = g/4 + g^2/12 + ...: SiLU(tg) = tg/2 + t^2 g^2/4 + ..., integrated."""
    g = torch.tensor([1e-3], dtype=torch.float64)
    assert math.isclose(radial.gate_mean(g).item(), 1e-3 / 4 + 1e-6 / 12, rel_tol=1e-6)
