"""GPT-2's published layout turned into the course's model, and the tools run on its exact shape."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from circuitbook import fold
from circuitbook.circuits import ablation, gpt2, gpt2_path, gpt2_prompts
from circuitbook.circuits.gpt2 import Gpt2Error, config_of, find_gpt2, load_gpt2, to_course
from circuitbook.circuits.metrics import logit_difference
from circuitbook.circuits.nodes import MLP
from circuitbook.model import Transformer

SMALL = {
    "model_type": "gpt2", "n_layer": 3, "n_embd": 24, "n_head": 4, "n_positions": 20,
    "vocab_size": 160, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
}  # fmt: skip


def random_state(published, seed=0, std=0.3):
    """Published names and shapes, random values: biases and gains too, so that none can be lost."""
    generator = torch.Generator().manual_seed(seed)
    shapes = gpt2._shapes(config_of(published))
    return {
        name: torch.randn(shape, generator=generator) * std + (".ln_" in name or "ln_f.w" in name)
        for name, shape in shapes.items()
    }


def theirs(published, state):
    """transformers' own model with these weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(**published, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)
    model = GPT2LMHeadModel(config).eval()
    report = model.transformer.load_state_dict(state, strict=False)
    assert not report.unexpected_keys
    assert all(key.endswith(("attn.bias", "masked_bias")) for key in report.missing_keys)
    model.tie_weights()
    return model


@pytest.mark.parametrize("eps", [1e-5, 0.5])
@torch.no_grad()
def test_logits_are_those_of_transformers(eps):
    published, state = SMALL | {"layer_norm_epsilon": eps}, random_state(SMALL)
    tokens = torch.randint(0, 160, (3, 20), generator=torch.Generator().manual_seed(1))
    reference = theirs(published, state)
    wanted = reference(tokens).logits
    model = to_course(config_of(published), state).eval()
    assert (model(tokens) - wanted).abs().max() < 1e-4 * wanted.abs().max().clamp_min(1)
    # the whole file as transformers writes it: prefix, tied head, buffers if there are any
    whole = {k: v.clone() for k, v in reference.state_dict().items()}
    assert "lm_head.weight" in whole
    whole["transformer.h.0.attn.bias"] = torch.ones(1, 1, 20, 20).tril()
    again = to_course(config_of(published), whole)
    assert torch.equal(again(tokens), model(tokens))
    # folded: the same probabilities; logits up to one number a position
    folded = fold.process(model)
    centred = wanted - wanted.mean(-1, keepdim=True)
    assert (folded(tokens) - centred).abs().max() < 1e-4 * wanted.abs().max().clamp_min(1)
    # double: the layout is exact, not only near
    sharp = to_course(config_of(published), {k: v.double() for k, v in state.items()})
    exact = reference.double()(tokens).logits
    assert (sharp(tokens) - exact).abs().max() < 1e-10 * exact.abs().max()


def test_every_entry_counts():
    """Changing any single published entry changes the model: none is dropped or read twice."""
    state = random_state(SMALL)
    tokens = torch.arange(20)[None]
    before = to_course(config_of(SMALL), state)(tokens)
    for name in state:
        other = dict(state)
        noise = torch.randn(state[name].shape, generator=torch.Generator().manual_seed(2))
        other[name] = state[name] + 0.1 * noise
        moved = (to_course(config_of(SMALL), other)(tokens) - before).abs().max()
        if name.endswith("c_attn.bias"):  # b_K shifts all scores of a query alike: check Q and V
            other[name] = state[name].clone()
            other[name][24:48] += 1.0
            idle = (to_course(config_of(SMALL), other)(tokens) - before).abs().max()
            assert idle < 1e-3 * before.abs().max()
        assert moved > 1e-4, name


def test_wrong_weights_are_refused():
    state, cfg = random_state(SMALL), config_of(SMALL)
    less = {k: v for k, v in state.items() if k != "h.1.mlp.c_fc.bias"}
    with pytest.raises(Gpt2Error, match="missing: h.1.mlp.c_fc.bias; unexpected: a. Fetch") as e:
        to_course(cfg, less | {"a": torch.ones(1)})
    assert len(str(e.value).splitlines()) == 1
    with pytest.raises(Gpt2Error, match="unexpected: h.3.ln_1.weight"):
        to_course(cfg, state | {"h.3.ln_1.weight": torch.ones(24)})
    with pytest.raises(Gpt2Error, match=r"wrong shape: h.0.mlp.c_fc.weight \(96, 24\)"):
        to_course(cfg, state | {"h.0.mlp.c_fc.weight": torch.ones(96, 24)})
    with pytest.raises(Gpt2Error, match="tied"):
        to_course(cfg, state | {"lm_head.weight": state["wte.weight"] + 1})
    with pytest.raises(Gpt2Error, match="not finite: wpe.weight"):
        to_course(cfg, state | {"wpe.weight": torch.full((20, 24), float("nan"))})


