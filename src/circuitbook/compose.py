"""How strongly one head's write can feed a later head's query, key or value, from weights alone.

Row convention: a head maps x to x W_OV with W_OV = W_V W_O, and scores x_t W_QK x_j^T with W_QK =
W_Q W_K^T. No d_model x d_model product is ever formed per pair: each head has one Gram matrix, and
a pair is their inner product.

Needs torch only: the trainer computes its curves with this file.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

with suppress(ModuleNotFoundError):  # the trainer may run without it; annotations are text here
    from jaxtyping import Float


TILE = 128  # entries a side of the blocks in which Gram matrices are made


def _frobenius(matrix: Tensor) -> Tensor:
    return torch.linalg.vector_norm(matrix, dim=(-2, -1))


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator, and 0 where a factor is zero (who writes nothing feeds nobody)."""
    tiny = torch.finfo(denominator.dtype).tiny
    return torch.where(denominator > tiny, numerator / denominator.clamp_min(tiny), 0.0)


def _grams(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """(right, C right) with M^T M = right^T C right for M = left right, C = left^T left; float64.

    left [h, d_in, r], right [h, r, d].
    """
    left, right = left.double(), right.double()
    return right, left.mT @ left @ right


def _inner_products(one: tuple[Tensor, Tensor], two: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """<G1, G2> [h1, h2] for all pairs of symmetric d x d Gram matrices, for each entry of `two`.

    Blocks of TILE x TILE entries of all heads at once; of each mirrored pair only one block.
    """
    d = one[0].shape[-1]
    edges = [slice(i, min(i + TILE, d)) for i in range(0, d, TILE)]
    totals: list[Tensor | float] = [0.0] * len(two)
    for i, rows in enumerate(edges):
        for columns in edges[i:]:
            twice = 1 if rows == columns else 2

            def block(gram: tuple[Tensor, Tensor], rows=rows, columns=columns) -> Tensor:
                return (gram[0][..., rows].mT @ gram[1][..., columns]).flatten(1)

            mine = twice * block(one)
            totals = [t + mine @ block(g).mT for t, g in zip(totals, two, strict=True)]
    return totals


def pair_scores(
    left_1: Float[Tensor, "h1 d_in r1"],
    right_1: Float[Tensor, "h1 r1 d_mid"],
    left_2: Float[Tensor, "h2 d_mid r2"],
    right_2: Float[Tensor, "h2 r2 d_out"],
) -> Float[Tensor, "h1 h2"]:
    """score = ||M1 M2|| / (||M1|| ||M2||), Frobenius norms, for all pairs of M1 and M2.

    M1 = left_1 right_1 and M2 = left_2 right_2 are given by their thin factors.
    ||M1 M2||^2 = tr(M1^T M1 M2 M2^T) is the inner product of two Gram matrices, one of the writer
    and one of the reader. So all pairs are one product of tables [h1, d^2] and [d^2, h2], taken
    block by block. Cost: d^2 (h1 h2 + h1 r1 + h2 r2), against h1 h2 r1 r2 d for small triangles.

    Squares lose digits, so sums are in float64 and a zero may come out as 1e-8; the result has the
    dtype of `right_1`.
    The score is 0 where a factor is zero. Equal to the dense formula up to rounding.
    It is between 0 and 1 and does not see a change of head coordinates (L R -> L G G^-1 R). It does
    see an invertible change of the stream.

    Source: Elhage et al. 2021 (composition scores), and its erratum on the order of the factors.
    """
    return _all_scores((left_1, right_1), [(left_2, right_2)])[0]


def _all_scores(writer: tuple[Tensor, Tensor], readers: list[tuple[Tensor, Tensor]]) -> list:
    """`pair_scores` of one set of writers with each set of readers; the writers' Grams once."""
    one, two = _grams(*writer), [_grams(right.mT, left.mT) for left, right in readers]
    size = [(x * y).sum((-2, -1)).sqrt() for x, y in (one, *two)]
    products = [p.clamp_min(0).sqrt() for p in _inner_products(one, two)]
    return [
        _ratio(p, size[0][:, None] * s[None, :]).to(writer[1])
        for p, s in zip(products, size[1:], strict=True)
    ]


class Scores(NamedTuple):
    """Composition scores [earlier head, later head], one table per input of the later head."""

    q: Float[Tensor, "h1 h2"]
    k: Float[Tensor, "h1 h2"]
    v: Float[Tensor, "h1 h2"]


def composition_scores(
    W_V_1: Float[Tensor, "h1 d_model d_head"],
    W_O_1: Float[Tensor, "h1 d_head d_model"],
    W_Q_2: Float[Tensor, "h2 d_model d_head"],
    W_K_2: Float[Tensor, "h2 d_model d_head"],
    W_V_2: Float[Tensor, "h2 d_model d_head"],
    W_O_2: Float[Tensor, "h2 d_head d_model"],
) -> Scores:
    """Q: ||W_OV W_QK||, K: ||W_OV W_QK^T||, V: ||W_OV W_OV'||, each over the two norms' product.

    The earlier head (1) writes x W_OV. The later head (2) reads it as a query (first factor of
    W_QK), as a key (second factor, hence the transpose), or as a value. All pairs at once.

    Baseline. Replace W_OV by W_OV U with U uniform over rotations of the d_model space. Then
    E ||A U B||^2 = tr(A^T A E[U B B^T U^T]) = ||A||^2 ||B||^2 / d, as E[U S U^T] = tr(S) I / d.
    So E[score^2] = 1/d_model exactly, at any rank, and E[score] <= 1/sqrt(d_model):
    0.0625 for width 256. At high rank the score hardly varies and its mean is close to that bound;
    at rank 1 it is |cos| of two random directions, with mean sqrt(2/pi) = 0.80 of the bound.
    See `simulated` for the ranks between.

    Source: Elhage et al. 2021 (columns there: ||W_QK^T W_OV||, ||W_QK W_OV||, ||W_OV' W_OV||).
    """
    readers = [(W_Q_2, W_K_2.mT), (W_K_2, W_Q_2.mT), (W_V_2, W_O_2)]
    return Scores(*_all_scores((W_V_1, W_O_1), readers))


def random_baseline(d_model: int) -> float:
    """sqrt(E[score^2]) = 1/sqrt(d_model) for a randomly rotated pair; see `composition_scores`."""
    if d_model < 1:
        raise ValueError(f"d_model must be positive, got {d_model}")
    return d_model**-0.5


def simulated(
    rank: int,
    d: int,
    n: int,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, " n"]:
    """Scores of n random pairs M1 = G1 G2, M2 = G3 G4 with Gaussian d x rank and rank x d factors.

    E[score^2] = 1/d at every rank; the spread depends on the rank. Compare a head of small
    effective rank with the simulation at that rank, not with 1/sqrt(d).
    Cost: n (d rank^2) multiplications; memory 4 n d rank numbers.
    """
    if not 1 <= rank <= d or n < 1:
        raise ValueError(f"needs 1 <= rank <= d and n >= 1, got rank {rank}, d {d}, n {n}")
    shape = (4, n, d, rank)
    outer_1, inner_1, inner_2, outer_2 = torch.randn(shape, generator=generator, dtype=dtype)
    r = [torch.linalg.qr(x)[1] for x in (outer_1, inner_1, inner_2, outer_2)]
    product = r[0] @ (inner_1.mT @ inner_2) @ r[3].mT
    return _ratio(_frobenius(product), _frobenius(r[0] @ r[1].mT) * _frobenius(r[2] @ r[3].mT))
