"""The name that occurs once is the answer: "When Mary and John …, John gave a drink to" -> Mary.

A small version of indirect object identification (Wang et al. 2022, arXiv 2211.00593) with a
vocabulary of its own, for a model that is trained on nothing else. Two people are introduced (in
either order), one of them acts (S, the second mention), and the other receives (IO, the answer).
Position alone tells nothing: clauses come in many orders and lengths, the order of the two names is
a fair coin, and a third person, named twice, may stand before, between, after or around them.

What is held out: some templates and some names. A held-out name never occurs in a name-task prompt
of the training split. Its embedding still needs training, so all names occur in plain sentences of
two other kinds ("Anna took the key . the key was for" -> Anna, and who has what).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from circuitbook.names import NAMES as COURSE_NAMES
from circuitbook.tasks import BOS, PAD, Batch
from circuitbook.tasks import names_text as text

N_CTX = 40
ANSWERED = -1  # a target that does not count
NAMES = (*(name for name, _ in COURSE_NAMES), *text.MORE_NAMES)
HELD_OUT_NAMES = NAMES[5::6]  # every sixth, women's and men's names alike
_words = {w for part in text.every_text() for w in part.split() if not w.startswith("{")}
VOCAB = ("<bos>", "<pad>", *NAMES, *sorted(_words | {*text.PLACES, *text.OBJECTS}))
_ID = {word: i for i, word in enumerate(VOCAB)}
assert len(_ID) == len(VOCAB), "a word is also a name"

# A slot in a layout is a negative number. S is the second mention, C and c the third person's.
SLOTS = ("A", "B", "S", "C", "c", "PLACE", "OBJECT", "D", "OTHER")
_CODE = {f"{{{slot}}}": -1 - i for i, slot in enumerate(SLOTS)}
MENTIONS = SLOTS[:5]
KINDS = ("none", "before", "between", "after", "around")  # where the third person stands
SHARES = (0.15, 0.25, 0.15, 0.2, 0.25)
SPLITS = ("train", "seen", "unseen names", "unseen templates", "unseen")
# Of a training batch: name task, one name to repeat, who has what.
MIX = (0.6, 0.25, 0.15)


class Layout(NamedTuple):
    """One order of words, as places in the lists of `names_text`.

    held: 0 trained, 1 held out, 2 held out with an unknown phrase. phrase: the third person's.
    """

    kind: int
    held: int
    intro: int
    action: int
    phrase: int
    opening: int
    mid: int
    post: int


class Prompts(NamedTuple):
    """Name-task prompts of which everything is known. Positions are -1 where a mention is absent.

    end: the last word, whose logits are read. io, s: the two names' tokens; others: third person's
    (-1 without). at: position of each of MENTIONS. first: IO was named before S.
    """

    tokens: Int[np.ndarray, "n pos"]
    layout: Int[np.ndarray, "n part"]  # the parts of a Layout
    end: Int[np.ndarray, " n"]
    io: Int[np.ndarray, " n"]
    s: Int[np.ndarray, " n"]
    others: Int[np.ndarray, " n"]
    at: Int[np.ndarray, "n mention"]
    first: Bool[np.ndarray, " n"]

    @property
    def kind(self) -> Int[np.ndarray, " n"]:
        """Where the third person stands, as a place in KINDS."""
        return self.layout[:, 0]

    @property
    def cluster(self) -> Int[np.ndarray, " n"]:
        """Prompts that share their introduction."""
        return self.layout[:, 2]

    @property
    def at_io(self) -> Int[np.ndarray, " n"]:
        """Position of the answer's only mention."""
        return np.where(self.first, self.at[:, 0], self.at[:, 1])

    @property
    def at_s1(self) -> Int[np.ndarray, " n"]:
        """Position of the first mention of the one who acts."""
        return np.where(self.first, self.at[:, 1], self.at[:, 0])

    @property
    def at_s2(self) -> Int[np.ndarray, " n"]:
        """Position of the second mention of the one who acts."""
        return self.at[:, 2]

    def take(self, rows: Int[np.ndarray, " m"]) -> Prompts:
        """Some of the prompts, in the order of `rows`."""
        return Prompts(*(part[rows] for part in self))


def _codes(sentence: str) -> tuple[int, ...]:
    words = sentence.split()
    return (BOS, *(_CODE[w] if w in _CODE else _ID[w] for w in words))


