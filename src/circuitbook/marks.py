"""The marks of the house: each needs its axes named with units, and an alt text of its own.

Every mark draws on `ax` when one is given (for small multiples) and returns it; otherwise it makes
its own canvas and returns a finished `Figure` with a plotly version beside the PNG.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.ticker import MaxNLocator

from circuitbook.display import COLOURS, MARKERS, Figure, canvas, house, token

__all__ = ["bars", "heatmap", "histogram", "lines", "plane", "scatter"]

_HOVER_LIMIT = 5000  # more points than this are not worth their size in the notebook
_WRITE_LIMIT = 150  # more cells than this are not written on


def _mark(draw: Callable) -> Callable:
    """Gives a mark its frame: canvas, labels, title, alt text, the plotly version."""

    @functools.wraps(draw)
    def mark(
        data: Any, *args: Any, x_label: str, y_label: str, title: str = "", alt: str = "",
        ax: Axes | None = None, size: tuple[float, float] | None = None, hover: bool = True,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        if ax is None and not alt:
            raise ValueError(f"{draw.__name__}: alt= is needed, a sentence that says what is shown")
        with house():
            fig, own = (None, ax) if ax is not None else canvas(size=size)
            traces = draw(own, data, *args, **kwargs)
            own.set_xlabel(x_label)
            own.set_ylabel(y_label)
            if title:
                own.set_title(title)
            if fig is None:
                return own
            spec = _plotly(traces, own, title) if hover and traces else None
            return Figure(fig, alt, spec)

    return mark


def _plotly(traces: list[dict], ax: Axes, title: str) -> dict | None:
    points = sum(np.size(t.get("z", t.get("y", t.get("x", ())))) for t in traces)
    if points > _HOVER_LIMIT:
        return None
    axes = {}
    for key, axis in (("xaxis", ax.xaxis), ("yaxis", ax.yaxis)):
        axes[key] = {"title": {"text": axis.label.get_text()}}
        if axis.get_scale() == "log":
            axes[key]["type"] = "log"
    if ax.yaxis_inverted():
        axes["yaxis"]["autorange"] = "reversed"
    layout = {"title": {"text": title}, "template": "none", "colorway": list(COLOURS), **axes}
    return {"data": traces, "layout": layout}


def _array(values: Any) -> np.ndarray:
    if hasattr(values, "tolist"):
        values = values.tolist()
    return np.asarray(values, dtype=float)


def _ticks(ax: Axes, which: str, labels: Sequence[str] | None) -> None:
    axis = getattr(ax, f"{which}axis")
    if labels is None:
        axis.set_major_locator(MaxNLocator(integer=True))
        return
    axis.set_ticks(range(len(labels)), labels=[token(str(s)) for s in labels])
    crowded = which == "x" and sum(len(str(s)) + 2 for s in labels) > 60
    for text in axis.get_ticklabels():
        text.set_parse_math(False)  # a token may hold a dollar sign
        if crowded:
            text.set(rotation=60, ha="right", rotation_mode="anchor")


def _legend(ax: Axes) -> None:
    """Inside while it is short; beside the axes when it would cover the data."""
    many = len(ax.get_legend_handles_labels()[0]) > 4
    ax.legend(**({"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if many else {}))


@_mark
def lines(
    ax: Axes, series: Mapping[str, Any], *, x: Any = None, errors: Mapping[str, Any] | None = None,
    log_x: bool = False, log_y: bool = False, zero: bool = False,
) -> list[dict]:  # fmt: skip
    """Lines with markers, one per entry: name → y values, or name → (x values, y values).

    x: shared x values (default 0, 1, 2, …).  errors: name → standard errors, drawn as a band.
    zero: also draw the line y = 0.
    """
    traces = []
    for i, (name, given) in enumerate(series.items()):
        pair = isinstance(given, tuple) and len(given) == 2 and np.ndim(given[0]) == 1
        y = _array(given[1] if pair else given)
        xs = (
            _array(given[0]) if pair else np.arange(len(y), dtype=float) if x is None else _array(x)
        )
        colour, marker = COLOURS[i % 8], MARKERS[i % 8]
        every = max(1, len(y) // 12)
        ax.plot(xs, y, color=colour, marker=marker, markevery=every, label=name)
        if errors and name in errors:
            e = _array(errors[name])
            ax.fill_between(xs, y - e, y + e, color=colour, alpha=0.2, linewidth=0)
        traces.append({"type": "scatter", "mode": "lines", "name": name, "x": xs.tolist(),
                       "y": y.tolist(), "line": {"color": colour}})  # fmt: skip
    if zero:
        ax.axhline(0, color="#555555", linewidth=0.8)
    if log_x:
        ax.set_xscale("log")
    if log_y:
        ax.set_yscale("log")
    if len(series) > 1:
        _legend(ax)
    return traces


@_mark
def bars(
    ax: Axes, values: Mapping[str, Any], *, errors: Mapping[str, float] | None = None,
    groups: Sequence[str] | None = None, horizontal: bool = False, baseline: float | None = None,
) -> list[dict]:  # fmt: skip
    """Bars: name → height; or, with `groups`, name → a height for each group, side by side.

    errors: name → standard error (without groups).  baseline: a dashed line, e.g. of chance.
    """
    labels = list(groups) if groups is not None else list(values)
    sets = values if groups is not None else {"": list(values.values())}
    width = 0.8 / len(sets)
    traces = []
    for i, (name, heights) in enumerate(sets.items()):
        h = _array(heights)
        where = np.arange(len(labels)) + (i - (len(sets) - 1) / 2) * width
        err = [errors[n] for n in labels] if errors and groups is None else None
        draw, key = (ax.barh, "xerr") if horizontal else (ax.bar, "yerr")
        hatch = ("", "//", "..", "xx")[i % 4]
        draw(where, h, width, color=COLOURS[i % 8], hatch=hatch, edgecolor="white",
             label=name or None, **{key: err, "capsize": 3} if err else {})  # fmt: skip
        xy = (h.tolist(), labels) if horizontal else (labels, h.tolist())
        traces.append({"type": "bar", "name": name, "x": xy[0], "y": xy[1],
                       "orientation": "h" if horizontal else "v"})  # fmt: skip
    _ticks(ax, "y" if horizontal else "x", labels)
    if horizontal:
        ax.invert_yaxis()
    if baseline is not None:
        (ax.axvline if horizontal else ax.axhline)(baseline, color="#555555", linestyle="--")
    ax.grid(visible=False, axis="y" if horizontal else "x")
    if groups is not None:
        ax.legend()
    return traces


@_mark
def heatmap(
    ax: Axes, matrix: Any, *, x_ticks: Sequence[str] | None = None,
    y_ticks: Sequence[str] | None = None, signed: bool = False, colour_label: str = "",
    limit: float | None = None, digits: int = 2,
) -> list[dict]:  # fmt: skip
    """A matrix as colours, row 0 on top; numbers on the cells when there are at most 150.

    signed: red and blue with white at zero; otherwise cividis from its least to its largest.
    limit: the value at full colour.  x_ticks, y_ticks: token or other labels, spaces made visible.
    """
    m = _array(matrix)
    if m.ndim != 2:
        raise ValueError(f"heatmap needs a matrix, not an array of shape {m.shape}")
    if signed:
        top = limit or float(np.abs(m).max()) or 1.0
        look = {"cmap": "RdBu_r", "norm": TwoSlopeNorm(0.0, -top, top)}
    else:
        look = {
            "cmap": "cividis",
            "vmin": min(0.0, float(m.min())),
            "vmax": limit or float(m.max()),
        }
    image = ax.imshow(m, aspect="auto", interpolation="nearest", **look)
    ax.grid(visible=False)
    bar = ax.figure.colorbar(image, ax=ax)
    bar.set_label(colour_label)
    _ticks(ax, "x", x_ticks)
    _ticks(ax, "y", y_ticks)
    if m.size <= _WRITE_LIMIT:
        for (i, j), value in np.ndenumerate(m):
            r, g, b, _ = image.cmap(image.norm(value))
            dark = 0.299 * r + 0.587 * g + 0.114 * b < 0.5
            ax.text(j, i, f"{value:.{digits}f}", ha="center", va="center", fontsize=8,
                    color="white" if dark else "black")  # fmt: skip
    trace: dict[str, Any] = {
        "type": "heatmap",
        "z": m.tolist(),
        "colorbar": {"title": colour_label},
    }
    trace |= (
        {"colorscale": "RdBu", "reversescale": True, "zmid": 0}
        if signed
        else {"colorscale": "Cividis"}
    )
    for key, labels in (("x", x_ticks), ("y", y_ticks)):
        if labels is not None:  # numbered, or plotly would merge two equal tokens
            trace[key] = [f"{i} {token(str(s))}" for i, s in enumerate(labels)]
    return [trace]


@_mark
def scatter(
    ax: Axes, groups: Mapping[str, Any], *, labels: Mapping[str, Sequence[str]] | None = None,
    log_x: bool = False, log_y: bool = False, diagonal: bool = False,
) -> list[dict]:  # fmt: skip
    """Points: name → (x values, y values), one colour and marker for each name.

    labels: name → a word for each point (written beside it when there are at most 20).
    diagonal: also draw y = x.
    """
    traces = []
    for i, (name, (x, y)) in enumerate(groups.items()):
        x, y = _array(x), _array(y)
        ax.scatter(x, y, s=22, color=COLOURS[i % 8], marker=MARKERS[i % 8], label=name, alpha=0.85)
        trace = {"type": "scatter", "mode": "markers", "name": name, "x": x.tolist(),
                 "y": y.tolist(), "marker": {"color": COLOURS[i % 8]}}  # fmt: skip
        words = list((labels or {}).get(name, ()))
        if words:
            trace["text"] = words
        if len(words) <= 20:
            for a, b, word in zip(x, y, words, strict=False):
                ax.annotate(token(word), (a, b), (4, 3), textcoords="offset points",
                            fontsize=8, parse_math=False)  # fmt: skip
        traces.append(trace)
    if log_x:
        ax.set_xscale("log")
    if log_y:
        ax.set_yscale("log")
    if diagonal:
        ax.axline((0, 0), slope=1, color="#555555", linestyle="--", linewidth=0.8)
    if len(groups) > 1:
        _legend(ax)
    return traces


@_mark
def histogram(
    ax: Axes, groups: Mapping[str, Any], *, bins: int | Sequence[float] = 40, share: bool = True
) -> list[dict]:
    """Distributions as outlines: name → values; one set of bins.  share: heights sum to one."""
    data = {name: _array(v).ravel() for name, v in groups.items()}
    edges = np.histogram_bin_edges(np.concatenate(list(data.values())), bins)
    traces = []
    for i, (name, v) in enumerate(data.items()):
        counts = np.histogram(v, edges)[0] / (len(v) if share else 1)
        style = ("-", "--", ":", "-.")[i % 4]
        ax.stairs(counts, edges, color=COLOURS[i % 8], label=name, linestyle=style, linewidth=1.6)
        middles = (edges[1:] + edges[:-1]) / 2
        traces.append({"type": "scatter", "mode": "lines", "line": {"shape": "hvh"}, "name": name,
                       "x": middles.tolist(), "y": counts.tolist()})  # fmt: skip
    if len(data) > 1:
        ax.legend()
    return traces


@_mark
def plane(
    ax: Axes, groups: Mapping[str, Any], *, circle: float | None = None, symlog: float | None = None
) -> list[dict]:
    """Complex numbers in the plane: name → [(re, im), …], or an array of two rows, re and im.

    circle: also draw a circle of this radius.  symlog: linear up to this size, logarithmic beyond.
    """
    traces = []
    for i, (name, points) in enumerate(groups.items()):
        p = _array(points)
        if p.ndim != 2 or 2 not in p.shape:
            raise ValueError(f"plane: {name} has shape {p.shape}; give pairs (re, im)")
        re, im = p.T if p.shape[1] == 2 else p
        ax.scatter(
            re, im, s=24, color=COLOURS[i % 8], marker=MARKERS[i % 8], label=name, alpha=0.85
        )
        traces.append({"type": "scatter", "mode": "markers", "name": name, "x": re.tolist(),
                       "y": im.tolist()})  # fmt: skip
    ax.axhline(0, color="#555555", linewidth=0.8)
    ax.axvline(0, color="#555555", linewidth=0.8)
    if circle:
        angle = np.linspace(0, 2 * np.pi, 200)
        ax.plot(circle * np.cos(angle), circle * np.sin(angle), color="#555555", linestyle="--")
    if symlog:
        ax.set_xscale("symlog", linthresh=symlog)
        ax.set_yscale("symlog", linthresh=symlog)
    else:
        ax.set_aspect("equal", adjustable="datalim")
    if len(groups) > 1:
        ax.legend()
    return traces
