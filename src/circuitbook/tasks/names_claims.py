"""The sentences about the name task, with the bounds that decide whether they hold."""

from __future__ import annotations

from typing import Any

from circuitbook.claims import all_of, atleast, atmost, between, bound, claim

LEAST = 0.95  # accuracy, and the share of random sets to beat
MOST = 0.6  # of what a rule of position may get right
CEILING = "the name that occurs once"


def claims(d: dict[str, Any]) -> list[dict]:
    """All claims about `names_study.study`'s result."""
    return [*_skill(d), *_circuit(d), *_inside(d), *_repair(d)]


def _skill(d: dict[str, Any]) -> list[dict]:
    s = d["skill"]
    split = s["splits"]
    unseen = split["unseen"]
    others = {k: v for k, v in s["rules"].items() if k != CEILING}
    best = max(others, key=lambda k: others[k])
    return [
        claim(
            "names.accuracy",
            "On {n} prompts with names and templates that no training prompt of the task had, the "
            "model's first word of all is the right name in {unseen:.1%} ± {se:.1%} (errors over "
            "{intros} introductions); with new names alone {names:.1%}, with new templates alone "
            "{templates:.1%}. The held-out names were trained in plain sentences only; the "
            "held-out templates share openings, fillers and many words with trained ones.",
            label="measurement",
            values={
                "n": s["n"],
                "intros": d["held_introductions"],
                "unseen": unseen["all words"][0],
                "se": unseen["all words"][1],
                "names": split["unseen names"]["all words"][0],
                "templates": split["unseen templates"]["all words"][0],
            },
            holds=atleast(min(v["all words"][0] for v in split.values()), LEAST),
        ),
        claim(
            "names.unknown_phrase",
            "The model does as well with an introduction that says `was at home` of both people, a "
            "phrase that no training sentence has: with known names it is right in {value:.1%}.",
            label="conjecture",
            holds=atleast(s["unknown"], LEAST),
        ),
        claim(
            "names.position_rules",
            "Of {many} rules that know positions, order and the last name, the best is right in "
            "{best:.1%} of the same prompts ({rule}); one that is fitted to all positions in "
            "{fitted:.1%}. A fair coin puts either person first, so order alone is worth a half. "
            "Naming the name that occurs once is right in {ceiling:.0%}.",
            label="measurement",
            values={
                "many": len(others),
                "best": others[best],
                "rule": best,
                "fitted": others["linear in positions, fitted"],
                "ceiling": s["rules"][CEILING],
            },
            holds=all_of(atmost(others[best], MOST), atleast(s["rules"][CEILING], 1)),
        ),
    ]


