"""What a dictionary must beat at equal L0: k numbers per position, spent in other ways.

All five are given what the autoencoder is not: they choose by looking at the activation itself,
they may use signs, and they start from the mean.

    neurons   the k neurons farthest from their mean; the others stand at their mean
    PCA       the k principal components with the largest coefficients at this position
    writes    the k largest principal components of what the MLP writes: all that the loss sees
    random    k of as many random unit directions as there are latents: matching pursuit, then the
              best coefficients for the chosen ones (least squares)
    examples  the same with activations at other positions in place of random directions
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

SMALL = 128  # rows at a time: what is left of them stays in the cache


def top_coordinates(
    x: Float[Tensor, "row d"],
    mean: Float[Tensor, " d"],
    basis: Float[Tensor, "d d"] | None,
    k: int,
) -> Float[Tensor, "row d"]:
    """mean + the k coordinates of x - mean that are largest in size, in an orthonormal basis.

    basis: its rows are the directions; None: the neurons themselves. No other k coordinates of
    that basis come nearer to x.
    """
    c = x - mean if basis is None else (x - mean) @ basis.T
    at = c.abs().topk(k, dim=1).indices
    kept = torch.zeros_like(c).scatter_(1, at, c.gather(1, at))
    return mean + (kept if basis is None else kept @ basis)


def principal(x: Float[Tensor, "row d"]) -> tuple[Float[Tensor, " d"], Float[Tensor, "d d"]]:
    """(mean, principal directions as rows, the largest variance first)."""
    mean = x.mean(0)
    covariance = (x - mean).T @ (x - mean)
    _, vectors = torch.linalg.eigh(covariance.double())
    return mean, vectors.flip(1).T.to(x.dtype).contiguous()


def top_of_the_write(
    x: Float[Tensor, "row d"],
    mean: Float[Tensor, " d"],
    W_out: Float[Tensor, "d d_model"],
    back: Float[Tensor, "d_model d"],
    components: Float[Tensor, "d_model d_model"],
    k: int,
) -> Float[Tensor, "row d"]:
    """Neurons whose write is the mean's plus the k largest components of the rest of x W_out.

    back: the pseudo-inverse of W_out, of full rank; d >= d_model. Of all such neurons these are the
    nearest to the mean. They are far from x itself: only the write is kept.
    """
    write = top_coordinates((x - mean) @ W_out, torch.zeros_like(W_out[0]), components, k)
    return mean + write @ back


def random_directions(n: int, d: int, seed: int) -> Float[Tensor, "n d"]:
    """n unit vectors, uniform on the sphere."""
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(n, d, generator=generator), dim=1)


def examples(
    x: Float[Tensor, "row d"], mean: Float[Tensor, " d"], n: int, seed: int
) -> Float[Tensor, "some d"]:
    """n rows drawn without replacement (all, if there are fewer), minus the mean, of length 1."""
    generator = torch.Generator().manual_seed(seed)
    at = torch.randperm(x.shape[0], generator=generator)[:n]
    return F.normalize(x[at] - mean, dim=1)


def pursuit(
    x: Float[Tensor, "row d"],
    mean: Float[Tensor, " d"],
    directions: Float[Tensor, "n d"],
    k: int,
    *,
    gram: Float[Tensor, "n n"] | None = None,
) -> Float[Tensor, "row d"]:
    """mean + the best sum of k directions that greedy search finds (matching pursuit, then fitted).

    Each step takes the direction with the largest product with what is left; directions are unit
    vectors. Then all chosen coefficients are fitted together.
    """
    gram = directions @ directions.T if gram is None else gram
    eye = 1e-6 * torch.eye(k, dtype=x.dtype)  # a direction may be chosen twice: then they share
    out = []
    for piece in x.split(SMALL):
        left = (piece - mean) @ directions.T  # products with what is left, [row, n]
        start, rows = left.clone(), torch.arange(piece.shape[0])
        chosen = torch.empty(piece.shape[0], k, dtype=torch.long)
        for step in range(k):
            at = left.abs().argmax(1)
            chosen[:, step] = at
            left.addcmul_(gram[at], left[rows, at][:, None], value=-1)
        picked = gram[chosen[:, :, None], chosen[:, None, :]]  # [row, k, k]
        fit = torch.linalg.solve(picked + eye, start.gather(1, chosen)[..., None])
        out.append(F.embedding_bag(chosen, directions, per_sample_weights=fit[..., 0], mode="sum"))
    return mean + torch.cat(out)
