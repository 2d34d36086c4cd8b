"""The page: every published number has a row, and a planted error turns the row and the status."""

import ast
import itertools
import json
import re

import pytest
import series_toys as toys

from circuitbook import paths, results
from circuitbook import series as package
from circuitbook.series import __main__ as command_line
from circuitbook.series import heads, markdown, page, show, webpage
from circuitbook.series.modelrows import SUBJECTS
from circuitbook.series.reference import entries
from circuitbook.series.rows import X, Y, hand_example
from circuitbook.series.verdict import fields
from circuitbook.series.words import COLUMNS

ROWS = [row for subject in SUBJECTS for row in subject.rows]


@pytest.fixture
def filled(project):
    """A project of its own where everything is as published."""
    toys.fill(project)
    return project


@pytest.fixture
def committed(monkeypatch):
    """The repository's own results, whatever switches this run was started with."""
    for name in ("QUICK", "RECOMPUTE", "CIRCUITBOOK_ROOT"):
        monkeypatch.delenv(name, raising=False)


def head(id, built=None):
    """The first line of an entry on the page."""
    built = built or page.build()
    return next(x for s in built.sections for x in s.lines if x.id == id)


def parts(id, built=None):
    """Name of a part → its line, of one entry."""
    for section in (built or page.build()).sections:
        lines = iter(section.lines)
        if any(line.id == id for line in lines):  # goes on behind the entry's own line
            return {x.label: x for x in itertools.takewhile(lambda x: x.depth, lines)}
    raise LookupError(id)


# ---- every number has its place ------------------------------------------------------------------


def test_every_published_number_has_one_row(committed):
    ids = [row.id for row in ROWS]
    assert sorted(ids) == sorted(e.id for e in entries())
    labels = [(s.title, row.label) for s in SUBJECTS for row in s.rows]
    assert len(set(labels)) == len(labels), "two rows of a table have one name"


def test_what_follows_from_algebra_is_judged_on_every_machine(committed):
    compared = {row.id: row.compared for row in ROWS}
    for e in entries():
        if e.kind in {"exact", "closed_form", "stochastic"}:
            own_tokenizer = e.id == "part7.aunt_sally.tokens"
            assert compared[e.id] == ("model" if own_tokenizer else "same"), e.id


def test_no_published_number_is_left_out_of_the_page(filled):
    built = page.build()
    assert built.problems == [] and sum(built.counts.values()) == len(entries())
    values, lines = {e.id: e.value for e in entries()}, {}
    for section in built.sections:
        for line in section.lines:
            group = lines.setdefault(line.id, []) if line.id else group
            group.append(line)
    for id, value in values.items():
        shown = [line.series for line in lines[id] if line.series]
        assert shown == [show.value(v) for _, v in fields(value)], id
    tables = [t for s in built.sections for t in s.tables if "series" in t.title]
    numbers = [x for t in tables for row in t.rows for x in row]
    long = [v for v in values.values() if show.long(v)]
    assert [float(x) for x in numbers] == [x for v in long for row in v for x in row]


def test_all_is_well_when_all_is_as_published(filled, capsys):
    code, out, err = toys.status(capsys)
    assert (code, err) == (0, "")
    assert head("part7.params.gelu-1l.mlp_share").course == "0.6665"
    assert head("part7.params.gelu-1l.mlp_share").verdict == "within tolerance"
    assert head("part7.frobenius.norm_XY").course == "3.1623"
    assert head("part7.toy.S0.9").verdict == "agrees where judged"
    assert head("part7.aunt_sally.tokens").verdict == "another model: not judged"
    assert head("part7.neuron.847").verdict == head("gallery.ioi").published == "needs the hub"
    lines = [x for s in page.build().sections for x in s.lines]
    assert {x.state for x in lines if x.id} == {"ok", "shown", "other", "hub"}
    state = ""
    for line in lines:
        state = line.state if line.id else state
        marked = bool(not line.id and line.verdict)
        may = state == "ok" or (state, line.verdict) == ("shown", "same")
        assert may or not marked, f"{line.label} of another model bears a mark"


# ---- planted errors ------------------------------------------------------------------------------


def longer(value):
    return value | {"norms": value["norms"][:4]}


