"""A graph is a prediction: turn a latent down and see whether the model does what the edges say.

Four levels of "frozen", each with what is computed again:

    "all held"       replay: patterns, which latents are on, and errors held. The graph itself
    "latents free"   replay with patterns and errors held; which latents are on is decided again
    "patterns held"  the model with patterns held; its MLPs run again on what they then read
    "re-run"         the model with nothing held: patterns and MLPs follow

With LayerNorm all scales are held wherever the patterns are, and follow where these follow.

A latent i at position p of layer l is scaled by c when (c - 1) f[p, i] W_dec[i] is added to what
MLP l writes at p. c = 0 switches it off: a zero ablation of one part of one write.
Source: Ameisen et al. 2025 (interventions, constrained patching).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.attribution.graph import (
    Frozen,
    Graph,
    Node,
    Transcoder,
    centred_logit,
    heads_bias,
    latents,
)
from circuitbook.attribution.held import hold_scales, last_stream
from circuitbook.cut import Cut, freeze_patterns, run
from circuitbook.expansion.expand import norm_bias, read
from circuitbook.layers import plus
from circuitbook.model import Transformer

LEVELS = ("all held", "latents free", "patterns held", "re-run")


class After(NamedTuple):
    """What is there after a change, one row for each (node, factor)."""

    pre: list[Tensor]  # of each layer's latents [row, pos, latents]
    last: Float[Tensor, "row d_model"]  # what the unembedding reads at the last position


@torch.no_grad()
def replay(
    model: Transformer,
    transcoders: Sequence[Transcoder],
    frozen: Frozen,
    nodes: Sequence[Node] = (),
    factors: Sequence[float] = (),
    *,
    gates: str = "held",
) -> After:
    """The model with transcoders and errors for MLPs, patterns held; row r has node r times factor.

    gates "held": a latent that was on equals its pre-activation, positive or not, the others are 0.
    "free": f = encode(x) anew. Without nodes: one row, which reproduces the model.
    """
    if gates not in ("held", "free"):
        raise ValueError(f"gates must be 'held' or 'free', got {gates!r}")
    x, scales = model.W_E[frozen.tokens], frozen.scales
    if model.cfg.positions == "standard":
        x = x + model.W_pos[: len(x)]
    x, pres = x.expand(max(1, len(nodes)), -1, -1), []
    for l, t in enumerate(transcoders):
        block, attn = model.blocks[l], model.blocks[l].attn
        # Linear parts and constants apart: `heads_bias` holds all that does not hang on x.
        v = torch.einsum("rpd,hde->rhpe", read(block.ln1, x, scales.attn[l]), attn.W_V)
        x = x + torch.einsum("hpk,rhke,hed->rpd", frozen.patterns[l], v, attn.W_O)
        x = plus(x, heads_bias(model, frozen.patterns[l], l))
        seen = read(block.ln2, x, scales.mlp[l]) + norm_bias(block.ln2, x[0, 0])
        pre = seen @ t.W_enc + t.b_enc
        f = pre * (frozen.f[l] > 0) if gates == "held" else latents(t, seen)
        for r, (node, factor) in enumerate(zip(nodes, factors, strict=True)):
            if node.layer == l:
                f[r, node.pos, node.index] *= factor
        x = x + f @ t.W_dec + t.b_dec + frozen.error[l]
        pres.append(pre)
    return After(pres, last_stream(model, x[:, -1], scales.last))


def scale_latents(
    transcoders: Sequence[Transcoder],
    frozen: Frozen,
    nodes: Sequence[Node],
    factors: Sequence[float],
) -> Cut:
    """Row r of the batch: latent r's write times its factor, inside what its MLP writes.

    Recomputed: everything after. Frozen: nothing (add `cut.freeze_patterns` to hold patterns).
    """
    layers = sorted({node.layer for node in nodes})

    def hook_for(layer: int):
        def change(out: Tensor, hook: object) -> Tensor:
            out = out.clone()
            for r, (node, factor) in enumerate(zip(nodes, factors, strict=True)):
                if node.layer == layer:
                    a = frozen.f[layer][node.pos, node.index]
                    out[r, node.pos] += (factor - 1) * a * transcoders[layer].W_dec[node.index]
            return out

        return change

    return Cut(
        tuple((f"blocks.{l}.hook_mlp_out", hook_for(l)) for l in layers),
        cut=("the write of one latent at one position (scaled; zero at factor 0)",),
        recomputed=("everything after",),
    )


def hold_write(transcoders: Sequence[Transcoder], frozen: Frozen, layer: int) -> Cut:
    """MLP `layer` writes what it wrote in the untouched run, whatever it reads now."""
    t = transcoders[layer]
    write = frozen.f[layer] @ t.W_dec + t.b_dec + frozen.error[layer]
    return Cut(
        ((f"blocks.{layer}.hook_mlp_out", lambda out, hook: write.expand_as(out)),),
        cut=(f"what MLP {layer} writes (held at its clean value)",),
        recomputed=("everything after",),
    )


@torch.no_grad()
def run_without(
    model: Transformer, frozen: Frozen, at: Node, writes: Float[Tensor, "row d_model"]
) -> Float[Tensor, "row d_model"]:
    """What the unembedding reads in a whole run, row r with writes[r] taken from MLP at.layer's.

    Taken at at.pos; everything after runs again.
    """

    def change(out: Tensor, hook: object) -> Tensor:
        out = out.clone()
        out[:, at.pos] -= writes
        return out

    tokens = frozen.tokens.expand(len(writes), -1)
    take = Cut(((f"blocks.{at.layer}.hook_mlp_out", change),), cut=("a write",))
    post = f"blocks.{model.cfg.n_layers - 1}.hook_resid_post"
    return last_stream(model, run(model, tokens, take, [post])[1][post][:, -1])


def random_writes(like: Float[Tensor, " d"], n: int, seed: int = 0) -> Float[Tensor, "n d"]:
    """n random directions as long as `like`."""
    r = torch.randn(n, len(like), generator=torch.Generator().manual_seed(seed)).to(like)
    return r / r.norm(dim=1, keepdim=True) * like.norm()


@torch.no_grad()
def run_scaled(
    model: Transformer,
    transcoders: Sequence[Transcoder],
    frozen: Frozen,
    nodes: Sequence[Node],
    factors: Sequence[float],
    *,
    hold_patterns: bool,
    also: Cut | None = None,
) -> After:
    """The model itself, one row for each (node, factor); pre-activations are what it then reads.

    also: another change beside it, e.g. `hold_write`.
    """
    tokens = frozen.tokens.expand(len(nodes), -1)
    change = scale_latents(transcoders, frozen, nodes, factors)
    if hold_patterns:
        change = change + freeze_patterns(model, tokens) + hold_scales(model, tokens)
    if also is not None:
        change = change + also
    mid = [f"blocks.{l}.hook_resid_mid" for l in range(model.cfg.n_layers)]
    post = f"blocks.{model.cfg.n_layers - 1}.hook_resid_post"
    cache = run(model, tokens, change, [*mid, post])[1]
    held = frozen.scales if hold_patterns else None
    pre = []
    for l, t in enumerate(transcoders):
        seen = mlp_reads(model, l, cache[mid[l]], None if held is None else held.mlp[l])
        pre.append(seen @ t.W_enc + t.b_enc)
    return After(pre, last_stream(model, cache[post][:, -1], held and held.last))


def mlp_reads(
    model: Transformer,
    layer: int,
    x: Float[Tensor, "row pos d_model"],
    scale: Float[Tensor, "pos one"] | None = None,
) -> Float[Tensor, "row pos d_model"]:
    """What an MLP's matrices read of a stream: x, or x behind its norm, at this scale if given."""
    norm = model.blocks[layer].ln2
    return norm(x) if scale is None else read(norm, x, scale) + norm_bias(norm, x[0, 0])


