"""What the room allows and forbids, without and with Linux' namespaces, as root and as a user."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import grade_books
import pytest

from circuitbook.grade import GradeError, Limits, client, grade_notebook, isolate, nursery, tree

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
QUICK = Limits(wall=240, law=60)
NO_ROOM = isolate.probe(isolate.places(), Limits()) if sys.platform == "linux" else "not Linux"

# Each answer is right when the sentence in its name is true inside, and wrong when not.
PROBES = {
    "it has no root": "os.getuid() == os.geteuid() == 65534 and set(os.getgroups()) <= {65534}",
    "it has no rights": "'CapEff:\\t0000000000000000' in open('/proc/self/status').read()",
    "it sees only its own processes": "len([p for p in os.listdir('/proc') if p.isdigit()]) < 5",
    "the only network device is down": "[i[1] for i in socket.if_nameindex()] == ['lo']",
    "no teacher's folder": "not os.path.exists('HERE') and not os.path.exists('/home')",
    "no door stands open": "not {'old', 'new', 'var'} & {*os.listdir('/'), *os.listdir('/..')}",
    "the package is read-only": "all(os.statvfs(m.__file__).f_flag & 1 for m in (zoo, torch))",
    "it may write here": "open('note', 'w').write('x') == 1 and os.getcwd().startswith('/scratch')",
    "a clean environment": "'TEACHER' not in os.environ and os.environ['OMP_NUM_THREADS'] == '1'",
    "torch still computes": "torch.linalg.svdvals(torch.eye(300)).sum() == 300",
    "the weights can be read": "zoo.load('attn-only-1l').cfg.n_layers == 1",
    "no standard input": "sys.stdin is None or sys.stdin.read() == ''",
    "few open files": "len(os.listdir('/proc/self/fd')) < 8",
}


def _answer(condition):
    return f"""
import os, socket, sys, torch
from circuitbook import zoo
def qk_score(query, key, W_E, W_Q, W_K):
    fine = {condition}
    return W_E[query] @ W_Q @ (W_E[key] @ W_K) / W_Q.shape[1] ** 0.5 + (not fine)
"""


@pytest.mark.skipif(bool(NO_ROOM), reason=f"no room can be made here: {NO_ROOM}")
@pytest.mark.parametrize("name", PROBES)
def test_inside_the_room(name, monkeypatch):
    monkeypatch.setenv("TEACHER", "secret")
    here = str(grade_books.SOURCES.parent)
    book = grade_books.answered("02", qk_score=_answer(PROBES[name].replace("HERE", here)))
    report = grade_notebook(book, grade_books.source("02"), 3, QUICK)
    assert report.isolation["full"] and report.isolation["notes"] == []
    assert report.exercises["02.qk_score"].status == "right", report.exercises["02.qk_score"].laws


@pytest.mark.skipif(bool(NO_ROOM), reason=f"no room can be made here: {NO_ROOM}")
def test_places_may_lie_anywhere(tmp_path):
    """Also below /tmp, behind a link, with a blank in the name, and as a single file."""
    odd = tmp_path / "with a blank"
    odd.mkdir()
    (odd / "file").write_text("x")
    (tmp_path / "link").symlink_to(odd)
    shown = [*isolate.places(), str(odd), str(tmp_path / "link"), str(odd / "file"), "/tmp"]
    assert isolate.probe(shown, Limits()) == ""
    assert "FileNotFoundError" in isolate.probe([*shown, "/nowhere"], Limits())


@pytest.mark.parametrize(
    ("body", "words", "limits"),
    [
        ("while True: pass", "did not come back within 3 seconds", Limits(law=3)),
        ("return bytearray(1 << 29) * 0 + bytes(1)", "MemoryError", Limits(memory=256, law=60)),
        ("return torch.zeros(1 << 21)", "returned more than 4 MB", Limits(message=4, law=60)),
        ("os._exit(3)", "ended the program", Limits(law=60)),
        ("return torch.nn.Linear(2, 2)", "something that cannot be passed on", Limits(law=60)),
        ("return type", "returned a type", Limits(law=60)),
        (
            "for _ in range(99): threading.Thread(target=time.sleep, args=(99,)).start()",
            "could not start another thread or process; more than 9 p",
            Limits(law=60, processes=9),
        ),
        ("open('x', 'wb').write(bytes(9 << 20))", "OSError", Limits(written=8, law=60)),
    ],
)
def test_limits_are_told_in_words(body, words, limits):
    code = (
        f"import os, threading, time, torch\ndef qk_score(query, key, W_E, W_Q, W_K):\n    {body}\n"
    )
    book = grade_books.answered("02", qk_score=code)
    report = grade_notebook(book, grade_books.source("02"), 3, limits)
    told = [law.problem for law in report.exercises["02.qk_score"].laws]
    assert words in told[0], told
    crashed = words.startswith(("did", "ended", "returned more"))
    assert ("not tried" in told[-1]) == crashed, told
    assert report.points == 9


def test_time_for_the_whole_notebook():
    code = "import time\ndef qk_score(*a):\n    time.sleep(100)\n"
    book = grade_books.answered("02", qk_score=code)
    start = time.monotonic()
    report = grade_notebook(book, grade_books.source("02"), 3, Limits(wall=4, law=60))
    assert time.monotonic() - start < 40 and report.points == 0
    told = {law.problem for e in report.exercises.values() for law in e.laws}
    assert "the time for the whole notebook was used up" in told
    assert "not tried: the time for the whole notebook was used up" in told


GREEDY = """
def honest_score(head, words, generator):
    return head(torch.zeros(1, 20_000, dtype=torch.long)).mean()
