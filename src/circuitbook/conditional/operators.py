"""y = x B(x) + bias(x): a nonlinear block is, at each x, an affine map that this x has selected.

    block       B(x)                                                  what is fixed when B is held
    plain MLP   W_in diag(gamma(z)) W_out                             MLP gains
    gated, c    W_in diag(phi(g)) W_out        the content carries x  MLP gains
    gated, g    W_gate diag(gamma(g) u) W_out  the gate carries x     MLP gains
    mixture     sum over the selected e of pi_e B_e                   expert set and weights, gains
    a norm      P diag(1/s) diag(w)                                   norm scales
    norm, MLP   P diag(1/s) diag(w) B(n), n the norm's output         norm scales, MLP gains
    a head      A X W_V W_O                                           patterns

An `Operator` holds such a map at one position or at many. It acts (`x @ B`) without making a d x d
matrix; `B.matrix()` shows one. In the homogeneous coordinate (x, 1) the affine map is linear:
[[B, 0], [bias, c]]. The corner c is 1 for what hands the 1 on (the identity, a norm) and 0 for what
writes (a head, an MLP), so that I + B keeps the 1.

B is not unique: any matrix that sends this one x to this one y would do. A gated MLP offers two
that are equally natural, and every mixture of them. `jacobian` answers another question: it is the
map of a small change at x, as the same kind of object.

Rows: y = x B, B[in, out]; dy = dx J, J[in, out]. `act` is a config's `act` (see `gates`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from circuitbook.conditional.gates import at_zero, gate, phi
from circuitbook.conditional.routes import own_router, reader, router_weights, routes, writer
from circuitbook.layers import LayerNorm, plus
from circuitbook.mlp import MoE

PATTERNS, SCALES, GAINS = "patterns", "norm scales", "MLP gains"
EXPERTS, EXPERT_SET = "expert set and weights", "expert set"


@dataclass(frozen=True)
class Operator:
    """x -> x B + bias at every index of `at`; a sum or product of such maps is one again.

    act: x [*more, *at, d_in] -> [*more, *at, d_out], linear. bias: [*at, d_out] or None. frozen:
    what is held at its realised value; nothing for a Jacobian, but a mixture's selected set.
    one: the corner c of the homogeneous matrix. moves: True when positions are mixed.
    """

    act: Callable[[Tensor], Tensor]
    bias: Tensor | None
    at: tuple[int, ...]
    width: int  # d_in
    like: Tensor  # any tensor of the right dtype and device
    frozen: tuple[str, ...] = ()
    one: float = 0.0
    moves: bool = False

    def __rmatmul__(self, x: Tensor) -> Tensor:
        """x B, without the bias: the part of the output that is carried by x."""
        return self.act(x)

    def apply(self, x: Tensor) -> Tensor:
        """x B + bias: at the x that selected B, this is the block's output."""
        return plus(self.act(x), self.bias)

    def __add__(self, other: Operator) -> Operator:
        """Side by side: both read x, their outputs are added."""
        self._same_place(other)
        return replace(
            self,
            act=lambda x: self.act(x) + other.act(x),
            bias=other.bias if self.bias is None else plus(self.bias, other.bias),
            frozen=tuple(dict.fromkeys(self.frozen + other.frozen)),
            one=self.one + other.one,
            moves=self.moves or other.moves,
        )

    def __rmul__(self, factor: float) -> Operator:
        """The same map, `factor` times as large."""
        return replace(
            self,
            act=lambda x: factor * self.act(x),
            bias=None if self.bias is None else factor * self.bias,
            one=factor * self.one,
        )

    def __matmul__(self, later: Operator) -> Operator:
        """In series: `x @ (first @ later)` = `(x @ first) @ later`. The bias passes `later` too."""
        self._same_place(later)
        bias = None if self.bias is None else later.act(self.bias)
        if later.bias is not None and self.one:  # the later bias row is fed by the 1 that is left
            bias = self.one * later.bias if bias is None else bias + self.one * later.bias
        return replace(
            self,
            act=lambda x: later.act(self.act(x)),
            bias=bias,
            frozen=tuple(dict.fromkeys(self.frozen + later.frozen)),
            one=self.one * later.one,
            moves=self.moves or later.moves,
        )

    def beside_identity(self) -> Operator:
        """I + B: what a residual block does to the stream. It keeps the homogeneous 1."""
        return identity(self) + self

    def matrix(self) -> Float[Tensor, "*at d_in d_out"]:
        """B as a matrix for each index of `at`. Raises ValueError when positions are mixed."""
        if self.moves:
            raise ValueError(
                "this operator moves information between positions, so it is no matrix per "
                "position: act with it (x @ B), or take one of its position-local factors"
            )
        unit = torch.eye(self.width, dtype=self.like.dtype, device=self.like.device)
        rows = unit.view(self.width, *[1] * len(self.at), self.width)
        return self.act(rows.expand(self.width, *self.at, self.width)).movedim(0, -2)

    def homogeneous(self) -> Float[Tensor, "*at d_in_1 d_out_1"]:
        """[[B, 0], [bias, c]], for rows (x, 1)."""
        B = self.matrix()
        last = torch.zeros_like(B[..., :1, :])
        if self.bias is not None:
            last = last + self.bias[..., None, :]
        right = torch.zeros_like(B[..., :1])
        corner = torch.full_like(last[..., :1], self.one)
        return torch.cat([torch.cat([B, right], -1), torch.cat([last, corner], -1)], -2)

    def _same_place(self, other: Operator) -> None:
        if self.at != other.at:
            raise ValueError(
                f"these operators belong to different positions: {self.at} and {other.at}"
            )


