"""The column of the published models: judged with trained weights, only shown with random ones."""

import json

import pytest
import series_toys as toys

from circuitbook.series import page

NUMBERS = ("01", "02", "05", "06", "07", "09", "11")


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A toy project with course results, and a function that adds published ones."""
    monkeypatch.setenv("CIRCUITBOOK_ROOT", str(tmp_path))
    for switch in ("QUICK", "RECOMPUTE", "MODELS"):
        monkeypatch.delenv(switch, raising=False)
    toys.fill(tmp_path)

    def add(random=False, edit=None, local=False):
        values = {e["id"]: e["value"] for e in toys.reference()["entries"]}
        if edit is not None:
            values[edit[0]] = edit[1](values[edit[0]])
        for number in NUMBERS:
            envelope = {
                "schema": 1, "chapter": f"{number}_toy", "config": {}, "kinds": {}, "claims": [],
                "made_with": {"random_weights": random, "local_text": local},
                "data": {"series": values},
            }  # fmt: skip
            path = tmp_path / "results" / "published" / f"{number}_toy.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(envelope), encoding="utf-8")

    return add


def head(id):
    """The first line of an entry."""
    return next(x for s in page.build().sections for x in s.lines if x.id == id)


def model_rows():
    """Ids of the rows that are read from a published model."""
    return [r.id for s in page.SUBJECTS for r in s.rows if r.compared == "model"]


def test_every_row_of_a_model_finds_its_published_chapter(shelf):
    shelf()
    for id in model_rows():
        found = head(id)
        assert found.state in ("ok", "shown"), (id, found.verdict)
        assert found.published != "needs the hub"
        assert found.verdict.startswith("published weights: ")


def test_a_wrong_published_number_differs_and_the_command_goes_on(shelf, capsys):
    shelf(edit=("part7.aunt_sally.attn-only-2l.p_sally", lambda p: p - 0.006))
    assert head("part7.aunt_sally.attn-only-2l.p_sally").verdict == (
        "published weights: DIFFERS: by 0.006, allowed 0.005"
    )
    shelf(edit=("part7.aunt_sally.attn-only-2l.p_sally", lambda p: p - 0.004))
    assert head("part7.aunt_sally.attn-only-2l.p_sally").state == "ok"


def test_random_weights_are_shown_and_never_judged(shelf):
    shelf(random=True)
    for id in model_rows():
        found = head(id)
        assert found.state == "random" and "random weights: not judged" in found.verdict, id
    counts = page.build().counts
    assert counts["random"] == len(model_rows())


def test_the_public_protocol_goes_before_the_chapters_own_measure(shelf, tmp_path):
    shelf()
    path = tmp_path / "results" / "published" / "02_toy.json"
    saved = json.loads(path.read_text(encoding="utf-8"))
    own = [0.5] * 8
    saved["data"]["copying"] = {"attn-only-1l": {"score": own}}
    path.write_text(json.dumps(saved), encoding="utf-8")
    assert head("heads.attn-only-1l.ov_eigen_score").state == "ok"
    del saved["data"]["series"]["heads.attn-only-1l.ov_eigen_score"]
    path.write_text(json.dumps(saved), encoding="utf-8")
    found = head("heads.attn-only-1l.ov_eigen_score")
    assert found.state == "off" and "by 0.907" in found.verdict


def test_numbers_on_another_text_are_shown_and_never_judged(shelf):
    shelf(local=True)
    found = head("part7.icl.attn-only-2l")
    assert found.state == "random" and found.verdict == "measured on another text: not judged"


def test_fields_that_cannot_be_the_same_are_shown_and_not_judged(shelf):
    def ours(value):
        numbers = {k: v for k, v in value.items() if isinstance(v, float)}
        return numbers  # without the lists of heads, which are theirs

    shelf(edit=("gallery.greater_than", ours))
    found = head("gallery.greater_than")
    assert found.state == "ok" and found.verdict == "published weights: agrees where judged"
    shelf(edit=("gallery.greater_than", lambda v: ours(v) | {"prob_diff": v["prob_diff"] - 0.06}))
    assert head("gallery.greater_than").state == "off"
    shelf(edit=("part7.neuron.847", lambda v: v | {"max": v["max"] + 1}))
    assert head("part7.neuron.847").verdict == "published weights: agrees where judged"
    shelf(edit=("part7.neuron.847", lambda v: v | {"writes": v["writes"][::-1]}))
    assert head("part7.neuron.847").state == "off"
