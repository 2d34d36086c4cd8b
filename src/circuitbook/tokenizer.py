"""The course tokenizer: byte-pair merges over about 4,096 tokens, and one token when you need one.

Any Unicode text round-trips, because every byte is a token. Digits stand alone. The given names,
days, months and prompt words of :mod:`circuitbook.names` are single tokens, each with its leading
blank: `" Sally"` and `"Sally"` are different tokens. Token 0 is the begin-of-sequence token; it
opens every training window and every prompt, once.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import SupportsInt

from tokenizers import Tokenizer as _Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from circuitbook import paths
from circuitbook.names import SINGLE_TOKENS
from circuitbook.vocabulary import (
    BOS,
    BYTE_OF,
    VOCABULARY,
    TokenError,
    file_path,
    readable,
    restore,
)

__all__ = ["BOS", "VOCABULARY", "TokenError", "Tokenizer", "load", "train"]


class Tokenizer:
    """Text to token ids and back: `decode(encode(text))` is `text` for any Unicode string."""

    def __init__(self, backend: _Backend) -> None:
        self._backend = backend
        self.vocab_size: int = backend.get_vocab_size()
        self.bos: int = backend.token_to_id(BOS)
        if self.bos != 0:
            raise TokenError(f"token 0 must be {BOS}, and here {BOS} is token {self.bos}")

    @classmethod
    def from_file(cls, path: Path) -> Tokenizer:
        """Read a saved tokenizer.

        Raises:
            TokenError: the file is missing or not a tokenizer.
        """
        try:
            found = cls(_Backend.from_file(str(path)))
            if found.vocab_size != VOCABULARY:
                raise TokenError(f"{found.vocab_size} entries, {VOCABULARY} were expected")
        except Exception as error:  # the backend raises bare Exception
            raise TokenError(restore(path, error)) from error
        return found

    def save(self, path: Path) -> None:
        """Write the tokenizer as one JSON file, whole or not at all."""
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        text = json.dumps(json.loads(self._backend.to_str()), ensure_ascii=True) + "\n"
        scratch.write_text(text)
        os.replace(scratch, path)

    def encode(self, text: str, *, bos: bool = True) -> list[int]:
        """Token ids of a text, opened by the begin-of-sequence token unless `bos=False`.

        The text of the begin-of-sequence token itself has no special meaning here: it is spelled
        out in bytes, so a prompt can never hold a second one by accident.

        Raises:
            TokenError: the text holds half a surrogate pair, which is no Unicode character.
        """
        ids = self._backend.encode(_proper(text), add_special_tokens=False).ids
        return [self.bos, *ids] if bos else ids

    def encode_many(self, texts: list[str]) -> list[list[int]]:
        """Token ids of many texts, without begin-of-sequence tokens."""
        texts = [_proper(text) for text in texts]
        return [e.ids for e in self._backend.encode_batch(texts, add_special_tokens=False)]

    def decode(self, ids: Iterable[SupportsInt]) -> str:
        """The text of some ids; the begin-of-sequence token has none.

        Ids that end inside a character give U+FFFD there; no sequence of token ids is an error.

        Raises:
            TokenError: an id is outside the vocabulary.
        """
        return self._backend.decode([i for i in map(self._known, ids) if i != self.bos])

    def _known(self, token: SupportsInt) -> int:
        token = int(token)
        if not 0 <= token < self.vocab_size:
            raise TokenError(f"Token id {token} is outside 0..{self.vocab_size - 1}.")
        return token

    def pieces(self, text: str) -> list[str]:
        """The readable pieces of a text, in order, without a begin-of-sequence token."""
        return [self.text(i) for i in self.encode(text, bos=False)]

    def text(self, token: SupportsInt) -> str:
        """What one token stands for; half a character shows as its bytes in hexadecimal."""
        return readable(self._backend.id_to_token(self._known(token)))

    def token(self, string: str) -> int:
        """The id of a string that is exactly one token.

        Raises:
            TokenError: the string is several tokens; the message names the pieces, and the
                spelling with or without a leading blank when that one is a single token.
        """
        if string == BOS:
            return self.bos
        ids = self.encode(string, bos=False)
        if len(ids) == 1:
            return ids[0]
        other = string[1:] if string.startswith(" ") else " " + string
        hint = ""
        if string and len(self.encode(other, bos=False)) == 1:
            hint = f" But {other!r} is one token: a word with its blank is another token."
        raise TokenError(f"{string!r} is {len(ids)} tokens, not one: {self.pieces(string)}.{hint}")


def _proper(text: str) -> str:
    """The text itself, if it is Unicode text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TokenError(
            f"Character {error.start} of the text is U+{ord(text[error.start]):04X}, half a "
            f"surrogate pair and no character of its own. Read the text as UTF-8, or remove it."
        ) from None
    return text


def _blank_backend(merges: list[tuple[str, str]], vocabulary: dict[str, int]) -> _Backend:
    backend = _Backend(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _from_merges(merges: list[tuple[str, str]]) -> _Backend:
    """A tokenizer from its ordered merges alone: BOS, then the 256 bytes, then one id a merge."""
    symbols = [BOS, *sorted(BYTE_OF)]
    seen = set(symbols)
    for a, b in merges:
        if a + b not in seen:
            symbols.append(a + b)
            seen.add(a + b)
    return _blank_backend(merges, {symbol: i for i, symbol in enumerate(symbols)})


def _merges_for(words: list[str], merges: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The extra merges, of lowest priority, that make each word one token."""
    extra: list[tuple[str, str]] = []
    for word in words:
        backend = _from_merges(merges + extra)
        symbols = backend.encode(word, add_special_tokens=False).tokens
        while len(symbols) > 1:
            extra.append((symbols[0], symbols[1]))
            symbols = [symbols[0] + symbols[1], *symbols[2:]]
    return extra


def train(texts: Iterator[str], *, words: list[str] = SINGLE_TOKENS) -> Tokenizer:
    """Byte-pair merges learned from texts, then just enough merges for the course's words.

    The commonest pair of neighbours is merged first; ties go by the trainer's fixed order, so the
    same texts give the same file. The last places of the vocabulary are given to the words that
    were not single tokens already.

    Raises:
        TokenError: the texts are too short to learn a whole vocabulary from.
    """
    backend = _blank_backend([], {BOS: 0})
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    learned = [tuple(pair) for pair in json.loads(backend.to_str())["model"]["merges"]]
    room = VOCABULARY - 1 - 256
    keep = min(room, len(learned))
    extra = _merges_for(words, learned[:keep])
    while keep + len(extra) > room:
        keep -= keep + len(extra) - room
        extra = _merges_for(words, learned[:keep])
    while _from_merges(learned[:keep] + extra).get_vocab_size() < VOCABULARY:
        if keep >= len(learned):
            raise TokenError(
                f"The texts hold only {len(learned):,} different merges, {room:,} are needed for a "
                f"vocabulary of {VOCABULARY:,}. Train on more text."
            )
        keep += 1  # a merge that is kept may have made an extra one needless
        extra = _merges_for(words, learned[:keep])
    return Tokenizer(_from_merges(learned[:keep] + extra))


@functools.cache
def _load(path: Path) -> Tokenizer:
    return Tokenizer.from_file(path)


def load() -> Tokenizer:
    """The tokenizer of today's model set: the bundled one, or that of the published models."""
    if paths.models() == "published":
        from circuitbook.published import tokens

        return tokens.load()
    return _load(file_path())
