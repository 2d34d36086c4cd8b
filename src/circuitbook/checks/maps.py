"""Maps that a check hands to a learner, who differentiates them: functions of rows x [n, d].

They take their weights as keywords, so that a functools.partial of them is a name and some tensors,
which can be sent to another process and rebuilt there. A function sent as a mere line to call back
on would have no derivative.
"""

import torch
import torch.nn.functional as F


def linear(x, W):
    """x W."""
    return x @ W


def mlp(x, W, O, phi, b=0.0):
    """phi(x W + b) O; phi is "relu", "gelu"."""
    return getattr(F, phi)(x @ W + b) @ O


def bilinear(x, W, V, O):
    """(x W * x V) O."""
    return (x @ W * (x @ V)) @ O


def opposite(x, W, V, O):
    """- (x W * x V) O."""
    return -bilinear(x, W, V, O)


def bilinear_twice(x, W, V, O):
    """The bilinear map after a twentieth of itself."""
    return bilinear(bilinear(x, W, V, O) / 20, W, V, O)


def norm(x):
    """Rows centred and at length sqrt(d), up to a tiny epsilon."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-14).sqrt()


def decaying(x):
    """Three coordinates over the third power of the length."""
    return x[..., :3] / x.square().sum(-1, keepdim=True) ** 1.5


def root(x):
    """The square root of each entry's size."""
    return x.abs().sqrt()


def softplus_of_sum(x):
    """log(1 + exp(sum of the row)), four times."""
    return F.softplus(x.sum(-1, keepdim=True)).repeat_interleave(4, dim=-1)


def beyond(x, far):
    """Linear for rows shorter than `far`; farther out another slope."""
    return x * torch.where(x.norm(dim=-1, keepdim=True) < far, 1.0, 4.0)


def one_row(x, border):
    """Degree 3 for rows shorter than `border`, degree 1 for all others."""
    return torch.where(x.norm(dim=-1, keepdim=True) < border, 5 * x**3, x)
