"""A page of each kind passes axe-core's checks, light and dark, on a desk and on a phone."""

from importlib.resources import files

import pytest
from playwright.sync_api import expect

PAGES = [  # one of each kind
    "index.html",
    "06_induction.html",
    "claims.html",
    "exercises.html",
    "comparison.html",
    "attribution-graph.html",
    "will-my-numbers-match.html",
    "search.html",
]
GRAPH = "_static/attribution/graph.html"  # a page without the theme's frame
DESK, PHONE = (1280, 900), (390, 844)
RUNS = [(p, *where) for p in [*PAGES, GRAPH] for where in ((DESK, False), (PHONE, True))]
# Many rows of a table, figures and cells are alike: the first ones stand for all.
ENOUGH = """document.querySelectorAll('article tbody').forEach((body) =>
  [...body.rows].slice(8).forEach((row) => row.remove()));
document.querySelectorAll('.cb-ledger tbody:nth-of-type(n+4), .cb-series table:nth-of-type(n+3)')
  .forEach((part) => part.remove());"""
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
def test_no_serious_violation_and_no_sideways_scroll(visit, axe, name, screen, dark):
    page = visit(name, width=screen[0], height=screen[1], dark=dark)
    if name != GRAPH:
        theme = page.evaluate("document.documentElement.dataset.theme")
        assert theme == ("dark" if dark else "light")
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= screen[0], f"{name} is {wide} pixels wide"
    page.evaluate(ENOUGH)
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


def test_keyboard_reaches_the_text_at_once(open_page):
    page = open_page("06_induction.html")
    page.keyboard.press("Tab")
    skip = page.locator("#pst-skip-link a")
    expect(skip).to_be_focused()
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#main-content"
    assert page.locator("main").count() == 1
    assert page.evaluate("document.documentElement.lang") == "en"


FOCUS = """(() => { const s = getComputedStyle(document.activeElement);
return [s.outlineStyle, s.outlineWidth]; })()"""


def test_focus_is_visible(open_page):
    page = open_page("claims.html")
    page.get_by_label("State").focus()
    page.keyboard.press("Tab")
    assert page.evaluate(FOCUS) == ["solid", "3px"]
    toggle = page.locator("button.primary-toggle:visible")
    for _ in range(80):  # the theme takes the outline from its own buttons
        page.keyboard.press("Shift+Tab")
        if toggle.evaluate("(b) => b === document.activeElement"):
            break
    expect(toggle).to_be_focused()
    assert page.evaluate(FOCUS) == ["solid", "3px"]


def test_an_exercise_is_a_card_on_a_phone(open_page):
    page = open_page("exercises.html", width=390, height=844)
    row = page.locator(".cb-tasks tbody tr").first
    asks = row.locator("td").last.bounding_box()
    assert asks["x"] >= 0 and asks["x"] + asks["width"] <= 390, "what it asks is on the screen"
    assert asks["width"] > 250
