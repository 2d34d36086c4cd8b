"""How good a dictionary is: what it explains, at how many latents, and what the model loses.

    variance kept    1 - sum |x - out|^2 / sum |x - mean|^2          over held-out positions
    L0               latents on, mean over positions
    loss recovered   (L_zero - L_sae) / (L_zero - L_full)

L_full is the model's loss, L_zero its loss when the MLP's neurons are set to zero, L_sae its loss
when the autoencoder's output stands in their place; the rest of the model is run again. So the
whole model has 1 and the zero ablation 0 by construction. The first position, that of the
begin-of-sequence token, is left alone and not counted, as in training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.autoencoders import activations
from circuitbook.autoencoders.sae import Dictionary
from circuitbook.model import Transformer
from circuitbook.probe import Estimate, clustered_mean

BLOCK = 8  # windows at a time


class Read(NamedTuple):
    """A one-layer model on some windows, taken apart at its MLP; BOS's position is left out."""

    tokens: Int[Tensor, "window pos"]
    doc: Int[Tensor, " window"]
    mid: Float[Tensor, "window read d_model"]  # read = pos - 1
    post: Float[Tensor, "window read d_mlp"]


def read(
    model: Transformer, tokens: Int[Tensor, "window pos"], doc: Int[Tensor, " window"]
) -> Read:
    """Run the model once on the windows.

    Raises ValueError for a model of more than one layer: here nothing may come after the MLP.
    """
    if model.cfg.n_layers != 1:
        raise ValueError(f"a one-layer model is needed, this one has {model.cfg.n_layers}")
    names = ("blocks.0.hook_resid_mid", "blocks.0.mlp.hook_post")
    rows = activations.rows_of(model, tokens, *names)
    mid, post = (r.unflatten(0, (tokens.shape[0], -1)) for r in rows)
    return Read(tokens, doc, mid, post)


@torch.no_grad()
def losses(
    model: Transformer,
    seen: Read,
    replace: Callable[[Float[Tensor, "row d_mlp"]], Float[Tensor, "row d_mlp"]] | None = None,
) -> Float[Tensor, " window"]:
    """Loss of each window in nats with `replace(neurons)` in the neurons' place, the rest run on.

    In a one-layer model only the MLP's write and the unembedding come after them. Counted are the
    predictions from the second position on.
    """
    mlp, out = model.blocks[0].mlp, []
    for tokens, mid, post in zip(*(t.split(BLOCK) for t in (seen.tokens, seen.mid, seen.post))):
        flat = post[:, :-1].flatten(0, 1)
        flat = flat if replace is None else replace(flat)
        write = flat @ mlp.W_out + mlp.b_out
        last = mid[:, :-1] + write.unflatten(0, (tokens.shape[0], -1))
        logits = model.unembed(model.ln_final(last)).flatten(0, 1)
        nll = F.cross_entropy(logits, tokens[:, 2:].flatten(), reduction="none")
        out.append(nll.view(tokens.shape[0], -1).mean(1))
    return torch.cat(out)


class Codes(NamedTuple):
    """The latents that are on: value [row, k] and which [row, k]; a value may be 0."""

    value: Float[Tensor, "row k"]
    latent: Int[Tensor, "row k"]


@torch.no_grad()
def codes(dictionary: Dictionary, x: Float[Tensor, "row d"], block: int = 4096) -> Codes:
    """A TopK dictionary's latents without the zeros: the k largest of ReLU(x W_enc + b_enc)."""
    parts = [dictionary.pre(piece).topk(dictionary.k, dim=1) for piece in x.split(block)]
    return Codes(torch.cat([p[0] for p in parts]).relu_(), torch.cat([p[1] for p in parts]))


def decoded(dictionary: Dictionary, c: Codes) -> Float[Tensor, "row d"]:
    """out = sum over the latents that are on of value times row of W_dec, plus b_dec."""
    out = F.embedding_bag(c.latent, dictionary.W_dec, per_sample_weights=c.value, mode="sum")
    return out + dictionary.b_dec


def reconstruction(dictionary: Dictionary) -> Callable[[Tensor], Tensor]:
    """x -> out, by the short sums where there are any."""
    if dictionary.k:
        return lambda x: decoded(dictionary, codes(dictionary, x))
    return dictionary


def recovered(
    full: Float[Tensor, " window"],
    zero: Float[Tensor, " window"],
    spliced: Float[Tensor, " window"],
    doc: Int[Tensor, " window"],
) -> Estimate:
    """(L_zero - L) / (L_zero - L_full), a ratio of means, with its error by document.

    The error is that of the residuals L_zero - L - r (L_zero - L_full), over the mean gap: the
    usual linear approximation for a ratio.
    """
    gap, gained = zero - full, zero - spliced
    r = gained.double().mean() / gap.double().mean()
    rest = clustered_mean(gained.double() - r * gap.double(), doc)
    return Estimate(r.item(), rest.se / gap.mean().item(), rest.n_clusters)


@torch.no_grad()
def score(
    model: Transformer, seen: Read, dictionary: Dictionary, full: Tensor, zero: Tensor
) -> dict[str, Any]:
    """Everything that one dictionary is judged by, on held-out windows."""
    x = seen.post.flatten(0, 1)
    mean, total, missed, on = x.mean(0), 0.0, 0.0, 0
    fired = torch.zeros(dictionary.latents, dtype=torch.int64)
    for piece in x.split(4096):
        f = dictionary.encode(piece)
        total += float((piece - mean).square().sum())
        missed += float((piece - dictionary.decode(f)).square().sum())
        on += int((f > 0).sum())
        fired += (f > 0).sum(0)
    loss = losses(model, seen, reconstruction(dictionary))
    share = recovered(full, zero, loss, seen.doc)
    return {
        "l0": on / x.shape[0],
        "variance_kept": 1 - missed / total,
        "mean_square_error": missed / x.shape[0],
        "dead": float((fired == 0).float().mean()),
        "positions": x.shape[0],
        "loss": float(loss.mean()),
        "recovered": share.mean,
        "recovered_se": share.se,
    }
