"""The identities of path expansion, measured: each error beside that of a mutant that must miss.

Needs nothing but weights and tokens. The functions that chapter 03 teaches are handed in.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook import cut, fold
from circuitbook.bases import relative_change
from circuitbook.config import Config
from circuitbook.expansion import expand
from circuitbook.model import Transformer

Streams = Callable[[Transformer, Tensor, list[Tensor]], list[Tensor]]


def tensor_product_gaps(generator: torch.Generator) -> tuple[float, float]:
    """(A kron W) flat(X) = flat(A X W^T): errors of the true rules together, and of a wrong one,
    against the largest entry.

    True: kron(A, W) by rows, kron(W, A) by columns, (A kron W)(C kron D) = (A C) kron (W D).
    Wrong: kron(W, A) by rows.
    """
    A, C = torch.randn(2, 6, 6, generator=generator, dtype=torch.float64)
    W, D = torch.randn(2, 5, 5, generator=generator, dtype=torch.float64)
    X, kron = torch.randn(6, 5, generator=generator, dtype=torch.float64), torch.kron
    rows, columns = (A @ X @ W.T).reshape(-1), (A @ X @ W.T).T.reshape(-1)
    true = (
        kron(A, W) @ X.reshape(-1) - rows,
        kron(W, A) @ X.T.reshape(-1) - columns,
        kron(A, W) @ kron(C, D) - kron(A @ C, W @ D),
    )
    wrong = kron(W, A) @ X.reshape(-1) - rows
    size = rows.abs().max()
    return max((x.abs().max() / size).item() for x in true), (wrong.abs().max() / size).item()


@torch.no_grad()
def linearity_gaps(
    model: Transformer,
    tokens: Int[Tensor, "two pos"],
    frozen_stream: Callable[..., Tensor],
    a: float = 0.7,
    b: float = -1.3,
) -> tuple[float, float]:
    """max |f(aX + bY) - a f(X) - b f(Y)| / max |f(aX + bY)|: patterns held, and patterns free.

    X and Y are what enters the stream for the first two texts; the held patterns are those of the
    first. With LayerNorm the scales are held too: A_ij / s_j takes the place of A_ij. What biases
    add is the same for all inputs and no part of a linear map: they are left out when all is held,
    and of the living model the unembedding's bias is taken off.
    """
    ran = expand.record(model, tokens[:1])
    X, Y = (_entering(model, t, ran) for t in tokens[:2].split(1))
    held = over_scales(ran)
    W_V = torch.stack([expand.read_weights(b.ln1, b.attn.W_V) for b in model.blocks])

    def free(x: Tensor) -> Tensor:
        only = [("hook_embed", lambda e, hook: x)]
        if model.cfg.positions == "standard":  # x holds the position already
            only.append(("hook_pos_embed", lambda p, hook: torch.zeros_like(p)))
        with model.hooks(fwd_hooks=only):
            return model(tokens[:1]) - expand.unembed_bias(model)

    def fixed(x: Tensor) -> Tensor:
        return expand.logits(model, frozen_stream(x, held, W_V, model.W_O), ran)

    gaps = [relative_change(f(a * X + b * Y), a * f(X) + b * f(Y)) for f in (fixed, free)]
    return gaps[0], gaps[1]


def over_scales(ran: expand.Frozen) -> list[Float[Tensor, "batch head pos key"]]:
    """A_ij / s_j of every layer: a key's scale divides what that key gives; A without a norm."""
    scales = [1.0 if s is None else s.mT[:, None] for s in ran.scales]
    return [A / s for A, s in zip(ran.patterns, scales, strict=True)]


def _entering(model: Transformer, tokens: Tensor, ran: expand.Frozen) -> Tensor:
    """What the first layer reads, before its norm: token, and position with standard positions."""
    return sum(x for _, layer, x in expand.sources(model, tokens, ran) if layer == 0)


@torch.no_grad()
def pattern_gaps(model: Transformer, tokens: Int[Tensor, "batch pos"]) -> tuple[float, float]:
    """max |rebuilt pattern - pattern|: from expanded scores, and without their 1/sqrt(d_head)."""
    ran = expand.record(model, tokens)

    def gap(divide: bool) -> float:
        rebuilt = expand.patterns_from_terms(model, tokens, ran.scales, divide)
        pairs = zip(rebuilt, ran.patterns, strict=True)
        return max((a - b).abs().max().item() for a, b in pairs)

    return gap(True), gap(False)


@torch.no_grad()
def procedure_gap(model: Transformer, tokens: Int[Tensor, "batch pos"], by_order: Streams) -> float:
    """Largest relative difference between run k of the paper's procedure and orders 0 ... k.

    With a norm its scales are held while the procedure runs, and the final one is part of what is
    compared. Value biases must be folded into b_O, as `zoo.load` does.
    """
    ran = expand.record(model, tokens)
    sums = expand.gather(expand.expand(model, tokens, ran), lambda t: t.order)
    with model.hooks(fwd_hooks=list(expand.hold_scales(model, ran).hooks)):
        streams = by_order(model, tokens, ran.patterns)
    total, gaps = torch.zeros(()), []
    for k, found in enumerate(streams):
        total = total + sums[k]
        gaps.append(relative_change(expand.read(model.ln_final, total, ran.last_scale), found))
    return max(gaps)


