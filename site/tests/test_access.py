"""A page of each kind passes axe-core's checks, light and dark, on a desk and on a phone."""

from importlib.resources import files

import pytest
from playwright.sync_api import expect

PAGES = [
    "index.html",
    "06_induction.html",
    "claims.html",
    "exercises.html",
    "comparison.html",
    "sources.html",
    "attribution-graph.html",
    "will-my-numbers-match.html",
    "search.html",
]
GRAPH = "_static/attribution/graph.html"  # the page in the frame of attribution-graph.html
DESK, PHONE = (1280, 900), (390, 844)
# Every kind of page in two of the four combinations, the busiest two in the others as well.
RUNS = [(p, DESK, False) for p in [*PAGES, GRAPH]] + [(p, PHONE, True) for p in PAGES]
RUNS += [(p, DESK, True) for p in ("00_models.html", "index.html")]
RUNS += [(p, PHONE, False) for p in ("00_models.html", "index.html")]
# `iframes`: axe may not look into a frame of a page on disk; the graph has a run of its own.
OPTIONS = {"resultTypes": ["violations"], "iframes": False}


@pytest.fixture(scope="module")
def axe():
    return (files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")


def _name(value):
    if isinstance(value, bool):
        return "dark" if value else "light"
    return {DESK: "desk", PHONE: "phone"}.get(value, value)


@pytest.mark.parametrize(("name", "screen", "dark"), RUNS, ids=_name)
def test_no_serious_violation(open_page, axe, name, screen, dark):
    page = open_page(name, width=screen[0], height=screen[1], dark=dark)
    if name != GRAPH:
        theme = page.evaluate("document.documentElement.dataset.theme")
        assert theme == ("dark" if dark else "light")
    page.evaluate(axe)
    found = page.evaluate("(options) => window.axe.run(document, options)", OPTIONS)
    assert len(found["passes"]) > 10, "axe looked at something"
    serious = [
        f"{v['id']} ({v['impact']}): {v['help']}\n    "
        + "\n    ".join(n["html"][:160] + " | " + n["failureSummary"][:200] for n in v["nodes"][:3])
        for v in found["violations"]
        if v["impact"] in {"serious", "critical"}
    ]
    assert not serious, "\n".join(serious)


@pytest.mark.parametrize("name", PAGES)
def test_no_sideways_scroll_on_a_phone(open_page, name):
    page = open_page(name, width=390, height=844)
    page.wait_for_load_state("load")
    page.wait_for_timeout(300)
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= 390, f"{name} is {wide} pixels wide"


def test_keyboard_reaches_the_text_at_once(open_page):
    page = open_page("06_induction.html")
    page.keyboard.press("Tab")
    skip = page.locator("#pst-skip-link a")
    expect(skip).to_be_focused()
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#main-content"
    assert page.locator("main").count() == 1
    assert page.evaluate("document.documentElement.lang") == "en"


def test_focus_is_visible(open_page):
    page = open_page("claims.html")
    page.get_by_label("State").focus()
    page.keyboard.press("Tab")
    style = page.evaluate(
        "(() => { const s = getComputedStyle(document.activeElement);"
        " return [s.outlineStyle, s.outlineWidth]; })()"
    )
    assert style == ["solid", "3px"]
