"""The site is assembled from committed files, says what is missing, and its pages are looked at."""

import base64
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import _site_claims
import _site_links
import nbformat
import pytest
from _site_assemble import FRONT, GRAPH, GRAPH_PICTURE, assemble
from _site_check import Page
from _site_tree import SiteError, Tree
from PIL import Image

from circuitbook.claims import atleast, atmost, claim, show
from circuitbook.claims import bound as rounding

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "site"
SCRIPT = '''# %% [markdown]
# # 01 · A toy: with two heads
# Series: Part 1 · Reading: 5 minutes · CPU: 1 second
#
# Some words.

# %% [markdown] tags=["core"]
# ## 1 · Add · core, 6 minutes
# Numbers add. **Predict**: what is two and two?

# %% tags=["exercise", "core"]
# exercise: 01.add_up points=3 minutes=10 difficulty=2
def add_up(x):
    """The sum of `x`.

    x: a list.
    """
    # solution
    return sum(x)  # the secret


# %%
check("01.add_up", add_up)

# %% [markdown] tags=["written"]
# <!-- written: 01.why_add points=2 minutes=5 difficulty=1 -->
# Why does *adding* work?

# %% [markdown] tags=["solution"]
# Because of the law.

# %% [markdown]
# ## 2 · The measurement

# %%
r = measured("01_toy", compute, None)
show(r, "toy.large", "toy.small")
draw(r)
'''
CLAIMS = [
    claim("toy.large", "It is {value:.2f}, not < {bound}; see `2 x 3`, and many more words "
          "until the line is so long that it has to be wrapped for a notebook's output.",
          label="measurement", holds=atleast(0.754, 0.5)),
    claim("toy.small", "It is {value}.", label="conjecture", holds=atmost(3, 2)),
    claim("toy.quiet", "Nothing shows this.", label="identity", holds=rounding(0.0, 1e-6)),
]  # fmt: skip


def png(colour="red", size=(30, 20)):
    """The bytes of a small picture."""
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "PNG")
    return file.getvalue()


