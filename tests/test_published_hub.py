"""Fetching published files: the real client against a hub on this machine, and all that goes wrong.

Nothing here leaves 127.0.0.1. Faults are ordered from tests/stand_in_hub.py.
"""

import json
import os
import socket
import subprocess
import sys

import huggingface_hub
import pytest
from huggingface_hub import constants
from stand_in_hub import CLIENT, StandInHub, git_hash

from circuitbook import paths
from circuitbook.published import __main__ as command
from circuitbook.published import disk, fetch, patience
from circuitbook.published.fetch import HubAway, PublishedError
from circuitbook.published.pins import Pin

FIRST, SECOND = "1" * 40, "2" * 40
FILES = {"config.json": b'{"a": 1}', "model_final.pth": bytes(range(256)) * 2000}
PIN = Pin("toy", "them/Toy", "model", FIRST, tuple(FILES), megabytes=0.5, licence="MIT")
OPEN = Pin("open", "them/Open", "model", None, tuple(FILES))  # no commit on record


@pytest.fixture
def hub():
    """A hub with two repositories; the second has moved on from its first commit."""
    newer = FILES | {"config.json": b'{"a": 2}'}
    served = {
        ("model", "them/Toy"): {FIRST: FILES},
        ("model", "them/Open"): {FIRST: FILES, SECOND: newer},
    }
    with StandInHub(served) as running:
        yield running


@pytest.fixture
def place(hub, project, tmp_path, monkeypatch):
    """An empty hub cache and an empty project; the client asks the hub on this machine."""
    for name in CLIENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("MODELS", "published")
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("CIRCUITBOOK_CACHE", str(tmp_path / "cache"))
    for name, value in (("HF_HUB_OFFLINE", False), ("DOWNLOAD_CHUNK_SIZE", 10_000),
                        ("HF_HUB_DOWNLOAD_TIMEOUT", 1), ("HF_HUB_ETAG_TIMEOUT", 1)):  # fmt: skip
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setattr(patience, "FIRST_WAIT", 0.01)
    return tmp_path / "hub"


def contents(folder):
    """What a reader of a folder gets."""
    return {name: (folder / name).read_bytes() for name in FILES}


def forbid_sockets(monkeypatch):
    def forbidden(*_, **__):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", forbidden)


def bytes_file(place, name="model_final.pth"):
    """Where the client keeps the bytes of a file of PIN."""
    return (disk.snapshot(PIN, FIRST) / name).resolve()


# ---- a first run, and all runs after it ----------------------------------------------------------


def test_a_first_run_says_what_it_fetches_and_brings_every_byte(hub, place, capsys):
    folder = fetch.folder(PIN)
    assert folder == place / "models--them--Toy" / "snapshots" / FIRST
    assert contents(folder) == FILES
    said = capsys.readouterr().err
    assert f"Fetching toy: 0.5 MB from them/Toy@1111111 into {place}" in said
    assert fetch.commit(PIN) == FIRST
    assert fetch.sha256(PIN, "config.json") == disk.hashes(folder / "config.json")["sha256"]
    told = json.loads(disk.lock_path().read_text())["them/Toy"]  # though its commit is pinned
    assert told["commit"] == FIRST and set(told["files"]) == set(FILES)
    assert not [path for _, path, _ in hub.requests if "xet" in path]


def test_a_cached_run_opens_no_socket_and_reads_no_file_twice(hub, place, monkeypatch):
    folder = fetch.folder(PIN)
    asked = len(hub.requests)
    forbid_sockets(monkeypatch)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # to import it would be an error
    monkeypatch.setattr(disk.hashlib, "sha256", lambda *_: pytest.fail("a file was read again"))
    disk._checked.cache_clear(), fetch._whole.clear()  # as in a new process
    assert fetch.folder(PIN) == folder
    assert len(hub.requests) == asked


def test_the_client_finds_the_same_file(hub, place):
    folder = fetch.folder(PIN)
    cache = {"cache_dir": place, "revision": FIRST}
    found = huggingface_hub.try_to_load_from_cache(PIN.repository, "config.json", **cache)
    assert str(folder / "config.json") == found


