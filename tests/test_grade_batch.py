"""Sixty submissions, more than half of them hostile: sixty marks, and a host as it was before."""

import hashlib
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import grade_books
import nbformat
import pytest
from hostile_submissions import HOSTILE, RIGHT
from nbformat.v4 import new_output

from circuitbook.grade import Limits, isolate, marks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux' namespaces"),
]
VARIANT = 7
OTHERS = 13.0  # points of the chapter's four other exercises
SENTINEL = "the teacher's file"

# Cells that break whoever parses them; the answers in other cells keep their points.
UNREADABLE = {
    "nested_parentheses": "count_paths = " + "(" * 100_000 + ")" * 100_000,
    "long_sum": "count_paths = " + "+".join(["1"] * 200_000),
    "deep_code": "count_paths = " + "-" * 90_000 + "1",
    "null_bytes": "def count_paths(a, b, c):\n    return 0\x00",
}


def _stale(chapter):
    """A notebook with 15 MB of outputs, and right answers."""
    book = grade_books.answered(chapter)
    cell = next(c for c in book.cells if c.cell_type == "code")
    cell.outputs = [new_output("stream", name="stdout", text="spam " * 3_000_000)]
    return book


def _honest():
    """name -> (notebook, points) of students who mean well."""
    full = grade_books.answered("03")
    books = {f"right_{n:02d}": (full, 14.0) for n in range(3)}
    books["release_untouched"] = grade_books.release("03"), 0.0
    wrong = "def count_paths(layers, heads, order):\n    return 1\n"
    assert marks("03.count_paths", lambda *given: 1, variant=VARIANT, points=1) == 0
    books["a_constant"] = grade_books.answered("03", count_paths=wrong), OTHERS
    some = (
        "def count_paths(layers, heads, order):\n    return (1, layers * heads, 0)[min(order, 2)]\n"
    )
    space = {}
    exec(some, space)  # ours
    part = marks("03.count_paths", space["count_paths"], variant=VARIANT, points=1)
    assert 0 < part < 0.5, "half of the points are for all laws"
    books["partly_right"] = grade_books.answered("03", count_paths=some), OTHERS + part
    slip = "def count_paths(layers, heads, order):\n    return layer\n"
    books["name_error"] = grade_books.answered("03", count_paths=slip), OTHERS
    gone = grade_books.answered("03")
    del gone.cells[grade_books.place(gone, "03.count_paths")]
    books["answer_deleted"] = gone, OTHERS
    moved = grade_books.with_cells(gone, RIGHT.replace("honest", "count_paths"), at=0)
    books["answer_moved"] = moved, 14.0
    bare = grade_books.answered("03")
    bare.cells = [c for c in bare.cells if "check(" not in c.source and "Hidden" not in c.source]
    books["tests_deleted"] = bare, 14.0
    turned = grade_books.answered("03")
    turned.cells = turned.cells[::-1]
    books["cells_reversed"] = turned, 14.0
    books["huge_outputs"] = _stale("03"), 14.0
    for name, cell in UNREADABLE.items():
        book = grade_books.answered("03", count_paths="")
        books[name] = grade_books.with_cells(book, cell), OTHERS
    return books


@pytest.fixture(scope="module")
def batch(tmp_path_factory):
    """Runs the command once: the marks, what was expected, and the host before and after."""
    why = isolate.probe(isolate.places(), Limits())
    if why:
        pytest.skip(f"without a room these would harm this machine: {why}")
    top = tmp_path_factory.mktemp("batch")
    sources, hand_in = top / "source", top / "submissions"
    sources.mkdir()
    hand_in.mkdir()
    top.chmod(0o755)
    source = sources / "03_path_expansion.ipynb"
    nbformat.write(grade_books.source("03"), source)
    marker = top / "open" / "marker"
    marker.parent.mkdir()
    marker.write_text(SENTINEL)
    marker.parent.chmod(0o777)
    marker.chmod(0o666)
    listener = _Listener(str(marker) + ".sock")
    words = {"SOURCE": str(source), "MARKER": str(marker), "PORT": str(listener.port)}
    expected = {}
    for name, attack in HOSTILE.items():
        for word, value in words.items():
            attack = attack.replace(word, value)
        book = grade_books.answered("03", count_paths=RIGHT + attack)
        _write(book, hand_in / f"{name}.ipynb", expected, OTHERS)
    for name, (book, points) in _honest().items():
        _write(book, hand_in / f"{name}.ipynb", expected, points)
    broken = {
        "not_json": b"{ this is no notebook",
        "empty": b"",
        "deep_json": b"[" * 200_000,
        "cells_are_words": b'{"cells": "all right", "metadata": {}}',
    }
    for name, data in broken.items():
        (hand_in / f"{name}.ipynb").write_bytes(data)
        expected[f"{name}.ipynb"] = 0.0
    (hand_in / "a_link.ipynb").symlink_to(source)
    expected["a_link.ipynb"] = 0.0
    before = _host(top)
    out, mark = top / "marks.json", str(top)
    done = subprocess.run(
        [sys.executable, "-m", "circuitbook.grade", sources, hand_in, "--json", out, "--jobs", "2",
         "--law", "4", "--timeout", "60", "--memory", "1024", "--variant", str(VARIANT)],
        capture_output=True, text=True,
        # What is on the path stands in the command line of each process that the grader forks.
        env={**os.environ, "GRADER_SECRET": "SECRET 41021", "PYTHONPATH": mark},
    )  # fmt: skip
    after = _host(top)
    listener.close()
    marks = json.loads(out.read_text()) if out.is_file() else {}
    unread = {f"{n}.ipynb" for n in [*broken, "a_link"]}
    return {"done": done, "marks": marks, "expected": expected, "before": before,
            "after": after, "calls": listener.calls, "broken": unread}  # fmt: skip


