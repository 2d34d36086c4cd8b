"""The laws that answers of chapter 06 must obey."""

import torch

from circuitbook import gauge, probe
from circuitbook.check import Stopped, checker, draw, near, torch_generator
from circuitbook.checks.draws import pick, shuffled


def causal(n, seed=0):
    """A random causal pattern whose rows sum to one."""
    weight = draw(n, n, seed=seed).exp().tril()
    return weight / weight.sum(-1, keepdim=True)


def follows(kind, **more):
    """One known head as a function from tokens [n, pos] to its pattern [n, pos, pos]."""
    return lambda tokens: probe.synthetic_pattern(kind, tokens, **more)[:, 0]


def moved(pattern, step):
    """The same attention `step` keys later (or earlier); what would leave the past goes to BOS."""
    out = pattern.roll(step, -1).tril()
    out[..., 0] += 1 - out.sum(-1)
    return out


@checker("06.prefix_matching")
def prefix_matching(fn):
    word = torch.tensor([0, *shuffled(range(1, 30), seed=5)])  # BOS stays what it is
    tokens = word[[0, 5, 7, 9, 5, 7, 5]]
    ideal = probe.synthetic_pattern("induction", tokens[None])[0, 0]
    copies = probe.synthetic_pattern("duplicate", tokens[None])[0, 0]
    one = torch.zeros(7, 7, dtype=torch.float64)
    one[:, 0] = 1.0
    one[4, 0], one[4, 2], one[4, 3] = 0.5, 0.3, 0.2  # query 4 reads a 5: the key after 1 is 2
    block = [3, 4, 8, 6, 2]
    long = word[[0, *block, 11, *block, 12, 13, *block]]
    random = causal(len(long), seed=4)
    reference = probe.prefix_matching_score(random[None, None], long[None]).item()

    yield "the ideal head scores one", lambda: near(fn(ideal, tokens), 1.0)
    yield (
        "a head that looks at the earlier copy itself scores zero",
        lambda: near(fn(copies, tokens), 0.0),
        "The wanted key stands one place after the earlier copy.",
    )
    yield (
        "a head one key too late scores zero",
        lambda: near(fn(moved(probe.synthetic_pattern("induction", long[None])[0, 0], 1), long), 0),
    )
    yield (
        "in a hand-sized pattern one of three matching queries gives 0.3 to its key",
        lambda: near(fn(one, tokens), 0.3 / 3),
        "Average over the queries that have a match, and over no others.",
    )
    yield (
        "all earlier copies count, on a random pattern over three copies",
        lambda: near(fn(random, long), reference, 1e-9),
        "A query in the third copy has two right keys. Add the attention to both.",
    )
    yield (
        "with half of the attention moved to BOS, half the score",
        lambda: near(fn(random / 2, long), reference / 2, 1e-9),
    )


@checker("06.fooling_pattern")
def fooling_pattern(fn):
    def score(period, copies, seed=0):
        pattern = torch.as_tensor(fn(period, copies)).double()
        block = 1 + torch.randperm(500, generator=torch_generator(seed))[:period]
        tokens = torch.cat([torch.zeros(1, dtype=torch.long), block.repeat(copies)])[None]
        return probe.prefix_matching_score(pattern[None, None], tokens).item()

    def table(period, copies):
        return torch.as_tensor(fn(period, copies)).double()

    some = pick(5, 4, 9, seed=1), pick(3, 2, 5, seed=2)
    n = 1 + some[0] * some[1]
    yield "the shape is [n, n]", lambda: tuple(table(*some).shape) == (n, n)
    yield "no query looks ahead", lambda: bool((table(*some).triu(1) == 0).all())
    yield (
        "every row sums to one",
        lambda: near(table(*some).sum(-1), torch.ones(n).double(), 1e-6),
        "The first rows have no key so far back. Let them rest on BOS.",
    )
    sizes = {
        "four copies of a long block": (pick(25, 20, 30, seed=3), 4),
        "two copies of a longer block": (pick(50, 40, 60, seed=4), 2),
        "two copies of a block of a few tokens": (pick(3, 3, 7, seed=5), 2),
    }
    for case, (period, copies) in sizes.items():
        yield (
            f"it scores one on {case}",
            lambda period=period, copies=copies: near(score(period, copies), 1.0, 1e-6),
            "The token after the earlier copy stands one place nearer than the earlier copy.",
        )


def _dangerous_offsets(fn, words, n=3):
    """The offsets whose heads do best on the very texts that the learner's function draws."""
    drawn = []

    def spy(tokens):
        drawn.append(tokens)
        return follows("induction")(tokens)

    fn(spy, words, torch_generator(0))
    if not drawn:
        raise Stopped("Your function never asks the head for its pattern.")
    total = torch.zeros(max(t.shape[1] for t in drawn))
    for tokens in drawn:
        wanted = probe.after_earlier_copies(tokens)
        queries = wanted.any(-1).sum(-1).clamp_min(1)
        for d in range(1, tokens.shape[1]):
            total[d] += (wanted.diagonal(-d, -2, -1).sum(-1) / queries).mean()
    return total.topk(n).indices.tolist()


