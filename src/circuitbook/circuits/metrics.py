"""What a circuit is asked to do, as one number for each prompt, read where it is answered.

A metric is a function (model, stream, rows) -> [n]. stream [n, pos, d_model] is what the
unembedding reads; rows [n] says which prompt each row is, since one pass holds many copies of the
prompts. Only the answering position is unembedded, so a large vocabulary costs little.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.model import Transformer

Metric = Callable[[Transformer, Tensor, Tensor], Tensor]


def at_position(at: Int[Tensor, " prompt"], read: Callable[[Tensor, Tensor], Tensor]) -> Metric:
    """read(logits [n, d_vocab], rows [n]) -> [n], at position at[prompt] of each prompt."""

    def metric(model: Transformer, stream: Tensor, rows: Tensor) -> Tensor:
        x = stream[torch.arange(len(rows), device=stream.device), at.to(stream.device)[rows]]
        return read(model.unembed(x[:, None])[:, 0], rows)

    return metric


def logit_difference(
    at: Int[Tensor, " prompt"], right: Int[Tensor, " prompt"], wrong: Int[Tensor, " prompt"]
) -> Metric:
    """logit[right] - logit[wrong] at position at: no shift of all logits can move it."""

    def read(logits: Tensor, rows: Tensor) -> Tensor:
        ids = torch.stack([right, wrong], -1).to(logits.device)[rows]  # [n, 2]
        both = logits.gather(-1, ids)
        return both[:, 0] - both[:, 1]

    return at_position(at, read)


def log_probability(at: Int[Tensor, " prompt"], right: Int[Tensor, " prompt"]) -> Metric:
    """log softmax(logits)[right] at position at, in nats."""

    def read(logits: Tensor, rows: Tensor) -> Tensor:
        ids = right.to(logits.device)[rows, None]
        return logits.gather(-1, ids)[:, 0] - logits.logsumexp(-1)

    return at_position(at, read)


def next_token_loss(tokens: Int[Tensor, "prompt pos"], counts: Tensor) -> Metric:
    """Minus the mean loss of the tokens at the places where counts [prompt, pos] is true.

    Higher is better, as in all metrics here. Every place is unembedded, which costs much when the
    vocabulary is large.
    """
    weight = counts[:, 1:].double() / counts[:, 1:].double().sum(-1, keepdim=True)

    def metric(model: Transformer, stream: Tensor, rows: Tensor) -> Float[Tensor, " n"]:
        ids = tokens.to(stream.device)[rows]
        logits = model.unembed(stream[:, :-1])
        loss = logits.logsumexp(-1) - logits.gather(-1, ids[:, 1:, None])[..., 0]
        return -(loss * weight.to(loss)[rows]).sum(-1)

    return metric
