"""Four ways to ask what one write did to the answer, and what each of them costs.

Two runs on prompts of one layout: `tokens`, the run that is changed, and `others`, where the new
writes come from. w_c is the write of component c, D_c = w_c(others) - w_c(tokens) at all positions.

    activation patching   F(tokens, w_c + D_c) - F(tokens): the run with this write replaced and
                          everything after it computed again. `circuits.patching.patch_nodes`
    attribution patching  D_c . dF/dw_c at the run on `tokens`: the same to first order
    integrated gradients  D_c . mean over t of dF/dx(t): the whole stream x that first holds the
                          write moves from one run to the other on a straight line, so every
                          write moves with it, and the shares add up to the whole difference
    path patching         the write travels along chosen edges only, all else held. To the logits
                          and nowhere else: D_c . u. `circuits.patching.path_patch`

Along a line that moves w_c alone, the integral of the gradient IS activation patching (the
fundamental theorem of calculus); so first order fails exactly as far as the gradient turns on it.
Sources: Sundararajan et al. 2017 (integrated gradients); Nanda 2023 and Syed et al. 2023
(attribution patching); Vig et al. 2020 and Meng et al. 2022 (activation patching); Wang et al.
2023 and Goldowsky-Dill et al. 2023 (path patching).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.circuits.ablation import AT_ONCE, write_names, writes
from circuitbook.circuits.metrics import Metric
from circuitbook.circuits.nodes import MLP, Node, nodes_of
from circuitbook.model import Transformer


class Slopes(NamedTuple):
    """The metric and its gradient by some activations, row by row."""

    value: Float[Tensor, " n"]
    gradient: dict[str, Tensor]
    at: dict[str, Tensor]  # the activations themselves


def slopes(
    model: Transformer,
    tokens: Int[Tensor, "n pos"],
    metric: Metric,
    rows: Int[Tensor, " n"],
    names: Sequence[str],
    replace: dict[str, Tensor] | None = None,
) -> Slopes:
    """dF_i / da_i of each row's metric by the activations at `names`. One pass, and one backward.

    replace: hook -> value put there first. Every row is a run of its own, so the gradient of the
    sum of the metrics holds each row's own gradient.
    """
    kept: dict[str, Tensor] = {}
    replace = replace or {}

    def hook_for(name: str):
        def look(value: Tensor, hook: object) -> Tensor:
            new = replace.get(name, value)
            # Without a leaf nothing would be recorded: course models hold no trainable weights.
            kept[name] = new if new.requires_grad else new.detach().requires_grad_()
            return kept[name]

        return look

    with torch.enable_grad(), model.hooks(fwd_hooks=[(n, hook_for(n)) for n in names]):
        value = metric(model, model.stream(tokens), rows)
        found = torch.autograd.grad(value.sum(), [kept[n] for n in names], allow_unused=True)
    gradient = {
        n: torch.zeros_like(kept[n]) if g is None else g.detach()
        for n, g in zip(names, found, strict=True)
    }
    return Slopes(value.detach(), gradient, {n: a.detach() for n, a in kept.items()})


def attribution_patching(
    model: Transformer,
    tokens: Int[Tensor, "prompt pos"],
    others: Int[Tensor, "prompt pos"],
    metric: Metric,
    nodes: Sequence[Node] | None = None,
) -> Float[Tensor, "node prompt"]:
    """D_c . dF/dw_c at the run on `tokens`: activation patching to first order, all nodes at once.

    Exact when the metric is linear in the write, so for the last writes before a logit difference.
    Cost: 2 passes and 1 backward, whatever the number of nodes.
    """
    nodes, device = nodes_of(model) if nodes is None else nodes, model.W_E.device
    tokens, rows = tokens.to(device), torch.arange(len(tokens), device=device)
    z_names, mlp_names = write_names(model)
    found = slopes(model, tokens, metric, rows, [*z_names, *mlp_names])
    z, mlp = writes(model, others)
    moved = dict(zip([*z_names, *mlp_names], [*z, *mlp], strict=True))
    product = {n: (moved[n] - found.at[n]) * g for n, g in found.gradient.items()}
    return torch.stack([_of(product, node) for node in nodes])


def _of(product: dict[str, Tensor], node: Node) -> Float[Tensor, " prompt"]:
    """One node's part of products taken at z and at the MLPs' outputs."""
    layer, at = node
    if at == MLP:
        return product[f"blocks.{layer}.hook_mlp_out"].sum((-1, -2))
    return product[f"blocks.{layer}.attn.hook_z"][:, :, at].sum((-1, -2))


# ---------------------------------------------------------------- integrated gradients


class Integrated(NamedTuple):
    """Every write's share of the difference, at every stream that holds it.

    shares: stream (a hook name) -> [write, prompt], in the order of `writers` for that stream.
    sums: stream -> [prompt], the sum of its shares. own: each node at the first stream that holds
    it. ends: the metric on (tokens, others).
    """

    own: Float[Tensor, "node prompt"]
    sums: dict[str, Float[Tensor, " prompt"]]
    shares: dict[str, Float[Tensor, "write prompt"]]
    ends: tuple[Float[Tensor, " prompt"], Float[Tensor, " prompt"]]


def streams(model: Transformer) -> list[str]:
    """The streams, in order: after the heads of each layer, and after its MLP."""
    names = []
    for layer in range(model.cfg.n_layers):
        if not model.cfg.attn_only:
            names.append(f"blocks.{layer}.hook_resid_mid")
        names.append(f"blocks.{layer}.hook_resid_post")
    return names


def first_stream(model: Transformer, node: Node) -> str:
    """The stream that a node's write first stands in."""
    layer, at = node
    after = "resid_mid" if at != MLP and not model.cfg.attn_only else "resid_post"
    return f"blocks.{layer}.hook_{after}"


