"""The text as tokens: the training stream, held-out documents, and windows for statistics.

A training window is the begin-of-sequence token and a run of the training stream. A window for
statistics lies inside one long held-out document, so its late tokens have 500 tokens of the same
work before them.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from circuitbook import documents as docs
from circuitbook import paths, sources, vocabulary
from circuitbook.published.disk import PublishedError
from circuitbook.sources import SOURCES, TextError

if TYPE_CHECKING:  # the tokenizer library is needed to encode the text, not to read what is encoded
    from circuitbook.tokenizer import Tokenizer

__all__ = [
    "SOURCES",
    "TextError",
    "Windows",
    "check",
    "corpus_sha256",
    "heldout_windows",
    "held_out_documents",
    "prepare",
    "report",
    "train_tokens",
]

SCHEMA = 1
RUN = 48  # a held-out window that shares a run of this many tokens with training text is left out
CHUNK = 1_000_000


@dataclass(frozen=True)
class Windows:
    """Held-out windows: tokens[n, length] open with BOS; doc[n] and source[n] say where from."""

    tokens: np.ndarray
    doc: np.ndarray
    source: list[str]
    names: list[str]


def _recipe() -> str:
    """A hash of all that decides the token files: archives or splits, parsing code, tokenizer.

    Raises:
        vocabulary.TokenError: there is no tokenizer to encode with.
    """
    if paths.models() == "published":
        from circuitbook.published import fetch, pins, text

        hashes = [fetch.sha256(pins.TOKENIZER, f) for f in pins.TOKENIZER.files]
        code = Path(text.__file__).read_text(encoding="utf-8")
        blob = json.dumps([SCHEMA, RUN, text.fingerprint(), hashes, code]).encode()
        return hashlib.sha256(blob).hexdigest()
    pins = [f"{s.name}=={s.version}:{s.sha256}" for s in SOURCES]
    code = [Path(m.__file__).read_bytes() for m in (docs,)]
    code.append((Path(docs.__file__).parent / "names.py").read_bytes())
    try:
        merges = vocabulary.file_path().read_bytes()
    except OSError as error:
        raise vocabulary.TokenError(vocabulary.restore(vocabulary.file_path(), error)) from error
    blob = b"\0".join([json.dumps([SCHEMA, RUN, pins]).encode(), *code, merges])
    return hashlib.sha256(blob).hexdigest()


def _folder() -> Path:
    return paths.CACHE / f"tokens-{_recipe()[:16]}"


def load_documents(folder: Path | None = None) -> tuple[list[docs.Document], list[docs.Document]]:
    """(training, held out) documents parsed from the cached archives.

    Raises:
        TextError: an archive is missing or is not the pinned file.
    """
    folder = folder or sources.archive_folder()
    every = [d for s in SOURCES for d in docs.parse(s, folder / s.filename)]
    return docs.split(docs.without_duplicates(every))


def _shared_runs(held_out: np.ndarray, training: np.ndarray, run: int) -> np.ndarray:
    """For every start in `held_out`: does this run of tokens stand anywhere in `training`?"""

    def rolling(tokens: np.ndarray) -> np.ndarray:
        multiplier = np.uint64(0x9E3779B97F4A7C15)
        value = np.zeros(len(tokens) - run + 1, dtype=np.uint64)
        with np.errstate(over="ignore"):
            for k in range(run):
                value = value * multiplier + tokens[k : len(tokens) - run + 1 + k] + np.uint64(1)
        return value

    wanted = rolling(held_out.astype(np.uint64))
    in_order = np.unique(wanted)
    found = []
    for at in range(0, len(training) - run + 1, CHUNK):  # a piece at a time: hashes are four times
        piece = rolling(training[at : at + CHUNK + run - 1].astype(np.uint64))  # as large as tokens
        near = np.searchsorted(in_order, piece).clip(max=len(in_order) - 1)
        found.append(np.unique(piece[in_order[near] == piece]))
    return np.isin(wanted, np.concatenate(found))


def _joined(texts: list[str], tok: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """All ids in one array (an empty line between documents) and each document's first index."""
    ids = tok.encode_many([text + "\n" for text in texts])
    starts = np.cumsum([0] + [len(i) for i in ids])
    return np.concatenate([np.asarray(i, dtype=np.uint16) for i in ids]), starts


