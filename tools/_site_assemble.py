"""build/site-src/ is made of committed files alone: notebooks, results, docs, apps, pages.

Nothing is executed but the apps' own data builders, and nothing here needs torch or a network.
"""

import importlib.util
import json
from html import escape
from pathlib import Path

import _site_apps
import _site_pages
import nbformat
from _lesson import Lesson, lessons
from _site_chapter import chapter
from _site_claims import shelf as read_claims
from _site_figures import picture
from _site_links import rewrite
from _site_tree import SiteError, Tree

GRAPH = "figures/course/09_attribution_graph.html"
FRONT = "figures/course/00_evidence_ladder.png"
GRAPH_PICTURE = "figures/course/09_graph_of_sally.png"
MATHJAX = (  # startup.js loads the others
    "startup.js",
    "core.js",
    "input/tex.js",
    "output/chtml.js",
    "output/chtml/fonts/tex.js",
    "a11y/assistive-mml.js",
)
# Where a page of docs/ stands at the side. One that is not named here goes below "More".
DOCS = {
    "Look up": ("convention-card", "shapes", "will-my-numbers-match"),
    "Teach": ("teachers-guide", "teaching/", "hosted"),
    "About": ("how-to-cite",),
}


def assemble(root: Path, site: Path, folder: Path) -> Tree:
    """Write the folder that Sphinx reads. root: the repository; site: its folder site/."""
    tree = Tree(root, folder)
    course = lessons(root / "scripts")
    if not course:
        raise SiteError(f"there is no lesson in {root / 'scripts'}")
    claims = read_claims(course, root)
    apps = _site_apps.add(site / "apps", tree)
    live = _live(site / "apps" / "explorer" / "links.json")
    for lesson in course:
        claims.page = lesson.name
        made = chapter(lesson, tree, claims, _bar(lesson, tree, apps, live))
        tree.write(f"{lesson.name}.ipynb", nbformat.writes(made) + "\n")
    documents = _docs(tree)
    parts = _site_pages.parts(course, claims) | {
        "sides": lambda: _sides(course, apps, documents),
        "front": lambda: _still(FRONT, "the home page", tree),
        "graph": lambda: _still(
            GRAPH_PICTURE, "the page of the graphs", tree, "_static/attribution/graph.html"
        ),
        "apps": lambda: "\n".join(f"- [{title}]({name}.md)" for name, title in apps.items()),
    }
    for path in sorted((site / "pages").glob("*.md")):
        text = _site_pages.fill(path.read_text(encoding="utf-8"), f"site/pages/{path.name}", parts)
        tree.write(path.name, text)
    _scripts(tree)
    graph = tree.source(GRAPH, "the page of the attribution graph")
    tree.write("_static/attribution/graph.html", graph.read_bytes())
    tree.finish()
    return tree


def _live(path: Path) -> dict[str, str]:
    """Chapter → the state in which the explorer shows what the chapter is about."""
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SiteError(f"site/apps/explorer/{path.name} is not JSON: {error}") from None


def _bar(lesson: Lesson, tree: Tree, apps: dict[str, str], live: dict[str, str]) -> str:
    links = [
        (tree.offer(f"notebooks/{lesson.name}.ipynb"), "Notebook", " download"),
        (tree.offer(f"scripts/{lesson.name}.py"), "Script", " download"),
        (f"claims.html#ch-{lesson.number}", "Claims of this chapter", ""),
    ]
    if lesson.exercises:
        links.insert(2, (f"exercises.html#ch-{lesson.number}", "Exercises", ""))
    if "explorer" in apps:
        state = live.get(lesson.number)
        to = f"explorer.html#{escape(state)}" if state else "explorer.html"
        links.append((to, "Try it live", ""))
    items = "".join(f'<a href="{to}"{extra}>{text}</a>' for to, text, extra in links)
    return f'<nav class="cb-bar" aria-label="This chapter">{items}</nav>\n'


def _docs(tree: Tree) -> list[str]:
    """Every page of docs/, and CONTRIBUTING; their names on the site."""
    found = []
    for path in [
        *sorted((tree.root / "docs").glob("*.md")),
        *sorted((tree.root / "docs").glob("*/*.md")),
    ]:
        name = path.relative_to(tree.root / "docs").as_posix()
        text = rewrite(path.read_text(encoding="utf-8"), f"docs/{name}", name, tree)
        tree.write(name, text)
        found.append(name.removesuffix(".md"))
    if not found:
        raise SiteError(f"there is no page in {tree.root / 'docs'}. Restore docs/ from git.")
    path = tree.source("CONTRIBUTING.md", "the page on contributing")
    text = rewrite(path.read_text(encoding="utf-8"), "CONTRIBUTING.md", "contributing.md", tree)
    tree.write("contributing.md", text)
    return found


def _sides(course: list[Lesson], apps: dict[str, str], documents: list[str]) -> str:
    """The lists of pages at the side, by what a reader wants to do."""
    placed: dict[str, list[str]] = {side: [] for side in (*DOCS, "More")}
    for name in documents:
        side = next((s for s, known in DOCS.items() if name.startswith(known)), "More")
        placed[side].append(name)
    for side, known in DOCS.items():
        placed[side].sort(
            key=lambda n, known=known: (next(i for i, k in enumerate(known) if n.startswith(k)), n)
        )
    sides = {
        "Chapters": [f"{_site_pages.short(x)} <{x.name}>" for x in course],
        "Play": [*apps, "attribution-graph"],
        "Look up": ["claims", "exercises", "comparison", *placed["Look up"]],
        "Teach": placed["Teach"],
        "About": [*placed["About"], "sources", "contributing"],
        "More": placed["More"],
    }
    return "\n\n".join(
        "\n".join(["```{toctree}", ":hidden:", f":caption: {side}", "", *pages, "```"])
        for side, pages in sides.items()
        if pages
    )


def _still(name: str, needed_for: str, tree: Tree, to: str = "") -> str:
    """A committed figure with its words; a link to the address `to`, if there is one."""
    png = tree.source(name, needed_for)
    alts = json.loads(tree.source("figures/course/alt.json", needed_for).read_text("utf-8"))
    address, width, height = picture(png.read_bytes(), png.stem, tree)
    image = (
        f'<img src="{address}" alt="{escape(alts[png.name])}" width="{width}" height="{height}">'
    )
    if to:
        image = f'<a href="{to}">{image}</a>'
    return _site_pages.raw(f'<figure class="cb-figure">{image}</figure>')


def _scripts(tree: Tree) -> None:
    """Plotly and MathJax from the installed packages, so that no page asks another machine."""
    plotly = _package("plotly", "plotly") / "package_data" / "plotly.min.js"
    tree.write("_static/plotly/plotly.min.js", plotly.read_bytes())
    mathjax = _package("sphinx-mathjax-offline", "sphinx-mathjax-offline") / "static" / "mathjax"
    fonts = sorted((mathjax / "output/chtml/fonts/woff-v2").glob("*.woff"))
    for path in [*(mathjax / part for part in MATHJAX), *fonts]:
        tree.write(f"_static/mathjax/{path.relative_to(mathjax).as_posix()}", path.read_bytes())


def _package(module: str, name: str) -> Path:
    found = importlib.util.find_spec(module)
    if not found or not found.origin:
        raise SiteError(f"the package {name} is not installed. Run: pip install -e '.[site]'")
    return Path(found.origin).parent
