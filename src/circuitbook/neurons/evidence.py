"""The sentences of chapter 07, each with the kind of evidence that carries it.

`d` is the chapter's data; numbers and verdicts come from it. Bounds named "asked" and "allowed" are
the plan's; where there was none, a claim asks for two standard errors or says its own threshold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from circuitbook import paths
from circuitbook.claims import all_of, atleast, atmost, claim, close, equal
from circuitbook.neurons.counts import PRINTED

Data = Mapping[str, Any]


def num(x: Any) -> float:
    """A number from a tensor of one entry."""
    return float(x)


def published() -> bool:
    """True where the sentences are about the series' own models."""
    return paths.models() == "published"


def count_claims(d: Data) -> list[dict]:
    """Parameters."""
    rows, shape = d["params"], "one layer: {}".format
    same = sum(
        (rows[f"{m}, published"]["attention"], rows[f"{m}, published"]["mlp"]) == printed
        for m, printed in PRINTED.items()
    )
    plain, biased = rows[shape("GELU, 4 d")]["share"], rows["gelu-1l, published"]["share"]
    gated, moe = rows[shape("SwiGLU, 4 d")], rows[shape("8 experts of 4 d, 2 used")]
    return [
        claim(
            "neurons.counts",
            "From configurations alone, the counts of {value} of {n} published models are those "
            "that Part 7 prints, to the digit; of {roles} "
            + ("downloaded" if published() else "bundled")
            + " models {wrong} differ from the real tensors.",
            label="identity",
            values={
                "value": same,
                "n": len(PRINTED),
                "roles": d["roles"],
                "wrong": d["tensors differ"],
            },
            holds=all_of(equal(same, len(PRINTED)), equal(d["tensors differ"], 0)),
        ),
        claim(
            "neurons.two_thirds",
            "Without biases the MLP's share is {plain:.6f}, with them {biased:.6f} in `gelu-1l`. A "
            "gated MLP as wide has {gated:.4f}. Eight experts, two used: {total:.4f} of all, "
            "{active:.4f} of what one token meets. With its embeddings counted, the published "
            "`gelu-1l` is {small:.1%} MLP, `gpt2` {large:.1%}.",
            label="identity",
            values={
                "plain": plain,
                "biased": biased,
                "gated": gated["share"],
                "total": moe["share"],
                "active": moe["share, active"],
                "small": rows["gelu-1l, published"]["share of all"],
                "large": rows["gpt2, published"]["share of all"],
            },
            holds=all_of(
                close(plain, 2 / 3, 1e-6),
                close(gated["share"], 3 / 4, 1e-6),
                atmost(rows["gelu-1l, published"]["share of all"], 2 / 3),
            ),
        ),
    ]


SPLIT_WITH_NORM = (
    " LayerNorm's scale is frozen. The position and the attention bias have parts of their own: "
    "without the position it misses by {position:.0%}, with the scale left out by {scale:.0%}."
)
FREE = (
    " G is one that LayerNorm cannot see: a turn about the all-ones direction, then a shear, "
    "`x + (x · v) 1`. An invertible G that is not free gives another function: probabilities move "
    "by {general:.0%} of the largest."
)


def _normed(more: str) -> str:
    """What a sentence has to add where there is a LayerNorm."""
    return more if published() else ""


def _only(i: Data, **names: str) -> dict[str, Any]:
    """The numbers of such an addition."""
    return {key: i[name] for key, name in names.items()} if published() else {}


def algebra_claims(d: Data) -> list[dict]:
    """What holds for every weight."""
    erf, tanh, i = d["gelu"]["erf"], d["gelu"]["tanh"], d["identities"]
    return [
        claim(
            "neurons.gelu",
            "GELU is {plus:.3f} at plus one, {minus:.3f} at minus one, together {both:.3f}; "
            "of their sum, zero, it is {zero:.3f}. The tanh form would print {other:.3f} for the "
            "two together.",
            label="identity",
            values={
                "plus": erf["at_1"],
                "minus": erf["at_minus_1"],
                "both": erf["sum"],
                "zero": erf["at_0"],
                "other": tanh["sum"],
            },
            holds=all_of(close(erf["sum"], 0.683, 5e-4), equal(erf["at_0"] == 0, True)),
        ),
        claim(
            "neurons.expansion",
            "An MLP's write is the sum of what its neurons write, and `b_out`: to {single} of the "
            "largest entry in float32, {double} in float64. Without `b_out` the sum misses by "
            "{mutant:.0%}.",
            label="identity",
            values={
                "single": f"{i['expansion, float32']['limit']:.0e}",
                "double": f"{i['expansion, float64']['limit']:.0e}",
                "mutant": i["expansion without b_out"],
            },
            holds=equal(i["expansion, float32"]["ok"] and i["expansion, float64"]["ok"], True),
        ),
        claim(
            "neurons.split",
            "A pre-activation is the token's part, one part for each head, and the bias: to "
            "{single} in float32, {double} in float64, relative to the largest. With the bias "
            "dropped it misses by {mutant:.0%}." + _normed(SPLIT_WITH_NORM),
            label="identity",
            values={
                "single": f"{i['split, float32']['limit']:.0e}",
                "double": f"{i['split, float64']['limit']:.0e}",
                "mutant": i["split without bias"],
                **_only(i, position="split without position", scale="split without scale"),
            },
            holds=all_of(
                equal(i["split, float32"]["ok"] and i["split, float64"]["ok"], True),
                atleast(i["split without bias"], 1e-3),
            ),
        ),
        claim(
            "neurons.survives",
            "Of {n} numbers about neurons, {value} survive all four changes of the weights; the "
            "others move by {least:.0%} or more under one of them. Agreement survives."
            + _normed(FREE),
            label="identity",
            values=_survival(d) | _only(i, general="probabilities under any G"),
            holds=all_of(
                *(
                    equal(d["moves"][c][q] == 0, True)
                    for c in d["moves"]
                    for q in ("probabilities", "activations", "agreement of its contexts")
                )
            ),
        ),
        claim(
            "neurons.hidden_basis",
            "Turn the hidden coordinates of `gelu-1l`, and back behind the nonlinearity: logits "
            "move by up to {value:.1f}. Renumber the neurons: none moves by {limit}.",
            label="intervention",
            values={"value": d["hidden"]["turned"], "limit": "1e-9"},
            holds=all_of(
                atleast(d["hidden"]["turned"], 0.1),
                equal(d["hidden"]["renumbered"]["ok"], True),
            ),
        ),
    ]


