"""Where the nodes of a pruned graph stand: positions from left to right, layers from bottom to top.

No torch: the static picture and the page are drawn from the saved numbers with this file alone.
Units are cells; one node fills one cell. A position with many nodes gets several columns, nearer to
each other than to those of the next position.
"""

from __future__ import annotations

from typing import Any, NamedTuple

ROWS = 5  # nodes on top of each other in one layer, before another column is opened
GAP = 1.6  # cells between two layers
COLUMN = 0.9  # cells between two columns of one position
ROOM = 0.7  # cells left free beside a position with more than one column


class Layout(NamedTuple):
    """x, y of every node (y upwards); x of positions' middles and borders; the layers' bands."""

    x: list[float]
    y: list[float]
    columns: list[float]
    borders: list[float]  # one more than positions
    bands: list[tuple[float, float, str]]  # (low, high, name)
    width: float
    height: float


def widest(graph: dict[str, Any]) -> dict[str, float]:
    """Sizes of the largest edges into the logit and into any latent: a scale of widths for each."""
    nodes, edges, top = graph["nodes"], graph["edges"], {"logit": 0.0, "latent": 0.0}
    for t, w in zip(edges["target"], edges["weight"], strict=True):
        top[nodes["kind"][t]] = max(top[nodes["kind"][t]], abs(w))
    return {kind: size or 1.0 for kind, size in top.items()}


def place(graph: dict[str, Any]) -> Layout:
    """A place for every node of a saved graph; no two nodes share one.

    Tokens stand at the bottom, then each layer's latents and errors, strongest influence first,
    then the logit. Biases stand left of the first token.
    """
    nodes, n = graph["nodes"], len(graph["tokens"])
    layers = sorted({l for l, k in zip(nodes["layer"], nodes["kind"]) if k in ("latent", "error")})
    cells: dict[tuple[int, int], list[int]] = {}
    for i, kind in enumerate(nodes["kind"]):
        if kind in ("latent", "error"):
            cells.setdefault((nodes["layer"][i], nodes["pos"][i]), []).append(i)
    for some in cells.values():
        some.sort(key=lambda i: (-nodes["influence"][i], i))
    wide = [1] * n
    for (_, q), some in cells.items():
        wide[q] = max(wide[q], -(-len(some) // ROWS))
    room = [1.0 if w == 1 else w * COLUMN + ROOM for w in wide]
    left = [1.5 + sum(room[:q]) for q in range(n + 1)]  # biases have the first cell and a half
    columns = [(left[q] + left[q + 1]) / 2 for q in range(n)]
    x, y = [0.0] * len(nodes["kind"]), [0.0] * len(nodes["kind"])
    bands, low = [], 0.5 + GAP
    for l in layers:
        tall = max(min(ROWS, len(c)) for (layer, _), c in cells.items() if layer == l)
        for (layer, q), some in cells.items():
            if layer != l:
                continue
            used = -(-len(some) // ROWS)
            for at, i in enumerate(some):
                x[i] = columns[q] + COLUMN * (at % used - (used - 1) / 2)
                y[i] = low + 0.5 + at // used
        bands.append((low, low + tall, f"layer {l}"))
        low += tall + GAP
    for i, kind in enumerate(nodes["kind"]):
        if kind == "token":
            x[i], y[i] = columns[nodes["pos"][i]], 0.0
        elif kind == "biases":
            x[i], y[i] = 0.5, 0.0
        elif kind == "logit":
            x[i], y[i] = columns[nodes["pos"][i]], low
    return Layout(x, y, columns, left, bands, left[-1], low + 1.0)
