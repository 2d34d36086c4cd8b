"""What the tests of every chapter ask of its committed evidence, in one place."""

import json
import subprocess
import sys

from circuitbook import paths
from circuitbook.claims import recheck


def evidence(chapter):
    """The committed evidence of a chapter; it must be there."""
    path = paths.ROOT / "results" / "course" / f"{chapter}.json"
    assert path.is_file(), f"{path} is missing: restore it, or measure and `make accept`"
    return path


def rechecked(chapter, least):
    """(data, claims by id), every verdict derived again from the claim's own numbers."""
    saved = json.loads(evidence(chapter).read_text(encoding="utf-8"))
    assert len(saved["claims"]) >= least
    for claim in saved["claims"]:
        assert recheck(claim) == "", claim["id"]
        assert claim["holds"] or claim["label"] == "conjecture", claim["sentence"]
    return saved["data"], {c["id"]: c for c in saved["claims"]}


def draw_without_torch(chapter, least, more=""):
    """Every figure is drawn from the evidence where torch cannot be imported; `more` runs after."""
    number = chapter[:2]
    code = f"""
import sys
sys.modules["torch"] = None
from pathlib import Path
from circuitbook import results
from circuitbook.gallery import ch{number}, figures
r = results.Result(results.read(Path({str(evidence(chapter))!r})))
drawn = {{name: draw(r) for name, draw in figures("{number}").items()}}
assert len(drawn) >= {least} and all(len(f.alt) > 60 for f in drawn.values())
{more}
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=paths.ROOT
    )
    assert done.returncode == 0, done.stderr
