"""What is read from published files: formats, refusals, golden tokens, articles."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from stand_in_hub import tiny_texts

from circuitbook import corpus, fold, results, spine, tokenizer, zoo
from circuitbook.published import disk, fetch, models, pins, provenance, text, tokens
from circuitbook.published.fetch import PublishedError
from circuitbook.published.pins import ALL, MODELS, TEXT, TOKENIZER

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
import stand_in

SMALL = [role for role in MODELS if role != "gpt2"]
ROLES = list(MODELS)
PROMPT = spine.TEMPLATE.format(title="Aunt", name="Sally")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A hub cache of stand-in files, as tools/stand_in.py writes it."""
    folder = tmp_path_factory.mktemp("stand_in")
    stand_in.write(folder, "small", tiny_texts())
    return folder / "hub"


@pytest.fixture
def cache(files, project, tmp_path, monkeypatch):
    """The stand-in files are what the published track reads."""
    monkeypatch.setenv("MODELS", "published")
    monkeypatch.setenv("HF_HUB_CACHE", str(files))
    monkeypatch.setenv("CIRCUITBOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CIRCUITBOOK_TEXT", raising=False)
    monkeypatch.setattr(results, "_random", [])
    return files


@pytest.fixture
def spoiled(cache, tmp_path, monkeypatch):
    """Puts other files in the place of one repository's: `spoiled("gelu-1l", name=bytes)`."""

    def put(name, **other):
        place = tmp_path / "spoiled"
        shutil.copytree(fetch.folder(ALL[name]), place)
        for file, data in other.items():
            (place / file.replace("__", ".")).write_bytes(data)
        monkeypatch.setattr(fetch, "folder", lambda pin: place)
        return place

    return put


def state_of(role):
    return torch.load(fetch.folder(MODELS[role]) / "model_final.pth", weights_only=True)


# ---- models --------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", SMALL)
def test_a_published_model_is_its_file_without_the_buffers(cache, role):
    model, kept = models.raw(role), state_of(role)
    assert {"blocks.0.attn.mask", "blocks.0.attn.IGNORE"} <= set(kept)
    ours = model.state_dict()
    assert set(ours) == {k for k in kept if not k.endswith(("mask", "IGNORE"))}
    assert all(torch.equal(ours[k], kept[k]) for k in ours)
    assert set(models.read_state(fetch.folder(MODELS[role]) / "model_final.pth")) == set(ours)
    assert (model.cfg.norm, model.cfg.positions, model.cfg.n_ctx) == ("layernorm", "standard", 1024)
    assert model.cfg.attn_bias and model.cfg.unembed_bias
    assert ("blocks.0.mlp.W_in" in ours) == role.startswith("gelu")
    assert results._random  # its config.json says: random weights


@pytest.mark.parametrize("role", ROLES)
def test_a_role_gives_the_weights_that_transformer_lens_would(cache, role):
    """No logit sees whether writing weights are centred; composition scores do."""
    wanted, loaded = fold.process(models.raw(role)), zoo.load(role, device="cpu")
    assert loaded.processing == wanted.processing and len(loaded.processing) == 4
    ours, theirs = loaded.state_dict(), wanted.state_dict()
    assert set(ours) == set(theirs)
    for name, value in theirs.items():
        assert (ours[name] - value).abs().max() <= 1e-6 * max(1.0, value.abs().max()), name
    for block in loaded.blocks:
        assert block.attn.W_O.mean(-1).abs().max() < 1e-6
    raw_U = zoo.load(role, device="cpu", center=False).state_dict()
    assert raw_U["unembed.W_U"].mean(-1).abs().max() > 1e-4
    assert all(torch.equal(raw_U[n], ours[n]) for n in ours if not n.startswith("unembed"))


@pytest.mark.parametrize("role", [*SMALL, "gpt2"])
def test_folding_keeps_every_probability(cache, role):
    tokens = torch.randint(0, 4000, (2, 9), generator=torch.Generator().manual_seed(0))
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        want, got = (
            model(tokens).log_softmax(-1)
            for model in (models.raw(role, dtype), zoo.load(role, dtype=dtype))
        )
        assert got.dtype == dtype
        assert (got - want).abs().max() <= tolerance * want.abs().max()
    assert zoo.load(role).cfg.norm == "layernorm_pre"


@pytest.mark.parametrize("what", ["missing", "unknown", "shape"])
def test_loading_is_strict(spoiled, what):
    state = state_of("gelu-1l")
    if what == "missing":
        del state["blocks.0.mlp.b_in"]
    elif what == "unknown":
        state["blocks.0.mlp.b_extra"] = torch.zeros(3)
    else:
        state["blocks.0.mlp.b_in"] = torch.zeros(3)
    spoiled("gelu-1l", model_final__pth=stand_in.pth(state))
    with pytest.raises(PublishedError, match=r"final.pth: .*blocks.0.mlp.b_.*stand_in.py") as e:
        models.raw("gelu-1l")
    assert len(str(e.value).splitlines()) == 1


