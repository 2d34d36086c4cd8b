"""The residual stream, taken apart: which part wrote what, and what happens without one part.

The stream is a sum of writes. `components` gives them by name; the other functions ask what one
write does to the output directly, and what it does in total.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.bases import rotation
from circuitbook.cut import Head, ablate_heads, run
from circuitbook.model import Transformer
from circuitbook.probe import clustered_mean, paired_difference

KEPT = ("hook_embed", "hook_pos_embed", "hook_result", "hook_mlp_out", "hook_resid_post")


class Parts(NamedTuple):
    """writes: name -> [batch, pos, d_model], in the order of adding; last: their sum."""

    writes: dict[str, Tensor]
    last: Float[Tensor, "batch pos d_model"]

    def below(self, layer: int) -> Float[Tensor, "batch pos d_model"]:
        """The stream entering block `layer`: the sum of the writes of all earlier blocks."""
        return sum(w for n, w in self.writes.items() if n in _BOTTOM or layer_of(n) < layer)

    def overlap(self, name: str) -> Float[Tensor, "batch pos"]:
        """cos = w . x / (|w| |x|), x the stream that this layer's write w is added to.

        Negative: the write erases part of what is there.
        """
        below = self.below(layer_of(name))
        return torch.nn.functional.cosine_similarity(self.writes[name], below, dim=-1)


_BOTTOM = ("embedding", "position")


def head_name(head: Head) -> str:
    """(0, 3) -> "head 0.3"."""
    return f"head {head[0]}.{head[1]}"


def layer_of(name: str) -> int:
    """The layer of a part that is not at the bottom: "head 1.4", "MLP 1" and "bias 1" are in 1."""
    return int(name.split()[1].split(".")[0])


def heads_of(model: Transformer) -> list[Head]:
    """All heads, layer by layer."""
    return [(l, h) for l in range(model.cfg.n_layers) for h in range(model.cfg.n_heads)]


def components(model: Transformer, tokens: Int[Tensor, "batch pos"]) -> Parts:
    """Last stream = embedding + every head's write + every MLP's write; nothing else is in it.

    Names: "embedding", "head l.h", "MLP l". "position" is a part only with standard positions, and
    "bias l" (b_O) only with attention biases; the course's models have neither. The last stream is
    before the final norm, if there is one.
    Source: Elhage et al. 2021 (the residual stream as a communication channel).
    """
    _, cache = run(model, tokens, names=lambda n: n.rsplit(".", 1)[-1] in KEPT)
    writes = {"embedding": cache["hook_embed"]}
    if model.cfg.positions == "standard":
        writes["position"] = cache["hook_pos_embed"]
    last = sum(writes.values())
    for l, block in enumerate(model.blocks):
        for h, write in enumerate(cache[f"blocks.{l}.attn.hook_result"].unbind(2)):
            writes[head_name((l, h))] = write
        if model.cfg.attn_bias:
            writes[f"bias {l}"] = block.attn.b_O.expand_as(writes["embedding"])
        if not model.cfg.attn_only:
            writes[f"MLP {l}"] = cache[f"blocks.{l}.hook_mlp_out"]
        last = cache[f"blocks.{l}.hook_resid_post"]
    return Parts(writes, last)


@torch.no_grad()
def window_loss(
    model: Transformer, tokens: Int[Tensor, "batch pos"], last: Float[Tensor, "batch pos d_model"]
) -> Float[Tensor, " batch"]:
    """-log softmax(x W_U)[next token], mean over each window, for a last stream of our choice."""
    logits = model.unembed(model.ln_final(last[:, :-1]))  # [batch, pos - 1, d_vocab]
    right = logits.gather(-1, tokens[:, 1:, None])[..., 0]
    return (logits.logsumexp(-1) - right).mean(-1)


class Effects(NamedTuple):
    """Rise of the loss in nats when each head's write goes, with standard errors by document."""

    direct: list[float]
    direct_se: list[float]
    total: list[float]
    total_se: list[float]


@torch.no_grad()
def head_effects(
    model: Transformer,
    tokens: Int[Tensor, "batch pos"],
    doc: Int[Tensor, " batch"],
    kind: str = "mean",
) -> Effects:
    """Direct: the write is replaced in the last stream only. Total: where it is made, all re-run.

    kind "zero" or "mean" (the batch's mean, position by position). The difference of the two is
    what later blocks made of the write. In the last layer of an attention-only model nobody reads
    it afterwards, so total = direct there, and only the direct effect is computed.
    Raises ValueError for another kind.
    """
    if kind not in ("zero", "mean"):
        raise ValueError(f"kind must be 'zero' or 'mean', got {kind!r}")
    parts = components(model, tokens)
    clean = window_loss(model, tokens, parts.last)
    rows = []
    for head in heads_of(model):
        write = parts.writes[head_name(head)]
        gone = write - write.mean(0) if kind == "mean" else write
        direct = total = window_loss(model, tokens, parts.last - gone)
        if head[0] < model.cfg.n_layers - 1 or not model.cfg.attn_only:
            total = rerun_loss(model, tokens, head, kind)
        rows.append([paired_difference(x, clean, doc)[:2] for x in (direct, total)])
    return Effects(*[[row[i][j] for row in rows] for i in (0, 1) for j in (0, 1)])


def rerun_loss(
    model: Transformer, tokens: Int[Tensor, "batch pos"], head: Head, kind: str
) -> Float[Tensor, " batch"]:
    """Mean loss of each window when the head's write is replaced and everything after re-run."""
    ablation = ablate_heads(model, tokens, [head], kind)
    # Not through cut.run: its copies of the stream for every head would double the time here.
    with torch.no_grad(), model.hooks(fwd_hooks=list(ablation.hooks)):
        return model(tokens, return_type="loss_per_token").mean(-1)


def own_and_random(
    x: Float[Tensor, "window pos d"],
    statistic: Callable[[Tensor], Tensor],
    doc: Int[Tensor, " window"],
    generator: torch.Generator,
    n: int = 16,
) -> dict[str, float]:
    """A statistic of vectors in their own basis and in n random orthogonal ones, paired by window.

    statistic: [..., d] -> [...]. Gives own, random and gap = own - random, each with its standard
    error by document.
    """
    own = statistic(x).mean(1)
    turned = [statistic(x @ rotation(x.shape[-1], generator).to(x)).mean(1) for _ in range(n)]
    other = torch.stack(turned).mean(0)
    out = {}
    for name, values in (("own", own), ("random", other), ("gap", own - other)):
        mean = clustered_mean(values, doc)
        out |= {name: mean.mean, f"{name}_se": mean.se}
    return out


def places(
    models: dict[str, Transformer],
    tokens: Int[Tensor, "window pos"],
    doc: Int[Tensor, " window"],
    statistic: Callable[[Tensor], Tensor],
    generator: torch.Generator,
) -> dict[str, dict]:
    """For each model its loss, and `own_and_random` of its embedding and of its last stream.

    Windows are cut to the shortest context of the models. The begin-of-sequence token is left out:
    all windows share it.
    """
    tokens, out = tokens[:, : min(m.cfg.n_ctx for m in models.values())], {}
    for name, model in models.items():
        writes, last = components(model, tokens)
        out[name] = {"loss": window_loss(model, tokens, last).mean().item()}
        for place, x in (("embedding", writes["embedding"]), ("last stream", last)):
            out[name][place] = own_and_random(x[:, 1:], statistic, doc, generator)
    return out
