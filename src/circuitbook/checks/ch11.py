"""The laws that answers of chapter 11 must obey."""

from functools import cache
from itertools import combinations

import torch

from circuitbook.check import checker, draw, near, torch_generator
from circuitbook.checks.draws import pick, shuffled
from circuitbook.circuits import ablation, planted
from circuitbook.circuits.faithful import Runner
from circuitbook.circuits.nodes import nodes_of


def rows(*values):
    """Writes of one coordinate each, [n, 1], float64."""
    return torch.tensor(values, dtype=torch.float64)[:, None]


@checker("11.two_drops")
def two_drops(fn):
    def size(i, w):
        return float(w.abs().sum())

    def match(i, w):
        return 1.0 if abs(float(w[0]) - i) < 0.25 else 0.0

    drawn = draw(7, 3)

    yield (
        "a head that always writes the same costs nothing either way",
        lambda: near(list(fn(rows(2.0, 2.0, 2.0), size)), [0.0, 0.0]),
    )
    yield (
        "only the size is read: the mean of +1 and -1 destroys it, another prompt's write does not",
        lambda: near(list(fn(rows(1.0, -1.0, 1.0, -1.0), size)), [1.0, 0.0]),
        "The mean of the writes is one vector for all prompts.",
    )
    yield (
        "every prompt needs its own write: any other costs everything",
        lambda: near(fn(rows(0.0, 1.0, 2.0), match)[1], 1.0),
        "A prompt's own write is no stand-in for it: leave out j = i.",
    )
    yield (
        "one prompt of three is the mean itself, so the mean spares it",
        lambda: near(fn(rows(0.0, 1.0, 2.0), match)[0], 2 / 3),
    )
    yield (
        "two loud prompts among four quiet ones, by hand",
        lambda: near(list(fn(rows(3.0, 3.0, 0.0, 0.0), lambda i, w: float(w[0] * (i < 2)))),
                     [0.75, 1.0]),
        "Average over prompts i; and for resampling over all other prompts j.",
    )  # fmt: skip
    yield (
        "a reader that is the same sum for every prompt averages to nothing",
        lambda: near(list(fn(drawn, lambda i, w: float(w.sum()))), [0.0, 0.0], 1e-9),
    )
    yield (
        "twice the answer, twice the drops",
        lambda: near(
            [2 * x for x in fn(drawn, size)], list(fn(drawn, lambda i, w: 2 * size(i, w))), 1e-9
        ),
    )


@checker("11.path_effects")
def path_effects(fn):
    def falls(first, second, answer, x=1.0, other=0.0):
        return [float(v) for v in fn(first, second, answer, x, other)]

    def same(x):
        return x

    x, factor = float(pick(2, 2, 9, seed=0)), pick(4, 3, 9, seed=1)
    other = float(pick(1, 10, 19, seed=2))
    first = float(pick(1, 2, 9, seed=3))  # where the other prompt is 0

    yield (
        "a sum: 3 in all, 2 through the second node, 1 straight to the answer",
        lambda: near(falls(same, lambda x, a: 2 * a, lambda x, a, b: a + b), [3, 2, 1]),
    )
    yield (
        "only the first node sees the other prompt: what the second reads of x itself stays",
        lambda: near(
            falls(same, lambda x, a: 10 * x + a, lambda x, a, b: b, first), [first, first, 0]
        ),
        "Patch what the first node hands over, not the prompt.",
    )
    yield (
        "and what the answer reads of x itself stays",
        lambda: near(
            falls(same, lambda x, a: a, lambda x, a, b: 5 * x + a, first), [first, 0, first]
        ),
    )
    yield (
        "a product: parts need not add up to the whole",
        lambda: near(
            falls(same, lambda x, a: a + 1, lambda x, a, b: a * b, x),
            [x * (x + 1), x * x, x * (x + 1)],
        ),
    )
    yield (
        "a backup: nothing in all, one lost straight, one gained through the second",
        lambda: near(falls(same, lambda x, a: 1 - a, lambda x, a, b: a + b), [0, -1, 1]),
        "A fall is clean minus patched, so a gain is negative.",
    )
    yield (
        "the same prompt twice changes nothing",
        lambda: near(
            falls(lambda x: x**2, lambda x, a: x * a, lambda x, a, b: a * b - x, x, x), [0] * 3
        ),
    )
    yield (
        "on the straight path the second node still hears the first one's clean word",
        lambda: near(
            falls(same, lambda x, a: factor * a, lambda x, a, b: a * 100 + b, x, other),
            [(100 + factor) * (x - other), factor * (x - other), 100 * (x - other)],
        ),
    )


