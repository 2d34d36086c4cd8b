"""The spine of the course: one batch of name prompts and one pair of heads, followed through it.

The heads are found by what they do, never by their number: a retrained model has them elsewhere.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook import compose, cut, probe, tokenizer
from circuitbook.bases import relative_change, shift_unembed
from circuitbook.curves import Bench
from circuitbook.model import Transformer
from circuitbook.names import NAMES
from circuitbook.stream import (
    components,
    head_effects,
    head_name,
    heads_of,
    rerun_loss,
    window_loss,
)

TEMPLATE = "I always loved visiting {title} {name}. Whenever I was feeling sad, {title}"


class Prompts(NamedTuple):
    """tokens [n, pos] open with BOS and end at the second title; `answer` [n] is the name."""

    tokens: Int[Tensor, "n pos"]
    answer: Int[Tensor, " n"]
    names: list[str]
    female: list[bool]


def name_prompts() -> Prompts:
    """One prompt for each given name, "Aunt" for women and "Uncle" for men, all of one length.

    Titles and names are one token each, so the same position holds the same kind of word in all.
    """
    tok = tokenizer.load()
    rows = [
        tok.encode(TEMPLATE.format(title="Aunt" if female else "Uncle", name=name))
        for name, female in NAMES
    ]
    answer = [tok.token(f" {name}") for name, _ in NAMES]
    names, female = map(list, zip(*NAMES, strict=True))
    return Prompts(torch.tensor(rows), torch.tensor(answer), names, female)


def heads_pair(model: Transformer, n: int = 32) -> tuple[cut.Head, cut.Head]:
    """(previous-token head of layer 0, induction head of the last layer): the best by their scores.

    Previous-token score and prefix matching (course protocol) on one batch of n repeated sequences
    of frequent tokens, whose gaps differ.
    """
    generator = torch.Generator().manual_seed(0)
    batch = probe.repeated_batch(Bench.frequent(), n, generator=generator)
    last = model.cfg.n_layers - 1
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in (0, last)]
    tokens = batch.tokens.to(model.W_E.device)
    _, cache = cut.run(model, tokens, names=names)
    previous = probe.previous_token_score(cache[names[0]]).mean(0).argmax()
    matching = probe.prefix_matching_score(cache[names[1]], tokens).mean(0).argmax()
    return (0, int(previous)), (last, int(matching))


def other_protocols(
    model: Transformer, head: cut.Head, words: Int[Tensor, " pool"], n: int
) -> dict[str, float]:
    """The head's prefix matching when repeats are made otherwise: one repeat, and as published.

    "one repeat": two copies with a jittered gap. "4x25" and "2x50": the published protocols on the
    same words, without a gap; a head that attends a fixed number of tokens back passes those two.
    """
    layer, index = head
    name = f"blocks.{layer}.attn.hook_pattern"
    generator = torch.Generator().manual_seed(0)
    batches = {"one repeat": probe.repeated_batch(words, n, copies=2, generator=generator)}
    for protocol in probe.PUBLISHED:
        batches[protocol] = probe.published_batch(protocol, words, n, generator=generator)
    scores = {}
    for protocol, batch in batches.items():
        tokens = batch.tokens.to(model.W_E.device)
        _, cache = model.run_with_cache(tokens, names_filter=name)
        pattern = cache[name]
        if protocol == "2x50":
            score = probe.stripe_score(pattern, probe.PUBLISHED[protocol][1])
        else:
            score = probe.prefix_matching_score(pattern, tokens)
        scores[protocol] = score.mean(0)[index].item()
    return scores


def name_directions(
    model: Transformer, prompts: Prompts
) -> tuple[Float[Tensor, "n d_model"], Float[Tensor, "n d_model"]]:
    """(centred, named): W_U's column of the answer minus its mean over words, or over rivals.

    Rivals are the other names with the same title. Along `centred` a write helps the answer like
    any name; along `named` it helps this name more than the others.
    """
    columns = model.W_U.T  # [d_vocab, d_model]
    answer = columns[prompts.answer]
    same = torch.tensor([[a == b for b in prompts.female] for a in prompts.female])
    rivals = (same & ~torch.eye(len(same), dtype=torch.bool)).to(columns)  # [n, n]
    mean = rivals / rivals.sum(-1, keepdim=True) @ answer
    return answer - columns.mean(0), answer - mean


def answer_logit(
    model: Transformer, prompts: Prompts, change: cut.Cut | None = None
) -> Float[Tensor, " n"]:
    """The answer's logit minus the mean logit, at the last position, under a cut."""
    logits = cut.run(model, prompts.tokens, change)[0][:, -1]  # [n, d_vocab]
    return logits.gather(-1, prompts.answer[:, None])[:, 0] - logits.mean(-1)


Pair = tuple[cut.Head, cut.Head]


