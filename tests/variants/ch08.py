"""Answers to the exercises of chapter 08: right ones, and wrong ones that a tired person writes."""

import numpy as np
import torch

# ---- 08.toy_loss --------------------------------------------------------------------------------


def loss_by_loop(W, b, x, importance):
    total = 0.0
    for column in x.T:
        guess = torch.relu(W.T @ (W @ column) + b)
        total += float((importance * (column - guess) ** 2).sum())
    return total / x.shape[1]


def loss_in_numpy(W, b, x, importance):
    W, b, x, importance = (t.numpy() for t in (W, b, x, importance))
    guess = np.maximum(0, W.T @ W @ x + b[:, None])
    return float(importance @ ((x - guess) ** 2).mean(1))


def loss_in_rows(W, b, x, importance):
    rows = x.T
    error = rows - ((rows @ W.T) @ W + b).clamp(min=0)
    return torch.einsum("bi,i->", error.square(), importance).item() / len(rows)


def loss_without_relu(W, b, x, importance):
    guess = W.T @ (W @ x) + b[:, None]
    return (importance[:, None] * (x - guess) ** 2).sum(0).mean().item()


def loss_mean_over_features(W, b, x, importance):
    guess = (W.T @ (W @ x) + b[:, None]).relu()
    return (importance[:, None] * (x - guess) ** 2).mean().item()


def loss_sum_over_inputs(W, b, x, importance):
    guess = (W.T @ (W @ x) + b[:, None]).relu()
    return (importance[:, None] * (x - guess) ** 2).sum().item()


def loss_importance_squared(W, b, x, importance):
    guess = (W.T @ (W @ x) + b[:, None]).relu()
    return ((importance[:, None] * (x - guess)) ** 2).sum(0).mean().item()


def loss_bias_after_relu(W, b, x, importance):
    guess = (W.T @ (W @ x)).relu() + b[:, None]
    return (importance[:, None] * (x - guess) ** 2).sum(0).mean().item()


def loss_relu_on_hidden(W, b, x, importance):
    guess = (W.T @ (W @ x).relu() + b[:, None]).relu()
    return (importance[:, None] * (x - guess) ** 2).sum(0).mean().item()


def loss_absolute(W, b, x, importance):
    guess = (W.T @ (W @ x) + b[:, None]).relu()
    return (importance[:, None] * (x - guess).abs()).sum(0).mean().item()


def loss_mean_importance(W, b, x, importance):
    guess = (W.T @ (W @ x) + b[:, None]).relu()
    return importance.mean().item() * ((x - guess) ** 2).sum(0).mean().item()


def loss_no_importance(W, b, x, importance):
    guess = (W.T @ (W @ x) + b[:, None]).relu()
    return ((x - guess) ** 2).sum(0).mean().item()


# ---- 08.two_plans -------------------------------------------------------------------------------


def plans_in_words(p, r):
    mean, square = p / 2, p / 3
    meet = p * p
    return r * (square - mean**2), meet * (1 / 6) * (1 + r)


def plans_by_cases(p, r):
    off, on = (1 - p) * (p / 2) ** 2, p * (1 / 12 + (1 / 2 - p / 2) ** 2)
    return r * (off + on), p**2 / 6 + r * p**2 / 6


def plans_from_border(p, r):
    pair = (1 + r) * p * p / 6
    edge = 4 * r / (2 + 5 * r)
    return pair + r * p / 3 * (1 - p / edge), pair


def plans_in_float32(p, r):
    p, r = torch.tensor(p), torch.tensor(r)
    return r * (p / 3 - p**2 / 4), (1 + r) * p**2 / 6


def plans_without_mean(p, r):
    return r * p / 3, (1 + r) * p**2 / 6


def plans_mean_of_on(p, r):
    return r * (p / 3 - p / 4), (1 + r) * p**2 / 6


def plans_min_mean(p, r):
    return r * (p / 3 - p**2 / 4), (1 + r) * p**2 / 9


def plans_meet_twice(p, r):
    return r * (p / 3 - p**2 / 4), (1 + r) * p**2 / 3


def plans_swapped(p, r):
    return (1 + r) * p**2 / 6, r * (p / 3 - p**2 / 4)


def plans_pair_once(p, r):
    return r * (p / 3 - p**2 / 4), p**2 / 6