def identity(like: Operator) -> Operator:
    """x -> x, at the same positions; the corner is 1."""
    return replace(like, act=lambda x: x, bias=None, frozen=(), one=1.0, moves=False)


@dataclass(frozen=True)
class Writers:
    """x -> sum over j of gain_j (x . read_j) write_j: rank-one writers, each with its own gain.

    read [d_in, m], gain [*at, m], write [m, d_out]; all with an expert axis in front of m for a
    mixture, whose weights are inside the gains. Source: Geva et al. 2021 (keys and values).
    """

    read: Tensor
    gain: Tensor
    write: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        if self.read.ndim == 2:
            return ((x @ self.read) * self.gain) @ self.write
        hidden = torch.einsum("...d,edm->...em", x, self.read) * self.gain
        return torch.einsum("...em,emd->...d", hidden, self.write)


class Normed(nn.Module):
    """x -> M(norm(x)): an MLP as the stream sees it, with the norm that stands before it."""

    def __init__(self, norm: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.norm, self.mlp = norm, mlp

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        """What the MLP writes when the stream is x."""
        return self.mlp(self.norm(x))


def of_stream(block: nn.Module) -> nn.Module:
    """The MLP of a block as a function of the stream: itself, or `Normed` where a norm precedes."""
    return Normed(block.ln2, block.mlp) if isinstance(block.ln2, LayerNorm) else block.mlp


def inner(mlp: nn.Module) -> nn.Module:
    """The MLP itself, without the norm before it."""
    return mlp.mlp if isinstance(mlp, Normed) else mlp


def held(norm: nn.Module, x: Float[Tensor, "*at d"]) -> Operator | None:
    """A layer's norm at x with its scale held, x P/s w + b; None for the identity."""
    if not isinstance(norm, LayerNorm):
        return None
    return norm_forward(x, norm.eps, gain=norm.w, bias=norm.b)


def moved(norm: nn.Module, x: Float[Tensor, "*at d"], dx: Tensor) -> Tensor:
    """dx J, J = (P - n^T n / d) / s w: what a layer's norm makes of a small change; dx without."""
    if not isinstance(norm, LayerNorm):
        return dx
    return dx @ norm_jacobian(x, norm.eps, gain=norm.w)


def forward(
    mlp: nn.Module,
    act: str,
    x: Float[Tensor, "*at d_model"],
    *,
    content: float = 1.0,
    router: str | None = None,
) -> Operator:
    """An operator with x B + bias = mlp(x), exactly, for any MLP of the course and any x, 0 too.

    Of a `Normed` MLP it is P/s B(n), and the scale of its norm is held too.

    content: gated MLPs only; the share c of the content-forward operator in c B_c + (1 - c) B_g.
    router: mixtures only; one of `routes.ROUTERS`, the block's own by default. With another one
    the operator gives what the block would write with it.
    Raises ValueError when `content` is asked of an MLP that has one forward operator only.
    """
    if isinstance(mlp, Normed):
        norm = held(mlp.norm, x)
        return norm @ forward(mlp.mlp, act, norm.apply(x), content=content, router=router)
    read = reader(mlp)
    kind, frozen = (own_router(mlp), (EXPERTS, GAINS)) if isinstance(mlp, MoE) else ("", (GAINS,))
    pi = router_weights(x @ mlp.W_router, mlp.top_k, router or kind) if kind else None

    def build(W: Tensor, b: Tensor | None, gain: Tensor, rest: Tensor | None = None) -> Operator:
        # (x W + b) * gain + rest are the neurons; what does not carry x is the bias row.
        zero = torch.zeros((), dtype=x.dtype, device=x.device)
        held = (zero if b is None else b) * gain + (zero if rest is None else rest)
        bias = plus(writer(mlp, held), mlp.b_out)
        if pi is not None:
            gain, bias = pi[..., None] * gain, torch.einsum("...e,...ed->...d", pi, bias)
        part = Writers(W, gain, mlp.W_out)
        return Operator(part, bias, tuple(x.shape[:-1]), x.shape[-1], x, frozen)

    z = plus(read(x, mlp.W_in), mlp.b_in)
    if not hasattr(mlp, "W_gate"):
        if content != 1.0:
            raise ValueError("only a gated MLP has two forward operators; leave `content` at 1")
        return build(mlp.W_in, mlp.b_in, gate(act, z), torch.full_like(z, at_zero(act)))
    g = plus(read(x, mlp.W_gate), mlp.b_gate)
    by_content = build(mlp.W_in, mlp.b_in, phi(act, g))
    if content == 1.0:
        return by_content
    by_gate = build(mlp.W_gate, mlp.b_gate, gate(act, g) * z, at_zero(act) * z)
    return by_gate if content == 0.0 else content * by_content + (1 - content) * by_gate


def jacobian(
    mlp: nn.Module, act: str, x: Float[Tensor, "*at d_model"], *, router: str | None = None
) -> Operator:
    """dx -> dx J(x), all routes of `routes.routes` together; it has no bias, dx = 0 gives 0.

    A mixture's selected set is held: at a routing border there is no Jacobian. Of a `Normed` MLP
    it is J_norm(x) J(n): the scale of the norm answers the change.
    """
    if isinstance(mlp, Normed):
        norm = norm_jacobian(x, mlp.norm.eps, gain=mlp.norm.w)
        return norm @ jacobian(mlp.mlp, act, mlp.norm(x), router=router)

    def change(dx: Tensor) -> Tensor:
        return sum(routes(mlp, act, x.expand_as(dx), dx, router).values())

    held = (EXPERT_SET,) if isinstance(mlp, MoE) else ()
    return Operator(change, None, tuple(x.shape[:-1]), x.shape[-1], x, held)


def _centred(x: Tensor, centre: bool) -> Tensor:
    return x - x.mean(-1, keepdim=True) if centre else x


def norm_forward(
    x: Float[Tensor, "*at d"],
    eps: float = 1e-5,
    *,
    centre: bool = True,
    gain: Tensor | None = None,
    bias: Tensor | None = None,
) -> Operator:
    """x P / s * gain + bias with s held; P takes the mean off (LayerNorm) or is I (RMSNorm).

    s^2 = |x P|^2 / d + eps.
    """
    s = (_centred(x, centre).square().mean(-1, keepdim=True) + eps).sqrt()

    def act(y: Tensor) -> Tensor:
        n = _centred(y, centre) / s
        return n if gain is None else n * gain

    row = None if bias is None else bias.expand(x.shape)
    return Operator(act, row, tuple(x.shape[:-1]), x.shape[-1], x, (SCALES,), one=1.0)


def norm_jacobian(
    x: Float[Tensor, "*at d"],
    eps: float = 1e-5,
    *,
    centre: bool = True,
    gain: Tensor | None = None,
) -> Operator:
    """J = (P - n^T n / d) / s, then the gain: what moves x along itself is nearly removed.

    x J = n eps / s^2, exactly: it vanishes with eps, because the norm of a longer x is the same n.
    """
    forward = norm_forward(x, eps, centre=centre)
    n = x @ forward  # [*at, d]
    s = (_centred(x, centre).square().mean(-1, keepdim=True) + eps).sqrt()

    def act(dx: Tensor) -> Tensor:
        out = forward.act(dx) - (dx * n).mean(-1, keepdim=True) * n / s
        return out if gain is None else out * gain

    return Operator(act, None, tuple(x.shape[:-1]), x.shape[-1], x)


def heads_operator(
    pattern: Float[Tensor, "batch head pos key"],
    attn: nn.Module,
) -> Operator:
    """X -> sum over heads of A X W_V W_O, patterns held; the bias row is A 1 b_V W_O + b_O."""
    batch, _, length, _ = pattern.shape
    width = attn.W_V.shape[1]
    bias = None if attn.b_O is None else attn.b_O.expand(batch, length, width)
    if attn.b_V is not None:
        moved = torch.einsum("bhp,he,hed->bpd", pattern.sum(-1), attn.b_V, attn.W_O)
        bias = moved if bias is None else moved + bias

    def act(x: Tensor) -> Tensor:
        return per_head(pattern, attn, x).sum(-4)

    return Operator(act, bias, (batch, length), width, attn.W_V, (PATTERNS,), moves=True)


def per_head(
    pattern: Float[Tensor, "batch head pos key"],
    attn: nn.Module,
    x: Float[Tensor, "*more batch key d"],
) -> Float[Tensor, "*more head batch pos d"]:
    """A^h X W_V^h W_O^h for each head apart, patterns held, biases left out."""
    value = torch.einsum("...bkd,hde->...hbke", x, attn.W_V)
    return torch.einsum("...hbpe,hed->...hbpd", pattern.transpose(0, 1) @ value, attn.W_O)