class Attribution(NamedTuple):
    """What every part wrote for the answer, per prompt, and what each head's removal costs it."""

    centred: dict[str, Float[Tensor, " n"]]  # towards the answer's logit minus the mean logit
    named: dict[str, Float[Tensor, " n"]]  # towards the answer's logit minus the rivals'
    fall: dict[str, Float[Tensor, " n"]]  # fall of the centred logit when the head is removed


def attribute(model: Transformer, prompts: Prompts) -> Attribution:
    """The answer's logit as a sum over parts, w . u at the last position; and zero ablations.

    `centred[head]` is a head's direct effect, `fall[head]` its total effect: the write is removed
    where it is made and all later layers are run again. They agree in the last layer.
    """
    writes = components(model, prompts.tokens).writes
    ways = name_directions(model, prompts)
    centred, named = ({n: (w[:, -1] * way).sum(-1) for n, w in writes.items()} for way in ways)
    clean = answer_logit(model, prompts)
    fall = {
        head_name(at): clean
        - answer_logit(model, prompts, cut.ablate_heads(model, prompts.tokens, [at]))
        for at in heads_of(model)
    }
    return Attribution(centred, named, fall)


def key_scores(model: Transformer) -> Float[Tensor, "h1 h2"]:
    """Virtual-weight scores [head of layer 0, head of the last layer], into the latter's keys."""
    return compose.pair_scores(model.W_V[0], model.W_O[0], model.W_K[-1], model.W_Q[-1].mT)


NUMBERS = (
    "probabilities", "centred contribution", "raw contribution", "cosine with the stream",
    "virtual-weight score",
)  # fmt: skip


def pair_numbers(
    model: Transformer, prompts: Prompts, pair: Pair, change: cut.Cut
) -> tuple[tuple[Tensor, ...], Float[Tensor, "n d_model"]]:
    """(NUMBERS of one weight set, the last stream at the last position), under a cut.

    Contributions and cosine are those of the pair's second head, the score is that of the pair.
    """
    (_, h1), (l, h2) = pair
    names = [f"blocks.{l}.{n}" for n in ("attn.hook_result", "hook_resid_pre", "hook_resid_post")]
    logits, cache = cut.run(model, prompts.tokens, change, names=names)
    write, below = cache[names[0]][:, -1, h2], cache[names[1]][:, -1]
    ways = name_directions(model, prompts)[0], model.W_U.T[prompts.answer]
    centred, raw = ((write * way).sum(-1) for way in ways)
    cosine = torch.nn.functional.cosine_similarity(write, below, dim=-1)
    numbers = logits[:, -1].softmax(-1), centred, raw, cosine, key_scores(model)[h1, h2]
    return numbers, cache[names[2]][:, -1]


def study(
    model: Transformer,
    pair: Pair,
    tokens: Int[Tensor, "window pos"],
    doc: Int[Tensor, " window"],
    generator: torch.Generator,
) -> tuple[dict, dict[str, float]]:
    """(numbers, errors): prompts taken apart, writes on held-out text, direct and total effects.

    against: share of positions where a head's write has a cosine below -1/sqrt(d_model) with the
    stream. errors: of the sum over parts; of the same sum with the position in it; of the reader's
    centred and raw contributions under W_U + c 1^T; of total = direct for the pair's second head.
    """
    prompts, reader = name_prompts(), head_name(pair[1])
    parts, found = components(model, prompts.tokens), attribute(model, prompts)
    total = sum(parts.writes.values())
    with_position = total + model.W_pos[: total.shape[1]]
    c = torch.randn(model.cfg.d_model, generator=generator)
    before, _ = pair_numbers(model, prompts, pair, cut.Cut())
    after, _ = pair_numbers(shift_unembed(model, c), prompts, pair, cut.Cut())
    text = components(model, tokens)
    write = text.writes[reader]
    direct = window_loss(model, tokens, text.last - write + write.mean(0))
    chance = compose.random_baseline(model.cfg.d_model)
    effects = {kind: head_effects(model, tokens, doc, kind)._asdict() for kind in ("zero", "mean")}
    stats = [{n: [x.mean(), x.std() / len(x) ** 0.5] for n, x in d.items()} for d in found]
    numbers = {
        **dict(zip(("centred", "named", "fall"), stats, strict=True)),
        "pair": [head_name(h) for h in pair],
        "against": {n: (text.overlap(n)[:, 1:] < -chance).double().mean() for n in found.fall},
        "effects": effects,
        "virtual": key_scores(model),
        "chance": chance,
    }
    return numbers, {
        "sum": relative_change(parts.last, total),
        "position": relative_change(parts.last, with_position),
        "centred": (after[1] - before[1]).abs().max().item(),
        "raw": (after[2] - before[2]).abs().max().item(),
        "last layer": (direct - rerun_loss(model, tokens, pair[1], "mean")).abs().max().item(),
    }
