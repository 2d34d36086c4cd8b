"""Answers to the exercises of chapter 05: right ones, and wrong ones that a tired person writes."""

import numpy as np
import torch

# ---- 05.covariance_shares -----------------------------------------------------------------------


def shares_by_loop(parts):
    total = torch.zeros(len(parts), dtype=parts.dtype)
    for i in range(parts.shape[1]):
        rows = parts[:, i, : i + 1]
        whole = rows.sum(0)
        total += ((rows - rows.mean(1, keepdim=True)) * (whole - whole.mean())).mean(1)
    return total / total.sum()


def shares_in_numpy(parts):
    cov = 0
    for i in range(1, parts.shape[1]):
        rows = parts[:, i, : i + 1].numpy()
        cov = cov + np.cov(np.vstack([rows, rows.sum(0)]), bias=True)[:-1, -1]
    return cov / cov.sum()


def shares_by_moments(parts):
    total = 0
    for i in range(parts.shape[1]):
        x = parts[:, i, : i + 1]
        s = x.sum(0)
        total = total + (x * s).mean(1) - x.mean(1) * s.mean()
    return total / total.sum()


def shares_uncentred(parts):
    parts = parts.tril()
    together = (parts * parts.sum(0)).sum((-2, -1))
    return together / together.sum()


def shares_over_all_keys(parts):
    centred = parts - parts.mean(-1, keepdim=True)
    together = (centred * centred.sum(0)).sum((-2, -1))
    return together / together.sum()


def shares_of_own_variance(parts):
    seen = torch.arange(1, parts.shape[-1] + 1).to(parts)[:, None]
    centred = (parts.tril() - parts.tril().sum(-1, keepdim=True) / seen).tril()
    own = (centred.square() / seen).sum((-2, -1))
    return own / own.sum()


def shares_wrong_mean(parts):
    parts = parts.tril()
    centred = (parts - parts.mean(-1, keepdim=True)).tril()
    together = (centred * centred.sum(0)).sum((-2, -1))
    return together / together.sum()


def shares_over_queries(parts):
    parts = parts.tril()
    centred = parts - parts.mean(-2, keepdim=True)
    together = (centred * centred.sum(0)).sum((-2, -1))
    return together / together.sum()


def shares_long_rows_count_more(parts):
    seen = torch.arange(1, parts.shape[-1] + 1).to(parts)[:, None]
    centred = (parts.tril() - parts.tril().sum(-1, keepdim=True) / seen).tril()
    together = (centred * centred.sum(0)).sum((-2, -1))
    return together / together.sum()


# ---- 05.k_score ---------------------------------------------------------------------------------


def k_by_triangles(W_V, W_O, W_Q, W_K):
    T, S = torch.linalg.qr(W_V)[1], torch.linalg.qr(W_Q)[1]
    P, U = torch.linalg.qr(W_O.mT)[1], torch.linalg.qr(W_K)[1]
    size = (T @ P.mT).norm() * (U @ S.mT).norm()
    return ((T @ (W_O @ W_K) @ S.mT).norm() / size).item()


def k_by_traces(W_V, W_O, W_Q, W_K):
    middle = W_O @ W_K
    top = torch.trace(W_V.mT @ W_V @ middle @ (W_Q.mT @ W_Q) @ middle.mT)
    one = torch.trace(W_V.mT @ W_V @ W_O @ W_O.mT)
    return float((top / (one * torch.trace(W_Q.mT @ W_Q @ W_K.mT @ W_K))).sqrt())


def k_in_numpy(W_V, W_O, W_Q, W_K):
    M, N = (W_V @ W_O).numpy(), (W_K @ W_Q.mT).numpy()
    return np.linalg.norm(M @ N) / np.linalg.norm(M) / np.linalg.norm(N)


def k_without_transpose(W_V, W_O, W_Q, W_K):
    M, N = W_V @ W_O, W_Q @ W_K.mT
    return ((M @ N).norm() / (M.norm() * N.norm())).item()


def k_orders_swapped(W_V, W_O, W_Q, W_K):
    M, N = W_V @ W_O, W_K @ W_Q.mT
    return ((N @ M).norm() / (M.norm() * N.norm())).item()


def k_rotated(W_V, W_O, W_Q, W_K):
    top = ((W_Q.mT @ W_V) @ (W_O @ W_K)).norm()
    return (top / ((W_V @ W_O).norm() * (W_Q @ W_K.mT).norm())).item()


def k_unnormalised(W_V, W_O, W_Q, W_K):
    return (W_V @ W_O @ W_K @ W_Q.mT).norm().item()


def k_as_cosine(W_V, W_O, W_Q, W_K):
    M, N = W_V @ W_O, W_K @ W_Q.mT
    return ((M * N).sum() / (M.norm() * N.norm())).item()


def k_spectral(W_V, W_O, W_Q, W_K):
    M, N = W_V @ W_O, W_K @ W_Q.mT
    size = torch.linalg.matrix_norm
    return (size(M @ N, 2) / (size(M, 2) * size(N, 2))).item()


# ---- 05.blind_pair ------------------------------------------------------------------------------


def four(d):
    return [torch.zeros(d, d, dtype=torch.float64) for _ in range(4)]


