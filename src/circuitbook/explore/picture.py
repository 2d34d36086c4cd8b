"""The static picture of a view: one head's pattern, and what the parts add to the top token."""

from __future__ import annotations

import warnings

from matplotlib.axes import Axes

from circuitbook import plots
from circuitbook.cut import Head
from circuitbook.explore.reading import Reading
from circuitbook.stream import head_name

BARS = 14  # parts drawn one by one; the rest is one bar


def _list(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def words(read: Reading, head: Head) -> str:
    """The picture in two or three sentences, from its numbers."""
    row = read.pattern[head][-1]  # [key]
    first = row.sort(descending=True, stable=True).indices[:3].tolist()
    # The first one always, the others as far as two digits are not 0.00.
    near = [k for k in first if k == first[0] or row[k] >= 0.005]
    looks = [f"{read.tokens[k]!r} at {k} ({row[k]:.2f})" for k in near]
    share = dict(zip(read.parts, read.share[-1, 0].tolist(), strict=True))[head_name(head)]
    return (
        f"{head_name(head).capitalize()} of {read.name} on {len(read.tokens)} tokens. From the "
        f"last token, {read.tokens[-1]!r}, it looks most at {_list(looks)}. "
        f"The likeliest next token is {read.next[-1][0]!r} with probability "
        f"{read.probability[-1, 0]:.2f}; this head adds {share:+.2f} nats to its centred logit of "
        f"{read.logit[-1, 0]:.2f}."
    )


def largest(read: Reading) -> dict[str, float]:
    """The parts with the largest shares, by size, and the sum of all others."""
    share = dict(zip(read.parts, read.share[-1, 0].tolist(), strict=True))
    order = sorted(share, key=lambda name: -abs(share[name]))
    out = {name: share[name] for name in order[:BARS]}
    if rest := order[BARS:]:
        out[f"{len(rest)} others"] = sum(share[name] for name in rest)
    return out


def draw(read: Reading, head: Head) -> plots.Figure:
    """The picture with its alt text; the same numbers give the same bytes."""
    n = len(read.tokens)
    side = min(6.4, max(3.2, 1.4 + 0.2 * n))  # inches
    every = -(-n // 32)  # of more tokens only each second, third, ... is named, and the last
    names = ["" if (n - 1 - i) % every else name for i, name in enumerate(read.tokens)]

    def pattern(ax: Axes) -> None:
        plots.heatmap(
            read.pattern[head], ax=ax, x_ticks=names, y_ticks=names, limit=1.0,
            x_label="looked at (key)", y_label="looking (query)", colour_label="attention",
            title=head_name(head).capitalize(),
        )  # fmt: skip
        ax.tick_params(labelsize=9 if n <= 20 else 7)
        for label in ax.get_xticklabels():  # tokens side by side would run into each other
            label.set(rotation=60, ha="right", rotation_mode="anchor")
        for text in ax.texts:  # the numbers on the cells of a short prompt
            text.set_fontsize(6)

    def bars(ax: Axes) -> None:
        plots.bars(
            largest(read), ax=ax, horizontal=True, x_label="centred logit (nats)", y_label="",
            baseline=0.0,
        )  # fmt: skip
        # Set by hand: a token may hold a dollar sign, which a title would read as mathematics.
        ax.set_title(f"Towards {read.next[-1][0]} after the last token", parse_math=False)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a box is drawn instead
        return plots.panels([pattern, bars], alt=words(read, head), size=(2 * side + 1, side))
