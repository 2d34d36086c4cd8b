"""Answers to the exercises of chapter 02: right ones, and wrong ones that a tired person writes."""

import numpy as np
import torch

# ---- 02.qk_score --------------------------------------------------------------------------------


def score_by_matrix(query, key, W_E, W_Q, W_K):
    return W_E[query] @ (W_Q @ W_K.T) @ W_E[key] / W_Q.shape[1] ** 0.5


def score_by_einsum(query, key, W_E, W_Q, W_K):
    total = torch.einsum("d,dh,eh,e->", W_E[query], W_Q, W_K, W_E[key])
    return (total / torch.tensor(float(W_K.shape[-1])).sqrt()).item()


def score_by_table(query, key, W_E, W_Q, W_K):
    table = (W_E @ W_Q) @ (W_E @ W_K).T
    return table[query, key] * W_Q.shape[-1] ** -0.5


def score_unscaled(query, key, W_E, W_Q, W_K):
    return W_E[query] @ W_Q @ (W_E[key] @ W_K)


def score_swapped(query, key, W_E, W_Q, W_K):
    return W_E[key] @ W_Q @ (W_E[query] @ W_K) / W_Q.shape[-1] ** 0.5


def score_root_of_d_model(query, key, W_E, W_Q, W_K):
    return W_E[query] @ W_Q @ (W_E[key] @ W_K) / W_Q.shape[0] ** 0.5


def score_over_d_head(query, key, W_E, W_Q, W_K):
    return W_E[query] @ W_Q @ (W_E[key] @ W_K) / W_Q.shape[-1]


def score_of_queries_only(query, key, W_E, W_Q, W_K):
    return W_E[query] @ W_Q @ (W_E[key] @ W_Q) / W_Q.shape[-1] ** 0.5


def score_as_cosine(query, key, W_E, W_Q, W_K):
    q, k = W_E[query] @ W_Q, W_E[key] @ W_K
    return q @ k / (q.norm() * k.norm() + 1e-9)


# ---- 02.source_writes ---------------------------------------------------------------------------


def writes_by_outer(pattern, x, W_V, W_O, source):
    return torch.outer(pattern[:, source], x[source] @ W_V @ W_O)


def writes_by_silence(pattern, x, W_V, W_O, source):
    alone = torch.zeros_like(x)
    alone[source] = x[source]
    return pattern @ (alone @ (W_V @ W_O))


def writes_by_loop(pattern, x, W_V, W_O, source):
    rows = [pattern[i, source] * (x[source] @ W_V) for i in range(len(x))]
    return torch.stack(rows) @ W_O


def writes_of_a_row(pattern, x, W_V, W_O, source):
    return pattern[source][:, None] * (x[source] @ W_V @ W_O)


def writes_before_weights(pattern, x, W_V, W_O, source):
    return (x[source] @ W_V @ W_O).expand(len(x), -1)


def writes_of_everyone(pattern, x, W_V, W_O, source):
    return pattern @ x @ W_V @ W_O


def writes_shifted(pattern, x, W_V, W_O, source):
    return pattern[:, source, None] * (x[source - 1] @ W_V @ W_O)


def writes_each_its_own(pattern, x, W_V, W_O, source):
    return pattern[:, source, None] * (x @ W_V @ W_O)


def writes_normalised(pattern, x, W_V, W_O, source):
    weights = pattern[:, source] / pattern[:, source].sum()
    return weights[:, None] * (x[source] @ W_V @ W_O)


# ---- 02.copying_score ---------------------------------------------------------------------------


def copying_by_small(W_E, W_V, W_O, W_U):
    small = W_O @ (W_U - W_U.mean(-1, keepdim=True)) @ W_E @ W_V if len(W_E) < 1000 else None
    if small is None:
        small = (W_O @ (W_U - W_U.mean(-1, keepdim=True))) @ (W_E @ W_V)
    values = torch.linalg.eigvals(small)
    return float(values.sum().real / values.abs().sum())


def copying_by_trace(W_E, W_V, W_O, W_U):
    A, B = W_E @ W_V, W_O @ W_U
    small = (B - B.mean(dim=1, keepdim=True)) @ A
    return (small.trace() / torch.linalg.eigvals(small).abs().sum()).item()


