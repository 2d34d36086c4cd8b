"""Nothing passes from one law, exercise or student to the next: files, memory, calls, changes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import grade_books
import pytest

from circuitbook.grade import Limits, __main__, client, grade_notebook, isolate, plain

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
QUICK = Limits(wall=240, law=60)
NO_ROOM = isolate.probe(isolate.places(), Limits()) if sys.platform == "linux" else "not Linux"

LEAKS = """
import os
def leave():
    open("/scratch/leak", "a").write(open("leak", "a").name)
    os.mkdir("/scratch/shut", 0)
    deep = "."
    for _ in range(700):
        deep += "/d"
        os.mkdir(deep)
    os.chmod("d", 0)
def qk_score(query, key, W_E, W_Q, W_K):
    if not os.path.exists("/scratch/leak"):
        leave()
    return W_E[query] @ W_Q @ (W_E[key] @ W_K) / W_Q.shape[1] ** 0.5
"""
READS = """
import os, torch
left = [name for _, folders, files in os.walk("/scratch") for name in (*folders, *files)]
def refuse():
    raise ValueError(f"seen {left}")
fine = left == ["answer"] or refuse()
def source_writes(pattern, x, W_V, W_O, source):
    return torch.outer(pattern[:, source], x[source] @ W_V @ W_O) * fine  # else fine is not run
"""


@pytest.mark.skipif(bool(NO_ROOM), reason=f"no room can be made here: {NO_ROOM}")
def test_nothing_that_was_written_is_seen_again():
    """A folder that is deep and shut goes as well: the next law begins as the first one did."""
    book = grade_books.answered("02", qk_score=LEAKS, source_writes=READS)
    report = grade_notebook(book, grade_books.source("02"), 3, QUICK)
    assert report.exercises["02.source_writes"].status == "right", report.exercises
    assert report.exercises["02.qk_score"].status == "right", report.exercises


def test_words_before_the_first_call_are_told_in_the_open_variant_alone():
    raises = "def refuse():\n    raise ValueError('SECRET 41')\nqk_score = refuse()\n"
    book = grade_books.answered("02", qk_score=raises)
    for variant in (0, 3):
        report = grade_notebook(book, grade_books.source("02"), variant, QUICK).exercises
        told = [report["02.qk_score"].error, *(w.problem for w in report["02.qk_score"].laws)]
        assert all("stopped with ValueError before it was called" in words for words in told)
        assert {"SECRET" in words for words in told} == {variant == 0}


ZEROES = """
def qk_score(query, key, W_E, W_Q, W_K):
    for w in (W_E, W_Q, W_K):
        w.zero_()
    return 0.0
"""
COUNTS_CALLS = """
calls = []
def source_writes(pattern, x, W_V, W_O, source):
    calls.append(source)
    found = x[source] @ W_V @ W_O * pattern[:, source, None]
    return found if len(calls) < 7 else found * 0
"""


def test_neither_changed_arguments_nor_counted_calls_help_or_harm():
    """Six calls are enough for each law, and no call of another law counts."""
    book = grade_books.answered("02", qk_score=ZEROES, source_writes=COUNTS_CALLS)
    report = grade_notebook(book, grade_books.source("02"), 3, QUICK)
    zero, counting = (report.exercises[f"02.{n}"] for n in ("qk_score", "source_writes"))
    assert zero.points == 0 and "it changed its arguments in place" in zero.notes
    assert counting.status == "right", counting.laws


def test_a_changed_argument_that_is_returned_comes_back_changed():
    """It must not be the grader's own, unchanged; and the law that forbids changes fails."""
    fine = "def swap_first_title(t, a, b):\n    at = min(i for i in range(1, len(t) - 1) "
    fine += "if t[i] in (a, b))\n    t[at] = a + b - t[at]\n    return t\n"
    book = grade_books.answered("09", swap_first_title=fine)
    found = grade_notebook(book, grade_books.source("09"), 3, QUICK).exercises
    laws = found["09.swap_first_title"].laws
    assert [law.passed for law in laws] == [True] * (len(laws) - 1) + [False], laws


