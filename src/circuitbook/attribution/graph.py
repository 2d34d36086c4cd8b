"""Frozen, the model is linear: every pre-activation is a sum of edges from tokens, latents, errors.

Replace MLP l by a transcoder that reads the same stream and predicts the same write:

    write_l[p] = sum_i f_l[p, i] W_dec_l[i] + b_dec_l + error_l[p]

The error is a node of its own, so nothing is approximated: the sum *is* what the MLP wrote. Hold
the attention patterns and which latents are on (`Frozen`). Then a latent that is on equals its
pre-activation, and that is linear in the stream below. So is the logit. One edge is

    edge[target, source] = what the source writes . the target's read vector, carried back to it

through the skip and through every head's A^T and W_OV^T, in every layer between. All paths through
heads are in it, and none through another latent: that one has a node of its own.

Edges into one node sum to its value: its pre-activation, or the logit minus the mean logit. The
source "biases" holds b_dec of the layers below and the target's own b_enc. Positions are in no edge
of the course's models: they enter queries and keys only, and those are frozen.

With LayerNorm the scales are frozen too, every one of them (`Frozen.scales`): a reader at position
p then divides by the scale there. A transcoder reads what the MLP's matrices read, behind the norm.
"biases" also holds what attention adds whatever it reads, what the norms' own biases do, and b_U. A
position that stands in the stream is a node of its own beside the token.
Source: Ameisen et al. 2025, "Circuit Tracing".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.attribution.held import back, scale_of
from circuitbook.autoencoders.sae import Dictionary
from circuitbook.cut import Cut, run
from circuitbook.expansion.expand import norm_bias
from circuitbook.model import Transformer

# Reads x [.., d_model]; where f = encode(x) > 0 it equals x W_enc + b_enc; writes f W_dec + b_dec.
Transcoder = Dictionary

KINDS = ("token", "latent", "error", "biases", "logit")
POSITION = "position"  # one more kind, where positions stand in the stream


class Scales(NamedTuple):
    """What the norms of one pass divided by; None without norms."""

    attn: list[Tensor | None]  # before the heads of each layer [pos, 1]
    mlp: list[Tensor | None]  # before its MLP [pos, 1]
    last: Tensor | None  # before the unembedding, at the last position [1]


class Frozen(NamedTuple):
    """What one forward pass over one prompt decided, and what the graph takes as given."""

    tokens: Int[Tensor, " pos"]
    patterns: list[Tensor]  # each layer [head, pos, key]
    read: list[Tensor]  # what MLP and transcoder of each layer read [pos, d_model]
    f: list[Tensor]  # latents of each layer [pos, latents]
    error: list[Tensor]  # what the MLP wrote minus what the transcoder says [pos, d_model]
    last: Float[Tensor, " d_model"]  # what the unembedding reads at the last position
    scales: Scales


class Node(NamedTuple):
    """A node: kind, layer (tokens and positions -1, the logit n_layers), position, latent index."""

    kind: str
    layer: int
    pos: int
    index: int = -1


class Graph(NamedTuple):
    """edges [target, source]; rows of sources that nothing enters (all leaves) are 0.

    value [node]: what the row must sum to: pre-activation of a latent, centred logit of the last
    node; 0 for the other nodes.
    """

    nodes: list[Node]
    edges: Float[Tensor, "node node"]
    value: Float[Tensor, " node"]

    def find(self, node: Node) -> int:
        """The place of a node; ValueError when it is not on."""
        return self.nodes.index(node)

    def of(self, kind: str, layer: int | None = None) -> list[int]:
        """Places of all nodes of a kind, of one layer if asked."""
        return [i for i, n in enumerate(self.nodes) if n.kind == kind and layer in (None, n.layer)]


def check(model: Transformer, transcoders: Sequence[Transcoder]) -> None:
    """The graph needs MLPs, one transcoder each; raises ValueError for anything else."""
    c = model.cfg
    if c.attn_only:
        raise ValueError(f"needs MLPs, got {c}")
    if len(transcoders) != c.n_layers:
        raise ValueError(f"{c.n_layers} layers need as many transcoders, got {len(transcoders)}")


def latents(transcoder: Transcoder, x: Float[Tensor, "*lead pos d_model"]) -> Tensor:
    """f = encode(x), and 0 at position 0: the begin-of-sequence token was left out of training.

    There all that the MLP writes, but for b_dec, is error.
    """
    f = transcoder.encode(x)
    f[..., 0, :] = 0
    return f


@torch.no_grad()
def freeze(
    model: Transformer,
    transcoders: Sequence[Transcoder],
    tokens: Int[Tensor, " pos"],
    change: Cut | None = None,
) -> Frozen:
    """Patterns, which latents are on, and errors, of one pass over one prompt (under a cut)."""
    check(model, transcoders)
    L = range(model.cfg.n_layers)
    names = ["attn.hook_pattern", "hook_resid_mid", "hook_mlp_out", "hook_resid_pre"]
    end = f"blocks.{L[-1]}.hook_resid_post"
    cache = run(model, tokens[None], change, [end, *(f"blocks.{l}.{n}" for l in L for n in names)])[
        1
    ]
    pattern, mid, write, pre = ([cache[f"blocks.{l}.{n}"][0] for l in L] for n in names)
    read = [block.ln2(x) for block, x in zip(model.blocks, mid, strict=True)]
    f = [latents(t, x) for t, x in zip(transcoders, read, strict=True)]
    error = [w - (a @ t.W_dec + t.b_dec) for w, a, t in zip(write, f, transcoders, strict=True)]
    last = cache[end][0, -1]
    scales = Scales(
        [scale_of(block.ln1, x) for block, x in zip(model.blocks, pre, strict=True)],
        [scale_of(block.ln2, x) for block, x in zip(model.blocks, mid, strict=True)],
        scale_of(model.ln_final, last),
    )
    return Frozen(tokens, pattern, read, f, error, model.ln_final(last), scales)


def back_through_heads(
    model: Transformer,
    pattern: Float[Tensor, "head pos key"],
    layer: int,
    G: Tensor,
    scale: Float[Tensor, "key one"] | None = None,
) -> Float[Tensor, "target key d_model"]:
    """G + sum over heads of A^T G W_OV^T: a reader after the heads, as a reader before them.

    G [target, pos, d_model]: d(target) / d(stream after the heads of `layer`), patterns held, and
    with a norm its scale, which divides at the place that is read.
    """
    attn, norm = model.blocks[layer].attn, model.blocks[layer].ln1
    z = torch.einsum("tpd,hed->thpe", G, attn.W_O)
    moved = torch.einsum("hpk,thpe->thke", pattern, z)
    return G + back(norm, torch.einsum("thke,hde->tkd", moved, attn.W_V), scale)


def heads_bias(
    model: Transformer, pattern: Float[Tensor, "head pos key"], layer: int
) -> Float[Tensor, "pos d_model"] | None:
    """What a layer's heads add whatever they read: sum of A 1 (b_V + b_LN W_V) W_O, plus b_O."""
    attn, norm = model.blocks[layer].attn, model.blocks[layer].ln1
    if attn.b_O is None and model.cfg.norm != "layernorm":
        return None
    b = torch.einsum("d,hde->he", norm_bias(norm, attn.W_V[0, :, 0]), attn.W_V)
    b = b if attn.b_V is None else b + attn.b_V
    out = torch.einsum("hp,he,hed->pd", pattern.sum(-1), b, attn.W_O)
    return out if attn.b_O is None else out + attn.b_O


