"""The sentences of chapter 06, each with the kind of evidence that carries it.

The bounds are those of the course's plan, set before the chapter was measured. `d` is the chapter's
data; numbers, heads and verdicts all come from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from circuitbook import paths
from circuitbook.claims import all_of, atleast, atmost, claim, equal
from circuitbook.induction import ratio
from circuitbook.induction.origin import growth_claims, hand_claims, survival_claims

Data = Mapping[str, Any]
PROTOCOLS = ("course", "one repeat", "4x25", "2x50")


def claims(d: Data) -> list[dict]:
    """All claims of the chapter, in the order of the lesson.

    Training curves and models written by hand are the course's own, whatever today's model set.
    """
    measured = [c for part in (score_claims, edge_claims, whole_head_claims) for c in part(d)]
    with paths.model_set("course"):
        own = growth_claims(d) + hand_claims(d)
    return measured + own + survival_claims(d)


def _places(d: Data) -> tuple[int, int]:
    """The pair's heads, as places within their layers."""
    return tuple(names.index(head) for names, head in zip(d["heads"], d["pair"], strict=True))


def score_claims(d: Data) -> list[dict]:
    """What scores and tables say: measurements."""
    (p, i), (first, last), v = _places(d), d["heads"], d["virtual"]
    two, one = d["repeats"]["attn-only-2l"], d["repeats"]["attn-only-1l"]
    by_protocol = d["protocols"][d["pair"][1]]
    even, jit = d["controls"]["equal gaps"], d["controls"]["jittered gaps"]
    impostors = [x for name, x in jit.items() if name not in ("ideal", "fixed offset, best")]
    others = [h for h in range(len(first)) if h != p]
    eigen, top, ov = (np.asarray(v[k]) for k in ("eigen", "on_top", "ov"))
    corner = [(a, b) for a, b in np.ndindex(*eigen.shape) if eigen[a, b] >= 0.8 and ov[b] >= 0.8]
    return [
        claim(
            "induction.controls",
            "With jittered gaps the best of all fixed offsets scores {fixed:.3f} and no other "
            "control above {worst:.3f}; the ideal head scores {ideal:.2f}. With equal gaps "
            "the best fixed offset scores {fooled:.2f}.",
            label="measurement",
            values={
                "worst": max(impostors),
                "fixed": jit["fixed offset, best"],
                "ideal": jit["ideal"],
                "fooled": even["fixed offset, best"],
            },
            holds=all_of(
                atmost(max(impostors), 0.1),
                atmost(jit["fixed offset, best"], 0.05),
                atleast(jit["ideal"], 0.95),
                atleast(even["fixed offset, best"], 0.999),
            ),
        ),
        claim(
            "induction.best_head",
            "Head {head} of the two-layer model has a prefix matching of {two:.2f} "
            "(asked: {least}); the best head of the one-layer model has {one:.3f} "
            "(allowed: {most}).",
            label="measurement",
            values={
                "head": last[i],
                "two": two["prefix"][i],
                "one": max(one["prefix"]),
                "least": 0.3,
                "most": 0.05,
            },
            holds=all_of(atleast(two["prefix"][i], 0.3), atmost(max(one["prefix"]), 0.05)),
        ),
        claim(
            "induction.protocols",
            "Head {head} by four protocols: course {course:.2f}, one repeat {single:.2f},"
            " `4 x 25` {four:.2f}, `2 x 50` {fifty:.2f}; the lowest is asked to be "
            "{bound} or more.",
            label="measurement",
            values={
                "head": last[i],
                "course": by_protocol["course"],
                "single": by_protocol["one repeat"],
                "four": by_protocol["4x25"],
                "fifty": by_protocol["2x50"],
            },
            holds=atleast(min(by_protocol[x] for x in PROTOCOLS), 0.3),
        ),
        claim(
            "induction.one_token",
            "Shuffle the words inside every later copy, and head {head} still scores {mixed:.2f} "
            "against {course:.2f}: {value:.0%}. It matches one token, not a run of tokens.",
            label="measurement",
            values={
                "head": last[i],
                "mixed": by_protocol["shuffled copies"],
                "course": by_protocol["course"],
            },
            holds=atleast(by_protocol["shuffled copies"] / by_protocol["course"], 0.8),
        ),
        claim(
            "induction.repeats_are_easier",
            "The loss of the right token falls by {value:.2f} ± {se:.2f} nats at the "
            "first repeat, by {third:.2f} at the second, by {fourth:.2f} at the third "
            "(against the first copy, paired; one standard error). At least {bound} was "
            "asked of the first.",
            label="measurement",
            values={"se": two["drop_se"][0], "third": two["drop"][1], "fourth": two["drop"][2]},
            holds=atleast(two["drop"][0], 1.5),
        ),
        claim(
            "induction.rank_tenth",
            "The median rank of the right token goes from {before:.0f} to {first:.0f}, "
            "{second:.0f} and {third:.0f}. At the last copy that is {value:.2f} of what "
            "it was; a tenth was the goal.",
            label="conjecture",
            values=dict(zip(("before", "first", "second", "third"), two["rank"])),
            holds=atmost(two["rank"][-1] / two["rank"][0], 0.1),
        ),
        claim(
            "induction.rests",
            "Where nothing matches, head {head} puts only {look:.2f} of its attention on the "
            "start token, and {moved:.2f} of what it moves; where something matches,"
            " {match:.2f} of its attention.",
            label="measurement",
            values={
                "head": last[i],
                "look": d["resting"]["attention, no match"],
                "moved": d["resting"]["moved, no match"],
                "match": d["resting"]["attention, match"],
            },
            holds=all_of(
                atmost(d["resting"]["moved, no match"], d["resting"]["attention, no match"]),
                atmost(d["resting"]["attention, match"], d["resting"]["attention, no match"]),
            ),
        ),
        claim(
            "induction.virtual_diagonal",
            "Through head {writer}, {value:.0%} of {n} frequent words have themselves on "
            "top of their row in the virtual QK table of head {reader}; through the best "
            "other first-layer head {other:.0%}, with no head between {direct:.0%}.",
            label="measurement",
            values={
                "writer": first[p],
                "reader": last[i],
                "n": v["words"],
                "value": top[p, i],
                "other": top[others, i].max(),
                "direct": v["direct"][i],
            },
            holds=all_of(
                atleast(top[p, i], 0.5),
                atmost(top[others, i].max(), 0.25),
                atmost(v["direct"][i], 0.25),
            ),
        ),
        claim(
            "induction.corner",
            "The pair has an eigenvalue score of {match:.2f} for matching and {copy:.2f} "
            "for copying. {value} of {n} pairs have both at {floor} or more; the pair "
            "{words} among them.",
            label="measurement",
            values={
                "match": eigen[p, i],
                "copy": ov[i],
                "n": eigen.size,
                "floor": 0.8,
                "value": len(corner),
                "words": "is" if (p, i) in corner else "is not",
            },
            holds=all_of(atleast(eigen[p, i], 0.8), atleast(ov[i], 0.8)),
        ),
    ]


