"""x J(x) = k F(x) when F is homogeneous of degree k: Euler's theorem, and where it leaves a block.

A bias-free ReLU block has k = 1, a bias-free bilinear one k = 2, a norm without eps k = 0. GELU and
SiLU blocks have no k: their gain changes with the length of x, but by no fixed power. So the
Jacobian shares of the parts of x add up to F, to 2 F, to nothing, or to something in between, while
forward shares always add up to F minus its bias row. "How much of F came from this part" has no
single answer before one has said which total is being shared out.

`ratio` is the best single k for all x together, sum (xJ . F) / sum (F . F); `rest` is what this one
number leaves over, the mean of |xJ - kF| / |F|. Only with rest = 0 is there a k. `spread` is the SD
over x of each x's own best ratio: a map may follow F at every x and still have no degree.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from circuitbook.conditional.operators import (
    forward,
    jacobian,
    norm_forward,
    norm_jacobian,
)
from circuitbook.config import Config
from circuitbook.mlp import make_mlp


def random_mlp(
    act: str, d: int, m: int, generator: torch.Generator, *, bias: bool, **more: int
) -> nn.Module:
    """An MLP of the course with N(0, 1/d_in) matrices and N(0, 1) biases, in float64."""
    cfg = Config(n_layers=1, d_model=d, d_mlp=m, act=act, mlp_bias=bias, **more)
    mlp = make_mlp(cfg).to(torch.float64).requires_grad_(False)
    for p in mlp.parameters():
        draw = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        is_bias = p.ndim == (2 if cfg.n_experts and p.shape[0] == cfg.n_experts else 1)
        p.copy_(draw if is_bias else draw / p.shape[-2] ** 0.5)
    return mlp


def row(
    F: Float[Tensor, "n d"], xJ: Float[Tensor, "n d"], bias: Float[Tensor, "n d"] | None
) -> dict[str, float]:
    """One line of the table: the one ratio for all x, its spread, rest, and the bias row's size.

    bias: mean of |bias row| / |F|, what the shares of this operator leave to its bias row. Another
    operator leaves another row.
    """
    size = F.square().sum(-1)
    own = (xJ * F).sum(-1) / size
    k = (xJ * F).sum() / size.sum()
    rest = (xJ - k * F).norm(dim=-1) / size.sqrt()
    missing = torch.zeros_like(own) if bias is None else bias.norm(dim=-1) / size.sqrt()
    numbers = {
        "ratio": k.item(),
        "spread": own.std().item(),
        "rest": rest.mean().item(),
        "bias": missing.mean().item(),
    }
    return {k: v if abs(v) > 1e-12 else 0.0 for k, v in numbers.items()}  # rounding is no evidence


def of_block(mlp: nn.Module, act: str, x: Float[Tensor, "n d"]) -> dict[str, float]:
    """The line of an MLP at some x; the bias row is that of its (content-)forward operator."""
    F = mlp(x[None])[0]
    return row(F, x @ jacobian(mlp, act, x), forward(mlp, act, x).bias)


def of_norm(x: Float[Tensor, "n d"], eps: float, *, centre: bool) -> dict[str, float]:
    """The line of a norm without gain and bias."""
    n, xJ = (x @ op(x, eps, centre=centre) for op in (norm_forward, norm_jacobian))
    return row(n, xJ, None)


def table(seed: int = 0, d: int = 32, m: int = 96, n: int = 64) -> dict[str, dict[str, float]]:
    """The table on random blocks, x ~ N(0, 1) in d dimensions, float64."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    out = {}
    for act in ("relu", "gelu", "gelu_new", "bilinear", "swiglu"):
        for bias in (False, True):
            mlp = random_mlp(act, d, m, generator, bias=bias)
            out[act + (", biases" if bias else "")] = of_block(mlp, act, x)
    mix = random_mlp("relu", d, m, generator, bias=False, n_experts=4, top_k=2)
    out["mixture of relu"] = of_block(mix, "relu", x)
    out["LayerNorm"] = of_norm(x, 1e-5, centre=True)
    out["RMSNorm"] = of_norm(x, 1e-5, centre=False)
    return out


def exact_errors(seed: int = 1, d: int = 32, m: int = 96, n: int = 64) -> dict[str, float]:
    """max |xJ - what Euler says| / max |F| where the degree is known, float64.

    relu: F. relu, biases: F minus the bias row. bilinear: 2 F. LayerNorm: n eps / s^2, exactly,
    at the usual eps; LayerNorm, plain: xJ against 0. gelu: against F, which must not be small.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)

    def error(act: str, degree: int, bias: bool) -> float:
        mlp = random_mlp(act, d, m, generator, bias=bias)
        F, op = mlp(x[None])[0], jacobian(mlp, act, x)
        due = F - forward(mlp, act, x).bias if bias else F
        return _worst(x @ op, degree * due, F)

    eps = 1e-5
    n_of, J = x @ norm_forward(x, eps), norm_jacobian(x, eps)
    s2 = x.var(-1, unbiased=False, keepdim=True) + eps
    return {
        "relu": error("relu", 1, False),
        "relu, biases": error("relu", 1, True),
        "bilinear": error("bilinear", 2, False),
        "LayerNorm": _worst(x @ J, n_of * eps / s2, n_of),
        "LayerNorm, plain": _worst(x @ J, 0 * n_of, n_of),
        "gelu": error("gelu", 1, False),
    }


def _worst(a: Tensor, b: Tensor, size: Tensor) -> float:
    return ((a - b).abs().max() / size.abs().max()).item()