@torch.no_grad()
def order_loss_gaps(
    model: Transformer, tokens: Int[Tensor, "window pos"], orders: Tensor
) -> tuple[float, float]:
    """Nats by which the last order misses the model's loss, and order 0 that of the weights alone.

    orders: mean losses [window, order] of these windows, as `importance.term_losses` gives them.
    From the weights alone: the table W_E W_U; with a norm W_E + W_pos + biases, read at the scale
    of the whole run.
    """
    gaps = [0.0, 0.0]
    for window, row in zip(tokens.split(1), orders, strict=True):
        whole, ran = model(window, return_type="loss"), expand.record(model, window)
        entering = sum(x for _, _, x in expand.sources(model, window, ran))
        logits = expand.logits(model, entering, ran)[0, :-1] + expand.unembed_bias(model)
        table = (logits.logsumexp(-1) - logits.gather(1, window[0, 1:, None])[:, 0]).mean()
        for i, (want, got) in enumerate(((whole, row[-1]), (table, row[0]))):
            gaps[i] = max(gaps[i], abs(want.item() - got.item()))
    return gaps[0], gaps[1]


@torch.no_grad()
def term_and_cut(
    model: Transformer, tokens: Int[Tensor, "batch pos"], pair: tuple[cut.Head, cut.Head]
) -> tuple[Tensor, Tensor]:
    """(logits of the pair's virtual head, logit change under its V-cut): one is minus the other.

    With a norm its scales are held during the cut: recomputed, they would move the other terms too.
    """
    ran = expand.record(model, tokens)
    (term,) = (t for t in expand.expand(model, tokens, ran, direct=True) if t.path == pair)
    held = cut.cut_path(model, *pair, "v") + expand.hold_scales(model, ran)
    change = cut.logit_change(model, tokens, held)
    return expand.logits(model, term.write, ran), change


def cut_gap(
    model: Transformer, tokens: Int[Tensor, "batch pos"], pair: tuple[cut.Head, cut.Head]
) -> float:
    """max |term + change| / max |term| for the two sides of `term_and_cut`."""
    term, change = term_and_cut(model, tokens, pair)
    return relative_change(term, -change)


def normed_model(seed: int, dtype: torch.dtype = torch.float64) -> tuple[Transformer, Tensor]:
    """(a folded two-layer model with LayerNorm, biases and positions in its stream, two texts).

    Random weights; gains, biases and positions large enough to matter.
    """
    generator = torch.Generator().manual_seed(seed)
    cfg = Config(
        2, 24, 3, 8, n_ctx=32, d_vocab=90, norm="layernorm", positions="standard",
        pos_kind="learned", attn_bias=True, unembed_bias=True,
    )  # fmt: skip
    model = Transformer(cfg, generator=generator).double().requires_grad_(False)
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator).double() * 0.3
        p.copy_(3 * p if "W_" in name else p + noise)
    tokens = torch.randint(1, cfg.d_vocab, (2, cfg.n_ctx), generator=generator)
    return fold.fold_layer_norm(model).to(dtype), tokens


def gaps(
    models: dict[str, Transformer],
    tokens: Int[Tensor, "window pos"],
    frozen_stream: Callable[..., Tensor],
    by_order: Streams,
    seed: int,
) -> dict:
    """Every identity of the chapter but the V-cut. models: name -> "one", "two", and "... double".

    "sum", "sum double": terms against logits. "swapped": with A1 A2, or W_OV2 W_OV1. "patterns":
    rebuilt, and undivided (of "two double" if it has a norm). "linear": held, and free. "norm":
    `expand.left_out` of "two double", or of a random model if that one has no norm.
    """
    each, two = tokens.split(1), models["two"]
    plain = two.cfg.norm == "none"  # else: large scores of which softmax sees small differences
    normed = normed_model(seed) if plain else (models["two double"], each[0])
    found = [pattern_gaps(two if plain else models["two double"], w) for w in each[:2]]
    return {
        "sum": max(expand.sum_error(models[m], w) for m in ("one", "two") for w in each),
        "sum double": max(
            expand.sum_error(models[m], w) for m in ("one double", "two double") for w in each[:2]
        ),
        "swapped": expand.swapped(two, each[0]),
        "patterns": (max(x for x, _ in found), min(x for _, x in found)),
        "linear": linearity_gaps(two, tokens[:2], frozen_stream),
        "procedure": procedure_gap(two, each[0], by_order),
        "norm": expand.left_out(*normed),
    }
