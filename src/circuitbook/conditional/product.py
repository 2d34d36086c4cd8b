"""Last stream = X0 [I + A0][I + B0][I + A1][I + B1] ...: a realised forward pass is a product.

A_l moves along the patterns of this pass, B_l is the forward operator that this pass selected. In
the homogeneous coordinate (x, 1) both are linear, so the product can be multiplied out. With H
heads a block gives (1 + H)(1 + 1) choices: which head, or none; and the MLP, or not. The MLP comes
after the heads and reads what they wrote, so "head, then MLP" is a choice of its own. L blocks give
((1 + H) 2)^L routes; two blocks of eight heads give 324.

Each route starts at (x, 1). The token part x can take every route. The constant part, the 1, is
handed on until the first MLP turns it into its bias row; from there it is a write like any other.

With a norm every sublayer reads x P/s, s held at this pass's value, and so does the unembedding:
one more linear map on every route. Positions that stand in the stream are a second start beside
the token; what a layer's heads add whatever they read (b_O, b_V W_O, the norm's bias) is a start of
its own, "heads l", outside the 324; b_U and the last norm's bias never enter the stream
(`stream.unembedding_bias`).

A route is an exact summand of the pass that selected its operators. Take the route away and run
the model again, and other operators are selected: that is another question (`levels`).
Source: Elhage et al. 2021 for frozen patterns; with conditional operators, elementary algebra.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.bases import relative_change
from circuitbook.conditional.operators import (
    Operator,
    forward,
    heads_operator,
    held,
    of_stream,
    per_head,
)
from circuitbook.model import Transformer
from circuitbook.stream import final_scale, read_through


class Route(NamedTuple):
    """One way to the last stream. path: "0.5" is a head, "MLP 0" an MLP, in the order passed.

    source: "token", "position" (where the stream holds positions), or "constant" for what starts
    in a bias row ("heads 0": that of attention).
    """

    source: str
    path: tuple[str, ...]

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads on the way."""
        return tuple(p for p in self.path if " " not in p)

    @property
    def mlps(self) -> tuple[str, ...]:
        """The MLPs on the way: the nonlinear steps."""
        return tuple(p for p in self.path if p.startswith("MLP"))

    @property
    def name(self) -> str:
        """ "token → 0.5 → MLP 1"."""
        return " → ".join((self.source, *self.path))


class Step(NamedTuple):
    """One sublayer of a realised pass: what it read, and for attention where it looked."""

    name: str
    layer: int
    read: Float[Tensor, "batch pos d_model"]
    pattern: Float[Tensor, "batch head pos key"] | None


class Pass(NamedTuple):
    """A realised forward pass: where it began, its sublayers in order, and where it ended."""

    model: Transformer
    sources: dict[str, Float[Tensor, "batch pos d_model"]]  # token, position: their sum is `start`
    start: Float[Tensor, "batch pos d_model"]
    steps: list[Step]
    last: Float[Tensor, "batch pos d_model"]  # before the final norm


class Routes(NamedTuple):
    """Every route and what it wrote at the chosen positions; the writes sum to the last stream."""

    routes: list[Route]
    writes: Float[Tensor, "route batch chosen d_model"]

    def toward(self, u: Float[Tensor, "batch chosen d_model"]) -> Float[Tensor, "route n"]:
        """Each route's w . u at each chosen position, windows first."""
        return torch.einsum("rbmd,bmd->rbm", self.writes, u).flatten(1)


@torch.no_grad()
def record(model: Transformer, tokens: Int[Tensor, "batch pos"]) -> Pass:
    """One forward pass, and what is needed to rebuild the operators that it selected."""
    kept: dict[str, Tensor] = {}

    def keep(x: Tensor, hook: Any) -> None:
        kept[hook.name] = x

    ends = ("_embed", "hook_resid_pre", "hook_pattern", "hook_resid_mid", "hook_resid_post")
    names = [n for n in model.hook_dict if n.endswith(ends)]
    with model.hooks(fwd_hooks=[(n, keep) for n in names]):
        model.stream(tokens)  # the logits are not needed, and are most of the cost
    steps = []
    for l in range(model.cfg.n_layers):
        at = f"blocks.{l}."
        pattern = kept[at + "attn.hook_pattern"]
        steps.append(Step(f"heads {l}", l, kept[at + "hook_resid_pre"], pattern))
        if not model.cfg.attn_only:
            steps.append(Step(f"MLP {l}", l, kept[at + "hook_resid_mid"], None))
    top = model.cfg.n_layers - 1
    start, sources = kept["blocks.0.hook_resid_pre"], {"token": kept["hook_embed"]}
    if model.cfg.positions == "standard":
        sources["position"] = kept["hook_pos_embed"]
    return Pass(model, sources, start, steps, kept[f"blocks.{top}.hook_resid_post"])


def pick(x: Float[Tensor, "*more batch pos d"], at: Int[Tensor, "batch chosen"] | None) -> Tensor:
    """x at the chosen positions of each window, [*more, batch, chosen, d]; all of them for None."""
    if at is None:
        return x
    rows = torch.arange(len(at), device=x.device)[:, None]
    return x[..., rows, at, :]


