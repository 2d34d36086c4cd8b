"""The one who asks: sends a notebook to a marker, and writes down what it tells, law by law.

A marker that ends early (a value that takes forever to judge, code that crashes Python's own
parser) costs the exercise it was at. The others go to a new marker and a new room.
"""

from __future__ import annotations

import atexit
import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from circuitbook import paths
from circuitbook.grade import plain
from circuitbook.grade import source as sources
from circuitbook.grade.nursery import environment
from circuitbook.grade.report import ExerciseReport, Law, Limits, Report
from circuitbook.grade.source import GradeError
from circuitbook.grade.wire import Broken, Late, receive, send

if TYPE_CHECKING:
    from nbformat import NotebookNode

__all__ = ["grade", "isolation", "refuse_open"]

_BOOT = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from circuitbook.grade.nursery import serve
serve()
"""
_START = 120.0  # seconds for the imports, on a slow disk


class _Nursery:
    """Our end of the nursery: one per process that grades, started when first needed."""

    def __init__(self) -> None:
        if not hasattr(os, "fork"):
            raise GradeError("grading needs Linux or macOS: run it there, in WSL or in a container")
        ours, theirs = socket.socketpair()
        known = json.dumps([p for p in sys.path if p])
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", _BOOT, known],
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            env=environment(_root()),
            cwd="/",
        )
        theirs.close()
        self.desk, self.lock, self.owner = ours, threading.Lock(), os.getpid()
        ours.settimeout(_START)
        try:
            hello = ours.makefile("r").readline()
        except TimeoutError:
            hello = ""
        if not hello:
            self.close()
            raise GradeError("the grader's helper process did not start; does `make doctor` help?")
        told = json.loads(hello)
        self.why, self.plain = told["why"], told["plain"]

    def job(self, limits: Limits) -> tuple[socket.socket, socket.socket]:
        """A new marker with a room: (the line to it, the leash; closing the leash ends both)."""
        ours, theirs = socket.socketpair()
        leash, held = socket.socketpair()
        with self.lock:
            body = json.dumps(dataclasses.asdict(limits)).encode()
            socket.send_fds(self.desk, [body], [theirs.fileno(), held.fileno()])
            if not self.desk.recv(1):
                raise GradeError("the grader's helper process ended; start again")
        theirs.close()
        held.close()
        return ours, leash

    def close(self) -> None:
        """End it, and with it all that it started."""
        if self.owner == os.getpid():
            self.desk.close()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


_nursery: _Nursery | None = None
_lock = threading.Lock()


def _root() -> str:
    try:
        return str(paths.folder("ROOT"))
    except FileNotFoundError:
        return "/"


def _ready() -> _Nursery:
    global _nursery
    with _lock:
        if _nursery is None or _nursery.owner != os.getpid() or _nursery.process.poll() is not None:
            _nursery = _Nursery()
            atexit.register(_nursery.close)
        return _nursery


def isolation(limits: Limits | None = None) -> dict:
    """What can be enforced on this system, and in words what cannot. Errors: GradeError."""
    limits, nursery = limits or Limits(), _ready()
    why = nursery.why or ("it was not asked for" if limits.isolation == "plain" else "")
    if why and not nursery.plain:
        raise GradeError(
            "answers never run as root, and here no other user can read Python. "
            "Start the grader as an ordinary user"
        )
    return {
        "full": not why,
        "processes": not why,
        "network": not why,
        "files": not why,
        "user": not why or os.geteuid() == 0,
        "notes": plain.notes(why) if why else [],
    }


def refuse_open(limits: Limits) -> None:
    """Errors: GradeError where strangers' answers would have the rights of the grader's user."""
    found = isolation(limits)
    if not found["user"]:
        raise GradeError(
            f"{found['notes'][0]}, so they could read, change and delete your files. Grade in a "
            "container or as root, or add --trust (make grade TRUST=1) if you trust who wrote them"
        )


def _bare(book: NotebookNode) -> dict:
    """Cells without outputs and attachments, which no mark needs and which may be huge."""
    cells = []
    for cell in book.get("cells", []):
        if isinstance(cell, dict):
            kept = {k: cell[k] for k in ("cell_type", "source", "metadata", "id") if k in cell}
            cells.append(kept)
    return {"cells": cells, "metadata": dict(book.get("metadata", {}))}


def grade(book: NotebookNode, source: NotebookNode, variant: int | None, limits: Limits) -> Report:
    """The marks of one submission. Errors: GradeError when the source or the system is no good."""
    wanted = sources.exercises(source)
    if variant is None and wanted:
        variant = sources.variant(source)
    report = Report(sources.lesson(source), isolation=isolation(limits))
    report.by_hand = sources.written(source)
    report.exercises = {e.name: ExerciseReport(e.name, e.points) for e in wanted}
    todo, wall = [e.name for e in wanted], limits.wall
    task = {"book": _bare(book), "source": _bare(source), "variant": variant}
    task["limits"] = dataclasses.asdict(limits)
    while todo:
        start = time.monotonic()
        job, leash = _ready().job(limits)
        try:
            left = _listen(job, task | {"todo": todo, "wall": wall}, report, limits)
        finally:
            job.close()
            leash.close()
        wall = max(0.0, wall - (time.monotonic() - start))
        if left == todo:  # nothing was even begun: the notebook itself ends every marker
            for name in todo:
                report.exercises[name].error = "the notebook could not be read"
            report.error = "the notebook's code cannot be read: it ended the process that reads it"
            break
        todo = left
    return report


def _listen(job: socket.socket, task: dict, report: Report, limits: Limits) -> list[str]:
    """Write down a marker's news; the exercises that it did not come to."""
    todo, at, words = list(task["todo"]), None, []
    try:
        send(job, "J", json.dumps(task).encode(), limits.law + 60)
        while True:
            kind, *news = json.loads(receive(job, 2 * limits.law + 90)[1])
            if kind == "notes":
                report.notes = news[0]
            elif kind == "start":
                name, words, notes, answered, found = news
                at = report.exercises[name]
                at.notes, at.answered, at.found = list(notes), answered, found
                todo.remove(name)
            elif kind == "law":
                at.laws.append(Law(*news))
            elif kind == "done":
                at.error, more = news
                at.notes += more
                at = None
            else:
                return []
    except (Late, Broken):
        if at is not None:
            at.error = "it took too long, or too much memory, to judge what this answer returned"
            for sentence, hint in words[len(at.laws) :]:
                at.laws.append(Law(sentence, False, hint, "not reached: " + at.error))
        return todo
