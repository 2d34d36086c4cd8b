"""The laws that answers of chapter 08 must obey."""

import torch

from circuitbook import gauge
from circuitbook.check import checker, draw, near, torch_generator
from circuitbook.checks.draws import pick


def inputs(p, n, count, seed=0):
    """Features [n, count], each on with probability p, then uniform between zero and one."""
    drawn = torch.rand(2, n, count, generator=torch_generator(seed), dtype=torch.float64)
    value, gate = drawn
    return value * (gate < p)


PAIR = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
PENTAGON = torch.stack(
    [f(2 * torch.pi * torch.arange(5, dtype=torch.float64) / 5) for f in (torch.cos, torch.sin)]
)
SIDES = 3**-0.5 * torch.tensor(
    [[1.0, 1, -1, -1], [1, -1, 1, -1], [1, -1, -1, 1]], dtype=torch.float64
)  # the corners of a tetrahedron


UNEVEN = torch.tensor([[1.0, 0, 0.5**0.5], [0, 1, 0.5**0.5]], dtype=torch.float64)


def column(v):
    """A vector as float64, from a list, a numpy array or a tensor."""
    return torch.as_tensor(v, dtype=torch.float64)


@checker("08.toy_loss")
def toy_loss(fn):
    two, none, ones = inputs(0.5, 2, 64), torch.zeros(2).double(), torch.ones(2).double()
    alone = torch.tensor([[0.7, 0.0], [0.0, 0.4]], dtype=torch.float64)
    met = torch.tensor([[0.7], [0.4]], dtype=torch.float64)
    W, b, x, I = draw(2, 5), draw(5, seed=1), inputs(0.4, 5, 50), draw(5, seed=2).exp()
    halves = x[:, :25], x[:, 25:]
    turn = torch.linalg.qr(draw(2, 2, seed=3))[0]

    yield (
        "opposite features that come alone come back whole: no loss",
        lambda: near(fn(PAIR, none, alone, ones), 0.0, 1e-12),
        "Is W used a second time, transposed? Does the ReLU come last? Is the error squared?",
    )
    yield (
        "when they meet, both err by the smaller one",
        lambda: near(fn(PAIR, none, met, ones), 2 * 0.4**2, 1e-9),
        "Square the errors, then sum over features. Only inputs are averaged.",
    )
    yield (
        "twice the importance of all features, twice the loss",
        lambda: near(fn(PAIR, none, met, 2 * ones), 2 * fn(PAIR, none, met, ones), 1e-9),
        "The importance multiplies each squared error. It is not squared itself.",
    )
    yield (
        "a feature of no importance costs nothing",
        lambda: near(fn(PAIR, none, met, torch.tensor([1.0, 0.0]).double()), 0.4**2, 1e-9),
    )
    yield (
        "an empty W answers with ReLU(b) whatever comes in",
        lambda: near(fn(0 * PAIR, 0.3 * ones, two, ones), ((two - 0.3) ** 2).sum().item() / 64),
        "Add b before the ReLU, one number for each feature.",
    )
    yield (
        "each feature's error meets its own importance",
        lambda: near(
            fn(0 * PAIR, 0.3 * ones, two, torch.tensor([1.0, 0.0]).double()),
            ((two[0] - 0.3) ** 2).mean().item(),
        ),
        "Weigh before you sum over features: one importance for each row of x.",
    )
    yield (
        "a negative bias on an empty W answers zero",
        lambda: near(fn(0 * PAIR, -ones, two, ones), (two**2).sum().item() / 64),
        "The ReLU comes after the bias.",
    )
    yield (
        "two halves of the inputs: the loss of all is the mean of both",
        lambda: near(fn(W, b, x, I), sum(fn(W, b, half, I) for half in halves) / 2, 1e-9),
        "Average over inputs.",
    )
    yield (
        "a rotation of the hidden space changes nothing",
        lambda: near(fn(turn @ W, b, x, I), fn(W, b, x, I), 1e-9),
    )