def direction(
    done: Pass, u: Float[Tensor, "batch chosen d_model"], at: Int[Tensor, "batch chosen"] | None
) -> Float[Tensor, "batch chosen d_model"]:
    """u read back through the final norm of this pass, its scale held: w . this = (w P/s) . u."""
    return read_through(done.model, u, final_scale(done.model, pick(done.last, at)))


def operator(
    done: Pass, step: Step, at: Int[Tensor, "batch chosen"] | None = None, content: float = 1.0
) -> Operator:
    """The write of one sublayer as the operator that this pass selected, its norm included.

    at: an MLP at these positions only. content: which forward operator of a gated MLP.
    """
    block, read = done.model.blocks[step.layer], pick(step.read, at)
    if step.pattern is not None:
        norm, write = held(block.ln1, step.read), heads_operator(step.pattern, block.attn)
        return write if norm is None else norm @ write
    return forward(of_stream(block), done.model.cfg.act, read, content=content)


def product(done: Pass, content: float = 1.0) -> Operator:
    """[I + A0][I + B0] ... as one operator; `.apply(done.start)` is the last stream."""
    factors = [operator(done, step, content=content).beside_identity() for step in done.steps]
    return reduce(lambda first, later: first @ later, factors)


def four_routes(done: Pass, layer: int, content: float = 1.0) -> dict[str, Tensor]:
    """X, A X, B X, B A X of one block, [batch, pos, d_model] each; bias rows apart.

    B is evaluated at X + A X, which the MLP reads. The five add up to the stream after the block.
    """
    heads, mlp = (operator(done, s, content=content) for s in done.steps if s.layer == layer)
    x = next(s.read for s in done.steps if s.layer == layer)
    moved = x @ heads
    bias = torch.zeros_like(x) if heads.bias is None else heads.bias + heads.bias @ mlp
    if mlp.bias is not None:
        bias = bias + mlp.bias
    return {"X": x, "A X": moved, "B X": x @ mlp, "B A X": moved @ mlp, "bias rows": bias}


def parallel(done: Pass) -> Float[Tensor, "batch pos d_model"]:
    """The mutant: both sublayers read the same X, so B is evaluated at X and no B A X exists."""
    x = done.start
    for l in range(done.model.cfg.n_layers):
        heads, mlp = (s for s in done.steps if s.layer == l)
        wrong = operator(done, mlp._replace(read=heads.read))
        x = x + operator(done, heads).apply(x) + wrong.apply(x)
    return x


@torch.no_grad()
def routes(
    done: Pass, at: Int[Tensor, "batch chosen"] | None = None, content: float = 1.0
) -> Routes:
    """All routes at once, in the order of the product; the sum of their writes is the last stream.

    at: positions wanted, [window, chosen]; only the last heads and MLP are limited to them. Holds
    all routes at these positions and the routes below the last block at all positions: give it few
    windows, or few positions. With L blocks of H heads the routes of the token number (2 + 2 H)^L,
    and as many are those of the position where the stream holds it.
    """
    names, x = [Route(s, ()) for s in done.sources], torch.stack(list(done.sources.values()))
    last_heads = max(i for i, s in enumerate(done.steps) if s.pattern is not None)
    for i, step in enumerate(done.steps):
        here = at if i >= last_heads else None
        op = operator(done, step, here, content)
        if step.pattern is None:
            new, words = x @ op, [step.name]
            more = [Route(r.source, (*r.path, w)) for r in names for w in words]
        else:
            block, H = done.model.blocks[step.layer], done.model.cfg.n_heads
            norm, pattern = held(block.ln1, step.read), step.pattern
            if here is not None:
                index = here[:, None, :, None].expand(-1, H, -1, pattern.shape[-1])
                pattern = pattern.gather(2, index)  # the chosen queries, all keys
            new = per_head(pattern, block.attn, x if norm is None else x @ norm).flatten(0, 1)
            words = [f"{step.layer}.{h}" for h in range(H)]
            more = [Route(r.source, (*r.path, w)) for r in names for w in words]
            x = pick(x, here)
        parts, names = [x, new], names + more
        if op.bias is not None:
            bias = (
                pick(op.bias.expand(step.read.shape), here) if step.pattern is not None else op.bias
            )
            parts.append(bias.expand(x.shape[1:])[None])
            names = [*names, Route("constant", (step.name,))]
        x = torch.cat(parts)
    return Routes(names, x)


@torch.no_grad()
def errors(model: Transformer, tokens: Int[Tensor, "batch pos"]) -> dict[str, float]:
    """max |a - logits| / max |logits| for the routes' sum, for the product, and for the mutant.

    A final norm is the last factor, its scale that of this pass: linear, so it may act on the sum.
    """
    done = record(model, tokens)
    right, found = model.unembed(model.ln_final(done.last)), routes(done)
    norm, whole, each = held(model.ln_final, done.last), product(done), found.writes.sum(0)
    if norm is not None:
        whole, each = whole @ norm, norm.apply(each)
    return {
        "routes": relative_change(right, model.unembed(each)),
        "product": relative_change(right, model.unembed(whole.apply(done.start))),
        "parallel": relative_change(right, model.unembed(model.ln_final(parallel(done)))),
        "token routes": sum(r.source == "token" for r in found.routes),
        "position routes": sum(r.source == "position" for r in found.routes),
        "constant routes": sum(r.source == "constant" for r in found.routes),
    }
