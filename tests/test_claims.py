"""Claims: no number typed by hand, and verdicts that follow from the stored numbers."""

import numpy as np
import pytest

from circuitbook.claims import (
    all_of,
    atleast,
    atmost,
    between,
    bound,
    claim,
    close,
    equal,
    recheck,
    show,
)


def make(text="It is {value:.2f}.", holds=None, label="measurement", id="toy.a", **values):
    return claim(id, text, label=label, holds=holds or atleast(0.8, 0.5), values=values)


def test_a_claim_is_plain_data_with_its_sentence():
    c = make("Head {head} of `attn-only-2l`: {value:.1f}, asked {bound}.", head=np.int64(3))
    assert c["sentence"] == "Head 3 of `attn-only-2l`: 0.8, asked 0.5."
    assert c["values"] == {"head": 3} and c["holds"] is True and c["label"] == "measurement"
    assert recheck(c) == ""


@pytest.mark.parametrize(
    "text",
    ["It is 0.86.", "It is {value:.2f}, about 1.", "Head 3 copies.", "{value} of 8", "x2 {value}"],
)
def test_a_digit_typed_by_hand_is_refused(text):
    with pytest.raises(ValueError, match="typed by hand"):
        make(text)


@pytest.mark.parametrize(
    "text",
    ["`W_OV` of `gelu-1l` has {value}.", "Layer 0 and layer 1.", "Chapter 2, order 1, top-10.",
     "In float32.", "Top 1 share"],
)  # fmt: skip
def test_names_with_digits_are_allowed(text):
    assert make(text)["holds"]


@pytest.mark.parametrize("text", ["{missing}", "{value.real}", "{values[0]}", "{}", "{value:{x}}"])
def test_placeholders_are_plain_names_of_values(text):
    with pytest.raises(ValueError, match=r"toy\.a"):
        make(text, values=1)


@pytest.mark.parametrize(
    "wrong",
    [{"id": "NoDot"}, {"id": "Toy.a"}, {"label": "proof"}, {"text": "{value:.2q}"}],
)
def test_bad_ids_labels_and_formats_are_refused(wrong):
    with pytest.raises(ValueError):
        make(**wrong)


def test_values_are_finite_numbers_or_words():
    with pytest.raises(ValueError, match="finite"):
        make("{x}", x=float("nan"))
    with pytest.raises(TypeError, match="one number"):
        make("{x}", x=[1, 2])
    with pytest.raises(TypeError, match="comparison"):
        claim("toy.a", "Yes.", label="identity", holds={"value": 1})
    assert make("The word is {word}.", word=" Aunt 7")["sentence"] == "The word is  Aunt 7."


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (atleast(1, 1), atleast(0.99, 1)),
        (atmost(1, 1), atmost(1.01, 1)),
        (between(1, 1, 2), between(2.1, 1, 2)),
        (close(1.0, 1.1, 0.11), close(1.0, 1.2, 0.11)),
        (close(1.2, 1.1, 0.11), close(1.3, 1.1, 0.11)),
        (equal("a", "a"), equal("a", "b")),
        (bound(-1e-6, 1e-5), bound(-1e-4, 1e-5)),
        (all_of(atleast(2, 1), atmost(1, 1)), all_of(atleast(2, 1), atmost(2, 1))),
    ],
)
def test_comparisons(good, bad):
    assert good["ok"] is True and bad["ok"] is False
    for test in (good, bad):
        assert recheck(make("Yes.", holds=test)) == ""


def test_the_stored_number_is_the_one_compared():
    test = atleast(0.69999999, 0.7)
    assert test["value"] == 0.7 and test["ok"] is True


def test_comparisons_refuse_what_is_not_a_number():
    for bad in (float("nan"), True, "1", [1.0]):
        with pytest.raises((TypeError, ValueError)):
            atleast(bad, 0)
    with pytest.raises(TypeError, match="close"):
        equal(1.0, 1.0)
    with pytest.raises(ValueError):
        all_of()


@pytest.mark.parametrize("key", ["sentence", "holds", "value"])
def test_an_edited_claim_is_found(key):
    c = make()
    if key == "value":
        c["test"]["value"] = 0.1
    else:
        c[key] = "It is 0.90." if key == "sentence" else False
    assert recheck(c)


def test_show_prints_label_and_state(capsys):
    class R:
        chapter = "98_toy"
        claims = {"toy.a": make(), "toy.b": make(holds=atleast(0.1, 0.5), id="toy.b")}

    show(R, "toy.a")
    assert capsys.readouterr().out == "[measurement · holds] It is 0.80.\n"
    show(R)
    assert "FAILS] It is 0.10." in capsys.readouterr().out
    with pytest.raises(KeyError, match=r"toy\.a, toy\.b"):
        show(R, "toy.c")


def test_a_long_claim_is_printed_in_lines_that_fit_a_page(capsys):
    long = make("It is {value:.2f}" + ", said once more" * 20 + ".")

    class R:
        chapter = "98_toy"
        claims = {"toy.a": long}

    show(R)
    first, *rest = capsys.readouterr().out.splitlines()
    assert len(rest) > 2 and max(map(len, (first, *rest))) <= 100
    assert first.startswith("[measurement") and all(line.startswith("  ") for line in rest)
    assert " ".join([first, *(line.strip() for line in rest)]).count(", said once more") == 20
