"""Finite changes, measured: how fast the sums come near, and what routing leaves between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from circuitbook import paths, zoo
from circuitbook.conditional import finite, jumps, radial
from circuitbook.conditional.finite_claims import claims, kept
from circuitbook.conditional.methods_study import broken_match, logit_of, two_texts
from circuitbook.conditional.operators import of_stream
from circuitbook.conditional.own import set_of, size
from circuitbook.model import Transformer

SMOOTH, KINKED = ("gelu-1l", "swiglu-1l"), ("relu-1l",)
OURS = 8  # pairs for the course's roles where the others are published ones
DOUBLINGS = (16, 32, 64, 128)  # where the order is read


def study(
    path_integral: Callable[..., Tensor] = finite.integral,
    *,
    pairs: int = 8,
    steps: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128, 256),
    prompts: int = 6,
    whole_steps: Sequence[int] = (2, 4, 8, 16, 32),
    seed: int = 3,
) -> tuple[dict[str, Any], list[dict]]:
    """(data, claims). path_integral(f, x0, x1, steps): the midpoint rule, as the lesson teaches it.

    States are what trained MLPs read in held-out text; each line goes from a state of one document
    to a state of another. float64, but the whole models (float32). A norm before an MLP belongs to
    the map. Roles without a published counterpart are those of the course in either model set.
    """
    blocks, lines, texts = {}, size(pairs, OURS), size(prompts, OURS)
    for role in (*SMOOTH, *KINKED):
        with set_of(role):
            n = pairs if role == "gelu-1l" else lines
            blocks[role] = one_block(role, path_integral, n, steps, seed)
    with paths.model_set("course"):
        experts = mixture(path_integral, lines, steps, seed)
        crossed = whole_experts(texts, seed)
    d = {
        "steps": list(steps),
        "pairs": pairs,
        "blocks": blocks,
        "experts": experts,
        "whole": {
            role: whole(zoo.load(role), prompts, whole_steps, seed)
            for role in ("attn-only-2l", "gelu-2l")
        },
        "whole_steps": list(whole_steps),
        "whole_experts": crossed,
        "radial": radial.table(seed),
        "radial_trained": radial_trained(min(pairs, 4), seed),
    }
    return kept(d), claims(d)


def one_block(
    role: str, path_integral: Callable[..., Tensor], pairs: int, steps: Sequence[int], seed: int
) -> dict[str, Any]:
    """Mean relative error of the midpoint rule by number of steps, for one model's MLP."""
    model = zoo.load(role, dtype=torch.float64, device="cpu")
    f = finite.rows(of_stream(model.blocks[-1]))
    x0, x1 = finite.state_pairs(model, pairs, seed)
    errors = finite.errors(f, x0, x1, steps, path_integral)
    return {"errors": errors, "fall": _fall(errors, steps)}


def _fall(errors: Sequence[float], steps: Sequence[int]) -> float:
    read = [e for e, k in zip(errors, steps, strict=True) if k in DOUBLINGS]
    return finite.fall(read if len(read) > 1 else errors)


def mixture(
    path_integral: Callable[..., Tensor], pairs: int, steps: Sequence[int], seed: int
) -> dict[str, Any]:
    """The same for `moe-1l`, whose selection changes on the way; and what the gap is made of.

    gap: |change - integral, piece by piece - sum of jumps| over |sum of jumps|, the worst pair.
    floor: |sum of jumps| over |change|, mean over pairs. at_floor: how far the midpoint rule's gap
    is from the sum of jumps at the most steps, relative, over all pairs together.
    """
    model = zoo.load("moe-1l", dtype=torch.float64, device="cpu")
    mlp = model.blocks[-1].mlp
    f = finite.rows(mlp)
    x0, x1 = finite.state_pairs(model, pairs, seed)
    apart = [jumps.take_apart(mlp, a, b) for a, b in zip(x0, x1, strict=True)]
    total = torch.stack([a.jumps.sum(0) for a in apart])
    change = f(x1) - f(x0)
    crossed = torch.tensor([len(a.crossings) > 0 for a in apart])
    piecewise = torch.stack([a.smooth for a in apart])
    sums = [path_integral(f, x0, x1, k) for k in steps]
    left = change - sums[-1]
    size = total.norm(dim=-1)
    one = int(size.argmax())
    return {
        "errors": finite.relative(change, sums),
        "without_jumps": finite.relative(change, sums, total),
        "floor": (size / change.norm(dim=-1)).mean().item(),
        "at_floor": ((left - total).norm(dim=-1).sum() / size.sum().clamp_min(1e-30)).item(),
        "gap": max(((change - piecewise - total).norm(dim=-1) / size)[crossed].tolist(), default=0),
        "crossings": [len(a.crossings) for a in apart],
        "crossed": int(crossed.sum()),
        "one": {
            "t": [c.t for c in apart[one].crossings],
            "out": [c.out for c in apart[one].crossings],
            "into": [c.into for c in apart[one].crossings],
            "size": (apart[one].jumps.norm(dim=-1) / change[one].norm()).tolist(),
        },
    }


