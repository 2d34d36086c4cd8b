"""What text says about [source] … [destination] → [output]: counts, controls, intervals.

A text is one array of tokens with blank places between documents, wide enough that no window
crosses from one document into the next. "Source before destination" means: at one of the `reach`
places before it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Integer

NOTHING = -1  # the blank places


class Text:
    """Tokens of documents with index arrays: where each token stands, what follows, which document.

    tokens[i] is NOTHING between documents. `follows[i]` is tokens[i + 1]. bos: the token that opens
    every context cut out of this text; the documents hold none.
    """

    def __init__(
        self,
        documents: Sequence[Integer[np.ndarray, " n"]],
        d_vocab: int,
        reach: int,
        bos: int = 0,
    ):
        if reach < 1:
            raise ValueError(f"reach must be at least 1, got {reach}")
        gap = np.full(reach + 1, NOTHING, dtype=np.int32)
        parts = [x for d in documents for x in (np.asarray(d, dtype=np.int32), gap)]
        self.tokens = np.concatenate(parts)
        self.follows = np.append(self.tokens[1:], NOTHING).astype(np.int32)
        lengths = [len(d) + len(gap) for d in documents]
        self.doc = np.repeat(np.arange(len(documents), dtype=np.int32), lengths)
        self.n_docs, self.reach, self.d_vocab, self.bos = len(documents), reach, d_vocab, bos
        order = np.argsort(self.tokens, kind="stable").astype(np.int32)
        self._order = order[np.searchsorted(self.tokens[order], 0) :]
        self._starts = np.searchsorted(self.tokens[self._order], np.arange(d_vocab + 1))
        self.after = functools.lru_cache(maxsize=4096)(self._after)

    def count(self, token: int) -> int:
        """How often a token occurs."""
        return int(self._starts[token + 1] - self._starts[token])

    def places(self, token: int) -> Integer[np.ndarray, " n"]:
        """Where a token stands, ascending."""
        return self._order[self._starts[token] : self._starts[token + 1]]

    def _after(self, source: int) -> Integer[np.ndarray, " n"]:
        """All places with `source` at one of the `reach` places before, each once, that have a
        next token. The blanks between documents are left out."""
        at = self.places(source)
        offset = np.arange(1, self.reach + 1, dtype=np.int32)
        until_next = np.diff(at, append=np.int32(2**31 - 1))
        here = (at[:, None] + offset)[offset <= until_next[:, None]]
        return here[(self.tokens[here] >= 0) & (self.follows[here] >= 0)]


class Contrast(NamedTuple):
    """Rates of the outputs after the source and after control sources, in the same documents.

    true, control [outputs, docs]: weighted sums of rates.  weight [docs].  n: destinations with the
    source before them.
    """

    true: Float[np.ndarray, "outputs docs"]
    control: Float[np.ndarray, "outputs docs"]
    weight: Float[np.ndarray, " docs"]
    n: int

    def __add__(self, other: Contrast) -> Contrast:
        return Contrast(*(a + b for a, b in zip(self, other, strict=True)))

    def rates(self) -> tuple[float, float]:
        """(rate after the source, rate after its controls), of the first output; 0 of nothing."""
        weight = self.weight.sum() or 1.0
        return float(self.true[0].sum() / weight), float(self.control[0].sum() / weight)


def contrast(
    text: Text,
    sources: Sequence[int],
    controls: Sequence[Sequence[int]],
    destinations: Sequence[Bool[np.ndarray, " d_vocab"] | int],
    outputs: Integer[np.ndarray, "rows outputs"],
) -> Contrast:
    """How often an output follows the destination, with the source before it and with controls.

    Row by row, and only within one document and at one destination: of n places with the source and
    m with a control one, the two rates are compared with weight n m / (n + m) (Mantel and Haenszel
    1959). So a document or a destination that simply likes the output adds nothing. `destinations`
    has one token a row, or a mask over the vocabulary; the columns of `outputs` are counted side by
    side.
    """
    sums = np.zeros((2, outputs.shape[1], text.n_docs))
    total = Contrast(*sums, np.zeros(text.n_docs), 0)

    def places(source: int, wanted: Bool[np.ndarray, " d_vocab"] | int) -> np.ndarray:
        at = text.after(int(source))
        token = text.tokens[at]
        return at[token == wanted if np.ndim(wanted) == 0 else wanted[token]]

    def counted(
        at: np.ndarray, of: np.ndarray, strata: int, output: Integer[np.ndarray, " m"]
    ) -> tuple[np.ndarray, np.ndarray]:
        column, place = np.nonzero(text.follows[at] == output[:, None])
        hits = np.bincount(column * strata + of[place], minlength=len(output) * strata)
        return np.bincount(of, minlength=strata), hits.reshape(len(output), strata)

    for source, others, wanted, output in zip(
        sources, controls, destinations, outputs, strict=True
    ):
        at = places(source, wanted)
        other = np.concatenate([places(c, wanted) for c in others])
        both = np.concatenate([at, other])
        key = text.doc[both].astype(np.int64) * text.d_vocab + text.tokens[both]
        strata, of = np.unique(key, return_inverse=True)
        n, hits = counted(at, of[: len(at)], len(strata), output)
        m, other_hits = counted(other, of[len(at) :], len(strata), output)
        weight = n * m / (n + m).clip(1)
        row = hits * (weight / n.clip(1)), other_hits * (weight / m.clip(1)), weight
        if len(strata):  # they are sorted by document
            present, first = np.unique(strata // text.d_vocab, return_index=True)
            for sums, x in zip(total[:3], row, strict=True):
                sums[..., present] += np.add.reduceat(x, first, axis=-1)
        total = total._replace(n=total.n + len(at))
    return total


class Interval(NamedTuple):
    """A value with the ends of its 95 % bootstrap interval by document."""

    value: float
    low: float
    high: float


NOTHING_KNOWN = Interval(0.0, -1.0, 1.0)  # of a difference of rates that nothing was counted for
NOTHING_RUN = Interval(0.0, 0.0, 0.0)  # of a mean over no contexts at all: their number, 0, says so


def bootstrap(
    sums: Float[np.ndarray, "variants docs"],
    weight: Float[np.ndarray, " docs"],
    draws: int = 1000,
    seed: int = 0,
) -> Interval:
    """sum over docs of `sums` / sum of `weight`, documents drawn with replacement.

    With several variants (shuffles of one control) the value is their mean, and every draw takes
    one of them at random: the interval holds the luck of the shuffle too.
    Raises ValueError when nothing has weight. Source: Efron 1979.
    """
    if not weight.sum() > 0:
        raise ValueError("no document holds both the source and a control source: nothing to count")
    used = weight > 0
    sums, weight = sums[:, used], weight[used]
    rng = np.random.default_rng(seed)
    times = rng.multinomial(len(weight), np.full(len(weight), 1 / len(weight)), size=draws)
    chosen = rng.integers(len(sums), size=draws)
    values = (times * sums[chosen]).sum(1) / (times @ weight).clip(1e-12)
    low, high = np.quantile(values, [0.025, 0.975])
    return Interval(float(sums.mean(0).sum() / weight.sum()), float(low), float(high))


def gain(found: Contrast, columns: slice = slice(0, 1), draws: int = 1000) -> Interval:
    """true rate - control rate of the first output (or of other columns), with its interval.

    Where no document holds both sides: all that a difference of rates can be, from -1 to 1.
    """
    if not found.weight.sum() > 0:
        return NOTHING_KNOWN
    return bootstrap((found.true - found.control)[columns], found.weight, draws)


def mean_interval(
    values: Float[np.ndarray, " n"], doc: Integer[np.ndarray, " n"], draws: int = 1000
) -> Interval:
    """The mean of values with its bootstrap interval by document; NOTHING_RUN of no values."""
    if not len(values):
        return NOTHING_RUN
    _, index = np.unique(doc, return_inverse=True)
    return bootstrap(np.bincount(index, values)[None], np.bincount(index).astype(float), draws)


def neighbours(frequency: Integer[np.ndarray, " n"], wide: int = 2) -> Integer[np.ndarray, "n m"]:
    """For each entry the `wide` next rarer and the `wide` next commoner ones: matched in frequency.

    At the ends the window is moved inwards, so that all have 2 x wide and none is its own.
    """
    n, width = len(frequency), 2 * wide + 1
    if n < width:
        raise ValueError(f"matching needs at least {width} sources, got {n}")
    order = np.argsort(frequency, kind="stable")
    rank = np.empty(n, dtype=np.int64)
    rank[order] = np.arange(n)
    start = (rank - wide).clip(0, n - width)
    window = start[:, None] + np.arange(width)
    return order[window[window != rank[:, None]].reshape(n, -1)]


def log_odds(
    text: Text, source: int, destination: int, output: int
) -> tuple[int, int, int, int, float]:
    """(n with source, hits, n without, hits, log odds ratio with half a count added to each cell).

    The same destination with the source before it, and without.
    """
    at = text.places(destination)
    at = at[text.follows[at] >= 0]
    right = text.follows[at] == output
    sources = text.places(source)
    latest = np.searchsorted(sources, at) - 1  # the last source before each place
    with_source = latest >= 0
    with_source[with_source] = at[with_source] - sources[latest[with_source]] <= text.reach
    n1, x1 = int(with_source.sum()), int((with_source & right).sum())
    n0, x0 = len(at) - n1, int(right.sum()) - x1
    if not n1 or not n0:
        return n1, x1, n0, x0, 0.0
    a, b = n1 / (n1 + n0), n0 / (n1 + n0)  # in proportion: without a hit on either side, about zero
    odds = np.log((x1 + a) * (n0 - x0 + b) / ((n1 - x1 + a) * (x0 + b)))
    return n1, x1, n0, x0, float(odds)
