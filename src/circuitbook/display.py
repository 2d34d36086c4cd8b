"""A figure is drawn from saved numbers, says in words what it shows, and repeats its bytes.

`Figure` holds the PNG (the figure of record), its alt text, and optionally a plotly version for
hovering. No torch, no pyplot, no open windows, no HTML. Lessons use all of this through `plots`.
"""

import base64
import contextlib
import contextvars
import functools
import inspect
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

__all__ = [
    "COLOURS", "MARKERS", "Figure", "Table", "canvas", "figure", "house", "panels", "table",
    "token", "write_alts", "write_figure",
]  # fmt: skip

# Okabe and Ito's palette, for every kind of colour vision; markers repeat the distinction in print.
# Grey stands for their yellow, which is too pale for a line on white.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#8A8A8A")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DPI = 110
STYLE = {
    "font.family": "DejaVu Sans",
    "mathtext.fontset": "dejavusans",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.prop_cycle": mpl.cycler(color=COLOURS),
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "image.cmap": "cividis",
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "circuitbook",
}
PLOTLY = "application/vnd.plotly.v1+json"
_MIN_ALT = 20
RANDOM = "random weights stood in for the published models: no evidence about them"
_NOTE_INCHES = 0.22
_note: contextvars.ContextVar[str] = contextvars.ContextVar("note", default="")


@contextlib.contextmanager
def house() -> Iterator[None]:
    """The house style and nothing of the reader's own matplotlib settings, for one block."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        yield


class Figure:
    """One display: PNG, alt text, and optionally a plotly dict. The matplotlib figure is let go.

    Errors: ValueError without a real alt text: at least 20 characters and more than the title.
    """

    def __init__(self, fig: Canvas, alt: str, plotly: Mapping[str, Any] | None = None) -> None:
        alt = " ".join(alt.split())
        titles = {t.get_text().strip() for ax in fig.axes for t in (ax.title, ax._left_title)}
        if fig.get_suptitle():
            titles.add(fig.get_suptitle().strip())
        if len(alt) < _MIN_ALT:
            raise ValueError(
                f"alt text {alt!r} is too short: say in a sentence what the numbers show"
            )
        if alt.rstrip(".") in {t.rstrip(".") for t in titles}:
            raise ValueError(f"the alt text repeats the title: {alt!r}. Say what the numbers show.")
        note = _note.get()
        self.alt = f"{note[0].upper()}{note[1:]}. {alt}" if note else alt
        self.plotly = _plain_plotly(plotly, note) if plotly else None
        with house(), io.BytesIO() as file:
            if note:
                _write_below(fig, note)
            # Without these two entries the bytes would change with the matplotlib version.
            fig.savefig(file, format="png", dpi=DPI, metadata={"Software": None})
            self.png = file.getvalue()
        fig.clear()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict, dict]:
        data: dict[str, Any] = {
            "image/png": base64.b64encode(self.png).decode("ascii"),
            "text/plain": f"Figure: {self.alt}",
        }
        if self.plotly:
            data[PLOTLY] = self.plotly
        return data, {"image/png": {"alt": self.alt}}

    def __repr__(self) -> str:
        return f"Figure: {self.alt}"


def _write_below(fig: Canvas, note: str) -> None:
    """One line under a picture, which grows by its height."""
    width, height = fig.get_size_inches()
    fig.set_size_inches(width, height + _NOTE_INCHES)
    below = _NOTE_INCHES / (height + _NOTE_INCHES)
    if fig.get_layout_engine() is None:
        fig.subplots_adjust(bottom=below + fig.subplotpars.bottom * (1 - below))
    else:
        fig.get_layout_engine().set(rect=(0, below, 1, 1 - below))
    fig.text(0.01, below / 2, note, fontsize=8, va="center", color="#B00000")


def _plain_plotly(spec: Mapping[str, Any], note: str = "") -> dict:
    from circuitbook.results import plain

    if hasattr(spec, "to_plotly_json"):
        spec = json.loads(spec.to_json())
    layout = dict(spec.get("layout", {}))
    if note:
        above = {"text": note, "x": 1, "y": 1, "xref": "paper", "yref": "paper", "showarrow": False,
                 "xanchor": "right", "yanchor": "bottom", "font": {"color": "#B00000"}}  # fmt: skip
        layout["annotations"] = [*layout.get("annotations", []), above]
    return plain({"data": spec["data"], "layout": layout}, "plotly")


def figure(draw: Callable) -> Callable:
    """Mark a gallery function: saved dict in, `Figure` out, drawn in the house style.

    A figure of a result that was made with random weights says so, in the picture and in words.
    """

    @functools.wraps(draw)
    def drawn(r: Any, *args: Any, **kwargs: Any) -> Figure:
        from circuitbook.results import random_weights

        note = _note.set(RANDOM if random_weights(getattr(r, "made_with", {})) else "")
        try:
            with house():
                out = draw(r, *args, **kwargs)
        finally:
            _note.reset(note)
        if not isinstance(out, Figure):
            raise TypeError(f"{draw.__name__} must return a plots.Figure, not {type(out).__name__}")
        return out

    if next(iter(inspect.signature(draw).parameters), None) != "r":
        raise TypeError(f"{draw.__name__}: the first parameter of a gallery function is r")
    drawn.is_figure = True
    return drawn


def canvas(
    rows: int = 1, columns: int = 1, size: tuple[float, float] | None = None, **kwargs: Any
) -> tuple[Canvas, Any]:
    """A figure that no window knows, with its axes as matplotlib's `subplots` gives them.

    size: width and height in inches, default 5.6 × 3.4 for each panel, at most 11 wide.
    """
    width, height = size or (min(11.0, 5.6 * columns), 3.4 * rows)
    fig = Canvas(figsize=(width, height), layout="constrained")
    return fig, fig.subplots(rows, columns, **kwargs)


def panels(
    draws: Sequence[Callable[[Axes], Any]], *, alt: str, columns: int = 2, title: str = "",
    size: tuple[float, float] | None = None, **kwargs: Any,
) -> Figure:  # fmt: skip
    """Small multiples: each function draws on the axes it is given, e.g. with a mark's `ax=`."""
    with house():
        columns = min(columns, len(draws))
        rows = -(-len(draws) // columns)
        fig, axes = canvas(rows, columns, size, squeeze=False, **kwargs)
        for ax in axes.flat[len(draws) :]:
            ax.remove()
        for draw, ax in zip(draws, axes.flat, strict=False):
            draw(ax)
        if title:
            fig.suptitle(title, x=0.01, ha="left")
        return Figure(fig, alt)


def token(text: str) -> str:
    """A token made visible: a space at its ends as ␣, a newline as ⏎, a tab as ⇥."""
    inner = text.strip(" ")
    left = len(text) - len(text.lstrip(" "))
    right = len(text) - left - len(inner)
    return "␣" * left + inner.replace("\n", "⏎").replace("\t", "⇥") + "␣" * right


# ---- tables -------------------------------------------------------------------------------------


class Table:
    """A table shown as Markdown and as text, never as HTML."""

    def __init__(self, header: list[str], rows: list[list[str]], right: list[bool]) -> None:
        self.header, self.rows, self.right = header, rows, right

    def _markdown(self) -> str:
        def line(cells: Iterable[str]) -> str:
            return "| " + " | ".join(c.replace("|", "\\|").replace("\n", "⏎") for c in cells) + " |"

        rule = ["---:" if right else "---" for right in self.right]
        return "\n".join([line(self.header), line(rule), *map(line, self.rows)])

    def __repr__(self) -> str:
        widths = [max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)]

        def line(cells: list[str]) -> str:
            padded = (
                c.rjust(w) if r else c.ljust(w)
                for c, w, r in zip(cells, widths, self.right, strict=True)
            )
            return "  ".join(padded).rstrip()

        return "\n".join(line(c) for c in [self.header, *self.rows])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict:
        return {"text/markdown": self._markdown(), "text/plain": repr(self)}


