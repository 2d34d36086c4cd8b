"""Draw every figure from the saved results into figures/<models>/: no torch, no measurement.

    python -m circuitbook.gallery [--check] [chapter ...]

With MODELS=published only committed evidence is drawn there; what was measured on this machine is
drawn into build/published/figures.

Each file carries a hash of the result and of the drawing code that made it, so a figure is drawn
again only when one of them has changed, and not because another machine draws a letter one shade
lighter. --check writes nothing and fails when a figure or its alt text is not what results say.
"""

import argparse
import hashlib
import io
import json
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
from matplotlib.image import imread

from circuitbook import paths, plots, results
from circuitbook.codehash import module_file, reached_modules, tree_text
from circuitbook.compare import chapters
from circuitbook.gallery import figures

_KEY = b"tEXtSource\0"
_SHADE = 0.02  # mean difference of two drawings of one figure: letters' edges, not lines or bars


def source(chapter: str, r: results.Result) -> str:
    """A hash of the saved numbers and of all code that draws this chapter's figures."""
    saved = [dict(r), r.config, list(r.claims.values())]
    parts = [json.dumps(saved, sort_keys=True)]
    for name in reached_modules([f"circuitbook.gallery.ch{chapter[:2]}"], frozenset()):
        if name.startswith("circuitbook.gallery.") or name.endswith((".display", ".marks")):
            parts.append(tree_text(module_file(name).read_text(encoding="utf-8")))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def stamped(png: bytes, mark: str) -> bytes:
    """The picture with `mark` in a text entry before its end."""
    body = _KEY + mark.encode()
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return png[:-12] + chunk + png[-12:]


def same_picture(a: bytes, b: bytes) -> bool:
    """Whether two files show one figure, up to the shade of edges."""
    if a == b:
        return True
    try:
        x, y = (imread(io.BytesIO(data)) for data in (a, b))
    except (OSError, ValueError, SyntaxError):
        return False
    return x.shape == y.shape and float(np.abs(x - y).mean()) < _SHADE


def up_to_date(path: Path, mark: str, alt: str | None) -> bool:
    """Whether the file at `path` was drawn from this result by this code, and has an alt text."""
    return alt is not None and path.is_file() and _KEY + mark.encode() in path.read_bytes()


def folders() -> list[Path]:
    """Where today's figures lie; the last one is for committed evidence."""
    if paths.quick():
        return [paths.BUILD / "quick" / "figures" / paths.models()]
    committed = paths.FIGURES / paths.models()
    if paths.models() == "course":
        return [committed]
    return [paths.BUILD / paths.models() / "figures", committed]


def folder_for(result: Path | None, chapter: str) -> Path:
    """Where the figures of a chapter belong that was read from the file `result`."""
    return folders()[-1 if result == results.evidence_path(chapter) else 0]


def read_alts(folder: Path) -> dict[str, str]:
    """File name → text in place of the figure, as written in a folder."""
    path = folder / "alt.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def orphaned(folder: Path, kept: set[Path]) -> list[Path]:
    """The figures in a folder that no lesson has any more."""
    return sorted(set(folder.glob("*.png")) - kept)


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m circuitbook.gallery", description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("chapter", nargs="*")
    args = parser.parse_args(argv)
    alts = {folder: read_alts(folder) for folder in folders()}
    wrong, kept = [], set()
    for chapter in args.chapter or chapters():
        own = figures(chapter[:2])
        if not own:
            continue
        try:
            r = results.load(chapter)
        except FileNotFoundError as error:
            print(f"{chapter}: {error}")
            continue
        folder = folder_for(r.source, chapter)
        known = alts[folder]
        mark, drawn = source(chapter, r), 0
        for name, draw in own.items():
            path = folder / f"{chapter[:2]}_{name}.png"
            kept.add(path)
            fresh = up_to_date(path, mark, known.get(path.name))
            if args.check:
                shown = draw(r)
                same = fresh and same_picture(path.read_bytes(), shown.png)
                if not same or known[path.name] != shown.alt:
                    wrong.append(path.name)
            elif not fresh:
                shown = draw(r)
                plots.write_figure(path, stamped(shown.png, mark), shown.alt)
                drawn += 1
        print(f"{chapter}: {len(own)} figures" + ("" if args.check else f", {drawn} drawn"))
    for folder in [] if args.chapter else folders():
        gone = orphaned(folder, kept)
        if args.check:
            wrong += [path.name for path in gone]
        elif gone:
            for path in gone:
                path.unlink()
            names = {path.name for path in kept if path.parent == folder}
            told = read_alts(folder).items()
            plots.write_alts(folder, {name: alt for name, alt in told if name in names})
    if wrong:
        print(f"not what the results say (run `make figures`): {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
