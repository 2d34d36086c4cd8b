"""Writes the explorer's data as plain scripts: the vocabulary, the weights, the presets.

A page opened from disk may read no file, but it may run a script that lies beside it. So each model
is one script that hands its half-precision numbers over as base64. Nothing here imports torch, and
the same inputs give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from circuitbook import paths, vocabulary

MODELS = ("attn-only-1l", "attn-only-2l", "gelu-1l", "gelu-2l")
# What static/model.js computes, and nothing else.
UNDERSTOOD = {
    "norm": ("none",),
    "positions": ("shortformer",),
    "pos_kind": ("sinusoidal",),
    "attn_bias": (False,),
    "unembed_bias": (False,),
    "mlp_bias": (True,),
    "n_experts": (0,),
    "act": ("none", "gelu", "relu"),
}
KEPT = ("n_layers", "d_model", "n_heads", "d_head", "d_mlp", "n_ctx", "d_vocab", "act")
POSITION = ("pos_base", "pos_amplitude")


class ExplorerError(RuntimeError):
    """A file that the explorer is made from cannot be used; the message says what to run."""


def _short(path: Path) -> Path:
    root = paths.folder("ROOT")
    return path.relative_to(root) if path.is_relative_to(root) else path


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        short = _short(path)
        raise ExplorerError(
            f"{short} cannot be read ({type(error).__name__}). Restore it: git checkout {short}"
        ) from error


def _config(role: str, entry: dict) -> dict[str, Any]:
    """The fields that the page needs; refuses a model that its forward pass would get wrong."""
    config = entry["recipe"]["config"]
    for name, allowed in UNDERSTOOD.items():
        if config[name] not in allowed:
            raise ExplorerError(
                f"{role} has {name}={config[name]!r}, which site/apps/explorer/static/model.js "
                f"does not compute (it knows {', '.join(map(repr, allowed))}). "
                "Extend that file, or take the role out of MODELS in build.py."
            )
    return {name: config[name] for name in (*KEPT, *POSITION)}


def weights_script(role: str, manifest: dict) -> str:
    """`Explorer.weights(role, header, base64)`: every tensor's float16 numbers, end to end."""
    path = paths.folder("WEIGHTS") / f"{role}.safetensors"
    mend = f"Restore it: git checkout {_short(path)}"
    if role not in manifest:
        raise ExplorerError(f"{role} is not in weights/MANIFEST.json. Run: make weights")
    if not path.is_file():
        raise ExplorerError(f"{_short(path)} is missing. {mend}")
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != manifest[role]["sha256"]:
        raise ExplorerError(f"{_short(path)} is damaged or was changed. {mend}")
    try:
        tensors = load(data)
    except SafetensorError as error:
        raise ExplorerError(f"{_short(path)} cannot be read ({error}). {mend}") from error
    header: dict[str, Any] = {"config": _config(role, manifest[role]), "tensors": {}}
    offset, parts = 0, []
    for name, tensor in sorted(tensors.items()):
        if tensor.dtype != np.float16:
            raise ExplorerError(f"{role}: {name} is {tensor.dtype}; the explorer reads float16")
        header["tensors"][name] = {"shape": list(tensor.shape), "offset": offset}
        offset += tensor.size
        parts.append(tensor.astype("<f2").tobytes())
    text = base64.b64encode(b"".join(parts)).decode()
    return f'Explorer.weights("{role}", {json.dumps(header)}, "{text}");\n'


def vocabulary_data() -> dict[str, Any]:
    """{vocab, merges, bos}: symbols in id order, and merges in rank order."""
    saved = _read_json(vocabulary.file_path())["model"]
    ids = saved["vocab"]
    return {
        "vocab": sorted(ids, key=ids.__getitem__),
        "merges": [pair if isinstance(pair, str) else " ".join(pair) for pair in saved["merges"]],
        "bos": vocabulary.BOS,
    }


def presets() -> list[dict[str, Any]]:
    """The prompts behind the buttons. Those of the chapters, and their heads, come from results.

    heads: the head to look at; writers: the earlier head whose write it needs.
    """
    results = paths.folder("RESULTS") / "course"
    aunt = _read_json(results / "09_sparse_autoencoders.json")["data"]["aunt"]
    induction = _read_json(results / "06_induction.json")["data"]
    roles = {role: x for role, x in aunt["roles"].items() if role in MODELS}
    repeated = "".join(induction["example"]["tokens"][1:])
    return [
        {
            "name": "Aunt Sally",
            "text": "".join(aunt["tokens"][1:]),
            "heads": {role: x["head"] for role, x in roles.items()},
            "writers": {role: x["writer"] for role, x in roles.items() if x.get("writer")},
        },
        {
            "name": "repeated tokens",
            "text": repeated,
            "heads": {"attn-only-2l": induction["pair"][1]},
            "writers": {"attn-only-2l": induction["pair"][0]},
        },
        {
            "name": "names",
            "text": "Mary went to the market with her brother John. In the evening Mary came home"
            " and told the story to John. Then",
            "heads": {},
            "writers": {},
        },
        {
            "name": "code",
            "text": "def total(values):\n    result = 0\n    for value in values:\n"
            "        result += value\n    return",
            "heads": {},
            "writers": {},
        },
        {
            "name": "verse",
            "text": "And God said, Let there be light: and there was light. And God saw the",
            "heads": {},
            "writers": {},
        },
    ]


def data_script(manifest: dict) -> str:
    """Vocabulary, presets and the models' configs: what the page needs before any weights."""
    values = {
        "vocabulary": vocabulary_data(),
        "presets": presets(),
        "models": {role: _config(role, manifest[role]) for role in MODELS},
    }
    return "".join(f"Explorer.{name} = {json.dumps(value)};\n" for name, value in values.items())


def build(out: Path) -> None:
    """Write data.js and one weights-<role>.js for each model into `out`, whole or not at all."""
    manifest = _read_json(paths.folder("WEIGHTS") / "MANIFEST.json")
    files = {f"weights-{role}.js": weights_script(role, manifest) for role in MODELS}
    files["data.js"] = data_script(manifest)
    out.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        scratch = out / f".{name}.new"
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(out / name)


if __name__ == "__main__":
    import sys

    build(Path(sys.argv[1]))
