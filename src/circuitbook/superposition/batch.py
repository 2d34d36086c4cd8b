"""Many small models are one tensor: every start of every setting takes its step in one product.

The toy of Elhage et al. 2022: h = W x, z = Wᵀh + b, x' = ReLU(z) or z itself. Its gradient is
written out, so a step is four matrix products and a few passes over [instance, n, batch]. Features
stand in front of the batch: the last axis is long, which is what a processor likes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

# data(step) draws a step's inputs; called with a slice of instances it gives (x, factor): inputs
# [n, batch] or [instance, n, batch], and what turns squared errors into the loss, broadcastable to
# the same shape (importance / batch size).
Batch = Callable[[slice], tuple[Tensor, Tensor]]
Data = Callable[[int], Batch]
CACHED = 131_072  # so many numbers fit a core's own cache; larger pieces wait for memory


class Params(NamedTuple):
    """W's columns are the directions of the features; b is added before the ReLU."""

    W: Float[Tensor, "instance m n"]
    b: Float[Tensor, "instance n"]


class Trained(NamedTuple):
    """The last parameters, and those kept on the way."""

    params: Params
    steps: list[int]
    kept: list[Params]


def read_out(W: Tensor, b: Tensor, x: Tensor, relu: bool = True) -> Tensor:
    """x' = ReLU(WᵀWx + b); x [n, batch] or [instance, n, batch], as the result."""
    z = W.mT @ (W @ x) + b[..., None]
    return z.relu() if relu else z


def gradient(params: Params, x: Tensor, factor: Tensor, relu: bool = True) -> Params:
    """The gradient of Σ factor · (x' - x)² over features and batch, by hand.

    Where z > 0 the ReLU does nothing and the error is z - x; elsewhere no gradient flows.
    """
    W, b = params
    h = W @ x  # [instance, m, batch]
    z = torch.baddbmm(b[..., None], W.mT, h)
    g = torch.ops.aten.threshold_backward(z - x, z, 0) if relu else z - x
    g = g * (2 * factor)
    return Params(h @ g.mT + (W @ g) @ x.mT, g.sum(-1))


def train(
    start: Params, data: Data, size: int, *, steps: int, lr: float, relu: bool = True,
    bias: bool = True, keep: Sequence[int] = (), final: float = 0.0,
) -> Trained:  # fmt: skip
    """Adam on every instance at once; the learning rate falls as a cosine to `final` times itself.

    size: inputs in a batch. bias=False holds b where it is. keep: steps after which the parameters
    are kept (0: the start).
    Instances never meet: each has its own gradient and its own Adam state, so training them
    together or one by one gives the same models. Gradients are computed a few instances at a time.
    """
    instances, m, n = start.W.shape
    flat = torch.cat([start.W.reshape(instances, -1), start.b], 1).clone()
    now = Params(flat[:, : m * n].view(instances, m, n), flat[:, m * n :])
    grad, first, second = (torch.zeros_like(flat) for _ in range(3))
    at_once = max(1, CACHED // (n * size))
    at, kept, wanted = [], [], set(keep)

    def keep_now(step: int) -> None:
        if step in wanted:
            at.append(step)
            kept.append(Params(now.W.clone(), now.b.clone()))

    keep_now(0)
    angle = torch.linspace(0, torch.pi, steps + 1, dtype=torch.float64)[:-1]
    rates = (lr * (final + (1 - final) * (1 + angle.cos()) / 2)).tolist()
    for step in range(1, steps + 1):
        batch = data(step)
        for i in range(0, instances, at_once):
            part = slice(i, i + at_once)
            dW, db = gradient(Params(now.W[part], now.b[part]), *batch(part), relu)
            grad[part, : m * n] = dW.flatten(1)
            if bias:
                grad[part, m * n :] = db
        first.lerp_(grad, 0.1)  # beta_1 = 0.9
        second.mul_(0.999).addcmul_(grad, grad, value=0.001)
        scale = (second / (1 - 0.999**step)).sqrt_().add_(1e-8)
        flat.addcdiv_(first, scale, value=-rates[step - 1] / (1 - 0.9**step))
        keep_now(step)
    return Trained(Params(now.W.clone(), now.b.clone()), at, kept)
