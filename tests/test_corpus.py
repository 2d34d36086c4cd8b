"""The encoded text: enough of it, whole or absent, and windows inside single documents."""

import functools
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from circuitbook import corpus, documents, paths, tokenizer, vocabulary
from circuitbook.documents import Document
from circuitbook.sources import TextError
from circuitbook.vocabulary import TokenError

text = pytest.mark.text
BUNDLED = vocabulary.file_path()


# ---- the course's text


@text
def test_enough_training_tokens_and_a_mixed_diet():
    mix = corpus.report()
    train = {source: row["tokens"] for source, row in mix["train"].items()}
    assert sum(train.values()) == len(corpus.train_tokens()) >= 8_000_000
    assert set(train) == {"encyclopaedia", "plays", "scripture", "manuals", "code"}
    assert all(0.05 < n / sum(train.values()) < 0.45 for n in train.values())
    assert set(mix["held_out"]) == set(train), "every kind of text is held out too"
    held_out = sum(row["tokens"] for row in mix["held_out"].values())
    assert held_out == sum(map(len, corpus.held_out_documents())) > 300_000
    assert all(row["documents"] > 0 for side in mix.values() for row in side.values())


@text
def test_the_stream_is_plain_text_without_bos():
    stream = corpus.train_tokens()
    assert stream.dtype == np.uint16
    assert 0 < stream.min() and stream.max() < tokenizer.VOCABULARY
    assert len(corpus.corpus_sha256()) == 64
    opening = tokenizer.load().decode(stream[:300])
    assert opening.isprintable() or "\n" in opening


