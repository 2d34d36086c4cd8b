"""Gates and conditional operators: they give the block and its derivative, at zero as elsewhere."""

import math

import pytest
import torch
import torch.nn.functional as F
from small_model import gen
from torch import nn

from circuitbook.bases import relative_change
from circuitbook.conditional import euler, gates, identities, operators
from circuitbook.conditional.operators import forward, jacobian, norm_forward, norm_jacobian
from circuitbook.conditional.routes import ROUTERS, router_weights

PHI = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": lambda z: F.gelu(z, approximate="tanh"),
    "silu": F.silu,
    "identity": lambda z: z,
    "sigmoid": torch.sigmoid,
}
BLOCKS = {name: (act, mlp) for name, act, mlp in identities.blocks()}
LIMIT = {torch.float32: 1e-6, torch.float64: 1e-12}


def some(n=12, d=24, seed=0, dtype=torch.float64):
    return torch.randn(n, d, generator=gen(seed), dtype=torch.float64).to(dtype)


# ---- gates --------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", gates.ACTS)
def test_a_gain_rebuilds_the_activation_and_its_slope(act):
    z = torch.cat(
        [torch.linspace(-30, 30, 501), torch.tensor([0.0, -1e-9, 1e-30, -1e-30])]
    ).double()
    assert (gates.phi(act, z) - PHI[act](z)).abs().max() < 1e-13
    assert gates.at_zero(act) == PHI[act](torch.zeros(1, dtype=torch.float64)).item()
    z = z[z != 0].requires_grad_(True)
    (true,) = torch.autograd.grad(PHI[act](z).sum(), z)
    assert (gates.slope(act, z.detach()) - true).abs().max() < 1e-13
    single = torch.linspace(-6, 6, 301)
    assert (gates.phi(act, single) - PHI[act](single)).abs().max() < 2e-6


@pytest.mark.parametrize("act", gates.ACTS)
def test_the_gain_at_zero_is_the_slope_there_and_never_a_quotient(act):
    zero = torch.zeros(1, dtype=torch.float64)
    assert torch.equal(gates.gate(act, zero), gates.slope(act, zero))
    near = gates.gate(act, torch.tensor([-1e-12, -1e-310], dtype=torch.float64))
    assert near.isfinite().all() and (near - gates.gate(act, zero)).abs().max() < 1e-11


def test_configs_names_and_unknown_ones():
    z = some()
    assert torch.equal(gates.gate("swiglu", z), gates.gate("silu", z))
    assert torch.equal(gates.gate("bilinear", z), torch.ones_like(z))
    with pytest.raises(ValueError, match="no activation is called 'tanh'"):
        gates.gate("tanh", z)


def test_shares_at_zero_depend_on_the_choice_and_only_the_limit_is_continuous():
    found = identities.gain_at_zero()
    assert found["relu"]["by phi'(0)"] == 0.0
    for act in ("gelu", "silu"):
        row = found[act]
        assert row["by phi'(0)"] == 0.5 and row["output"] == 0.0
        assert abs(row["near"] - row["by phi'(0)"]) < 1e-3 < abs(row["near"] - row["by zero"])


# ---- forward operators ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("dtype", LIMIT)
def test_forward_operator_is_the_block(name, dtype):
    act, mlp = BLOCKS[name]
    mlp, x = euler_copy(mlp, dtype), some(dtype=dtype)
    y = mlp(x[None])[0]
    for content in (1.0, 0.0, -0.7) if hasattr(mlp, "W_gate") else (1.0,):
        op = forward(mlp, act, x, content=content)
        assert relative_change(y, op.apply(x)) < LIMIT[dtype]
        assert relative_change(y, x @ op) > 0.05  # mutant: the bias row forgotten
        turned = op.apply(x.roll(1, 0))  # mutant: operators of other positions
        assert relative_change(y, turned) > 0.05


def euler_copy(mlp, dtype):
    import copy

    return copy.deepcopy(mlp).to(dtype)


@pytest.mark.parametrize("act", ["relu", "gelu", "gelu_new", "bilinear", "swiglu"])
def test_at_zero_and_without_biases_the_output_is_zero(act):
    mlp = euler.random_mlp(act, 8, 12, gen(), bias=False)
    x = torch.zeros(1, 8, dtype=torch.float64)
    op = forward(mlp, act, x)
    assert torch.equal(op.apply(x), mlp(x[None])[0]) and op.matrix().isfinite().all()
    if act == "gelu":  # half the linear map is left at zero, not nothing
        assert torch.allclose(op.matrix()[0], mlp.W_in @ mlp.W_out / 2)


