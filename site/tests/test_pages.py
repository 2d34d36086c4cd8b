"""Every page opens from disk without an error or an outside request, and does what it promises."""

import re
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import _site_check  # noqa: E402 - it lies in tools/

BUILT = ROOT / "build" / "site"
PAGES = sorted(p.relative_to(BUILT).as_posix() for p in BUILT.rglob("*.html"))
CHAPTERS = [p for p in PAGES if re.fullmatch(r"\d\d_\w+\.html", p)]


def test_all_pages_are_there(site_dir):
    lessons = {p.stem for p in (ROOT / "scripts").glob("[0-9][0-9]_*.py")}
    assert {Path(p).stem for p in CHAPTERS} == lessons
    wanted = {"index", "claims", "exercises", "comparison", "sources", "attribution-graph"}
    docs = {p.relative_to(ROOT / "docs").with_suffix("") for p in (ROOT / "docs").rglob("*.md")}
    apps = {p.parent.name for p in (ROOT / "site" / "apps").glob("*/page.md")}
    missing = {f"{x}.html" for x in wanted | {d.as_posix() for d in docs} | apps} - set(PAGES)
    assert not missing


def test_links_anchors_loads_and_weights(site_dir):
    assert _site_check.problems(site_dir) == []


@pytest.mark.parametrize("name", sorted(set(PAGES) - set(CHAPTERS)))
def test_opens_quietly(visit, name):
    page = visit(name)
    assert page.title().strip()
    # Lazy pictures load when they come near, and so do their mistakes.
    page.evaluate("document.querySelectorAll('img').forEach((i) => { i.loading = 'eager'; })")
    page.wait_for_function("[...document.images].every((i) => i.complete)")
    broken = "[...document.images].filter((i) => !i.naturalWidth).map((i) => i.src)"
    assert page.evaluate(broken) == []


@pytest.mark.parametrize("name", ["index.html", "claims.html"])
def test_opens_under_a_sub_path(open_served, name):
    page = open_served(name)
    expect(page.locator("h1").first).to_be_attached()
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    page.wait_for_load_state("networkidle")


def test_what_a_chapter_loads_at_first(open_page, site_dir):
    """The browser's own list: with fonts and whatever scripts add, and without lazy pictures."""
    heaviest = max(CHAPTERS, key=lambda name: (site_dir / name).stat().st_size)
    asked = []
    page = open_page("sources.html")
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{site_dir.as_uri()}/{heaviest}")
    page.wait_for_function("window.MathJax.startup.promise.then(() => true)")
    files = {Path(re.sub(r"^file://|[?#].*", "", url)) for url in asked if url[:5] == "file:"}
    assert len(files) > 5
    assert sum(f.stat().st_size for f in files) <= _site_check.LIMIT


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_opens_quietly_with_its_equations_set(visit, name):
    page = visit(name)
    wanted = page.locator("span.math, div.math").count()
    if wanted:
        page.wait_for_function("window.MathJax.startup.promise.then(() => true)")
    assert page.locator("mjx-container").count() >= wanted
    assert wanted > 30 or name[:2] != "02", "chapter 02 is full of equations"
    assert page.locator("mjx-merror, mjx-mtext[style*='color: red']").count() == 0
    prose = page.locator("article").evaluate(
        "(a) => { const c = a.cloneNode(true);"
        " c.querySelectorAll('pre, code, mjx-container, script').forEach((x) => x.remove());"
        " return c.textContent; }"
    )
    left = re.findall(r"\$[^$\n]*[\\_^][^$\n]*\$|\\\(|\\\[", prose)
    assert not left, f"equations left as text: {left[:3]}"
    cut = "(all) => all.filter((p) => p.clientWidth && p.scrollWidth > p.clientWidth).length"
    assert page.locator("div.cell_input pre").evaluate_all(cut) == 0, "code is cut off"


def figure(page: Page):
    return page.locator("figure:has(button[data-plot])").first


def test_a_plot_is_drawn_when_asked_and_goes_again(open_page):
    page = open_page("06_induction.html")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    box = figure(page)
    button, picture = box.locator("button[data-plot]"), box.locator("img")
    assert page.evaluate("typeof window.Plotly") == "undefined", "plotly is loaded on demand"
    button.focus()
    page.keyboard.press("Enter")
    bars = box.locator(".cb-plot .bars .point")
    expect(bars.first).to_be_visible()
    spec = page.evaluate("(name) => window.PLOTS[name]", button.get_attribute("data-plot"))
    assert bars.count() == sum(len(trace["x"]) for trace in spec["data"])
    expect(picture).to_be_hidden()
    expect(button).to_be_focused()
    expect(button).to_have_text("Back to the picture")
    assert sum("plotly.min.js" in url for url in asked) == 1
    page.keyboard.press("Enter")
    expect(picture).to_be_visible()
    expect(box.locator(".cb-plot")).to_be_hidden()
    page.keyboard.press("Enter")
    expect(bars.first).to_be_visible()
    assert sum("plotly.min.js" in url for url in asked) == 1, "it is loaded once"


def test_every_button_has_a_plot_and_every_plot_draws(visit, site_dir):
    page = visit("06_induction.html")
    figure(page).locator("button[data-plot]").click()
    expect(figure(page).locator(".cb-plot .main-svg").first).to_be_visible()
    for name in CHAPTERS:
        buttons = re.findall(r'data-plot="([^"]+)"', (site_dir / name).read_text(encoding="utf-8"))
        script = site_dir / "_static" / "plots" / f"{Path(name).stem}.js"
        if buttons:
            page.add_script_tag(url=script.as_uri())
        drawn = page.evaluate(
            "async (names) => { const box = document.createElement('div'); let n = 0;"
            " document.body.append(box);"
            " for (const name of names) { const { data, layout } = window.PLOTS[name];"
            " await window.Plotly.newPlot(box, data, layout, { staticPlot: true });"
            " n += box.querySelectorAll('.main-svg').length > 0; window.Plotly.purge(box); }"
            " box.remove(); return n; }",
            buttons,
        )
        assert drawn == len(buttons), name


