"""Data of the page views-phase: the training curves, and when chapter 06 sees the phase change."""

import json
from pathlib import Path
from typing import Any

from circuitbook.views import pages

ROOT = Path(__file__).resolve().parents[3]
ROLES = ("attn-only-2l", "attn-only-2l-again", "attn-only-1l", "gelu-1l", "gelu-2l")
KEYS = ("loss", "loss_se", "icl", "icl_se", "previous_token", "prefix_matching", "k_composition")


def run(role: str, event: dict[str, Any] | None) -> dict[str, Any]:
    """One training run: a list for each quantity with an entry for each snapshot."""
    saved = pages.curves(ROOT, role)
    rows = saved["snapshots"]
    found = {key: [row[key] for row in rows] for key in KEYS if key in rows[0]}
    steps = [row["step"] for row in rows]
    return found | {
        "steps": steps,
        "tokens": [step * saved["tokens_per_step"] for step in steps],
        "window": event["window"] if event and event["found"] else [],
    }


def build(out: Path) -> None:
    """Write `out`/data.js."""
    envelope = pages.saved(ROOT, "course/06_induction")
    events = envelope["data"]["growth"]["events"]
    manifest = json.loads((ROOT / "weights" / "MANIFEST.json").read_text(encoding="utf-8"))
    models = manifest.get("models", manifest)
    pages.write(
        out,
        "views-phase",
        {
            "runs": {role: run(role, events.get(role)) for role in ROLES},
            "pair": envelope["data"]["pair"],
            "made_with": {"weights": {role: models[role]["sha256"] for role in ROLES}},
            "chapters": pages.chapters(ROOT),
        },
    )
