"""The result views do by pointer and by keyboard what they promise, with the saved numbers."""

import json
import re
from pathlib import Path

import pytest
from axe_core_python.sync_playwright import Axe
from playwright.sync_api import expect

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("tokens", "copying", "composition", "phase", "neurons", "latents")
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}


def data(name):
    return json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))["data"]


def curves(role):
    path = ROOT / "weights" / "curves" / f"{role}.json"
    return json.loads(path.read_text(encoding="utf-8"))["snapshots"]


def number(text):
    """A number as the pages write it: a real minus sign, commas between thousands, percent."""
    return float(text.replace("−", "-").replace(",", "").replace(" %", ""))


def view(open_page, name, anchor="", **screen):
    page = open_page(f"views-{name}.html{anchor}", **screen)
    expect(page.locator(f"#views-{name} .cbv-source")).to_be_visible()
    return page


def shade(locator):
    return locator.evaluate("node => getComputedStyle(node).backgroundColor")


# ---- phase change -------------------------------------------------------------------------------


def spoken(page, words):
    found = re.search(words + r" (−?\d+(?:\.\d+)?)", page.locator("#views-phase-told").inner_text())
    return number(found[1])


def stands(svg, value, axis="y"):
    """Where a value stands on a chart's linear axis, from the labels of its ticks."""
    anchor, shift = ("end", 4) if axis == "y" else ("middle", 0)
    ticks = svg.locator(f"text[text-anchor={anchor}]").all()
    found = [(t.text_content(), float(t.get_attribute(axis)) - shift) for t in ticks]
    found = [(number(words), at) for words, at in found if re.fullmatch(r"−?[\d.,]+", words)]
    (a, at_a), (b, at_b) = found[0], found[-1]
    return at_a + (value - a) / (b - a) * (at_b - at_a)


def test_arrow_keys_move_slider_markers_and_numbers(open_page):
    page, rows = view(open_page, "phase"), curves("attn-only-2l")
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
def test_the_markers_stand_on_the_curves(open_page, axis):
    page = view(open_page, "phase", f"#log={axis}&snapshot=30")
    row = curves("attn-only-2l")[30]
    values = {"loss": row["loss"], "icl": row["icl"], "k_composition": row["k_composition"][4][7]}
    for key, value in values.items():
        svg = page.locator(f"svg[data-key={key}]")
        mark = svg.locator(".cbv-mark.one").get_attribute("transform")
        x, y = map(float, re.search(r"\(([\d.]+) ([\d.]+)\)", mark).groups())
        assert y == pytest.approx(stands(svg, value), abs=0.6)
        if axis == "0":
            assert x == pytest.approx(stands(svg, row["step"] * 4096 / 1e6, "x"), abs=0.6)
        line = svg.locator("line.cbv-now")
        assert float(line.get_attribute("x1")) == pytest.approx(x, abs=0.1)
        path = svg.locator("path.cbv-line.one").get_attribute("d")
        points = [tuple(map(float, p.split())) for p in re.split("[ML]", path)[1:]]
        assert (x, y) == pytest.approx(points[30], abs=0.11)


def test_another_run_and_another_head_change_the_view(open_page):
    page = view(open_page, "phase")
    page.get_by_label("Training run").select_option("gelu-1l")
    expect(page.locator("svg[data-key=k_composition]")).to_have_count(0)
    rows = curves("gelu-1l")
    at = int(page.locator("#views-phase-slider").input_value())
    assert spoken(page, "loss") == pytest.approx(rows[at]["loss"], abs=0.006)
    page.get_by_label("Blue head").select_option("0.6")
    expected = rows[at]["previous_token"][0][6]
    assert spoken(page, "head 0.6 previous-token") == pytest.approx(expected, rel=6e-3)
    assert "run=gelu-1l" in page.url and "first=0.6" in page.url


# ---- composition --------------------------------------------------------------------------------


