"""The result views do by pointer and by keyboard what they promise, with the saved numbers."""

import re

import pytest
from axe_core_python.sync_playwright import Axe
from playwright.sync_api import expect
from views_pages import data, number, stands, view

PAGES = ("tokens", "copying", "composition", "phase", "neurons", "latents")
RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"],
    "resultTypes": ["violations"],
}
# Rows and excerpts are alike: the first ones stand for all.
ENOUGH = """document.querySelectorAll(".cbv details tbody").forEach((body) =>
  Array.from(body.rows).slice(4).forEach((row) => row.remove()));
document.querySelectorAll(".cbv-list > li:nth-child(n+3)")
  .forEach((part) => part.remove());"""


def shade(locator):
    return locator.evaluate("node => getComputedStyle(node).backgroundColor")


# ---- composition --------------------------------------------------------------------------------


def cell(page, kind, writer, reader):
    row = page.locator(f"table[data-name={kind}] tbody tr").nth(writer)
    return row.locator("td").nth(reader)


def test_the_toggle_takes_the_baseline_away(visit):
    page, saved = view(visit, "composition"), data("course/05_composition")
    toggle = page.get_by_label("subtract what random pairs reach")
    for minus in (False, True):
        toggle.set_checked(minus)
        for i, kind in enumerate("QKV"):
            shown = page.locator(f"table[data-name={kind}] tbody td").all_text_contents()
            assert len(shown) == 64
            for at, text in enumerate(shown):
                w, r = divmod(at, 8)
                value = saved["scores"][kind.lower()][w][r]
                value -= saved["baseline"]["mean"][i][w][r] if minus else 0
                assert abs(number(text) - 100 * value) <= 0.51
    assert shade(cell(page, "K", 4, 7)) != shade(cell(page, "K", 7, 7))


def test_focus_and_hover_say_a_pairs_numbers(visit):
    page, saved = view(visit, "composition"), data("course/05_composition")
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


def test_a_head_is_chosen_by_list_and_by_its_circle(visit):
    page, saved = view(visit, "copying"), data("views/copying")
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


def test_an_eigenvalue_says_its_parts_and_stands_there(visit):
    page, saved = view(visit, "copying", "#model=attn-only-1l&head=0.2"), data("views/copying")
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


def test_token_and_head_choose_the_rows(visit):
    page, saved = view(visit, "tokens"), data("views/tokens")
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


def test_a_link_opens_the_same_view(visit):
    page = view(visit, "tokens", "#model=attn-only-2l&head=0.4")
    expect(page.locator("#views-tokens-told")).to_contain_text("head 0.4 of attn-only-2l")
    page = view(visit, "neurons", "#unit=gelu-2l:1:777")
    expect(page.locator("#views-neurons-title")).to_have_text("gelu-2l, layer 1, neuron 777")
    page = view(visit, "latents", "#unit=nothing-of-the-kind")  # falls back, loses nothing
    expect(page.locator("#views-latents-title")).to_contain_text("latent")


# ---- neurons and latents ------------------------------------------------------------------------


def test_a_token_says_its_activation_on_hover_and_by_arrow_keys(visit):
    page, saved = view(visit, "neurons"), data("views/neurons")
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


def test_next_neuron_has_its_own_numbers(visit):
    page, saved = view(visit, "neurons"), data("views/neurons")
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


def test_a_dead_latent_is_shown_as_dead(visit):
    saved = data("views/latents")
    dead = next(u for u in saved["units"] if u["share"] == 0)
    page = view(visit, "latents", f"#unit={dead['unit']}")
    expect(page.locator("#views-latents")).to_contain_text("It never fires on the text")
    living = saved["units"][0]
    page.get_by_label("Latent").select_option(str(living["unit"]))
    middle = living["bands"][1]
    expect(page.locator("#views-latents")).to_contain_text(f"{middle['positions']:,} positions")
    told = page.locator(".cbv-panels ol").nth(1).locator(".cbv-where").first.inner_text()
    value = middle["contexts"][0]["values"][middle["contexts"][0]["at"]]
    assert number(told.split(" on ")[0]) == pytest.approx(value, rel=6e-3)


