"""The identities of path expansion, measured: each error beside that of a mutant that must miss.

Needs nothing but weights and tokens. The functions that chapter 03 teaches are handed in.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

from circuitbook import cut, fold, stream
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

    X and Y are the embeddings of the first two texts; the held patterns are those of the first.
    """
    X, Y = model.W_E[tokens[:1]], model.W_E[tokens[1:2]]
    held = expand.record(model, tokens[:1]).patterns

    def free(x: Tensor) -> Tensor:
        with model.hooks(fwd_hooks=[("hook_embed", lambda e, hook: x)]):
            return model(tokens[:1])

    def fixed(x: Tensor) -> Tensor:
        return frozen_stream(x, held, model.W_V, model.W_O) @ model.W_U

    gaps = [relative_change(f(a * X + b * Y), a * f(X) + b * f(Y)) for f in (fixed, free)]
    return gaps[0], gaps[1]


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
    """Largest relative difference between run k of the paper's procedure and orders 0 ... k."""
    ran = expand.record(model, tokens)
    sums = expand.gather(expand.expand(model, tokens, ran), lambda t: t.order)
    total, gaps = torch.zeros(()), []
    for k, found in enumerate(by_order(model, tokens, ran.patterns)):
        total = total + sums[k]
        gaps.append(relative_change(total, found))
    return max(gaps)


@torch.no_grad()
def order_loss_gaps(
    model: Transformer, tokens: Int[Tensor, "window pos"], orders: Tensor
) -> tuple[float, float]:
    """Nats by which the last order misses the model's loss, and order 0 that of the table W_E W_U.

    orders: mean losses [window, order] of these windows, as `importance.term_losses` gives them.
    """
    gaps = [0.0, 0.0]
    for window, row in zip(tokens.split(1), orders, strict=True):
        whole = model(window, return_type="loss")
        table = stream.window_loss(model, window, model.W_E[window])
        for i, (want, got) in enumerate(((whole, row[-1]), (table, row[0]))):
            gaps[i] = max(gaps[i], abs(want.item() - got.item()))
    return gaps[0], gaps[1]


@torch.no_grad()
def term_and_cut(
    model: Transformer, tokens: Int[Tensor, "batch pos"], pair: tuple[cut.Head, cut.Head]
) -> tuple[Tensor, Tensor]:
    """(logits of the pair's virtual head, logit change under its V-cut): one is minus the other."""
    ran = expand.record(model, tokens)
    (term,) = (t for t in expand.expand(model, tokens, ran) if t.path == pair)
    change = cut.logit_change(model, tokens, cut.cut_path(model, *pair, "v"))
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
    rebuilt, and undivided. "linear": held, and free. "norm": `expand.left_out` of a random model.
    """
    each, two = tokens.split(1), models["two"]
    found = [pattern_gaps(two, w) for w in each[:2]]
    return {
        "sum": max(expand.sum_error(models[m], w) for m in ("one", "two") for w in each),
        "sum double": max(
            expand.sum_error(models[m], w) for m in ("one double", "two double") for w in each[:2]
        ),
        "swapped": expand.swapped(two, each[0]),
        "patterns": (max(x for x, _ in found), min(x for _, x in found)),
        "linear": linearity_gaps(two, tokens[:2], frozen_stream),
        "procedure": procedure_gap(two, each[0], by_order),
        "norm": expand.left_out(*normed_model(seed)),
    }
