"""A function that stands for a student's: its calls go to the student's process and back.

Laws call it like the function itself. Whatever happens over there becomes one sentence, raised as
`check.Stopped`, which fails the law that runs and no other.
"""

import builtins
import json
import re
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from circuitbook.check import Stopped
from circuitbook.checks.draws import current
from circuitbook.grade.codec import Refused, Slots, encode
from circuitbook.grade.collect import Answer
from circuitbook.grade.decode import decode, restore
from circuitbook.grade.report import Limits
from circuitbook.grade.wire import Broken, Late, receive, send

__all__ = ["Proxy", "Room"]

_KNOWN = (
    "DataFrame", "Figure", "Series", "builtin_function_or_method", "function", "module", "object",
    "partial", "type",
)  # fmt: skip
_RETURNED = re.compile(rf"returned an? ({'|'.join(_KNOWN)});")
_START = 10.0  # seconds for a fork, and for ending what ran before
_UNDERSTOOD = "the checks understand numbers, words, lists, dicts, tensors and numpy arrays"


class Room:
    """The grader's end of a sandbox: start a student's process, end it, hear how it ended."""

    def __init__(self, control: socket.socket):
        self.control = control

    def start(self) -> socket.socket:
        """A fresh student's process; whatever ran before is ended, and what it wrote is gone."""
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self.control, [b"S"], [theirs.fileno()])
            why = ""
            while why not in ("started", "stuck", "silence", "room"):
                why = self.ending(_START)[0]  # what is told before that is of an earlier process
        except OSError:
            why = "room"
        finally:
            theirs.close()
        if why != "started":
            ours.close()
            what = "left files that cannot be removed" if why == "stuck" else "ended the room"
            raise Stopped(f"not tried: your code {what}")
        return ours

    def stop(self) -> None:
        """End the student's process and all that it started."""
        try:
            self.control.sendall(b"K")
        except OSError:
            pass  # the room is gone already

    def ending(self, seconds: float = 1.0) -> tuple[str, int]:
        """How the student's process ended: ("exit", 3), ("signal", 9), ("memory", 2048), …"""
        line = b""
        until = time.monotonic() + seconds
        while not line.endswith(b"\n"):
            if not select.select([self.control], [], [], max(0, until - time.monotonic()))[0]:
                return "silence", 0
            part = self.control.recv(1)
            if not part:
                return "room", 0
            line += part
        why, number = json.loads(line)
        return why, number


