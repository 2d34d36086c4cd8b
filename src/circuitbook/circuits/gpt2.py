"""GPT-2's published weights are this course's Transformer in other names: one reshaping, no change.

    published (HF)                          here
    wte.weight       [vocab, d]             embed.W_E; its transpose is unembed.W_U (tied)
    wpe.weight       [ctx, d]               pos_embed.W_pos, added to the stream ("standard")
    h.i.ln_1, ln_2   weight, bias [d]       blocks.i.ln1, ln2: w, b
    h.i.attn.c_attn  weight [d, 3d]         W_Q | W_K | W_V side by side, heads side by side in each
    h.i.attn.c_proj  weight [d, d]          W_O, heads stacked
    h.i.mlp.c_fc, mlp.c_proj                W_in, b_in and W_out, b_out
    ln_f             weight, bias [d]       ln_final.w, b

These layers are "Conv1D": weights are [in, out], as everywhere here, so nothing is transposed but
the unembedding. The activation is GPT-2's tanh form of GELU.

Nothing here opens a socket. Weights come from a folder, or from what a hub client has stored on
this machine before. Source: Radford et al. 2019; the layout is that of `transformers`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from circuitbook.config import Config
from circuitbook.model import Transformer
from circuitbook.published.pins import MODELS

REPOSITORIES = ("openai-community/gpt2", "gpt2")
REVISION = MODELS["gpt2"].revision
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
FILES = f"config.json and {' or '.join(WEIGHT_FILES)}"
GET = (
    "Fetch it once where there is a network: `make published`, or the pinned revision alone, "
    f"`hf download {REPOSITORIES[0]} --revision {REVISION}`. Or give a folder that holds {FILES}."
)

# What GPT-2's smallest size is. A folder's own config.json is what counts when it is loaded.
SMALL = Config(
    n_layers=12, d_model=768, n_heads=12, d_head=64, d_mlp=3072, n_ctx=1024, d_vocab=50257,
    act="gelu_new", norm="layernorm", positions="standard", pos_kind="learned", attn_bias=True,
)  # fmt: skip


class Gpt2Error(RuntimeError):
    """The files of GPT-2 are missing, damaged or of another kind; says what to do."""


def find_gpt2(folder: str | Path | None = None) -> Path | None:
    """The folder with GPT-2's files: the given one, or the hub client's local store; else None.

    Asks the disk only. Raises Gpt2Error when a folder is given and does not hold the files.
    """
    if folder is not None:
        path = Path(folder)
        if _complete(path):
            return path
        raise Gpt2Error(f"{path} does not hold {FILES}. {GET}")
    from huggingface_hub import try_to_load_from_cache

    for repository in REPOSITORIES:
        for name in WEIGHT_FILES:
            for revision in (REVISION, None):  # what was pinned; else the newest there
                found = try_to_load_from_cache(repository, name, revision=revision)
                if isinstance(found, str) and _complete(Path(found).parent):
                    return Path(found).parent
    return None


def _complete(folder: Path) -> bool:
    there = any((folder / name).is_file() for name in WEIGHT_FILES)
    return there and (folder / "config.json").is_file()


def config_of(published: Mapping[str, Any]) -> Config:
    """The course's config for a published config.json.

    Raises Gpt2Error for a model that is not of GPT-2's kind.
    """
    if published.get("model_type", "gpt2") != "gpt2":
        raise Gpt2Error(f"this is a {published['model_type']!r} model, not gpt2. {GET}")
    changed = [
        f"{name}={published[name]!r}"
        for name, usual in (
            ("activation_function", "gelu_new"),
            ("scale_attn_weights", True),
            ("scale_attn_by_inverse_layer_idx", False),
            ("tie_word_embeddings", True),
            ("add_cross_attention", False),
        )
        if published.get(name, usual) != usual
    ]
    if changed:
        raise Gpt2Error(f"this variant of GPT-2 is not covered: {', '.join(changed)}")
    try:
        width, heads = published["n_embd"], published["n_head"]
        if width % heads:
            raise Gpt2Error(f"n_embd={width} cannot be shared by n_head={heads} heads")
        return SMALL.replace(
            n_layers=published["n_layer"],
            d_model=width,
            n_heads=heads,
            d_head=width // heads,
            d_mlp=published.get("n_inner") or 4 * width,
            n_ctx=published["n_positions"],
            d_vocab=published["vocab_size"],
            eps=published.get("layer_norm_epsilon", 1e-5),
        )
    except KeyError as error:
        raise Gpt2Error(f"config.json has no entry {error}; is it the one of GPT-2?") from None


def to_course(cfg: Config, published: Mapping[str, Tensor]) -> Transformer:
    """The model with exactly these published weights; each is used once and none may be left over.

    Names may carry the prefix "transformer."; the constant buffers attn.bias and attn.masked_bias
    are dropped, and a separate lm_head.weight must equal wte.weight, as the weights are tied.
    Raises Gpt2Error and lists what is missing, left over or of another shape.
    """
    given = {name.removeprefix("transformer."): x for name, x in published.items()}
    given = {k: v for k, v in given.items() if not re.search(r"\.attn\.(masked_)?bias$", k)}
    head = given.pop("lm_head.weight", None)
    wanted = _shapes(cfg)
    problems = {
        "missing": sorted(wanted.keys() - given.keys()),
        "unexpected": sorted(given.keys() - wanted.keys()),
        "wrong shape": [
            f"{name} {tuple(given[name].shape)}, the config says {shape}"
            for name, shape in wanted.items()
            if name in given and tuple(given[name].shape) != shape
        ],
    }
    if any(problems.values()):
        said = "; ".join(f"{what}: {_some(names)}" for what, names in problems.items() if names)
        raise Gpt2Error(f"the weights do not fit the config: {said}. {GET}")
    if head is not None and not torch.equal(head, given["wte.weight"]):
        raise Gpt2Error("lm_head.weight differs from wte.weight: in GPT-2 they are tied")
    bad = [name for name, x in given.items() if not bool(x.isfinite().all())]
    if bad:
        raise Gpt2Error(f"not finite: {_some(bad)}. The file is damaged: fetch it again")
    return Transformer.from_state_dict(cfg, _renamed(cfg, given))


def _some(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _shapes(cfg: Config) -> dict[str, tuple[int, ...]]:
    """Name and shape of every published entry, without prefix."""
    d, m = cfg.d_model, cfg.d_mlp
    out = {"wte.weight": (cfg.d_vocab, d), "wpe.weight": (cfg.n_ctx, d)}
    for i in range(cfg.n_layers):
        for name, shape in (
            ("attn.c_attn", (d, 3 * d)), ("attn.c_proj", (d, d)),
            ("mlp.c_fc", (d, m)), ("mlp.c_proj", (m, d)), ("ln_1", (d,)), ("ln_2", (d,)),
        ):  # fmt: skip
            out[f"h.{i}.{name}.weight"] = shape
            out[f"h.{i}.{name}.bias"] = shape[-1:]
    return out | {"ln_f.weight": (d,), "ln_f.bias": (d,)}


def _renamed(cfg: Config, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    h, e, d = cfg.n_heads, cfg.d_head, cfg.d_model
    state = {
        "embed.W_E": given["wte.weight"],
        "unembed.W_U": given["wte.weight"].T,
        "pos_embed.W_pos": given["wpe.weight"],
        "ln_final.w": given["ln_f.weight"],
        "ln_final.b": given["ln_f.bias"],
    }
    for i in range(cfg.n_layers):
        old, new = f"h.{i}.", f"blocks.{i}."
        # columns of c_attn: Q, K, V; within each, head after head
        W = given[f"{old}attn.c_attn.weight"].view(d, 3, h, e).permute(1, 2, 0, 3)  # [3, h, d, e]
        b = given[f"{old}attn.c_attn.bias"].view(3, h, e)
        for k, x in enumerate("QKV"):
            state[f"{new}attn.W_{x}"], state[f"{new}attn.b_{x}"] = W[k], b[k]
        state[f"{new}attn.W_O"] = given[f"{old}attn.c_proj.weight"].view(h, e, d)
        state[f"{new}attn.b_O"] = given[f"{old}attn.c_proj.bias"]
        for theirs, ours in (("c_fc", "in"), ("c_proj", "out")):
            state[f"{new}mlp.W_{ours}"] = given[f"{old}mlp.{theirs}.weight"]
            state[f"{new}mlp.b_{ours}"] = given[f"{old}mlp.{theirs}.bias"]
        for k in "12":
            state[f"{new}ln{k}.w"] = given[f"{old}ln_{k}.weight"]
            state[f"{new}ln{k}.b"] = given[f"{old}ln_{k}.bias"]
    return state


def load_gpt2(
    folder: str | Path | None = None,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Transformer:
    """GPT-2 from local files, ready to measure: evaluation mode, no gradients, norms not folded.

    folder: with config.json and the weights; without it the hub client's local store is read.
    Weight files are read as weights only: no code in them can run.
    Raises Gpt2Error: missing, damaged or other files; the message says what to do.
    """
    path = find_gpt2(folder)
    if path is None:
        raise Gpt2Error(f"GPT-2 is not on this machine. {GET}")
    try:
        cfg = config_of(json.loads((path / "config.json").read_text(encoding="utf-8")))
    except (ValueError, TypeError, AttributeError) as error:
        raise Gpt2Error(f"{path / 'config.json'} cannot be used ({error}). {GET}") from error
    file = next(path / name for name in WEIGHT_FILES if (path / name).is_file())
    try:
        if file.suffix == ".safetensors":
            published = load_file(file)
        else:
            published = torch.load(file, map_location="cpu", weights_only=True)
        if not isinstance(published, dict):
            raise TypeError(f"it holds a {type(published).__name__}, not named weights")
    except Exception as error:  # torch raises many kinds for a damaged or foreign file
        if not isinstance(error, SafetensorError | OSError | TypeError | RuntimeError):
            error = f"{type(error).__name__}: {error}"
        raise Gpt2Error(f"{file} cannot be read ({error}). Fetch it again. {GET}") from None
    published = {k: v.to(dtype) for k, v in published.items() if isinstance(v, Tensor)}
    return to_course(cfg, published).to(device).eval().requires_grad_(False)
