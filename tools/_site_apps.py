"""A folder site/apps/NAME/ is a page with scripts of its own: page.md, static/, build.py.

page.md becomes NAME.html, static/ goes to _static/NAME/, and `build(out)` of build.py writes data
there. A folder without page.md only shares its files.
"""

import importlib.util
import re
from pathlib import Path

from _site_tree import SiteError, Tree


def add(apps: Path, tree: Tree) -> dict[str, str]:
    """Put every app on the site; page name → title, in the order of the folders' names."""
    titles = {}
    for folder in sorted(
        p for p in apps.glob("*") if p.is_dir() and not p.name.startswith((".", "_"))
    ):
        name = folder.name
        for path in sorted((folder / "static").rglob("*")):
            if path.is_file():
                inside = path.relative_to(folder / "static").as_posix()
                tree.write(f"_static/{name}/{inside}", path.read_bytes())
        if (folder / "build.py").is_file():
            out = tree.folder / "_static" / name
            out.mkdir(parents=True, exist_ok=True)
            _module(folder / "build.py").build(out)
            tree.keep_folder(f"_static/{name}")
        if (folder / "page.md").is_file():
            text = (folder / "page.md").read_text(encoding="utf-8")
            title = re.search(r"^# (.+)$", text, re.MULTILINE)
            if not title:
                raise SiteError(f"site/apps/{name}/page.md needs a first line like '# Title'")
            tree.write(f"{name}.md", text)
            titles[name] = title[1]
    return titles


def _module(path: Path):
    spec = importlib.util.spec_from_file_location(f"site_app_{path.parent.name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, "build", None)):
        raise SiteError(f"site/apps/{path.parent.name}/build.py needs a function build(out)")
    return module
