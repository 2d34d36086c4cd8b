"""What chapter 11 claims about planted circuits, and about the pair of the two-layer model."""

from __future__ import annotations

from typing import Any

from circuitbook.claims import all_of, atleast, atmost, claim, equal, ours

NOTHING = 0.05  # of the weakest known edge: what no other edge may reach
MOST = 0.95


def claims(d: dict[str, Any]) -> list[dict]:
    """d: what `controls.study` ("planted") and `course_pair.study` ("course_pair") gave."""
    return [
        *ours(_planted(d["planted"])),
        *_pair(d["course_pair"]),
        *_survival(d["moves"]),
    ]


def _worst(models: dict[str, Any], kind: str) -> float:
    return max(m["edges"][kind]["share"] for m in models.values())


def _planted(p: dict[str, Any]) -> list[dict]:
    models = p["models"]
    tested = sum(m["edges"]["mean"]["edges"] for m in models.values())
    known = sum(len(m["edges"]["mean"]["known"]) for m in models.values())
    induction = models["induction"]
    constant = induction["constant"][0]
    table = induction["table"]
    frozen, through = models["conjunction"]["edges"]["mean"], p["through"]
    repair, half, c = p["repair"], p["half"], p["criteria"]
    return [
        claim(
            "circuits.known_edges",
            "Path patching finds the {known} planted edges among {tested}. The strongest other "
            "edge is worth {mean:.4f} of the weakest planted one with mean stand-ins, "
            "{resample:.4f} with resampling; the limit is {limit:.2f}.",
            label="intervention",
            holds=all_of(
                *(atmost(_worst(models, kind), NOTHING) for kind in ("mean", "resample")),
                *(
                    atleast(m["edges"][kind]["weakest"] / m["F"], 0.25)
                    for m in models.values()
                    for kind in ("mean", "resample")
                ),
            ),
            values={
                "known": known,
                "tested": tested,
                "mean": _worst(models, "mean"),
                "resample": _worst(models, "resample"),
                "limit": NOTHING,
            },
        ),
        claim(
            "circuits.zero_is_fooled",
            "Head {head} adds the same to every answer. Cut to zero it costs {zero:.1f} of "
            "{F:.1f}, and its direct term says {direct:.1f}; cut to the mean it costs {mean:.1f}, "
            "resampled {resample:.1f}.",
            label="intervention",
            holds=all_of(
                atleast(table["zero"][constant] / induction["F"], NOTHING),
                atleast(table["direct"][constant] / induction["F"], NOTHING),
                atmost(abs(table["mean"][constant]) / induction["F"], NOTHING),
                atmost(abs(table["resample"][constant]) / induction["F"], NOTHING),
            ),
            values={
                "head": constant,
                "F": induction["F"],
                **{k: table[k][constant] for k in ("zero", "mean", "resample", "direct")},
            },
        ),
        claim(
            "circuits.through_the_mlp",
            "In the planted conjunction, no head reaches the logits when MLPs are frozen on the "
            "way (at most {frozen:.2f} of the weakest known edge). When MLPs are recomputed, "
            "heads do ({through:.2f}): the same word, direct, for two questions.",
            label="intervention",
            holds=all_of(atmost(frozen["share"], NOTHING), atleast(through["share"], 0.5)),
            values={"frozen": frozen["share"], "through": through["share"]},
        ),
        claim(
            "circuits.repair_is_seen",
            "The planted backup: direct terms promise that cutting the first head costs "
            "{predicted:.1f}; it costs {actual:.1f} (mean stand-in). Head {helper} makes up "
            "{gained:.1f}. The repaired share is at least {least:.2f} for all three stand-ins.",
            label="intervention",
            holds=all_of(
                atleast(min(x["share"] for x in repair.values()), 0.9),
                equal(repair["mean"]["helper"], models["backup"]["nodes"][1]),
            ),
            values={
                **{k: repair["mean"][k] for k in ("predicted", "actual", "helper", "gained")},
                "least": min(x["share"] for x in repair.values()),
            },
        ),
        claim(
            "circuits.faithful_not_complete",
            "In the planted backup the first head alone recovers {alone:.2f} of the answer, and is "
            "not complete: its gap is {gap:.2f}. With the backup in the set the gap is "
            "{both:.2f}.",
            label="intervention",
            holds=all_of(
                atleast(half["first head"]["recovered"], MOST),
                atleast(half["first head"]["gap"], 0.9),
                atmost(half["both heads"]["gap"], NOTHING),
            ),
            values={
                "alone": half["first head"]["recovered"],
                "gap": half["first head"]["gap"],
                "both": half["both heads"]["gap"],
            },
        ),
        claim(
            "circuits.criteria_on_planted",
            "The planted induction pair recovers {recovered:.2f}, its completeness gap is "
            "{gap:.2f}, and its least needed node is worth {least:.2f}. It beats {faithful:.0%}, "
            "{complete:.0%} and {minimal:.0%} of {sets} random sets of its size.",
            label="intervention",
            holds=all_of(
                atleast(c["faithfulness"]["recovered"], MOST),
                atmost(c["completeness"]["searched"], NOTHING),
                *(
                    atleast(c[k]["beats"], MOST)
                    for k in ("faithfulness", "completeness", "minimality")
                ),
            ),
            values={
                "recovered": c["faithfulness"]["recovered"],
                "gap": c["completeness"]["searched"],
                "least": c["minimality"]["least"],
                "faithful": c["faithfulness"]["beats"],
                "complete": c["completeness"]["beats"],
                "minimal": c["minimality"]["beats"],
                "sets": c["sets"],
            },
        ),
    ]


