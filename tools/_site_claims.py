"""Every claim stands in the ledger with its numbers and its place, and in its chapter as a list.

The ledger is one table: a row for each claim of results/course/, nothing left out. Without scripts
it is whole; with them it can be filtered.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

from _lesson import Lesson
from _site_tree import SiteError

from circuitbook import results
from circuitbook.claims import LABELS, line

STATES = {True: "holds", False: "fails"}


@dataclass
class Shelf:
    """The claims by id, by the line that a notebook prints, and the pages on which they stand."""

    chapters: dict[str, list[dict]]  # lesson name → its claims, in their order
    printed: dict[str, dict] = field(default_factory=dict)
    measured: dict[str, tuple[int, str]] = field(default_factory=dict)  # lesson → its section
    shown: dict[str, tuple[str, str]] = field(default_factory=dict)  # claim id → address, section
    page: str = ""  # the chapter that is being made
    section: str = ""  # and the section in it

    def __post_init__(self) -> None:
        self.printed = {line(c): c for made in self.chapters.values() for c in made}


def shelf(lessons: list[Lesson], root: Any) -> Shelf:
    """The committed claims of all lessons that measure; SiteError when a file is missing."""
    chapters = {}
    for lesson in lessons:
        path = root / "results" / "course" / f"{lesson.name}.json"
        if not path.is_file():
            if lesson.measures:
                raise SiteError(f"results/course/{path.name} is missing. Restore it from git.")
            continue
        chapters[lesson.name] = results.read(path)["claims"]
    return Shelf(chapters)


# ---- in a chapter -------------------------------------------------------------------------------


def claims_list(text: str, shelf: Shelf) -> str | None:
    """The HTML of a cell that printed claims and nothing else; None for any other text."""
    paragraphs = re.sub(r"\n  (?! )", " ", text).strip().split("\n")
    claims = [shelf.printed.get(p) for p in paragraphs]
    if not all(claims):
        return None
    return f'<ul class="cb-claims">{"".join(_item(c, shelf) for c in claims)}</ul>'


def _item(c: Mapping[str, Any], shelf: Shelf) -> str:
    first = c["id"] not in shelf.shown
    shelf.shown.setdefault(c["id"], (f"{shelf.page}.html#claim-{c['id']}", shelf.section))
    own = f' id="claim-{c["id"]}"' if first else ""
    models = "" if "models" not in c else " Measured on the course's models."
    return (
        f"<li{own}>{_chips(c)} {words(c['sentence'])}{models} "
        f'<a class="cb-id" href="claims.html#{c["id"]}">{c["id"]}</a></li>'
    )


def _chips(c: Mapping[str, Any]) -> str:
    state = STATES[c["holds"]]
    return (
        f'<span class="cb-label cb-{c["label"]}">{c["label"]}</span> '
        f'<span class="cb-state cb-{state}">{state}</span>'
    )


def words(sentence: str) -> str:
    """A sentence as HTML, with its `backticks` as code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(sentence))


# ---- the ledger ---------------------------------------------------------------------------------


def number(x: Any) -> str:
    """A number of a comparison in four significant digits; counts and words as they are."""
    if isinstance(x, bool):
        return "yes" if x else "no"
    return f"{x:.4g}" if isinstance(x, float) else escape(str(x))


def comparison(test: Mapping[str, Any]) -> str:
    """A comparison in words: what was found and what was expected."""
    kind = test.get("test")
    if kind == "all of":
        return "; ".join(comparison(part) for part in test["tests"])
    if kind is None:
        return f"expected: an error of at most {number(test['limit'])}"
    found = number(test["value"])
    if kind == "between":
        return f"{found}, expected: {number(test['low'])} to {number(test['high'])}"
    if kind == "close":
        return f"{found}, expected: {number(test['target'])} ± {number(test['tolerance'])}"
    if kind == "equal":
        return f"{found}, expected: {number(test['target'])}"
    return f"{found}, expected: {kind} {number(test['bound'])}"


def place(c: Mapping[str, Any], lesson: Lesson, shelf: Shelf) -> tuple[str, str]:
    """Address and section where a claim is shown; where nothing shows it, where it is measured."""
    if c["id"] in shelf.shown:
        return shelf.shown[c["id"]]
    number, section = shelf.measured[lesson.name]
    return f"{lesson.name}.html#{anchor(lesson.number, number)}", section


def anchor(number: str, section: int) -> str:
    """The id of a chapter's section: it stays when a heading is worded anew."""
    return f"c{number}-s{section:02d}"


def ledger(lessons: list[Lesson], shelf: Shelf) -> str:
    """The table with its filter; a row for every claim, a body for every chapter."""
    bodies = []
    for lesson in lessons:
        made = shelf.chapters.get(lesson.name)
        if made:
            rows = "\n".join(_row(c, lesson, shelf) for c in made)
            number = lesson.number
            head = f'<tbody role="rowgroup" id="ch-{number}" data-chapter="{number}">'
            bodies.append(f"{head}\n{rows}\n</tbody>")
    heads = "".join(
        f'<th role="columnheader" scope="col">{h}</th>'
        for h in ("Claim", "Evidence", "Found, and expected", "In words", "Where")
    )
    total = sum(map(len, shelf.chapters.values()))
    return (
        f"{_filter(lessons, shelf)}\n"
        f'<div class="cb-wide" role="region" tabindex="0" aria-label="All claims">\n'
        f'<table role="table" class="cb-ledger"><caption>{total} claims</caption>\n'
        f'<thead role="rowgroup"><tr role="row">{heads}</tr></thead>\n'
        + "\n".join(bodies)
        + "\n</table>\n</div>"
    )


def _row(c: Mapping[str, Any], lesson: Lesson, shelf: Shelf) -> str:
    where, section = place(c, lesson, shelf)
    name = c["id"].replace(".", ".<wbr>").replace("_", "_<wbr>")
    return (
        f'<tr role="row" id="{c["id"]}" data-label="{c["label"]}" '
        f'data-holds="{STATES[c["holds"]]}">'
        f'<th role="rowheader" scope="row"><code>{name}</code></th>'
        f'<td role="cell">{_chips(c)}</td><td role="cell">{comparison(c["test"])}</td>'
        f'<td role="cell">{words(c["sentence"])}</td>'
        f'<td role="cell"><a href="{where}">{where[:2]}: {words(section)}</a></td></tr>'
    )


def _filter(lessons: list[Lesson], shelf: Shelf) -> str:
    def choice(name: str, said: str, options: list[tuple[str, str]]) -> str:
        all_of = "".join(f'<option value="{v}">{escape(t)}</option>' for v, t in options)
        return (
            f'<label>{said} <select name="{name}"><option value="">all</option>{all_of}'
            "</select></label>"
        )

    chapters = [(x.number, f"{x.number} · {x.title}") for x in lessons if x.name in shelf.chapters]
    return (
        '<form class="cb-filter" id="ledger-filter" hidden>'
        '<label>Words <input type="search" name="words" autocomplete="off"></label>'
        + choice("chapter", "Chapter", chapters)
        + choice("label", "Evidence", [(x, x) for x in LABELS])
        + choice("holds", "State", [(x, x) for x in STATES.values()])
        + '<button type="reset">Show all</button><output aria-live="polite"></output></form>'
    )
