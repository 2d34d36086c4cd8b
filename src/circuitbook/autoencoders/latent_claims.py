"""The sentences of chapter 09 about the autoencoder on real activations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from circuitbook.autoencoders import latent_moves
from circuitbook.claims import all_of, atleast, atmost, between, bound, claim, equal

RECOVERED, AT_MOST_ON = 0.9, 40  # the aim: this share of the loss at this many latents
AHEAD = 0.6  # a random latent beats a random neuron this often
SIGMA = 2  # standard errors
CODINGS = {
    "neurons": "the strongest neurons",
    "PCA": "principal components",
    "writes": "components of the write",
    "random": "random directions",
    "examples": "other activations",
}


def claims(d: Mapping[str, Any], exact: Mapping[str, float]) -> list[dict]:
    """All claims from the data of `study.study` and the errors of its identities."""
    return [*_quality(d, exact), *_minds(d), *_steering(d), *_coordinates(d, exact)]


def _quality(d: Mapping[str, Any], exact: Mapping[str, float]) -> list[dict]:
    q, others, stored = d["quality"], d["baselines"], d["stored"]
    least = min(others[name]["behind"][0] / others[name]["behind"][1] for name in others)
    best = max(others, key=lambda name: others[name]["recovered"])
    cost = stored["float"]["recovered"] - stored["int8"]["recovered"]
    curve = [row for row in d["frontier"] if row["penalty"]]
    near = min((row for row in curve if row["l0"] >= d["k"]), key=lambda row: row["l0"])
    same = next(row for row in d["frontier"] if not row["penalty"])
    return [
        claim(
            "latents.formulas",
            "In float64 the short sums over the latents that are on give the whole formula to "
            "{limit:g}, and in float32 the loss with the autoencoder put in is that of a run with "
            "a hook, to {loss:g}. The loss with the decoder's norms in its penalty does not move "
            "when latents are rescaled ({limit:g}); without them halving every latent takes the "
            "penalty to {value:.2f} of what it was.",
            label="identity",
            values={"limit": 1e-9, "loss": 1e-5, "value": exact["cheat"]},
            holds=all_of(
                bound(max(exact["short sums"], exact["rescaled"]), 1e-9),
                bound(exact["splice"], 1e-5),
                between(exact["cheat"], 0.49, 0.51),
            ),
        ),
        claim(
            "latents.recovered",
            "With the autoencoder's output in the neurons' place at every position but the first, "
            "and the model run on from there, {value:.1%} ± {se:.1%} (one standard error) of the "
            "loss that zeroing them costs comes back: {full:.3f} nats whole, {zero:.3f} zeroed, "
            "{loss:.3f} with {l0:.1f} of {latents} latents on. Asked: {bound:.0%} at {most} or "
            "fewer.",
            label="intervention",
            values={
                "se": q["recovered_se"],
                "full": q["full"],
                "zero": q["zero"],
                "loss": q["loss"],
                "l0": q["l0"],
                "latents": d["latents"],
                "bound": RECOVERED,
                "most": AT_MOST_ON,
                "value": q["recovered"],
            },
            holds=all_of(atleast(q["recovered"], RECOVERED), atmost(q["l0"], AT_MOST_ON)),
        ),
        claim(
            "latents.explained",
            "It keeps {value:.1%} of the variance of the neurons (mean square error {mse:.3f}); "
            "{dead:.1%} of the latents never fired on {positions:,} held-out positions, at most "
            "{bound:.0%} was allowed.",
            label="measurement",
            values={
                "value": q["variance_kept"],
                "mse": q["mean_square_error"],
                "dead": q["dead"],
                "positions": q["positions"],
                "bound": 0.1,
            },
            holds=atmost(q["dead"], 0.1),
        ),
        claim(
            "latents.beats_equal_l0",
            "As many numbers a position, spent otherwise, bring back less of the loss: the "
            "strongest neurons {neurons:.1%}, the largest principal components {pca:.1%}, those of "
            "what the MLP writes {writes:.1%}, greedily fitted random directions {random:.1%} and "
            "activations of other text {examples:.1%}. The mean alone brings back {mean:.1%}. Next "
            "best: {best}, behind by {behind:.3f} ± {se:.3f} nats, paired; the smallest distance "
            "is {value:.0f} standard errors ({bound} asked).",
            label="intervention",
            values={
                "neurons": others["neurons"]["recovered"],
                "pca": others["PCA"]["recovered"],
                "writes": others["writes"]["recovered"],
                "random": others["random"]["recovered"],
                "examples": others["examples"]["recovered"],
                "mean": q["mean_recovered"],
                "best": CODINGS[best],
                "behind": others[best]["behind"][0],
                "se": others[best]["behind"][1],
            },
            holds=atleast(least, SIGMA),
        ),
        claim(
            "latents.eight_bits",
            "Eight bits for a weight cost {value:.2%} of the loss recovered (at most {bound:.0%} "
            "was allowed): {before:.2%} before, {after:.2%} after. Measured when trained.",
            label="approximation",
            values={
                "before": stored["float"]["recovered"],
                "after": stored["int8"]["recovered"],
            },
            holds=atmost(cost, 0.01),
        ),
        claim(
            "latents.penalty_curve",
            "A larger penalty turns more off: over {n} standard autoencoders `L0` falls from "
            "{high:.0f} to {low:.0f} and the loss recovered from {most:.1%} to {least:.1%}. All "
            "saw {tokens:,} tokens. On the same the TopK one recovers {value:.1%} at {k:.0f}; the "
            "standard one that has at least as many on recovers {theirs:.1%} at {near:.0f}. "
            "Measured when trained, on {share:.0%} of the bundled one's text; greedily fitted "
            "activations of other text bring back {examples:.1%} with no training at all.",
            label="measurement",
            values={
                "n": len(curve),
                "high": max(r["l0"] for r in curve),
                "low": min(r["l0"] for r in curve),
                "most": max(r["recovered"] for r in curve),
                "least": min(r["recovered"] for r in curve),
                "tokens": same["tokens"],
                "share": same["tokens"] / d["tokens"],
                "examples": others["examples"]["recovered"],
                "value": same["recovered"],
                "k": same["l0"],
                "near": near["l0"],
                "theirs": near["recovered"],
            },
            holds=all_of(*(atleast(a["l0"], b["l0"]) for a, b in zip(curve, curve[1:]))),
        ),
    ]


def _minds(d: Mapping[str, Any]) -> list[dict]:
    m = d["minds"]
    median = {kind: spread["quartiles"][1] for kind, spread in m["kinds"].items()}
    return [
        claim(
            "latents.single_minded",
            "At its {n} strongest positions, one in a window, one word stands at {latent:.0%} of "
            "them for the median latent, at {neuron:.0%} for the median neuron, at {random:.0%} "
            "for a random direction. A random latent beats a random neuron {value:.0%} of the time "
            "({bound:.0%} asked); in two halves of the documents, {one:.0%} and {two:.0%}. Judged "
            "are the {judged:.0%} of the latents that fire in enough windows. One word at all "
            "{n} positions: {full} of {of} latents, {neurons_full} of {neurons_of} neurons.",
            label="measurement",
            values={
                "n": m["n"],
                "latent": median["latents"],
                "neuron": median["neurons"],
                "random": median["random directions"],
                "one": m["halves"][0],
                "two": m["halves"][1],
                "value": m["above"]["neurons"],
                "bound": AHEAD,
                "full": m["counts"]["latents"][-1],
                "of": m["kinds"]["latents"]["n"],
                "neurons_full": m["counts"]["neurons"][-1],
                "neurons_of": m["kinds"]["neurons"]["n"],
                "judged": m["kinds"]["latents"]["n"] / d["latents"],
            },
            holds=all_of(
                atleast(m["above"]["neurons"], AHEAD), *(atleast(h, 0.5) for h in m["halves"])
            ),
        ),
        claim(
            "latents.rarity",
            "Rarity is a part of it: the half of the latents that fires less often has "
            "{seldom:.0%} at the median, the half that fires more often {value:.0%}, and the "
            "neurons {bound:.0%} (asked of the frequent half).",
            label="measurement",
            values={"seldom": m["seldom"]["quartiles"][1]},
            holds=atleast(m["often"]["quartiles"][1], median["neurons"]),
        ),
        claim(
            "latents.shuffled",
            "With its positions drawn anew in the same windows the median latent has {value:.0%} "
            "(at most half of the true {latent:.0%} was allowed).",
            label="measurement",
            values={"value": median["latents, shuffled"], "latent": median["latents"]},
            holds=atmost(median["latents, shuffled"], median["latents"] / 2),
        ),
    ]


def _steering(d: Mapping[str, Any]) -> list[dict]:
    s, away = d["steer"], d["away"]
    at = s["doses"].index(1.0)
    base = s["before"]
    rise = s["latent"]["p"][at] - base
    control = max(s[kind]["p_most"][at] for kind in ("random directions", "other latents")) - base
    return [
        claim(
            "latents.steered",
            "Latent {latent}, added at its highest activation at every position but the first, "
            "takes the probability of its {n} most written words from {before:.2%} to "
            "{after:.1%} ± {rise_se:.1%}; the best of the random directions and other latents of "
            "that length adds {control:.2%}. The rise is {value:.0f} times that ({bound} asked). "
            "It costs {loss:.3f} ± {se:.3f} nats of loss.",
            label="intervention",
            values={
                "latent": f"`{s['index']}`",
                "n": len(s["written"]),
                "before": base,
                "after": s["latent"]["p"][at],
                "rise_se": s["latent"]["rise_se"][at],
                "control": control,
                "loss": s["latent"]["loss"][at],
                "se": s["latent"]["loss_se"][at],
            },
            holds=atleast(rise / max(control, 1e-6), 3),
        ),
        claim(
            "latents.taken_away",
            "Where it fires ({n} held-out positions), taking its write out of the model's own "
            "neurons changes the log-odds of those words by {own:+.2f} ± {own_se:.2f} nats; taking "
            "out the strongest other latent there, by {other:+.2f}. They are {value:.1f} standard "
            "errors apart ({bound} asked). That their logits fall is algebra, with one layer and "
            "no norm; how far the odds go, and that the control does not take them along, is "
            "measured.",
            label="intervention",
            values={
                "n": away["n"],
                "own": away["own"][0],
                "own_se": away["own"][1],
                "other": away["other"][0],
            },
            holds=atleast(-away["apart"][0] / away["apart"][1], SIGMA),
        ),
    ]


def _coordinates(d: Mapping[str, Any], exact: Mapping[str, float]) -> list[dict]:
    hits, of = latent_moves.right(d["moves"])
    return [
        claim(
            "latents.rotation",
            "Turn the neurons' space behind the nonlinearity, and the dictionary with it: every "
            "latent keeps its value to {limit:g} (float64), while neurons move by {value:.0%} of "
            "the largest.",
            label="identity",
            values={"limit": 1e-9, "value": exact["turned neurons"]},
            holds=all_of(
                bound(exact["turned latents"], 1e-9), atleast(exact["turned neurons"], 0.1)
            ),
        ),
        claim(
            "latents.survival",
            "Of {target} predictions about which number survives which change, {value} are right.",
            label="identity",
            holds=equal(hits, of),
        ),
    ]
