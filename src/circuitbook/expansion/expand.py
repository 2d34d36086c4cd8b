"""Attention-only logits as a sum of paths: from a source, through some heads in order, to W_U.

Freeze each head's pattern A (and, with LayerNorm, each scale s). Then a head is a linear map of the
stream, x -> A (x P / s) W_V W_O, with P = I - 11^T/d (both only with a norm). The stream is

    (1 + sum of layer L's heads) ... (1 + sum of layer 0's heads)  applied to its sources,

and multiplying out gives one term for every way through. One source and H heads in each of L layers
make (1 + H)^L terms; C(L, k) H^k of them have order k, that is, pass k heads. Rows: two heads give
A2 A1 X W_OV1 W_OV2. Positions move from the right to the left, features from the left to the right.

Sources. "token" is W_E[token]. "position" is W_pos, only with standard positions: shortformer
positions never enter the stream. "bias l" is what layer l adds whatever its input is: b_O,
b_V W_O, and the LayerNorm's own bias through W_V W_O. "unembedding bias" is b_U and the last
LayerNorm's bias through W_U; it is no part of the stream.

A path is told by its heads alone: its order is their number. So all that passes no head, token,
position and biases together, is of order 0, and `direct=True` with sums by path gives the same
(1 + H)^L terms for a model with biases as for one without.

Terms come one at a time. A term in hand keeps the streams on its own path alive and no others.
Source: Elhage et al. 2021 (path expansion of logits).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from circuitbook.attention import causal_mask
from circuitbook.bases import relative_change
from circuitbook.cut import Cut, Head
from circuitbook.model import Transformer


class Frozen(NamedTuple):
    """What one forward pass decided, and what the expansion takes as given."""

    patterns: list[Tensor]  # for each layer [batch, head, pos, key]
    scales: list[Tensor | None]  # for each layer [batch, pos, 1]; None without norm
    last_scale: Tensor | None  # of the final norm


class Term(NamedTuple):
    """One path. `inside` is what its last head moved, z [batch, pos, d_head], and `out` its W_O.

    At order 0 there is no head: `inside` is the source itself [batch, pos, d_model], out is None.
    """

    source: str
    path: tuple[Head, ...]
    inside: Tensor
    out: Tensor | None

    @property
    def order(self) -> int:
        """The number of heads on the path."""
        return len(self.path)

    @property
    def name(self) -> str:
        """ "token", "token → 0.5", "token → 0.5 → 1.4"."""
        return " → ".join([self.source, *(f"{l}.{h}" for l, h in self.path)])

    @property
    def write(self) -> Float[Tensor, "batch pos d_model"]:
        """What the path adds to the stream: z W_O, in stream coordinates."""
        return self.inside if self.out is None else self.inside @ self.out


def _check(model: Transformer) -> None:
    if not model.cfg.attn_only:
        raise ValueError(
            "this model has MLPs, and a frozen pattern does not make an MLP linear: chapter 10 "
            "expands those. Paths of this chapter need an attention-only model."
        )


@torch.no_grad()
def record(
    model: Transformer, tokens: Int[Tensor, "batch pos"], change: Cut | None = None
) -> Frozen:
    """Patterns and scales of one forward pass, under a cut if one is given."""
    _check(model)
    cache: dict[str, Tensor] = {}

    def keep(x: Tensor, hook: Any) -> None:
        cache[hook.name] = x

    names = [n for n in model.hook_dict if n.endswith(("hook_pattern", "hook_scale"))]
    hooks = list(change.hooks) if change else []
    with model.hooks(fwd_hooks=[*hooks, *((name, keep) for name in names)]):
        model.stream(tokens)  # the logits are not needed, and are most of the cost
    layers = range(model.cfg.n_layers)
    return Frozen(
        [cache[f"blocks.{l}.attn.hook_pattern"] for l in layers],
        [cache.get(f"blocks.{l}.ln1.hook_scale") for l in layers],
        cache.get("ln_final.hook_scale"),
    )


def read(norm: nn.Module, x: Tensor, scale: Tensor | None) -> Tensor:
    """The linear part of a norm whose scale is given, (x - mean x) / s * w; x without a norm."""
    if scale is None:
        return x
    n = (x - x.mean(-1, keepdim=True)) / scale
    return n if norm.w is None else n * norm.w


def read_weights(norm: nn.Module, W: Float[Tensor, "*lead d_model out"]) -> Tensor:
    """M with read(norm, x, 1) W = x M: the norm's centring and gain moved into the matrix."""
    if isinstance(norm, nn.Identity):
        return W
    W = W if norm.w is None else norm.w[:, None] * W
    return W - W.mean(-2, keepdim=True)


