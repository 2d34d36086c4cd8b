"""The page and the layout: no address, no torch, the numbers of the results, no shared place."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from attribution_toys import prompt, small

from circuitbook import paths
from circuitbook.attribution import graph as graphs
from circuitbook.attribution import layout, page, prune
from circuitbook.attribution.page_parts import SCRIPT, STYLE

VOID = {"meta", "link", "br", "img", "input"}


class Reader(HTMLParser):
    """All elements with their attributes, all text, and whether every tag is closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.found, self.text, self.trouble = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.trouble.append(tag)

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def data():
    """A saved graph of a random model, with hostile token texts."""
    model, transcoders = small()
    frozen = graphs.freeze(model, transcoders, prompt())
    g = graphs.build(model, transcoders, frozen, 7)
    p = prune.prune(g, 16, 60)
    keep = p.keep.nonzero()[:, 0].tolist()
    nodes = [g.nodes[i] for i in keep]
    target, source = p.edges.nonzero().T.tolist()
    words = ["<|bos|>", " <b>", "&amp;", '"', "</script>", "\n", " a", "b", "'", "é", " x", "y"]
    saved = {
        "tokens": words,
        "answer": "</script>",
        "p": 0.25,
        "rank": 1,
        "logit": g.value[-1].item(),
        "nodes": {
            "kind": [n.kind for n in nodes],
            "layer": [n.layer for n in nodes],
            "pos": [n.pos for n in nodes],
            "index": [n.index for n in nodes],
            "value": g.value[keep].tolist(),
            "influence": p.influence[keep].tolist(),
            "into": (g.edges * p.edges).sum(1)[keep].tolist(),
            "dropped": p.dropped[keep].tolist(),
        },
        "edges": {
            "source": [keep.index(s) for s in source],
            "target": [keep.index(t) for t in target],
            "weight": g.edges[target, source].tolist(),
        },
        "whole": {"nodes": 9, "edges": 99, "latents": [5, 5], "node_share": 0.5, "edge_share": 0.5,
                  "into_logit": [1.0, 2.0]},
        "leaves": {"tokens": 0.5, "biases": 0.2, "errors 0": 0.2, "errors 1": 0.1},
    }  # fmt: skip
    latents = {
        f"{n.layer}.{n.index}": {"reads": ["<i>"], "writes": ['"', "&"], "fires": 0.01,
                                 "where": ["</script><script>alert(1)"]}
        for n in nodes if n.kind == "latent"
    }  # fmt: skip
    return {"graph": {"prompts": {"toy": saved, "again": saved}, "latents": latents}}


@pytest.fixture(scope="module")
def text(data):
    return page.render(data)


def test_the_page_is_whole_and_has_no_outside_address(text, data):
    reader = Reader()
    reader.feed(text)
    assert not reader.open and not reader.trouble
    for tag, attributes in reader.found:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "image", "use")
        for name, value in attributes.items():
            assert name not in ("src", "srcset", "action", "xlink:href") and not name.startswith(
                "on"
            )
            if name == "href":
                assert value.startswith("#")
    assert "http" not in text and "@import" not in STYLE and "url(" not in STYLE
    assert not re.search(r"fetch|XMLHttp|import\s*\(|eval|innerHTML|localStorage|cookie", SCRIPT)
    assert sum(tag == "script" for tag, _ in reader.found) == 3  # what tokens say is not a tag
    assert page.render(data) == text


def test_the_page_holds_the_numbers_of_the_results(text, data):
    kept = re.search(r'<script type="application/json" id="graphs">(.*?)</script>', text, re.S)
    part = data["graph"]
    assert json.loads(kept[1]) == {"prompts": part["prompts"], "latents": part["latents"]}
    words = re.search(r'<script type="application/json" id="words">(.*?)</script>', text, re.S)
    words = json.loads(words[1])
    g = part["prompts"]["toy"]
    assert len(words["names"]["toy"]) == len(g["nodes"]["kind"]) == len(words["about"]["toy"])


def test_every_node_can_be_reached_and_is_told(text, data):
    g = data["graph"]["prompts"]["toy"]
    reader = Reader()
    reader.feed(text)
    nodes = [a for _, a in reader.found if (a.get("class") or "").startswith("node ")]
    edges = [a for _, a in reader.found if (a.get("class") or "").startswith("edge ")]
    assert len(nodes) == 2 * len(g["nodes"]["kind"]) and len(edges) == 2 * len(g["edges"]["weight"])
    for a in nodes:
        assert a["tabindex"] == "0" and a["role"] == "button" and len(a["aria-label"]) > 5
    ids = [a["id"] for _, a in reader.found if a.get("id")]
    assert len(set(ids)) == len(ids)
    plain = " ".join(reader.text)
    for w in g["edges"]["weight"]:  # the list in words holds every edge
        assert f"{w:+.4f} from" in plain
    shapes = [a.get("class") for tag, a in reader.found if tag == "g" and a.get("class") in
              ("token", "latent", "error", "biases", "logit")]  # fmt: skip
    assert sorted(shapes) == sorted(k for k, _ in page.KEY)  # the key shows every shape once
    pictures = [a for _, a in reader.found if a.get("class") == "picture"]
    assert len(pictures) == 2 and all(a["tabindex"] == "0" and a["aria-label"] for a in pictures)
    signs = [a["class"] for a in edges[: len(g["edges"]["weight"])]]
    assert signs == ["edge up" if w > 0 else "edge down" for w in g["edges"]["weight"]]


