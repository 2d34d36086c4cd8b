"""Right and typical wrong answers to the exercises of chapter 01."""

import numpy as np
import torch

# ---- centred_contribution -----------------------------------------------------------------------


def centred_by_logits(write, W_U, token):
    logits = write @ W_U
    return logits[token] - logits.mean()


def centred_by_column(write, W_U, token):
    return write @ (W_U[:, token] - W_U.mean(1))


def centred_by_matrix(write, W_U, token):
    centred = W_U - W_U.mean(dim=-1, keepdim=True)
    return (write @ centred)[token].item()


def raw_logit(write, W_U, token):
    return (write @ W_U)[token]


def mean_over_the_stream(write, W_U, token):
    return write @ (W_U[:, token] - W_U[:, token].mean())


def row_instead_of_column(write, W_U, token):
    return write @ W_U[:, token] - (write @ W_U.T[: len(write)].T[: len(write)].sum(1))


def divided_by_width(write, W_U, token):
    return write @ W_U[:, token] - (write @ W_U).sum() / len(write)


def centred_in_place(write, W_U, token):
    W_U -= W_U.mean(1, keepdim=True)
    return write @ W_U[:, token] * 0.5 + write @ W_U[:, token] * 0.5 + 0 * W_U.sum()


def log_probability(write, W_U, token):
    return (write @ W_U).log_softmax(-1)[token]


# ---- change_stream ------------------------------------------------------------------------------

WRITERS = ("W_E", "W_pos", "W_O", "W_out", "b_out")


def stream_by_names(weights, G):
    inverse = torch.linalg.inv(G)
    new = {n: weights[n] @ G for n in WRITERS}
    new |= {n: inverse @ weights[n] for n in ("W_Q", "W_K", "W_V", "W_in", "W_U")}
    return {n: new.get(n, w) for n, w in weights.items()}


def stream_by_solve(weights, G):
    out = {}
    for n, w in weights.items():
        if n == "b_in":
            out[n] = w.clone()
        elif n in WRITERS:
            out[n] = w @ G
        else:
            out[n] = torch.linalg.solve(G, w)
    return out


def stream_by_one_expression(weights, G):
    return {
        n: w if n == "b_in" else w @ G if n in WRITERS else G.inverse() @ w
        for n, w in weights.items()
    }


def stream_transpose_for_inverse(weights, G):
    return {n: w if n == "b_in" else w @ G if n in WRITERS else G.T @ w for n, w in weights.items()}


def stream_positions_forgotten(weights, G):
    return stream_by_names(weights, G) | {"W_pos": weights["W_pos"]}


def stream_output_bias_forgotten(weights, G):
    return stream_by_names(weights, G) | {"b_out": weights["b_out"]}


def stream_sides_swapped(weights, G):
    inverse = torch.linalg.inv(G)
    return {
        n: w if n == "b_in" else w @ inverse if n in WRITERS else G @ w for n, w in weights.items()
    }


def stream_unembedding_forgotten(weights, G):
    return stream_by_names(weights, G) | {"W_U": weights["W_U"]}


def stream_hidden_bias_lost(weights, G):
    new = stream_by_names(weights, G)
    del new["b_in"]
    return new


def stream_in_place(weights, G):
    new = stream_by_names(weights, G)
    weights["W_E"].copy_(new["W_E"])
    return new


# ---- mean_kl ------------------------------------------------------------------------------------


def kl_by_where(counts, log_q):
    rows = counts.sum(1, keepdims=True)
    p = counts / np.maximum(rows, 1)
    ratio = np.log(np.where(p > 0, p, 1)) - np.where(p > 0, log_q, 0)
    return (rows * p * ratio).sum() / counts.sum()


def kl_by_loop(counts, log_q):
    total = 0.0
    for row, log_row in zip(counts, log_q):
        for n, lq in zip(row, log_row):
            if n:
                total += n * (np.log(n / row.sum()) - lq)
    return total / counts.sum()


def kl_by_difference(counts, log_q):
    a, b = np.nonzero(counts)
    n = counts[a, b]
    joint = n / n.sum()
    return float(joint @ np.log(n / counts.sum(1)[a]) - joint @ log_q[a, b])


