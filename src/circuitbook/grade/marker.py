"""The marker knows the hidden draws and never runs a student's code: it asks, and judges by laws.

It reads what strangers wrote (a notebook, and their function's values), so it is a process of its
own, with limits; when it ends before its work is done, the one who asked goes on without it.
"""

import json
import resource
import signal
import socket
import sys
import time
import zlib

import nbformat

from circuitbook import check
from circuitbook.grade.collect import Answer, collect
from circuitbook.grade.proxy import Proxy, Room
from circuitbook.grade.report import Limits
from circuitbook.grade.source import exercises
from circuitbook.grade.tree import sizes
from circuitbook.grade.wire import receive, send

__all__ = ["run"]

_ROOM_TO_THINK = 30.0  # seconds that one law may compute beyond the student's time
_MB = 1 << 20


def run(job: socket.socket, control: socket.socket) -> None:
    """Grade one notebook: a JSON job comes in, news go out line by line."""
    _, body = receive(job)
    task = json.loads(body)
    limits = Limits(**task["limits"])
    if sys.platform == "linux":
        most = sizes()[1] + (limits.memory + 2048) * _MB
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends this process, whatever it computes

    def tell(*news: object) -> None:
        send(job, "N", json.dumps(news).encode())

    signal.setitimer(signal.ITIMER_REAL, _ROOM_TO_THINK * 2)
    book, source = (nbformat.from_dict(task[k]) for k in ("book", "source"))
    wanted = exercises(source)
    answers, notes = collect(book, source, wanted)
    tell("notes", notes)
    room, wall = Room(control), float(task["wall"])
    for exercise in wanted:
        if exercise.name in task["todo"]:
            start = time.monotonic()
            _one(exercise.name, answers[exercise.name], room, limits, wall, task["variant"], tell)
            wall -= time.monotonic() - start
    tell("end")


def _one(
    name: str, answer: Answer, room: Room, limits: Limits, wall: float, variant: int, tell
) -> None:
    """All laws of one exercise. News: "start", then "law" for each, then "done"."""
    words = [[sentence, hint or ""] for sentence, _, hint in check.listed(name)]
    tell("start", name, words, answer.notes, bool(answer.code or answer.why), answer.found)
    if not answer.code:
        for sentence, hint in words:
            tell("law", sentence, False, hint, answer.why or check.NO_ANSWER)
        return tell("done", "", [])
    proxy = Proxy(answer, room, limits, wall)
    with check.variant(variant):
        laws = check.laws(name, proxy)
        for number in range(len(words)):
            signal.setitimer(signal.ITIMER_REAL, limits.law + _ROOM_TO_THINK)
            proxy.new_law(zlib.crc32(f"{name} {number}".encode()))
            law = next(laws)
            tell("law", law.sentence, law.passed, law.hint or "", law.problem or "")
    proxy.close()
    more = ["it changed its arguments in place"] if proxy.changed else []
    return tell("done", proxy.error, more)
