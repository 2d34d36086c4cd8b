"""Which numbers about neurons are facts, and which belong to how the weights are written."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

from circuitbook import bases, gauge
from circuitbook.cut import Cut
from circuitbook.model import Transformer
from circuitbook.neurons.contexts import activations, read_text
from circuitbook.neurons.expansion import split_pre, variance_shares

NEURONS = 64


def numbers(
    model: Transformer,
    tokens: Int[Tensor, "window pos"],
    change: Cut,
    whiten: Callable[[Tensor], tuple[Tensor, Tensor]],
    agreement: Callable[..., Tensor],
) -> dict[str, Tensor]:
    """Numbers that people print about neurons, W_U as it is; the first 64 neurons of layer 0."""
    ids, mlp = torch.arange(NEURONS), model.blocks[0].mlp
    with model.hooks(fwd_hooks=list(change.hooks)):
        text = read_text(model, tokens, torch.arange(len(tokens)))
        logits = model.unembed(model.stream(tokens)[:, -1:])
        shares = variance_shares(split_pre(model, tokens, ids))
    k, v = mlp.W_in[:, ids], mlp.W_out[ids]
    a = activations(model, text.read, ids)
    fires = (a - 0.1).clamp_min(0)
    x = whiten(text.read)[0]
    unit = text.read / text.read.norm(dim=1, keepdim=True)
    resultant = (fires.mT @ unit / fires.sum(0)[:, None].clamp_min(1e-30)).norm(dim=1)
    boost = v @ model.W_U
    return {
        "probabilities": logits.softmax(-1),
        "activations": a,
        "agreement of its contexts": agreement(x, fires, text.doc),
        "head 0.0's share of the pre-activation": shares["head 0.0"],
        "direct inputs, W_E W_in": model.W_E @ k,
        "what it writes, centred": boost - boost.mean(-1, keepdim=True),
        "input times output, k · v": (k.mT * v).sum(-1),
        "what it writes, raw": boost,
        "cosine of k and v": torch.nn.functional.cosine_similarity(k.mT, v, dim=-1),
        "length of the bare mean context": resultant,
    }


@torch.no_grad()
def survival(
    model: Transformer,
    tokens: Int[Tensor, "window pos"],
    whiten: Callable[[Tensor], tuple[Tensor, Tensor]],
    agreement: Callable[..., Tensor],
) -> dict[str, dict[str, float]]:
    """change -> number -> largest move, relative to its largest value; R, G of condition 10.

    With LayerNorm G is one that the norm cannot see: see `gauge.free_change`. Give a float64 model
    with W_U as trained. Moves below 1e-8 are rounding and said as 0.
    """
    g, cfg = torch.Generator().manual_seed(0), model.cfg
    R = gauge.invertible(cfg.d_head, cfg.d_head, generator=g)
    G = gauge.free_change(model, g)
    c = torch.randn(cfg.d_model, generator=g, dtype=torch.float64) * model.W_U.std()
    drift = torch.Generator().manual_seed(1)

    def constant(scores: Tensor, hook: object) -> Tensor:
        return scores + torch.randn(*scores.shape[:-1], 1, generator=drift, dtype=scores.dtype)

    shift = Cut(tuple((f"blocks.{l}.attn.hook_attn_scores", constant) for l in range(cfg.n_layers)))
    others = {  # made one at a time: each holds a copy of all weights
        "head coordinates R": (lambda: bases.change_heads(model, R), Cut()),
        "stream coordinates G": (lambda: gauge.change_stream(model, G), Cut()),
        "W_U + c 1ᵀ": (lambda: bases.shift_unembed(model, c), Cut()),
        "constant per query": (lambda: model, shift),
    }
    old = numbers(model, tokens, Cut(), whiten, agreement)
    out = {}
    for name, (new, change) in others.items():
        now = numbers(new(), tokens, change, whiten, agreement)
        moved = {q: bases.relative_change(old[q], now[q]) for q in old}
        out[name] = {q: m if m > 1e-8 else 0.0 for q, m in moved.items()}
    return out


@torch.no_grad()
def any_stream(model: Transformer, tokens: Int[Tensor, "window pos"]) -> float:
    """Largest change of a last-position probability, over the largest, under an arbitrary G.

    G is invertible, of condition 10. Rounding without a norm; with LayerNorm such a G is not free
    (`gauge.is_free`), and the function is another one.
    """
    d, g = model.cfg.d_model, torch.Generator().manual_seed(3)
    other = gauge.change_stream(model, gauge.invertible(d, d, generator=g), free=False)
    p, q = (m.unembed(m.stream(tokens)[:, -1:]).softmax(-1) for m in (model, other))
    return bases.relative_change(p, q)


@torch.no_grad()
def hidden_bases(model: Transformer, tokens: Int[Tensor, "window pos"]) -> dict[str, float]:
    """Largest change of a logit when the hidden coordinates are turned, or only renumbered."""
    g, m = torch.Generator().manual_seed(2), model.cfg.d_mlp
    order = torch.eye(m, dtype=torch.float64)[torch.randperm(m, generator=g)]
    clean = model(tokens)
    return {
        name: (bases.change_hidden(model, R)(tokens) - clean).abs().max().item()
        for name, R in (("turned", bases.rotation(m, g)), ("renumbered", order))
    }
