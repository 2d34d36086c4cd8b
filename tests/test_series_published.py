"""The column of the published models: judged with trained weights, only shown with random ones."""

import itertools
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


def parts(id):
    """Name of a part → (published, mark), of one entry."""
    for section in page.build().sections:
        lines = iter(section.lines)
        if any(line.id == id for line in lines):  # goes on behind the entry's own line
            inside = itertools.takewhile(lambda x: x.depth, lines)
            return {x.label: (x.published, x.verdict) for x in inside}
    raise LookupError(id)


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
    assert {mark for _, mark in parts("part7.icl.attn-only-2l").values()} == {""}


# Losses, how often neurons fire, and the head that repeats of the text's own words point at.
ON_TEXT = {
    "part7.neuron.847", "part7.neuron.1996", "heads.attn-only-2l.ov_1.6",
    *(f"part7.icl.{m}" for m in ("attn-only-1l", "attn-only-2l", "gelu-1l", "gelu-2l", "gpt2")),
}  # fmt: skip


def test_what_reads_no_text_is_judged_on_another_text_too(shelf):
    shelf(local=True)
    unjudged = {id for id in model_rows() if head(id).state == "random"}
    assert unjudged == ON_TEXT
    judged = ("part7.aunt_sally.attn-only-2l.top5", "heads.attn-only-2l.k_composition")
    assert {head(id).verdict for id in judged} == {"published weights: within tolerance"}
    shelf(local=True, edit=("part7.aunt_sally.attn-only-1l.p_sally", lambda p: p + 0.1))
    assert head("part7.aunt_sally.attn-only-1l.p_sally").state == "off"
    shelf(local=True, random=True)
    assert {head(id).state for id in model_rows()} == {"random"}


def test_a_chapters_own_measure_reads_the_text_where_the_public_one_does_not(shelf, tmp_path):
    shelf(local=True)
    path = tmp_path / "results" / "published" / "02_toy.json"
    saved = json.loads(path.read_text(encoding="utf-8"))
    given = {k: [float(x) for x in saved["data"]["series"].pop(f"heads.attn-only-1l.{k}")]
             for k in ("ov_eigen_score", "self_top1", "prev_token")}  # fmt: skip
    table = {"score": given["ov_eigen_score"], "all1": given["self_top1"]}
    saved["data"]["copying"] = {"attn-only-1l": table}
    saved["data"]["offsets"] = {"attn-only-1l": {"text_previous": given["prev_token"]}}
    path.write_text(json.dumps(saved), encoding="utf-8")
    found = {k: head(f"heads.attn-only-1l.{k}").state for k in given}
    assert found == {"ov_eigen_score": "ok", "self_top1": "ok", "prev_token": "random"}


def test_every_row_says_what_it_reads_in_known_words_and_why_it_only_shows():
    rows = [row for subject in page.SUBJECTS for row in subject.rows]
    assert {row.reads for row in rows} == {"text", "tokens", "nothing"}
    assert all(row.remark for row in rows if row.shown)


def test_the_parts_of_a_published_row_bear_its_marks(shelf):
    shelf(edit=("heads.gpt2.induction", lambda v: v | {"6.9": 0.8}))
    found = parts("heads.gpt2.induction")
    assert {k: mark for k, (_, mark) in found.items()} == {
        "head 5.5": "agrees", "head 6.9": "differs", "head 5.1": "agrees", "head 7.10": "agrees",
        "head 7.2": "agrees",
    }  # fmt: skip
    neuron = parts("part7.neuron.847")
    assert [neuron[k][1] for k in ("raises", "largest activation")] == ["agrees", ""]
    icl = parts("part7.icl.gelu-2l")
    assert [icl[k][1] for k in ("score", "broad score")] == ["agrees", ""]
    shelf(random=True)
    assert {mark for _, mark in parts("heads.gpt2.induction").values()} == {""}


def test_one_more_decimal_is_shown_where_the_two_are_judged(shelf):
    shelf(edit=("part7.neuron.1996", lambda v: {
        "fires_above_0.1": 0.04267, "max": 6.0567, "reads": v["reads"],
        "writes": [[word, x + 0.0046] for word, x in v["writes"]],
    }))  # fmt: skip
    found = parts("part7.neuron.1996")
    assert found["largest activation"] == ("6.06", "")
    assert found["raises"][0].startswith("␣ATT\u00a01.445, ") and found["raises"][1] == "agrees"


def test_fields_that_cannot_be_the_same_are_shown_and_not_judged(shelf, tmp_path):
    def stated(listed):  # a tolerance would not make other templates the same
        next(e for e in listed if e["id"] == "gallery.ioi").update(tol=0.05)

    toys.change_reference(tmp_path, stated)

    def ours(value):
        numbers = {k: v for k, v in value.items() if isinstance(v, float)}
        return numbers  # without the lists of heads, which are theirs

    for id in ("gallery.greater_than", "gallery.ioi", "gallery.ioi.self_repair"):
        for change in (0.0, 9.0):  # our templates, so nothing is judged, however far it is
            shelf(edit=(id, lambda v, c=change: {k: x + c for k, x in ours(v).items()}))
            found = head(id)
            assert found.state == "shown"
            assert found.verdict == "published weights: shown, not judged (see the note)"
            assert {mark for _, mark in parts(id).values()} == {""}
    gallery = next(s for s in page.build().sections if "gpt2" in s.title)
    noted = [n for text, names in gallery.notes if "our templates" in text for n in names]
    assert len(noted) == 3 and "self-repair (logit difference)" in noted
    shelf(edit=("part7.neuron.847", lambda v: v | {"max": v["max"] + 1}))
    assert head("part7.neuron.847").verdict == "published weights: agrees where judged"
    shelf(edit=("part7.neuron.847", lambda v: v | {"writes": v["writes"][::-1]}))
    assert head("part7.neuron.847").state == "off"
