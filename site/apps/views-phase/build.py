"""Data of the page views-phase: the training curves, and when chapter 06 sees the phase change."""

import json
import re
from pathlib import Path
from typing import Any

from circuitbook.views import pages

ROOT = Path(__file__).resolve().parents[3]
ROLES = ("attn-only-2l", "attn-only-2l-again", "attn-only-1l", "gelu-1l", "gelu-2l")
KEYS = ("loss", "loss_se", "icl", "icl_se", "previous_token", "prefix_matching", "k_composition")
BARE = "attn-only-0l"  # sees one token only: what it scores is not learned from context


def windows() -> int:
    """On how many held-out windows every snapshot is measured: a constant of circuitbook.curves."""
    source = (ROOT / "src" / "circuitbook" / "curves.py").read_text(encoding="utf-8")
    return int(re.search(r"^WINDOWS = (\d+)$", source, re.M)[1])


def final(role: str, saved: dict[str, Any]) -> dict[str, Any] | None:
    """Chapter 00's in-context score of the trained model, if it has one: {mean, se}."""
    return saved["data"]["icl"].get(role)


def run(role: str, event: dict[str, Any] | None) -> dict[str, Any]:
    """One training run: a list for each quantity with an entry for each snapshot.

    event is what chapter 06 saw of a phase change in it, or None if it did not look.
    """
    saved = pages.curves(ROOT, role)
    rows = saved["snapshots"]
    found = {key: [row[key] for row in rows] for key in KEYS if key in rows[0]}
    steps = [row["step"] for row in rows]
    return found | {
        "steps": steps,
        "tokens": [step * saved["tokens_per_step"] for step in steps],
        "window": event["window"] if event and event["found"] else [],
        "why no window": event["why"] if event and not event["found"] else "",
    }


def build(out: Path) -> None:
    """Write `out`/data.js."""
    envelope = pages.saved(ROOT, "course/06_induction")
    first = pages.saved(ROOT, "course/00_models")
    events = envelope["data"]["growth"]["events"]
    models = json.loads((ROOT / "weights" / "MANIFEST.json").read_text(encoding="utf-8"))
    pages.write(
        out,
        "views-phase",
        {
            "runs": {
                role: run(role, events.get(role)) | {"final": final(role, first)} for role in ROLES
            },
            "bare": {
                "role": BARE,
                "icl": [row["icl"] for row in pages.curves(ROOT, BARE)["snapshots"]],
            },
            "windows": windows(),
            "chapter 00": {
                "windows": first["config"]["windows"],
                "documents": first["data"]["windows"]["documents"],
            },
            "pair": envelope["data"]["pair"],
            "made_with": {"weights": {role: models[role]["sha256"] for role in ROLES}},
            "chapters": pages.chapters(ROOT),
        },
    )