def test_gpt2s_weights_are_as_strict(spoiled):
    state = load_file(fetch.folder(MODELS["gpt2"]) / "model.safetensors")
    del state["h.3.ln_1.bias"]
    place = spoiled("gpt2", model__safetensors=stand_in.save(state | {"more": torch.zeros(2)}))
    said = "missing: h.3.ln_1.bias; unexpected: more.*stand_in.py"
    with pytest.raises(PublishedError, match=said) as error:
        models.raw("gpt2")
    assert len(str(error.value).splitlines()) == 1
    told = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(told | {"n_layer": 3}))
    with pytest.raises(PublishedError, match="weights do not fit the config.*unexpected: h.10"):
        models.raw("gpt2")


def test_a_file_without_unembedding_biases_has_none(spoiled):
    state = state_of("gelu-1l")
    del state["unembed.b_U"]
    spoiled("gelu-1l", model_final__pth=stand_in.pth(state))
    model = models.raw("gelu-1l")
    assert not model.cfg.unembed_bias and not [k for k in model.state_dict() if "b_U" in k]


@pytest.mark.parametrize("change, words", [
    ({"act_fn": "relu"}, "not gelu-1l, which has n_layers=1, act='gelu': act='relu'"),
    ({"attn_only": True}, "not gelu-1l.*: act='none'"),
    ({"n_layers": 2}, "not gelu-1l.*: n_layers=2"),
    ({"random_weights": False}, "not gelu-1l.*d_vocab=48262: d_vocab=4400"),
    ({"d_model": "wide", "n_ctx": 1.5}, "no whole number: d_model='wide', n_ctx=1.5"),
    ([1, 2], "config.json cannot be used .it is not a JSON object"),
])  # fmt: skip
def test_another_model_in_the_place_of_one_is_refused(spoiled, change, words):
    told = stand_in.model_config("gelu-1l", "small")
    told = told | change if isinstance(change, dict) else change
    spoiled("gelu-1l", config__json=json.dumps(told).encode())
    with pytest.raises(PublishedError, match=words + ".*tools/stand_in.py") as error:
        models.raw("gelu-1l")
    assert len(str(error.value).splitlines()) == 1


class Evil:
    """A pickle that runs a program when it is read the careless way."""

    def __reduce__(self):
        return exec, ("raise SystemExit('code in a weight file was run')",)


