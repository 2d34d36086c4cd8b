"""phi(z) = phi(0) + gamma(z) z: a pointwise activation is a gain on its own input, plus a constant.

Name         phi(z)                     gamma(z)                                    phi(0)
relu         max(z, 0)                  1[z > 0]                                    0
gelu         z Phi(z)                   Phi(z), the normal distribution function    0
gelu_new     GPT-2's tanh form          (1 + tanh(sqrt(2/pi)(z + 0.044715 z^3)))/2  0
silu         z sigma(z)                 sigma(z)                                    0
identity     z                          1                                           0
sigmoid      1 / (1 + e^-z)             tanh(z/2) / (2z), 1/4 at 0                  1/2

The gains are computed as gates, never as phi(z)/z, which is 0/0 where it matters. At z = 0 every
number would do, because it is multiplied by z; gamma(0) = phi'(0) is the only one that is the limit
from both sides (for ReLU, which has none, the left one). It matters as soon as z is a sum: the
parts +1 and -1 of z = 0 get the shares +gamma(0) and -gamma(0) of an output that is zero.

`sigmoid` is no activation of the course's models. It is here because its phi(0) is not zero.
Source: Hendrycks and Gimpel 2016 (GELU); Shazeer 2020 (SwiGLU).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

ACTS = ("relu", "gelu", "gelu_new", "silu", "identity", "sigmoid")
_ALIAS = {"swiglu": "silu", "bilinear": "identity"}  # what a config's `act` does to the gate
_C, _A = math.sqrt(2 / math.pi), 0.044715


def pointwise(act: str) -> str:
    """The pointwise function behind a config's `act`: "swiglu" is silu, "bilinear" identity.

    Raises ValueError for an unknown name.
    """
    name = _ALIAS.get(act, act)
    if name not in ACTS:
        raise ValueError(f"no activation is called {act!r}: use one of {', '.join(ACTS)}")
    return name


def phi(act: str, z: Float[Tensor, "*at"]) -> Float[Tensor, "*at"]:
    """phi(z) = phi(0) + gamma(z) z, written so; the model's own activation must equal it."""
    return at_zero(act) + gate(act, z) * z


def gate(act: str, z: Float[Tensor, "*at"]) -> Float[Tensor, "*at"]:
    """gamma(z) = (phi(z) - phi(0)) / z for z != 0, and phi'(0) at 0; no division where z is 0."""
    name = pointwise(act)
    if name == "relu":
        return (z > 0).to(z)
    if name == "gelu":
        return torch.special.ndtr(z)
    if name == "gelu_new":
        return (1 + (_C * (z + _A * z**3)).tanh()) / 2
    if name == "silu":
        return z.sigmoid()
    if name == "identity":
        return torch.ones_like(z)
    safe = torch.where(z == 0, 1.0, z)
    return torch.where(z == 0, 0.25, (safe / 2).tanh() / (2 * safe))


def slope(act: str, z: Float[Tensor, "*at"]) -> Float[Tensor, "*at"]:
    """phi'(z), the gain of a small change: Phi(z) + z n(z) for GELU, with n the normal density.

    SiLU: sigma (1 + z (1 - sigma)). ReLU's slope at 0 is taken as 0, as autograd does.
    """
    name = pointwise(act)
    g = gate(name, z)
    if name == "gelu":
        return g + z * (-z.square() / 2).exp() / math.sqrt(2 * math.pi)
    if name == "gelu_new":
        return g + 2 * z * g * (1 - g) * _C * (1 + 3 * _A * z.square())
    if name == "silu":
        return g * (1 + z * (1 - g))
    if name == "sigmoid":
        return z.sigmoid() * (1 - z.sigmoid())
    return g  # relu, identity: the gain does not move with z


def at_zero(act: str) -> float:
    """phi(0), the part of the activation that no gain can give; it belongs to the bias row."""
    return 0.5 if pointwise(act) == "sigmoid" else 0.0