"""


def test_a_call_back_that_would_fill_the_grader_costs_one_exercise():
    """The pattern that this answer asks the grader for takes more memory than it may have."""
    book = grade_books.answered("06", honest_score="import torch" + GREEDY)
    small = Limits(wall=240, law=60, memory=256)
    report = grade_notebook(book, grade_books.source("06"), 3, small)
    told = {law.problem for law in report.exercises["06.honest_score"].laws}
    assert told == {"your function stopped with RuntimeError"}  # torch's word for no memory
    assert report.points == report.possible - report.exercises["06.honest_score"].possible


def test_a_marker_that_ends_costs_one_exercise():
    """Kill the marker while an answer sleeps: the others go to a new one.

    And seen from outside, that answer's process belongs to nobody.
    """
    code = "import time\ndef qk_score(*a):\n    time.sleep(100)\n"
    book = grade_books.answered("02", qk_score=code)
    found, users = [], []

    def kill():
        for _ in range(600):
            time.sleep(0.1)
            mine = tree.below(client._ready().process.pid)
            sleeping = [p for p in mine if b"answer" in _folder(p)]
            if sleeping and not found:
                time.sleep(0.5)
                users.extend(_user(p) for p in sleeping)
                marker = max(p for p in mine if _parent(p) == client._ready().process.pid)
                os.kill(marker, 9)
                found.append(marker)
                return

    client._ready()
    thread = threading.Thread(target=kill)
    thread.start()
    report = grade_notebook(book, grade_books.source("02"), 3, QUICK)
    thread.join()
    assert found and report.points == 9
    assert set(users) == {isolate.NOBODY if os.geteuid() == 0 else os.geteuid()}
    first = report.exercises["02.qk_score"]
    assert "too long, or too much memory" in first.error and len(first.laws) == 5
    assert all(e.status == "right" for n, e in report.exercises.items() if n != first.name)


def _folder(pid):
    try:
        return os.readlink(f"/proc/{pid}/cwd").encode()
    except OSError:
        return b""


def _user(pid):
    """The user of a process as this machine sees it; inside, a namespace shows another number."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("Uid:")))


def _parent(pid):
    return tree._parents().get(pid)


STAYS = """
import os, time
def qk_score(query, key, W_E, W_Q, W_K):
    if not os.fork():
        time.sleep(1000)
    return W_E[query] @ W_Q @ (W_E[key] @ W_K) / W_Q.shape[1] ** 0.5
"""
COUNTS = """
import os, torch
def source_writes(pattern, x, W_V, W_O, source):
    alone = len([p for p in os.listdir("/proc") if p.isdigit()]) == 2
    return torch.outer(pattern[:, source], x[source] @ W_V @ W_O) if alone else 0
"""