def _pair(p: dict[str, Any]) -> list[dict]:
    pair, grown = p["criteria"]["pair"], p["criteria"]["grown"]
    writer, reader = p["pair"]
    w = p["heads"].index(writer)
    paths = [(x, into, h) for into, row in p["paths"].items() for h, x in enumerate(row)]
    best = max(paths, key=lambda row: abs(row[0]))
    other = max(abs(x) for x, into, h in paths if (into, h) != ("k", w))
    return [
        claim(
            "circuits.pair_path",
            "In the two-layer model, of all paths from a first-layer head into head {reader} the "
            "one from {writer} into its key is the strongest: {value:.2f} of logit difference, "
            "the next {other:.2f} (resampled from the twin prompt).",
            label="intervention",
            holds=all_of(equal(best[1], "k"), equal(best[2], w)),
            values={"reader": reader, "writer": writer, "value": best[0], "other": other},
        ),
        claim(
            "circuits.pair_recovers",
            "The pair {writer}, {reader} alone recovers {share:.0%} of what the model gains "
            "(error {se:.0%}; {resampled:.0%} with resampling), nearer to all of it than "
            "{beats:.0%} of {sets} random pairs.",
            label="intervention",
            holds=atleast(pair["faithfulness"]["beats"], MOST),
            values={
                "writer": writer,
                "reader": reader,
                "share": pair["faithfulness"]["recovered"],
                "se": pair["faithfulness"]["se"],
                "resampled": p["resample"]["pair"],
                "beats": pair["faithfulness"]["beats"],
                "sets": pair["sets"],
            },
        ),
        claim(
            "circuits.pair_is_all",
            "The pair is the circuit: it recovers at least {bound:.0%} of the effect (it recovers "
            "{value:.0%}).",
            label="conjecture",
            holds=atleast(pair["faithfulness"]["recovered"], 0.9),
            values={},
        ),
        claim(
            "circuits.grown_set",
            "A set grown greedily on other prompts has {size} heads ({heads}) and recovers "
            "{share:.0%} (error {se:.0%}), {resampled:.0%} with resampling. It beats "
            "{faithful:.0%} of {sets} random ones in faithfulness and {complete:.0%} in "
            "completeness, the empty K left out (largest gap found {gap:.0%}). Among random sets "
            "that gap still goes with unfaithfulness: correlation {like:.2f}.",
            label="intervention",
            holds=all_of(
                atleast(grown["faithfulness"]["beats"], MOST),
                atleast(grown["completeness"]["beats"], MOST),
            ),
            values={
                "size": grown["size"],
                "heads": ", ".join(grown["nodes"]),
                "share": grown["faithfulness"]["recovered"],
                "se": grown["faithfulness"]["se"],
                "resampled": p["resample"]["grown"],
                "faithful": grown["faithfulness"]["beats"],
                "complete": grown["completeness"]["beats"],
                "gap": grown["completeness"]["searched"],
                "like": grown["completeness"]["like"],
                "sets": grown["sets"],
            },
        ),
        claim(
            "circuits.grown_is_enough",
            "What was enough on the prompts of the search is enough on others: the grown set "
            "recovers at least {bound:.0%} there (it recovers {value:.0%}).",
            label="conjecture",
            holds=atleast(grown["faithfulness"]["recovered"], 0.9),
            values={},
        ),
    ]


SURVIVE = (
    "logit difference", "recovered by the pair, mean", "recovered by the pair, zero",
    "key path of the pair", "reader's term in the difference",
)  # fmt: skip


def _survival(moves: dict[str, dict[str, float]]) -> list[dict]:
    kept = max(row[q] for row in moves.values() for q in SURVIVE)
    lost = moves["W_U + c 1ᵀ"]["reader's term in one raw logit"]
    return [
        claim(
            "circuits.survives",
            "What is read from a logit difference survives all four changes of the weights; the "
            "term in one raw logit moves by {value:.0%} under `W_U + c 1ᵀ`.",
            label="identity",
            holds=all_of(atmost(kept, 1e-6), atleast(lost, 0.05)),
            values={"value": lost},
        )
    ]
