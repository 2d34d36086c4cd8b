"""The files of the page: what is committed, what is checked, and what a reader can rely on."""

import hashlib
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
import series_toys as toys

from circuitbook import paths
from circuitbook.series import __main__ as command
from circuitbook.series import markdown, page, webpage
from circuitbook.series.reference import entries

GIVEN = "e0445e2b7f9bfac0"


@pytest.fixture
def filled(project):
    """A project of its own where everything is as published."""
    toys.fill(project)
    return project


@pytest.fixture
def committed(monkeypatch):
    """The repository's own results, whatever switches this run was started with."""
    for name in ("QUICK", "RECOMPUTE", "CIRCUITBOOK_ROOT"):
        monkeypatch.delenv(name, raising=False)


def test_the_committed_page_is_what_the_evidence_says(committed):
    built = page.build()
    for kind, text in (("md", markdown.text(built)), ("html", webpage.text(built))):
        path = toys.HERE / "results" / f"comparison.{kind}"
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `make compare`"


def test_all_rows_that_must_pass_do_on_the_committed_evidence(committed):
    assert page.build().problems == []


def test_the_reference_is_kept_as_it_was_taken_over():
    path = toys.HERE / "results" / "reference" / "series.json"
    assert hashlib.sha256(path.read_bytes()).hexdigest().startswith(GIVEN)


def test_check_writes_nothing_and_sees_an_edit(filled, capsys):
    assert toys.status(capsys, "--check")[0] == 1
    assert not (filled / "results" / "comparison.md").exists()
    assert toys.status(capsys)[0] == 0
    before = {p: p.read_bytes() for p in command.files().values()}
    assert toys.status(capsys, "--check")[0] == 0 and toys.status(capsys)[1].count("wrote") == 0
    assert {p: p.read_bytes() for p in command.files().values()} == before
    path = command.files()["html"]
    path.write_text(path.read_text(encoding="utf-8").replace("3.1623", "3.1624"), "utf-8")
    code, _, err = toys.status(capsys, "--check")
    assert code == 1 and "results/comparison.html" in err and "comparison.md" not in err


def test_own_measurements_never_reach_the_committed_page(filled, capsys, monkeypatch):
    assert toys.status(capsys)[0] == 0
    own = filled / "build"
    series = toys.values()["07"] | {"part7.gelu.at_1": 0.9}
    toys.write(filled / "aside", "course", "07", series)
    (own / "results").mkdir(parents=True)
    (filled / "aside" / "results" / "course").rename(own / "results" / "course")
    assert toys.status(capsys)[0] == 0, "evidence comes first"
    evidence = filled / "results" / "course" / "07_toy.json"
    kept = evidence.read_text(encoding="utf-8")
    evidence.unlink()
    assert "RECOMPUTE=1 make compare" in toys.status(capsys)[2]
    evidence.write_text(kept, encoding="utf-8")
    assert toys.status(capsys)[0] == 0
    monkeypatch.setenv("RECOMPUTE", "1")
    committed = (filled / "results" / "comparison.md").read_bytes()
    assert toys.status(capsys)[0] == 1
    assert (filled / "results" / "comparison.md").read_bytes() == committed
    assert "✗ DIFFERS" in (own / "comparison.md").read_text(encoding="utf-8")
    monkeypatch.setenv("RECOMPUTE", "0")
    monkeypatch.setenv("QUICK", "1")
    (own / "results").rename(own / "quick")
    assert toys.status(capsys)[0] == 0, "a rehearsal decides nothing"
    assert (own / "quick" / "comparison.html").is_file()


class Reader(HTMLParser):
    """What a strict reader of the page notices."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.ids, self.links = [], [], [], []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append((tag, attrs))
        self.ids += [attrs["id"]] if "id" in attrs else []
        self.links += [attrs["href"]] if "href" in attrs else []
        if tag not in {"meta", "col"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_web_page_stands_alone_and_can_be_heard(filled):
    text = webpage.text(page.build())
    reader = Reader()
    reader.feed(text)
    assert reader.open == [], "a tag was left open"
    count = [tag for tag, _ in reader.tags].count
    assert count("table") == count("caption") > 12 and count("h1") == 1
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in reader.tags}
    assert not re.search(r"https?:|//[a-z]|url\(|@import", text)
    assert all(attrs.get("scope") in {"col", "row"} for tag, attrs in reader.tags if tag == "th")
    assert ("html", {"lang": "en"}) in reader.tags and 'name="viewport"' in text
    assert len(set(reader.ids)) == len(reader.ids)
    assert {link.removeprefix("#") for link in reader.links} == set(reader.ids)
    cells = [a for tag, a in reader.tags if tag == "td" and a.get("role")]
    assert all(a["data-label"] for a in cells), "a card needs a label for each number"
    for e in entries():
        assert f"<code>{e.id}</code>" in text


def brightness(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return sum(w * x for w, x in zip((0.2126, 0.7152, 0.0722), linear))


def test_words_stand_out_from_their_ground():
    pairs = re.findall(r"background: (#\w{6}); color: (#\w{6})", webpage.STYLE)
    assert len(pairs) >= 5
    quiet = re.findall(r"(?<!-)\bcolor: (#\w{6})", webpage.STYLE)
    for ground, ink in pairs + [("#ffffff", ink) for ink in quiet]:
        light, dark = sorted((brightness(ground), brightness(ink)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (ground, ink)


def test_every_markdown_row_has_all_cells(filled):
    tokens = [["|", 0.5], ["<b>*_", 0.1]]  # a model may well think of these
    toys.change(filled, "part7.aunt_sally.attn-only-1l.top5", lambda v: [*tokens, *v[2:]])
    text = markdown.text(page.build())
    rows = [line for line in text.splitlines() if line.startswith("|")]
    widths = {len(re.findall(r"(?<!\\)\|", row)) - 1 for row in rows}
    assert "\\|\u00a00.5, \\<b\\>\\*\\_\u00a00.1" in text
    assert widths == {6, 9}  # the page's tables, and 8 × 8 numbers with their heads
    for e in entries():
        assert text.count(f"`{e.id}`") == 1, e.id


def test_the_page_needs_no_torch_and_is_the_same_twice(filled):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from circuitbook.series import markdown, page, webpage\n"
        "print(hash((markdown.text(page.build()), webpage.text(page.build()))))"
    )
    run = [sys.executable, "-c", code]
    env = {"CIRCUITBOOK_ROOT": str(filled), "PYTHONHASHSEED": "0", "PATH": ""}
    done = [subprocess.run(run, capture_output=True, text=True, env=env) for _ in range(2)]
    assert done[0].stderr == "" and done[0].stdout == done[1].stdout != ""


def test_the_menu_builds_it_without_a_network():
    command = ["make", "--no-print-directory", "-n", "compare"]
    said = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True).stdout
    assert "circuitbook.series" in said and "corpus" not in said and "setup" not in said
