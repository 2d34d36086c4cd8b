"""A config says what a model is, refuses what cannot be, and survives JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import FrozenInstanceError

import pytest

from circuitbook.config import Config


def test_defaults_are_the_course_models() -> None:
    cfg = Config(n_layers=2)
    assert (cfg.d_model, cfg.n_heads, cfg.d_head, cfg.n_ctx, cfg.d_vocab) == (256, 8, 32, 512, 4096)
    assert (cfg.norm, cfg.positions, cfg.pos_kind) == ("none", "shortformer", "sinusoidal")
    assert (cfg.pos_base, cfg.pos_amplitude) == (200.0, 1.0)
    assert cfg.attn_only and not (cfg.attn_bias or cfg.unembed_bias)
    assert not Config(2, d_mlp=1024, act="gelu").attn_only
    assert Config(1, d_mlp=8, act="swiglu").gated


def test_it_is_frozen_hashable_and_comparable() -> None:
    cfg = Config(n_layers=1)
    with pytest.raises(FrozenInstanceError):
        cfg.n_layers = 2
    assert {cfg: "a"}[Config(n_layers=1)] == "a"
    assert cfg.replace(n_layers=2) == Config(n_layers=2) != cfg


def test_json_round_trip_is_exact() -> None:
    cfg = Config(3, d_mlp=64, act="swiglu", n_experts=4, top_k=2, norm="layernorm", pos_base=1e4)
    assert Config.from_dict(json.loads(json.dumps(cfg.to_dict()))) == cfg


def test_unknown_and_missing_keys_are_named() -> None:
    with pytest.raises(ValueError, match=r"unknown config keys \['d_modle'\].*'d_model'"):
        Config.from_dict({"n_layers": 1, "d_modle": 8})
    with pytest.raises(ValueError, match="no n_layers"):
        Config.from_dict({"d_model": 8})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_layers": -1}, "n_layers must not be negative, got -1"),
        ({"d_model": 0}, "d_model must be at least 1, got 0"),
        ({"d_model": 7}, "d_model=7 must be even"),
        ({"act": "gelu"}, "d_mlp=0 does not fit act='gelu'"),
        ({"d_mlp": 4}, "d_mlp=4 does not fit act='none'"),
        ({"act": "silu", "d_mlp": 4}, "act must be one of none, relu.*got 'silu'"),
        ({"norm": "rms"}, "norm must be one of .*'rms'"),
        ({"positions": "rotary"}, "positions must be one of .*'rotary'"),
        ({"pos_kind": "none"}, "pos_kind must be one of .*'none'"),
        ({"n_experts": 2, "top_k": 1}, "n_experts=2 needs experts"),
        ({"n_experts": 2, "top_k": 3, "d_mlp": 4, "act": "relu"}, "top_k=3 must lie between"),
        ({"n_experts": 2, "top_k": 0, "d_mlp": 4, "act": "relu"}, "top_k=0 must lie between"),
        ({"top_k": 1}, "top_k=1 must lie between"),
        ({"eps": 0.0}, "eps must be positive"),
        ({"pos_base": 1.0}, "pos_base must be above 1"),
        ({"d_model": True}, "d_model must be int, got True"),
    ],
)
def test_what_cannot_be_is_refused_in_words(change: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Config(**{"n_layers": 1, **change})


@pytest.mark.parametrize("change", [{"d_model": 8.0}, {"attn_bias": 1}, {"norm": None}])
def test_wrong_types_are_refused(change: dict) -> None:
    # Our ValueError, or the type checker's TypeError where pytest enforces annotations.
    with pytest.raises((ValueError, TypeError), match=next(iter(change))):
        Config(**{"n_layers": 1, **change})


def test_no_torch_is_imported() -> None:
    code = "import sys, circuitbook.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