@pytest.mark.parametrize(
    "id, edit, code, words",
    [
        ("part7.params.gpt2.mlp", lambda v: v - 1, 1, "DIFFERS: by 1, allowed 0"),
        ("part7.gelu.sum", lambda v: 0.6838, 1, "DIFFERS: by 0.0008, allowed 0.0005"),
        ("part7.gelu.at_0", lambda v: 1e-5, 1, "DIFFERS: by 1e-05, allowed 0"),
        ("part7.icl_by_hand", lambda v: v | {"score": 0.5}, 1, "DIFFERS: score by 1"),
        ("part7.toy_one_dim", lambda v: v | {"out": v["in"]}, 1, "DIFFERS: output by 0.4"),
        ("part7.sae_by_hand", lambda v: v | {"f": [0.4]}, 1, "has another shape"),
        ("part7.sae_by_hand", lambda v: {}, 1, "DIFFERS: direction d is missing"),
        ("part7.gelu.at_1", lambda v: float("nan"), 1, "DIFFERS: is no number"),
        ("part7.toy.S0.7", lambda v: v | {"represented": 3}, 0, "DIFFERS: represented by 1"),
        ("part7.toy.S0.9", lambda v: v | {"loss": 0.03}, 0, "DIFFERS: loss by 0.0083"),
        ("part7.toy.S0.9.echo", lambda v: v | {"leak_after_bias": [0, 0.18]}, 0, "by 0.14"),
        ("part7.toy40", lambda v: v | {"off": 0.9}, 0, "DIFFERS: share of the time off by 0.05"),
        ("part7.sae40", lambda v: v | {"steps": 5000}, 0, "DIFFERS: steps by 1e+04"),
        ("part7.aunt_sally.tokens", lambda v: 19, 0, "another model: not judged"),
        ("part7.icl.gelu-1l", lambda v: v | {"score": 9.0}, 0, "another model: not judged"),
    ],
)
def test_a_planted_error_turns_its_row(filled, capsys, id, edit, code, words):
    toys.change(filled, id, edit)
    found, out, err = toys.status(capsys)
    assert found == code
    assert words in head(id).verdict
    assert (id in err) == bool(code)
    line = head(id)
    assert line.state == ("other" if "another model" in words else "off")
    text = (filled / "results" / "comparison.md").read_text(encoding="utf-8")
    assert words.replace("_", "\\_") in text
    if line.state == "off":
        assert "differ" in out and "✗ DIFFERS" in text


@pytest.mark.parametrize(
    "id, edit, words",
    [
        ("part7.aunt_sally.tokens", lambda v: 14, "published weights: DIFFERS: by 1"),
        ("part7.aunt_sally.attn-only-1l.p_sally", lambda v: 0.3, "DIFFERS: by 0.006"),
        ("part7.aunt_sally.attn-only-2l.head", lambda v: ["1.5", 0.4], "another word"),
        ("part7.neuron.847", lambda v: v | {"writes": v["writes"][1:]}, "DIFFERS: raises has"),
        ("part7.icl.gelu-2l", lambda v: v | {"score": 0.5}, "DIFFERS: score by 1.52"),
    ],
)
def test_published_weights_are_judged_when_they_are_there(filled, id, edit, words):
    for number, series in toys.values().items():
        toys.write(filled, "published", number, series)
    good = head(id)
    assert good.verdict.startswith("published weights: ") and good.state == "ok"
    toys.change(filled, id, edit, "published")
    assert words in head(id).verdict and head(id).state == "off"


def test_equal_settings_are_no_agreement_and_other_settings_differ(filled, capsys):
    found = head("part7.sae40")
    assert (found.state, found.verdict) == (
        "shown", "same settings; no tolerance is stated for what came out"
    )  # fmt: skip
    assert head("part7.toy40").verdict == "agrees where judged", "its loss is judged"
    assert "35 agree; 1 shown, not judged;" in toys.status(capsys)[1]
    marks = {name: line.verdict for name, line in parts("part7.toy40").items()}
    assert marks["features"] == marks["dimensions"] == "same"
    assert marks["represented"] == marks["loss"] == "agrees"
    toys.change(filled, "part7.sae40", lambda v: v | {"batch": 1024})
    assert head("part7.sae40").state == "off"
    assert parts("part7.sae40")["batch"].verdict == "differs"


def test_what_the_run_came_to_is_an_outcome_and_no_setting(filled):
    def only(listed):
        new = next(e for e in listed if e["id"] == "part7.toy40")
        del new["tol"]

    toys.change_reference(filled, only)
    assert head("part7.toy40").verdict == "agrees where judged", "40 are represented in either"


