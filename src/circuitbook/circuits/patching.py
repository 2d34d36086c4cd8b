"""Patching: put into one run what another run computed, and see what the answer does.

Activation patching replaces a node's whole write: all later nodes see it. Path patching lets the
change travel along chosen edges only: from senders to receivers, with every other head held at what
it wrote in the run that is patched. Receivers are inputs of heads (query, key, value), inputs of
MLPs, or the logits.

MLPs between sender and receiver: "recomputed" counts a path through them as direct (Wang et al.),
"frozen" leaves the one edge alone. The two differ, so each claim says which.
Sources: Wang et al. 2023, "Interpretability in the Wild"; Goldowsky-Dill et al. 2023, "Localizing
Model Behavior with Path Patching"; Hanna et al. 2023 (MLPs as receivers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from circuitbook.circuits.ablation import AT_ONCE, Standin, evaluate, resample, write_names, writes
from circuitbook.circuits.metrics import Metric
from circuitbook.circuits.nodes import MLP, Node, masks, nodes_of, place
from circuitbook.model import Transformer

Receiver = tuple[int, "int | str", str]  # (layer, head, "q" | "k" | "v") or (layer, "mlp", "in")
MLPS = ("recomputed", "frozen")


def patch_nodes(
    model: Transformer,
    tokens: Int[Tensor, "prompt pos"],
    others: Int[Tensor, "prompt pos"],
    metric: Metric,
    nodes: Sequence[Node] | None = None,
    *,
    at_once: int = AT_ONCE,
) -> Float[Tensor, "node prompt"]:
    """Activation patching: the metric on `tokens` when one node writes what it wrote on `others`.

    All positions of the write; everything later is computed again. With `tokens` the corrupted
    prompts and `others` the clean ones it asks what restores the answer; the other way round, what
    breaks it. Cost: 1 pass over others, then 1 for each node (default: all), in one batch.
    For single positions give `evaluate` a table with a fourth axis.
    """
    nodes = nodes_of(model) if nodes is None else nodes
    keep = ~masks(model, [[node] for node in nodes])
    return evaluate(model, tokens, metric, resample(model, others), keep, at_once=at_once)


def path_patch(
    model: Transformer,
    tokens: Int[Tensor, "prompt pos"],
    standin: Standin | Tensor,
    senders: Sequence[Node | Iterable[Node]],
    receivers: Sequence[Receiver] | None,
    metric: Metric,
    *,
    mlps: str = "recomputed",
    sender_at: Bool[Tensor, "prompt pos"] | None = None,
    receiver_at: Bool[Tensor, "prompt pos"] | None = None,
    at_once: int = AT_ONCE,
) -> Float[Tensor, "sender prompt"]:
    """The metric on `tokens` when each sender's stand-in reaches the receivers only.

    standin: what the sender writes instead; a tensor of other prompts means resampling from them.
    senders: one answer for each entry, a node or several nodes at once.
    receivers: all of them take the changed input together; None means the logits.
    Step 1: a run on `tokens` where the sender writes the stand-in, all other heads are frozen at
    their clean writes, and MLPs are recomputed or frozen (`mlps`). The receivers' q, k, v or MLP
    inputs are read there. For the logits this run is the answer.
    Step 2: a run on `tokens` with only those inputs replaced; everything after them is recomputed.
    With a norm, its scale at the receiver is that of the changed input.
    sender_at, receiver_at: places where the write, the input, is changed (default: all).
    Cost: 1 pass for the clean writes, then 1 (logits) or 2 passes for each sender, in one batch.
    Raises ValueError for an unknown receiver or setting. A sender that does not come before a
    receiver leaves it as it was.
    """
    if mlps not in MLPS:
        raise ValueError(f"unknown setting mlps={mlps!r}: choose one of {MLPS}")
    standin = standin if isinstance(standin, Standin) else resample(model, standin)
    sets = [[s] if _is_node(s) else list(s) for s in senders]
    device = model.W_E.device
    sent, tokens = masks(model, sets).to(device), tokens.to(device)
    clean = writes(model, tokens)
    points = None if receivers is None else [_point(model, r) for r in receivers]
    rows, n, out = torch.arange(len(sets) * len(tokens), device=device), len(tokens), []
    before = model.use_hook_mlp_in
    model.set_use_hook_mlp_in(not model.cfg.attn_only)
    try:
        with torch.no_grad():
            for part in rows.split(max(1, at_once // tokens.shape[1])):
                which, prompt = part // n, part % n
                where = None if sender_at is None else sender_at.to(device)[prompt]
                hold = _hold(model, clean, standin, sent[which], prompt, mlps, where)
                if points is None:
                    with model.hooks(fwd_hooks=hold):
                        out.append(metric(model, model.stream(tokens[prompt]), prompt))
                    continue
                kept: dict[str, Tensor] = {}
                watch = [(name, _look(kept, name)) for name in {name for name, _ in points}]
                with model.hooks(fwd_hooks=hold + watch):
                    model.stream(tokens[prompt])
                there = None if receiver_at is None else receiver_at.to(device)[prompt]
                with model.hooks(fwd_hooks=_deliver(points, kept, there)):
                    out.append(metric(model, model.stream(tokens[prompt]), prompt))
    finally:
        model.set_use_hook_mlp_in(before)
    return torch.cat(out).view(len(sets), n)


# ---------------------------------------------------------------- the two steps


def _is_node(x: object) -> bool:
    return isinstance(x, tuple) and len(x) == 2 and isinstance(x[0], int)


def _point(model: Transformer, receiver: Receiver) -> tuple[str, int | None]:
    """(hook, head or None) of a receiver."""
    layer, at, into = receiver
    place(model, (layer, at))
    if at == MLP and into == "in":
        return f"blocks.{layer}.hook_mlp_in", None
    if at != MLP and into in ("q", "k", "v"):
        return f"blocks.{layer}.attn.hook_{into}", at
    raise ValueError(
        f'unknown receiver {receiver!r}: use (layer, head, "q" | "k" | "v"), or '
        f'(layer, "{MLP}", "in")'
    )


def _look(kept: dict[str, Tensor], name: str) -> Callable:
    def look(value: Tensor, hook: object) -> None:
        kept[name] = value

    return look


def _hold(
    model: Transformer,
    clean: tuple[list[Tensor], list[Tensor]],
    standin: Standin,
    sent: Tensor,
    prompt: Tensor,
    mlps: str,
    where: Tensor | None,
) -> list[tuple[str, Callable]]:
    """Hooks of step 1. sent [row, layer, slot]; where [row, pos] or None."""
    heads, names = model.cfg.n_heads, write_names(model)
    place_too = 1 if where is None else where[:, :, None]  # [row, pos, 1]

    def hook_for(own: Tensor | None, other: Tensor, now: Tensor) -> Callable:
        def replace(value: Tensor, hook: object) -> Tensor:
            instead = other if len(other) == 1 else other[prompt]
            return torch.where(now, instead.to(value), value if own is None else own[prompt])

        return replace

    made = []
    for layer, name in enumerate(names[0]):
        now = (sent[:, layer, None, :heads] * place_too).bool()[..., None]  # [row, pos, head, 1]
        made.append((name, hook_for(clean[0][layer], standin.z[layer], now)))
    for layer, name in enumerate(names[1]):
        now = (sent[:, layer, None, heads:] * place_too).bool()  # [row, pos, 1]
        own = clean[1][layer] if mlps == "frozen" else None
        made.append((name, hook_for(own, standin.mlp[layer], now)))
    return made


def _deliver(
    points: Sequence[tuple[str, int | None]], kept: dict[str, Tensor], where: Tensor | None
) -> list[tuple[str, Callable]]:
    """Hooks of step 2: the receivers' inputs are those of step 1, at the places in `where`."""
    by_name: dict[str, list[int | None]] = {}
    for name, at in points:
        by_name.setdefault(name, []).append(at)

    def hook_for(name: str, wanted: list[int | None]) -> Callable:
        def replace(value: Tensor, hook: object) -> Tensor:
            new = (
                kept[name] if where is None else torch.where(_like(where, value), kept[name], value)
            )
            if None in wanted:
                return new
            value = value.clone()
            value[:, :, wanted] = new[:, :, wanted]
            return value

        return replace

    return [(name, hook_for(name, wanted)) for name, wanted in by_name.items()]


def _like(where: Tensor, value: Tensor) -> Tensor:
    return where.view(*where.shape, *[1] * (value.ndim - 2))
