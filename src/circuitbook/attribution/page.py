"""The graphs as one page: no outside address, no library, works from a file and without a mouse.

    python -m circuitbook.attribution.page [--check]

writes `09_attribution_graph.html` among the figures from the saved results of chapter 09, the same
bytes for the same numbers. --check writes nothing and fails when the page is not what they say.
The pictures are plain SVG and stand in the page; a short script only marks the edges of the chosen
node and lists them. Without the script the same numbers stand in the lists below each picture. The
page holds the graphs as JSON, as they are in the results.
"""

from __future__ import annotations

import argparse
import html
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from circuitbook import plots, results
from circuitbook.attribution.layout import Layout, place, widest
from circuitbook.attribution.page_parts import SCRIPT, STYLE
from circuitbook.gallery.__main__ import folder_for

CHAPTER = "09_sparse_autoencoders"
ROLE = "gelu-2l"  # as in `study`, which needs torch
CELL = 40  # pixels
LEAST = 880  # pixels that a wide picture keeps on a small screen: there it is moved sideways
THICK = {"logit": 4.4, "latent": 2.8}  # pixels of the widest edge into such a node


def page_path(result: Path | None = None) -> Path:
    """Where the page belongs that is made of the file `result`: among its figures."""
    return folder_for(result, CHAPTER) / "09_attribution_graph.html"


def shown(token: str) -> str:
    """A token for reading: its blanks made visible."""
    return "BOS" if token == "<|bos|>" else plots.token(token)


def name_of(graph: Mapping[str, Any], i: int) -> str:
    """A node in words: "latent 1.28 at ␣thy"."""
    nodes = graph["nodes"]
    kind, l, p = nodes["kind"][i], nodes["layer"][i], nodes["pos"][i]
    at = f"{shown(graph['tokens'][p])} ({p})"
    return {
        "token": f"token {at}",
        "latent": f"latent {l}.{nodes['index'][i]} at {at}",
        "error": f"error of layer {l} at {at}",
        "biases": "biases",
        "logit": f"logit of {shown(graph['answer'])}",
    }[kind]


def about(graph: Mapping[str, Any], latents: Mapping[str, Any], i: int) -> str:
    """What else there is to say about a node, in one sentence or none."""
    nodes = graph["nodes"]
    kind, value = nodes["kind"][i], nodes["value"][i]
    if kind == "latent":
        x = latents[f"{nodes['layer'][i]}.{nodes['index'][i]}"]
        where = "; ".join(f"“{w}”" for w in x["where"]) or "nowhere in the sample"
        return (
            f"Activation {value:.3f}. Reads {_words(x['reads'])}; writes {_words(x['writes'])}; "
            f"on at {x['fires']:.2%} of held-out tokens, most at {where}."
        )
    if kind == "error":
        return f"Norm {value:.3f}: what the MLP wrote and the transcoder did not say."
    if kind == "logit":
        return f"{value:.3f} above the mean logit; probability {graph['p']:.3f}."
    return ""


def _words(tokens: list[str]) -> str:
    return ", ".join(map(shown, tokens))


def _escape(text: str) -> str:
    return html.escape(text.replace("\n", "⏎"), quote=True)


# ---------------------------------------------------------------- the picture


def _shape(kind: str, x: float, y: float) -> str:
    r = 8
    if kind == "latent":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}"/>'
    if kind == "error":
        corners = [(x, y - r), (x + r, y), (x, y + r), (x - r, y)]
    elif kind == "logit":
        corners = [(x, y - r), (x + r, y + r), (x - r, y + r)]
    else:
        corners = [(x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)]
    return '<polygon points="' + " ".join(f"{a:.1f},{b:.1f}" for a, b in corners) + '"/>'


def _spot(at: Layout, i: int) -> tuple[float, float]:
    return at.x[i] * CELL + 20, _level(at, at.y[i])


def _level(at: Layout, y: float) -> float:
    return round((at.height - y) * CELL + 10, 1)


KEY = (
    ("token", "token"),
    ("latent", "latent of a transcoder (its number below)"),
    ("error", "error: what the transcoder did not say"),
    ("biases", "biases"),
    ("logit", "logit of the answer"),
)


