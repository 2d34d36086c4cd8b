"""Data of the page views-latents, from results/views/latents.json."""

from pathlib import Path

from circuitbook.views import pages

ROOT = Path(__file__).resolve().parents[3]


def build(out: Path) -> None:
    """Write `out`/data.js."""
    envelope = pages.saved(ROOT, "views/latents")
    data = {key: envelope[key] for key in ("config", "data", "made_with")}
    pages.write(out, "views-latents", data | {"chapters": pages.chapters(ROOT)})
