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
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from circuitbook import paths, results
from circuitbook.published import disk
from circuitbook.published.disk import Found, PublishedError
from circuitbook.published.patience import AGAIN, HubAway, say, tried, unwritable
from circuitbook.published.pins import Pin

__all__ = ["HubAway", "PublishedError", "commit", "folder", "sha256"]

_whole: dict[tuple, tuple[Path, dict]] = {}


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
    base = disk.repository_folder(found.pin)
    if found.commit is None and (there := sorted(p.name for p in base.glob("snapshots/*"))):
        return (
            f"{base} holds {len(there)} commits ({', '.join(there)}) and no note of the one that "
            "is meant (write it into refs/main there)"
        )
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
            f"{_wanting(found)}, and {disk.offline()} forbids to ask the hub. Run `make published` "
            f"once without {disk.offline()}, or copy that folder from a machine that has it."
        )


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
                    place, compared = _download(found, client)
                except OSError as error:
                    raise unwritable(pin.repository, error) from error
            # the pin is what was found now, not what "main" says later
            found = disk.look(dataclasses.replace(pin, revision=place.name))
            rest = tuple(name for name in found.unverified if name not in compared)
            found = dataclasses.replace(found, unverified=rest)
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
        say(f"  {size / 1e6:,.1f} MB that a killed download left were deleted")


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
    """The hub's address: HF_ENDPOINT, or the client's own.

    Raises HubAway: HF_ENDPOINT is no address; the client takes an empty one for one, too.
    """
    told = os.environ.get("HF_ENDPOINT", client.constants.ENDPOINT).strip().rstrip("/")
    if not told.startswith(("http://", "https://")):
        raise HubAway(
            f"HF_ENDPOINT is {told!r}, and that is no address of a hub: give one that begins with "
            "https://, or unset it."
        )
    return told


def _download(found: Found, client: Any) -> tuple[Path, set[str]]:
    """Fetch what is missing or damaged.

    Returns the folder of the commit, and the files that were compared with the hub's own hash: on
    a disk without links nothing else will tell.
    """
    pin, endpoint = found.pin, _endpoint(client)
    names = [*found.missing, *found.damaged]
    revision, told = pin.revision or "main", {}
    for name in pin.files if not pin.revision else names:
        url = client.hf_hub_url(
            pin.repository, name, repo_type=pin.kind, revision=revision, endpoint=endpoint
        )
        told[name] = tried(
            lambda url=url: client.get_hf_file_metadata(
                url, timeout=client.constants.HF_HUB_ETAG_TIMEOUT
            ),
            f"{pin.repository}@{revision[:7]}/{name}", endpoint,
        )  # fmt: skip
        if not told[name].commit_hash or not told[name].etag:
            raise HubAway(
                f"{endpoint} answers, but not as a hub does. Is there a login page or a proxy on "
                f"the way? Open any page in a browser. {AGAIN} then."
            )
        if pin.revision not in (None, told[name].commit_hash):
            raise HubAway(
                f"{endpoint} answers with commit {told[name].commit_hash[:12]} of {pin.repository} "
                f"where {pin.revision[:12]} was asked for: it is no faithful mirror. Unset "
                "HF_ENDPOINT, or name another hub in it."
            )
        revision = told[name].commit_hash
    place = disk.snapshot(pin, revision)
    names = [n for n in told if n in found.damaged or not (place / n).is_file()]
    for name in names:
        _same_as_pinned(pin, name, told[name].etag or "")
    total = sum(told[name].size or 0 for name in names)
    _room(total)
    say(
        f"Fetching {pin.name}: {total / 1e6:,.1f} MB from {pin.repository}@{revision[:7]} "
        f"into {disk.hub_cache()}"
    )
    for name in names:
        for last in (False, True):
            if (place / name).is_symlink() or (place / name).exists():
                disk.remove(place / name)  # the client would give a damaged file as it is
            tried(
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
            say(f"  {name} came damaged ({why}); fetching it once more")
    return place, {name for name in names if disk.kind_of(told[name].etag or "")}


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