def _key() -> str:
    items = "".join(
        f'<li><svg viewBox="0 0 24 20" aria-hidden="true"><g class="{kind}">'
        f"{_shape(kind, 12.0, 10.0)}</g></svg> {words}</li>"
        for kind, words in KEY
    )
    return f'<ul class="key" aria-label="Shapes">{items}</ul>'


def _svg(key: str, graph: Mapping[str, Any], latents: Mapping[str, Any]) -> str:
    at, nodes, edges = place(graph), graph["nodes"], graph["edges"]
    width, height = at.width * CELL + 40, at.height * CELL + 110
    top = widest(graph)
    lines = [
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="group" '
        f'aria-label="Attribution graph for {_escape(shown(graph["answer"]))}" '
        f'style="min-width:{min(width, LEAST):.0f}px;max-width:{width:.0f}px">'
    ]
    for low, high, words in at.bands:
        y = (at.height - high - 0.4) * CELL + 10
        tall = (high - low + 0.8) * CELL
        lines.append(
            f'<rect class="band" x="0" y="{y:.1f}" width="{width:.0f}" height="{tall:.1f}"/>'
        )
        lines.append(f'<text class="small" x="4" y="{y + 14:.1f}">{words}</text>')
    low, high = (_level(at, y) for y in (0.6, at.height - 1.4))
    for border in at.borders[1:-1]:
        x = border * CELL + 20
        lines.append(f'<line class="border" x1="{x:.1f}" x2="{x:.1f}" y1="{low}" y2="{high}"/>')
    for e, (s, t, w) in enumerate(zip(*(edges[k] for k in ("source", "target", "weight")))):
        (x1, y1), (x2, y2) = _spot(at, s), _spot(at, t)
        kind = nodes["kind"][t]
        size = (abs(w) / top[kind]) ** 0.5
        wide = 0.4 + (THICK[kind] - 0.4) * size
        lines.append(
            f'<line class="edge {"up" if w > 0 else "down"}" data-e="{e}" x1="{x1:.1f}" '
            f'y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke-width="{wide:.2f}" '
            f'stroke-opacity="{0.2 + 0.6 * size:.2f}"/>'
        )
    for i, kind in enumerate(nodes["kind"]):
        x, y = _spot(at, i)
        words = _escape(f"{name_of(graph, i)}. {about(graph, latents, i)}".strip())
        text = {"latent": str(nodes["index"][i]), "biases": "biases"}.get(kind, "")
        below = f'<text class="small" x="{x:.1f}" y="{y + 19:.1f}">{text}</text>' if text else ""
        if kind == "token":
            word = _escape(shown(graph["tokens"][nodes["pos"][i]]))
            below = (f'<text x="{x:.1f}" y="{y + 20:.1f}" class="token" '
                     f'transform="rotate(50 {x:.1f} {y + 20:.1f})">{word}</text>')  # fmt: skip
        if kind == "logit":
            word = _escape(shown(graph["answer"]))
            below = f'<text x="{x + 14:.1f}" y="{y + 5:.1f}" class="token">{word}</text>'
        lines.append(
            f'<g class="node {kind}" data-i="{i}" id="{key}-{i}" tabindex="0" role="button" '
            f'aria-pressed="false" aria-label="{words}"><title>{words}</title>'
            f"{_shape(kind, x, y)}{below}</g>"
        )
    return "\n".join([*lines, "</svg>"])


# ---------------------------------------------------------------- the same in words


def _lists(graph: Mapping[str, Any], latents: Mapping[str, Any]) -> str:
    nodes, edges = graph["nodes"], graph["edges"]
    rows = []
    for t, kind in enumerate(nodes["kind"]):
        into = [e for e, target in enumerate(edges["target"]) if target == t]
        if kind not in ("latent", "logit"):
            continue
        into.sort(key=lambda e: -abs(edges["weight"][e]))
        items = "".join(
            f"<li>{edges['weight'][e]:+.4f} from {_escape(name_of(graph, edges['source'][e]))}</li>"
            for e in into
        )
        rows.append(
            f"<li>{_escape(name_of(graph, t))}. {_escape(about(graph, latents, t))} Kept edges "
            f"{nodes['into'][t]:+.4f}, dropped {nodes['dropped'][t]:+.4f}.<ul>{items}</ul></li>"
        )
    return "<ul>" + "".join(reversed(rows)) + "</ul>"