def test_matrices_and_the_homogeneous_coordinate():
    act, mlp = BLOCKS["swiglu"]
    x = some(5)
    for op in (forward(mlp, act, x, content=0.25), forward(mlp, act, x).beside_identity()):
        B, tall = op.matrix(), op.homogeneous()
        assert B.shape == (5, 24, 24) and tall.shape == (5, 25, 25)
        assert torch.allclose(torch.einsum("nd,nde->ne", x, B), x @ op, atol=1e-12)
        row = torch.cat([x, torch.ones(5, 1, dtype=torch.float64)], -1)
        out = torch.einsum("nd,nde->ne", row, tall)
        assert torch.allclose(out[:, :-1], op.apply(x), atol=1e-12)
        assert torch.allclose(out[:, -1], torch.full((5,), op.one, dtype=torch.float64))
    assert forward(mlp, act, x).one == 0 and forward(mlp, act, x).beside_identity().one == 1


def test_sums_products_and_multiples_are_those_of_the_homogeneous_matrices():
    x = some(4)
    a = forward(BLOCKS["gelu"][1], "gelu", x).beside_identity()
    b = forward(BLOCKS["swiglu"][1], "swiglu", a.apply(x))
    cases = {
        "sum": (a + b, a.homogeneous() + b.homogeneous()),
        "product": (a @ b, a.homogeneous() @ b.homogeneous()),
        "the other product": (b @ a, b.homogeneous() @ a.homogeneous()),
        "multiple": (0.3 * a, 0.3 * a.homogeneous()),
        "norm first": (
            norm_forward(x, bias=x[0]) @ b,
            norm_forward(x, bias=x[0]).homogeneous() @ b.homogeneous(),
        ),
    }
    for name, (op, want) in cases.items():
        assert torch.allclose(op.homogeneous(), want, atol=1e-11), name
    assert not torch.allclose((a @ b).matrix(), (b @ a).matrix(), atol=1e-3)
    assert (a @ b).frozen == (operators.GAINS,)
    with pytest.raises(ValueError, match="different positions"):
        a + forward(BLOCKS["gelu"][1], "gelu", some(3))


def test_a_batch_of_parts_is_shared_out_linearly():
    act, mlp = BLOCKS["mixture of swiglu, k = 2"]
    parts = some(36).view(3, 12, 24)
    x = parts.sum(0)
    op = forward(mlp, act, x)
    assert torch.allclose((parts @ op).sum(0), x @ op, atol=1e-12)
    assert op.frozen == (operators.EXPERTS, operators.GAINS)


def with_router(moe, x, kind):
    """What a mixture writes when its router is of another kind: the experts' outputs, reweighed."""
    outs = []
    moe.hook_expert_out.add_hook(lambda out, hook: outs.append(out[0]))
    try:
        moe(x[None])
    finally:
        moe.hook_expert_out.remove_hooks("fwd")
    pi = router_weights(x @ moe.W_router, moe.top_k, kind)
    return torch.einsum("ne,ned->nd", pi, outs[0])


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("name", ["mixture of gelu, k = 2", "mixture of swiglu, k = 2"])
def test_every_router_has_its_operator_and_its_jacobian(router, name):
    act, mlp = BLOCKS[name]
    x, dx = some(), some(seed=1)
    y = with_router(mlp, x, router)
    assert relative_change(y, forward(mlp, act, x, router=router).apply(x)) < 1e-12
    other = ROUTERS[(ROUTERS.index(router) + 1) % 4]
    assert relative_change(y, forward(mlp, act, x, router=other).apply(x)) > 1e-3
    _, dy = torch.func.jvp(lambda t: with_router(mlp, t, router), (x,), (dx,))
    assert relative_change(dy, dx @ jacobian(mlp, act, x, router=router)) < 1e-10


class Sigmoid(nn.Module):
    """A plain MLP with an activation that is not zero at zero."""

    def __init__(self):
        super().__init__()
        self.W_in, self.W_out = some(6, 10, 1), some(10, 6, 2)
        self.b_in, self.b_out = some(1, 10, 3)[0], some(1, 6, 4)[0]

    def forward(self, x):
        return (x @ self.W_in + self.b_in).sigmoid() @ self.W_out + self.b_out


def test_a_constant_of_the_activation_goes_to_the_bias_row(monkeypatch):
    mlp, x = Sigmoid(), some(7, 6)
    assert relative_change(mlp(x), forward(mlp, "sigmoid", x).apply(x)) < 1e-12
    monkeypatch.setattr(operators, "at_zero", lambda act: 0.0)  # mutant: phi(0) forgotten
    assert relative_change(mlp(x), forward(mlp, "sigmoid", x).apply(x)) > 0.05


def test_a_plain_mlp_has_one_forward_operator():
    act, mlp = BLOCKS["gelu"]
    with pytest.raises(ValueError, match="only a gated MLP"):
        forward(mlp, act, some(), content=0.5)