def plans_meet_p(p, r):
    return r * (p / 3 - p**2 / 4), (1 + r) * p / 6


# ---- 08.feature_dimensionality ------------------------------------------------------------------


def share_by_loop(W):
    W = W.double()
    out = []
    for i in range(W.shape[1]):
        size = W[:, i].norm()
        if size == 0:
            out.append(0.0)
            continue
        out.append((size**2 / ((W[:, i] / size) @ W).square().sum()).item())
    return torch.tensor(out)


def share_in_numpy(W):
    W = W.numpy().astype(float)
    size = np.linalg.norm(W, axis=0)
    unit = np.divide(W, size, out=np.zeros_like(W), where=size > 0)
    written = ((unit.T @ W) ** 2).sum(1)
    return np.divide(size**2, written, out=np.zeros_like(size), where=written > 0)


def share_by_quadratic_form(W):
    M = W @ W.T
    size = (W * W).sum(0)
    return torch.nan_to_num(size**2 / (W * (M @ W)).sum(0))


def share_as_a_list(W):
    return share_by_loop(W).tolist()


def share_leverage(W):
    return (torch.linalg.pinv(W) * W.T).sum(1)


def share_mixed(W):
    unit = torch.nan_to_num(W / W.norm(dim=0))
    return torch.nan_to_num(W.square().sum(0) / (unit.T @ unit).square().sum(1))


def share_both_unit(W):
    unit = torch.nan_to_num(W / W.norm(dim=0))
    return torch.nan_to_num(1 / (unit.T @ unit).square().sum(1), posinf=0.0)


def share_without_self(W):
    unit = torch.nan_to_num(W / W.norm(dim=0))
    other = (unit.T @ W).square()
    return torch.nan_to_num(W.square().sum(0) / (other.sum(1) - other.diagonal()), posinf=1.0)


def share_not_squared(W):
    unit = torch.nan_to_num(W / W.norm(dim=0))
    return torch.nan_to_num(W.norm(dim=0) / (unit.T @ W).abs().sum(1))


def share_gives_nan(W):
    unit = W / W.norm(dim=0)
    return W.square().sum(0) / (unit.T @ W).square().sum(1)


def share_of_rows(W):
    unit = torch.nan_to_num(W.T / W.T.norm(dim=0))
    return torch.nan_to_num(W.square().sum(1) / (unit.T @ W.T).square().sum(1))


def share_no_unit(W):
    return torch.nan_to_num(W.square().sum(0) / (W.T @ W).square().sum(1))


# ---- 08.leverages -------------------------------------------------------------------------------


def lever_by_svd(W):
    _, s, V = torch.linalg.svd(W, full_matrices=False)
    return V[s > 1e-10 * s.max()].square().sum(0)


def lever_by_pinv(W):
    return (torch.linalg.pinv(W) @ W).diagonal()


def lever_by_lstsq(W):
    M, out = torch.linalg.pinv(W @ W.T, hermitian=True), []
    for i in range(W.shape[1]):
        out.append(float(W[:, i] @ M @ W[:, i]))
    return torch.tensor(out)


def lever_inverse(W):
    return ((torch.linalg.inv(W @ W.T) @ W) * W).sum(0)


def lever_ridge(W):
    M = W @ W.T + 1e-2 * torch.eye(len(W), dtype=W.dtype)
    return ((torch.linalg.inv(M) @ W) * W).sum(0)


def lever_no_inverse(W):
    return ((W @ W.T @ W) * W).sum(0)


def lever_share(W):
    size = W.square().sum(0)
    return size**2 / (W * (W @ W.T @ W)).sum(0)


def lever_of_gram(W):
    return (torch.linalg.pinv(W.T @ W) * (W.T @ W)).sum(0) ** 0.5


def lever_squared(W):
    M = torch.linalg.pinv(W @ W.T)
    return ((M @ M @ W) * W).sum(0)


def lever_sum(W):
    return (torch.linalg.pinv(W @ W.T) @ W).square().sum(0)


# ---- 08.two_codes -------------------------------------------------------------------------------


def codes_by_solving(W):
    m, n = W.shape
    c = torch.zeros(n, dtype=W.dtype)
    c[:m], c[m] = torch.linalg.solve(W[:, :m], W[:, m]), -1.0
    return c.clamp(min=0), (-c).clamp(min=0)