def edge_claims(d: Data) -> list[dict]:
    """What happens when one edge is cut: interventions."""
    (p, i), (first, last) = _places(d), d["heads"]
    lost, me = np.asarray(d["edges"]["prefix_lost"]), d["sizes"]["attn-only-2l"]
    all_sizes = d["sizes"].values()
    others = [h for h in range(len(first)) if h != p]
    plain = [h for h in others if d["previous"][h] < 0.1]  # no previous-token heads themselves
    worst, helper = (max(x, key=lambda h: lost[h, 1], default=None) for x in (plain, others))
    return [
        claim(
            "induction.key_cut",
            "Cutting the one edge from head {writer} into the key of head {reader} takes "
            "away {zero:.0%} of its prefix matching; putting the batch mean there "
            "{mean:.0%}, another sequence's write {other:.0%}. At least {least:.0%} was "
            "asked of each.",
            label="intervention",
            values={
                "writer": first[p],
                "reader": last[i],
                "zero": lost[p, 1],
                "mean": 1 - d["kinds"]["mean"],
                "other": 1 - d["kinds"]["resample"],
                "least": 0.8,
            },
            holds=all_of(atleast(lost[p, 1], 0.8), *(atmost(x, 0.2) for x in d["kinds"].values())),
        ),
        claim(
            "induction.query_cut",
            "Cutting the same write out of the query takes away {value:.1%}; at most "
            "{bound:.0%} was allowed.",
            label="intervention",
            holds=atmost(lost[p, 0], 0.2),
        ),
        claim(
            "induction.value_cut",
            "Cutting it out of the value moves no entry of the pattern, as it must; the "
            "loss at repeats rises by {rise:.2f} ± {se:.2f} nats all the same.",
            label="intervention",
            values={"rise": me["rise"]["value"], "se": me["rise_se"]["value"]},
            holds=all_of(*(equal(bool(s["pattern_moved"] == 0), True) for s in all_sizes)),
        ),
        claim(
            "induction.other_keys",
            "Of the {n} other first-layer heads that are no previous-token heads (score below "
            "{floor}), the key cut that costs most is that of head {head}: {value:.1%}. "
            "At most {bound:.0%} was allowed.",
            label="intervention",
            values={"n": len(plain), "floor": 0.1, "head": first[worst] if plain else "none"},
            holds=atmost(lost[worst, 1] if plain else 0.0, 0.2),
        ),
        claim(
            "induction.no_second_helper",
            "The plan asked that no other first-layer head cost the key more than {bound:.0%}. "
            "The most costly is head {head} with {value:.1%}; its own previous-token score is "
            "{score:.2f}.",
            label="conjecture",
            values={"head": first[helper], "score": d["previous"][helper]},
            holds=atmost(lost[helper, 1], 0.2),
        ),
        claim(
            "induction.loss_cuts",
            "At the repeats the key cut raises the loss by {key:.2f} ± {key_se:.2f} nats,"
            " the query cut by {query:.2f}, the value cut by {val:.2f}. The key cut costs"
            " more than either, by {least:.1f} paired standard errors or more.",
            label="intervention",
            values={
                "key": me["rise"]["key"],
                "key_se": me["rise_se"]["key"],
                "query": me["rise"]["query"],
                "val": me["rise"]["value"],
                "least": min(ratio(m, s) for m, s in me["key_more"]),
            },
            holds=all_of(*(atleast(m - 2 * s, 0) for m, s in me["key_more"])),
        ),
        claim(
            "induction.every_two_layer_model",
            "In each of {n} two-layer models, the pair found there loses {low:.0%} or "
            "more of its prefix matching by the key cut and {high:.0%} or less by the "
            "query cut.",
            label="intervention",
            values={
                "n": len(d["sizes"]),
                "low": min(s["lost"]["key"] for s in all_sizes),
                "high": max(s["lost"]["query"] for s in all_sizes),
            },
            holds=all_of(
                *(atleast(s["lost"]["key"], 0.8) for s in all_sizes),
                *(atmost(s["lost"]["query"], 0.2) for s in all_sizes),
            ),
        ),
        claim(
            "induction.mlp_edge",
            "In `gelu-2l` the direct key edge carries the match: without it {direct:.0%} "
            "of the prefix matching stays. Without what the MLP makes of the same write, "
            "{mlp:.0%} stays.",
            label="intervention",
            values={
                "direct": d["mlp"]["key, direct"]["kept"],
                "mlp": d["mlp"]["key, through the MLP"]["kept"],
            },
            holds=all_of(
                atmost(d["mlp"]["key, direct"]["kept"], 0.2),
                atleast(d["mlp"]["key, through the MLP"]["kept"], 0.8),
            ),
        ),
    ]


