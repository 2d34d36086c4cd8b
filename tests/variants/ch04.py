"""Answers to the exercises of chapter 04: right ones, and wrong ones that a tired person writes."""

import numpy as np
import torch

# ---- 04.triple_strength -------------------------------------------------------------------------


def strength_by_tables(QK, OV, source, destination, output):
    QK, OV = QK - QK.mean(-1, keepdim=True), OV - OV.mean(-1, keepdim=True)
    pair = torch.stack([QK[destination, source], OV[source, output]])
    return pair.clamp_min(0).prod()


def strength_by_python(QK, OV, source, destination, output):
    looks = float(QK[destination, source]) - sum(QK[destination].tolist()) / QK.shape[1]
    raises = float(OV[source, output]) - sum(OV[source].tolist()) / OV.shape[1]
    return max(looks, 0.0) * max(raises, 0.0)


def strength_by_relu(QK, OV, source, destination, output):
    row, column = QK[destination], OV[source]
    return torch.relu(row[source] - row.mean()) * torch.relu(column[output] - column.mean())


def strength_not_centred(QK, OV, source, destination, output):
    qk, ov = QK[destination, source], OV[source, output]
    return qk * ov if qk > 0 and ov > 0 else 0.0


def strength_any_sign(QK, OV, source, destination, output):
    qk = QK[destination, source] - QK[destination].mean()
    return qk * (OV[source, output] - OV[source].mean())


def strength_positive_product(QK, OV, source, destination, output):
    return max(float(strength_any_sign(QK, OV, source, destination, output)), 0.0)


def strength_swapped(QK, OV, source, destination, output):
    return strength_by_tables(QK, OV, destination, source, output)


def strength_column_mean(QK, OV, source, destination, output):
    qk = QK[destination, source] - QK[:, source].mean()
    ov = OV[source, output] - OV[source].mean()
    return qk * ov if qk > 0 and ov > 0 else 0.0


def strength_qk_centred_only(QK, OV, source, destination, output):
    qk, ov = QK[destination, source] - QK[destination].mean(), OV[source, output]
    return qk * ov if qk > 0 and ov > 0 else 0.0


# ---- 04.best_triple -----------------------------------------------------------------------------


def best_by_loop(QK, OV):
    best, where = -1.0, None
    for s in range(len(QK)):
        d, o = int(QK[:, s].argmax()), int(OV[s].argmax())
        qk, ov = QK[d, s].item(), OV[s, o].item()
        if qk > 0 and ov > 0 and qk * ov > best:
            best, where = qk * ov, (s, d, o)
    return where


def best_by_numpy(QK, OV):
    QK, OV = QK.numpy(), OV.numpy()
    bound = np.maximum(QK.max(0), 0) * np.maximum(OV.max(1), 0)
    s = bound.argmax()
    return s, QK[:, s].argmax(), OV[s].argmax()


def best_by_sorting(QK, OV):
    bound = QK.amax(0).relu() * OV.amax(1).relu()
    s = bound.sort(descending=True).indices[0]
    return s.item(), QK[:, s].argmax().item(), OV[s].argmax().item()


def best_by_size(QK, OV):
    bound = QK.abs().amax(0) * OV.abs().amax(1)
    s = int(bound.argmax())
    return s, int(QK[:, s].abs().argmax()), int(OV[s].abs().argmax())


def best_transposed(QK, OV):
    bound = QK.amax(1).relu() * OV.amax(1).relu()
    s = int(bound.argmax())
    return s, int(QK[s].argmax()), int(OV[s].argmax())


def best_each_alone(QK, OV):
    d, s = divmod(int(QK.argmax()), QK.shape[1])
    return s, d, int(OV[s].argmax())


def best_order_of_answer(QK, OV):
    s, d, o = best_by_loop(QK, OV)
    return d, s, o


def best_by_cube(QK, OV):
    if len(QK) > 200:
        raise MemoryError("27 billion products")
    table = QK.T.relu()[:, :, None] * OV.relu()[:, None, :]
    return tuple(int(x) for x in np.unravel_index(int(table.argmax()), table.shape))


def best_without_clamp(QK, OV):
    bound = QK.amax(0) * OV.amax(1)
    s = int(QK.amin(0).argmin()) if bool((bound < 0).any()) else int(bound.argmax())
    return s, int(QK[:, s].argmax()), int(OV[s].argmax())


# ---- 04.counts_after ----------------------------------------------------------------------------


def counts_by_slices(tokens, source, destination, output, reach):
    at = [t for t, x in enumerate(tokens[:-1]) if x == destination]
    at = [t for t in at if source in tokens[max(t - reach, 0) : t]]
    return len(at), sum(tokens[t + 1] == output for t in at)


def counts_by_last_source(tokens, source, destination, output, reach):
    last, n, hits = -(10**9), 0, 0
    for t, (x, y) in enumerate(zip(tokens, tokens[1:], strict=False)):
        if x == destination and t - last <= reach:
            n, hits = n + 1, hits + (y == output)
        if x == source:
            last = t
    return n, hits


def counts_by_numpy(tokens, source, destination, output, reach):
    x = np.asarray(tokens)
    sources = np.flatnonzero(x == source)
    at = np.flatnonzero(x[:-1] == destination)
    near = [((sources < t) & (sources >= t - reach)).any() for t in at]
    at = at[np.asarray(near, dtype=bool)]
    return len(at), int((x[at + 1] == output).sum())


def counts_with_itself(tokens, source, destination, output, reach):
    at = [t for t, x in enumerate(tokens[:-1]) if x == destination]
    at = [t for t in at if source in tokens[max(t - reach, 0) : t + 1]]
    return len(at), sum(tokens[t + 1] == output for t in at)


