"""The view of explore() in a browser: it shows the model's numbers, by pointer and by keyboard.

It needs no built site: the page here is two views in a file, as a notebook would hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from axe_core_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect

from circuitbook.explore import View, explore

SALLY = "I always loved visiting Aunt Sally. Whenever I was feeling sad, Aunt"
HOSTILE = "</script><script>document.title='broken'</script><img src=x onerror=alert(1)> & <!--"
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Two views</title>
<meta name="viewport" content="width=device-width, initial-scale=1"></head>
<body {theme}><main><h1>Notebook</h1><h2>One</h2><h3>Output</h3>{views}</main></body></html>"""
# What JupyterLab's dark theme sets: the page is dark even where the system is light.
JUPYTER = """data-jp-theme-light="false" style="--jp-layout-color0:#111;
--jp-content-font-color1:rgba(255,255,255,.87);background:#111;color:#fff" """
SETTINGS = [(1280, False, ""), (1280, True, ""), (1280, False, JUPYTER), (390, True, "")]


@pytest.fixture(scope="module")
def views() -> tuple[View, View]:
    return explore(SALLY), explore(HOSTILE, "gelu-1l", head=2)


@pytest.fixture
def show(browser: Browser, views: tuple[View, View], tmp_path: Path) -> Iterator[Callable]:
    """`show(width, dark, theme)` opens both views without a network; any complaint fails."""
    problems: list[str] = []
    contexts = []

    def show(width: int = 1280, dark: bool = False, theme: str = "", script: bool = True) -> Page:
        path = tmp_path / "page.html"
        path.write_text(
            PAGE.format(theme=theme, views="\n".join(view.html for view in views)), "utf-8"
        )
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            offline=True,
            java_script_enabled=script,
        )
        contexts.append(context)
        context.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
        context.on("weberror", lambda error: problems.append(str(error.error)))
        context.on(
            "request",
            lambda r: None if r.url.startswith(("file:", "data:")) else problems.append(r.url),
        )
        page = context.new_page()
        page.goto(path.as_uri())
        return page

    yield show
    for context in contexts:
        context.close()
    assert not problems


def tokens(view: Locator) -> Locator:
    return view.locator(".cb-token")


def values(view: Locator) -> list[str]:
    return tokens(view).locator(".cb-value").all_inner_texts()


def near(found: list[str], wanted: list[float]) -> bool:
    """Each text says this number, up to the two digits that a view keeps of it."""
    return len(found) == len(wanted) and all(
        abs(float(text) - x) < 0.006 for text, x in zip(found, wanted, strict=True)
    )


def row(view: View, query: int, weigh: bool = False) -> list[float]:
    """The shown head's attention from a token, from the numbers that torch computed."""
    a = view.reading.pattern[view.head][query, : query + 1]
    if weigh:
        a = a * view.reading.size[view.head][: query + 1]
        a = a / a.sum()
    return a.tolist()


def test_what_is_shown_at_first_is_what_was_computed(show: Callable, views: tuple) -> None:
    page = show()
    for i, view in enumerate(views):
        place = page.locator(".cb-explore").nth(i)
        read = view.reading
        assert tokens(place).locator(".cb-text").all_inner_texts() == read.tokens
        assert near(values(place), row(view, len(read.tokens) - 1))
        chances = place.locator(".cb-columns section").nth(0)
        assert chances.get_by_role("button").all_inner_texts() == read.next[-1]
        wanted = f"{100 * read.probability[-1, 0].item():.1f} %"
        assert chances.locator(".cb-number").first.inner_text() == wanted
        numbers = place.locator(".cb-columns section").nth(1).locator(".cb-number")
        said = [float(text.replace("−", "-")) for text in numbers.all_inner_texts()]
        assert len(said) == len(read.parts) + 1
        for x, wanted in zip(said, [*read.share[-1, 0].tolist(), read.logit[-1, 0]], strict=True):
            assert abs(x - wanted) < 0.006
        assert abs(sum(said[:-1]) - said[-1]) < 0.1, "the rounded parts sum to the sum"
    assert page.title() == "Two views", "markup in a prompt did nothing"
    expect(page.locator(".cb-still")).to_have_count(0)


def test_pointing_colours_the_tokens_and_leaving_gives_the_pinned_one_back(
    show: Callable, views: tuple
) -> None:
    page = show()
    first, second = page.locator(".cb-explore").nth(0), page.locator(".cb-explore").nth(1)
    before, other = values(first), values(second)
    tokens(first).nth(8).hover()
    assert near(values(first)[:9], row(views[0], 8)) and values(first)[9:] == ["·"] * 14
    most = max(range(9), key=row(views[0], 8).__getitem__)
    colours = tokens(first).evaluate_all(
        "all => all.map((x) => getComputedStyle(x).backgroundColor)"
    )
    assert colours[most] != colours[12] and "Sally (8)" in first.locator(".cb-say").inner_text()
    assert values(second) == other, "the other view is left alone"
    page.mouse.move(2, 2)
    assert values(first) == before


