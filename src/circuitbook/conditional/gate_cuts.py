"""y(select, content): a block that reads twice, given two different streams to read.

A gated MLP reads the stream in its gate and in its content; a mixture reads it in its router and in
its experts. Here the two get different streams: the whole one, and one without some part w. That is
an intervention on one route alone:

    select only    the gate (router) reads x - w, the content (experts) reads x
    content only   the other way about                    both   both read x - w

Cut: only these direct reads. The stream itself keeps w, so w still reaches the logits. Recomputed:
the block, and the logits. One layer: nothing else comes after. Frozen: nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from circuitbook.conditional.reads import CONTROLS, Reads, removed
from circuitbook.conditional.routes import own_router, reader, router_weights, writer
from circuitbook.cut import Cut
from circuitbook.layers import plus
from circuitbook.mlp import MoE
from circuitbook.model import Transformer
from circuitbook.probe import clustered_mean

ROUTES = ("select", "content", "both")


def experts(mlp: nn.Module, x: Tensor, gate_reads: Tensor | None = None) -> Tensor:
    """What the content branch makes of x: E_e(x) [*lead, expert, d_model], or y [*lead, d_model].

    gate_reads: what the gate reads, where that is another stream.
    """
    read = reader(mlp)
    pre = plus(read(x, mlp.W_in), mlp.b_in)
    if hasattr(mlp, "W_gate"):
        gate = plus(read(x if gate_reads is None else gate_reads, mlp.W_gate), mlp.b_gate)
        post = mlp.act(gate) * pre
    else:
        post = mlp.act(pre)
    return plus(writer(mlp, post), mlp.b_out)


def mixed(pi: Float[Tensor, "*lead expert"], out: Tensor) -> Float[Tensor, "*lead d_model"]:
    """sum over experts of pi_e E_e."""
    return torch.einsum("...e,...ed->...d", pi, out)


def own_weights(mlp: MoE, x: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead expert"]:
    """The weights that the block's own router gives to its experts at x."""
    return router_weights(x @ mlp.W_router, mlp.top_k, own_router(mlp))


def two_reads(
    mlp: nn.Module,
    select: Float[Tensor, "*lead d_model"],
    content: Float[Tensor, "*lead d_model"],
) -> Float[Tensor, "*lead d_model"]:
    """What the block writes when its gate or router reads `select` and the rest reads `content`.

    With both the same it is the block. In a mixture of gated experts the gates inside the experts
    count as content. Raises ValueError for a plain MLP: it reads once.
    """
    if isinstance(mlp, MoE):
        return mixed(own_weights(mlp, select), experts(mlp, content))
    if not hasattr(mlp, "W_gate"):
        raise ValueError("this MLP reads the stream once: it has neither gate nor router")
    return experts(mlp, content, select)


def as_long(
    mlp: nn.Module,
    other: Float[Tensor, "*lead d_model"],
    w: Float[Tensor, "*lead d_model"],
    route: str,
) -> Float[Tensor, "*lead d_model"]:
    """`other`, scaled at every place until |other W| = |w W| in what one route reads.

    W: for "select" W_gate, or W_router less its mean over experts (a number added to all logits
    moves nothing); for "content" W_in, of all experts together. As long in the stream is not as
    long in a read: trained writes point where a block looks.
    """
    if route == "select":
        W = [mlp.W_router - mlp.W_router.mean(1, True) if isinstance(mlp, MoE) else mlp.W_gate]
    else:
        W = [mlp.W_in, *([mlp.W_gate] if isinstance(mlp, MoE) and hasattr(mlp, "W_gate") else [])]
    read = torch.cat([m.movedim(-2, 0).flatten(1) for m in W], dim=1)
    own, length = ((v @ read).norm(dim=-1, keepdim=True) for v in (w, other))
    return other * (own / length.clamp_min(torch.finfo(w.dtype).tiny))


# ---- what a cut costs ----------------------------------------------------------------------------


class Answers(NamedTuple):
    """One number for each window, the mean over its places."""

    loss: Float[Tensor, " window"]  # nats
    logit: Float[Tensor, " window"]  # |change| of the next token's centred logit
    kl: Float[Tensor, " window"]  # nats, KL(untouched || cut)


