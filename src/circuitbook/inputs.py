"""What a head reads of a token alone and of a position alone, with and without LayerNorm.

Without norm a head reads the stream itself. With LayerNorm it reads x P / s (times the gain): the
scale s belongs to the whole stream, so a part can be read alone only once s is chosen.

| picture     | the part that is read | its scale, frozen at                                      |
|-------------|-----------------------|-----------------------------------------------------------|
| token table | W_E[token]            | the token's own, as if nothing else stood in the stream   |
| position    | W_pos[position]       | the text's: mean of 1/s at that position, over windows    |

So token tables are exact for a stream of one token, and an approximation where positions are in it:
`scale_share` measures how far s moves. Biases are read too; b_K and all else that is constant for a
query is invisible to softmax. Rows of an OV table stay in units before the final norm.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook import gauge, paths, scan
from circuitbook.expansion.expand import norm_bias, read
from circuitbook.induction import public
from circuitbook.model import Transformer


def _scale(model: Transformer, layer: int, x: Tensor) -> Tensor | None:
    """s = sqrt(|x P|^2 / d + eps) of the norm before a layer's heads; None without one."""
    if model.cfg.norm == "none":
        return None
    centred = x - x.mean(-1, keepdim=True)
    return (centred.square().mean(-1, keepdim=True) + model.blocks[layer].ln1.eps).sqrt()


def alone(
    model: Transformer, layer: int = 0, tokens: Int[Tensor, " n"] | None = None
) -> Float[Tensor, "n d_model"]:
    """e P / s(e): what a layer's heads read of tokens that stand alone; W_E itself without norm.

    The norm's own bias is left to the biases of the head. Default: all tokens.
    """
    e = model.W_E if tokens is None else model.W_E[tokens]
    return read(model.blocks[layer].ln1, e, _scale(model, layer, e))


def bias(model: Transformer, which: str, layer: int) -> Float[Tensor, "head d_head"] | None:
    """b_LN W + b: what each head of a layer adds to every query ("Q") or key ("K"); None if none.

    b_LN is the bias of a LayerNorm that is not folded.
    """
    attn, norm = model.blocks[layer].attn, model.blocks[layer].ln1
    b = getattr(attn, f"b_{which}")
    if getattr(norm, "b", None) is None:
        return b
    shift = torch.einsum("d,hde->he", norm_bias(norm, model.W_E[0]), getattr(attn, f"W_{which}"))
    return shift if b is None else shift + b


def qk_factors(
    model: Transformer,
    layer: int,
    head: int,
    *,
    centre: bool = True,
    tokens: Int[Tensor, " n"] | None = None,
    dtype: torch.dtype | None = None,
) -> scan.Factors:
    """The head's token QK table as thin factors, scores of a stream that holds tokens alone.

    With LayerNorm every token has its own scale and b_Q is there, or the table would rank keys
    wrongly. `tokens`: a table of these only (centring included).
    """
    dtype = dtype or model.W_E.dtype
    b_Q, b_K = (
        b if b is None else b[head].to(dtype) for b in (bias(model, x, layer) for x in "QK")
    )
    E, W_Q, W_K = (
        x.to(dtype)
        for x in (alone(model, layer, tokens), model.W_Q[layer, head], model.W_K[layer, head])
    )
    return scan.qk_factors(E, W_Q, W_K, b_Q=b_Q, b_K=b_K, centre=centre)


def ov_factors(
    model: Transformer,
    layer: int,
    head: int,
    *,
    centre: bool = True,
    tokens: Int[Tensor, " n"] | None = None,
) -> scan.Factors:
    """The head's OV table with each source at its own scale; the final norm's scale is left out.

    So entries are logits times the final scale of the place where they are read: one positive
    number for a place. `tokens`: rows and columns of these only (centring included).
    """
    norm = model.ln_final
    W_U = model.W_U if tokens is None else model.W_U[:, tokens]
    if getattr(norm, "w", None) is not None:
        W_U = norm.w[:, None] * W_U
    E, W_O = alone(model, layer, tokens), model.W_O[layer, head]
    if model.cfg.norm != "none":  # the final norm takes the mean of what is written away
        W_O = W_O - W_O.mean(-1, keepdim=True)
    return scan.ov_factors(E, model.W_V[layer, head], W_O, W_U, centre=centre)


