"""What goes into a neuron, part by part; and how much a model can do when its MLPs say nothing.

The pre-activation is linear in the stream, so it splits exactly into the token, every head and the
bias; with LayerNorm too, once its scale is frozen. Positions in the stream and attention biases are
parts of their own. The nonlinearity then ends the splitting: an MLP has no terms, only neurons.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook import corpus, cut, tokenizer
from circuitbook.bases import relative_change
from circuitbook.cut import Cut
from circuitbook.model import Transformer
from circuitbook.neurons.norms import input_reader, read_by_mlp
from circuitbook.probe import clustered_mean, paired_difference


@torch.no_grad()
def seen(
    model: Transformer, tokens: Int[Tensor, "batch pos"], names: Iterable[str], part: int = 5
) -> dict[str, Tensor]:
    """hook name -> its values on these tokens, a few windows at a time; no logits are made.

    "stream" is always among them: the last stream, after the final norm if there is one.
    """
    kept: dict[str, list[Tensor]] = {name: [] for name in (*names, "stream")}

    def keep(x: Tensor, hook: Any) -> None:
        kept[hook.name].append(x.cpu())

    with model.hooks(fwd_hooks=[(name, keep) for name in kept if name != "stream"]):
        for piece in tokens.split(part):
            kept["stream"].append(model.stream(piece.to(model.W_E.device)).cpu())
    return {name: torch.cat(values) for name, values in kept.items()}


class Split(NamedTuple):
    """parts: name -> [batch, pos, d_mlp], which add up to `pre`, with "bias" [d_mlp] among them.

    scale: that of LayerNorm at each position, frozen in all parts; 1 without a norm.
    """

    parts: dict[str, Tensor]
    pre: Float[Tensor, "batch pos d_mlp"]
    scale: Float[Tensor, "batch pos 1"] | float = 1.0


@torch.no_grad()
def split_pre(
    model: Transformer, tokens: Int[Tensor, "batch pos"], neurons: Tensor | None = None
) -> Split:
    """pre = (W_E[t] + W_pos + sum over heads of their writes + b_O) W / s + b, in the first layer.

    One part for each summand: "token", "position" (only where it is in the stream), "head 0.h",
    "attention bias" (only where there is one), "bias". W, b and s are those of
    `norms.input_reader`: with a norm every part but the bias is divided by its frozen scale.
    neurons: ids to look at; all of them by default. Needs a plain MLP.
    Source: Elhage et al. 2021 (a neuron's pre-activation has the expansion of a logit).
    """
    cfg, attn = model.cfg, model.blocks[0].attn
    names = ["hook_embed", "blocks.0.attn.hook_z", "blocks.0.mlp.hook_pre"]
    scaled = ["blocks.0.ln2.hook_scale"] if cfg.norm != "none" else []
    cache = seen(model, tokens, names + scaled)
    embed, z, pre = (cache[name] for name in names)
    s = cache[scaled[0]] if scaled else 1.0
    chosen = slice(None) if neurons is None else neurons
    W, b = input_reader(model, chosen)
    parts = {"token": embed @ W / s}
    if cfg.positions == "standard":
        parts["position"] = (model.W_pos[: tokens.shape[1]] @ W).expand_as(parts["token"]) / s
    for h in range(cfg.n_heads):
        parts[f"head 0.{h}"] = z[:, :, h] @ (attn.W_O[h] @ W) / s
    if cfg.attn_bias:
        parts["attention bias"] = (attn.b_O @ W).expand_as(parts["token"]) / s
    parts["bias"] = b
    return Split(parts, pre[..., chosen], s)


def variance_shares(split: Split, from_pos: int = 1) -> dict[str, Float[Tensor, " d_mlp"]]:
    """share_c = Cov(part, pre) / Var(pre) over positions, for each neuron; shares sum to one.

    The bias is constant and has share 0. BOS and what else stands before `from_pos` is left out. A
    neuron whose pre-activation never changes has no shares: zeros.
    """
    pre = split.pre[:, from_pos:].flatten(0, 1).double()
    centred = pre - pre.mean(0)
    variance = centred.square().mean(0)
    out = {}
    for name, part in split.parts.items():
        if part.ndim == 1:
            continue
        x = part[:, from_pos:].flatten(0, 1).double()
        out[name] = torch.where(variance > 0, (x * centred).mean(0) / variance, 0.0)
    return out


@torch.no_grad()
def identity_errors(
    model: Transformer,
    tokens: Int[Tensor, "batch pos"],
    terms: Callable[..., Tensor],
    biased: bool = True,
    positions: int = 64,
) -> dict[str, float]:
    """Errors of two identities, relative to the largest entry; without biases they must be large.

    "expansion": the MLP's write against the sum of `terms` (the lesson's) and b_out. "split": the
    pre-activations against the sum of their parts, the norm's scale frozen.
    """
    mlp, name = model.blocks[0].mlp, "blocks.0.hook_resid_mid"
    x = seen(model, tokens, [name])[name].flatten(0, 1)[:: max(1, tokens.numel() // positions)]
    x = model.blocks[0].ln2(x)
    total = torch.stack(
        [terms(row[None], mlp.W_in, mlp.b_in, mlp.W_out, mlp.act).sum(1)[0] for row in x]
    )
    split = split_pre(model, tokens)
    parts = sum(part for part in split.parts.values() if biased or part.ndim > 1)
    return {
        "expansion": relative_change(mlp(x[None])[0], total + mlp.b_out if biased else total),
        "split": relative_change(split.pre, parts),
    }


def _tanh_gelu(z: float) -> float:
    return 0.5 * z * (1 + math.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))


@torch.no_grad()
def split_mutants(model: Transformer, tokens: Int[Tensor, "batch pos"]) -> dict[str, float]:
    """How far the split misses when the position, the attention bias or the scale is forgotten."""
    split = split_pre(model, tokens)
    total, bias = sum(split.parts.values()), split.parts["bias"]
    there = [name for name in ("position", "attention bias") if name in split.parts]
    wrong = {name: total - split.parts[name] for name in there}
    wrong["scale"] = (total - bias) * split.scale + bias
    return {name: relative_change(split.pre, x) for name, x in wrong.items()}


# z Phi(z), the form of the course's models; and the tanh form of GPT-2.
GELUS: dict[str, Callable[[float], float]] = {
    "erf": lambda z: 0.5 * z * (1 + math.erf(z / math.sqrt(2))),
    "tanh": _tanh_gelu,
}


# ---------------------------------------------------------------- models whose MLPs say nothing


class Silence(NamedTuple):
    """What stands in for every MLP's write, given what the MLP reads; None keeps the write."""

    stand_in: tuple[Callable[[Tensor], Tensor] | None, ...]
    patterns_kept: bool = False


