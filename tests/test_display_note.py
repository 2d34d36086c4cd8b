"""The note of random weights: it ends with its figure, and it hides and cuts off nothing."""

import copy
import json
from typing import ClassVar

import pytest
from matplotlib.figure import Figure as Canvas

from circuitbook import display, plots

ALT = "One line that rises from zero to two, and no more."


class Saved(dict):
    """A result of stand-in files."""

    made_with: ClassVar = {"random_weights": True}


def plain():
    return plots.panels([lambda ax: ax.plot([0, 1, 2])], alt=ALT)


@plots.figure
def toy(r):
    return plain()


@plots.figure
def failing(r):
    raise RuntimeError("no picture")


# ---- whose note it is ----------------------------------------------------------------------------


@pytest.fixture
def alone():
    """No note is left for other tests, also where this one fails."""
    token = display._note.set("")
    yield
    display._note.reset(token)


def test_the_note_ends_with_its_figure(alone):
    before = plain()
    assert toy(Saved()).alt.startswith("Random weights")
    after = plain()
    assert after.alt == ALT and after.png == before.png


def test_the_note_ends_with_a_figure_that_could_not_be_drawn(alone):
    with pytest.raises(RuntimeError, match="no picture"):
        failing(Saved())
    assert plain().alt == ALT


def test_a_figure_inside_a_figure_does_not_take_the_others_note(alone):
    @plots.figure
    def outer(r):
        inner = toy({})
        assert inner.alt == ALT
        return plain()

    assert outer(Saved()).alt.startswith("Random weights")


# ---- where it stands -----------------------------------------------------------------------------


def boxes(fig):
    """(box of the note, tight boxes of the axes), as shares of the figure."""
    fig.draw_without_rendering()
    back = fig.transFigure.inverted()
    (note,) = [t for t in fig.texts if t.get_text() == display.RANDOM]
    return note.get_window_extent().transformed(back), [
        ax.get_tightbbox().transformed(back) for ax in fig.axes
    ]


def fill(axes):
    for ax in axes.flat:
        ax.plot([0, 1, 2])
        ax.set(xlabel="position", ylabel="loss (nats)")
        ax.set_title("A title")


def test_a_canvas_without_a_layout_engine_makes_room():
    with display.house():
        fig = Canvas(figsize=(5.6, 3.4))
        fig.subplots_adjust(bottom=0.0)
        ax = fig.subplots()
        ax.plot([0, 1, 2])
        ax.set_axis_off()
        display._write_below(fig, display.RANDOM)
        assert fig.get_layout_engine() is None and fig.get_size_inches()[1] > 3.4
        note, _ = boxes(fig)
        assert 0 <= note.y0 < note.y1 <= ax.get_position().y0


def test_what_stood_low_in_a_canvas_without_a_layout_engine_keeps_its_distance():
    with display.house():
        fig = Canvas(figsize=(5.6, 3.4))
        fig.subplots_adjust(bottom=0.2)
        axes = fig.subplots(1, 2)
        fill(axes)
        display._write_below(fig, display.RANDOM)
        note, tight = boxes(fig)
        assert all(note.y1 <= box.y0 and box.y1 <= 1 for box in tight)
        height = fig.get_size_inches()[1]
        low = axes[0].get_position().y0 * height
        assert low == pytest.approx(0.2 * 3.4 + height - 3.4)


@pytest.mark.parametrize("rows, columns, size", [(1, 1, None), (2, 2, None), (1, 2, (6.0, 2.0))])
def test_with_a_layout_engine_nothing_is_cut_off_and_nothing_is_under_the_line(rows, columns, size):
    with display.house():
        fig, axes = display.canvas(rows, columns, size, squeeze=False)
        fill(axes)
        display._write_below(fig, display.RANDOM)
        note, tight = boxes(fig)
        assert fig.get_layout_engine() is not None and len(tight) == rows * columns
        for box in tight:
            assert note.y1 <= box.y0 and box.y1 <= 1 and 0 <= box.x0 and box.x1 <= 1
        assert 0 <= note.x0 and note.x1 <= 1 and note.y0 >= 0


# ---- the picture for hovering --------------------------------------------------------------------


def test_an_annotation_of_the_figures_own_stays_beside_the_note(alone):
    own = {"text": "here", "x": 1, "y": 2}
    spec = {"data": [], "layout": {"annotations": [own], "title": "A title"}}
    kept = copy.deepcopy(spec)

    @plots.figure
    def hovering(r):
        fig, ax = plots.canvas()
        ax.plot([0, 1, 2])
        return plots.Figure(fig, ALT, plotly=spec)

    for saved, texts in ((Saved(), ["here", display.RANDOM]), ({}, ["here"])):
        layout = hovering(saved).plotly["layout"]
        assert [a["text"] for a in layout["annotations"]] == texts
        assert layout["annotations"][0] == own and layout["title"] == "A title"
    assert json.dumps(spec) == json.dumps(kept), "the caller's dict was changed"