def test_a_click_pins_and_changes_the_predictions(show: Callable, views: tuple) -> None:
    page = show()
    view = page.locator(".cb-explore").nth(0)
    tokens(view).nth(7).click()
    page.mouse.move(2, 2)
    assert tokens(view).nth(7).get_attribute("aria-pressed") == "true"
    assert near(values(view)[:8], row(views[0], 7))
    chances = view.locator(".cb-columns section").nth(0).get_by_role("button")
    assert chances.all_inner_texts() == views[0].reading.next[7]
    chances.nth(3).click()
    shown = view.locator(".cb-sum .cb-number").inner_text().replace("−", "-")
    assert abs(float(shown) - views[0].reading.logit[7, 3]) < 0.006
    expect(chances.nth(3)).to_be_focused()


def test_a_head_the_direction_and_the_weight_can_be_chosen(show: Callable, views: tuple) -> None:
    page = show()
    view, read = page.locator(".cb-explore").nth(0), views[0].reading
    last = len(read.tokens) - 1
    view.get_by_role("checkbox").check()
    assert near(values(view), row(views[0], last, weigh=True))
    view.get_by_role("checkbox").uncheck()
    tokens(view).nth(4).click()
    view.get_by_role("button", name="who looks at it").click()
    page.mouse.move(2, 2)
    column = read.pattern[views[0].head][4:, 4].tolist()
    assert values(view)[:4] == ["·"] * 4 and near(values(view)[4:], column)
    view.get_by_role("button", name="where a token looks").click()
    view.get_by_role("button", name="head 0.4", exact=True).first.click()
    assert near(values(view)[:5], read.pattern[0, 4][4, :5].tolist())
    link = view.locator(".cb-columns section").nth(1).get_by_role("button", name="head 1.2")
    link.click()
    assert near(values(view)[:5], read.pattern[1, 2][4, :5].tolist())


def test_the_keyboard_does_it_all_and_a_notebook_hears_none_of_it(
    show: Callable, views: tuple
) -> None:
    page = show()
    view = page.locator(".cb-explore").nth(0)
    page.evaluate(
        "window.heard = [];"
        "document.addEventListener('keydown', (event) => window.heard.push(event.key))"
    )
    tokens(view).nth(22).focus()
    for _ in range(2):
        page.keyboard.press("ArrowLeft")
    expect(tokens(view).nth(20)).to_be_focused()
    assert near(values(view)[:21], row(views[0], 20))
    page.keyboard.press("Home")
    expect(tokens(view).nth(0)).to_be_focused()
    page.keyboard.press("ArrowLeft")
    expect(tokens(view).nth(0)).to_be_focused()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    heading = view.locator("h4").first
    assert heading.inner_text() == f"Next token after {views[0].reading.tokens[1]} (1)"
    assert "(1)" in view.locator(".cb-aloud").inner_text()
    assert view.locator(".cb-token[tabindex='0']").count() == 1, "one stop for the Tab key"
    heads = view.locator(".cb-head")
    heads.nth(15).focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Space")
    assert heads.nth(7).get_attribute("aria-pressed") == "true"
    assert page.evaluate("window.heard") == []
    page.keyboard.press("Control+s")
    assert "s" in page.evaluate("window.heard"), "the notebook can still be saved"


def test_the_table_says_the_same_in_text(show: Callable, views: tuple) -> None:
    page = show()
    view = page.locator(".cb-explore").nth(0)
    view.locator("summary").click()
    cells = [line.split("\t") for line in view.locator("tbody").inner_text().split("\n")]
    last = len(views[0].reading.tokens) - 1
    assert [line[1] for line in cells] == views[0].reading.tokens
    assert near([line[2] for line in cells], row(views[0], last))
    assert near([line[3] for line in cells], row(views[0], last, weigh=True))


def test_without_scripts_the_picture_stands_there(show: Callable, views: tuple) -> None:
    page = show(script=False)
    pictures = page.locator(".cb-still img")
    expect(pictures).to_have_count(2)
    assert pictures.first.get_attribute("alt") == views[0].figure.alt
    assert pictures.first.bounding_box()["width"] > 300


@pytest.mark.parametrize(("width", "dark", "theme"), SETTINGS)
def test_axe_finds_nothing_serious_and_nothing_is_cut_off(
    show: Callable, width: int, dark: bool, theme: str
) -> None:
    page = show(width, dark, theme)
    view = page.locator(".cb-explore").nth(0)
    view.locator("summary").click()
    tokens(view).nth(8).focus()
    paper = view.evaluate("node => getComputedStyle(node).backgroundColor")
    assert (sum(map(int, paper.strip("rgb()").split(","))) < 100) == bool(dark or theme)
    found = Axe().run(page, options={"resultTypes": ["violations"]})
    serious = [v for v in found["violations"] if v["impact"] in ("serious", "critical")]
    assert len(found["passes"]) > 10 and not serious, serious
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
