"""x B(x) + bias(x) = M(x) and dx J(x) = dM: checked for every block, on random weights and trained.

Errors are the largest difference over the largest output: about 1e-7 in float32 and 1e-16 in
float64 when the algebra is right. The Jacobian is compared with forward-mode autograd, which knows
nothing of gates.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from circuitbook.bases import relative_change
from circuitbook.conditional.euler import random_mlp
from circuitbook.conditional.gates import gate
from circuitbook.conditional.operators import (
    forward,
    inner,
    jacobian,
    norm_forward,
    norm_jacobian,
)

ACTS = ("relu", "gelu", "gelu_new", "bilinear", "swiglu")
MIXTURES = (("gelu", 1), ("gelu", 2), ("swiglu", 2))


def blocks(seed: int = 0, d: int = 24, m: int = 40) -> Iterator[tuple[str, str, nn.Module]]:
    """(name, act, block) with random weights and biases: five MLPs and three mixtures, float64."""
    generator = torch.Generator().manual_seed(seed)
    for act in ACTS:
        yield act, act, random_mlp(act, d, m, generator, bias=True)
    for act, k in MIXTURES:
        more = {"n_experts": 5, "top_k": k}
        yield f"mixture of {act}, k = {k}", act, random_mlp(act, d, m, generator, bias=True, **more)


def forward_error(mlp: nn.Module, act: str, x: Float[Tensor, "n d"]) -> float:
    """Largest error of xB + bias at these x, over all the forward operators that the block has."""
    y = mlp(x[None])[0]
    shares = (1.0, 0.0, 0.3) if hasattr(inner(mlp), "W_gate") else (1.0,)
    ops = [forward(mlp, act, x, content=c) for c in shares]
    return max(relative_change(y, op.apply(x)) for op in ops)


def jacobian_error(mlp: nn.Module, act: str, x: Float[Tensor, "n d"], dx: Tensor) -> float:
    """Error of dx J against autograd's directional derivative."""
    _, dy = torch.func.jvp(lambda y: mlp(y[None])[0], (x,), (dx,))
    return relative_change(dy, dx @ jacobian(mlp, act, x))


def errors(n: int = 64, seed: int = 1) -> dict[str, dict[str, float]]:
    """Block -> forward error in float32 and float64, Jacobian error in float64; random weights."""
    generator = torch.Generator().manual_seed(seed)
    out = {}
    for name, act, mlp in blocks():
        x, dx = torch.randn(2, n, 24, generator=generator, dtype=torch.float64)
        out[name] = {
            "float64": forward_error(mlp, act, x),
            "Jacobian": jacobian_error(mlp, act, x, dx),
            "float32": forward_error(mlp.float(), act, x.float()),
        }
    x, dx = 3 * torch.randn(2, n, 24, generator=generator, dtype=torch.float64)
    for name, centre in (("LayerNorm", True), ("RMSNorm", False)):

        def norm(y: Tensor, centre: bool = centre) -> Tensor:
            c = y - y.mean(-1, keepdim=True) if centre else y
            return c / (c.square().mean(-1, keepdim=True) + 1e-5).sqrt()

        _, dy = torch.func.jvp(norm, (x,), (dx,))
        out[name] = {
            "float64": relative_change(norm(x), x @ norm_forward(x, centre=centre)),
            "Jacobian": relative_change(dy, dx @ norm_jacobian(x, centre=centre)),
            "float32": relative_change(
                norm(x.float()), x.float() @ norm_forward(x.float(), centre=centre)
            ),
        }
    return out


def gain_at_zero(near: float = 1e-4) -> dict[str, dict[str, float]]:
    """One neuron whose input z = a + b is zero, with a = 1 and b = -1: what gamma(0) decides.

    "by phi'(0)": a's forward share with gamma(0) = phi'(0). "by zero": with gamma(0) = 0. "output":
    the sum of both shares, which is right either way. "near": a's share where z is almost 0, from
    above; a sensible share does not jump.
    """
    out = {}
    for act in ("relu", "gelu", "silu"):
        z = torch.tensor([0.0, near], dtype=torch.float64)
        gain = gate(act, z).tolist()
        out[act] = {
            "by phi'(0)": gain[0] * 1.0,
            "by zero": 0.0,
            "near": gain[1] * (1.0 + near),
            "output": gain[0] * 1.0 + gain[0] * -1.0,
        }
    return out
