"""A published file is found by repository, commit and name in the hub client's own cache.

This module asks the disk only, with nothing but the standard library: a start without a network
is fast, and `make doctor` can look before anything is installed. Three notes tell more:

| note                              | says                                                         |
|-----------------------------------|--------------------------------------------------------------|
| .cache/published/lock.json        | commit, sizes and sha256 of each repository when first whole |
| .cache/published/checked.json     | size, time and hashes of files that were read once           |
| stand_in.json, in the hub's cache | its files are stand-ins: their own commits and hashes        |

A file is compared with a hash on record, else with the lock, else with the hub's own name for its
bytes, which the client keeps. A plain copy that has none of these is "unverified": it can be read
as what it is, and that is all one knows. Stand-ins also carry a mark inside their files.
"""

from __future__ import annotations

import dataclasses
import fcntl
import functools
import hashlib
import json
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from circuitbook import paths, results
from circuitbook.published.pins import Pin

STAND_IN = "stand_in.json"
MARK = "random_weights"  # in the files of a stand-in: no trained weights, nothing to learn
MARKED = ("config.json", "special_tokens_map.json")  # where it stands; in .parquet: the metadata
STAND_IN_AGAIN = "write the stand-in files again with tools/stand_in.py"


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


def offline() -> str:
    """The variable that forbids to ask the hub, as the client reads it; "" when none does."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    name = next((name for name in names if os.environ.get(name)), "")
    return name if os.environ.get(name, "").upper() in {"1", "ON", "YES", "TRUE"} else ""


def _json(path: Path) -> dict[str, Any]:
    """A note as data, empty when there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("not a JSON object")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise PublishedError(f"{path} cannot be read ({error}). See who may read it.") from None
    except ValueError as error:
        raise PublishedError(f"{path} is damaged ({error}). Delete it and start again.") from None
    return found


@contextmanager
def turn(name: str) -> Iterator[bool]:
    """One process at a time for what is called `name`; gives True if another one had to end first.

    On a disk that cannot be written, or that knows no locks, nothing can be guarded.
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
        except OSError:
            waited = False
        yield waited


# ---- what is pinned ------------------------------------------------------------------------------


def lock_path() -> Path:
    """Where the first commit of a repository without a pinned one is written down."""
    return paths.CACHE / "published" / "lock.json"


def stand_in() -> bool:
    """True when the hub cache is a stand-in: published formats, random weights."""
    return (hub_cache() / STAND_IN).is_file()


def _told(path: Path, key: str, mend: str, **kinds: type | tuple[type, ...]) -> dict[str, Any]:
    """What a note says under a key, {} when nothing; its entries must be of these kinds."""
    found = _json(path).get(key, {})
    if found == {}:
        return {}
    bad = not isinstance(found, dict) or [n for n, k in kinds.items() if not _is(found, n, k)]
    if bad:
        what = ", ".join(bad) if isinstance(bad, list) else "an object"
        raise PublishedError(f"{path} is damaged (no good {what} for {key}). {mend}.")
    return found


def _is(found: dict[str, Any], name: str, kind: type | tuple[type, ...]) -> bool:
    return name in found and isinstance(found[name], kind)


def again() -> str:
    """What to do about a file of the hub cache that cannot be used."""
    if stand_in():
        return STAND_IN_AGAIN.capitalize()
    return "Delete it and fetch it again: python -m circuitbook.published fetch"


def pinned(pin: Pin) -> Pin:
    """The pin with all that is known today: by the stand-in's note, or by the lock file."""
    if stand_in():
        told = _told(
            hub_cache() / STAND_IN, pin.name, again(), revision=(str, type(None)), sha256=dict
        ) or {"revision": None, "sha256": {}}
        return dataclasses.replace(pin, revision=told["revision"], sha256=told["sha256"])
    told = _locked(pin)
    if not told:
        return pin
    hashes = {name: file["sha256"] for name, file in told["files"].items()}
    sizes = {name: file["bytes"] for name, file in told["files"].items()}
    return dataclasses.replace(
        pin, revision=told["commit"], sha256=hashes | pin.sha256, sizes=sizes
    )


def _locked(pin: Pin) -> dict[str, Any]:
    """The lock's entry for a pin; {} where there is none, or one of another commit than pinned."""
    mend = "Delete it: it is written again at the next fetch"
    told = _told(lock_path(), pin.repository, mend, commit=str, files=dict)
    for name, file in told.get("files", {}).items():
        if not (isinstance(file, dict) and _is(file, "sha256", str) and _is(file, "bytes", int)):
            raise PublishedError(f"{lock_path()} is damaged ({pin.repository}/{name}). {mend}.")
    return told if told and pin.revision in (None, told["commit"]) else {}