class Proxy:
    """The stand-in for one answer. `changed`: whether a call changed its arguments, over there.

    Here they stay as they are, for the laws judge by them; only generators move on.
    """

    def __init__(self, answer: Answer, room: Room, limits: Limits, wall: float | int):
        self.answer, self.room, self.limits = answer, room, limits
        self.sock: socket.socket | None = None
        self.law = limits.law
        self.wall = wall
        self.crashes = 0
        self.changed = False
        self.error = ""
        self.seed = 0

    def new_law(self, seed: int) -> None:
        """Give the next law its full time and a fresh process: none knows of an earlier law."""
        self.law = self.limits.law
        self.seed = seed
        if self.sock is not None:
            self.close()

    def close(self) -> None:
        """End the student's process."""
        if self.sock is not None:
            self.sock.close()
            self.sock = None
        self.room.stop()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The answer's value. Errors: the answer's own, if Python knows their kind; Stopped."""
        self._start()
        slots, functions = Slots(), []

        def number(function: Callable) -> int:
            functions.append(function)
            return len(functions) - 1

        given = [list(args), kwargs, torch.is_grad_enabled()]
        body = encode(given, slots, grow=True, function=number)
        return self._guarded(lambda: self._ask("A", body, slots, functions))

    # ---- one process ----------------------------------------------------------------------------

    def _start(self) -> None:
        if self.sock is not None:
            return
        if self.error:
            raise Stopped(self.error)
        if self.crashes > self.limits.crashes:
            raise Stopped(f"not tried: your answer had to be stopped {self.crashes} times before")
        if self.wall <= 0:
            raise Stopped("not tried: the time for the whole notebook was used up")
        self.sock = self.room.start()
        code = json.dumps([self.answer.code, self.answer.function]).encode()
        try:
            self._guarded(lambda: self._reply("S", str(self.seed).encode()))
            self._guarded(lambda: self._reply("L", code))
        except Stopped as stop:
            if self.sock is not None:  # it lives, but has no function to call
                self.error = "your code tried to end the program before it was called"
                self.error = str(stop) if "could not start" in str(stop) else self.error
                self.close()
            raise
        except Exception as error:
            self.error = f"your code stopped with {type(error).__name__} before it was called"
            self.error += f": {error}" if str(error) and not current() else ""
            self.close()
            raise Stopped(self.error) from None

    def _guarded(self, exchange: Callable[[], Any]) -> Any:
        """Do an exchange of frames on the law's time; a process that breaks it is ended."""
        start = time.monotonic()
        try:
            return exchange()
        except (Late, Broken) as error:
            words = self._why(error)
            self.crashes += 1
            self.close()
            raise Stopped(words) from None
        finally:
            used = time.monotonic() - start
            self.law -= used
            self.wall -= used

    def _why(self, error: Late | Broken) -> str:
        if isinstance(error, Late):
            if self.wall <= self.law:
                return "the time for the whole notebook was used up"
            return f"your function did not come back within {self.limits.law:g} seconds"
        if "more than" in str(error):
            return f"your function returned {error}".replace(" came back", "")
        why, number = self.room.ending()
        if why == "signal":
            name = signal.Signals(number).name if number in signal.valid_signals() else number
            return f"your function crashed the process that it runs in ({name})"
        return {
            "exit": "your function ended the program; return a value instead",
            "memory": f"your function took more than {number} MB of memory",
            "written": f"your function wrote more than {number} MB",
            "processes": f"your function started more than {number} processes",
        }.get(why, "your function broke the line to the grader")

    def _left(self, since: float) -> float:
        return min(self.law, self.wall) - (time.monotonic() - since)

    def _reply(self, kind: str, body: bytes) -> Any:
        return self._ask(kind, body, Slots(), [])

    def _ask(self, kind: str, body: bytes, slots: Slots, functions: list[Callable]) -> Any:
        start, changes = time.monotonic(), {}
        self._send(kind, body, start)
        while True:
            left = self._left(start)
            if left <= 0:
                raise Late
            kind, body = receive(self.sock, left, self.limits.message)
            if kind == "C":
                self._called_back(body, slots, functions, start)
            elif kind == "M" and len(changes) < len(slots.objects):
                changes[int.from_bytes(body[:4], "big")] = body[4:]
            elif kind in "REF":
                break
            else:
                raise Broken("an unknown frame")
        try:
            return self._result(kind, body, slots, changes)
        except Refused:
            raise Broken("a frame that is no value") from None

    def _send(self, kind: str, body: bytes, start: float) -> None:
        left = self._left(start)
        if left <= 0:
            raise Late
        send(self.sock, kind, body, left)

    def _result(self, kind: str, body: bytes, slots: Slots, changes: dict[int, bytes]) -> Any:
        if kind == "F":
            found = _RETURNED.match(body[:200].decode("utf-8", "replace"))
            what = f"a {found[1]}" if found else "something that cannot be passed on"
            raise Stopped(f"your function returned {what}; {_UNDERSTOOD}")
        result = decode(body, slots) if kind == "R" else None
        for number, data in changes.items():
            if number >= len(slots.objects):
                raise Broken("a change of something that was never sent")
            if isinstance(slots.objects[number], torch.Generator | np.random.Generator):
                restore(number, data, slots)
            else:
                self.changed = True
        if kind == "E":
            raise _error(body, self.limits)
        return result

    def _called_back(
        self, body: bytes, slots: Slots, functions: list[Callable], start: float
    ) -> None:
        """The student calls a function of ours; it runs here, and only its value goes over."""
        number = int.from_bytes(body[:4], "big")
        try:
            args, kwargs = decode(body[4:], slots)
            if number >= len(functions) or type(args) is not list or type(kwargs) is not dict:
                raise Broken("a call of a function that was never sent")
            reply = encode(functions[number](*args, **kwargs), slots)
        except (Broken, Refused):
            raise Broken("a call that is none") from None
        except Exception as error:  # a wrong argument: the student's code sees Python's own words
            told = json.dumps([_builtin(error), str(error)[:300]]).encode()
            self._send("E", told, start)
        else:
            self._send("R", reply, start)


def _builtin(error: BaseException) -> str:
    return next(k.__name__ for k in type(error).__mro__ if k.__module__ == "builtins")


def _error(body: bytes, limits: Limits) -> Exception:
    """The student's error as one of Python's own; a request to end the program is told in words."""
    try:
        name, message = json.loads(body)
        if name == "limit":
            most = f"more than {limits.processes} processes and threads"
            return Stopped(f"your function could not start another thread or process; {most}")
        kind = getattr(builtins, name)
        if issubclass(kind, SystemExit | KeyboardInterrupt | GeneratorExit):
            return Stopped("your function tried to end the program; return a value instead")
        if kind is StopIteration or not issubclass(kind, Exception):
            kind = RuntimeError
        return kind(str(message)[:300])
    except Exception:  # it lied, or the kind wants more than a message
        return RuntimeError("an error that cannot be told")
