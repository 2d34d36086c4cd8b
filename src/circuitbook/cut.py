"""Interventions: what is removed, what is computed again, and what is held fixed.

Every function returns a `Cut`: hooks, and three plain sentences. Cuts add up (`a + b`); hooks run
in that order. `run` applies them. Heads are pairs (layer, head).

Every run made here switches the per-head inputs and per-head results on, so that all runs use the
same arithmetic. What a cut does not touch is then the same bit for bit, not only nearly.

What replaces the removed value (`kind`):
    "zero"      nothing. The write is gone; the model may never have seen such a stream.
    "mean"      its mean over the batch, position by position, in the run without cuts. What
                differs between windows is gone, what is common stays.
    "resample"  its value in another window of the batch, at the same position, in the run without
                cuts. The windows are shuffled so that none keeps its own; give a generator.

Source: Elhage et al. 2021 (frozen patterns, path terms); Wang et al. 2023 (mean ablation, path
patching); Chan et al. 2022, "Causal Scrubbing" (resampling).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.model import Transformer

Head = tuple[int, int]
KINDS = ("zero", "mean", "resample")
INPUTS = {"q": "query", "k": "key", "v": "value"}


@dataclass(frozen=True)
class Cut:
    """Hooks that change a forward pass, with what is cut, recomputed and frozen in words."""

    hooks: tuple[tuple[str, Callable], ...] = ()
    cut: tuple[str, ...] = ()
    recomputed: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()

    def __add__(self, other: Cut) -> Cut:
        """Both at once. What one freezes stays frozen though the other would recompute it."""
        return Cut(
            self.hooks + other.hooks,
            self.cut + other.cut,
            self.recomputed + other.recomputed,
            self.frozen + other.frozen,
        )

    def describe(self) -> str:
        """The label that a claim about this cut carries."""
        parts = (("cut", self.cut), ("recomputed", self.recomputed), ("frozen", self.frozen))
        return "; ".join(f"{name}: {', '.join(dict.fromkeys(x)) or 'nothing'}" for name, x in parts)


# ---------------------------------------------------------------- running


@torch.no_grad()
def run(
    model: Transformer,
    tokens: Int[Tensor, "batch pos"],
    cut: Cut | None = None,
    names: Iterable[str] | Callable[[str], bool] | None = (),
    return_type: str = "logits",
) -> tuple[Tensor, dict[str, Tensor]]:
    """(output, cache) of one forward pass under a cut; without one, of the untouched model.

    names: hooks to keep (a list, a filter, or None for all). return_type as in the model. The model
    and its hooks are as before afterwards. No gradients.
    """
    cut = cut or Cut()
    keep = names if names is None or callable(names) else list(names)
    before = model.use_attn_result, model.use_split_qkv_input
    model.set_use_attn_result(True)
    model.set_use_split_qkv_input(True)
    try:
        with model.hooks(fwd_hooks=list(cut.hooks)):
            if keep == []:
                return model(tokens, return_type=return_type), {}
            out, cache = model.run_with_cache(tokens, return_type=return_type, names_filter=keep)
            return out, dict(cache)
    finally:
        model.set_use_attn_result(before[0])
        model.set_use_split_qkv_input(before[1])


# ---------------------------------------------------------------- helpers


def _check_head(model: Transformer, head: Head) -> Head:
    layer, index = head
    if not (0 <= layer < model.cfg.n_layers and 0 <= index < model.cfg.n_heads):
        raise ValueError(
            f"no head {layer}.{index}: this model has layers 0 ... {model.cfg.n_layers - 1} "
            f"and heads 0 ... {model.cfg.n_heads - 1}"
        )
    return layer, index


def _check_kind(kind: str, generator: torch.Generator | None) -> None:
    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}: choose one of {KINDS}")
    if kind == "resample" and generator is None:
        raise ValueError("resampling needs generator=torch.Generator().manual_seed(...)")


def _name(heads: Iterable[Head]) -> str:
    return " ".join(f"{layer}.{head}" for layer, head in heads)


def other_window(n: int, generator: torch.Generator) -> Int[Tensor, " n"]:
    """A random permutation of n >= 2 windows without fixed points: one random cycle through all."""
    if n < 2:
        raise ValueError(f"resampling needs at least two windows, got {n}")
    order = torch.randperm(n, generator=generator)
    partner = torch.empty_like(order)
    partner[order] = order.roll(1)
    return partner


def _replacement(value: Tensor, kind: str, partner: Tensor | None) -> Tensor:
    """What stands where `value` [batch, ...] was; `value` comes from the run without cuts."""
    if kind == "zero":
        return torch.zeros_like(value)
    if kind == "mean":
        return value.mean(0, keepdim=True).expand_as(value)
    return value[partner.to(value.device)]


# ---------------------------------------------------------------- ablations


def ablate_heads(
    model: Transformer,
    tokens: Int[Tensor, "batch pos"],
    heads: Sequence[Head],
    kind: str = "zero",
    *,
    generator: torch.Generator | None = None,
) -> Cut:
    """The write z W_O of each head is replaced (z [batch, pos, d_head]); b_O stays.

    Recomputed: everything after, patterns of later layers included. Frozen: nothing.
    "mean" and "resample" take z from the run without cuts on these same tokens, so the cut belongs
    to this batch. One shuffle of the windows serves all heads, so they stay consistent.
    Raises ValueError for an unknown head or kind, or resampling without a generator.
    """
    _check_kind(kind, generator)
    heads = [_check_head(model, h) for h in heads]
    layers = sorted({layer for layer, _ in heads})
    names = {layer: f"blocks.{layer}.attn.hook_z" for layer in layers}
    clean = run(model, tokens, names=list(names.values()))[1] if kind != "zero" else {}
    partner = other_window(len(tokens), generator) if kind == "resample" else None

    def hook_for(layer: int) -> Callable:
        mine = [head for at, head in heads if at == layer]

        def replace(z: Tensor, hook: object) -> Tensor:
            z = z.clone()
            source = clean[names[layer]] if clean else z
            z[:, :, mine] = _replacement(source[:, :, mine], kind, partner)
            return z

        return replace

    return Cut(
        tuple((names[layer], hook_for(layer)) for layer in layers),
        cut=(f"writes of {_name(heads)} ({kind})",),
        recomputed=("everything after",),
    )


def replace_patterns(model: Transformer, patterns: Mapping[Head, Tensor]) -> Cut:
    """A of each given head is the given pattern [batch, pos, key], whatever its scores say.

    Recomputed: what the heads write with it, and everything after. Frozen: the given patterns.
    Raises ValueError for an unknown head. The shape must fit the run.
    """
    given = {_check_head(model, head): pattern for head, pattern in patterns.items()}
    layers = sorted({layer for layer, _ in given})

    def hook_for(layer: int) -> Callable:
        mine = {head: pattern for (at, head), pattern in given.items() if at == layer}

        def replace(pattern: Tensor, hook: object) -> Tensor:
            pattern = pattern.clone()
            for head, new in mine.items():
                if new.shape[-2:] != pattern.shape[-2:]:
                    raise ValueError(
                        f"pattern for head {layer}.{head} is {tuple(new.shape)}, "
                        f"this run needs {tuple(pattern[:, head].shape)}"
                    )
                pattern[:, head] = new
            return pattern

        return replace

    return Cut(
        tuple((f"blocks.{layer}.attn.hook_pattern", hook_for(layer)) for layer in layers),
        frozen=(f"patterns of {_name(given)}",),
    )


def freeze_patterns(
    model: Transformer, tokens: Int[Tensor, "batch pos"], heads: Sequence[Head] | None = None
) -> Cut:
    """A of each head is what it was in the run without cuts on these tokens (all heads by default).

    With all patterns frozen and no MLP and no norm, the model is linear in its embeddings.
    Scales of norms and gains of MLPs are not frozen by this.
    """
    if heads is None:
        heads = [(l, h) for l in range(model.cfg.n_layers) for h in range(model.cfg.n_heads)]
    heads = [_check_head(model, h) for h in heads]
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in sorted({l for l, _ in heads})]
    if not names:
        return Cut()
    cache = run(model, tokens, names=names)[1]
    return replace_patterns(
        model, {(l, h): cache[f"blocks.{l}.attn.hook_pattern"][:, h] for l, h in heads}
    )


def pattern_preserving_ablation(
    model: Transformer,
    tokens: Int[Tensor, "batch pos"],
    heads: Sequence[Head],
    kind: str = "zero",
    *,
    generator: torch.Generator | None = None,
) -> Cut:
    """The heads' writes are replaced while every head's pattern stays as it was.

    So only what travels along the frozen patterns is lost: the heads' direct writes and what later
    values carry of them. What they did for later queries and keys is kept.
    Source: Elhage et al. 2021 (term importance); the 2022 paper calls it pattern-preserving.
    """
    ablation = ablate_heads(model, tokens, heads, kind, generator=generator)
    return ablation + freeze_patterns(model, tokens)


# ---------------------------------------------------------------- one edge


def cut_path(
    model: Transformer,
    writer: Head,
    reader: Head,
    into: str,
    kind: str = "zero",
    *,
    generator: torch.Generator | None = None,
) -> Cut:
    """reader's q, k or v input becomes x - w (+ replacement); w [batch, pos, d_model] is the write.

    Only this edge is cut: the writer still writes to the stream, to all other heads, and to the
    reader's other two inputs. Only the direct edge: what an MLP between them made of w stays in x.
    Recomputed: the reader's q, k or v, what follows from it (its pattern for q and k), its write,
    and all later layers. Left alone: everything else up to and including the reader's layer.
    With LayerNorm the cut is before the norm, whose scale is recomputed for this input alone.
    w, and with "mean" and "resample" what replaces it, are read in the run itself. Under `a + b`
    that run has the other cuts in it.

    A v-cut cannot move the reader's pattern. In the last layer of an attention-only model without
    norm, its logit change is minus the virtual-head term A2 A1 X W_OV1 W_OV2 W_U.
    Raises ValueError for an unknown head, input or kind, and unless the writer's layer is earlier.
    """
    _check_kind(kind, generator)
    (l1, h1), (l2, h2) = _check_head(model, writer), _check_head(model, reader)
    if into not in INPUTS:
        raise ValueError(f"unknown input {into!r}: choose one of {tuple(INPUTS)}")
    if l1 >= l2:
        raise ValueError(
            f"head {l1}.{h1} does not come before {l2}.{h2}: only a head of an earlier layer "
            "writes into another head's input"
        )
    kept: list[Tensor] = []
    partner: list[Tensor] = []

    def remember(result: Tensor, hook: object) -> None:
        kept[:] = [result[:, :, h1]]

    def remove(x: Tensor, hook: object) -> Tensor:
        w = kept.pop()
        if kind == "resample" and (not partner or len(partner[0]) != len(w)):
            partner[:] = [other_window(len(w), generator)]
        x = x.clone()
        x[:, :, h2] = x[:, :, h2] - w + _replacement(w, kind, partner[0] if partner else None)
        return x

    follows = "" if into == "v" else ", its pattern"
    return Cut(
        (
            (f"blocks.{l1}.attn.hook_result", remember),
            (f"blocks.{l2}.hook_{into}_input", remove),
        ),
        cut=(f"{l1}.{h1} -> {INPUTS[into]} of {l2}.{h2}, direct edge only ({kind})",),
        recomputed=(f"{INPUTS[into]} of {l2}.{h2}{follows}, its write, all later layers",),
    )


def cut_paths(
    model: Transformer,
    edges: Iterable[tuple[Head, Head, str]],
    kind: str = "zero",
    *,
    generator: torch.Generator | None = None,
) -> Cut:
    """Several edges (writer, reader, input) at once; each as in `cut_path`."""
    total = Cut()
    for writer, reader, into in edges:
        total = total + cut_path(model, writer, reader, into, kind, generator=generator)
    return total


def logit_change(
    model: Transformer, tokens: Int[Tensor, "batch pos"], cut: Cut
) -> Float[Tensor, "batch pos d_vocab"]:
    """logits with the cut minus logits without it, both with the same arithmetic."""
    return run(model, tokens, cut)[0] - run(model, tokens)[0]