@checker("08.two_plans")
def two_plans(fn):
    def by_chance(p, r, which):
        x = inputs(p, 2, 400_000, seed=int(100 * p + 10 * r))
        if which:
            guess = torch.stack([x[0] - x[1], x[1] - x[0]]).relu()
        else:
            guess = torch.stack([x[0], torch.full_like(x[1], p / 2)])
        return (((x - guess) ** 2).mean(1) * torch.tensor([1.0, r])).sum().item()

    part, low, high = (
        pick(usual, *ends, seed=i) / 100
        for i, (usual, *ends) in enumerate(((60, 35, 95), (30, 20, 45), (70, 55, 90)))
    )
    below, above = pick(10, 5, 30, seed=3) / 100, pick(90, 60, 95, seed=4) / 100
    yield (
        "two losses come back",
        lambda: len(fn(0.5, 0.5)) == 2,
        "Return (first alone, pair).",
    )
    yield (
        "features that are always on: giving one up costs its variance, r/12",
        lambda: near(fn(1.0, part)[0], part / 12),
        "The bias answers with the mean p/2. What remains is E x² - (E x)².",
    )
    yield (
        "features that are always on: the pair loses E min² for each, weighted",
        lambda: near(fn(1.0, part)[1], (1 + part) / 6),
        "When both are on, both err by the smaller value, whatever their order.",
    )
    for p, r in ((0.3, 1.0), (0.8, 0.4)):
        yield (
            f"random inputs agree for the first alone (p = {p}, r = {r})",
            lambda p=p, r=r: near(fn(p, r)[0], by_chance(p, r, 0), 2e-3 * r),
            "E x² is p/3 and the mean p/2: the square of the mean is p²/4.",
        )
        yield (
            f"random inputs agree for the pair (p = {p}, r = {r})",
            lambda p=p, r=r: near(fn(p, r)[1], by_chance(p, r, 1), 2e-3),
            "How often do two independent features meet?",
        )
    yield (
        "both plans cost the same at p = 4r/(2 + 5r)",
        lambda: all(near(*fn(4 * r / (2 + 5 * r), r)) for r in (0.05, low, high, 1.0)),
    )
    yield (
        "below that border the pair is better, above it the first alone",
        lambda: fn(below, 0.5)[1] < fn(below, 0.5)[0] and fn(above, 0.5)[1] > fn(above, 0.5)[0],
        "Is the order of the two losses right?",
    )


@checker("08.feature_dimensionality")
def feature_dimensionality(fn):
    W = draw(4, 9)
    longer = draw(3, 3, seed=4)
    turn = torch.linalg.qr(draw(4, 4, seed=1))[0]
    both = torch.zeros(5, 6, dtype=torch.float64)
    both[0, :2], both[1:4, 2:] = PAIR, 2 * SIDES

    yield (
        "an orthogonal feature has one dimension",
        lambda: near(fn(torch.eye(3).double()), [1.0] * 3),
    )
    yield "two opposite features have a half each", lambda: near(fn(PAIR), [0.5, 0.5])
    yield (
        "a pentagon has two fifths each",
        lambda: near(fn(PENTAGON), [0.4] * 5),
        "Square each overlap, then sum over all features, the feature itself too.",
    )
    yield "a tetrahedron has three quarters each", lambda: near(fn(SIDES), [0.75] * 4)
    yield (
        "twice as long, the same shares",
        lambda: near(column(fn(2.5 * W)), column(fn(W))),
        "Only the first direction in the denominator has length one: Ŵ_i·W_j.",
    )
    yield (
        "lengths count: a feature beside one twice as long gets a fifth",
        lambda: near(fn(torch.tensor([[1.0, 2.0]]).double()), [0.2, 0.8]),
        "W_j keeps its length in the denominator. Do not divide by it.",
    )
    yield (
        "between two orthogonal features: two thirds each, and a half for the one in the middle",
        lambda: near(fn(UNEVEN), [2 / 3, 2 / 3, 0.5]),
        "Three quarters each would be leverages, the bound. D asks what is written along Ŵ_i.",
    )
    yield (
        "shares of parts that do not overlap are those of each part",
        lambda: near(fn(both), [0.5] * 2 + [0.75] * 4),
    )
    yield "a rotation changes nothing", lambda: near(fn(turn @ W), fn(W))
    yield (
        "no feature has more than one dimension",
        lambda: bool((column(fn(longer)) <= 1 + 1e-6).all()) and bool((column(fn(W)) > 0).all()),
    )
    yield (
        "the shares sum to at most the number of dimensions",
        lambda: float(column(fn(W)).sum()) <= 4 + 1e-6,
    )
    yield (
        "a column of zeros has no share, and harms no other",
        lambda: near(fn(torch.cat([PAIR, 0 * PAIR], 1)), [0.5, 0.5, 0.0, 0.0]),
        "Zero over zero is not a number: treat that column apart.",
    )


