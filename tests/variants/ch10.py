"""Answers to the exercises of chapter 10: right ones, and wrong ones that a tired person writes."""

import math

import numpy as np
import torch
import torch.nn.functional as F

# ---- 10.realised_parts --------------------------------------------------------------------------


def _gate(z, kind):
    return (z > 0).to(z) if kind == "relu" else torch.special.ndtr(z)


def parts_by_rows(parts, W_in, b_in, W_out, b_out, kind):
    gate = _gate(parts.sum(0) @ W_in + b_in, kind)
    rows = [(p @ W_in * gate) @ W_out for p in parts]
    return torch.stack([*rows, (b_in * gate) @ W_out + b_out])


def parts_by_reads(parts, W_in, b_in, W_out, b_out, kind):
    reads = torch.cat([parts @ W_in, b_in[None]])
    z = reads.sum(0)
    gate = z.sign().clamp(min=0) if kind == "relu" else (1 + torch.erf(z / math.sqrt(2))) / 2
    out = torch.einsum("pm,m,md->pd", reads, gate, W_out)
    out[-1] += b_out
    return out


def parts_in_numpy(parts, W_in, b_in, W_out, b_out, kind):
    p, i, b, o, c = (t.numpy() for t in (parts, W_in, b_in, W_out, b_out))
    z = p.sum(0) @ i + b
    gate = np.array([float(s > 0) if kind == "relu" else math.erfc(-s / 2**0.5) / 2 for s in z])
    return torch.from_numpy(np.vstack([(p @ i) @ (gate[:, None] * o), (b * gate) @ o + c]))


def parts_each_bent_alone(parts, W_in, b_in, W_out, b_out, kind):
    phi = F.relu if kind == "relu" else F.gelu
    return torch.cat([phi(parts @ W_in) @ W_out, (phi(b_in) @ W_out + b_out)[None]])


def parts_by_slope(parts, W_in, b_in, W_out, b_out, kind):
    z = parts.sum(0) @ W_in + b_in
    gate = _gate(z, kind)
    if kind == "gelu":
        gate = gate + z * torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return torch.cat([(parts @ W_in * gate) @ W_out, ((b_in * gate) @ W_out + b_out)[None]])


def parts_by_division(parts, W_in, b_in, W_out, b_out, kind):
    z = parts.sum(0) @ W_in + b_in
    gate = (F.relu if kind == "relu" else F.gelu)(z) / z
    return torch.cat([(parts @ W_in * gate) @ W_out, ((b_in * gate) @ W_out + b_out)[None]])


def parts_zero_at_zero(parts, W_in, b_in, W_out, b_out, kind):
    z = parts.sum(0) @ W_in + b_in
    gate = torch.where(z.abs() < 1e-12, 0.0, _gate(z, kind))
    return torch.cat([(parts @ W_in * gate) @ W_out, ((b_in * gate) @ W_out + b_out)[None]])


def parts_without_bias_in_the_gate(parts, W_in, b_in, W_out, b_out, kind):
    gate = _gate(parts.sum(0) @ W_in, kind)
    return torch.cat([(parts @ W_in * gate) @ W_out, ((b_in * gate) @ W_out + b_out)[None]])


def parts_without_the_last_bias(parts, W_in, b_in, W_out, b_out, kind):
    return parts_by_rows(parts, W_in, b_in, W_out, 0 * b_out, kind)


def parts_by_a_big_matrix(parts, W_in, b_in, W_out, b_out, kind):
    gate = _gate(parts.sum(0) @ W_in + b_in, kind)
    B = W_in @ torch.diag(gate) @ W_out
    return torch.cat([parts @ B, ((b_in * gate) @ W_out + b_out)[None]])


def parts_by_a_big_matrix_in_numpy(parts, W_in, b_in, W_out, b_out, kind):
    z = parts.sum(0) @ W_in + b_in
    i, o, gate = (t.numpy() for t in (W_in, W_out, _gate(z, kind)))
    B = torch.from_numpy((i * gate) @ o)
    return torch.cat([parts @ B, ((b_in * torch.from_numpy(gate)) @ W_out + b_out)[None]])


def parts_open_at_zero(parts, W_in, b_in, W_out, b_out, kind):
    z = parts.sum(0) @ W_in + b_in
    gate = torch.where(z == 0, 1.0, _gate(z, kind)) if kind == "relu" else _gate(z, kind)
    return torch.cat([(parts @ W_in * gate) @ W_out, ((b_in * gate) @ W_out + b_out)[None]])


