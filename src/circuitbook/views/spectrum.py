"""Eigenvalues of every head's OV circuit W_E W_OV W_U, and what heads of random weights have.

The random heads read and write the model's own W_E and W_U; only W_V and W_O are Gaussian. So they
show what the vocabulary's own likeness gives to any head, which is not a score of zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuitbook import heads, scan, zoo
from circuitbook.model import Transformer

ROLES = ("attn-only-1l", "attn-only-2l", "gelu-1l", "gelu-2l")
QUANTILES = (0.05, 0.5, 0.95)


@torch.no_grad()
def random_heads(
    model: Transformer, n: int, seed: int
) -> tuple[Float[Tensor, "n d_model d_head"], Float[Tensor, "n d_head d_model"]]:
    """W_V and W_O of n heads with Gaussian entries; an eigenvalue score does not see their size."""
    generator = torch.Generator().manual_seed(seed)
    d, d_head = model.cfg.d_model, model.cfg.d_head
    draw = torch.randn(n, 2, d, d_head, generator=generator)
    return draw[:, 0], draw[:, 1].mT


@torch.no_grad()
def baseline(model: Transformer, n: int, seed: int) -> dict[str, Any]:
    """Copying scores of n random heads: their quantiles, and the spectrum of the first of them."""
    W_V, W_O = random_heads(model, n, seed)
    scores = [
        scan.copying_score(*scan.ov_factors(model.W_E, v, o, model.W_U)).item()
        for v, o in zip(W_V, W_O, strict=True)
    ]
    at = torch.tensor(QUANTILES, dtype=torch.float64)
    return {
        "heads": n,
        "quantiles": torch.quantile(torch.tensor(scores, dtype=torch.float64), at).tolist(),
        "first": {"score": scores[0], "values": plane(model, W_V[0], W_O[0])["values"]},
    }


def plane(
    model: Transformer,
    W_V: Float[Tensor, "d_model d_head"],
    W_O: Float[Tensor, "d_head d_model"],
) -> dict[str, Any]:
    """(real, imaginary) of the eigenvalues over the largest size, and that size in logits.

    Conjugates have one size: the upper one first, so that rounding does not decide the order.
    """
    values = scan.eigenvalues(*scan.ov_factors(model.W_E, W_V, W_O, model.W_U))
    largest = values.abs().max().clamp_min(1e-300)
    order = sorted((values / largest).tolist(), key=lambda z: (-round(abs(z), 5), -z.imag))
    return {"largest": largest.item(), "values": [[z.real, z.imag] for z in order]}


def compute(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Every head of every role: eigenvalues, copying score, and shares of words that copy."""
    frequent = heads.frequent_words(cfg["frequent"])
    found: dict[str, Any] = {}
    for role in ROLES:
        model = zoo.load(role, device="cpu")
        rows: dict[str, Any] = {}
        for layer in range(model.cfg.n_layers):
            for head in range(model.cfg.n_heads):
                W_V, W_O = model.W_V[layer, head], model.W_O[layer, head]
                tests = heads.two_copying_tests(model.W_E, W_V, W_O, model.W_U, frequent)
                names = ("score", "top1", "top10")
                rows[f"{layer}.{head}"] = dict(zip(names, tests)) | plane(model, W_V, W_O)
        found[role] = {"heads": rows, "random": baseline(model, cfg["random"], cfg["seed"])}
    return found
