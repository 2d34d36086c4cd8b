"""Laws that an answer to chapter 01's exercises obeys, on small cases with known answers."""

import numpy as np
import torch

from circuitbook import gauge
from circuitbook.check import (
    checker,
    draw,
    near,
    numpy_generator,
    torch_generator,
    untouched,
)


@checker("01.centred_contribution")
def centred_contribution(fn):
    eye, write = torch.eye(3, dtype=torch.float64), torch.tensor([3.0, 0.0, 0.0]).double()
    W_U, w, other = draw(5, 7), draw(5, seed=1), draw(5, seed=2)
    c = draw(5, seed=3)
    yield (
        "one logit raised by three of three words stands two above the mean",
        lambda: near(fn(write, eye, 0), 2.0),
    )
    yield (
        "a word that was not raised then stands below the mean",
        lambda: near(fn(write, eye, 1), -1.0),
    )
    yield (
        "W_U + c 1ᵀ changes nothing",
        lambda: near(fn(w, W_U + c[:, None], 4), fn(w, W_U, 4), 1e-9),
        "The mean over the vocabulary moves as much as the token's own logit does.",
    )
    yield (
        "two writes together contribute what they contribute apart",
        lambda: near(fn(w + other, W_U, 2), fn(w, W_U, 2) + fn(other, W_U, 2), 1e-9),
    )
    yield (
        "over the whole vocabulary the contributions sum to zero",
        lambda: near(sum(float(fn(w, W_U, t)) for t in range(7)), 0.0, 1e-9),
    )
    yield "W_U itself is left as it was", untouched(fn, lambda: near(W_U, draw(5, 7), 0.0))


