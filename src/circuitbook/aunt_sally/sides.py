"""What the study counts on both sides: a logit's paths, and a score's pairs of sources.

Every number over the prompts is a mean with its standard error over names: the frames of one name
are not independent.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuitbook.aunt_sally import prompts, read_side, reason
from circuitbook.aunt_sally.forward import Pass, reader
from circuitbook.aunt_sally.prompts import Frame
from circuitbook.cut import Head
from circuitbook.model import Transformer
from circuitbook.probe import clustered_mean


def sally() -> int:
    """The row of the series' prompt in every frame."""
    return prompts.row_of("Sally")


def mean(values: list[Tensor]) -> list[float]:
    """[mean, standard error] of one tensor [name] for each frame, clustered by name."""
    each = torch.cat(values).double()
    names = torch.arange(len(values[0])).repeat(len(values))
    return list(clustered_mean(each, names)[:2])


def ratio(top: list[Tensor], bottom: list[Tensor]) -> list[float]:
    """[mean of top / mean of bottom, its standard error], errors clustered by name.

    A ratio of means: a prompt with a small bottom gets no more weight than others. The error is
    that of the mean of (top - r * bottom) over the mean of bottom (delta method). Raises
    ValueError when bottom has no mean to divide by.
    """
    below = mean(bottom)[0]
    if below == 0:
        raise ValueError("there is nothing to divide by: the mean below the bar is zero")
    r = mean(top)[0] / below
    return [r, mean([t - r * b for t, b in zip(top, bottom, strict=True)])[1] / abs(below)]


def read_numbers(
    model: Transformer, frames: list[Frame], passes: list[Pass]
) -> tuple[dict[str, Any], float]:
    """(the name's logit by path and by source token, the error of the sum), patterns frozen.

    Logits are "named" (minus the mean of the rivals) or "centred" (minus the mean of all tokens).
    paths: mean over prompts of what each path brings from the name itself. edges: of the series'
    prompt, all paths from each token (a graph's edges into the logit). Both of the named logit.
    largest: share of prompts whose largest edge starts at the name, for each of the two; "last
    title": whose largest edge into the centred logit starts there.
    Positions in the stream and biases are sources of their own, in `edges` and `paths` left out:
    others: of the series' prompt, what "position" (from each place) and "bias" (in all) bring.
    """
    names, worst = read_side.path_names(model), 0.0
    tokens = slice(0, (1 + model.cfg.n_heads) ** model.cfg.n_layers)  # the paths from tokens
    from_name, largest = [], {}
    edges, others = None, {}
    for frame, seen in zip(frames, passes, strict=True):
        ways = zip(read_side.directions(model, frame), read_side.offsets(model, frame), strict=True)
        for (u, b), along in zip(ways, ("centred", "named")):
            each = read_side.paths_to_logit(
                model, frame.tokens, seen.patterns, u, (seen.scales, seen.last_scale), b
            )
            want = (seen.last * u).sum(-1) + b
            worst = max(worst, ((each.sum((1, 2)) - want).abs().max() / want.abs().max()).item())
            into = graph_edges(each, names, tokens)
            best = torch.cat(list(into.values()), 1).abs().argmax(1)
            largest.setdefault(along, []).append((best == frame.name).double())
            if along == "centred":
                largest.setdefault("last title", []).append((best == frame.last).double())
            if along == "named":
                from_name.append(each[:, tokens, frame.name])
                if edges is None:
                    row = {kind: x[sally()] for kind, x in into.items()}
                    edges, others = row.pop("token"), row
    named = torch.cat(from_name).mean(0)
    top = named.abs().argsort(descending=True)[:6].tolist()
    return {
        "paths": [[names[i], named[i]] for i in top],
        "n": len(names),
        "edges": edges,
        "largest": {along: torch.cat(x).mean() for along, x in largest.items()},
    } | ({"others": others} if others else {}), worst


def graph_edges(
    each: Float[Tensor, "n path pos"], names: list[str], tokens: slice
) -> dict[str, Float[Tensor, "n source"]]:
    """A graph's edges into the logit, all paths added: from each token, each position, the biases.

    "token" [n, pos]; where positions stand in the stream "position" [n, pos]; where there are
    biases "bias" [n, 1], all of them together.
    """
    out = {"token": each[:, tokens].sum(1)}
    for kind in ("position", "bias"):
        some = [i for i, name in enumerate(names) if kind in name.split(" → ")[0]]
        if some:
            x = each[:, some].sum(1)
            out[kind] = x if kind == "position" else x.sum(1, keepdim=True)
    return out


def reason_numbers(
    model: Transformer, frames: list[Frame], passes: list[Pass], head: Head, writer: int | None
) -> tuple[dict[str, Any], float]:
    """(the score at (last title, name) by class and by pair of sources, the error of the sum).

    All terms centred over keys. share: of the mean score, through the writer in the key. title: of
    the mean term (query token, writer in the key), the part from the first title.
    """
    total, classes, key, title, asked, matrix, worst = [], [], [], [], [], [], 0.0
    for frame, seen in zip(frames, passes, strict=True):
        raw, centred = reason.terms(
            model, reason.parts(model, frame.tokens, seen), head[1], frame.name
        )
        r = reader(model, seen, head[1])
        s = torch.einsum("ne,nke->nk", r.q, r.k) / model.cfg.d_head**0.5
        at = s[:, frame.name]
        for got, want in ((raw, at), (centred, at - s.mean(1))):
            error = (got.sum((1, 2)) - want).abs().max() / want.abs().max()
            worst = max(worst, error.item())
        total.append(centred.sum((1, 2)))
        classes.append(reason.by_class(centred, model))
        matrix.append(centred)
        if writer is not None:
            key.append(reason.through_key(centred, writer))
            each = reason.key_term_by_token(
                model,
                frame.tokens,
                seen.patterns[0][:, writer],
                (writer, head[1]),
                frame.name,
                seen,
            )
            term = centred[:, 0, reason.DIRECT + writer]
            worst = max(worst, ((each.sum(1) - term).abs().max() / term.abs().max()).item())
            title.append(each[:, frame.first])
            asked.append(term)
    out: dict[str, Any] = {
        "score": mean(total),
        "classes": {c: mean([x[c] for x in classes]) for c in reason.classes(model)},
        "sources": reason.source_names(model),
        "matrix": torch.cat(matrix).mean(0),
    }
    if writer is not None:
        out |= {"key": mean(key), "share": ratio(key, total), "title": ratio(title, asked)}
    return out, worst