def test_two_exact_operators_are_two_matrices():
    act, mlp = BLOCKS["swiglu"]
    x = some(3)
    c, g = (forward(mlp, act, x, content=w).matrix() for w in (1.0, 0.0))
    half = forward(mlp, act, x, content=0.5).matrix()
    assert relative_change(c, g) > 0.3 and torch.allclose(half, (c + g) / 2, atol=1e-12)


# ---- Jacobians -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BLOCKS)
def test_jacobian_is_autograds(name):
    act, mlp = BLOCKS[name]
    x, dx = some(), some(seed=1)
    assert identities.jacobian_error(mlp, act, x, dx) < 1e-10
    op = jacobian(mlp, act, x)
    one = torch.func.jacrev(lambda t: mlp(t[None, None])[0, 0])(x[2])  # [out, in]
    assert torch.allclose(op.matrix()[2], one.mT, atol=1e-10)
    assert not torch.allclose(op.matrix()[2], one, atol=1e-3)  # mutant: columns for rows
    if act != "relu" or "mixture" in name:  # mutant: the forward gain in place of the slope
        _, dy = torch.func.jvp(lambda t: mlp(t[None])[0], (x,), (dx,))
        assert relative_change(dy, dx @ forward(mlp, act, x)) > 0.02


@pytest.mark.parametrize("centre", [True, False])
def test_norms(centre):
    x, dx = 2 * some(), some(seed=1)
    gain, bias, eps = some(1)[0], some(1, seed=2)[0], 0.3

    def norm(t):
        c = t - t.mean(-1, keepdim=True) if centre else t
        return c / (c.square().mean(-1, keepdim=True) + eps).sqrt() * gain + bias

    op = norm_forward(x, eps, centre=centre, gain=gain, bias=bias)
    assert relative_change(norm(x), op.apply(x)) < 1e-12
    _, dy = torch.func.jvp(norm, (x,), (dx,))
    J = norm_jacobian(x, eps, centre=centre, gain=gain)
    assert relative_change(dy, dx @ J) < 1e-12
    held = norm_forward(x, eps, centre=centre, gain=gain)
    assert relative_change(dy, dx @ held) > 0.02  # mutant: the scale does not answer
    assert op.frozen == (operators.SCALES,) and op.one == 1


# ---- Euler ---------------------------------------------------------------------------------------


def test_degrees_that_are_known():
    e = euler.exact_errors()
    for name in ("relu", "relu, biases", "bilinear", "LayerNorm"):
        assert e[name] < 1e-12, name
    assert e["LayerNorm, plain"] < 1e-4 and e["gelu"] > 0.05


def test_the_table_tells_degrees_from_their_absence():
    t = euler.table(n=24)
    for name, k in (("relu", 1), ("bilinear", 2), ("LayerNorm", 0), ("RMSNorm", 0)):
        row = t[name]
        assert row["rest"] <= (1e-4 if "Norm" in name else 0) and row["bias"] == 0  # eps, eps / s²
        assert math.isclose(row["ratio"], k, abs_tol=1e-4)
    assert t["LayerNorm"]["ratio"] > 1e-7  # eps is seen
    for name in ("gelu", "swiglu", "relu, biases", "bilinear, biases", "mixture of relu"):
        assert t[name]["rest"] > 0.05, name
    assert t["relu, biases"]["bias"] > 0.1


def test_a_row_by_hand():
    out = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    xJ = torch.tensor([[6.0, 8.0], [-4.0, 3.0]], dtype=torch.float64)
    bias = torch.tensor([[0.0, 2.5]], dtype=torch.float64).expand(2, 2)
    row = euler.row(out.expand(2, 2), xJ, bias)
    assert row["ratio"] == 1.0 and row["bias"] == 0.5
    assert row["rest"] == pytest.approx((1 + 2**0.5) / 2) and row["spread"] == pytest.approx(2**0.5)


def test_a_ratio_of_its_own_at_each_x_is_no_degree():
    """softplus(sum x) (1, 1): xJ follows F at every single x, by another number each time."""
    s = torch.linspace(-3, 3, 9, dtype=torch.float64)[:, None]
    F, xJ = ((y * torch.ones(1, 2)).double() for y in (s.exp().log1p(), s * s.sigmoid()))
    assert euler.row(F, xJ, None)["rest"] > 0.3


@pytest.mark.weights
@pytest.mark.parametrize("role", ["gelu-1l", "relu-1l", "swiglu-1l", "moe-1l"])
def test_trained_blocks(role):
    from circuitbook import zoo

    for dtype, limit in LIMIT.items():
        model = zoo.load(role, device="cpu", dtype=dtype)
        mlp, act = model.blocks[0].mlp, model.cfg.act
        x = model.W_E[100:140] + model.W_E[1000:1040] / 2
        assert identities.forward_error(mlp, act, x) < limit
    assert identities.jacobian_error(mlp, act, x, x.roll(1, 0)) < 1e-10
