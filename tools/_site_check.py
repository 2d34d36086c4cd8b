"""What must be true of every built page, read from the files alone: no browser is needed.

Nothing is loaded from outside; links and anchors resolve; ids are unique; a page has a language, a
title and one first heading; pictures have words; what a page loads at first stays below a limit.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

LIMIT = 3_000_000  # bytes of a page with all that it loads at first
_LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
_OUTSIDE = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)


@dataclass
class Page(HTMLParser):
    """What one HTML file holds: ids, links, loads, headings, what it lacks."""

    path: Path
    ids: Counter = field(default_factory=Counter)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    headings: list[int] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of one tag."""
        got = dict(attrs)
        if got.get("id"):
            self.ids[got["id"]] += 1
        if tag == "html" and not got.get("lang"):
            self.bad.append("has no language (<html lang>)")
        if tag == "a" and got.get("href"):
            self.links.append(got["href"])
        if tag == "img" and "alt" not in got:
            self.bad.append(f"shows {got.get('src')} without alt text")
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        wanted = _LOADS.get(tag)
        if wanted and got.get(wanted) and not (tag == "link" and got.get("rel") in _ONLY_LINKS):
            self.loads.append(got[wanted])

    handle_startendtag = handle_starttag


_ONLY_LINKS = {"next", "prev", "search", "index", "author", "copyright", "help"}


def problems(site: Path) -> list[str]:
    """What is wrong with the pages of a built site, one line each; empty when all is well."""
    pages = {
        path: Page(path)
        for path in sorted(site.rglob("*.html"))
        if not path.relative_to(site).as_posix().startswith("_static/")
    }
    if site / "index.html" not in pages:
        return [f"there is no index.html in {site}: run `make site`"]
    out = []
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        found = [*page.bad, *_headings(page), *_loads(page), *_links(page, pages)]
        found += [f"has the id {i!r} {n} times" for i, n in page.ids.items() if n > 1]
        size = weight(page)
        if size > LIMIT:
            found.append(f"loads {size:,} bytes at first; at most {LIMIT:,} are allowed")
        out += [f"{name} {line}" for line in found]
    return out


def weight(page: Page) -> int:
    """Bytes of a page with its scripts, styles and pictures, lazy pictures included."""
    files = {page.path.parent / unquote(_plain(x)) for x in page.loads if not x.startswith("data:")}
    for start in [f for f in files if f.name == "startup.js"]:
        files |= set(start.parent.rglob("*.js"))  # MathJax loads its own parts
    return page.path.stat().st_size + sum(f.stat().st_size for f in files if f.is_file())


def _plain(address: str) -> str:
    return urldefrag(address).url.partition("?")[0]


def _headings(page: Page) -> list[str]:
    # The theme repeats the title for print as an h1 that the screen does not show.
    levels = page.headings
    jumps = [f"h{a} to h{b}" for a, b in zip(levels, levels[1:]) if b > a + 1]
    return [f"skips a level of headings ({', '.join(jumps)})"] if jumps else []


def _loads(page: Page) -> list[str]:
    out = []
    for address in page.loads:
        if _OUTSIDE.match(address) or address.startswith("/"):
            out.append(f"loads {address}, which is not beside it")
        elif not address.startswith("data:"):
            if not (page.path.parent / unquote(_plain(address))).is_file():
                out.append(f"loads {address}, which is not there")
    return out


def _links(page: Page, pages: dict[Path, Page]) -> list[str]:
    out = []
    for address in dict.fromkeys(page.links):
        if re.match(r"[a-z][a-z0-9+.-]*:", address, re.IGNORECASE):
            continue  # a reader may click it; nothing is loaded
        name, anchor = urldefrag(address)
        target = (page.path.parent / unquote(_plain(name))).resolve() if name else page.path
        if not target.is_file():
            out.append(f"links to {address}, which is not there")
        elif anchor and target in pages and unquote(anchor) not in pages[target].ids:
            # "model=gelu-2l&head=1.7" is a state of the explorer, which reads it itself.
            if anchor != "top" and not anchor.startswith("!") and "=" not in anchor:
                out.append(f"links to {address}, and there is no such place")
    return out