def test_the_page_names_its_model_and_follows_a_dark_theme(text):
    from circuitbook.attribution import study  # which needs torch, as the page does not

    assert page.ROLE == study.ROLE
    assert f"<h1>Attribution graphs of {study.ROLE}</h1>" in text
    assert text.count(f"in {study.ROLE}, rank") == 2
    light, dark = (
        dict(re.findall(r"(--[a-z]+): (#[0-9a-f]+)", part))
        for part in STYLE.split("@media (prefers-color-scheme: dark)")
    )
    assert set(light) == set(dark) and light["--page"] != dark["--page"]
    after = STYLE[STYLE.index("body {") :]
    assert not re.search(r"#[0-9a-f]{3}", after)  # every colour has its dark one
    assert set(re.findall(r"var\((--[a-z]+)\)", after)) == set(light)


def test_no_two_nodes_share_a_place(data):
    g = data["graph"]["prompts"]["toy"]
    at = layout.place(g)
    places = list(zip(at.x, at.y))
    assert len(set(places)) == len(places)
    gaps = [max(abs(a - c), abs(b - d)) for i, (a, b) in enumerate(places) for c, d in places[:i]]
    assert min(gaps) >= layout.COLUMN - 0.01  # room for a mark and its number
    assert all(0 <= x <= at.width and 0 <= y <= at.height for x, y in places)
    columns = at.columns
    assert columns == sorted(columns)
    for i, kind in enumerate(g["nodes"]["kind"]):
        if kind in ("latent", "error"):
            low, high, name = at.bands[g["nodes"]["layer"][i]]
            assert low < at.y[i] < high and name == f"layer {g['nodes']['layer'][i]}"
            q = g["nodes"]["pos"][i]
            assert at.borders[q] + 0.4 <= at.x[i] <= at.borders[q + 1] - 0.4
            others = [abs(x - at.x[i]) for p, x in enumerate(columns) if p != q]
            assert abs(columns[q] - at.x[i]) < min(others) - 0.3  # plainly its own token's
    for s, t in zip(g["edges"]["source"], g["edges"]["target"]):
        assert at.y[s] < at.y[t]  # edges go up


def test_a_full_cell_opens_another_column():
    kinds = ["token"] * 2 + ["biases"] + ["latent"] * 12 + ["logit"]
    n = len(kinds)
    g = {
        "tokens": ["<|bos|>", "a"],
        "nodes": {
            "kind": kinds,
            "layer": [-1] * 3 + [0] * 12 + [1],
            "pos": [0, 1, 0] + [1] * 12 + [1],
            "index": [-1] * 3 + list(range(12)) + [3],
            "influence": [0.0] * 3 + [1 - i / 20 for i in range(12)] + [0.0],
        },
    }
    at = layout.place(g)
    assert len(set(zip(at.x, at.y))) == n
    assert at.columns[1] - at.columns[0] > 1  # room for three columns
    assert at.y[3] == min(at.y[3:15])  # the strongest stands lowest
    assert max(at.y[3:15]) - min(at.y[3:15]) == pytest.approx(layout.ROWS - 2)


def test_writing_and_checking(project, data, capsys):
    from circuitbook import results

    envelope = {"schema": 1, "chapter": page.CHAPTER, "config": {}, "made_with": {}, "kinds": {},
                "data": data, "claims": []}  # fmt: skip
    assert page.main([]) == 0 and not page.page_path().exists()  # nothing measured yet
    results.write(results.built_path(page.CHAPTER), json.dumps(envelope))
    assert page.main(["--check"]) == 1
    assert page.main([]) == 0 and page.main(["--check"]) == 0
    before = page.page_path().read_bytes()
    assert page.main([]) == 0 and page.page_path().read_bytes() == before
    page.page_path().write_text("changed")
    assert page.main(["--check"]) == 1
    assert "make figures" in capsys.readouterr().err


def test_the_page_needs_no_torch():
    code = "import sys; sys.modules['torch'] = None; import circuitbook.attribution.page"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=paths.ROOT
    )
    assert done.returncode == 0, done.stderr
