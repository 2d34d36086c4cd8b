"""Answers to the exercises of chapter 09: right ones, and wrong ones that a tired person writes."""

import numpy as np
import torch

# ---- 09.cheat -----------------------------------------------------------------------------------


def cheat_by_diagonals(W_enc, b_enc, W_dec, times):
    s = torch.eye(len(b_enc), dtype=W_enc.dtype) * times
    back = torch.linalg.inv(s)
    return W_enc @ back, b_enc @ back, s @ W_dec


def cheat_in_numpy(W_enc, b_enc, W_dec, times):
    W_enc, b_enc, W_dec = (w.numpy() for w in (W_enc, b_enc, W_dec))
    return tuple(torch.from_numpy(w) for w in (W_enc / times, b_enc / times, W_dec * times))


def cheat_latent_by_latent(W_enc, b_enc, W_dec, times):
    E, b, D = W_enc.clone(), b_enc.clone(), W_dec.clone()
    for j in range(len(b)):
        E[:, j], b[j], D[j] = E[:, j] / times, b[j] / times, D[j] * times
    return E, b, D


def cheat_without_bias(W_enc, b_enc, W_dec, times):
    return W_enc / times, b_enc, W_dec * times


def cheat_the_wrong_way(W_enc, b_enc, W_dec, times):
    return W_enc * times, b_enc * times, W_dec / times


def cheat_decoder_only(W_enc, b_enc, W_dec, times):
    return W_enc, b_enc, W_dec * times


def cheat_in_place(W_enc, b_enc, W_dec, times):
    W_enc /= times
    b_enc /= times
    W_dec *= times
    return W_enc, b_enc, W_dec


def cheat_by_a_root(W_enc, b_enc, W_dec, times):
    return W_enc / times**0.5, b_enc / times**0.5, W_dec * times**0.5


def cheat_by_threshold(W_enc, b_enc, W_dec, times):
    return W_enc, b_enc - times, W_dec


# ---- 09.honest_loss -----------------------------------------------------------------------------


def loss_after_normalising(x, W_enc, b_enc, W_dec, b_dec, penalty):
    size = W_dec.norm(dim=1)
    f = (x @ (W_enc * size) + b_enc * size).clamp(min=0)
    copy = f @ (W_dec / size[:, None]) + b_dec
    return float((((x - copy) ** 2).sum(1) + penalty * f.sum(1)).mean())


def loss_row_by_row(x, W_enc, b_enc, W_dec, b_dec, penalty):
    total = 0.0
    for row in x:
        f = (row @ W_enc + b_enc).relu()
        parts = f[:, None] * W_dec
        total += (row - b_dec - parts.sum(0)).square().sum().item()
        total += penalty * parts.norm(dim=1).sum().item()
    return total / len(x)


def loss_in_numpy(x, W_enc, b_enc, W_dec, b_dec, penalty):
    x, W_enc, b_enc, W_dec, b_dec = (np.asarray(w) for w in (x, W_enc, b_enc, W_dec, b_dec))
    f = np.maximum(x @ W_enc + b_enc, 0)
    price = f * np.sqrt((W_dec**2).sum(1))
    return ((x - f @ W_dec - b_dec) ** 2).sum(1).mean() + penalty * price.sum(1).mean()


def loss_naive(x, W_enc, b_enc, W_dec, b_dec, penalty):
    f = (x @ W_enc + b_enc).relu()
    error = (x - f @ W_dec - b_dec).square().sum(-1)
    return (error + penalty * f.sum(-1)).mean().item()


def loss_with_columns(x, W_enc, b_enc, W_dec, b_dec, penalty):
    f = (x @ W_enc + b_enc).relu()
    error = (x - f @ W_dec - b_dec).square().sum(-1)
    return (error + penalty * f.sum(-1) * W_dec.norm(dim=0).mean()).mean().item()


def loss_with_squared_length(x, W_enc, b_enc, W_dec, b_dec, penalty):
    f = (x @ W_enc + b_enc).relu()
    error = (x - f @ W_dec - b_dec).square().sum(-1)
    return (error + penalty * f @ W_dec.square().sum(1)).mean().item()


