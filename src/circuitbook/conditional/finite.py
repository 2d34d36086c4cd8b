"""A finite change is the sum of small ones: F(x1) - F(x0) = integral over t of D J(x0 + t D).

D = x1 - x0, t from 0 to 1, J the Jacobian, rows. It needs F to be continuous along the line. Sums
of n terms come near the integral at a speed that tells how smooth F is:

    midpoint error   ~ 1/n^2   J turns smoothly (GELU, SiLU, softmax)
                     ~ 1/n     J jumps somewhere (ReLU kinks)
                     a floor   F itself jumps (top-k routing): the floor is the sum of its jumps

`jumps.py` finds those jumps. Source: the fundamental theorem of calculus; Sundararajan et al. 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from circuitbook import corpus
from circuitbook.circuits.metrics import Metric
from circuitbook.conditional.methods import slopes
from circuitbook.model import Transformer

RULES = ("midpoint", "trapezoid", "gauss")
ORDER = 8  # Gauss-Legendre nodes in each panel


def rule(steps: int, name: str = "midpoint") -> tuple[Float[Tensor, " k"], Float[Tensor, " k"]]:
    """(t, weight) in float64, for an integral from 0 to 1 in `steps` equal panels.

    gauss: ORDER nodes in each panel, exact for polynomials of degree 2 ORDER - 1.
    """
    if name not in RULES or steps < 1:
        raise ValueError(f"needs steps >= 1 and a rule of {RULES}, got {steps} and {name!r}")
    if name == "midpoint":
        t = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
        return t, torch.full_like(t, 1 / steps)
    if name == "trapezoid":
        t = torch.arange(steps + 1, dtype=torch.float64) / steps
        w = torch.full_like(t, 1 / steps)
        w[[0, -1]] /= 2
        return t, w
    node, weight = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(ORDER))
    t = (torch.arange(steps, dtype=torch.float64)[:, None] + (1 + node) / 2) / steps
    return t.flatten(), (weight / 2 / steps).expand(steps, -1).flatten()


def integral(
    f: Callable[[Tensor], Tensor],
    x0: Float[Tensor, "*n d_in"],
    x1: Float[Tensor, "*n d_in"],
    steps: int,
    name: str = "midpoint",
    *,
    ends: tuple[float, float] = (0.0, 1.0),
    at_once: int = 2048,
) -> Float[Tensor, "*n d_out"]:
    """integral of D J(x0 + t D) dt over t in `ends`, by a rule with `steps` panels; forward mode.

    f takes rows to rows, each row by itself: [m, d_in] -> [m, d_out]. at_once: rows in one call.
    Cost: one Jacobian-vector product for each row and node.
    """
    t, w = rule(steps, name)
    t, w = (ends[0] + (ends[1] - ends[0]) * t).to(x0), ((ends[1] - ends[0]) * w).to(x0)
    a, b = x0.reshape(-1, x0.shape[-1]), x1.reshape(-1, x1.shape[-1])
    total = None
    for part in torch.arange(len(t), device=x0.device).split(max(1, at_once // len(a))):
        x = torch.lerp(a[None], b[None], t[part, None, None]).flatten(0, 1)
        change = (b - a).expand(len(part), -1, -1).flatten(0, 1)
        _, moved = torch.func.jvp(f, (x,), (change,))
        moved = torch.einsum("k,kn...->n...", w[part], moved.unflatten(0, (len(part), len(a))))
        total = moved if total is None else total + moved
    return total.reshape(*x0.shape[:-1], -1)


def rows(mlp: nn.Module) -> Callable[[Tensor], Tensor]:
    """An MLP of the model as a map of rows [m, d_model] -> [m, d_model]; `of_stream`'s too."""
    return lambda x: mlp(x[None])[0]


def errors(
    f: Callable[[Tensor], Tensor],
    x0: Float[Tensor, "n d_in"],
    x1: Float[Tensor, "n d_in"],
    steps: Sequence[int],
    path_integral: Callable[..., Tensor] = integral,
    missing: Tensor | float = 0.0,
) -> list[float]:
    """For each number of steps: mean over pairs of |change - sum - missing| / |change|.

    change = F(x1) - F(x0); sum: the rule with so many steps.
    missing: what is known not to be in the integral, such as jumps [n, d_out].
    """
    sums = [path_integral(f, x0, x1, k) for k in steps]
    return relative(f(x1) - f(x0), sums, missing)


def relative(
    change: Float[Tensor, "n d_out"], sums: Sequence[Tensor], missing: Tensor | float = 0.0
) -> list[float]:
    """For each sum: mean over pairs of |change - sum - missing| / |change|."""
    size = change.norm(dim=-1)
    return [((change - s - missing).norm(dim=-1) / size).mean().item() for s in sums]


def fall(errors: Sequence[float]) -> float:
    """By how much the error falls at a doubling, a geometric mean: 4 is order 2, 2 is order 1."""
    return (errors[0] / errors[-1]) ** (1 / (len(errors) - 1))


def state_pairs(
    model: Transformer, n: int, seed: int, length: int = 128
) -> tuple[Float[Tensor, "n d_model"], Float[Tensor, "n d_model"]]:
    """n pairs of states that the last MLP reads, each pair from two documents of held-out text.

    States of the stream: a norm before the MLP is not applied (see `operators.of_stream`).
    One position of each window, drawn by the seed. In the model's dtype.
    """
    windows = corpus.heldout_windows(2 * n, length=length, seed=seed)
    tokens = torch.from_numpy(windows.tokens).to(model.W_E.device)
    generator = torch.Generator().manual_seed(seed)
    at = torch.randint(length // 4, length, (2 * n,), generator=generator)
    name = f"blocks.{model.cfg.n_layers - 1}.hook_resid_mid"
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens, names_filter=name)
    x = cache[name][torch.arange(2 * n), at]
    return x[0::2], x[1::2]


# ---------------------------------------------------------------- the whole model


def along(
    model: Transformer,
    tokens: Int[Tensor, "prompt pos"],
    others: Int[Tensor, "prompt pos"],
    metric: Metric,
    t: Float[Tensor, " row"],
    which: Int[Tensor, " row"],
) -> tuple[Float[Tensor, " row"], Float[Tensor, " row"]]:
    """(F, dF/dt) of a run whose embeddings are mixed: E(tokens) + t (E(others) - E(tokens)).

    which: the prompt of each row. Everything above the embeddings is computed again at each t;
    positions, in the stream or not, stay where they are.
    """
    e0, e1 = (model.W_E[x.to(model.W_E.device)[which]] for x in (tokens, others))
    x = torch.lerp(e0, e1, t.to(e0)[:, None, None])
    found = slopes(model, tokens[which], metric, which, ["hook_embed"], {"hook_embed": x})
    return found.value, (found.gradient["hook_embed"] * (e1 - e0)).sum((-1, -2))


def whole_model(
    model: Transformer,
    tokens: Int[Tensor, "prompt pos"],
    others: Int[Tensor, "prompt pos"],
    metric: Metric,
    steps: int,
    name: str = "midpoint",
    *,
    rows_at_once: int = 256,
) -> Float[Tensor, " prompt"]:
    """integral of dF/dt from the embeddings of `tokens` to those of `others`, per prompt."""
    n = len(tokens)
    t, w = rule(steps, name)
    total = torch.zeros(n, dtype=model.W_E.dtype, device=model.W_E.device)
    for part in torch.arange(len(t) * n).split(rows_at_once):
        which = part % n
        _, slope = along(model, tokens, others, metric, t[part // n], which)
        total.index_add_(0, which.to(total.device), slope * w[part // n].to(slope))
    return total
