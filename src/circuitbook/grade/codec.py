"""Values as plain bytes, for a pipe whose other end may lie: no pickle, and no code.

A message is a JSON tree and raw blocks for the numbers of tensors and arrays. Known are: None,
bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, torch tensors, dtypes and
generators, numpy arrays and generators, functions (by a number that only the sender can
call), `functools.partial` of a map in circuitbook.checks.maps, and circuitbook.model.Transformer.

What can be changed in place is numbered (a slot), so that both ends know which one is meant.
A scalar of numpy becomes Python's own number or word.
"""

import functools
import json
from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

__all__ = ["Refused", "Slots", "content", "encode"]

MAX_DEPTH = 40
MAX_ITEMS = 2_000_000
_MAPS = "circuitbook.checks.maps"
_TORCH = {
    str(t).removeprefix("torch."): t
    for t in (
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
        torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    )
}  # fmt: skip
_NUMPY_KINDS = "?biufc"


class Refused(Exception):
    """A value that cannot be sent, or a message that is none; told in words a student can read."""


class Slots:
    """The changeable objects that both ends know, by number."""

    def __init__(self) -> None:
        self.objects: list[Any] = []
        self._numbers: dict[int, int] = {}

    def add(self, value: Any) -> int:
        """Number an object, which is kept alive so that its identity stays its own."""
        self._numbers[id(value)] = len(self.objects)
        self.objects.append(value)
        return len(self.objects) - 1

    def number(self, value: Any) -> int | None:
        """The object's number, if it has one."""
        return self._numbers.get(id(value))

    def moving(self) -> "Slots":
        """The same numbers for generators and models alone; all else then travels as it is now."""
        few = Slots()
        few.objects = self.objects
        few._numbers = {i: n for i, n in self._numbers.items() if _moves(self.objects[n])}
        return few


def _moves(value: Any) -> bool:
    kind = type(value)
    return kind in (torch.Generator, np.random.Generator) or kind.__name__ == "Transformer"


# ---- out ----------------------------------------------------------------------------------------