def silenced(model: Transformer, tokens: Int[Tensor, "batch pos"], way: Silence) -> Cut:
    """Each MLP's write is replaced by its stand-in; later layers are run again on what is left.

    patterns_kept: every pattern is what it was in the whole model, so only direct paths and heads'
    values lose the MLPs; scores keep them.
    """
    hooks, kept = [], {}

    def hook_for(layer: int, stand_in: Callable[[Tensor], Tensor]) -> None:
        def look(x: Tensor, hook: object) -> None:
            kept[layer] = x

        def replace(out: Tensor, hook: object) -> Tensor:
            return torch.zeros_like(out) + stand_in(kept.pop(layer))

        hooks.append((read_by_mlp(model, layer), look))
        hooks.append((f"blocks.{layer}.hook_mlp_out", replace))

    for layer, stand_in in enumerate(way.stand_in):
        if stand_in is not None:
            hook_for(layer, stand_in)
    change = Cut(tuple(hooks), cut=("writes of MLPs",), recomputed=("everything after",))
    return change + kept_patterns(model, tokens) if way.patterns_kept else change


def kept_patterns(model: Transformer, tokens: Int[Tensor, "batch pos"]) -> Cut:
    """Every pattern is that of the whole model on these tokens, as `cut.freeze_patterns` has it."""
    names = [f"blocks.{l}.attn.hook_pattern" for l in range(model.cfg.n_layers)]
    cache = seen(model, tokens, names)
    heads = [(l, h) for l in range(model.cfg.n_layers) for h in range(model.cfg.n_heads)]
    return cut.replace_patterns(model, {(l, h): cache[names[l]][:, h] for l, h in heads})


@torch.no_grad()
def affine_fit(
    x: Float[Tensor, "n d_in"], y: Float[Tensor, "n d_out"], ridge: float = 1e-4
) -> Callable[[Tensor], Tensor]:
    """The affine map x -> x B + c with the least squared error to y; ridge in units of mean x^2."""
    mean_x, mean_y = x.double().mean(0), y.double().mean(0)
    dx, dy = x.double() - mean_x, y.double() - mean_y
    gram = dx.mT @ dx
    gram += ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    B = torch.linalg.solve(gram, dx.mT @ dy)
    c = mean_y - mean_x @ B
    return lambda z: z @ B.to(z) + c.to(z)


