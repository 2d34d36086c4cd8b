"""What every snapshot of a training run can do: losses, in-context learning, head scores.

Computed from the stored (half-precision) snapshots, in float32, after training. The same held-out
windows, the same repeated sequences and the same tokens serve every snapshot and every role, so
curves can be compared point by point.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from circuitbook import compose, fast, probe
from circuitbook.config import Config
from circuitbook.recipes import Recipe
from circuitbook.weightfile import curves_path

WINDOWS = 40
PATTERN_WINDOWS, PATTERN_LENGTH = 8, 256
SEQUENCES = 16
FREQUENT = 500  # repeated sequences are drawn from this many frequent whole words
TOKEN_STRIDE = 40  # every so many positions, one per-token loss is kept
BIN = 16  # loss by index is kept as means over this many indices
LOSSES_KEPT = 200


def frequent_words(counts: np.ndarray, texts: list[str], n: int = FREQUENT) -> Tensor:
    """The `n` most frequent tokens that are a blank and letters: whole words or their beginnings.

    counts[v] is how often token v stands in the training text, texts[v] is what it stands for.
    """
    words = [v for v, t in enumerate(texts) if len(t) > 1 and t[0] == " " and t[1:].isalpha()]
    words.sort(key=lambda v: (-int(counts[v]), v))
    return torch.tensor(words[:n])


class Bench:
    """The fixed material that every snapshot is measured on."""

    def __init__(self, windows: np.ndarray, doc: np.ndarray, words: Tensor) -> None:
        self.windows = torch.from_numpy(windows)
        self.doc = torch.from_numpy(doc)
        generator = torch.Generator().manual_seed(0)
        self.repeats = probe.repeated_batch(words, SEQUENCES, generator=generator)

    @classmethod
    def course(cls) -> Bench:
        """Held-out windows and frequent words of the course text."""
        from circuitbook import corpus

        held_out = corpus.heldout_windows(WINDOWS)
        return cls(held_out.tokens, held_out.doc, cls.frequent())

    @staticmethod
    def frequent(n: int = FREQUENT) -> Tensor:
        """The `n` most frequent word tokens of the training text, most frequent first."""
        from circuitbook import corpus, vocabulary

        texts = vocabulary.texts()
        counts = np.bincount(corpus.train_tokens(), minlength=len(texts))
        return frequent_words(counts, texts, n)


def patterns(cfg: Config, params: dict[str, Tensor], tokens: Tensor, w_pos: Tensor) -> list[Tensor]:
    """The attention pattern of every layer, [batch, head, query, key] each, in float32."""
    n, out = tokens.shape[1], []
    x = torch.nn.functional.embedding(tokens, params["embed.W_E"])
    hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
    for layer in range(cfg.n_layers):
        at = f"blocks.{layer}."
        placed = (x + w_pos[:n]).unsqueeze(1)
        q, k = placed @ params[f"{at}attn.W_Q"], placed @ params[f"{at}attn.W_K"]
        scores = (q @ k.mT / math.sqrt(cfg.d_head)).masked_fill(hidden, -math.inf)
        out.append(scores.softmax(-1))
        if layer + 1 < cfg.n_layers:
            z = out[-1] @ (x.unsqueeze(1) @ params[f"{at}attn.W_V"])
            x = x + (z @ params[f"{at}attn.W_O"]).sum(1)
            if cfg.d_mlp:
                x = x + fast.mlp(cfg, params, f"{at}mlp.", x, torch.float32)
    return out


def logits_of(cfg: Config, params: dict[str, Tensor], tokens: Tensor, w_pos: Tensor) -> Tensor:
    """Logits in float32, [batch, pos, d_vocab]."""
    return fast.hidden_stream(cfg, params, tokens, w_pos, torch.float32) @ params["unembed.W_U"]


def window_losses(cfg: Config, params: dict[str, Tensor], windows: Tensor, w_pos: Tensor) -> Tensor:
    """loss[:, k-1] = -log p(token k), [window, length - 1] in nats, a few windows at a time."""
    rows = []
    for part in windows.split(4):
        log_p = logits_of(cfg, params, part[:, :-1], w_pos).log_softmax(-1)
        rows.append(-log_p.gather(-1, part[:, 1:, None]).squeeze(-1))
    return torch.cat(rows)


@torch.no_grad()
def measure(cfg: Config, params: dict[str, Tensor], bench: Bench) -> dict[str, Any]:
    """All curve values of one snapshot, as plain numbers."""
    w_pos = fast.sinusoid(cfg).float()
    losses = window_losses(cfg, params, bench.windows, w_pos)
    per_window = probe.clustered_mean(losses.mean(1), bench.doc)
    icl = probe.in_context_score(losses, bench.doc)
    effect = probe.repeat_effect(
        logits_of(cfg, params, bench.repeats.tokens, w_pos),
        bench.repeats.tokens,
        bench.repeats.first,
        bench.repeats.second,
    )
    whole = losses[:, : losses.shape[1] // BIN * BIN]
    row: dict[str, Any] = {
        "loss": per_window.mean,
        "loss_se": per_window.se,
        "loss_by_index": whole.unflatten(1, (-1, BIN)).mean((0, 2)).tolist(),
        "icl": icl.mean,
        "icl_se": icl.se,
        "repeat_loss_drop": (effect.loss_first - effect.loss_second).mean().item(),
        "repeat_rank_first": effect.rank_first.double().median().item(),
        "repeat_rank_second": effect.rank_second.double().median().item(),
        "token_losses": losses[:, ::TOKEN_STRIDE].flatten().tolist(),
    }
    if cfg.n_layers:
        text = bench.windows[:PATTERN_WINDOWS, :PATTERN_LENGTH]
        row["previous_token"] = [
            probe.previous_token_score(p).mean(0).tolist()
            for p in patterns(cfg, params, text, w_pos)
        ]
        row["prefix_matching"] = [
            probe.prefix_matching_score(p, bench.repeats.tokens).mean(0).tolist()
            for p in patterns(cfg, params, bench.repeats.tokens, w_pos)
        ]
    if cfg.n_layers == 2:
        writers = [params[f"blocks.0.attn.{w}"] for w in ("W_V", "W_O")]
        readers = [params[f"blocks.1.attn.{w}"] for w in ("W_Q", "W_K", "W_V", "W_O")]
        row["k_composition"] = compose.composition_scores(*writers, *readers).k.tolist()
    return row


def _rounded(value: Any) -> Any:
    """Five significant digits: enough for a curve, and the same on every run of one machine."""
    if isinstance(value, dict):
        return {key: _rounded(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def write(role: str, rec: Recipe, folder: Path, losses: list[float]) -> Path:
    """Measure every snapshot of a finished run and write `weights/curves/<role>.json`."""
    from circuitbook.train import snapshot_path

    bench = Bench.course()
    rows = []
    for step in rec.snapshots:
        stored = load_file(snapshot_path(folder, step))
        params = {name: tensor.float() for name, tensor in stored.items()}
        rows.append({"step": step, **measure(rec.config, params, bench)})
    per_step = rec.windows * rec.config.n_ctx
    size = max(1, len(losses) // LOSSES_KEPT)
    means = [float(np.mean(losses[i : i + size])) for i in range(0, len(losses), size)]
    data = {
        "recipe_sha256": rec.sha256(),
        "tokens_per_step": per_step,
        "training_loss": {"steps_per_point": size, "mean": means},
        "bin": BIN,
        "snapshots": rows,
    }
    path = curves_path(role)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps(_rounded(data), sort_keys=True, allow_nan=False) + "\n")
    os.replace(scratch, path)
    return path
