"""Answers to the exercises of chapter 07: right ones, and wrong ones that a tired person writes."""

import numpy as np
import torch

# ---- 07.parameter_counts ------------------------------------------------------------------------


def counts_by_matrix(n_layers, d_model, n_heads, d_head, d_mlp, biases=True):
    attention = n_heads * (3 * (d_model + biases) * d_head + d_head * d_model) + d_model * biases
    mlp = (d_model + biases) * d_mlp + (d_mlp + biases) * d_model if d_mlp else 0
    return n_layers * attention, n_layers * mlp


def counts_by_torch(n_layers, d_model, n_heads, d_head, d_mlp, biases=True):
    inner = n_heads * d_head
    shapes = [(d_model, inner)] * 3 + [(inner, d_model)]
    two = [(d_model, d_mlp), (d_mlp, d_model)] if d_mlp else []
    layers = [[torch.nn.Linear(a, b, bias=biases) for a, b in s] for s in (shapes, two)]
    return tuple(n_layers * sum(p.numel() for m in x for p in m.parameters()) for x in layers)


def counts_by_loop(n_layers, d_model, n_heads, d_head, d_mlp, biases=True):
    attention = mlp = 0
    for _ in range(n_layers):
        for _ in range(n_heads):
            attention += 4 * d_model * d_head
            if biases:
                attention += 3 * d_head
        if biases:
            attention += d_model
        if d_mlp:
            mlp += d_model * d_mlp * 2
            if biases:
                mlp += d_model + d_mlp
    return attention, mlp


def counts_no_biases(n_layers, d_model, n_heads, d_head, d_mlp, biases=True):
    return n_layers * 4 * d_model * n_heads * d_head, n_layers * 2 * d_model * d_mlp


def counts_always_biases(n_layers, d_model, n_heads, d_head, d_mlp, biases=True):
    return counts_by_matrix(n_layers, d_model, n_heads, d_head, d_mlp)


def counts_bias_without_mlp(n_layers, d_model, n_heads, d_head, d_mlp, biases=True):
    attention = 4 * d_model * n_heads * d_head + (3 * n_heads * d_head + d_model) * biases
    return n_layers * attention, n_layers * (2 * d_model * d_mlp + (d_mlp + d_model) * biases)


def counts_square_heads(n_layers, d_model, n_heads, d_head, d_mlp, biases=True):
    attention = 4 * d_model**2 + 4 * d_model * biases
    return n_layers * attention, counts_by_matrix(
        n_layers, d_model, n_heads, d_head, d_mlp, biases
    )[1]


def counts_one_layer(n_layers, d_model, n_heads, d_head, d_mlp, biases=True):
    return counts_by_matrix(1, d_model, n_heads, d_head, d_mlp, biases)


def counts_no_output_bias(n_layers, d_model, n_heads, d_head, d_mlp, biases=True):
    a, m = counts_by_matrix(n_layers, d_model, n_heads, d_head, d_mlp, biases)
    return a, m - n_layers * d_model * (biases and d_mlp > 0)


# ---- 07.pre_activation_parts --------------------------------------------------------------------


def parts_by_einsum(e, patterns, W_OV, k, b):
    heads = torch.einsum("hqs,sd,hdf,f->hq", patterns, e, W_OV, k)
    token, bias = (e @ k)[None], torch.zeros(1, len(e)).to(e) + b
    return torch.cat([token, heads, bias])


def parts_by_pulling_back(e, patterns, W_OV, k, b):
    rows = [e @ k] + [A @ (e @ (W @ k)) for A, W in zip(patterns, W_OV, strict=True)]
    return torch.stack([*rows, torch.ones_like(rows[0]) * b])


def parts_in_numpy(e, patterns, W_OV, k, b):
    x, A, W, q = (m.numpy() for m in (e, patterns, W_OV, k))
    return np.stack([x @ q, *(A[h] @ x @ W[h] @ q for h in range(len(A))), np.full(len(x), b)])


def parts_as_a_list(e, patterns, W_OV, k, b):
    rows = [e @ k, *(A @ (e @ W @ k) for A, W in zip(patterns, W_OV, strict=True))]
    return [*rows, torch.full((len(e),), float(b))]


def parts_without_bias(e, patterns, W_OV, k, b):
    return parts_by_einsum(e, patterns, W_OV, k, 0.0)


