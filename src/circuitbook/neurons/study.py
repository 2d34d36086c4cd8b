"""The chapter's measurements in three parts: the algebra, the neurons of one model, the contexts.

Each takes what the lesson teaches as an argument, so the lesson's own functions are what is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from circuitbook import corpus, paths, zoo
from circuitbook.model import Transformer
from circuitbook.neurons import (
    ablate,
    context_learning,
    contexts,
    counts,
    draw,
    expansion,
    series_rows,
    survive,
    tables,
)
from circuitbook.probe import clustered_mean
from circuitbook.results import bound

LIMITS = {"float32": 1e-5, "float64": 1e-12}
RANKED = (1e-3, 10)  # a neuron is ranked when it fires on this share of tokens, in 10 documents
LAYERLESS = "attn-only-0l"
DEPTH = {
    "second layer, no MLP": ("attn-only-2l", "attn-only-1l"),
    "second layer, with MLPs": ("gelu-2l", "gelu-1l"),
}


def roles() -> tuple[str, ...]:
    """The roles of the chapter that today's model set has, the model without layers if it is one.

    That one has no published counterpart.
    """
    published = paths.models() == "published"
    return tuple(x for x in zoo.MAIN_ROLES if not (published and x == LAYERLESS))


def beside(models: Mapping[str, Transformer]) -> dict[str, Transformer]:
    """The models that silenced ones are compared with besides attn-only-2l, by their name there."""
    return {"another model, without layers": models[LAYERLESS]} if LAYERLESS in models else {}


def evenly(n_windows: int, n: int) -> Int[Tensor, " n"]:
    """n of so many windows, evenly spaced, so that all documents have their part."""
    return torch.linspace(0, n_windows - 1, n).round().long()


def algebra(
    model: Transformer,
    tokens: Int[Tensor, "window pos"],
    neuron_terms: Callable[..., Tensor],
    whiten: Callable[[Tensor], tuple[Tensor, Tensor]],
    agreement: Callable[..., Tensor],
) -> dict[str, Any]:
    """GELU's numbers, two identities in both precisions with their mutants, and what survives.

    tokens: the first windows of them are used, the more the wider the model is.
    """
    tokens = tokens[: max(2, model.cfg.d_model // 128)]
    whiten = contexts.without_ones(model, whiten)
    exact = zoo.load("gelu-1l", dtype=torch.float64, center=False, device="cpu")
    errors: dict[str, Any] = {}
    for kind, m in (("float32", model), ("float64", exact)):
        found = expansion.identity_errors(m, tokens, neuron_terms)
        errors |= {f"{name}, {kind}": bound(x, LIMITS[kind]) for name, x in found.items()}
    mutants = expansion.identity_errors(model, tokens, neuron_terms, biased=False)
    errors["expansion without b_out"] = mutants["expansion"]
    errors["split without bias"] = mutants["split"]
    if model.cfg.norm != "none":
        missed = expansion.split_mutants(exact, tokens)
        errors |= {f"split without {name}": x for name, x in missed.items()}
        errors["probabilities under any G"] = survive.any_stream(exact, tokens)
    hidden = survive.hidden_bases(exact, tokens[:2])
    gelu = {
        name: {"at_1": f(1.0), "at_minus_1": f(-1.0), "sum": f(1.0) + f(-1.0), "at_0": f(0.0)}
        for name, f in expansion.GELUS.items()
    }
    return {
        "gelu": gelu,
        "identities": errors,
        "hidden": {"turned": hidden["turned"], "renumbered": bound(hidden["renumbered"], 1e-9)},
        "moves": survive.survival(exact, tokens, whiten, agreement),
    }


def neurons(
    model: Transformer,
    held_out: corpus.Windows,
    chosen: tuple[int, ...],
    whiten: Callable[[Tensor], tuple[Tensor, Tensor]],
    agreement: Callable[..., Tensor],
    *,
    windows: int,
    words: int,
    firing: int,
    extremes: int,
    seed: int,
) -> dict[str, Any]:
    """A one-layer model's neurons on text: statistics, the draw, the extremes, and ablations."""
    some = evenly(len(held_out.tokens), windows)
    tokens, doc = (torch.from_numpy(x)[some] for x in (held_out.tokens, held_out.doc))
    kinds, names = ([x[i] for i in some.tolist()] for x in (held_out.source, held_out.names))
    text, whiten = contexts.read_text(model, tokens, doc), contexts.without_ones(model, whiten)
    writes, reads = tables.most_written(model, 0, words), tables.most_read(model, 0, words)
    by_head = tables.most_read_by_strongest_head(model, words)
    found = contexts.survey(model, text, whiten, agreement, writes.ids, firing=firing, seed=seed)
    allowed = draw.ranked(found.share, found.documents, *RANKED, least=2 * extremes + 3)
    ids = allowed.nonzero().flatten()
    clean, mixed = draw.extremes(found.agreement, allowed, extremes)
    frequency = expansion.word_frequencies(model.cfg.d_vocab)
    alike = ablate.as_frequent(writes.ids, frequency)
    partners = ablate.partners(found.share, allowed)
    base = ablate.base_rates(text, writes.ids, model.cfg.d_vocab)
    gone = ablate.effects(model, text, found, writes.ids, alike, partners)
    statistics = {
        "share firing": found.share,
        "maximum": found.maximum,
        "agreement": found.agreement,
        "firing on its best token": found.top_token,
        "followed by its words": found.right,
    }
    score, chance = found.agreement[ids], found.random[ids]
    passed = score > draw.chance_level(found.share[ids], chance)
    perfect = contexts.perfect_detectors(text, whiten, agreement, *RANKED)
    fifths = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0])

    def cards(of: Any) -> list[dict]:
        return [
            contexts.card(model, text, tokens, found, writes, reads, by_head, n, kinds, names)
            | ablate.of_one(gone, n)
            for n in of
        ]

    return {
        "draw": {
            "neurons": chosen,
            "of": len(found.share),
            "statistics": draw.summary(statistics, chosen),
        },
        "all": {
            "share firing": found.share,
            "agreement": found.agreement,
            "random": found.random,
            "allowed": allowed,
        },
        "agreement": {
            "quartiles": torch.quantile(score, fifths),
            "random": torch.quantile(chance, fifths),
            "perfect": torch.quantile(perfect if len(perfect) else score.new_zeros(1), fifths),
            "perfect detectors": len(perfect),
            "above random": passed.double().mean(),
            "allowed": len(ids),
            "silent": int((found.share == 0).sum()),
            "tokens": len(text.token),
            "documents": len(text.doc.unique()),
            "above a quarter": (score >= 0.25).double().mean(),
            "rank correlation": draw.rank_correlation(score, found.top_token[ids]),
            "top token, cleanest": found.top_token[clean[0]],
            "top token, most mixed": found.top_token[mixed[0]],
        },
        "cards": {"cleanest": cards(clean), "most mixed": cards(mixed), "drawn": cards(chosen)},
        "words": {
            "neurons above base": (found.right > base)[ids].double().mean(),
            "mean": found.right[ids].mean(),
            "median": found.right[ids].median(),
            "base": base[ids].mean(),
        },
        "ablation": ablate.study(gone, base, ids),
        "synthetic": contexts.synthetic_scores(agreement),
    } | series_rows.neurons(model, found, writes, reads)


