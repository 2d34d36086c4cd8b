"""Figures: the same bytes, a real alt text, no HTML, colours that keep their order."""

import base64
import json

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

from circuitbook import plots

PLOTLY = "application/vnd.plotly.v1+json"
AXES = {"x_label": "source", "y_label": "loss (nats)", "title": "Loss"}
ALT = "The loss falls from three nats to one."
ERRORS = {"a": [0.1, 0.2]}
MARKS = {
    "lines": lambda **k: plots.lines({"a": [1, 2], "b": ([1, 2], [3, 4])}, errors=ERRORS, **k),
    "bars": lambda **k: plots.bars({"a": 1.0, "b": 2.0}, errors={"a": 0.1, "b": 0.1}, **k),
    "groups": lambda **k: plots.bars({"Q": [1, 2], "K": [2, 1]}, groups=["a", "b"], **k),
    "sideways": lambda **k: plots.bars({"a": 1.0, "b": 2.0}, horizontal=True, baseline=1.5, **k),
    "heatmap": lambda **k: plots.heatmap(np.eye(3), x_ticks=[" a", "$b$", "\n"], **k),
    "signed": lambda **k: plots.heatmap(np.eye(20) - 0.5, signed=True, colour_label="nats", **k),
    "scatter": lambda **k: plots.scatter({"a": ([1, 2], [2, 1])}, labels={"a": [" $x", "y"]}, **k),
    "histogram": lambda **k: plots.histogram({"a": [1, 2, 3], "b": [2, 2]}, bins=3, **k),
    "plane": lambda **k: plots.plane({"a": [[0, 1], [1, 0], [1, 1]]}, circle=1.0, **k),
}  # fmt: skip


@pytest.mark.parametrize("name", MARKS)
def test_every_mark_is_a_display_with_png_words_and_hover(name):
    go = pytest.importorskip("plotly.graph_objects")
    shown = MARKS[name](alt=ALT, **AXES)
    data, metadata = shown._repr_mimebundle_()
    png = base64.b64decode(data["image/png"])
    assert png.startswith(b"\x89PNG") and metadata["image/png"]["alt"] == ALT
    assert data["text/plain"] == f"Figure: {ALT}"
    assert "text/html" not in data and set(data) <= {"image/png", "text/plain", PLOTLY}
    spec = data[PLOTLY]
    json.dumps(spec, allow_nan=False)
    made = go.Figure(spec)  # refuses unknown keys
    assert made.layout.xaxis.title.text == "source"
    assert made.layout.yaxis.title.text == "loss (nats)"


@pytest.mark.parametrize("name", MARKS)
def test_the_bytes_do_not_depend_on_the_readers_settings(name):
    first = MARKS[name](alt=ALT, **AXES).png
    with mpl.rc_context(
        {"font.size": 25, "axes.facecolor": "red", "savefig.dpi": 30, "lines.linewidth": 9}
    ):
        assert MARKS[name](alt=ALT, **AXES).png == first
    for word in (b"Software", b"tIME", b"Creation", b"matplotlib"):
        assert word not in first


@pytest.mark.parametrize("name", MARKS)
def test_labels_and_alt_are_required(name):
    with pytest.raises(TypeError, match="x_label"):
        MARKS[name](y_label="y", alt=ALT)
    with pytest.raises(ValueError, match="alt="):
        MARKS[name](**AXES)


@pytest.mark.parametrize("alt", ["", "Loss", "Loss by layer", "  Loss  by  index in context  "])
def test_a_poor_alt_text_is_refused(alt):
    with pytest.raises(ValueError, match="alt"):
        plots.lines({"a": [1]}, alt=alt, x_label="x", y_label="y", title="Loss by index in context")


def test_no_figure_stays_open_or_known_to_pyplot():
    import sys

    shown = MARKS["lines"](alt=ALT, **AXES)
    assert not hasattr(shown, "fig")
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()


def test_panels_draw_on_given_axes_and_drop_the_empty_ones():
    made = []

    def draw(ax):
        out = plots.lines({"a": [1, 2]}, ax=ax, **AXES)
        made.append(out)

    shown = plots.panels([draw] * 3, alt=ALT, title="Three")
    assert len(made) == 3 and len({id(a) for a in made}) == 3
    assert shown.plotly is None and len(shown.png) > 1000