def codes_from_the_end(W):
    m, n = W.shape
    last = W[:, n - m - 1 :]
    values, vectors = torch.linalg.eigh(last.T @ last)
    c = torch.cat([torch.zeros(n - m - 1, dtype=W.dtype), vectors[:, 0]])
    return torch.where(c > 0, c, 0 * c), torch.where(c < 0, -c, 0 * c)


def codes_in_numpy(W):
    m, n = W.shape
    c = np.zeros(n)
    c[: m + 1] = np.linalg.svd(W[:, : m + 1].numpy())[2][-1]
    x, y = np.maximum(c, 0), np.maximum(-c, 0)
    return torch.from_numpy(3 * x), torch.from_numpy(3 * y)


def codes_as_lists(W):
    return tuple(c.tolist() for c in codes_by_solving(W))


def codes_all_numpy(W):
    x, y = (c.numpy() for c in codes_by_solving(W))
    return 1e-4 * x, 1e-4 * y


def codes_of_nothing(W):
    return torch.zeros(W.shape[1]), torch.zeros(W.shape[1])


def codes_same(W):
    x = torch.ones(W.shape[1], dtype=W.dtype)
    return x, x.clone()


def codes_first_vector(W):
    m, n = W.shape
    c = torch.zeros(n, dtype=W.dtype)
    c[: m + 1] = torch.linalg.svd(W[:, : m + 1])[2][0]
    return c.clamp(min=0), (-c).clamp(min=0)


def codes_column_of_v(W):
    m, n = W.shape
    c = torch.zeros(n, dtype=W.dtype)
    c[: m + 1] = torch.linalg.svd(W[:, : m + 1])[2][:, -1]
    return c.clamp(min=0), (-c).clamp(min=0)


def codes_negative(W):
    m, n = W.shape
    c = torch.zeros(n, dtype=W.dtype)
    c[: m + 1] = torch.linalg.svd(W[:, : m + 1])[2][-1]
    return c.clamp(min=0), c.clamp(max=0)


def codes_of_all_columns(W):
    c = torch.linalg.svd(W)[2][-1]
    return c.clamp(min=0), (-c).clamp(min=0)


def codes_signed(W):
    m, n = W.shape
    c = torch.zeros(n, dtype=W.dtype)
    c[: m + 1] = torch.linalg.svd(W[:, : m + 1])[2][-1]
    return c, torch.zeros_like(c)


def codes_short(W):
    c = torch.linalg.svd(W[:, : W.shape[0] + 1])[2][-1]
    return c.clamp(min=0), (-c).clamp(min=0)


RIGHT = {
    "08.toy_loss": [loss_by_loop, loss_in_numpy, loss_in_rows],
    "08.two_plans": [plans_in_words, plans_by_cases, plans_from_border, plans_in_float32],
    "08.feature_dimensionality": [
        share_by_loop,
        share_in_numpy,
        share_by_quadratic_form,
        share_as_a_list,
    ],
    "08.leverages": [lever_by_svd, lever_by_pinv, lever_by_lstsq],
    "08.two_codes": [
        codes_by_solving,
        codes_from_the_end,
        codes_in_numpy,
        codes_as_lists,
        codes_all_numpy,
    ],
}
WRONG = {
    "08.toy_loss": [
        loss_without_relu, loss_mean_over_features, loss_sum_over_inputs, loss_importance_squared,
        loss_bias_after_relu, loss_relu_on_hidden, loss_no_importance,
        loss_mean_importance, loss_absolute,
    ],
    "08.two_plans": [
        plans_without_mean, plans_mean_of_on, plans_min_mean, plans_meet_twice, plans_swapped,
        plans_pair_once, plans_meet_p,
    ],
    "08.feature_dimensionality": [
        share_mixed, share_both_unit, share_without_self, share_not_squared, share_gives_nan,
        share_of_rows, share_no_unit, share_leverage,
    ],
    "08.leverages": [
        lever_inverse, lever_ridge, lever_no_inverse, lever_share, lever_of_gram, lever_squared,
        lever_sum,
    ],
    "08.two_codes": [
        codes_same, codes_first_vector, codes_column_of_v, codes_negative, codes_of_all_columns,
        codes_signed, codes_short, codes_of_nothing,
    ],
}  # fmt: skip