def lock(found: Found) -> None:
    """Write down commit, sizes and hashes of a repository, once, when all its files are there.

    "verified" says of a file whether a hash on record or the hub's own name for it agreed.
    """
    if stand_in() or found.marked or not found.whole or _locked(found.pin):
        return
    with turn("lock"):
        known = _json(lock_path())
        if _locked(found.pin):  # by another process, meanwhile
            return
        files = {
            name: {**{k: hashes(found.place / name)[k] for k in ("bytes", "sha256")},
                   "verified": name not in found.unverified}
            for name in found.pin.files
        }  # fmt: skip
        known[found.pin.repository] = {"commit": found.commit, "files": files}
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
        return {name: told for name, told in _json(path).items() if isinstance(told, dict)}
    except PublishedError:  # a note that only saves time
        return {}


def hashes(path: Path) -> dict[str, Any]:
    """A file's size, its sha256 and its git hash; read once, then remembered by size and time."""
    real = path.resolve()
    now = real.stat()
    known = _checked(_checked_path()).get(str(real), {})
    if (known.get("bytes"), known.get("time")) == (now.st_size, now.st_mtime_ns):
        if _is(known, "sha256", str) and _is(known, "git", str):
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
    size = path.stat().st_size
    if pin.sizes.get(name, size) != size:
        return f"{pin.sizes[name]:,} bytes were expected, {size:,} were found"
    wanted = expected(pin, path, name)
    if wanted is None:
        return unreadable(path)
    found = hashes(path)
    if found[wanted[0]] == wanted[1]:
        return ""
    kind = {"sha256": "sha256", "git": "git hash"}[wanted[0]]
    return (
        f"{kind} {wanted[1][:12]}… was expected, {found[wanted[0]][:12]}… was found "
        f"({found['bytes']:,} bytes)"
    )


def unreadable(path: Path) -> str:
    """Why a file cannot be whole, by its first and last bytes alone, or ""."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        start = file.read(8)
        file.seek(max(size - 4, 0))
        end = file.read(4)
    if path.suffix == ".json":
        try:
            whole = isinstance(json.loads(path.read_text(encoding="utf-8")), dict)
        except ValueError:
            whole = False
    elif path.suffix == ".parquet":
        whole = start[:4] == end == b"PAR1" and size > 12
    elif path.suffix == ".safetensors":
        whole = 8 + int.from_bytes(start, "little") <= size
    elif path.suffix == ".pth":  # a zip file, or an older pickle
        whole = zipfile.is_zipfile(path) if start[:2] == b"PK" else start[:1] == b"\x80"
    else:
        return ""
    return "" if whole else f"it cannot be read as {path.suffix} ({size:,} bytes)"


def marked(path: Path) -> bool:
    """True for a file that says of itself: made for a stand-in, with random weights."""
    try:
        if path.name in MARKED:
            told = json.loads(path.read_text(encoding="utf-8"))
            return isinstance(told, dict) and bool(told.get(MARK))
        if path.suffix == ".parquet":
            with open(path, "rb") as file:  # its last bytes: metadata, their length, "PAR1"
                file.seek(max(os.path.getsize(path) - 8, 0))
                length = int.from_bytes(file.read(4), "little")
                file.seek(max(os.path.getsize(path) - 8 - length, 0))
                return MARK.encode() in file.read(length)
    except (OSError, ValueError):
        pass
    return False


@dataclasses.dataclass(frozen=True)
class Found:
    """What the disk holds of a pin: its commit, its folder, and what is missing or damaged."""

    pin: Pin
    commit: str | None
    place: Path | None
    missing: tuple[str, ...]
    damaged: dict[str, str]  # file -> what is wrong
    unverified: tuple[str, ...] = ()  # no hash on record, no lock, and no name by the hub
    marked: bool = False  # files of a stand-in, whether or not its note is there

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
    """What the disk holds of a pin; every file's bytes were compared with their hash once.

    Raises PublishedError: the cache, or a note, cannot be read.
    """
    try:
        return _look(pinned(pin))
    except OSError as error:
        raise PublishedError(
            f"{hub_cache()} cannot be read ({error}). See whose it is, or name another folder in "
            "HF_HUB_CACHE."
        ) from error


def _look(pin: Pin) -> Found:
    commit = _commit(pin)
    if commit is None:
        return Found(pin, None, None, pin.files, {})
    place = snapshot(pin, commit)
    missing = tuple(name for name in pin.files if not (place / name).is_file())
    there = [name for name in pin.files if name not in missing]
    damaged = {name: why for name in there if (why := damage(pin, place / name, name))}
    unverified = tuple(name for name in there if expected(pin, place / name, name) is None)
    random = any(marked(place / name) for name in there)
    return Found(pin, commit, place, missing, damaged, unverified, random)


def checked(found: Found) -> str:
    """How far the files that are here are known to be the right ones, in one word."""
    if found.unverified:
        return "unverified"
    files = {} if stand_in() else _locked(found.pin).get("files", {})
    plain = dataclasses.replace(found.pin, sha256={})
    doubt = [n for n in found.pin.files if not files.get(n, {}).get("verified", True)]
    doubt = [n for n in doubt if expected(plain, found.place / n, n) is None]
    return "unchanged" if doubt else "verified"


def remove(path: Path) -> None:
    """Delete a file of the cache, and the bytes that the client keeps for it elsewhere."""
    while path.is_symlink():
        target = path.parent / os.readlink(path)
        path.unlink()
        path = target
    path.unlink(missing_ok=True)
