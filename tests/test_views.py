"""The views' data is what the models say: found again in other ways, and by hand where small."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from circuitbook import curves, paths, results, vocabulary, weightfile, zoo
from circuitbook.autoencoders import bundle
from circuitbook.neurons import draw
from circuitbook.views import __main__ as command
from circuitbook.views import envelope, excerpts, latents, neurons, pages, spectrum, tokenrows

ROOT = Path(__file__).resolve().parents[1]
APPS = ("tokens", "copying", "composition", "phase", "neurons", "latents")
NEAR = 2e-4  # the file keeps three decimals of an activation, five digits of all else


def saved(name):
    return results.read(ROOT / "results" / "views" / f"{name}.json")


def chapter(name):
    return results.read(ROOT / "results" / "course" / f"{name}.json")["data"]


# ---- the files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", command.VIEWS)
def test_a_file_is_as_it_was_written_and_not_out_of_date(name):
    view, found = command.VIEWS[name], saved(name)
    assert view.path.read_text(encoding="utf-8") == envelope.text(found)
    assert envelope.short(found["data"]) == found["data"]
    assert envelope.stale(view) == "", f"run `python -m circuitbook.views {name}`"


@pytest.mark.parametrize("name", command.VIEWS)
def test_a_file_names_the_weights_that_are_there(name):
    made = saved(name)["made_with"]["weights"]
    assert sorted(made) == sorted(command.VIEWS[name].weights)
    for role, sha256 in made.items():
        assert sha256 == weightfile.file_sha256(weightfile.weight_path(role))


def test_all_files_together_are_small():
    sizes = [view.path.stat().st_size for view in command.VIEWS.values()]
    assert sum(sizes) <= 6e6 and max(sizes) <= 2.5e6


def test_other_weights_and_other_settings_are_noticed(monkeypatch):
    view, altered = command.VIEWS["copying"], saved("copying")
    monkeypatch.setattr(envelope, "code_hash", lambda _: altered["made_with"]["code"])
    assert envelope.stale(view) == ""
    for change in ({"weights": {"gelu-1l": "0"}}, {"code": "another"}):
        made = altered | {"made_with": altered["made_with"] | change}
        with monkeypatch.context() as patch:
            patch.setattr(envelope.results, "read", lambda _, made=made: made)
            assert envelope.stale(view)
    other = envelope.View(view.name, view.compute, {**view.config, "seed": 1}, view.weights, {})
    assert envelope.stale(other) == "the config changed"


# ---- token rows ---------------------------------------------------------------------------------


@pytest.mark.parametrize("role, head", [("attn-only-1l", "0.5"), ("attn-only-2l", "1.7")])
def test_token_rows_are_the_ends_of_the_dense_rows(role, head):
    data, model = saved("tokens")["data"], zoo.load(role, dtype=torch.float64, device="cpu")
    rows, (l, h) = data["heads"][role][head], map(int, head.split("."))
    E, attn = model.W_E, model.blocks[l].attn
    for at in (0, 57, len(data["rows"]) - 1):
        token = data["rows"][at]["id"]
        score = (E[token] @ attn.W_Q[h]) @ (E @ attn.W_K[h]).T / model.cfg.d_head**0.5
        logit = E[token] @ attn.W_V[h] @ attn.W_O[h] @ model.W_U
        for name, row in (("qk", score - score.mean()), ("ov", logit - logit.mean())):
            for end, sign in (("top", 1), ("low", -1)):  # by value: untrained tokens are equal
                best = sign * (sign * row).topk(8).values
                ids = rows[name][end][at]
                assert len(set(ids)) == 8
                assert row[ids].tolist() == pytest.approx(best.tolist(), rel=1e-3)
                assert rows[name][f"{end} values"][at] == pytest.approx(best.tolist(), rel=1e-3)
        rank, entry = rows["own"][at]
        centred = logit - logit.mean()
        above, equal = centred > centred[token] + 1e-5, centred > centred[token] - 1e-5
        assert 1 + int(above.sum()) <= rank <= int(equal.sum())
        assert entry == pytest.approx(float(centred[token]), rel=1e-3)


def test_tokens_are_those_that_the_chapters_name():
    data, texts = saved("tokens")["data"], vocabulary.texts()
    by_text = {row["text"]: row for row in data["rows"]}
    for word, where in ((" Sally", "02"), (" Mary", "03"), (" Aunt", "03")):
        assert where in by_text[word]["chapters"]
    assert all(texts[row["id"]] == row["text"] for row in data["rows"])
    for bug in chapter("04_skip_trigrams")["bugs"]:
        assert "04" in by_text[bug["source"]]["chapters"]
    assert all(texts[int(i)] == text for i, text in data["texts"].items())
    tables = chapter("02_qk_ov")["tables"]["copier"]
    head = data["heads"]["attn-only-1l"][f"0.{chapter('02_qk_ov')['pair']['copier']}"]
    ids = [row["id"] for row in data["rows"]]
    for row in tables:  # the chapter's own table, five words of each row
        at = ids.index(by_text[row["token"]]["id"])
        assert [data["texts"][str(i)] for i in head["ov"]["top"][at][:5]] == row["raises"]
        assert head["own"][at][0] == row["own_rank"]


# ---- spectra ------------------------------------------------------------------------------------


def test_spectra_score_as_the_chapter_says_and_are_eigenvalues():
    data = saved("copying")["data"]
    for role, table in chapter("02_qk_ov")["copying"].items():
        for i, head in enumerate(table["head"]):
            one = data[role]["heads"][head]
            for key in ("score", "top1", "top10"):
                assert one[key] == pytest.approx(table[key][i], abs=2e-5)
    model = zoo.load("attn-only-2l", dtype=torch.float64, device="cpu")
    one, attn = data["attn-only-2l"]["heads"]["1.5"], model.blocks[1].attn
    # The same nonzero eigenvalues, of another order of the product: d_model x d_model.
    U = model.W_U - model.W_U.mean(1, keepdim=True)
    values = torch.linalg.eigvals(attn.W_V[5] @ attn.W_O[5] @ (U @ model.W_E))
    size = values.abs().sort(descending=True).values[:32]
    assert one["largest"] == pytest.approx(float(size[0]), rel=1e-3)
    found = torch.tensor(one["values"], dtype=torch.float64)
    assert torch.allclose(found.norm(dim=1), size / size[0], atol=1e-3)
    score = found[:, 0].sum() / found.norm(dim=1).sum()
    assert float(score) == pytest.approx(one["score"], abs=1e-3)


def test_random_heads_are_near_zero_and_those_of_the_seed():
    model, config = (
        zoo.load("gelu-1l", dtype=torch.float64, device="cpu"),
        saved("copying")["config"],
    )
    kept = saved("copying")["data"]["gelu-1l"]["random"]
    generator = torch.Generator().manual_seed(config["seed"])
    V, O = torch.randn(config["random"], 2, 256, 32, generator=generator).double()[0]
    U = model.W_U - model.W_U.mean(1, keepdim=True)
    values = torch.linalg.eigvals(O.T @ U @ model.W_E @ V)
    assert kept["first"]["score"] == pytest.approx(
        float(values.real.sum() / values.abs().sum()), 1e-3
    )
    assert spectrum.baseline(zoo.load("gelu-1l", device="cpu"), 3, 0)["heads"] == 3
    low, middle, high = kept["quantiles"]
    assert -0.3 < low < middle < high < 0.3 and abs(middle) < 0.1


# ---- excerpts, by hand --------------------------------------------------------------------------


def hand():
    """Two windows of BOS and four tokens, in two documents; position 4 is window 1, place 1."""
    tokens = torch.tensor([[0, 10, 11, 12, 13], [0, 20, 21, 22, 23]])
    read = excerpts.Reading(tokens, torch.tensor([7, 9]), ["one", "two"], 4)
    return read, torch.tensor([0.0, 3.0, 1.0, 0.0, 0.5, 0.0, 2.0, 2.5])


def test_an_excerpt_stays_inside_its_window():
    read, a = hand()
    first = excerpts.excerpt(read, a, 4, around=2)
    assert first == {"at": 0, "ids": [20, 21, 22], "values": [0.5, 0.0, 2.0], "source": "two"}
    last = excerpts.excerpt(read, a, 3, around=2)
    assert (last["at"], last["ids"], last["values"]) == (2, [11, 12, 13], [3.0, 1.0, 0.0])


def test_strongest_takes_one_from_each_document_and_nothing_silent():
    read, a = hand()
    found = excerpts.strongest(read, a, 5, around=1)
    assert [(c["source"], c["values"][c["at"]]) for c in found] == [("one", 3.0), ("two", 2.5)]
    assert excerpts.strongest(read, torch.zeros(8), 5, around=1) == []


def test_bands_part_what_is_above_the_floor():
    read, a = hand()
    found = excerpts.bands(read, a, 0.0, n=2, around=1, seed=0)
    assert [b["positions"] for b in found] == [2, 1, 2]  # (0, 1], (1, 2], (2, 3]
    for band in found:
        for context in band["contexts"]:
            assert band["from"] < context["values"][context["at"]] <= band["to"]
    assert sum(len(b["contexts"]) for b in found) == 5
    assert excerpts.bands(read, a, 3.0, n=2, around=1, seed=0) == []


def test_a_histogram_counts_every_position_once():
    found = excerpts.histogram(torch.tensor([-1.0, 0.0, 0.0, 0.9, 1.0, 3.0]), 4)
    assert found == {"zero": 2, "from": -1.0, "to": 3.0, "counts": [1, 1, 1, 1]}
    assert excerpts.histogram(torch.zeros(3), 4)["counts"] == []


# ---- neurons and latents ------------------------------------------------------------------------


def find(tokens, ids):
    """(window, place) of a run of token ids; it must be there."""
    runs = tokens.unfold(1, len(ids), 1)
    window, place = (runs == torch.tensor(ids)).all(-1).nonzero()[0].tolist()
    return window, place


def test_neurons_agree_with_the_chapter():
    units = {u["unit"]: u for u in saved("neurons")["data"]["units"] if u["role"] == "gelu-1l"}
    cards = [c for kind in chapter("07_mlp_neurons")["cards"].values() for c in kind]
    assert len(cards) == len(units)
    texts = saved("neurons")["data"]["texts"]
    for card in cards:
        unit = units[card["neuron"]]
        assert unit["share"] == pytest.approx(card["share"], rel=1e-3)
        assert unit["maximum"] == pytest.approx(card["maximum"], rel=1e-3)
        assert unit["documents"] == card["documents"]
        assert [texts[str(i)] for i in unit["writes"]["top"][:6]] == card["writes"][0]
        assert [texts[str(i)] for i in unit["reads"]["top"][:6]] == card["reads"][0]
        shown = [c["values"][c["at"]] for c in unit["contexts"][: len(card["contexts"])]]
        assert shown == pytest.approx([c["activation"] for c in card["contexts"]], abs=1e-3)


def test_the_draw_is_what_its_seed_gives():
    config, units = saved("neurons")["config"], saved("neurons")["data"]["units"]
    for layer in (0, 1):
        mine = [u["unit"] for u in units if (u["role"], u["layer"]) == ("gelu-2l", layer)]
        assert mine == list(draw.drawn(config["seed"] + layer, config["drawn"], 1024))
    kept = saved("latents")
    mine = [u["unit"] for u in kept["data"]["units"] if u["why"].startswith("drawn here")]
    assert mine == list(draw.drawn(kept["config"]["seed"], kept["config"]["drawn"], 4096))


@pytest.mark.text
@pytest.mark.parametrize("role, layer", [("gelu-1l", 0), ("gelu-2l", 0), ("gelu-2l", 1)])
def test_a_neurons_activations_are_those_of_the_running_model(role, layer):
    data, (read, about) = saved("neurons")["data"], neurons.reading()
    assert data["read"] == about
    model, name = zoo.load(role, device="cpu"), f"blocks.{layer}.mlp.hook_post"
    unit = next(u for u in data["units"] if (u["role"], u["layer"]) == (role, layer))
    shown = [unit["contexts"][1], unit["bands"][0]["contexts"][0]]
    for context in shown:
        window, place = find(read.tokens, context["ids"])
        _, cache = model.run_with_cache(read.tokens[window : window + 1], names_filter=[name])
        post = cache[name][0, place : place + len(context["ids"]), unit["unit"]]
        assert context["values"] == pytest.approx(post.tolist(), abs=1e-3)
        assert context["source"] == read.sources[window]


@pytest.mark.text
def test_latents_agree_with_the_chapter_and_with_the_running_model():
    data = saved("latents")["data"]
    read, about = latents.reading()
    assert data["read"] == about
    units = {u["unit"]: u for u in data["units"]}
    kept = chapter("09_sparse_autoencoders")["sae"]
    for board in kept["best"] + kept["random"]:
        unit = units[board["latent"]]
        assert unit["share"] == pytest.approx(board["fires"], rel=1e-3)
        assert unit["maximum"] == pytest.approx(board["highest"], rel=1e-3)
        words = [data["texts"][str(i)] for i in unit["writes"]["top"][:8]]
        assert words == board["writes"]
    assert data["densities"]["dead"] == round(kept["quality"]["dead"] * kept["latents"])
    assert sum(data["densities"]["counts"]) + data["densities"]["dead"] == kept["latents"]
    model, dictionary = zoo.load("gelu-1l", device="cpu"), bundle.load("sae-gelu-1l")
    latent = kept["best"][0]["latent"]
    context = units[latent]["contexts"][0]
    window, place = find(read.tokens, context["ids"])
    name = "blocks.0.mlp.hook_post"
    _, cache = model.run_with_cache(read.tokens[window : window + 1], names_filter=[name])
    on = dictionary.encode(cache[name][0])[place : place + len(context["ids"]), latent]
    assert context["values"] == pytest.approx(on.tolist(), abs=1e-3)


@pytest.mark.parametrize("name", ["neurons", "latents"])
def test_a_units_counts_fit_together(name):
    data = saved(name)["data"]
    n = data["read"]["positions"]
    for u in data["units"]:
        h = u["histogram"]
        assert h["zero"] + sum(h["counts"]) == n
        fires = sum(b["positions"] for b in u["bands"])
        assert fires == pytest.approx(u["share"] * n, abs=1.5)
        values = [c["values"][c["at"]] for c in u["contexts"]]
        assert values == sorted(values, reverse=True)
        if values:
            assert values[0] == pytest.approx(u["maximum"], abs=NEAR + 1e-3)
        assert all(len(c["ids"]) <= 21 for c in u["contexts"])


# ---- pages and the command ----------------------------------------------------------------------


def built(name, out):
    path = ROOT / "site" / "apps" / f"views-{name}" / "build.py"
    spec = importlib.util.spec_from_file_location(f"build_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.build(out)
    text = (out / "data.js").read_text(encoding="utf-8")
    first, second = text.splitlines()
    assert first == "window.CB_DATA = window.CB_DATA || {};"
    head = f'window.CB_DATA["views-{name}"] = '
    assert second.startswith(head) and second.endswith(";")
    return json.loads(second[len(head) : -1])


@pytest.mark.parametrize("name", APPS)
def test_a_page_gets_the_saved_numbers(name, tmp_path):
    data = built(name, tmp_path)
    assert (tmp_path / "data.js").stat().st_size < 2.5e6
    assert data["chapters"]["06"]["page"] == "06_induction.html"
    if name in command.VIEWS:
        assert data["data"] == saved(name)["data"]
    elif name == "composition":
        kept = chapter("05_composition")
        assert data["scores"] == [kept["scores"][c] for c in "qkv"]
        assert data["baseline"] == kept["baseline"]
    else:
        for role, run in data["runs"].items():
            rows = zoo.curves(role)["snapshots"]
            assert run["steps"] == [r["step"] for r in rows]
            assert run["prefix_matching"] == [r["prefix_matching"] for r in rows]
            assert run["tokens"][-1] == zoo.card(role)["tokens"]


def test_the_phase_page_says_on_what_it_was_measured(tmp_path):
    data, first = built("phase", tmp_path), chapter("00_models")
    assert data["windows"] == curves.WINDOWS
    rows = zoo.curves("attn-only-2l")["snapshots"]
    kept = len(range(0, 511, curves.TOKEN_STRIDE))  # losses kept of one window
    assert len(rows[-1]["token_losses"]) == data["windows"] * kept
    assert data["chapter 00"]["documents"] == first["windows"]["documents"]
    bare = zoo.curves(data["bare"]["role"])["snapshots"]
    assert data["bare"]["icl"] == [row["icl"] for row in bare]
    for role, run in data["runs"].items():
        assert run["final"] == first["icl"].get(role)
        assert [row["step"] for row in bare] == run["steps"]
    assert data["runs"]["attn-only-2l"]["final"]


def test_the_latents_page_marks_the_place_that_was_counted(tmp_path):
    data = built("latents", tmp_path)
    counted, shown = data["counted"]["latents"], {u["unit"]: u for u in data["data"]["units"]}
    assert data["counted"]["windows"] == chapter("09_sparse_autoencoders")["sae"]["minds"]["n"]
    for latent, c in counted.items():
        back = {"token": 0, "previous token": 1}[c["place"]]
        for context in shown[int(latent)]["contexts"]:
            if context["at"] >= back and c["share"] == 1:  # then every excerpt has the word
                token = context["ids"][context["at"] - back]
                assert data["data"]["texts"][str(token)] == c["word"]
    assert {c["place"] for c in counted.values()} == {"token", "previous token"}


def test_pages_are_built_without_torch(tmp_path):
    code = (
        "import sys; sys.modules['torch'] = None\nimport importlib.util, pathlib\n"
        "for p in sorted(pathlib.Path('site/apps').glob('views-*/build.py')):\n"
        "    s = importlib.util.spec_from_file_location('b', p)\n"
        "    m = importlib.util.module_from_spec(s); s.loader.exec_module(m)\n"
        f"    m.build(pathlib.Path({str(tmp_path)!r}) / p.parent.name)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert len(list(tmp_path.glob("*/data.js"))) == len(APPS)


def test_a_missing_file_says_what_to_run(tmp_path):
    with pytest.raises(FileNotFoundError, match="python -m circuitbook.views"):
        pages.saved(tmp_path, "views/tokens")
    with pytest.raises(FileNotFoundError, match="Restore it from git"):
        pages.curves(tmp_path, "gelu-1l")


def test_the_command_refuses_an_unknown_name(capsys):
    assert command.main(["nerons"]) == 2
    assert "No view is called 'nerons'. Choose from tokens, copying" in capsys.readouterr().err


def test_check_finds_a_number_and_a_word_that_were_changed(capsys, monkeypatch):
    view, fresh = command.VIEWS["copying"], saved("copying")
    monkeypatch.setattr(envelope, "measure", lambda _: fresh)
    monkeypatch.setattr(envelope, "stale", lambda _: "")
    assert command.say(view, check=True)
    fresh["data"]["gelu-1l"]["heads"]["0.3"]["score"] += 0.01
    assert not command.say(view, check=True)
    assert "gelu-1l.heads.0.3.score" in capsys.readouterr().out
    small = saved("tokens")
    small["data"] = {"rows": small["data"]["rows"]}
    edited = json.loads(json.dumps(small))
    edited["data"]["rows"][3]["text"] = "edited"
    monkeypatch.setattr(envelope.results, "read", lambda _: small)
    monkeypatch.setattr(envelope, "measure", lambda _: edited)
    monkeypatch.setattr(results, "write", lambda *_: pytest.fail("a check writes nothing"))
    assert not command.say(command.VIEWS["tokens"], check=True)
    assert "rows.3.text: 'edited' now" in capsys.readouterr().out


def test_texts_with_one_spelling_go_to_the_first_id():
    assert tokenrows.by_id(["a", "b", "a"]) == {"a": 0, "b": 1}
    with paths.model_set("course"):
        used = tokenrows.used_tokens()
    assert list(used) == ["02", "03", "04"] and all(used.values())
