"""Answers to the exercises of chapter 06: right ones, and wrong ones that a tired person writes."""

import numpy as np
import torch

from circuitbook import probe

# ---- 06.prefix_matching -------------------------------------------------------------------------


def _mask(tokens, shift=1, strict=True):
    same = tokens[:, None] == tokens[None, :]
    wanted = torch.zeros_like(same)
    wanted[:, shift:] = same[:, : len(tokens) - shift]
    return wanted.tril(-1 if strict else 0)


def prefix_by_mask(pattern, tokens):
    wanted = _mask(tokens)
    return (pattern * wanted).sum(1)[wanted.any(1)].mean()


def prefix_by_probe(pattern, tokens):
    return probe.prefix_matching_score(pattern[None], tokens).item()


def prefix_in_numpy(pattern, tokens):
    p, t, hits = pattern.numpy(), tokens.numpy(), []
    for query in range(len(t)):
        keys = 1 + np.flatnonzero(t[: max(query - 1, 0)] == t[query])
        if len(keys):
            hits.append(p[query, keys].sum())
    return float(np.mean(hits))


def prefix_at_the_copy(pattern, tokens):
    wanted = (tokens[:, None] == tokens[None, :]).tril(-1)
    return (pattern * wanted).sum(1)[wanted.any(1)].mean()


def prefix_one_too_far(pattern, tokens):
    wanted = _mask(tokens, 2)
    return (pattern * wanted).sum(1)[wanted.any(1)].mean()


def prefix_over_all_queries(pattern, tokens):
    return (pattern * _mask(tokens)).sum(1).mean()


def prefix_latest_copy_only(pattern, tokens):
    scores = []
    for t in range(len(tokens)):
        keys = [j for j in range(1, t) if tokens[j - 1] == tokens[t]]
        if keys:
            scores.append(float(pattern[t, keys[-1]]))
    return sum(scores) / len(scores)


def prefix_mean_over_keys(pattern, tokens):
    wanted = _mask(tokens)
    return pattern[wanted].mean()


def prefix_transposed(pattern, tokens):
    return prefix_by_mask(pattern.T, tokens)


def prefix_best_key(pattern, tokens):
    wanted = _mask(tokens)
    rows = wanted.any(1)
    return wanted[rows].gather(1, pattern[rows].argmax(1, keepdim=True)).double().mean()


# ---- 06.fooling_pattern -------------------------------------------------------------------------


def fool_by_diagonal(period, copies):
    n, back = 1 + copies * period, period - 1
    pattern = torch.diag(torch.ones(n - back), -back)
    pattern[:back, 0] = 1.0
    return pattern


def fool_all_copies(period, copies):
    n = 1 + copies * period
    pattern = np.zeros((n, n))
    for t in range(n):
        keys = list(range(t - period + 1, 1, -period))
        pattern[t, keys or [0]] = 1 / max(1, len(keys))
    return pattern


def fool_by_modulus(period, copies):
    n = 1 + copies * period
    t, j = torch.arange(n)[:, None], torch.arange(n)[None]
    pattern = ((t - j) == period - 1).double()
    pattern[:, 0] += 1 - pattern.sum(1)
    return pattern


def fool_at_the_copy(period, copies):
    n = 1 + copies * period
    pattern = torch.zeros(n, n)
    for t in range(n):
        pattern[t, max(0, t - period)] = 1.0
    return pattern


def fool_too_far(period, copies):
    n = 1 + copies * period
    pattern = torch.zeros(n, n)
    for t in range(n):
        pattern[t, max(0, t - (period - 2))] = 1.0
    return pattern


def fool_without_bos(period, copies):
    return fool_by_diagonal(period, copies)[1:, 1:]


def fool_empty_rows(period, copies):
    n = 1 + copies * period
    return torch.diag(torch.ones(n - period + 1), -(period - 1))


def fool_ahead(period, copies):
    return fool_by_diagonal(period, copies).T


def fool_only_the_second(period, copies):
    pattern = fool_by_diagonal(period, copies)
    pattern[2 * period + 1 :] = 0
    pattern[2 * period + 1 :, 0] = 1.0
    return pattern if copies > 2 else fool_at_the_copy(period, copies)


def fool_uniform(period, copies):
    pattern = torch.ones(1 + copies * period, 1 + copies * period).tril()
    return pattern / pattern.sum(1, keepdim=True)


# ---- 06.honest_score ----------------------------------------------------------------------------


def _sequence(words, generator, gap, block=25):
    drawn = words[torch.randperm(len(words), generator=generator)]
    parts = drawn[:block], drawn[block : block + gap], drawn[:block]
    return torch.cat([torch.tensor([0]), *parts])[None]


