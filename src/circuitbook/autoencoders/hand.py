"""One latent pays λ for each unit that it is on, so its best value is λ/2 below the right one.

min over f >= 0 of (a - f)² + λ f  is  f = max(0, a - λ/2): *shrinkage*. And f·D does not change
when f is made s times smaller and D s times longer, while λ f does. A penalty without the length of
D can be cheated down to nothing. Cases small enough for paper and pencil; no training here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from circuitbook.autoencoders.sae import Dictionary, rescaled
from circuitbook.autoencoders.sae import loss as right_loss

DIRECTION, B_ENC, L1 = (0.6, 0.8), -0.1, 0.5
INPUTS = ((0.3, 0.4), (0.04, -0.03))
STRETCHES = (1.0, 2.0, 5.0, 10.0, 100.0)

# (x [n, d], W_enc, b_enc, W_dec, b_dec, penalty) -> the loss without the decoder's length
Naive = Callable[..., Tensor]


def one_latent() -> Dictionary:
    """The published example: a unit direction, the same for reading and writing, a small bias."""
    d, b = (torch.tensor([v], dtype=torch.float64) for v in (DIRECTION, B_ENC))
    return Dictionary(d.T.clone(), b, d, torch.zeros(2).double())


def by_hand() -> dict:
    """Latent, reconstruction, error and price of both inputs, in the shape of the published row."""
    latent, x = one_latent(), torch.tensor(INPUTS, dtype=torch.float64)
    f = latent.encode(x)
    out = latent.decode(f)
    return {
        "d": list(DIRECTION),
        "b_enc": B_ENC,
        "b_dec": 0,
        "l1": L1,
        "x": [list(row) for row in INPUTS],
        "f": f[:, 0],
        "x_hat": out,
        "err": (x - out).square().sum(1),
        "l1_part": L1 * f[:, 0],
    }


def stretched(dictionary: Dictionary, by: float) -> Dictionary:
    """Every decoder row `by` times as long, every latent as much smaller: the same output."""
    return rescaled(dictionary, torch.full_like(dictionary.b_enc, 1 / by))


def losses(
    dictionary: Dictionary, x: Float[Tensor, "n d"], penalty: float, naive: Naive
) -> tuple[float, float]:
    """(loss with the decoder's length in the penalty, the same without it)."""
    parts = dictionary.W_enc, dictionary.b_enc, dictionary.W_dec, dictionary.b_dec
    right = right_loss(dictionary, x, x, penalty)
    return right.item(), naive(x, *parts, penalty).mean().item()


def cheat(dictionary: Dictionary, x: Float[Tensor, "n d"], penalty: float, naive: Naive) -> dict:
    """Both losses while the decoder grows, and the part of the loss that is error (no price)."""
    rows = [losses(stretched(dictionary, s), x, penalty, naive) for s in STRETCHES]
    return {
        "stretch": list(STRETCHES),
        "with the length": [a for a, _ in rows],
        "without it": [b for _, b in rows],
        "error": right_loss(dictionary, x, x).item(),
    }


def best_codes(
    x: Float[Tensor, "n d"], W_dec: Float[Tensor, "latents d"], penalty: float, steps: int = 1000
) -> Float[Tensor, "n latents"]:
    """argmin over f >= 0 of |x - fD|² + λ Σ_j f_j |D_j|, by projected gradient steps.

    The cheapest latents for this decoder, whatever the encoder says. No formula is used. Step
    length: one over the largest slope, 2 max eig(DDᵀ).
    """
    gram, price = W_dec @ W_dec.T, penalty * W_dec.norm(dim=1)
    rate = 0.5 / torch.linalg.eigvalsh(gram)[-1]
    f, aim = x.new_zeros(len(x), len(W_dec)), x @ W_dec.T
    for _ in range(steps):
        f = (f - rate * (2 * (f @ gram - aim) + price)).clamp_min_(0)
    return f


def best_value(a: Float[Tensor, " n"], penalty: float) -> Float[Tensor, " n"]:
    """The same for one latent with a row of length one: argmin of (a - f)² + λ f."""
    return best_codes(a[:, None], a.new_ones(1, 1), penalty, 100)[:, 0]


class Shortfall(NamedTuple):
    """How much of a single feature is missing in the copy, [feature, value]."""

    encoder: Tensor  # with the latents that the encoder gives
    best: Tensor  # with the cheapest latents for the same decoder


def shortfall(
    dictionary: Dictionary,
    truth: Float[Tensor, "d feature"],
    values: Sequence[float],
    penalty: float,
) -> Shortfall:
    """a - ĥ·ŵ for single features: how short the copy falls along a feature's own direction.

    truth: columns W_i. One feature is on, with a value of x such that |x W_i| = a, for each a of
    `values`. ŵ = W_i/|W_i|. The cheapest latents leave b_dec out.
    """
    unit = torch.nn.functional.normalize(truth.T)  # [feature, d]
    a = torch.tensor(list(values)).to(truth)
    h = unit[:, None] * a[:, None]
    codes = best_codes(h.flatten(0, 1), dictionary.W_dec, penalty)
    best = (codes @ dictionary.W_dec).view_as(h)
    return Shortfall(*(a - (copy * unit[:, None]).sum(-1) for copy in (dictionary(h), best)))