def cell(page, kind, writer, reader):
    row = page.locator(f"table[data-name={kind}] tbody tr").nth(writer)
    return row.locator("td").nth(reader)


def test_the_toggle_takes_the_baseline_away(open_page):
    page, saved = view(open_page, "composition"), data("course/05_composition")
    toggle = page.get_by_label("subtract what random pairs reach")
    for minus in (False, True):
        toggle.set_checked(minus)
        for i, kind in enumerate("QKV"):
            for w in range(8):
                for r in range(8):
                    value = saved["scores"][kind.lower()][w][r]
                    value -= saved["baseline"]["mean"][i][w][r] if minus else 0
                    shown = number(cell(page, kind, w, r).text_content())
                    assert abs(shown - 100 * value) <= 0.51
    assert shade(cell(page, "K", 4, 7)) != shade(cell(page, "K", 7, 7))


def test_focus_and_hover_say_a_pairs_numbers(open_page):
    page, saved = view(open_page, "composition"), data("course/05_composition")
    told = page.locator(".cbv-readout")
    cell(page, "K", 4, 7).hover()
    expect(told).to_contain_text("head 0.4 into the key of 1.7")
    score = re.search(r"Score ([\d.]+); random pairs ([\d.]+)", told.inner_text())
    assert number(score[1]) == pytest.approx(saved["scores"]["k"][4][7], abs=6e-4)
    assert number(score[2]) == pytest.approx(saved["baseline"]["mean"][1][4][7], abs=6e-5)
    loss = re.search(r"loss by ([\d.]+)", told.inner_text())
    assert number(loss[1]) == pytest.approx(saved["effects"]["loss"][1][4][7], rel=0.06)
    cell(page, "Q", 0, 0).focus()
    expect(told).to_contain_text("head 0.0 into the query of 1.0")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    expect(told).to_contain_text("head 0.2 into the query of 1.1")
    expect(cell(page, "Q", 2, 1)).to_be_focused()
    assert cell(page, "Q", 2, 1).evaluate("n => getComputedStyle(n).outlineStyle") == "solid"


# ---- copying spectrum ---------------------------------------------------------------------------


def test_a_head_is_chosen_by_list_and_by_its_circle(open_page):
    page, saved = view(open_page, "copying"), data("views/copying")
    facts = page.locator("#views-copying-facts dd")

    def score():
        return number(facts.first.inner_text())

    heads = saved["attn-only-2l"]["heads"]
    assert score() == pytest.approx(heads["1.7"]["score"], abs=6e-4)
    page.get_by_label("Head", exact=True).select_option("1.5")
    assert score() == pytest.approx(heads["1.5"]["score"], abs=6e-4)
    page.get_by_label("head 0.2, copying score").focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".cbv-readout")).to_contain_text("Head 0.3: copying score")
    page.keyboard.press("Enter")
    assert score() == pytest.approx(heads["0.3"]["score"], abs=6e-4)
    expect(page.get_by_label("Head", exact=True)).to_have_value("0.3")
    page.get_by_label("Model").select_option("gelu-1l")
    assert score() == pytest.approx(saved["gelu-1l"]["heads"]["0.3"]["score"], abs=6e-4)


def test_an_eigenvalue_says_its_parts_and_stands_there(open_page):
    page, saved = view(open_page, "copying", "#model=attn-only-1l&head=0.2"), data("views/copying")
    values = saved["attn-only-1l"]["heads"]["0.2"]["values"]
    mark = page.get_by_label("eigenvalue 3:")
    mark.focus()
    parts = re.search(
        r"head 0.2: (−?[\d.]+) ([+−]) ([\d.]+)i", page.locator(".cbv-readout").inner_text()
    )
    imaginary = number(parts[3]) * (-1 if parts[2] == "−" else 1)
    assert number(parts[1]) == pytest.approx(values[2][0], abs=6e-4)
    assert imaginary == pytest.approx(values[2][1], abs=6e-4)
    svg = page.locator("svg[aria-label^=Eigenvalues]")
    y = float(re.search(r" ([\d.]+)\)", mark.get_attribute("transform"))[1])
    assert y == pytest.approx(stands(svg, values[2][1]), abs=0.6)
    crosses = svg.locator(".cbv-mark.random")
    expect(crosses).to_have_count(32)
    page.get_by_label("show a random head").uncheck()
    expect(svg.locator(".cbv-mark.random")).to_have_count(0)


