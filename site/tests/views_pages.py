"""What the tests of the result views share: saved numbers, numbers on a page, places on a chart."""

import json
import re
from pathlib import Path

from playwright.sync_api import expect

ROOT = Path(__file__).resolve().parents[2]


def data(name):
    return json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))["data"]


def curves(role):
    path = ROOT / "weights" / "curves" / f"{role}.json"
    return json.loads(path.read_text(encoding="utf-8"))["snapshots"]


def number(text):
    """A number as the pages write it: a real minus sign, commas between thousands, percent."""
    return float(text.replace("−", "-").replace(",", "").replace(" %", ""))


def view(visit, name, anchor="", **screen):
    page = visit(f"views-{name}.html{anchor}", **screen)
    if anchor:  # in a tab that shows the page already, another anchor alone loads nothing
        page.reload()
    expect(page.locator(f"#views-{name} .cbv-source")).to_be_visible()
    return page


def stands(svg, value, axis="y"):
    """Where a value stands on a chart's linear axis, from the labels of its ticks."""
    anchor, shift = ("end", 4) if axis == "y" else ("middle", 0)
    ticks = svg.locator(f"text[text-anchor={anchor}]").all()
    found = [(t.text_content(), float(t.get_attribute(axis)) - shift) for t in ticks]
    found = [(number(words), at) for words, at in found if re.fullmatch(r"−?[\d.,]+", words)]
    (a, at_a), (b, at_b) = found[0], found[-1]
    return at_a + (value - a) / (b - a) * (at_b - at_a)
