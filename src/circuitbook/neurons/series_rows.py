"""What Part 7 of the series printed of its own models, measured again on them.

Two neurons of gelu-1l, and the in-context scores of five models. Only with MODELS=published; on the
course's models these neurons and gpt2 mean nothing, and nothing is returned.

Neurons are read over the windows of the survey (with the lesson's full sizes 102,000 tokens of the
WikiText-103 test articles, as many as the series had). Directions are those of the folded weights:
what a neuron writes is centred over the vocabulary, and direct inputs and writes are right up to
the positive scale of LayerNorm at a position, which is left out, as in the series.

gpt2 has a tokenizer of its own, so it reads windows of its own: the same articles, cut by the rule
of `corpus.heldout_windows`, BOS (its <|endoftext|>) first. Its losses are nats a token of another
alphabet.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from circuitbook import paths
from circuitbook.corpus import Windows
from circuitbook.model import Transformer
from circuitbook.neurons import context_learning
from circuitbook.neurons.contexts import Survey, words_of
from circuitbook.scan import Top

NEURONS = (847, 1996)
SHOWN = 8


def neurons(model: Transformer, found: Survey, writes: Top, reads: Top) -> dict[str, Any]:
    """{"series neurons": number -> how often it fires, its maximum, its words}; {} for the course.

    A neuron that the model does not have is left out.
    """
    if paths.models() != "published":
        return {}

    def words(top: Top, n: int) -> list[list]:
        values = top.values[n, :SHOWN].tolist()
        return [list(pair) for pair in zip(words_of(top.ids[n, :SHOWN]), values, strict=True)]

    there = [n for n in NEURONS if n < len(found.share)]
    return {
        "series neurons": {
            str(n): {
                "fires_above_0.1": found.share[n],
                "max": found.maximum[n],
                "writes": words(writes, n),
                "reads": words(reads, n),
            }
            for n in there
        }
    }


def windows_of(
    articles: list[list[int]], bos: int, n: int, length: int = 512, seed: int = 0
) -> Windows:
    """At most n windows, BOS first, each inside one article, without overlap, drawn with a seed.

    An article gives at most n / 12 of them (and 4 in any case). names: the articles' numbers.
    """
    rng, step, pool = np.random.default_rng(seed), length - 1, []
    for doc, ids in enumerate(articles):
        begins = np.arange(0, len(ids) - step + 1, step)
        most = max(4, n // 12)
        if len(begins) > most:
            begins = np.sort(rng.choice(begins, most, replace=False))
        pool += [(doc, int(x)) for x in begins]
    drawn = rng.choice(len(pool), min(n, len(pool)), replace=False)
    chosen = sorted(pool[i] for i in drawn)
    rows = [[bos, *articles[doc][begin : begin + step]] for doc, begin in chosen]
    where = np.asarray([doc for doc, _ in chosen])
    tokens = np.asarray(rows, dtype=np.int64).reshape(len(rows), length)
    return Windows(tokens, where, ["WikiText-103"] * len(rows), [str(doc) for doc in where])


def gpt2_windows(n: int, length: int = 512, seed: int = 0) -> Windows:
    """Windows of the held-out articles in gpt2's own tokens."""
    from circuitbook.circuits.gpt2_path import END_OF_TEXT
    from circuitbook.circuits.gpt2_prompts import local_encoder, single_tokens
    from circuitbook.published import fetch, pins, text

    encode = local_encoder(fetch.folder(pins.MODELS["gpt2"]))
    (bos,) = single_tokens(encode, [END_OF_TEXT])
    return windows_of([encode(d.text + "\n") for d in text.documents()[1]], bos, n, length, seed)


def gpt2_context(n: int, seed: int) -> dict[str, float]:
    """The in-context scores of gpt2 in the series' protocol, errors clustered by article.

    Losses are computed where the scores need them, and nowhere else. Its norms are not folded: that
    would change no loss.
    """
    from circuitbook.published import models

    held_out, model = gpt2_windows(n, seed=seed), models.raw("gpt2").to(paths.device())
    tokens, doc = torch.from_numpy(held_out.tokens), torch.from_numpy(held_out.doc)
    k = context_learning.scored()
    loss = context_learning.losses(model, tokens[:, : int(k[-1]) + 1], k, part=4)
    s = context_learning.scores(loss, k)
    return context_learning.series_row(context_learning.level(s, doc))


def rows(d: dict[str, Any], windows: int, seed: int) -> dict[str, Any]:
    """part7.neuron.<n> and part7.icl.gpt2, with MODELS=published; otherwise nothing.

    Takes "series neurons" out of the chapter's data.
    """
    if paths.models() != "published":
        return {}
    found = {f"part7.neuron.{n}": x for n, x in d.pop("series neurons").items()}
    return found | {"part7.icl.gpt2": gpt2_context(windows, seed)}
