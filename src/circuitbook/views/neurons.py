"""Neurons of `gelu-1l` that chapter 07 shows, and a draw of `gelu-2l`'s, with where they fire.

All are read on the windows on which chapter 07 surveys its neurons, so its numbers and these are
the same numbers. The draw was fixed by its seed before anybody looked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from circuitbook import corpus, results, vocabulary, zoo
from circuitbook.neurons import contexts, draw, study, tables
from circuitbook.scan import top_k
from circuitbook.views import envelope, excerpts

CHAPTER = "07_mlp_neurons"
ROLES = ("gelu-1l", "gelu-2l")
KINDS = {
    "drawn": "drawn at random by chapter 07",
    "cleanest": "contexts agree most (chapter 07)",
    "most mixed": "contexts agree least (chapter 07)",
}


def chosen(cfg: Mapping[str, Any]) -> list[tuple[str, int, int, str]]:
    """(role, layer, neuron, why it is here), in the order of the page."""
    cards = results.read(results.evidence_path(CHAPTER))["data"]["cards"]
    picked = [
        ("gelu-1l", 0, card["neuron"], why) for kind, why in KINDS.items() for card in cards[kind]
    ]
    for layer in (0, 1):
        seed = cfg["seed"] + layer
        drawn = draw.drawn(seed, cfg["drawn"], zoo.card("gelu-2l")["recipe"]["config"]["d_mlp"])
        picked += [("gelu-2l", layer, n, f"drawn at random here (seed {seed})") for n in drawn]
    return picked


def reading() -> tuple[excerpts.Reading, dict[str, Any]]:
    """Chapter 07's surveyed windows, and what was read in words."""
    config = results.read(results.evidence_path(CHAPTER))["config"]
    held_out = corpus.heldout_windows(config["windows"], seed=config["seed"])
    some = study.evenly(config["windows"], config["surveyed"])
    tokens, doc = held_out.tokens[some], held_out.doc[some]
    sources = [f"{held_out.source[i]}: {held_out.names[i]}" for i in some.tolist()]
    per_window = tokens.shape[1] - 2  # nothing follows the last token, as in the chapter
    read = excerpts.Reading(torch.from_numpy(tokens), torch.from_numpy(doc), sources, per_window)
    return read, envelope.text_read(tokens, doc, len(tokens) * per_window, config["seed"])


@torch.no_grad()
def entries(
    role: str, layer: int, ids: list[int], why: list[str], read: excerpts.Reading, cfg: Any
) -> list[dict[str, Any]]:
    """One entry for each neuron of a layer: activations on the text, words read and written."""
    model = zoo.load(role, device="cpu")
    text = contexts.read_text(model, read.tokens, read.doc, layer)
    which, mlp, k = torch.tensor(ids), model.blocks[layer].mlp, cfg["words"]
    a = contexts.activations(model, text.read, which, layer)
    sides: dict[str, tuple[Any, Any]] = {}
    for name, (A, B) in (
        ("writes", tables.written(mlp.W_out, model.W_U)),
        ("reads", tables.direct_inputs(model.W_E, mlp.W_in)),
    ):
        sides[name] = (top_k(A, B, k, rows=which), top_k(-A, B, k, rows=which))
    return [
        {
            "role": role, "layer": layer, "unit": unit, "why": why[row],
            "bias": mlp.b_in[unit].item(),
            **one(a[:, row], read, cfg, contexts.FIRES, text.doc),
            **{name: excerpts.words(*both, row) for name, both in sides.items()},
        }
        for row, unit in enumerate(ids)
    ]  # fmt: skip


def one(
    a: Tensor, read: excerpts.Reading, cfg: Mapping[str, Any], floor: float, doc: Tensor
) -> dict[str, Any]:
    """What is shown of one column of activations; it fires where it is above `floor`."""
    fires = a > floor
    return {
        "share": fires.float().mean().item(),
        "documents": int(doc[fires].unique().numel()),
        "maximum": a.max().item(),
        "histogram": excerpts.histogram(a, cfg["bins"]),
        "contexts": excerpts.strongest(read, a, cfg["contexts"], cfg["around"]),
        "bands": excerpts.bands(read, a, floor, cfg["examples"], cfg["around"], cfg["seed"]),
    }


def compute(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Every chosen neuron's entry, in the order of `chosen`."""
    read, about = reading()
    picked, found = chosen(cfg), []
    groups = dict.fromkeys((role, layer) for role, layer, _, _ in picked)
    for role, layer in groups:
        mine = [(n, why) for r, l, n, why in picked if (r, l) == (role, layer)]
        found += entries(role, layer, [n for n, _ in mine], [why for _, why in mine], read, cfg)
    texts = vocabulary.texts()
    return {
        "read": about,
        "fires": contexts.FIRES,
        "units": found,
        "texts": {i: texts[i] for i in sorted(excerpts.ids_of(found))},
    }
