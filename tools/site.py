"""The site in build/site/: chapters, ledger, comparison, explorer, from committed files alone.

    python tools/site.py [--fresh] [--no-check]

It first assembles build/site-src/ (tools/_site_assemble.py), then runs Sphinx, then looks at every
page that came out: links, anchors, ids, outside addresses, weight. Open build/site/index.html;
no server is needed. --fresh forgets the last build.
"""

import argparse
import fcntl
import io
import os
import re
import shutil
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The site is made of evidence. What this machine measured, or another model set, is not for it.
for name in ("MODELS", "QUICK", "RECOMPUTE"):
    os.environ.pop(name, None)

from _lesson import LessonError  # noqa: E402 - the switches above are read on import
from _site_assemble import assemble  # noqa: E402 - as above
from _site_check import problems  # noqa: E402 - as above
from _site_tree import SiteError, Tree  # noqa: E402 - as above

from circuitbook import paths  # noqa: E402 - as above


def render(tree: Tree, site: Path, out: Path, doctrees: Path) -> list[str]:
    """Run Sphinx; its warnings. A page that is gone from the source goes from the site too."""
    from sphinx.application import Sphinx

    shutil.rmtree(out / "_static", ignore_errors=True)
    warnings = io.StringIO()
    app = Sphinx(
        tree.folder,
        site,
        out,
        doctrees,
        "html",
        confoverrides={
            "html_static_path": [str(site / "_static"), str(tree.folder / "_static")],
            "html_extra_path": [str(tree.folder / "_extra")],
        },
        status=None,
        warning=warnings,
        parallel=min(4, os.cpu_count() or 1),
    )
    app.build()
    for macros in (out / "_static").glob("*webpack-macros.html"):
        macros.unlink()  # templates of the themes, copied with their styles; no pages
    known = {f"{name}.html" for name in (*app.env.found_docs, "search")}
    for path in out.rglob("*.html"):
        inside = path.relative_to(out).as_posix()
        if inside not in known and not inside.startswith("_static/"):
            path.unlink()
    plain = re.sub(r"\x1b\[[0-9;]*m", "", warnings.getvalue()).replace(f"{tree.folder}/", "")
    return [line for line in plain.splitlines() if line.strip()]


def build(
    root: Path, site: Path, target: Path, fresh: bool = False, check: bool = True
) -> list[str]:
    """Make the site in the folder `target`; what is wrong with it, in words."""
    source, doctrees = target / "site-src", target / "site-doctrees"
    if fresh:
        for folder in (source, doctrees, target / "site"):
            shutil.rmtree(folder, ignore_errors=True)
    tree = assemble(root, site, source)
    bad = render(tree, site, target / "site", doctrees)
    return bad + problems(target / "site") if check else bad


def main(argv: list[str] | None = None) -> int:
    """The command line; 1 when something is missing or a page is not as it should be."""
    parser = argparse.ArgumentParser(
        prog="python tools/site.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--fresh", action="store_true", help="forget the last build")
    parser.add_argument("--no-check", action="store_true", help="do not look at the built pages")
    args = parser.parse_args(argv)
    began = time.monotonic()
    paths.BUILD.mkdir(parents=True, exist_ok=True)
    with (paths.BUILD / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two builds into one folder would spoil each other
        try:
            bad = build(paths.ROOT, paths.ROOT / "site", paths.BUILD, args.fresh, not args.no_check)
        except (SiteError, LessonError) as error:
            print(error, file=sys.stderr)
            return 1
        except ModuleNotFoundError as error:
            print(
                f"{error}. The site needs the extra `site`: pip install -e '.[site]'",
                file=sys.stderr,
            )
            return 1
    for line in bad:
        print(line, file=sys.stderr)
    pages = len(list((paths.BUILD / "site").glob("**/*.html")))
    print(f"{pages} pages in build/site/ after {time.monotonic() - began:.0f} s; open index.html")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
