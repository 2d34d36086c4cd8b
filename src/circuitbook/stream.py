"""The residual stream, taken apart: which part wrote what, and what happens without one part.

The stream is a sum of writes. `components` gives them by name; the other functions ask what one
write does to the output directly, and what it does in total. With a norm at the end, a logit is
linear in the writes once that norm's scale is frozen: see `read_through`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.bases import rotation
from circuitbook.corpus import heldout_windows
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


def windows(
    n: int, length: int = 512, seed: int = 0
) -> tuple[Int[Tensor, "window pos"], Int[Tensor, " window"]]:
    """(tokens, document of each window) of held-out text of today's model set."""
    held_out = heldout_windows(n, length=length, seed=seed)
    return torch.from_numpy(held_out.tokens), torch.from_numpy(held_out.doc)


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
    "bias l" (b_O) only with attention biases; the course's models have neither, the published ones
    have both. The last stream is before the final norm, if there is one.
    Source: Elhage et al. 2021 (the residual stream as a communication channel).
    """
    with last_logits_only(model):
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


# ---------------------------------------------------------------- what reads the last stream

UNEMBEDDING_BIAS = "unembedding bias"


def final_scale(
    model: Transformer, last: Float[Tensor, "*axes d_model"]
) -> Float[Tensor, "*axes 1"] | None:
    """s = sqrt(|x P|^2 / d + eps) of the norm before the unembedding; None without a norm.

    P = I - 11^T/d takes the mean away. `last` is a last stream before that norm.
    """
    if model.cfg.norm == "none":
        return None
    x = last - last.mean(-1, keepdim=True)
    return (x.pow(2).mean(-1, keepdim=True) + model.ln_final.eps).sqrt()


def read_through(
    model: Transformer,
    direction: Float[Tensor, "*axes d_model"],
    scale: Float[Tensor, "*axes 1"] | None,
) -> Float[Tensor, "*axes d_model"]:
    """u' = (w * u) P / s, so that x . u' is what the unembedding's direction u reads of a stream x.

    Scale frozen: s is given, so a sum of writes is read write by write, and the norm's own bias and
    b_U are left to `unembedding_bias`. Without a norm (scale None) u' = u.
    """
    if scale is None:
        return direction
    if model.ln_final.w is not None:
        direction = direction * model.ln_final.w
    return (direction - direction.mean(-1, keepdim=True)) / scale


def unembedding_bias(model: Transformer) -> Float[Tensor, " d_vocab"] | None:
    """What every logit holds whatever the stream is, b_LN W_U + b_U; None for a model without."""
    b = getattr(model.ln_final, "b", None)
    total = None if b is None else b @ model.W_U
    if model.unembed.b_U is not None:
        total = model.unembed.b_U if total is None else total + model.unembed.b_U
    return total


@contextmanager
def last_logits_only(model: Transformer) -> Iterator[None]:
    """Inside the block logits are [batch, 1, d_vocab]: those of the last position, no others.

    Patterns and streams are all there. For runs whose table of logits would be most of the cost.
    """
    handle = model.unembed.register_forward_pre_hook(lambda _, inputs: (inputs[0][:, -1:],))
    try:
        yield
    finally:
        handle.remove()


LOGITS = 50_000_000  # entries of logits held at once: 200 MB in float32


@torch.no_grad()
def window_loss(
    model: Transformer, tokens: Int[Tensor, "batch pos"], last: Float[Tensor, "batch pos d_model"]
) -> Float[Tensor, " batch"]:
    """-log softmax(x W_U + b_U)[next token], mean over each window, for a last stream of ours.

    The final norm, if there is one, computes its scale from that stream. A few windows at a time.
    """
    few = max(1, LOGITS // max(1, (last.shape[1] - 1) * model.cfg.d_vocab))
    rows = []
    for x, t in zip(last.split(few), tokens.split(few), strict=True):
        logits = model.unembed(model.ln_final(x[:, :-1]))  # [few, pos - 1, d_vocab]
        right = logits.gather(-1, t[:, 1:, None])[..., 0]
        rows.append((logits.logsumexp(-1) - right).mean(-1))
    return torch.cat(rows)


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
    last: list[Tensor] = []
    with last_logits_only(model):
        ablation = ablate_heads(model, tokens, [head], kind)
    # Not through cut.run: its copies of the stream for every head would double the time here.
    keep = (f"blocks.{model.cfg.n_layers - 1}.hook_resid_post", lambda x, hook: last.append(x))
    with torch.no_grad(), model.hooks(fwd_hooks=[*ablation.hooks, keep]):
        model.stream(tokens)
    return window_loss(model, tokens, last[0])


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
) -> tuple[dict[str, dict], float, float]:
    """For each model its loss, and `own_and_random` of its embedding and of its last stream.

    Beside it two numbers for excess kurtosis: -6 / (d + 2), its mean over random bases of width d,
    and the random-basis value that is farthest from it. Windows are cut to the shortest context of
    the models. The begin-of-sequence token is left out: all windows share it.
    """
    tokens, out = tokens[:, : min(m.cfg.n_ctx for m in models.values())], {}
    random = []
    for name, model in models.items():
        writes, last = components(model, tokens)
        out[name] = {"loss": window_loss(model, tokens, last).mean().item()}
        for place, x in (("embedding", writes["embedding"]), ("last stream", last)):
            found = out[name][place] = own_and_random(x[:, 1:], statistic, doc, generator)
            random.append(found["random"])
        known = -6 / (model.cfg.d_model + 2)
    return out, known, max(random, key=lambda x: abs(x - known))
