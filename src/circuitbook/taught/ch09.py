"""Sparse autoencoders and Aunt Sally: what a graph hides: what chapter 09 teaches, for later chapters to use.

Generated from scripts/09_sparse_autoencoders.py; do not edit.
"""

import torch


def sae_forward(x, W_enc, b_enc, W_dec, b_dec):
    """f = ReLU(x W_enc + b_enc) and x̂ = f W_dec + b_dec: (latents [n, F], reconstruction [n, d])."""
    f = (x @ W_enc + b_enc).relu()
    return f, f @ W_dec + b_dec


def naive_loss(x, W_enc, b_enc, W_dec, b_dec, penalty):
    """|x - x̂|² + λ Σ_j f_j, a number for each row: the loss as one writes it first."""
    f, x_hat = sae_forward(x, W_enc, b_enc, W_dec, b_dec)
    return (x - x_hat).square().sum(-1) + penalty * f.sum(-1)


def best_match(truth, learned):
    """For each true direction the largest cosine with any learned one: max_j cos(t_i, l_j).

    truth [n, d], learned [k, d] -> [n]. Swap the two to ask the other way round.
    """
    unit = torch.nn.functional.normalize
    return (unit(truth) @ unit(learned).T).amax(1)


def top_k_code(pre, k):
    """ReLU(pre) with all but the k largest entries of each row at zero. [.., latents]"""
    kept, at = pre.relu().topk(k, dim=-1)
    return torch.zeros_like(pre).scatter(-1, at, kept)


def reason_terms(query_parts, key_parts, W_Q, W_K):
    """Terms [a, b] of a score at one key: q_a · k_b / √d_head, minus the term's mean over keys.

    query_parts [source, d_model]; key_parts [source, pos, d_model], the wanted key last.
    """
    q, k = query_parts @ W_Q / W_Q.shape[1] ** 0.5, key_parts @ W_K
    return q @ (k[:, -1] - k.mean(1)).mT
