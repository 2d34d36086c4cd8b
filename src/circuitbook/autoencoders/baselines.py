"""A basis has as many directions as there are dimensions, and a toy has more features than that.

So no basis of ten can hold forty directions: what is left to ask is how near the nearest comes.
PCA takes the directions of largest variance, ICA those whose projections are least Gaussian, units
are the coordinates themselves. For all of these a direction and its opposite count as one, which
favours them. The fair rival has forty directions: the centres of clusters (spherical k-means). A
shuffled truth keeps the lengths and spoils the directions.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

ICA_STEPS = 200
MEANS_STEPS = 60


def units(d: int) -> Float[Tensor, "d d"]:
    """The raw hidden units as directions."""
    return torch.eye(d)


def pca(h: Float[Tensor, "n d"]) -> Float[Tensor, "d d"]:
    """The eigenvectors of the covariance, largest first: rows."""
    return torch.linalg.eigh(torch.cov(h.T)).eigenvectors.T.flip(0)


def ica(h: Float[Tensor, "n d"], generator: torch.Generator) -> Float[Tensor, "d d"]:
    """FastICA: w ← E[z g(w·z)] - E[g'(w·z)] w, all rows at once, kept orthonormal; g = tanh.

    z is h made white, which stretches space. The rows that come back are the *mixing* directions
    in h's own coordinates: where one source moves h. Source: Hyvärinen 1999.
    """
    centred = h - h.mean(0)
    size, axes = torch.linalg.eigh(torch.cov(centred.T))
    z = centred @ (axes / size.sqrt())
    w = torch.linalg.qr(torch.randn(z.shape[1], z.shape[1], generator=generator).to(h)).Q
    for _ in range(ICA_STEPS):
        y = (z @ w.T).tanh()
        w = y.T @ z / len(z) - (1 - y.square()).mean(0)[:, None] * w
        u, _, v = torch.linalg.svd(w)
        w = u @ v
    return torch.nn.functional.normalize(w @ (axes * size.sqrt()).T)


def cluster_centres(
    h: Float[Tensor, "n d"], k: int, generator: torch.Generator
) -> Float[Tensor, "k d"]:
    """Spherical k-means: each vector goes to the centre of largest cosine, centres to the means.

    Only vectors longer than zero count, all with length one. Starts at k of them; a centre that
    loses all its vectors stays where it is. Source: Dhillon and Modha 2001.
    """
    unit = torch.nn.functional.normalize(h[h.norm(dim=1) > 0])
    centres = unit[torch.randperm(len(unit), generator=generator)[:k]]
    for _ in range(MEANS_STEPS):
        member = torch.nn.functional.one_hot((unit @ centres.T).argmax(1), k).to(unit)
        total = member.T @ unit
        alone = total.norm(dim=1, keepdim=True) == 0
        centres = torch.where(alone, centres, torch.nn.functional.normalize(total))
    return centres


def random_directions(k: int, d: int, generator: torch.Generator) -> Float[Tensor, "k d"]:
    """k directions, each way alike."""
    return torch.nn.functional.normalize(torch.randn(k, d, generator=generator))


def shuffled(truth: Float[Tensor, "n d"], generator: torch.Generator) -> Float[Tensor, "n d"]:
    """Each direction with its own entries in another order: the same length, the wrong way."""
    order = torch.rand(truth.shape, generator=generator).argsort(1)
    return truth.gather(1, order)


def both_ways(directions: Float[Tensor, "k d"]) -> Float[Tensor, "two_k d"]:
    """Each direction and its opposite: the signed best cosine is then the absolute one."""
    return torch.cat([directions, -directions])