def test_a_row_says_what_cannot_be_told(filled):
    for number, series in toys.values().items():
        toys.write(filled, "published", number, series)
    wide = {m for m in ("attn-only-1l", "attn-only-2l", "gelu-1l", "gelu-2l", "gpt2")
            if head(f"part7.icl.{m}").state == "shown"}  # fmt: skip
    assert wide == {"attn-only-1l", "gelu-1l", "gpt2"}
    found = head("part7.icl.gpt2")
    assert found.verdict == "published weights: too wide to tell: zero would agree as well"
    shown = parts("part7.icl.gpt2")
    assert {line.verdict for line in shown.values()} == {""}
    assert shown["± (read as one standard error)"].series == "0.225"
    toys.change(filled, "part7.icl.gpt2", lambda v: v | {"score": 0.5}, "published")
    assert "DIFFERS: score by 0.953" in head("part7.icl.gpt2").verdict


def test_what_was_given_is_not_said_to_be_computed(filled):
    erratum = next(s for s in page.build().sections if "erratum" in s.title)
    said = dict(erratum.notes)
    assert said["the example's input: given, not computed"] == ["X, row by row", "Y, row by row"]
    assert said["computed by this page"] == ["eigenvalues of XY", "eigenvalues of YX"]


def test_a_wrong_norm_in_a_claim_is_seen(filled):
    path = next((filled / "results" / "course").glob("05_*.json"))
    saved = json.loads(path.read_text(encoding="utf-8"))
    claim = next(c for c in saved["claims"] if c["id"] == "compose.norms_of_xy")
    claim["values"]["xy"] = 18.0  # the slip: XY has the size of YX
    path.write_text(json.dumps(saved), encoding="utf-8")
    assert head("part7.frobenius.norm_XY").state == "off"
    assert head("part7.frobenius.norm_YX").state == "ok"


def test_a_number_without_a_row_fails(filled, capsys):
    new = {"id": "part8.new", "value": 1, "kind": "exact", "source": "series part 8"}
    toys.change_reference(filled, lambda listed: listed.append(new))
    code, _, err = toys.status(capsys)
    assert code == 1 and "part8.new has no row" in err


def test_a_row_without_a_number_fails(filled, capsys):
    toys.change_reference(filled, lambda listed: listed.pop(0))
    code, _, err = toys.status(capsys)
    assert code == 1 and f"{entries_first()} has a row, but no published number" in err


def entries_first():
    return toys.reference()["entries"][0]["id"]


def test_an_unknown_kind_is_said_and_fails(filled, capsys):
    toys.change_reference(filled, lambda listed: listed[0].update(kind="guess"))
    code, _, err = toys.status(capsys)
    assert code == 1 and "the kind 'guess' is not known" in err
    assert head(entries_first()).state == "unknown"


@pytest.mark.parametrize(
    "edit, words",
    [
        (lambda listed: listed.append(dict(listed[3])), "stands there twice"),
        (lambda listed: listed[3].pop("source"), "cannot be read"),
        (lambda listed: listed[3].update(colour="red"), "cannot be read"),
    ],
)
def test_a_damaged_reference_is_named(filled, capsys, edit, words):
    toys.change_reference(filled, edit)
    code, _, err = toys.status(capsys)
    assert code == 2 and "series.json" in err and words in err


def test_the_reference_must_be_json(filled, capsys):
    (filled / "results" / "reference" / "series.json").write_text("{", encoding="utf-8")
    assert toys.status(capsys)[0] == 2


# ---- what is not there ---------------------------------------------------------------------------


def test_a_missing_chapter_is_one_clear_line(filled, capsys):
    (filled / "results" / "course" / "08_toy.json").unlink()
    code, out, err = toys.status(capsys)
    assert code == 1 and "chapter 08 has no results yet: run make all" in err
    assert err.count("chapter 08") == 1 and "7 no results yet" in out
    assert head("part7.toy40").course == "no results yet"


def test_a_fresh_clone_without_any_results_does_not_crash(filled, capsys):
    for path in (filled / "results" / "course").iterdir():
        path.unlink()
    code, _, err = toys.status(capsys)
    assert code == 1 and len(err.splitlines()) == 4  # chapters 05, 07, 08, 09
    assert head("heads.attn-only-1l.prev_token").verdict == "needs the hub"


def test_a_value_that_a_chapter_did_not_save_is_named(filled, capsys):
    series = toys.values()["07"]
    del series["part7.gelu.at_1"]
    toys.write(filled, "course", "07", series)
    code, _, err = toys.status(capsys)
    assert code == 1 and err == "to look at: part7.gelu.at_1: chapter 07 saved no value for it\n"


