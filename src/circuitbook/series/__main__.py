"""`make compare`: every number of the series beside ours, on a page made of saved results alone.

    python -m circuitbook.series [--check]

Writes results/comparison.md and results/comparison.html. --check writes nothing, and fails when
those files are not what the results say. The committed page is made of committed evidence. With
RECOMPUTE=1 this machine's own measurements are read first, with QUICK=1 its rehearsals, and the
page goes to build/. Fails when a row that must pass does not (exact and closed form), or when a
published number has no row.
"""

import argparse
import sys
from pathlib import Path

from circuitbook import paths, results
from circuitbook.series import markdown, webpage
from circuitbook.series.page import STATES, build

__all__ = ["files", "main"]


def files() -> dict[str, Path]:
    """Where the page is written under today's switches; never over evidence by a rehearsal."""
    folder = paths.RESULTS
    if paths.quick():
        folder = paths.BUILD / "quick"
    elif paths.recompute():
        folder = paths.BUILD
    return {"md": folder / "comparison.md", "html": folder / "comparison.html"}


def _shown(path: Path) -> str:
    return path.relative_to(paths.ROOT).as_posix()


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m circuitbook.series",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="only say what has drifted")
    args = parser.parse_args(argv)
    try:
        page = build()
    except (ValueError, FileNotFoundError) as error:
        print(error, file=sys.stderr)
        return 2
    texts = {"md": markdown.text(page), "html": webpage.text(page)}
    drifted = []
    for kind, path in files().items():
        same = path.is_file() and path.read_text(encoding="utf-8") == texts[kind]
        if args.check and not same:
            drifted.append(_shown(path))
        elif not args.check and not same:
            results.write(path, texts[kind])
            print(f"wrote {_shown(path)}")
    counted = [f"{page.counts[s]} {words}" for s, words in STATES.items() if page.counts[s]]
    print(f"{sum(page.counts.values())} published entries: {'; '.join(counted)}")
    for problem in page.problems:
        print(f"to look at: {problem}", file=sys.stderr)
    own = paths.BUILD / "results" / "course"
    if "no results yet" in " ".join(page.problems) and own.is_dir() and not paths.recompute():
        print("measured here, not accepted: RECOMPUTE=1 make compare shows it", file=sys.stderr)
    if drifted:
        print(f"not what results say (run `make compare`): {', '.join(drifted)}", file=sys.stderr)
    if paths.quick():
        print("QUICK=1: these verdicts come from small samples and decide nothing")
        return 1 if drifted else 0
    return 1 if page.problems or drifted else 0


if __name__ == "__main__":
    raise SystemExit(main())