def _scored(head, tokens):
    return probe.prefix_matching_score(head(tokens)[:, None], tokens).mean().item()


def honest_by_batch(head, words, generator):
    tokens = probe.repeated_batch(words, 64, copies=2, generator=generator).tokens
    return _scored(head, tokens)


def honest_by_random_gaps(head, words, generator):
    gaps = torch.randperm(120, generator=generator)[:60].tolist()
    return float(np.mean([_scored(head, _sequence(words, generator, g)) for g in gaps]))


def honest_by_block_length(head, words, generator):
    lengths = range(5, 65)  # no filler: the block's length changes the distance
    return float(np.mean([_scored(head, _sequence(words, generator, 0, n)) for n in lengths]))


def honest_without_gap(head, words, generator):
    return float(np.mean([_scored(head, _sequence(words, generator, 0)) for _ in range(8)]))


def honest_one_gap(head, words, generator):
    return float(np.mean([_scored(head, _sequence(words, generator, 37)) for _ in range(8)]))


def honest_one_draw(head, words, generator):
    gap = int(torch.randint(16, 80, (1,), generator=generator))
    return _scored(head, _sequence(words, generator, gap))


def honest_two_gaps(head, words, generator):
    return float(np.mean([_scored(head, _sequence(words, generator, g)) for g in (20, 50)]))


def honest_best_gap(head, words, generator):
    return max(_scored(head, _sequence(words, generator, g)) for g in range(16, 80, 4))


def honest_all_queries(head, words, generator):
    scores = []
    for gap in range(16, 80):
        tokens = _sequence(words, generator, gap)
        mask = probe.after_earlier_copies(tokens)
        scores.append((head(tokens) * mask).sum(-1).mean().item())
    return float(np.mean(scores))


def honest_duplicates(head, words, generator):
    scores = []
    for gap in range(16, 80):
        tokens = _sequence(words, generator, gap)
        scores.append(probe.duplicate_token_score(head(tokens)[:, None], tokens).mean().item())
    return float(np.mean(scores))


def honest_worst_query(head, words, generator):
    scores = []
    for gap in range(16, 80):
        tokens = _sequence(words, generator, gap)
        mask = probe.after_earlier_copies(tokens)
        scores.append((head(tokens) * mask).sum(-1).max().item())
    return float(np.mean(scores))


# ---- 06.matching_share --------------------------------------------------------------------------


def share_by_rows(W_E, W_OV, W_QK):
    keys = W_E @ W_OV
    rows = [int((x @ W_QK @ keys.T).argmax()) for x in W_E]
    return sum(a == i for i, a in enumerate(rows)) / len(W_E)


def share_by_einsum(W_E, W_OV, W_QK):
    table = torch.einsum("ad,de,bf,fe->ab", W_E, W_QK, W_E, W_OV)
    return (table.max(1).indices == torch.arange(len(W_E))).float().mean()


def share_by_diagonal(W_E, W_OV, W_QK):
    table = W_E @ W_QK @ W_OV.T @ W_E.T
    others = table - torch.diag(torch.full((len(table),), torch.inf, dtype=table.dtype))
    return (table.diagonal() > others.max(1).values).double().mean()


def share_by_columns(W_E, W_OV, W_QK):
    table = W_E @ W_QK @ (W_E @ W_OV).T
    return (table.argmax(0) == torch.arange(len(W_E))).double().mean().item()


def share_through_the_query(W_E, W_OV, W_QK):
    table = (W_E @ W_OV) @ W_QK @ W_E.T
    return (table.argmax(1) == torch.arange(len(W_E))).double().mean().item()


def share_not_transposed(W_E, W_OV, W_QK):
    table = W_E @ W_QK @ W_OV @ W_E.T
    return (table.argmax(1) == torch.arange(len(W_E))).double().mean().item()


def share_without_the_head(W_E, W_OV, W_QK):
    table = W_E @ W_QK @ W_E.T
    return (table.argmax(1) == torch.arange(len(W_E))).double().mean().item()


def share_of_positive(W_E, W_OV, W_QK):
    table = W_E @ W_QK @ (W_E @ W_OV).T
    return (table.diagonal() > 0).double().mean().item()


def share_by_energy(W_E, W_OV, W_QK):
    table = W_E @ W_QK @ (W_E @ W_OV).T
    return (table.diagonal().square().sum() / table.square().sum()).item()


def share_by_size(W_E, W_OV, W_QK):
    table = (W_E @ W_QK @ (W_E @ W_OV).T).abs()
    return (table.argmax(1) == torch.arange(len(W_E))).double().mean().item()