def test_results_of_another_form_are_a_message_not_a_crash(filled, capsys):
    path = next((filled / "results" / "course").glob("06_*.json"))
    saved = json.loads(path.read_text(encoding="utf-8"))
    del saved["data"]["virtual"]
    path.write_text(json.dumps(saved), encoding="utf-8")
    line = head("heads.attn-only-2l.virtual_qk_diag")
    assert "chapter 06 saved it in another form (KeyError: 'virtual')" in line.course
    path.write_text("{", encoding="utf-8")
    code, out, err = toys.status(capsys)
    assert code == 2 and "06_induction.json is damaged" in err and "wrote" not in out


# ---- where ours comes from -----------------------------------------------------------------------


def test_the_small_example_is_that_of_chapter_05():
    source = (toys.HERE / "src" / "circuitbook" / "taught" / "ch05.py").read_text(encoding="utf-8")
    for name, ours in (("X", X), ("Y", Y)):
        taught = ast.literal_eval(re.search(rf"SLIP_{name} = (.+)", source)[1])
        assert [list(row) for row in taught] == ours == hand_example(name)
    assert hand_example("eig_XY") == [3, 0] and hand_example("eig_YX") == [3, 0, 0]


def test_heads_are_taken_by_their_part_in_the_circuit(filled):
    shelf = page.Shelf("course")
    through = heads.virtual_diagonal(shelf.chapter("06"))
    writer, reader = shelf.chapter("06").data["pair"]
    assert through.pop("our_head") == reader
    assert max(through, key=through.get) == writer and through[writer] > 0.5
    one, two = int(writer.split(".")[1]), int(reader.split(".")[1])
    scores = heads.k_composition(shelf.chapter("05"))
    assert scores[one][two] == max(map(max, scores)), "rows write, columns read"
    assert max(heads.previous_first_layer(shelf.chapter("06"))) > 0.7
    assert heads.prefix_matching(shelf.chapter("06"))[two] > 0.3
    assert heads.reader_copies(shelf.chapter("02"))["our_head"] == reader
    curve = heads.phase(shelf.chapter("06"))
    assert [t for t, _ in curve] == sorted(t for t, _ in curve) and len(curve) == heads.POINTS
    assert curve[0][1] < 0.05 < 0.3 < curve[-1][1]


def test_terms_and_counts_say_what_the_chapters_say(committed):
    claims = {}
    for number in ("02", "03"):
        path = next((toys.HERE / "results" / "course").glob(f"{number}_*.json"))
        claims |= {c["id"]: c for c in results.read(path)["claims"]}
    shelf = page.Shelf("course")
    terms = heads.term_importance(shelf.chapter("03"))
    shared = claims["paths.credit_is_shared"]["values"]
    assert terms["layer2_on_direct"] == shared["first1"]
    assert terms["layer2_after_layer1"] == shared["second1"]
    assert terms["layer1_on_direct"] == shared["first0"]
    assert terms["layer1_after_layer2"] == shared["second0"]
    vocabulary = json.loads((toys.HERE / "results/course/04_skip_trigrams.json").read_text())
    assert heads.VOCABULARY == vocabulary["data"]["vocabulary"]
    assert re.fullmatch(r"\d of 8", heads.count_copying(shelf.chapter("02"))["one_layer"])


def test_commands_are_set_as_code_and_the_columns_say_what_they_hold(committed, monkeypatch):
    made = page.build()
    html, plain = webpage.text(made), markdown.text(made)
    for command in ("make published", "make compare"):
        assert f"<code>{command}</code>" in html and f"`{command}`" in plain
    assert "`" not in html.partition("<body>")[2]
    monkeypatch.setenv("RECOMPUTE", "1")  # as `make published` runs it
    own = command_line.files()["html"].relative_to(paths.ROOT).as_posix()
    assert f"<code>{own}</code>" in html and f"`{own}`" in plain
    assert head("heads.attn-only-2l.phase", made).published == (
        "snapshots of the training: not fetched by this course"
    )
    # Counts and examples by hand need no model: no column may call them a model's.
    assert "Ours, no download" in COLUMNS and "course models" not in " ".join(COLUMNS)


def test_the_package_lists_its_modules_and_the_page_its_states():
    folder = toys.HERE / "src" / "circuitbook" / "series"
    files = {p.stem for p in folder.glob("*.py") if not p.stem.startswith("_")}
    listed = re.findall(r"^\| (\w+) ", package.__doc__, re.M)
    assert sorted(listed) == sorted(files | {"module"})
    assert set(re.findall(r'"(\w+)"', page.__doc__)) == set(page.STATES)
