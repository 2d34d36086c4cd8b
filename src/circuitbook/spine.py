"""The spine of the course: one batch of name prompts and one pair of heads, followed through it.

The heads are found by what they do, never by their number: a retrained model has them elsewhere.
All of it serves both model sets. With LayerNorm a contribution is read at the final norm's frozen
scale; position, biases and the unembedding's bias are parts like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook import compose, cut, paths, probe, tokenizer, zoo
from circuitbook.bases import relative_change, shift_unembed
from circuitbook.claims import all_of, atleast, claim
from circuitbook.curves import Bench
from circuitbook.model import Transformer
from circuitbook.names import NAMES
from circuitbook.stream import (
    UNEMBEDDING_BIAS,
    components,
    final_scale,
    head_effects,
    head_name,
    heads_of,
    last_logits_only,
    read_through,
    rerun_loss,
    unembedding_bias,
    window_loss,
    windows,
)

TEMPLATE = "I always loved visiting {title} {name}. Whenever I was feeling sad, {title}"
TITLES = {True: "Aunt", False: "Uncle"}


def family() -> tuple[str, ...]:
    """The chapters' main models that today's model set has; no published one is without layers."""
    if paths.models() == "course":
        return zoo.MAIN_ROLES
    from circuitbook.published.pins import MODELS

    return tuple(role for role in zoo.MAIN_ROLES if role in MODELS)


def cards() -> dict[str, dict]:
    """The card of every model of the `family`; a published one says no more than its files do."""
    if paths.models() == "course":
        return {role: zoo.short_card(role) for role in family()}
    from circuitbook.published.cards import short_card

    return {role: short_card(role) for role in family()}


def curves() -> dict[str, dict]:
    """The training curves of the course's models; the published ones came without snapshots."""
    with paths.model_set("course"):
        return {role: zoo.thin_curves(role) for role in zoo.MAIN_ROLES}


ATTENTION_ONLY = ("attn-only-0l", "attn-only-1l", "attn-only-2l")
Losses = dict[str, Float[Tensor, "window k"]]


def falls(losses: Losses, doc: Int[Tensor, " window"]) -> dict[str, list[float]]:
    """Fall of the mean loss with each layer of attention, and its error: paired, by document."""
    out = {}
    for n, (less, more) in enumerate(pairwise(ATTENTION_ONLY)):
        if less in losses:
            fall = probe.paired_difference(losses[less].mean(1), losses[more].mean(1), doc)
            out[f"loss_{n}l_{n + 1}l"] = [fall.mean, fall.se]
    return out


def depth_claim(
    losses: Losses,
    doc: Int[Tensor, " window"],
    token_losses: Callable[[Transformer, Tensor], Tensor],
    seed: int,
) -> dict:
    """Does the loss fall from zero layers to one, and from one to two? The course's models alone.

    Call it inside `model_set("course")`: no published model is without layers. `losses` and `doc`
    serve if such a model is in them; else as many windows of the course's text are measured.
    """
    if ATTENTION_ONLY[0] not in losses:
        text, doc = windows(len(doc), seed=seed)
        models = {role: zoo.load(role, device="cpu") for role in ATTENTION_ONLY}
        losses = {role: token_losses(model, text) for role, model in models.items()}
    (first, first_se), (second, second_se) = falls(losses, doc).values()
    return claim(
        "models.loss_falls_with_depth",
        "On held-out text the loss falls by {first:.2f} nats (error {first_se:.3f}) from zero "
        "layers to one, and by {second:.2f} nats (error {second_se:.3f}) from one to two.",
        label="measurement",
        values={"first": first, "first_se": first_se, "second": second, "second_se": second_se},
        holds=all_of(atleast(first, 0.2), atleast(second, 0.1)),
    )


class Prompts(NamedTuple):
    """tokens [n, pos] open with BOS and end at the second title; `answer` [n] is the name."""

    tokens: Int[Tensor, "n pos"]
    answer: Int[Tensor, " n"]
    names: list[str]
    female: list[bool]