def parts_no_bias_row(e, patterns, W_OV, k, b):
    return parts_by_einsum(e, patterns, W_OV, k, b)[:-1]


def parts_bias_everywhere(e, patterns, W_OV, k, b):
    return parts_by_einsum(e, patterns, W_OV, k, 0.0) + b


def parts_pattern_transposed(e, patterns, W_OV, k, b):
    return parts_by_einsum(e, patterns.mT, W_OV, k, b)


def parts_OV_transposed(e, patterns, W_OV, k, b):
    return parts_by_einsum(e, patterns, W_OV.mT, k, b)


def parts_without_pattern(e, patterns, W_OV, k, b):
    eye = torch.eye(len(e)).to(e).expand_as(patterns)
    return parts_by_einsum(e, eye, W_OV, k, b)


def parts_head_reads_the_sum(e, patterns, W_OV, k, b):
    x, rows = e, [e @ k]
    for A, W in zip(patterns, W_OV, strict=True):
        rows.append(A @ x @ W @ k)
        x = x + A @ x @ W
    return torch.stack([*rows, torch.full_like(rows[0], b)])


def parts_token_in_heads(e, patterns, W_OV, k, b):
    rows = parts_by_einsum(e, patterns, W_OV, k, b)
    rows[1:-1] += rows[0] / len(patterns)
    return rows


# ---- 07.mean_ablation ---------------------------------------------------------------------------


def ablation_by_logits(last, activation, mean, v, W_U):
    logits = last @ W_U
    push = torch.outer(activation - mean, v @ W_U)
    return push - logits.logsumexp(-1, keepdim=True) + (logits - push).logsumexp(-1, keepdim=True)


def ablation_by_loop(last, activation, mean, v, W_U):
    rows = []
    for x, a in zip(last, activation, strict=True):
        new = x - a * v + mean * v
        rows.append((x @ W_U).log_softmax(0) - (new @ W_U).log_softmax(0))
    return torch.stack(rows)


def ablation_by_ratio(last, activation, mean, v, W_U):
    p = (last @ W_U).softmax(-1)
    after = p * torch.exp(-(activation - mean)[:, None] * (v @ W_U))
    return p.log() - (after / after.sum(-1, keepdim=True)).log()


def ablation_to_zero(last, activation, mean, v, W_U):
    return ablation_by_loop(last, activation, 0.0, v, W_U)


def ablation_of_the_mean(last, activation, mean, v, W_U):
    return ablation_by_loop(last, torch.full_like(activation, mean), 0.0, v, W_U)


def ablation_after_minus_before(last, activation, mean, v, W_U):
    return -ablation_by_loop(last, activation, mean, v, W_U)


def ablation_logits_only(last, activation, mean, v, W_U):
    return torch.outer(activation - mean, v @ W_U)


def ablation_centred_logits(last, activation, mean, v, W_U):
    boost = v @ W_U
    return torch.outer(activation - mean, boost - boost.mean())


def ablation_probabilities(last, activation, mean, v, W_U):
    new = last - torch.outer(activation - mean, v)
    return (last @ W_U).softmax(-1) - (new @ W_U).softmax(-1)


def ablation_same_everywhere(last, activation, mean, v, W_U):
    return ablation_by_loop(last, activation.mean().expand_as(activation), mean, v, W_U)


def ablation_wrong_sign(last, activation, mean, v, W_U):
    new = last + torch.outer(activation - mean, v)
    return (last @ W_U).log_softmax(-1) - (new @ W_U).log_softmax(-1)


# ---- 07.windows_needed --------------------------------------------------------------------------


def _score(loss, early, late):
    return loss[:, late[0] - 1 : late[1]].mean(1) - loss[:, early[0] - 1 : early[1]].mean(1)


def _needed(x, doc, factor=True, power=1.0):
    sums = torch.zeros(int(doc.max()) + 1).to(x).index_add(0, doc, x - x.mean())
    G = len(doc.unique())
    variance = (sums**2).sum() / len(x) ** 2 * (G / (G - 1) if factor else 1)
    return (len(x) * (2 * variance.sqrt() / x.mean().abs()) ** (2 * power)).item()


def needed_by_index(loss_a, loss_b, doc, early, late):
    return _needed(_score(loss_a, early, late) - _score(loss_b, early, late), doc)


