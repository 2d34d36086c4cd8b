"""The page as one HTML file that loads nothing: tables on a desk, cards on a phone.

Every table has a caption and scoped heads. A verdict is a word; its colour only repeats it. On a
narrow screen each row becomes a card, and the roles keep it a table for a screen reader.
"""

import re
from html import escape

from circuitbook.series.page import STATES, Line, Page, Section, Table, several
from circuitbook.series.words import COLUMNS, INTRO, KIND_WORDS, TITLE

__all__ = ["text"]

STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem 1.2rem 4rem; max-width: 78rem; background: #fff; color: #1b1f24;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { line-height: 1.2; margin: 1rem 0; }
h2 { margin: 2.6rem 0 0.4rem; }
p, li { max-width: 46rem; }
a { color: #0b4f8a; }
code { font: 0.85em/1.4 ui-monospace, Menlo, Consolas, monospace; color: #4a5260; overflow-wrap: anywhere; }
table { width: 100%; border-collapse: collapse; margin: 0.4rem 0 0.8rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: 0 0 0.6rem; max-width: 46rem; }
th, td { text-align: left; vertical-align: top; padding: 0.35rem 0.6rem; font-weight: 400; overflow-wrap: anywhere; }
thead th { font-weight: 600; border-bottom: 2px solid #6b7480; }
tbody { border-bottom: 1px solid #d4d9e0; }
tbody th b { display: block; }
tr.part th { padding-left: 1.6rem; color: #3a424d; }
tr.part td, tr.part th { padding-top: 0.1rem; padding-bottom: 0.1rem; }
col.name { width: 24%; } col.theirs { width: 21%; } col.pub { width: 12%; } col.ours { width: 19%; }
col.kind { width: 11%; } col.said { width: 13%; }
table.set { table-layout: fixed; }
.quiet { color: #59636f; }
.state { display: inline-block; padding: 0.05rem 0.45rem; border-radius: 0.3rem; background: #eef1f5; color: #333b46; }
.ok, .agrees { background: #dff2e3; color: #0f4d24; }
.off, .unknown, .differs { background: #fde3df; color: #86180d; font-weight: 600; }
.hub { background: #fff1cc; color: #5c4200; }
.missing { background: #efe6fb; color: #46187f; }
ul.counts { padding: 0; list-style: none; }
ul.counts li { margin: 0.2rem 0; }
ul.notes { padding-left: 1.2rem; color: #3a424d; font-size: 0.93em; }
.matrix { overflow-x: auto; }
.matrix table { width: auto; font-size: 0.85em; }
.matrix th { font-weight: 600; }
details { margin: 0.5rem 0; }
summary { cursor: pointer; }
:focus-visible { outline: 3px solid #0b4f8a; outline-offset: 2px; }
@media (max-width: 760px) {
  body { padding: 0.6rem 0.8rem 3rem; }
  table.set, table.set tbody, table.set tr, table.set th, table.set td, table.set caption { display: block; width: 100%; }
  table.set colgroup { display: none; }
  table.set thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  table.set tbody { border: 1px solid #d4d9e0; border-radius: 0.5rem; margin: 0 0 0.8rem; padding: 0.4rem 0.2rem; }
  table.set td::before { content: attr(data-label) ": "; color: #59636f; }
  table.set td { padding: 0.1rem 0.6rem; }
  table.set td:empty { display: none; }
  table.set tr.part { border-top: 1px dotted #d4d9e0; margin-top: 0.2rem; padding: 0.2rem 0; }
  table.set tr.part th { padding-left: 0.6rem; font-weight: 600; }
}
"""  # noqa: E501 - one rule of the style sheet on one line


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _prose(text: str) -> str:
    """Text with its `backticks` as code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def _cell(label: str, text: str, quiet: bool = False) -> str:
    inside = f'<span class="quiet">{escape(text)}</span>' if quiet and text else escape(text)
    return f'<td role="cell" data-label="{escape(label)}">{inside}</td>'


def _state(line: Line) -> str:
    if not line.verdict:
        return f'<td role="cell" data-label="{COLUMNS[5]}"></td>'
    chip = f'<span class="state {line.state}">{escape(line.verdict)}</span>'
    return f'<td role="cell" data-label="{COLUMNS[5]}">{chip}</td>'


def _line(line: Line) -> str:
    if line.depth:
        name = escape(line.label)
        head = f'<tr role="row" class="part"><th role="rowheader" scope="row">{name}</th>'
        kind = ""
    else:
        name = f"<b>{escape(line.label)}</b><code>{escape(line.id)}</code>"
        head = f'<tr role="row"><th role="rowheader" scope="row">{name}</th>'
        kind = f"{line.kind}: {line.tolerance}"
    cells = [
        _cell(COLUMNS[1], line.series),
        _cell(COLUMNS[2], line.published, "published" in line.said),
        _cell(COLUMNS[3], line.course, "course" in line.said),
        _cell(COLUMNS[4], kind, True),
        _state(line),
    ]
    return head + "".join(cells) + "</tr>"


def _matrix(table: Table) -> str:
    title = escape(table.title)
    heads = "".join(f'<th scope="col">1.{i}</th>' for i in range(len(table.rows[0])))
    rows = "".join(
        f'<tr><th scope="row">0.{i}</th>' + "".join(f"<td>{x}</td>" for x in row) + "</tr>"
        for i, row in enumerate(table.rows)
    )
    corner = "<td></td>"
    return (
        f"<details><summary>All numbers of {title}</summary>\n"
        f'<div class="matrix" role="region" tabindex="0" aria-label="{title}"><table>'
        f"<caption>Rows: heads of the first layer. Columns: heads of the second.</caption>"
        f"<thead><tr>{corner}{heads}</tr></thead><tbody>{rows}</tbody></table></div></details>"
    )


def _section(section: Section) -> str:
    out = [f'<h2 id="{_anchor(section.title)}">{escape(section.title)}</h2>']
    out.append(f'<table class="set" role="table"><caption>{escape(section.sentence)}</caption>')
    widths = "".join(
        f'<col class="{c}">' for c in ("name", "theirs", "pub", "ours", "kind", "said")
    )
    out.append(f"<colgroup>{widths}</colgroup>")
    heads = "".join(f'<th role="columnheader" scope="col">{escape(c)}</th>' for c in COLUMNS)
    out.append(f'<thead role="rowgroup"><tr role="row">{heads}</tr></thead>')
    opened = False
    for line in section.lines:
        if not line.depth:
            out.append(("</tbody>\n" if opened else "") + '<tbody role="rowgroup">')
            opened = True
        out.append(_line(line))
    out.append("</tbody></table>")
    if section.notes:
        out.append('<ul class="notes">')
        out += [
            f"<li>{escape(several(names))}: {escape(text)}</li>" for text, names in section.notes
        ]
        out.append("</ul>")
    out += [_matrix(table) for table in section.tables]
    return "\n".join(out)


def text(page: Page) -> str:
    """The whole file, ending with a newline."""
    total = sum(page.counts.values())
    counts = "\n".join(
        f'<li><span class="state {state}">{page.counts[state]}</span> {words}</li>'
        for state, words in STATES.items()
        if page.counts[state]
    )
    problems = "\n".join(f"<li>{escape(p)}</li>" for p in page.problems)
    contents = "\n".join(
        f'<li><a href="#{_anchor(s.title)}">{escape(s.title)}</a></li>' for s in page.sections
    )
    kinds = "\n".join(f"<li><b>{k}</b>: {escape(words)}</li>" for k, words in KIND_WORDS.items())
    intro = "\n".join(f"<p>{_prose(paragraph)}</p>" for paragraph in INTRO)
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{TITLE} · Circuitbook</title>",
        "<!-- Built by `make compare`. Do not edit. -->",
        f"<style>{STYLE}</style>",
        "</head>",
        "<body>",
        "<main>",
        f"<h1>{TITLE}</h1>",
        intro,
        f"<p><b>{total} entries</b></p>",
        f'<ul class="counts">\n{counts}\n</ul>',
        f"<p><b>To look at</b></p>\n<ul>\n{problems}\n</ul>" if problems else "",
        f"<p><b>Kinds</b></p>\n<ul>\n{kinds}\n</ul>",
        f'<nav aria-label="Subjects">\n<p><b>Subjects</b></p>\n<ul>\n{contents}\n</ul>\n</nav>',
        *(_section(section) for section in page.sections),
        "</main>",
        "</body>",
        "</html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"