def parts_in_proportion(parts, W_in, b_in, W_out, b_out, kind):
    phi = F.relu if kind == "relu" else F.gelu
    x = parts.sum(0)
    bias = phi(b_in) @ W_out + b_out
    share = (parts @ x) / (x @ x).clamp(min=1e-9)
    return torch.cat([share[:, None] * (phi(x @ W_in + b_in) @ W_out + b_out - bias), bias[None]])


# ---- 10.euler_table -----------------------------------------------------------------------------


def _fitted(f, x, moved, tol=1e-6):
    y = f(x)
    k = float((moved * y).sum() / (y * y).sum())
    return k if (moved - k * y).abs().max() < tol * y.abs().max() else None


def euler_by_small_steps(maps, x):
    h = 1e-4
    return {n: _fitted(f, x, (f((1 + h) * x) - f((1 - h) * x)) / (2 * h)) for n, f in maps.items()}


def euler_by_reverse_mode(maps, x):
    out = {}
    for name, f in maps.items():
        t = torch.ones((), dtype=x.dtype, requires_grad=True)
        y = f(t * x).flatten()
        moved = [torch.autograd.grad(v, t, retain_graph=True)[0] for v in y]
        out[name] = _fitted(f, x, torch.stack(moved).reshape(f(x).shape))
    return out


def euler_by_logarithms(maps, x):
    out = {}
    for name, f in maps.items():
        k = torch.log((f(1.0001 * x) / f(x / 1.0001)).abs()) / (2 * math.log(1.0001))
        out[name] = float(k.median()) if k.max() - k.min() < 1e-5 else None
    return out


def euler_by_jacobians_of_rows(maps, x):
    def along(f):
        J = torch.func.vmap(torch.func.jacrev(f))(x)
        return torch.einsum("nod,nd->no", J, x)

    return {name: _fitted(f, x, along(f)) for name, f in maps.items()}


def euler_rounded(maps, x):
    found = euler_by_small_steps(maps, x)
    return {n: None if k is None else round(k) for n, k in found.items()}


def euler_at_twice(maps, x):
    out = {}
    for name, f in maps.items():
        k = torch.log2((f(2 * x) / f(x)).abs())
        out[name] = float(k.median()) if k.max() - k.min() < 1e-5 else None
    return out


def euler_always_a_number(maps, x):
    out = {}
    for name, f in maps.items():
        y, moved = torch.func.jvp(f, (x,), (x,))
        out[name] = float((moved * y).sum() / (y * y).sum())
    return out


def euler_by_the_sum(maps, x):
    out = {}
    for name, f in maps.items():
        y, moved = torch.func.jvp(f, (x,), (x,))
        out[name] = float(moved.sum() / y.sum())
    return out


def euler_first_row(maps, x):
    return {n: _fitted(f, x[:1], torch.func.jvp(f, (x[:1],), (x[:1],))[1]) for n, f in maps.items()}


def euler_by_lengths(maps, x):
    out = {}
    for name, f in maps.items():
        y, moved = torch.func.jvp(f, (x,), (x,))
        k = moved.norm(dim=1) / y.norm(dim=1)
        out[name] = float(k.mean()) if k.max() - k.min() < 1e-6 else None
    return out


def euler_nearly(maps, x):
    return {n: _fitted(f, x, torch.func.jvp(f, (x,), (x,))[1], tol=1.0) for n, f in maps.items()}


# ---- 10.gate_and_content ------------------------------------------------------------------------


def routes_by_jvp(w, x, W_gate, b_gate, W_in, b_in, W_out):
    g, u = x @ W_gate + b_gate, x @ W_in + b_in
    _, slope = torch.func.jvp(F.silu, (g.repeat(len(w), 1),), (w @ W_gate,))
    return (F.silu(g) * (w @ W_in)) @ W_out, (slope * u) @ W_out


def routes_by_matrices(w, x, W_gate, b_gate, W_in, b_in, W_out):
    g, u = x @ W_gate + b_gate, x @ W_in + b_in
    s = 1 / (1 + torch.exp(-g))
    content = W_in @ torch.diag(g * s) @ W_out
    gate = W_gate @ torch.diag(u * (s + g * s * (1 - s))) @ W_out
    return w @ content, w @ gate


def routes_row_by_row(w, x, W_gate, b_gate, W_in, b_in, W_out):
    u, g = x @ W_in + b_in, (x @ W_gate + b_gate).requires_grad_(True)
    slope = torch.autograd.grad(F.silu(g).sum(), g)[0]
    opened, g = F.silu(g).detach(), g.detach()
    pairs = [((opened * (v @ W_in)) @ W_out, (slope * u * (v @ W_gate)) @ W_out) for v in w]
    return torch.stack([a for a, _ in pairs]), torch.stack([b for _, b in pairs])