_INTROS = (text.INTROS, text.HELD_OUT_INTROS, text.UNKNOWN_INTROS)
_ACTIONS = (text.ACTIONS, text.HELD_OUT_ACTIONS, text.HELD_OUT_ACTIONS)
_PHRASES = (("",), text.BEFORE, text.BETWEEN, text.AFTER, text.AROUND)


def sentence(layout: Layout) -> str:
    """The words and slots of a layout."""
    kind, phrase = KINDS[layout.kind], _PHRASES[layout.kind][layout.phrase]
    pre, mid, post = "", text.FILL_MID[layout.mid], text.FILL_POST[layout.post]
    if kind == "before":
        pre = phrase
    elif kind == "between":
        mid = phrase
    elif kind == "after":
        post = phrase
    elif kind == "around":
        pre, post = phrase
    intro, action = _INTROS[layout.held][layout.intro], _ACTIONS[layout.held][layout.action]
    return f"{text.OPENINGS[layout.opening]} {pre} {intro} {mid} {{S}} {post} {action}"


@lru_cache(maxsize=50_000)
def _codes_of(layout: tuple[int, ...]) -> tuple[int, ...]:
    return _codes(sentence(Layout(*layout)))


def _table(rows: list[tuple[int, ...]]) -> Int[np.ndarray, "row pos"]:
    """Rows of codes, padded at the end to N_CTX."""
    longest = max(map(len, rows), default=0)
    if longest > N_CTX:
        raise ValueError(f"a sentence has {longest} tokens, N_CTX is {N_CTX}")
    padded = [row + (PAD,) * (N_CTX - len(row)) for row in rows]
    return np.array(padded, dtype=np.int64).reshape(-1, N_CTX)


_PLAIN = [[_codes(s) for s in kind] for kind in (text.ONE_NAME, text.WHO_HAS)]
_PLAIN_CODES = [_table(rows) for rows in _PLAIN]


def ids(words: tuple[str, ...] | list[str]) -> Int[np.ndarray, " word"]:
    """Token ids of words of the vocabulary.

    Raises KeyError for a word that it does not have.
    """
    return np.array([_ID[w] for w in words])


_HELD = ids(HELD_OUT_NAMES)
_ALL = ids(NAMES)
_SEEN = np.setdiff1d(_ALL, _HELD)
_PLACES, _OBJECTS = ids(text.PLACES), ids(text.OBJECTS)


def is_name(tokens: Int[np.ndarray, ...]) -> Bool[np.ndarray, ...]:
    """True where a token is a name."""
    return (tokens >= _ALL[0]) & (tokens <= _ALL[-1])


def name_pool(split: str) -> Int[np.ndarray, " name"]:
    """The names that a split's name-task prompts use."""
    _check(split)
    return _HELD if split in ("unseen", "unseen names") else _SEEN


def holds_out_templates(split: str) -> bool:
    """Whether a split uses the held-out introductions and actions, and no others."""
    _check(split)
    return split in ("unseen", "unseen templates")


def _check(split: str) -> None:
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}: choose one of {SPLITS}")