def _weights():
    shapes = {
        "W_E": (6, 4), "W_pos": (5, 4), "W_Q": (4, 2), "W_K": (4, 2), "W_V": (4, 2), "W_O": (2, 4),
        "W_in": (4, 3), "b_in": (3,), "W_out": (3, 4), "b_out": (4,), "W_U": (4, 6),
    }  # fmt: skip
    return {name: draw(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}


def _logits(w, tokens=(0, 3, 1, 3, 5)):
    """One block, one head, positions for queries and keys only; written out by hand."""
    x = w["W_E"][list(tokens)]
    at = x + w["W_pos"][: len(tokens)]
    scores = (at @ w["W_Q"]) @ (at @ w["W_K"]).T / w["W_Q"].shape[1] ** 0.5
    mask = torch.ones(len(tokens), len(tokens)).triu(1).bool()
    pattern = scores.masked_fill(mask, -torch.inf).softmax(-1)
    x = x + pattern @ (x @ w["W_V"]) @ w["W_O"]
    hidden = torch.nn.functional.gelu(x @ w["W_in"] + w["b_in"])
    return (x + hidden @ w["W_out"] + w["b_out"]) @ w["W_U"]


@checker("01.change_stream")
def change_stream(fn):
    weights, before = _weights(), _weights()
    turn = torch.linalg.qr(draw(4, 4, seed=20))[0]
    stretch = gauge.invertible(4, 4, generator=torch_generator(21))

    def moved(G):
        """The new weights; to change nothing would obey most laws, so that does not count."""
        new = fn(weights, G)
        if near(new["W_E"], weights["W_E"], 1e-3):
            raise ValueError("these are the old weights")
        return new

    yield (
        "all eleven weights come back in their shapes",
        lambda: (
            {n: w.shape for n, w in fn(weights, turn).items()}
            == {n: w.shape for n, w in weights.items()}
        ),
    )
    yield (
        "the embedding is written in the new coordinates",
        lambda: near(fn(weights, stretch)["W_E"], weights["W_E"] @ stretch, 1e-9),
    )
    yield (
        "after a rotation the logits are the same",
        lambda: near(_logits(moved(turn)), _logits(weights), 1e-8),
    )
    yield (
        "after a stretch the logits are the same",
        lambda: near(_logits(moved(stretch)), _logits(weights), 1e-8),
        "Readers meet the inverse of G, which is its transpose only when G is orthogonal.",
    )
    yield (
        "one change after another is the change by the product",
        lambda: all(
            near(a, b, 1e-8)
            for a, b in zip(
                fn(moved(stretch), turn).values(), moved(stretch @ turn).values(), strict=True
            )
        ),
    )
    yield (
        "the old weights are left as they were",
        untouched(fn, lambda: all(torch.equal(weights[n], before[n]) for n in before)),
    )


@checker("01.mean_kl")
def mean_kl(fn):
    counts = np.array([[3.0, 1.0], [0.0, 4.0]])
    p = np.array([[0.75, 0.25], [1e-9, 1 - 1e-9]])
    even = np.log(np.full((2, 2), 0.5))
    rng = numpy_generator(0)
    more = rng.integers(0, 5, (6, 6)).astype(float)
    more[2] = 0
    log_q = np.log(rng.dirichlet(np.ones(6), 6))
    rows = more.sum(1, keepdims=True)
    safe = np.where(more > 0, more / np.maximum(rows, 1), 1)
    h2 = -(more * np.log(safe)).sum() / more.sum()
    loss = -(more * log_q).sum() / more.sum()
    yield (
        "a table equal to the text's is at distance zero",
        lambda: near(float(fn(counts, np.log(p))), 0.0, 1e-6),
    )
    yield (
        "a row that is certain is log 2 away from a fair coin",
        lambda: near(float(fn(np.array([[0.0, 4.0], [0.0, 0.0]]), even)), np.log(2), 1e-9),
        "A count of zero contributes nothing, and so does an empty row.",
    )
    yield (
        "rows weigh as often as their token occurs",
        lambda: near(float(fn(np.array([[0.0, 9.0], [1.0, 1.0]]), even)), 9 / 11 * np.log(2), 1e-9),
        "p(a) is the row's share of all counts.",
    )
    yield (
        "loss minus the entropy of pairs is this number",
        lambda: near(float(fn(more, log_q)), float(loss - h2), 1e-9),
    )
    yield (
        "twice the text, the same number",
        lambda: near(float(fn(2 * more, log_q)), float(fn(more, log_q)), 1e-9),
    )


@checker("01.which_numbers_move")
def which_numbers_move(fn):
    def numbers(w):
        write = w["x"] @ w["W_V"] @ w["W_O"]
        raw = write @ w["W_U"]
        norm = torch.linalg.matrix_norm
        # A write of head 1 meets the keys of head 2.
        OV, QK = w["W_V"] @ w["W_O"], w["W_K"] @ w["W_Q"].T
        last = w["x"] + write
        return {
            "loss": -(last @ w["W_U"]).log_softmax(-1)[:, 0].mean(),
            "raw contribution": raw[:, 0],
            "centred contribution": raw[:, 0] - raw.mean(-1),
            "virtual-weight score": norm(OV @ QK) / norm(OV) / norm(QK),
            "size of W_V": norm(w["W_V"]),
            "excess kurtosis": last.pow(4).mean(-1) / last.square().mean(-1).square(),
        }

    def weights():
        thin = dict.fromkeys(("W_V", "W_Q", "W_K"), (6, 2))
        shapes = {"x": (3, 6), **thin, "W_O": (2, 6), "W_U": (6, 5)}
        return {name: draw(*shape, seed=30 + i) for i, (name, shape) in enumerate(shapes.items())}

    def stream(w, G):
        back = torch.linalg.inv(G)
        return {n: v @ G if n in ("x", "W_O") else back @ v for n, v in w.items()}

    def heads(w, R):
        back = torch.linalg.inv(R)
        new = {"W_V": w["W_V"] @ R, "W_O": back @ w["W_O"], "W_Q": w["W_Q"] @ R}
        return w | new | {"W_K": w["W_K"] @ back.T}

    stretch = gauge.invertible(6, 6, generator=torch_generator(40))
    turn = gauge.invertible(2, 2, generator=torch_generator(42))
    changed = {
        "rotated stream": lambda w: stream(w, torch.linalg.qr(stretch)[0]),
        "stretched stream": lambda w: stream(w, stretch),
        "other head coordinates": lambda w: heads(w, turn),
        "shifted unembedding": lambda w: w | {"W_U": w["W_U"] + draw(6, 1, seed=41)},
    }
    hints = {
        "rotated stream": "Lengths and angles of stream vectors stay. Their coordinates do not.",
        "stretched stream": "Lengths change too. Products of a writer and a reader still do not.",
        "other head coordinates": "Only W_V W_O and W_Q W_Kᵀ reach the outside of a head.",
        "shifted unembedding": "All logits of a position move alike.",
    }

    def truth(change):
        old, new = numbers(weights()), numbers(changed[change](weights()))
        return {n for n in old if not near(old[n], new[n], 1e-9)}

    yield "the answer is a set of names", lambda: isinstance(fn("rotated stream"), set | frozenset)
    for change in changed:
        yield (
            f"{change}: exactly the numbers that move on a small random model",
            lambda change=change: set(fn(change)) == truth(change),
            hints[change],
        )