def routes_sigmoid_as_slope(w, x, W_gate, b_gate, W_in, b_in, W_out):
    g, u = x @ W_gate + b_gate, x @ W_in + b_in
    return (F.silu(g) * (w @ W_in)) @ W_out, (w @ W_gate * u * g.sigmoid()) @ W_out


def routes_sigmoid_as_gate(w, x, W_gate, b_gate, W_in, b_in, W_out):
    g = x @ W_gate + b_gate
    return (g.sigmoid() * (w @ W_in)) @ W_out, routes_by_jvp(
        w, x, W_gate, b_gate, W_in, b_in, W_out
    )[1]


def routes_exchanged(w, x, W_gate, b_gate, W_in, b_in, W_out):
    return routes_by_jvp(w, x, W_gate, b_gate, W_in, b_in, W_out)[::-1]


def routes_without_biases(w, x, W_gate, b_gate, W_in, b_in, W_out):
    return routes_by_jvp(w, x, W_gate, 0 * b_gate, W_in, 0 * b_in, W_out)


def routes_bias_added_to_the_write(w, x, W_gate, b_gate, W_in, b_in, W_out):
    g, u = x @ W_gate + b_gate, x @ W_in + b_in
    s = g.sigmoid()
    content = (F.silu(g) * (w @ W_in + b_in)) @ W_out
    return content, (w @ W_gate * u * s * (1 + g * (1 - s))) @ W_out


def routes_two_forward_operators(w, x, W_gate, b_gate, W_in, b_in, W_out):
    g, u = x @ W_gate + b_gate, x @ W_in + b_in
    return (F.silu(g) * (w @ W_in)) @ W_out, (w @ W_gate * g.sigmoid() * u) @ W_out


def routes_slope_without_content(w, x, W_gate, b_gate, W_in, b_in, W_out):
    g = x @ W_gate + b_gate
    s = g.sigmoid()
    return (F.silu(g) * (w @ W_in)) @ W_out, (w @ W_gate * s * (1 + g * (1 - s))) @ W_out


# ---- 10.router_part -----------------------------------------------------------------------------


def _outputs(neurons, W_out, b_out):
    return (neurons[:, None] @ W_out)[:, 0] + b_out


def router_by_full_rows(w, logits, W_router, neurons, W_out, b_out, k):
    chosen = torch.zeros_like(logits, dtype=torch.bool).scatter(0, logits.topk(k).indices, True)
    weight = logits.masked_fill(~chosen, -torch.inf).softmax(0)
    r = W_router.T - weight @ W_router.T
    return (weight * (r @ w)) @ _outputs(neurons, W_out, b_out)


def router_by_jvp(w, logits, W_router, neurons, W_out, b_out, k):
    top = logits.topk(k).indices
    _, moved = torch.func.jvp(lambda l: l.softmax(0), (logits[top],), ((w @ W_router)[top],))
    return moved @ _outputs(neurons, W_out, b_out)[top]


def router_by_covariance(w, logits, W_router, neurons, W_out, b_out, k):
    top = logits.topk(k).indices
    p, E = logits[top].softmax(0), _outputs(neurons, W_out, b_out)[top]
    return torch.einsum("e,e,ed->d", p, w @ W_router[:, top], E - p @ E)


def router_without_the_mean(w, logits, W_router, neurons, W_out, b_out, k):
    top = logits.topk(k).indices
    p = logits[top].softmax(0)
    return (p * (w @ W_router)[top]) @ _outputs(neurons, W_out, b_out)[top]


def router_without_expert_biases(w, logits, W_router, neurons, W_out, b_out, k):
    return router_by_jvp(w, logits, W_router, neurons, W_out, 0 * b_out, k)


def router_over_all_experts(w, logits, W_router, neurons, W_out, b_out, k):
    _, moved = torch.func.jvp(lambda l: l.softmax(0), (logits,), (w @ W_router,))
    return moved @ _outputs(neurons, W_out, b_out)


def router_weights_of_all(w, logits, W_router, neurons, W_out, b_out, k):
    top = logits.topk(k).indices
    _, moved = torch.func.jvp(lambda l: l.softmax(0), (logits,), (w @ W_router,))
    return moved[top] @ _outputs(neurons, W_out, b_out)[top]


