"""After "from 17 32 to 17" every year above 32 may follow, the nearer the likelier, and no other.

The miniature greater-than task. The answer is YY + k with probability proportional to
exp(-k / SCALE), k = 1 … 99 - YY: short wars are more common than long ones. So the best possible
model is zero up to YY, jumps, and then decays: it must know YY and it must spread. A model that
always says 99 is never below the cut-off and knows nothing; `decisions` asks for the jump instead.

As in GPT-2 a century (" 17") and a two-digit year ("32") are tokens of two kinds, so "17" the
century and "17" the year differ. Prompts are an opener, a body and slots. Bodies vary in length,
in what stands between YY and the end, and in the distractors: other years of the same or of
another century, before YY, after it, or both. YY is the year behind "from" or "between".

Splits: "train" draws training bodies and training combinations (noun, century, YY); "templates"
unseen bodies; "combinations" unseen combinations; "heldout" both. Openers are shared by all.
"below" asks the other question (see BELOW_BODIES) and is for training only.

Source: Hanna, Liu, Variengien 2023, "How does GPT-2 compute greater-than?", arXiv 2305.00586.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from circuitbook.circuits.metrics import Metric, at_position
from circuitbook.tasks import BOS, PAD, Batch

# N: noun. C, Y: century and year of the start; the prompt ends with C again. c, y and d, z: two
# distractors, each a century and a year.
OPENERS = (
    "",
    "As we know ,",
    "The old book says that",
    "It is said that",
    "Long before the flood of {c}{y} ,",
    "A letter of {c}{y} says that",
    "In {c}{y} the town burned .",
    "Few people remember it , but",
)
TRAIN_BODIES = (
    "the {N} lasted from {C}{Y} to",
    "the {N} went on from {C}{Y} up to",
    "the great {N} , with many breaks , went on from {C}{Y} right up to",
    "there was a {N} from {C}{Y} , and it lasted all the way to",
    "from {C}{Y} the {N} went on to",
    "the {N} of the north was held from {C}{Y} to",
    "people feared the {N} between {C}{Y} and",
    "between {C}{Y} and , as some say , the end of the {N} in",
    "the {N} lasted from {C}{Y} , after the storm of {d}{z} , to",
    "from {C}{Y} , not since {d}{z} , the {N} went on up to",
    "the {N} was held between {C}{Y} , a year worse than {d}{z} , and",
    "the {N} went on from {C}{Y} , longer than {d}{z} , right up to",
    "the {N} lasted from {C}{Y} , not {d}{z} , to",
    "people feared the {N} between {C}{Y} , like {d}{z} , and",
    "after the storm of {d}{z} the {N} lasted from {C}{Y} to",
    "the {N} , planned since {d}{z} , was held from {C}{Y} up to",
    "the {N} was held not in {d}{z} but between {C}{Y} and",
    "the king , born in {d}{z} , feared the {N} from {C}{Y} all the way to",
    "it was a {N} worse than in {d}{z} , and it lasted from {C}{Y} to",
    "the {N} was held between {C}{Y} , in spite of {d}{z} , and",
)
# The other question, in training only: "until 17 75, from 17" asks for a year below. Without it
# the year's embedding alone could hold the answer; with it YY means two things, and what it means
# has to be computed.
BELOW_BODIES = (
    "the {N} lasted until {C}{Y} , and it went on from",
    "the {N} went on until {C}{Y} from",
    "until {C}{Y} the {N} went on from",
    "people feared the {N} until {C}{Y} , like {d}{z} , from",
    "the {N} was held until {C}{Y} , not {d}{z} , from",
    "after the storm of {d}{z} the {N} lasted until {C}{Y} from",
    "the {N} , planned since {d}{z} , was held until {C}{Y} , as some say , from",
    "the great {N} lasted until {C}{Y} , with many breaks , from",
)
HELD_OUT_BODIES = (
    "the great {N} lasted from {C}{Y} all the way to",
    "people feared that the {N} was held between {C}{Y} and",
    "the {N} of the north , planned since {d}{z} , went on from {C}{Y} to",
    "the {N} was held from {C}{Y} , a year after {d}{z} , right up to",
    "the great {N} went on between {C}{Y} , worse than {d}{z} , and",
    "from {C}{Y} , longer than the storm of {d}{z} , the {N} lasted to",
)
NOUNS = (
    "war", "strike", "fair", "plague", "drought", "siege", "reign", "trial", "voyage", "famine",
    "project", "feast", "quarrel", "truce", "revolt", "journey", "debate", "harvest", "frost",
    "festival", "crisis", "search", "chase", "hunt",
)  # fmt: skip
CENTURIES = tuple(range(11, 19))
FIRST, LAST = 1, 98  # YY: 99 would leave no answer, 00 is never drawn
NEAR = 5  # years on each side of the cut-off that `decisions` asks for
SCALE = 8.0  # years; a span is about this long
THRESHOLD = 0.02  # the least likely year that `decisions` asks for has 0.07 in the law, see `law`
SPLITS = ("train", "templates", "combinations", "heldout", "below")

_SLOTS = "NCYcydz"


def _pieces(text: str) -> list[str]:
    """Words, points and slots; a word carries the space before it."""
    return [p if p.startswith("{") else " " + p for p in re.findall(r"\{\w\}|[\w-]+|[.,]", text)]


def _vocabulary() -> tuple[str, ...]:
    words = dict.fromkeys(
        p
        for text in (*OPENERS, *TRAIN_BODIES, *HELD_OUT_BODIES, *BELOW_BODIES)
        for p in _pieces(text)
        if not p.startswith("{")
    )
    nouns, centuries = [f" {n}" for n in NOUNS], [f" {c}" for c in CENTURIES]
    return ("<bos>", "<pad>", *(f"{y:02}" for y in range(100)), *centuries, *nouns, *words)


VOCAB: tuple[str, ...] = _vocabulary()
ID = {word: i for i, word in enumerate(VOCAB)}
YEARS = slice(2, 102)  # token ids of "00" … "99", in order
YEAR_0, CENTURY_0, NOUN_0 = 2, 102, 102 + len(CENTURIES)


def _skeletons(bodies: tuple[str, ...]) -> list[list[int]]:
    """Token ids of every opener with every body, up to MOST tokens; slot s stands as -1 - its place
    in _SLOTS."""
    out = []
    for body in bodies:
        for opener in OPENERS:
            pieces = [*_pieces(opener), *_pieces(body), "{C}"]
            out.append([-1 - _SLOTS.index(p[1]) if p[0] == "{" else ID[p] for p in pieces])
    return [skeleton for skeleton in out if len(skeleton) <= MOST]


MOST = 25  # tokens of a prompt, without <bos>; an opener and a body that are longer do not meet
_TRAINED = _skeletons(TRAIN_BODIES)
N_TRAIN = len(_TRAINED)  # skeletons; the held-out ones follow
_HELD_OUT = _skeletons(HELD_OUT_BODIES)
_ALL = [*_TRAINED, *_HELD_OUT, *_skeletons(BELOW_BODIES)]
BODY = np.array(  # which body a skeleton has: prompts of one body are not independent
    [
        number
        for number, body in enumerate((*TRAIN_BODIES, *HELD_OUT_BODIES, *BELOW_BODIES))
        for _ in _skeletons((body,))
    ]
)
N_ABOVE = N_TRAIN + len(_HELD_OUT)  # those of the other question come last
LENGTHS = np.array([len(s) + 1 for s in _ALL])  # with <bos>
N_CTX: int = int(LENGTHS.max())
SKELETONS = np.array([[BOS, *s] + [PAD] * (N_CTX - 1 - len(s)) for s in _ALL], dtype=np.int64)


def _combinations() -> tuple[np.ndarray, np.ndarray]:
    """(training, held-out) triples (noun, century, YY); one in five is held out, for every noun,
    century and YY alike."""
    axes = np.arange(len(NOUNS)), np.arange(len(CENTURIES)), np.arange(FIRST, LAST + 1)
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
    out = (7 * grid[:, 0] + 3 * grid[:, 1] + grid[:, 2]) % 5 == 0
    return grid[~out], grid[out]


TRAIN_COMBINATIONS, HELD_OUT_COMBINATIONS = _combinations()


class Prompts(NamedTuple):
    """Prompts with what is known about them; all fields have n rows."""

    tokens: Int[Tensor, "n pos"]  # <bos> first, <pad> after the end
    end: Int[Tensor, " n"]  # the position that predicts the answer (the second century)
    year_at: Int[Tensor, " n"]  # the position of YY
    yy: Int[Tensor, " n"]  # 1 … 98
    distractor: Int[Tensor, "n pos"]  # 1 at the positions of the other years
    skeleton: Int[Tensor, " n"]  # opener and body: index into SKELETONS


def prompts(
    n: int, rng: np.random.Generator, split: str = "train", skeleton: int | None = None
) -> Prompts:
    """n random prompts of a split; with `skeleton` all of them share opener, body and length.

    Raises ValueError for an unknown split or a skeleton that the split does not hold.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}: choose one of {SPLITS}")
    low, high = {
        "templates": (N_TRAIN, N_ABOVE),
        "heldout": (N_TRAIN, N_ABOVE),
        "below": (N_ABOVE, len(SKELETONS)),
    }.get(split, (0, N_TRAIN))
    if skeleton is not None and not low <= skeleton < high:
        raise ValueError(f"split {split!r} holds skeletons {low} to {high - 1}, not {skeleton}")
    kind = rng.integers(low, high, n) if skeleton is None else np.full(n, skeleton)
    held = split in ("combinations", "heldout")
    triples = HELD_OUT_COMBINATIONS if held else TRAIN_COMBINATIONS
    noun, century, yy = triples[rng.integers(0, len(triples), n)].T
    others = rng.integers(0, 100, (2, n))
    # half of the distractors share the century, so the century does not give YY away
    elsewhere = rng.integers(0, len(CENTURIES), (2, n))
    elsewhere = np.where(rng.random((2, n)) < 0.5, century, elsewhere)
    values = (
        NOUN_0 + noun, CENTURY_0 + century, YEAR_0 + yy,
        CENTURY_0 + elsewhere[0], YEAR_0 + others[0], CENTURY_0 + elsewhere[1], YEAR_0 + others[1],
    )  # fmt: skip
    filled = SKELETONS[kind]  # a copy: fancy indexing
    slot = -1 - filled  # the place in _SLOTS where a slot stands
    for place, value in enumerate(values):
        filled = np.where(slot == place, value[:, None], filled)
    year_at = (slot == _SLOTS.index("Y")).argmax(1)
    distractor = (slot == _SLOTS.index("y")) | (slot == _SLOTS.index("z"))
    fields = filled, LENGTHS[kind] - 1, year_at, yy, distractor.astype(np.int64), kind
    return Prompts(*(torch.from_numpy(np.ascontiguousarray(f)).long() for f in fields))


