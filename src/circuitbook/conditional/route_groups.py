"""324 exact summands of one logit are too many to read: grouped sums, with what cancels in them.

A group's contribution to a position's centred next-token logit is the sum of its routes' w . u. The
groups of one grouping add up to the logit. Means are over drawn positions, errors by document.
With a final norm, u is read through it at the scale of this pass (held), and the unembedding's bias
is a group of its own. Token and position share their paths: a path begins at what stands in the
stream there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuitbook import spine
from circuitbook.conditional.product import Route, Routes, direction, record, routes
from circuitbook.conditional.spots import Spots
from circuitbook.model import Transformer
from circuitbook.probe import clustered_mean

UNEMBEDDING = "bias of the unembedding"


def by_depth(route: Route) -> str:
    """How many heads, and which MLPs: "1 head, MLP 0 + MLP 1"; bias rows by where they begin."""
    if route.source == "constant":
        return f"bias row of {route.path[0]}"
    n = len(route.heads)
    heads = "no head" if n == 0 else "1 head" if n == 1 else f"{n} heads"
    return f"{heads}, {' + '.join(route.mlps) or 'no MLP'}"


def of_heads(path: tuple) -> bool:
    """True for a path that begins in what a layer's heads add whatever they read: b_O."""
    return bool(path) and path[0].startswith("heads")


def by_steps(route: Route) -> str:
    """How many nonlinear steps: MLPs passed, the one whose bias row began it among them."""
    return f"{len(route.mlps)} MLPs"


def grouped(
    found: Routes, toward: Float[Tensor, "route n"], key: Callable[[Route], Hashable]
) -> dict[Hashable, Float[Tensor, " n"]]:
    """Group -> the sum of its routes at each position, in the order in which groups turn up."""
    names = [key(r) for r in found.routes]
    order = list(dict.fromkeys(names))
    index = torch.tensor([order.index(n) for n in names], device=toward.device)
    total = toward.new_zeros(len(order), toward.shape[1])
    return dict(zip(order, total.index_add_(0, index, toward), strict=True))


def homogeneous(found: Routes, toward: Float[Tensor, "route n"]) -> dict[tuple, Tensor]:
    """Path -> its route from (x, 1): the parts of token, position and constant in one number."""
    return grouped(found, toward, lambda r: r.path)


def pairs(found: Routes, toward: Float[Tensor, "route n"], n_heads: int) -> Float[Tensor, "h1 h2"]:
    """Mean contribution of all routes through head 0.a and head 1.b, whatever MLPs they pass."""
    out = toward.new_zeros(n_heads, n_heads)
    for r, value in zip(found.routes, toward.mean(1), strict=True):
        if len(r.heads) == 2:
            a, b = (int(h.split(".")[1]) for h in r.heads)
            out[a, b] += value
    return out


def chance(
    sizes: Float[Tensor, "route n"], draws: int = 200, seed: int = 0
) -> tuple[float, float, float]:
    """(median, low, high) of sum of |routes| / |sum| when every route gets a random sign.

    The sign is one for all positions, the sizes stay: what would cancel by chance. Middle 95 %.
    """
    generator = torch.Generator().manual_seed(seed)
    sign = torch.randint(0, 2, (draws, len(sizes)), generator=generator).to(sizes) * 2 - 1
    found = sizes.sum(0).mean() / (sign @ sizes).abs().mean(-1)
    low, middle, high = found.quantile(torch.tensor([0.025, 0.5, 0.975]).to(found)).tolist()
    return middle, low, high


