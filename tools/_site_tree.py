"""The assembled source of the site: files are written only when they differ, strangers are removed.

Sphinx reads a page again when its file has a new time stamp. So a file that is the same stays
untouched, and a second build does almost nothing.
"""

import posixpath
from pathlib import Path


class SiteError(Exception):
    """Something that the site needs is not there or not right; the message says what to do."""


class Tree:
    """The folder build/site-src/, and the repository that it is made from."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder
        self.kept: set[Path] = set()

    def write(self, name: str, content: str | bytes) -> None:
        """Put a file at `name`, unless the same one is there."""
        data = content.encode("utf-8") if isinstance(content, str) else content
        path = self.folder / name
        self.kept.add(path)
        if path.is_file() and path.read_bytes() == data:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def has(self, name: str) -> bool:
        """Keep the file at `name` if an earlier build left it there, and say whether it did."""
        path = self.folder / name
        if path.is_file():
            self.kept.add(path)
        return path.is_file()

    def keep_folder(self, name: str) -> None:
        """Keep everything in a folder that something else has written."""
        self.kept.update(p for p in (self.folder / name).rglob("*") if p.is_file())

    def source(self, name: str, needed_for: str) -> Path:
        """A committed file; SiteError with the file's name when it is missing."""
        path = self.root / name
        if not path.is_file():
            raise SiteError(f"{name} is missing; {needed_for} needs it. Restore it from git.")
        return path

    def offer(self, name: str) -> str:
        """Put a committed file on the site as it is, under its own name; gives its address."""
        self.write(f"_extra/{name}", self.source(name, "a link on the site").read_bytes())
        return name

    def finish(self) -> None:
        """Remove every file that this build did not write or keep."""
        for path in sorted(self.folder.rglob("*"), reverse=True):
            if path.is_file() and path not in self.kept:
                path.unlink()
            elif path.is_dir() and not any(path.iterdir()):
                path.rmdir()


def relative(target: str, page: str) -> str:
    """The address of `target` as a page writes it; both are names from the site's root."""
    return posixpath.relpath(target, posixpath.dirname(page) or ".")