HOLDS = """
import ctypes, os, torch
libc = ctypes.CDLL(None, use_errno=True)
def refused(call):
    try:
        return call() == -1
    except PermissionError:
        return True
def qk_score(query, key, W_E, W_Q, W_K):
    fine = refused(lambda: os.memfd_create("x")) and refused(lambda: libc.shmget(0, 4096, 0o1600))
    fine &= refused(lambda: libc.msgget(0, 0o1600)) and refused(lambda: libc.semget(0, 1, 0o1600))
    fine &= refused(lambda: libc.syscall(KEYCTL, 0, -3, 1))
    return W_E[query] @ W_Q @ (W_E[key] @ W_K) / W_Q.shape[1] ** 0.5 + (not fine)
"""


@pytest.mark.skipif(bool(NO_ROOM), reason=f"no room can be made here: {NO_ROOM}")
def test_no_memory_can_be_held_where_nobody_counts_it():
    keyctl = "250" if os.uname().machine == "x86_64" else "219"
    book = grade_books.answered("02", qk_score=HOLDS.replace("KEYCTL", keyctl))
    report = grade_notebook(book, grade_books.source("02"), 3, QUICK)
    assert report.exercises["02.qk_score"].status == "right", report.exercises["02.qk_score"].laws


def test_a_function_may_call_itself_as_often_as_in_a_notebook():
    deep = "def down(n):\n    return n and down(n - 1)\n"
    deep += "def qk_score(query, key, W_E, W_Q, W_K):\n    down(2500)\n"
    deep += "    return W_E[query] @ W_Q @ (W_E[key] @ W_K) / W_Q.shape[1] ** 0.5\n"
    book = grade_books.answered("02", qk_score=deep)
    report = grade_notebook(book, grade_books.source("02"), 3, QUICK)
    assert report.exercises["02.qk_score"].status == "right"


def test_folders_of_killed_graders_are_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr(plain.tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for name in (f"answer-{ended.pid}-x", f"answer-{os.getpid()}-x", "answer-key"):
        (tmp_path / name / "d").mkdir(parents=True)
    plain.sweep()
    assert {p.name for p in tmp_path.iterdir()} == {f"answer-{os.getpid()}-x", "answer-key"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_for_each_answer_is_nobody_else_s_and_leaves_nothing():
    user = plain.free_user(set())
    assert user not in (0, isolate.NOBODY) and plain.free_user({user}) not in (0, user)
    left = Path(f"/dev/shm/left-by-{user}")
    left.mkdir()
    (left / "file").touch()
    os.chown(left, user, user)
    running = subprocess.Popen(["/bin/sleep", "1000"], user=user, group=user, extra_groups=[])
    while plain.free_user(set()) == user:
        time.sleep(0.05)
    plain.end_user(user)
    assert running.wait(10) == -9 and not left.exists()
    assert plain.free_user(set()) == user


def test_a_folder_is_refused_where_answers_have_the_grader_s_rights(monkeypatch, tmp_path, capsys):
    open_ = {"user": False, "full": False, "notes": ["answers could not be shut in: no namespaces"]}
    monkeypatch.setattr(client, "isolation", lambda limits=None: open_)
    path = next(grade_books.SOURCES.glob("02_*.ipynb"))
    (tmp_path / "02_qk_ov.ipynb").write_bytes(b"no notebook")
    command = [str(path), str(tmp_path), "--variant", "3"]
    assert __main__.main(command) == 2
    told = capsys.readouterr().err
    assert "no namespaces" in told and "--trust" in told and told.count("\n") == 1
    assert __main__.main([*command, "--trust"]) == 1
    assert __main__.main([command[0], str(tmp_path / "02_qk_ov.ipynb"), "--variant", "3"]) == 1