def _section(key: str, graph: Mapping[str, Any], latents: Mapping[str, Any]) -> str:
    whole, leaves = graph["whole"], graph["leaves"]
    text = "".join(shown(t) if t == "<|bos|>" else t for t in graph["tokens"][1:])
    wrong = sum(v for k, v in leaves.items() if k.startswith("errors"))
    return f"""<section id="graph-{key}" aria-labelledby="title-{key}">
<h2 id="title-{key}">“{_escape(text)}” → {_escape(shown(graph["answer"]))}</h2>
<p>Probability {graph["p"]:.3f} in {ROLE}, rank {graph["rank"]}.</p>
<div class="picture" tabindex="0" role="region" aria-label="Picture, can be moved sideways">
{_svg(key, graph, latents)}</div>
<div class="panel" aria-live="polite"><p>Choose a node to see its edges.</p></div>
<p>The whole graph has {whole["nodes"]:,} nodes
and {whole["edges"]:,} edges; {len(graph["edges"]["weight"])} edges are shown. Of the influence of
latents and errors {whole["node_share"]:.0%} is kept. Edges into the logit: kept ones sum to
{whole["into_logit"][0]:.2f}, dropped ones to {whole["into_logit"][1]:.2f}. All influence ends at
tokens ({leaves["tokens"]:.0%}), biases ({leaves["biases"]:.0%}) or errors ({wrong:.0%}).</p>
<p>The widest edge into the logit is {widest(graph)["logit"]:.2f}, the widest into a latent
{widest(graph)["latent"]:.2f}: widths have a scale for each, and go with the square root.</p>
<details><summary>The same graph in words: every latent and the logit with their edges</summary>
{_lists(graph, latents)}</details>
</section>"""


def render(data: Mapping[str, Any]) -> str:
    """The page for data["graph"] of chapter 09."""
    part = data["graph"]
    prompts, latents = part["prompts"], part["latents"]
    kept = {"prompts": prompts, "latents": latents}
    text = json.dumps(kept, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    names = {key: [name_of(g, i) for i in range(len(g["nodes"]["kind"]))]
             for key, g in prompts.items()}  # fmt: skip
    told = {key: [about(g, latents, i) for i in range(len(g["nodes"]["kind"]))]
            for key, g in prompts.items()}  # fmt: skip
    words = json.dumps({"names": names, "about": told}, ensure_ascii=False, separators=(",", ":"))
    menu = "".join(
        f'<li><a href="#graph-{key}">{_escape(shown(g["answer"]))}</a></li>'
        for key, g in prompts.items()
    )
    sections = "\n".join(_section(key, g, latents) for key, g in prompts.items())
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Attribution graphs of {ROLE}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>Attribution graphs of {ROLE}</h1>
<details id="reading" open><summary>How to read a picture</summary>
<p>The model is {ROLE}: two layers, each with heads and an MLP. Other models give the same
prompts other probabilities: to compare with the live explorer, choose {ROLE} there. BOS is the
start token that opens every prompt.</p>
<p>Each picture takes one prompt apart: tokens at the bottom, latents of two transcoders and their
errors in the middle, the answer's logit on top. Attention patterns and the set of latents that are
on are held. All edges into a node sum to its value; a few of them are shown, and each node says
what the others sum to. Blue lines help, dashed orange lines work against. A graph like this shows
what was read. It cannot show why a head looked where it looked.</p>
<p>Choose a node with the mouse, or with Tab and Enter. Left and right arrows go to the next node,
Escape lets go.</p>
{_key()}
</details>
<nav aria-label="Prompts"><ul class="menu">{menu}</ul></nav>
{sections}
<script type="application/json" id="graphs">{_inert(text)}</script>
<script type="application/json" id="words">{_inert(words)}</script>
<script>{SCRIPT}</script>
</body>
</html>
"""


def _inert(text: str) -> str:
    """JSON that cannot end the script element it stands in."""
    return text.replace("<", "\\u003c")


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m circuitbook.attribution.page")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args(argv)
    try:
        r = results.load(CHAPTER)
    except FileNotFoundError as error:
        print(error)
        return 0
    path, text = page_path(r.source), render(r)
    same = path.is_file() and path.read_text(encoding="utf-8") == text
    if args.check and not same:
        print(f"{path.name} is not what the results say: run `make figures`", file=sys.stderr)
        return 1
    if not same:
        results.write(path, text)
    print(f"{path.name}: {'up to date' if same else 'written'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
