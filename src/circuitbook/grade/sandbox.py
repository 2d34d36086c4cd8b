"""Process 1 of the room: it starts a student's process when asked, watches it, and ends it.

It is ours, holds no secret, and has no more rights than the student. The grader speaks to it
through one socket; when that closes, it goes, and with it everything in the room.
"""

import json
import os
import select
import signal
import socket
import sys
import threading
import time

from circuitbook.grade import isolate, plain, student, tree
from circuitbook.grade.report import Limits

__all__ = ["keep"]

_TICK = 0.05  # seconds between two looks at what the student's processes use
_MB = 1 << 20


def keep(control: socket.socket, limits: Limits, in_room: bool, scratch: str) -> None:
    """Serve the grader until it hangs up.

    in_room: this is process 1 of a PID namespace. scratch: where students' processes may write.
    """
    room = _Room(control, limits, in_room, scratch)
    try:
        while room.serve_once():
            pass
    finally:
        room.end()
        os._exit(0)


class _Room:
    def __init__(self, control: socket.socket, limits: Limits, in_room: bool, scratch: str):
        self.control, self.limits, self.in_room, self.scratch = control, limits, in_room, scratch
        self.worker = 0
        self.base = tree.resident([os.getpid()])
        self.sizes = tree.sizes()
        self.looked = 0.0

    def serve_once(self) -> bool:
        """One request, or one look around; False when the grader hung up."""
        if select.select([self.control], [], [], _TICK)[0]:
            body, files, _, _ = socket.recv_fds(self.control, 1, 1)
            if body == b"S" and files:
                self.end()
                self.start(files[0])
            elif body == b"K":
                self.end()
            else:
                return False
        self._reap()
        if self.worker and time.monotonic() - self.looked > _TICK:
            self.looked = time.monotonic()
            self._watch()
        return True

    def start(self, fd: int) -> None:
        """A new student's process, which speaks through file `fd`."""
        os.makedirs(self.scratch, exist_ok=True)
        if os.listdir(self.scratch):
            os.close(fd)
            return self._tell("stuck", 0)
        home = os.path.join(self.scratch, "answer")
        os.mkdir(home)
        self.worker = os.fork()
        if self.worker:
            os.close(fd)
            return self._tell("started", 0)
        try:
            self.control.close()
            os.setsid()
            for number in range(1, signal.NSIG):
                if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33):
                    signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit: an OSError
            isolate.close_all_but(fd)
            os.chdir(home)
            isolate.worker_limits(self.limits, self.sizes)
            if not self.in_room:
                plain.no_sockets()
            threading.stack_size(0)
            student.serve(socket.socket(fileno=fd))
        finally:
            os._exit(0)

    def _reap(self) -> None:
        """Collect ended processes; tell the grader when the student's own one ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self.worker:
                self.worker = 0
                code = os.waitstatus_to_exitcode(status)
                self._tell("signal" if code < 0 else "exit", abs(code))

    def _watch(self) -> None:
        pids = tree.below(os.getpid())
        used = (tree.resident(pids) - 2 * self.base) / _MB
        if used > self.limits.memory:
            self._stop("memory", self.limits.memory)
        elif not self.in_room:
            if plain.size(self.scratch) > self.limits.written * _MB:
                self._stop("written", self.limits.written)
            elif len(pids) > self.limits.processes:
                self._stop("processes", self.limits.processes)

    def _stop(self, why: str, most: int) -> None:
        self.worker = 0
        self._tell(why, most)
        self.end()

    def _tell(self, why: str, number: int) -> None:
        try:
            self.control.sendall(json.dumps([why, number]).encode() + b"\n")
        except OSError:
            pass  # the grader is gone; the next look at the socket says so

    def end(self) -> None:
        """Kill everything that the student started, and take away all that it wrote."""
        self.worker = 0
        if self.in_room:
            try:
                os.kill(-1, signal.SIGKILL)  # everybody in the room but process 1
            except ProcessLookupError:
                pass
        else:
            tree.kill_below(os.getpid())
        until = time.monotonic() + 5
        while time.monotonic() < until:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.002)
            except ChildProcessError:
                break
        plain.empty(self.scratch)


def run(control: socket.socket, limits: Limits, shown: list[str], scratch: str, user: int) -> None:
    """Become a room's keeper, in this process.

    scratch: "" for a room with namespaces. user: who to become without one, for root only.
    """
    os.setsid()
    isolate.close_all_but(control.fileno())
    inside = scratch or isolate.SCRATCH
    os.environ.update({"HOME": inside, "TMPDIR": inside, "MPLCONFIGDIR": inside})
    if scratch:
        plain.enter(scratch, user)
    else:
        isolate.enter(shown, limits)
    sys.setrecursionlimit(3000)  # what a notebook has
    keep(control, limits, not scratch, inside)