def test_an_offline_run_works_from_the_cache_and_says_what_to_do_without(hub, place, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(HubAway, match=r"config.json and 1 more .*HF_HUB_OFFLINE.*`make published`"):
        fetch.folder(PIN)
    assert hub.requests == []
    monkeypatch.delenv("HF_HUB_OFFLINE")
    fetch.folder(PIN)
    monkeypatch.setenv("HF_HUB_OFFLINE", "ON")
    fetch._whole.clear()
    assert contents(fetch.folder(PIN)) == FILES


def test_only_what_is_missing_is_fetched(hub, place):
    folder = fetch.folder(PIN)
    disk.remove(folder / "config.json")
    fetch.folder(PIN)
    assert len(hub.asked("store/them/Toy")) == 1 and len(hub.asked("config.json")) > 1


def test_nothing_is_fetched_unless_it_is_asked_for(hub, place, monkeypatch):
    monkeypatch.setenv("MODELS", "course")
    with pytest.raises(PublishedError, match="Nothing is downloaded unless.*MODELS=published"):
        fetch.folder(PIN)
    assert hub.requests == []
    with paths.model_set("published"):  # a part of a lesson that asks for it
        fetch.folder(PIN)


# ---- commits without a pin -----------------------------------------------------------------------


def test_the_first_commit_found_is_the_pin_from_then_on(hub, place):
    (disk.repository_folder(OPEN) / "snapshots" / ("3" * 40)).mkdir(parents=True)  # a leftover
    newest = fetch.folder(OPEN)
    assert newest.name == FIRST
    disk.lock(disk.look(OPEN))  # changes nothing: it is locked
    told = json.loads(disk.lock_path().read_text())["them/Open"]
    assert told["commit"] == FIRST
    size, sha256 = (told["files"]["model_final.pth"][key] for key in ("bytes", "sha256"))
    assert (size, sha256) == (512_000, fetch.sha256(OPEN, "model_final.pth"))
    commits = hub.repositories["model", "them/Open"]
    hub.repositories["model", "them/Open"] = {SECOND: commits[SECOND], FIRST: commits[FIRST]}
    for name in FILES:
        disk.remove(newest / name)
    assert contents(fetch.folder(OPEN)) == FILES and fetch.commit(OPEN) == FIRST
    assert json.loads(disk.lock_path().read_text())["them/Open"] == told


def test_a_file_that_is_not_the_one_written_down_is_refused(hub, place):
    folder = fetch.folder(OPEN)
    changed = dict(FILES, **{"model_final.pth": b"x" * 512_000})
    hub.repositories["model", "them/Open"][FIRST] = changed
    disk.remove(folder / "model_final.pth")
    with pytest.raises(PublishedError, match="not the pinned file.*Nothing was downloaded"):
        fetch.folder(OPEN)
    assert len(hub.asked("store/them/Open")) == 1


def test_files_that_another_program_fetched_are_taken_and_written_down(hub, place, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    for name in FILES:
        huggingface_hub.hf_hub_download("them/Open", name, cache_dir=place, endpoint=hub.url)
    forbid_sockets(monkeypatch)
    assert fetch.commit(OPEN) == FIRST
    assert json.loads(disk.lock_path().read_text())["them/Open"]["commit"] == FIRST


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pin, words",
    [
        (Pin("a", "them/None", "model", FIRST, ("config.json",)), r"HF_TOKEN.*\(401\)"),
        (Pin("b", "them/Toy", "model", SECOND, ("config.json",)), r"moved or withdrawn.*\(404\)"),
        (Pin("c", "them/Toy", "model", FIRST, ("none.json",)), r"none.json.*\(404\)"),
        (Pin("d", "them/None", "dataset", None, ("a.parquet",)), r"them/None@main/a.*\(401\)"),
    ],
)
def test_what_is_not_there_is_asked_for_once(hub, place, pin, words):
    with pytest.raises(PublishedError, match=words) as error:
        fetch.folder(pin)
    assert len(str(error.value).splitlines()) == 1 and not isinstance(error.value, HubAway)
    assert len(hub.requests) == 1


def test_terms_that_were_not_accepted(hub, place):
    hub.fault("config.json", "HEAD", status=403)
    with pytest.raises(PublishedError, match=r"accept its terms.*\(403\)"):
        fetch.folder(PIN)
    assert len(hub.requests) == 1


def test_a_full_disk_is_said_before_the_download(hub, place, monkeypatch):
    class Full:
        free = 1000

    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda _: Full)
    with pytest.raises(PublishedError, match="needs 1 MB and .* has 0 MB free.*HF_HUB_CACHE"):
        fetch.folder(PIN)
    assert not hub.asked("config.json") and not hub.asked("model_final.pth")


