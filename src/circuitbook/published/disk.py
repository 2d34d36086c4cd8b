"""A published file is found by repository, commit and name in the hub client's own cache.

This module asks the disk only, with nothing but the standard library: a start without a network
is fast, and `make doctor` can look before anything is installed. Three notes tell more:

| note                              | says                                                        |
|-----------------------------------|-------------------------------------------------------------|
| .cache/published/lock.json        | the commit first taken of a repository without a pinned one |
| .cache/published/checked.json     | size, time and hashes of files that were read once          |
| stand_in.json, in the hub's cache | its files are stand-ins: their own commits and hashes       |
"""

from __future__ import annotations

import dataclasses
import fcntl
import functools
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from circuitbook import paths, results
from circuitbook.published.pins import Pin

STAND_IN = "stand_in.json"


class PublishedError(RuntimeError):
    """A published file is missing, damaged or of another kind; says what to do."""


def hub_cache() -> Path:
    """The hub client's cache folder, by the client's own rules."""
    told = os.environ.get
    home = told("HF_HOME") or os.path.join(told("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    place = told("HF_HUB_CACHE") or told("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    return Path(os.path.expandvars(os.path.expanduser(place))).absolute()


def settings() -> tuple[str | None, ...]:
    """All of the environment that decides where files lie."""
    names = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME")
    return tuple(map(os.environ.get, (*names, "CIRCUITBOOK_CACHE", "CIRCUITBOOK_ROOT")))


def offline() -> bool:
    """True when the environment forbids to ask the hub, as the client reads it."""
    value = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return value.upper() in {"1", "ON", "YES", "TRUE"}


def _json(path: Path) -> dict[str, Any]:
    """A note as data, empty when there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("not a JSON object")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise PublishedError(f"{path} is damaged ({error}). Delete it and start again.") from None
    return found


@contextmanager
def turn(name: str) -> Iterator[bool]:
    """One process at a time for what is called `name`; gives True if another one had to end first.

    On a disk that cannot be written there is nothing to guard.
    """
    place = paths.CACHE / "published" / f".{name}.lock"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        handle = open(place, "w")
    except OSError:
        yield False
        return
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            waited = False
        except BlockingIOError:
            fcntl.flock(handle, fcntl.LOCK_EX)
            waited = True
        yield waited


# ---- what is pinned ------------------------------------------------------------------------------


def lock_path() -> Path:
    """Where the first commit of a repository without a pinned one is written down."""
    return paths.CACHE / "published" / "lock.json"


def stand_in() -> bool:
    """True when the hub cache is a stand-in: published formats, random weights."""
    return (hub_cache() / STAND_IN).is_file()


def pinned(pin: Pin) -> Pin:
    """The pin with all that is known today: by the stand-in's note, or by the lock file."""
    if stand_in():
        told = _json(hub_cache() / STAND_IN).get(pin.name, {"revision": None, "sha256": {}})
        return dataclasses.replace(pin, revision=told["revision"], sha256=told["sha256"])
    told = {} if pin.revision else _json(lock_path()).get(pin.repository, {})
    if not told:
        return pin
    hashes = {name: file["sha256"] for name, file in told["files"].items()}
    return dataclasses.replace(pin, revision=told["commit"], sha256=hashes | pin.sha256)


def lock(pin: Pin, commit: str) -> None:
    """Write down commit, sizes and hashes of a repository without a pinned commit, once."""
    if pin.revision or stand_in():
        return
    with turn("lock"):
        known = _json(lock_path())
        if pin.repository in known:
            return
        place = snapshot(pin, commit)
        files = {
            name: {"bytes": (place / name).stat().st_size, "sha256": hashes(place / name)["sha256"]}
            for name in pin.files
        }
        known[pin.repository] = {"commit": commit, "files": files}
        with suppress(OSError):  # a disk that cannot be written: the commit is asked for again
            results.write(lock_path(), json.dumps(known, indent=1, sort_keys=True) + "\n")


# ---- files ---------------------------------------------------------------------------------------


def repository_folder(pin: Pin) -> Path:
    """The client's folder of a repository."""
    return hub_cache() / f"{pin.kind}s--{pin.repository.replace('/', '--')}"


def snapshot(pin: Pin, commit: str) -> Path:
    """The client's folder of one commit; the files in it have their own names."""
    return repository_folder(pin) / "snapshots" / commit


def _commit(pin: Pin) -> str | None:
    """The pinned commit, else the one that the client noted for "main", else the only one there."""
    if pin.revision:
        return pin.revision
    base = repository_folder(pin)
    with suppress(OSError):
        return (base / "refs" / "main").read_text().strip()
    there = sorted(p.name for p in base.glob("snapshots/*"))
    return there[0] if len(there) == 1 else None


def _checked_path() -> Path:
    return paths.CACHE / "published" / "checked.json"


@functools.cache
def _checked(path: Path) -> dict[str, dict]:
    try:
        return _json(path)
    except PublishedError:  # a note that only saves time
        return {}


def hashes(path: Path) -> dict[str, Any]:
    """A file's size, its sha256 and its git hash; read once, then remembered by size and time."""
    real = path.resolve()
    now = real.stat()
    known = _checked(_checked_path()).get(str(real), {})
    if (known.get("bytes"), known.get("time")) == (now.st_size, now.st_mtime_ns):
        return known
    sha256, git = hashlib.sha256(), hashlib.sha1(f"blob {now.st_size}\0".encode())
    with open(real, "rb") as handle:
        while block := handle.read(1 << 20):
            sha256.update(block)
            git.update(block)
    found = {"bytes": now.st_size, "time": now.st_mtime_ns, "sha256": sha256.hexdigest(),
             "git": git.hexdigest()}  # fmt: skip
    with suppress(OSError), turn("checked"):
        _checked.cache_clear()
        kept = {n: told for n, told in _checked(_checked_path()).items() if Path(n).exists()}
        kept[str(real)] = found
        results.write(_checked_path(), json.dumps(kept, indent=1, sort_keys=True) + "\n")
    _checked(_checked_path())[str(real)] = found
    return found


def expected(pin: Pin, path: Path, name: str) -> tuple[str, str] | None:
    """("sha256" or "git", the hash that a file must have): on record, or by the client's own note.

    The client keeps bytes under the hub's name for them: a sha256 for a large file, git's hash for
    a small one.
    """
    if name in pin.sha256:
        return "sha256", pin.sha256[name]
    return kind_of(Path(os.readlink(path)).name) if path.is_symlink() else None


def kind_of(etag: str) -> tuple[str, str] | None:
    """What a hub's name for bytes is: 64 hexadecimal digits are a sha256, 40 are git's hash."""
    kind = {64: "sha256", 40: "git"}.get(len(etag))
    return (kind, etag) if kind and set(etag) <= set("0123456789abcdef") else None


def damage(pin: Pin, path: Path, name: str) -> str:
    """Why a file that is there must not be used, or ""."""
    wanted = expected(pin, path, name)
    found = hashes(path)
    if wanted is None or found[wanted[0]] == wanted[1]:
        return ""
    kind = {"sha256": "sha256", "git": "git hash"}[wanted[0]]
    return (
        f"{kind} {wanted[1][:12]}… was expected, {found[wanted[0]][:12]}… was found "
        f"({found['bytes']:,} bytes)"
    )


@dataclasses.dataclass(frozen=True)
class Found:
    """What the disk holds of a pin: its commit, its folder, and what is missing or damaged."""

    pin: Pin
    commit: str | None
    place: Path | None
    missing: tuple[str, ...]
    damaged: dict[str, str]  # file -> what is wrong

    @property
    def whole(self) -> bool:
        """True when every file is there and is the expected one."""
        return not self.missing and not self.damaged

    @property
    def where(self) -> str:
        """Repository and revision, for people."""
        revision = self.commit or self.pin.revision
        return f"{self.pin.repository}@{revision[:7] if revision else 'main'}"

    @property
    def bytes(self) -> int:
        """The size of the files that are there."""
        there = [name for name in self.pin.files if name not in self.missing]
        return sum((self.place / name).stat().st_size for name in there) if self.place else 0


def look(pin: Pin) -> Found:
    """What the disk holds of a pin; every file's bytes were compared with their hash once."""
    pin = pinned(pin)
    commit = _commit(pin)
    if commit is None:
        return Found(pin, None, None, pin.files, {})
    place = snapshot(pin, commit)
    missing = tuple(name for name in pin.files if not (place / name).is_file())
    there = [name for name in pin.files if name not in missing]
    damaged = {name: why for name in there if (why := damage(pin, place / name, name))}
    return Found(pin, commit, place, missing, damaged)


def identity(pins: Iterable[Pin]) -> str:
    """A hash that changes when other files of these pins lie on this disk."""
    parts = []
    for found in map(look, pins):
        there = [name for name in found.pin.files if name not in found.missing]
        own = [hashes(found.place / name)["sha256"] for name in there] if found.place else []
        parts.append([found.where, *own])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def remove(path: Path) -> None:
    """Delete a file of the cache, and the bytes that the client keeps for it elsewhere."""
    while path.is_symlink():
        target = path.parent / os.readlink(path)
        path.unlink()
        path = target
    path.unlink(missing_ok=True)
