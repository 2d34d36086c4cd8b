"""The page is a function of reference, rows and results: sections of lines, as plain data.

Whoever prints it (markdown, webpage) decides nothing. States of a line: "ok", "off" (differs),
"shown" (nothing in it can be judged: no tolerance, one that is too wide, another task), "other"
(another model), "random" (published models, but random weights or another text), "hub" (needs the
published weights), "missing" (no results yet), "unknown" (a kind that nobody defined).
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from circuitbook.series import show
from circuitbook.series.modelrows import SUBJECTS
from circuitbook.series.reference import Entry, entries
from circuitbook.series.rows import Row, Subject
from circuitbook.series.shelf import Missing, NoResults, Shelf
from circuitbook.series.verdict import (
    Field,
    NoRule,
    compare,
    fields,
    is_setting,
    tolerance_words,
)
from circuitbook.series.words import NAMES

__all__ = ["STATES", "Line", "Page", "Section", "Table", "build"]

STATES = {
    "ok": "agree",
    "off": "differ",
    "shown": "shown, not judged",
    "other": "another model, not judged",
    "random": "random weights or another text, not judged",
    "hub": "need the hub",
    "missing": "no results yet",
    "unknown": "of an unknown kind",
}
MUST = {"exact", "closed_form"}  # these rows have to pass on every machine
NOTED = "shown, not judged (see the note)"


@dataclass
class Line:
    """One row of a table: a number, or one named part of an entry (depth 1)."""

    label: str
    series: str = ""
    published: str = ""
    course: str = ""
    kind: str = ""
    tolerance: str = ""
    verdict: str = ""
    state: str = ""
    id: str = ""
    depth: int = 0
    said: tuple[str, ...] = ()  # columns where a word stands in place of a number


@dataclass(frozen=True)
class Table:
    """All numbers of a field that is too long for a line. Rows: first layer; columns: second."""

    title: str
    rows: list[list[str]]


@dataclass
class Section:
    """A subject with its lines, its notes (text, names of rows) and its long tables."""

    title: str
    sentence: str
    lines: list[Line] = field(default_factory=list)
    notes: list[tuple[str, list[str]]] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


@dataclass
class Page:
    """The whole page. `problems` are what makes the command fail, one clear line each."""

    sections: list[Section]
    counts: Counter
    problems: list[str]


def field_name(path: Sequence[str]) -> str:
    """A field's name for people; ("heads", "name_mover") is "heads · name mover"."""
    parts = [NAMES.get(p, p.replace("_", " ")) for p in path]
    return " · ".join(f"head {p}" if re.fullmatch(r"\d+\.\d+", p) else p for p in parts)


# ---- one row -------------------------------------------------------------------------------------


def _ours(row: Row, shelf: Shelf) -> Any:
    """Our value, from this page or from a chapter.  Errors: Missing."""
    if row.none:
        raise Missing(row.none)
    if row.here is not None:
        return row.here()
    return shelf.value(row.chapter, row.take or (lambda saved: saved.series(row.id)))


def _published(row: Row, shelf: Shelf) -> tuple[Any, str]:
    """(our value on the published models, why it is not judged or "").

    In the public protocol where the chapter has one, else by the chapter's own measure.
    Errors: Missing.
    """
    try:
        value = shelf.value(row.chapter, lambda saved: saved.series(row.id))
        return value, shelf.chapter(row.chapter).unjudged(row.reads == "text")
    except NoResults:
        raise
    except Missing:
        if row.take is None:
            raise
    value = shelf.value(row.chapter, row.take)
    return value, shelf.chapter(row.chapter).unjudged(row.reads != "nothing")


def _cell(theirs: Any, ours: Any, judged: bool) -> str:
    small = isinstance(theirs, int | float) and abs(theirs) < 1
    digits = max(show.decimals(theirs), 3 if small else 2) + judged if theirs is not None else 4
    return show.value(ours, digits)


def _verdict(entry: Entry, judged: list[Field]) -> tuple[str, str]:
    """(state, words) of an entry whose fields were judged."""
    off = [f for f in judged if f.ok is False]
    good = [f for f in judged if f.ok]
    if off:
        first = off[0]
        name = f"{field_name(first.path)} " if first.path else ""
        if first.why:
            return "off", f"DIFFERS: {name}{first.why}"
        return "off", f"DIFFERS: {name}by {first.gap:.3g}, allowed {first.allowed:.3g}"
    if not good:
        return "shown", next((f.why for f in judged if f.why), "shown; no tolerance is stated")
    came_out = any(f.theirs is not None and not is_setting(entry, f) for f in judged)
    if came_out and all(is_setting(entry, f) for f in good):
        return "shown", "same settings; no tolerance is stated for what came out"
    if all(f.allowed == 0 for f in good) and len(good) == len(judged):
        return "ok", "equal"
    if len(good) < len(judged):
        return "ok", "agrees where judged"
    return "ok", "within tolerance"


@dataclass
class _Judged:
    """What one row came to, before it is laid out as lines."""

    fields: list[Field]  # beside the course models' values
    published: dict[tuple[str, ...], Field]  # beside those on the published models
    words: str
    state: str
    course: str = ""  # said in place of a value
    hub: str = ""


