"""The student's side: one process that holds one answer, and calls it when the grader asks.

It knows nothing of the tests. Arguments come over the pipe just before they are used. Results go
back as data, with the state of generators and the numbers of other arguments that were changed.
"""

import builtins
import errno
import json
import random
import socket
from typing import Any

import numpy as np
import torch

from circuitbook.grade.codec import Refused, Slots, content, encode
from circuitbook.grade.decode import decode
from circuitbook.grade.wire import receive, send

__all__ = ["serve"]

_LETTERS = 300  # of an error's message


def serve(sock: socket.socket) -> None:
    """Answer the grader's frames until it closes the pipe."""
    answer = None
    while True:
        kind, body = receive(sock)
        try:
            if kind == "L":
                answer = _load(*json.loads(body))
                send(sock, "R", encode(None, Slots()))
            elif kind == "S":
                _seed(int(body))
                send(sock, "R", encode(None, Slots()))
            else:
                _call(sock, answer, body)
        except Refused as error:
            send(sock, "F", str(error).encode())
        except BaseException as error:  # also sys.exit and the like: the process goes on
            send(sock, "E", _told(error))


def _load(code: str, function: str) -> Any:
    """Run the answer's statements in a module of their own; the function that they define."""
    space: dict[str, Any] = {"__name__": "answer", "__builtins__": builtins}
    # Running strangers' code is this process's task.
    exec(compile(code, "<answer>", "exec", dont_inherit=True), space)
    return space[function]


def _seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)  # the old global generator, which students may use
    torch.manual_seed(number)


def _call(sock: socket.socket, answer: Any, body: bytes) -> None:
    slots = Slots()
    args, kwargs, grad = decode(
        body, slots, trusted=True, function=lambda n: _remote(sock, n, slots)
    )
    before = {n: held for n in range(len(slots.objects)) if (held := _content(n, slots))}
    with torch.set_grad_enabled(grad):
        result = encode(answer(*args, **kwargs), slots.moving())
    for number, held in before.items():
        now = _content(number, slots)
        if now != held:
            state = isinstance(slots.objects[number], torch.Generator | np.random.Generator)
            send(sock, "M", number.to_bytes(4, "big") + (now if state and now else b""))
    send(sock, "R", result)


def _content(number: int, slots: Slots) -> bytes | None:
    held = slots.objects[number]
    if isinstance(held, tuple | frozenset | bytes | complex):
        return b""  # cannot change
    try:
        return content(number, slots)
    except Refused:
        return None  # holds functions: what is in it cannot be compared


def _remote(sock: socket.socket, number: int, slots: Slots) -> Any:
    """A function of the grader's: calling it asks the grader."""

    def ask(*args: Any, **kwargs: Any) -> Any:
        send(sock, "C", number.to_bytes(4, "big") + encode([list(args), kwargs], slots.moving()))
        kind, body = receive(sock)
        if kind == "R":
            return decode(body, slots, trusted=True)
        name, message = json.loads(body)
        raise getattr(builtins, name, RuntimeError)(message)

    return ask


def _told(error: BaseException) -> bytes:
    """The error's name and the start of its message, whatever its own methods do."""
    if "can't start new thread" in error.args or getattr(error, "errno", 0) == errno.EAGAIN:
        return json.dumps(["limit", ""]).encode()
    kinds = [k.__name__ for k in type(error).__mro__ if k.__module__ == "builtins"]
    try:
        message = str(error)[:_LETTERS]
    except BaseException:
        message = ""
    return json.dumps([kinds[0] if kinds else "Exception", message]).encode()