def _toys():
    """name -> (F, nodes, share, size of the smallest set): each has a trap of its own."""
    letters = shuffled("abcdefgh", seed=0)
    a, b, c, d, e, f, g, h = letters

    def both(K):  # neither helps alone
        return float({c, f} <= set(K))

    def weights(K):
        size = {a: 5, b: 1, c: 1, d: 1, e: 1, f: 1}
        return float(sum(size.get(v, 0) for v in set(K)))

    def tempting(K):  # a is best alone, but the best pair has no a
        K = set(K)
        return max(6.0 * (a in K), 10.0 * ({b, c} <= K), 9.0 * ({a, d, e} <= K))

    def hindered(K):  # h works against the answer
        K = set(K)
        return 4.0 * (a in K) + 4.0 * (b in K) - 3.0 * (h in K)

    def two_pairs(K):  # both are faithful enough, the later one is better
        return max(9.5 * ({a, b} <= set(K)), 10.0 * ({g, h} <= set(K)))

    return letters, {
        "two nodes of which neither helps alone": (both, 0.9, 2),
        "many small parts": (weights, 0.9, 5),
        "a tempting single node": (tempting, 0.9, 2),
        "two pairs that would do": (two_pairs, 0.9, 2),
        "a node that works against the answer": (hindered, 0.75, 1),
    }


@checker("11.smallest_circuit")
def smallest_circuit(fn):
    letters, toys = _toys()

    def search(F, share, nodes):
        circuit, beaten = fn(F, list(nodes), share, torch_generator(0))
        return list(circuit), beaten

    @cache
    def found(F, share):
        return search(F, share, letters)

    for name, (F, share, size) in toys.items():
        yield (
            f"{name}: faithful enough, without a node twice",
            lambda F=F, share=share: (
                F(found(F, share)[0]) >= share * F(letters) - 1e-9
                and len(set(found(F, share)[0])) == len(found(F, share)[0])
                and set(found(F, share)[0]) <= set(letters)
            ),
        )
        yield (
            f"{name}: no smaller set would do",
            lambda F=F, share=share, size=size: len(found(F, share)[0]) == size,
            "Adding the best node again and again is not a search. There are few nodes: try all "
            "sets of one size, then of the next.",
        )
        yield (
            f"{name}: and none of its size does better",
            lambda F=F, share=share, size=size: (
                len(found(F, share)[0]) == size
                and near(F(found(F, share)[0]), max(F(K) for K in combinations(letters, size)))
            ),
        )
    F, share, _ = toys["two nodes of which neither helps alone"]
    yield (
        "the one pair that works beats almost all of 100 random pairs (it may be drawn itself)",
        lambda: 88 <= found(F, share)[1] <= 100,
    )
    yield (
        "when three nodes of eight do the same, random single nodes often do as well",
        lambda: 43 <= found(lambda K: float(bool(set(K) & set(letters[:3]))), 0.9)[1] <= 92,
        "Count the random sets of the same size whose F is lower; a tie is not beaten.",
    )

    def planted_found():
        heads, pair, value = _planted()
        circuit, beaten = search(value, 0.9, heads)
        return set(circuit) == set(pair) and 88 <= beaten <= 100

    yield (
        "on a planted induction model: the two planted heads, and nine of ten random pairs beaten",
        planted_found,
        "The same search, with F by mean stand-ins in a model written by hand.",
    )


def _planted():
    """(heads, the planted pair, F): the induction model of section 6, other heads at their mean."""
    p = planted.induction(8, torch_generator(0), idle=2)
    F = Runner(p.model, p.tokens, p.metric, ablation.mean(p.model, p.others))
    return nodes_of(p.model), p.nodes, F.of