def blind_by_two_directions(d):
    V, O, Q, K = four(d)
    V[0, :2], O[0, 5], O[1, 6] = 1.0, 1.0, 1.0
    Q[2, 0] = Q[3, 1] = K[5, 0] = K[6, 1] = 3.0
    return V, O, Q, K


def blind_that_reads_the_constant(d):
    V, O, Q, K = four(d)
    V[0, 7], O[7, 0] = 2.0, 2.0  # writes the constant back onto itself
    K[0, 1], Q[:, 1] = 1.0, 0.1
    return V, O, Q, K


def blind_in_numpy(d):
    V, O, Q, K = (np.zeros((d, d)) for _ in range(4))
    V[0, 0] = O[0, 9] = K[9, 0] = 1.0
    Q[0, 0] = Q[1, 0] = 1.0
    return V, O, Q, K


def blind_of_a_token(d):
    V, O, Q, K = four(d)
    V[1, 0] = O[0, 9] = K[9, 0] = Q[2, 0] = 1.0
    return V, O, Q, K


def blind_through_the_query(d):
    V, O, Q, K = four(d)
    V[0, 0] = O[0, 9] = Q[9, 0] = K[2, 0] = 1.0
    return V, O, Q, K


def blind_by_silence(d):
    V, O, Q, K = four(d)
    V[0, 0] = O[0, 9] = K[9, 0] = 1.0  # no query
    return V, O, Q, K


def blind_apart(d):
    V, O, Q, K = four(d)
    V[0, 0] = O[0, 9] = K[8, 0] = Q[2, 0] = 1.0
    return V, O, Q, K


def blind_quietly(d):
    V, O, Q, K = four(d)
    V[1, 0] = O[0, 9] = K[9, 0] = Q[2, 0] = 1e-2  # small is not blind
    return V, O, Q, K


def blind_identity(d):
    return tuple(torch.eye(d, dtype=torch.float64) for _ in range(4))


# ---- 05.quiet_pair ------------------------------------------------------------------------------


def quiet_other_coordinates(d):
    V, O, Q, K = four(d)
    V[5, 0], O[0, 6], V[7, 1], O[1, 8] = 1.0, 100.0, 100.0, 100.0
    Q[0, 3], K[6, 3] = 3.0, 3.0
    return V, O, Q, K


def quiet_loud_idle_reader(d):
    V, O, Q, K = four(d)
    V[1, 0], O[0, 2], K[2, 0] = 1.0, 50.0, 1.0
    Q[0, 0] = 100.0 * d**0.5
    V[3, 1] = O[1, 4] = 60.0
    return V, O, Q, K


def quiet_many_unread_writes(d):
    V, O, Q, K = four(d)
    V[1, 0], O[0, 2] = 1.0, 30.0
    for i in range(8):
        V[10 + i, 1 + i], O[1 + i, 20 + i] = 1.0, 500.0
    Q[0, 0], K[2, 0] = 10.0, 10.0
    return V, O, Q, K


def quiet_nothing(d):
    return tuple(four(d))


def quiet_too_quiet(d):
    V, O, Q, K = quiet_other_coordinates(d)
    return V, O, Q / 1e5, K


def quiet_tuned(d):
    V, O, Q, K = four(d)
    V[1, 0], O[0, 2] = 1.0, 100.0
    Q[0, 0], K[2, 0] = 10.0, 10.0  # forgot the large write: the score is one
    return V, O, Q, K


def quiet_constant(d):
    V, O, Q, K = quiet_other_coordinates(d)
    V[5, 0], V[0, 0] = 0.0, 1.0  # what is read is equal at all keys
    return V, O, Q, K


def quiet_query_side(d):
    V, O, Q, K = quiet_other_coordinates(d)
    return V, O, K, Q


def quiet_random(d):
    g = torch.Generator().manual_seed(0)
    return tuple(torch.randn(d, d, generator=g).double() / d for _ in range(4))


def quiet_missed(d):
    V, O, Q, K = quiet_other_coordinates(d)
    return V, O, Q, K.roll(1, 0)


RIGHT = {
    "05.covariance_shares": [shares_by_loop, shares_in_numpy, shares_by_moments],
    "05.k_score": [k_by_triangles, k_by_traces, k_in_numpy],
    "05.blind_pair": [blind_by_two_directions, blind_that_reads_the_constant, blind_in_numpy],
    "05.quiet_pair": [quiet_other_coordinates, quiet_loud_idle_reader, quiet_many_unread_writes],
}
WRONG = {
    "05.covariance_shares": [
        shares_uncentred,
        shares_over_all_keys,
        shares_of_own_variance,
        shares_wrong_mean,
        shares_over_queries,
        shares_long_rows_count_more,
    ],
    "05.k_score": [
        k_without_transpose,
        k_orders_swapped,
        k_rotated,
        k_unnormalised,
        k_as_cosine,
        k_spectral,
    ],
    "05.blind_pair": [
        blind_of_a_token,
        blind_through_the_query,
        blind_by_silence,
        blind_apart,
        blind_quietly,
        blind_identity,
    ],
    "05.quiet_pair": [
        quiet_nothing,
        quiet_too_quiet,
        quiet_tuned,
        quiet_constant,
        quiet_query_side,
        quiet_random,
        quiet_missed,
    ],
}
