"""Data of the page views-neurons, from results/views/neurons.json."""

from pathlib import Path

from circuitbook.views import pages

ROOT = Path(__file__).resolve().parents[3]


def build(out: Path) -> None:
    """Write `out`/data.js."""
    envelope = pages.saved(ROOT, "views/neurons")
    data = {key: envelope[key] for key in ("config", "data", "made_with")}
    pages.write(out, "views-neurons", data | {"chapters": pages.chapters(ROOT)})
