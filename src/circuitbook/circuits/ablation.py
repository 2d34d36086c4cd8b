"""F(C): the metric when only the nodes of C write what they compute, and the others a stand-in.

What stands in (`Standin.kind`):
    "zero"      nothing. The model may never have seen such a stream.
    "mean"      the mean of the write over reference prompts, position by position or role by role.
    "resample"  the write in another run: one other prompt for each prompt.
Stand-ins come from runs without cuts and are the same for every set. Everything else is computed
again: a node of C reads a stream that holds the stand-ins, so its write is not its clean write.

A head's write is z W_O (z [batch, pos, head, d_head] is replaced; b_O stays). An MLP's write is all
of mlp_out, b_out included. Embeddings, positions and the unembedding are never cut.

Cost: one forward pass for each set, all sets together in one batch. Memory grows with `at_once`,
the number of tokens in one batch, not with the number of sets.
Sources: Wang et al. 2023 (mean ablation over a reference distribution, F(C)); Chan et al. 2022
(resampling); Meng et al. 2022 and Vig et al. 2020 (activation patching).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from circuitbook.circuits.metrics import Metric
from circuitbook.circuits.nodes import Node, masks
from circuitbook.model import Transformer

AT_ONCE = 8192  # tokens in one batch


class Standin(NamedTuple):
    """What is written instead: z of each layer [prompt or 1, pos, head, d_head], MLP likewise."""

    kind: str
    z: list[Tensor]
    mlp: list[Tensor]  # [prompt or 1, pos, d_model]; empty without MLPs


def write_names(model: Transformer) -> tuple[list[str], list[str]]:
    """The hooks whose values are cut: z of every layer, and every MLP's output."""
    layers = range(model.cfg.n_layers)
    mlps = [] if model.cfg.attn_only else [f"blocks.{l}.hook_mlp_out" for l in layers]
    return [f"blocks.{l}.attn.hook_z" for l in layers], mlps


@torch.no_grad()
def writes(
    model: Transformer, tokens: Int[Tensor, "batch pos"]
) -> tuple[list[Tensor], list[Tensor]]:
    """(z, mlp_out) of every layer in a run without cuts. One forward pass."""
    names = write_names(model)
    _, cache = model.run_with_cache(
        tokens.to(model.W_E.device), return_type="logits", names_filter=[*names[0], *names[1]]
    )
    return [cache[n] for n in names[0]], [cache[n] for n in names[1]]


def zero(model: Transformer, tokens: Int[Tensor, "batch pos"]) -> Standin:
    """Nothing stands in: zeros. No forward pass. tokens give the length only."""
    c, n = model.cfg, tokens.shape[1]
    z = model.W_E.new_zeros(1, n, c.n_heads, c.d_head)
    m = model.W_E.new_zeros(1, n, c.d_model)
    return Standin("zero", [z] * c.n_layers, [] if c.attn_only else [m] * c.n_layers)


def mean(
    model: Transformer,
    reference: Int[Tensor, "ref pos"],
    *,
    reference_roles: Int[Tensor, "ref pos"] | None = None,
    roles: Int[Tensor, "prompt pos"] | None = None,
) -> Standin:
    """The mean write over the reference prompts, at each position, or at each role. One pass.

    Without roles: over prompts of one length, position by position. With roles (a number from 0 for
    what each place is: "subject, second time", "END", …): the mean over all places of the reference
    prompts that have the role, put at the places of the prompts that have it; use this when
    templates differ. Raises ValueError when only one of the two tables is given, or when a prompt
    has a role that no reference prompt has.
    """
    if (reference_roles is None) != (roles is None):
        raise ValueError("give roles of the prompts and of the reference, or neither")
    z, m = writes(model, reference)
    if roles is None:
        return Standin("mean", *([x.mean(0, keepdim=True) for x in part] for part in (z, m)))
    missing = sorted(set(roles.unique().tolist()) - set(reference_roles.unique().tolist()))
    if missing:
        raise ValueError(f"no reference prompt has the roles {missing} that the prompts have")
    device = model.W_E.device
    source, target = reference_roles.to(device).flatten(), roles.to(device)
    count = torch.bincount(source, minlength=int(target.max()) + 1).clamp_min(1)

    def by_role(x: Tensor) -> Tensor:
        total = x.new_zeros(len(count), *x.shape[2:]).index_add_(0, source, x.flatten(0, 1))
        return (total / count.to(x).view(-1, *[1] * (x.ndim - 2)))[target]

    return Standin("mean", *([by_role(x) for x in part] for part in (z, m)))