def hold_scales(model: Transformer, frozen: Frozen) -> Cut:
    """Every norm divides by the scale that it had: under another cut, the streams stay linear.

    Recomputed: nothing by itself. Frozen: norm scales, not patterns. No hooks without a norm.
    """
    places = {f"blocks.{l}.ln1.hook_scale": s for l, s in enumerate(frozen.scales)}
    places["ln_final.hook_scale"] = frozen.last_scale
    hooks = tuple((name, _held(s)) for name, s in places.items() if s is not None)
    return Cut(hooks, frozen=("norm scales",) if hooks else ())


def _held(scale: Tensor) -> Callable:
    def hold(new: Tensor, hook: Any) -> Tensor:  # a block's norm may run once for every head
        return scale if new.ndim == scale.ndim else scale[:, :, None].expand_as(new)

    return hold


def norm_bias(norm: nn.Module, like: Tensor) -> Tensor:
    """The constant part of a norm: its bias b, and zeros when it has none or has been folded."""
    b = getattr(norm, "b", None)
    return torch.zeros_like(like) if b is None else b


def _layer_bias(model: Transformer, frozen: Frozen, layer: int) -> Tensor | None:
    # [batch, pos, d_model]: sum over heads of A 1 (b_LN W_V + b_V) W_O, plus b_O. Rows of A sum to
    # 1, unless somebody edited the pattern, so the sum is taken and not assumed.
    attn, norm = model.blocks[layer].attn, model.blocks[layer].ln1
    if attn.b_O is None and getattr(norm, "b", None) is None:
        return None
    b = torch.einsum("d,hde->he", norm_bias(norm, model.W_E[0]), attn.W_V)
    if attn.b_V is not None:
        b = b + attn.b_V
    total = frozen.patterns[layer].sum(-1)  # [batch, head, pos]
    out = torch.einsum("bhp,he,hed->bpd", total, b, attn.W_O)
    return out if attn.b_O is None else out + attn.b_O


def sources(
    model: Transformer,
    tokens: Int[Tensor, "batch pos"],
    frozen: Frozen,
    *,
    below: int | None = None,
    direct: bool = False,
) -> Iterator[tuple[str, int, Tensor]]:
    """(name, first layer that can read it, [batch, pos, d_model]) for all that enters the stream.

    direct: token and position (when it is in the stream) as one source, called "direct".
    """
    _check(model)
    x = model.W_E[tokens]
    standard = model.cfg.positions == "standard"
    position = model.W_pos[: tokens.shape[1]].expand_as(x)
    if direct:
        yield "direct", 0, x + position if standard else x
    else:
        yield "token", 0, x
        if standard:
            yield "position", 0, position
    for layer in range(model.cfg.n_layers if below is None else below):
        bias = _layer_bias(model, frozen, layer)
        if bias is not None:
            yield f"bias {layer}", layer + 1, bias


