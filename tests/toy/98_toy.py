# %% [markdown]
# # 98 · A toy lesson
# Series: Part 0 · Reading: 5 minutes · CPU: 1 second
#
# It has one cell of each kind. A heading that looks like a marker:
# # solution

# %%
from dataclasses import dataclass

import numpy as np

from circuitbook import plots
from circuitbook.check import check, checker, near
from circuitbook.claims import atleast, claim, show
from circuitbook.results import bound, measured

# %% tags=["save"]
SCALE = 2.0


# Why a comment above a taught function stays: it says why.
def eigenvalue_score(w):
    """Sum of eigenvalues over the sum of their sizes."""
    values = np.linalg.eigvals(w)
    return float(values.real.sum() / np.abs(values).sum())


# %%
@checker("98.trace_score")
def laws(fn):
    """What an answer must obey."""
    yield "the identity has a score of one", lambda: near(fn(np.eye(3)), 1.0)


# %% tags=["exercise"]
# exercise: 98.trace_score points=3 minutes=10 difficulty=2
def trace_score(w):
    """The trace of w over its size."""
    total = 0.0
    # solution
    for i in range(len(w)):
        total += w[i][i]
    return total / len(w)  # the secret


# %%
check("98.trace_score", trace_score)

# %% [markdown] tags=["solution"]
# The answer in words: walk down the diagonal.

# %% tags=["solution"]
print("another way:", np.trace(np.eye(3)) / 3)


# %%
@dataclass(frozen=True)
class Config:
    """What defines this experiment."""

    heads: int = 3


def compute(cfg):
    """All numbers of the chapter."""
    heads = np.random.default_rng(0).normal(size=(cfg.heads, 6, 6)) + SCALE * np.eye(6)
    score = [eigenvalue_score(w) for w in heads]
    best = int(np.argmax(score))
    gap = np.trace(heads[0]) - np.linalg.eigvals(heads[0]).real.sum()
    return {
        "data": {"score": score, "best": best},
        "claims": [
            claim(
                "toy.best",
                "Head {best} has a score of {value:.2f}, at least {bound}.",
                label="measurement",
                values={"best": best},
                holds=atleast(score[best], 0.5),
            ),
            claim("toy.sum", "Equal to {limit}.", label="identity", holds=bound(gap, 1e-9)),
        ],
    }


r = measured("98_toy", compute, Config(), kinds={"best": "exact"})

# %%
show(r)

# %%
plots.table([{"head": i, "score (−1 to 1)": s} for i, s in enumerate(r["score"])])

# %%
plots.bars(
    {f"head {i}": s for i, s in enumerate(r["score"])},
    x_label="head",
    y_label="score (−1 to 1)",
    title="Scores",
    alt=f"Head {r['best']} has the highest score, {max(r['score']):.2f}.",
)
