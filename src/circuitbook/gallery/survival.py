"""The "does it survive?" box as a picture: which change of the weights moves which number."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import ListedColormap

from circuitbook import plots


def box(
    moves: Mapping[str, Mapping[str, float]],
    changes: Sequence[str],
    quantities: Sequence[str],
    *,
    y_label: str,
    about: str,
    size: tuple[float, float],
) -> plots.Figure:
    """moves[change][quantity]: the largest move, relative to the largest value; 0 survives."""
    moved = np.array([[moves[change][q] for change in changes] for q in quantities])
    told = "; ".join(
        f"{q}: " + (", ".join(c for c, m in zip(changes, row, strict=True) if m) or "nothing")
        for q, row in zip(quantities, moved, strict=True)
    )
    fig, ax = plots.canvas(size=size)
    ax.imshow(moved > 0, cmap=ListedColormap(["#F4F4F4", plots.COLOURS[1]]), aspect="auto")
    for (i, j), m in np.ndenumerate(moved):
        word = f"moves {m:.0%}" if m >= 0.01 else "moves < 1%" if m else "survives"
        ax.text(j, i, word, ha="center", va="center", fontsize=8, color="black" if m else "#777777")
    ax.set_xticks(range(len(changes)), labels=[c.replace(" coord", "\ncoord") for c in changes])
    ax.set_yticks(range(len(quantities)), labels=quantities)
    ax.set_xlabel("change of the weights that keeps every probability")
    ax.set_ylabel(y_label)
    ax.set_title("Does it survive? Largest change, relative to the largest value")
    ax.grid(visible=False)
    return plots.Figure(fig, f"What moves each {about}. {told}.")
