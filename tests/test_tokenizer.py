"""Any text round-trips, one begin-of-sequence token, one token for each course word."""

import json
import random

import numpy as np
import pytest
import torch

from circuitbook import names, paths, tokenizer, vocabulary
from circuitbook.tokenizer import BOS, TokenError


@pytest.fixture(scope="module")
def tok():
    return tokenizer.load()


def unicode_texts(n, seed=0):
    """Random texts from every corner of Unicode, lone surrogates aside."""
    rng = random.Random(seed)
    corners = [(0, 31), (32, 126), (127, 255), (0x300, 0x36F), (0x400, 0x4FF), (0x5D0, 0x6FF)]
    corners += [(0x200B, 0x200F), (0x2000, 0x206F), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3)]
    corners += [(0xE000, 0xF8FF), (0xFE00, 0xFFFF), (0x1F300, 0x1FAFF), (0x10000, 0x10FFFF)]
    for _ in range(n):
        some = rng.choices(corners, k=rng.randint(1, 4)) + [(32, 126)]
        letters = (chr(rng.randint(*rng.choice(some))) for _ in range(rng.randint(0, 40)))
        yield "".join(letters)


# ---- round trip


def test_any_unicode_text_round_trips(tok):
    for text in unicode_texts(2000):
        ids = tok.encode(text)
        assert tok.decode(ids) == text, ascii(text)
        assert ids[0] == tok.bos and tok.bos not in ids[1:]
        assert all(0 <= i < tok.vocab_size for i in ids)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "\x00\x01\x7f\r\n\t",
        "  two  blanks  ",
        "naïve café e\u0301",
        "漢字かな交じり文",
        "👩‍👩‍👧‍👦 🏳️‍🌈 \U0010ffff",
        "\u202eright to left\ufeff\ufffd",
        "1234567890 ٣٤٥ ½ ²",
    ],
)
def test_hard_texts_round_trip(tok, text):
    assert tok.decode(tok.encode(text)) == text
    assert tok.decode(tok.encode(text, bos=False)) == text


def test_half_a_surrogate_pair_is_refused_in_words(tok):
    for text in ("\ud800", "ab\udfffcd", "\udc00\ud800"):
        for call in (tok.encode, tok.pieces, tok.token, lambda t: tok.encode_many(["a", t])):
            with pytest.raises(TokenError, match=r"U\+D.*half a\s+surrogate pair.*UTF-8"):
                call(text)


def test_many_is_one_by_one(tok):
    texts = list(unicode_texts(50, seed=1))
    assert tok.encode_many(texts) == [tok.encode(text, bos=False) for text in texts]


# ---- the begin-of-sequence token


def test_bos_opens_once_and_has_no_spelling(tok):
    assert tok.bos == 0 and tok.encode("Hi")[0] == 0 and tok.encode("") == [0]
    for text in (BOS, f"{BOS}Hi", f"Hi{BOS}", f" {BOS}{BOS}\n{BOS}", BOS[:-1], "<" + BOS):
        ids = tok.encode(text)
        assert ids.count(0) == 1 and ids[0] == 0, "the text of BOS is spelled out"
        assert tok.encode(text, bos=False).count(0) == 0
        assert tok.decode(ids) == text
        assert 0 not in tok.encode_many([text])[0]
    assert len(tok.pieces(BOS)) > 1 and "".join(tok.pieces(BOS)) == BOS
    assert tok.token(BOS) == 0 and tok.text(0) == BOS  # by its name one may ask for it


def test_decode_drops_bos_and_takes_any_ids(tok):
    assert tok.decode([0, *tok.encode("Aunt", bos=False), 0]) == "Aunt"
    rng = random.Random(0)
    for _ in range(500):
        ids = [rng.randrange(tok.vocab_size) for _ in range(rng.randrange(20))]
        assert isinstance(tok.decode(ids), str)
    assert tok.decode([tok.encode("é", bos=False)[0]] * 2).isprintable()
    ids = tok.encode("any kind of integer")
    assert tok.decode(np.asarray(ids, dtype=np.uint16)) == tok.decode(ids)
    assert tok.decode(torch.tensor(ids)) == tok.decode(ids)
    for bad in (-1, tok.vocab_size, 2**40):
        with pytest.raises(TokenError, match="outside 0..4095"):
            tok.decode([5, bad])
        with pytest.raises(TokenError, match="outside 0..4095"):
            tok.text(bad)


# ---- words and pieces


def test_digits_stand_alone(tok):
    assert tok.pieces("1990 12.5") == ["1", "9", "9", "0", " ", "1", "2", ".", "5"]
    for text in vocabulary.texts():
        assert text.startswith("<0x") or len(text) == 1 or not any(map(str.isdigit, text))


def test_every_course_word_is_one_token(tok):
    assert len(names.NAMES) >= 40 and len(set(names.SINGLE_TOKENS)) == len(names.SINGLE_TOKENS)
    for word in names.SINGLE_TOKENS:
        assert word.startswith(" ") and tok.decode([tok.token(word)]) == word
        # also inside a sentence
        assert tok.token(word) in tok.encode(f"We saw{word}.")
    for word in (" Aunt", " Uncle", " Sally", " Mary", " Monday", " March", " Mr"):
        assert word in names.SINGLE_TOKENS


