"""The route formulas against autograd on random blocks of every kind, and their mistakes.

The blocks are evaluated by formulas written here, not by the code that gives the routes: a
mixture with any of the four routers is a plain sum over its selected experts.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from circuitbook.conditional import routes
from circuitbook.config import Config
from circuitbook.mlp import make_mlp

# name -> (act, experts, k, router)
BLOCKS: dict[str, tuple[str, int, int, str | None]] = {
    "ReLU": ("relu", 0, 0, None),
    "GELU": ("gelu", 0, 0, None),
    "GELU, tanh form": ("gelu_new", 0, 0, None),
    "bilinear": ("bilinear", 0, 0, None),
    "SwiGLU": ("swiglu", 0, 0, None),
    "mixture, top-1, softmax over all (Switch)": ("gelu", 6, 1, "softmax"),
    "mixture, top-2, renormalised": ("gelu", 6, 2, "renormalised"),
    "mixture, top-2, softmax over all": ("gelu", 6, 2, "softmax"),
    "mixture, top-2, sigmoid": ("gelu", 6, 2, "sigmoid"),
    "mixture, top-2, sigmoid renormalised": ("gelu", 6, 2, "sigmoid renormalised"),
    "mixture of SwiGLU, top-2, renormalised": ("swiglu", 6, 2, "renormalised"),
    "mixture of SwiGLU, top-3, sigmoid": ("swiglu", 6, 3, "sigmoid"),
}


def random_block(name: str, seed: int = 0, d: int = 16) -> nn.Module:
    """A float64 block of a kind of `BLOCKS`, with biases, far from linear."""
    act, experts, k, _ = BLOCKS[name]
    cfg = Config(n_layers=1, d_model=d, d_mlp=24, act=act, n_experts=experts, top_k=k)
    mlp = make_mlp(cfg).double().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for kind, p in mlp.named_parameters():
        scale = 0.7 if kind.startswith("b") else 1.5 * p.shape[-2] ** -0.5
        p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * scale)
    return mlp


def plain(mlp: nn.Module, x: Tensor, router: str | None) -> Tensor:
    """The block at one x [d_model], from its definition."""

    def one(e: int | None) -> Tensor:
        W_in, b_in, W_out, b_out = (
            p if e is None else p[e] for p in (mlp.W_in, mlp.b_in, mlp.W_out, mlp.b_out)
        )
        u = x @ W_in + b_in
        if hasattr(mlp, "W_gate"):
            W, b = (p if e is None else p[e] for p in (mlp.W_gate, mlp.b_gate))
            u = mlp.act(x @ W + b) * u
        else:
            u = mlp.act(u)
        return u @ W_out + b_out

    if router is None:
        return one(None)
    logits = x @ mlp.W_router
    chosen = logits.detach().topk(mlp.top_k).indices.tolist()
    if router.startswith("sigmoid"):
        weight = logits.sigmoid()[chosen]
        weight = weight / weight.sum() if router.endswith("renormalised") else weight
    else:
        within = chosen if router == "renormalised" else range(len(logits))
        weight = logits[chosen].exp() / logits[list(within)].exp().sum()
    return sum(w * one(e) for w, e in zip(weight, chosen, strict=True))


def _cases(seeds: int) -> Iterator[tuple[str, nn.Module, Tensor, Tensor, str, str | None]]:
    for name, (act, _, _, router) in BLOCKS.items():
        for seed in range(seeds):
            mlp = random_block(name, seed)
            generator = torch.Generator().manual_seed(100 + seed)
            x = torch.randn(16, generator=generator, dtype=torch.float64)
            J = torch.autograd.functional.jacobian(lambda v: plain(mlp, v, router), x).T  # noqa: B023 -- called at once
            yield name, mlp, x, J, act, router


def errors(seeds: int = 3) -> dict[str, float]:
    """name of the block -> largest relative distance of the summed routes from autograd's J."""
    out: dict[str, float] = {}
    for name, mlp, x, J, act, router in _cases(seeds):
        found = sum(routes.matrices(mlp, act, x, router).values())
        gap = ((found - J).abs().max() / J.abs().max()).item()
        out[name] = max(out.get(name, 0.0), gap)
    return out


def mistakes(seeds: int = 3) -> dict[str, float]:
    """What a tired person writes -> the smallest error that it makes on the blocks it touches.

    Each is J with one part replaced, computed from the definition. Relative, as in `errors`.
    """
    out: dict[str, float] = {}

    def note(mistake: str, wrong: Tensor, J: Tensor) -> None:
        gap = ((wrong - J).abs().max() / J.abs().max()).item()
        out[mistake] = min(out.get(mistake, float("inf")), gap)

    for name, mlp, x, J, act, router in _cases(seeds):
        parts = routes.matrices(mlp, act, x, router)
        total = sum(parts.values())
        if name == "SwiGLU":
            g, u = x @ mlp.W_gate + mlp.b_gate, x @ mlp.W_in + mlp.b_in
            wrong = (mlp.W_gate * (u * g.sigmoid())) @ mlp.W_out
            note("SiLU' taken for sigma", total - parts["gate"] + wrong, J)
        if "router" not in parts:
            continue
        note("no router route", total - parts["router"], J)
        logits, k = x @ mlp.W_router, mlp.top_k
        unit = torch.eye(len(x)).to(x)
        pi = routes.router_weights(logits, k, router)
        d_pi = routes.weight_change(logits, unit @ mlp.W_router, k, router)
        bias = d_pi @ mlp.b_out
        note("E without its bias", total - bias, J)
        if router in ("renormalised", "softmax"):
            # pi_e r_e instead of pi_e (r_e - mean): E_e is what the router route multiplies.
            outs = torch.stack([
                plain(_only(mlp, e), x, "renormalised") for e in range(len(logits))
            ])  # fmt: skip
            raw = (mlp.W_router * pi) @ outs
            note("softmax mean dropped", total - parts["router"] + raw, J)
    return out


def _only(mlp: nn.Module, e: int) -> nn.Module:
    """The mixture with expert e alone: its weight is 1."""
    one = make_mlp(
        Config(
            n_layers=1, d_model=mlp.W_in.shape[1], d_mlp=mlp.W_in.shape[2],
            act="swiglu" if mlp.gated else "gelu", n_experts=1, top_k=1,
        )
    ).to(mlp.W_in.dtype)  # fmt: skip
    one.act = mlp.act
    with torch.no_grad():
        for name, p in one.named_parameters():
            full = getattr(mlp, name)
            p.copy_(full[:, e : e + 1] if name == "W_router" else full[e : e + 1])
    return one.requires_grad_(False)
