"""A process that has everything imported, and forks: markers, and rooms for students' code.

Importing torch and the course takes seconds, a fork takes milliseconds. It is started once for a
process that grades, in a scrubbed environment, and never sees a notebook or a variant's number, so
there is nothing in its memory that a student's process could find there.
"""

import importlib
import json
import os
import select
import shutil
import signal
import socket
import tempfile

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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a teacher's Ctrl-C is for the one who asked
    shown = isolate.places()
    why = isolate.probe(shown, Limits())
    hello = {"why": why, "plain": _plain_will_do()}
    desk.sendall(json.dumps(hello).encode() + b"\n")
    nursery = _Nursery(desk, shown, bool(why))
    while nursery.serve_once():
        pass


def _plain_will_do() -> bool:
    """Whether answers may run here without a room: never as root, so another user must manage."""
    if os.geteuid():
        return True
    from circuitbook.grade import plain

    child = os.fork()
    if not child:
        try:
            plain.become_nobody()
        except PermissionError:
            os._exit(1)
        os._exit(0)
    return not os.waitpid(child, 0)[1]


class _Nursery:
    def __init__(self, desk: socket.socket, shown: list[str], plain: bool):
        self.desk, self.shown, self.plain = desk, shown, plain
        self.jobs: dict[int, tuple[list[int], str]] = {}  # leash -> its processes, its folder

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
        plain = self.plain or limits.isolation == "plain"
        scratch = tempfile.mkdtemp(prefix="answer-") if plain else ""
        theirs, ours = socket.socketpair()
        room = self._fork(lambda: _room(theirs, limits, self.shown, scratch))
        marker = self._fork(lambda: _marker(job, ours))
        self.jobs[leash] = ([room, marker], scratch)
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
        pids, scratch = self.jobs.pop(leash)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)  # not collected yet, so the number is still its own
            os.waitpid(pid, 0)
        os.close(leash)
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)


def _room(control: socket.socket, limits: Limits, shown: list[str], scratch: str) -> None:
    from circuitbook.grade import sandbox

    sandbox.run(control, limits, shown, scratch)


def _marker(job: int, control: socket.socket) -> None:
    from circuitbook.grade import isolate, marker

    isolate.close_all_but(job, control.fileno())
    marker.run(socket.socket(fileno=job), control)
