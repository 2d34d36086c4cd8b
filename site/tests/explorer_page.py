"""One explorer page for a whole test file: to open it anew for each test takes most of the time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

READY = '#cx-app[aria-busy="false"]'
AUNT = "I always loved visiting Aunt Sally. Whenever I was feeling sad, Aunt"
PREDICTIONS = "#cx-predictions tbody tr"
LINK = "#model=attn-only-2l&head=1.7&text=" + AUNT.replace(" ", "+")
ALL = LINK + "&pin=8&at=20&token=300&row=500&look=in&weigh=1&off=0.1,1.2&cut=0.4>1.7.k,0.2>1.3.v"


@pytest.fixture(scope="module")
def opener(request: pytest.FixtureRequest, browser: Browser, site_dir: Path) -> Iterator[Any]:
    """What opens the shared page, and keeps its complaints."""
    shared = request.config.pluginmanager.get_plugin(str(Path(__file__).with_name("conftest.py")))
    opener = shared.Opener(browser, site_dir.as_uri(), shared.LOCAL, offline=True)
    opener.page = opener("explorer.html")
    opener.page.wait_for_selector(READY)
    yield opener
    opener.close()


@pytest.fixture
def page(opener: Any) -> Iterator[Page]:
    """The shared page; the test fails when the page complained in it."""
    yield opener.page
    problems = opener.problems[:]
    opener.problems.clear()
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


def at(page: Page, link: str = LINK) -> Page:
    """The page in the state of a link, as if the reader had put the link into the address."""
    page.mouse.move(5, 5)
    page.evaluate(
        """(link) => {
          document.activeElement.blur();
          for (const box of document.querySelectorAll('#cx-app details')) box.open = false;
          history.replaceState(null, '', location.href.split('#')[0] + link);
          Explorer.app.fromLink();
        }""",
        link,
    )
    page.wait_for_selector(READY)
    return page


def opened(open_page: Any, link: str = "", **how: object) -> Page:
    """A page of its own."""
    page = open_page(f"explorer.html{link}", **how)
    page.wait_for_selector(READY)
    return page


def shown_state(page: Page) -> dict:
    page.wait_for_selector(READY)
    return page.evaluate("Explorer.app.state")


def shown_rows(page: Page) -> list[list[str]]:
    """The predictions as the reader sees them."""
    page.wait_for_selector(READY)
    return page.locator(PREDICTIONS).evaluate_all(
        "rows => rows.map((row) => [...row.cells].map((cell) => cell.innerText))"
    )


def shown_values(page: Page) -> list[float | None]:
    texts = page.locator("#cx-tokens button").evaluate_all("all => all.map(x => x.dataset.value)")
    return [float(text) if text else None for text in texts]