def direction(model: Transformer, answer: int) -> Float[Tensor, " d_model"]:
    """The read vector of a logit minus the mean logit: W_U[:, answer] minus W_U's mean column."""
    return model.W_U[:, answer] - model.W_U.mean(1)


def offset(model: Transformer, answer: int) -> float:
    """What b_U adds to that logit minus the mean logit; 0 without it."""
    b = model.unembed.b_U
    return 0.0 if b is None else (b[answer] - b.mean()).item()


def centred_logit(
    model: Transformer, last: Float[Tensor, "*row d_model"], answer: int
) -> Float[Tensor, "*row"]:
    """The answer's logit minus the mean logit, of what the unembedding reads."""
    return last @ direction(model, answer) + offset(model, answer)


def on(f: Float[Tensor, "pos latents"]) -> Int[Tensor, "n two"]:
    """(position, index) of every latent that is on, position by position."""
    return f.nonzero()


def _writes(
    frozen: Frozen, transcoders: Sequence[Transcoder], l: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Padded sources of layer l: writes [pos, slot, d], and the (position, slot) of each latent."""
    at = on(frozen.f[l])
    n = len(frozen.tokens)
    per = torch.bincount(at[:, 0], minlength=n)
    first = per.cumsum(0) - per
    slot = torch.arange(len(at), device=at.device) - first[at[:, 0]]
    W = transcoders[l].W_dec
    writes = W.new_zeros(n, int(per.max()) + 1, W.shape[1])  # the last slot: the error
    writes[at[:, 0], slot] = frozen.f[l][at[:, 0], at[:, 1], None] * W[at[:, 1]]
    writes[:, -1] = frozen.error[l]
    return writes, at[:, 0], slot


@torch.no_grad()
def build(
    model: Transformer,
    transcoders: Sequence[Transcoder],
    frozen: Frozen,
    answer: int,
) -> Graph:
    """All edges of one prompt: one pass back from every latent that is on, and from the logit.

    answer: the token whose centred logit, at the last position, is the last node. Cost for T
    targets, P positions and L layers: T P d^2 L multiplications; memory T P d numbers.
    """
    check(model, transcoders)
    L, n, x = model.cfg.n_layers, len(frozen.tokens), model.W_E[frozen.tokens]
    at_on = [on(f) for f in frozen.f]
    nodes = [Node("token", -1, p) for p in range(n)] + [Node("biases", -1, 0)]
    standard = model.cfg.positions == "standard"
    nodes += [Node(POSITION, -1, p) for p in range(n)] if standard else []
    bias = [heads_bias(model, frozen.patterns[l], l) for l in range(L)]
    start: list[dict[str, int]] = []
    for l in range(L):
        start.append({"latent": len(nodes), "error": len(nodes) + len(at_on[l])})
        nodes += [Node("latent", l, p, i) for p, i in at_on[l].tolist()]
        nodes += [Node("error", l, p) for p in range(n)]
    nodes.append(Node("logit", L, n - 1, answer))
    edges = x.new_zeros(len(nodes), len(nodes))
    value = x.new_zeros(len(nodes))
    sources = [_writes(frozen, transcoders, l) for l in range(L)]

    def fill(rows: slice, G: Tensor, below: int) -> None:
        """Edges into `rows` from everything under them; G [row, pos, d] reads MLP `below`'s sum."""
        for l in range(below, -1, -1):
            writes, pos, slot = sources[l]
            each = torch.einsum("tpd,psd->tps", G, writes)
            a = start[l]
            edges[rows, a["latent"] : a["error"]] = each[:, pos, slot]
            edges[rows, a["error"] : a["error"] + n] = each[:, :, -1]
            edges[rows, n] += G.sum(1) @ transcoders[l].b_dec
            G = under_heads(rows, G, l)
        edges[rows, :n] = (G * x).sum(-1)
        if standard:
            edges[rows, n + 1 : 2 * n + 1] = (G * model.W_pos[:n]).sum(-1)

    def under_heads(rows: slice, G: Tensor, l: int) -> Tensor:
        """The reader before layer l's heads; what these add by themselves goes to the biases."""
        if bias[l] is not None:
            edges[rows, n] += (G * bias[l]).sum((1, 2))
        return back_through_heads(model, frozen.patterns[l], l, G, frozen.scales.attn[l])

    for l in range(L):
        at, t, norm, scale = at_on[l], transcoders[l], model.blocks[l].ln2, frozen.scales.mlp[l]
        rows = slice(start[l]["latent"], start[l]["error"])
        G, reads = x.new_zeros(len(at), n, x.shape[1]), t.W_enc.T[at[:, 1]]
        own = reads @ norm_bias(norm, x[0]) + t.b_enc[at[:, 1]]
        reads = back(norm, reads, None if scale is None else scale[at[:, 0]])
        G[torch.arange(len(at)), at[:, 0]] = reads
        edges[rows, n] = own
        fill(rows, under_heads(rows, G, l), l - 1)
        value[rows] = (frozen.read[l] @ t.W_enc + t.b_enc)[at[:, 0], at[:, 1]]
    G, u = x.new_zeros(1, n, x.shape[1]), direction(model, answer)
    G[0, -1] = back(model.ln_final, u, frozen.scales.last)
    edges[-1, n] = norm_bias(model.ln_final, u) @ u + offset(model, answer)
    fill(slice(len(nodes) - 1, len(nodes)), G, L - 1)
    value[-1] = centred_logit(model, frozen.last, answer)
    return Graph(nodes, edges, value)


def sum_error(graph: Graph) -> float:
    """max over nodes of |sum of incoming edges - value|, over the largest |value|."""
    into = graph.edges.sum(1)
    return ((into - graph.value).abs().max() / graph.value.abs().max()).item()