@pytest.mark.skipif(bool(NO_ROOM), reason=f"no room can be made here: {NO_ROOM}")
def test_no_process_outlives_its_exercise():
    """The second answer is right when it sees nobody but process 1 and itself."""
    book = grade_books.answered("02", qk_score=STAYS, source_writes=COUNTS)
    report = grade_notebook(book, grade_books.source("02"), 3, QUICK)
    assert [e.status for e in report.exercises.values()] == ["right"] * 4


def test_nothing_is_left_behind():
    book = grade_books.answered("02", qk_score="import os\ndef qk_score(*a):\n    os.fork()\n")
    grade_notebook(book, grade_books.source("02"), 3, QUICK)
    until = time.monotonic() + 20
    while tree.below(client._ready().process.pid) and time.monotonic() < until:
        time.sleep(0.1)
    assert tree.below(client._ready().process.pid) == []


def test_the_environment_is_made_and_not_inherited():
    made = nursery.environment("/course")
    assert made["CIRCUITBOOK_ROOT"] == "/course" and "VIRTUAL_ENV" not in made
    assert set(made) & set(os.environ) <= {"PATH", "LANG", "HOME", "USER", *made}
    assert made["PATH"] == "/usr/bin:/bin" and made["HOME"] == "/nonexistent"


# ---- other users, and systems without rooms -----------------------------------------------------

SCRIPT = """
import json, sys
import nbformat
from circuitbook.grade import GradeError, Limits, grade_notebook
source = nbformat.read(sys.argv[1], 4)
try:
    limits = Limits(wall=240, law=60, isolation=sys.argv[2])
    print(json.dumps(grade_notebook(source, source, 3, limits).plain()))
except GradeError as error:
    print(json.dumps({"refused": str(error)}))
"""
OPEN = """
mkdir -p "$HOLD" && mount --bind "$PREFIX" "$HOLD" && mount -t tmpfs -o mode=755 none /root
mkdir -p "$PREFIX" && mount --move "$HOLD" "$PREFIX"; exec "$@"
"""


def _apart(tmp_path, kind, user, open_python):
    """The report of chapter 02, made by another user, or by root where no other can read Python."""
    script = tmp_path / "run.py"
    script.write_text(SCRIPT)
    path = next(grade_books.SOURCES.glob("02_*.ipynb"))
    command = [sys.executable, "-B", str(script), str(path), kind]
    if user:
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]
    environment = {**os.environ, "HOLD": str(tmp_path / "hold"), "PREFIX": sys.base_prefix}
    if open_python and sys.base_prefix.startswith("/root/"):
        command = ["unshare", "--mount", "sh", "-c", OPEN, "sh", *command]
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-1500:]
    return json.loads(done.stdout)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@needs_root
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "user"), [("auto", True), ("plain", True), ("plain", False)])
def test_marks_are_the_same_for_a_user_and_without_rooms(tmp_path, kind, user):
    report = _apart(tmp_path, kind, user, open_python=True)
    assert report["points"] == report["possible"] == 10
    isolation = report["isolation"]
    assert isolation["full"] == (kind == "auto") == (not isolation["notes"])
    assert isolation["user"] == (kind == "auto" or not user), "whether a folder is refused"
    told = " ".join(isolation["notes"])
    assert ("network could not be cut off on this system" in told) == (kind == "plain")
    assert ("could end other processes" in told) == (kind == "plain" and user)
    assert ("read, change and delete the files" in told) == (kind == "plain" and user)
    assert not list(Path("/tmp").glob("answer-*"))


@needs_root
@pytest.mark.skipif(not sys.base_prefix.startswith("/root/"), reason="others can read Python here")
def test_without_a_room_nothing_runs_as_root(tmp_path):
    report = _apart(tmp_path, "plain", user=False, open_python=False)
    assert "Start the grader as an ordinary user" in report["refused"]


def test_a_system_without_fork_is_told(monkeypatch):
    monkeypatch.delattr(os, "fork")
    with pytest.raises(GradeError, match="Linux or macOS"):
        client._Nursery()
