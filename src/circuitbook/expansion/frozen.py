"""What a frozen pattern sees and what it hides, on the name prompts of the spine.

With patterns frozen, other tokens mean other values and nothing else: where each head looks stays
decided. `frozen_and_rerun` compares that prediction with the model run again. With LayerNorm the
frozen sum holds its scales too; a cut that is run again recomputes them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook import bases, cut, spine
from circuitbook.expansion import expand, importance
from circuitbook.model import Transformer
from circuitbook.stream import last_logits_only


def last_named(model: Transformer, prompts: spine.Prompts, stream: Tensor) -> Float[Tensor, " n"]:
    """The answer's logit minus the mean of its rivals', at the last position.

    stream [n, pos, d_model] is what the unembedding reads: after the final norm, if there is one.
    """
    way, bias = spine.unembed_directions(model, prompts)[1], spine.name_biases(model, prompts)[1]
    return (stream[:, -1] * way).sum(-1) + bias


@torch.no_grad()
def name_terms(model: Transformer, prompts: spine.Prompts) -> dict[str, Float[Tensor, " n"]]:
    """What every path writes for the right name; the values add up to `last_named` of the model.

    A path is told by its heads. "direct" passes none: token, position, and all biases.
    """
    way = spine.name_directions(model, prompts)[1]
    frozen = expand.record(model, prompts.tokens)
    found = {"direct": spine.name_biases(model, prompts)[1]}
    for term in expand.expand(model, prompts.tokens, frozen, direct=True):
        name, value = importance.path_name(term.path) or "direct", (term.write[:, -1] * way).sum(-1)
        found[name] = found[name] + value if name in found else value
    return found


class Replaced(NamedTuple):
    """Change of `last_named` when one token of each prompt is replaced, and the new tokens."""

    tokens: Int[Tensor, "n pos"]
    frozen: Float[Tensor, " n"]  # patterns as they were
    rerun: Float[Tensor, " n"]  # everything computed again


def with_other_word(prompts: spine.Prompts, what: str) -> Int[Tensor, "n pos"]:
    """The prompts with another "name", or another "title" before it; the second title stays.

    The new name is the next one in the list with the same title. Raises ValueError otherwise.
    """
    n = len(prompts.answer)
    at = (prompts.tokens == prompts.answer[:, None]).int().argmax(1)
    if what == "name":
        same = [[j for j in range(n) if prompts.female[j] == sex] for sex in prompts.female]
        new = [mine[(mine.index(i) + 1) % len(mine)] for i, mine in enumerate(same)]
        word = prompts.answer[new]
    elif what == "title":
        at = at - 1
        titles = prompts.tokens.gather(1, at[:, None])[:, 0]
        other = [prompts.female.index(not sex) for sex in prompts.female]
        word = titles[other]
    else:
        raise ValueError(f"replace a 'name' or a 'title', not {what!r}")
    return prompts.tokens.scatter(1, at[:, None], word[:, None])


@torch.no_grad()
def frozen_and_rerun(model: Transformer, prompts: spine.Prompts, what: str) -> Replaced:
    """The logit of the old answer after the replacement: by the frozen sum, and by the model."""
    frozen, tokens = expand.record(model, prompts.tokens), with_other_word(prompts, what)
    held = expand.gather(expand.expand(model, tokens, frozen))["all"]
    streams = (
        model.stream(prompts.tokens),
        expand.read(model.ln_final, held, frozen.last_scale)
        + expand.norm_bias(model.ln_final, model.W_E[0]),
        model.stream(tokens),
    )
    before, held, again = (last_named(model, prompts, x) for x in streams)
    return Replaced(tokens, held - before, again - before)


@torch.no_grad()
def pair_cuts(
    model: Transformer, prompts: spine.Prompts, pair: spine.Pair
) -> dict[str, Float[Tensor, " n"]]:
    """Fall of `last_named` when the pair's edge into query, key or value is cut (zero, rerun).

    Scales are run again too, so with a norm the V-cut is not exactly minus the virtual head's term.
    """
    name = f"blocks.{model.cfg.n_layers - 1}.hook_resid_post"

    def run(change: cut.Cut | None) -> Tensor:
        with last_logits_only(model):
            _, cache = cut.run(model, prompts.tokens, change, [name])
        return last_named(model, prompts, model.ln_final(cache[name]))

    clean = run(None)
    return {into: clean - run(cut.cut_path(model, *pair, into)) for into in "qkv"}


# ---------------------------------------------------------------- does it survive?

NUMBERS = (
    "loss by order", "centred logits of a virtual head", "its raw logits", "length of its write",
    "length of its z", "raw attention scores",
)  # fmt: skip


@torch.no_grad()
def pair_numbers(
    model: Transformer, tokens: Int[Tensor, "batch pos"], pair: spine.Pair, change: cut.Cut
) -> tuple[Tensor, ...]:
    """NUMBERS for one weight set under a cut: the virtual head of the pair, and the whole model."""
    frozen = expand.record(model, tokens, change)
    orders = expand.gather(expand.expand(model, tokens, frozen), lambda t: t.order)
    streams = torch.stack([orders[k] for k in sorted(orders)]).cumsum(0)
    right = tokens[None, :, 1:, None].expand(len(streams), -1, -1, -1)
    logits = (expand.logits(model, streams, frozen) + expand.unembed_bias(model))[:, :, :-1]
    losses = -logits.log_softmax(-1).gather(-1, right).mean((1, 2, 3))
    (term,) = (t for t in expand.expand(model, tokens, frozen, direct=True) if t.path == pair)
    raw = expand.logits(model, term.write, frozen)
    centred = raw - raw.mean(-1, keepdim=True)
    name = f"blocks.{pair[1][0]}.attn.hook_attn_scores"
    scores = cut.run(model, tokens, change, [name])[1][name].tril()  # -inf above the diagonal
    lengths = (x.norm(dim=-1) for x in (term.write, term.inside))
    return losses, centred, raw, *lengths, scores


def survival(
    model: Transformer,
    tokens: Int[Tensor, "batch pos"],
    pair: spine.Pair,
    generator: torch.Generator,
) -> dict[str, list[int]]:
    """For five changes that keep all probabilities: 1 where one of NUMBERS survives, 0 elsewhere.

    Use a float64 model; see `bases.survival` for the changes.
    """
    return bases.survival(model, lambda m, change: pair_numbers(m, tokens, pair, change), generator)
