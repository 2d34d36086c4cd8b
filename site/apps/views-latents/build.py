"""Data of the page views-latents, from results/views/latents.json and chapter 09."""

from pathlib import Path
from typing import Any

from circuitbook.views import pages

ROOT = Path(__file__).resolve().parents[3]


def counted(saved: dict[str, Any]) -> dict[str, Any]:
    """What chapter 09 counted for each latent that it shows: where, which word, in what share.

    place is "token" (where the latent is strongest) or "previous token" (the one before it).
    """
    keys = ("place", "word", "share")
    return {
        "windows": saved["minds"]["n"],
        "latents": {
            str(b["latent"]): {key: b[key] for key in keys}
            for b in (*saved["random"], *saved["best"])
        },
    }


def build(out: Path) -> None:
    """Write `out`/data.js."""
    envelope = pages.saved(ROOT, "views/latents")
    data = {key: envelope[key] for key in ("config", "data", "made_with")}
    chapter = pages.saved(ROOT, "course/09_sparse_autoencoders")["data"]["sae"]
    more = {"counted": counted(chapter), "chapters": pages.chapters(ROOT)}
    pages.write(out, "views-latents", data | more)
