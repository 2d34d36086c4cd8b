"""A role's model is loaded whole and checked, or refused with the command that mends it."""

import json
import shutil
import socket
import subprocess

import pytest
import torch

from circuitbook import fast, paths, recipes, weightfile, zoo
from circuitbook.config import Config
from circuitbook.recipes import Recipe
from circuitbook.zoo import WeightsError

SMALL = Config(n_layers=1, d_model=32, n_heads=2, d_head=8, n_ctx=40, d_vocab=64)
RECIPE = Recipe(SMALL, steps=10, snapshots=(0, 10))


@pytest.fixture
def toy(project, monkeypatch):
    """Two bundled roles, `toy` and `twin`, in a project of their own."""
    monkeypatch.setitem(recipes.RECIPES, "toy", RECIPE)
    monkeypatch.setitem(recipes.RECIPES, "twin", Recipe(SMALL, seed=1, steps=10))
    for role in ("toy", "twin"):
        write(role)
    return weightfile.weight_path("toy")


def write(role, rec=None, corpus="c" * 64):
    rec = rec or recipes.recipe(role)
    generator = torch.Generator().manual_seed(rec.seed)
    tensors = {n: torch.randn(s, generator=generator).half() for n, s in fast.shapes(SMALL).items()}
    weightfile.write_weights(role, tensors, rec, corpus)
    weightfile.manifest_entry(role, rec, corpus, seconds=3, device="cpu")
    return tensors


def refused(match, role="toy"):
    with pytest.raises(WeightsError, match=match) as error:
        zoo.load(role)
    said = str(error.value)
    assert "git checkout weights/" in said or "`make weights`" in said or "MODELS=course" in said
    return said


# ---- loading


def test_load_gives_a_ready_centred_model(toy):
    tensors = write("toy")
    model = zoo.load("toy")
    assert not model.training and not any(p.requires_grad for p in model.parameters())
    assert model.W_E.dtype == torch.float32
    assert torch.equal(model.W_E, tensors["embed.W_E"].float())
    torch.testing.assert_close(model.W_U.mean(-1), torch.zeros(32), atol=1e-6, rtol=0)
    plain = zoo.load("toy", center=False)
    assert torch.equal(plain.W_U, tensors["unembed.W_U"].float())
    tokens = torch.randint(64, (2, 30), generator=torch.Generator().manual_seed(0))
    double = zoo.load("toy", dtype=torch.float64)
    raw = zoo.load("toy", center=False, dtype=torch.float64)
    centred, uncentred = double(tokens), raw(tokens)
    assert (centred - uncentred).abs().max() > 1e-6  # the logits moved, the probabilities did not
    torch.testing.assert_close(centred.softmax(-1), uncentred.softmax(-1), atol=1e-12, rtol=0)
    assert double.W_pos.dtype == torch.float64
    assert double.W_U.mean(-1).abs().max() < 1e-12


def test_load_takes_a_device(toy, monkeypatch):
    assert zoo.load("toy", device="cpu").W_E.device.type == "cpu"
    monkeypatch.setenv("DEVICE", "gpu")
    with pytest.raises(ValueError, match="DEVICE='gpu'.*auto|cpu|cuda"):
        zoo.load("toy")
    if not torch.cuda.is_available():
        monkeypatch.setenv("DEVICE", "cuda")
        with pytest.raises(RuntimeError, match="DEVICE=cpu"):
            zoo.load("toy")


def test_load_never_trains_and_never_reaches_outside(toy, monkeypatch):
    def forbidden(*_, **__):
        raise AssertionError("zoo.load reached outside")

    monkeypatch.setattr(socket, "socket", forbidden)
    monkeypatch.setattr(subprocess, "Popen", forbidden)
    monkeypatch.setattr(torch.Tensor, "backward", forbidden)
    assert zoo.load("toy")
    toy.unlink()
    refused("missing")


def test_card_and_curves(toy):
    card = zoo.card("toy")
    assert card["tokens"] == RECIPE.tokens == 10 * 8 * 40
    assert card["recipe"] == RECIPE.to_dict() and card["trained"]["seconds"] == 3
    with pytest.raises(WeightsError, match="(?s)curves of toy are missing.*`make weights`"):
        zoo.curves("toy")
    path = weightfile.curves_path("toy")
    path.parent.mkdir()
    for damaged in ("{", "[]", "{}", '{"recipe_sha256": "0"}'):
        path.write_text(damaged)
        with pytest.raises(WeightsError, match="curves of toy cannot be used.*`make weights`"):
            zoo.curves("toy")
    path.write_text(json.dumps({"recipe_sha256": RECIPE.sha256(), "snapshots": []}))
    assert zoo.curves("toy")["snapshots"] == []
    assert zoo.n_parameters("toy") == 2 * 64 * 32 + 4 * 32 * 16


