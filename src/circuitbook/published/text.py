"""WikiText-103 as documents: the text that the series measured on.

The test split is held-out text: all of the course's windows and documents come from it. The
validation split stands where the course's training text stands: it says which words are frequent.
It is not what these models were trained on (that was C4 and code, which the course does not fetch).
An article begins at a line " = Title = "; sections have two or more "=" on each side.

CIRCUITBOOK_TEXT names a local file of the test split (.parquet, or lines of text) in place of the
hub's. Beside it lies the validation split, with "validation" or "valid" in its name for "test".
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from circuitbook.documents import Document
from circuitbook.published import disk, fetch
from circuitbook.published.fetch import PublishedError
from circuitbook.published.pins import TEXT

SOURCE = "WikiText-103"
SPLITS = ("validation", "test")
_TITLE = re.compile(r" = ([^=].*[^=]|[^=]) = \n?")


def rows(path: Path) -> list[str]:
    """The lines of a split in order, an empty one as ""; a parquet file has them as "text".

    Raises PublishedError: the file cannot be read as text of this kind.
    """
    try:
        if path.suffix == ".parquet":
            return _table(path)
        with open(path, encoding="utf-8", newline="\n") as file:
            return [line if line.strip() else "" for line in file]
    except Exception as error:  # the readers below raise many kinds
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PublishedError(
            f"{path} cannot be read as a split of WikiText-103 ({said}). {_mend()}."
        ) from error


def _mend() -> str:
    """What to do about a file that is no text: one of the reader's own is never to be deleted."""
    if asked():
        return "Name another file in CIRCUITBOOK_TEXT, or unset it to use the hub's"
    return disk.again()


def _table(path: Path) -> list[str]:
    import datasets

    if shown := datasets.is_progress_bar_enabled():
        datasets.disable_progress_bars()  # for a table of two megabytes
    try:
        return _column(datasets, path)
    finally:
        if shown:
            datasets.enable_progress_bars()


def _column(datasets: Any, path: Path) -> list[str]:
    with tempfile.TemporaryDirectory() as scratch:  # what datasets keeps would only be a copy
        table = datasets.Dataset.from_parquet(
            str(path), columns=["text"], cache_dir=scratch, keep_in_memory=True
        )
        return list(table["text"])


def articles(lines: Iterable[str]) -> list[Document]:
    """Whole articles, in order; a part before the first title is an article without a name."""
    found: list[tuple[str, list[str]]] = []
    blank = True
    for line in lines:
        title = _TITLE.fullmatch(line)
        if title and blank:  # a title stands alone: the line before it is empty
            found.append((title.group(1), []))
        elif not found and line.strip():
            found.append(("", []))
        if found:
            found[-1][1].append(line if line.endswith("\n") else line + "\n")
        blank = not line.strip()
    return [Document(SOURCE, name, "".join(body)) for name, body in found]


def asked() -> str:
    """What CIRCUITBOOK_TEXT says, "" when it names no file."""
    return os.environ.get("CIRCUITBOOK_TEXT", "").strip()


def local() -> Path | None:
    """The reader's own file of the test split; None where CIRCUITBOOK_TEXT names none.

    Raises PublishedError: that file is not there, or no validation split beside it.
    """
    return _local("test") if _local("validation") else None


def _local(name: str) -> Path | None:
    """The local file of a split, where CIRCUITBOOK_TEXT names one."""
    if not asked():
        return None
    test = Path(asked()).expanduser().absolute()
    names = [test.name]
    if name == "validation":
        names = [test.name.replace("test", word, 1) for word in ("validation", "valid")]
    there = [test.with_name(n) for n in names if test.with_name(n).is_file()]
    if not there or (name == "validation" and "test" not in test.name):
        raise PublishedError(
            f"CIRCUITBOOK_TEXT={asked()}: there is no {' or '.join(names)} in {test.parent}. Name "
            'the file of the test split ("test" in its name), the validation split beside it.'
        )
    return there[0]


def split(name: str) -> Path:
    """The file of a split, "test" or "validation": a local one, or the hub's.

    Raises PublishedError: it is not here and not to be had.
    """
    if local := _local(name):
        return local
    place = fetch.folder(TEXT)
    return next(place / file for file in TEXT.files if f"/{name}-" in file)


def documents() -> tuple[list[Document], list[Document]]:
    """(validation articles, test articles).

    Raises PublishedError: a split is missing, damaged or holds no articles.
    """
    validation, test = (articles(rows(split(name))) for name in SPLITS)
    for name, found in zip(SPLITS, (validation, test), strict=True):
        if len(found) < 2:
            raise PublishedError(
                f"{split(name)} does not look like WikiText-103: {len(found)} articles. Titles "
                f'stand alone as " = Title = ". {_mend()}.'
            )
    return validation, test


def fingerprint() -> list[str]:
    """The sha256 of both splits' files: what the encoded text hangs on, with the tokenizer.

    That of a file of the reader's own begins with "local:".
    """
    mark = "local:" if asked() else ""
    return [mark + disk.hashes(split(name))["sha256"] for name in reversed(SPLITS)]
