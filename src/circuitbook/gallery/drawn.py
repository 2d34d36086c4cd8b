"""Pictures of an exercise's answer: the course shows the right one, a learner draws their own.

Not figures of record: they are made of what a function returns, not of saved results.
"""

import numpy as np

from circuitbook import plots

# Four features in a plane: two opposite ones, one for itself, one that is not stored.
TOY = [[1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 0.8, 0.0]]


def attention(pattern, period):
    """A pattern [pos, pos] on BOS and copies of one block; lines show where each copy starts."""
    a = np.asarray(pattern, dtype=float)
    names = ["BOS", *(chr(ord("a") + t % period) for t in range(len(a) - 1))]
    keys = [int(k) for k in a.argmax(1)]

    def heat(ax):
        plots.heatmap(
            a,
            x_ticks=names,
            y_ticks=names,
            x_label="key",
            y_label="query",
            title="Blind to tokens",
            colour_label="attention",
            ax=ax,
        )
        for start in range(1, len(a), period):
            ax.axhline(start - 0.5, color="white", linewidth=0.8)
            ax.axvline(start - 0.5, color="white", linewidth=0.8)

    back = max(t - k for t, k in enumerate(keys))
    first = sum(k == 0 for k in keys)
    alt = (
        f"A pattern of {len(a)} queries. The first {first} look at BOS most. No query's strongest "
        f"key lies more than {back} places back."
    )
    return plots.panels([heat], columns=1, alt=alt, size=(4.6, 3.6))


def shares(W, D):
    """Columns of W [2, n] as directions in the plane, and each feature's dimensionality D."""
    W, D = np.asarray(W, dtype=float), np.asarray(D, dtype=float)
    names = [str(i + 1) for i in range(len(D))]

    def arrows(ax):
        for i, (x, y) in enumerate(W.T):
            colour, mark = plots.COLOURS[i], plots.MARKERS[i]
            ax.plot(
                [0, x], [0, y], color=colour, marker=mark, markevery=[1], label=f"feature {i + 1}"
            )
        ax.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), aspect="equal", title="Columns of W")
        ax.set(xlabel="first dimension", ylabel="second dimension")
        ax.legend(fontsize=8, loc="lower left")

    def bars(ax):
        plots.bars(
            dict(zip(names, D.tolist(), strict=True)),
            horizontal=True,
            x_label="D (dimensions)",
            y_label="feature",
            title="Share of a dimension",
            ax=ax,
        )

    told = ", ".join(f"feature {name}: {d:.2f}" for name, d in zip(names, D, strict=True))
    alt = f"{len(D)} features as arrows in a plane, and how much of a dimension each has. {told}."
    return plots.panels([arrows, bars], alt=alt, size=(7.2, 3.2))
