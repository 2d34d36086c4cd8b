"""What is known of files on this disk: locks, plain copies, notes, and rests of stopped runs."""

import dataclasses
import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import huggingface_hub
import pytest
import test_published_hub as toy
from test_published_hub import FILES, FIRST, OPEN, PIN, SECOND, contents

from circuitbook.published import __main__ as command
from circuitbook.published import disk, fetch, patience, status
from circuitbook.published.fetch import PublishedError
from circuitbook.published.pins import ALL, TEXT

ROOT = Path(__file__).resolve().parent.parent
hub, place = toy.hub, toy.place  # the fixtures


def new_process():
    """Forget what this process knows of files."""
    disk._checked.cache_clear(), fetch._whole.clear()


def plain(place):
    """Make the cache a copy without links, as `cp -rL` does."""
    whole = place.with_name("whole")
    place.rename(whole)
    shutil.copytree(whole, place, symlinks=False)
    shutil.rmtree(whole)
    new_process()


# ---- commits -------------------------------------------------------------------------------------


def test_all_files_are_of_one_commit_though_main_has_moved_since(hub, place, monkeypatch):
    huggingface_hub.hf_hub_download("them/Open", "config.json", cache_dir=place, endpoint=hub.url)
    commits = hub.repositories["model", "them/Open"]
    hub.repositories["model", "them/Open"] = {SECOND: commits[SECOND], FIRST: commits[FIRST]}
    assert contents(fetch.folder(OPEN)) == commits[SECOND] != commits[FIRST]
    assert fetch.commit(OPEN) == SECOND


# ---- a disk that cannot be written ---------------------------------------------------------------


def failing(error):
    """In place of the client's download."""

    def download(*_, **__):
        raise error

    return download


@pytest.mark.parametrize("error, words", [
    (OSError(errno.ENOSPC, "No space left on device"), "No space left.*Free some space"),
    (OSError(errno.EDQUOT, "Disk quota exceeded"), "quota.*Free some space"),
    (OSError(errno.EROFS, "Read-only file system", "/a/b"), "Read-only.*who may write there"),
    (PermissionError(errno.EACCES, "Permission denied", "/a/b"), "/a/b cannot .*denied.*whose"),
    (NotADirectoryError(errno.ENOTDIR, "Not a directory", "/a/b"), "/a/b cannot.*Not a directory"),
    (OSError(errno.EIO, "Input/output error", "/a/b"), "/a/b cannot be used .*Input/output"),
])  # fmt: skip
def test_a_fault_of_this_disk_is_no_fault_of_the_hub(hub, place, monkeypatch, error, words):
    monkeypatch.setattr(patience.time, "sleep", lambda _: pytest.fail("it was tried again"))
    hidden = RuntimeError("the client hides it")
    hidden.__cause__ = error
    for raised in (error, hidden):
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", failing(raised))
        with pytest.raises(PublishedError, match=words + ".*HF_HUB_CACHE") as found:
            fetch.folder(PIN)
        assert not isinstance(found.value, fetch.HubAway)  # other pins are still tried
        assert len(str(found.value).splitlines()) == 1


def test_a_connection_that_a_firewall_forbids_is_the_hubs(hub, place, monkeypatch):
    denied = PermissionError(errno.EPERM, "Operation not permitted")  # of a socket: no file's name
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", failing(denied))
    with pytest.raises(fetch.HubAway, match="cannot be reached"):
        fetch.folder(PIN)


def test_a_damaged_file_that_may_not_be_deleted_is_one_line(hub, place, monkeypatch):
    (fetch.folder(PIN) / "config.json").resolve().write_bytes(b'{"a": 3}')
    denied = PermissionError(errno.EACCES, "Permission denied", "config.json")
    monkeypatch.setattr(disk, "remove", failing(denied))
    with pytest.raises(PublishedError, match="them/Toy: config.json cannot be used .*denied"):
        fetch.folder(PIN)


# ---- sizes and hashes ----------------------------------------------------------------------------