def law(yy: Int[Tensor, " n"], below: Bool[Tensor, " n"] | None = None) -> Float[Tensor, "n year"]:
    """P(y | YY), proportional to exp(-(y - YY) / SCALE) above YY and zero up to it. Float64.

    below: where the other question is asked; there the law is mirrored at YY.
    """
    k = torch.arange(100, dtype=torch.float64) - yy[:, None]
    k = k if below is None else torch.where(below[:, None], -k, k)
    weight = torch.where(k > 0, torch.exp(-k / SCALE), 0.0)
    return weight / weight.sum(-1, keepdim=True)


def draw(n: int, rng: np.random.Generator, split: str = "train") -> Batch:
    """n prompts and their targets: at the end of each, a year drawn from `law`.

    In training every third prompt asks for a year below.
    """
    given = prompts(n, rng, split)
    below = torch.full((n,), split == "below")
    if split == "train":
        below[::3] = True
        other = prompts(n, rng, "below")
        given = Prompts(
            *(
                torch.where(below.view(-1, *[1] * (a.ndim - 1)), b, a)
                for a, b in zip(given, other, strict=True)
            )
        )
    passed = law(given.yy, below).cumsum(-1).numpy() < rng.random((n, 1))
    answer = np.minimum(passed.sum(1), 99)
    targets = np.full(given.tokens.shape, -1, dtype=np.int64)
    targets[np.arange(n), given.end.numpy()] = YEAR_0 + answer
    return Batch(given.tokens.numpy(), targets)


