"""Composition: how heads feed heads: what chapter 05 teaches, for later chapters to use.

Generated from scripts/05_composition.py; do not edit.
"""

import torch

from circuitbook.taught.ch02 import thin_svd


def both_sides_term(A_q, A_k, W, x):
    """(A_q ⊗ A_k ⊗ W) x: entry (i, j) = Σ_mn A_q[i, m] A_k[j, n] x_m W x_nᵀ, before √d_head.

    A_q, A_k [pos, pos], W [d_model, d_model], x [pos, d_model]. The identity as A_q means: direct.
    """
    return (A_q @ x) @ W @ (A_k @ x).mT


def rotated_score(left_1, right_1, left_2, right_2):
    """The slip: factors turned round, ‖R₂L₁·R₁L₂‖ / (‖R₁L₁‖ ‖R₂L₂‖). Not the size of M₁M₂.

    A cyclic rotation keeps trace and eigenvalues only. This number moves with head coordinates.
    """
    turned, one, two = right_2 @ left_1 @ right_1 @ left_2, right_1 @ left_1, right_2 @ left_2
    return torch.linalg.matrix_norm(turned) / (one.norm() * two.norm())


SLIP_X = ((1.0, 2.0, 0.0), (0.0, 1.0, 1.0))
SLIP_Y = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0))


def overlap_parts(left_1, right_1, left_2, right_2):
    """score² = Σ_ij σ_i² τ_j² (v_i·u_j)² / (Σσ² Στ²): the part of every pair of directions [r, r]."""
    _, s, v = thin_svd(left_1, right_1)
    u, t, _ = thin_svd(left_2, right_2)
    size = s.square()[:, None] * t.square()
    return size * (v @ u).square() / size.sum()