def write(path, text):
    """A file, with its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))


def notebook(printed):
    """The toy lesson as it would be committed, with outputs."""
    import jupytext

    made = jupytext.reads(SCRIPT, fmt={"extension": ".py", "format_name": "percent"})
    made.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    for i, cell in enumerate(made.cells):
        cell.id = f"01-{i:03d}"
    code = [cell for cell in made.cells if cell.cell_type == "code"]
    new = nbformat.v4.new_output
    code[1].outputs = [
        new("stream", name="stdout", text="✓ three\n01.add_up: all 1 checks passed\n")
    ]
    picture = new(
        "execute_result",
        {
            "image/png": base64.b64encode(png()).decode(),
            "application/vnd.plotly.v1+json": {"data": [{"y": [1, 2]}], "layout": {}},
            "text/plain": "Figure",
        },
        execution_count=1,
        metadata={"image/png": {"alt": 'Two heads score 1 and "2".'}},
    )
    code[2].outputs = [new("stream", name="stdout", text=printed), picture]
    return made


@pytest.fixture
def repository(project, capsys):
    """A small repository with all that a site needs."""

    class Result:
        claims = {c["id"]: c for c in CLAIMS}

    show(Result, "toy.large", "toy.small")
    made = notebook(capsys.readouterr().out)
    write(project / "scripts" / "01_toy.py", SCRIPT)
    write(project / "notebooks" / "01_toy.ipynb", nbformat.writes(made))
    envelope = dict.fromkeys(("config", "made_with", "kinds", "data"), {})
    envelope |= {"schema": 1, "chapter": "01_toy", "claims": CLAIMS}
    write(project / "results" / "course" / "01_toy.json", json.dumps(envelope))
    reference = ROOT / "results" / "reference" / "series.json"
    write(project / "results" / "reference" / "series.json", reference.read_bytes())
    write(project / "docs" / "shapes.md", "# Shapes\n\n[The toy](../notebooks/01_toy.ipynb)\n")
    write(project / "docs" / "teaching" / "plan.md", "# Plan\n\n[Shapes](../shapes.md)\n")
    write(project / "CONTRIBUTING.md", "# Contributing\n\n[Docs](docs/shapes.md)\n")
    write(project / GRAPH, "<!doctype html><html lang='en'><title>g</title></html>")
    write(project / FRONT, png("blue"))
    write(project / GRAPH_PICTURE, png("green"))
    alts = {Path(FRONT).name: "Six bars, of which two are short."}
    alts[Path(GRAPH_PICTURE).name] = "A graph of one prompt."
    write(project / "figures" / "course" / "alt.json", json.dumps(alts))
    pages = project / "site" / "pages"
    for page in (SITE / "pages").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        # The real pages speak of real chapters; here there is one.
        write(pages / page.name, re.sub(r"\((\d\d_\w+)\.ipynb\)", "(01_toy.ipynb)", text))
    for name in (
        "conf.py",
        "_static/circuitbook.css",
        "_static/circuitbook.js",
        "_static/icon.svg",
    ):
        write(project / "site" / name, (SITE / name).read_bytes())
    return project


def assembled(root):
    return assemble(root, root / "site", root / "build" / "site-src")


def read(root, name):
    return (root / "build" / "site-src" / name).read_text(encoding="utf-8")


def page_cells(root):
    return nbformat.read(root / "build" / "site-src" / "01_toy.ipynb", 4).cells


# ---- what is assembled --------------------------------------------------------------------------


def test_a_chapter_shows_claims_checks_and_a_figure(repository):
    assembled(repository)
    html = "".join(
        o.data["text/html"] for c in page_cells(repository) for o in c.get("outputs", [])
    )
    assert html.count("<li id=") == 2
    assert 'href="claims.html#toy.large">toy.large</a>' in html
    assert "It is 0.75, not &lt; 0.5; see <code>2 x 3</code>, and many" in html
    assert "cb-fails" in html
    # The cell above shows a stub: whose output this is must be said.
    said = "<summary>With the answer from the box above: 01.add_up: all 1 checks passed</summary>"
    assert said in html
    assert (
        'alt="Two heads score 1 and &quot;2&quot;." width="30" height="20" loading="lazy"' in html
    )
    address = re.search(r'src="(_static/figures/[^"]+\.webp)"', html)[1]
    with Image.open(repository / "build" / "site-src" / address) as image:
        assert image.convert("RGB").tobytes() == Image.open(io.BytesIO(png())).tobytes()
    plots = read(repository, "_static/plots/01_toy.js")
    name, spec = re.search(r'PLOTS\["([^"]+)"\] = (.*);', plots).groups()
    assert json.loads(spec)["data"] == [{"y": [1, 2]}] and f'hidden data-plot="{name}"' in html


def test_other_printed_text_stays_as_it_is(repository):
    path = repository / "notebooks" / "01_toy.ipynb"
    text = path.read_text().replace("[conjecture · FAILS]", "[conjecture · perhaps]")
    path.write_text(text)
    assembled(repository)
    outputs = [o for c in page_cells(repository) for o in c.get("outputs", [])]
    assert [o.output_type for o in outputs] == ["display_data", "stream", "display_data"]
    assert "[conjecture · perhaps]" in outputs[1].text


def test_answers_are_folded_and_predictions_stand_out(repository):
    assembled(repository)
    cells = page_cells(repository)
    code = "\n".join(c.source for c in cells if c.cell_type == "code")
    words = "\n".join(c.source for c in cells if c.cell_type == "markdown")
    assert "the secret" not in code and "def add_up(x):" in code
    assert "the secret" in words.partition("One right answer")[2]
    assert "Because of the law." in words.partition("{dropdown} A model answer")[2]
    assert "(ex-01-add_up)=" in words and "(ex-01-why_add)=" in words
    assert (
        "<!-- written" not in words
        and "In your own words\n:class: cb-exercise\n2 points · 5 minutes" in words
    )
    assert "## 1 · Add\n" in words and ">core</span> 6 minutes" in words
    assert "Numbers add.\n\n:::{container} cb-predict\n**Predict**: what" in words


def test_an_equation_stands_apart_from_the_words_below_it(repository):
    """MyST takes `$$a$$` directly above "for all $b$" for one equation with words in it."""
    path = repository / "notebooks" / "01_toy.ipynb"
    path.write_text(path.read_text().replace("Numbers add.", r"$$a$$\nfor $b$ and $c$."))
    assembled(repository)
    words = "\n".join(c.source for c in page_cells(repository) if c.cell_type == "markdown")
    assert "\n$$a$$\n\nfor $b$ and $c$." in words


def test_the_ledger_has_every_claim_and_its_place(repository):
    assembled(repository)
    text = read(repository, "claims.md")
    rows = re.findall(
        r'<tr role="row" id="([^"]+)" data-label="([^"]+)" data-holds="([^"]+)">', text
    )
    assert rows == [(c["id"], c["label"], _site_claims.STATES[c["holds"]]) for c in CLAIMS]
    assert "0.754, expected: at least 0.5" in text and "3, expected: at most 2" in text
    assert '<td role="cell">expected: an error of at most 1e-06</td>' in text
    assert '<a href="01_toy.html#claim-toy.large">01: 2 · The measurement</a>' in text
    assert '<a href="01_toy.html#c01-s02">01: 2 · The measurement</a>' in text  # toy.quiet


def test_code_and_written_exercises_are_counted_apart(repository):
    assembled(repository)
    home, tasks = read(repository, "index.md"), read(repository, "exercises.md")
    assert "| Exercises in code | Written exercises |" in home
    assert "| 5 minutes | 1 (3 points) | 1 (2 points) |" in home
    assert "1 exercises in code that check themselves, 1 written ones" in home
    assert tasks.count('<tr role="row"><th role="rowheader"') == 2
    assert '<td role="cell" data-label="What it asks"><p>In words: Why does' in tasks


def test_a_chapter_opens_the_explorer_in_its_own_state(repository):
    app = repository / "site" / "apps" / "explorer"
    write(app / "page.md", "# Explorer\n")
    assembled(repository)
    assert '<a href="explorer.html">Try it live</a>' in page_cells(repository)[0].source
    write(app / "links.json", json.dumps({"01": "model=a&head=1.7"}))
    assembled(repository)
    link = '<a href="explorer.html#model=a&amp;head=1.7">Try it live</a>'
    assert link in page_cells(repository)[0].source
    write(app / "links.json", "{")
    with pytest.raises(SiteError, match=r"site/apps/explorer/links.json is not JSON"):
        assembled(repository)


def test_the_graphs_are_a_picture_and_a_link(repository):
    assembled(repository)
    text = read(repository, "attribution-graph.md")
    assert "<iframe" not in text, "a frame would scroll inside the page"
    assert text.count('href="_static/attribution/graph.html"') == 2
    assert 'alt="A graph of one prompt."' in text


def test_links_lead_to_pages(repository):
    assembled(repository)
    assert "[The toy](01_toy.ipynb)" in read(repository, "shapes.md")
    assert "[Shapes](../shapes.md)" in read(repository, "teaching/plan.md")
    assert "[Docs](shapes.md)" in read(repository, "contributing.md")
    home = read(repository, "index.md")
    for page in ("01 · A toy <01_toy>", "shapes", "teaching/plan", "claims", "contributing"):
        assert f"\n{page}\n" in home


def test_code_keeps_its_brackets():
    text = "`[a](b.md)`\n```\n[a](b.md)\n```\n[x](http://example.org/a) [y](#here)\n"
    assert _site_links.rewrite(text, "docs/a.md", "a.md", Tree(ROOT, ROOT)) == text


def test_an_app_brings_its_page_files_and_data(repository):
    app = repository / "site" / "apps" / "views-toy"
    write(app / "page.md", "# A view\n")
    write(app / "static" / "view.js", "1;")
    write(app / "build.py", "def build(out):\n    (out / 'data.js').write_text('2;')\n")
    assembled(repository)
    assert read(repository, "_static/views-toy/view.js") == "1;"
    assert read(repository, "_static/views-toy/data.js") == "2;"
    assert "[A view](views-toy.md)" in read(repository, "index.md")
    write(app / "build.py", "x = 1\n")
    with pytest.raises(SiteError, match=r"views-toy/build.py needs a function build\(out\)"):
        assembled(repository)


def test_a_second_time_writes_nothing_and_forgets_what_is_gone(repository):
    folder = assembled(repository).folder
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}
    assembled(repository)
    assert before == {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}
    (repository / "docs" / "teaching" / "plan.md").unlink()
    assembled(repository)
    gone = set(before) - {p for p in folder.rglob("*") if p.is_file()}
    assert gone == {folder / "teaching" / "plan.md"}


# ---- what is missing ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("notebooks/01_toy.ipynb", "notebooks/01_toy.ipynb is missing"),
        ("results/course/01_toy.json", "results/course/01_toy.json is missing"),
        (GRAPH, f"{GRAPH} is missing; the page of the attribution graph needs it"),
        (FRONT, f"{FRONT} is missing; the home page needs it"),
        (GRAPH_PICTURE, f"{GRAPH_PICTURE} is missing; the page of the graphs needs it"),
        ("docs/shapes.md", "docs/teaching/plan.md links to ../shapes.md, and there is no such"),
        ("CONTRIBUTING.md", "CONTRIBUTING.md is missing"),
        ("scripts/01_toy.py", "there is no lesson"),
        ("results/reference/series.json", "the comparison with the series cannot be made"),
    ],
)
def test_a_missing_file_is_named(repository, name, said):
    (repository / name).unlink()
    with pytest.raises(SiteError, match=re.escape(said)):
        assembled(repository)


def test_no_docs_at_all(repository):
    for page in (repository / "docs").rglob("*.md"):
        page.unlink()
    with pytest.raises(SiteError, match="there is no page in"):
        assembled(repository)


def test_a_figure_without_words_and_an_error_in_a_notebook(repository):
    path = repository / "notebooks" / "01_toy.ipynb"
    made = nbformat.read(path, 4)
    made.cells[-1].outputs[1].metadata = {}
    nbformat.write(made, path)
    with pytest.raises(SiteError, match=r"the figure of cell 01-\d+ has no alt text"):
        assembled(repository)
    made.cells[-1].outputs = [nbformat.v4.new_output("error", ename="E", evalue="", traceback=[])]
    nbformat.write(made, path)
    with pytest.raises(SiteError, match=r"cell 01-\d+ of the notebook holds an error"):
        assembled(repository)


def test_an_unknown_mark_is_named(repository):
    write(repository / "site" / "pages" / "more.md", "# More\n\n<!-- site:everything -->\n")
    with pytest.raises(SiteError, match="more.md has the mark site:everything; known: chapters"):
        assembled(repository)


def test_the_command_says_it_in_one_line(repository):
    (repository / GRAPH).unlink()
    command = [sys.executable, str(ROOT / "tools" / "site.py")]
    got = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert got.returncode == 1
    assert got.stderr.strip().splitlines() == [
        f"{GRAPH} is missing; the page of the attribution graph needs it. Restore it from git."
    ]


# ---- what comes out -----------------------------------------------------------------------------


def test_a_whole_site_without_torch(repository):
    """Sphinx renders the toy; every page passes; torch is never imported."""
    code = (
        "import runpy, sys\n"
        "sys.argv, status = ['site.py'], 0\n"
        "sys.path.insert(0, TOOLS)\n"
        "try: runpy.run_path(TOOLS + '/site.py', run_name='__main__')\n"
        "except SystemExit as stop: status = stop.code\n"
        "assert 'torch' not in sys.modules, 'the site needs no torch'\n"
        "sys.exit(status)"
    ).replace("TOOLS", repr(str(ROOT / "tools")))
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert got.returncode == 0, got.stdout + got.stderr
    built = repository / "build" / "site"
    assert (built / "teaching" / "plan.html").is_file()
    chapter = Page(built / "01_toy.html")
    assert {"c01-s01", "ex-01-add-up", "ex-01-why-add", "claim-toy.large"} <= set(chapter.ids)
    assert (built / "notebooks" / "01_toy.ipynb").is_file()
    loaded = " ".join(chapter.loads)
    assert "circuitbook.js" in loaded and "plotly" not in loaded