def test_pictures_have_words_and_sizes(open_page):
    page = open_page("06_induction.html")
    pictures = page.locator("figure.cb-figure img")
    assert pictures.count() > 5
    for picture in pictures.all():
        assert len(picture.get_attribute("alt")) > 20
        width, height = (int(picture.get_attribute(x)) for x in ("width", "height"))
        picture.scroll_into_view_if_needed()
        page.wait_for_function("(i) => i.complete", arg=picture.element_handle())
        assert picture.evaluate("(i) => [i.naturalWidth, i.naturalHeight]") == [width, height]
        shown = picture.evaluate("(i) => i.clientWidth / i.clientHeight")
        assert abs(shown / (width / height) - 1) < 0.02, "the picture is not stretched"


def test_the_ledger_can_be_filtered(open_page):
    page = open_page("claims.html")
    rows = page.locator(".cb-ledger tbody tr")
    total, said = rows.count(), page.locator("#ledger-filter output")
    visible = page.locator(".cb-ledger tbody tr:visible")
    expect(said).to_have_text(f"{total} of {total} claims")
    page.get_by_label("State").select_option("fails")
    failing = page.locator('.cb-ledger tr[data-holds="fails"]').count()
    assert 0 < failing < total
    expect(visible).to_have_count(failing)
    expect(said).to_have_text(f"{failing} of {total} claims")
    page.get_by_label("Chapter").select_option("06")
    expect(visible).to_have_count(page.locator('#ch-06 tr[data-holds="fails"]').count())
    page.get_by_label("Evidence").select_option("identity")
    expect(visible).to_have_count(0)
    page.get_by_role("button", name="Show all").click()
    expect(visible).to_have_count(total)
    page.get_by_label("Words").fill("induction.key_cut")
    expect(visible).to_have_count(1)
    caption, none = page.locator(".cb-ledger caption"), page.get_by_text("No claim fits")
    expect(caption).to_have_text(f"1 of {total} claims")
    expect(none).to_be_hidden()
    page.get_by_label("Words").fill("no such claim anywhere")
    expect(none).to_be_visible()
    expect(page.locator(".cb-ledger")).to_be_hidden()
    page.get_by_label("Words").fill("failed")
    expect(visible).to_have_count(failing)


def test_a_claim_in_the_address_is_never_filtered_away(open_page):
    page = open_page("claims.html")
    named = page.locator('[id="induction.key_cut"]')
    page.get_by_label("Words").fill("no such claim anywhere")
    expect(named).to_be_hidden()
    page.evaluate("location.hash = 'induction.key_cut'")
    expect(named).to_be_in_viewport()
    expect(page.get_by_label("Words")).to_have_value("")


def test_a_claim_leads_to_its_place(open_page):
    page = open_page("claims.html")
    page.locator('[id="induction.key_cut"] a').click()
    place = page.locator('[id="claim-induction.key_cut"]')
    expect(place).to_be_in_viewport()
    place.locator("a").click()
    expect(page.locator('[id="induction.key_cut"]')).to_be_in_viewport()


def test_without_scripts_the_ledger_is_whole(browser, site_dir):
    context = browser.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.goto(f"{site_dir.as_uri()}/claims.html")
    rows = page.locator(".cb-ledger tbody tr")
    assert page.locator(".cb-ledger tbody tr:visible").count() == rows.count() > 100
    assert page.locator("#ledger-filter:visible").count() == 0
    context.close()


def test_an_answer_is_folded_and_opens(open_page):
    page = open_page("06_induction.html")
    answer = page.locator("details:has-text('One right answer')").first
    expect(answer.locator("pre").first).to_be_hidden()
    answer.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(answer.locator("pre").first).to_be_visible()
    assert "# solution" in answer.inner_text()


def test_search_works_from_disk(open_page):
    page = open_page("search.html?q=composition")
    expect(page.locator("#search-results li a").first).to_be_visible()
    assert page.locator("#search-results a", has_text="05").count()


def test_the_picture_leads_to_the_graphs(open_page):
    page = open_page("attribution-graph.html")
    page.locator("figure a").click()
    expect(page.locator("svg").first).to_be_attached()
    assert page.url.endswith("_static/attribution/graph.html")


def test_the_theme_can_be_switched(open_page):
    page = open_page("index.html")
    button = page.locator("button.theme-switch-button:visible").first
    before = page.evaluate("document.documentElement.dataset.theme")
    button.focus()
    page.keyboard.press("Enter")
    page.locator('.theme-change-button[data-mode="dark"]').first.click()
    assert before == "light"
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_no_sentence_is_set_as_an_equation(site_dir):
    """A dollar sign that finds the wrong partner turns the words between them into italics."""
    seen = 0
    for name in CHAPTERS:
        text = (site_dir / name).read_text(encoding="utf-8")
        for tex in re.findall(r"\\\((.*?)\\\)|\\\[(.*?)\\\]", text, re.DOTALL):
            plain = re.sub(r"\\(?:text|mathrm|operatorname)\{[^}]*\}", "", "".join(tex))
            assert not re.search(r"[a-z]{3,}[ ,.]+[a-z]{2,}[ ,.]+[a-z]{2,} ", plain), (name, tex)
            seen += 1
    assert seen > 200
