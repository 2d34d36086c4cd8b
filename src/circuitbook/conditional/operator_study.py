"""Chapter 10, first part: operators, the product, shares and levels of "frozen", all measured.

`study` loads the models, measures on one seeded draw of positions, and returns plain numbers. Where
a model has norms, the block of an MLP is the norm and the MLP; Euler's ratio is also given for the
MLP alone, as a function of what it reads itself.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from circuitbook import paths, zoo
from circuitbook.bases import relative_change
from circuitbook.claims import bound
from circuitbook.conditional import (
    euler,
    gauges,
    identities,
    levels,
    operator_claims,
    product,
    route_groups,
    shares,
    spots,
)
from circuitbook.conditional.operators import forward, inner, jacobian, of_stream
from circuitbook.conditional.own import NORM_INCLUDED, set_of, size
from circuitbook.config import Config
from circuitbook.model import Transformer
from circuitbook.stream import heads_of

ROLES = ("gelu-1l", "relu-1l", "swiglu-1l")
OURS = 40  # windows for the course's roles where the others are published ones
TIMES = 3.0  # the matrices of the LayerNorm model: at their initial size nothing much would bend
NORMED = Config(
    n_layers=2, d_model=64, n_heads=4, d_head=16, d_mlp=128, act="gelu_new", n_ctx=40, d_vocab=120,
    norm="layernorm", positions="standard", attn_bias=True,
)  # fmt: skip


def in_both(model: Transformer) -> dict[str, Transformer]:
    """The model in float32 and in float64, the same weights: what differs is rounding."""
    return {"float32": model, "float64": copy.deepcopy(model).to(torch.float64)}


def normed_model(seed: int = 0) -> tuple[Transformer, spots.Spots]:
    """A LayerNorm model with random weights, large enough to matter, and random prompts for it."""
    generator = torch.Generator().manual_seed(seed)
    model = Transformer(NORMED, generator).to(torch.float64).eval().requires_grad_(False)
    for name, p in model.named_parameters():
        if "W_" in name:
            p.mul_(TIMES)
        else:
            p.add_(0.3 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    tokens = torch.randint(1, NORMED.d_vocab, (40, 32), generator=generator)
    at = torch.stack([torch.randperm(26, generator=generator)[:5] + 4 for _ in tokens])
    return model, spots.Spots(tokens, at, torch.arange(40))


def identity_errors(
    draws: dict[str, spots.Spots], models: dict[str, Transformer]
) -> dict[str, Any]:
    """Rounding errors of every identity of this part, on random and on trained weights."""
    out: dict[str, Any] = {"random": identities.errors(), "trained": {}, "product": {}}
    for role, trained in models.items():
        row, sums, ran = {}, {}, {}
        few = spots.Spots(*(x[:12] for x in draws[role]))
        short = draws[role].tokens[:3, :32]
        for name, model in in_both(trained).items():
            if role == "gelu-2l" or name == "float32":
                sums[name] = product.errors(model, short)
            x = spots.read_by_mlp(model, few).x
            mlp, act = of_stream(model.blocks[-1]), model.cfg.act
            row[name] = identities.forward_error(mlp, act, x)
            ran[name] = mlp(x[None])[0]
        # The block's own output in float32 may be off by more than the limit: then no operator can
        # meet it, and twice this rounding is allowed in its place.
        own = relative_change(ran["float64"], ran["float32"].double())
        row["float32"] *= min(1.0, 1e-6 / max(2 * own, 1e-30))
        generator = torch.Generator().manual_seed(0)
        dx = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        row["Jacobian"] = identities.jacobian_error(mlp, act, x, dx)
        out["trained"][role], out["product"][role] = row, sums
    model, random = normed_model()
    out["product"]["LayerNorm, random"] = {"float64": product.errors(model, random.tokens[:2])}
    return out


def held_is_routes(model: Transformer, drawn: spots.Spots) -> float:
    """Removing a head with all held = minus the sum of all routes through it.

    Held: patterns and gains; the scales of norms too, where there are any.
    """
    few = spots.Spots(*(x[:4] for x in drawn))
    heads = [(0, h) for h in range(model.cfg.n_heads)]
    done = product.record(model, few.tokens)
    found = product.routes(done, few.at)
    toward = found.toward(product.direction(done, few.direction(model), few.at))
    through = torch.stack([
        sum(t for r, t in zip(found.routes, toward, strict=True) if f"0.{h}" in r.path)
        for _, h in heads
    ])  # fmt: skip
    everything = next(iter(levels.levels_of(model).values()))
    return relative_change(through, levels.removals(model, few, heads, everything))


def relu_forward_is_jacobian(model: Transformer, drawn: spots.Spots) -> float:
    """Largest |forward share - Jacobian share| over the largest share, of one model."""
    found = shares.all_shares(model, spots.read_by_mlp(model, drawn))
    first = next(n for n in found if n.startswith("forward"))
    return relative_change(found[first], found["Jacobian"])


def trained_euler(
    model: Transformer, drawn: spots.Spots, with_norm: bool = False
) -> dict[str, float]:
    """The Euler line of a trained block on what it reads, and how well xJ + bias row gives F.

    with_norm: of the norm and the MLP, as a function of the stream; else of the MLP alone.
    """
    x, block, act = spots.read_by_mlp(model, drawn).x, model.blocks[-1], model.cfg.act
    mlp = of_stream(block)
    if not with_norm:
        mlp, x = inner(mlp), x if inner(mlp) is mlp else block.ln2(x)
    line = euler.of_block(mlp, act, x)
    F = mlp(x[None])[0]
    bias = forward(mlp, act, x).bias
    gap = (F - x @ jacobian(mlp, act, x) - bias).norm(dim=-1) / F.norm(dim=-1)
    if model.cfg.gated:
        other = forward(mlp, act, x, content=0.0).bias
        line["bias, gate"] = (other.norm(dim=-1) / F.norm(dim=-1)).mean().item()
    return line | {"left after the bias row": gap.mean().item()}


def _models(
    every: tuple[str, ...], windows: int, length: int
) -> tuple[dict[str, Transformer], dict[str, spots.Spots]]:
    """Role -> model, and the positions drawn for it, in the text of its own model set."""
    models, draws, by_set, ours = {}, {}, {}, size(windows, OURS)
    for role in every:
        with set_of(role):
            models[role], here = zoo.load(role, device="cpu"), paths.models()
            if here not in by_set:
                by_set[here] = spots.draw(ours if here == "course" else windows, length)
            draws[role] = by_set[here]
    return models, draws


def _euler(roles: tuple[str, ...], models: dict, draws: dict) -> dict[str, dict[str, float]]:
    """The lines of trained MLPs, and of norm and MLP together where there is a norm."""
    out = {role: trained_euler(models[role], draws[role]) for role in roles}
    for role in roles:
        if models[role].cfg.norm != "none":
            out[f"{role}{NORM_INCLUDED}"] = trained_euler(models[role], draws[role], True)
    return out


def _shares(roles: tuple[str, ...], models: dict, draws: dict) -> dict[str, dict[str, Any]]:
    out = {}
    for role in roles:
        with set_of(role):  # the tokenizer that words the cases
            out[role] = shares.study(models[role], draws[role])
    return out


def study(windows: int = 40, length: int = 96, roles: tuple[str, ...] = ROLES) -> tuple[dict, list]:
    """(data, claims) of this part. windows: of held-out text, five positions drawn in each."""
    every = ("gelu-2l", *roles, "moe-1l")
    models, draws = _models(every, windows, length)
    drawn, two = draws["gelu-2l"], models["gelu-2l"]
    half = {role: spots.Spots(*(x[::2] for x in d)) for role, d in draws.items()}
    # half of them for the levels: every level runs the model once for each head
    errors = identity_errors(draws, models)
    heads = [head for head in heads_of(two) if head[0] == 0]
    normed, random = normed_model()
    data: dict[str, Any] = {
        "setting": {
            "windows": windows,
            "positions": drawn.n,
            "documents": len(drawn.doc.unique()),
            "positions for levels": half["gelu-2l"].n,
            "times": TIMES,
        },
        "zero": identities.gain_at_zero(),
        "routes": {
            role: route_groups.text_study(models[role], drawn) for role in ("gelu-2l", "gelu-1l")
        },
        "reader": route_groups.through_reader(two),
        "parallel": {r: next(iter(e.values()))["parallel"] for r, e in errors["product"].items()},
        "euler": {
            "random": euler.table(),
            "trained": _euler((*roles, "moe-1l"), models, draws),
        },
        "shares": _shares((*roles, "gelu-2l"), models, draws),
        "levels": {
            "gelu-2l": levels.compare(two, half["gelu-2l"], heads, two.cfg.norm != "none"),
            "moe-1l": levels.compare(models["moe-1l"], half["moe-1l"], heads_of(models["moe-1l"])),
            "LayerNorm, random": levels.compare(normed, random, [(0, h) for h in range(4)]),
        },
        "survive": gauges.survival(
            zoo.load("gelu-1l", dtype=torch.float64, device="cpu", center=False),
            spots.Spots(*(x[:3] for x in draws["gelu-1l"])),
        ),
    }
    errors["euler"] = euler.exact_errors()
    errors["held"] = held_is_routes(two, drawn)
    errors["rerun"] = max(data["shares"][r].pop("rerun gap") for r in roles)
    errors["shares"] = {
        role: max(found["totals"].pop("error").values()) for role, found in data["shares"].items()
    }
    errors["relu"] = (
        relu_forward_is_jacobian(models["relu-1l"], draws["relu-1l"])
        if "relu-1l" in roles
        else None
    )
    data["euler"]["gelu error"] = errors["euler"]["gelu"]
    data["errors"] = as_bounds(errors)
    return data, operator_claims.claims(data, errors)


def as_bounds(errors: dict[str, Any]) -> dict[str, Any]:
    """Rounding errors as limits and verdicts: their digits are no evidence."""
    limits = {"float32": 1e-6, "float64": 1e-12, "Jacobian": 1e-10}
    out = {
        kind: {
            n: {k: bound(e, limits[k]) for k, e in row.items()} for n, row in errors[kind].items()
        }
        for kind in ("random", "trained")
    }
    sums = {"float32": 1e-4, "float64": 1e-11}
    out["product"] = {
        role: {k: {w: bound(e[w], sums[k]) for w in ("routes", "product")} for k, e in row.items()}
        for role, row in errors["product"].items()
    }
    return out
