"""The page as Markdown: one table for each subject, its notes, and the long tables folded."""

from circuitbook.series.page import STATES, Line, Page, Section, Table, several
from circuitbook.series.words import COLUMNS, INTRO, KIND_WORDS, TITLE

__all__ = ["text"]

MARKS = {"ok": "✓ ", "off": "✗ ", "unknown": "✗ "}


def _plain(text: str) -> str:
    """Text that Markdown shows as it stands, inside a table's cell."""
    for mark in "\\`*_|<>[]#":
        text = text.replace(mark, "\\" + mark)
    return text


def _line(line: Line) -> str:
    if line.depth:
        name = f"↳ {_plain(line.label)}"
        verdict = _plain(line.verdict)
        kind = ""
    else:
        name = f"**{_plain(line.label)}**<br>`{line.id}`"
        verdict = MARKS.get(line.state, "") + _plain(line.verdict)
        kind = f"{line.kind}: {_plain(line.tolerance)}"
    cells = [name, *map(_plain, (line.series, line.published, line.course)), kind, verdict]
    return "| " + " | ".join(cells) + " |"


def _table(table: Table) -> list[str]:
    columns = ["", *(f"1.{i}" for i in range(len(table.rows[0])))]
    head = [columns, ["---"] * len(columns)]
    rows = [[f"0.{i}", *row] for i, row in enumerate(table.rows)]
    lines = ["| " + " | ".join(row) + " |" for row in head + rows]
    title = f"All numbers of {table.title}"
    return ["<details>", f"<summary>{title}</summary>", "", *lines, "", "</details>", ""]


def _section(section: Section) -> list[str]:
    out = [f"## {section.title}", "", section.sentence, ""]
    out += ["| " + " | ".join(COLUMNS) + " |", "| " + " | ".join(["---"] * len(COLUMNS)) + " |"]
    out += [_line(line) for line in section.lines] + [""]
    for text, names in section.notes:
        out.append(f"- {_plain(several(names))}: {_plain(text)}")
    if section.notes:
        out.append("")
    for table in section.tables:
        out += _table(table)
    return out


def text(page: Page) -> str:
    """The whole page, ending with a newline."""
    out = [f"# {TITLE}", "", "<!-- Built by `make compare`. Do not edit. -->", ""]
    for paragraph in INTRO:
        out += [paragraph, ""]
    total = sum(page.counts.values())
    counted = [f"{page.counts[state]} {words}" for state, words in STATES.items()]
    kept = [c for c in counted if not c.startswith("0 ")]
    out += [f"**{total} entries:** {'; '.join(kept)}.", ""]
    if page.problems:
        out += ["**To look at:**", "", *(f"- {_plain(p)}" for p in page.problems), ""]
    out += ["Kinds:", "", *(f"- **{kind}**: {words}" for kind, words in KIND_WORDS.items()), ""]
    for section in page.sections:
        out += _section(section)
    return "\n".join(out).rstrip("\n") + "\n"
