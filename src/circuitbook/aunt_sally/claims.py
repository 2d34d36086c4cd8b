"""The sentences about Aunt Sally, with the bounds that decide whether they hold."""

from __future__ import annotations

from typing import Any

from circuitbook.claims import all_of, atleast, atmost, bound, claim, equal

TWO = ("attn-only-2l", "attn-only-2l-again", "gelu-2l")
PLAIN = ("attn-only-1l", "attn-only-2l", "attn-only-2l-again")  # attention only: paths add up
# Said where there is a norm: with it the token part is bit for bit the same before the scale only.
_SCALE = (
    " That part is counted before the norm's scale, which belongs to the whole stream and changes "
    "by up to {scale:.1%}."
)
WORDS = {2: "two", 3: "three", 4: "four"}


def _of(d: dict[str, Any], some: tuple[str, ...]) -> tuple[str, ...]:
    """Those of some roles that were measured: a model set need not have them all."""
    return tuple(role for role in some if role in d["roles"])


def claims(d: dict[str, Any], errors: dict[str, dict[str, float]], least: int) -> list[dict]:
    """All claims, for `least` prompts or more. Errors of identities are judged and not kept."""
    return [*_outcome(d, least), *_read(d, errors), *_reason(d, errors), *_tests(d, errors)]


def _outcome(d: dict[str, Any], least: int) -> list[dict]:
    one, two = (d["roles"][r] for r in PLAIN[:2])
    gap, se = d["gap"]
    return [
        claim(
            "aunt.one_prompt",
            'After the series\' prompt the one-layer model gives " Sally" {one:.3f} (rank '
            "{rank_one}) and the two-layer model {two:.3f} (rank {rank_two}). Their heads {h_one} "
            "and {h_two} look at the name with {w_one:.2f} and {w_two:.2f}.",
            label="measurement",
            values={
                "one": one["prompt"]["p"],
                "two": two["prompt"]["p"],
                "rank_one": one["prompt"]["rank"],
                "rank_two": two["prompt"]["rank"],
                "h_one": one["prompt"]["head"][0],
                "h_two": two["prompt"]["head"][0],
                "w_one": one["prompt"]["head"][1],
                "w_two": two["prompt"]["head"][1],
            },
            holds=all_of(
                atleast(float(two["prompt"]["p"]) - float(one["prompt"]["p"]), 0.05),
                atmost(two["prompt"]["rank"], one["prompt"]["rank"]),
            ),
        ),
        claim(
            "aunt.two_against_one",
            "On {n} prompts of this kind the name gets {one:.3f} ± {one_se:.3f} from one layer and "
            "{two:.3f} ± {two_se:.3f} from two: {gap:.3f} ± {se:.3f} more, paired, errors over "
            "names. It is on top in {first_one:.0%} and {first_two:.0%} of the prompts.",
            label="measurement",
            values={
                "n": d["n"],
                "gap": gap,
                "se": se,
                **{
                    f"{name}{end}": model["swap"]["none"]["p"][k]
                    for name, model in (("one", one), ("two", two))
                    for k, end in enumerate(("", "_se"))
                },
                "first_one": one["swap"]["none"]["first"],
                "first_two": two["swap"]["none"]["first"],
            },
            holds=all_of(atleast(gap - 2 * se, 0), atleast(d["n"], least)),
        ),
    ]


def _read(d: dict[str, Any], errors: dict[str, dict[str, float]]) -> list[dict]:
    R, plain = d["roles"], _of(d, PLAIN)
    least = min(float(R[r]["read"]["largest"]["named"]) for r in plain)
    held, sources = "patterns", "source tokens"
    if any("others" in R[r]["read"] for r in plain):
        held, sources = "patterns and the norms' scales", "source tokens, positions, biases"
    # A second model of two layers, where there is one.
    pair = (
        " and {again:.0%}",
        "{c_one:.0%}, {c_two:.0%} and {c_again:.0%}",
        "{t_one:.0%}, {t_two:.0%} and {t_again:.0%}",
    )
    alone = "", "{c_one:.0%} and {c_two:.0%}", "{t_one:.0%} and {t_two:.0%}"
    twice, centred, titles = pair if len(plain) > 2 else alone
    return [
        claim(
            "aunt.read_sums",
            f"With {held} frozen, the name's logit is a sum over {sources} and paths ({{one}} "
            "paths in one layer, {two} in two): to one part in {parts:,} or better in "
            f"{WORDS[len(plain)]} models on all prompts, and to rounding in float64.",
            label="identity",
            values={
                "one": R[PLAIN[0]]["read"]["n"],
                "two": R[PLAIN[1]]["read"]["n"],
                "parts": 100_000,
            },
            holds=all_of(
                *(bound(errors[r]["read"], 1e-5) for r in plain),
                *(bound(errors[r]["read64"], 1e-11) for r in plain),
            ),
        ),
        claim(
            "aunt.graphs_look_alike",
            "Add up the paths, as a graph of frozen patterns does. In more than half of the "
            "prompts the largest edge into the logit that tells this name from its rivals starts "
            f"at the name: {{one:.0%}} in one layer, {{two:.0%}}{twice} in two. Into the logit "
            f"minus the mean of all tokens it does so in {centred} "
            "only; there it starts at the last title, which asks for names of any kind, in "
            f"{titles}.",
            label="measurement",
            values={
                start + k: R[r]["read"]["largest"][along]
                for start, along in (("", "named"), ("c_", "centred"), ("t_", "last title"))
                for k, r in zip(("one", "two", "again"), plain)
            },
            holds=atleast(least, 0.5),
        ),
    ]


