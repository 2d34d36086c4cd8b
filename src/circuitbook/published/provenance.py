"""Which published files and which text a result was made with, as one hash; asks the disk only."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable

from circuitbook.published import disk
from circuitbook.published.pins import Pin


def local_text() -> bool:
    """True when CIRCUITBOOK_TEXT names a text of the reader's own."""
    return bool(os.environ.get("CIRCUITBOOK_TEXT", "").strip())


def of_files(wanted: Iterable[Pin]) -> str:
    """A hash that changes when other files of these pins lie on this disk."""
    parts = []
    for found in map(disk.look, wanted):
        there = [name for name in found.pin.files if name not in found.missing]
        own = [disk.hashes(found.place / name)["sha256"] for name in there] if found.place else []
        parts.append([found.where, *own])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def identity() -> str | None:
    """A hash of today's published models, tokenizer and text; None while some are not here."""
    from circuitbook.published import pins, text

    wanted = [pin for pin in pins.ALL.values() if pin.name != pins.TEXT.name or not local_text()]
    if not all(disk.look(pin).whole for pin in wanted):
        return None
    parts = [of_files(wanted), text.fingerprint()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