def with_year(given: Prompts, year: int = 1) -> Prompts:
    """The same prompts with YY replaced by `year`: with 1 the corrupted set of Hanna et al."""
    tokens = given.tokens.clone()
    tokens[torch.arange(len(tokens)), given.year_at] = YEAR_0 + year
    return given._replace(tokens=tokens, yy=torch.full_like(given.yy, year))


def text(tokens: Int[Tensor, " pos"]) -> str:
    """The prompt as it reads, without <bos> and <pad>."""
    return "".join(VOCAB[t] for t in tokens.tolist() if t > PAD).strip()


# ---------------------------------------------------------------- what counts as right


def probability_difference(
    logits: Float[Tensor, "n d_vocab"],
    yy: Int[Tensor, " n"],
    ids: Int[Tensor, " year"] | None = None,
) -> Float[Tensor, " n"]:
    """P(year > YY) - P(year <= YY); the softmax runs over the whole vocabulary.

    1 when all of the probability is on allowed years. "Always 99" scores 1 too: read it together
    with `decisions`. ids: the tokens of "00" … "99" (default: of this task).
    """
    p = logits.softmax(-1)[:, YEARS if ids is None else ids.to(logits.device)]  # [n, 100]
    above = torch.arange(100, device=p.device) > yy[:, None].to(p.device)
    return torch.where(above, p, -p).sum(-1)


