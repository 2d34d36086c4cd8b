"""The miniature tasks of chapter 11: prompts made by rule, with small vocabularies of their own.

A task is a module of this package. It has `VOCAB` (a token's id is its place; the first is the
start token, the second fills up short prompts), `N_CTX` (the length of every row) and
`draw(n, rng, split)`, which returns a `Batch`.
"""

from __future__ import annotations

import hashlib
import importlib
from types import ModuleType
from typing import NamedTuple

import numpy as np

from circuitbook.recipes import Recipe

BOS, PAD = 0, 1
TASKS = ("names", "years")


class Batch(NamedTuple):
    """Prompts in rows: tokens [n, N_CTX] int64, BOS first, PAD at the end, and what comes next.

    targets [n, N_CTX] int64: targets[i, t] is to be predicted from tokens[i, : t + 1]; -1 where
    the position does not count.
    """

    tokens: np.ndarray
    targets: np.ndarray


def module(task: str) -> ModuleType:
    """The module of a task.

    Raises KeyError with the known tasks.
    """
    if task not in TASKS:
        raise KeyError(f"There is no task {task!r}. Tasks: {', '.join(TASKS)}.")
    return importlib.import_module(f"circuitbook.tasks.{task}")


def batch(rec: Recipe, step: int) -> Batch:
    """The training prompts of one step, a function of (data_seed, step) alone.

    Raises ValueError where the recipe's sizes are not those of the task.
    """
    task, cfg = module(rec.task), rec.config
    if (cfg.d_vocab, cfg.n_ctx) != (len(task.VOCAB), task.N_CTX):
        raise ValueError(
            f"The task {rec.task} has {len(task.VOCAB)} tokens and rows of {task.N_CTX}; its "
            f"recipe says d_vocab={cfg.d_vocab}, n_ctx={cfg.n_ctx}. Put the task's sizes into it."
        )
    return task.draw(rec.windows, np.random.default_rng([rec.data_seed, step]), split="train")


def sample(task: str) -> np.ndarray:
    """The vocabulary's hash and 2,000 training prompts in one array: what the training text is."""
    found = module(task)
    rows = found.draw(2000, np.random.default_rng(0), split="train")
    words = hashlib.sha256("\n".join(found.VOCAB).encode()).digest()
    parts = [np.frombuffer(words, np.uint8).astype(np.int64)]
    return np.concatenate([*parts, rows.tokens.ravel(), rows.targets.ravel()])
