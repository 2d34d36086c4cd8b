"""Tables and lists on the site's own pages are made of lessons, results and sources.

A page of site/pages/ holds marks like `<!-- site:chapters -->`; `fill` puts the made part there.
"""

import ast
import re
from collections.abc import Callable, Mapping
from html import escape

import _readme
from _lesson import Cell, Exercise, Lesson
from _site_claims import Shelf, ledger, words
from _site_tree import SiteError
from _strip import quiet_magics

from circuitbook.claims import LABELS
from circuitbook.series import page as series
from circuitbook.series import webpage

_MARK = re.compile(r"<!-- site:(?P<name>[a-z-]+) -->")


def fill(text: str, name: str, made: Mapping[str, Callable[[], str]]) -> str:
    """A page with every mark replaced; SiteError for a mark that nobody knows."""

    def one(match: re.Match) -> str:
        if match["name"] not in made:
            raise SiteError(f"{name} has the mark site:{match['name']}; known: {', '.join(made)}")
        return made[match["name"]]()

    return _MARK.sub(one, text)


def raw(html: str) -> str:
    """HTML in a Markdown page, as it is."""
    return f"````{{raw}} html\n{html}\n````"


def parts(lessons: list[Lesson], shelf: Shelf) -> dict[str, Callable[[], str]]:
    """What the marks stand for."""
    return {
        "chapters": lambda: chapters(lessons),
        "claims": lambda: raw(ledger(lessons, shelf)),
        "comparison": comparison,
        "exercises": lambda: exercises(lessons),
        "labels": lambda: labels(shelf),
        "totals": lambda: totals(lessons, shelf),
        "texts": _readme.texts,
    }


def short(lesson: Lesson) -> str:
    """The title up to its colon, for the list at the side."""
    return f"{lesson.number} · {lesson.title.partition(':')[0]}"


def chapters(lessons: list[Lesson]) -> str:
    """The chapters with the part of the series, minutes and exercises, each linked to its page."""
    rows = []
    for lesson in lessons:
        rows.append(
            f"| [{lesson.number} · {lesson.title}]({lesson.name}.ipynb) | {lesson.head['Series']} "
            f"| {lesson.head['Reading']} | {_readme.work(lesson.exercises)} "
            f"| {_readme.work(lesson.written)} |"
        )
    heads = ("Chapter", "Series", "Reading", *_readme.WORK)
    head = ["| " + " | ".join(heads) + " |", "| --- " * len(heads) + "|"]
    return "\n".join(head + rows)


def totals(lessons: list[Lesson], shelf: Shelf) -> str:
    """One sentence with the course's sizes, counted."""
    claims = [c for made in shelf.chapters.values() for c in made]
    refused = sum(not c["holds"] for c in claims)
    code = sum(len(lesson.exercises) for lesson in lessons)
    written = sum(len(lesson.written) for lesson in lessons)
    return (
        f"{len(lessons)} chapters, {code} exercises in code that check themselves, {written} "
        f"written ones, and {len(claims)} claims, each with its evidence. {refused} of the claims "
        "do not hold, and stay in."
    )


def labels(shelf: Shelf) -> str:
    """How many claims of each kind there are, and how many of them hold."""
    claims = [c for made in shelf.chapters.values() for c in made]
    rows = ["| Evidence | Claims | hold |", "| --- | ---: | ---: |"]
    for label in LABELS:
        mine = [c for c in claims if c["label"] == label]
        rows.append(f"| {label} | {len(mine)} | {sum(c['holds'] for c in mine)} |")
    return "\n".join(rows)


def comparison() -> str:
    """The body of the page that `make compare` writes: one table, shown in two places."""
    try:
        text = webpage.text(series.build())
    except (ValueError, FileNotFoundError) as error:
        raise SiteError(f"the comparison with the series cannot be made: {error}") from None
    found = re.search(r"<main>\s*<h1>.*?</h1>(?P<body>.*)</main>", text, re.DOTALL)
    if not found:
        raise SiteError("circuitbook.series.webpage has no <main> with an <h1> any more")
    return raw(f'<div class="cb-series">{found["body"]}</div>')


# ---- exercises ----------------------------------------------------------------------------------


TASK = ("Exercise", "Points", "Minutes", "Difficulty", "What it asks")


def exercises(lessons: list[Lesson]) -> str:
    """A table for each chapter: every exercise with what it asks, in the lesson's own words."""
    out = []
    for lesson in lessons:
        rows = [row for cell in lesson.cells if (row := _task(cell, lesson))]
        if rows:
            heads = "".join(f'<th role="columnheader" scope="col">{h}</th>' for h in TASK)
            table = (
                f'<div class="cb-wide" role="region" tabindex="0" '
                f'aria-label="Exercises of chapter {lesson.number}">'
                '<table role="table" class="cb-tasks">'
                f'<thead role="rowgroup"><tr role="row">{heads}</tr></thead>'
                f'<tbody role="rowgroup">{"".join(rows)}</tbody></table></div>'
            )
            out.append(
                f"(ch-{lesson.number})=\n## {lesson.number} · {lesson.title}\n\n{raw(table)}"
            )
    return "\n\n".join(out)


def _task(cell: Cell, lesson: Lesson) -> str:
    if cell.exercise:
        return _line(cell.exercise, _docstring(cell, cell.exercise.function), lesson)
    if cell.question:
        question = " ".join(cell.source.strip().split("\n")[1:]).strip()
        return _line(cell.question, f"<p>In words: {escape(question)}</p>", lesson)
    return ""


def _line(e: Exercise, asks: str, lesson: Lesson) -> str:
    anchor = "ex-" + e.name.replace(".", "-").replace("_", "-")
    shown = escape(e.name).replace("_", "_<wbr>")
    cells = "".join(
        f'<td role="cell" data-label="{label}">{cell}</td>'
        for label, cell in zip(TASK[1:], (e.points, e.minutes, e.difficulty, asks))
    )
    return (
        f'<tr role="row"><th role="rowheader" scope="row"><a href="{lesson.name}.html#{anchor}">'
        f"<code>{shown}</code></a></th>{cells}</tr>\n"
    )


def _docstring(cell: Cell, function: str) -> str:
    body = ast.parse(quiet_magics(cell.source)).body
    node = next(n for n in body if isinstance(n, ast.FunctionDef) and n.name == function)
    first, _, rest = (ast.get_docstring(node) or "").partition("\n\n")
    call = f"{function}({ast.unparse(node.args)})"
    more = f"<p>{words(' '.join(rest.split()))}</p>" if rest.strip() else ""
    return f"<p>{words(' '.join(first.split()))}</p><p><code>{escape(call)}</code></p>{more}"