def _judge(entry: Entry, row: Row, course: Shelf, published: Shelf) -> _Judged:
    same = row.compared == "same"
    try:
        ours, said, why = _ours(row, course), "", ""
    except NoResults as error:
        ours, said, why = None, "no results yet", str(error)
    except Missing as error:
        ours, said, why = None, str(error), str(error)
    theirs, random, hub = None, "", "needs no model" if same else row.hub
    if row.compared == "model":
        try:
            theirs, random = _published(row, published)
            hub = ""
        except NoResults:
            pass
        except Missing as error:
            hub = str(error)
    if ours is None:
        beside = [Field(path, value, None, None) for path, value in fields(entry.value)]
    else:
        beside = compare(entry, ours, judged=same)
    judged: list[Field] = []
    if same and ours is None:
        state, words = "missing", why
    elif same:
        state, words = _verdict(entry, beside)
    elif theirs is not None and random:
        state, words = "random", f"{random}: not judged"
        judged = compare(entry, theirs, judged=False)
    elif theirs is not None:
        judged = [
            replace(f, ok=None, allowed=None, why=NOTED) if f.path[:1] and f.path[0] in row.shown
            else f for f in compare(entry, theirs, judged=True)
        ]  # fmt: skip
        state, words = _verdict(entry, judged)
        words = f"published weights: {words}"
    elif ours is not None:
        state, words = "other", "another model: not judged"
    else:
        state, words = "hub", "needs the hub" if row.compared == "model" else "not judged"
    return _Judged(beside, {f.path: f for f in judged}, words, state, said, hub)


def _mark(entry: Entry, *fields: Field | None) -> str:
    """The mark of a part's line: of the first of its fields that was judged."""
    for f in fields:
        if f is not None and f.ok is not None:
            return "differs" if not f.ok else "same" if is_setting(entry, f) else "agrees"
    return ""


def _lay_out(entry: Entry, row: Row, judged: _Judged, section: Section) -> None:
    """Add the lines of one entry to its section, and its long tables."""
    kind = {"closed_form": "closed form"}.get(entry.kind, entry.kind)
    head = Line(
        row.label, "", judged.hub, judged.course, kind, tolerance_words(entry), judged.words,
        judged.state, entry.id, 0,
        ("published",) * bool(judged.hub) + ("course",) * bool(judged.course),
    )  # fmt: skip
    section.lines.append(head)
    alone = len(judged.fields) == 1 and not judged.fields[0].path
    for f in judged.fields:
        there = judged.published.get(f.path)
        mark = _mark(entry, f, there)
        line = head if alone else Line(field_name(f.path), verdict=mark, state=mark, depth=1)
        if not alone:
            section.lines.append(line)
        line.series = show.value(f.theirs)
        if f.ours is not None:
            line.course = _cell(f.theirs, f.ours, f.ok is not None)
        if there is not None:
            line.published = _cell(f.theirs, there.ours, there.ok is not None)
        title = row.label if alone else f"{row.label}: {field_name(f.path)}"
        values = {
            "series or public": f.theirs,
            "ours, published models": there and there.ours,
            "ours, no download": f.ours,
        }
        for who, value in values.items():
            if isinstance(value, list) and show.long(value):
                text = show.fixed(value, max(show.decimals(f.theirs), 2))
                section.tables.append(Table(f"{title}: {who}", text))


def several(names: Sequence[str]) -> str:
    """The rows that a note is about; many are not all named."""
    if len(names) < 4:
        return ", ".join(names)
    return f"{names[0]}, {names[1]} and {len(names) - 2} more"


def _note(entry: Entry, row: Row, section: Section) -> None:
    """Collect the notes of an entry; one text that several ids share stands once."""
    public = "" if entry.source == "series part 7" else f"source: {entry.source}"
    for text in (entry.note, row.remark, public):
        if not text:
            continue
        for known, ids in section.notes:
            if known == text:
                ids.append(row.label)
                break
        else:
            section.notes.append((text, [row.label]))


# ---- the page ------------------------------------------------------------------------------------


def build(
    listed: Sequence[Entry] | None = None,
    subjects: Sequence[Subject] = SUBJECTS,
    shelves: Mapping[str, Shelf] | None = None,
) -> Page:
    """The page of all published numbers. Defaults: the reference file, today's results."""
    listed = entries() if listed is None else listed
    shelves = shelves or {models: Shelf(models) for models in ("course", "published")}
    by_id = {entry.id: entry for entry in listed}
    page, waiting = Page([], Counter(), []), Counter()
    placed: set[str] = set()
    for subject in subjects:
        section = Section(subject.title, subject.sentence)
        page.sections.append(section)
        for row in subject.rows:
            if row.id in placed:
                page.problems.append(f"{row.id} has two rows")
                continue
            placed.add(row.id)
            if row.id not in by_id:
                page.problems.append(f"{row.id} has a row, but no published number")
                continue
            waiting[_add(page, section, by_id[row.id], row, shelves)] += 1
    for chapter, n in sorted(waiting.items()):
        if chapter:
            page.problems.append(f"chapter {chapter} has no results yet: run make all ({n} rows)")
    for id in by_id:
        if id not in placed:
            page.problems.append(f"{id} has no row: add one in src/circuitbook/series/")
    return page


def _add(page: Page, section: Section, entry: Entry, row: Row, shelves: Mapping[str, Shelf]) -> str:
    """Add one entry to the page. Returns the chapter that it waits for if it must pass, or ""."""
    try:
        judged = _judge(entry, row, shelves["course"], shelves["published"])
    except NoRule as error:
        beside = [Field(path, value, None, None) for path, value in fields(entry.value)]
        judged = _Judged(beside, {}, str(error), "unknown")
        page.problems.append(f"{entry.id}: {error}")
    _lay_out(entry, row, judged, section)
    _note(entry, row, section)
    page.counts[judged.state] += 1
    if entry.kind not in MUST or judged.state not in {"off", "missing"}:
        return ""
    if judged.course == "no results yet":
        return row.chapter
    page.problems.append(f"{entry.id}: {judged.words}")
    return ""
