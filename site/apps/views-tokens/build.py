"""Data of the page views-tokens, from results/views/tokens.json."""

from pathlib import Path

from circuitbook.views import pages

ROOT = Path(__file__).resolve().parents[3]


def build(out: Path) -> None:
    """Write `out`/data.js."""
    envelope = pages.saved(ROOT, "views/tokens")
    data = {key: envelope[key] for key in ("config", "data", "made_with")}
    copier = pages.saved(ROOT, "course/02_qk_ov")["data"]["pair"]["copier"]
    start = {"model": "attn-only-1l", "head": f"0.{copier}"}  # chapter 02's table of that head
    pages.write(out, "views-tokens", data | {"chapters": pages.chapters(ROOT), "start": start})