def _reason(d: dict[str, Any], errors: dict[str, dict[str, float]]) -> list[dict]:
    R, twos = d["roles"], _of(d, TWO)
    two, one = R[PLAIN[1]], R[PLAIN[0]]
    shares = [R[r]["reason"]["share"][0] for r in twos]
    titles = [R[r]["reason"]["title"][0] for r in twos]
    return [
        claim(
            "aunt.reason_sums",
            "The score at (last title, name) is a sum over pairs of sources, raw and minus its "
            f"mean over keys, in all {WORDS[len(R)]} models: to one part in {{parts:,}} or better, "
            "and to rounding in float64.",
            label="identity",
            values={"parts": 10_000},
            holds=all_of(
                *(bound(errors[r]["reason"], 1e-4) for r in errors),
                *(bound(errors[r]["reason64"], 1e-10) for r in _of(d, PLAIN)),
            ),
        ),
        claim(
            "aunt.reason_through_the_key",
            "Head {head} prefers the name to its other keys by {score:.2f} ± {se:.2f}. Terms with "
            "what head {writer} wrote into the key give {key:.2f} of it. In each of {n} two-layer "
            "models that head's share (mean over mean) is {low:.0%} or more, up to {high:.0%}: "
            "terms have signs, so one share can pass the whole.",
            label="measurement",
            values={
                "head": two["head"],
                "writer": two["writer"],
                "score": two["reason"]["score"][0],
                "se": two["reason"]["score"][1],
                "key": two["reason"]["key"][0],
                "n": len(twos),
                "low": min(shares),
                "high": max(shares),
            },
            holds=all_of(*(atleast(x, 0.5) for x in shares)),
        ),
        claim(
            "aunt.reason_is_the_title",
            "That write is a sum over what head {writer} read. Of the mean term between the last "
            "title and it, {low:.0%} or more comes from the first title, the token right before "
            "the name, in each of {n} two-layer models.",
            label="measurement",
            values={"writer": two["writer"], "n": len(twos), "low": min(titles)},
            holds=all_of(*(atleast(x, 0.8) for x in titles)),
        ),
        claim(
            "aunt.one_layer_score",
            "In one layer the score at (last title, name) knows two tokens and two positions. "
            "Another first title moves it by {moved:g} in all {n} prompts: it is in none of them.",
            label="identity",
            values={"moved": one["moved"], "n": d["n"]},
            holds=atmost(one["moved"], 0),
        ),
        claim(
            "aunt.one_layer_another_reason",
            "So in one layer the control must find nothing. With the first title exchanged (run "
            "again), attention goes from {before:.3f} to {after:.3f}, for the softmax has another "
            "key beside the name's, and the probability from {p:.3f} to {q:.3f}.",
            label="intervention",
            values={
                "before": one["swap"]["none"]["attention"][0],
                "after": one["swap"]["first"]["attention"][0],
                "p": one["swap"]["none"]["p"][0],
                "q": one["swap"]["first"]["p"][0],
            },
            holds=atmost(abs(float(one["fall"][0])), 0.1),
        ),
    ]


def _kept(model: dict[str, Any], name: str) -> float:
    """What of the attention to the name is left after a cut, as a share of the uncut one."""
    return float(model["cuts"][name]["attention"][0] / model["cuts"]["none"]["attention"][0])