def every(models: Mapping[str, Transformer]) -> int:
    """How many tokens apart losses are computed: the wider the vocabulary, the fewer logits."""
    return 6 if max(m.cfg.d_vocab for m in models.values()) <= 4096 else 24


def layerless(windows: int, shuffled: int, seed: int) -> dict[str, Any]:
    """The course's model without layers on the course's text, for a set that has none.

    "broad": its in-context learning score. "controls": that it scores zero on both controls.
    """
    with paths.model_set("course"):
        held_out, model = corpus.heldout_windows(windows, seed=seed), zoo.load(LAYERLESS)
    tokens, doc = torch.from_numpy(held_out.tokens), torch.from_numpy(held_out.doc)
    k, part = context_learning.indices(), evenly(len(tokens), shuffled)
    scores = context_learning.scores(context_learning.losses(model, tokens, k), k)
    found = context_learning.controls(
        {LAYERLESS: model}, tokens[part], doc[part], torch.Generator().manual_seed(seed + 1)
    )
    zero = {name: x for name, x in found.items() if name.endswith("zero layers")}
    return {"broad": list(clustered_mean(scores.broad, doc)[:2]), "controls": zero}


def context(
    models: Mapping[str, Transformer], held_out: corpus.Windows, shuffled: int, seed: int
) -> dict[str, Any]:
    """In-context learning of all models on the same windows: levels, errors, controls, units."""
    tokens, doc = torch.from_numpy(held_out.tokens), torch.from_numpy(held_out.doc)
    k, part = context_learning.indices(every=every(models)), evenly(len(tokens), shuffled)
    loss = {role: context_learning.losses(m, tokens, k) for role, m in models.items()}
    scores = {role: context_learning.scores(x, k) for role, x in loss.items()}
    sizes = tuple(n for n in (10, 20, 40, 60, 80, 100, 125, 150) if 2 * n <= len(tokens))

    def generator(n: int) -> torch.Generator:
        return torch.Generator().manual_seed(seed + n)

    out = context_learning.compare(scores, doc) | {
        "windows": len(tokens),
        "documents": len(doc.unique()),
        "mix": contexts.mix_of(held_out.source),
        "sizes": sizes,
        "by_index": {role: context_learning.by_index(x, k, doc) for role, x in loss.items()},
        "controls": context_learning.controls(models, tokens[part], doc[part], generator(1)),
        "units": context_learning.unit_losses(
            loss, tokens, k, context_learning.kinds_of(held_out.source, tokens)
        ),
        "alphabets": context_learning.two_alphabets(
            corpus.train_tokens()[:1_000_000], tokens, next(iter(models.values())).cfg.d_vocab
        ),
        "needed": {},
        "detected": {},
    }
    if LAYERLESS not in models:
        out["layerless"] = layerless(len(tokens), shuffled, seed)
        out["controls"] |= out["layerless"].pop("controls")
    for name, (a, b) in DEPTH.items():
        gap = {x: getattr(scores[a], x) - getattr(scores[b], x) for x in ("broad", "single")}
        level = {x: clustered_mean(g, doc) for x, g in gap.items()}
        low, high = context_learning.needed_range(gap["broad"], doc, generator(3))
        out["needed"][name] = {
            "broad": context_learning.needed(gap["broad"], doc),
            "low": low,
            "high": high,
            "times": (level["single"].se / level["broad"].se) ** 2,
        }
        out["detected"][name] = {
            x: context_learning.detected(g, doc, sizes, generator(2)) for x, g in gap.items()
        }
    return out


def series(d: dict[str, Any], windows: int, seed: int) -> dict[str, Any]:
    """The chapter's counterparts of what the series printed, by the series' own names.

    On the published models also two neurons of gelu-1l and the scores of gpt2, on as many windows.
    """
    gelu = {f"part7.gelu.{at}": x for at, x in d["gelu"]["erf"].items()}
    printed = series_rows.rows(d, windows, seed)
    return {**counts.series(), **gelu, **context_learning.series(d["icl"]), **printed}
