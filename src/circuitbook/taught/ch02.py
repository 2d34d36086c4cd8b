"""QK and OV: where a head looks, what it moves: what chapter 02 teaches, for later chapters to use.

Generated from scripts/02_qk_ov.py; do not edit.
"""

import torch


def change_head_coordinates(W_Q, W_K, W_V, W_O, R):
    """(W_Q R)(W_K R^-T)^T = W_Q W_K^T and (W_V R)(R^-1 W_O) = W_V W_O for every invertible R.

    Leading axes (layer, head) may stand before the matrices; R is [..., d_head, d_head].
    """
    back = torch.linalg.inv(R)
    return W_Q @ R, W_K @ back.mT, W_V @ R, back @ W_O


def second_direction(writes):
    """s2/s1 of [..., pos, d_model]: 0 when all rows lie on one line through zero."""
    s = torch.linalg.svdvals(writes)
    return s[..., 1] / s[..., 0].clamp_min(1e-30)


def thin_svd(left, right):
    """left right = u diag(s) v with d_head singular values, from d_head x d_head triangles alone.

    left = Q R and right^T = P S (orthonormal Q, P), so left right = Q (R S^T) P^T.
    """
    Q, R = torch.linalg.qr(left)
    P, S = torch.linalg.qr(right.mT)
    u, s, v = torch.linalg.svd(R @ S.mT)
    return Q @ u, s, v @ P.mT


def keep_directions(left, right, keep):
    """The same product with only the singular directions listed in `keep` (0 is the strongest).

    keep = 0 ... r-1 gives the nearest matrix of rank r (Eckart and Young 1936). Shapes stay.
    """
    u, s, v = thin_svd(left, right)
    mask = torch.zeros_like(s)
    mask[..., list(keep)] = 1
    return u * (s.sqrt() * mask)[..., None, :], s.sqrt()[..., None] * v


def position_scores(W_Q, W_K, W_pos):
    """p_t W_QK p_j^T / sqrt(d_head) [..., pos, pos]: the part of a score that no token changes."""
    return W_pos @ W_Q @ (W_pos @ W_K).mT / W_Q.shape[-1] ** 0.5
