"""Where namespaces are missing: limits, a scratch folder, another user if we are root. Little more.

A student's process can then read what its user can read, and without another user it can signal the
grader. The report says so.
"""

import ctypes
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from circuitbook.grade.isolate import NOBODY

__all__ = ["become_nobody", "enter", "no_sockets", "notes", "size"]

_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38


def become_nobody() -> None:
    """Lose root's rights for good. Errors: PermissionError when nobody else can read Python."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        if not os.access(os.__file__, os.R_OK):
            raise PermissionError("no other user can read Python")


def enter(scratch: str) -> None:
    """No root's rights, and the processes that a student's process leaves behind become ours."""
    if os.geteuid() == 0:
        os.chown(scratch, NOBODY, NOBODY)
    become_nobody()
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        for option in (_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS):
            libc.prctl(option, 1, 0, 0, 0)
    os.umask(0o077)


def no_sockets() -> None:
    """Refuse sockets that Python itself opens. A determined student gets round this."""

    def refuse(event: str, args: tuple) -> None:
        if event in ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo"):
            raise PermissionError("there is no network here")

    sys.addaudithook(refuse)


def notes(why: str) -> list[str]:
    """What could not be enforced, in words."""
    told = [
        f"answers could not be shut in: {why}",
        "network could not be cut off on this system; only Python's own sockets are refused",
        "answers could read what the grader's user may read"
        if os.geteuid()
        else "answers could read what every user may read",
    ]
    if os.geteuid():
        told.append("answers could end other processes of this user; better grade in a container")
    return told


def _sizes(folder: str) -> Iterator[int]:
    for top, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            try:
                found = os.lstat(Path(top, name))
            except OSError:
                continue  # it is gone
            yield found.st_blocks * 512 if stat.S_ISREG(found.st_mode) else 4096


def size(folder: str) -> int:
    """Bytes that a folder takes on disk."""
    return sum(_sizes(folder))
