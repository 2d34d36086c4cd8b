"""Skip-trigrams: what one layer of attention knows: what chapter 04 teaches, for later chapters to use.

Generated from scripts/04_skip_trigrams.py; do not edit.
"""

import torch


def strongest_triples(QK, OV, k, positive=True):
    """The k largest QK[d, s] OV[s, o] of centred tables, by brute force: strengths, s, d, o.

    QK [d, s], OV [s, o], square. positive=False forgets the signs, to show the trap.
    """
    QK, OV, n, best = QK - QK.mean(1, keepdim=True), OV - OV.mean(1, keepdim=True), len(QK), []
    for s in range(n):  # one source at a time: d x o products
        table = torch.outer(QK[:, s], OV[s])
        if positive:
            table[(QK[:, s] <= 0)[:, None] | (OV[s] <= 0)] = -torch.inf
        value, at = table.flatten().topk(min(k, n * n))
        best.append(torch.stack([value, torch.full_like(value, s), at // n, at % n]))
    best = torch.cat(best, 1)
    value, s, d, o = best[:, best[0].argsort(descending=True)[:k]]
    return value, s.long(), d.long(), o.long()


def boosts(attention, message):
    """boost[d, o] = A(d, s) m[o]: what one source does to outputs at destinations; rank one.

    attention [destination]: how much each looks at the source. message [output]: OV row, centred.
    """
    return attention[:, None] * message[None, :]