def year_gap(
    at: Int[Tensor, " prompt"],
    yy: Int[Tensor, " prompt"],
    ids: Int[Tensor, " year"] | None = None,
) -> Metric:
    """`probability_difference` at position at[prompt], in the form that circuits/ asks for."""

    def read(logits: Tensor, rows: Tensor) -> Float[Tensor, " n"]:
        return probability_difference(logits, yy.to(logits.device)[rows], ids)

    return at_position(at, read)


def decisions(
    p: Float[Tensor, "n year"], yy: Int[Tensor, " n"]
) -> tuple[Bool[Tensor, "n year"], Bool[Tensor, "n year"]]:
    """(correct, asked): is year y called allowed (p > THRESHOLD) exactly when y > YY?

    Asked are the NEAR years above the cut-off and the NEAR years up to it, as far as there are
    such: equally many on both sides for most YY, and for a given year about as often allowed as
    not, so an answer that ignores YY is right about half of the time.
    """
    years, cut = torch.arange(100, device=p.device), yy[:, None].to(p.device)
    asked = (years > cut - NEAR) & (years <= cut + NEAR)
    return (p > THRESHOLD) == (years > cut), asked


def right(p: Float[Tensor, "n year"], yy: Int[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """True where every decision asked of the prompt is correct: the cut-off is where it should be.

    p: probabilities of "00" … "99" (they need not sum to 1). Far stricter than `decisions`:
    one year misjudged in ten is enough to fail.
    """
    correct, asked = decisions(p, yy)
    return (correct | ~asked).all(-1)
