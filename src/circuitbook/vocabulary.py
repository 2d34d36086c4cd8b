"""The course vocabulary as plain data: what each token stands for, without the tokenizer library.

The trainer names frequent words by this file alone, so it needs no package beyond torch, numpy and
safetensors once the text is encoded.
"""

from __future__ import annotations

import json
from pathlib import Path

from circuitbook import paths

BOS = "<|bos|>"
VOCABULARY = 4096
FILE = "tokenizer.json"


class TokenError(ValueError):
    """A string is not what the caller needs it to be; the message shows its pieces."""


def _byte_letters() -> dict[str, int]:
    """Which byte each letter of the byte-level alphabet stands for (the GPT-2 table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(byte): byte for byte in printable}
    rest = [byte for byte in range(256) if byte not in printable]
    letters.update({chr(256 + i): byte for i, byte in enumerate(rest)})
    return letters


BYTE_OF = _byte_letters()


def readable(symbol: str) -> str:
    """What a symbol of the byte-level alphabet stands for; half a character shows as its bytes."""
    if symbol == BOS:
        return BOS
    spelled = bytes(BYTE_OF[letter] for letter in symbol)
    text = spelled.decode(errors="replace")
    return "".join(f"<0x{byte:02X}>" for byte in spelled) if "\ufffd" in text else text


def file_path() -> Path:
    """`weights/tokenizer.json`."""
    return paths.WEIGHTS / FILE


def texts(path: Path | None = None) -> list[str]:
    """What every token stands for, in id order: of a saved tokenizer, or of today's model set.

    Raises:
        TokenError: the file is missing or not a tokenizer.
    """
    if path is None and paths.models() == "published":
        from circuitbook.published import tokens

        return tokens.texts()
    path = path or file_path()
    try:
        ids = json.loads(path.read_text())["model"]["vocab"]
        symbols = sorted(ids, key=ids.__getitem__)
        if [ids[s] for s in symbols] != list(range(len(symbols))):
            raise ValueError("its ids are not 0, 1, 2, …")
        return [readable(symbol) for symbol in symbols]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TokenError(restore(path, error)) from error


def restore(path: Path, error: object) -> str:
    """The message for a tokenizer file that cannot be used."""
    if not path.is_file():
        return f"There is no tokenizer at {path}. Restore it: git checkout {path}"
    return f"{path} is not a readable tokenizer ({error}). Restore it: git checkout {path}"
