"""A chapter's page is its committed notebook with the outputs shown as a web page shows them.

Nothing is run. Pictures come with words and a size, claims as a list with links to the ledger,
answers of exercises folded away, long code folded too. myst-nb renders what is left.
"""

import re
from html import escape

import nbformat
from _lesson import Exercise, Lesson
from _site_claims import Shelf, anchor, claims_list
from _site_figures import shown, write_plots
from _site_links import rewrite
from _site_tree import SiteError, Tree
from _strip import clear, mark

LONG = 35  # lines of code that a reader would have to scroll past
_HEADING = re.compile(
    r"^(?P<marks>#{2,4}) (?P<words>.+?)(?: · | \()"
    r"(?P<tag>core|extension), (?P<time>\d+ minutes?)\)?$"
)
_WRITTEN = re.compile(
    r"<!-- written: (?P<name>\S+) points=(?P<points>\d+) minutes=(?P<minutes>\d+) "
    r"difficulty=(?P<hard>\d) -->\s*"
)


def chapter(lesson: Lesson, tree: Tree, shelf: Shelf, bar: str) -> nbformat.NotebookNode:
    """The notebook that Sphinx reads. `bar` is a line of links that goes below the title."""
    name = f"notebooks/{lesson.name}.ipynb"
    notebook = nbformat.read(tree.source(name, f"the page of chapter {lesson.number}"), 4)
    plots: dict[str, dict] = {}
    cells, section = [], 0
    for cell in notebook.cells:
        tags = set(cell.metadata.get("tags", ()))
        if cell.cell_type == "markdown":
            text = rewrite(cell.source, name, f"{lesson.name}.ipynb", tree)
            text, section = _headings(text, lesson.number, section, shelf)
            text = _predictions(_equations(text))
            if not cells:
                text = _with_bar(text, bar)
            if "written" in tags:
                text = _question(text)
            elif "solution" in tags:
                text = f"::::{{dropdown}} A model answer\n{text}\n::::"
            cells.append(nbformat.v4.new_markdown_cell(text, id=cell.id))
            continue
        if "measured(" in cell.source:
            shelf.measured.setdefault(lesson.name, (section, shelf.section))
        cells += _code(cell, lesson, tree, shelf, plots)
    write_plots(lesson.name, plots, tree)
    metadata = {
        "kernelspec": notebook.metadata["kernelspec"],
        "language_info": {"name": "python", "pygments_lexer": "python"},
    }
    return nbformat.v4.new_notebook(cells=cells, metadata=metadata)


# ---- words --------------------------------------------------------------------------------------


def _headings(text: str, number: str, section: int, shelf: Shelf) -> tuple[str, int]:
    lines = []
    for line in _outside_fences(text):
        if not re.match(r"#{2,4} ", line):
            lines.append(line)
            continue
        section += 1
        lines.append(f"({anchor(number, section)})=")
        found = _HEADING.match(line)
        lines.append(f"{found['marks']} {found['words']}" if found else line)
        shelf.section = lines[-1].lstrip("# ")
        if found:
            tag = f'<span class="cb-tag cb-{found["tag"]}">{found["tag"]}</span>'
            lines += ["", f'<p class="cb-meta">{tag} {found["time"]}</p>', ""]
    return "\n".join(lines), section


def _outside_fences(text: str) -> list[str]:
    if "```" in text:
        raise SiteError("a lesson's prose has a code fence; tools/_site_chapter.py expects none")
    return text.split("\n")


def _equations(text: str) -> str:
    """A displayed equation stands apart: directly above other words, MyST would mix the two up."""
    return re.sub(r"^\$\$(?=.*\$\$$).*$", r"\n\g<0>\n", text, flags=re.MULTILINE)


def _predictions(text: str) -> str:
    """Each request to predict stands in a box of its own; what comes before it stays outside."""
    lines = []
    for line in text.split("\n"):
        before, mark, after = line.partition("**Predict")
        if mark and not re.match(r"\s*([-*>|]|\d+\.) ", line):
            lines += [before.rstrip(), "", ":::{container} cb-predict", mark + after, ":::", ""]
        else:
            lines.append(line)
    return "\n".join(lines)