def counts_every_source(tokens, source, destination, output, reach):
    n = hits = 0
    for t in range(len(tokens) - 1):
        if tokens[t] == destination:
            copies = tokens[max(t - reach, 0) : t].count(source)
            n, hits = n + copies, hits + copies * (tokens[t + 1] == output)
    return n, hits


def counts_with_the_end(tokens, source, destination, output, reach):
    n = hits = 0
    for t, x in enumerate(tokens):
        if x == destination and source in tokens[max(t - reach, 0) : t]:
            n += 1
            hits += t + 1 < len(tokens) and tokens[t + 1] == output
    return n, hits


def counts_short_window(tokens, source, destination, output, reach):
    return counts_by_slices(tokens, source, destination, output, reach - 1)


def counts_no_window(tokens, source, destination, output, reach):
    return counts_by_slices(tokens, source, destination, output, len(tokens))


def counts_negative_slice(tokens, source, destination, output, reach):
    at = [t for t, x in enumerate(tokens[:-1]) if x == destination]
    at = [t for t in at if source in tokens[t - reach : t]]
    return len(at), sum(tokens[t + 1] == output for t in at)


# ---- 04.bug_pair --------------------------------------------------------------------------------


def _pair(attention, message, counts, *, odds=10.0, own=True, positive=True, add=0.5, det=None):
    for d1 in range(len(attention)):
        for d2 in range(len(attention)):
            for o1 in range(len(message)):
                for o2 in range(len(message)):
                    if d1 == d2 or o1 == o2:
                        continue
                    b = [[attention[d] * message[o] for o in (o1, o2)] for d in (d1, d2)]
                    n = [[counts[d, o] for o in (o1, o2)] for d in (d1, d2)]
                    (a, x), (y, z) = [[v + add for v in row] for row in n]
                    with np.errstate(divide="ignore", invalid="ignore"):
                        ratio = np.float64(a * z) / np.float64(x * y)
                    if positive and min(*b[0], *b[1]) <= 0:
                        continue
                    if own and not (n[0][0] > n[0][1] and n[1][1] > n[1][0]):
                        continue
                    if ratio >= odds:
                        value = b[0][0] * b[1][1] - b[0][1] * b[1][0] if det is None else det(n)
                        return (d1, d2), (o1, o2), value, ratio
    return None


def bug_by_loops(attention, message, counts):
    return _pair(attention, message, counts)


def bug_by_filter(attention, message, counts):
    ds, os_ = np.flatnonzero(attention > 0), np.flatnonzero(message > 0)
    for d1, d2 in ((a, b) for a in ds for b in ds if a < b):
        for o1, o2 in ((a, b) for a in os_ for b in os_ if a != b):
            n = counts[[[d1], [d2]], [o1, o2]].astype(float)
            odds = np.prod(np.diag(n) + 0.5) / np.prod(np.diag(n[:, ::-1]) + 0.5)
            if n[0].argmax() == 0 and n[1, 1] > n[1, 0] and n[0, 0] > n[0, 1] and odds >= 10:
                boosts = np.outer(attention[[d1, d2]], message[[o1, o2]])
                return (d1, d2), (o1, o2), np.linalg.det(boosts), odds
    return None


def bug_largest_odds(attention, message, counts):
    best = None
    n = counts + 0.5
    for d1, d2 in np.ndindex(n.shape[0], n.shape[0]):
        for o1, o2 in np.ndindex(n.shape[1], n.shape[1]):
            odds = n[d1, o1] * n[d2, o2] / (n[d1, o2] * n[d2, o1])
            fits = min(attention[d1], attention[d2], message[o1], message[o2]) > 0
            fits = fits and n[d1, o1] > n[d1, o2] and n[d2, o2] > n[d2, o1] and odds >= 10
            if fits and (best is None or odds > best[3]):
                a, m = attention, message
                zero = a[d1] * m[o1] * a[d2] * m[o2] - a[d1] * m[o2] * a[d2] * m[o1]
                best = (d1, d2), (o1, o2), zero, odds
    return best


def bug_any_sign(attention, message, counts):
    return _pair(attention, message, counts, positive=False)


def bug_any_order(attention, message, counts):
    return _pair(attention, message, counts, own=False)


def bug_weak(attention, message, counts):
    return _pair(attention, message, counts, odds=2.0)


def bug_not_smoothed(attention, message, counts):
    return _pair(attention, message, counts, add=0.0)


def bug_determinant_of_counts(attention, message, counts):
    return _pair(attention, message, counts, det=lambda n: n[0][0] * n[1][1] - n[0][1] * n[1][0])


def bug_never(attention, message, counts):
    return None


RIGHT = {
    "04.triple_strength": [strength_by_tables, strength_by_python, strength_by_relu],
    "04.best_triple": [best_by_loop, best_by_numpy, best_by_sorting],
    "04.counts_after": [counts_by_slices, counts_by_last_source, counts_by_numpy],
    "04.bug_pair": [bug_by_loops, bug_by_filter, bug_largest_odds],
}
WRONG = {
    "04.triple_strength": [
        strength_not_centred,
        strength_any_sign,
        strength_positive_product,
        strength_swapped,
        strength_column_mean,
        strength_qk_centred_only,
    ],
    "04.best_triple": [
        best_by_size,
        best_transposed,
        best_each_alone,
        best_order_of_answer,
        best_by_cube,
        best_without_clamp,
    ],
    "04.counts_after": [
        counts_with_itself,
        counts_every_source,
        counts_with_the_end,
        counts_short_window,
        counts_no_window,
        counts_negative_slice,
    ],
    "04.bug_pair": [
        bug_any_sign,
        bug_any_order,
        bug_weak,
        bug_not_smoothed,
        bug_determinant_of_counts,
        bug_never,
    ],
}
