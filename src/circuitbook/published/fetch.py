"""A pin is a folder on this disk: found there, or fetched once from the hub and checked.

`folder` asks the disk first and opens no socket when all files are there. Only when something is
missing, the published models were asked for, and HF_HUB_OFFLINE is not set does the hub's own
client download it, at the pinned commit. A connection that breaks goes on where it stopped; a busy
hub is asked again, later each time. Of a run that was stopped or killed the finished files are
kept; the one in progress is fetched anew, and what there was of it is deleted. Every file is
compared with its size and hash before it is used, as far as they are known.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import os
import random
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from circuitbook import paths, results
from circuitbook.published import disk
from circuitbook.published.disk import Found, PublishedError
from circuitbook.published.pins import Pin

__all__ = ["HubAway", "PublishedError", "commit", "folder", "sha256"]

T = TypeVar("T")
TRIES = 5
FIRST_WAIT = 0.5  # seconds; doubled at every try, and up to half of it more by chance
LONGEST_WAIT = 300.0
AGAIN = "Run `make published` again"
REFUSED = {
    401: "asks who you are: it shows a missing repository and a private one alike. Check the "
    "name; remove a saved token that has run out (HF_TOKEN, or `hf auth logout`)",
    403: "refuses access. Open the repository's page once and accept its terms, or use another "
    "token",
    404: "does not have it. It was moved or withdrawn; see whether this course has a newer version",
}

FULL = {errno.ENOSPC, errno.EDQUOT}
RIGHTS = {errno.EACCES, errno.EPERM, errno.EROFS}  # of a file; a firewall says them of a connection

_whole: dict[tuple, tuple[Path, dict]] = {}


class HubAway(PublishedError):
    """The hub cannot or must not be asked: no other file can be had either."""


def folder(pin: Pin) -> Path:
    """The folder that holds all files of a pin, each with the expected hash.

    Raises PublishedError: not here and not to be had; the message says what to do.
    """
    key = (pin.repository, pin.revision, *pin.files, *pin.sha256.values(), *disk.settings())
    place, stats = _whole.get(key, (None, {}))
    if place and all(_stat(place / name) == was for name, was in stats.items()):
        return place  # looked at before in this process, and not touched since
    found = disk.look(pin)
    if not found.whole:
        found = _fetched(pin, found)
    assert found.place is not None and found.commit is not None
    if disk.stand_in() or found.marked:
        results.note_random()
    disk.lock(found)
    _whole[key] = found.place, {name: _stat(found.place / name) for name in pin.files}
    return found.place


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        now = os.stat(path)
    except OSError:
        return None
    return now.st_ino, now.st_size, now.st_mtime_ns


def commit(pin: Pin) -> str:
    """The commit of the files that `folder` gives."""
    return folder(pin).name


def sha256(pin: Pin, file: str) -> str:
    """The sha256 of one file of a pin."""
    return disk.hashes(folder(pin) / file)["sha256"]


# ---- before a download ---------------------------------------------------------------------------


def _wanting(found: Found) -> str:
    """What is wrong on this disk, in words."""
    if found.damaged:
        name, why = next(iter(found.damaged.items()))
        return f"{found.place / name if found.place else name} is not the pinned file: {why}"
    more = f" and {len(found.missing) - 1} more" if len(found.missing) > 1 else ""
    return f"{found.missing[0]}{more} of {found.where} is not in {disk.hub_cache()}"


def _refuse(found: Found) -> None:
    """Stop where nothing may be downloaded."""
    if disk.stand_in():
        raise PublishedError(
            f"{_wanting(found)}. That folder holds stand-in files: {disk.STAND_IN_AGAIN}, or name "
            "another folder in HF_HUB_CACHE."
        )
    if paths.models() != "published":
        raise PublishedError(
            f"{_wanting(found)}. Nothing is downloaded unless it is asked for: run "
            "`make published`, or set MODELS=published."
        )
    if disk.offline():
        raise HubAway(
            f"{_wanting(found)}, and HF_HUB_OFFLINE forbids to ask the hub. Run `make published` "
            "once without HF_HUB_OFFLINE, or copy that folder from a machine that has it."
        )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _fetched(pin: Pin, found: Found) -> Found:
    """Download what `found` lacks; one process at a time."""
    _refuse(found)
    with disk.turn(f"fetch-{pin.name}") as waited:
        if waited:
            found = disk.look(pin)
        if not found.whole:
            sweep(pin)
            with _client() as client:
                try:
                    place = _download(found, client)
                except OSError as error:
                    raise _unwritable(pin.repository, error) from error
            # the pin is what was found now, not what "main" says later
            found = disk.look(dataclasses.replace(pin, revision=place.name))
            disk.lock(found)
    if not found.whole:
        raise PublishedError(f"{_wanting(found)}, although it was fetched. {AGAIN}.")
    return found


def sweep(pin: Pin) -> None:
    """Delete what killed downloads left of a repository: no client goes on with it.

    The client names such a file <hash>.<8 digits>.incomplete, by chance, and never opens it again.
    (An older one names it <hash>.incomplete and does go on: those are left.) The client's own lock
    tells whether another program is writing it at this moment; then it is left, too.
    """
    base = disk.repository_folder(pin)
    for part in base.glob("blobs/*.*.incomplete"):
        name = part.name.split(".")[0]
        place = disk.hub_cache() / ".locks" / base.name / f"{name}.lock"
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with open(place, "a") as handle:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                size = part.stat().st_size
                part.unlink()
        except OSError:  # it is being written, or gone, or this disk cannot be written
            continue
        _say(f"  {size / 1e6:,.1f} MB that a killed download left were deleted")


# ---- the download --------------------------------------------------------------------------------


@contextmanager
def _client() -> Iterator[Any]:
    """The hub's client, set to plain HTTP: what is fetched here is fetched whole and once.

    The faster protocol in chunks saves nothing for that, and its files would not pass by the
    proxies and mirrors that plain HTTP passes by.
    """
    import huggingface_hub
    from huggingface_hub import constants

    before = getattr(constants, "HF_HUB_DISABLE_XET", False)
    constants.HF_HUB_DISABLE_XET = True
    try:
        yield huggingface_hub
    finally:
        constants.HF_HUB_DISABLE_XET = before


def _endpoint(client: Any) -> str:
    return (os.environ.get("HF_ENDPOINT") or client.constants.ENDPOINT).rstrip("/")


def _download(found: Found, client: Any) -> Path:
    """Fetch what is missing or damaged; returns the folder of the commit."""
    pin, endpoint = found.pin, _endpoint(client)
    names = [*found.missing, *found.damaged]
    revision, told = pin.revision or "main", {}
    for name in pin.files if not pin.revision else names:
        url = client.hf_hub_url(
            pin.repository, name, repo_type=pin.kind, revision=revision, endpoint=endpoint
        )
        told[name] = _tried(
            lambda url=url: client.get_hf_file_metadata(
                url, timeout=client.constants.HF_HUB_ETAG_TIMEOUT
            ),
            f"{pin.repository}@{revision[:7]}/{name}", endpoint,
        )  # fmt: skip
        revision = pin.revision or told[name].commit_hash or revision
    place = disk.snapshot(pin, revision)
    names = [n for n in told if n in found.damaged or not (place / n).is_file()]
    for name in names:
        _same_as_pinned(pin, name, told[name].etag or "")
    total = sum(told[name].size or 0 for name in names)
    _room(total)
    _say(
        f"Fetching {pin.name}: {total / 1e6:,.1f} MB from {pin.repository}@{revision[:7]} "
        f"into {disk.hub_cache()}"
    )
    for name in names:
        for last in (False, True):
            if (place / name).is_symlink() or (place / name).exists():
                disk.remove(place / name)  # the client would give a damaged file as it is
            _tried(
                lambda name=name: client.hf_hub_download(
                    pin.repository, name, repo_type=pin.kind, revision=revision,
                    cache_dir=disk.hub_cache(), endpoint=endpoint,
                ),
                f"{pin.repository}@{revision[:7]}/{name}", endpoint,
            )  # fmt: skip
            why = _trouble(pin, place / name, name, told[name])
            if not why:
                break
            disk.remove(place / name)
            if last:
                raise PublishedError(
                    f"{pin.repository}@{revision[:7]}/{name} came damaged twice: {why}. It was "
                    f"deleted. {AGAIN} later, or by another network."
                )
            _say(f"  {name} came damaged ({why}); fetching it once more")
    return place


def _same_as_pinned(pin: Pin, name: str, etag: str) -> None:
    """Refuse a changed file before it is downloaded, where the hub tells its sha256."""
    wanted, told = pin.sha256.get(name), disk.kind_of(etag)
    if wanted and told and told[0] == "sha256" and told[1] != wanted:
        raise PublishedError(
            f"{pin.repository}/{name} on the hub is not the pinned file: sha256 {wanted[:12]}… was "
            f"expected, the hub has {etag[:12]}…. Nothing was downloaded. See whether this course "
            f"has a newer version. What was first found on this machine is noted in "
            f"{disk.lock_path()}: if that was wrong, delete the note."
        )


def _trouble(pin: Pin, path: Path, name: str, told: Any) -> str:
    """What is wrong with a file that has just come, by its size, the pin and the hub's own hash."""
    size = path.stat().st_size
    if told.size is not None and size != told.size:
        return f"{told.size:,} bytes were expected, {size:,} were found"
    named = disk.kind_of(told.etag or "")
    if named and disk.hashes(path)[named[0]] != named[1]:
        return f"{named[0]} {named[1][:12]}… was expected, {disk.hashes(path)[named[0]][:12]}… came"
    return disk.damage(pin, path, name)