def _encode(folder: Path) -> None:
    """Parse and encode all documents into `folder`."""
    from circuitbook import tokenizer

    if paths.models() == "published":
        from circuitbook.published import text

        training, held_out = text.documents()
    else:
        training, held_out = load_documents()
    tok = tokenizer.load()
    order = np.random.default_rng(0).permutation(len(training))
    training = [training[i] for i in order]
    train_ids, train_starts = _joined([d.text for d in training], tok)
    held_ids, held_starts = _joined([d.text for d in held_out], tok)
    meta = {
        "corpus_sha256": _sha256(train_ids),
        "held_out_sha256": _sha256(held_ids),
        "train": _mix(training, train_starts),
        "held_out": _mix(held_out, held_starts),
        "documents": [{"source": d.source, "name": d.name} for d in held_out],
    }
    np.save(folder / "train.npy", train_ids)
    np.save(folder / "held_out.npy", held_ids)
    np.save(folder / "held_out_starts.npy", held_starts)
    np.save(folder / "held_out_shared.npy", _shared_runs(held_ids, train_ids, RUN))
    (folder / "meta.json").write_text(json.dumps(meta, indent=1))


def _sha256(tokens: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(tokens)).hexdigest()


def _trouble(folder: Path, *, full: bool) -> str | None:
    """What is wrong with the token files, or None. Lengths only, or every token with `full`."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
        total = {side: _tokens(meta[side]) for side in ("train", "held_out")}
        wanted = {
            "train": total["train"],
            "held_out": total["held_out"],
            "held_out_starts": len(meta["documents"]) + 1,
            "held_out_shared": total["held_out"] - RUN + 1,
        }
        for name, length in wanted.items():
            found = np.load(folder / f"{name}.npy", mmap_mode="r")
            if found.shape != (length,):
                return f"{name}.npy holds {found.shape} entries, ({length},) were expected"
        for name, key in (("train", "corpus_sha256"), ("held_out", "held_out_sha256")):
            if full and _sha256(np.load(folder / f"{name}.npy", mmap_mode="r")) != meta[key]:
                return f"{name}.npy does not have the sha256 that meta.json says"
    except (OSError, ValueError, KeyError, TypeError, EOFError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


@functools.cache
def _sound(folder: Path) -> bool:
    """True when the lengths of all token files are right; looked at once per process.

    Raises:
        TextError: the folder is damaged.
    """
    if trouble := _trouble(folder, full=False):
        raise TextError(
            f"The encoded text in {folder} is damaged ({trouble}). "
            f"Run `make text`: it encodes the text again."
        )
    return True


def prepare() -> Path:
    """Encode the documents once and keep the token files in the cache; returns their folder.

    The training documents stand in an order shuffled by a generator of seed 0. The folder appears
    whole or not at all: it is made under another name, one process at a time, and then renamed.

    Raises:
        TextError: an archive is missing or damaged, or the token files are damaged.
    """
    folder = _folder()
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = folder.with_name(f".new-{folder.name}")
        with open(folder.with_name(".tokens.lock"), "w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if not folder.exists():  # or another process made it while this one waited
                shutil.rmtree(scratch, ignore_errors=True)
                scratch.mkdir()
                try:
                    _encode(scratch)
                    os.replace(scratch, folder)
                finally:
                    shutil.rmtree(scratch, ignore_errors=True)
    _sound(folder)
    return folder


def check() -> str | None:
    """Compare every token of the cache with its sha256; a damaged cache is removed.

    Returns what was wrong, or None. The next `prepare` encodes the text again.
    """
    folder = _folder()
    trouble = _trouble(folder, full=True) if folder.exists() else None
    if trouble:
        shutil.rmtree(folder)
        _sound.cache_clear()
    return trouble


def _mix(documents: list[docs.Document], starts: np.ndarray) -> dict[str, dict[str, int]]:
    mix: dict[str, dict[str, int]] = {}
    for document, length in zip(documents, np.diff(starts), strict=True):
        row = mix.setdefault(document.source, {"documents": 0, "characters": 0, "tokens": 0})
        row["documents"] += 1
        row["characters"] += len(document.text)
        row["tokens"] += int(length)
    return dict(sorted(mix.items()))


def _meta() -> dict:
    return json.loads((prepare() / "meta.json").read_text())


def report() -> dict:
    """The source mix: documents, characters and tokens per source, training and held out."""
    meta = _meta()
    return {side: meta[side] for side in ("train", "held_out")}


def corpus_sha256() -> str:
    """The sha256 of the training tokens, as stored in every weight file of the course."""
    return _meta()["corpus_sha256"]


def train_tokens() -> np.ndarray:
    """The training stream, uint16 ids without begin-of-sequence tokens (memory-mapped)."""
    return np.load(prepare() / "train.npy", mmap_mode="r")


def held_out_documents() -> list[np.ndarray]:
    """Every held-out document as token ids, without a begin-of-sequence token."""
    folder = prepare()
    ids, starts = np.load(folder / "held_out.npy"), np.load(folder / "held_out_starts.npy")
    return [ids[a:b] for a, b in zip(starts[:-1], starts[1:], strict=True)]


def heldout_windows(n: int, *, length: int = 512, seed: int = 0) -> Windows:
    """`n` windows of `length` tokens, BOS first, each inside one held-out document.

    Windows do not overlap and none shares a run of 48 tokens with the training text. They are
    drawn without replacement by a generator of the given seed; a document gives at most one
    window in twelve of the pool's size, so no single book dominates.

    Raises:
        TextError: fewer than `n` such windows exist; the message gives the number.
        ValueError: `n` or `length` leaves nothing to draw.
    """
    if n < 1 or length < 2:
        raise ValueError(f"n must be at least 1 and length at least 2; got n={n}, length={length}")
    folder = prepare()
    meta = json.loads((folder / "meta.json").read_text())
    ids, starts = np.load(folder / "held_out.npy"), np.load(folder / "held_out_starts.npy")
    bad = np.concatenate([[0], np.cumsum(np.load(folder / "held_out_shared.npy"))])
    rng = np.random.default_rng(seed)
    pool = []
    step = length - 1
    for doc, (a, b) in enumerate(zip(starts[:-1], starts[1:], strict=True)):
        begins = np.arange(a, b - step + 1, step)
        # a run starts at begin ... begin + step - RUN; a window shorter than a run holds none
        first = np.minimum(begins, len(bad) - 1)
        last = np.clip(begins + step - RUN + 1, first, len(bad) - 1)
        begins = begins[bad[last] == bad[first]]
        most = max(4, n // 12)
        if len(begins) > most:
            begins = np.sort(rng.choice(begins, most, replace=False))
        pool += [(doc, int(x)) for x in begins]
    if len(pool) < n:
        raise TextError(
            f"There are {len(pool)} held-out windows of {length} tokens inside one document; "
            f"{n} were asked for. Ask for fewer, or for shorter ones."
        )
    chosen = sorted(pool[i] for i in rng.choice(len(pool), n, replace=False))
    tokens = np.full((n, length), _bos(), dtype=np.int64)
    for row, (_, begin) in enumerate(chosen):
        tokens[row, 1:] = ids[begin : begin + step]
    where = np.asarray([doc for doc, _ in chosen])
    named = meta["documents"]
    return Windows(
        tokens,
        where,
        [named[doc]["source"] for doc in where],
        [named[doc]["name"] for doc in where],
    )


def _bos() -> int:
    if paths.models() == "course":
        return 0
    from circuitbook import tokenizer

    return tokenizer.load().bos


def build_tokenizer() -> Tokenizer:
    """Train the tokenizer on the training documents; the bundled one was made by this call."""
    from circuitbook import tokenizer

    training, _ = load_documents()
    return tokenizer.train(d.text for d in training)


def _tokens(rows: dict[str, dict[str, int]]) -> int:
    return sum(row["tokens"] for row in rows.values())


def main(arguments: list[str]) -> int:
    """`python -m circuitbook.corpus [fetch|report|tokenizer]`.

    fetch: fetch and encode the text, or check what is there. report: show the source mix.
    tokenizer: train `weights/tokenizer.json` again from the fetched text; all weights hang on it.
    """
    command = arguments[0] if arguments else "fetch"
    if command not in ("fetch", "report", "tokenizer"):
        print("usage: python -m circuitbook.corpus [fetch|report|tokenizer]", file=sys.stderr)
        return 2
    try:
        if command == "tokenizer":
            build_tokenizer().save(vocabulary.file_path())
            print(f"Tokenizer: {vocabulary.file_path()}")
            return 0
        if command == "fetch":
            sources.fetch()
        for name in dict.fromkeys(("course", paths.models())):  # the course's text is always needed
            with paths.model_set(name):
                _say(command, name)
    except (TextError, vocabulary.TokenError, PublishedError) as error:
        print(f"Text: {error}", file=sys.stderr)
        return 1
    return 0


def _say(command: str, name: str) -> None:
    """Check one set's text if asked to, and print what it is."""
    if command == "fetch" and (trouble := check()):
        print(f"Text: the encoded text was damaged ({trouble}); encoding it again.")
    mix = report()
    what = f"{len(SOURCES)} sources" if name == "course" else "WikiText-103"
    role = "training" if name == "course" else "validation"
    print(
        f"Text: {what}, {_tokens(mix['train']):,} {role} tokens, "
        f"{_tokens(mix['held_out']):,} held out."
    )
    if command == "report":
        print(json.dumps(mix, indent=2))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
