"""Data of the page views-composition, from the results of chapter 05."""

from pathlib import Path

from circuitbook.views import pages

ROOT = Path(__file__).resolve().parents[3]
EFFECTS = ("loss", "loss_se", "pattern")


def build(out: Path) -> None:
    """Write `out`/data.js: scores and baselines as saved, effects of the cuts beside them."""
    envelope = pages.saved(ROOT, "course/05_composition")
    saved = envelope["data"]
    pages.write(
        out,
        "views-composition",
        {
            "scores": [saved["scores"][which] for which in "qkv"],
            "baseline": saved["baseline"],
            "effects": {name: saved["effects"][name] for name in EFFECTS},
            "pair": saved["pair"],
            "made_with": envelope["made_with"],
            "chapters": pages.chapters(ROOT),
        },
    )
