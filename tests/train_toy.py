"""A recipe that trains in a second, a stream of tokens for it, and the trainer's settings."""

import numpy as np
import pytest
import torch

from circuitbook import train
from circuitbook.config import Config
from circuitbook.recipes import Recipe

TINY = Config(n_layers=2, d_model=32, n_heads=2, d_head=8, n_ctx=40, d_vocab=64)


def tiny(**more):
    return Recipe(**{"config": TINY, "steps": 24, "windows": 2, "warmup": 3,
                     "snapshots": (0, 1, 4, 12, 24), **more})  # fmt: skip


def stream(n=5000, seed=0):
    return np.random.default_rng(seed).integers(1, 64, n).astype(np.uint16)


@pytest.fixture(autouse=True)
def settled():
    """The trainer's own settings, and the test process's again afterwards."""
    threads = torch.get_num_threads()
    train.settle("cpu")
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)