def _room(total: int) -> None:
    place = disk.hub_cache()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < total + (64 << 20):
        raise PublishedError(
            f"The download needs {total / 1e6:,.0f} MB and {place} has {free / 1e6:,.0f} MB free. "
            "Free some space, or name a folder on another disk in HF_HUB_CACHE."
        )


# ---- a hub that is busy, slow or away ------------------------------------------------------------


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes; the client hides a first failure behind a general one."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__


def _answer(error: BaseException) -> Any:
    """The hub's response that an error is about, or None when there was none."""
    found = (getattr(one, "response", None) for one in _chain(error))
    return next((r for r in found if hasattr(r, "status_code")), None)


def _words(error: BaseException) -> str:
    """The root cause in one short line."""
    root = list(_chain(error))[-1]
    lines = [line.strip() for line in str(root).splitlines() if line.strip()]
    return f"{type(root).__name__}: {lines[0]}"[:200] if lines else type(root).__name__


def _asked_to_wait(response: Any) -> float:
    """Seconds that the hub asks to wait, 0 where it says nothing: Retry-After, or RateLimit's t."""
    if response is None:
        return 0.0
    plain = re.fullmatch(r"\s*(\d+)\s*", response.headers.get("Retry-After") or "")
    left = re.search(r"\br=0;\s*t=(\d+)", response.headers.get("RateLimit") or "")
    return max((float(found.group(1)) for found in (plain, left) if found), default=0.0)