@pytest.mark.parametrize("pin", [PIN, OPEN], ids=["pinned", "newest"])
@pytest.mark.parametrize("data", [FILES["model_final.pth"][:1000], b"!" * 512_000])
def test_a_plain_copy_is_compared_with_what_was_first_found(hub, place, pin, data):
    fetch.folder(pin)
    plain(place)
    folder = fetch.folder(pin)
    assert contents(folder) == FILES and not (folder / "config.json").is_symlink()
    assert status.row(pin)["checked"] == "verified"
    (folder / "model_final.pth").write_bytes(data)
    why = disk.look(pin).damaged["model_final.pth"]
    assert ("1,000 were found" in why) if len(data) == 1000 else why.startswith("sha256")
    assert contents(fetch.folder(pin)) == FILES


def test_size_and_hash_are_each_enough(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"abcd")
    sha256 = disk.hashes(path)["sha256"]
    bare = bare_pin("a.txt")
    assert not disk.damage(bare, path, "a.txt")  # nothing is known of it
    right = dataclasses.replace(bare, sizes={"a.txt": 4}, sha256={"a.txt": sha256})
    assert not disk.damage(right, path, "a.txt")
    by_size = dataclasses.replace(bare, sizes={"a.txt": 5})
    assert disk.damage(by_size, path, "a.txt") == "5 bytes were expected, 4 were found"
    by_hash = dataclasses.replace(bare, sha256={"a.txt": "0" * 64})
    assert disk.damage(by_hash, path, "a.txt").startswith("sha256 000000000000… was expected")


def bare_pin(*files):
    """A pin of these files, of which nothing is known."""
    return dataclasses.replace(PIN, files=files)


def put(pin, **files):
    """Plain files in the folder of a pin, with "__" for the dot."""
    folder = disk.snapshot(pin, FIRST)
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name.replace("__", ".")).write_bytes(data)
    return folder


def test_a_plain_copy_that_nobody_knows_is_unverified_and_then_unchanged(hub, place):
    folder = put(PIN, config__json=b"{}", model_final__pth=b"\x80 an old pickle")
    (folder / "model_final.pth").write_bytes(b"PK half of a zip file")
    assert status.row(PIN)["state"] == "damaged"
    (folder / "model_final.pth").write_bytes(b"\x80 an old pickle")
    row = status.row(PIN)
    assert (row["state"], row["checked"], row["known"]) == ("cached", "unverified", "pinned")
    assert "unverified: a plain copy" in status.lines([row])[-1]
    fetch.folder(PIN)
    assert not hub.requests and status.row(PIN)["checked"] == "unchanged"
    told = json.loads(disk.lock_path().read_text())["them/Toy"]["files"]
    assert not any(file["verified"] for file in told.values())
    (folder / "config.json").write_bytes(b"[]")
    assert "sha256" in disk.look(PIN).damaged["config.json"]


@pytest.mark.parametrize("name, whole", [
    ("a.json", b'{"a": 1}'), ("a.pth", b"PK"), ("a.parquet", b"PAR1" + bytes(9) + b"PAR1"),
    ("a.safetensors", (8).to_bytes(8, "little") + bytes(8)),
])  # fmt: skip
def test_a_file_cut_short_is_damaged_though_no_hash_is_known(place, tmp_path, name, whole):
    path = tmp_path / name
    if whole == b"PK":
        made = shutil.make_archive(str(tmp_path / "made"), "zip", os.path.dirname(__file__), "toy")
        whole = open(made, "rb").read()
    path.write_bytes(whole)
    assert disk.unreadable(path) == ""
    for data in (whole[:-1], b"<html>404</html>", b"", b"version https://git-lfs.github.com/spec"):
        path.write_bytes(data)
        assert disk.unreadable(path).startswith(f"it cannot be read as {path.suffix}")


