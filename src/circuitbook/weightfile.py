"""Bundled weight files: float16 safetensors that carry their recipe, listed in one manifest."""

from __future__ import annotations

import fcntl
import json
import os
import platform
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from circuitbook import paths
from circuitbook.recipes import Recipe
from circuitbook.sources import file_sha256

_ENTRY = {"sha256", "bytes", "recipe", "recipe_sha256", "corpus_sha256", "tokens", "trained"}


class ManifestError(RuntimeError):
    """The manifest of the weights cannot be read; the message says what to do."""


def short(path: Path) -> Path:
    """The path as one types it inside the project."""
    return path.relative_to(paths.ROOT) if path.is_relative_to(paths.ROOT) else path


def weight_path(role: str) -> Path:
    """`weights/<role>.safetensors`."""
    return paths.WEIGHTS / f"{role}.safetensors"


def curves_path(role: str) -> Path:
    """`weights/curves/<role>.json`."""
    return paths.WEIGHTS / "curves" / f"{role}.json"


def manifest_path() -> Path:
    """`weights/MANIFEST.json`: per role its sha256, size, recipe, corpus and how it was trained."""
    return paths.WEIGHTS / "MANIFEST.json"


def read_manifest() -> dict[str, dict]:
    """The manifest, or an empty one where no weights were ever made.

    Raises:
        ManifestError: the file is not a manifest; the message says how to restore it.
    """
    path = manifest_path()
    if not path.is_file():
        return {}
    try:
        manifest = json.loads(path.read_text())
        if not all(_ENTRY <= entry.keys() for entry in manifest.values()):
            raise ValueError(f"an entry lacks one of {', '.join(sorted(_ENTRY))}")
    except (ValueError, AttributeError) as error:
        raise ManifestError(
            f"{path} is damaged ({error}). Restore it with `git checkout {short(path)}`."
        ) from error
    return manifest


def write_weights(role: str, tensors: dict[str, Tensor], rec: Recipe, corpus_sha256: str) -> Path:
    """Write a role's weights with recipe and corpus hash inside; whole or not at all.

    Raises:
        FloatingPointError: a weight is not finite in half precision.
    """
    bad = [name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())]
    if bad:
        raise FloatingPointError(f"{role}: {', '.join(bad)} not finite in half precision")
    path = weight_path(role)
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {
        "role": role,
        "recipe": json.dumps(rec.to_dict(), sort_keys=True),
        "recipe_sha256": rec.sha256(),
        "corpus_sha256": corpus_sha256,
        "licence": "CC BY 4.0",
    }
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(_with_metadata(save(tensors), metadata))
    os.replace(scratch, path)
    return path


def _with_metadata(data: bytes, metadata: dict[str, str]) -> bytes:
    """A safetensors file with metadata in sorted order: the same input gives the same bytes.

    The library writes tensors in a fixed order, but several metadata keys in a random one.
    The format: the header's length in 8 bytes, the header as JSON padded with blanks, the tensors.
    """
    length = int.from_bytes(data[:8], "little")
    header = {"__metadata__": dict(sorted(metadata.items())), **json.loads(data[8 : 8 + length])}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a weight file; the error of safetensors passes through for a damaged one."""
    with safe_open(path, "pt") as handle:
        return handle.metadata() or {}


def manifest_entry(
    role: str, rec: Recipe, corpus_sha256: str, *, seconds: int, device: str
) -> None:
    """Add or replace a role's line in the manifest, safely beside other runs."""
    path = weight_path(role)
    entry = {
        "sha256": file_sha256(path),
        "bytes": path.stat().st_size,
        "recipe": rec.to_dict(),
        "recipe_sha256": rec.sha256(),
        "corpus_sha256": corpus_sha256,
        "tokens": rec.tokens,
        "trained": {"seconds": seconds, "device": device, "machine": platform.machine()},
    }
    with open(manifest_path().with_name(".manifest.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        manifest = read_manifest()
        manifest[role] = entry
        scratch = manifest_path().with_name(".MANIFEST.json.new")
        scratch.write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
        os.replace(scratch, manifest_path())


def up_to_date(role: str, rec: Recipe, corpus_sha256: str) -> bool:
    """Are the bundled weights and curves those that this recipe on this text made?"""
    entry, path = read_manifest().get(role), weight_path(role)
    if entry is None or not path.is_file():
        return False
    same = entry["recipe_sha256"] == rec.sha256() and entry["corpus_sha256"] == corpus_sha256
    return same and entry["sha256"] == file_sha256(path) and _has_curves(role, rec)


def _has_curves(role: str, rec: Recipe) -> bool:
    if not rec.snapshots:  # nothing is kept along the way, so there is nothing to measure
        return True
    try:
        return json.loads(curves_path(role).read_text())["recipe_sha256"] == rec.sha256()
    except (OSError, ValueError, KeyError, TypeError):
        return False
