"""A head is compared by its part in a circuit, not by its index: other models have other numbers.

Each function takes one measure of heads out of what chapter 02, 03, 05 or 06 saved, in the shape
that the reference has. The pair (previous-token head → induction head) is the one that those
chapters found by their scores.
"""

import math
from typing import Any

from circuitbook.series.shelf import Saved

__all__ = [
    "copying_scores", "count_copying", "k_composition", "own_on_top", "phase", "prefix_matching",
    "previous_first_layer", "previous_one_layer", "q_composition", "reader_copies",
    "term_importance", "virtual_diagonal",
]  # fmt: skip

ONE, TWO = "attn-only-1l", "attn-only-2l"
COPIES = 0.9  # the eigenvalue score that chapter 02 asks for
POINTS = 12  # of a curve with many more
STARTED = 4e5  # tokens: before them a curve has only its first, dense snapshots
VOCABULARY = 4096  # of the course models


def copying_scores(saved: Saved) -> list[float]:
    """Σλ/Σ|λ| per head of the one-layer model, W_U centred (chapter 02)."""
    return saved.data["copying"][ONE]["score"]


def own_on_top(saved: Saved) -> list[float]:
    """Per head of the one-layer model: share of tokens on top of their own OV row (chapter 02)."""
    return saved.data["copying"][ONE]["all1"]


def previous_one_layer(saved: Saved) -> list[float]:
    """Per head of the one-layer model: mean attention to the previous token (chapter 02)."""
    return saved.data["offsets"][ONE]["text_previous"]


def previous_first_layer(saved: Saved) -> list[float]:
    """Per head of the first of two layers: mean attention to the previous token (chapter 06)."""
    return saved.data["previous"]


def prefix_matching(saved: Saved) -> list[float]:
    """Per head of the second layer: prefix matching on repeats with jittered gaps (chapter 06)."""
    return saved.data["repeats"][TWO]["prefix"]


def reader_copies(saved: Saved) -> dict[str, Any]:
    """The induction head's copying score, own token on top and in the top 10 (chapter 02)."""
    two, head = saved.data["copying"][TWO], saved.data["pair"]["induction"]
    columns = {"eigen_score": "score", "self_top1": "all1", "self_top10": "all10"}
    found = {name: two[column][head] for name, column in columns.items()}
    return found | {"our_head": two["head"][head]}


def virtual_diagonal(saved: Saved) -> dict[str, Any]:
    """Through each first-layer head: words on top of their row in the reader's QK (chapter 06)."""
    reader = saved.data["pair"][1]
    column = int(reader.split(".")[1])
    through = [row[column] for row in saved.data["virtual"]["on_top"]]
    return dict(zip(saved.data["heads"][0], through)) | {"our_head": reader}


def k_composition(saved: Saved) -> list[list[float]]:
    """K-composition scores [first-layer head][second-layer head] (chapter 05)."""
    return saved.data["scores"]["k"]


def q_composition(saved: Saved) -> list[list[float]]:
    """Q-composition scores [first-layer head][second-layer head] (chapter 05)."""
    return saved.data["scores"]["q"]


def phase(saved: Saved) -> list[list[float]]:
    """[tokens seen, prefix matching] at some snapshots, the last one among them (chapter 06)."""
    tokens, score = saved.data["growth"]["traces"][TWO]["prefix_matching"]
    later = [i for i, seen in enumerate(tokens) if seen >= STARTED]
    kept = [later[round(k * (len(later) - 1) / (POINTS - 1))] for k in range(POINTS)]
    return [[tokens[i], score[i]] for i in kept]


def term_importance(saved: Saved) -> dict[str, float]:
    """Fall of the loss (nats) as terms come in, patterns frozen (chapter 03).

    direct: below a uniform guess; heads and virtual heads: below the run before; a layer's heads
    alone on the direct path, and after the other layer's.
    """
    two = saved.data["two"]
    return {
        "direct": math.log(VOCABULARY) - two["orders"][0][0],
        "heads": two["steps"][0][0],
        "virtual_heads": two["steps"][1][0],
        "layer2_on_direct": two["first"][1][0],
        "layer2_after_layer1": two["second"][1][0],
        "layer1_on_direct": two["first"][0][0],
        "layer1_after_layer2": two["second"][0][0],
    }


def count_copying(saved: Saved) -> dict[str, str]:
    """How many heads reach the eigenvalue score of a copying head, as "6 of 8" (chapter 02)."""
    one, two = (saved.data["copying"][model] for model in (ONE, TWO))
    second = [x for name, x in zip(two["head"], two["score"]) if name.startswith("1.")]
    groups = {"one_layer": one["score"], "two_layer_second_layer": second}
    return {k: f"{sum(x >= COPIES for x in v)} of {len(v)}" for k, v in groups.items()}
