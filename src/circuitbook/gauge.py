"""Other weights, the same function: the four changes that a number about a head should survive.

| change               | what is replaced (rows)                                    | keeps       |
|----------------------|------------------------------------------------------------|-------------|
| head coordinates R   | W_Q R, W_K R^-T, W_V R, R^-1 W_O                           | all outputs |
| stream coordinates G | W_E G, W_pos G, W_O G, and G^-1 before each reading matrix | all outputs |
| unembedding          | W_U + c 1^T                                                | next tokens |
| keys                 | k + k0 for every key: a query's scores all move by q . k0  | patterns    |

A number that one of these moves says something about how the weights are written down, not about
what the model does. `fingerprint` computes such numbers, `movement` compares two fingerprints.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook import scan
from circuitbook.model import Transformer

_READS = ("W_Q", "W_K", "W_V", "W_in", "W_gate", "W_router")
_WRITES = ("W_O", "W_out", "b_O", "b_out")


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
    """A copy of the model with other weights: W_E, W_U, W_pos, or W_Q, W_K, W_V, W_O stacked.

    Stacked means [layer, head, ...], as `model.W_Q` gives them. Raises ValueError on another name
    or shape.
    """
    new = copy.deepcopy(model)
    for name, value in weights.items():
        homes = {"W_E": [new.embed], "W_U": [new.unembed], "W_pos": [new.pos_embed]}
        stacked = name in ("W_Q", "W_K", "W_V", "W_O")
        if name not in homes and not stacked:
            raise ValueError(f"no weights are called {name!r}: use {', '.join(homes)}, W_Q … W_O")
        parts = [b.attn for b in new.blocks] if stacked else homes[name]
        for part, tensor in zip(parts, value if stacked else [value], strict=True):
            place = getattr(part, name)
            if place.shape != tensor.shape:
                raise ValueError(f"{name} is {tuple(place.shape)}, got {tuple(tensor.shape)}")
            place.copy_(tensor)
    return new


@torch.no_grad()
def change_stream(model: Transformer, G: Float[Tensor, "d_model d_model"]) -> Transformer:
    """x -> x G in the whole stream: what writes is multiplied by G, what reads by G^-1 before.

    Exact for any invertible G without norm, because the stream is only added to and read linearly.
    The positions of queries and keys are read by the same matrices, so W_pos turns too. Refuses
    LayerNorm: it subtracts the coordinates' mean and fixes their length, which most G change.
    """
    if model.cfg.norm != "none":
        raise ValueError("with LayerNorm only some rotations of the stream keep the function")
    new = copy.deepcopy(model)
    G = G.to(model.W_E.device, torch.float64)  # rounded once, at the end: float32 logits stay put
    back = torch.linalg.inv(G)
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
    some = torch.arange(0, model.cfg.d_vocab, 4)  # every fourth token is enough to see a change
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

    change_heads(W_Q, W_K, W_V, W_O, R) gives the four matrices in head coordinates R. R and G have
    condition 10. Use a float64 model with W_U as trained, or nothing can be told from rounding.
    """
    generator, d_head = torch.Generator().manual_seed(seed), model.cfg.d_head
    R = invertible(*model.W_Q.shape[:2], d_head, d_head, generator=generator).to(model.W_E)
    G = invertible(model.cfg.d_model, model.cfg.d_model, generator=generator)
    c = torch.randn(model.cfg.d_model, 1, generator=generator).to(model.W_E) * model.W_U.std()
    k0 = torch.randn(d_head, generator=generator)
    parts = change_heads(model.W_Q, model.W_K, model.W_V, model.W_O, R)
    turned = with_weights(model, **dict(zip(("W_Q", "W_K", "W_V", "W_O"), parts, strict=True)))
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
    return {change: movement(old, f) for change, f in new.items()}, error.item()
