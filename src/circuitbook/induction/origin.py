"""The sentences of chapter 06 on how the pair grew, and on circuits written by hand.

The rest of the chapter's sentences, and the rules for all of them, are in `trial.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from circuitbook import paths
from circuitbook.claims import all_of, atleast, atmost, bound, claim, equal

Data = Mapping[str, Any]


def _inside(window: list[float], peak: Mapping[str, float]) -> bool:
    """Whether a turn lies inside a phase change; False when one of them was not found."""
    return bool(window and peak) and window[0] <= peak["tokens"] <= window[1]


def growth_claims(d: Data) -> list[dict]:
    """When the pair grew, over all runs of the two-layer model."""
    g, million = d["growth"], 1e6
    runs = [g["events"][role] for role in d["seeds"]]
    t = {k: [x / million for x in times] for k, times in g["times"].items()}
    both = {"previous_token", "prefix_matching"}
    orders = [r["order"] for r in runs if both <= set(r["order"])]
    far = [o.index("previous_token") < o.index("prefix_matching") for o in orders]
    peaks = [
        _inside(r["window"], g["pca"]["peak"][role])
        for role, r in zip(d["seeds"], runs, strict=True)
    ]
    turned = {role: peak.get("angle", 0.0) for role, peak in g["pca"]["peak"].items()}
    angle, one = min(turned[role] for role in d["seeds"]), turned["attn-only-1l"]
    return [
        claim(
            "induction.phase_change",
            "Prefix matching rises abruptly in {value} of {n} two-layer runs, and in the "
            "one-layer run it {one}. Half way is reached between {low:.1f} and {high:.1f}"
            " million tokens.",
            label="measurement",
            values={
                "value": sum(r["found"] for r in runs),
                "n": len(runs),
                "one": "does so too" if g["events"]["attn-only-1l"]["found"] else "does not",
                "low": t["prefix_matching"][0],
                "high": t["prefix_matching"][1],
            },
            holds=all_of(
                equal(sum(r["found"] for r in runs), len(runs)),
                equal(g["events"]["attn-only-1l"]["found"], False),
            ),
        ),
        claim(
            "induction.order",
            "The previous-token head is half grown before the induction head in {value} "
            "of {n} runs: at {low:.1f} to {high:.1f} million tokens.",
            label="measurement",
            values={
                "value": sum(far),
                "n": len(runs),
                "low": t["previous_token"][0],
                "high": t["previous_token"][1],
            },
            holds=equal(sum(far), len(runs)),
        ),
        claim(
            "induction.two_seeds",
            "The circuit was grown from {value} seeds; at least {bound} are needed to "
            "speak of a spread.",
            label="measurement",
            holds=atleast(len(runs), 2),
        ),
        claim(
            "induction.bump",
            "A bump of the training loss at the phase change, beyond that of a model without "
            "heads, was found in {value} of {target} two-layer runs; all were expected to have "
            "one.",
            label="conjecture",
            holds=equal(sum(r["bump"] for r in runs), len(runs)),
        ),
        claim(
            "induction.turn",
            "The path of per-token losses turns most sharply inside the phase change in {found} of "
            "{n} two-layer runs, by {angle:.0f} degrees or more. The one-layer run, which has no "
            "phase change, turns by {one:.0f}; the others should turn {bound} times as sharply. "
            "Two components hold {share:.0%} of the variance.",
            label="conjecture",
            values={
                "found": sum(peaks),
                "n": len(runs),
                "angle": angle,
                "one": one,
                "bound": 2,
                "share": sum(g["pca"]["share"]),
            },
            holds=all_of(equal(sum(peaks), len(runs)), atleast(angle / max(one, 1e-9), 2)),
        ),
    ]


def hand_claims(d: Data) -> list[dict]:
    """What matrices written by hand do."""
    hand = d["hand"]
    k, q, x = hand["K-composition"], hand["Q in place of K"], hand["pointer"]
    return [
        claim(
            "induction.by_hand",
            "The model written from matrices continues {value:.0%} of the foretold tokens"
            " in {n} sequences of distinct words, blocks up to {longest} long. Without "
            "either head, or with the write in the query in place of the key, it is at or"
            " below chance ({chance:.1%}).",
            label="intervention",
            values={
                "n": hand["sequences"],
                "longest": hand["longest"],
                "chance": hand["chance"],
                "value": hand["whole"],
            },
            holds=all_of(
                atleast(hand["whole"], 1),
                atmost(
                    max(k["without 0.0"], k["without 1.0"], k["key"], q["whole"]), hand["chance"]
                ),
            ),
        ),
        claim(
            "induction.smeared",
            "One layer with smeared keys continues {smeared:.0%}; the same layer without "
            "the smear {plain:.0%}.",
            label="intervention",
            values={"smeared": hand["smeared"], "plain": hand["not smeared"]},
            holds=all_of(atleast(hand["smeared"], 1), atmost(hand["not smeared"], hand["chance"])),
        ),
        claim(
            "induction.pointer",
            "Two hand-built circuits behave alike ({k:.0%} and {p:.0%}), and the cuts "
            "tell them apart: by K-composition the key cut leaves {kk:.0%} and the query "
            "cut {kq:.0%}; by pointer arithmetic {pk:.0%} and {pq:.0%}.",
            label="intervention",
            values={
                "k": k["whole"],
                "p": x["whole"],
                "kk": k["key"],
                "kq": k["query"],
                "pk": x["key"],
                "pq": x["query"],
            },
            holds=all_of(
                *(atleast(a, 1) for a in (k["whole"], x["whole"], k["query"], x["key"])),
                *(atmost(a, hand["chance"]) for a in (k["key"], x["query"])),
            ),
        ),
    ]


SAFE = (
    "prefix matching", "loss at the repeats", "prefix matching left by the K-cut",
    "virtual QK: eigenvalue score",
)  # fmt: skip


def survival_claims(d: Data) -> list[dict]:
    """What other coordinates leave alone, and what they move."""
    changes, score = d["moves"], d["moves"]["stream coordinates G"]["K-composition score"]
    published = paths.models() == "published"
    more = " There `G` is a turn about the all-ones direction and a shear, `x + (x · v) 1`: "
    more += "LayerNorm sees neither."
    return [
        claim(
            "induction.survives",
            "Prefix matching, the loss at repeats, what the key cut leaves, and the "
            "eigenvalue score of the virtual table move by less than {limit:g} under all "
            "four changes. The K-composition score moves by {score:.0%} under `G`."
            + more
            * published,
            label="identity",
            values={"limit": 1e-8, "score": score},
            holds=all_of(
                bound(max(m[n] for m in changes.values() for n in SAFE), 1e-8),
                atleast(score, 0.01),
                atleast(changes["constant per query"]["raw score at the match"], 0.01),
            ),
        ),
    ]
