"""The laws that answers of chapter 02 must obey."""

import torch

from circuitbook import gauge, scan
from circuitbook.check import checker, draw, near, torch_generator
from circuitbook.checks.draws import pick


@checker("02.qk_score")
def qk_score(fn):
    one_hot, flat = torch.eye(3, dtype=torch.float64), torch.zeros(3, 4, dtype=torch.float64)
    W_Q, W_K = flat.clone(), flat.clone()
    W_Q[0, 1], W_K[2, 1] = 6.0, 1.0  # token 0 asks in coordinate 1, token 2 answers there
    E, Q, K = draw(5, 6), draw(6, 4, seed=1), draw(6, 4, seed=2)
    R = gauge.invertible(4, 4, generator=torch_generator(3))
    turned = Q @ R, K @ torch.linalg.inv(R).mT

    yield (
        "in a hand-made head token 0 looks for token 2, and not the other way round",
        lambda: float(fn(0, 2, one_hot, W_Q, W_K)) > 0 and near(fn(2, 0, one_hot, W_Q, W_K), 0.0),
        "The query token meets W_Q, the key token meets W_K.",
    )
    yield (
        "six times one, over the root of four head coordinates",
        lambda: near(fn(0, 2, one_hot, W_Q, W_K), 6 / 4**0.5),
        "Divide by the square root of d_head, the number of columns of W_Q.",
    )
    yield (
        "the score is linear in W_K",
        lambda: near(fn(1, 3, E, Q, 5 * K), 5 * fn(1, 3, E, Q, K)),
    )
    yield (
        "other head coordinates, the same score",
        lambda: near(fn(1, 3, E, *turned), fn(1, 3, E, Q, K), 1e-8),
    )
    yield (
        "it equals the model's own sum over coordinates on random weights",
        lambda: near(fn(4, 2, E, Q, K), sum((E[4] @ Q * (E[2] @ K)).tolist()) / 2, 1e-9),
    )


@checker("02.source_writes")
def source_writes(fn):
    A = draw(6, 6, seed=1).exp().tril()
    A = A / A.sum(-1, keepdim=True)
    x, W_V, W_O = draw(6, 8), draw(8, 3, seed=2), draw(3, 8, seed=3)
    zero = torch.zeros(2, 8, dtype=torch.float64)

    def writes(A, j):
        """The answer; zeros would obey most laws, and nobody asked for them."""
        found = torch.as_tensor(fn(A, x, W_V, W_O, j))
        return found if found.abs().max() > 1e-6 else zero[:0]

    yield "one row for each destination", lambda: tuple(fn(A, x, W_V, W_O, 2).shape) == (6, 8)
    yield (
        "positions before the source receive nothing",
        lambda: near(writes(A, 2)[:2], zero, 1e-12),
        "The weights are column `source` of the pattern; a row says where one destination looks.",
    )
    yield (
        "added over all sources, the writes are the head's output A X W_V W_O",
        lambda: near(sum(fn(A, x, W_V, W_O, j) for j in range(6)), A @ x @ W_V @ W_O, 1e-9),
    )
    yield (
        "all rows lie on one line",
        lambda: float(torch.linalg.svdvals(writes(A, 1))[1]) < 1e-9,
    )
    yield (
        "a destination that attends twice as much receives twice as much",
        lambda: len(writes(A, 1)) == 6 and near(writes(2 * A, 1), 2 * writes(A, 1), 1e-9),
    )


def _dense(W_E, W_V, W_O, W_U):
    """The score from the whole table of a small vocabulary."""
    values = torch.linalg.eigvals(W_E @ W_V @ W_O @ (W_U - W_U.mean(1, keepdim=True)))
    return (values.real.sum() / values.abs().sum()).item()


@checker("02.copying_score")
def copying_score(fn):
    E, P = draw(40, 12), torch.linalg.qr(draw(12, 6, seed=1))[0]
    V, O, U = draw(12, 6, seed=2), draw(6, 12, seed=3), draw(12, 40, seed=4)
    J = draw(6, 6, seed=5)
    R = gauge.invertible(6, 6, generator=torch_generator(6))
    c = 5 * draw(12, 1, seed=8)

    def many():
        tokens, one = draw(6_000_000, 1, seed=7).float(), torch.ones(1, 1)
        return near(fn(tokens, one, one, tokens.mT), 1, 1e-4)

    yield "a head that writes back what it reads scores one", lambda: near(fn(E, P, P.mT, E.mT), 1)
    yield "its opposite scores minus one", lambda: near(fn(E, P, -P.mT, E.mT), -1)
    yield (
        "a head that only turns, with imaginary eigenvalues, scores zero",
        lambda: near(fn(E, P, (J - J.mT) @ P.mT, E.mT), 0, 1e-8),
        "|λ| is the length of a complex number, not the size of its real part.",
    )
    yield "twice the head, the same score", lambda: near(fn(E, V, 2 * O, U), fn(E, V, O, U), 1e-8)
    yield (
        "W_U + c 1^T changes no probability, and does not move the score",
        lambda: near(fn(E, V, O, U + c), fn(E, V, O, U), 1e-8),
        "Subtract from each row of W_U its mean over the vocabulary (the last axis).",
    )
    yield (
        "other head coordinates, the same score",
        lambda: near(fn(E, V @ R, torch.linalg.inv(R) @ O, U), fn(E, V, O, U), 1e-8),
    )
    yield (
        "it equals the score of the whole table on forty tokens",
        lambda: near(fn(E, V, O, U), _dense(E, V, O, U), 1e-8),
    )
    yield (
        "six million tokens are no problem, because the table is never built",
        many,
        "The nonzero eigenvalues of A B are those of B A.",
    )


@checker("02.fooling_head")
def fooling_head(fn):
    def tests(n):
        W_V, W_O = (torch.as_tensor(w, dtype=torch.float64) for w in fn(n))
        one_hot = torch.eye(n, dtype=torch.float64)
        A, B = scan.ov_factors(one_hot, W_V, W_O, one_hot)
        on_top = (scan.self_rank(A, B) == 1).sum()
        return scan.copying_score(A, B).item(), int(on_top)

    size = pick(9, 6, 20, seed=0)
    yield (
        "both matrices are n by n",
        lambda: all(tuple(w.shape) == (size, size) for w in fn(size)),
    )
    sizes = {"a small": pick(8, 7, 12, seed=1), "a larger": pick(30, 24, 40, seed=2)}
    for kind, n in sizes.items():
        yield (
            f"in {kind} vocabulary all tokens but one are on top of their own row",
            lambda n=n: tests(n)[1] >= n - 1,
            "W_V W_O is the whole table here. What does the identity give?",
        )
        yield (
            f"in {kind} vocabulary the copying score is at most -0.5",
            lambda n=n: tests(n)[0] <= -0.5,
            "One negative eigenvalue can outweigh all the others if it is large enough.",
        )