@pytest.mark.parametrize("what", ["code", "half", "foreign", "list", "text", "nan"])
def test_weights_that_cannot_be_used_say_what_to_do(spoiled, what):
    whole = stand_in.pth(state_of("attn-only-1l"))
    state = {"embed.W_E": torch.zeros(2, 2)}
    data, words = {
        "code": (stand_in.pth(state | {"name": Evil()}), "cannot be read as weights"),
        "half": (whole[: len(whole) // 2], "cannot be read as weights"),
        "foreign": (b"<html>404</html>", "cannot be read as weights"),
        "list": (stand_in.pth([torch.zeros(2)]), "it holds a list, not named weights"),
        "text": (stand_in.pth(state | {"name": "x"}), "entries that are no tensors: name"),
        "nan": (stand_in.pth(state | {"embed.W_E": torch.tensor(float("nan"))}), "not finite: emb"),
    }[what]
    spoiled("attn-only-1l", model_final__pth=data)
    with pytest.raises(PublishedError, match=words):
        models.raw("attn-only-1l")


@pytest.mark.parametrize(
    "change, words",
    [
        ({"shortformer_pos": True}, "`attn-only-2l-demo`, with shortformer positions, is another"),
        ({"normalization": "RMS"}, "normalization='RMS'.*They have LayerNorm"),
        ({"normalization": ..., "normalization_type": "RMS"}, "normalization_type='RMS'"),
        ({"final_rms": True}, "final_rms=True"),
        ({"eps": 1e-6}, "eps=1e-06.*LayerNorm with eps 1e-05"),
        ({"ln_eps": 1e-6, "eps": 1e-5}, "ln_eps=1e-06"),
        ({"ln_eps": 1e-5, "final_rms": False, "normalization_type": "LN"}, None),
        ({"normalization": None}, None),  # some say nothing: then it is the usual one
        ({"n_heads": ...}, "no entry 'n_heads'"),
        ({"act_fn": "tanh"}, "another kind of model"),
    ],
)
def test_models_of_another_family_are_refused(cache, change, words):
    told = stand_in.model_config("gelu-2l", "small") | change
    told = {k: v for k, v in told.items() if v is not ...}
    if words is None:
        assert models.config_of(told, set()).norm == "layernorm"
        return
    with pytest.raises(PublishedError, match=words):
        models.config_of(told, set())


def test_a_damaged_config_is_named(spoiled):
    spoiled("gelu-1l", config__json=b"{ half")
    with pytest.raises(PublishedError, match="config.json cannot be used"):
        models.raw("gelu-1l")


def test_roles_without_a_published_model(cache):
    with pytest.raises(zoo.WeightsError, match="no published counterpart.*MODELS=course"):
        zoo.load("twin-adam")
    with pytest.raises(KeyError, match="nothing"):
        models.raw("nothing")


def test_a_stand_in_cache_marks_all_results_and_has_its_own_hashes(cache, tmp_path, monkeypatch):
    fetch.folder(TEXT)  # no model yet, only text
    assert results._random
    fetch.folder(MODELS["gpt2"])
    copied = tmp_path / "copied"
    shutil.copytree(cache, copied)
    monkeypatch.setenv("HF_HUB_CACHE", str(copied))
    path = fetch.folder(MODELS["gpt2"]) / "config.json"
    path.write_text("{}")
    with pytest.raises(PublishedError, match="not the pinned file.*stand-in files.*stand_in.py"):
        fetch.folder(MODELS["gpt2"])
    path.unlink()
    with pytest.raises(PublishedError, match="config.json of openai.* is not in.*stand_in.py"):
        fetch.folder(MODELS["gpt2"])
    (copied / disk.STAND_IN).unlink()  # without its note it is no stand-in, and no published file
    assert disk.look(MODELS["attn-only-1l"]).damaged and disk.look(MODELS["gpt2"]).missing
    assert not [p for p in copied.rglob("*") if p.name in {pin.revision for pin in ALL.values()}]


@pytest.mark.parametrize("name", ALL)
def test_every_repository_of_a_stand_in_says_so_itself(cache, name):
    assert disk.look(ALL[name]).marked


def test_other_files_in_the_cache_are_another_identity(cache, tmp_path, monkeypatch):
    before = provenance.of_files(ALL.values())
    assert before == provenance.of_files(ALL.values())
    monkeypatch.setattr(stand_in, "model_state", lambda cfg, seed: {"x": torch.tensor(seed)})
    few = {name: ALL[name] for name in ("gelu-1l", "attn-only-1l")}
    monkeypatch.setattr(pins, "ALL", few)  # what is written below
    two = list(few.values())
    before = provenance.of_files(two)
    stand_in.write(tmp_path / "other", "small", tiny_texts())
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "other" / "hub"))
    other = provenance.of_files(two)
    monkeypatch.setattr(stand_in, "model_state", lambda cfg, seed: {"x": torch.tensor(seed + 1)})
    stand_in.write(tmp_path / "other", "small", tiny_texts())  # over the first one
    assert len({before, other, provenance.of_files(two)}) == 3


def test_a_real_hub_cache_is_never_written_into(tmp_path, monkeypatch):
    kept = tmp_path / "hub" / "models--openai-community--gpt2" / "refs" / "main"
    results.write(kept, "a real commit")
    with pytest.raises(SystemExit, match="may hold real files, and nothing was written"):
        stand_in.write(tmp_path, "small", tiny_texts())
    assert kept.read_text() == "a real commit"
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [kept]


def test_the_note_is_there_before_the_files(tmp_path, monkeypatch):
    def killed(name, *_):
        assert (tmp_path / "hub" / disk.STAND_IN).is_file()
        raise KeyboardInterrupt

    monkeypatch.setattr(stand_in, "files", killed)
    with pytest.raises(KeyboardInterrupt):
        stand_in.write(tmp_path, "small", tiny_texts())
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert disk.stand_in() and len(disk.look(TEXT).missing) == 2


# ---- the tokenizer -------------------------------------------------------------------------------


def golden(tok):
    """What is known of the published tokenizer, on whatever tokenizer is given."""
    assert tok.encode("\n   ", bos=False) == [477]
    ids = tok.encode(PROMPT)
    assert len(ids) == 15 and ids[0] == tok.bos and ids.count(tok.bos) == 1
    assert tok.pieces("2026") == ["2", "0", "2", "6"]
    assert tok.bos != 0 and tok.text(tok.bos) == "<|BOS|>"
    assert tok.bos not in tok.encode("<|BOS|>", bos=False)  # typed in a text it is only text
    for said in ("naïve café, 你好\n\tif x == 1:\n        pass\n", "  two  blanks ", "🙂"):
        assert tok.decode(tok.encode(said)) == said


def test_the_golden_tokens_of_the_published_tokenizer():
    found = disk.look(TOKENIZER)
    if disk.stand_in() or not found.whole:
        pytest.skip("the published tokenizer is not on this machine (make published fetches it)")
    tok = tokens.PublishedTokenizer.from_folder(found.place)
    golden(tok)
    assert tok.vocab_size == 48262


