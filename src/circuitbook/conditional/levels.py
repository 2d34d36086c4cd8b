"""A head's write is removed; what is allowed to answer? "Frozen" has four meanings, and one more.

What is held at the value of the untouched pass, from all to nothing:

    patterns             where every head looks
    norm scales          the s of every norm                     (models with a norm)
    MLP gains            gamma(z) of every neuron: z may move, its gain may not
    expert set, weights  which experts, and how much of each     (mixtures)
    nothing              the model is run again

One more level is no value but a rate: with "MLP slopes" every neuron answers as a small change
would make it, phi(z) + phi'(z) dz. That is the Jacobian's answer to the same removal. "norm
slopes" is the same for norms: n + dx (P - n^T n / d)/s.

With everything held the pass is linear, and the answer is minus the sum of all routes that use this
write: the forward share. (With value biases folded into b_O, as `zoo.load` does. Unfolded, a head's
write also holds b_V W_O, which no route through that head has.) With nothing held it is the effect
that an experiment would find. Held or not, these are interventions on a forward pass, done with
hooks in the model itself.

Cut: the head's write, zero. Read: the change of the next token's centred logit, clean minus cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuitbook.conditional.gates import gate, phi, slope
from circuitbook.conditional.operators import EXPERT_SET, EXPERTS, GAINS, PATTERNS, SCALES
from circuitbook.conditional.shares import bootstrap, off, pooled, stream_at
from circuitbook.conditional.spots import Spots
from circuitbook.cut import Cut, Head, ablate_heads, freeze_patterns
from circuitbook.model import Transformer
from circuitbook.stream import head_name

SLOPES, NORM_SLOPES = "MLP slopes", "norm slopes"
HELD = (PATTERNS, SCALES, NORM_SLOPES, GAINS, SLOPES, EXPERTS, EXPERT_SET)


def levels_of(model: Transformer) -> dict[str, tuple[str, ...]]:
    """Level -> what it holds, from all to nothing; only the levels that differ for this model.

    In a one-layer model patterns cannot answer a head of the same layer, so they are left out.
    """
    cfg = model.cfg
    have = [PATTERNS] if cfg.n_layers > 1 else []
    if cfg.norm != "none":
        have.append(SCALES)
    if cfg.n_experts:
        have += [EXPERT_SET, EXPERTS]
    if not cfg.attn_only:
        have.append(GAINS)
    names = {PATTERNS: "patterns", SCALES: "norm scales", EXPERT_SET: "expert set",
             EXPERTS: "expert weights", GAINS: "MLP gains"}  # fmt: skip
    out = {" + ".join(names[h] for h in have): tuple(have)}
    if not (cfg.attn_only or cfg.gated):
        first_order = (*have[:-1], SLOPES)
        out[" + ".join([*(names[h] for h in have[:-1]), "MLP slopes"])] = first_order
    for k in range(len(have) - 1, 0, -1):
        out[" + ".join(names[h] for h in have[:k])] = tuple(have[:k])
    return out | {"re-run": ()}


def hold(model: Transformer, spots: Spots, what: Sequence[str]) -> Cut:
    """Hooks that keep the named things as they are in the pass without cuts on these tokens.

    Gated MLPs: the gain held is phi(g), so the content still moves and the gate does not. Slopes
    are for plain MLPs. Raises ValueError for a name that is not one of HELD.
    """
    unknown = [w for w in what if w not in HELD]
    if unknown:
        raise ValueError(f"cannot hold {unknown}: choose from {', '.join(HELD)}")
    cfg = model.cfg
    ends = {
        SCALES: ("hook_scale",),
        NORM_SLOPES: ("hook_scale", "hook_normalized"),
        GAINS: ("mlp.hook_pre",),
        SLOPES: ("mlp.hook_pre",),
        EXPERTS: ("hook_expert_weights",),
        EXPERT_SET: ("hook_expert_weights",),
    }
    wanted = tuple(e for w in what for e in ends.get(w, ()))
    clean = _values(model, spots, [n for n in model.hook_dict if wanted and n.endswith(wanted)])
    total = freeze_patterns(model, spots.tokens) if PATTERNS in what else Cut()
    hooks: list[tuple[str, Callable]] = []
    for name, value in clean.items():
        if name.endswith("hook_scale"):
            at = name.removesuffix("hook_scale")
            first_order = NORM_SLOPES in what and SCALES not in what
            hooks += (
                _norm_slopes(at, value, clean[at + "hook_normalized"])
                if first_order
                else [(name, _constant(value))]
            )
        elif name.endswith("hook_normalized"):
            continue
        elif name.endswith("mlp.hook_pre"):
            rate = SLOPES in what
            hooks += _gains(name.removesuffix("hook_pre"), value, cfg.act, cfg.gated, rate)
        elif EXPERTS in what:
            hooks.append((name, _constant(value)))
        else:
            hooks += _set(name.removesuffix("hook_expert_weights"), value, cfg.top_k)
    return total + Cut(tuple(hooks), frozen=tuple(w for w in what if w != PATTERNS))


@torch.no_grad()
def _values(model: Transformer, spots: Spots, names: list[str]) -> dict[str, Tensor]:
    kept: dict[str, Tensor] = {}

    def keep(x: Tensor, hook: Any) -> None:
        kept[hook.name] = x

    if names:
        with model.hooks(fwd_hooks=[(n, keep) for n in names]):
            model.stream(spots.tokens)
    return kept


def _constant(value: Tensor) -> Callable:
    return lambda x, hook: value


def _norm_slopes(at: str, s: Tensor, n: Tensor) -> list[tuple[str, Callable]]:
    # n0 + dx J with dx P = n' s' - n s; the new scale is seen on its way.
    seen: list[Tensor] = []

    def remember(scale: Tensor, hook: Any) -> None:
        seen[:] = [scale]

    def rewrite(new: Tensor, hook: Any) -> Tensor:
        change = new * seen.pop() - n * s
        return n + (change - n * (n * change).mean(-1, keepdim=True)) / s

    return [(at + "hook_scale", remember), (at + "hook_normalized", rewrite)]


def _gains(at: str, z: Tensor, act: str, gated: bool, rate: bool) -> list[tuple[str, Callable]]:
    # The neurons become (new input) * gain + rest; the new input is seen on its way.
    if gated:
        gain, rest = phi(act, z), torch.zeros_like(z)
    else:
        gain = slope(act, z) if rate else gate(act, z)
        rest = phi(act, z) - gain * z
    seen: list[Tensor] = []

    def remember(x: Tensor, hook: Any) -> None:
        seen[:] = [x]

    def rewrite(post: Tensor, hook: Any) -> Tensor:
        return seen.pop() * gain + rest

    name = "hook_pre_linear" if gated else "hook_pre"
    return [(at + name, remember), (at + "hook_post", rewrite)]


def _set(at: str, weights: Tensor, k: int) -> list[tuple[str, Callable]]:
    # The old set, weighted by the new logits as the course's router would weight it.
    keep, seen = weights > 0, []

    def remember(logits: Tensor, hook: Any) -> None:
        seen[:] = [logits]

    def reweigh(w: Tensor, hook: Any) -> Tensor:
        logits = seen.pop()
        if k == 1:
            return logits.softmax(-1).masked_fill(~keep, 0.0)
        return logits.masked_fill(~keep, -torch.inf).softmax(-1)

    return [(at + "hook_router_logits", remember), (at + "hook_expert_weights", reweigh)]


def removals(
    model: Transformer, spots: Spots, heads: Sequence[Head], what: Sequence[str]
) -> Float[Tensor, "head n"]:
    """Fall of the next token's centred logit when each head's write is removed, `what` held."""
    u = spots.direction(model).flatten(0, 1)
    held = list(hold(model, spots, what).hooks)
    clean = stream_at(model, spots, held)
    rows = []
    for head in heads:
        cut = ablate_heads(model, spots.tokens, [head])
        moved = clean - stream_at(model, spots, [*cut.hooks, *held])
        rows.append((moved * u).sum(-1))
    return torch.stack(rows)


def compare(
    model: Transformer, spots: Spots, heads: Sequence[Head], first_order: bool = False
) -> dict[str, Any]:
    """Each level against the re-run: mean |difference| / mean |re-run|, and rank correlation.

    Both with the middle 95 % over documents. "mean": the mean fall of each head at each level.
    "nearer by": level -> how much less it is off than the level that holds one thing more, paired.
    first_order: one level more, where norms and MLPs both answer as to a small change.
    """
    every = levels_of(model)
    if first_order:
        every = {f"patterns + {NORM_SLOPES} + {SLOPES}": (PATTERNS, NORM_SLOPES, SLOPES)} | every
    falls = {n: removals(model, spots, heads, what) for n, what in every.items()}
    last, doc = falls["re-run"], spots.doc_of_each()
    out: dict[str, Any] = {"heads": [head_name(h) for h in heads], "size": last.abs().mean().item()}
    out["mean"] = {n: f.mean(1).tolist() for n, f in falls.items()}
    out["levels"] = {
        n: {
            "off": bootstrap(off, f, last, doc),
            "rank correlation": bootstrap(pooled, f, last, doc),
        }
        for n, f in falls.items()
        if n != "re-run"
    }
    nested = [n for n in out["levels"] if SLOPES not in n]
    out["nearer by"] = {
        less: bootstrap(nearer, torch.cat([falls[more], falls[less]]), last, doc)
        for more, less in pairwise(nested)
    }
    return out


def nearer(both: Float[Tensor, "two_heads n"], last: Float[Tensor, "head n"]) -> float:
    """off of the first half of `both` minus off of the second."""
    a, b = both.chunk(2)
    return off(a, last) - off(b, last)
