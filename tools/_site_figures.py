"""A figure on the site is its picture first: with words, a size, and plotly only when asked for.

The PNG of a notebook becomes a WebP without loss, which is the same pixels in a third of the bytes.
Its plotly version goes to a script of its own that a click loads.
"""

import base64
import hashlib
import io
import json
from html import escape

from _site_tree import SiteError, Tree
from PIL import Image

PLOTLY = "application/vnd.plotly.v1+json"


def shown(output: dict, cell: str, number: int, tree: Tree, plots: dict[str, dict]) -> str:
    """The HTML of an output with a picture. `plots` takes its plotly version, if it has one."""
    alt = output.get("metadata", {}).get("image/png", {}).get("alt", "")
    if not alt:
        raise SiteError(f"the figure of cell {cell} has no alt text. Run `make lessons`.")
    name = f"{cell}-{number}" if number else cell
    address, width, height = picture(base64.b64decode(output["data"]["image/png"]), name, tree)
    words = escape(alt)
    button = ""
    if PLOTLY in output["data"]:
        plots[name] = output["data"][PLOTLY]
        # Hidden until the script runs: without scripts there is nothing to press.
        button = f'<button type="button" hidden data-plot="{name}">Interactive version</button>'
    return (
        f'<figure class="cb-figure" id="fig-{name}">'
        f'<img src="{address}" alt="{words}" width="{width}" height="{height}" loading="lazy">'
        f'<div class="cb-under">{button}<details><summary>In words</summary>'
        f"<p>{words}</p></details></div></figure>"
    )


def picture(png: bytes, name: str, tree: Tree) -> tuple[str, int, int]:
    """Put a picture on the site; its address, width and height in pixels."""
    with Image.open(io.BytesIO(png)) as image:
        width, height = image.size
        address = f"_static/figures/{name}-{hashlib.sha256(png).hexdigest()[:10]}.webp"
        if not tree.has(address):
            opaque = "A" not in image.getbands() or image.getchannel("A").getextrema()[0] == 255
            file = io.BytesIO()
            # Method 2 is five times faster than the best one, and 1 % larger.
            image.convert("RGB" if opaque else "RGBA").save(file, "WEBP", lossless=True, method=2)
            tree.write(address, file.getvalue())
    return address, width, height


def write_plots(chapter: str, plots: dict[str, dict], tree: Tree) -> None:
    """The plotly versions of a chapter's figures, as a script: pages on disk cannot fetch data."""
    if plots:
        lines = "".join(
            f"window.PLOTS[{json.dumps(name)}] = {json.dumps(spec, sort_keys=True)};\n"
            for name, spec in plots.items()
        )
        tree.write(f"_static/plots/{chapter}.js", f"window.PLOTS = window.PLOTS || {{}};\n{lines}")
