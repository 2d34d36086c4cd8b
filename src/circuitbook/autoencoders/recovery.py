"""A feature is recovered when some learned direction points its way: its best cosine is near one.

Two directions of match, and they answer different questions. From truth to learned: is each feature
found? From learned to truth: does each latent mean something? Counting links them. With as many
latents as features, each feature that shares its latent leaves one latent spare.

    variance kept = 1 - Σ|h - ĥ|² / Σ|h - mean h|²

`h = Wx` are hidden vectors of toy models (chapter 08), whose true directions are known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuitbook.autoencoders import baselines, fit, hand
from circuitbook.autoencoders.sae import Dictionary, loss
from circuitbook.superposition import toy

# (truth [n, d], learned [k, d]) -> for each row of truth its best cosine [n]
Match = Callable[[Tensor, Tensor], Tensor]

FOUND, NEAR, IDLE = 0.99, 0.9, 0.01
WAYS = {"plain": "", "mended": "missing", "blind": "blind"}
FEATURES, DIMS, ON = 40, 10, 0.05
MEANS_SAMPLE = 32_768
SERIES = {"cos_gt_0.99": "found", "cos_gt_0.9": "near", "median_best_cos": "median"}
SERIES |= {"worst": "worst", "variance_kept": "variance", "latents_on": "latents_on"}


@dataclass(frozen=True)
class Plan:
    """The sizes of the study; `mended_steps` for both ways of re-pointing spare latents."""

    lanes: int = 10
    steps: int = 15_000
    mended_steps: int = 8_192
    batch: int = 4_096
    penalty: float = 0.3
    toy_steps: int = 3_000
    samples: int = 65_536
    seed: int = 0


def sharing(
    truth: Float[Tensor, "n d"], learned: Float[Tensor, "k d"], rate: Float[Tensor, " k"]
) -> dict[str, int]:
    """Who answers for which feature, as counts.

    A feature answers to the latent with the best cosine. With as many latents as features, as many
    are `spare` (no feature answers to them) as there are features that `share` one, less one for
    each latent that is shared. `idle`: spare and on for less than 1 % of the inputs. `doubled`:
    spare and at a cosine above 0.9 to a latent in use; a latent may be both. `lost`: features below
    0.99; `crowded`: lost, and another feature answers to the same latent; the rest are tilted.
    """
    unit = torch.nn.functional.normalize
    cos, own = unit(truth) @ unit(learned).T, unit(learned) @ unit(learned).T
    best, answer = cos.max(1)
    asked = torch.bincount(answer, minlength=len(learned))
    spare, lost = asked == 0, best <= FOUND
    twin = (own[:, ~spare] > NEAR).any(1)
    return {
        "shared": len(truth) - int((~spare).sum()),
        "spare": int(spare.sum()),
        "idle": int((spare & (rate < IDLE)).sum()),
        "doubled": int((spare & twin).sum()),
        "lost": int(lost.sum()),
        "crowded": int((lost & (asked[answer] > 1)).sum()),
    }


def reading(
    W: Float[Tensor, "d n"], dictionary: Dictionary, x: Float[Tensor, "samples n"],
    penalty: float, match: Match,
) -> dict[str, Any]:  # fmt: skip
    """Everything that is asked of one autoencoder on one toy, on the codes x."""
    truth, learned = W.T, dictionary.W_dec
    h = x @ truth
    f = dictionary.encode(h)
    rate = (f > 0).float().mean(0)
    there = match(truth, learned)
    live = rate > 0
    back = match(learned[live] if live.any() else learned, truth)
    error = (h - dictionary.decode(f)).square().sum()
    return {
        "best": there.sort(descending=True).values,
        "found": int((there > FOUND).sum()),
        "near": int((there > NEAR).sum()),
        "median": there.median(),
        "worst": there.min(),
        "learned_found": int((back > FOUND).sum()),
        "learned_median": back.median(),
        "learned_worst": back.min(),
        "dead": int((~live).sum()),
        "variance": 1 - error / (h - h.mean(0)).square().sum(),
        "latents_on": (f > 0).float().sum(1).mean(),
        "loss": loss(dictionary, h, h, penalty),
        **sharing(truth, learned, rate),
    }


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list]:
    """A list of readings as one list for each quantity."""
    return {key: [row[key] for row in rows] for key in rows[0]}


def baseline_cosines(
    W: Float[Tensor, "d n"], learned: Float[Tensor, "k d"], h: Float[Tensor, "samples d"],
    match: Match, generator: torch.Generator,
) -> dict[str, Tensor]:  # fmt: skip
    """Best cosine of every feature with each baseline's directions (absolute for the bases)."""
    truth, both = W.T, baselines.both_ways
    d, n = W.shape
    return {
        "units": match(truth, both(baselines.units(d))),
        "PCA": match(truth, both(baselines.pca(h))),
        "ICA": match(truth, both(baselines.ica(h, generator))),
        "k-means": match(truth, baselines.cluster_centres(h[:MEANS_SAMPLE], n, generator)),
        "random": match(truth, baselines.random_directions(n, d, generator)),
        "random truth": match(baselines.random_directions(n, d, generator), learned),
        "shuffled truth": match(baselines.shuffled(truth, generator), learned),
    }