# ---- a hub that is busy, slow or broken ----------------------------------------------------------


def test_429_is_asked_again_as_late_as_the_hub_wants(hub, place, monkeypatch, capsys):
    waits = []
    monkeypatch.setattr(patience.time, "sleep", waits.append)
    hub.fault("config.json", "HEAD", status=429, headers={"Retry-After": "7"})
    hub.fault("config.json", "HEAD", status=429, headers={"RateLimit": '"resolvers";r=0;t=9'})
    assert contents(fetch.folder(PIN)) == FILES
    assert waits == [7, 9]
    assert "429" in capsys.readouterr().err


def test_429_at_the_file_itself(hub, place):
    hub.fault("store/them/Toy", "GET", status=429, headers={"Retry-After": "0"})
    assert contents(fetch.folder(PIN)) == FILES
    assert len(hub.asked("store/them/Toy")) == 2


def test_waits_grow_and_end(hub, place, monkeypatch):
    waits = []
    monkeypatch.setattr(patience, "FIRST_WAIT", 1.0)
    monkeypatch.setattr(patience.time, "sleep", waits.append)
    hub.fault("config.json", "HEAD", times=99, status=429)
    with pytest.raises(PublishedError, match=r"too many requests \(429\).*again later"):
        fetch.folder(PIN)
    assert len(waits) == patience.TRIES - 1
    assert all(2**k <= wait <= 1.5 * 2**k for k, wait in enumerate(waits))
    assert len(hub.requests) == patience.TRIES


def test_a_wait_of_an_hour_is_left_to_the_reader(hub, place):
    hub.fault("config.json", "HEAD", status=429, headers={"Retry-After": "3600"})
    with pytest.raises(PublishedError, match="again in 60 minutes"):
        fetch.folder(PIN)
    assert len(hub.requests) == 1


def test_a_broken_hub_is_asked_again(hub, place):
    hub.fault("config.json", "HEAD", times=2, status=503)
    hub.fault("store/them/Toy", "GET", times=1, status=500)
    assert contents(fetch.folder(PIN)) == FILES


def test_a_broken_connection_goes_on_where_it_stopped(hub, place):
    hub.fault("store/them/Toy", cut=100_000)
    assert contents(fetch.folder(PIN)) == FILES
    first, second = hub.asked("store/them/Toy")
    assert first is None and 0 < int(second.removeprefix("bytes=").removesuffix("-")) <= 100_000


def test_a_truncated_file_is_never_taken(hub, place, capsys):
    hub.fault("store/them/Toy", short=1000)
    hub.fault("resolve-cache/them/Toy", short=3)
    assert contents(fetch.folder(PIN)) == FILES
    said = capsys.readouterr().err
    assert "1000" in said or "1,000" in said


def test_a_slow_hub_is_waited_for(hub, place):
    hub.fault("store/them/Toy", pause=2.5)  # longer than the client waits for the next byte
    hub.fault("config.json", "HEAD", pause=2.5)
    assert contents(fetch.folder(PIN)) == FILES
    assert hub.asked("store/them/Toy")[1].startswith("bytes=")


def test_nobody_there(place, monkeypatch, capsys):
    with socket.socket() as probe:  # a port where nobody listens
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    with pytest.raises(HubAway, match=rf"{port}\) cannot be reached.*network.*HF_HUB_CACHE") as e:
        fetch.folder(PIN)
    assert len(str(e.value).splitlines()) == 1
    assert "try 5 of 5" in capsys.readouterr().err
    assert command.main(["fetch"]) == 1
    assert capsys.readouterr().err.count("cannot be reached") == 1  # said once, not for every pin


# ---- damaged files -------------------------------------------------------------------------------


SENT = {"config.json": "resolve-cache/them/Toy", "model_final.pth": "store/them/Toy"}


