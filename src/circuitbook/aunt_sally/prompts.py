"""Prompts of one kind: a title, a name, other words, the title again; the name should follow.

Titles and names are one token each, so within a frame the same position holds the same kind of
word. Frames differ in length, in where the name stands, and in how much comes between.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from circuitbook import spine, tokenizer
from circuitbook.names import NAMES

TITLES = (" Aunt", " Uncle")
FRAMES = (
    spine.TEMPLATE,
    "Last summer {title} {name} came to our house. In the evening {title}",
    "We had a letter from {title} {name} in the morning. My mother said that {title}",
    "We know that {title} {name} lived near the market. Every Sunday we went there, and {title}",
    "On Monday I met {title} {name} in the garden. A friend was there. Then {title}",
    "The door was open, and there stood {title} {name} with a book. I asked {title}",
    "Where is the key? asked {title} {name}. Nobody knew. So {title}",
    "When my father was ill, {title} {name} gave him money, and he never forgot {title}",
)
SWAPS = ("none", "first", "last", "both")


class Frame(NamedTuple):
    """All names in one frame. tokens [n, pos] open with BOS and end at the second title."""

    tokens: Int[Tensor, "n pos"]
    answer: Int[Tensor, " n"]
    first: int  # position of the first title
    name: int  # position of the name, right after it
    female: list[bool]

    @property
    def last(self) -> int:
        """Position of the second title, the last token."""
        return self.tokens.shape[1] - 1


def names() -> list[tuple[str, bool]]:
    """(name, is female) of every name that is one token, as many women as men, in a fixed order.

    The course's tokenizer has all of them; another one may split some, and those are left out.
    """
    tok = tokenizer.load()
    whole = [x for x in NAMES if len(tok.encode(f" {x[0]}", bos=False)) == 1]
    both = [[x for x in whole if x[1] is female] for female in (True, False)]
    n = min(map(len, both))
    return both[0][:n] + both[1][:n]


def title_ids() -> tuple[int, int]:
    """Token ids of " Aunt" and " Uncle"."""
    tok = tokenizer.load()
    return tok.token(TITLES[0]), tok.token(TITLES[1])


def frames(texts: tuple[str, ...] = FRAMES) -> list[Frame]:
    """Every one of `names` in every frame, "Aunt" for women and "Uncle" for men.

    Raises ValueError when a frame does not put title, name and title where they are expected.
    """
    tok, out, people = tokenizer.load(), [], names()
    for text in texts:
        rows = [
            tok.encode(text.format(title=TITLES[not female].strip(), name=name))
            for name, female in people
        ]
        if len({len(row) for row in rows}) != 1:
            raise ValueError(f"{text!r} is not of one length: a title needs a blank before it")
        tokens = torch.tensor(rows)
        answer = torch.tensor([tok.token(f" {name}") for name, _ in people])
        name_at = int((tokens[0] == answer[0]).nonzero()[0])
        frame = Frame(tokens, answer, name_at - 1, name_at, [female for _, female in people])
        title = tokens[:, frame.first]
        if not bool((tokens[:, name_at] == answer).all() and (title == tokens[:, -1]).all()):
            raise ValueError(f"{text!r} does not hold title, name and the same title at the end")
        out.append(frame)
    return out


def swapped(frame: Frame, which: str) -> Int[Tensor, "n pos"]:
    """The tokens with "Aunt" and "Uncle" exchanged at the first title, the last one, or both.

    Nothing else changes, so all positions stay. `which` is one of SWAPS.
    """
    if which not in SWAPS:
        raise ValueError(f"which title? one of {SWAPS}, not {which!r}")
    aunt, uncle = title_ids()
    tokens = frame.tokens.clone()
    places = {"none": [], "first": [frame.first], "last": [-1], "both": [frame.first, -1]}
    for place in places[which]:
        tokens[:, place] = aunt + uncle - tokens[:, place]
    return tokens


def rivals(frame: Frame) -> Int[Tensor, "n rival"]:
    """For each prompt the ids of all other names of the same sex: what else would fit the title."""
    female = torch.tensor(frame.female)
    n = int(female.sum()), int((~female).sum())
    if n[0] != n[1]:
        raise ValueError(f"the names are {n[0]} women and {n[1]} men; rivals need as many of each")
    same = female[:, None] == female[None, :]
    same.fill_diagonal_(False)
    return frame.answer.expand(len(female), -1)[same].view(len(female), -1)


def row_of(name: str) -> int:
    """The row of every frame that holds this name; ValueError when it is none of the names."""
    return [known for known, _ in names()].index(name)
