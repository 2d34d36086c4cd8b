"""A view's file has the chapters' envelope, so it says what it was made with, and how to compare.

Numbers keep five significant digits. They are a picture of the chapters' evidence, not evidence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from circuitbook import compare, paths, results
from circuitbook.codehash import code_hash

DIGITS = 5
SHOWN = 8  # disagreements that `check` prints


@dataclass(frozen=True)
class View:
    """One file: its name, what measures it, with which settings, and the weights that it reads."""

    name: str
    compute: Callable[[Mapping[str, Any]], dict[str, Any]]
    config: Mapping[str, Any]
    weights: Sequence[str]
    kinds: Mapping[str, Any]

    @property
    def path(self) -> Path:
        """`results/views/<name>.json`."""
        return paths.RESULTS / "views" / f"{self.name}.json"


def short(value: Any) -> Any:
    """The same data, floats at five significant digits; a float that is whole stays a float."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: short(item) for key, item in value.items()}
    return [short(item) for item in value] if isinstance(value, list) else value


def text_read(tokens: np.ndarray, doc: np.ndarray, positions: int, seed: int) -> dict[str, Any]:
    """What held-out text was read: how much of it, and the sha256 of its token ids (int64)."""
    return {
        "windows": len(tokens),
        "window length": tokens.shape[1],
        "documents": len(np.unique(doc)),
        "positions": positions,
        "seed": seed,
        "tokens_sha256": hashlib.sha256(np.ascontiguousarray(tokens, dtype=np.int64)).hexdigest(),
    }


def measure(view: View) -> dict[str, Any]:
    """The envelope of a fresh measurement, on the course's models and the CPU."""
    with paths.model_set("course"):
        config = results.plain(dict(view.config), "config")
        data = short(results.plain(view.compute(config)))
        made = results._made_with(code_hash(view.compute))
    made["weights"] = {role: made["weights"][role] for role in sorted(view.weights)}
    return {
        "schema": results.SCHEMA, "chapter": f"views/{view.name}", "config": config,
        "made_with": made, "kinds": compare.plain_kinds(view.kinds), "data": data, "claims": [],
    }  # fmt: skip


def text(envelope: Mapping[str, Any]) -> str:
    """The file's text: short lines where a reader looks, one long line for each block of data."""
    flat = {"sort_keys": True, "ensure_ascii": False, "allow_nan": False}
    lines = []
    for key in sorted(envelope):
        if key != "data":
            lines.append(f'"{key}": {json.dumps(envelope[key], indent=1, **flat)}')
            continue
        blocks = [
            f"{json.dumps(name)}: {json.dumps(block, separators=(',', ':'), **flat)}"
            for name, block in sorted(envelope[key].items())
        ]
        lines.append('"data": {\n' + ",\n".join(blocks) + "\n}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def stale(view: View) -> str:
    """Why the committed file is out of date, or "": read from hashes, nothing is measured."""
    saved = results.read(view.path)
    with paths.model_set("course"):
        config = results.plain(dict(view.config), "config")
        reason = results.stale(saved, config, code_hash(view.compute))
    if not reason and sorted(saved["made_with"]["weights"]) != sorted(view.weights):
        reason = "it was made from other weights"
    return reason


def differences(view: View, fresh: Mapping[str, Any]) -> list[str]:
    """What a fresh measurement has otherwise than the committed file, in words."""
    saved = results.read(view.path)
    verdicts = compare.compare(fresh["data"], saved["data"], view.kinds)
    return [str(v) for v in verdicts if not v.ok]