def whole_head_claims(d: Data) -> list[dict]:
    """What happens when heads are removed as a whole: interventions."""
    (p, i), (first, _), w, icl = _places(d), d["heads"], d["whole"], d["icl"]
    two, me, gap = d["repeats"]["attn-only-2l"], d["sizes"]["attn-only-2l"], icl["difference"]
    rerun, kept = w["previous-token head, re-run"], w["previous-token head, patterns kept"]
    alone, random = w["all but the pair (zero)"], float(np.mean(icl["random_share"]))
    return [
        claim(
            "induction.acts_through_patterns",
            "Removing head {head} costs {full:.2f} ± {se:.2f} nats at the repeats; with "
            "all patterns kept as they were it costs {kept:.2f}: {value:.0%} of that.",
            label="intervention",
            values={
                "head": first[p],
                "full": rerun["rise"],
                "se": rerun["rise_se"],
                "kept": kept["rise"],
            },
            holds=atmost(ratio(kept["rise"], rerun["rise"]), 0.2),
        ),
        claim(
            "induction.alone",
            "With every other head silenced, the pair keeps {share:.0%} of its prefix "
            "matching, and the loss still falls by {drop:.2f} ± {se:.2f} nats at repeats,"
            " against {whole:.2f} in the whole model.",
            label="intervention",
            values={
                "share": alone["prefix"] / two["prefix"][i],
                "drop": alone["drop"],
                "se": alone["drop_se"],
                "whole": me["drop"][0],
            },
            holds=all_of(
                atleast(alone["prefix"] / two["prefix"][i], 0.5),
                atleast(alone["drop"] - 2 * alone["drop_se"], 0),
            ),
        ),
        claim(
            "induction.icl_lost",
            "Two layers gain {gain:.2f} ± {gain_se:.2f} nats of in-context learning over "
            "one. Removing {names} takes {share:.0%} of that away; removing as many "
            "random heads of the layer takes {random:.0%} (mean of {n} draws).",
            label="intervention",
            values={
                "gain": gap["gain"][0],
                "gain_se": gap["gain"][1],
                "names": " and ".join(d["induction"]),
                "share": icl["share"],
                "random": random,
                "n": len(icl["random_share"]),
            },
            holds=all_of(atleast(icl["share"], 0.5), atmost(random, 0.15)),
        ),
        claim(
            "induction.icl_beats_random",
            "Removing the induction heads worsens the in-context learning score by {mean:.2f} "
            "± {se:.2f} nats more than removing random heads: {value:.1f} paired standard "
            "errors (asked: {bound}).",
            label="intervention",
            values={"mean": gap["more than random"][0], "se": gap["more than random"][1]},
            holds=atleast(ratio(*gap["more than random"]), 2),
        ),
    ]
