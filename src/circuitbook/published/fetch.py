"""Files of the hub on this disk: found in the hub client's cache."""

from __future__ import annotations

from pathlib import Path

from circuitbook.published.pins import Pin


class PublishedError(RuntimeError):
    """A published file is missing, damaged or of another kind; says what to do."""


def folder(pin: Pin) -> Path:
    """The folder that holds all files of a pin (the hub client's snapshot of its revision)."""
    from huggingface_hub import hf_hub_download

    place = None
    for name in pin.files:
        try:
            found = hf_hub_download(
                pin.repository, name, repo_type=pin.kind, revision=pin.revision,
                local_files_only=True,
            )  # fmt: skip
        except Exception as error:
            raise PublishedError(f"{pin.repository}: {name} is not on this machine") from error
        place = Path(found)
        for _ in name.split("/"):
            place = place.parent
    assert place is not None
    return place


def commit(pin: Pin) -> str:
    """The commit of the files that `folder` gives."""
    return folder(pin).name


def sha256(pin: Pin, file: str) -> str:
    """The sha256 of one file of a pin."""
    import hashlib

    digest = hashlib.sha256()
    with open(folder(pin) / file, "rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
