"""The laws that answers of chapter 04 must obey."""

import numpy as np
import torch

from circuitbook.check import checker, draw, near, numpy_generator, torch_generator
from circuitbook.checks.draws import pick, shuffled


@checker("04.triple_strength")
def triple_strength(fn):
    QK = torch.tensor([[3.0, 0.0], [-1.0, 5.0]]).double()  # row means 1.5 and 2
    OV = torch.tensor([[4.0, 0.0], [1.0, 7.0]]).double()  # row means 2 and 4
    big_qk, big_ov = draw(6, 6), draw(6, 6, seed=1)
    queries, sources = 9 * draw(6, 1, seed=2), 9 * draw(6, 1, seed=3)

    yield (
        "a hand-made case: (3 - 1.5) times (4 - 2)",
        lambda: near(fn(QK, OV, 0, 0, 0), 3.0),
        "QK has one row for each destination, OV one row for each source. Subtract the row's mean.",
    )
    yield (
        "source 1, destination 1, output 1: (5 - 2) times (7 - 4)",
        lambda: near(fn(QK, OV, 1, 1, 1), 9.0),
    )
    yield (
        "source 1 at destination 0, in turned tables: (3 - 1.5) times (4 - 2)",
        lambda: near(fn(QK.flip(1), OV.flip(0), 1, 0, 0), 3.0),
        "QK[destination, source], but OV[source, output].",
    )
    yield (
        "an avoided source with a lowered output is no skip-trigram",
        lambda: near(fn(QK, OV, 1, 0, 0), 0.0),
        "Both factors are negative here. Nobody looks there.",
    )
    yield (
        "one negative factor gives zero too",
        lambda: near(fn(QK, OV, 0, 0, 1), 0.0) and near(fn(QK, OV, 0, 1, 0), 0.0),
    )

    def same(*tables):
        return all(
            near(fn(*tables, s, d, o), fn(big_qk, big_ov, s, d, o), 1e-8)
            for s, d, o in np.ndindex(6, 6, 6)
        )

    yield (
        "a constant for each query changes nothing",
        lambda: same(big_qk + queries, big_ov),
        "Softmax cannot see it, so the strength must not.",
    )
    yield "a constant for each OV row changes nothing", lambda: same(big_qk, big_ov + sources)
    yield (
        "twice the OV table, twice the strength",
        lambda: near(fn(big_qk, 2 * big_ov, 2, 3, 4), 2 * fn(big_qk, big_ov, 2, 3, 4), 1e-9),
    )


def _slow_best(QK, OV):
    """The largest product of two positive entries, over all triples."""
    table = QK.T.clamp_min(0)[:, :, None] * OV.clamp_min(0)[:, None, :]
    return table.max().item()


def _strength(QK, OV, answer):
    s, d, o = (int(x) for x in answer)
    qk, ov = QK[d, s].item(), OV[s, o].item()
    return qk * ov if qk > 0 and ov > 0 else -1.0


@checker("04.best_triple")
def best_triple(fn):
    small = torch.tensor([[0.0, 2.0], [1.0, -2.0]]).double(), torch.tensor([[5.0, 0], [3, -9]])
    trap = torch.tensor([[1.0, -8.0], [0.5, -9.0]]).double(), torch.tensor([[0.1, 1.0], [-7, -9]])

    yield (
        "two tokens by hand: source 1, destination 0, output 0",
        lambda: tuple(int(x) for x in fn(small[0], small[1].double())) == (1, 0, 0),
        "Columns of QK are sources, rows of OV are sources.",
    )
    yield (
        "two large negative entries do not win",
        lambda: tuple(int(x) for x in fn(trap[0], trap[1].double())) == (0, 0, 1),
        "A source's largest positive entries count, not its largest sizes.",
    )

    def agrees(seed):
        QK, OV = draw(25, 25, seed=seed), draw(25, 25, seed=seed + 100)
        return near(_strength(QK, OV, fn(QK, OV)), _slow_best(QK, OV), 1e-9)

    yield "it equals brute force on 25 tokens", lambda: all(agrees(s) for s in range(6))
    lonely = -torch.ones(4, 4).double(), torch.ones(4, 4).double()
    lonely[0][2, 3] = 0.5
    yield (
        "a source that everybody avoids is out, whatever it would raise",
        lambda: _strength(*lonely, fn(*lonely)) == 0.5,
    )

    def large():
        s, d = pick(77, 0, 2998, seed=1), pick(1234, 0, 2998, seed=2)
        o = pick(2999, 0, 2999, seed=3)
        QK, OV = (torch.randn(3000, 3000, generator=torch_generator(seed)) for seed in (7, 8))
        QK[d, s], OV[s, o] = 60.0, 50.0
        return tuple(int(x) for x in fn(QK, OV)) == (s, d, o)

    yield (
        "27 billion triples are no problem",
        large,
        "Fix the source: what is its best triple? Compare only those.",
    )


