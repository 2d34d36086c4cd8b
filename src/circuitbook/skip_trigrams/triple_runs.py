"""Put a source before a destination in real text, run the model, see what the outputs do.

One run gives, at the last position: centred logits and log probabilities of chosen outputs, each
head's attention to one place, and each head's own part of the logits. The model has one layer, so
those parts add up with the direct path to the logit: part = z W_O W_U, nothing else reads a head.
With LayerNorm a part is (z W_O) P / s W_U, the final scale s frozen at its value in this very run;
the direct path then holds token, position, b_O and the unembedding's bias. Two runs have two
scales, so a change of the logit is the sum of the changes of all parts, the direct one included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from circuitbook import inputs
from circuitbook.expansion.expand import read as through
from circuitbook.expansion.expand import unembed_bias
from circuitbook.model import Transformer
from circuitbook.skip_trigrams.triple_text import Text

BATCH = 128


class Contexts(NamedTuple):
    """tokens [n, length]: BOS, then text that ends in a given token; doc: where it comes from."""

    tokens: Int[Tensor, "n length"]
    doc: Integer[np.ndarray, " n"]


def endings(text: Text, token: int, length: int) -> Integer[np.ndarray, " n"]:
    """Places of a token with at least length - 2 tokens of the same document before it."""
    at = text.places(token)
    first = at - (length - 2)
    at = at[first >= 0]
    return at[text.doc[at - (length - 2)] == text.doc[at]]


def contexts(
    text: Text, destinations: Integer[np.ndarray, " n"], length: int, rng: np.random.Generator
) -> Contexts:
    """One real context for each destination, drawn from its `endings`, opened by the text's BOS.

    Raises ValueError for a destination that has none.
    """
    if not len(destinations):
        return Contexts(torch.zeros(0, length, dtype=torch.long), np.zeros(0, dtype=np.int64))
    at = []
    for token in destinations:
        places = endings(text, int(token), length)
        if not len(places):
            raise ValueError(f"token {token} never stands {length - 2} tokens into a document")
        at.append(rng.choice(places))
    where = np.asarray(at)[:, None] + np.arange(2 - length, 1)
    tokens = np.concatenate([np.full((len(where), 1), text.bos), text.tokens[where]], 1)
    return Contexts(torch.from_numpy(tokens.astype(np.int64)), text.doc[where[:, -1]])


class Readout(NamedTuple):
    """What the model says at the last position, for each run and each chosen output."""

    logit: Float[Tensor, "n outputs"]  # minus the mean over the vocabulary
    log_prob: Float[Tensor, "n outputs"]
    part: Float[Tensor, "n head outputs"]  # of the centred logit
    attention: Float[Tensor, "n head"]  # from the last position to `place`
    first: Float[Tensor, "n head"]  # 1 where no other place gets more
    direct: Float[Tensor, "n outputs"]  # the rest of the logit: token, position, b_O, bias of W_U


@torch.no_grad()
def read(
    model: Transformer,
    tokens: Int[Tensor, "n length"],
    place: Int[Tensor, " n"],
    outputs: Int[Tensor, "n outputs"],
) -> Readout:
    """Run a one-layer model and look at the last position. W_U is centred here if it is not yet.

    Raises ValueError for a model of more layers or with an MLP: there the parts of the logit are
    not what the heads wrote.
    """
    if model.cfg.n_layers != 1 or not model.cfg.attn_only:
        raise ValueError("read() takes one attention-only layer: its parts add up")
    W_U, norm = model.W_U - model.W_U.mean(1, keepdim=True), model.ln_final
    bias, b_U = unembed_bias(model), model.unembed.b_U
    kept: dict[str, Tensor] = {}

    def last(x: Tensor, hook: Any) -> None:
        kept[hook.name.rsplit("_", 1)[1]] = x[:, :, -1] if "pattern" in hook.name else x[:, -1]

    hooks = [(f"blocks.0.attn.hook_{n}", last) for n in ("pattern", "z")]
    if model.cfg.norm != "none":
        hooks.append(("ln_final.hook_scale", last))
    device, rows = model.W_E.device, []
    for batch in zip(tokens.split(BATCH), place.split(BATCH), outputs.split(BATCH), strict=True):
        t, at, out = (x.to(device) for x in batch)
        with model.hooks(fwd_hooks=hooks):
            x = model.stream(t)[:, -1]  # [n, d_model]; the unembedding only where it is read
        logits = x @ W_U if b_U is None else x @ W_U + (b_U - b_U.mean())
        columns = W_U.T[out]  # [n, outputs, d_model]
        scale = kept.get("scale")  # [n, 1]
        writes = torch.einsum("nhe,hed->nhd", kept["z"], model.W_O[0])
        writes = through(norm, writes, scale if scale is None else scale[:, None])
        below = through(norm, _without_heads(model, t), scale)
        seen = kept["pattern"]  # [n, head, length]
        attention = seen.gather(-1, at[:, None, None].expand(-1, seen.shape[1], 1))[..., 0]
        logit = logits.gather(1, out)
        rows.append(
            Readout(
                logit,
                logit - logits.logsumexp(1, keepdim=True),
                torch.einsum("nhd,nod->nho", writes, columns),
                attention,
                (attention >= seen.amax(-1)).to(seen),
                torch.einsum("nd,nod->no", below, columns) + (bias - bias.mean())[out],
            )
        )
    return Readout(*(torch.cat(x) for x in zip(*rows, strict=True)))


def _without_heads(model: Transformer, tokens: Int[Tensor, "n pos"]) -> Float[Tensor, "n d_model"]:
    """The stream at the last position without any head's write: token, position, b_O."""
    x, b_O = model.W_E[tokens[:, -1]], model.blocks[0].attn.b_O
    if model.cfg.positions == "standard":
        x = x + model.W_pos[tokens.shape[1] - 1]
    return x if b_O is None else x + b_O


