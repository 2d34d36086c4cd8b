"""A role's name in, a checked and loaded model out. Never trains and never downloads by itself.

A bundled file is refused unless its bytes are those of the manifest and its recipe is the one in
:mod:`circuitbook.recipes`, so a lesson never measures a half-written, foreign or outdated model.
"""

from __future__ import annotations

import json
import math
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from circuitbook import fast, fold, paths, results, weightfile
from circuitbook.model import Transformer
from circuitbook.recipes import RECIPES, recipe

# The family that shares text, order and length; the optimiser twins of chapter 01 stand apart.
MAIN_ROLES = ("attn-only-0l", "attn-only-1l", "attn-only-2l", "gelu-1l", "gelu-2l")


class WeightsError(RuntimeError):
    """A weight file is missing, damaged or not the one the course expects; says what to run."""


def roles() -> list[str]:
    """The roles that `load` knows, in teaching order."""
    return list(RECIPES)


def _entry(role: str) -> dict[str, Any]:
    """The manifest's entry of a known role."""
    recipe(role)
    path = weightfile.manifest_path()
    mend = f"Restore it with `git checkout {weightfile.short(path)}`, or run `make weights`."
    try:
        entry = weightfile.read_manifest().get(role)
    except weightfile.ManifestError as error:
        raise WeightsError(str(error)) from error
    if not path.is_file():
        raise WeightsError(f"The list of the weights is missing ({path}). {mend}")
    if entry is None:
        raise WeightsError(f"{role} is not listed in {path}. {mend}")
    return entry


def _checked(role: str) -> dict[str, torch.Tensor]:
    known, path = recipe(role), weightfile.weight_path(role)
    mend = f"Restore it with `git checkout {weightfile.short(path)}`"
    train = f"train it with `python -m circuitbook.train {role}`"
    if not path.is_file():
        raise WeightsError(f"The weights of {role} are missing ({path}). {mend}, or {train}.")
    entry = _entry(role)
    found = weightfile.file_sha256(path)
    if found != entry["sha256"]:
        raise WeightsError(
            f"{path} is damaged or was changed: {path.stat().st_size:,} bytes with sha256 "
            f"{found[:12]}…, the manifest says {entry['bytes']:,} bytes and "
            f"{entry['sha256'][:12]}…. {mend}, or {train}."
        )
    try:
        metadata, tensors = weightfile.read_metadata(path), load_file(path)
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path} cannot be read ({error}). {mend}, or {train}.") from error
    if metadata.get("role") != role:
        raise WeightsError(
            f"{path} holds {metadata.get('role', 'an unnamed model')}, not {role}. "
            f"{mend}, or {train}."
        )
    if not metadata.get("recipe_sha256") == entry["recipe_sha256"] == known.sha256():
        raise WeightsError(
            f"{path} was trained by another recipe than the one of {role} in this version. "
            f"{mend}, or {train}."
        )
    if metadata.get("corpus_sha256") != entry["corpus_sha256"]:
        raise WeightsError(
            f"{path} was trained on other text than the manifest says. {mend}, or {train}."
        )
    results.note_weights(role, found)
    return tensors


def _published(role: str, dtype: torch.dtype, center: bool) -> Transformer:
    from circuitbook.published import models

    if role not in models.ROLES:
        recipe(role)  # an unknown role is said first
        raise WeightsError(
            f"{role} has no published counterpart: it is a model of this course. Load it inside "
            '`with paths.model_set("course"):`, or run with MODELS=course, the default.'
        )
    model = models.load(role, dtype=dtype, center=center)
    if role != "gpt2":  # which has a tokenizer of its own
        _must_fit(role, model.cfg.d_vocab)
    return model


PADDING = 128  # rows that a published table may have beyond the tokenizer's last id


def _must_fit(role: str, d_vocab: int) -> None:
    """Refuse a model whose vocabulary is not that of the tokenizer.

    Ids would be read as other words, and nothing else would notice a table that is too large.
    """
    from circuitbook.published import tokens

    known = tokens.load().vocab_size
    if not 0 <= d_vocab - known <= PADDING:
        raise WeightsError(
            f"{role} has {d_vocab:,} tokens and its tokenizer {known:,}: they do not belong "
            "together. Delete both from the hub's cache and run `make published`."
        )


def load(
    role: str,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.float32,
    center: bool = True,
) -> Transformer:
    """The model of a role in today's model set, ready to measure: evaluation mode, no gradients.

    With MODELS=published the series' own model, its LayerNorm folded and its writing weights
    centred (norm "layernorm_pre"); see :mod:`circuitbook.published.models`.

    `center` subtracts from W_U its mean over the vocabulary, which changes no probability and
    makes every logit attribution comparable. `device` defaults to the DEVICE switch.

    Raises:
        KeyError: an unknown role; the message lists the known ones.
        WeightsError: a missing, damaged or mismatched file; the message says what to run.
    """
    place = torch.device(device or paths.device())  # a wrong DEVICE is said before the reading
    if paths.models() == "published":
        return _published(role, dtype, center).to(place).eval().requires_grad_(False)
    state = {name: tensor.to(dtype) for name, tensor in _checked(role).items()}
    model = Transformer.from_state_dict(recipe(role).config, state).to(dtype)
    if center:
        model = fold.center_unembed(model)
    return model.to(place).eval().requires_grad_(False)


def card(role: str) -> dict[str, Any]:
    """What a role is and how it was made: config, recipe, tokens, corpus, sha256, seconds."""
    return _entry(role)


def curves(role: str) -> dict[str, Any]:
    """What was measured at every snapshot of a role's training; see :mod:`circuitbook.curves`."""
    known, path = recipe(role), weightfile.curves_path(role)
    mend = f"Restore them with `git checkout {weightfile.short(path)}`, or run `make weights`."
    if not path.is_file():
        raise WeightsError(f"The training curves of {role} are missing ({path}). {mend}")
    try:
        measured = json.loads(path.read_text())
        if measured["recipe_sha256"] != known.sha256():
            raise ValueError("they are of another recipe")
    except (ValueError, KeyError, TypeError) as error:
        raise WeightsError(
            f"The training curves of {role} cannot be used ({path}: {error}). {mend}"
        ) from error
    return measured


def n_parameters(role: str) -> int:
    """The number of trained parameters, embeddings included, from the config alone."""
    return sum(math.prod(shape) for shape in fast.shapes(recipe(role).config).values())


def short_card(role: str) -> dict[str, int]:
    """The lines of a model's card that a reader asks for first."""
    entry = card(role)
    config = entry["recipe"]["config"]
    return {
        "layers": config["n_layers"],
        "width": config["d_model"],
        "heads": config["n_heads"] if config["n_layers"] else 0,
        "neurons": config["d_mlp"],
        "parameters": n_parameters(role),
        "training tokens": entry["tokens"],
        "file (bytes)": entry["bytes"],
        "training time (s)": entry["trained"]["seconds"],
    }


def thin_curves(role: str) -> dict[str, list]:
    """The training curves of a role, reduced to the best head of each layer and pair."""
    saved = curves(role)
    rows = saved["snapshots"]
    out = {"tokens": [row["step"] * saved["tokens_per_step"] for row in rows]}
    for key in ("loss", "icl", "repeat_loss_drop", "repeat_rank_second"):
        out[key] = [row[key] for row in rows]
    for key in ("previous_token", "prefix_matching"):
        if key in rows[0]:
            out[key] = [[max(layer) for layer in row[key]] for row in rows]
    if "k_composition" in rows[0]:
        out["k_composition"] = [max(map(max, row["k_composition"])) for row in rows]
    return out