def needed_by_probe(loss_a, loss_b, doc, early, late):
    from circuitbook import probe

    a, b = (probe.in_context_scores(loss, early, late) for loss in (loss_a, loss_b))
    found = probe.paired_difference(a, b, doc)
    return len(doc) * 4 * found.se**2 / found.mean**2


def needed_in_numpy(loss_a, loss_b, doc, early, late):
    gap = (loss_a - loss_b).numpy()
    x = gap[:, late[0] - 1 : late[1]].mean(1) - gap[:, early[0] - 1 : early[1]].mean(1)
    total = {}
    for g, value in zip(doc.tolist(), x - x.mean(), strict=True):
        total[g] = total.get(g, 0.0) + value
    s = np.array(list(total.values()))
    se2 = len(s) / (len(s) - 1) * (s @ s) / len(x) ** 2
    return len(x) * 4 * se2 / x.mean() ** 2


def needed_without_documents(loss_a, loss_b, doc, early, late):
    x = _score(loss_a, early, late) - _score(loss_b, early, late)
    return _needed(x, torch.arange(len(x)))


def needed_unpaired(loss_a, loss_b, doc, early, late):
    a, b = _score(loss_a, early, late), _score(loss_b, early, late)
    spread = _needed(a, doc) * a.mean() ** 2 + _needed(b, doc) * b.mean() ** 2
    return (spread / (a - b).mean() ** 2).item()


def needed_one_error(loss_a, loss_b, doc, early, late):
    return needed_by_index(loss_a, loss_b, doc, early, late) / 4


def needed_not_squared(loss_a, loss_b, doc, early, late):
    x = _score(loss_a, early, late) - _score(loss_b, early, late)
    return _needed(x, doc, power=0.5)


def needed_without_factor(loss_a, loss_b, doc, early, late):
    x = _score(loss_a, early, late) - _score(loss_b, early, late)
    return _needed(x, doc, factor=False)


def needed_counts_documents(loss_a, loss_b, doc, early, late):
    return needed_by_index(loss_a, loss_b, doc, early, late) / len(doc) * len(doc.unique())


def needed_off_by_one(loss_a, loss_b, doc, early, late):
    early, late = ((a + 1, b) for a, b in (early, late))
    return needed_by_index(loss_a, loss_b, doc, early, late)


def needed_document_means(loss_a, loss_b, doc, early, late):
    x = _score(loss_a, early, late) - _score(loss_b, early, late)
    means = torch.stack([x[doc == g].mean() for g in doc.unique()])
    return (4 * means.var() / means.mean() ** 2).item()


def needed_late_only(loss_a, loss_b, doc, early, late):
    gap = (loss_a - loss_b)[:, late[0] - 1 : late[1]].mean(1)
    return _needed(gap, doc)


RIGHT = {
    "07.parameter_counts": [counts_by_matrix, counts_by_torch, counts_by_loop],
    "07.pre_activation_parts": [
        parts_by_einsum,
        parts_by_pulling_back,
        parts_in_numpy,
        parts_as_a_list,
    ],
    "07.mean_ablation": [ablation_by_logits, ablation_by_loop, ablation_by_ratio],
    "07.windows_needed": [needed_by_index, needed_by_probe, needed_in_numpy],
}
WRONG = {
    "07.parameter_counts": [
        counts_no_biases, counts_always_biases, counts_bias_without_mlp, counts_square_heads,
        counts_one_layer, counts_no_output_bias,
    ],
    "07.pre_activation_parts": [
        parts_without_bias, parts_no_bias_row, parts_bias_everywhere, parts_pattern_transposed,
        parts_OV_transposed, parts_without_pattern, parts_head_reads_the_sum, parts_token_in_heads,
    ],
    "07.mean_ablation": [
        ablation_to_zero, ablation_of_the_mean, ablation_after_minus_before, ablation_logits_only,
        ablation_centred_logits, ablation_probabilities, ablation_same_everywhere,
        ablation_wrong_sign,
    ],
    "07.windows_needed": [
        needed_without_documents, needed_unpaired, needed_one_error, needed_not_squared,
        needed_without_factor, needed_counts_documents, needed_off_by_one, needed_document_means,
        needed_late_only,
    ],
}  # fmt: skip