def put(
    tokens: Int[Tensor, "n length"], place: Int[Tensor, " n"], token: Int[Tensor, " n"]
) -> Int[Tensor, "n length"]:
    """The contexts with one token replaced; nothing moves, so all positions stay."""
    new = tokens.clone()
    new[torch.arange(len(new)), place] = token
    return new


def places_before(n: int, gaps: Sequence[int], length: int) -> Int[Tensor, " n"]:
    """`gap` places before the last position, the gaps in turn. Raises ValueError if one is too far.

    Place 0 holds the begin-of-sequence token and stays.
    """
    if not all(1 <= g <= length - 2 for g in gaps):
        raise ValueError(f"gaps must lie between 1 and {length - 2}, got {tuple(gaps)}")
    return length - 1 - torch.as_tensor(gaps).repeat(-(-n // len(gaps)))[:n]


@torch.no_grad()
def score_parts(
    model: Transformer, row: Int[Tensor, " pos"]
) -> Float[Tensor, "head part query key"]:
    """(e_i + p_i) W_QK (e_j + p_j)^T / sqrt(d_head) of the first layer, multiplied out; no mask.

    Token query with token key, token with position, position with token, position with position;
    then, where queries have a bias, the bias with a token key and with a position key. With
    LayerNorm e and p are divided by the scale of the stream that holds both, frozen. What a bias of
    keys adds is left out: it is one constant for each query.
    """
    W_Q, W_K, scale = model.W_Q[0], model.W_K[0], model.cfg.d_head**-0.5
    norm, s = model.blocks[0].ln1, inputs.scales(model, row[None])[0]
    s = s if s is None else s[0]
    e, p = through(norm, model.W_E[row], s), model.W_pos[: len(row)]
    if model.cfg.positions == "standard":  # shortformer positions join after the norm
        p = through(norm, p, s)
    queries, b_Q = [a @ W_Q for a in (e, p)], inputs.bias(model, "Q", 0)
    if b_Q is not None:
        queries.append(b_Q[:, None].expand_as(queries[0]))
    return torch.stack([q @ (b @ W_K).mT * scale for q in queries for b in (e, p)], 1)


@torch.no_grad()
def score_shares(
    model: Transformer, tokens: Int[Tensor, "window pos"], first: int = 16
) -> Float[Tensor, "head part"]:
    """cov_j(part, score) / var_j(score) over the keys a query sees, mean over queries: sums to 1.

    The parts are those of `score_parts`; queries from `first` on.
    """
    total = 0.0
    for row in tokens:
        parts = score_parts(model, row)
        seen = torch.ones_like(parts[0, 0]).tril()
        mean = (parts * seen).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)
        parts = (parts - mean) * seen  # [head, part, query, key]
        score = parts.sum(1, keepdim=True)
        share = (parts * score).sum(-1) / score.square().sum(-1).clamp_min(1e-12)
        total = total + share[..., first:].mean(-1)
    return total / len(tokens)