class _Writer:
    def __init__(self, slots: Slots, grow: bool, function: Callable[[Any], int] | None):
        self.slots, self.grow, self.function = slots, grow, function
        self.blocks: list[bytes] = []
        self.items = 0

    def block(self, data: bytes) -> int:
        self.blocks.append(data)
        return len(self.blocks) - 1

    def tree(self, value: Any, depth: int = 0, inside: int | None = None) -> Any:
        """The value as JSON; `inside`: the slot whose own content is written, not its number."""
        self.items += 1
        if depth > MAX_DEPTH or self.items > MAX_ITEMS:
            raise Refused("the answer is nested too deeply or has too many parts")
        if isinstance(value, np.generic):
            value = _own(value)
        if value is None or type(value) is bool:
            return value
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            value = int(value)
            return value if -(2**53) < value < 2**53 else {"int": hex(value)}
        if type(value) is float:
            return {"float": value.hex()}
        known = self.slots.number(value)
        if known is not None and known != inside:
            return {"slot": known}
        made = self._made(value, depth + 1)
        if made is None:
            raise Refused(f"returned {_kind(value)}; the checks understand numbers, words, lists, "
                          "dicts, tensors and numpy arrays")  # fmt: skip
        if self.grow and known is None and not {"function", "partial", "dtype"} & set(made):
            made["as"] = self.slots.add(value)
        return made

    def _made(self, value: Any, depth: int) -> dict | None:
        kind = type(value)
        for plain in (list, tuple, set, frozenset):
            if isinstance(value, plain):
                return {plain.__name__: [self.tree(v, depth) for v in value]}
        if isinstance(value, range | Iterator | KeysView | ValuesView | ItemsView):
            return {"list": [self.tree(v, depth) for v in value]}
        if kind in (bytes, bytearray):
            return {"bytes": self.block(bytes(value))}
        if kind is complex:
            return {"complex": [value.real.hex(), value.imag.hex()]}
        if isinstance(value, dict):
            pairs = [[self.tree(k, depth), self.tree(v, depth)] for k, v in value.items()]
            return {"dict": pairs}
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, np.ndarray):
            return self._array(value)
        if kind is torch.Generator:
            return {"generator": self.block(value.get_state().numpy().tobytes())}
        if kind is np.random.Generator:
            return {"rng": self.tree(_state(value), depth)}
        if kind is torch.dtype and value in _TORCH.values():
            return {"dtype": str(value).removeprefix("torch.")}
        if kind is functools.partial and value.func.__module__ == _MAPS:
            given = [self.tree(v, depth) for v in (value.args, value.keywords)]
            return {"partial": [value.func.__name__, *given]}
        if kind.__name__ == "Transformer" and kind.__module__ == "circuitbook.model":
            return self._model(value, depth)
        if callable(value) and self.function is not None and not isinstance(value, type):
            return {"function": self.function(value)}
        return None

    def _tensor(self, value: torch.Tensor) -> dict:
        value = value.detach().resolve_conj().resolve_neg()
        name = str(value.dtype).removeprefix("torch.")
        if name not in _TORCH or value.layout is not torch.strided:
            raise Refused(f"returned a tensor of an unusual kind ({name})")
        flat = value.cpu().contiguous().reshape(-1)
        data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        return {"tensor": self.block(data), "kind": name, "shape": list(value.shape)}

    def _array(self, value: np.ndarray) -> dict:
        array = np.asarray(value)
        if array.dtype.kind not in _NUMPY_KINDS:
            raise Refused(f"returned an array of {array.dtype.kind!r} and not of numbers")
        native = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False))
        made = {"array": self.block(native.tobytes()), "kind": native.dtype.name}
        return made | {"shape": list(array.shape)}

    def _model(self, model: Any, depth: int) -> dict:
        state = {k: v.detach() for k, v in model.state_dict().items()}
        needs = [n for n, p in model.named_parameters() if p.requires_grad]
        return {
            "model": self.tree(asdict(model.cfg), depth),
            "state": {k: self._tensor(v) for k, v in state.items()},
            "grad": needs,
            "train": model.training,
        }


def _own(value: np.generic) -> Any:
    """Python's own number or word for a scalar of numpy."""
    if isinstance(value, np.floating | np.complexfloating):  # also long ones
        return complex(value) if isinstance(value, np.complexfloating) else float(value)
    return value.item() if value.dtype.kind in "biuUS" else value


def _kind(value: Any) -> str:
    """What a value is; a class of the student's own could carry anything in its name."""
    name, module = type(value).__name__, type(value).__module__
    known = module.split(".")[0] in {"builtins", "torch", "numpy", "pandas", "types", "functools"}
    return f"a {name}" if known else "an object of some other class"


def _state(rng: np.random.Generator) -> dict:
    state = rng.bit_generator.state
    return {k: v.tolist() if hasattr(v, "tolist") else v for k, v in state.items()}


def _message(writer: _Writer, value: Any, inside: int | None = None) -> bytes:
    try:
        tree = writer.tree(value, inside=inside)
        head = json.dumps([tree, [len(b) for b in writer.blocks]]).encode()
    except RecursionError:
        raise Refused("the answer is nested too deeply or has too many parts") from None
    return b"".join([len(head).to_bytes(8, "big"), head, *writer.blocks])


def encode(
    value: Any, slots: Slots, *, grow: bool = False, function: Callable[[Any], int] | None = None
) -> bytes:
    """One message. grow: number new changeable objects. function: gives a function its number."""
    return _message(_Writer(slots, grow, function), value)


def content(number: int, slots: Slots) -> bytes:
    """What the object in a slot holds now; other known objects in it by number."""
    return _message(_Writer(slots, False, None), slots.objects[number], number)