@checker("06.honest_score")
def honest_score(fn):
    words = torch.arange(100, 700)
    ideal = follows("induction")

    def score(head, seed=0):
        return float(fn(head, words, torch_generator(seed)))

    def lazy(tokens, rows=slice(None)):
        pattern = ideal(tokens)
        pattern[:, rows] /= 2 if rows == slice(None) else torch.inf
        pattern[..., 0] += 1 - pattern.sum(-1)
        return pattern

    yield "the ideal head scores one", lambda: near(score(ideal), 1.0, 0.05)
    yield (
        "a head that gives half of its attention to the right keys scores a half",
        lambda: near(score(lazy), 0.5, 0.05),
    )
    yield (
        "a head that finds its key at every second query scores a half",
        lambda: near(score(lambda tokens: lazy(tokens, slice(0, None, 2))), 0.5, 0.05),
        "Average over the queries; neither the best nor the worst one speaks for all.",
    )
    yield (
        "no head with a fixed offset scores above 0.1, whatever the offset",
        lambda: all(
            score(follows("fixed_offset", offset=d)) <= 0.1 < score(ideal)
            for d in _dangerous_offsets(fn, words)
        ),
        "Give every sequence another distance between the copies, many different ones.",
    )
    for kind in ("uniform", "first", "previous", "duplicate"):
        yield (
            f"a {kind} head scores at most 0.1",
            lambda kind=kind: (
                score(follows(kind)) <= 0.1 < score(ideal)
            ),  # zero for all is no score
        )
    yield (
        "a head one key too late scores at most 0.1",
        lambda: score(lambda tokens: moved(ideal(tokens), 1)) <= 0.1 < score(ideal),
    )
    yield (
        "another draw of words gives nearly the same score",
        lambda: near(score(lazy, 1), score(lazy, 2), 0.05) and score(lazy, 1) > 0.1,
    )


@checker("06.matching_share")
def matching_share(fn):
    n = 8
    eye = torch.eye(n, dtype=torch.float64)
    turn = eye.roll(1, 0)  # x turn: the next coordinate
    E, OV, QK = draw(30, 12), draw(12, 12, seed=1), draw(12, 12, seed=2)
    flip = torch.linalg.inv(OV).mT  # then E QK OV^T E^T = E E^T when QK = flip
    G = gauge.invertible(12, 12, generator=torch_generator(3))
    back = torch.linalg.inv(G)
    moved_on = QK.clone()

    yield "heads that pass tokens on unchanged match them all", lambda: near(fn(eye, eye, eye), 1.0)
    yield (
        "a head that takes each token for its neighbour matches none",
        lambda: near(fn(eye, eye, turn), 0.0),
    )
    yield (
        "a turn by the earlier head is undone when the later head's keys turn alike",
        lambda: near(fn(eye, turn, turn), 1.0),
        "The earlier head writes into the key: x W_QK (y W_OV)^T.",
    )
    yield (
        "it is a share: three of eight",
        lambda: near(
            fn(eye, eye, torch.diag(torch.tensor([1.0] * 3 + [-1.0] * 5).double())), 3 / 8
        ),
    )
    yield (
        "rows are queries: a loud key does not hide in its own column",
        lambda: near(fn(_loud(eye)[0], eye, _loud(eye)[1]), _loud(eye)[2]),
        "For each query, look for the largest entry along the keys.",
    )
    yield (
        "on random weights, other stream coordinates give the same share",
        lambda: near(fn(E @ G, back @ OV @ G, back @ moved_on @ back.mT), fn(E, OV, moved_on)),
    )
    yield (
        "when W_QK undoes W_OV, the share is that of E E^T",
        lambda: near(fn(E, OV, flip), ((E @ E.mT).argmax(1) == torch.arange(30)).double().mean()),
        "The write is y W_OV, with y in rows.",
    )


def _loud(eye):
    """Embedding, W_QK and share: key 0 is loud for every query, so only query 0 matches itself."""
    QK = eye.clone()
    QK[:, 0] = 5.0
    return eye, QK, 1 / len(eye)


@checker("06.key_cut")
def key_cut(fn):
    x, w, p = draw(6, 8), draw(6, 8, seed=1), draw(6, 8, seed=2)
    W_Q, W_K = draw(8, 3, seed=3), draw(8, 3, seed=4)
    zero = torch.zeros_like(w)

    def answer(*given):
        return torch.as_tensor(fn(*given))

    def pattern(query, key, Q=W_Q, K=W_K):
        scores = (query @ Q) @ (key @ K).mT / Q.shape[1] ** 0.5
        return scores.masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf).softmax(-1)

    orthogonal = torch.eye(8, dtype=torch.float64)[:, :3]
    unseen = zero.clone()
    unseen[:, 5] = 7.0  # W_K reads the first three coordinates only
    constant = w[:1].repeat(6, 1)

    yield (
        "rows sum to one and nobody looks ahead",
        lambda: (
            near(answer(x, w, p, W_Q, W_K).sum(-1), torch.ones(6).double(), 1e-9)
            and bool((answer(x, w, p, W_Q, W_K).triu(1) == 0).all())
        ),
    )
    yield (
        "removing nothing leaves the head's own pattern",
        lambda: near(answer(x, zero, p, W_Q, W_K), pattern(x + p, x + p), 1e-9),
        "Mind the positions and the square root of d_head.",
    )
    yield (
        "a write that the keys cannot read does not matter",
        lambda: near(
            answer(x, unseen, p, W_Q, orthogonal), pattern(x + p, x + p, W_Q, orthogonal), 1e-9
        ),
    )
    yield (
        "queries still see the write: it is cut from the keys alone",
        lambda: near(answer(x, w, p, W_Q, W_K), pattern(x + p, x - w + p), 1e-9),
        "Only the input of W_K loses the write.",
    )
    yield (
        "the same write at every key is a constant per query, which softmax cannot see",
        lambda: near(answer(x, constant, p, W_Q, W_K), pattern(x + p, x + p), 1e-9),
    )