@checker("08.leverages")
def leverages(fn):
    W, G = draw(3, 8), gauge.invertible(3, 3, generator=torch_generator(1))
    flat = torch.cat([draw(2, 6, seed=2), torch.zeros(2, 6).double()])
    far = torch.cat([0.01 * torch.eye(3), torch.zeros(3, 3)], 1).double()
    far[0, 3] = 1.0

    yield "orthogonal directions have one each", lambda: near(fn(torch.eye(4).double()), [1.0] * 4)
    yield "a pentagon has two fifths each", lambda: near(fn(PENTAGON), [0.4] * 5)
    yield (
        "two orthogonal features and one in the middle have three quarters, twice, and a half",
        lambda: near(fn(UNEVEN), [0.75, 0.75, 0.5]),
        "Two thirds would be D. The leverage asks for the inverse of W Wᵀ, not for one direction.",
    )
    yield "they sum to the rank", lambda: near(column(fn(W)).sum(), 3.0, 1e-5)
    yield (
        "they sum to the rank also when W does not fill its space",
        lambda: near(column(fn(flat)).sum(), 2.0, 1e-5),
        "W Wᵀ has no inverse then. The plus is a pseudo-inverse: torch.linalg.pinv.",
    )
    yield (
        "any invertible change of the hidden space moves none",
        lambda: near(fn(G @ W), fn(W), 1e-5),
        "The middle matrix is the inverse of W Wᵀ, not of its root or its square.",
    )
    yield (
        "they are the diagonal of a projection onto the rows",
        lambda: near(fn(W), (torch.linalg.svd(W)[2][:3] ** 2).sum(0), 1e-5),
    )
    yield (
        "a short direction that stands alone has one",
        lambda: near(column(fn(far))[1:3], [1.0, 1.0]),
        "Lengths do not matter here. Add no small number to W Wᵀ before you invert it.",
    )


@checker("08.two_codes")
def two_codes(fn):
    cases = {
        "a pentagon": PENTAGON,
        "four directions in three dimensions": draw(3, 4),
        "forty in ten": draw(10, 40, seed=1),
        "a triangle": PENTAGON.new_tensor([[1, -0.5, -0.5], [0, 0.75**0.5, -(0.75**0.5)]]),
    }

    def codes(W):
        """The learner's two codes, at largest entry one: any scale is right."""
        x, y = (column(c) for c in fn(W))
        if x.shape != (W.shape[1],):
            raise ValueError("a code has an entry for every feature")
        return torch.stack([x, y]) / torch.stack([x, y]).abs().max()

    for name, W in cases.items():
        m, n = W.shape
        yield (
            f"{name}: two codes of the right length come back",
            lambda W=W, n=n: len(fn(W)) == 2 and all(len(c) == n for c in fn(W)),
            "Return (x, y). Each has an entry for every feature, also for those that are off.",
        )
        yield (
            f"{name}: some feature is on",
            lambda W=W: float(codes(W).max()) > 0,
            "Two codes of zeros are the same code.",
        )
        yield (
            f"{name}: no feature is negative",
            lambda W=W: bool((codes(W) >= 0).all()),
            "Positive entries of c belong to x, negative ones to y, with their sign turned.",
        )
        yield (
            f"{name}: both have the same hidden vector",
            lambda W=W: near(W @ codes(W)[0], W @ codes(W)[1]),
            "W c must be zero. Which singular vector of the first m + 1 columns does that?",
        )
        yield (
            f"{name}: they are different",
            lambda W=W: float((codes(W)[0] - codes(W)[1]).abs().max()) > 1e-3,
        )
        yield (
            f"{name}: together they use at most m + 1 features",
            lambda W=W, m=m: int((codes(W) > 1e-9).sum()) <= m + 1,
            "Take m + 1 columns only, and leave all other features off.",
        )