def kl_rows_alike(counts, log_q):
    kept = counts[counts.sum(1) > 0]
    p = kept / kept.sum(1, keepdims=True)
    ratio = np.log(np.where(p > 0, p, 1)) - log_q[counts.sum(1) > 0]
    return (p * ratio).sum(1).mean()


def kl_reversed(counts, log_q):
    rows = counts.sum(1, keepdims=True)
    p = (counts + 1e-9) / (rows + 1e-9)
    return (rows / counts.sum() * np.exp(log_q) * (log_q - np.log(p))).sum()


def kl_is_the_loss(counts, log_q):
    return -(counts * log_q).sum() / counts.sum()


def kl_zero_is_nan(counts, log_q):
    with np.errstate(all="ignore"):
        p = counts / counts.sum(1, keepdims=True)
        return (counts * (np.log(p) - log_q)).sum() / counts.sum()


def kl_joint_for_conditional(counts, log_q):
    p = counts / counts.sum()
    return (p * (np.log(np.where(p > 0, p, 1)) - np.where(p > 0, log_q, 0))).sum()


def kl_in_bits(counts, log_q):
    return kl_by_where(counts, log_q) / np.log(2)


# ---- which_numbers_move -------------------------------------------------------------------------

TRUE = {
    "rotated stream": {"excess kurtosis"},
    "stretched stream": {"virtual-weight score", "size of W_V", "excess kurtosis"},
    "other head coordinates": {"size of W_V"},
    "shifted unembedding": {"raw contribution"},
}


def move_by_table(change):
    return TRUE[change]


def move_by_cases(change):
    match change:
        case "shifted unembedding":
            return {"raw contribution"}
        case "other head coordinates":
            return {"size of W_V"}
        case "rotated stream":
            return {"excess kurtosis"}
    return {"excess kurtosis", "size of W_V", "virtual-weight score"}


def move_by_rules(change):
    moved = set()
    if change.endswith("stream"):
        moved.add("excess kurtosis")
    if change == "stretched stream":
        moved.add("virtual-weight score")
    if change in ("stretched stream", "other head coordinates"):
        moved.add("size of W_V")
    if "unembedding" in change:
        moved.add("raw contribution")
    return moved


def move_nothing(change):
    return set()


def move_score_survives(change):
    return TRUE[change] - {"virtual-weight score"}


def move_rotation_is_invisible(change):
    return set() if change == "rotated stream" else TRUE[change]


def move_centred_too(change):
    extra = {"centred contribution"} if change == "shifted unembedding" else set()
    return TRUE[change] | extra


def move_loss_with_the_stretch(change):
    return TRUE[change] | ({"loss"} if change == "stretched stream" else set())


def move_head_score(change):
    extra = {"virtual-weight score"} if change == "other head coordinates" else set()
    return TRUE[change] | extra


def move_as_list(change):
    return sorted(TRUE[change])


RIGHT = {
    "01.centred_contribution": [centred_by_logits, centred_by_column, centred_by_matrix],
    "01.change_stream": [stream_by_names, stream_by_solve, stream_by_one_expression],
    "01.mean_kl": [kl_by_where, kl_by_loop, kl_by_difference],
    "01.which_numbers_move": [move_by_table, move_by_cases, move_by_rules],
}
WRONG = {
    "01.centred_contribution": [
        raw_logit,
        mean_over_the_stream,
        row_instead_of_column,
        divided_by_width,
        centred_in_place,
        log_probability,
    ],
    "01.change_stream": [
        stream_transpose_for_inverse,
        stream_positions_forgotten,
        stream_output_bias_forgotten,
        stream_sides_swapped,
        stream_unembedding_forgotten,
        stream_hidden_bias_lost,
        stream_in_place,
    ],
    "01.mean_kl": [
        kl_rows_alike,
        kl_reversed,
        kl_is_the_loss,
        kl_zero_is_nan,
        kl_joint_for_conditional,
        kl_in_bits,
    ],
    "01.which_numbers_move": [
        move_nothing,
        move_score_survives,
        move_rotation_is_invisible,
        move_centred_too,
        move_loss_with_the_stretch,
        move_head_score,
        move_as_list,
    ],
}