# ---- token rows ---------------------------------------------------------------------------------


def words(page, caption):
    table = page.locator("table.words").filter(has_text=caption).first
    return [row.inner_text().split("\t") for row in table.locator("tbody tr").all()]


def test_token_and_head_choose_the_rows(open_page):
    page, saved = view(open_page, "tokens"), data("views/tokens")
    page.get_by_label("Model").select_option("attn-only-2l")
    page.get_by_label("Head", exact=True).select_option("1.7")
    page.get_by_label("Find a token").fill("mary")
    listed = page.get_by_label("Token (chapters)")
    expect(listed.locator("option")).to_have_count(1)
    listed.select_option(index=0)
    at = next(i for i, row in enumerate(saved["rows"]) if row["text"] == " Mary")
    head = saved["heads"]["attn-only-2l"]["1.7"]
    expect(page.locator("#views-tokens-told")).to_contain_text("␣Mary")
    for caption, table, end in (
        ("looks for", "qk", "top"), ("avoids", "qk", "low"),
        ("raises", "ov", "top"), ("lowers", "ov", "low"),
    ):  # fmt: skip
        shown = words(page, caption)
        assert len(shown) == 8
        for (word, value), wanted, entry in zip(
            shown, head[table][end][at], head[table][f"{end} values"][at], strict=True
        ):
            text = saved["texts"][str(wanted)]
            assert word.strip() == text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")
            assert number(value) == pytest.approx(entry, rel=6e-3)
    rank = re.search(r"number ([\d,]+) of 4,096", page.locator("#views-tokens-told").inner_text())
    assert number(rank[1]) == head["own"][at][0]
    page.get_by_label("Find a token").fill("sall")
    page.keyboard.press("Enter")
    expect(page.locator("#views-tokens-told")).to_contain_text("␣Sally")
    page.get_by_label("Find a token").fill("zzz")
    expect(page.get_by_role("status").first).to_contain_text("No token here has these letters")


def test_a_link_opens_the_same_view(open_page):
    page = view(open_page, "tokens", "#model=attn-only-2l&head=0.4")
    expect(page.locator("#views-tokens-told")).to_contain_text("head 0.4 of attn-only-2l")
    page = view(open_page, "neurons", "#unit=gelu-2l:1:777")
    expect(page.locator("#views-neurons-title")).to_have_text("gelu-2l, layer 1, neuron 777")
    page = view(open_page, "latents", "#unit=nothing-of-the-kind")  # falls back, loses nothing
    expect(page.locator("#views-latents-title")).to_contain_text("latent")


# ---- neurons and latents ------------------------------------------------------------------------


def test_a_token_says_its_activation_on_hover_and_by_arrow_keys(open_page):
    page, saved = view(open_page, "neurons"), data("views/neurons")
    context = saved["units"][0]["contexts"][1]
    spans = page.locator(".cbv-context").nth(1).locator(".cbv-words span")
    expect(spans).to_have_count(len(context["ids"]))
    told = page.locator(".cbv-readout")

    def said():
        return number(re.search(r"activation (−?[\d.]+)\.$", told.inner_text())[1])

    spans.nth(context["at"]).hover()
    assert said() == pytest.approx(context["values"][context["at"]], abs=6e-3)
    spans.first.focus()
    page.keyboard.press("End")
    assert said() == pytest.approx(context["values"][-1], abs=6e-3)
    page.keyboard.press("ArrowLeft")
    assert said() == pytest.approx(context["values"][-2], abs=6e-3)
    quiet = context["values"].index(min(context["values"], key=abs))
    assert shade(spans.nth(context["at"])) != shade(spans.nth(quiet)) == "rgba(0, 0, 0, 0)"


