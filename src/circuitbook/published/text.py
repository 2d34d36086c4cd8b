"""WikiText-103 as documents: the text that the series measured on.

The test split is held-out text: all of the course's windows and documents come from it. The
validation split stands where the course's training text stands: it says which words are frequent.
It is not what these models were trained on (that was C4 and code, which the course does not fetch).
An article begins at a line " = Title = "; sections have two or more "=" on each side.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from circuitbook.documents import Document
from circuitbook.published import fetch
from circuitbook.published.pins import TEXT

SOURCE = "WikiText-103"
_TITLE = re.compile(r" = ([^=].*[^=]|[^=]) = \n?")


def rows(path: Path) -> list[str]:
    """The column "text" of a parquet file, in order."""
    import pandas

    return pandas.read_parquet(path, columns=["text"])["text"].tolist()


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


def split(name: str) -> Path:
    """The file of a split, "test" or "validation"."""
    place = fetch.folder(TEXT)
    return next(place / file for file in TEXT.files if f"/{name}-" in file)


def documents() -> tuple[list[Document], list[Document]]:
    """(validation articles, test articles)."""
    validation, test = (articles(rows(split(name))) for name in ("validation", "test"))
    return validation, test


def fingerprint() -> list[str]:
    """The sha256 of both splits' files: what the encoded text hangs on, with the tokenizer."""
    return [fetch.sha256(TEXT, file) for file in TEXT.files]