def _circuit(d: dict[str, Any]) -> list[dict]:
    c, t = d["circuit"], d["tests"]
    total, faith = d["layers"] * d["heads"], t["faithfulness"]
    least = min(t["minimality"]["nodes"], key=lambda k: t["minimality"]["nodes"][k])
    outside = t["minimality"]["outside"]
    best = max(outside, key=lambda k: outside[k])
    return [
        claim(
            "names.circuit",
            "Searching backwards from the logits (resampled from renamed prompts, other heads "
            "frozen, what follows recomputed) {n} of {total} heads move the lead of IO over S by "
            "{share:.0%} or more one way: {heads}. The strongest left out moves it by "
            "{others:.1%}.",
            label="intervention",
            values={
                "n": len(c["heads"]),
                "total": total,
                "share": c["share"],
                "heads": ", ".join(c["heads"]),
                "others": c["others"],
            },
            holds=atmost(len(c["heads"]), total // 2),
        ),
        claim(
            "names.faithful",
            "Alone, with every other head at its mean over renamed prompts of the same layout, the "
            "{n} heads recover {own:.0%} of the lead on other names and templates, nearer to all "
            "of it than {beats:.0%} of {sets} random sets of as many heads. With one renamed "
            "prompt in place of the mean they recover {resample:.0%}, with zeros {zero:.0%}.",
            label="intervention",
            values={
                "n": t["size"],
                "own": faith["recovered"],
                "beats": faith["beats"],
                "sets": t["sets"],
                "resample": t["resample"]["recovered"],
                "zero": t["zero"]["recovered"],
            },
            holds=all_of(between(faith["recovered"], 0.8, 1.2), atleast(faith["beats"], LEAST)),
        ),
        claim(
            "names.complete",
            "Take heads out of the circuit and out of the model alike (one at least): the two "
            "never differ by more than {gap:.0%} of the lead in the draws that random sets get "
            "too, less than in {beats:.0%} of {sets} random sets. A longer search finds "
            "{searched:.0%}. In random sets this gap goes with unfaithfulness: correlation "
            "{like:.2f}.",
            label="intervention",
            values={
                "gap": t["completeness"]["gap"],
                "beats": t["completeness"]["beats"],
                "sets": t["sets"],
                "searched": t["completeness"]["searched"],
                "like": t["completeness"]["like"],
            },
            holds=atleast(t["completeness"]["beats"], LEAST),
        ),
        claim(
            "names.minimal",
            "Every head of the circuit does more than any head outside: the least needed, {head}, "
            "changes what the circuit recovers by {own:.1%} for some set of others taken out; of "
            "those outside, added to it under the same search, {best} does most: {value:.1%}. The "
            "least needed does more than that of {beats:.0%} of {sets} random sets.",
            label="intervention",
            values={
                "head": least,
                "own": t["minimality"]["nodes"][least],
                "best": best,
                "value": outside[best],
                "beats": t["minimality"]["beats"],
                "sets": t["sets"],
            },
            holds=all_of(
                atleast(t["minimality"]["nodes"][least] - outside[best], 0.0),
                atleast(t["minimality"]["beats"], LEAST),
            ),
        ),
    ]


def _top(d: dict[str, Any]) -> str:
    """The head of the last layer whose direct term writes most of the answer."""
    return d["repair"]["strongest"]


def _inside(d: dict[str, Any]) -> list[dict]:
    top, seen = _top(d), d["attention"]
    asked, renamed = (seen[k][top]["END"] for k in ("prompts", "renamed"))
    inputs = d["composition"][f"layer {top.split('.')[0]}"]
    back = {  # beyond what the head gives to that place when nobody is named twice
        h: rows["S2"]["S1"][0] - seen["renamed"][h]["S2"]["S1"][0]
        for h, rows in seen["prompts"].items()
    }
    duplicate = max(back, key=lambda h: back[h])
    to_s2 = {h: rows["END"]["S2"][0] for h, rows in seen["prompts"].items()}
    reader = max(to_s2, key=lambda h: to_s2[h])
    return [
        claim(
            "names.mover",
            "As a name mover does in the large model, the last layer's head that writes most of "
            "the answer, {head}, looks from the last word at IO rather than at S's first mention: "
            "{io:.2f} ± {se:.2f} against {s1:.2f}. In renamed prompts, where nothing tells the two "
            "apart, it looks at the same places with {io_r:.2f} and {s1_r:.2f}.",
            label="conjecture",
            values={
                "head": top,
                "io": asked["IO"][0],
                "se": asked["IO"][1],
                "s1": asked["S1"][0],
                "io_r": renamed["IO"][0],
                "s1_r": renamed["S1"][0],
            },
            holds=all_of(
                atleast(asked["IO"][0] - asked["S1"][0], 0.3),
                atmost(abs(renamed["IO"][0] - renamed["S1"][0]), 0.15),
            ),
        ),
        claim(
            "names.second_mention",
            "As S-inhibition heads do in the large model, a head of the circuit looks from the "
            "last word at S's second mention: {value:.2f} (head {head}).",
            label="conjecture",
            values={"head": reader},
            holds=atleast(to_s2[reader], 0.5),
        ),
        claim(
            "names.query",
            "The last layer's heads are steered through their queries: what earlier heads of the "
            "circuit send into them, resampled from renamed prompts, costs {q:.0%} ± "
            "{se:.0%} of the lead through the query, {k:.0%} through the key, {v:.0%} through the "
            "value (all edges at once, what follows recomputed).",
            label="conjecture",
            values={
                "q": inputs["q"][0],
                "se": inputs["q"][1],
                "k": inputs["k"][0],
                "v": inputs["v"][0],
            },
            holds=atleast(inputs["q"][0] - max(inputs["k"][0], inputs["v"][0]), 0.1),
        ),
        claim(
            "names.duplicate",
            "As in the large model, a head of the circuit looks from S's second mention back at "
            "the first, more than at the same place when the names differ: by {value:.2f} at most "
            "(head {head}, the same sentences).",
            label="conjecture",
            values={"head": duplicate},
            holds=atleast(back[duplicate], 0.3),
        ),
    ]


def _repair(d: dict[str, Any]) -> list[dict]:
    r, last = d["repair"], str(d["layers"] - 1)
    cuts = r["cuts"]
    early = [c for name, c in cuts.items() if name[0].isdigit() and name.split(".")[0] != last]
    early = early or [cuts[_top(d)]]
    one = max(early, key=lambda c: c["predicted"][0])
    hidden = max(early, key=lambda c: abs(c["made_up"][0]))
    return [
        claim(
            "names.repair_sums",
            "What a cut costs is what its direct term promises minus what the other terms gain, "
            "prompt by prompt. Without a norm, nothing can gain when a head of the last layer is "
            "cut: there promise and cost are equal, whatever the weights (float32, relative to the "
            "largest lead).",
            label="identity",
            values={},
            holds=bound(max(r["error"], r["late"]), 1e-6),
        ),
        claim(
            "names.self_repair",
            "Where repair is possible, in heads that others read, a tenth or more of the promised "
            "loss is made up for. Cut {head}, the one of them with the largest direct term (mean "
            "over renamed prompts, what follows recomputed): promised {promised:.2f}, measured "
            "{actual:.2f} logits.",
            label="conjecture",
            values={
                "head": one["heads"][0],
                "promised": one["predicted"][0],
                "actual": one["actual"][0],
            },
            holds=atleast(one["made_up"][0] / one["predicted"][0], 0.1),
        ),
        claim(
            "names.direct_terms_miss",
            "Direct terms say little of earlier heads: cutting {head} costs {actual:.2f} ± "
            "{se:.2f} logits where its direct term promises {promised:.2f}.",
            label="intervention",
            values={
                "head": hidden["heads"][0],
                "actual": hidden["actual"][0],
                "se": hidden["actual"][1],
                "promised": hidden["predicted"][0],
            },
            holds=atleast(abs(hidden["made_up"][0]) - 2 * hidden["made_up"][1], 0),
        ),
    ]
