"""Conditional paths: what is left of the algebra when the network bends: what chapter 10 teaches, for later chapters to use.

Generated from scripts/10_conditional_paths.py; do not edit.
"""

import torch


def two_operators(x, W_gate, W_in, W_out):
    """W_in diag(SiLU(g)) W_out and W_gate diag(σ(g) ⊙ u) W_out: x times either is the output.

    x [d]; the gated MLP (SiLU(x W_gate) ⊙ x W_in) W_out without biases. Returns two [d, d].
    """
    g, u = x @ W_gate, x @ W_in
    return (W_in * (g * g.sigmoid())) @ W_out, (W_gate * (u * g.sigmoid())) @ W_out


def four_routes(x, A, W_OV, W_in, W_out, gate):
    """x, A x W_OV, x B and A x W_OV B: their sum leaves the block; B holds the gains of this input.

    x [pos, d], A [pos, pos], W_OV [d, d]; an MLP without biases that reads x + A x W_OV.
    """
    head = A @ x @ W_OV
    gains = gate((x + head) @ W_in)
    through = [(v @ W_in * gains) @ W_out for v in (x, head)]
    return {"straight": x, "head": head, "MLP": through[0], "head, then MLP": through[1]}


def path_integral(f, x0, x1, steps):
    """∫₀¹ (x1 - x0) J_f(x0 + t (x1 - x0)) dt by midpoints; f(x1) - f(x0) where f is continuous."""
    total = 0
    for k in range(steps):
        here = x0 + (k + 0.5) / steps * (x1 - x0)
        total = total + torch.func.jvp(f, (here,), (x1 - x0,))[1]
    return total / steps