def loss_with_one_length(x, W_enc, b_enc, W_dec, b_dec, penalty):
    f = (x @ W_enc + b_enc).relu()
    error = (x - f @ W_dec - b_dec).square().sum(-1)
    return (error + penalty * f.sum(-1) * W_dec.norm() / len(W_dec) ** 0.5).mean().item()


def loss_summed(x, W_enc, b_enc, W_dec, b_dec, penalty):
    f = (x @ W_enc + b_enc).relu()
    error = (x - f @ W_dec - b_dec).square().sum(-1)
    return (error + penalty * f @ W_dec.norm(dim=1)).sum().item()


def loss_mean_of_entries(x, W_enc, b_enc, W_dec, b_dec, penalty):
    f = (x @ W_enc + b_enc).relu()
    error = (x - f @ W_dec - b_dec).square().mean(-1)
    return (error + penalty * f @ W_dec.norm(dim=1)).mean().item()


def loss_without_relu(x, W_enc, b_enc, W_dec, b_dec, penalty):
    f = x @ W_enc + b_enc
    error = (x - f @ W_dec - b_dec).square().sum(-1)
    return (error + penalty * f.abs() @ W_dec.norm(dim=1)).mean().item()


# ---- 09.edges_into ------------------------------------------------------------------------------


def edges_by_loop(read, pattern, W_V, W_O, x):
    out = []
    for j in range(len(x)):
        whole = sum(pattern[h, -1, j] * (x[j] @ W_V[h] @ W_O[h] @ read) for h in range(len(W_V)))
        out.append(whole + (x[j] @ read if j == len(x) - 1 else 0))
    return torch.stack(out)


def edges_by_moved_writes(read, pattern, W_V, W_O, x):
    moved = torch.einsum("hk,kd,hde,hef->kf", pattern[:, -1], x, W_V, W_O)
    moved[-1] += x[-1]
    return moved @ read


def edges_by_gradient(read, pattern, W_V, W_O, x):
    with torch.enable_grad():
        y = x.clone().requires_grad_()
        heads = sum(pattern[h, -1] @ y @ W_V[h] @ W_O[h] for h in range(len(W_V)))
        (slope,) = torch.autograd.grad((y[-1] + heads) @ read, y)
    return (slope * x).sum(-1)


def edges_without_direct(read, pattern, W_V, W_O, x):
    return torch.einsum("hk,kd,hde,hef,f->k", pattern[:, -1], x, W_V, W_O, read)


def edges_direct_for_all(read, pattern, W_V, W_O, x):
    return edges_without_direct(read, pattern, W_V, W_O, x) + x @ read


def edges_of_a_column(read, pattern, W_V, W_O, x):
    out = torch.einsum("hk,kd,hde,hef,f->k", pattern[:, :, -1], x, W_V, W_O, read)
    out[-1] += x[-1] @ read
    return out


def edges_mean_of_heads(read, pattern, W_V, W_O, x):
    out = edges_without_direct(read, pattern, W_V, W_O, x) / len(W_V)
    out[-1] += x[-1] @ read
    return out


def edges_even_attention(read, pattern, W_V, W_O, x):
    even = torch.full_like(pattern, 1 / len(x))
    out = edges_without_direct(read, even, W_V, W_O, x)
    out[-1] += x[-1] @ read
    return out


def edges_without_attention(read, pattern, W_V, W_O, x):
    out = torch.einsum("kd,hde,hef,f->k", x, W_V, W_O, read)
    out[-1] += x[-1] @ read
    return out


# ---- 09.swap_first_title ------------------------------------------------------------------------


def swap_by_loop(tokens, aunt, uncle):
    out = tokens.tolist()
    for i, t in enumerate(out):
        if t in (aunt, uncle):
            out[i] = uncle if t == aunt else aunt
            break
    return torch.tensor(out)


def swap_by_mask(tokens, aunt, uncle):
    title = torch.isin(tokens, torch.tensor([aunt, uncle]))
    first = title & (title.cumsum(0) == 1)
    return torch.where(first, aunt + uncle - tokens, tokens)


def swap_by_concatenation(tokens, aunt, uncle):
    i = next(i for i, t in enumerate(tokens) if int(t) in {aunt, uncle})
    other = tokens.new_tensor([uncle if tokens[i] == aunt else aunt])
    return torch.cat([tokens[:i], other, tokens[i + 1 :]])