def _survival(d: Data) -> dict[str, Any]:
    worst = {q: max(row[q] for row in d["moves"].values()) for q in d["moves"]["W_U + c 1ᵀ"]}
    moved = [m for m in worst.values() if m]
    return {"n": len(worst), "value": len(worst) - len(moved), "least": min(moved)}


def silence_claims(d: Data) -> list[dict]:
    """A model whose MLPs say nothing."""
    w, third = d["without"], 1 / 3
    share = {name: x["explained"][0] for name, x in w.items()}
    attention = 1 - d["params"][f"gelu-2l, {paths.models()}"]["share"]
    none = "another model, without layers"
    text = "text that is not scored" if published() else "training text"
    bare = ("zero, re-run", "mean, re-run", "zero, patterns kept", "mean, patterns kept")
    best, worst = (f(bare, key=lambda name: share[name]) for f in (max, min))
    clean = max(bare[:2], key=lambda name: share[name])
    return [
        claim(
            "neurons.smaller_than_a_third",
            "In `gelu-2l` attention holds {attention:.1%} of the parameters of the layers. Our "
            'reading of "even smaller than a third", as a share of the loss: paths without MLPs '
            "explain {third:.0%} at most, whatever stands in for the MLPs. Run again without MLPs "
            "they explain {clean:.0%} at best ({way}) and {least:.0%} at least ({worst}). With "
            "patterns kept it is {best:.0%}, but `MLP 0` helped to make those patterns."
            + (" A trained model without layers explains {none:.0%}." if none in w else ""),
            label="conjecture",
            values={
                "attention": attention,
                "third": third,
                "best": share[best],
                "clean": share[clean],
                "way": clean,
                **({"none": share[none]} if none in w else {}),
                "least": share[worst],
                "worst": worst,
            },
            holds=atmost(share[best], third),
        ),
        claim(
            "neurons.silent_mlps",
            "Both MLPs of `gelu-2l` silenced, the loss rises by {zero:.2f} ± {zero_se:.2f} nats "
            "(zero writes, the rest run again), {mean:.2f} ± {mean_se:.2f} (mean writes, run "
            "again) or {kept:.2f} ± {kept_se:.2f} (mean writes, all patterns kept as they were).",
            label="intervention",
            values={
                f"{name}{end}": w[way]["rise"][i]
                for name, way in (
                    ("zero", "zero, re-run"),
                    ("mean", "mean, re-run"),
                    ("kept", "mean, patterns kept"),
                )
                for i, end in enumerate(("", "_se"))
            },
            holds=all_of(*(atleast(sure(w[way]["rise"]), 2) for way in bare)),
        ),
        claim(
            "neurons.affine",
            f"Replace both MLPs by the affine maps that fit them best on {text}, and run "
            "again: {share:.0%} of the loss is explained; the loss rises by {rise:.2f} ± {se:.2f} "
            "nats.",
            label="intervention",
            values={
                "share": share["best affine map, re-run"],
                "rise": w["best affine map, re-run"]["rise"][0],
                "se": w["best affine map, re-run"]["rise"][1],
            },
            holds=all_of(
                atleast(share["best affine map, re-run"], share[best]),
                atleast(sure(w["best affine map, re-run"]["rise"]), 2),
            ),
        ),
        claim(
            "neurons.trained_without",
            "A model that was trained without MLPs, with equal heads, explains {value:.0%}, more "
            "than `gelu-2l` does without its own. Its loss is {rise:.2f} ± {se:.2f} nats above "
            "that of `gelu-2l`.",
            label="measurement",
            values={
                "rise": w["another model, trained without MLPs"]["rise"][0],
                "se": w["another model, trained without MLPs"]["rise"][1],
            },
            holds=atleast(share["another model, trained without MLPs"], share[best]),
        ),
    ]