def _tests(d: dict[str, Any], errors: dict[str, dict[str, float]]) -> list[dict]:
    R = d["roles"]
    two, twos = R[PLAIN[1]], _of(d, TWO)
    lost = [1 - _kept(R[r], "key") for r in twos]
    spared = {
        r: {name: abs(1 - _kept(R[r], name)) for name in R[r]["cuts"] if name not in
            ("none", "key", "value", "patched")}
        for r in twos
    }  # fmt: skip
    others = max(x for r in twos for name, x in spared[r].items() if name.startswith("0."))
    turned = [x for r in twos for name, x in spared[r].items() if name.startswith("turned")]
    falls = [R[r]["fall"][0] for r in twos]
    patch = [1 - _kept(R[r], "patched") for r in twos]
    swap = two["swap"]
    back = [
        float(R[r]["swap"]["both"]["attention"][0] / R[r]["swap"]["none"]["attention"][0])
        for r in twos
    ]
    changed = [R[r]["frozen"]["changed"] for r in twos]
    scales = [R[r]["scale"] for r in twos if "scale" in R[r]]
    return [
        claim(
            "aunt.key_cut",
            "Take what the previous-token head writes out of the later head's keys (zero, that "
            "edge only; what follows is computed again): attention to the name falls by {low:.0%} "
            "or more in each of {n} models. Taken out of its queries it moves attention by at most "
            "{query:.0%}; another head out of the keys by at most {others:.0%}; a write as large, "
            "turned at random ({turns} rotations), by at most {turned:.0%}.",
            label="intervention",
            values={
                "low": min(lost),
                "n": len(twos),
                "query": max(spared[r]["query"] for r in twos),
                "others": others,
                "turned": max(turned),
                "turns": len(turned) // len(twos),
            },
            holds=all_of(
                *(atleast(x, 0.8) for x in lost),
                *(atmost(x, 0.2) for r in twos for x in spared[r].values()),
                *(bound(errors[r]["shortcut"], 1e-4) for r in twos),
            ),
        ),
        claim(
            "aunt.uncle_control",
            "Exchange Aunt and Uncle at the first title only. The later head's attention to the "
            "name falls by {low:.0%} or more (mean over mean) in each of {n} models, by half in "
            "{halved:.0%} or more of the prompts; in `attn-only-2l` from {before:.3f} to "
            "{after:.3f}, and the probability from {p:.3f} to {q:.3f}. What the head would copy of "
            "the name's own token is the same in both runs, bit for bit. All that it would copy "
            "there, first-layer writes included, changes by {v_low:.0%} to {v_high:.0%} of its "
            f"length.{_SCALE if scales else ''}",
            label="intervention",
            values={
                "low": min(falls),
                "halved": min(R[r]["halved"] for r in twos),
                "n": len(twos),
                "v_low": min(R[r]["value"][0] for r in twos),
                "v_high": max(R[r]["value"][0] for r in twos),
                "before": swap["none"]["attention"][0],
                "after": swap["first"]["attention"][0],
                "p": swap["none"]["p"][0],
                "q": swap["first"]["p"][0],
            }
            | ({"scale": max(scales)} if scales else {}),
            holds=all_of(
                *(atleast(x, 0.5) for x in falls),
                *(equal(int(R[r]["token_part"]), 0) for r in twos),
            ),
        ),
        claim(
            "aunt.only_the_key",
            "Move only the previous-token head's write of that other prompt, and only into the "
            "later head's keys (one edge, everything after computed again). Its query, all values "
            "and all other patterns stay bit for bit. Attention falls by {low:.0%} or more in "
            "each of {n} models; the other prompt as a whole lowers it by {whole:.0%} or more.",
            label="intervention",
            values={"low": min(patch), "n": len(twos), "whole": min(falls)},
            holds=all_of(
                *(atleast(x, 0.5) for x in patch),
                *(equal(int(R[r]["frozen"]["kept"]), 0) for r in twos),
            ),
        ),
        claim(
            "aunt.both_titles",
            "Change both titles, and the reason is back: attention returns to {low:.0%} or more "
            "of what it was in each of {n} models. In `attn-only-2l` the name leads its rivals by "
            "{named:.2f}, much as before ({was:.2f}). Yet its probability is {p:.3f}: names of the "
            "other sex, which fit the new title, hold {other:.2f}.",
            label="intervention",
            values={
                "low": min(back),
                "n": len(twos),
                "named": swap["both"]["named"][0],
                "was": swap["none"]["named"][0],
                "p": swap["both"]["p"][0],
                "other": swap["both"]["other"][0],
            },
            holds=all_of(*(atleast(x, 0.8) for x in back)),
        ),
        claim(
            "aunt.graph_is_blind",
            "The same key cut with all patterns frozen moves {changed} numbers in {n} models: the "
            "last stream, and every edge into the logit where there is no MLP, stay bit for bit. "
            "It cannot be otherwise: whoever holds a pattern never asks a key. So a graph with "
            "frozen patterns shows that the name was read and cannot show why.",
            label="identity",
            values={"changed": max(changed), "n": len(twos)},
            holds=all_of(*(equal(int(x), 0) for x in changed)),
        ),
        claim(
            "aunt.cut_run_again",
            "The same key cut with nothing frozen: on the series' prompt the attention of "
            "`attn-only-2l` falls from {before:.2f} to {after:.2f}, and by half or more in each of "
            "{n} models.",
            label="intervention",
            values={
                "before": two["frozen"]["before"],
                "after": two["frozen"]["after"],
                "n": len(twos),
            },
            holds=all_of(
                *(
                    atmost(float(R[r]["frozen"]["after"]), float(R[r]["frozen"]["before"]) / 2)
                    for r in twos
                )
            ),
        ),
    ]