def resample(model: Transformer, others: Int[Tensor, "prompt pos"]) -> Standin:
    """The write in another run, row by row: prompt i gets what others[i] has. One forward pass.

    `others` are prompts of the same length and layout that ask for something else, or the prompts
    themselves in another order (`cut.other_window` gives one without fixed points).
    """
    return Standin("resample", *writes(model, others))


def _fits(standin: Standin, tokens: Tensor) -> None:
    shape = standin.z[0].shape
    if shape[0] not in (1, len(tokens)) or shape[1] != tokens.shape[1]:
        raise ValueError(
            f"the stand-in is for prompts {list(shape[:2])}, these are {list(tokens.shape)}"
        )


@torch.no_grad()
def evaluate(
    model: Transformer,
    tokens: Int[Tensor, "prompt pos"],
    metric: Metric,
    standin: Standin,
    keep: Bool[Tensor, "set layer slot *where"],
    *,
    roles: Int[Tensor, "prompt pos"] | None = None,
    at_once: int = AT_ONCE,
) -> Float[Tensor, "set prompt"]:
    """metric of every prompt when only the nodes of each set write what they compute.

    keep: table of sets (see `nodes.masks`). A fourth axis says where: keep[set, layer, slot, pos],
    or keep[set, layer, slot, role] with `roles`. Equal sets are run once. Recomputed: everything,
    in one forward pass over the sets that differ, `at_once` tokens at a time.
    """
    _fits(standin, tokens)
    device = model.W_E.device
    tokens, n = tokens.to(device), len(tokens)
    sets, back = torch.unique(keep.to(device), dim=0, return_inverse=True)
    if roles is not None and keep.ndim != 4:
        raise ValueError("roles need a table keep[set, layer, slot, role]")
    rows = torch.arange(len(sets) * n, device=device)
    out = []
    for part in rows.split(max(1, at_once // tokens.shape[1])):
        which, prompt = part // n, part % n
        now = sets[which]  # [row, layer, slot(, pos or role)]
        if roles is not None:
            index = roles.to(device)[prompt][:, None, None].expand(*now.shape[:3], -1)
            now = now.gather(-1, index)
        elif now.ndim == 3:
            now = now[..., None]
        now = now.transpose(-1, -2)  # [row, layer, pos or 1, slot]
        with model.hooks(fwd_hooks=standin_hooks(model, standin, now, prompt)):
            out.append(metric(model, model.stream(tokens[prompt]), prompt))
    return torch.cat(out).view(len(sets), n)[back]


def standin_hooks(
    model: Transformer, standin: Standin, keep: Tensor, prompt: Tensor
) -> list[tuple[str, Callable]]:
    """Hooks that put the stand-in where keep [row, layer, pos or 1, slot] is False."""
    heads, (z_names, mlp_names) = model.cfg.n_heads, write_names(model)

    def hook_for(instead: Tensor, stay: Tensor) -> Callable:
        def replace(value: Tensor, hook: object) -> Tensor:
            other = instead if len(instead) == 1 else instead[prompt]
            return torch.where(stay, value, other.to(value))

        return replace

    made = []
    for layer, name in enumerate(z_names):
        stay = keep[:, layer, :, :heads]
        if not stay.all():
            made.append((name, hook_for(standin.z[layer], stay[..., None])))
    for layer, name in enumerate(mlp_names):
        stay = keep[:, layer, :, heads:]
        if not stay.all():
            made.append((name, hook_for(standin.mlp[layer], stay)))
    return made


def value(
    model: Transformer,
    tokens: Int[Tensor, "prompt pos"],
    metric: Metric,
    standin: Standin,
    circuit: Sequence[Node],
) -> Float[Tensor, " prompt"]:
    """F(C) of one circuit, per prompt. One forward pass."""
    return evaluate(model, tokens, metric, standin, masks(model, [circuit]))[0]


def without(
    model: Transformer,
    tokens: Int[Tensor, "prompt pos"],
    metric: Metric,
    standin: Standin,
    sets: Sequence[Sequence[Node]],
) -> Float[Tensor, "set prompt"]:
    """F(M without K) for each set K: the usual ablation of K. One forward pass for each set."""
    return evaluate(model, tokens, metric, standin, ~masks(model, sets))


def whole(
    model: Transformer, tokens: Int[Tensor, "prompt pos"], metric: Metric, at_once: int = AT_ONCE
) -> Float[Tensor, " prompt"]:
    """F(M): the untouched model's metric, per prompt. One forward pass."""
    with torch.no_grad():
        rows = torch.arange(len(tokens), device=model.W_E.device)
        tokens = tokens.to(rows.device)
        parts = rows.split(max(1, at_once // tokens.shape[1]))
        return torch.cat([metric(model, model.stream(tokens[part]), part) for part in parts])
