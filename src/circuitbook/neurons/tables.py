"""The linear sides of a neuron as tables over the vocabulary, always as two thin factors.

A neuron is one column k of W_in, one bias and one row v of W_out. Three tables say what words have
to do with it. Row = neuron, column = token, so `scan.top_k` finds each neuron's words without ever
holding a table:

    direct inputs    W_E W_in           what the current token adds to the pre-activation
    through a head   W_E W_OV W_in      what one attended token adds (times the attention)
    written          W_out W_U          what one unit of activation adds to the logits, centred

At the published shape, 2,048 neurons by 48,262 tokens, a table is 0.4 GB and its tiles are 4 MB.
With a norm, fold its gain into what reads, and centre what writes: then a table is right up to the
norm's scale at a position, one positive number that divides all that is read there.
Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (MLP layers).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.model import Transformer
from circuitbook.scan import Factors, Top, top_k


def direct_inputs(
    W_E: Float[Tensor, "d_vocab d_model"], W_in: Float[Tensor, "d_model d_mlp"]
) -> Factors:
    """(W_E W_in)^T = W_in^T W_E^T: neuron n, token t -> what t adds to n's pre-activation."""
    return Factors(W_in.mT, W_E.mT)


def head_inputs(
    W_E: Float[Tensor, "d_vocab d_model"],
    W_V: Float[Tensor, "d_model d_head"],
    W_O: Float[Tensor, "d_head d_model"],
    W_in: Float[Tensor, "d_model d_mlp"],
) -> Factors:
    """(W_E W_V W_O W_in)^T as factors of rank d_head; the attention to the token multiplies it."""
    return Factors((W_O @ W_in).mT, (W_E @ W_V).mT)


def written(
    W_out: Float[Tensor, "d_mlp d_model"], W_U: Float[Tensor, "d_model d_vocab"]
) -> Factors:
    """W_out W_U, rows centred over the vocabulary: without that, W_U + c 1^T would move them."""
    return Factors(W_out, W_U - W_U.mean(-1, keepdim=True))


def most_written(model: Transformer, layer: int, k: int, sign: int = 1) -> Top:
    """The k tokens that each neuron of a layer raises most (sign -1: lowers most), [d_mlp, k]."""
    factors = written(model.blocks[layer].mlp.W_out, model.W_U)
    return top_k(sign * factors.A, factors.B, k)


def most_read(model: Transformer, layer: int, k: int) -> Top:
    """The k tokens that excite each neuron most through the direct path, [d_mlp, k].

    With a folded norm, divide by the scale of `ln2` at a position to get what the token adds there.
    Raises ValueError for a norm with a gain, which is not folded into W_in here.
    """
    _folded(model)
    return top_k(*direct_inputs(model.W_E, model.blocks[layer].mlp.W_in), k)


def most_read_by_head(model: Transformer, layer: int, head: int, k: int) -> Top:
    """The k tokens that excite each neuron most when head `head` of the same layer attends to them.

    For layer 0, where what the head reads is the token itself. With a folded norm the scale of
    `ln1` at the attended token and that of `ln2` at the reading one divide the entry.
    """
    _folded(model)
    if layer:
        raise ValueError("above layer 0 a head does not read the bare token")
    attn = model.blocks[0].attn
    return top_k(
        *head_inputs(model.W_E, attn.W_V[head], attn.W_O[head], model.blocks[0].mlp.W_in), k
    )


def most_read_by_strongest_head(model: Transformer, k: int) -> tuple[Int[Tensor, " d_mlp"], Top]:
    """(the head of layer 0 whose best token excites each neuron most, that head's k tokens).

    Ties go to the lower head. The tables are those of :func:`most_read_by_head`.
    """
    found = [most_read_by_head(model, 0, head, k) for head in range(model.cfg.n_heads)]
    best = torch.stack([one.values[:, 0] for one in found]).argmax(0)
    rows = torch.arange(len(best), device=best.device)
    return best, Top(*(torch.stack(part)[best, rows] for part in zip(*found, strict=True)))


def _folded(model: Transformer) -> None:
    if model.cfg.norm == "layernorm":
        raise ValueError("fold the norm's gain into what reads first (fold.fold_layer_norm)")


def spread(factors: Factors, part: int = 256) -> tuple[float, float]:
    """(mean, standard deviation) of all entries of a table, `part` rows at a time."""
    total = square = 0.0
    for rows in factors.A.split(part):
        table = rows @ factors.B
        total += table.double().sum().item()
        square += table.double().square().sum().item()
    n = factors.A.shape[0] * factors.B.shape[1]
    mean = total / n
    return mean, max(square / n - mean**2, 0.0) ** 0.5