def test_a_latent_shows_the_place_that_was_counted(visit):
    page = view(visit, "latents", "#unit=2432")
    told = page.locator("#views-latents-counted")
    expect(told).to_contain_text("in 12 of its 12 strongest windows")
    expect(told).to_contain_text("just before the place where the latent is strongest: “.”")
    lines = page.locator(".cbv-list").first.locator(".cbv-words")
    assert set(lines.locator(".counted").all_text_contents()) == {"."}
    assert lines.locator(".counted + .peak").count() == lines.locator(".peak").count()
    page.get_by_label("Latent").select_option("3261")
    assert lines.locator(".counted.peak").count() == lines.count() > 5
    drawn = [u for u in data("views/latents")["units"] if "drawn here" in u["why"]][0]
    page.get_by_label("Latent").select_option(str(drawn["unit"]))
    expect(told).to_contain_text("did not count this latent's words")
    assert page.locator(".counted").count() == 0


def test_a_control_character_is_shown_by_its_number(visit):
    page = view(visit, "tokens")
    assert page.evaluate("[CBV.visible(' \\f'), CBV.inText('a\\u0007\\n')]") == [
        "␣U+000C", "aU+0007⏎",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["neurons", "latents"])
def test_no_token_leaves_its_column(visit, name, width):
    page = view(visit, name, width=width)
    outside = page.evaluate("""() => {
      const box = document.querySelector(".cbv select"), found = [];
      let seen = 0;
      for (const option of Array.from(box.options).filter((_, i) => i % 3 === 0)) {
        box.value = option.value;
        box.dispatchEvent(new Event("change"));
        for (const word of document.querySelectorAll(".cbv-words span")) {
          seen += 1;
          const edge = word.closest("li").getBoundingClientRect().right + 1;
          if (Array.from(word.getClientRects()).some((r) => r.right > edge))
            found.push(option.value + word.textContent);
        }
      }
      return [seen, found];
    }""")
    assert outside[0] > 3_000 and outside[1] == []


def test_colours_follow_the_theme(visit):
    page = view(visit, "latents")
    peak = page.locator(".cbv-words span.peak").first
    light = shade(peak)
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    expect(peak).not_to_have_css("background-color", light)


# ---- all pages ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
def test_every_view_has_words_a_table_and_its_source(visit, name):
    page = view(visit, name)
    assert page.get_by_text("Kind of evidence:").count() == 1
    expect(page.locator(f"#views-{name} .cbv-source")).to_contain_text("sha256")
    alternative = page.locator(f"#views-{name} details").first
    table = alternative.locator("table").first
    expect(table).to_be_hidden()
    alternative.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(table).to_be_visible()
    assert table.locator("tbody tr").count() >= 5


# Both widths and both themes, not all four pairs of them: a run of axe takes seconds.
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)], ids=["wide", "narrow"])
@pytest.mark.parametrize("name", PAGES)
def test_no_serious_violation_and_no_sideways_scroll(visit, name, width, dark):
    page = view(visit, name, width=width, dark=dark)
    page.evaluate("document.querySelectorAll('.cbv details').forEach(d => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate(ENOUGH)
    found = Axe().run(page, options=RULES)
    assert len(found["passes"]) > 10
    serious = [
        f"{v['id']} ({v['impact']}): {n['html'][:200]} | {n['failureSummary'][:200]}"
        for v in found["violations"]
        if v["impact"] in {"serious", "critical"}
        for n in v["nodes"][:2]
    ]
    assert not serious, "\n".join(serious)


def test_a_view_without_its_data_says_what_to_do(visit):
    page = view(visit, "copying")
    page.evaluate("() => { delete window.CB_DATA['views-copying']; }")
    page.evaluate("() => window.CBV.start('views-copying', () => {})")
    expect(page.locator("#views-copying")).to_contain_text("Build the site again: make site")