def integrated_gradients(
    model: Transformer,
    tokens: Int[Tensor, "prompt pos"],
    others: Int[Tensor, "prompt pos"],
    metric: Metric,
    *,
    steps: int = 16,
    nodes: Sequence[Node] | None = None,
    at_once: int = AT_ONCE,
) -> Integrated:
    """Share of c = D_c . (1/T) sum over midpoints t of dF/dx at x(t) = x(tokens) + t (D x).

    The inputs are the writes that make up a stream x; the baseline is the run on `tokens`. What
    follows the stream is computed again at each t; what made it is not. For each stream the shares
    of all its writes (embedding included) sum to F(others) - F(tokens), up to the midpoint rule.
    Cost: 2 passes, and `steps` passes with as many backwards for each stream.
    """
    nodes, device = nodes_of(model) if nodes is None else nodes, model.W_E.device
    tokens, others = tokens.to(device), others.to(device)
    n, names, parts = len(tokens), streams(model), {}
    for which, these in (("tokens", tokens), ("others", others)):
        parts[which] = _writes_and_streams(model, these, names, metric)
    ends = parts["tokens"].metric, parts["others"].metric
    moved = {k: parts["others"].write[k] - w for k, w in parts["tokens"].write.items()}
    mean, shares = {}, {}
    for name in names:
        x0, x1 = (parts[k].stream[name] for k in ("tokens", "others"))
        total = torch.zeros_like(x0)
        grid = torch.arange(steps * n, device=device)
        for part in grid.split(max(1, at_once // tokens.shape[1])):
            t = ((part // n + 0.5) / steps).to(x0)[:, None, None]
            row = part % n
            x = torch.lerp(x0[row], x1[row], t)
            found = slopes(model, tokens[row], metric, row, [name], {name: x})
            total.index_add_(0, row, found.gradient[name])
        mean[name] = total / steps
        held = [k for k in moved if k == "embedding" or names.index(first_stream(model, k))
                <= names.index(name)]  # fmt: skip
        shares[name] = torch.stack([(moved[k] * mean[name]).sum((-1, -2)) for k in held])
    own = [(moved[node] * mean[first_stream(model, node)]).sum((-1, -2)) for node in nodes]
    return Integrated(torch.stack(own), {k: s.sum(0) for k, s in shares.items()}, shares, ends)


class _Run(NamedTuple):
    write: dict[object, Tensor]  # "embedding" or node -> [prompt, pos, d_model]
    stream: dict[str, Tensor]
    metric: Float[Tensor, " prompt"]


@torch.no_grad()
def _writes_and_streams(
    model: Transformer, tokens: Tensor, names: Sequence[str], metric: Metric
) -> _Run:
    """One pass: every write, every stream, and the metric."""
    kept: dict[str, Tensor] = {}

    def look(value: Tensor, hook: object) -> None:
        kept[hook.name] = value

    z_names, mlp_names = write_names(model)
    wanted = ["hook_embed", *names, *z_names, *mlp_names]
    with model.hooks(fwd_hooks=[(n, look) for n in wanted]):
        stream = model.stream(tokens)
        value = metric(model, stream, torch.arange(len(tokens), device=tokens.device))
    write: dict[object, Tensor] = {"embedding": kept["hook_embed"]}
    for layer, block in enumerate(model.blocks):
        z = kept[z_names[layer]]
        for head, W_O in enumerate(block.attn.W_O):
            write[layer, head] = z[:, :, head] @ W_O
        if mlp_names:
            write[layer, MLP] = kept[mlp_names[layer]]
    return _Run(write, {n: kept[n] for n in names}, value)


# ---------------------------------------------------------------- what it costs


@dataclass
class Passes:
    """Rows that went forward through the model, and rows whose gradient came back."""

    forward: int = 0
    backward: int = 0


@contextmanager
def counting(model: Transformer) -> Iterator[Passes]:
    """Counts passes by hooks, not by promises: each row that is embedded is one pass forward, each
    row whose gradient reaches the unembedding is one backward. Divide by the number of prompts.
    """
    passes = Passes()

    def went(module: object, given: tuple, out: object) -> None:
        passes.forward += len(given[0])

    def came(module: object, into: object, outof: tuple) -> None:
        passes.backward += len(outof[0])

    handles = [
        model.embed.register_forward_hook(went),
        model.unembed.register_full_backward_hook(came),
    ]
    try:
        yield passes
    finally:
        for handle in handles:
            handle.remove()