def router_as_sigmoid(w, logits, W_router, neurons, W_out, b_out, k):
    top = logits.topk(k).indices
    p = logits[top].softmax(0)
    return (p * (1 - p) * (w @ W_router)[top]) @ _outputs(neurons, W_out, b_out)[top]


def router_plain_mean(w, logits, W_router, neurons, W_out, b_out, k):
    top = logits.topk(k).indices
    p, moved = logits[top].softmax(0), (w @ W_router)[top]
    return (p * (moved - moved.mean())) @ _outputs(neurons, W_out, b_out)[top]


def router_the_last_experts(w, logits, W_router, neurons, W_out, b_out, k):
    return router_by_jvp(w, -logits, -W_router, neurons, W_out, b_out, k)


# ---- 10.jump ------------------------------------------------------------------------------------


def jump_by_new_set(logits, outputs, leaves, enters, k):
    lowered = logits.clone()
    lowered[leaves] = -torch.inf
    top = lowered.topk(k).indices
    p = logits[enters].exp() / logits[top].exp().sum()
    return p * (outputs[enters] - outputs[leaves])


def jump_by_two_mixtures(logits, outputs, leaves, enters, k):
    def mixture(out):
        kept = logits.clone()
        kept[out] = -torch.inf
        top = kept.topk(k).indices
        return logits[top].softmax(0) @ outputs[top]

    return mixture(leaves) - mixture(enters)


def jump_by_sorting(logits, outputs, leaves, enters, k):
    order = [e for e in logits.argsort(descending=True).tolist() if e != enters][:k]
    weight = 1 / sum(math.exp(logits[e] - logits[leaves]) for e in order)
    return (outputs[enters] - outputs[leaves]) * weight


def jump_backwards(logits, outputs, leaves, enters, k):
    return -jump_by_new_set(logits, outputs, leaves, enters, k)


def jump_whole_difference(logits, outputs, leaves, enters, k):
    return outputs[enters] - outputs[leaves]


def jump_over_all(logits, outputs, leaves, enters, k):
    return logits.softmax(0)[enters] * (outputs[enters] - outputs[leaves])


def jump_even_weights(logits, outputs, leaves, enters, k):
    return (outputs[enters] - outputs[leaves]) / k


def jump_with_both_inside(logits, outputs, leaves, enters, k):
    top = logits.topk(k + 1).indices
    weight = logits[enters].exp() / logits[top].exp().sum()
    return weight * (outputs[enters] - outputs[leaves])


def jump_only_what_enters(logits, outputs, leaves, enters, k):
    lowered = logits.clone()
    lowered[leaves] = -torch.inf
    top = lowered.topk(k).indices
    return logits[enters].exp() / logits[top].exp().sum() * outputs[enters]


RIGHT = {
    "10.realised_parts": [parts_by_rows, parts_by_reads, parts_in_numpy],
    "10.euler_table": [
        euler_by_small_steps, euler_by_reverse_mode, euler_by_logarithms,
        euler_by_jacobians_of_rows,
    ],
    "10.gate_and_content": [routes_by_jvp, routes_by_matrices, routes_row_by_row],
    "10.router_part": [router_by_full_rows, router_by_jvp, router_by_covariance],
    "10.jump": [jump_by_new_set, jump_by_two_mixtures, jump_by_sorting],
}  # fmt: skip
WRONG = {
    "10.realised_parts": [
        parts_each_bent_alone, parts_by_slope, parts_by_division, parts_zero_at_zero,
        parts_without_bias_in_the_gate, parts_without_the_last_bias, parts_by_a_big_matrix,
        parts_in_proportion, parts_by_a_big_matrix_in_numpy, parts_open_at_zero,
    ],
    "10.euler_table": [
        euler_at_twice, euler_always_a_number, euler_by_the_sum, euler_first_row,
        euler_by_lengths, euler_nearly, euler_rounded,
    ],
    "10.gate_and_content": [
        routes_sigmoid_as_slope, routes_sigmoid_as_gate, routes_exchanged,
        routes_without_biases, routes_bias_added_to_the_write, routes_two_forward_operators,
        routes_slope_without_content,
    ],
    "10.router_part": [
        router_without_the_mean, router_without_expert_biases, router_over_all_experts,
        router_weights_of_all, router_as_sigmoid, router_plain_mean, router_the_last_experts,
    ],
    "10.jump": [
        jump_backwards, jump_whole_difference, jump_over_all, jump_even_weights,
        jump_with_both_inside, jump_only_what_enters,
    ],
}  # fmt: skip
