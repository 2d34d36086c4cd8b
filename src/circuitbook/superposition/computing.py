"""The toy that computes |x|: two neurons do it exactly for one feature, relu(x) + relu(-x) = |x|.

y = ReLU(W2 ReLU(W1 x) + b), x_i zero or uniform on (-1, 1), target |x_i|, importance equal. With m
neurons, m/2 features can have two of their own; all others are then answered by their mean.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from circuitbook.superposition import closed_forms, toy


class Computers(NamedTuple):
    """W1 [instance, m, n], W2 [instance, n, m], b [instance, n], trained."""

    W1: Float[Tensor, "instance m n"]
    W2: Float[Tensor, "instance n m"]
    b: Float[Tensor, "instance n"]


def answers(net: Computers, x: Tensor) -> Tensor:
    """y, the shape of x: [n, batch] or [instance, n, batch]."""
    return (net.W2 @ (net.W1 @ x).relu() + net.b[..., None]).relu()


def signed_inputs(p: Tensor, v: Tensor) -> Tensor:
    """Zero with probability 1 - p, else uniform on (-1, 1), from uniform v [n, batch]."""
    size = toy.sparse_inputs((2 * v - 1).abs(), p)  # |2v - 1| is uniform, and knows no sign
    return size * torch.where(v < 0.5, -1.0, 1.0)


def train(n: int, m: int, p: Tensor, *, steps: int, size: int, seed: int = 0) -> Computers:
    """One network for each entry of p, all at once, by autograd and Adam; one stream of inputs."""
    g, stream, instances = toy.gen(seed), toy.gen(seed + 1), len(p)
    net = Computers(
        torch.randn(instances, m, n, generator=g) / n**0.5,
        torch.randn(instances, n, m, generator=g) / m**0.5,
        torch.zeros(instances, n),
    )
    net = Computers(*(w.requires_grad_() for w in net))
    optimiser = torch.optim.Adam(net, lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        x = signed_inputs(p[:, None, None], torch.rand(n, size, generator=stream))
        loss = (answers(net, x) - x.abs()).square().sum() / size
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return Computers(*(w.detach() for w in net))


@torch.no_grad()
def loss(net: Computers, p: Tensor, samples: int, seed: int = 9) -> tuple[Tensor, Tensor]:
    """(loss, standard error) on one sample, for each instance; features are summed."""
    v = torch.rand(net.b.shape[-1], samples, generator=toy.gen(seed), dtype=torch.float64)
    double = Computers(*(w.double() for w in net))
    x = signed_inputs(p.double()[:, None, None], v)
    error = (answers(double, x) - x.abs()).square().sum(-2)
    return error.mean(-1), error.std(-1) / samples**0.5


def dedicated(n: int, m: int, p: float) -> float:
    """The loss when m/2 features have two neurons of their own and the rest their mean."""
    return (n - m // 2) * closed_forms.variance(p)


def features_of_neurons(net: Computers, least: float = 0.3) -> Tensor:
    """How many features each neuron serves: |W2[i, a] W1[a, i]| above `least` of its largest."""
    through = (net.W2.mT * net.W1).abs()  # [instance, m, n]
    top = through.amax(-1, keepdim=True)
    return ((through > least * top) & (top > 0.1)).sum(-1)
