"""A view as one piece of HTML: numbers as JSON, a style sheet and a script, and no address at all.

Nothing in it has an id or a global name, so the same view may stand on a page twice, and the same
numbers give the same bytes. The picture stands in it until the script runs, and stays if none may.
"""

from __future__ import annotations

import base64
import functools
import html
import json
from pathlib import Path
from typing import Any

from torch import Tensor

from circuitbook.cut import Head
from circuitbook.explore.reading import Reading
from circuitbook.plots import Figure

FOLDER = Path(__file__).resolve().parent
SCRIPTS = ("scale.js", "keys.js", "parts.js", "view.js")  # in this order, inside one function
DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
ROOM = 950_000  # characters of numbers and pictures; style and script need the rest
STEPS = 4095  # attention is kept in steps of 1/4095: two digits of base 64

TEMPLATE = """\
<div class="cb-explore">
<style>{style}</style>
<figure class="cb-still">{still}</figure>
<script type="application/json">{data}</script>
<script>(function () {{
{script}
}})();</script>
</div>
"""


def packed(pattern: Tensor) -> str:
    """The lower triangle of a pattern, row by row, as two characters for each number."""
    n = pattern.shape[0]
    steps = (pattern.double().clamp(0, 1) * STEPS).round().long().tolist()
    kept = (steps[q][k] for q in range(n) for k in range(q + 1))
    return "".join(DIGITS[x // 64] + DIGITS[x % 64] for x in kept)


def _rounded(values: Tensor, digits: int) -> Any:
    """Nested lists; digits after the point. Minus zero becomes zero."""
    if values.ndim > 1:
        return [_rounded(row, digits) for row in values]
    return [round(x, digits) + 0.0 for x in values.double().tolist()]


def numbers(read: Reading, head: Head) -> dict[str, Any]:
    """What the script reads. Its keys are used in view.js and parts.js."""
    return {
        "name": read.name,
        "tokens": read.tokens,
        "layers": read.pattern.shape[0],
        "heads": read.pattern.shape[1],
        "at": read.heads.index(head),
        "pattern": [packed(read.pattern[at]) for at in read.heads],
        "size": [_rounded(read.size[at], 3) for at in read.heads],
        "next": read.next,
        "probability": _rounded(read.probability, 5),
        "logit": _rounded(read.logit, 3),
        "parts": read.parts,
        "share": _rounded(read.share, 3),
        "notes": [*read.notes, _kept(read)],
    }


def _kept(read: Reading) -> str:
    few, top = read.share.shape[1], read.top.shape[1]
    text = "Attention is kept in steps of 1/4095 and shown to three digits; less than 0.0005 is 0."
    if few < top:
        text += f" To keep the view small, shares are here for the first {few} tokens of each list."
    return text


def as_json(data: Any) -> str:
    """JSON that is harmless inside a script element: ASCII alone, and no angle bracket."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@functools.cache
def _source(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8").strip()


def build(read: Reading, head: Head, figure: Figure) -> str:
    """The whole view. Tokens reach the page as JSON alone, and the script writes them as text."""
    data, alt = as_json(numbers(read, head)), html.escape(figure.alt)
    png = base64.b64encode(figure.png).decode("ascii")
    if len(data) + 2 * len(png) < ROOM:
        still = f'<img alt="{alt}" src="data:image/png;base64,{png}">'
    else:  # the notebook has the picture once already, and the view must stay below 1 MB
        still = f"<figcaption>{alt}</figcaption>"
    return TEMPLATE.format(
        style=_source("view.css"),
        still=still,
        data=data,
        script="\n".join(map(_source, SCRIPTS)),
    )
