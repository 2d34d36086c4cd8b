"""Put a source before a destination in real text, run the model, see what the outputs do.

One run gives, at the last position: centred logits and log probabilities of chosen outputs, each
head's attention to one place, and each head's own part of the logits. The model has one layer, so
those parts add up with the direct path to the logit: part = z W_O W_U, nothing else reads a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

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
    """One real context for each destination, drawn from its `endings`.

    Raises ValueError for a destination that has none.
    """
    at = []
    for token in destinations:
        places = endings(text, int(token), length)
        if not len(places):
            raise ValueError(f"token {token} never stands {length - 2} tokens into a document")
        at.append(rng.choice(places))
    where = np.asarray(at)[:, None] + np.arange(2 - length, 1)
    tokens = np.concatenate([np.zeros((len(where), 1)), text.tokens[where]], 1)
    return Contexts(torch.from_numpy(tokens.astype(np.int64)), text.doc[where[:, -1]])


class Readout(NamedTuple):
    """What the model says at the last position, for each run and each chosen output."""

    logit: Float[Tensor, "n outputs"]  # minus the mean over the vocabulary
    log_prob: Float[Tensor, "n outputs"]
    part: Float[Tensor, "n head outputs"]  # of the centred logit
    attention: Float[Tensor, "n head"]  # from the last position to `place`
    first: Float[Tensor, "n head"]  # 1 where no other place gets more


@torch.no_grad()
def read(
    model: Transformer,
    tokens: Int[Tensor, "n length"],
    place: Int[Tensor, " n"],
    outputs: Int[Tensor, "n outputs"],
) -> Readout:
    """Run a one-layer model and look at the last position. W_U is centred here if it is not yet.

    Raises ValueError for a model of more layers, with an MLP or with a norm: there the parts of
    the logit are not what the heads wrote.
    """
    if model.cfg.n_layers != 1 or not model.cfg.attn_only or model.cfg.norm != "none":
        raise ValueError("read() takes one attention-only layer without norm: its parts add up")
    W_U = model.W_U - model.W_U.mean(1, keepdim=True)
    kept: dict[str, Tensor] = {}

    def last(x: Tensor, hook: Any) -> None:
        kept[hook.name.rsplit("_", 1)[1]] = x[:, :, -1] if "pattern" in hook.name else x[:, -1]

    hooks = [(f"blocks.0.attn.hook_{n}", last) for n in ("pattern", "z")]
    device, rows = model.W_E.device, []
    for batch in zip(tokens.split(BATCH), place.split(BATCH), outputs.split(BATCH), strict=True):
        t, at, out = (x.to(device) for x in batch)
        with model.hooks(fwd_hooks=hooks):
            x = model.stream(t)[:, -1]  # [n, d_model]; the unembedding only where it is read
        logits = x @ W_U
        columns = W_U.T[out]  # [n, outputs, d_model]
        writes = torch.einsum("nhe,hed->nhd", kept["z"], model.W_O[0])
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
            )
        )
    return Readout(*(torch.cat(x) for x in zip(*rows, strict=True)))


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
def score_shares(
    model: Transformer, tokens: Int[Tensor, "window pos"], first: int = 16
) -> Float[Tensor, "head part"]:
    """cov_j(part, score) / var_j(score) over the keys a query sees, mean over queries: sums to 1.

    Parts of (e_i + p_i) W_QK (e_j + p_j): token-token, token query with position key, position
    query with token key, position-position. First layer, shortformer positions; from query `first`.
    """
    W_Q, W_K, scale = model.W_Q[0], model.W_K[0], model.cfg.d_head**-0.5
    total = 0.0
    for row in tokens:
        e, p = model.W_E[row], model.W_pos[: len(row)]
        parts = torch.stack([a @ W_Q @ (b @ W_K).mT * scale for a in (e, p) for b in (e, p)], 1)
        seen = torch.ones_like(parts[0, 0]).tril()
        mean = (parts * seen).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)
        parts = (parts - mean) * seen  # [head, part, query, key]
        score = parts.sum(1, keepdim=True)
        share = (parts * score).sum(-1) / score.square().sum(-1).clamp_min(1e-12)
        total = total + share[..., first:].mean(-1)
    return total / len(tokens)