def text_study(model: Transformer, spots: Spots) -> dict[str, Any]:
    """Groups, cancellation, the largest routes and head pairs on drawn positions of text.

    cancel: mean of (sum of |routes|) / mean of |logit|; 1 would mean that nothing cancels. It
    depends on how finely the sum is cut ("cancel, groups": the groups by depth). "cancel by
    chance": see `chance`. "routes": those from (x, 1); a model with attention biases has more,
    "bias routes", which begin in one. "sources": what begins at the token, the position, a bias.
    """
    done = record(model, spots.tokens)
    found, bias = routes(done, spots.at), spots.constant(model)
    toward = found.toward(direction(done, spots.direction(model), spots.at))
    doc, logit = spots.doc_of_each(), toward.sum(0)
    groups = grouped(found, toward, by_depth)
    if bias is not None:
        logit, groups = logit + bias, groups | {UNEMBEDDING: bias}
    paths = homogeneous(found, toward)
    size = {p: v.abs().mean().item() for p, v in paths.items()}
    more = sum(map(of_heads, paths))
    largest = sorted(size, key=size.get, reverse=True)[:10]

    def means(groups: dict) -> dict[str, list[float]]:
        return {str(k): list(clustered_mean(v, doc)[:2]) for k, v in groups.items()}

    out = {
        "routes": len(paths) - more,
        "constant": sum(r.source == "constant" for r in found.routes),
        "logit": list(clustered_mean(logit, doc)[:2]),
        "by depth": means(groups),
        "by steps": means(grouped(found, toward, by_steps)),
        "cancel": (sum(v.abs() for v in paths.values()).mean() / logit.abs().mean()).item(),
        "cancel, groups": (
            sum(v.abs() for v in groups.values()).mean() / logit.abs().mean()
        ).item(),
        "cancel by chance": list(chance(torch.stack(list(paths.values())).abs())),
        "largest": [
            {"route": " → ".join(p if of_heads(p) else ("x", *p)), "mean": paths[p].mean().item(),
             "size": size[p]}
            for p in largest
        ],
    }  # fmt: skip
    if len(done.sources) > 1:
        out |= {"bias routes": more, "sources": means(grouped(found, toward, lambda r: r.source))}
    if model.cfg.n_layers == 2:
        out["pairs"] = pairs(found, toward, model.cfg.n_heads).tolist()
    return out


def before_and_after(route: Route, head: str) -> tuple[str, str] | None:
    """How a route reaches the given head of the last layer, and how it goes on; None if it misses.

    Before: "token", "head", "MLP 0", "head, MLP 0", "bias row" of an MLP, "bias of the heads",
    "position" where it came straight. After: "direct" or the last MLP.
    """
    if head not in route.path:
        return None
    i = route.path.index(head)
    before, after = route.path[:i], route.path[i + 1 :]
    if route.source == "constant":
        way = "bias of the heads" if of_heads(route.path) else "bias row"
    else:
        some = ["head"] if any(" " not in p for p in before) else []
        way = ", ".join(some + [p for p in before if " " in p]) or route.source
    return way, after[0] if after else "direct"


def through_reader(model: Transformer) -> dict[str, Any]:
    """The name prompts: what the induction head writes for the name, by how it got there.

    u is the answer's centred unembedding at the last position. Means over prompts with standard
    errors over prompts. Patterns, gains and norm scales are those of the realised pass.
    """
    prompts = spine.name_prompts()
    writer, reader = spine.heads_pair(model, 16)
    at = torch.full((len(prompts.tokens), 1), prompts.tokens.shape[1] - 1)
    found = routes(record(model, prompts.tokens), at)
    toward = found.toward(spine.name_directions(model, prompts)[0][:, None])
    name = f"{reader[0]}.{reader[1]}"
    ways = grouped(found, toward, lambda r: before_and_after(r, name))
    ways.pop(None)
    n = len(prompts.tokens) ** 0.5
    return {
        "pair": [f"{l}.{h}" for l, h in (writer, reader)],
        "ways": {f"{a} → {name} → {b}": [v.mean().item(), v.std().item() / n]
                 for (a, b), v in ways.items()},
        "logit": (toward.sum(0) + spine.name_biases(model, prompts)[0]).mean().item(),
    }  # fmt: skip
