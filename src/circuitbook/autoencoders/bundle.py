"""Bundled dictionaries: eight bits for a weight, one scale for a latent, checked when loaded.

A row w of W_dec (a column of W_enc) is stored as round(w / s) in int8 with s = max|w| / 127 in
float16. So a stored weight is off by at most half of s, and two bytes hold what four numbers of
float16 would. Biases stay in float32. Everything that the course measures is measured on the stored
bytes. The files stand in `weights/` and in its manifest, beside the models.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
from pathlib import Path

import torch
from jaxtyping import Float, Float16, Int8
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from circuitbook import corpus, paths, results, weightfile, zoo
from circuitbook.autoencoders.recipes import RECIPES, Recipe
from circuitbook.autoencoders.sae import Dictionary

Stored = tuple[Int8[Tensor, "row width"], Float16[Tensor, " row"]]


def quantise(rows: Float[Tensor, "row width"]) -> Stored:
    """q = round(w / s), s = max|w| / 127 of each row: |w - q s| <= s / 2 (and s is rounded)."""
    scale = (rows.abs().amax(1) / 127).clamp_min(6e-8).half()
    q = (rows / scale.float()[:, None]).round_().clamp_(-127, 127).to(torch.int8)
    return q.contiguous(), scale


def restore(stored: Stored) -> Float[Tensor, "row width"]:
    """w = q s, float32."""
    q, scale = stored
    return q.float() * scale.float()[:, None]


def pack(dictionary: Dictionary) -> dict[str, Tensor]:
    """The tensors of a file."""
    enc, enc_scale = quantise(dictionary.W_enc.T.contiguous().float())
    dec, dec_scale = quantise(dictionary.W_dec.float())
    return {
        "enc": enc,
        "enc_scale": enc_scale,
        "dec": dec,
        "dec_scale": dec_scale,
        "b_enc": dictionary.b_enc.float().contiguous(),
        "b_dec": dictionary.b_dec.float().contiguous(),
    }


def unpack(tensors: dict[str, Tensor], k: int) -> Dictionary:
    """The dictionary that a file holds, float32."""
    enc = restore((tensors["enc"], tensors["enc_scale"]))
    dec = restore((tensors["dec"], tensors["dec_scale"]))
    return Dictionary(enc.T.contiguous(), tensors["b_enc"], dec, tensors["b_dec"], k)


def provenance(rec: Recipe) -> dict[str, str]:
    """What a dictionary depends on beside its recipe: the model's weight file and the text."""
    return {
        "model": rec.role,
        "model_sha256": zoo.card(rec.role)["sha256"],
        "corpus_sha256": corpus.corpus_sha256(),
    }


def write(name: str, dictionary: Dictionary, rec: Recipe, *, seconds: int, measured: dict) -> Path:
    """Write `weights/<name>.safetensors`, what training measured, and the manifest's entry."""
    made_from = provenance(rec)
    card = {"name": name, "recipe": rec.to_dict(), "recipe_sha256": rec.sha256(), **made_from}
    path = weightfile.weight_path(name)
    # One metadata key: the library writes several in a random order.
    data = save(pack(dictionary), {"card": json.dumps(card, sort_keys=True)})
    _whole(path, data)
    write_measured(name, {"recipe_sha256": rec.sha256(), **measured})
    entry = {
        "sha256": weightfile.file_sha256(path),
        "bytes": path.stat().st_size,
        "recipe": rec.to_dict(),
        "recipe_sha256": rec.sha256(),
        "tokens": rec.rows,
        "trained": {"seconds": seconds, "device": "cpu", "machine": platform.machine()},
        **made_from,
    }
    with open(weightfile.manifest_path().with_name(".manifest.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        manifest = {**weightfile.read_manifest(), name: entry}
        text = json.dumps(manifest, indent=1, sort_keys=True) + "\n"
        _whole(weightfile.manifest_path(), text.encode())
    return path


def write_measured(name: str, measured: dict) -> None:
    """Write `weights/curves/<name>.json`: the training curve, and what needs the trainer's run."""
    _whole(weightfile.curves_path(name), (json.dumps(measured, indent=1) + "\n").encode())


def measured(name: str) -> dict:
    """What was measured when `name` was trained.

    Raises zoo.WeightsError where the file is missing, damaged or of another recipe.
    """
    path = weightfile.curves_path(name)
    try:
        found = json.loads(path.read_text())
        if found["recipe_sha256"] != RECIPES[name].sha256():
            raise ValueError("it is of another recipe")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise zoo.WeightsError(
            f"The training curve of {name} cannot be used ({path}: {error}). Restore it with "
            f"`git checkout {weightfile.short(path)}`, or run `make weights`."
        ) from error
    return found


def _whole(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(data)
    os.replace(scratch, path)


def trouble(name: str, rec: Recipe) -> str:
    """Why the bundled file of `name` cannot be used, or "" if it can."""
    path = weightfile.weight_path(name)
    try:
        entry = weightfile.read_manifest().get(name)
    except weightfile.ManifestError as error:
        return str(error)
    if not path.is_file():
        return f"The weights of {name} are missing ({path})."
    if entry is None:
        return f"{name} is not listed in {weightfile.manifest_path()}."
    found = weightfile.file_sha256(path)
    if found != entry["sha256"]:
        return (
            f"{path} is damaged or was changed: its sha256 is {found[:12]}…, the manifest says "
            f"{entry['sha256'][:12]}…."
        )
    try:
        card = json.loads(weightfile.read_metadata(path)["card"])
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        return f"{path} cannot be read ({error})."
    if card["name"] != name:
        return f"{path} holds {card['name']}, not {name}."
    if not card["recipe_sha256"] == entry["recipe_sha256"] == rec.sha256():
        return f"{path} was trained by another recipe than the one of {name} in this version."
    if card["model_sha256"] != zoo.card(rec.role)["sha256"]:
        return f"{path} was trained on another {rec.role} than the bundled one."
    if card["corpus_sha256"] != entry["corpus_sha256"]:
        return f"{path} was trained on other text than the manifest says."
    return ""


def load(name: str) -> Dictionary:
    """The bundled dictionary of that name, as stored: eight bits, read back to float32.

    Raises:
        KeyError: an unknown name.
        zoo.WeightsError: a missing, damaged or mismatched file; the message says what to run.
    """
    if name not in RECIPES:
        raise KeyError(f"There is no dictionary {name!r}. Names: {', '.join(RECIPES)}.")
    if paths.models() == "published":
        raise zoo.WeightsError("Dictionaries exist for the course models only: run MODELS=course.")
    rec, path = RECIPES[name], weightfile.weight_path(name)
    if said := trouble(name, rec):
        raise zoo.WeightsError(
            f"{said} Restore it with `git checkout {weightfile.short(path)}`, or train it with "
            f"`python -m circuitbook.autoencoders.train {name}`."
        )
    results.note_weights(name, weightfile.file_sha256(path))
    return unpack(load_file(path), rec.k)
