"""The view of the phase change: slider, curves, errors, and what is said of a run."""

import re

import pytest
from playwright.sync_api import expect
from views_pages import curves, data, number, stands, view


def spoken(page, words):
    found = re.search(words + r" (−?\d+(?:\.\d+)?)", page.locator("#views-phase-told").inner_text())
    return number(found[1])


def test_arrow_keys_move_slider_markers_and_numbers(visit):
    page, rows = view(visit, "phase"), curves("attn-only-2l")
    slider = page.locator("#views-phase-slider")
    slider.focus()
    for key in ("Home", "End", "ArrowLeft", "ArrowLeft", "ArrowRight"):
        page.keyboard.press(key)
    at = len(rows) - 2
    assert slider.input_value() == str(at)
    row = rows[at]
    assert f"Step {row['step']:,}," in page.locator("#views-phase-told").inner_text()
    assert slider.get_attribute("aria-valuetext").startswith(f"step {row['step']},")
    assert spoken(page, "loss") == pytest.approx(row["loss"], abs=0.006)
    assert spoken(page, "in-context score") == pytest.approx(row["icl"], abs=0.0006)
    assert spoken(page, "head 0.4 previous-token") == pytest.approx(
        row["previous_token"][0][4], abs=6e-4
    )
    assert spoken(page, "head 1.7 prefix matching") == pytest.approx(
        row["prefix_matching"][1][7], abs=6e-4
    )
    assert spoken(page, "0.4 → 1.7") == pytest.approx(row["k_composition"][4][7], abs=6e-4)
    cell = page.locator("table[data-name=prefix_matching] tbody tr").nth(1).locator("td").nth(7)
    assert number("0" + cell.inner_text()) == pytest.approx(row["prefix_matching"][1][7], abs=6e-3)


@pytest.mark.parametrize("axis", ["0", "1"], ids=["linear", "logarithmic"])
def test_the_markers_stand_on_the_curves(visit, axis):
    page = view(visit, "phase", f"#log={axis}&snapshot=30")
    row = curves("attn-only-2l")[30]
    values = {"loss": row["loss"], "icl": row["icl"], "k_composition": row["k_composition"][4][7]}
    for key, value in values.items():
        svg = page.locator(f"svg[data-key={key}]")
        mark = svg.locator("circle.cbv-mark.one").get_attribute("transform")
        x, y = map(float, re.search(r"\(([\d.]+) ([\d.]+)\)", mark).groups())
        assert y == pytest.approx(stands(svg, value), abs=0.6)
        if axis == "0":
            assert x == pytest.approx(stands(svg, row["step"] * 4096 / 1e6, "x"), abs=0.6)
        line = svg.locator("line.cbv-now")
        assert float(line.get_attribute("x1")) == pytest.approx(x, abs=0.1)
        path = svg.locator("path.cbv-line.one").get_attribute("d")
        points = [tuple(map(float, p.split())) for p in re.split("[ML]", path)[1:]]
        assert (x, y) == pytest.approx(points[30], abs=0.11)


def test_another_run_and_another_head_change_the_view(visit):
    page = view(visit, "phase")
    page.get_by_label("Training run").select_option("gelu-1l")
    expect(page.locator("svg[data-key=k_composition]")).to_have_count(0)
    rows = curves("gelu-1l")
    at = int(page.locator("#views-phase-slider").input_value())
    assert spoken(page, "loss") == pytest.approx(rows[at]["loss"], abs=0.006)
    page.get_by_label("Blue head").select_option("0.6")
    expected = rows[at]["previous_token"][0][6]
    assert spoken(page, "head 0.6 previous-token") == pytest.approx(expected, rel=6e-3)
    assert "run=gelu-1l" in page.url and "first=0.6" in page.url


def test_the_in_context_score_says_its_windows_errors_and_direction(visit):
    page = view(visit, "phase", "#run=attn-only-2l&snapshot=55")
    last, bare = curves("attn-only-2l")[-1], curves("attn-only-0l")[-1]
    first = data("course/00_models")["icl"]["attn-only-2l"]
    svg = page.locator("svg[data-key=icl]")
    note = svg.locator("xpath=..").locator(".cbv-note").inner_text()
    assert "same 40 held-out windows" in note
    assert "another draw of 120 windows from 63 documents" in note
    told = [number(x) for x in re.findall(r"scores (−?[\d.]+)", note)]
    assert told == pytest.approx([first["mean"], last["icl"], bare["icl"]], abs=6e-4)
    mean, error = map(float, re.search(r"scores (0[\d.]+) ± ([\d.]+)", note).groups())
    assert (mean, error) == pytest.approx((last["icl"], last["icl_se"]), abs=6e-3)
    zero = svg.locator(".cbv-zero")
    assert float(zero.get_attribute("y1")) == pytest.approx(stands(svg, 0), abs=0.1)
    diamond = svg.locator("path.cbv-mark.one").get_attribute("transform")
    assert float(re.search(r" ([\d.]+)\)", diamond)[1]) == pytest.approx(
        stands(svg, first["mean"]), abs=0.6
    )
    bar = svg.locator(".cbv-error")
    ends = [float(bar.get_attribute(y)) for y in ("y1", "y2")]
    expected = [stands(svg, first["mean"] + side * first["se"]) for side in (-1, 1)]
    assert ends == pytest.approx(expected, abs=0.1)
    ribbon = svg.locator(".cbv-ribbon").get_attribute("d")
    points = [tuple(map(float, p.split())) for p in re.findall(r"[\d.]+ [\d.]+", ribbon)]
    rows, at_zero = curves("attn-only-2l"), stands(svg, 0)
    unit = stands(svg, 1) - at_zero
    assert len(points) == 2 * len(rows)
    for row, at in zip(rows, points):
        assert at[1] == pytest.approx(at_zero + unit * (row["icl"] + row["icl_se"]), abs=0.1)
    for row, at in zip(reversed(rows), points[len(rows) :]):
        assert at[1] == pytest.approx(at_zero + unit * (row["icl"] - row["icl_se"]), abs=0.1)


def test_runs_share_their_axes_and_what_is_not_there_is_named(visit):
    page = view(visit, "phase")

    def ticks():
        charts = page.locator("svg[data-key]").all()
        return {
            c.get_attribute("data-key"): c.locator("text[text-anchor=end]").all_text_contents()
            for c in charts
        }

    two = ticks()
    assert page.locator(".cbv-band").count() == 5
    page.get_by_label("Training run").select_option("attn-only-1l")
    one = ticks()
    assert two.pop("k_composition") and two == one and float(one["prefix_matching"][-1]) > 0.3
    place = page.locator("#views-phase")
    expect(place).to_contain_text("attn-only-1l has one layer, and K-composition takes two")
    expect(place).to_contain_text("no phase change here: prefix matching does not rise")
    assert page.locator(".cbv-band").count() == 0
    page.get_by_label("Training run").select_option("gelu-2l")
    expect(place).to_contain_text("does not look for a phase change in this run")