def table(frame: Any, *, digits: int = 3) -> Table:
    """A pandas table (or a list of dicts) for display; decimals to `digits` significant digits.

    Errors: ValueError when a column of decimals has no unit in its name, like "loss (nats)".
    """
    if hasattr(frame, "columns"):
        names = [str(c) for c in frame.columns]
        columns = [frame.iloc[:, i].tolist() for i in range(len(names))]
        if not all(isinstance(i, int) for i in frame.index):  # a named index is a first column
            names.insert(0, str(frame.index.name or ""))
            columns.insert(0, [str(i) for i in frame.index])
    else:
        names = list(dict.fromkeys(k for row in frame for k in row))
        columns = [[row.get(n, "") for row in frame] for n in names]
    for name, column in zip(names, columns, strict=True):
        if "(" not in name and any(isinstance(x, float) for x in column):
            raise ValueError(
                f"column {name!r} holds decimals: put the unit in its name, e.g. (nats)"
            )
    cells = [[_cell(x, digits) for x in column] for column in columns]
    right = [all(isinstance(x, int | float) for x in column) for column in columns]
    return Table(names, [list(row) for row in zip(*cells, strict=True)], right)


def _cell(x: Any, digits: int) -> str:
    if hasattr(x, "tolist"):
        x = x.tolist()
    if isinstance(x, float):
        return np.format_float_positional(x, digits, fractional=False, trim="-") if x else "0"
    return str(x)


# ---- files --------------------------------------------------------------------------------------


def write_figure(path: Path, png: bytes, alt: str) -> None:
    """Write a picture, and its alt text into alt.json beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png)
    alts = path.parent / "alt.json"
    known = json.loads(alts.read_text(encoding="utf-8")) if alts.is_file() else {}
    write_alts(path.parent, known | {path.name: alt})


def write_alts(folder: Path, alts: Mapping[str, str]) -> None:
    """Write alt.json, file name → alt text."""
    text = json.dumps(dict(alts), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    (folder / "alt.json").write_text(text, encoding="utf-8")