def test_token_says_what_went_wrong(tok):
    with pytest.raises(TokenError, match=r"'Sally' is \d tokens.*But ' Sally' is one token"):
        tok.token("Sally")
    with pytest.raises(TokenError, match=r"' x' is 2 tokens|' qzx' is \d tokens, not one: \['"):
        tok.token(" qzx")
    with pytest.raises(TokenError, match="'' is 0 tokens"):
        tok.token("")
    with pytest.raises(TokenError, match=r"'12' is 2 tokens, not one: \['1', '2'\]"):
        tok.token("12")


def test_pieces_are_readable(tok):
    assert (
        "".join(tok.pieces("Aunt Sally said: it's 5 o'clock")) == "Aunt Sally said: it's 5 o'clock"
    )
    assert tok.pieces("\u0bb5") == ["<0xE0>", "<0xAE>", "<0xB5>"]  # a letter seldom seen


def test_plain_vocabulary_agrees_with_the_library(tok):
    assert vocabulary.texts() == [tok.text(v) for v in range(tok.vocab_size)]
    assert len(set(vocabulary.texts())) == tok.vocab_size == vocabulary.VOCABULARY == 4096
    for v in range(1, tok.vocab_size):
        lossy = tok._backend.decode([v])  # the library's own spelling
        assert "\ufffd" in lossy or lossy == tok.text(v)


# Made with the bundled tokenizer. Another tokenizer makes all weights stale: change both or none.
GOLDEN = {
    "Aunt Sally": [0, 3126, 4018],
    "When Mary and John went to the store, John gave a drink to Mary": [
        *[0, 1905, 2940, 292, 2690, 1413, 306, 265, 3047, 12],
        *[2690, 2264, 261, 2489, 306, 2940],
    ],
    "Mr and Mrs Dursley, of number 4": [
        *[0, 45, 82, 292, 4094, 481, 324, 83, 3350, 12, 289, 1287, 221, 20],
    ],
    "    def __init__(self):\n        return None\n": [
        *[0, 266, 435, 1010, 1237, 1110, 402, 406, 305, 425, 668, 199],
    ],
    "To be, or not to be": [0, 753, 331, 12, 442, 359, 306, 331],
    " Monday Tuesday 2024": [0, 4040, 4042, 221, 18, 16, 18, 20],
    "naïve 漢 🙂": [0, 2673, 128, 108, 329, 221, 163, 121, 96, 221, 173, 254, 248, 225],
}


@pytest.mark.parametrize("text", GOLDEN)
def test_golden_ids(tok, text):
    assert tok.encode(text) == GOLDEN[text]


# ---- files


def test_ids_are_stable_across_save_and_load(tok, tmp_path):
    path = tmp_path / "again.json"
    tok.save(path)
    assert path.read_bytes() == vocabulary.file_path().read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["again.json"]
    again = tokenizer.Tokenizer.from_file(path)
    for text in unicode_texts(100, seed=2):
        assert again.encode(text) == tok.encode(text)


@pytest.mark.parametrize("read", [tokenizer.Tokenizer.from_file, vocabulary.texts])
def test_a_missing_or_damaged_file_is_named(read, tmp_path):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(TokenError, match=f"no tokenizer at {path}. Restore it: git checkout"):
        read(path)
    whole = vocabulary.file_path().read_text()
    for damaged in (whole[: len(whole) // 2], "", "{}", "[]", '{"model": {"vocab": {"a": 7}}}'):
        path.write_text(damaged)
        with pytest.raises(TokenError, match="not a readable tokenizer.*git checkout"):
            read(path)


def test_another_vocabulary_is_refused(tmp_path):
    data = json.loads(vocabulary.file_path().read_text())
    vocab = data["model"]["vocab"]
    data["model"]["merges"].pop()
    del vocab[max(vocab, key=vocab.get)]
    path = tmp_path / "t.json"
    path.write_text(json.dumps(data))
    with pytest.raises(TokenError, match="4095 entries, 4096 were expected"):
        tokenizer.Tokenizer.from_file(path)


def test_load_follows_the_project(project, tok):
    with pytest.raises(TokenError, match="git checkout"):
        tokenizer.load()
    paths.WEIGHTS.mkdir()
    tok.save(paths.WEIGHTS / vocabulary.FILE)
    assert tokenizer.load().encode("a") == tok.encode("a")


# ---- training


def some_text(seed=0):
    """Invented words, frequent and rare, enough to learn 4,096 tokens from."""
    rng = random.Random(seed)
    syllables = [a + b for a in "bcdfghklmnprstvwz" for b in ("a", "e", "i", "o", "u", "an", "er")]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(9000)]
    for _ in range(60):
        yield " ".join(rng.choices(words[:500], k=200) + rng.choices(words, k=400))


def test_training_twice_gives_the_same_bytes(tmp_path):
    trained = [tokenizer.train(some_text()) for _ in range(2)]
    for i, one in enumerate(trained):
        assert one.vocab_size == 4096
        assert all(len(one.encode(word, bos=False)) == 1 for word in names.SINGLE_TOKENS)
        one.save(tmp_path / f"{i}.json")
    assert (tmp_path / "0.json").read_bytes() == (tmp_path / "1.json").read_bytes()
    for text in unicode_texts(100, seed=3):
        assert trained[0].decode(trained[0].encode(text)) == text


def test_too_little_text_is_said():
    with pytest.raises(TokenError, match="Train on more text"):
        tokenizer.train(iter(["to be or not to be"]))
