"""What every browser test shares: the built site, a Chromium without a network, and its complaints.

`open_page("06_induction.html")` opens a page from disk, as a reader who double-clicks it. After the
test it fails if the page logged an error or asked for anything that is not in the folder.
`open_served` does the same over HTTP, with the site under the sub-path `/site/`.
"""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Page,
    Request,
    Route,
    expect,
    sync_playwright,
)

expect.set_options(timeout=20_000)  # a machine that does other things too is no failure

SITE = Path(__file__).resolve().parents[2] / "build" / "site"
NAMES = ("chromium", "chromium-browser", "google-chrome")
# Chromium asks for updates and the like on its own. A test of a site without a network wants none.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LOCAL = ("file:", "data:", "blob:", "about:")


class Opener:
    """Opens pages in contexts of their own and keeps what went wrong in `problems`."""

    def __init__(self, browser: Browser, home: str, allowed: tuple[str, ...], offline: bool):
        self.browser, self.home, self.allowed, self.offline = browser, home, allowed, offline
        self.problems: list[str] = []
        self.contexts = []
        self.kept: dict[tuple, Page] = {}

    def again(self, path: str, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        """Open a page in the same tab as the last one of this size: a new context costs seconds."""
        page = self.kept.get((width, height, dark))
        if page is None:
            page = self.kept[width, height, dark] = self(path, width, height, dark)
        else:
            page.goto(f"{self.home}/{path}")
        return page

    def __call__(self, path: str, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        context = self.browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            offline=self.offline,
        )
        self.contexts.append(context)
        context.route(lambda url: not url.startswith(self.allowed), self.refuse)
        context.on("request", self.look_at_request)
        context.on("console", self.look_at_console)
        context.on("weberror", lambda error: self.problems.append(f"page error: {error.error}"))
        page = context.new_page()
        page.on("requestfailed", self.look_at_failure)
        page.goto(f"{self.home}/{path}")
        return page

    def refuse(self, route: Route) -> None:
        route.abort()

    def look_at_request(self, request: Request) -> None:
        if not request.url.startswith(self.allowed):
            self.problems.append(f"outside request: {request.url}")

    def look_at_failure(self, request: Request) -> None:
        # A reader who leaves a page while it loads aborts requests. That is no fault of the page.
        if "ERR_ABORTED" not in (request.failure or ""):
            self.problems.append(f"not loaded: {request.url} ({request.failure})")

    def look_at_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.problems.append(f"console error: {message.text}")

    def close(self) -> None:
        for context in self.contexts:
            context.close()
        self.complain()

    def complain(self) -> None:
        """Fail with all that went wrong since the last time."""
        found, self.problems = self.problems, []
        if found:
            pytest.fail("\n".join(found), pytrace=False)


@pytest.fixture(scope="session")
def site_dir() -> Path:
    """The built site. It is never skipped: without it nothing here means anything."""
    if not (SITE / "index.html").is_file():
        pytest.fail(f"There is no site in {SITE}. Run `make site` first.", pytrace=False)
    return SITE


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The system's Chromium, or the one that the variable CHROMIUM names."""
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if not path:
        pytest.fail(
            "No Chromium found. Install it (Debian: apt-get install chromium) or set CHROMIUM.",
            pytrace=False,
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, site_dir: Path) -> Iterator[Callable[..., Page]]:
    """`open_page(path, width=1280, height=900, dark=False)` opens `build/site/path` from disk."""
    opener = Opener(browser, site_dir.as_uri(), LOCAL, offline=True)
    yield opener
    opener.close()


@pytest.fixture(scope="session")
def tabs(browser: Browser, site_dir: Path) -> Iterator[Opener]:
    """One tab for each size and theme, for all tests that only look."""
    opener = Opener(browser, site_dir.as_uri(), LOCAL, offline=True)
    yield opener
    opener.close()


@pytest.fixture
def visit(tabs: Opener) -> Iterator[Callable[..., Page]]:
    """Like `open_page`, in a tab that other tests have used: for pages that are only looked at."""
    yield tabs.again
    tabs.complain()


@pytest.fixture(scope="session")
def served(site_dir: Path) -> Iterator[str]:
    """The address of the site under a sub-path, from a server on this machine only."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(site_dir.parent))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/{site_dir.name}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def open_served(browser: Browser, served: str) -> Iterator[Callable[..., Page]]:
    """Like `open_page`, but over HTTP and under `/site/`; anything outside that path is refused."""
    # `offline` would cut this machine's own server off too, so here the route alone refuses.
    opener = Opener(browser, served, (f"{served}/", *LOCAL[1:]), offline=False)
    yield opener
    opener.close()