def _reads_and_writes(model: Transformer, tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
    """For every MLP what it read and wrote on text, BOS left out, [n, d_model] each."""
    names = [
        name
        for l in range(model.cfg.n_layers)
        for name in (read_by_mlp(model, l), f"blocks.{l}.hook_mlp_out")
    ]
    cache = seen(model, tokens, names)
    rows = [cache[name][:, 1:].flatten(0, 1) for name in names]
    return list(zip(rows[::2], rows[1::2], strict=True))


def training_windows(n: int, length: int = 512) -> Int[Tensor, "n pos"]:
    """n windows of the training stream, evenly spaced, BOS first; to fit on, never to report on."""
    stream = corpus.train_tokens()
    starts = np.linspace(0, len(stream) - length, n).astype(int)
    rows = np.stack([stream[s : s + length - 1] for s in starts]).astype(np.int64)
    return torch.cat([torch.full((n, 1), tokenizer.load().bos), torch.from_numpy(rows)], 1)


def word_frequencies(d_vocab: int) -> Int[Tensor, " d_vocab"]:
    """How often each token stands in the training text."""
    return torch.from_numpy(np.bincount(corpus.train_tokens(), minlength=d_vocab))


def _constant(value: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: value.to(x)


def ways(model: Transformer, fit_on: Int[Tensor, "n pos"]) -> dict[str, Silence]:
    """The named ways to do without MLPs. Means and affine maps come from `fit_on`, other text."""
    texts = _reads_and_writes(model, fit_on)
    zero = [lambda x: torch.zeros_like(x)] * len(texts)
    mean = [_constant(y.mean(0)) for _, y in texts]
    linear = [affine_fit(x, y) for x, y in texts]
    out = {
        "zero, re-run": Silence(tuple(zero)),
        "mean, re-run": Silence(tuple(mean)),
        "zero, patterns kept": Silence(tuple(zero), True),
        "mean, patterns kept": Silence(tuple(mean), True),
        "best affine map, re-run": Silence(tuple(linear)),
    }
    if len(texts) > 1:
        out |= {
            f"only MLP {l} to its mean": Silence(
                tuple(m if i == l else None for i, m in enumerate(mean))
            )
            for l in range(len(texts))
        }
    return out


@torch.no_grad()
def losses(
    model: Transformer,
    tokens: Int[Tensor, "batch pos"],
    k: Int[Tensor, " chosen"],
    change_for: Callable[[Tensor], Cut] | None = None,
    part: int = 4,
) -> Float[Tensor, "batch chosen"]:
    """loss[:, i] = -log p(token k_i) in nats, of chosen tokens only; k counts after BOS.

    Logits are made only where they are asked for. change_for(tokens) gives the cut of each part.
    """
    out = []
    for piece in tokens.split(part):
        piece = piece.to(model.W_E.device)
        hooks = list(change_for(piece).hooks) if change_for else []
        with model.hooks(fwd_hooks=hooks):
            x = model.stream(piece)[:, k - 1]
        logits = model.unembed(x)
        right = logits.gather(-1, piece[:, k, None])[..., 0]
        out.append((logits.logsumexp(-1) - right).cpu())
    return torch.cat(out)


def attention_only_study(
    model: Transformer,
    trained_without: Transformer,
    unigram: Float[Tensor, " d_vocab"],
    tokens: Int[Tensor, "batch pos"],
    doc: Int[Tensor, " batch"],
    fit_on: Int[Tensor, "n pos"],
    every: int = 3,
    beside: Mapping[str, Transformer] | None = None,
) -> dict[str, dict[str, list[float]]]:
    """Loss of the model with its MLPs silenced in each named way, and what share that explains.

    explained = (unigram loss - loss) / (unigram loss - loss of the whole model), a ratio of means
    over the same tokens; below zero is worse than knowing nothing but word frequencies. Rises are
    paired with the whole model, errors by document. unigram: log-probabilities of the tokens.
    beside: more models by name, to compare with.
    """
    k = torch.arange(1, tokens.shape[1], every)
    whole = losses(model, tokens, k).mean(1)
    known = {"whole model": whole, "word frequencies": -unigram[tokens[:, k]].mean(1)}
    for name, way in ways(model, fit_on).items():
        known[name] = losses(model, tokens, k, lambda t, w=way: silenced(model, t, w)).mean(1)
    known["another model, trained without MLPs"] = losses(trained_without, tokens, k).mean(1)
    for name, other in (beside or {}).items():
        known[name] = losses(other, tokens, k).mean(1)
    gap = paired_difference(known["word frequencies"], whole, doc).mean
    out = {}
    for name, x in known.items():
        rise = paired_difference(x, whole, doc)
        level = clustered_mean(x, doc)
        out[name] = {
            "loss": list(level[:2]), "rise": list(rise[:2]), "explained": [1 - rise.mean / gap],
        }  # fmt: skip
    return out
