"""The published tokenizer behind the same interface as the course's own.

Byte-level pairs with single digits, 48,262 tokens. It has begin-of-sequence, end and padding
tokens of its own; only the first is used here, once, at the start of every prompt and window.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import SupportsInt

from tokenizers import Tokenizer as _Backend

from circuitbook import vocabulary
from circuitbook.published import disk, fetch
from circuitbook.published.fetch import PublishedError
from circuitbook.published.pins import TOKENIZER
from circuitbook.tokenizer import Tokenizer

# What a later version of the tokenizer library once got wrong: this line break with three blanks
# is one token of the vocabulary, not a line break and then a run of blanks.
GOLDEN = ("\n   ", 477)


class PublishedTokenizer(Tokenizer):
    """Text to the ids of the published models and back; `bos` is the id of <|BOS|>."""

    def __init__(self, backend: _Backend, bos: str) -> None:
        self._backend = backend
        self._backend.encode_special_tokens = True  # "<|BOS|>" typed in a text is only text
        self.vocab_size: int = backend.get_vocab_size()
        found = backend.token_to_id(bos)
        if found is None:
            raise PublishedError(f"the tokenizer has no token {bos}, its own name for the start")
        self.bos: int = found

    @classmethod
    def from_folder(cls, folder: Path) -> PublishedTokenizer:
        """Read tokenizer.json and special_tokens_map.json.

        Raises PublishedError: a file is missing or damaged, or the tokenizer is another one.
        """
        try:
            named = json.loads((folder / "special_tokens_map.json").read_text(encoding="utf-8"))
            bos = named["bos_token"]
            bos = bos if isinstance(bos, str) else bos["content"]
            made = cls(_Backend.from_file(str(folder / "tokenizer.json")), bos)
        except PublishedError:
            raise
        except Exception as error:  # the backend raises bare Exception
            raise PublishedError(
                f"{folder} does not hold a readable tokenizer ({error}). {disk.again()}"
            ) from error
        text, wanted = GOLDEN
        ids = made.encode(text, bos=False)
        if ids != [wanted]:
            raise PublishedError(
                f"a line break with three blanks must be token {wanted} alone, and here it is "
                f"{ids}: the tokenizer file or the installed `tokenizers` is another one than "
                "these models were trained with. Install the pinned packages with `make setup`."
            )
        return made

    def text(self, token: SupportsInt) -> str:
        """What one token stands for; half a character shows as its bytes in hexadecimal."""
        symbol = self._backend.id_to_token(self._known(token))
        if all(letter in vocabulary.BYTE_OF for letter in symbol):
            return vocabulary.readable(symbol)
        return symbol  # an added token is spelled as it is, not in the byte alphabet

    def token(self, string: str) -> int:
        """The id of a string that is exactly one token; errors as in the course tokenizer."""
        if string == vocabulary.BOS:
            return self.bos
        return super().token(string)


@functools.cache
def _load(folder: Path) -> PublishedTokenizer:
    return PublishedTokenizer.from_folder(folder)


def load() -> PublishedTokenizer:
    """The tokenizer of the four published small models."""
    return _load(fetch.folder(TOKENIZER))


@functools.cache
def _texts(folder: Path) -> tuple[str, ...]:
    tok = _load(folder)
    return tuple(tok.text(i) for i in range(tok.vocab_size))


def texts() -> list[str]:
    """What every token stands for, in id order."""
    return list(_texts(fetch.folder(TOKENIZER)))