def test_only_gpt2_is_read():
    with pytest.raises(Gpt2Error, match="llama"):
        config_of(SMALL | {"model_type": "llama"})
    for name, value in (
        ("activation_function", "relu"), ("scale_attn_by_inverse_layer_idx", True),
        ("tie_word_embeddings", False),
    ):  # fmt: skip
        with pytest.raises(Gpt2Error, match=name):
            config_of(SMALL | {name: value})
    with pytest.raises(Gpt2Error, match="n_layer"):
        config_of({k: v for k, v in SMALL.items() if k != "n_layer"})
    assert config_of(SMALL | {"n_inner": 50}).d_mlp == 50


@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])
def test_local_folder(tmp_path, kind):
    state = random_state(SMALL)
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    with pytest.raises(Gpt2Error, match="does not hold"):
        load_gpt2(tmp_path)
    if kind.endswith("bin"):
        torch.save(state, tmp_path / kind)
    else:
        save_file(state, tmp_path / kind)
    model = load_gpt2(tmp_path, dtype=torch.float64)
    assert model.W_E.dtype == torch.float64 and not model.W_E.requires_grad
    assert torch.equal(model.W_U, model.W_E.T)
    whole = (tmp_path / kind).read_bytes()
    (tmp_path / kind).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(Gpt2Error, match="cannot be read"):
        load_gpt2(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(Gpt2Error, match="config.json"):
        load_gpt2(tmp_path)


class Trap:
    """What unpickling would run, if the loader let it."""

    def __reduce__(self):
        import os

        return os.system, ("exit 3",)


def test_code_in_a_file_does_not_run(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    torch.save({"wte.weight": Trap()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(Gpt2Error, match="cannot be read"):
        load_gpt2(tmp_path)


def test_the_local_store_is_asked_without_a_socket(tmp_path, monkeypatch):
    import socket

    def refuse(*args, **kwargs):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    import huggingface_hub

    asked = []

    def store(repository, name, **more):
        asked.append((repository, name))
        return str(tmp_path / name) if repository == "gpt2" else None

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", store)
    assert find_gpt2() is None  # a path is named, the files are not there
    with pytest.raises(Gpt2Error, match="not on this machine.*`make published`.*--revision 607a"):
        load_gpt2()
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    save_file(random_state(SMALL), tmp_path / "model.safetensors")
    assert find_gpt2() == tmp_path
    assert load_gpt2().cfg.n_layers == 3
    assert ("gpt2", "model.safetensors") in asked


@pytest.mark.parametrize("there", [("pinned", "newest"), ("newest",)])
def test_the_pinned_revision_is_taken_before_the_newest(tmp_path, monkeypatch, there):
    import huggingface_hub

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    base = tmp_path / "models--openai-community--gpt2"
    commits = {"pinned": gpt2.REVISION, "newest": "f" * 40}
    for name in there:
        (folder := base / "snapshots" / commits[name]).mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"")
    (base / "refs").mkdir()
    (base / "refs" / "main").write_text(commits["newest"])
    assert find_gpt2() == base / "snapshots" / commits[there[0]]


# ---------------------------------------------------------------- prompts


def encoder(split=()):
    """A stand-in tokenizer: words with their blank, years in two parts; `split` ones fall apart."""
    import re

    ids = {}

    def encode(text):
        found = []
        for piece in re.findall(r" ?[A-Za-z]+| ?\d\d|[^\w\s]", text):
            parts = [piece[:2], piece[2:]] if piece.strip() in split else [piece]
            found += [ids.setdefault(part, len(ids)) for part in parts]
        return found

    encode.ids = ids
    return encode


@pytest.mark.parametrize("template", range(len(gpt2_prompts.NAME_TEMPLATES)))
def test_name_prompts(template):
    encode, rng = encoder(), np.random.default_rng(0)
    batch = gpt2_prompts.name_batch(encode, 20, rng, template, start=[900])
    words = {i: w for w, i in encode.ids.items()}
    for tokens, others, io, s in zip(batch.tokens, batch.others, batch.right, batch.wrong):
        assert tokens[0] == 900 and (tokens == s).sum() == 2 and (tokens == io).sum() == 1
        changed = tokens != others
        assert int(changed.sum()) == 3
        three = others[changed].tolist()
        assert len({*three, int(io), int(s)}) == 5  # no repeat, and neither of the two
        assert words[int(io)].strip() in gpt2_prompts.NAMES
    assert (batch.end == batch.tokens.shape[1] - 1).all()
    order = {"I": batch.right, "S": batch.wrong}
    first = gpt2_prompts.NAME_TEMPLATES[template].split("{")[1][0]
    place = int((batch.tokens[0] == order[first][0]).nonzero()[0])
    assert torch.equal(batch.tokens[:, place], order[first])


@pytest.mark.parametrize("template", range(len(gpt2_prompts.YEAR_TEMPLATES)))
def test_year_prompts(template):
    encode, rng = encoder(), np.random.default_rng(0)
    batch = gpt2_prompts.year_batch(encode, 30, rng, template)
    words = {i: w for w, i in encode.ids.items()}
    for tokens, others, yy in zip(batch.tokens, batch.others, batch.right):
        (at,) = (tokens != others).nonzero()[:, 0].tolist() if yy != 1 else (None,)
        assert words[int(tokens[at])] == f"{int(yy):02}" and words[int(others[at])] == "01"
        assert tokens[at - 1] == tokens[-1]  # the century stands again at the end
    assert [words[i] for i in batch.year_ids.tolist()] == [f"{y:02}" for y in range(100)]


def test_words_of_two_tokens_are_refused():
    rng = np.random.default_rng(0)
    with pytest.raises(gpt2_prompts.PromptError, match="' Mary' .2 tokens., ' Tom'"):
        gpt2_prompts.name_batch(encoder(split=("Mary", "Tom")), 4, rng, 0)
    with pytest.raises(gpt2_prompts.PromptError, match="' war'"):
        gpt2_prompts.year_batch(encoder(split=("war",)), 4, rng, 0)
    with pytest.raises(gpt2_prompts.PromptError, match="'32'"):
        gpt2_prompts.year_batch(encoder(split=("32",)), 4, rng, 0)
    whole = encoder()

    def one_piece(text):  # "1700" and all of the 13th century are single tokens
        if text.strip().startswith("13") and len(text.strip()) == 4 or text == " 1700":
            return whole("year")
        return whole(text)

    _, _, good = gpt2_prompts.year_tokens(one_piece)
    assert (17, 0) not in good and (17, 1) in good and not any(c == 13 for c, _ in good)
    batch = gpt2_prompts.year_batch(one_piece, 200, rng, 0)
    assert whole(" 13")[0] not in batch.tokens


def test_local_tokenizer(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    with pytest.raises(gpt2_prompts.PromptError, match="tokenizer.json"):
        gpt2_prompts.local_encoder(tmp_path)
    made = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    assert gpt2_prompts.local_encoder(tmp_path)("b a c") == [1, 0, 2]


# ---------------------------------------------------------------- the path


def test_the_lists_of_the_literature():
    lists = gpt2_path.literature()
    names = [h for k, group in lists.items() if k != "years" for h in group]
    assert len(names) == len(set(names)) == 26
    assert sum(at == MLP for _, at in lists["years"]) == 4 and len(lists["years"]) == 11


def check_path(found, movers):
    """What must hold for any weights."""
    for task in ("names", "years"):
        part = found[task]
        numbers = [part["model"], part["nothing"], *part["circuit"].values(), *part["random"]]
        assert np.isfinite(numbers).all() and len(set(part["random"])) > 1
    repair = found["names"]["repair"]
    rest = repair["predicted"] - repair["gained"] + repair["frozen scale"]
    assert repair["actual"] == pytest.approx(rest, abs=1e-4)
    assert len(found["names"]["movers to logits"]) == movers
    assert all(abs(found["years"][k]) <= 1 for k in ("model", "nothing"))


def test_path_on_a_small_model(monkeypatch):
    model = to_course(config_of(SMALL | {"n_positions": 24, "vocab_size": 200}),
                      random_state(SMALL | {"n_positions": 24, "vocab_size": 200}))  # fmt: skip
    rng = np.random.default_rng(0)
    lists = {
        "name_mover": [(2, 0), (2, 1)], "s_inhibition": [(1, 2)], "duplicate_token": [(0, 3)],
        "years": [(0, 1), (1, 3), (2, MLP)],
    }  # fmt: skip
    batches = [gpt2_path.stand_in_batch(kind, 6, rng, 200) for kind in ("names", "years")]
    found = gpt2_path.path(model, *batches, lists, n_random=5)
    check_path(found, movers=2)
    assert set(found["years"]["circuit"]) == {"heads and late MLPs", "with the early MLPs"}
    # all nodes of the literature's class in place: the model itself
    every = [(layer, h) for layer in range(3) for h in range(4)]
    full = gpt2_path.path(model, *batches, lists | {"duplicate_token": [
        h for h in every if h not in ((2, 0), (2, 1), (1, 2))]}, n_random=0)  # fmt: skip
    (whole,) = full["names"]["circuit"].values()
    assert whole == pytest.approx(full["names"]["model"], rel=1e-5)


def test_all_templates_are_run_and_averaged(monkeypatch):
    """IO first and S first alike: "the first name" is then no answer. Numbers are means."""
    encode, seen = encoder(), []

    def fake(model, names, years, n_random, seed):
        io, s = ((names.tokens == x[:, None]).long().argmax(1) for x in (names.right, names.wrong))
        seen.append(("I" if bool((io < s).all()) else "S", names.tokens.shape[1]))
        assert len(names.tokens) == len(years.tokens) == 3
        return {"names": {"model": float(len(seen)), "random": [1.0, 2.0 * len(seen)]}}

    monkeypatch.setenv("MODELS", "published")
    for name, value in {"local_encoder": lambda where: encode, "path": fake}.items():
        monkeypatch.setattr(gpt2_path, name, value)
    monkeypatch.setattr(gpt2_path.fetch, "folder", lambda pin: "here")
    monkeypatch.setattr(gpt2_path.zoo, "load", lambda role: None)
    monkeypatch.setattr(gpt2_path, "single_tokens", lambda encode, words: [199])
    found = gpt2_path.published_study(n=12)
    assert [first for first, _ in seen] == ["I", "S", "I", "S"]
    assert seen[0][1] == seen[1][1] < seen[2][1] == seen[3][1]  # two texts, each in both orders
    assert found == {"there": True, "templates": 4, "names": {"model": 2.5, "random": [1.0, 5.0]}}


def test_random_sets_keep_the_mlps_of_the_circuit():
    """With all heads but one in the list, the random sets are the model without one other head."""
    published = SMALL | {"n_positions": 24, "vocab_size": 200}
    model = fold.process(to_course(config_of(published), random_state(published)))
    batch = gpt2_path.stand_in_batch("names", 6, np.random.default_rng(0), 200)
    every = [(layer, h) for layer in range(3) for h in range(4)]
    lists = {"name_mover": every[8:], "s_inhibition": every[4:8], "induction": every[1:4]}
    found = gpt2_path.names_path(model, batch, lists, 11, torch.Generator().manual_seed(0))
    metric = logit_difference(batch.end, batch.right, batch.wrong)
    standin = ablation.mean(model, batch.others)
    wanted = ablation.without(model, batch.tokens, metric, standin, [[h] for h in every[1:]])
    assert sorted(found["random"]) == pytest.approx(sorted(wanted.mean(1).tolist()), abs=1e-4)


@torch.no_grad()
def test_exact_shape():
    """GPT-2's own sizes with random weights: the same logits, and every tool runs."""
    published = {
        "model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024,
        "vocab_size": 50257,
    }  # fmt: skip
    assert config_of(published) == gpt2.SMALL
    state = random_state(published, std=0.02)
    assert sum(x.numel() for x in state.values()) == 124_439_808
    model = to_course(gpt2.SMALL, state).eval()
    tokens = torch.tensor([[50256, 464, 1175, 20000, 13]])
    reference = theirs(published, state)
    assert (model(tokens) - reference(tokens).logits).abs().max() < 1e-4
    del reference
    rng = np.random.default_rng(0)
    batches = [gpt2_path.stand_in_batch(kind, 2, rng, 50257) for kind in ("names", "years")]
    found = gpt2_path.path(model, *batches, n_random=2)
    check_path(found, movers=3)


def test_induction_row_finds_the_hand_built_head():
    from circuitbook.induction import handbuilt

    model = handbuilt.induction_model(n_tokens=280, n_ctx=400, d_code=40)
    row = gpt2_path.induction_row(model, torch.arange(1, model.cfg.d_vocab), 2)
    assert row["prefix matching"] > 0.95 and row["previous token"] > 0.95
    assert row["after the K-cut"] < 0.2 * row["prefix matching"]
    assert row["copying"] > 0.9


def test_induction_row_of_an_untrained_model(monkeypatch):
    from circuitbook.config import Config

    model = Transformer(Config(n_layers=3, d_model=32, n_heads=4, d_head=8, d_vocab=400))
    row = gpt2_path.induction_row(model, torch.arange(1, 400), 2, others=2)
    assert row["prefix matching"] < 0.1 and len(row["after other cuts"]) >= 2
