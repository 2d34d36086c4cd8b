"""LayerNorm on a neuron's two sides: with its scale frozen, reading and writing are linear again.

n = x P / s, with P = 1 - 11ᵀ/d and s the scale at that position. What reads n through W reads the
stream x through P W / s. A gain and a bias of the norm belong to W and to the reader's bias.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from circuitbook.model import Transformer


def input_reader(
    model: Transformer, neurons: Tensor | slice
) -> tuple[Float[Tensor, "d_model chosen"], Float[Tensor, " chosen"]]:
    """(W, b) of layer 0: pre = x W / s + b for the stream x, s the frozen scale of `ln2`.

    LayerNorm's centring and its gain are in W, its bias is in b. Without a norm s = 1.
    """
    block = model.blocks[0]
    W, b = block.mlp.W_in[:, neurons], block.mlp.b_in[neurons]
    if model.cfg.norm == "layernorm":
        W, b = block.ln2.w[:, None] * W, b + block.ln2.b @ W
    return (W if model.cfg.norm == "none" else W - W.mean(0)), b


def read_by_mlp(model: Transformer, layer: int) -> str:
    """The hook that shows what an MLP reads: the stream, or where there is a norm its output."""
    at = "hook_resid_mid" if model.cfg.norm == "none" else "ln2.hook_normalized"
    return f"blocks.{layer}.{at}"


def output_reader(model: Transformer) -> Float[Tensor, "d_model d_vocab"]:
    """W with: a write w moves the logits by w W / s, s the frozen scale of the last stream."""
    W = model.W_U
    if model.cfg.norm == "layernorm":
        W = model.ln_final.w[:, None] * W
    return W if model.cfg.norm == "none" else W - W.mean(0)


def logits_of(
    model: Transformer,
    stream: Float[Tensor, "*axes d_model"],
    scale: Float[Tensor, "*axes 1"] | None = None,
) -> Float[Tensor, "*axes d_vocab"]:
    """Logits of a last stream of our choice: the final norm, run again on it, and the unembedding.

    stream: before the final norm; rows, or batch and position. scale: the norm's, if it is frozen.
    """
    if scale is None:
        x = model.ln_final(stream)
    else:
        x = (stream - stream.mean(-1, keepdim=True)) / scale
        x = x if model.ln_final.w is None else x * model.ln_final.w + model.ln_final.b
    return model.unembed(x) if x.ndim == 3 else model.unembed(x[None])[0]


def placed(model: Transformer, length: int) -> Float[Tensor, "pos d_model"] | None:
    """What queries and keys of a block add to their input: the positions, unless in the stream."""
    return None if model.cfg.positions == "standard" else model.W_pos[:length]
