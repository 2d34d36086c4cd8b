"""Superposition: more features than dimensions: what chapter 08 teaches, for later chapters to use.

Generated from scripts/08_superposition.py; do not edit.
"""



def read_back(W, b, x, relu=True):
    """x' = ReLU(WᵀWx + b), or without the ReLU. W [m, n], b [n], x [n, inputs]: features in rows."""
    z = W.mT @ (W @ x) + b[:, None]
    return z.relu() if relu else z


def toy_gradient(W, b, x, importance):
    """(dL/dW, dL/db) of L = mean over inputs of Σ I (x - ReLU(WᵀWx + b))². Shapes as in read_back."""
    h = W @ x
    z = W.mT @ h + b[:, None]
    g = 2 * importance[:, None] * (z - x) * (z > 0) / x.shape[1]  # dL/dz
    return h @ g.mT + (W @ g) @ x.mT, g.sum(1)
