"""MLP neurons and in-context learning: what the paper left out: what chapter 07 teaches, for later chapters to use.

Generated from scripts/07_mlp_neurons.py; do not edit.
"""

import torch


def neuron_terms(x, W_in, b_in, W_out, phi):
    """φ(x·k_i + b_i) v_i for each neuron i: x [n, d_model] -> [n, d_mlp, d_model].

    Summed over neurons, plus b_out, they are the MLP's write.
    """
    return phi(x @ W_in + b_in)[..., None] * W_out


def whiten(x):
    """(x̃, B): x̃ = (x - mean) L with L Lᵀ = Cov⁻¹, so Cov(x̃) = 1; B = L⁻¹.

    x [n, d], n well above d. A direction k that reads x reads x̃ as B k. Inner products of x̃ are the
    same whatever coordinates x has. Computed in float64, x̃ in the type of x.
    """
    centred = x.double() - x.double().mean(0)
    covariance = centred.mT @ centred / len(x)
    L = torch.linalg.cholesky(torch.linalg.inv(covariance))
    return (centred @ L).to(x), torch.linalg.inv(L)


def agreement(x, fires, doc):
    """Σ a_i a_j cos(x_i, x_j) / Σ a_i a_j over pairs of firings in different documents; [neuron].

    x [n, d] whitened, fires [n, neuron] >= 0, doc [n] with equal entries side by side. Neurons that
    fire in one document only score 0.
    """
    unit = x / x.norm(dim=1, keepdim=True)
    sizes = doc.unique_consecutive(return_counts=True)[1].tolist()
    total, same, pairs = 0, 0, fires.sum(0).square()
    for part, here in zip(unit.split(sizes), fires.split(sizes)):
        s = here.mT @ part  # the sum of unit vectors of this document, for each neuron
        total, same = total + s, same + s.square().sum(1)
        pairs = pairs - here.sum(0).square()
    return torch.where(pairs > 1e-9, (total.square().sum(1) - same) / pairs.clamp_min(1e-9), 0.0)


DRAW_SEED = 2021
DRAWN = (116, 764, 589, 540, 49, 225, 518, 796, 487, 564, 279, 484, 733, 871)
