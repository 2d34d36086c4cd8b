"""Style and script of the page of attribution graphs, as text."""

STYLE = """
:root { color-scheme: light; --ink: #111; --page: #fff; --line: #ddd; --band: #f3f3f3;
  --up: #0072b2; --down: #d55e00; --error: #e69f00; --logit: #009e73; --biases: #cc79a7;
  --token: #777; --chosen: #000; }
@media (prefers-color-scheme: dark) {
  :root { color-scheme: dark; --ink: #e8eaed; --page: #121212; --line: #454d57; --band: #1d232b;
    --up: #56b4e9; --down: #ff9d4d; --error: #e69f00; --logit: #35c9a0; --biases: #e3a0c4;
    --token: #a9b0b8; --chosen: #fff; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
  margin: 1.5rem auto; max-width: 75rem; padding: 0 1rem; }
a { color: var(--up); }
h2 { font-size: 1.2rem; margin-top: 2.5rem; overflow-wrap: anywhere; }
.menu { list-style: none; display: flex; flex-wrap: wrap; gap: 1rem; padding: 0; }
.picture { overflow-x: auto; border: 1px solid var(--line); }
.picture:focus-visible { outline: 3px solid var(--ink); outline-offset: 2px; }
svg { width: 100%; height: auto; display: block; }
.key { list-style: none; display: flex; flex-wrap: wrap; gap: 0.3rem 1.2rem; padding: 0; }
.key svg { width: 1.4rem; height: 1.2rem; display: inline-block; vertical-align: -0.25rem; }
.key polygon, .key circle { stroke: var(--page); }
.border { stroke: var(--line); }
svg text { font-size: 13px; fill: var(--ink); }
svg text.small { font-size: 10px; }
.node text.small { text-anchor: middle; paint-order: stroke; stroke: var(--page);
  stroke-width: 3px; }
.band { fill: var(--band); }
.edge.up { stroke: var(--up); }
.edge.down { stroke: var(--down); stroke-dasharray: 6 4; }
.node { cursor: pointer; outline: none; }
.node circle, .node polygon { stroke: var(--page); stroke-width: 1px; }
.latent circle { fill: var(--up); }
.error polygon { fill: var(--error); }
.logit polygon { fill: var(--logit); }
.biases polygon { fill: var(--biases); }
.token polygon { fill: var(--token); }
.node:focus circle, .node:focus polygon, .node.chosen circle, .node.chosen polygon {
  stroke: var(--chosen); stroke-width: 3px; }
svg.asked .edge { stroke-opacity: 0.04; }
svg.asked .edge.mine { stroke-opacity: 1; }
.panel { min-height: 6rem; border: 1px solid var(--line); border-top: 0; padding: 0.3rem 1rem; }
.panel table { border-collapse: collapse; margin: 0 2rem 1rem 0; display: inline-table;
  vertical-align: top; }
.panel th, .panel td { text-align: left; padding: 0.1rem 0.7rem 0.1rem 0; }
.panel td.number { text-align: right; font-variant-numeric: tabular-nums; }
"""

SCRIPT = """
"use strict";
// On a small screen the first picture comes first; how to read it is one press away.
if (matchMedia("(max-width: 700px)").matches) { document.getElementById("reading").open = false; }
const graphs = JSON.parse(document.getElementById("graphs").textContent).prompts;
const words = JSON.parse(document.getElementById("words").textContent);
function cell(row, text, number) {
  const td = document.createElement("td");
  td.textContent = text;
  if (number) { td.className = "number"; }
  row.appendChild(td);
}
function table(title, rows) {
  const out = document.createElement("table");
  const caption = document.createElement("caption");
  caption.textContent = title;
  out.appendChild(caption);
  rows.sort((a, b) => Math.abs(b[0]) - Math.abs(a[0]));
  for (const [weight, name] of rows) {
    const row = document.createElement("tr");
    cell(row, (weight > 0 ? "+" : "") + weight.toFixed(4), true);
    cell(row, name, false);
    out.appendChild(row);
  }
  return out;
}
function line(text) {
  const p = document.createElement("p");
  p.textContent = text;
  return p;
}
for (const key of Object.keys(graphs)) {
  const graph = graphs[key];
  const section = document.getElementById("graph-" + key);
  const svg = section.querySelector("svg");
  const panel = section.querySelector(".panel");
  const nodes = Array.from(section.querySelectorAll(".node"));
  const edges = Array.from(section.querySelectorAll(".edge"));
  function letGo() {
    svg.classList.remove("asked");
    for (const edge of edges) { edge.classList.remove("mine"); }
    for (const node of nodes) {
      node.classList.remove("chosen");
      node.setAttribute("aria-pressed", "false");
    }
    panel.replaceChildren(line("Choose a node to see its edges."));
  }
  function choose(node) {
    letGo();
    const i = Number(node.dataset.i);
    node.classList.add("chosen");
    node.setAttribute("aria-pressed", "true");
    svg.classList.add("asked");
    const into = [], from = [];
    for (const edge of edges) {
      const e = Number(edge.dataset.e);
      const s = graph.edges.source[e], t = graph.edges.target[e], w = graph.edges.weight[e];
      if (t === i) { into.push([w, words.names[key][s]]); }
      if (s === i) { from.push([w, words.names[key][t]]); }
      if (s === i || t === i) { edge.classList.add("mine"); }
    }
    panel.replaceChildren(line(words.names[key][i] + ". " + words.about[key][i]));
    if (into.length) {
      panel.appendChild(table("Edges into it", into));
      panel.appendChild(line("Kept edges sum to " + graph.nodes.into[i].toFixed(4) +
        ", dropped ones to " + graph.nodes.dropped[i].toFixed(4) + "."));
    }
    if (from.length) { panel.appendChild(table("Edges from it", from)); }
  }
  const picture = section.querySelector(".picture");
  const answer = section.querySelector(".node.logit");
  // Whenever the picture gets another width: the answer in its middle, or as near as can be.
  new ResizeObserver(() => {
    const at = answer.getBoundingClientRect(), box = picture.getBoundingClientRect();
    picture.scrollLeft += (at.left + at.right - box.left - box.right) / 2;
  }).observe(picture);
  for (const node of nodes) {
    node.addEventListener("click", () => choose(node));
    node.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "Enter" || event.key === " ") {
        choose(node);
      } else if (event.key === "Escape") {
        letGo();
      } else if (step) {
        const next = nodes[(nodes.indexOf(node) + step + nodes.length) % nodes.length];
        next.focus();
        choose(next);
      } else {
        return;
      }
      event.preventDefault();
    });
  }
}
"""