def test_signed_colours_are_centred_and_patterns_use_cividis():
    with plots.house():
        fig, axes = plots.canvas(1, 2)
        plots.heatmap([[3.0, -1.0]], signed=True, ax=axes[0], **AXES)
        plots.heatmap([[0.2, 0.7]], ax=axes[1], **AXES)
    signed, plain = (ax.images[0] for ax in axes)
    assert signed.get_cmap().name == "RdBu_r" and signed.norm(0.0) == 0.5
    assert signed.norm.vmin == -3 and signed.norm.vmax == 3
    assert plain.get_cmap().name == "cividis" and plain.norm.vmin == 0
    assert [t.get_text() for t in axes[0].texts] == ["3.00", "-1.00"]
    fig.clear()


def test_few_cells_are_written_on_and_many_are_not():
    with plots.house():
        fig, axes = plots.canvas(1, 2)
        plots.heatmap(np.ones((10, 15)), ax=axes[0], **AXES)
        plots.heatmap(np.ones((10, 16)), ax=axes[1], **AXES)
    assert [len(ax.texts) for ax in axes] == [150, 0]


def test_lines_differ_in_more_than_colour():
    with plots.house():
        fig, ax = plots.canvas()
        plots.lines({n: [1, 2] for n in "abcd"}, ax=ax, **AXES)
    assert len({line.get_marker() for line in ax.lines}) == 4
    assert [line.get_color() for line in ax.lines] == list(plots.COLOURS[:4])
    fig.clear()


def test_hover_is_left_out_when_it_would_be_large_or_unwanted():
    big = plots.lines({"a": np.arange(6000)}, alt=ALT, **AXES)
    assert big.plotly is None
    assert plots.lines({"a": [1, 2]}, alt=ALT, hover=False, **AXES).plotly is None
    spec = plots.lines({"a": [1, 2]}, alt=ALT, log_y=True, **AXES).plotly
    assert spec["layout"]["yaxis"]["type"] == "log"


def test_numbers_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="finite"):
        plots.lines({"a": [1.0, float("nan")]}, alt=ALT, **AXES)


def test_tokens_are_made_visible():
    assert plots.token(" Aunt") == "␣Aunt"
    assert plots.token("head 0 ") == "head 0␣"
    assert plots.token("\n\t") == "⏎⇥"
    assert plots.token("  ") == "␣␣"


def test_a_gallery_function_takes_r_and_returns_a_figure():
    @plots.figure
    def good(r):
        return plots.lines({"a": r["a"]}, alt=ALT, **AXES)

    assert good({"a": [1, 2]}).alt == ALT and good.is_figure

    @plots.figure
    def bad(r):
        return 3

    with pytest.raises(TypeError, match="bad must return"):
        bad({})
    with pytest.raises(TypeError, match="first parameter"):
        plots.figure(lambda data: None)


# ---- tables -------------------------------------------------------------------------------------


def test_tables_are_markdown_and_text_never_html():
    frame = pd.DataFrame({"head": [0, 10], "loss (nats)": [1.23456, 2e-5], "word": ["a|b", "\n"]})
    data = plots.table(frame)._repr_mimebundle_()
    assert set(data) == {"text/markdown", "text/plain"}
    assert data["text/markdown"].splitlines() == [
        "| head | loss (nats) | word |",
        "| ---: | ---: | --- |",
        "| 0 | 1.23 | a\\|b |",
        "| 10 | 0.00002 | ⏎ |",
    ]
    assert data["text/plain"].splitlines()[0] == "head  loss (nats)  word"


def test_a_named_index_becomes_a_column_and_decimals_need_a_unit():
    frame = pd.DataFrame({"n": [1]}, index=pd.Index(["gelu-1l"], name="model"))
    assert plots.table(frame).header == ["model", "n"]
    with pytest.raises(ValueError, match="'loss'.*unit"):
        plots.table([{"loss": 1.5}])
    assert plots.table([{"a": 1}, {"b": 2}]).rows == [["1", ""], ["", "2"]]