@torch.no_grad()
def expand(
    model: Transformer,
    tokens: Int[Tensor, "batch pos"],
    frozen: Frozen,
    *,
    below: int | None = None,
    direct: bool = False,
) -> Iterator[Term]:
    """Every term of the last stream, one at a time; their sum is that stream (before its norm).

    below: of the stream that enters this layer instead. direct: see `sources`. The tokens need not
    be those of `frozen`: then the terms are those of a model whose patterns stay as they were.
    Raises ValueError for a model with MLPs.
    """
    last = model.cfg.n_layers if below is None else below
    for name, layer, x in sources(model, tokens, frozen, below=last, direct=direct):
        yield from _through(model, frozen, Term(name, (), x, None), layer, last)


def _through(
    model: Transformer, frozen: Frozen, term: Term, layer: int, last: int
) -> Iterator[Term]:
    yield term
    write = term.write if layer < last else None  # nobody reads after the last layer
    for l in range(layer, last):
        attn, x = model.blocks[l].attn, read(model.blocks[l].ln1, write, frozen.scales[l])
        for h in range(model.cfg.n_heads):
            z = frozen.patterns[l][:, h] @ (x @ attn.W_V[h])  # A (x W_V): [batch, pos, d_head]
            longer = Term(term.source, (*term.path, (l, h)), z, attn.W_O[h])
            yield from _through(model, frozen, longer, l + 1, last)


def gather(terms: Iterable[Term], key: Callable[[Term], Hashable] = lambda t: "all") -> dict:
    """key -> the sum of its terms' writes [batch, pos, d_model], added as the terms come.

    Holds one stream for each key. `key=lambda t: t.order` sums by order.
    """
    sums: dict[Hashable, Tensor] = {}
    for term in terms:
        k, write = key(term), term.write
        sums[k] = sums[k].add_(write) if k in sums else write.clone()
    return sums


def logits(
    model: Transformer, write: Float[Tensor, "*axes d_model"], frozen: Frozen
) -> Float[Tensor, "*axes d_vocab"]:
    """What a write adds to the logits, without the unembedding bias: read(write) W_U."""
    return read(model.ln_final, write, frozen.last_scale) @ model.W_U


def unembed_bias(model: Transformer) -> Float[Tensor, " d_vocab"]:
    """What the logits hold whatever the stream is: b_LN W_U + b_U; zeros without biases."""
    b = norm_bias(model.ln_final, model.W_E[0]) @ model.W_U
    return b if model.unembed.b_U is None else b + model.unembed.b_U


# ---------------------------------------------------------------- patterns, from the weights


@torch.no_grad()
def patterns_from_terms(
    model: Transformer,
    tokens: Int[Tensor, "batch pos"],
    scales: list[Tensor | None] | None = None,
    divide: bool = True,
) -> list[Tensor]:
    """Every layer's pattern from expanded scores, with no forward pass: softmax of a double sum.

    score = sum over terms a (query side) and b (key side) of q_a k_b^T / sqrt(d_head). The terms
    are those of the stream entering the layer, the shortformer position, and the biases; earlier
    layers' patterns are the ones computed here. With a norm, give the frozen `scales`.
    divide=False leaves 1/sqrt(d_head) out: a mutant that a sum of replayed patterns cannot see.
    """
    L, n = model.cfg.n_layers, tokens.shape[1]
    scales = [None] * L if scales is None else scales
    if model.cfg.norm != "none" and None in scales:
        raise ValueError("with a norm the scales must be given: record(model, tokens).scales")
    patterns: list[Tensor] = []
    for l, block in enumerate(model.blocks):
        attn, frozen = block.attn, Frozen(patterns, scales, None)
        writes = [
            read(block.ln1, term.write, scales[l])
            for term in expand(model, tokens, frozen, below=l, direct=True)
        ]
        if model.cfg.positions == "shortformer":
            writes.append(model.W_pos[:n].expand_as(writes[0]))
        constant = norm_bias(block.ln1, model.W_E[0])
        sides = []
        for W, b in ((attn.W_Q, attn.b_Q), (attn.W_K, attn.b_K)):
            parts = [torch.einsum("bpd,hde->bhpe", x, W) for x in writes]
            bias = torch.einsum("d,hde->he", constant, W)
            bias = bias if b is None else bias + b
            if bool(bias.any()):
                parts.append(bias[None, :, None].expand_as(parts[0]))
            sides.append(parts)
        scores = sum(q @ k.mT for q in sides[0] for k in sides[1])
        if divide:
            scores = scores / model.cfg.d_head**0.5
        patterns.append(scores.masked_fill(causal_mask(n, tokens.device), -torch.inf).softmax(-1))
    return patterns