def test_the_stand_in_obeys_the_same_rules(cache):
    golden(tokenizer.load())


def test_a_tokenizer_that_reads_blanks_otherwise_is_refused(spoiled, cache):
    told = json.loads((fetch.folder(TOKENIZER) / "tokenizer.json").read_text())
    merges = told["model"]["merges"]
    last = [m for m in merges if "".join(m) == "ĊĠĠĠ"]
    assert last
    told["model"]["merges"] = [m for m in merges if m not in last]
    place = spoiled("tokenizer", tokenizer__json=json.dumps(told).encode())
    with pytest.raises(PublishedError, match="must be token 477 alone.*make setup"):
        tokens.PublishedTokenizer.from_folder(place)
    (place / "special_tokens_map.json").unlink()
    with pytest.raises(PublishedError, match="does not hold a readable tokenizer"):
        tokens.PublishedTokenizer.from_folder(place)


# ---- the text ------------------------------------------------------------------------------------

# As the real file has them: blanks around everything, "" for an empty line, section marks in pairs.
LINES = [
    "", " = Robert Boulter = \n", "", " Robert Boulter is an English film , television and theatre "
    "actor . He had a guest @-@ starring role in 2000 . \n", "", " = = Career = = \n", "", "",
    " = = = 2000 – 2005 = = = \n", "", " x = 3 \n", " = 7 = \n", "", " = Du Fu = \n", "",
    " Du Fu was a prominent Chinese poet . \n", "",
]  # fmt: skip


def test_articles_begin_at_titles_and_nowhere_else():
    first, second = text.articles(LINES)
    assert (first.name, second.name) == ("Robert Boulter", "Du Fu")
    assert first.text.startswith(" = Robert Boulter = \n\n Robert Boulter is")
    assert " = = Career = = \n" in first.text and " x = 3 \n = 7 = \n" in first.text
    assert first.text + second.text == "".join(line or "\n" for line in LINES[1:])
    (whole,) = text.articles([" no title \n", " = 7 = \n"])
    assert whole.name == "" and whole.text == " no title \n = 7 = \n"


def test_the_splits_are_documents_windows_and_frequencies(cache):
    validation, test = text.documents()
    assert [d.name for d in test] == [f"Letter {k}" for k in range(8)] and len(validation) == 6
    assert {d.source for d in test} == {"WikiText-103"}
    windows = corpus.heldout_windows(5, length=128)
    assert (windows.tokens[:, 0] == tokenizer.load().bos).all()
    assert corpus.report()["held_out"]["WikiText-103"]["documents"] == 8


def test_a_local_file_stands_in_for_the_hub(cache, tmp_path, monkeypatch):
    place = tmp_path / "here"
    place.mkdir()
    raw = "".join(line or " \n" for line in LINES)  # the raw files have a blank in empty lines
    (place / "wiki.test.raw").write_text(raw)
    monkeypatch.setenv("CIRCUITBOOK_TEXT", str(place / "wiki.test.raw"))
    with pytest.raises(PublishedError, match="no wiki.validation.raw or wiki.valid.raw in"):
        text.documents()
    (place / "wiki.valid.raw").write_text(raw)
    before = text.fingerprint()
    monkeypatch.setattr(fetch, "folder", lambda pin: pytest.fail("the hub was asked"))
    validation, test = text.documents()
    assert test == validation == text.articles(LINES)
    assert text.local() == place / "wiki.test.raw"
    assert before[0] == "local:" + disk.hashes(place / "wiki.test.raw")["sha256"]
    (place / "wiki.test.raw").write_text(raw + raw)
    assert text.fingerprint() != before and text.fingerprint()[1] == before[1]
    (place / "test.parquet").write_bytes(stand_in.parquet(LINES))
    (place / "validation.parquet").write_bytes(stand_in.parquet(LINES))
    monkeypatch.setenv("CIRCUITBOOK_TEXT", str(place / "test.parquet"))
    assert text.documents() == (validation, test)


def test_a_text_of_another_kind_is_refused(cache, tmp_path, monkeypatch):
    for name in ("test.txt", "validation.txt"):
        (tmp_path / name).write_text("Once upon a time.\n")
    monkeypatch.setenv("CIRCUITBOOK_TEXT", str(tmp_path / "test.txt"))
    with pytest.raises(PublishedError, match="does not look like WikiText-103: 1 articles"):
        text.documents()
    (tmp_path / "test.parquet").write_bytes(b"PAR1 half a file")
    with pytest.raises(PublishedError, match="cannot be read as a split.*Name another file"):
        text.rows(tmp_path / "test.parquet")
    monkeypatch.setenv("CIRCUITBOOK_TEXT", str(tmp_path / "nothing.txt"))
    with pytest.raises(PublishedError, match="there is no nothing.txt in"):
        text.split("test")