@checker("04.counts_after")
def counts_after(fn):
    S, D, O, other = shuffled([2, 1, 3, 9, *range(10, 60)], seed=0)[:4]
    reach = pick(3, 2, 6, seed=1)
    yield (
        "source, gap, destination, output",
        lambda: tuple(fn([S, other, D, O], S, D, O, 8)) == (1, 1),
    )
    yield (
        "another token follows: counted, no hit",
        lambda: tuple(fn([S, other, D, other], S, D, O, 8)) == (1, 0),
    )
    yield "no source before: not counted", lambda: tuple(fn([other, D, O, S], S, D, O, 8)) == (0, 0)
    yield (
        "a source exactly `reach` places before counts, one farther does not",
        lambda: (
            tuple(fn([S, *[other] * (reach - 1), D, O], S, D, O, reach)) == (1, 1)
            and tuple(fn([S, *[other] * reach, D, O], S, D, O, reach)) == (0, 0)
        ),
        "At a destination at place t the window is t - reach ... t - 1.",
    )
    yield (
        "the source may stand right before the destination",
        lambda: tuple(fn([other, S, D, O], S, D, O, 3)) == (1, 1),
    )
    yield (
        "two sources, one destination: one count",
        lambda: tuple(fn([S, S, D, O], S, D, O, 8)) == (1, 1),
    )
    yield (
        "a destination at the very end has no next token",
        lambda: tuple(fn([S, D, O, S, D], S, D, O, 8)) == (1, 1),
    )
    yield (
        "a token does not stand before itself",
        lambda: tuple(fn([D, O, other, D, other], D, D, O, 8)) == (1, 0),
        "When source and destination are the same token, the window must leave place t out.",
    )


def _is_bug(answer, attention, message, counts):
    """Whether an answer has all the marks of a bug, with the numbers that belong to it."""
    (d1, d2), (o1, o2), determinant, odds = answer
    a, m = attention[[d1, d2]], message[[o1, o2]]
    n = counts[np.ix_([d1, d2], [o1, o2])]
    b, s = np.outer(a, m), n + 0.5
    right = s[0, 0] * s[1, 1] / (s[0, 1] * s[1, 0])
    marks = (b > 0).all() and n[0, 0] > n[0, 1] and n[1, 1] > n[1, 0] and right >= 10
    numbers = near(float(odds), right, 1e-6 * right) and abs(float(determinant)) < 1e-9
    return bool(marks) and d1 != d2 and o1 != o2 and numbers


@checker("04.bug_pair")
def bug_pair(fn):
    keep = np.array([[40, 1], [0, 30]])  # keep ... in mind, keep ... at bay
    even = np.array([[20, 20], [20, 20]])
    one = np.ones(2)
    yield (
        "keep … in mind, keep … at bay",
        lambda: _is_bug(fn(one, np.array([2.0, 1.0]), keep), one, np.array([2.0, 1.0]), keep),
        "Check all marks again: boosts, own outputs, odds ratio with half a count added.",
    )
    yield (
        "a zero count is no division by zero",
        lambda: near(float(fn(one, one, np.array([[9, 0], [0, 9]]))[3]), 9.5 * 9.5 / 0.25, 1e-9),
    )
    yield "no crossing in the text, no bug", lambda: fn(one, one, even) is None
    yield (
        "one output commoner at both destinations is no bug, though the odds ratio is large",
        lambda: fn(one, one, np.array([[90, 1], [30, 20]])) is None,
        "Both n11 > n12 and n22 > n21 are asked.",
    )
    yield (
        "a head that lowers one of the outputs has no bug here",
        lambda: fn(one, np.array([2.0, -1.0]), keep) is None,
    )
    yield (
        "a destination that does not look at the source is out",
        lambda: fn(np.array([1.0, 0.0]), one, keep) is None,
    )
    yield (
        "a weak crossing is none: the smoothed odds ratio must reach ten",
        lambda: fn(one, one, np.array([[3, 1], [1, 3]])) is None,
    )

    def drawn(seed):
        rng = numpy_generator(seed)
        attention, message = rng.random(5), rng.normal(size=6)
        message = message if (message > 0).sum() > 1 else -message  # two outputs are raised
        counts = rng.poisson(2, size=(5, 6))
        good = np.flatnonzero(message > 0)[:2]
        counts[1, good], counts[3, good] = (50, 0), (2, 70)
        return _is_bug(fn(attention, message, counts), attention, message, counts)

    yield "bugs hidden in larger tables are found", lambda: all(drawn(s) for s in range(5))