def name_prompts() -> Prompts:
    """One prompt for each given name, "Aunt" for women and "Uncle" for men, all of one length.

    Titles and names are one token each, so the same position holds the same kind of word in all.
    The course's tokenizer has all 56 names as tokens. Of another tokenizer the names are kept that
    are one token there, with a title that is one and at least one rival under the same title.
    """
    tok = tokenizer.load()

    def whole(word: str) -> bool:
        return len(tok.encode(f" {word}", bos=False)) == 1

    kept = [(name, f) for name, f in NAMES if whole(name) and whole(TITLES[f])]
    sexes = [f for _, f in kept]
    kept = [(name, f) for name, f in kept if sexes.count(f) > 1]
    if not kept:
        raise ValueError("this tokenizer has no two names of one title as single tokens")
    rows = [tok.encode(TEMPLATE.format(title=TITLES[f], name=name)) for name, f in kept]
    answer = [tok.token(f" {name}") for name, _ in kept]
    names, female = map(list, zip(*kept, strict=True))
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
    with last_logits_only(model):
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
        with last_logits_only(model):
            _, cache = model.run_with_cache(tokens, names_filter=name)
        pattern = cache[name]
        if protocol == "2x50":
            score = probe.stripe_score(pattern, probe.PUBLISHED[protocol][1])
        else:
            score = probe.prefix_matching_score(pattern, tokens)
        scores[protocol] = score.mean(0)[index].item()
    return scores


def unembed_directions(
    model: Transformer, prompts: Prompts
) -> tuple[Float[Tensor, "n d_model"], Float[Tensor, "n d_model"]]:
    """(centred, named): W_U's column of the answer minus its mean over words, or over rivals.

    Rivals are the other names with the same title. These directions are for what the unembedding
    reads: with LayerNorm that is the stream after the final norm, `model.stream(tokens)`.
    """
    answer = model.W_U.T[prompts.answer]
    return answer - model.W_U.mean(-1), answer - _rivals(prompts).to(answer) @ answer


def _rivals(prompts: Prompts) -> Float[Tensor, "n n"]:
    """Row i takes the mean over the other prompts with the title of prompt i."""
    same = torch.tensor([[a == b for b in prompts.female] for a in prompts.female])
    rivals = (same & ~torch.eye(len(same), dtype=torch.bool)).to(torch.float64)
    return rivals / rivals.sum(-1, keepdim=True)


def name_scale(model: Transformer, prompts: Prompts) -> Float[Tensor, "n 1"] | None:
    """The final norm's scale at each prompt's last position in the plain run, or None."""
    if model.cfg.norm == "none":
        return None
    kept: list[Tensor] = []
    keep = ("ln_final.hook_scale", lambda s, hook: kept.append(s))
    with torch.no_grad(), model.hooks(fwd_hooks=[keep]):
        model.stream(prompts.tokens)
    return kept[0][:, -1]


def name_directions(
    model: Transformer, prompts: Prompts
) -> tuple[Float[Tensor, "n d_model"], Float[Tensor, "n d_model"]]:
    """(centred, named): w . u is what a write w adds to the answer's logit, less mean or rivals'.

    Along `centred` a write helps the answer like any name; along `named` it helps this name more
    than the others. With a norm u = (W_U direction) P / s, s frozen at its value in the plain run,
    so the writes' contributions and that of `name_biases` add up to the logit.
    """
    scale = name_scale(model, prompts)
    one, two = (read_through(model, u, scale) for u in unembed_directions(model, prompts))
    return one, two


