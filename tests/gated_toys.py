"""Small random blocks and one-layer models that select, for the tests of gates and routers."""

import torch
from small_model import gen, model_of

from circuitbook.config import Config
from circuitbook.mlp import make_mlp

TINY = Config(n_layers=1, d_model=12, n_heads=3, d_head=4, d_mlp=20, act="swiglu", n_ctx=20,
              d_vocab=30)  # fmt: skip


def config(act="swiglu", n_experts=0, top_k=0, **more):
    return TINY.replace(act=act, n_experts=n_experts, top_k=top_k, **more)


def block_of(act="swiglu", n_experts=0, top_k=0, seed=0, dtype=torch.float64):
    """A random block with biases; its activations are of order one, so nothing is nearly linear."""
    mlp = make_mlp(config(act, n_experts, top_k)).to(dtype).requires_grad_(False)
    generator = gen(seed)
    for name, p in mlp.named_parameters():
        scale = 0.5 if name.startswith("b") else 1.5 * p.shape[-2] ** -0.5
        p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * scale)
    return mlp


def draw(*shape, seed=1, dtype=torch.float64):
    return torch.randn(*shape, generator=gen(seed), dtype=torch.float64).to(dtype)


def small(act="swiglu", n_experts=0, top_k=0, dtype=torch.float64, seed=0):
    """A one-layer model with such a block."""
    return model_of(config(act, n_experts, top_k), dtype=dtype, seed=seed)


def lasting(moves):
    """What must stay under a block's first four changes of coordinates, and what must move."""
    kept = ("forward share", "Jacobian share", "effect", "probabilities", "trace of B(x)")
    for change in list(moves)[:4]:
        assert all(moves[change][q] == 0 for q in kept), change
    assert moves["stream coordinates G"]["operator B(x)"] > 0.1
    assert moves["W_U + c 1ᵀ"]["forward share, raw W_U"] > 0.01
    assert moves["neurons rotated"]["probabilities"] > 0.01
