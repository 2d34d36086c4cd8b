"""Which published files and which text a result was made with, as one hash; asks the disk only."""

from __future__ import annotations

import hashlib
import json
import os


def local_text() -> bool:
    """True when CIRCUITBOOK_TEXT names a text of the reader's own."""
    return bool(os.environ.get("CIRCUITBOOK_TEXT", "").strip())


def identity() -> str | None:
    """A hash of today's published models, tokenizer and text; None while some are not here."""
    from circuitbook.published import disk, pins, text

    wanted = [pin for pin in pins.ALL.values() if pin.name != pins.TEXT.name or not local_text()]
    if not all(disk.look(pin).whole for pin in wanted):
        return None
    parts = [disk.identity(wanted), text.fingerprint()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
