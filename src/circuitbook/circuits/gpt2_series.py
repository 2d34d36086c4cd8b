"""What others printed about GPT-2, by the course's tools: heads by their scores, and two tasks.

Words for the induction row are frequent words of the text that are one token of GPT-2's as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from circuitbook import paths, vocabulary, zoo
from circuitbook.circuits.gpt2_path import END_OF_TEXT, induction_row
from circuitbook.circuits.gpt2_prompts import Encode, local_encoder, single_tokens
from circuitbook.curves import Bench
from circuitbook.induction import public
from circuitbook.model import Transformer
from circuitbook.published import fetch, pins
from circuitbook.series.reference import entries


def common_words(encode: Encode, most: int) -> Int[Tensor, " word"]:
    """GPT-2's ids of up to `most` frequent words of today's text that are one token there too."""
    texts, found = vocabulary.texts(), []
    for i in Bench.frequent(3 * most).tolist():
        ids = encode(texts[i])
        if len(ids) == 1:
            found.append(ids[0])
    return torch.tensor(found[:most])


def head_scores(model: Transformer, start: int) -> dict[str, dict[str, float]]:
    """ "l.h" -> attention to the previous token, and from a second copy to behind the first.

    The protocol of the public source (:mod:`circuitbook.induction.public`), with our own draws.
    start: the token that opens every sequence.
    """
    low, high = public.REPEATED
    high = min(high, model.cfg.d_vocab)
    block = torch.randint(
        min(low, high // 2), high, (public.SEQUENCES, public.BLOCK),
        generator=torch.Generator().manual_seed(public.SEED),
    )  # fmt: skip
    tokens = torch.cat([torch.full((len(block), 1), start), block, block], 1)
    previous, stripe, _ = public.behaviour(model, tokens)
    return {
        kind: {f"{l}.{h}": x.item() for l, row in enumerate(scores) for h, x in enumerate(row)}
        for kind, scores in (("prev_token", previous), ("induction", stripe))
    }


def induction_rows(words: int, gpt2: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """Name -> `induction_row` of each two-layer model of today's set, the course's always first.

    words: how many frequent words of each text to draw from. gpt2: a row to add.
    """
    roles = ("attn-only-2l", "gelu-2l")

    def rows(names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
        return {
            name: induction_row(zoo.load(role), Bench.frequent(words))
            for name, role in zip(names, roles, strict=True)
        }

    with paths.model_set("course"):
        found = rows(roles)
    if paths.models() == "published":
        found |= rows(("published two layers", "published two layers with MLPs"))
    return found if gpt2 is None else found | {"gpt2": gpt2}


def study(path: Mapping[str, Any], words: int = 500) -> dict[str, Any]:
    """Induction in every size ("induction"), and with MODELS=published the "series" entries.

    path: what :func:`circuitbook.circuits.gpt2_path.published_study` measured on the same weights.
    """
    if paths.models() != "published":
        return {"induction": induction_rows(words)}
    model = zoo.load("gpt2")
    encode = local_encoder(fetch.folder(pins.MODELS["gpt2"]))
    pool, (start,) = common_words(encode, words), single_tokens(encode, [END_OF_TEXT])
    row = induction_row(model, pool, bos=start)
    scores, known = head_scores(model, start), {e.id: e.value for e in entries()}
    series: dict[str, Any] = {
        f"heads.gpt2.{kind}": {head: found[head] for head in known[f"heads.gpt2.{kind}"]}
        for kind, found in scores.items()
    }
    names, years = path["names"], path["years"]
    series["gallery.ioi"] = {
        "logit_diff": names["model"],
        "io_preferred": names["preferred"],
        "faithfulness_gap": names["model"] - names["circuit"]["heads and all MLPs"],
    }
    series["gallery.ioi.self_repair"] = {
        "clean": names["model"],
        "three_name_movers_mean_ablated": names["model"] - names["repair"]["actual"],
        "direct_attribution_predicted_drop": names["repair"]["predicted"],
    }
    series["gallery.greater_than"] = {
        "prob_diff": years["model"],
        "circuit_prob_diff": years["circuit"]["with the early MLPs"],
    }
    return {"induction": induction_rows(words, row), "series": series}