def test_a_lock_of_another_commit_than_the_pinned_one_does_not_count(hub, place):
    hub.repositories["model", "them/Toy"][SECOND] = FILES | {"config.json": b'{"a": 9}'}
    fetch.folder(dataclasses.replace(PIN, revision=SECOND))  # an older version of the course
    assert contents(fetch.folder(PIN)) == FILES
    assert json.loads(disk.lock_path().read_text())["them/Toy"]["commit"] == FIRST


def test_files_that_say_random_weights_mark_results_and_are_never_locked(hub, place):
    from circuitbook import results

    put(PIN, config__json=b'{"random_weights": true}', model_final__pth=b"\x80")
    fetch.folder(PIN)
    assert results._random and not disk.lock_path().exists() and not disk.stand_in()
    assert status.row(PIN)["known"] == "random weights"


# ---- notes that are damaged ----------------------------------------------------------------------


@pytest.mark.parametrize("note", [
    '{"them/Open": {"commit": "1"}}', '{"them/Open": []}', '{"them/Open": {"files": {}}}', "[1]",
    '{"them/Open": {"commit": "1", "files": {"config.json": {"sha256": "0"}}}}', "{ half",
    '{"them/Open": {"commit": "1", "files": {"config.json": 3}}}',
])  # fmt: skip
def test_a_damaged_lock_is_named(hub, place, note, capsys, monkeypatch):
    disk.lock_path().parent.mkdir(parents=True)
    disk.lock_path().write_text(note)
    with pytest.raises(PublishedError, match=r"lock.json is damaged \(.*Delete it"):
        fetch.folder(OPEN)
    monkeypatch.setattr(command, "ALL", {"open": OPEN})
    assert command.main(["status"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("entry", ["{}", '{"revision": "1"}', '{"sha256": {}}', "7",
                                   '{"revision": 1, "sha256": {}}'])  # fmt: skip
def test_a_damaged_note_of_a_stand_in_is_named(place, entry):
    place.mkdir()
    (place / disk.STAND_IN).write_text(f'{{"toy": {entry}}}')
    if entry == "{}":  # it says nothing of this pin
        assert disk.look(PIN).missing
        return
    with pytest.raises(PublishedError, match=r"stand_in.json is damaged.*tools/stand_in.py"):
        disk.look(PIN)


@pytest.mark.parametrize("entry", ["[]", "{}", "{}, full"])
def test_the_note_of_checked_files_is_made_again(hub, place, entry):
    folder = fetch.folder(PIN)
    path = (folder / "config.json").resolve()
    told = disk.hashes(path)
    note = disk._checked_path()
    now = path.stat()
    kept = {"bytes": now.st_size, "time": now.st_mtime_ns} if "full" in entry else None
    note.write_text(json.dumps({str(path): kept if kept else json.loads(entry)}))
    new_process()
    assert disk.hashes(path) == told and contents(fetch.folder(PIN)) == FILES
    assert json.loads(note.read_text())[str(path)] == told


def test_what_will_be_fetched_is_said_before_the_first_byte(hub, place, monkeypatch):
    said = []
    monkeypatch.setattr(fetch, "say", lambda text: said.append((text, hub.asked(""))))
    fetch.folder(PIN)
    (told,) = [(text, asked) for text, asked in said if text.startswith("Fetching")]
    assert told == (f"Fetching toy: 0.5 MB from them/Toy@1111111 into {place}", [])


# ---- a run that was stopped or killed ------------------------------------------------------------


def in_the_middle(hub, place, **environment):
    """A process that fetches the toy, half of the large file on this disk."""
    hub.fault("store/them/Toy", pause=30)
    process = toy.child(HF_HUB_DOWNLOAD_TIMEOUT="60", **environment)
    deadline = time.monotonic() + 30
    large = "store/them/Toy"  # before it is asked for, a small file's rest lies there for a moment
    while not (hub.asked(large) and any(part.stat().st_size for part in partial(place))):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    return process


def partial(place):
    return [p for p in place.rglob("*.incomplete") if p.exists()]


def test_a_killed_fetch_begins_that_file_anew_and_leaves_nothing(hub, place, capsys):
    process = in_the_middle(hub, place)
    (part,) = partial(place)
    assert part.name.count(".") == 2, "this client goes on with the file: the docstring says not"
    fetch.sweep(PIN)
    assert partial(place) == [part]  # it is being written, as the client's own lock says
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert partial(place) == [part] and "model_final.pth" in disk.look(PIN).missing
    small = len(hub.asked("resolve-cache/them/Toy"))
    assert contents(fetch.folder(PIN)) == FILES
    assert not partial(place)
    assert hub.asked("store/them/Toy") == [None, None]  # from its beginning
    assert len(hub.asked("resolve-cache/them/Toy")) == small  # finished files are kept
    assert "MB that a killed download left were deleted" in capsys.readouterr().err


def test_the_rest_of_an_older_clients_download_is_left_to_it(hub, place):
    part = disk.repository_folder(PIN) / "blobs" / ("a" * 64 + ".incomplete")
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x")
    fetch.folder(PIN)
    assert partial(place) == [part]


def test_what_another_program_is_writing_is_left(place):
    part = disk.repository_folder(PIN) / "blobs" / ("a" * 64 + ".12345678.incomplete")
    lock = place / ".locks" / disk.repository_folder(PIN).name / ("a" * 64 + ".lock")
    for path in (part, lock):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
    with open(lock) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        fetch.sweep(PIN)
        assert partial(place) == [part]
    fetch.sweep(PIN)
    assert not partial(place)


STOPPED = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
import sys
from circuitbook.published import __main__ as command
command.ALL = {"toy": pin}
sys.exit(command.main(["fetch"]))
"""


def test_ctrl_c_is_one_line_and_loses_nothing(hub, place, monkeypatch):
    begin = toy.CHILD.rsplit("\n", 2)[0]  # all but the fetching itself
    monkeypatch.setattr(toy, "CHILD", begin + STOPPED)
    process = in_the_middle(hub, place)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    last = said.strip().splitlines()[-1]
    assert last == "Stopped. Finished files are kept; run `make published` again for the rest."
    assert "Traceback" not in said and not partial(place)
    small = len(hub.asked("resolve-cache/them/Toy"))
    assert contents(fetch.folder(PIN)) == FILES
    assert len(hub.asked("resolve-cache/them/Toy")) == small


# ---- a text of one's own -------------------------------------------------------------------------


def test_a_local_text_is_enough_for_the_command(place, tmp_path, monkeypatch, capsys):
    for name in ("test.txt", "valid.txt"):
        (tmp_path / name).write_text(" = A = \n\n a \n\n = B = \n\n b \n")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert command.main(["fetch", "text"]) == 1
    monkeypatch.setenv("CIRCUITBOOK_TEXT", str(tmp_path / "test.txt"))
    assert command.main(["fetch", "text"]) == 0
    assert f"text           local                0.0 MB  {tmp_path}" in capsys.readouterr().out
    (tmp_path / "test.txt").write_text("Once upon a time.")
    assert command.main(["fetch", "text"]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert "Name another file in CIRCUITBOOK_TEXT, or unset it" in said
    assert "elete" not in said
    (tmp_path / "valid.txt").unlink()
    assert command.main(["fetch", "text"]) == 1
    assert "there is no validation.txt or valid.txt in" in capsys.readouterr().err
    assert status.row(TEXT)["state"] == "not there" and ALL["text"] == TEXT


def test_the_command_can_be_stopped_before_it_fetches(monkeypatch, capsys):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(status, "rows", stopped)
    assert command.main(["status"]) == 130
    assert capsys.readouterr().err.count("\n") == 2


def test_status_needs_the_standard_library_alone(place):
    done = subprocess.run(
        [sys.executable, "-S", "-m", "circuitbook.published", "status"], text=True,
        env=os.environ | {"PYTHONPATH": "src"}, capture_output=True, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0 and "missing" in done.stdout, done.stderr
