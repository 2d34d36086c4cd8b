"""The data of the view pages as classic scripts: pages on disk can load neither JSON nor modules.

No torch here: the site is built from committed files.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from circuitbook import results


def saved(root: Path, name: str) -> dict[str, Any]:
    """The envelope at `results/<name>.json`. Raises FileNotFoundError that says what to run."""
    path = root / "results" / f"{name}.json"
    if not path.is_file():
        mend = "python -m circuitbook.views" if name.startswith("views/") else "make all"
        raise FileNotFoundError(f"{path} is missing. Restore it from git, or run `{mend}`.")
    return results.read(path)


def curves(root: Path, role: str) -> dict[str, Any]:
    """The training curves of a role."""
    path = root / "weights" / "curves" / f"{role}.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing. Restore it from git.")
    return json.loads(path.read_text(encoding="utf-8"))


def chapters(root: Path) -> dict[str, dict[str, str]]:
    """{page, title} of every chapter by its number as "02", from the first line of its lesson."""
    out = {}
    for script in sorted((root / "scripts").glob("[0-9][0-9]_*.py")):
        found = re.search(r"^# # (\d\d) · (.+)$", script.read_text(encoding="utf-8"), re.M)
        if found:
            out[found[1]] = {"page": f"{script.stem}.html", "title": found[2]}
    return out


def write(out: Path, name: str, data: dict[str, Any]) -> None:
    """`out`/data.js sets window.CB_DATA[name]; numbers as they are in the results."""
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    (out / "data.js").write_text(
        f"window.CB_DATA = window.CB_DATA || {{}};\nwindow.CB_DATA[{json.dumps(name)}] = {text};\n",
        encoding="utf-8",
    )
