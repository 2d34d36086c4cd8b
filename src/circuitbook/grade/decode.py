"""The way back from bytes to values. What comes from a student's process is checked at each step.

`trusted` messages come from the grader. Only they may name functions, models and maps.
"""

import functools
import importlib
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from circuitbook.grade.codec import _MAPS, _NUMPY_KINDS, _TORCH, MAX_DEPTH, Refused, Slots

__all__ = ["decode", "restore"]

_BROKEN = "the answer's process sent something that is no answer"


class _Reader:
    def __init__(self, data: bytes, slots: Slots, trusted: bool, function: Callable | None):
        self.slots, self.trusted, self.function = slots, trusted, function
        view = memoryview(data)
        size = int.from_bytes(view[:8], "big")
        self.tree, lengths = json.loads(bytes(view[8 : 8 + size]))
        ends = np.cumsum([0, *map(int, lengths)]).tolist()
        if min(lengths, default=0) < 0 or 8 + size + ends[-1] != len(view):
            raise Refused(_BROKEN)
        body = view[8 + size :]
        self.blocks = [body[a:b] for a, b in zip(ends, ends[1:], strict=False)]

    def value(self, tree: Any, depth: int = 0) -> Any:
        if depth > MAX_DEPTH:
            raise Refused(_BROKEN)
        if not isinstance(tree, dict):
            if isinstance(tree, list | float):  # lists and floats travel with a name
                raise Refused(_BROKEN)
            return tree
        kind = next(iter(tree))
        if kind == "slot":
            return self.slots.objects[self._index(tree["slot"], self.slots.objects)]
        made = getattr(self, f"_{kind}", None) if kind in _KINDS else None
        if made is None or (kind in _TRUSTED and not self.trusted):
            raise Refused(_BROKEN)
        value = made(tree, depth + 1)
        if self.trusted and "as" in tree and self.slots.add(value) != tree["as"]:
            raise Refused("the grader's own message has its slots in disorder")
        return value

    @staticmethod
    def _index(number: Any, items: list) -> int:
        if type(number) is not int or not 0 <= number < len(items):
            raise Refused(_BROKEN)
        return number

    def _block(self, number: Any) -> memoryview:
        return self.blocks[self._index(number, self.blocks)]

    def _many(self, trees: Any, depth: int) -> list:
        if not isinstance(trees, list):
            raise Refused(_BROKEN)
        return [self.value(t, depth) for t in trees]

    def _int(self, tree, depth):
        return int(tree["int"], 16)

    def _float(self, tree, depth):
        return float.fromhex(tree["float"])

    def _complex(self, tree, depth):
        real, imag = tree["complex"]
        return complex(float.fromhex(real), float.fromhex(imag))

    def _bytes(self, tree, depth):
        return bytes(self._block(tree["bytes"]))

    def _list(self, tree, depth):
        return self._many(tree["list"], depth)

    def _tuple(self, tree, depth):
        return tuple(self._many(tree["tuple"], depth))

    def _set(self, tree, depth):
        return set(self._many(tree["set"], depth))

    def _frozenset(self, tree, depth):
        return frozenset(self._many(tree["frozenset"], depth))

    def _dict(self, tree, depth):
        return {self.value(k, depth): self.value(v, depth) for k, v in tree["dict"]}

    def _shape(self, tree: dict, block: memoryview, itemsize: int) -> list[int]:
        shape = tree["shape"]
        if not all(type(n) is int and n >= 0 for n in shape) or len(shape) > 32:
            raise Refused(_BROKEN)
        if math.prod(shape) * itemsize != len(block):
            raise Refused(_BROKEN)
        return shape

    def _tensor(self, tree, depth):
        dtype, block = _TORCH[tree["kind"]], self._block(tree["tensor"])
        shape = self._shape(tree, block, torch.empty((), dtype=dtype).element_size())
        if not len(block):
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(bytearray(block), dtype=dtype).reshape(shape)

    def _array(self, tree, depth):
        dtype, block = np.dtype(str(tree["kind"])), self._block(tree["array"])
        if dtype.kind not in _NUMPY_KINDS:
            raise Refused(_BROKEN)
        shape = self._shape(tree, block, dtype.itemsize)
        return np.frombuffer(bytearray(block), dtype=dtype).reshape(shape)

    def _generator(self, tree, depth):
        return _set_generator(torch.Generator(), self._block(tree["generator"]))

    def _rng(self, tree, depth):
        return _set_rng(np.random.default_rng(0), self.value(tree["rng"], depth))

    def _dtype(self, tree, depth):
        return _TORCH[tree["dtype"]]

    def _function(self, tree, depth):
        return self.function(tree["function"])

    def _partial(self, tree, depth):
        name, args, keywords = tree["partial"]
        args, keywords = self.value(args, depth), self.value(keywords, depth)
        return functools.partial(getattr(importlib.import_module(_MAPS), name), *args, **keywords)

    def _model(self, tree, depth):
        from circuitbook.config import Config
        from circuitbook.model import Transformer

        config = self.value(tree["model"], depth)
        model = Transformer(Config(**config))
        state = self.state(tree)
        floats = [v.dtype for v in state.values() if v.is_floating_point()]
        model.to(floats[0]).load_state_dict(state)
        for name, p in model.named_parameters():
            p.requires_grad_(name in tree["grad"])
        return model.train(tree["train"])

    def state(self, tree: dict) -> dict[str, torch.Tensor]:
        """A model's parameters by name."""
        return {str(k): self._tensor(v, 0) for k, v in tree["state"].items()}


_KINDS = frozenset(
    "int float complex bytes list tuple set frozenset dict tensor array generator rng dtype "
    "function partial model".split()
)
_TRUSTED = frozenset({"function", "partial", "model"})


def _set_generator(generator: torch.Generator, state: Any) -> torch.Generator:
    return generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def _set_rng(rng: np.random.Generator, state: dict) -> np.random.Generator:
    rng.bit_generator.state = state
    return rng


def _guarded(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except Refused:
        raise
    except Exception:  # a lying message can be wrong in any way; its words are not worth telling
        raise Refused(_BROKEN) from None


def decode(
    data: bytes, slots: Slots, *, trusted: bool = False, function: Callable | None = None
) -> Any:
    """The value of a message. function: makes a function of a number. Errors: Refused, only."""

    def make():
        reader = _Reader(data, slots, trusted, function)
        return reader.value(reader.tree)

    return _guarded(make)


def restore(number: int, data: bytes, slots: Slots) -> None:
    """Bring the generator in a slot to the state of another. Errors: Refused, only.

    Nothing else is ever changed from outside: laws go on with what they drew.
    """

    def change():
        target, new = slots.objects[number], decode(data, slots)
        if isinstance(target, torch.Generator):
            target.set_state(new.get_state())
        else:
            target.bit_generator.state = new.bit_generator.state

    _guarded(change)