# ---- 06.key_cut ---------------------------------------------------------------------------------


def _softmax(scores):
    hidden = torch.ones_like(scores).triu(1).bool()
    return scores.masked_fill(hidden, -torch.inf).softmax(-1)


def cut_by_subtraction(x, write, place, W_Q, W_K):
    q = (x + place) @ W_Q
    scores = q @ ((x + place) @ W_K).T - q @ (write @ W_K).T
    return _softmax(scores / W_K.shape[1] ** 0.5)


def cut_by_loop(x, write, place, W_Q, W_K):
    out = torch.zeros(len(x), len(x), dtype=x.dtype)
    keys = (x + place - write) @ W_K
    for t in range(len(x)):
        out[t, : t + 1] = ((x[t] + place[t]) @ W_Q @ keys[: t + 1].T / W_Q.shape[1] ** 0.5).softmax(
            0
        )
    return out


def cut_in_numpy(x, write, place, W_Q, W_K):
    a, w, p, Q, K = (m.numpy() for m in (x, write, place, W_Q, W_K))
    s = (a + p) @ Q @ ((a - w + p) @ K).T / np.sqrt(Q.shape[1])
    s = np.where(np.tril(np.ones_like(s)) > 0, np.exp(s - s.max(1, keepdims=True)), 0)
    return s / s.sum(1, keepdims=True)


def cut_from_both(x, write, place, W_Q, W_K):
    y = x - write + place
    return _softmax(y @ W_Q @ (y @ W_K).T / W_Q.shape[1] ** 0.5)


def cut_from_the_query(x, write, place, W_Q, W_K):
    return _softmax((x - write + place) @ W_Q @ ((x + place) @ W_K).T / W_Q.shape[1] ** 0.5)


def cut_without_scale(x, write, place, W_Q, W_K):
    return _softmax((x + place) @ W_Q @ ((x - write + place) @ W_K).T)


def cut_without_places(x, write, place, W_Q, W_K):
    return _softmax(x @ W_Q @ ((x - write) @ W_K).T / W_Q.shape[1] ** 0.5)


def cut_without_mask(x, write, place, W_Q, W_K):
    return ((x + place) @ W_Q @ ((x - write + place) @ W_K).T / W_Q.shape[1] ** 0.5).softmax(-1)


def cut_keeps_only_the_write(x, write, place, W_Q, W_K):
    return _softmax((x + place) @ W_Q @ ((write + place) @ W_K).T / W_Q.shape[1] ** 0.5)


def cut_the_pattern(x, write, place, W_Q, W_K):
    whole = _softmax((x + place) @ W_Q @ ((x + place) @ W_K).T / W_Q.shape[1] ** 0.5)
    part = _softmax((x + place) @ W_Q @ (write @ W_K).T / W_Q.shape[1] ** 0.5)
    return whole - part


def cut_mask_after(x, write, place, W_Q, W_K):
    return cut_without_mask(x, write, place, W_Q, W_K).tril()


RIGHT = {
    "06.prefix_matching": [prefix_by_mask, prefix_by_probe, prefix_in_numpy],
    "06.fooling_pattern": [fool_by_diagonal, fool_all_copies, fool_by_modulus],
    "06.honest_score": [honest_by_batch, honest_by_random_gaps, honest_by_block_length],
    "06.matching_share": [share_by_rows, share_by_einsum, share_by_diagonal],
    "06.key_cut": [cut_by_subtraction, cut_by_loop, cut_in_numpy],
}
WRONG = {
    "06.prefix_matching": [
        prefix_at_the_copy, prefix_one_too_far, prefix_over_all_queries, prefix_latest_copy_only,
        prefix_mean_over_keys, prefix_transposed, prefix_best_key,
    ],
    "06.fooling_pattern": [
        fool_at_the_copy, fool_too_far, fool_without_bos, fool_empty_rows, fool_ahead,
        fool_only_the_second, fool_uniform,
    ],
    "06.honest_score": [
        honest_without_gap, honest_one_gap, honest_one_draw, honest_two_gaps, honest_best_gap,
        honest_all_queries, honest_duplicates, honest_worst_query,
    ],
    "06.matching_share": [
        share_by_columns, share_through_the_query, share_not_transposed, share_without_the_head,
        share_of_positive, share_by_energy, share_by_size,
    ],
    "06.key_cut": [
        cut_from_both, cut_from_the_query, cut_without_scale, cut_without_places, cut_without_mask,
        cut_keeps_only_the_write, cut_the_pattern, cut_mask_after,
    ],
}  # fmt: skip
