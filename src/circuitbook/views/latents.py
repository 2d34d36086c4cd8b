"""Latents of `sae-gelu-1l`: chapter 09's best ten, its random ten, and a draw from all of them.

The draw does not ask whether a latent is alive: what a dictionary wastes belongs to the picture.
All are read on the windows of chapter 09.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from circuitbook import corpus, results, vocabulary, zoo
from circuitbook.autoencoders import bundle, dashboards, quality, sae
from circuitbook.model import Transformer
from circuitbook.neurons import draw
from circuitbook.views import envelope, excerpts, neurons

CHAPTER = "09_sparse_autoencoders"
NAME, ROLE = "sae-gelu-1l", "gelu-1l"
SEED = 11  # of chapter 09's windows: the default of `autoencoders.study.study`


def chosen(cfg: Mapping[str, Any], latents: int) -> list[tuple[int, str]]:
    """(latent, why it is here), none twice, in the order of the page."""
    saved = results.read(results.evidence_path(CHAPTER))["data"]["sae"]
    picked = {b["latent"]: "most single-minded (chapter 09)" for b in saved["best"]}
    for b in saved["random"]:
        picked.setdefault(b["latent"], "drawn by chapter 09 from latents that fire often enough")
    for latent in draw.drawn(cfg["seed"], cfg["drawn"], latents):
        picked.setdefault(
            latent, f"drawn here from all latents, dead ones too (seed {cfg['seed']})"
        )
    return list(picked.items())


def reading() -> tuple[excerpts.Reading, dict[str, Any]]:
    """Chapter 09's windows, and what was read in words."""
    windows = results.read(results.evidence_path(CHAPTER))["config"]["windows"]
    held_out = corpus.heldout_windows(windows, seed=SEED)
    tokens, per_window = held_out.tokens, held_out.tokens.shape[1] - 1
    sources = [f"{s}: {n}" for s, n in zip(held_out.source, held_out.names, strict=True)]
    doc = torch.from_numpy(held_out.doc)
    read = excerpts.Reading(torch.from_numpy(tokens), doc, sources, per_window)
    return read, envelope.text_read(tokens, held_out.doc, windows * per_window, SEED)


def columns(c: quality.Codes, ids: list[int]) -> Tensor:
    """Dense activations [position, chosen] of some latents from codes that hold only the k on."""
    found = [torch.where(c.latent == latent, c.value, 0.0).sum(1) for latent in ids]
    return torch.stack(found, 1)


@torch.no_grad()
def sides(
    model: Transformer, dictionary: sae.Dictionary, which: Tensor, k: int
) -> list[dict[str, dict[str, list]]]:
    """Words written at one unit of activation, and words that turn a latent on by themselves."""
    lifts = dashboards.written(model, dictionary, which)
    drives = dashboards.by_word(model, dictionary, which)
    out = []
    for lift, drive in zip(lifts, drives, strict=True):
        up, down, by = lift.topk(k), (-lift).topk(k), drive.topk(k)
        on = by.values > 0
        out.append({
            "writes": {
                "top": up.indices.tolist(), "top values": up.values.tolist(),
                "low": down.indices.tolist(), "low values": (-down.values).tolist(),
            },
            "reads": {"top": by.indices[on].tolist(), "top values": by.values[on].tolist()},
        })  # fmt: skip
    return out


def compute(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Every chosen latent's entry: density, contexts, bands, words written, words that drive it."""
    model, dictionary = zoo.load(ROLE, device="cpu"), bundle.load(NAME)
    read, about = reading()
    seen = quality.read(model, read.tokens, read.doc)
    codes = quality.codes(dictionary, seen.post.flatten(0, 1))
    picked = chosen(cfg, dictionary.latents)
    ids = [latent for latent, _ in picked]
    a = columns(codes, ids)
    words = sides(model, dictionary, torch.tensor(ids), cfg["words"])
    doc = read.doc.repeat_interleave(read.per_window)
    found = [
        {"unit": latent, "why": why, **neurons.one(a[:, row], read, cfg, 0.0, doc), **words[row]}
        for row, (latent, why) in enumerate(picked)
    ]
    fired = torch.bincount(codes.latent[codes.value > 0], minlength=dictionary.latents)
    texts = vocabulary.texts()
    return {
        "read": about,
        "latents": dictionary.latents,
        "k": dictionary.k,
        "densities": densities(fired, len(codes.value)),
        "units": found,
        "texts": {i: texts[i] for i in sorted(excerpts.ids_of(found))},
    }


def densities(fired: Tensor, positions: int) -> dict[str, Any]:
    """How often latents fire, all of them: counts by decade of the share of positions, and dead."""
    share = fired.double() / positions
    decade = share[share > 0].log10().floor().clamp_min(-6).long()
    counts = torch.bincount(decade + 6, minlength=6).tolist()
    return {
        "dead": int((fired == 0).sum()),
        "decades": list(range(-6, len(counts) - 6)),
        "counts": counts,
    }