def _of_this_disk(error: BaseException) -> OSError | None:
    """The error of this machine's own disk that is behind a failure, or None."""
    for one in _chain(error):
        if isinstance(one, OSError) and (
            one.errno in FULL or (one.errno in RIGHTS and one.filename is not None)
        ):
            return one
    return None


def _unwritable(what: str, error: OSError) -> PublishedError:
    mend = "Free some space" if error.errno in FULL else "See who may write there"
    return PublishedError(
        f"{what} cannot be stored in {disk.hub_cache()} ({_words(error)}). {mend}, or name a "
        f"folder on another disk in HF_HUB_CACHE. {AGAIN} then; finished files are kept."
    )


def _tried(call: Callable[[], T], what: str, endpoint: str) -> T:
    """What `call` returns; a hub that is busy or broken is asked again, later each time.

    Raises PublishedError: refused, or still nothing after the last try, or this disk is at fault.
    """
    for number in range(1, TRIES + 1):
        try:
            return call()
        except Exception as error:  # requests and httpx, under the client, have no error in common
            if local := _of_this_disk(error):
                raise _unwritable(what, local) from error
            response, said = _answer(error), _words(error)
            status = None if response is None else response.status_code
            if status in REFUSED:
                raise PublishedError(f"{what}: the hub {REFUSED[status]} ({status}).") from error
            wait = FIRST_WAIT * 2 ** (number - 1) * (1 + random.random() / 2)
            wait = max(wait, _asked_to_wait(response))
            if number == TRIES or wait > LONGEST_WAIT:
                kind = HubAway if status is None else PublishedError
                raise kind(_gone(what, endpoint, status, said, wait)) from error
            _say(f"  {what}: {said}; again in {wait:.0f} s (try {number + 1} of {TRIES})")
            time.sleep(wait)
    raise AssertionError("unreachable")


def _gone(what: str, endpoint: str, status: int | None, said: str, wait: float) -> str:
    """One line: what failed and what to do."""
    if status == 429:
        later = f"in {wait / 60:.0f} minutes" if wait > LONGEST_WAIT else "later"
        return f"{what}: the hub has had too many requests (429). {AGAIN} {later}."
    if status is not None:
        return f"{what}: the hub answers {status} ({said}). {AGAIN} later; finished files are kept."
    return (
        f"The hub ({endpoint}) cannot be reached or breaks off ({said}). {AGAIN} with a network; "
        "finished files are kept. Without one: copy a hub cache from a machine that has it and "
        "name it in HF_HUB_CACHE."
    )
