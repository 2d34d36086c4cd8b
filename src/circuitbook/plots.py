"""House style, a few marks, and one display: PNG, alt text, and a plotly version for hovering.

A gallery function takes the saved result and returns a figure:

    @plots.figure
    def loss_by_index(r):
        return plots.lines({"two layers": r["loss"]}, x_label="token index", y_label="loss (nats)",
                           title="Loss by index", alt=f"Loss falls from … to …")
"""

from circuitbook.display import (
    COLOURS,
    MARKERS,
    Figure,
    Table,
    canvas,
    figure,
    house,
    panels,
    table,
    token,
    write_alts,
    write_figure,
)
from circuitbook.marks import bars, heatmap, histogram, lines, plane, scatter

__all__ = [
    "COLOURS", "MARKERS", "Figure", "Table", "bars", "canvas", "figure", "heatmap", "histogram",
    "house", "lines", "panels", "plane", "scatter", "table", "token", "write_alts", "write_figure",
]  # fmt: skip