@checker("11.counterexample")
def counterexample(fn):
    letters = shuffled("abcdef", seed=0)
    a, b, c, d, e, f = letters

    def gap(F, C, K):
        rest = [v for v in letters if v not in K]
        return abs(F([v for v in C if v not in K]) - F(rest))

    def most(F, C):
        return max(gap(F, C, K) for n in range(len(C) + 1) for K in combinations(C, n))

    def backup(K):  # f can speak for a, as long as b is there
        K = set(K)
        return float(a in K or {b, f} <= K) + 0.5 * (b in K)

    def late(K):  # only when a and b are both gone, e speaks, to which c listens
        K = set(K)
        return 3.0 if K & {a, b} else 3.0 * ({c, e} <= K)

    def harm(K):  # without c, node d turns a against the answer
        K = set(K)
        return 2.0 * (a in K) - 4.0 * ({a, d} <= K and c not in K)

    cases = {
        "a backup outside the circuit": (backup, [a, b], {a}),
        "a backup that waits for two nodes to go": (late, [a, b, c], {a, b}),
        "a node outside that turns against the answer": (harm, [a, c], {c}),
    }
    for name, (F, C, part) in cases.items():

        def answer(F=F, C=C):
            return list(fn(F, list(C), list(letters)))

        yield (
            f"{name}: the answer is a part of the circuit",
            lambda answer=answer, C=C: set(answer()) <= set(C),
            "K is taken out of the circuit and of the model; choose it from the circuit.",
        )
        yield (
            f"{name}: no other part tells circuit from model more clearly",
            lambda answer=answer, F=F, C=C: near(gap(F, C, answer()), most(F, C)),
            "Compare |F(C - K) - F(M - K)| for every subset K of C, all sizes.",
        )
        yield (
            f"{name}: the cause is in it",
            lambda answer=answer, part=part, C=C: part <= set(answer()) < set(C),  # less than all
        )
    yield (
        "for a circuit that is complete, any part will do, and the gap is zero",
        lambda: near(gap(sum_of, list("abc"), list(fn(sum_of, list("abc"), letters))), 0.0),
    )


def sum_of(K):
    """Three nodes that simply add."""
    return float(len(set(K) & set("abc")))


@checker("11.read_repair")
def read_repair(fn):
    unit = pick(1, 2, 30, seed=0) / 1  # of all terms, so that no two variants have the same

    def t(*values):
        return unit * torch.tensor(values, dtype=torch.float64)

    before = {"1.0": t(4.0, 6.0), "2.1": t(0.0, 1.0), "2.2": t(1.0, 1.0), "embedding": t(2.0, 0.0)}
    after = {"1.0": t(0.0, 0.0), "2.1": t(3.0, 3.0), "2.2": t(1.5, 0.5), "embedding": t(2.0, 0.0)}
    half = {**before, "1.0": t(1.0, 3.0)}
    worse = {**before, "1.0": t(0.0, 0.0), "2.2": t(-1.0, -1.0), "2.1": t(0.5, 1.0)}

    def read(b, a, cut):
        predicted, actual, helper = fn(b, a, cut)
        return float(predicted) / unit, float(actual) / unit, helper

    yield (
        "the promise is the fall of the cut node's own term",
        lambda: near(read(before, after, ["1.0"])[0], 5.0),
    )
    yield (
        "the cost is the fall of the sum of all terms",
        lambda: near(read(before, after, ["1.0"])[1], 5.0 - 2.5),
        "The logit difference is the sum of all terms, in both runs.",
    )
    yield (
        "the helper is the part that gained most, over all prompts",
        lambda: read(before, after, ["1.0"])[2] == "2.1",
    )
    yield (
        "a stand-in may leave something: the promise is before minus after, not before alone",
        lambda: near(read(before, half, ["1.0"])[:2], [3.0, 3.0]),
    )
    yield (
        "a cut can cost more than was promised",
        lambda: near(read(before, worse, ["1.0"])[:2], [5.0, 5.0 + 2.0 - 0.25]),
    )
    yield (
        "two nodes cut: their terms together, and neither is a helper",
        lambda: (
            near(read(before, after, ["1.0", "2.1"])[:2], [5.0 - 2.5, 2.5])
            and read(before, after, ["1.0", "2.1"])[2] not in ("1.0", "2.1")
        ),
    )