def whole(model: Transformer, prompts: int, steps: Sequence[int], seed: int) -> dict[str, Any]:
    """From a prompt with its match broken to the whole one, embeddings moved on a straight line."""
    task = broken_match(prompts, seed)
    with torch.no_grad():
        before, after = (logit_of(model, task, x) for x in (task.tokens, task.others))
    change = after - before
    errors = [
        (finite.whole_model(model, task.tokens, task.others, task.metric, k) - change).abs().mean()
        / change.abs().mean()
        for k in steps
    ]
    return {"errors": [e.item() for e in errors], "change": change.mean().item()}


def whole_experts(prompts: int, seed: int, panels: int = 2) -> dict[str, Any]:
    """`moe-1l` from one text to another: the last stream runs on a curve, and routing jumps on it.

    Only the last position's routing can reach its own logits: an MLP does not move information.
    Crossings by bisection on a grid that is refined until two agree, pieces by Gauss. gap, jumps:
    mean over prompts, logits.
    """
    model = zoo.load("moe-1l", dtype=torch.float64, device="cpu")
    task, mlp = two_texts(prompts, seed), model.blocks[-1].mlp
    name = "blocks.0.hook_resid_mid"
    gaps, total, rest, count = [], [], [], []
    columns = model.W_U.T[task.right] - model.W_U.T[task.wrong]
    with torch.no_grad():
        change = logit_of(model, task, task.others) - logit_of(model, task, task.tokens)
    for i in range(prompts):
        here = slice(i, i + 1)
        e0, e1 = (model.W_E[x[here]] for x in (task.tokens, task.others))

        def state(t: Tensor, e0: Tensor = e0, e1: Tensor = e1) -> Tensor:
            mixed = torch.lerp(e0, e1, t[:, None, None])
            blank = task.tokens[:1].expand(len(t), -1)
            with torch.no_grad(), model.hooks(fwd_hooks=[("hook_embed", lambda x, hook: mixed)]):
                return model.run_with_cache(blank, names_filter=name)[1][name][:, -1]

        found = jumps.all_on_curve(lambda t: state(t) @ mlp.W_router, mlp.top_k)
        jump = [
            jumps.jump(mlp, state(torch.tensor([c.t], dtype=torch.float64))[0], c) @ columns[i]
            for c in found
        ]
        ends, smooth = [0.0, *(c.t for c in found), 1.0], 0.0
        t, w = finite.rule(panels, "gauss")
        for a, b in zip(ends[:-1], ends[1:], strict=True):
            row = torch.full((len(t),), i)
            _, slope = finite.along(
                model, task.tokens, task.others, task.metric, a + (b - a) * t, row
            )
            smooth += float((slope * w).sum() * (b - a))
        gaps.append(float(change[i]) - smooth)
        total.append(float(sum(jump)) if jump else 0.0)
        rest.append(abs(gaps[-1] - total[-1]))
        count.append(len(found))
    crossed = [k > 0 for k in count]
    size = sum(map(abs, total))
    return {
        "gap": gaps, "jumps": total, "crossings": count, "crossed": sum(crossed),
        "left": sum(rest) / size if size else 0.0,
        "change": change.abs().mean().item(),
    }  # fmt: skip


def radial_trained(n: int, seed: int) -> dict[str, float]:
    """|J_bar - B| / |B| at n states of `gelu-1l` in text: biases left in place, and as a row.

    The ray is that of what the MLP itself reads: behind a norm, that of the norm's output.
    """
    model = zoo.load("gelu-1l", dtype=torch.float64, device="cpu")
    block, act = model.blocks[-1], model.cfg.act
    mlp, x = block.mlp, block.ln2(finite.state_pairs(model, n, seed)[0])
    stays = [radial.compare(mlp, act, y)["operator"] for y in x]
    one = torch.ones(1, dtype=x.dtype)
    row = [radial.compare(radial.augmented(mlp), act, torch.cat([y, one])) for y in x]
    return {
        "stays": sum(stays) / n,
        "row": max(r["operator"] for r in row),
    }