def test_next_neuron_has_its_own_numbers(open_page):
    page, saved = view(open_page, "neurons"), data("views/neurons")
    page.get_by_role("button", name="next").click()
    unit = saved["units"][1]
    expect(page.locator("#views-neurons-title")).to_have_text(
        f"{unit['role']}, layer {unit['layer']}, neuron {unit['unit']}"
    )
    facts = page.locator(".cbv-facts dd")
    assert number(facts.nth(0).inner_text().split(" %")[0]) == pytest.approx(
        100 * unit["share"], rel=0.06
    )
    assert number(facts.nth(2).inner_text()) == pytest.approx(unit["maximum"], rel=6e-3)
    bars = page.locator(".cbv-bars rect")
    assert bars.count() == sum(n > 0 for n in unit["histogram"]["counts"])
    bars.first.focus()
    expect(page.locator(".cbv-readout")).to_contain_text(
        f"{unit['histogram']['counts'][0]:,} positions"
    )
    assert len(words(page, "raises most")) == len(unit["writes"]["top"])
    page.get_by_role("button", name="previous").click()
    page.get_by_role("button", name="previous").click()
    expect(page.get_by_label("Neuron")).to_have_value(
        "{role}:{layer}:{unit}".format(**saved["units"][-1])
    )


def test_a_dead_latent_is_shown_as_dead(open_page):
    saved = data("views/latents")
    dead = next(u for u in saved["units"] if u["share"] == 0)
    page = view(open_page, "latents", f"#unit={dead['unit']}")
    expect(page.locator("#views-latents")).to_contain_text("It never fires on the text")
    living = saved["units"][0]
    page.get_by_label("Latent").select_option(str(living["unit"]))
    middle = living["bands"][1]
    expect(page.locator("#views-latents")).to_contain_text(f"{middle['positions']:,} positions")
    told = page.locator(".cbv-panels ol").nth(1).locator(".cbv-where").first.inner_text()
    value = middle["contexts"][0]["values"][middle["contexts"][0]["at"]]
    assert number(told.split(" on ")[0]) == pytest.approx(value, rel=6e-3)


def test_colours_follow_the_theme(open_page):
    page = view(open_page, "latents")
    peak = page.locator(".cbv-words span.peak").first
    light = shade(peak)
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    expect(peak).not_to_have_css("background-color", light)


# ---- all pages ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
def test_every_view_has_words_a_table_and_its_source(open_page, name):
    page = view(open_page, name)
    assert page.get_by_text("Kind of evidence:").count() == 1
    expect(page.locator(f"#views-{name} .cbv-source")).to_contain_text("sha256")
    alternative = page.locator(f"#views-{name} details").first
    table = alternative.locator("table").first
    expect(table).to_be_hidden()
    alternative.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(table).to_be_visible()
    assert table.locator("tbody tr").count() >= 5


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", PAGES)
def test_no_serious_violation_and_no_sideways_scroll(open_page, name, width, dark):
    page = view(open_page, name, width=width, dark=dark)
    page.evaluate("document.querySelectorAll('.cbv details').forEach(d => { d.open = true; })")
    found = Axe().run(page, options=RULES)
    assert len(found["passes"]) > 10
    serious = [
        f"{v['id']} ({v['impact']}): {n['html'][:200]} | {n['failureSummary'][:200]}"
        for v in found["violations"]
        if v["impact"] in {"serious", "critical"}
        for n in v["nodes"][:2]
    ]
    assert not serious, "\n".join(serious)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_view_without_its_data_says_what_to_do(open_page):
    page = view(open_page, "copying")
    page.evaluate("() => { delete window.CB_DATA['views-copying']; }")
    page.evaluate("() => window.CBV.start('views-copying', () => {})")
    expect(page.locator("#views-copying")).to_contain_text("Build the site again: make site")