# ---------------------------------------------------------------- does it add up?


@torch.no_grad()
def sum_error(
    model: Transformer,
    tokens: Int[Tensor, "batch pos"],
    frozen: Frozen | None = None,
    keep: Callable[[str], bool] = lambda source: True,
    rows: int = 64,
) -> float:
    """max |sum of the terms' logits - logits| / max |logits|; `keep` may leave sources out.

    frozen: record(model, tokens) unless another is given. `rows` positions of logits at a time.
    """
    frozen = record(model, tokens) if frozen is None else frozen
    terms = (t for t in expand(model, tokens, frozen) if keep(t.source))
    total = read(model.ln_final, gather(terms)["all"], frozen.last_scale)
    bias = unembed_bias(model) if keep("unembedding bias") else 0.0
    stream, largest, worst = model.stream(tokens), 0.0, 0.0
    for x, y in zip(stream.flatten(0, 1).split(rows), total.flatten(0, 1).split(rows), strict=True):
        truth = model.unembed(x[None])[0]
        largest = max(largest, truth.abs().max().item())
        worst = max(worst, (truth - (y @ model.W_U + bias)).abs().max().item())
    return worst / largest


@torch.no_grad()
def left_out(model: Transformer, tokens: Int[Tensor, "batch pos"]) -> dict[str, float]:
    """`sum_error` of a LayerNorm model with nothing left out, and with one thing at a time.

    "scales": every scale is taken as 1. "biases", "positions": those sources are missing.
    """
    frozen = record(model, tokens)
    ones = [torch.ones_like(s) for s in (*frozen.scales, frozen.last_scale)]
    return {
        "nothing": sum_error(model, tokens, frozen),
        "scales": sum_error(model, tokens, Frozen(frozen.patterns, ones[:-1], ones[-1])),
        "biases": sum_error(model, tokens, frozen, lambda s: "bias" not in s),
        "positions": sum_error(model, tokens, frozen, lambda s: s != "position"),
    }


@torch.no_grad()
def swapped(model: Transformer, tokens: Int[Tensor, "batch pos"]) -> dict[str, float]:
    """The 81-term sum of a two-layer model with one order swapped in the virtual heads: errors.

    "positions": A1 A2 X W_OV1 W_OV2.  "features": A2 A1 X W_OV2 W_OV1.  Relative to the largest
    logit, as `sum_error`. With a norm every map reads at the frozen scale of its own layer.
    """
    frozen, norms = record(model, tokens), [block.ln1 for block in model.blocks]
    X = sum(x for _, layer, x in sources(model, tokens, frozen) if layer == 0)
    (A1, A2), (V, O) = frozen.patterns, (model.W_V, model.W_O)
    short = gather(t for t in expand(model, tokens, frozen) if t.order < 2)["all"]
    truth, out = model(tokens), {}

    def through(x: Tensor, layer: int, A: Tensor, at: tuple[int, int]) -> Tensor:
        return A @ (read(norms[layer], x, frozen.scales[layer]) @ V[at]) @ O[at]

    for name in ("positions", "features"):
        total = short.clone()
        for g in range(model.cfg.n_heads):
            for h in range(model.cfg.n_heads):
                A, B = A1[:, g], A2[:, h]
                if name == "positions":
                    total += through(through(X, 0, B, (0, g)), 1, A, (1, h))
                else:
                    total += through(through(X, 0, A, (1, h)), 1, B, (0, g))
        wrong = logits(model, total, frozen) + unembed_bias(model)
        out[name] = relative_change(truth, wrong)
    return out