@torch.no_grad()
def scales(model: Transformer, windows: Int[Tensor, "window pos"]) -> list[Tensor | None]:
    """Every layer's s [window, pos, 1] on text; None without norm."""
    kept: dict[str, Tensor] = {}

    def keep(s: Tensor, hook: Any) -> None:
        kept[hook.name] = s

    names = [f"blocks.{layer}.ln1.hook_scale" for layer in range(model.cfg.n_layers)]
    if model.cfg.norm == "none":
        return [None] * len(names)
    with model.hooks(fwd_hooks=[(name, keep) for name in names]):
        model.stream(windows)
    return [kept[name] for name in names]


@torch.no_grad()
def positional(
    model: Transformer, windows: Int[Tensor, "window pos"]
) -> tuple[Tensor, Tensor, Tensor]:
    """(W_Q, W_K, positions) for p W_Q (p W_K)^T: the part of a score that no token changes.

    Without norm the weights as they are. With LayerNorm and positions in the stream: p P / s with
    1/s at its mean over the windows, and biases as one more row of W_Q and W_K, read by a 1 beside
    every position; [layer, 1, pos, d_model + 1], as long as the windows.
    """
    cfg, n = model.cfg, windows.shape[1]
    if cfg.norm == "none" and not cfg.attn_bias:
        return model.W_Q, model.W_K, model.W_pos
    rows = []
    for layer, s in enumerate(scales(model, windows)):
        p = model.W_pos[:n]
        if cfg.positions == "standard":  # shortformer positions join after the norm
            mean = None if s is None else 1 / (1 / s).mean(0)
            p = read(model.blocks[layer].ln1, p, mean)
        rows.append(p)
    p = torch.stack(rows)[:, None]
    if not cfg.attn_bias:
        return model.W_Q, model.W_K, p
    one = torch.ones_like(p[..., :1])
    return gauge.with_bias(model, "Q"), gauge.with_bias(model, "K"), torch.cat([p, one], -1)


@torch.no_grad()
def scale_share(model: Transformer, windows: Int[Tensor, "window pos"]) -> float:
    """mean |s / s(e) - 1| on text, first layer: how far a position moves its token's scale."""
    s = scales(model, windows)[0]
    if s is None:
        return 0.0
    own = _scale(model, 0, model.W_E[windows])
    return (s / own - 1).abs()[:, 1:].mean().item()


def own_row(model: Transformer, place: int, tokens: Int[Tensor, " n"]) -> dict[int, float]:
    """Shares of tokens that are on top, and in the top 10, of their own OV row; place = 8 l + h."""
    at = divmod(place, model.cfg.n_heads)
    factors = scan.ov_factors(model.W_E, model.W_V[at], model.W_O[at], model.W_U)
    return scan.self_shares(scan.self_rank(*factors, rows=tokens))


def public_rows(
    one: Transformer, two: Transformer, copying: dict[str, list], place: int
) -> dict[str, Any]:
    """{"series": row -> value} by the public protocol, on the published models; else nothing.

    self_top1 and self_top10: 2,000 drawn ids, repeats among them. prev_token: repeated random ids.
    copying, place: the two-layer model's table, and where its induction head stands in it.
    """
    if paths.models() == "course":
        return {}
    own, other = (public.draws(f"attn-only-{m.cfg.n_layers}l", m.cfg.d_vocab) for m in (one, two))
    shares = own_row(two, place, other.ov)
    top = [own_row(one, h, own.ov)[1] for h in range(one.cfg.n_heads)]
    previous = public.behaviour(one, own.repeats)[0][0]
    copier = {
        "eigen_score": copying["score"][place],
        "self_top1": shares[1],
        "self_top10": shares[10],
    }
    rows = {
        "attn-only-1l.self_top1": top,
        "attn-only-1l.prev_token": previous,
        "attn-only-2l.ov_1.6": copier | {"our_head": copying["head"][place]},
    }
    return {"series": {f"heads.{name}": value for name, value in rows.items()}}
