"""Are the neurons of an MLP threshold detectors for YY? Asked of random neurons too.

A neuron's activation at one place of the prompt, averaged over layouts, is a function of YY.
`best_step` says how much of its variance one step explains, and how much a straight line does. A
random neuron reads the same stream through a random direction of the same length, with a bias of
the trained ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from circuitbook.model import Transformer
from circuitbook.tasks import years
from circuitbook.tasks.years_circuit import Setting, best_step, bodies, summary

EDGE = 10  # years on each side of a threshold; a neuron that is on for two years is not one
STEPPY = 0.8  # share of variance from which a neuron counts as a threshold


@torch.no_grad()
def activations(
    model: Transformer, per_year: int, seed: int, split: str = "heldout", place: str = "end"
) -> tuple[list[Tensor], list[Tensor]]:
    """(neurons, inputs) of every MLP at the end or at YY ("year_at"): means over layouts,
    [yy, neuron], and the single inputs [yy, layout, d_model]."""
    rng = np.random.default_rng(seed)
    base = years.prompts(per_year, rng, split)
    yy = torch.arange(years.FIRST, years.LAST + 1)
    tokens = base.tokens.repeat(len(yy), 1)
    rows, end = torch.arange(len(tokens)), getattr(base, place).repeat(len(yy))
    tokens[rows, base.year_at.repeat(len(yy))] = years.YEAR_0 + yy.repeat_interleave(per_year)
    layers = range(model.cfg.n_layers)
    names = [f"blocks.{l}.{kind}" for l in layers for kind in ("mlp.hook_post", "hook_resid_mid")]
    _, cache = model.run_with_cache(tokens, return_type="logits", names_filter=names)
    shape = (len(yy), per_year, -1)
    post = [cache[f"blocks.{l}.mlp.hook_post"][rows, end].view(shape).mean(1) for l in layers]
    return post, [cache[f"blocks.{l}.hook_resid_mid"][rows, end].view(shape) for l in layers]


@torch.no_grad()
def random_neurons(
    model: Transformer, layer: int, inputs: Tensor, generator: torch.Generator
) -> Float[Tensor, "yy neuron"]:
    """Activations of as many neurons whose input weights are random, each as long as a trained one
    and with its bias. Inputs: the trained ones. Means over layouts."""
    mlp = model.blocks[layer].mlp
    way = torch.randn(mlp.W_in.shape, generator=generator).to(mlp.W_in)
    way = way / way.norm(dim=0) * mlp.W_in.norm(dim=0)
    return mlp.act(inputs @ way + mlp.b_in).mean(1)


def neurons(
    model: Transformer, at: Setting, layer: int, place: str, per_year: int, seed: int
) -> dict[str, Any]:
    """For one MLP at one place ("end", "year_at"): how step-like its neurons are, beside random
    ones, and what they carry.

    Ablation: the chosen neurons write their mean over YY (at this place, as they are elsewhere),
    the rest is recomputed; control: as many other neurons, those with the largest writes.
    """
    post, inputs = activations(model, per_year, seed, at.split, place)
    x, body = post[layer], bodies(at.prompts)
    made = random_neurons(model, layer, inputs[layer], torch.Generator().manual_seed(seed))
    share, first, line = best_step(x)
    chance, chance_first, chance_line = best_step(made)
    inside, chance_inside = (
        abs(2 * k - len(x)) <= len(x) - 2 * EDGE for k in (first, chance_first)
    )
    # idle neurons have no variance to explain: only those that move count
    size = x.std(0) * model.blocks[layer].mlp.W_out.norm(dim=1)
    moving = size >= 0.1 * size.max()
    made_size = made.std(0) * model.blocks[layer].mlp.W_out.norm(dim=1)
    made_moving = made_size >= 0.1 * made_size.max()
    steppy = moving & inside & (share >= STEPPY) & (share > line)
    order = size.argsort(descending=True)
    shown = order[:6].tolist()
    chosen = steppy.nonzero()[:, 0].tolist()
    rest = [i for i in order.tolist() if not steppy[i]][: len(chosen)]
    return {
        "layer": layer,
        "place": {"end": "the end", "year_at": "YY"}[place],
        "neurons": len(share),
        "moving": int(moving.sum()),
        "steppy": len(chosen),
        "step share": share[moving].median().item(),
        "line share": line[moving].median().item(),
        "random": {
            "moving": int(made_moving.sum()),
            "steppy": int(
                (made_moving & chance_inside & (chance >= STEPPY) & (chance > chance_line)).sum()
            ),
            "step share": chance[made_moving].median().item(),
            "line share": chance_line[made_moving].median().item(),
        },
        "thresholds": [int(first[i]) + years.FIRST for i in chosen],
        "shown": {
            str(i): {"activation": x[:, i].tolist(), "step share": share[i].item()} for i in shown
        },
        "yy": list(range(years.FIRST, years.LAST + 1)),
        "ablation": {
            "clean": summary(without(model, at, layer, place, [], x), body),
            "steppy": summary(without(model, at, layer, place, chosen, x), body),
            "as many others": summary(without(model, at, layer, place, rest, x), body),
            "all": summary(without(model, at, layer, place, list(range(len(share))), x), body),
        },
    }


@torch.no_grad()
def without(
    model: Transformer, at: Setting, layer: int, place: str, which: list[int], x: Tensor
) -> Float[Tensor, " n"]:
    """near_gap when these neurons hold their mean over YY at one place of the prompt."""
    given, level = at.prompts, x.mean(0)
    where = getattr(given, place)
    rows = torch.arange(len(given.tokens))

    def hold(post: Tensor, hook: object) -> Tensor:
        post = post.clone()
        there = post[rows, where]
        there[:, which] = level[which]
        post[rows, where] = there
        return post

    with model.hooks(fwd_hooks=[(f"blocks.{layer}.mlp.hook_post", hold)]):
        return at.near(model, model.stream(given.tokens), rows)
