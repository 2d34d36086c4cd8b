"""Where namespaces are missing: limits, a scratch folder, another user if we are root. Little more.

A student's process can then read what its user can read, and without another user it can signal the
grader. The report says so.
"""

import contextlib
import ctypes
import os
import secrets
import signal
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from circuitbook.grade import isolate

__all__ = ["become", "empty", "end_user", "enter", "folder", "free_user", "no_sockets", "notes",
    "size", "sweep"]  # fmt: skip

_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38


def become(user: int = isolate.NOBODY) -> None:
    """Lose root's rights for good. Errors: PermissionError when nobody else can read Python."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        if not os.access(os.__file__, os.R_OK):
            raise PermissionError("no other user can read Python")


def enter(scratch: str, user: int) -> None:
    """No root's rights, and the processes that a student's process leaves behind become ours."""
    if os.geteuid() == 0:
        os.chown(scratch, user, user)
    become(user)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        for option in (_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS):
            libc.prctl(option, 1, 0, 0, 0)
        with contextlib.suppress(OSError):  # little is promised here; this is one thing more
            isolate.no_hidden_memory()
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
        "answers could read, change and delete the files of the grader's user"
        if os.geteuid()
        else "answers could read what every user may read",
    ]
    if os.geteuid():
        told.append("answers could end other processes of this user, the grader too; better grade "
                    "in a container")  # fmt: skip
        told.append("answers could leave files in /tmp and /dev/shm")
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


# ---- users and what they leave ------------------------------------------------------------------

_USERS = range(61000, 61900)  # one for each running submission, so that none can touch another
_OPEN = ("/tmp", "/var/tmp", "/dev/shm")  # folders of a system that everybody may write to


def free_user(taken: set[int]) -> int:
    """A user's number that no process has, for root to give away; another user's own stays."""
    if os.geteuid():
        return os.geteuid()
    for entry in os.scandir("/proc") if os.path.isdir("/proc") else ():
        with contextlib.suppress(OSError):
            taken.add(entry.stat().st_uid)
    return next(user for user in _USERS if user not in taken)


def end_user(user: int) -> None:
    """End all processes of a user that free_user gave to root, and delete its files."""
    child = os.fork()
    if not child:
        with contextlib.suppress(OSError):
            os.setuid(user)
            os.kill(-1, signal.SIGKILL)  # all at once, so that none can start another
        os._exit(0)
    os.waitpid(child, 0)
    for top in _OPEN:
        for entry in os.scandir(top) if os.path.isdir(top) else ():
            with contextlib.suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid == user:
                    _remove(entry)


def folder() -> str:
    """A new scratch folder, with this process's number in its name."""
    return tempfile.mkdtemp(prefix=f"answer-{os.getpid()}-")


def sweep() -> None:
    """Delete scratch folders of graders that were killed."""
    for entry in os.scandir(tempfile.gettempdir()):
        word, _, rest = entry.name.partition("-")
        pid = rest.partition("-")[0]
        if word == "answer" and pid.isdigit() and entry.is_dir(follow_symlinks=False):
            owner = entry.stat(follow_symlinks=False).st_uid
            ours = owner == os.geteuid() or (os.geteuid() == 0 and owner in _USERS)
            if ours and not _runs(int(pid)):
                _remove(entry)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _remove(entry: os.DirEntry) -> None:
    if entry.is_dir(follow_symlinks=False):
        empty(entry.path)
        os.rmdir(entry.path)
    else:
        os.unlink(entry.path)


def empty(folder: str) -> None:
    """Delete all that is in a folder, however deep and whatever rights it was given.

    What lies in a folder of it is moved up before that is removed, so no path grows long.
    """
    with contextlib.suppress(OSError):
        os.chmod(folder, 0o700)  # where it is ours; a room's own is not
    with contextlib.suppress(OSError):
        while entries := list(os.scandir(folder)):
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)
                    continue
                os.chmod(entry.path, 0o700)
                for child in list(os.scandir(entry.path)):
                    if child.is_dir(follow_symlinks=False):
                        os.chmod(child.path, 0o700)
                    os.rename(child.path, os.path.join(folder, secrets.token_hex(16)))
                os.rmdir(entry.path)