class Judge:
    """Losses of a one-layer model at the places of `reads`, for any write of its block."""

    def __init__(self, model: Transformer, reads: Reads):
        self.mlp, self.W_U, self.reads = model.blocks[0].mlp, model.W_U, reads
        self.b_U = getattr(model.unembed, "b_U", None)
        self.x, self.act = reads.x, model.cfg.act
        with torch.no_grad():
            self.outs = experts(self.mlp, self.x)  # of every expert, in a mixture
            self.whole = self.outs
            if isinstance(self.mlp, MoE):
                self.whole = mixed(own_weights(self.mlp, self.x), self.outs)
            logits, self.right = self._logits(self.whole)
        self.total = logits.logsumexp(-1)
        self.p = (logits - self.total[..., None]).exp()
        self.own = (self.p * logits).sum(-1) - self.total  # sum p log p
        self.centred = self.right - logits.mean(-1)
        self.clean = (self.total - self.right).mean(1)

    def _logits(self, write: Tensor) -> tuple[Tensor, Tensor]:
        logits = plus((self.x + write) @ self.W_U, self.b_U)
        return logits, logits.gather(-1, self.reads.following[..., None])[..., 0]

    @torch.no_grad()
    def judge(self, write: Float[Tensor, "window place d_model"]) -> Answers:
        """Loss, change of the right logit and KL, when the block writes this."""
        logits, right = self._logits(write)
        total = logits.logsumexp(-1)
        kl = self.own - torch.einsum("wpv,wpv->wp", self.p, logits) + total
        moved = (right - logits.mean(-1) - self.centred).abs()
        return Answers(*(v.mean(1) for v in (total - right, moved, kl)))

    @torch.no_grad()
    def losses(self, write: Float[Tensor, "window place d_model"]) -> Tensor:
        """The loss at every place, [window, place], when the block writes this."""
        logits, right = self._logits(write)
        return logits.logsumexp(-1) - right

    @torch.no_grad()
    def without(self, gone: Float[Tensor, "window place d_model"], route: str) -> Answers:
        """The answers when one route, or both, reads x - gone."""
        if route not in ROUTES:
            raise ValueError(f"unknown route {route!r}: choose one of {', '.join(ROUTES)}")
        less = self.x - gone
        if route == "select" and isinstance(self.mlp, MoE):  # the experts have read x already
            return self.judge(mixed(own_weights(self.mlp, less), self.outs))
        select, content = (less if route in (r, "both") else self.x for r in ROUTES[:2])
        return self.judge(two_reads(self.mlp, select, content))

    def mean(self, values: Float[Tensor, " window"]) -> list[float]:
        """[mean, standard error clustered by document]."""
        return list(clustered_mean(values, self.reads.doc)[:2])

    def slope(self) -> Float[Tensor, "window place d_model"]:
        """d loss / d (last stream) = (p - 1[next]) W_U^T, at every place."""
        return self.p @ self.W_U.mT - self.W_U.mT[self.reads.following]


def costs(judge: Judge, name: str, kind: str, generator: torch.Generator | None) -> dict:
    """Rise of the loss for each route of one part, their difference and what is not additive.

    All are paired by window and clustered by document. "interaction" is both - select - content.
    The controls are as long as the part in the same read (`as_long`); they leave "both" and the
    interaction out.
    """
    w = judge.reads.part(name)
    gone = removed(w, kind, generator)
    if kind in CONTROLS:
        lost = {route: as_long(judge.mlp, gone, w, route) for route in ROUTES[:2]}
    else:
        lost = dict.fromkeys(ROUTES, gone)
    found = {route: judge.without(v, route) for route, v in lost.items()}
    rise = {route: a.loss - judge.clean for route, a in found.items()}
    out = {route: judge.mean(v) for route, v in rise.items()}
    out["select minus content"] = judge.mean(rise["select"] - rise["content"])
    out["kl"] = {route: judge.mean(a.kl) for route, a in found.items()}
    out["kl, select minus content"] = judge.mean(found["select"].kl - found["content"].kl)
    out["logit"] = {route: judge.mean(a.logit) for route, a in found.items()}
    if "both" in rise:
        out["interaction"] = judge.mean(rise["both"] - rise["select"] - rise["content"])
    return out


# ---- the same cut as hooks -----------------------------------------------------------------------


def read_cut(
    model: Transformer,
    heads: list[int],
    route: str,
    kind: str = "zero",
    generator: torch.Generator | None = None,
) -> Cut:
    """The cut of some heads' writes from one route of a one-layer model's block, for `cut.run`.

    Reads are linear, so x - w instead of x is the same as taking w W from what was read. Under
    `cut.run` only: it asks the attention for every head's write.
    """
    mlp, kept = model.blocks[0].mlp, []
    mixture, read = isinstance(mlp, MoE), reader(mlp)
    select = [("hook_router_logits", "W_router")] if mixture else [("hook_pre", "W_gate")]
    content = [("hook_pre_linear" if hasattr(mlp, "W_gate") else "hook_pre", "W_in")]
    if mixture and hasattr(mlp, "W_gate"):
        content.append(("hook_pre", "W_gate"))
    wanted = {"select": select, "content": content, "both": select + content}[route]

    def remember(result: Tensor, hook: object) -> None:
        kept[:] = [removed(result[:, :, heads].sum(2), kind, generator)]

    def take(weight: str):
        W = getattr(mlp, weight)
        return lambda was, hook: was - (kept[0] @ W if W.ndim == 2 else read(kept[0], W))

    hooks = [(f"blocks.0.mlp.{name}", take(weight)) for name, weight in wanted]
    names, words = " ".join(f"0.{h}" for h in heads), {"both": "gate or router and content"}
    words |= {"select": "router" if mixture else "gate", "content": "content"}
    return Cut(
        (("blocks.0.attn.hook_result", remember), *hooks),
        cut=(f"{names} -> {words[route]} of the block, direct edge only ({kind})",),
        recomputed=("the block and the logits",),
    )