@text
@pytest.mark.parametrize("length", [512, 130, 20])
def test_windows(length):
    windows = corpus.heldout_windows(60, length=length, seed=1)
    assert windows.tokens.shape == (60, length) and windows.tokens.dtype == np.int64
    assert (windows.tokens[:, 0] == 0).all() and (windows.tokens[:, 1:] > 0).all()
    own = corpus.held_out_documents()
    spans = {}
    for row, doc in zip(windows.tokens[:, 1:].astype(np.uint16), windows.doc, strict=True):
        whole = own[doc].tobytes()
        place = whole.find(row.tobytes())
        while place % 2:  # not at a token's beginning
            place = whole.find(row.tobytes(), place + 1)
        assert place >= 0, "a window lies inside its one document"
        spans.setdefault(int(doc), []).append(place // 2)
    for starts in spans.values():
        assert (np.diff(sorted(starts)) >= length - 1).all(), "windows do not overlap"
    documents_named = json.loads((corpus.prepare() / "meta.json").read_text())["documents"]
    for doc, source, name in zip(windows.doc, windows.source, windows.names, strict=True):
        assert documents_named[doc] == {"source": source, "name": name}
    assert len(set(windows.source)) >= 3
    assert max(map(len, spans.values())) <= max(4, 60 // 12), "no single book dominates"


@text
def test_windows_are_a_function_of_the_seed():
    a, again, b = (corpus.heldout_windows(20, seed=s) for s in (3, 3, 4))
    assert (a.tokens == again.tokens).all() and (a.doc == again.doc).all()
    assert not (a.tokens == b.tokens).all()


@text
def test_too_many_windows_and_nonsense():
    with pytest.raises(TextError, match=r"There are \d+ held-out windows.*100000 were asked for"):
        corpus.heldout_windows(100_000)
    for n, length in ((0, 512), (-1, 512), (5, 1), (5, 0)):
        with pytest.raises(ValueError, match="at least"):
            corpus.heldout_windows(n, length=length)


@pytest.mark.parametrize("chunk", [1, 7, 100, 10_000])
def test_shared_runs_by_brute_force(monkeypatch, chunk):
    monkeypatch.setattr(corpus, "CHUNK", chunk)
    rng = np.random.default_rng(0)
    train, held = (rng.integers(0, 3, n).astype(np.uint16) for n in (400, 300))
    held[100:140] = train[50:90]
    run = 12
    seen = {tuple(train[i : i + run]) for i in range(len(train) - run + 1)}
    slow = [tuple(held[i : i + run]) in seen for i in range(len(held) - run + 1)]
    assert corpus._shared_runs(held, train, run).tolist() == slow
    assert sum(slow) >= 29


# ---- a small text in a cache of its own


@functools.cache
def small_text():
    rng = np.random.default_rng(1)
    words = [f"w{i}" for i in range(300)]
    page = lambda: "\n".join(" ".join(rng.choice(words, 12)) for _ in range(12))  # noqa: E731  short
    return documents.split([Document("manuals", f"page {i}", page()) for i in range(60)])


def slow_text():
    (paths.CACHE / "started").touch()
    time.sleep(0.5)
    return small_text()


@pytest.fixture
def small(project, monkeypatch):
    """The corpus module on a small made-up text, with its cache in a temporary folder."""
    monkeypatch.delenv("CIRCUITBOOK_CACHE", raising=False)
    paths.WEIGHTS.mkdir()
    shutil.copy(BUNDLED, vocabulary.file_path())
    monkeypatch.setattr(corpus, "load_documents", small_text)
    paths.CACHE.mkdir()
    return paths.CACHE


def seen(cache):
    return sorted(p.name for p in cache.iterdir() if p.suffix != ".lock")


def test_the_folder_appears_whole(small):
    folder = corpus.prepare()
    assert seen(small) == [folder.name]
    names = ["held_out.npy", "held_out_shared.npy", "held_out_starts.npy", "meta.json", "train.npy"]
    assert sorted(p.name for p in folder.iterdir()) == names
    assert corpus.check() is None and corpus.prepare() == folder
    assert corpus.heldout_windows(3, length=100).tokens.shape == (3, 100)
    training, held_out = small_text()
    assert len(corpus.held_out_documents()) == len(held_out)
    tok = tokenizer.load()
    whole = tok.decode(corpus.train_tokens())
    assert sorted(whole.strip("\n").split("\n")) == sorted(
        line for d in training for line in d.text.split("\n")
    )


def test_a_build_that_fails_leaves_nothing(small, monkeypatch):
    def broken(*_):
        raise OSError("no space left")

    monkeypatch.setattr(corpus, "_shared_runs", broken)
    with pytest.raises(OSError, match="no space"):
        corpus.prepare()
    assert seen(small) == []


def _prepare_slowly():
    corpus.load_documents = slow_text
    corpus.prepare()


def test_a_killed_build_leaves_no_folder_and_the_next_one_clears_up(small, monkeypatch):
    fork = multiprocessing.get_context("fork")
    monkeypatch.setattr(corpus, "_shared_runs", lambda *a: time.sleep(60))
    process = fork.Process(target=corpus.prepare)
    process.start()
    deadline = time.monotonic() + 20
    while not list(small.glob(".new-*/held_out_starts.npy")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert [name[:5] for name in seen(small)] == [".new-"], "nothing under the final name"
    monkeypatch.undo()
    monkeypatch.setenv("CIRCUITBOOK_ROOT", str(small.parent))
    monkeypatch.delenv("CIRCUITBOOK_CACHE", raising=False)
    monkeypatch.setattr(corpus, "load_documents", small_text)
    assert seen(small) and corpus.prepare() and [n[:6] for n in seen(small)] == ["tokens"]


def test_two_processes_prepare_at_once(small):
    fork = multiprocessing.get_context("fork")
    both = [fork.Process(target=_prepare_slowly) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    assert seen(small) == ["started", corpus.prepare().name]


@pytest.mark.parametrize("name", ["train.npy", "held_out.npy", "held_out_shared.npy", "meta.json"])
def test_a_truncated_cache_file_is_noticed(small, name):
    folder = corpus.prepare()
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: len(data) - 20])
    corpus._sound.cache_clear()
    with pytest.raises(TextError, match="encoded text in .* is damaged.*Run `make text`"):
        corpus.train_tokens()
    assert corpus.check()
    assert corpus.prepare() == folder and (folder / name).read_bytes() == data


def test_a_changed_byte_is_noticed_by_the_full_check(small):
    path = corpus.prepare() / "train.npy"
    data = path.read_bytes()
    path.write_bytes(data[:-2] + b"\x07\x00")
    corpus._sound.cache_clear()
    assert corpus.prepare()  # lengths alone do not show it
    assert "sha256" in corpus.check()
    assert (corpus.prepare() / "train.npy").read_bytes() == data


def test_another_tokenizer_means_another_folder(small):
    first = corpus._folder()
    path = vocabulary.file_path()
    path.write_text(path.read_text() + "\n")
    assert corpus._folder() != first
    path.unlink()
    with pytest.raises(TokenError, match="git checkout"):
        corpus.prepare()


# ---- the command


def test_command_says_what_is_missing(small, monkeypatch, capsys):
    monkeypatch.undo()
    monkeypatch.setenv("CIRCUITBOOK_ROOT", str(small.parent))
    monkeypatch.delenv("CIRCUITBOOK_CACHE", raising=False)
    assert corpus.main(["report"]) == 1
    assert "is not in" in (said := capsys.readouterr().err) and "`make text`" in said
    assert corpus.main(["fletch"]) == 2
    assert "fetch|report" in capsys.readouterr().err


def test_command_mends_a_damaged_cache(small, monkeypatch, capsys):
    monkeypatch.setattr(corpus.sources, "fetch", lambda: [])
    path = corpus.prepare() / "held_out.npy"
    path.write_bytes(path.read_bytes()[:-2])
    corpus._sound.cache_clear()
    assert corpus.main(["fetch"]) == 0
    said = capsys.readouterr().out
    assert "was damaged" in said and "training tokens" in said
    assert corpus.main(["report"]) == 0
    assert '"manuals"' in capsys.readouterr().out


def test_reading_the_stream_needs_no_tokenizer_library(small):
    corpus.prepare()
    code = (
        "import sys; sys.modules['tokenizers'] = None\n"
        "from circuitbook import corpus\n"
        "print(len(corpus.train_tokens()), corpus.heldout_windows(2, length=99).tokens.shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == f"{len(corpus.train_tokens())} (2, 99)\n", done.stderr
