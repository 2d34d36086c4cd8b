"""Induction: a circuit of two heads, proven by cutting: what chapter 06 teaches, for later chapters to use.

Generated from scripts/06_induction.py; do not edit.
"""

import torch

from circuitbook import probe


def fixed_offset_scores(tokens):
    """score_d = share of queries with a match whose key d places back is a right one, d = 1, 2, …

    The prefix matching of the head that always attends d places back. tokens [n, pos] -> [pos - 1].
    """
    wanted = probe.after_earlier_copies(tokens)
    queries = wanted.any(-1).sum(-1)
    hits = [wanted.diagonal(-d, -2, -1).sum(-1) for d in range(1, tokens.shape[1])]
    return (torch.stack(hits) / queries).mean(-1)


def virtual_qk(W_E, W_V, W_O, W_Q, W_K):
    """W_E W_Q (W_E W_V W_O W_K)^T / sqrt(d_head) = A B, rows centred over keys; thin A and B.

    W_V, W_O: the earlier head, which moved the key's token. W_Q, W_K: the later head.
    A [d_vocab, d_head], B [d_head, d_vocab]. Row = query token, column = token before the key.
    """
    A = W_E @ W_Q / W_Q.shape[-1] ** 0.5
    B = (W_E @ W_V @ (W_O @ W_K)).mT
    return A, B - B.mean(-1, keepdim=True)