def _with_bar(text: str, bar: str) -> str:
    title, facts, rest = text.split("\n", 2)
    return f"{title}\n\n{facts}\n\n{bar}\n{rest}"


def _question(text: str) -> str:
    found = _WRITTEN.match(text)
    if not found:
        raise SiteError(f"a written question has no line '<!-- written: … -->': {text[:60]!r}")
    facts = _facts(int(found["points"]), found["minutes"], found["hard"])
    return (
        f"({_ref(found['name'])})=\n::::{{admonition}} In your own words\n:class: cb-exercise\n"
        f"{facts}.\n\n{text[found.end() :]}\n::::"
    )


def _facts(points: int, minutes: object, hard: object) -> str:
    return f"{points} point{'s' * (points != 1)} · {minutes} minutes · difficulty {hard} of 5"


def _ref(exercise: str) -> str:
    return "ex-" + exercise.replace(".", "-")


# ---- code and its outputs -----------------------------------------------------------------------


def _code(
    cell: nbformat.NotebookNode, lesson: Lesson, tree: Tree, shelf: Shelf, plots: dict[str, dict]
) -> list[nbformat.NotebookNode]:
    tags = cell.metadata.get("tags", ())
    mine = [e for e in lesson.exercises if f"# exercise: {e.name} " in cell.source]
    if "exercise" in tags and mine:
        return _exercise(cell, mine[0])
    outputs = [_output(o, cell.id, i, tree, shelf, plots) for i, o in enumerate(cell.outputs)]
    long = len(cell.source.split("\n")) > LONG or _only_imports(cell.source)
    hidden = ["hide-cell"] if "solution" in tags else ["hide-input"] if long else []
    code = nbformat.v4.new_code_cell(cell.source, id=cell.id, outputs=outputs)
    code.metadata["tags"] = hidden
    return [code]


def _only_imports(source: str) -> bool:
    lines = [line for line in source.split("\n") if line.strip()]
    return all(re.match(r"(from|import|#|\s|\))", line) for line in lines)


def _exercise(cell: nbformat.NotebookNode, exercise: Exercise) -> list[nbformat.NotebookNode]:
    facts = _facts(exercise.points, exercise.minutes, exercise.difficulty)
    head = (
        f"({_ref(exercise.name)})=\n:::{{admonition}} Exercise `{exercise.name}`\n"
        f":class: cb-exercise\n{facts}. Write the function in your own copy of the notebook. "
        "The next cell checks it.\n:::"
    )
    asked = clear(mark(cell.source), "...  # your answer")
    answer = (
        f":::::{{dropdown}} One right answer\n````python\n{cell.source}\n````\n"
        "Other answers pass too. The checks test what is true, not how it is written.\n:::::"
    )
    markdown, code = nbformat.v4.new_markdown_cell, nbformat.v4.new_code_cell
    return [
        markdown(head, id=f"{cell.id}a"),
        code(asked, id=cell.id),
        markdown(answer, id=f"{cell.id}b"),
    ]


def _output(
    output: nbformat.NotebookNode, cell: str, number: int, tree: Tree, shelf: Shelf, plots: dict
) -> nbformat.NotebookNode:  # fmt: skip
    if output.output_type == "error":
        raise SiteError(f"cell {cell} of the notebook holds an error. Run `make lessons`.")
    html = None
    if output.output_type == "stream":
        html = claims_list(output.text, shelf) or _checks(output.text)
    elif "image/png" in output.data:
        html = shown(output, cell, number, tree, plots)
    if html is None:
        return output
    return nbformat.v4.new_output("display_data", data={"text/html": html})


def _checks(text: str) -> str | None:
    """The list of passed checks, folded: a reader wants to know that there are some."""
    *lines, last = text.strip().split("\n")
    if not lines or not all(line.startswith("✓") for line in lines):
        return None
    items = "".join(f"<li>{escape(line.removeprefix('✓ '))}</li>" for line in lines)
    return (
        f'<details class="cb-checks"><summary>With the answer from the box above: {escape(last)}'
        f"</summary><ul>{items}</ul></details>"
    )
