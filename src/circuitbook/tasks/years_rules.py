"""Can the years task be solved without solving it? Rules that ignore YY, and rules that misread it.

Each rule gives a probability to every year, and is scored as the model is (`years.decisions`, by
kind of prompt too; `years.right`; P(> YY) - P(<= YY)). Rules that need a
choice make it on training prompts.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.model import Transformer
from circuitbook.tasks import years
from circuitbook.tasks.years import Prompts


def scores(p: Float[Tensor, "n year"], yy: Int[Tensor, " n"]) -> dict[str, float]:
    """decisions: share of the years around the cut-off judged right; right: share of the prompts
    with all of them right; gap: mean of P(> YY) - P(<= YY)."""
    correct, asked = years.decisions(p, yy)
    above = torch.arange(100) > yy[:, None]
    share = p / p.sum(-1, keepdim=True).clamp_min(1.0)  # a table of 0 and 1 is no probability yet
    return {
        "decisions": ((correct & asked).sum() / asked.sum()).item(),
        "right": years.right(p, yy).double().mean().item(),
        "gap": torch.where(above, share, -share).sum(-1).double().mean().item(),
    }


KINDS = ("one year", "a distractor before YY", "distractors only after YY")


def by_kind(p: Float[Tensor, "n year"], given: Prompts) -> dict[str, float]:
    """`decisions` of each kind of prompt, and "worst": the least of the three.

    Where YY is the only year, or the first, "the first year" is YY: a rule of place is right there
    without knowing what a distractor is. So a rule, and the model, count by their worst kind.
    """
    places = _year_places(given)
    alone = places.sum(1) == 1
    first = places.long().argmax(1) == given.year_at
    out = {}
    for name, rows in zip(KINDS, (alone, ~first, ~alone & first), strict=True):
        out[name] = scores(p[rows], given.yy[rows])["decisions"]
    return out | {"worst": min(out.values())}


def scored(p: Float[Tensor, "n year"], given: Prompts) -> dict[str, float]:
    """`scores`, and `by_kind` with them."""
    return scores(p, given.yy) | by_kind(p, given)


@torch.no_grad()
def answers(model: Transformer, given: Prompts) -> Float[Tensor, "n year"]:
    """The model's probabilities of "00" … "99" at the end of each prompt. One forward pass."""
    rows = torch.arange(len(given.tokens))
    stream = model.stream(given.tokens.to(model.W_E.device))[rows, given.end]
    return model.unembed(stream[:, None])[:, 0].softmax(-1)[:, years.YEARS].cpu()


def accuracy(model: Transformer, n: int, seed: int) -> dict[str, dict[str, float]]:
    """`scored` of the model on n prompts of each split."""
    drawn = {s: years.prompts(n, np.random.default_rng(seed), s) for s in years.SPLITS[:4]}
    return {s: scored(answers(model, given), given) for s, given in drawn.items()}


def scores_below(model: Transformer, n: int, seed: int) -> float:
    """The other question: mean of P(year < YY) - P(year >= YY), on n prompts it was trained on."""
    given = years.prompts(n, np.random.default_rng(seed), "below")
    under = torch.arange(100) < given.yy[:, None]
    p = answers(model, given)
    return torch.where(under, p, -p).sum(-1).double().mean().item()


def _read(given: Prompts, at: Int[Tensor, " n"]) -> Float[Tensor, "n year"]:
    """The law of the year that stands at a position; where no year stands there, a flat guess."""
    rows = torch.arange(len(given.tokens))
    seen = given.tokens[rows, at.clamp(0, years.N_CTX - 1)] - years.YEAR_0
    is_year = (seen >= 0) & (seen < 99) & (at >= 0)
    return torch.where(is_year[:, None], years.law(seen.clamp(0, 98)), 0.01)


def _year_places(given: Prompts) -> Tensor:
    """True at every year of the prompt, YY and distractors. [n, pos]"""
    places = given.distractor.bool().clone()
    places[torch.arange(len(places)), given.year_at] = True
    return places


def baselines(n: int, seed: int, split: str = "heldout") -> dict[str, dict[str, float]]:
    """`scored` of every rule on n prompts of a split. Places are chosen on training prompts by
    their worst kind, so that the choice aims at what is asked."""
    train = years.prompts(4 * n, np.random.default_rng(seed + 1), "train")
    given = years.prompts(n, np.random.default_rng(seed), split)

    def constant(p: Tensor) -> dict[str, float]:
        return scored(p.expand(len(given.yy), 100), given)

    # for each year by itself, allowed or not, whichever is more often true where it is asked
    correct, asked = years.decisions(torch.ones(len(train.yy), 100), train.yy)
    best = (2 * (correct & asked).sum(0) > asked.sum(0)).double()
    always = torch.zeros(100)
    always[99] = 1.0
    out = {
        "best set of years": constant(best),
        "always 99": constant(always),
        "the mean answer": constant(years.law(train.yy).mean(0)),
    }
    ways = {
        "fixed place from the end": lambda g, k: _read(g, g.end - k),
        "fixed place from the start": lambda g, k: _read(g, torch.full_like(g.end, k)),
    }
    for name, way in ways.items():
        tried = [by_kind(way(train, k), train)["worst"] for k in range(1, years.N_CTX)]
        out[name] = scored(way(given, 1 + int(np.argmax(tried))), given)
    places = _year_places(given).long()
    first = places.argmax(1)
    last = years.N_CTX - 1 - places.flip(1).argmax(1)
    out["first year seen"] = scored(_read(given, first), given)
    out["last year seen"] = scored(_read(given, last), given)
    out["the law itself (ceiling)"] = scored(years.law(given.yy), given)
    return out