def threshold(dictionary: Dictionary) -> Float[Tensor, " latents"]:
    """-b_j / (E_j · D_j/|D_j|): how long an input along its row must be to turn a latent on.

    A latent made smaller, with a longer row, keeps it.
    """
    rows = torch.nn.functional.normalize(dictionary.W_dec)
    return -dictionary.b_enc / (dictionary.W_enc * rows.T).sum(0)


def shrinkage(
    toys: Float[Tensor, "lane d n"], dictionaries: Sequence[Dictionary], penalty: float
) -> dict[str, Any]:
    """How short single features come back, by their length in h, over all features and lanes.

    "best": with the cheapest latents for the same decoders. "threshold": the length along its own
    decoder row at which a latent turns on, -b_j / (E_j · D_j/|D_j|), the median over latents.
    """
    values, levels = torch.linspace(0.1, 1.1, 11), torch.tensor([0.1, 0.5, 0.9])
    rows = [hand.shortfall(D, W, values.tolist(), penalty) for W, D in zip(toys, dictionaries)]
    low, middle, high = torch.cat([row.encoder for row in rows]).quantile(levels, dim=0)
    return {
        "value": values,
        "median": middle,
        "low": low,
        "high": high,
        "best": torch.cat([row.best for row in rows]).median(0).values,
        "threshold": torch.cat([threshold(D) for D in dictionaries]).median(),
    }


@torch.no_grad()
def study(plan: Plan, match: Match, naive: hand.Naive) -> dict[str, Any]:
    """The numbers of the toy half: by hand, forty in ten in three ways, baselines, shrinkage."""
    toys = toy.train_toys(
        FEATURES, DIMS, ON, instances=plan.lanes, steps=plan.toy_steps, size=1024, seed=plan.seed,
        data_seed=1000 + plan.seed, samples=64,
    )  # fmt: skip
    g = torch.Generator().manual_seed(77 + plan.seed)
    x = toy.sparse_inputs(torch.rand(plan.samples, FEATURES, generator=g), ON)
    out: dict[str, Any] = {"hand": hand.by_hand()}
    trained = {}
    for name, repoint in WAYS.items():
        steps = plan.mended_steps if repoint else plan.steps
        setting = fit.Setting(
            FEATURES, plan.penalty, steps, plan.batch, on=ON, repoint=repoint, seed=plan.seed
        )
        lanes = [fit.Lane(fit.start(DIMS, setting, i), setting) for i in range(plan.lanes)]
        trained[name] = fit.train(toys.W, setting, lanes)
        out[name] = columns(
            [reading(W, D, x, plan.penalty, match) for W, D in zip(toys.W, trained[name])]
        ) | {"moved": [sum(lane.moved) for lane in lanes]}
    rivals = [
        baseline_cosines(W, D.W_dec, x @ W.T, match, g) for W, D in zip(toys.W, trained["plain"])
    ]
    norms = toys.W.norm(dim=1)
    some = x[: min(len(x), 4096)] @ toys.W[0].T
    values = torch.linspace(0, 1, 21, dtype=torch.float64)
    return out | {
        "toy": {
            "loss": toys.loss,
            "loss_se": toys.loss_se,
            "represented": (norms > 0.5).sum(1),
            "length": norms.mean(),
        },
        "features_on": (x > 0).float().sum(1).mean(),
        "rivals": {
            name: {
                "median": [row[name].median() for row in rivals],
                "found": [int((row[name] > FOUND).sum()) for row in rivals],
                "best": torch.stack([row[name] for row in rivals]).flatten(),
            }
            for name in rivals[0]
        },
        "cheat": {
            "by hand": hand.cheat(
                hand.one_latent(), torch.tensor(hand.INPUTS[:1]).double(), hand.L1, naive
            ),
            "trained": hand.cheat(trained["plain"][0], some, plan.penalty, naive),
        },
        "shrinkage": shrinkage(toys.W, trained["plain"], plan.penalty),
        "half_penalty": plan.penalty / 2,
        "one_value": {
            "a": values,
            "f": hand.best_value(values, plan.penalty),
        },
        "setting": {
            "latents": FEATURES,
            "l1": plan.penalty,
            "steps": plan.steps,
            "mended_steps": plan.mended_steps,
            "batch": plan.batch,
        },
    }


def series_row(d: Mapping[str, Any]) -> dict[str, float]:
    """Ours in the shape of the published row: medians over the plain lanes."""
    middle = {name: median(float(v) for v in d["plain"][key]) for name, key in SERIES.items()}
    setting = {k: v for k, v in d["setting"].items() if k != "mended_steps"}
    return {**setting, **middle, "true_on": d["features_on"]}
