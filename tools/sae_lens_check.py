"""One formula, two libraries: latents, copies, loss, gradients of the same weights agree to 1e-5.

Run by tools/sae_lens_check.sh in an environment with sae-lens. Random weights at two sizes, rows
shorter and longer than one; the standard and the TopK autoencoder; sae-lens' default form, which
subtracts b_dec from its input first, is compared through b_enc - b_dec W_enc. Differences are
relative to the largest entry. Exit status 1 when one is larger than 1e-5.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.metadata import version

import torch
from sae_lens import (
    StandardSAE,
    StandardSAEConfig,
    StandardTrainingSAE,
    StandardTrainingSAEConfig,
    TopKSAE,
    TopKSAEConfig,
)
from sae_lens.saes.sae import TrainStepInput

from circuitbook.autoencoders.sae import Dictionary, loss

LIMIT, PENALTY = 1e-5, 0.3
SIZES = {"forty in ten": (10, 40, 8), "as on gelu-1l": (1024, 4096, 32)}
NAMES = ("W_enc", "b_enc", "W_dec", "b_dec")


def some(d: int, latents: int, seed: int = 0) -> Dictionary:
    """Random weights with rows of many lengths; about a fifth of the latents are on."""
    g = torch.Generator().manual_seed(seed)
    W_enc = torch.randn(d, latents, generator=g) / d**0.5
    b_enc = 0.1 * torch.randn(latents, generator=g) - 0.8
    length = torch.linspace(0.2, 3, latents)[:, None]
    W_dec = torch.nn.functional.normalize(torch.randn(latents, d, generator=g)) * length
    return Dictionary(W_enc, b_enc, W_dec, 0.3 * torch.randn(d, generator=g))


def theirs(kind: type, config: object, ours: Dictionary) -> torch.nn.Module:
    """A module of sae-lens that holds our weights."""
    module = kind(config)
    with torch.no_grad():
        for name in NAMES:
            getattr(module, name).copy_(getattr(ours, name))
    return module


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """max|a - b| / max|b|."""
    return ((a - b).abs().max() / b.abs().max()).item()


def compare(d: int, latents: int, k: int) -> dict[str, float]:
    """The largest relative difference of each quantity at one size."""
    ours = some(d, latents)
    x = torch.randn(256, d, generator=torch.Generator().manual_seed(1))
    shifted = replace(ours, b_enc=ours.b_enc - ours.b_dec @ ours.W_enc)
    out: dict[str, float] = {}
    for form, dictionary, first in (("plain", ours, False), ("minus b_dec", shifted, True)):
        cases = {
            "standard": (StandardSAE, StandardSAEConfig(d, latents, apply_b_dec_to_input=first), 0),
            "TopK": (TopKSAE, TopKSAEConfig(d, latents, apply_b_dec_to_input=first, k=k), k),
        }
        for name, (kind, config, active) in cases.items():
            module, mine = theirs(kind, config, ours), replace(dictionary, k=active)
            f = module.encode(x)
            f = f.to_dense() if f.is_sparse else f
            out[f"{name}, {form}: latents"] = difference(mine.encode(x), f)
            out[f"{name}, {form}: copy"] = difference(mine(x), module(x))
    config = StandardTrainingSAEConfig(d, latents, apply_b_dec_to_input=False)
    module = theirs(StandardTrainingSAE, config, ours)
    step = TrainStepInput(
        sae_in=x, coefficients={"l1": PENALTY}, dead_neuron_mask=None, n_training_steps=0,
        is_logging_step=False,
    )  # fmt: skip
    got = module.training_forward_pass(step)
    leaves = [getattr(ours, name).clone().requires_grad_() for name in NAMES]
    mine = loss(Dictionary(*leaves), x, x, PENALTY)
    got.loss.backward()
    mine.backward()
    out["standard: training loss"] = difference(mine.detach(), got.loss.detach())
    for name, leaf in zip(NAMES, leaves):
        out[f"standard: gradient of {name}"] = difference(leaf.grad, getattr(module, name).grad)
    return out


def main() -> int:
    print(f"sae-lens {version('sae-lens')}, torch {version('torch')}")
    worst = 0.0
    for size, (d, latents, k) in SIZES.items():
        for what, value in compare(d, latents, k).items():
            print(f"{size:>14}  {what:<34} {value:.1e}")
            worst = max(worst, value)
    print(f"largest difference: {worst:.1e} (bound <= {LIMIT:.0e})")
    print("ok" if worst <= LIMIT else "MISSED")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
