"""The published small models as this course's Transformer: config.json and model_final.pth.

Their format is that of an early TransformerLens: parameters under the names and in the shapes used
here, with the constant buffers `mask` and `IGNORE` beside them. They have LayerNorm, learned
positions in the stream, and biases. `load` folds the LayerNorm, as TransformerLens does by default:
see :mod:`circuitbook.fold`. What stays is "layernorm_pre", each position centred and divided by its
own scale, so the algebra of the course is exact once these scales are frozen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from circuitbook import fold, results
from circuitbook.config import Config
from circuitbook.model import Transformer
from circuitbook.published import fetch
from circuitbook.published.fetch import PublishedError
from circuitbook.published.pins import MODELS

ROLES = tuple(MODELS)
MARK = "random_weights"  # in the config.json of the stand-in: no trained weights, nothing to learn


def config_of(published: Mapping[str, Any], names: set[str]) -> Config:
    """The course's config for a published config.json; `names` are those of the weights' entries.

    Raises PublishedError for a model that is not of this family.
    """
    other = [
        f"{name}={published[name]!r}"
        for name, usual in (
            ("normalization", ("LN", None)),
            ("normalization_type", ("LN", None)),
            ("shortformer_pos", (False, None)),
            ("final_rms", (False, None)),
        )
        if published.get(name) not in usual
    ]
    if other:
        raise PublishedError(
            f"this is not one of the series' models: {', '.join(other)}. They have LayerNorm and "
            "positions in the stream; `attn-only-2l-demo`, with shortformer positions, is another "
            "model than `attn-only-2l`."
        )
    try:
        attn_only = published["attn_only"]
        act = "none" if attn_only else published["act_fn"]
        return Config(
            n_layers=published["n_layers"],
            d_model=published["d_model"],
            n_heads=published["n_heads"],
            d_head=published["d_head"],
            d_mlp=0 if attn_only else published["d_mlp"],
            n_ctx=published["n_ctx"],
            d_vocab=published["d_vocab"],
            act=act,
            norm="layernorm",
            positions="standard",
            pos_kind="learned",
            attn_bias=True,
            unembed_bias="unembed.b_U" in names,
        )
    except KeyError as error:
        raise PublishedError(f"config.json has no entry {error}") from None
    except ValueError as error:
        raise PublishedError(f"config.json describes another kind of model: {error}") from None


def read_state(path: Path) -> dict[str, Tensor]:
    """The named weights of a .pth file, read as weights only: no code in it can run."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(state, dict):
            raise TypeError(f"it holds a {type(state).__name__}, not named weights")
    except Exception as error:  # torch raises many kinds for a damaged or foreign file
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PublishedError(
            f"{path} cannot be read as weights ({said}). Delete it and fetch it again: "
            "python -m circuitbook.published fetch"
        ) from None
    bad = [k for k, v in state.items() if not isinstance(v, Tensor)]
    if bad:
        raise PublishedError(f"{path} holds entries that are no tensors: {', '.join(bad[:8])}")
    weights = {k: v for k, v in state.items() if not k.endswith((".attn.mask", ".attn.IGNORE"))}
    broken = [k for k, v in weights.items() if not bool(v.isfinite().all())]
    if broken:
        raise PublishedError(f"{path}: not finite: {', '.join(broken[:8])}. Fetch it again.")
    return weights


def raw(role: str, dtype: torch.dtype = torch.float32) -> Transformer:
    """A published model as it was trained, nothing folded.

    Raises KeyError for an unknown role, PublishedError for missing, damaged or foreign files.
    """
    if role not in MODELS:
        raise KeyError(f"no published model is called {role!r}; there are {', '.join(MODELS)}")
    place = fetch.folder(MODELS[role])
    try:
        told = json.loads((place / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PublishedError(f"{place / 'config.json'} cannot be used ({error})") from error
    if told.get(MARK):
        results.note_random()
    results.note_weights(f"{MODELS[role].repository}@{fetch.commit(MODELS[role])}", _digest(role))
    if role == "gpt2":
        from circuitbook.circuits.gpt2 import load_gpt2

        return load_gpt2(place, dtype=dtype)
    state = read_state(place / "model_final.pth")
    cfg = config_of(told, set(state))
    try:
        return Transformer.from_state_dict(cfg, {k: v.to(dtype) for k, v in state.items()})
    except ValueError as error:
        raise PublishedError(f"{place / 'model_final.pth'}: {error}") from error


def _digest(role: str) -> str:
    file = "model.safetensors" if role == "gpt2" else "model_final.pth"
    return fetch.sha256(MODELS[role], file)


def load(role: str, *, dtype: torch.dtype = torch.float32, center: bool = True) -> Transformer:
    """A published model, LayerNorm folded, writing weights centred, value biases moved to b_O.

    Its config says norm "layernorm_pre". `center` also centres W_U over the vocabulary, which
    changes no probability. All folding runs in float64. Raises as `raw`.
    """
    model = fold.fold_layer_norm(raw(role, dtype))
    model = fold.fold_value_biases(fold.center_writing_weights(model))
    return fold.center_unembed(model) if center else model
