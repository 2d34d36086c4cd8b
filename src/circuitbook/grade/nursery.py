"""A process that has everything imported, and forks: markers, and rooms for students' code.

Importing torch and the course takes seconds, a fork takes milliseconds. It is started once for a
process that grades, in a scrubbed environment, and never sees a notebook or a variant's number, so
there is nothing in its memory that a student's process could find there.
"""

import contextlib
import importlib
import json
import os
import select
import signal
import socket

from circuitbook.grade import plain, tree
from circuitbook.grade.report import Limits

__all__ = ["environment", "serve"]

_MODULES = (
    "torch", "circuitbook.model", "circuitbook.cut", "circuitbook.heads", "circuitbook.gauge",
    "circuitbook.probe", "circuitbook.scan", "circuitbook.taught",
    *(f"circuitbook.checks.ch{n:02d}" for n in range(1, 12)),
)  # fmt: skip


def environment(root: str) -> dict[str, str]:
    """All environment variables that a student's code may see."""
    threads = {f"{kind}_NUM_THREADS": "1" for kind in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")}
    return threads | {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": "/nonexistent",
        "USER": "nobody",
        "DEVICE": "cpu",
        "CIRCUITBOOK_ROOT": root,
        "HF_HUB_OFFLINE": "1",
        "MPLBACKEND": "agg",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "TQDM_DISABLE": "1",
        "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES",
    }


def serve() -> None:
    """The nursery's life: standard input is the socket of the process that grades."""
    desk = socket.socket(fileno=os.dup(0))
    for name in _MODULES:
        importlib.import_module(name)
    import torch

    from circuitbook.grade import isolate

    torch.set_num_threads(1)
    one = torch.ones(1)
    torch.func.jvp(torch.square, (one,), (one,))  # what torch makes ready at the first use, and
    importlib.import_module("torch._dynamo")  # loads for jacrev, would cost each law seconds
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a teacher's Ctrl-C is for the one who asked
    shown = isolate.places()
    why = isolate.probe(shown, Limits())
    hello = {"why": why, "plain": _plain_will_do()}
    desk.sendall(json.dumps(hello).encode() + b"\n")
    plain.sweep()
    nursery = _Nursery(desk, shown, bool(why))
    while nursery.serve_once():
        pass


def _plain_will_do() -> bool:
    """Whether answers may run here without a room: never as root, so another user must manage."""
    if os.geteuid():
        return True
    child = os.fork()
    if not child:
        try:
            plain.become()
        except PermissionError:
            os._exit(1)
        os._exit(0)
    return not os.waitpid(child, 0)[1]


class _Nursery:
    def __init__(self, desk: socket.socket, shown: list[str], bare: bool):
        self.desk, self.shown, self.bare = desk, shown, bare
        self.jobs: dict[int, tuple[list[int], str, int]] = {}  # leash -> processes, folder, user

    def serve_once(self) -> bool:
        """One new job, or the end of some; False when the one who asks is gone."""
        ready, _, _ = select.select([self.desk, *self.jobs], [], [])
        for leash in ready:
            if leash is not self.desk:
                self._end(leash)
        if self.desk in ready:
            body, files, _, _ = socket.recv_fds(self.desk, 65536, 2)
            if not body:
                for leash in list(self.jobs):
                    self._end(leash)
                return False
            job, leash = files
            self._begin(Limits(**json.loads(body)), job, leash)
            self.desk.sendall(b"k")
        return True

    def _begin(self, limits: Limits, job: int, leash: int) -> None:
        scratch, user = "", 0
        if self.bare or limits.isolation == "plain":
            scratch = plain.folder()
            user = plain.free_user({user for _, _, user in self.jobs.values()})
        theirs, ours = socket.socketpair()
        room = self._fork(lambda: _room(theirs, limits, self.shown, scratch, user))
        marker = self._fork(lambda: _marker(job, ours))
        self.jobs[leash] = ([room, marker], scratch, user)
        os.close(job)
        theirs.close()
        ours.close()

    @staticmethod
    def _fork(child) -> int:
        pid = os.fork()
        if not pid:
            try:
                child()
            finally:
                os._exit(0)
        return pid

    def _end(self, leash: int) -> None:
        pids, scratch, user = self.jobs.pop(leash)
        if scratch:  # without namespaces a room's end does not end those in it
            tree.kill_below(pids[0])
        for pid in pids:
            os.kill(pid, signal.SIGKILL)  # not collected yet, so the number is still its own
            os.waitpid(pid, 0)
        os.close(leash)
        if scratch:
            if os.geteuid() == 0:
                plain.end_user(user)
            plain.empty(scratch)
            with contextlib.suppress(OSError):  # an answer may have taken it away
                os.rmdir(scratch)


def _room(
    control: socket.socket, limits: Limits, shown: list[str], scratch: str, user: int
) -> None:
    from circuitbook.grade import sandbox

    sandbox.run(control, limits, shown, scratch, user)


def _marker(job: int, control: socket.socket) -> None:
    from circuitbook.grade import isolate, marker

    isolate.close_all_but(job, control.fileno())
    marker.run(socket.socket(fileno=job), control)
