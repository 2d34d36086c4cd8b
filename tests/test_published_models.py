"""Published weights are noted with their commit; what is almost the right file is refused."""

import hashlib
import json
import re

import pytest
import test_published_files as toy
import torch

from circuitbook import results
from circuitbook.published import fetch, models
from circuitbook.published.fetch import PublishedError
from circuitbook.published.pins import MODELS

files, cache, spoiled = toy.files, toy.cache, toy.spoiled  # the fixtures


@pytest.mark.parametrize("role", toy.ROLES)
def test_weights_are_noted_with_their_repository_and_commit(cache, role):
    models.raw(role)
    place = fetch.folder(MODELS[role])
    name = "model.safetensors" if role == "gpt2" else "model_final.pth"
    wanted = hashlib.sha256((place / name).read_bytes()).hexdigest()
    (key,) = results._weights
    repository, _, commit = key.partition("@")
    assert repository == MODELS[role].repository and commit == place.name
    assert re.fullmatch("[0-9a-f]{40}", commit)
    assert results._weights[key] == wanted
    assert results.stale_weights({"weights": dict(results._weights)}) == ""


def test_a_complete_gpt2_of_three_layers_is_not_gpt2(spoiled):
    told = toy.stand_in.gpt2_config("small") | {"n_layer": 3}
    state = toy.stand_in.gpt2_state(told, seed=9)
    spoiled(
        "gpt2", config__json=json.dumps(told).encode(),
        model__safetensors=toy.stand_in.save(state),
    )  # fmt: skip
    said = "this is not gpt2, which has n_layers=12, act='gelu_new': n_layers=3.*stand_in.py"
    with pytest.raises(PublishedError, match=said) as error:
        models.raw("gpt2")
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_one_weight_that_is_not_finite_is_named(spoiled, value):
    state = toy.state_of("gelu-1l")
    state["blocks.0.mlp.b_in"][3] = value
    spoiled("gelu-1l", model_final__pth=toy.stand_in.pth(state))
    with pytest.raises(PublishedError, match=r"pth: not finite: blocks\.0\.mlp\.b_in\. "):
        models.raw("gelu-1l")


@pytest.mark.parametrize(
    "name", ["blocks.0.foo_mask", "blocks.0.mask", "blocks.0.mlp.IGNORE", "attn.mask.more"]
)
def test_only_the_buffers_of_attention_are_dropped(spoiled, name):
    state = toy.state_of("gelu-1l") | {name: torch.zeros(2)}
    place = spoiled("gelu-1l", model_final__pth=toy.stand_in.pth(state))
    kept = models.read_state(place / "model_final.pth")
    assert name in kept and not [k for k in kept if k.endswith((".attn.mask", ".attn.IGNORE"))]
    with pytest.raises(PublishedError, match=f"unexpected: {re.escape(name)}"):
        models.raw("gelu-1l")