def _distinct(pool: np.ndarray, n: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """k different entries of the pool in each of n rows. [n, k]"""
    order = rng.random((n, len(pool))).argpartition(k, axis=1)[:, :k]
    return pool[rng.permuted(order, axis=1)]


def draw_layouts(
    n: int,
    rng: np.random.Generator,
    split: str,
    kind: Int[np.ndarray, " n"] | None = None,
    *,
    unknown: bool = False,
) -> Int[np.ndarray, "n part"]:
    """Layouts for n prompts: kinds by their shares (or given), all other parts alike.

    unknown: introductions with a phrase that no training sentence has, whatever the split.
    """
    held = 2 if unknown else int(holds_out_templates(split))
    kind = rng.choice(len(KINDS), n, p=SHARES) if kind is None else kind
    many = np.array([len(x) for x in _PHRASES])
    parts = [
        kind,
        np.full(n, held),
        rng.integers(0, len(_INTROS[held]), n),
        rng.integers(0, len(_ACTIONS[held]), n),
        rng.integers(0, many[kind]),
        *(rng.integers(0, len(x), n) for x in (text.OPENINGS, text.FILL_MID, text.FILL_POST)),
    ]
    return np.stack(parts, axis=1)


def prompts(
    n: int,
    rng: np.random.Generator,
    split: str = "unseen",
    layouts: Int[np.ndarray, "n part"] | None = None,
) -> Prompts:
    """n name-task prompts of a split, on the given layouts or on drawn ones.

    Raises ValueError for an unknown split.
    """
    layouts = draw_layouts(n, rng, split) if layouts is None else layouts
    people = _distinct(name_pool(split), n, 3, rng)
    first = rng.random(n) < 0.5
    io, s = np.where(first, people[:, 0], people[:, 1]), np.where(first, people[:, 1], people[:, 0])
    fill = {"A": people[:, 0], "B": people[:, 1], "S": s, "C": people[:, 2], "c": people[:, 2]}
    rows = [_codes_of(tuple(x)) for x in layouts.tolist()]
    codes = _table(rows)
    end = np.array([len(row) - 1 for row in rows], dtype=np.int64)
    at = np.stack([_where(codes, slot) for slot in MENTIONS], axis=1)
    others = np.where(at[:, 3] >= 0, people[:, 2], -1)
    return Prompts(_filled(codes, fill, rng), layouts, end, io, s, others, at, first)


def _where(codes: np.ndarray, slot: str) -> np.ndarray:
    hit = codes == -1 - SLOTS.index(slot)
    return np.where(hit.any(1), hit.argmax(1), -1)


def _filled(codes: np.ndarray, fill: dict[str, np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Tokens of the codes: names as given, places and objects drawn once for each row."""
    n = len(codes)
    objects = _distinct(_OBJECTS, n, 2, rng)
    fill = {
        **fill,
        "PLACE": rng.choice(_PLACES, n),
        "OBJECT": objects[:, 0],
        "OTHER": objects[:, 1],
    }
    tokens = codes.copy()
    for slot, values in fill.items():
        tokens = np.where(codes == -1 - SLOTS.index(slot), values[:, None], tokens)
    return tokens


def renamed(
    p: Prompts, rng: np.random.Generator, split: str = "unseen"
) -> Int[np.ndarray, "n pos"]:
    """The same sentences with a new name at every mention: nobody is named twice ("ABC"), and
    neither IO nor S is named at all.

    What a model knows of who was repeated is gone, all else keeps its place. [n, pos]
    """
    people = _distinct(name_pool(split), len(p.tokens), len(MENTIONS) + 2, rng)
    old = (people == p.io[:, None]) | (people == p.s[:, None])  # two at most: they go last
    people = np.take_along_axis(people, old.argsort(1, kind="stable"), 1)
    tokens = p.tokens.copy()
    for k in range(len(MENTIONS)):
        rows = np.flatnonzero(p.at[:, k] >= 0)
        tokens[rows, p.at[rows, k]] = people[rows, k]
    return tokens


def _plain(kind: int, n: int, rng: np.random.Generator) -> Batch:
    """Sentences of another kind, with all names: one name to repeat (0), or who has what (1)."""
    which = rng.integers(0, len(_PLAIN[kind]), n)
    people = _distinct(_ALL, n, 2, rng)
    fill = {"A": people[:, 0], "B": people[:, 1]}
    whole = _filled(_PLAIN_CODES[kind][which], fill, rng)
    length = np.array([len(_PLAIN[kind][i]) for i in which], dtype=np.int64)
    # the last word is the answer: it is cut off, and its place is padding
    rows = np.arange(n)
    targets = np.full_like(whole, ANSWERED)
    targets[rows, length - 2] = whole[rows, length - 1]
    whole[rows, length - 1] = PAD
    return Batch(whole, targets)


def as_batch(p: Prompts) -> Batch:
    """Tokens and targets of prompts: only the answer counts."""
    targets = np.full_like(p.tokens, ANSWERED)
    targets[np.arange(len(p.tokens)), p.end] = p.io
    return Batch(p.tokens, targets)


def draw(n: int, rng: np.random.Generator, split: str = "train") -> Batch:
    """n rows of a split. "train" mixes the three kinds of text; the others are name task only.

    Raises ValueError for an unknown split.
    """
    _check(split)
    if split != "train":
        return as_batch(prompts(n, rng, split))
    count = np.bincount(rng.choice(3, n, p=MIX), minlength=3)
    parts = [as_batch(prompts(int(count[0]), rng, split))]
    parts += [_plain(k, int(count[1 + k]), rng) for k in range(2)]
    return Batch(*(np.concatenate(x) for x in zip(*parts, strict=True)))


def words(tokens: Int[np.ndarray, " pos"]) -> str:
    """The sentence as text, without <bos> and padding."""
    return " ".join(VOCAB[t] for t in tokens if t not in (BOS, PAD))