@pytest.mark.parametrize("name", FILES)
def test_other_bytes_than_the_hub_promised_are_fetched_once_more(hub, place, name, capsys):
    hub.fault(SENT[name], wrong=True)
    assert contents(fetch.folder(PIN)) == FILES
    assert "came damaged" in capsys.readouterr().err


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_stays_wrong_is_deleted_and_named(hub, place, name):
    hub.fault(SENT[name], times=2, wrong=True)
    with pytest.raises(PublishedError, match=f"{name} came damaged twice: .*expected.*deleted"):
        fetch.folder(PIN)
    assert not (disk.snapshot(PIN, FIRST) / name).exists()
    assert git_hash(FILES[name]) not in {p.name for p in place.rglob("*")}
    assert contents(fetch.folder(PIN)) == FILES


def test_a_file_damaged_on_this_disk_is_found_and_fetched_again(hub, place, monkeypatch):
    fetch.folder(PIN)
    whole = FILES["model_final.pth"]
    bytes_file(place).write_bytes(whole[:1000])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(HubAway, match=r"pth is not the pinned file: 512,000 .*, 1,000 were found"):
        fetch.folder(PIN)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert contents(fetch.folder(PIN)) == FILES
    bytes_file(place).write_bytes(whole[:-1] + b"!")  # as long as before
    assert contents(fetch.folder(PIN)) == FILES
    bytes_file(place, "config.json").write_bytes(b'{"a": 3}')
    assert contents(fetch.folder(PIN)) == FILES


def test_a_hash_on_record_is_stronger_than_what_the_hub_says(hub, place):
    pin = Pin("toy", "them/Toy", "model", FIRST, tuple(FILES), {"model_final.pth": "0" * 64})
    with pytest.raises(PublishedError, match=r"pth on the hub is not the pinned file: sha256 0000"):
        fetch.folder(pin)
    assert not hub.asked("model_final.pth") and not hub.asked("config.json")
    fetch.folder(PIN)  # now the file is on the disk
    assert disk.look(pin).damaged and not disk.look(PIN).damaged
    with pytest.raises(PublishedError, match="not the pinned file"):
        fetch.folder(pin)


# ---- two at once ---------------------------------------------------------------------------------

CHILD = f"""
from circuitbook.published import fetch
from circuitbook.published.pins import Pin
from huggingface_hub import constants
constants.DOWNLOAD_CHUNK_SIZE = 10_000
pin = Pin("toy", "them/Toy", "model", {FIRST!r}, {tuple(FILES)!r})
print(fetch.folder(pin).name)
"""


def child(**environment):
    """Another process that fetches the toy."""
    return subprocess.Popen(
        [sys.executable, "-c", CHILD], env={**os.environ, **environment}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_two_processes_at_once_fetch_once(hub, place):
    hub.fault("store/them/Toy", pause=0.5)
    both = [process.communicate() for process in [child(), child()]]
    assert [out.strip() for out, _ in both] == [FIRST, FIRST]
    assert sum("Fetching toy" in said for _, said in both) == 1  # the other one waited
    assert contents(fetch.folder(PIN)) == FILES
    assert len(hub.asked("store/them/Toy")) == 1


# ---- the command ---------------------------------------------------------------------------------


def test_status_asks_the_disk_only(hub, place, monkeypatch, capsys):
    monkeypatch.setattr(command, "ALL", {"toy": PIN, "open": OPEN})
    assert command.main(["status"]) == 0
    out = capsys.readouterr().out
    assert "toy            missing" in out and "them/Toy@1111111  (pinned, MIT)" in out
    assert out.splitlines()[-1] == "To download, about 1 MB: toy, open"
    assert hub.requests == []
    assert command.main(["fetch", "toy"]) == 0
    capsys.readouterr()
    forbid_sockets(monkeypatch)
    assert command.main(["status", "toy"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "Nothing to download." and "(pinned, verified, MIT)" in out
    bytes_file(place).write_bytes(b"short")
    assert command.main(["status", "toy"]) == 0
    assert "toy            damaged" in capsys.readouterr().out
    assert command.main(["status", "none"]) == 2


def test_fetch_goes_on_after_a_failure_and_reports_it(hub, place, monkeypatch, capsys):
    gone = Pin("gone", "them/None", "model", FIRST, ("config.json",))
    monkeypatch.setattr(command, "ALL", {"gone": gone, "toy": PIN})
    monkeypatch.setenv("MODELS", "course")  # the command itself is the asking
    assert command.main(["fetch"]) == 1
    assert "gone: them/None@1111111/config.json" in capsys.readouterr().err
    assert contents(fetch.folder(PIN)) == FILES
