"""The average Jacobian on the ray from 0 to x sends x to F(x) - F(0). Is it the forward operator?

    J_bar(x) = integral from 0 to 1 of J(t x) dt;   x J_bar(x) = F(x) - F(0)

Two matrices with phi between them, z = x W_in + b:

    J_bar = W_in diag[(phi(z) - phi(b)) / (z - b)] W_out

Without biases that is W_in diag gamma(z) W_out, the forward operator B itself. With biases it is
again B when the bias is one more row of W_in (the ray then moves it too), and not B when the bias
stays while x shrinks. A gated MLP has another answer:

    SwiGLU without biases   W_in diag(a) W_out + W_gate diag(u (SiLU(g) - a) / g) W_out,
                            a(g) = integral from 0 to 1 of SiLU(t g) dt, about g/4 near 0
    bilinear                (B_content + B_gate) / 2

It sends x to F(x) as both forward operators do, and it is neither.
Source: integrated gradients with baseline 0 (Sundararajan et al. 2017), as a matrix.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from circuitbook.conditional.finite import rows, rule
from circuitbook.conditional.gates import gate, phi, slope
from circuitbook.conditional.operators import forward, jacobian
from circuitbook.config import Config
from circuitbook.mlp import make_mlp

PANELS = 16  # of eight Gauss nodes: a quadrature to 1e-12 for neurons that read up to ten or so
WIDE = 2048  # neurons, from which on the Jacobians of all nodes are not held at once
SMALL = 1e-6  # below this |z - b| the slope stands for the quotient: its error is of this size


def mean_jacobian(
    mlp: nn.Module, act: str, x: Float[Tensor, " d_model"], steps: int = 8
) -> Float[Tensor, "d_model d_model"]:
    """J_bar(x) by Gauss-Legendre from the block's own Jacobians, for every MLP of the course.

    Of a wide plain MLP, W_in diag(phi'(z)) W_out at every node, the mean is taken of phi'(z): it is
    the only factor that moves along the ray, and no matrix is held for each node.
    """
    t, w = rule(steps, "gauss")
    if mlp.W_in.ndim == 2 and mlp.W_in.shape[1] >= WIDE and not hasattr(mlp, "W_gate"):
        t, w = rule(4 * steps, "gauss")
        z = t.to(x)[:, None] * (x @ mlp.W_in) + (0.0 if mlp.b_in is None else mlp.b_in)
        return mlp.W_in * (w.to(x) @ slope(act, z)) @ mlp.W_out
    each = jacobian(mlp, act, t.to(x)[:, None] * x).matrix()
    return torch.einsum("k,kij->ij", w.to(x), each)


def two_matrices(mlp: nn.Module, act: str, x: Float[Tensor, " d_model"]) -> Tensor:
    """J_bar of a plain MLP, closed: W_in diag[(phi(z) - phi(b)) / (z - b)] W_out."""
    b = torch.zeros(mlp.W_in.shape[1]).to(x) if mlp.b_in is None else mlp.b_in
    z = x @ mlp.W_in + b
    near = (z - b).abs() < SMALL
    quotient = (phi(act, z) - phi(act, b)) / torch.where(near, 1.0, z - b)
    return mlp.W_in * torch.where(near, slope(act, b), quotient) @ mlp.W_out


def gate_mean(g: Float[Tensor, "*at"], steps: int = 8) -> Float[Tensor, "*at"]:
    """a(g) = integral from 0 to 1 of SiLU(t g) dt, by Gauss-Legendre."""
    t, w = rule(steps, "gauss")
    return torch.einsum(
        "k,k...->...", w.to(g), phi("silu", torch.einsum("k,...->k...", t.to(g), g))
    )


def swiglu(mlp: nn.Module, x: Float[Tensor, " d_model"]) -> Tensor:
    """J_bar of a SwiGLU without biases, closed. (SiLU(g) - a)/g = sigma(g) - a/g; 1/4 at g = 0."""
    g, u = x @ mlp.W_gate, x @ mlp.W_in
    a, near = gate_mean(g), g.abs() < SMALL
    rest = gate("silu", g) - torch.where(near, 0.25, a / torch.where(near, 1.0, g))
    return mlp.W_in * a @ mlp.W_out + mlp.W_gate * (u * rest) @ mlp.W_out


def augmented(mlp: nn.Module) -> nn.Module:
    """The plain MLP with its biases as one more row of each matrix and one more neuron for b_out.

    It reads (x, 1) and writes (M(x), 0), so along the ray of (x, 1) the biases shrink too. b_out is
    left out: no neuron carries it.
    """
    d, m = mlp.W_in.shape
    cfg = Config(1, d_model=d + 1, n_heads=1, d_head=1, d_mlp=m, act="relu", mlp_bias=False,
                 pos_kind="learned", d_vocab=2, n_ctx=2)  # fmt: skip
    out = make_mlp(cfg)
    out.act = mlp.act
    with torch.no_grad():
        out = out.to(mlp.W_in)
        out.W_in.copy_(torch.cat([mlp.W_in, mlp.b_in[None]]))
        out.W_out.copy_(torch.cat([mlp.W_out, torch.zeros_like(mlp.W_out[:, :1])], 1))
    return out.requires_grad_(False)


def compare(
    mlp: nn.Module, act: str, x: Float[Tensor, " d_model"], content: float | None = None
) -> dict[str, float]:
    """How far J_bar is from the forward operator, and what it sends x to; relative numbers.

    operator: |J_bar - B| / |B| (Frobenius). output: |x J_bar - F(x)| / |F(x)|. difference:
    |x J_bar - (F(x) - F(0))| / |F(x)|: zero when nothing jumps on the ray. content: which B.
    J_bar is a sum of Jacobians at nodes on the ray; for ReLU, whose kinks would spoil it, the
    closed formula.
    """
    mean = two_matrices(mlp, act, x) if act == "relu" else mean_jacobian(mlp, act, x, PANELS)
    B = forward(mlp, act, x[None], **({} if content is None else {"content": content})).matrix()[0]
    f0, f1 = rows(mlp)(torch.stack([torch.zeros_like(x), x]))
    return {
        "operator": ((mean - B).norm() / B.norm()).item(),
        "output": ((x @ mean - f1).norm() / f1.norm()).item(),
        "difference": ((x @ mean - (f1 - f0)).norm() / f1.norm()).item(),
    }


def small_block(
    act: str, *, bias: bool, experts: int = 0, seed: int = 0, d: int = 16, m: int = 48
) -> nn.Module:
    """A random MLP in float64 whose neurons bend; its biases are as large as its weights."""
    cfg = Config(1, d_model=d, n_heads=1, d_head=1, d_mlp=m, act=act, mlp_bias=bias,
                 n_experts=experts, top_k=2 if experts else 0, d_vocab=2, n_ctx=2)  # fmt: skip
    mlp, generator = (
        make_mlp(cfg).double().requires_grad_(False),
        torch.Generator().manual_seed(seed),
    )
    for name, p in mlp.named_parameters():
        scale = 1.0 if name.startswith("b") else p.shape[-2] ** -0.5
        p.copy_(torch.randn(p.shape, generator=generator).double() * scale)
    return mlp


def table(seed: int = 0) -> dict[str, dict[str, float]]:
    """The comparison for small random blocks of every kind, at one random x."""
    x = torch.randn(16, generator=torch.Generator().manual_seed(seed + 1)).double() * 1.5
    one = torch.cat([x, x.new_ones(1)])
    out = {}
    for act in ("relu", "gelu"):
        with_bias = small_block(act, bias=True, seed=seed)
        out[f"{act}, no bias"] = compare(small_block(act, bias=False, seed=seed), act, x)
        out[f"{act}, bias stays"] = compare(with_bias, act, x)
        out[f"{act}, bias as a row"] = compare(augmented(with_bias), act, one)
    for act in ("bilinear", "swiglu"):
        mlp = small_block(act, bias=False, seed=seed)
        for words, content in (("content", 1.0), ("gate", 0.0), ("half and half", 0.5)):
            out[f"{act} against {words}"] = compare(mlp, act, x, content)
    out["experts, no bias"] = compare(
        small_block("gelu", bias=False, experts=4, seed=seed), "gelu", x
    )
    return out
