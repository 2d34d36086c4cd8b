"""The same laws on other draws: a variant number decides what every check draws.

Variant 0 is what a learner sees: seed s draws the stream of seed s. In another variant seed s draws
the stream of the first eight bytes of SHA-256("variant:s"), so all its streams are new and have
nothing to do with each other. A teacher picks the number; who does not know it cannot prepare.

Draw inside the laws' generator or inside a law, never when the module is imported.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import torch

__all__ = [
    "current", "draw", "numpy_generator", "pick", "shuffled", "torch_generator", "variant",
]  # fmt: skip

T = TypeVar("T")
_number: ContextVar[int] = ContextVar("variant", default=0)


@contextmanager
def variant(number: int) -> Iterator[None]:
    """Inside this block all checks draw what belongs to `number`, a whole number from 0 on."""
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ValueError(f"a variant is a whole number from 0 on, not {number!r}")
    token = _number.set(number)
    try:
        yield
    finally:
        _number.reset(token)


def current() -> int:
    """The number of the variant that is being checked; 0 outside of any `variant` block."""
    return _number.get()


def _mixed(seed: int) -> int:
    """The seed itself in variant 0, otherwise 64 bits that hang on variant and seed."""
    if not (number := current()):
        return seed
    return int.from_bytes(hashlib.sha256(f"{number}:{seed}".encode()).digest()[:8], "big")


def torch_generator(seed: int) -> torch.Generator:
    """A torch generator for this seed in this variant; `.initial_seed()` is one for a model."""
    import torch  # here, because figures and tables load this module without torch

    return torch.Generator().manual_seed(_mixed(seed))


def numpy_generator(seed: int) -> np.random.Generator:
    """A numpy generator for this seed in this variant."""
    import numpy as np

    return np.random.default_rng(_mixed(seed))


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    """Standard normal numbers, float64."""
    import torch

    return torch.randn(*shape, generator=torch_generator(seed), dtype=torch.float64)


def pick(usual: int, low: int, high: int, seed: int) -> int:
    """`usual` in variant 0, otherwise a whole number from low to high, both included."""
    return int(numpy_generator(seed).integers(low, high + 1)) if current() else usual


def shuffled(items: Iterable[T], seed: int) -> list[T]:
    """The items in their order in variant 0, otherwise in a random one."""
    items = list(items)
    return [items[i] for i in numpy_generator(seed).permutation(len(items))] if current() else items