# ---- refusals


def test_unknown_role(toy):
    for call in (zoo.load, zoo.card, zoo.curves, zoo.n_parameters):
        with pytest.raises(KeyError, match="There is no role 'gpt-5'. Roles: attn-only-0l"):
            call("gpt-5")
    assert zoo.roles()[:3] == ["attn-only-0l", "attn-only-1l", "attn-only-2l"]
    assert set(zoo.MAIN_ROLES) <= set(zoo.roles())


def test_missing_file(toy):
    toy.unlink()
    said = refused("weights of toy are missing")
    assert "python -m circuitbook.train toy" in said


@pytest.mark.parametrize("keep", [0, 5, 0.5, -1])
def test_truncated_file(toy, keep):
    data = toy.read_bytes()
    toy.write_bytes(data[: int(keep * len(data)) if keep == 0.5 else keep])
    refused("damaged or was changed")


def test_one_flipped_bit(toy):
    data = bytearray(toy.read_bytes())
    for place in (3, 200, len(data) // 2, len(data) - 1):
        spoiled = bytearray(data)
        spoiled[place] ^= 1
        toy.write_bytes(spoiled)
        refused("damaged or was changed")


def test_a_file_that_is_no_safetensors_though_listed(toy):
    toy.write_bytes(b"hello")
    manifest = weightfile.read_manifest()
    manifest["toy"]["sha256"] = weightfile.file_sha256(toy)
    weightfile.manifest_path().write_text(json.dumps(manifest))
    refused("cannot be read")


def test_another_roles_file_under_this_name(toy):
    shutil.copy(weightfile.weight_path("twin"), toy)
    refused("damaged or was changed")
    manifest = weightfile.read_manifest()
    manifest["toy"] = manifest["twin"]  # even if the list says so too
    weightfile.manifest_path().write_text(json.dumps(manifest))
    refused("holds twin, not toy")


def test_another_recipe(toy, monkeypatch):
    monkeypatch.setitem(recipes.RECIPES, "toy", Recipe(SMALL, lr=0.5, steps=10, snapshots=(0, 10)))
    refused("trained by another recipe")
    write("toy")  # and back: the file is of the new recipe, the course of the old
    zoo.load("toy")


def test_a_manifest_of_another_recipe_or_text(toy):
    for key in ("recipe_sha256", "corpus_sha256"):
        manifest = weightfile.read_manifest()
        kept, manifest["toy"][key] = manifest["toy"][key], "0" * 64
        weightfile.manifest_path().write_text(json.dumps(manifest))
        refused("another recipe" if key == "recipe_sha256" else "trained on other text")
        manifest["toy"][key] = kept
        weightfile.manifest_path().write_text(json.dumps(manifest))
    assert zoo.load("toy")


def test_manifest_absent_damaged_or_without_the_role(toy):
    path = weightfile.manifest_path()
    whole = path.read_text()
    for damaged in (whole[:-9], "", "[]", "3", '{"toy": {}}', '{"toy": 3}'):
        path.write_text(damaged)
        assert "MANIFEST.json" in refused("is damaged")
        with pytest.raises(WeightsError, match="is damaged.*git checkout"):
            zoo.card("toy")
    path.write_text("{}")
    refused("toy is not listed in")
    path.unlink()
    refused("list of the weights is missing")


# ---- the file


def test_the_same_weights_give_the_same_bytes(toy):
    """safetensors itself writes several metadata keys in a random order."""
    data = toy.read_bytes()
    for _ in range(5):
        write("toy")
        assert toy.read_bytes() == data
    metadata = weightfile.read_metadata(toy)
    assert list(json.loads(metadata["recipe"])) == sorted(RECIPE.to_dict())
    assert metadata["role"] == "toy" and metadata["licence"] == "CC BY 4.0"
    names = [p.name for p in paths.WEIGHTS.iterdir()]
    assert not [n for n in names if n.startswith(".") and not n.endswith(".lock")]


def test_a_write_that_fails_leaves_the_old_file(toy, monkeypatch):
    data = toy.read_bytes()

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(weightfile.os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        write("toy")
    assert toy.read_bytes() == data


# ---- the bundled files, where they are


@pytest.mark.weights
def test_bundled_weights():
    """Every role has its file and loads; all together, with the dictionaries, are at most 70 MB."""
    listed = weightfile.read_manifest()
    files = [p for p in paths.WEIGHTS.rglob("*") if p.is_file()]
    assert sum(p.stat().st_size for p in files) <= 70e6
    for role in zoo.roles():
        model = zoo.load(role, device="cpu")
        assert sum(p.numel() for p in model.parameters()) == zoo.n_parameters(role)
        assert listed[role]["tokens"] == recipes.recipe(role).tokens
