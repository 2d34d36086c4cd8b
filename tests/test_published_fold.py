"""Folding at the exact shapes of the published models: TransformerLens' numbers, same function."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from lens_reference import lens_processed
from model_reference import assert_close

from circuitbook import fold
from circuitbook.model import Transformer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
stand_in = pytest.importorskip("stand_in")


def raw_model(role: str) -> Transformer:
    """Random weights in the published format and size, read as the loader reads them."""
    models = pytest.importorskip("circuitbook.published.models")
    told = stand_in.model_config(role, "full")
    state = stand_in.model_state(told, seed=5)
    return Transformer.from_state_dict(models.config_of(told, set(state)), state)


@pytest.mark.parametrize("role", ["attn-only-2l", "gelu-2l"])
def test_processed_weights_at_the_published_shapes(role: str) -> None:
    model = raw_model(role)
    assert (model.cfg.d_vocab, model.cfg.d_model, model.cfg.n_ctx) == (48262, 512, 1024)
    ours, theirs = fold.process(model), lens_processed(model)
    for key, value in ours.state_dict().items():
        assert_close(value, theirs[key], 1e-5 * max(1.0, value.abs().max().item()), key)
    tokens = torch.randint(0, 48262, (1, 12), generator=torch.Generator().manual_seed(1))
    want, got = (m(tokens).log_softmax(-1) for m in (model, ours))
    assert_close(got, want, 1e-4, "log probabilities")
    del theirs
    no_gain = fold.process(_without_gain(model))(tokens).log_softmax(-1)
    assert (no_gain - want).abs().max() > 0.1, "a forgotten gain must be seen"


def _without_gain(model: Transformer) -> Transformer:
    state = {k: v.clone() for k, v in model.state_dict().items()}
    state["ln_final.w"] = torch.ones_like(state["ln_final.w"])
    return Transformer.from_state_dict(model.cfg, state)
