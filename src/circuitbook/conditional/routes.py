"""dy = content route + selection route: how a small change dx passes a block that also selects.

A gated MLP reads x twice, y = (phi(g) * u) W_out + b_out. A small dx changes the content u under
the gate as it stands, and it changes the gate on the content as it stands:

    content   phi(g) * (dx W_in) W_out          gate   u * phi'(g) * (dx W_gate) W_out

A mixture reads x in its experts and in its router, y = sum over selected e of pi_e E_e(x):

    content   sum pi_e J_e                      router   sum (dx . grad pi_e) E_e(x), bias included

The routes are exact derivatives and nothing more: they say where an infinitely small change goes.
Between two routing regions they do not exist. Frozen by them: the set of selected experts.

Rows: dy = dx J with J[in, out]. The routes act on dx [*lead, d_model]; no d x d matrix is made
unless `matrices` is asked.
Source: differentiation; Fedus et al. 2021 and Shazeer et al. 2017 for the router weights.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from circuitbook.conditional.gates import slope
from circuitbook.layers import plus
from circuitbook.mlp import MoE

# What the router's logits are turned into. Our own blocks use the first for k >= 2 and the second
# for k = 1; the others are in use elsewhere.
ROUTERS = ("renormalised", "softmax", "sigmoid", "sigmoid renormalised")


def chosen(logits: Float[Tensor, "*lead expert"], k: int) -> Bool[Tensor, "*lead expert"]:
    """True for the k largest logits of each row."""
    kept = logits.topk(k, dim=-1).indices
    return torch.zeros_like(logits, dtype=torch.bool).scatter(-1, kept, True)


def router_weights(
    logits: Float[Tensor, "*lead expert"], k: int, kind: str = "renormalised"
) -> Float[Tensor, "*lead expert"]:
    """pi_e: zero outside the top k; inside, what `kind` says.

    renormalised           softmax over the selected logits; sums to 1; with k = 1 it is 1, always
    softmax                softmax over all logits, the unselected ones set to 0 afterwards (Switch)
    sigmoid                sigma(logit_e)
    sigmoid renormalised   sigma(logit_e) / sum of sigma over the selected
    Raises ValueError for another kind.
    """
    keep = chosen(logits, k)
    if kind == "renormalised":
        return logits.masked_fill(~keep, -torch.inf).softmax(-1)
    if kind == "softmax":
        return logits.softmax(-1).masked_fill(~keep, 0.0)
    if kind not in ROUTERS:
        raise ValueError(f"unknown router {kind!r}: choose one of {', '.join(ROUTERS)}")
    q = logits.sigmoid().masked_fill(~keep, 0.0)
    return q / q.sum(-1, keepdim=True) if kind == "sigmoid renormalised" else q


def weight_change(
    logits: Float[Tensor, "*#lead expert"],
    change: Float[Tensor, "*#lead expert"],
    k: int,
    kind: str = "renormalised",
) -> Float[Tensor, "*#lead expert"]:
    """d pi_e for a small change d l of the logits, inside one routing region.

    renormalised           pi_e (dl_e - sum over selected f of pi_f dl_f): sums to 0 over them
    softmax                pi_e (dl_e - sum over ALL f of p_f dl_f): unselected experts enter
    sigmoid                pi_e (1 - pi_e) dl_e
    sigmoid renormalised   pi_e [(1 - q_e) dl_e - sum over selected f of pi_f (1 - q_f) dl_f]
    """
    pi = router_weights(logits, k, kind)
    if kind == "sigmoid":
        return pi * (1 - pi) * change
    if kind == "softmax":
        return pi * (change - (logits.softmax(-1) * change).sum(-1, keepdim=True))
    if kind == "sigmoid renormalised":
        change = (1 - logits.sigmoid()) * change
    return pi * (change - (pi * change).sum(-1, keepdim=True))


def own_router(mlp: MoE) -> str:
    """The kind of router that a block of this course has."""
    return "softmax" if mlp.top_k == 1 else "renormalised"


def reader(mlp: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """x, W -> x W; for a mixture with an expert axis after the leading ones."""
    if isinstance(mlp, MoE):
        return lambda x, W: torch.einsum("...d,edm->...em", x, W)
    return torch.matmul


def writer(mlp: nn.Module, post: Tensor) -> Tensor:
    """post W_out, for a mixture expert by expert."""
    if isinstance(mlp, MoE):
        return torch.einsum("...em,emd->...ed", post, mlp.W_out)
    return post @ mlp.W_out


def routes(
    mlp: nn.Module,
    act: str,
    x: Float[Tensor, "*#lead d_model"],
    dx: Float[Tensor, "*#lead d_model"],
    router: str | None = None,
) -> dict[str, Float[Tensor, "*#lead d_model"]]:
    """Route -> its part of dy = dx J(x): "content", and where the block has them "gate", "router".

    act: the config's `act`, which is phi. router: one of ROUTERS, for a mixture; the block's own by
    default. A mixture of gated experts has all three routes. x and dx broadcast.
    """
    read = reader(mlp)
    pre = plus(read(x, mlp.W_in), mlp.b_in)
    if hasattr(mlp, "W_gate"):
        gate = plus(read(x, mlp.W_gate), mlp.b_gate)
        post, to_gate = mlp.act(gate) * pre, pre * slope(act, gate)
        hidden = {"content": mlp.act(gate) * read(dx, mlp.W_in)}
        hidden["gate"] = to_gate * read(dx, mlp.W_gate)
    else:
        post, hidden = mlp.act(pre), {"content": slope(act, pre) * read(dx, mlp.W_in)}
    out = {name: writer(mlp, h) for name, h in hidden.items()}
    if not isinstance(mlp, MoE):
        return out
    kind, logits = router or own_router(mlp), x @ mlp.W_router
    pi = router_weights(logits, mlp.top_k, kind)
    d_pi = weight_change(logits, dx @ mlp.W_router, mlp.top_k, kind)
    expert = plus(
        writer(mlp, post), mlp.b_out
    )  # E_e(x), with its bias: the router scales all of it
    mix = "...e,...ed->...d"
    return {name: torch.einsum(mix, pi, y) for name, y in out.items()} | {
        "router": torch.einsum(mix, d_pi, expert)
    }


def matrices(
    mlp: nn.Module, act: str, x: Float[Tensor, " d_model"], router: str | None = None
) -> dict[str, Float[Tensor, "d_model d_model"]]:
    """Route -> its part of J[in, out] at one x: what `routes` makes of the unit vectors."""
    unit = torch.eye(len(x), dtype=x.dtype, device=x.device)
    return routes(mlp, act, x.expand_as(unit), unit, router)


# ---- where the router's derivative exists --------------------------------------------------------


class RoutingError(ValueError):
    """A small change was asked about where the selected set may change with it."""


def margin(logits: Float[Tensor, "*lead expert"], k: int) -> Float[Tensor, "*lead"]:
    """min over selected of l_e, minus max over unselected: > 0 inside a routing region, 0 at a tie.

    Raises ValueError when no expert is left unselected.
    """
    if not 1 <= k < logits.shape[-1]:
        raise ValueError(
            f"top-{k} of {logits.shape[-1]} experts has no border: nothing is left out"
        )
    top = logits.topk(k + 1, dim=-1).values
    return top[..., k - 1] - top[..., k]


def too_near(
    logits: Float[Tensor, "*#lead expert"],
    change: Float[Tensor, "*#lead expert"],
    k: int,
    times: float = 10.0,
) -> Bool[Tensor, "*lead"]:
    """True where the margin is below times * |change|, as `check_margin` measures the change."""
    return margin(logits, k) < times * (change.amax(-1) - change.amin(-1))


def check_margin(
    logits: Float[Tensor, "*#lead expert"],
    change: Float[Tensor, "*#lead expert"],
    k: int,
    times: float = 10.0,
) -> None:
    """Refuses to compare finite with small changes unless margin >= times * |change| everywhere.

    |change| is the largest difference that a change of the logits makes between two experts: only
    differences move a border. Raises RoutingError, with what to do.
    """
    gap = margin(logits, k)
    moved = change.amax(-1) - change.amin(-1)
    bad = too_near(logits, change, k, times)
    if bad.any():
        at = int((gap - times * moved).argmin())
        have, need = gap.flatten()[at].item(), times * moved.flatten()[at].item()
        raise RoutingError(
            f"{int(bad.sum())} of {bad.numel()} positions are too near a routing border: the "
            f"worst has a margin of {have:.3g}, and the change of its router logits asks for "
            f"{need:.3g}. Take a step {need / max(have, 1e-12):.1f} times smaller, or leave these "
            "positions out."
        )