def all_levels(
    model: Transformer,
    transcoders: Sequence[Transcoder],
    frozen: Frozen,
    nodes: Sequence[Node],
    factors: Sequence[float],
) -> dict[str, After]:
    """The same changes at every level of LEVELS."""
    common = (model, transcoders, frozen, nodes, factors)
    return {
        "all held": replay(*common),
        "latents free": replay(*common, gates="free"),
        "patterns held": run_scaled(*common, hold_patterns=True),
        "re-run": run_scaled(*common, hold_patterns=False),
    }


def total_effect(graph: Graph) -> Float[Tensor, " node"]:
    """What the logit loses when a latent is switched off, patterns and gates held: edges and paths.

    Direct edge + sum over later latents t of edge(s -> t) / value_t * total effect of t: each later
    latent passes on the share that it lost. For tokens, errors and biases the same, when removed.
    """
    effect = torch.zeros_like(graph.value)
    value = torch.where(graph.value == 0, 1.0, graph.value)
    effect[-1] = graph.value[-1]
    for _ in range(len({n.layer for n in graph.nodes})):  # from the top down; no cycle
        effect = torch.cat([(graph.edges.mT @ (effect / value))[:-1], effect[-1:]])
    return effect


def strongest_edges(graph: Graph, n: int) -> list[tuple[int, int]]:
    """(source, target) of the n latent-to-latent edges of largest size."""
    inner = torch.tensor([node.kind == "latent" for node in graph.nodes])
    size = graph.edges.abs() * inner[:, None] * inner[None, :]
    order = size.flatten().argsort(descending=True, stable=True)[:n].tolist()
    return [(flat % len(size), flat // len(size)) for flat in order if size.view(-1)[flat] > 0]


@torch.no_grad()
def edges_off(
    model: Transformer,
    transcoders: Sequence[Transcoder],
    frozen: Frozen,
    graph: Graph,
    edges: Sequence[tuple[int, int]],
) -> dict[str, Tensor]:
    """Each edge's source switched off in the model; how much its target's pre-activation falls.

    "edge": what the graph says. "patterns held", "re-run": the fall there. "after": the target's
    activation in the re-run (0 when it is off). Source and target must be in neighbouring layers:
    else latents between would pass the change on, which no single edge holds.
    """
    nodes = [graph.nodes[s] for s, _ in edges]
    targets = [graph.nodes[t] for _, t in edges]
    if any(t.layer - s.layer != 1 for s, t in zip(nodes, targets, strict=True)):
        raise ValueError("an edge must join latents of neighbouring layers")
    factors = [0.0] * len(edges)
    before = torch.stack([graph.value[t] for _, t in edges])
    out = {"edge": torch.stack([graph.edges[t, s] for s, t in edges]), "before": before}
    rows = torch.arange(len(edges))
    layers = {t.layer for t in targets}
    for name, held in (("patterns held", True), ("re-run", False)):
        after = run_scaled(model, transcoders, frozen, nodes, factors, hold_patterns=held)
        now = torch.stack(
            [after.pre[t.layer][r, t.pos, t.index] for r, t in zip(rows, targets, strict=True)]
        )
        out[name] = before - now
    # Which latents are on is decided among all of a position (TopK), so encode whole positions.
    tokens = frozen.tokens.expand(len(nodes), -1)
    change = scale_latents(transcoders, frozen, nodes, factors)
    names = {l: f"blocks.{l}.hook_resid_mid" for l in layers}
    cache = run(model, tokens, change, list(names.values()))[1]
    f = {l: latents(transcoders[l], mlp_reads(model, l, cache[names[l]])) for l in layers}
    out["after"] = torch.stack(
        [f[t.layer][r, t.pos, t.index] for r, t in zip(rows, targets, strict=True)]
    )
    return out


def logit_of(
    model: Transformer, after: After, answer: int
) -> tuple[Float[Tensor, " row"], Int[Tensor, " row"], Float[Tensor, " row"]]:
    """(centred logit, rank from 1, probability) of a token for each row."""
    logits = plus(after.last @ model.W_U, model.unembed.b_U)
    right = logits[:, answer]
    rank = 1 + (logits > right[:, None]).sum(1)
    return centred_logit(model, after.last, answer), rank, (right - logits.logsumexp(1)).exp()
