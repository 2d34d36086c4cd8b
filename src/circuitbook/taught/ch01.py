"""The residual stream: what chapter 01 teaches, for later chapters to use.

Generated from scripts/01_residual_stream.py; do not edit.
"""

import torch


def read_off(writes, direction):
    """(Σ w) · u = Σ (w · u): what each write contributes along a direction that someone reads.

    writes {name: [..., d_model]}, direction [..., d_model] → {name: [...]}.
    """
    return {name: (write * direction).sum(-1) for name, write in writes.items()}


def readable_share(write, W):
    """|w P|² / |w|² with P the projection on W's columns: how much of w a reader x W can see.

    write [..., d_model], W [d_model, d_head]. A random write has d_head / d_model.
    """
    basis = torch.linalg.qr(W)[0]
    return ((write @ basis).square().sum() / write.square().sum()).item()


def polar(grad):
    """g = U S Vᵀ → U Vᵀ, Muon's update (Muon gets there by a polynomial, this is exact)."""
    U, _, Vt = torch.linalg.svd(grad, full_matrices=False)
    return U @ Vt


UPDATES = {"SGD": lambda g: g, "Muon": polar, "Adam": lambda g: g / (g.abs() + 1e-12)}


def basis_gap(update, grad, Q):
    """|update(g Q) Qᵀ − update(g)| / |update(g)|: zero when the update cannot see the basis.

    grad [n, d]: gradient of a weight whose rows lie in the stream. Q [d, d] orthogonal.
    """
    return ((update(grad @ Q) @ Q.T - update(grad)).norm() / update(grad).norm()).item()


def excess_kurtosis(x):
    """mean(x_i⁴) / mean(x_i²)² − 3 over coordinates; in a random basis −6/(d + 2) on average.

    x [..., d] → [...]. About 0 for Gaussian coordinates, large when a few coordinates stand out.
    """
    return x.pow(4).mean(-1) / x.square().mean(-1).square() - 3
