"""Prompts for GPT-2: one layout, one length, and every word that counts is one token.

A batch holds prompts of one template, so a position means the same in all of them and means may be
taken position by position. Each word that a template's slot takes is checked with the tokenizer
at hand; a word of two tokens would shift all that follows and turn the question into another one.

Sources of the two tasks: Wang et al. 2023 (indirect object, with ABC prompts as the reference);
Hanna et al. 2023 (greater-than, with "01" prompts as the corrupted set). Templates are our own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

Encode = Callable[[str], list[int]]

NAMES = (
    "Mary", "John", "Tom", "James", "Anna", "Paul", "Sarah", "David", "Laura", "Mark", "Kate",
    "Peter", "Alice", "Daniel", "Emma", "Simon",
)  # fmt: skip
# I and S in one order and the other; the answer to S's gift is I. X, Y, Z: three people, no repeat.
NAME_TEMPLATES = (
    "After{I} and{S} found the old box,{S} showed it to",
    "After{S} and{I} found the old box,{S} showed it to",
    "Then{I} and{S} had dinner at the station, and{S} lent a book to",
    "Then{S} and{I} had dinner at the station, and{S} lent a book to",
)
YEAR_NOUNS = ("war", "strike", "voyage", "siege", "trial", "truce", "famine", "reign")
YEAR_TEMPLATES = (
    "The{N} lasted from the year{C}{Y} to the year{C}",
    "People spoke of the{N} that went on from{C}{Y} until{C}",
)
CENTURIES = (12, 13, 14, 15, 16, 17, 18)
FIRST, LAST = 2, 98  # YY


class PromptError(ValueError):
    """A word is not one token in the tokenizer at hand, or too few words are left."""


class Batch(NamedTuple):
    """Prompts of one template with what the tools need; n rows."""

    tokens: Int[Tensor, "n pos"]
    others: Int[Tensor, "n pos"]  # ABC prompts, or "01" prompts: same layout, another question
    end: Int[Tensor, " n"]  # the answering position
    right: Int[Tensor, " n"]  # the other name; for years YY itself, a number
    wrong: Int[Tensor, " n"]  # the repeated name; for years YY again
    year_ids: Int[Tensor, " year"]  # the tokens of "00" … "99"; empty for names


def local_encoder(folder: str | Path) -> Encode:
    """The tokenizer that lies beside the weights, as a function from text to ids. No network."""
    from tokenizers import ByteLevelBPETokenizer, Tokenizer

    folder = Path(folder)
    if (folder / "tokenizer.json").is_file():
        made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    elif (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        made = ByteLevelBPETokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    else:
        raise PromptError(f"{folder} has no tokenizer.json, nor vocab.json with merges.txt")
    return lambda text: made.encode(text).ids


def single_tokens(encode: Encode, words: Sequence[str]) -> list[int]:
    """The id of each word.

    Raises PromptError and names the words that are not exactly one token.
    """
    ids = [encode(word) for word in words]
    if split := [
        f"{w!r} ({len(i)} tokens)" for w, i in zip(words, ids, strict=True) if len(i) != 1
    ]:
        raise PromptError(f"not one token: {', '.join(split)}")
    return [i[0] for i in ids]


def year_tokens(encode: Encode) -> tuple[dict[int, int], list[int], set[tuple[int, int]]]:
    """(century -> id, ids of "00" … "99", pairs that really split into those two tokens).

    Many years are one token or split elsewhere ("1900"), so each pair is tried with its blank.
    """
    years = single_tokens(encode, [f"{y:02}" for y in range(100)])
    centuries = dict(
        zip(CENTURIES, single_tokens(encode, [f" {c}" for c in CENTURIES]), strict=True)
    )
    good = {
        (c, y)
        for c in CENTURIES
        for y in range(100)
        if encode(f" {c}{y:02}") == [centuries[c], years[y]]
    }
    return centuries, years, good


def name_batch(
    encode: Encode, n: int, rng: np.random.Generator, template: int, start: Sequence[int] = ()
) -> Batch:
    """n prompts of one name template; `others` has three people and no repeat (ABC).

    start: ids before the text, such as GPT-2's <|endoftext|>.
    """
    ids = np.array(single_tokens(encode, [f" {name}" for name in NAMES]))
    people = ids[np.stack([rng.permutation(len(ids))[:5] for _ in range(n)])]  # [n, 5], distinct
    io, s, *abc = people.T
    text = NAME_TEMPLATES[template]
    tokens = _fill(encode, text, {"I": io, "S": s}, start)
    at = [place for place, slot in enumerate(_slots(encode, text, start)) if slot in ("I", "S")]
    others = tokens.copy()
    others[:, at] = np.stack(abc, 1)  # three slots, three people
    return _batch(tokens, others, io, s, [])


def year_batch(
    encode: Encode, n: int, rng: np.random.Generator, template: int, start: Sequence[int] = ()
) -> Batch:
    """n prompts of one year template; `others` has 01 in place of YY (the corrupted set).

    Only pairs of century and year that are two tokens are used, and only centuries where 01 is.
    """
    nouns = np.array(single_tokens(encode, [f" {noun}" for noun in YEAR_NOUNS]))
    centuries, years, good = year_tokens(encode)
    pairs = sorted((c, y) for c, y in good if FIRST <= y <= LAST and (c, 1) in good)
    if len(pairs) < 100:
        raise PromptError(f"only {len(pairs)} pairs of century and year are two tokens here")
    chosen = np.array(pairs)[rng.integers(0, len(pairs), n)]
    century = np.array([centuries[c] for c in chosen[:, 0]])
    text, noun = YEAR_TEMPLATES[template], nouns[rng.integers(0, len(nouns), n)]
    year = np.array(years)
    tokens, others = (
        _fill(encode, text, {"N": noun, "C": century, "Y": y}, start)
        for y in (year[chosen[:, 1]], np.full(n, year[1]))
    )
    return _batch(tokens, others, chosen[:, 1], chosen[:, 1], years)


def _slots(encode: Encode, text: str, start: Sequence[int]) -> list[int | str]:
    """The template as ids and slot names, in order."""
    out: list[int | str] = list(start)
    for k, part in enumerate(text.replace("}", "{").split("{")):
        out += part if k % 2 else encode(part) if part else []
    return out


def _fill(encode: Encode, text: str, values: dict[str, np.ndarray], start: Sequence[int]):
    n = len(next(iter(values.values())))
    pieces = _slots(encode, text, start)
    columns = [values[p] if isinstance(p, str) else np.full(n, p) for p in pieces]
    return np.stack(columns, 1).astype(np.int64)


def _batch(tokens, others, right, wrong, years) -> Batch:
    end = np.full(len(tokens), tokens.shape[1] - 1)
    arrays = (tokens, others, end, right, wrong, years)
    return Batch(*(torch.from_numpy(np.array(x, dtype=np.int64)) for x in arrays))
