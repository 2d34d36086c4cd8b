"""Numbers that others have published about the series' models, by their own protocol.

Repeats are made of 50 token ids below 20,000, drawn uniformly with replacement, and follow each
other at once; most of these tokens are rare pieces, so the text is stranger than the course's
repeats of frequent words. The draws come from the same generator in the same order as there, so
the same weights should give the printed digits.

Source: H. Tarkhanyan, python_math_ml_course, chapter 19, circuits_figs.py (public).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook import cut, paths, probe
from circuitbook.model import Transformer

SEED, SEQUENCES, BLOCK = 509, 20, 50
REPEATED, TABLE = (1000, 20_000), (1000, 30_000)  # ids are drawn from low ... high - 1
OV_TOKENS, QK_TOKENS = 2000, 300


class Draws(NamedTuple):
    """One model's share of the draws; `table` is used for the two-layer model alone."""

    repeats: Int[Tensor, "n pos"]  # BOS, then a block twice
    ov: Int[Tensor, " n_ov"]
    table: Int[Tensor, " n_qk"]


def draws(role: str, d_vocab: int) -> Draws:
    """The published draws for "attn-only-1l" or "attn-only-2l"; ids end with a smaller vocabulary.

    Raises KeyError for another role.
    """
    generator, made = torch.Generator().manual_seed(SEED), {}

    def ids(low: int, high: int, *shape: int) -> Tensor:
        high = min(high, d_vocab)
        return torch.randint(min(low, high // 2), high, shape, generator=generator)

    for name in ("attn-only-1l", "attn-only-2l"):
        block = ids(*REPEATED, SEQUENCES, BLOCK)
        start = torch.full((SEQUENCES, 1), probe.start_token())
        made[name] = [torch.cat([start, block, block], 1), ids(*TABLE, OV_TOKENS)]
    return Draws(*made[role], ids(*TABLE, QK_TOKENS))


@torch.no_grad()
def behaviour(
    model: Transformer, tokens: Int[Tensor, "n pos"], part: int = 4
) -> tuple[Float[Tensor, "layer head"], Float[Tensor, "layer head"], float]:
    """(previous token, induction, share of the second copy's tokens whose logit is the largest).

    previous: mean of A[t, t-1] over all queries t >= 1, the one that sees BOS among them.
    induction: mean of A[t, t-49] over the second copy. Its first token counts in the share, though
    nothing foretells it.
    """
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.cfg.n_layers)]
    previous, stripe, right = [], [], []
    for some in tokens.to(model.W_E.device).split(part):
        stream, patterns = _run(model, some, names)
        previous.append(patterns.diagonal(-1, -2, -1).mean(-1))  # [layer, n, head]
        stripe.append(probe.stripe_score(patterns, BLOCK))
        logits = model.unembed(stream[:, BLOCK : 2 * BLOCK])
        right.append(logits.argmax(-1) == some[:, 1 + BLOCK :])
    scores = (torch.cat(x, 1).mean(1) for x in (previous, stripe))
    return *scores, torch.cat(right).double().mean().item()


def _run(model: Transformer, tokens: Tensor, names: list[str]) -> tuple[Tensor, Tensor]:
    """(what the unembedding reads, patterns [layer, n, head, pos, key])."""
    kept: list[Tensor] = []
    watch = cut.Cut(tuple((name, lambda A, hook: kept.append(A)) for name in names))
    with model.hooks(fwd_hooks=list(watch.hooks)):
        stream = model.stream(tokens)
    return stream, torch.stack(kept)


@torch.no_grad()
def diagonal_shares(
    model: Transformer,
    ids: Int[Tensor, " n"],
    reader: int,
    virtual_qk: Callable[..., tuple[Tensor, Tensor]],
) -> list[float]:
    """Through each first-layer head: share of `ids` that are the largest entry of their own row.

    The table is W_E W_QK W_OV^T W_E^T of the folded weights on these ids alone, without biases and
    scales. An id that was drawn twice can be right in one row only.
    """
    E, own = model.W_E[ids], torch.arange(len(ids), device=model.W_E.device)
    Q, K = model.W_Q[-1, reader], model.W_K[-1, reader]
    shares = []
    for V, O in zip(model.W_V[0], model.W_O[0], strict=True):
        A, B = virtual_qk(E, V, O, Q, K)
        shares.append(((A @ B).argmax(1) == own).double().mean().item())
    return shares


def series(
    role: str, model: Transformer, virtual_qk: Callable[..., tuple[Tensor, Tensor]]
) -> dict[str, Any]:
    """{"series": row -> value} of the published two-layer model; nothing in the course's own set.

    The reader is the last layer's head with the highest induction score on the same repeats.
    """
    if paths.models() == "course":
        return {}
    drawn = draws(role, model.cfg.d_vocab)
    previous, stripe, right = behaviour(model, drawn.repeats)
    reader = int(stripe[-1].argmax())
    through = diagonal_shares(model, drawn.table, reader, virtual_qk)
    diagonal = {f"0.{h}": share for h, share in enumerate(through)}
    last = model.cfg.n_layers - 1
    rows = {
        "prev_token_L0": previous[0],
        "induction_L1": stripe[-1],
        "repeat_top1": right,
        "virtual_qk_diag": diagonal | {"our_head": f"{last}.{reader}"},
    }
    return {"series": {f"heads.{role}.{name}": value for name, value in rows.items()}}
