"""Notes on this disk: two writers, disks without links or locks, damaged notes, settings."""

import errno
import json
import os
from contextlib import contextmanager

import pytest
import test_published_hub as toy
from huggingface_hub import constants, hf_hub_download
from test_published_hub import FILES, FIRST, OPEN, PIN, SECOND, contents

from circuitbook import results
from circuitbook.published import __main__ as command
from circuitbook.published import disk, fetch, status
from circuitbook.published.fetch import PublishedError

hub, place = toy.hub, toy.place  # the fixtures


def new_process():
    """Forget what this process knows of files."""
    disk._checked.cache_clear(), fetch._whole.clear()


def locked():
    """What the lock file says."""
    return json.loads(disk.lock_path().read_text())


# ---- which commit --------------------------------------------------------------------------------


def copied(place, *commits):
    """A hub cache as it is copied by hand: snapshots, and no note of what "main" is."""
    for commit in commits:
        (folder := disk.snapshot(OPEN, commit)).mkdir(parents=True)
        for name, data in FILES.items():
            (folder / name).write_bytes(b"\x80" + data if name.endswith(".pth") else data)


def test_the_only_snapshot_of_a_copied_cache_is_found(place, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    copied(place, FIRST)
    assert fetch.commit(OPEN) == FIRST


def test_of_two_snapshots_none_is_guessed(place, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    copied(place, FIRST, SECOND)
    with pytest.raises(fetch.HubAway, match=f"2 commits .{FIRST}, {SECOND}.*refs/main"):
        fetch.folder(OPEN)


def test_the_variable_that_forbids_is_named(place, monkeypatch):
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")
    said = "TRANSFORMERS_OFFLINE forbids .* without TRANSFORMERS_OFFLINE"
    with pytest.raises(fetch.HubAway, match=said) as error:
        fetch.folder(PIN)
    assert "HF_HUB_OFFLINE" not in str(error.value)


@pytest.mark.parametrize("name", ["x" * 5000, "shut"])
def test_a_cache_that_cannot_be_read_is_one_line(place, monkeypatch, capsys, name):
    if name == "shut":

        def shut(self):
            raise PermissionError(errno.EACCES, "Permission denied", str(self))

        monkeypatch.setattr(type(place), "is_file", shut)
    else:
        monkeypatch.setenv("HF_HUB_CACHE", str(place / name))
    assert command.main(["status", "gpt2"]) == 1
    said = capsys.readouterr().err
    assert "cannot be read" in said and "HF_HUB_CACHE" in said and said.count("\n") == 1


# ---- two writers ---------------------------------------------------------------------------------


def another_writes(monkeypatch, repository):
    """When the lock's turn comes, another process has just written an entry for `repository`."""
    real, other = disk.turn, {"commit": SECOND, "files": {}}

    @contextmanager
    def turn(name):
        with real(name) as waited:
            if name == "lock":
                place = disk.lock_path()
                known = json.loads(place.read_text()) if place.is_file() else {}
                place.write_text(json.dumps(known | {repository: other}))
            yield waited

    monkeypatch.setattr(disk, "turn", turn)
    return other


def test_what_another_process_locks_meanwhile_is_kept(hub, place, monkeypatch):
    other = another_writes(monkeypatch, "them/Other")
    fetch.folder(PIN)
    assert locked()["them/Other"] == other and locked()["them/Toy"]["commit"] == FIRST


def test_an_entry_of_another_process_is_not_overwritten(hub, place, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    for name in FILES:  # by another program
        hf_hub_download(OPEN.repository, name, cache_dir=place, endpoint=hub.url)
    other = another_writes(monkeypatch, OPEN.repository)
    fetch.folder(OPEN)
    assert locked()[OPEN.repository] == other


# ---- disks that cannot all that others can -------------------------------------------------------


@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES])
def test_a_course_cache_that_cannot_be_written_costs_only_time(hub, place, monkeypatch, error):
    def refused(*_, **__):
        raise OSError(error, os.strerror(error))

    class Unwritable(type(disk.paths.CACHE)):
        def mkdir(self, *_, **__):
            refused()

    monkeypatch.setattr(disk.paths, "CACHE", Unwritable(place.parent / "no"), raising=False)
    monkeypatch.setattr(results, "write", refused)
    assert contents(fetch.folder(OPEN)) == FILES
    new_process()
    assert contents(fetch.folder(OPEN)) == FILES and not disk.lock_path().exists()


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_disk_without_locks(hub, place, monkeypatch, error):
    class Without:
        LOCK_EX, LOCK_NB = 2, 4

        @staticmethod
        def flock(*_):
            raise OSError(error, os.strerror(error))

    monkeypatch.setattr(disk, "fcntl", Without)
    assert contents(fetch.folder(OPEN)) == FILES and locked()[OPEN.repository]["commit"] == FIRST


@pytest.fixture
def no_links(monkeypatch):
    """The client copies files in place of linking them, as on some disks."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_SYMLINKS", True)
    monkeypatch.setitem(FILES, "model_final.pth", b"\x80" + bytes(range(256)) * 2000)


@pytest.fixture
def linkless(no_links, hub, place):
    """The hub with those files, and its empty cache."""
    return hub


def test_what_was_compared_with_the_hubs_hash_is_verified_without_links(linkless, place):
    folder = fetch.folder(PIN)
    assert contents(folder) == FILES and not (folder / "model_final.pth").is_symlink()
    assert all(file["verified"] for file in locked()[PIN.repository]["files"].values())
    new_process()
    assert status.row(PIN)["checked"] == "verified"


def test_wrong_bytes_are_refused_without_links(linkless, place):
    linkless.fault("store/them/Toy", times=2, wrong=True)
    with pytest.raises(PublishedError, match="came damaged twice: sha256"):
        fetch.folder(PIN)
    assert not (disk.snapshot(PIN, FIRST) / "model_final.pth").exists()


# ---- notes that are damaged or not to be read ----------------------------------------------------


@pytest.mark.parametrize("whole", ["{ half", "[1]", ""])
def test_a_note_that_only_saves_time_may_be_damaged(hub, place, whole):
    path = fetch.folder(PIN) / "config.json"
    told = disk.hashes(path)
    disk._checked_path().write_text(whole)
    new_process()
    assert disk.hashes(path) == told and contents(fetch.folder(PIN)) == FILES


def test_a_lock_that_cannot_be_read_is_not_called_damaged(hub, place, monkeypatch):
    fetch.folder(OPEN)
    new_process()

    class Shut(type(disk.paths.CACHE)):
        def read_text(self, *_, **__):
            raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(disk, "lock_path", lambda: Shut(place / "lock.json"))
    with pytest.raises(PublishedError, match="lock.json cannot be read.*who may read it") as error:
        fetch.folder(OPEN)
    assert "elete" not in str(error.value)


def test_the_note_of_hashes_forgets_files_that_are_gone(hub, place):
    folder = fetch.folder(PIN)
    gone, kept = ((folder / name).resolve() for name in FILES)
    gone.unlink()
    disk.hashes(kept)
    other = place / "other"
    other.write_bytes(b"x")
    disk.hashes(other)
    assert set(json.loads(disk._checked_path().read_text())) == {str(kept), str(other)}


def test_what_another_process_hashed_meanwhile_is_kept(hub, place, monkeypatch):
    folder, real = fetch.folder(PIN), disk.turn
    theirs, ours = place / "theirs", place / "ours"
    theirs.write_bytes(b"x"), ours.write_bytes(b"y")

    @contextmanager
    def turn(name):
        with real(name) as waited:
            if name == "checked":
                known = json.loads(disk._checked_path().read_text())
                disk._checked_path().write_text(json.dumps(known | {str(theirs): {"bytes": 1}}))
            yield waited

    monkeypatch.setattr(disk, "turn", turn)
    disk.hashes(ours)
    kept = json.loads(disk._checked_path().read_text())
    assert {str(theirs), str(ours)} <= set(kept) and len(kept) == 2 + len(list(folder.iterdir()))


# ---- settings ------------------------------------------------------------------------------------


def test_the_newer_name_of_the_cache_comes_first(place, monkeypatch):
    monkeypatch.setenv("HUGGINGFACE_HUB_CACHE", "/older")
    assert disk.hub_cache() == place
    monkeypatch.delenv("HF_HUB_CACHE")
    assert str(disk.hub_cache()) == "/older"


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
@pytest.mark.parametrize("value", ["1", "ON", "yes", "True", "0", "no", "", "2"])
def test_offline_is_what_the_client_calls_offline(place, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert disk.offline() == (name if constants._is_true(value) else "")


# ---- the command ---------------------------------------------------------------------------------


def test_fetch_clears_up_though_nothing_is_missing(hub, place, monkeypatch):
    fetch.folder(PIN)
    part = disk.repository_folder(PIN) / "blobs" / ("a" * 64 + ".12345678.incomplete")
    part.write_bytes(b"x")
    monkeypatch.setattr(command, "ALL", {"toy": PIN})
    assert command.main(["fetch"]) == 0
    assert not part.exists()


def test_status_says_where_a_commit_is_from_and_what_is_still_to_come(hub, place, monkeypatch):
    assert status.row(OPEN)["known"] == ""
    folder = fetch.folder(OPEN)
    assert status.row(OPEN)["known"] == "locked" and status.row(PIN)["known"] == "pinned"
    disk.remove(folder / "config.json")
    pin = disk.dataclasses.replace(OPEN, megabytes=2.0)
    row = status.row(pin)
    assert (row["state"], row["to_fetch"]) == ("partly cached", 1.5)
