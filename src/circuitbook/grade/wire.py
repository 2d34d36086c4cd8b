"""Frames on a socket: one letter, a length, a body. Whoever reads sets a limit on size and time."""

import select
import socket
import time

__all__ = ["Broken", "Late", "receive", "send"]

_HEAD = 9
_MB = 1 << 20


class Late(Exception):
    """Nothing, or not all, came in time."""


class Broken(Exception):
    """The other end is gone, or sends what is no frame."""


def send(
    sock: socket.socket, kind: str, body: bytes = b"", seconds: float | int | None = None
) -> None:
    """Send one frame. Errors: Broken when the other end is gone, Late when it does not read."""
    sock.settimeout(seconds)
    try:
        sock.sendall(kind.encode() + len(body).to_bytes(8, "big"))
        sock.sendall(body)
    except TimeoutError:
        raise Late from None
    except OSError as error:
        raise Broken(str(error)) from None


def receive(
    sock: socket.socket, seconds: float | int | None = None, megabytes: float | int = 1024
) -> tuple[str, bytes]:
    """The next frame. Errors: Late, Broken (also when it is longer than allowed)."""
    until = None if seconds is None else time.monotonic() + seconds
    head = _exactly(sock, _HEAD, until)
    size = int.from_bytes(head[1:], "big")
    if not head[:1].isalpha():
        raise Broken("that is no frame")
    if size > megabytes * _MB:
        raise Broken(f"more than {megabytes:g} MB came back")
    return head[:1].decode(), _exactly(sock, size, until)


def _exactly(sock: socket.socket, size: int, until: float | int | None) -> bytes:
    got = bytearray()
    while len(got) < size:
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            raise Late
        if not select.select([sock], [], [], left)[0]:
            raise Late
        try:
            part = sock.recv(min(size - len(got), _MB))
        except OSError as error:
            raise Broken(str(error)) from None
        if not part:
            raise Broken("the other end is closed")
        got += part
    return bytes(got)
