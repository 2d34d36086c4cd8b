"""Each published number has one row: a name for people, and the place where ours comes from.

`compared` says what stands beside what. "same": the course computes the very same thing, on any
machine. "model": a number read from a trained model; only the published weights can be judged.
"elsewhere": a model or a run that the course cannot load; it is shown for orientation.

`reads` says what a number hangs on beside the weights, for readers who measure on a text of their
own. "text": the text, also by a choice of words or heads. "tokens": fixed prompts or drawn tokens,
in what the chapter saved under the row's id; its own measure, `take`, reads the text. "nothing":
the weights alone, in either.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from circuitbook.series.shelf import Saved

__all__ = ["SAME", "Row", "Subject", "hand_example"]


@dataclass(frozen=True)
class Row:
    """Where one entry of the reference is shown, and where ours is taken from."""

    id: str
    label: str
    chapter: str = ""
    compared: str = "model"
    take: Callable[[Saved], Any] | None = None  # default: the chapter's data["series"][id]
    here: Callable[[], Any] | None = None  # computed by this page, when no chapter saves it
    none: str = ""  # why the course models have no such number
    hub: str = "needs the hub"  # what the published column says as long as it is empty
    remark: str = ""
    shown: tuple[str, ...] = ()  # published fields that are not judged; the remark says why
    reads: str = "text"  # or "tokens", or "nothing"


@dataclass(frozen=True)
class Subject:
    """Rows that belong together, with a sentence that says what they are about."""

    title: str
    sentence: str
    rows: tuple[Row, ...]


# ---- the small example of the erratum ------------------------------------------------------------

X = [[1, 2, 0], [0, 1, 1]]
Y = [[1, 0], [0, 1], [1, 1]]


def hand_example(what: str) -> list:
    """X, Y, or the eigenvalues of XY and YX, largest first; by numpy, for this page."""
    import numpy as np

    if what in {"X", "Y"}:
        return {"X": X, "Y": Y}[what]
    x, y = np.array(X, float), np.array(Y, float)
    found = np.linalg.eigvals(x @ y if what == "eig_XY" else y @ x)
    return sorted((round(float(e.real), 9) + 0.0 for e in found), reverse=True)


def _erratum(what: str, label: str) -> Row:
    """A row of the example: from the claim of chapter 05 where it has one, else computed here."""
    square = {"norm_XY": "xy", "norm_YX": "yx"}

    def take(saved: Saved) -> float:
        values = saved.claims["compose.norms_of_xy"]["values"]
        return values[square[what]] ** 0.5 if what in square else values[what]

    id = f"part7.frobenius.{what}"
    if what in square or what == "trace":
        return Row(id, label, "05", "same", take)
    given = what in {"X", "Y"}
    remark = "the example's input: given, not computed" if given else "computed by this page"
    return Row(id, label, "05", "same", here=lambda: hand_example(what), remark=remark)


def _params(model: str) -> tuple[Row, ...]:
    words = {"attention": "attention", "mlp": "MLP", "mlp_share": "share of the MLP"}
    start = f"part7.params.{model}"
    return tuple(Row(f"{start}.{p}", f"{model}: {w}", "07", "same") for p, w in words.items())


_FLOOR = (
    "The loss is summed over the features. Without sparsity, and with two features kept, its floor "
    "is the sum of the other importances over 12."
)
_NORMS = (
    "Published once as ‖W_i‖ = 1/(1 − b_i), which these numbers contradict; ‖W_i‖² + b_i ≈ 1 fits "
    "them."
)
_MANY_STARTS = (
    "The series' counts are those of one start. Ours is the middle of several; chapter 09 shows "
    "where the series' lies among them. Variance kept: one minus the squared error over the "
    "variance."
)

SAME: tuple[Subject, ...] = (
    Subject(
        "Counting parameters",
        "Weights and biases of the layers, embeddings left out, from the configurations alone. "
        "Every machine must get these to the digit.",
        tuple(
            row
            for model in ("attn-only-1l", "attn-only-2l", "gelu-1l", "gelu-2l", "gpt2")
            for row in _params(model)
        ),
    ),
    Subject(
        "GeLU does not add up",
        "Two inputs that cancel, and a nonlinearity that does not notice: the reason why an MLP "
        "cannot be expanded into paths.",
        (
            Row("part7.gelu.at_1", "GeLU(1)", "07", "same"),
            Row("part7.gelu.at_minus_1", "GeLU(−1)", "07", "same"),
            Row("part7.gelu.sum", "their sum", "07", "same"),
            Row("part7.gelu.at_0", "GeLU(0), where the sum of the inputs is", "07", "same"),
        ),
    ),
    Subject(
        "The erratum: XY and YX",
        "Two products with the same trace and nonzero eigenvalues, and with different sizes. A "
        "composition score is made of sizes.",
        (
            _erratum("X", "X, row by row"),
            _erratum("Y", "Y, row by row"),
            _erratum("norm_XY", "size of XY"),
            _erratum("norm_YX", "size of YX"),
            _erratum("trace", "trace of both"),
            _erratum("eig_XY", "eigenvalues of XY"),
            _erratum("eig_YX", "eigenvalues of YX"),
        ),
    ),
    Subject(
        "Superposition",
        "More features than dimensions. These small models are trained in chapter 08, so they can "
        "be judged: by what they represent and by their loss.",
        (
            Row("part7.toy_one_dim", "two features in one number", "08", "same"),
            Row("part7.toy.S0.0", "five in two, always on", "08", "same", remark=_FLOOR),
            Row("part7.toy.S0.7", "five in two, off 70 % of the time", "08", "same"),
            Row("part7.toy.S0.9", "five in two, off 90 % of the time", "08", "same", remark=_NORMS),
            Row("part7.toy.S0.9.echo", "its echoes, before and after the bias", "08", "same"),
            Row("part7.toy.linear_S0.9", "the same without the ReLU", "08", "same"),
            Row("part7.toy40", "forty in ten, off 95 % of the time", "08", "same"),
        ),
    ),
    Subject(
        "Sparse autoencoders",
        "One latent by hand. Then forty true directions hidden in ten dimensions, and how many of "
        "them an autoencoder finds.",
        (
            Row("part7.sae_by_hand", "one latent by hand", "09", "same"),
            Row("part7.sae40", "forty in ten, recovered", "09", "same", remark=_MANY_STARTS),
        ),
    ),
)
