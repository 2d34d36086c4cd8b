"""Answers to the exercises of chapter 03: right ones, and wrong ones that a tired person writes."""

from math import comb

import numpy as np
import torch

from circuitbook import cut

# ---- 03.one_big_matrix --------------------------------------------------------------------------


def _t(W):
    return W.T.contiguous()


def big_by_blocks(A, W_OV, by):
    rows, columns = (A, W_OV.T) if by == "rows" else (W_OV.T, A)
    return torch.cat([torch.cat([a * columns for a in row], 1) for row in rows], 0)


def big_by_columns_of_identity(A, W_OV, by):
    n, d = len(A), len(W_OV)
    out = []
    for e in torch.eye(n * d, dtype=A.dtype):
        X = e.reshape(n, d) if by == "rows" else e.reshape(d, n).T
        Y = A @ X @ W_OV
        out.append((Y if by == "rows" else Y.T).reshape(-1))
    return torch.stack(out, 1)


def big_by_einsum(A, W_OV, by):
    if by == "rows":
        M = torch.einsum("ij,ed->idje", A, W_OV)
    else:
        M = torch.einsum("ij,ed->diej", A, W_OV)
    return M.reshape(A.numel() // len(A) * len(W_OV), -1)


def big_without_transpose(A, W_OV, by):
    return torch.kron(A, W_OV) if by == "rows" else torch.kron(W_OV, A)


def big_other_way_round(A, W_OV, by):
    return torch.kron(_t(W_OV), A) if by == "rows" else torch.kron(A, _t(W_OV))


def big_always_by_rows(A, W_OV, by):
    return torch.kron(A, _t(W_OV))


def big_pattern_transposed(A, W_OV, by):
    return torch.kron(_t(A), _t(W_OV)) if by == "rows" else torch.kron(_t(W_OV), _t(A))


def big_sum_of_axes(A, W_OV, by):
    n, d = torch.eye(len(A)).to(A), torch.eye(len(W_OV)).to(A)
    if by == "rows":
        return torch.kron(A, d) + torch.kron(n, _t(W_OV))
    return torch.kron(d, A) + torch.kron(_t(W_OV), n)


# ---- 03.count_paths -----------------------------------------------------------------------------


def count_by_choice(layers, heads, order):
    return comb(layers, order) * heads**order


def count_by_recursion(layers, heads, order):
    if layers == 0 or order < 0:
        return int(order == 0 and layers >= 0)
    return count_by_recursion(layers - 1, heads, order) + heads * count_by_recursion(
        layers - 1, heads, order - 1
    )


def count_by_polynomial(layers, heads, order):
    coefficients = np.poly1d([1])
    for _ in range(layers):
        coefficients = coefficients * np.poly1d([heads, 1])
    return int(round(coefficients[order])) if order <= layers else 0


def count_heads_only(layers, heads, order):
    return heads**order


def count_all_heads_alike(layers, heads, order):
    return comb(layers * heads, order)


def count_with_orderings(layers, heads, order):
    return comb(layers, order) * heads**order * (2 if order > 1 else 1)


def count_up_to_order(layers, heads, order):
    return sum(comb(layers, k) * heads**k for k in range(order + 1))


def count_full_product(layers, heads, order):
    return (1 + heads) ** layers if order else 1


# ---- 03.virtual_head ----------------------------------------------------------------------------


def virtual_in_one_product(A1, A2, X, V1, O1, V2, O2):
    return (A2 @ A1) @ X @ (V1 @ O1 @ V2 @ O2)


def virtual_by_einsum(A1, A2, X, V1, O1, V2, O2):
    z = torch.einsum("tj,js,sd,de->te", A2, A1, X, V1)
    return z @ (O1 @ V2) @ O2


def virtual_as_one_vector(A1, A2, X, V1, O1, V2, O2):
    big = torch.kron(A2 @ A1, (V1 @ O1 @ V2 @ O2).T.contiguous())
    return (big @ X.reshape(-1)).reshape(X.shape)


def virtual_patterns_swapped(A1, A2, X, V1, O1, V2, O2):
    return A1 @ A2 @ X @ V1 @ O1 @ V2 @ O2


def virtual_maps_swapped(A1, A2, X, V1, O1, V2, O2):
    return A2 @ A1 @ X @ V2 @ O2 @ V1 @ O1


def virtual_sum_of_heads(A1, A2, X, V1, O1, V2, O2):
    return A1 @ X @ V1 @ O1 + A2 @ X @ V2 @ O2


def virtual_with_the_stream(A1, A2, X, V1, O1, V2, O2):
    return A2 @ (X + A1 @ X @ V1 @ O1) @ V2 @ O2


def virtual_last_pattern_only(A1, A2, X, V1, O1, V2, O2):
    return A2 @ X @ V1 @ O1 @ V2 @ O2


def virtual_patterns_multiplied(A1, A2, X, V1, O1, V2, O2):
    return (A1 * A2) @ X @ V1 @ O1 @ V2 @ O2


# ---- 03.term_and_cut ----------------------------------------------------------------------------


def _term(model, tokens, writer, reader, swap_patterns=False, swap_maps=False):
    (l1, h1), (l2, h2) = writer, reader
    at = [f"blocks.{l}.attn.hook_pattern" for l in (l1, l2)]
    _, cache = cut.run(model, tokens, names=at)
    A = [cache[at[0]][:, h1], cache[at[1]][:, h2]]
    OV = [model.W_V[l1, h1] @ model.W_O[l1, h1], model.W_V[l2, h2] @ model.W_O[l2, h2]]
    A, OV = A[::-1] if swap_patterns else A, OV[::-1] if swap_maps else OV
    return A[1] @ A[0] @ model.W_E[tokens] @ OV[0] @ OV[1] @ model.W_U


def _change(model, tokens, writer, reader, into="v"):
    return cut.logit_change(model, tokens, cut.cut_path(model, writer, reader, into))


def both_by_patterns(model, tokens, writer, reader):
    return _term(model, tokens, writer, reader), _change(model, tokens, writer, reader)


def both_by_the_write(model, tokens, writer, reader):
    at = f"blocks.{writer[0]}.attn.hook_result", f"blocks.{reader[0]}.attn.hook_pattern"
    _, cache = cut.run(model, tokens, names=at)
    write = cache[at[0]][:, :, writer[1]]
    moved = cache[at[1]][:, reader[1]] @ write @ model.W_V[reader] @ model.W_O[reader]
    return moved @ model.W_U, _change(model, tokens, writer, reader)


def both_by_two_runs(model, tokens, writer, reader):
    without = cut.run(model, tokens, cut.cut_path(model, writer, reader, "v"))[0]
    return _term(model, tokens, writer, reader), without - cut.run(model, tokens)[0]


def both_cut_in_the_keys(model, tokens, writer, reader):
    return _term(model, tokens, writer, reader), _change(model, tokens, writer, reader, "k")


def both_change_from_the_term(model, tokens, writer, reader):
    term = _term(model, tokens, writer, reader, swap_maps=True)
    return term, -term


def both_with_one_sign(model, tokens, writer, reader):
    return _term(model, tokens, writer, reader), -_change(model, tokens, writer, reader)


def both_with_swapped_patterns(model, tokens, writer, reader):
    term = _term(model, tokens, writer, reader, swap_patterns=True)
    return term, _change(model, tokens, writer, reader)


def both_by_ablation(model, tokens, writer, reader):
    ablation = cut.ablate_heads(model, tokens, [writer])
    return _term(model, tokens, writer, reader), cut.logit_change(model, tokens, ablation)


def both_without_the_first_head(model, tokens, writer, reader):
    at = f"blocks.{reader[0]}.attn.hook_pattern"
    A = cut.run(model, tokens, names=[at])[1][at][:, reader[1]]
    direct = A @ model.W_E[tokens] @ model.W_V[reader] @ model.W_O[reader] @ model.W_U
    return direct, _change(model, tokens, writer, reader)


# ---- 03.pattern_from_parts ----------------------------------------------------------------------


def pattern_by_sum(parts, W_Q, W_K):
    x = torch.stack(list(parts)).sum(0)
    scores = x @ (W_Q @ W_K.T) @ x.T * W_Q.shape[-1] ** -0.5
    hidden = torch.ones(len(x), len(x)).triu(1).bool()
    return torch.softmax(scores.masked_fill(hidden, float("-inf")), -1)


def pattern_by_einsum(parts, W_Q, W_K):
    x = torch.stack(list(parts))
    pairs = torch.einsum("atd,dh,eh,bje->abtj", x, W_Q, W_K, x)
    e = (pairs.sum((0, 1)) / W_K.shape[1] ** 0.5).exp().tril()
    return e / e.sum(-1, keepdim=True)


def pattern_by_rows(parts, W_Q, W_K):
    q, k = sum(p @ W_Q for p in parts), sum(p @ W_K for p in parts)
    out = torch.zeros(len(q), len(q), dtype=q.dtype)
    for t in range(len(q)):
        out[t, : t + 1] = torch.softmax(q[t] @ k[: t + 1].T / q.shape[1] ** 0.5, 0)
    return out


def pattern_undivided(parts, W_Q, W_K):
    return pattern_by_sum(parts, W_Q * W_Q.shape[-1] ** 0.5, W_K)


def pattern_by_d_model(parts, W_Q, W_K):
    return pattern_by_sum(parts, W_Q * (W_Q.shape[1] / W_Q.shape[0]) ** 0.5, W_K)


def pattern_own_pairs_only(parts, W_Q, W_K):
    scores = sum(p @ W_Q @ (p @ W_K).T for p in parts) / W_Q.shape[1] ** 0.5
    hidden = torch.ones_like(scores).triu(1) > 0
    return scores.masked_fill(hidden, -torch.inf).softmax(-1)


def pattern_sees_the_future(parts, W_Q, W_K):
    scores = sum(a @ W_Q @ (b @ W_K).T for a in parts for b in parts)
    return (scores / W_Q.shape[1] ** 0.5).softmax(-1)


def pattern_masked_with_zero(parts, W_Q, W_K):
    scores = sum(a @ W_Q @ (b @ W_K).T for a in parts for b in parts)
    return (scores / W_Q.shape[1] ** 0.5).tril().softmax(-1)


def pattern_softmax_over_queries(parts, W_Q, W_K):
    scores = sum(a @ W_Q @ (b @ W_K).T for a in parts for b in parts) / W_Q.shape[1] ** 0.5
    hidden = torch.ones_like(scores).triu(1) > 0
    return scores.masked_fill(hidden, -torch.inf).softmax(0)


def pattern_mean_of_softmaxes(parts, W_Q, W_K):
    return sum(pattern_by_sum([p], W_Q, W_K) for p in parts) / len(parts)


def pattern_pairs_once(parts, W_Q, W_K):
    n = len(parts)
    scores = sum(parts[i] @ W_Q @ (parts[j] @ W_K).T for i in range(n) for j in range(i, n))
    hidden = torch.ones_like(scores).triu(1) > 0
    return (scores / W_Q.shape[1] ** 0.5).masked_fill(hidden, -torch.inf).softmax(-1)


RIGHT = {
    "03.one_big_matrix": [big_by_blocks, big_by_columns_of_identity, big_by_einsum],
    "03.count_paths": [count_by_choice, count_by_recursion, count_by_polynomial],
    "03.virtual_head": [virtual_in_one_product, virtual_by_einsum, virtual_as_one_vector],
    "03.term_and_cut": [both_by_patterns, both_by_the_write, both_by_two_runs],
    "03.pattern_from_parts": [pattern_by_sum, pattern_by_einsum, pattern_by_rows],
}
WRONG = {
    "03.one_big_matrix": [
        big_without_transpose,
        big_other_way_round,
        big_always_by_rows,
        big_pattern_transposed,
        big_sum_of_axes,
    ],
    "03.count_paths": [
        count_heads_only,
        count_all_heads_alike,
        count_with_orderings,
        count_up_to_order,
        count_full_product,
    ],
    "03.virtual_head": [
        virtual_patterns_swapped,
        virtual_maps_swapped,
        virtual_sum_of_heads,
        virtual_with_the_stream,
        virtual_last_pattern_only,
        virtual_patterns_multiplied,
    ],
    "03.term_and_cut": [
        both_cut_in_the_keys,
        both_change_from_the_term,
        both_with_one_sign,
        both_with_swapped_patterns,
        both_by_ablation,
        both_without_the_first_head,
    ],
    "03.pattern_from_parts": [
        pattern_undivided,
        pattern_by_d_model,
        pattern_own_pairs_only,
        pattern_sees_the_future,
        pattern_masked_with_zero,
        pattern_softmax_over_queries,
        pattern_mean_of_softmaxes,
        pattern_pairs_once,
    ],
}