def sure(pair: Any) -> float:
    """Mean over standard error; 0 where there is no error to compare with."""
    return float(pair[0]) / float(pair[1]) if float(pair[1]) else 0.0


def neuron_claims(d: Data) -> list[dict]:
    """Neurons: the draw, the measure, both sides."""
    s, a, right = d["draw"]["statistics"], d["agreement"], d["words"]
    wanted = [x["low"] <= x["score"] <= x["high"] for x in d["synthetic"].values()]
    fooled, off = d["synthetic"]["random direction"], max(abs(num(x["off"])) for x in s.values())
    lone = d["synthetic"]["one document"]
    with paths.model_set("course"):  # made-up neurons, whatever the models are
        controls = claim(
            "neurons.controls",
            "{value} of {n} synthetic neurons score inside the range that their construction "
            "gives. A random direction scores {ours:.2f} by selection alone: the level to "
            "pass, not zero. The neuron of a single document scores {alone:.3f}, and "
            "{alone_bare:.2f} by the bare mean cosine.",
            label="measurement",
            values={
                "n": len(wanted),
                "value": sum(wanted),
                "ours": fooled["score"],
                "alone": lone["score"],
                "alone_bare": lone["bare"],
            },
            holds=all_of(equal(sum(wanted), len(wanted)), atleast(lone["bare"], 0.5)),
        )
    return [
        controls,
        claim(
            "neurons.draw",
            "The {n} drawn neurons fire on {mine:.1%} of tokens on average, all {all} on "
            "{everyone:.1%} (spread {sd:.1%}). Of {k} statistics, the one farthest off is off by "
            "{off:.1f} standard errors of such a draw.",
            label="measurement",
            values={
                "n": len(d["draw"]["neurons"]),
                "mine": num(s["share firing"]["drawn mean"]),
                "all": d["draw"]["of"],
                "everyone": num(s["share firing"]["mean"]),
                "sd": num(s["share firing"]["sd"]),
                "k": len(s),
                "off": off,
            },
            holds=atmost(off, 3),
        ),
        claim(
            "neurons.mixed_is_common",
            "The median neuron's agreement is {value:.3f}. A random direction that fires as often "
            "has {random:.3f}, a perfect detector of one token {perfect:.2f}: the median neuron is "
            "nearer to the random direction. Still {above:.0%} of {n} neurons pass {level:.0%} of "
            "the random directions that fire about as often. {high:.1%} reach {quarter}; the "
            "cleanest has {best:.2f}.",
            label="measurement",
            values={
                "value": a["quartiles"][2],
                "random": a["random"][2],
                "perfect": a["perfect"][2],
                "above": a["above random"],
                "level": 0.95,
                "n": a["allowed"],
                "high": a["above a quarter"],
                "quarter": 0.25,
                "best": a["quartiles"][4],
            },
            holds=all_of(
                atmost(a["quartiles"][2], (a["random"][2] + a["perfect"][2]) / 2),
                atleast(num(a["above random"]), 0.05),
            ),
        ),
        claim(
            "neurons.clean_is_one_token",
            "Agreement and the share of firing on one token have a rank correlation of "
            "{value:.2f} over neurons. The cleanest neuron, that of highest agreement, has "
            "{top:.0%} of its firing on one token, the most mixed {low:.0%}.",
            label="measurement",
            values={"top": a["top token, cleanest"], "low": a["top token, most mixed"]},
            holds=atleast(a["rank correlation"], 0.5),
        ),
        claim(
            "neurons.writes_before_its_words",
            "At {k} firings, equally many of each neuron, the next token is one of the ten words "
            "that the neuron writes most in {right:.1%} of cases; of the whole text that is true "
            "of {base:.2%}; one of a partner neuron's words follows in {partner:.2%}. The "
            "difference from the text is {lift:.1%} ± {se:.1%}. Over all its firings the median "
            "neuron's words follow in {median:.1%} (mean {mean:.1%}; of all text {all:.2%}), and "
            "{more:.0%} of {n} neurons have more than their base rate.",
            label="measurement",
            values={
                "k": d["ablation"]["positions"],
                "right": d["ablation"]["right"][0],
                "base": d["ablation"]["base"],
                "lift": d["ablation"]["lift"][0],
                "se": d["ablation"]["lift"][1],
                "partner": d["ablation"]["partner right"][0],
                "median": right["median"],
                "mean": right["mean"],
                "all": right["base"],
                "more": right["neurons above base"],
                "n": a["allowed"],
            },
            holds=all_of(
                atleast(sure(d["ablation"]["lift"]), 2),
                atleast(sure(d["ablation"]["right more"]), 2),
                atleast(right["neurons above base"], 0.5),
            ),
        ),
    ]
