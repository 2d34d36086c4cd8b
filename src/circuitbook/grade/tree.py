"""Processes below one of ours: which they are, what memory they hold, and their end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

__all__ = ["below", "kill_below", "resident", "sizes"]

_PAGE = os.sysconf("SC_PAGE_SIZE")


def _parents() -> dict[int, int]:
    """pid -> its parent's, for every process that can be seen."""
    if sys.platform != "linux":
        listed = subprocess.run(["/bin/ps", "-axo", "pid=,ppid="], capture_output=True, text=True)
        return {int(a): int(b) for a, b in (line.split() for line in listed.stdout.splitlines())}
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                with open(f"/proc/{entry.name}/stat", "rb") as file:
                    found[int(entry.name)] = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                pass  # it ended meanwhile
    return found


def below(pid: int) -> list[int]:
    """All processes that `pid` or one of its descendants started."""
    parents = _parents()
    found, waiting = [], [pid]
    children: dict[int, list[int]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    while waiting:
        new = children.get(waiting.pop(), [])
        found += new
        waiting += new
    return found


def resident(pids: Iterable[int]) -> int:
    """Bytes of memory in use by these processes; shared pages count once for each."""
    if sys.platform != "linux":
        wanted = ",".join(map(str, pids)) or "0"
        listed = subprocess.run(["/bin/ps", "-o", "rss=", "-p", wanted], capture_output=True)
        return sum(1024 * int(n) for n in listed.stdout.split())
    total = 0
    for pid in pids:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE
        except (OSError, IndexError, ValueError):
            pass  # it ended meanwhile
    return total


def sizes() -> tuple[int, int]:
    """Bytes of this process's address space and of its data; (0, 0) where nobody tells."""
    if sys.platform != "linux":
        return 0, 0
    numbers = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(numbers[0]) * _PAGE, int(numbers[5]) * _PAGE


def kill_below(pid: int, seconds: float = 5.0) -> None:
    """Kill all descendants; they are stopped first, so that none can start another meanwhile."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        left = [p for p in below(pid) if not _is_dead(p)]
        if not left:
            return
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for descendant in left:
                try:
                    os.kill(descendant, number)
                except (ProcessLookupError, PermissionError):
                    pass


def _is_dead(pid: int) -> bool:
    """Whether it only waits to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:1] == [b"Z"]
    except OSError:
        return sys.platform == "linux"