def swap_all(tokens, aunt, uncle):
    out = tokens.clone()
    out[tokens == aunt], out[tokens == uncle] = uncle, aunt
    return out


def swap_last(tokens, aunt, uncle):
    out = tokens.clone()
    out[-1] = aunt + uncle - out[-1]
    return out


def swap_aunt_only(tokens, aunt, uncle):
    out = tokens.clone()
    out[(tokens == aunt).nonzero()[0]] = uncle
    return out


def swap_in_place(tokens, aunt, uncle):
    first = int(((tokens == aunt) | (tokens == uncle)).nonzero()[0])
    tokens[first] = aunt + uncle - tokens[first]
    return tokens


def swap_all_but_last(tokens, aunt, uncle):
    out = swap_all(tokens, aunt, uncle)
    out[-1] = tokens[-1]
    return out


def swap_the_name(tokens, aunt, uncle):
    out = tokens.clone()
    first = int(((tokens == aunt) | (tokens == uncle)).nonzero()[0])
    out[first + 1] = aunt + uncle - tokens[first]
    return out


# ---- 09.loss_recovered --------------------------------------------------------------------------


def recovered_by_sums(full, zero, spliced):
    lost, back = 0.0, 0.0
    for a, b, c in zip(full.tolist(), zero.tolist(), spliced.tolist()):
        lost, back = lost + b - a, back + b - c
    return back / lost


def recovered_from_one(full, zero, spliced):
    return 1 - float((spliced - full).sum() / (zero - full).sum())


def recovered_in_numpy(full, zero, spliced):
    full, zero, spliced = (np.mean(v.numpy()) for v in (full, zero, spliced))
    return (spliced - zero) / (full - zero)


def recovered_mean_of_shares(full, zero, spliced):
    return ((zero - spliced) / (zero - full)).mean().item()


def recovered_each_window(full, zero, spliced):
    return (zero - spliced) / (zero - full).mean()


def recovered_upside_down(full, zero, spliced):
    return ((spliced - full).mean() / (zero - full).mean()).item()


def recovered_of_losses(full, zero, spliced):
    return (full.mean() / spliced.mean()).item()


def recovered_against_zero(full, zero, spliced):
    return 1 - (spliced.mean() / zero.mean()).item()


def recovered_over_full(full, zero, spliced):
    return ((zero - spliced).mean() / full.mean()).item()


def recovered_clipped(full, zero, spliced):
    return ((zero - spliced).mean() / (zero - full).mean()).clamp(0, 1).item()


RIGHT = {
    "09.cheat": [cheat_by_diagonals, cheat_in_numpy, cheat_latent_by_latent],
    "09.honest_loss": [loss_after_normalising, loss_row_by_row, loss_in_numpy],
    "09.edges_into": [edges_by_loop, edges_by_moved_writes, edges_by_gradient],
    "09.swap_first_title": [swap_by_loop, swap_by_mask, swap_by_concatenation],
    "09.loss_recovered": [recovered_by_sums, recovered_from_one, recovered_in_numpy],
}
WRONG = {
    "09.cheat": [
        cheat_without_bias,
        cheat_the_wrong_way,
        cheat_decoder_only,
        cheat_in_place,
        cheat_by_a_root,
        cheat_by_threshold,
    ],
    "09.honest_loss": [
        loss_naive,
        loss_with_columns,
        loss_with_squared_length,
        loss_with_one_length,
        loss_summed,
        loss_mean_of_entries,
        loss_without_relu,
    ],
    "09.edges_into": [
        edges_without_direct,
        edges_direct_for_all,
        edges_of_a_column,
        edges_mean_of_heads,
        edges_even_attention,
        edges_without_attention,
    ],
    "09.swap_first_title": [
        swap_all,
        swap_last,
        swap_aunt_only,
        swap_in_place,
        swap_all_but_last,
        swap_the_name,
    ],
    "09.loss_recovered": [
        recovered_mean_of_shares,
        recovered_each_window,
        recovered_upside_down,
        recovered_of_losses,
        recovered_against_zero,
        recovered_over_full,
        recovered_clipped,
    ],
}