def _write(book, path, expected, points):
    nbformat.write(book, path) if book.nbformat else path.write_text(json.dumps(book))
    expected[path.name] = points


class _Listener:
    """Listens where hostile code may try to call, and counts."""

    def __init__(self, path):
        self.calls = 0
        self.sockets = [socket.socket(), socket.socket(socket.AF_UNIX)]
        self.sockets[0].bind(("127.0.0.1", 0))
        self.sockets[1].bind(path)
        self.port = self.sockets[0].getsockname()[1]
        for line in self.sockets:
            line.listen()
            threading.Thread(target=self._wait, args=(line,), daemon=True).start()

    def _wait(self, line):
        while True:
            try:
                line.accept()
            except OSError:
                return
            self.calls += 1

    def close(self):
        for line in self.sockets:
            line.shutdown(socket.SHUT_RDWR)
            line.close()


def _host(top):
    """Files below `top`, one of the package's, the temporary folder, processes of this batch."""
    import circuitbook

    code = Path(circuitbook.__file__).parent / "check.py"
    files = {
        str(p): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in [*top.rglob("*"), code]
        if p.is_file() and p.name != "marks.json"
    }
    temporary = {p.name for p in Path(tempfile.gettempdir()).iterdir() if "answer" in p.name}
    return files, temporary, _processes(str(top))


def _processes(mark):
    """Running processes that have the mark in their command line, but for this one."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it ended
        if mark.encode() in command and int(folder.name) != os.getpid():
            found[folder.name] = command[:200]
    return found


def test_there_are_sixty_marks(batch):
    assert len(batch["expected"]) == 60 and len(HOSTILE) >= 20
    assert batch["done"].returncode == 1, batch["done"].stderr[-2000:]
    assert set(batch["marks"]["submissions"]) == set(batch["expected"])
    points = {n: r["points"] for n, r in batch["marks"]["submissions"].items()}
    assert points == batch["expected"]


def test_what_could_not_be_read_says_so_in_one_line(batch):
    errors = {n for n, r in batch["marks"]["submissions"].items() if r["error"]}
    assert errors == batch["broken"]
    for name in errors:
        assert "\n" not in batch["marks"]["submissions"][name]["error"]
    assert "Traceback" not in batch["done"].stderr + batch["done"].stdout


def test_an_attack_is_told_in_words_and_costs_only_its_exercise(batch):
    for name in HOSTILE:
        exercises = batch["marks"]["submissions"][f"{name}.ipynb"]["exercises"]
        assert exercises["03.count_paths"]["points"] == 0, name
        failed = [law for law in exercises["03.count_paths"]["laws"] if not law["passed"]]
        assert all(law["sentence"] for law in failed) and len(failed) == 5, name
    told = json.dumps(batch["marks"]["submissions"])
    for words in (
        "did not come back within 4 seconds",
        "more than 1024 MB of memory",
        "your function ended the program;",
        "crashed the process that it runs in (SIGSEGV)",
        "crashed the process that it runs in (SIGKILL)",
        "returned more than 128 MB",
    ):
        assert words in told, words


def test_the_host_is_as_it_was(batch):
    before, after = batch["before"], batch["after"]
    assert after[0] == before[0], "files changed"
    assert after[1] <= before[1], "something was left in the temporary folder"
    assert before[2] == after[2] == {}, "a process was left"
    assert batch["calls"] == 0, "something called out"


def test_everything_was_shut_in(batch):
    isolation = batch["marks"]["isolation"]
    assert all(isolation[k] for k in ("full", "network", "files", "processes", "user"))
    assert isolation["notes"] == []


def test_the_marker_files_could_be_written_by_anybody(tmp_path_factory):
    """The attacks on MARKER fail because of the room, not because of the file's own rights."""
    folder = tmp_path_factory.getbasetemp()
    markers = list(folder.rglob("open/marker"))
    assert markers and all(m.stat().st_mode & stat.S_IWOTH for m in markers)