def copying_in_numpy(W_E, W_V, W_O, W_U):
    A, B = (W_E @ W_V).numpy(), (W_O @ W_U).numpy()
    A = A - A.mean(
        0
    )  # B (A - mean) has the eigenvalues of (B - mean) A: both cut out the same part
    values = np.linalg.eigvals(B @ A)
    return values.real.sum() / np.abs(values).sum()


def copying_uncentred(W_E, W_V, W_O, W_U):
    values = torch.linalg.eigvals((W_O @ W_U) @ (W_E @ W_V))
    return (values.real.sum() / values.abs().sum()).item()


def copying_centred_over_the_stream(W_E, W_V, W_O, W_U):
    values = torch.linalg.eigvals((W_O @ (W_U - W_U.mean(0, keepdim=True))) @ (W_E @ W_V))
    return (values.real.sum() / values.abs().sum()).item()


def copying_by_the_table(W_E, W_V, W_O, W_U):
    values = torch.linalg.eigvals(W_E @ W_V @ W_O @ (W_U - W_U.mean(1, keepdim=True)))
    return (values.real.sum() / values.abs().sum()).item()


def copying_by_real_parts(W_E, W_V, W_O, W_U):
    values = torch.linalg.eigvals((W_O @ (W_U - W_U.mean(1, keepdim=True))) @ (W_E @ W_V))
    return (values.real.sum() / values.real.abs().sum()).item()


def copying_by_sizes(W_E, W_V, W_O, W_U):
    values = torch.linalg.eigvals((W_O @ (W_U - W_U.mean(1, keepdim=True))) @ (W_E @ W_V))
    return (values.abs().sum() / values.abs().sum()).item()


def copying_by_singular_values(W_E, W_V, W_O, W_U):
    small = (W_O @ (W_U - W_U.mean(1, keepdim=True))) @ (W_E @ W_V)
    return (small.trace() / torch.linalg.svdvals(small).sum()).item()


def copying_by_count(W_E, W_V, W_O, W_U):
    values = torch.linalg.eigvals((W_O @ (W_U - W_U.mean(1, keepdim=True))) @ (W_E @ W_V))
    return values.real.sign().mean().item()


# ---- 02.fooling_head ----------------------------------------------------------------------------


def fool_last_token(n):
    table = np.eye(n)
    table[-1, -1] = -100.0 * n
    return np.eye(n), table


def fool_in_the_reading(n):
    read = torch.eye(n)
    read[3, 3] = -1000.0
    return read, torch.eye(n)


def fool_with_noise(n):
    table = 3 * torch.eye(n) + 0.01 * torch.ones(n, n)
    table[1, 1] = -50.0 * n
    return table, torch.eye(n)


def fool_identity(n):
    return torch.eye(n), torch.eye(n)


def fool_opposite(n):
    return torch.eye(n), -torch.eye(n)


def fool_too_quiet(n):
    table = torch.eye(n)
    table[0, 0] = -1.0
    return torch.eye(n), table


def fool_loud_copy(n):
    table = torch.eye(n)
    table[0, 0] = 100.0 * n
    return torch.eye(n), table


def fool_by_column(n):
    table = torch.eye(n)
    table[:, 0] = 100.0  # every row now has token 0 on top
    return torch.eye(n), table


def fool_half(n):
    table = torch.eye(n)
    table[: n // 2] *= -5
    return torch.eye(n), table


RIGHT = {
    "02.qk_score": [score_by_matrix, score_by_einsum, score_by_table],
    "02.source_writes": [writes_by_outer, writes_by_silence, writes_by_loop],
    "02.copying_score": [copying_by_small, copying_by_trace, copying_in_numpy],
    "02.fooling_head": [fool_last_token, fool_in_the_reading, fool_with_noise],
}
WRONG = {
    "02.qk_score": [
        score_unscaled,
        score_swapped,
        score_root_of_d_model,
        score_over_d_head,
        score_of_queries_only,
        score_as_cosine,
    ],
    "02.source_writes": [
        writes_of_a_row,
        writes_before_weights,
        writes_of_everyone,
        writes_shifted,
        writes_each_its_own,
        writes_normalised,
    ],
    "02.copying_score": [
        copying_uncentred,
        copying_centred_over_the_stream,
        copying_by_the_table,
        copying_by_real_parts,
        copying_by_sizes,
        copying_by_singular_values,
        copying_by_count,
    ],
    "02.fooling_head": [
        fool_identity,
        fool_opposite,
        fool_too_quiet,
        fool_loud_copy,
        fool_by_column,
        fool_half,
    ],
}