def name_biases(
    model: Transformer, prompts: Prompts
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """(centred, named): what the unembedding's bias adds, whatever the stream is; zeros without."""
    bias = unembedding_bias(model)
    if bias is None:
        zero = model.W_U.new_zeros(len(prompts.answer))
        return zero, zero
    answer = bias[prompts.answer]
    return answer - bias.mean(), answer - _rivals(prompts).to(answer) @ answer


def answer_logit(
    model: Transformer, prompts: Prompts, change: cut.Cut | None = None
) -> Float[Tensor, " n"]:
    """The answer's logit minus the mean logit, at the last position, under a cut."""
    with last_logits_only(model):
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
    where it is made and all later layers are run again. Without a norm they agree in the last
    layer; with one, the removal also moves the final scale, which the direct effect holds frozen.
    The unembedding's bias, where there is one, is the last part.
    """
    writes = components(model, prompts.tokens).writes
    ways = name_directions(model, prompts)
    centred, named = ({n: (w[:, -1] * way).sum(-1) for n, w in writes.items()} for way in ways)
    if unembedding_bias(model) is not None:
        centred[UNEMBEDDING_BIAS], named[UNEMBEDDING_BIAS] = name_biases(model, prompts)
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
    Contributions are read at the final norm's scale in this run, if there is a norm.
    """
    (_, h1), (l, h2) = pair
    names = [f"blocks.{l}.{n}" for n in ("attn.hook_result", "hook_resid_pre", "hook_resid_post")]
    with last_logits_only(model):
        logits, cache = cut.run(model, prompts.tokens, change, names=names)
    write, below, last = cache[names[0]][:, -1, h2], *(cache[n][:, -1] for n in names[1:])
    ways = unembed_directions(model, prompts)[0], model.W_U.T[prompts.answer]
    scale = final_scale(model, last)
    centred, raw = ((write * read_through(model, way, scale)).sum(-1) for way in ways)
    cosine = torch.nn.functional.cosine_similarity(write, below, dim=-1)
    numbers = logits[:, -1].softmax(-1), centred, raw, cosine, key_scores(model)[h1, h2]
    return numbers, last


def study(
    model: Transformer,
    pair: Pair,
    tokens: Int[Tensor, "window pos"],
    doc: Int[Tensor, " window"],
    generator: torch.Generator,
) -> tuple[dict, dict]:
    """(numbers, errors): prompts taken apart, writes on held-out text, direct and total effects.

    against: share of positions where a head's write has a cosine below -1/sqrt(d_model) with the
    stream. errors: of the sum over parts, to the stream and to the answer's logit; "slip": of a
    wrong sum (words, error, least error), with the position in it, or, where the position is a
    part, without the part that is largest at the stream's largest entry: of n parts at least 1/n of
    it, whatever the weights; of the reader's centred and raw contributions under
    W_U + c 1^T; of total = direct for the pair's second head.
    """
    prompts, reader = name_prompts(), head_name(pair[1])
    parts, found = components(model, prompts.tokens), attribute(model, prompts)
    total = sum(parts.writes.values())
    if model.cfg.positions == "standard":
        at = parts.last.abs().argmax()
        largest = max(parts.writes.values(), key=lambda x: x.flatten()[at].abs().item())
        words, wrong, least = (
            "Without the largest of them",
            total - largest,
            0.9 / len(parts.writes),
        )
    else:
        wrong, least = total + model.W_pos[: total.shape[1]], 1e-2
        words = "With the position as one more part"
    c = torch.randn(model.cfg.d_model, generator=generator)
    before, _ = pair_numbers(model, prompts, pair, cut.Cut())
    after, _ = pair_numbers(shift_unembed(model, c), prompts, pair, cut.Cut())
    text = components(model, tokens)
    write = text.writes[reader]
    direct = window_loss(model, tokens, text.last - write + write.mean(0))
    chance = compose.random_baseline(model.cfg.d_model)
    effects = {kind: head_effects(model, tokens, doc, kind)._asdict() for kind in ("zero", "mean")}
    stats = [{n: [x.mean(), x.std() / len(x) ** 0.5] for n, x in d.items()} for d in found]
    logit = answer_logit(model, prompts)
    numbers = {
        **dict(zip(("centred", "named", "fall"), stats, strict=True)),
        "pair": [head_name(h) for h in pair],
        "against": {n: (text.overlap(n)[:, 1:] < -chance).double().mean() for n in found.fall},
        "effects": effects,
        "virtual": key_scores(model),
        "chance": chance,
    }
    return numbers, {
        "sum": max(
            relative_change(parts.last, total),
            relative_change(logit, sum(found.centred.values())),
        ),
        "slip": (words, relative_change(parts.last, wrong), least),
        "centred": (after[1] - before[1]).abs().max().item(),
        "raw": (after[2] - before[2]).abs().max().item(),
        "last layer": (direct - rerun_loss(model, tokens, pair[1], "mean")).abs().max().item(),
    }
