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
from circuitbook.published import disk, fetch
from circuitbook.published.fetch import PublishedError
from circuitbook.published.pins import MODELS

ROLES = tuple(MODELS)
VOCABULARY = 48262  # tokens of the small models
# role -> layers and activation; without one there are no MLPs
FORM = {
    "attn-only-1l": (1, "none"), "attn-only-2l": (2, "none"),
    "gelu-1l": (1, "gelu"), "gelu-2l": (2, "gelu"), "gpt2": (12, "gelu_new"),
}  # fmt: skip


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
            ("eps", (Config.eps, None)),
            ("ln_eps", (Config.eps, None)),
        )
        if published.get(name) not in usual
    ]
    if other:
        raise PublishedError(
            f"this is not one of the series' models: {', '.join(other)}. They have LayerNorm with "
            f"eps {Config.eps:g} and positions in the stream; `attn-only-2l-demo`, with "
            "shortformer positions, is another model than `attn-only-2l`."
        )
    sizes = ("n_layers", "d_model", "n_heads", "d_head", "d_mlp", "n_ctx", "d_vocab")
    other = [f"{k}={published[k]!r}" for k in sizes if not isinstance(published.get(k, 0), int)]
    if other:
        raise PublishedError(f"config.json: no whole number: {', '.join(other)}")
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
    except (TypeError, ValueError) as error:
        raise PublishedError(f"config.json describes another kind of model: {error}") from None


def _must_be(role: str, cfg: Config, stand_in: bool) -> None:
    """Refuse a model that is not the one of this role; a stand-in may be smaller."""
    layers, act = FORM[role]
    wanted = {"n_layers": layers, "act": act}
    if not stand_in and role != "gpt2":
        wanted["d_vocab"] = VOCABULARY
    other = [f"{k}={getattr(cfg, k)!r}" for k, v in wanted.items() if getattr(cfg, k) != v]
    if other:
        usual = ", ".join(f"{k}={v!r}" for k, v in wanted.items())
        raise PublishedError(f"this is not {role}, which has {usual}: {', '.join(other)}")


def read_state(path: Path) -> dict[str, Tensor]:
    """The named weights of a .pth file, read as weights only: no code in it can run."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(state, dict):
            raise TypeError(f"it holds a {type(state).__name__}, not named weights")
    except Exception as error:  # torch raises many kinds for a damaged or foreign file
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PublishedError(f"{path} cannot be read as weights ({said}). {disk.again()}") from None
    bad = [k for k, v in state.items() if not isinstance(v, Tensor)]
    if bad:
        raise PublishedError(
            f"{path} holds entries that are no tensors: {', '.join(map(str, bad[:8]))}. "
            f"{disk.again()}"
        )
    weights = {k: v for k, v in state.items() if not k.endswith((".attn.mask", ".attn.IGNORE"))}
    broken = [k for k, v in weights.items() if not bool(v.isfinite().all())]
    if broken:
        raise PublishedError(f"{path}: not finite: {', '.join(broken[:8])}. {disk.again()}")
    return weights


def raw(role: str, dtype: torch.dtype = torch.float32) -> Transformer:
    """A published model as it was trained, nothing folded.

    Raises KeyError for an unknown role, PublishedError for missing, damaged or foreign files.
    """
    if role not in MODELS:
        raise KeyError(f"no published model is called {role!r}; there are {', '.join(MODELS)}")
    place = fetch.folder(MODELS[role])
    config = place / "config.json"
    try:
        told = json.loads(config.read_text(encoding="utf-8"))
        if not isinstance(told, dict):
            raise ValueError("it is not a JSON object")
    except (OSError, ValueError) as error:
        raise PublishedError(f"{config} cannot be used ({error}). {disk.again()}") from error
    if told.get(disk.MARK):
        results.note_random()
    results.note_weights(f"{MODELS[role].repository}@{fetch.commit(MODELS[role])}", _digest(role))
    if role == "gpt2":
        return _gpt2(place, told, dtype)
    state = read_state(place / "model_final.pth")
    try:
        cfg = config_of(told, set(state))
        _must_be(role, cfg, bool(told.get(disk.MARK)))
    except PublishedError as error:
        raise PublishedError(f"{config}: {error}. {disk.again()}") from None
    try:
        return Transformer.from_state_dict(cfg, {k: v.to(dtype) for k, v in state.items()})
    except ValueError as error:
        said = "; ".join(str(error).splitlines())
        raise PublishedError(f"{place / 'model_final.pth'}: {said}. {disk.again()}") from error


def _gpt2(place: Path, told: dict[str, Any], dtype: torch.dtype) -> Transformer:
    from circuitbook.circuits.gpt2 import Gpt2Error, load_gpt2

    try:
        model = load_gpt2(place, dtype=dtype)
        _must_be("gpt2", model.cfg, bool(told.get(disk.MARK)))
    except (Gpt2Error, PublishedError) as error:
        raise PublishedError(f"{place}: {str(error).rstrip('.')}. {disk.again()}") from error
    return model


def _digest(role: str) -> str:
    file = "model.safetensors" if role == "gpt2" else "model_final.pth"
    return fetch.sha256(MODELS[role], file)


def load(role: str, *, dtype: torch.dtype = torch.float32, center: bool = True) -> Transformer:
    """A published model, LayerNorm folded, writing weights centred, value biases moved to b_O.

    Its config says norm "layernorm_pre". `center` also centres W_U over the vocabulary, which
    changes no probability. Each step runs in float64. Raises as `raw`.
    """
    return fold.process(raw(role, dtype), center=center)
