"""Other weights, the same function: the four changes that a number about a head should survive.

| change               | what is replaced (rows)                                    | keeps       |
|----------------------|------------------------------------------------------------|-------------|
| head coordinates R   | W_Q R, W_K R^-T, W_V R, R^-1 W_O                           | all outputs |
| stream coordinates G | W_E G, W_pos G, W_O G, and G^-1 before each reading matrix | all outputs |
| unembedding          | W_U + c 1^T                                                | next tokens |
| keys                 | k + k0 for every key: a query's scores all move by q . k0  | patterns    |

Biases of queries, keys and values are one more row of W_Q, W_K, W_V and change with them. With
LayerNorm most G are no gauge. Free are turns about the all-ones direction and shears along it,
x -> x + (x . v) 1, and what they compose to (`is_free`). A shear rewrites only what heads write, so
it moves sizes, ranks, cosines and composition scores, as an invertible G does without norm. Centred
writing weights (`fold.center_writing_weights`) are one choice of shear, and a convention.

A number that one of these moves says something about how the weights are written down, not about
what the model does. `fingerprint` computes such numbers, `movement` compares two fingerprints.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook import scan
from circuitbook.claims import all_of, atleast, bound
from circuitbook.model import Transformer

_READS = ("W_Q", "W_K", "W_V", "W_in", "W_gate", "W_router")
_WRITES = ("W_O", "W_out", "b_O", "b_out")
_STACKED = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O")


def invertible(
    *shape: int, condition: float = 10.0, generator: torch.Generator | None = None
) -> Float[Tensor, "*shape"]:
    """U diag(s) V^T with random rotations U, V and log s evenly spaced, s_1 / s_n = condition.

    The last two of `shape` are equal; the ones before are batch axes. condition=1 gives a rotation.
    float64.
    """
    if len(shape) < 2 or shape[-1] != shape[-2] or condition < 1:
        raise ValueError(f"needs a square last pair and condition >= 1, got {shape}, {condition}")
    draw = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    u, v = torch.linalg.qr(draw)[0]
    s = torch.logspace(0, -1, shape[-1], base=condition, dtype=torch.float64) * condition**0.5
    return u * s @ v


@torch.no_grad()
def with_weights(model: Transformer, **weights: Tensor) -> Transformer:
    """A copy of the model with other weights: W_E, W_U, W_pos, or W_Q … W_O, b_Q … b_O stacked.

    Stacked means [layer, head, ...], as `model.W_Q` gives them. Raises ValueError on another name
    or shape, and for a bias that the model does not have.
    """
    new = copy.deepcopy(model)
    for name, value in weights.items():
        homes = {"W_E": [new.embed], "W_U": [new.unembed], "W_pos": [new.pos_embed]}
        stacked = name in _STACKED
        if name not in homes and not stacked:
            raise ValueError(f"no weights are called {name!r}: use {', '.join(homes)}, W_Q … W_O")
        parts = [b.attn for b in new.blocks] if stacked else homes[name]
        for part, tensor in zip(parts, value if stacked else [value], strict=True):
            place = getattr(part, name)
            if place is None or place.shape != tensor.shape:
                found = "missing in this model" if place is None else tuple(place.shape)
                raise ValueError(f"{name} is {found}, got {tuple(tensor.shape)}")
            place.copy_(tensor)
    return new


def with_bias(model: Transformer, which: str) -> Float[Tensor, "layer head rows d_head"]:
    """x W + b = (x, 1) [W; b]: W_Q, W_K or W_V ("Q", "K", "V") with its bias as one more row.

    Without biases the matrix alone.
    """
    W = getattr(model, f"W_{which}")
    if not model.cfg.attn_bias:
        return W
    b = torch.stack([getattr(block.attn, f"b_{which}") for block in model.blocks])
    return torch.cat([W, b[:, :, None]], 2)


def split_bias(model: Transformer, which: str, both: Tensor) -> dict[str, Tensor]:
    """The weights of `with_bias` under their names, for `with_weights`."""
    if not model.cfg.attn_bias:
        return {f"W_{which}": both}
    return {f"W_{which}": both[..., :-1, :], f"b_{which}": both[..., -1, :]}


def turn_heads(
    model: Transformer, change_heads: Callable[..., tuple[Tensor, ...]], R: Tensor
) -> Transformer:
    """The same function in head coordinates R; biases change as rows of W_Q, W_K, W_V do.

    change_heads(W_Q, W_K, W_V, W_O, R) gives the four matrices in head coordinates R.
    """
    *three, W_O = change_heads(*(with_bias(model, x) for x in "QKV"), model.W_O, R)
    parts = [split_bias(model, x, both) for x, both in zip("QKV", three, strict=True)]
    return with_weights(model, **parts[0], **parts[1], **parts[2], W_O=W_O)


def free_turn(d: int, generator: torch.Generator) -> Float[Tensor, "d d"]:
    """A random orthogonal G with 1 G = 1: a turn about the all-ones direction. float64."""
    G = torch.eye(d, dtype=torch.float64)
    G[1:, 1:] = invertible(d - 1, d - 1, condition=1.0, generator=generator)
    ones = torch.ones(d, 1, dtype=torch.float64)
    basis = torch.linalg.qr(torch.cat([ones, torch.eye(d, dtype=torch.float64)[:, 1:]], 1))[0]
    return basis @ G @ basis.mT  # the first basis vector is 1 / sqrt(d), up to its sign


def shear(v: Float[Tensor, " d"]) -> Float[Tensor, "d d"]:
    """I + v 1^T: x becomes x + (x . v) 1. Invertible unless 1 . v = -1; float64."""
    return torch.eye(len(v), dtype=torch.float64) + v.double()[:, None]


def free_change(
    model: Transformer, generator: torch.Generator, condition: float = 10.0, length: float = 3.0
) -> Float[Tensor, "d_model d_model"]:
    """A random G that keeps the function: any invertible one; a turn and a shear with LayerNorm.

    Without norm G has this `condition`. With it G is a `free_turn`, then a `shear` by a random v of
    this `length`, with 1 . v > 0: a write in a random direction across the ones becomes about
    sqrt(1 + length^2) times as long. float64.
    """
    d = model.cfg.d_model
    if model.cfg.norm == "none":
        return invertible(d, d, condition=condition, generator=generator)
    turn, v = free_turn(d, generator), torch.randn(d, generator=generator, dtype=torch.float64)
    return turn @ shear(v * v.sum().sign() * length / v.norm())


def is_free(model: Transformer, G: Float[Tensor, "d_model d_model"]) -> bool:
    """Is x G read through G^-1 as x is, for every x? LayerNorm asks 1 G P = 0 and PGP orthogonal.

    P = I - 11^T/d is what LayerNorm keeps: of x G it reads x G P, over its length. So what stood
    along 1 must not come into sight (1 G P = 0), and the rest must keep all lengths: M = P G P has
    M M^T = P. What G adds along 1 is free, because nobody reads it. For every x both are needed; a
    model whose writing weights are centred makes no x with a part along 1 and allows some more.
    Without norm every invertible G is free.
    """
    if model.cfg.norm == "none":
        return True
    G, d = G.double(), model.cfg.d_model
    P = torch.eye(d, dtype=G.dtype, device=G.device) - 1 / d
    seen = G @ P
    errors = seen.sum(0), P @ seen @ seen.mT @ P - P
    return max(e.abs().max().item() for e in errors) < 1e-6


@torch.no_grad()
def change_stream(
    model: Transformer, G: Float[Tensor, "d_model d_model"], *, free: bool = True
) -> Transformer:
    """x -> x G in the whole stream: what writes is multiplied by G, what reads by G^-1 before.

    Exact for any invertible G without norm, because the stream is only added to and read linearly.
    The positions of queries and keys are read by the same matrices, so W_pos turns too. LayerNorm
    subtracts the coordinates' mean and fixes their length, which most G change: ValueError unless
    G `is_free` and the norm's gains are folded away. free=False does it anyway, for showing that.
    What reads behind a LayerNorm reads nothing along 1, and is centred first (P W reads the same).
    """
    if model.cfg.norm == "layernorm":
        raise ValueError("this LayerNorm has gains, one for each coordinate: fold them first")
    if free and not is_free(model, G):
        raise ValueError("with LayerNorm G may turn about the all-ones and add along them, only")
    new = copy.deepcopy(model)
    G = G.to(model.W_E.device, torch.float64)  # rounded once, at the end: float32 logits stay put
    back = torch.linalg.inv(G)
    if model.cfg.norm != "none" and model.cfg.positions == "standard":
        back = back - back.mean(1, keepdim=True)  # G^-1 P
    for name, p in new.named_parameters():
        kind = name.rsplit(".", 1)[-1]
        if kind in ("W_E", "W_pos", *_WRITES):
            p.copy_(p.double() @ G)
        elif kind in (*_READS, "W_U"):
            p.copy_(back @ p.double())
    if model.cfg.pos_kind == "sinusoidal":
        new.pos_embed.W_pos.copy_(model.W_pos.double() @ G)
    return new


def effective_rank(s: Float[Tensor, "*heads n"]) -> Float[Tensor, "*heads"]:
    """(sum s^2)^2 / sum s^4: k equal singular values give k, one giant value gives 1; zeros give 0.

    Source: participation ratio, applied to squared singular values.
    """
    power = s.double().square()
    total = power.square().sum(-1)
    return torch.where(total > 0, power.sum(-1).square() / total.clamp_min(1e-300), 0.0)


@torch.no_grad()
def fingerprint(
    model: Transformer,
    tokens: Int[Tensor, "batch pos"],
    key_shift: Float[Tensor, " d_head"] | None = None,
) -> dict[str, Tensor]:
    """Twelve quantities that people print about heads, for all heads at once, uncentred W_U as is.

    `key_shift` is added to every key of every head: the per-query constant, done by a hook.
    """
    if key_shift is not None:
        for block in model.blocks:
            block.attn.hook_k.add_hook(lambda k, hook: k + key_shift.to(k))
    try:
        logits, cache = model.run_with_cache(
            tokens, names_filter=lambda n: n.endswith(("hook_pattern", "hook_attn_scores"))
        )
    finally:
        model.reset_hooks()
    layers = range(model.cfg.n_layers)
    scores = torch.stack([cache[f"blocks.{i}.attn.hook_attn_scores"] for i in layers])
    allowed = scores > -torch.inf
    scores = scores.masked_fill(~allowed, 0.0)
    mean = scores.sum(-1, keepdim=True) / allowed.sum(-1, keepdim=True)
    W_V, W_O = model.W_V, model.W_O
    W_OV = W_V @ W_O
    raw = scan.ov_factors(model.W_E, W_V, W_O, model.W_U, centre=False)
    centred = scan.ov_factors(model.W_E, W_V, W_O, model.W_U)
    step = max(4, -(-model.cfg.d_vocab // scan.ROWS))  # a thousand tokens show a change
    some = torch.arange(0, model.cfg.d_vocab, step)
    heads = zip(centred.A.flatten(0, 1), centred.B.flatten(0, 1), strict=True)
    first = [scan.self_rank(A, B, rows=some) for A, B in heads]
    return {
        "logits": logits,
        "probabilities": logits.softmax(-1),
        "attention pattern": torch.stack([cache[f"blocks.{i}.attn.hook_pattern"] for i in layers]),
        "raw attention score": scores,
        "score − row mean": (scores - mean).masked_fill(~allowed, 0.0),
        "size of W_V": torch.linalg.matrix_norm(W_V),
        "size of W_OV": torch.linalg.matrix_norm(W_OV),
        "effective rank of W_OV": effective_rank(torch.linalg.svdvals(W_OV)),
        "eigenvalues of W_OV (sum)": W_OV.diagonal(dim1=-2, dim2=-1).sum(-1),
        "copying score, raw W_U": scan.copying_score(*raw),
        "copying score, centred W_U": scan.copying_score(*centred),
        "self top-1 share": (torch.stack(first) == 1).double().mean(-1),
    }


def movement(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> dict[str, float]:
    """max |new - old| / max |old| for every quantity of two fingerprints."""
    return {
        name: ((new[name] - was).abs().max() / was.abs().max().clamp_min(1e-30)).item()
        for name, was in old.items()
    }


def survival(
    model: Transformer,
    tokens: Int[Tensor, "batch pos"],
    change_heads: Callable[..., tuple[Tensor, ...]],
    seed: int = 0,
) -> tuple[dict[str, dict[str, float]], float]:
    """(change -> quantity -> movement, largest error of W_QK and W_OV under the change of heads).

    change_heads: see `turn_heads`. R has condition 10, and so has G, unless there is LayerNorm
    (`free_change`); then ANY_G says how far a G that is not free moves the probabilities. Use a
    float64 model with W_U as trained, or nothing can be told from rounding.
    """
    generator, d_head = torch.Generator().manual_seed(seed), model.cfg.d_head
    R = invertible(*model.W_Q.shape[:2], d_head, d_head, generator=generator).to(model.W_E)
    G = free_change(model, generator)
    c = torch.randn(model.cfg.d_model, 1, generator=generator).to(model.W_E) * model.W_U.std()
    k0 = torch.randn(d_head, generator=generator)
    turned = turn_heads(model, change_heads, R)
    old = fingerprint(model, tokens)
    new = {
        "head coordinates R": fingerprint(turned, tokens),
        "stream coordinates G": fingerprint(change_stream(model, G), tokens),
        "W_U + c 1ᵀ": fingerprint(with_weights(model, W_U=model.W_U + c), tokens),
        "constant per query": fingerprint(model, tokens, k0),
    }
    error = max(
        (
            (getattr(turned, w).AB - getattr(model, w).AB).abs().max()
            / getattr(model, w).AB.abs().max()
        )
        for w in ("QK", "OV")
    )
    moves = {change: movement(old, f) for change, f in new.items()}
    if model.cfg.norm != "none":
        other = invertible(model.cfg.d_model, model.cfg.d_model, generator=generator)
        moved = change_stream(model, other, free=False)(tokens).softmax(-1)
        old = {"probabilities": old["probabilities"]}
        moves["stream coordinates G"][ANY_G] = movement(old, {"probabilities": moved})[
            "probabilities"
        ]
    return moves, error.item()


ANY_G = "probabilities, a G that is not free"


def stream_claim(moves: Mapping[str, float]) -> dict[str, Any]:
    """What chapter 02 may say of the stream's coordinates, given G's row of `survival`.

    Sizes and ranks of W_OV belong to the coordinates, with LayerNorm as without.
    """
    kept = max(moves[q] for q in ("logits", "copying score, centred W_U"))
    size, rank = moves["size of W_OV"], moves["effective rank of W_OV"]
    tests = [bound(kept, 1e-8), atleast(size, 0.1), atleast(rank, 0.01)]
    which, more = "(condition {cond}) ", ""
    values: dict[str, Any] = {"cond": 10, "limit": 1e-8, "size": size, "rank": rank}
    if ANY_G in moves:
        which = "that LayerNorm cannot see (a turn about the all-ones direction, then a shear, "
        which += "`x + (x · v) 1`) "
        more = " An invertible change that is not free (condition {cond}) moves a probability by "
        more += "up to {moved:.0%} of the largest."
        tests.append(atleast(moves[ANY_G], 0.01))
        values["moved"] = moves[ANY_G]
    return {
        "label": "identity",
        "text": f"New stream coordinates {which}keep the logits and the copying score to "
        "{limit:g}, but move the size of W_OV by up to {size:.0%} and its effective rank by up to "
        "{rank:.0%}." + more,
        "values": values,
        "holds": all_of(*tests),
    }
