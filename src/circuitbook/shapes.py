"""The same attention parameters as few wide heads or many narrow ones: 4 d d_head n_heads numbers.

A very small experiment on the bytes of the course text (257 symbols, so that the unembedding costs
little): one attention layer, the same text in the same order for every shape, a few hundred steps.
It answers for this size and this budget only.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from circuitbook import corpus, fast, paths, tokenizer, train
from circuitbook.config import Config
from circuitbook.recipes import Recipe

CONTEXT, WIDTH, WINDOWS = 128, 256, 8
TOKENS = 300_000  # of the training stream, as bytes more than these steps read


def byte_stream(tokens: np.ndarray) -> np.ndarray:
    """The text of some token ids as bytes, each plus one: 0 is left for begin-of-sequence."""
    text = tokenizer.load().decode(tokens.tolist()).encode()
    return np.frombuffer(text, dtype=np.uint8).astype(np.uint16) + 1


def byte_recipe(n_heads: int, *, steps: int, seed: int = 0) -> Recipe:
    """One attention layer of n_heads heads of WIDTH / n_heads each; every shape has equal size."""
    if WIDTH % n_heads:
        raise ValueError(f"{n_heads} heads do not share a width of {WIDTH} evenly")
    config = Config(
        n_layers=1, d_model=WIDTH, n_heads=n_heads, d_head=WIDTH // n_heads,
        n_ctx=CONTEXT, d_vocab=257,
    )  # fmt: skip
    return Recipe(config, seed=seed, data_seed=seed, steps=steps, windows=WINDOWS, warmup=20)


def compare(shapes: tuple[int, ...], *, steps: int, seeds: int) -> dict[str, list[float]]:
    """Number of heads -> held-out loss for each seed: same text, same order, same parameters.

    The text is the course's, whatever the model set.
    """
    with paths.model_set("course"):
        stream, held_out = byte_stream(corpus.train_tokens()[:TOKENS]), held_out_windows(40)
        return {
            str(n): [shape_loss(n, stream, held_out, steps=steps, seed=s) for s in range(seeds)]
            for n in shapes
        }


def held_out_windows(n: int) -> tuple[Tensor, Tensor]:
    """(inputs, targets): n windows of CONTEXT bytes, the starts of held-out token windows."""
    text = corpus.heldout_windows(n).tokens[:, 1:]
    rows = np.stack([byte_stream(row)[:CONTEXT] for row in text]).astype(np.int64)
    targets = torch.from_numpy(rows)
    return torch.cat([torch.zeros(n, 1, dtype=torch.int64), targets[:, :-1]], 1), targets


def shape_loss(
    n_heads: int, stream: np.ndarray, held_out: tuple[Tensor, Tensor], *, steps: int, seed: int
) -> float:
    """Held-out loss (nats a byte) after `steps` steps on `stream`; on the CPU, to be repeatable."""
    rec = byte_recipe(n_heads, steps=steps, seed=seed)
    state = train.Run(rec, Path())  # nothing is written: neither `snapshot` nor `save` is called
    for _ in range(steps):
        state.advance(stream)
    inputs, targets = held_out
    with torch.no_grad():
        loss = fast.loss(rec.config, state.params, inputs, targets, state.w_pos, torch.float32)
    return loss.item()
