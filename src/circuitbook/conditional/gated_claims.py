"""The sentences about SwiGLU's two reads, each with the kind of evidence that carries it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from circuitbook.claims import all_of, atleast, atmost, equal
from circuitbook.claims import claim as made

Data = Mapping[str, Any]
REPLACED = ("zero", "mean", "resample")


def num(x: Any) -> float:
    """A number from a tensor of one entry."""
    return float(x)


def sure(pair: Any) -> float:
    """Mean over its standard error: how many errors above zero."""
    return num(pair[0]) / max(num(pair[1]), 1e-12)


def named(pairs: Mapping[str, Any]) -> dict[str, float]:
    """{"gate": (mean, se)} -> {"gate": mean, "gate_se": se}, for the values of a claim."""
    out: dict[str, float] = {}
    for name, (mean, se) in pairs.items():
        out |= {name: num(mean), f"{name}_se": num(se)}
    return out


def claims(d: Data, table: Data) -> list[dict]:
    """All claims about the gated MLP, in the order of the lesson."""
    return [*_identities(d, table), *_cuts(d), *_used_more(d), *_composition(d)]


def _identities(d: Data, table: Data) -> list[dict]:
    exact = [x["ok"] for x in table["random blocks"].values()]
    off = d["without a route"]
    least = min(off["without gate"], off["without content"])
    slope = table["mistakes"]["SiLU' taken for sigma"]
    return [
        made(
            "gated.routes",
            "Content route plus gate route is the derivative of the block: within {limit:.0e} of "
            "autograd in float64 on {n} kinds of random blocks and in the trained `swiglu-1l`. "
            "With one route missing the trained block is off by {least:.2f} of its largest entry "
            "or more; with sigma in place of SiLU's slope a random block is off by {slope:.2f}.",
            label="identity",
            values={
                "limit": d["exact"]["sum"]["limit"],
                "n": len(exact),
                "least": least,
                "slope": slope,
            },
            holds=all_of(
                equal(all(exact) and d["exact"]["sum"]["ok"], True),
                atleast(least, 0.01),
                atleast(slope, 0.01),
            ),
        ),
        made(
            "gated.same_block",
            "The block with two reads, given the same stream twice, is the model's own block to "
            "{limit:.0e}: every cut below starts there.",
            label="identity",
            values={"limit": d["exact"]["block"]["limit"]},
            holds=equal(d["exact"]["block"]["ok"], True),
        ),
    ]


def _cuts(d: Data) -> list[dict]:
    all_heads, against = d["cuts"]["all heads"], d["against"]
    least = min(sure(all_heads[k][r]) for k in REPLACED for r in ("select", "content"))
    zero = all_heads["zero"]
    random = {r: against[r]["random"]["loss"] for r in ("select", "content")}
    other = {r: against[r]["elsewhere"]["loss"] for r in ("select", "content")}
    rows = [against[r][c]["loss"] for r in random for c in ("random", "elsewhere")]
    return [
        made(
            "gated.both_reads",
            "What all heads wrote is taken from one read of the block only; the stream keeps it. "
            "The loss of `swiglu-1l` rises by {gate:.3f} ± {gate_se:.3f} nats when the gate misses "
            "it, by {content:.3f} ± {content_se:.3f} when the content does, by {both:.3f} ± "
            "{both_se:.3f} when both do (zero; recomputed: block and logits; {n} positions of "
            "{docs} documents). In all three ways of replacing it each is {value:.1f} standard "
            "errors above zero or more.",
            label="intervention",
            values={
                "n": d["positions"],
                "docs": d["documents"],
                **named({"gate": zero["select"], "content": zero["content"], "both": zero["both"]}),
            },
            holds=atleast(least, 2),
        ),
        made(
            "gated.not_additive",
            "What both cuts cost is not the sum of the two: it differs by {inter:+.3f} ± "
            "{inter_se:.3f} nats. Asked: two errors either way; it has {value:.1f}. In the block's "
            "write, {write:.0%} ± {write_se:.0%} of the length of what both change is the work of "
            "neither alone.",
            label="conjecture",
            values=named({"inter": zero["interaction"], "write": d["in neither"]}),
            holds=atleast(abs(sure(zero["interaction"])), 2),
        ),
        made(
            "gated.more_than_any",
            "A disturbance as long in the same read costs less than the loss of the heads' own "
            "write. Own minus a random direction: gate {gate:+.3f} ± {gate_se:.3f}, content "
            "{content:+.3f} ± {content_se:.3f} nats. Own minus another window's, taken off while "
            "the own stays: gate {gate2:+.3f} ± {gate2_se:.3f}, content {content2:+.3f} ± "
            "{content2_se:.3f}. Asked of all four: two paired errors; the smallest has "
            "{value:.1f}.",
            label="conjecture",
            values=named({
                "gate": random["select"], "content": random["content"],
                "gate2": other["select"], "content2": other["content"],
            }),
            holds=atleast(min(map(sure, rows)), 2),
        ),
    ]  # fmt: skip


def _used_more(d: Data) -> list[dict]:
    gaps = {k: d["cuts"]["all heads"][k]["select minus content"] for k in REPLACED}
    more, heads = d["used more"], d["heads"]
    ways = list(zip(*(m["ways"] for m in more.values()), strict=True))
    agree = sum(len({w for w in head if w}) <= 1 for head in ways)
    conflict = {
        m: f"{x['select']} gate, {x['content']} content, {x['neither']} open"
        for m, x in more.items()
        if m in ("loss, zero", "KL, zero", "first-order length")
    }
    return [
        made(
            "gated.gate_used_more",
            "Earlier heads work through the gate more than the content. Gate minus content, "
            "rise of the loss with all heads cut: {zero:+.3f} ± {zero_se:.3f} nats with nothing in "
            "their place, {mean:+.3f} ± {mean_se:.3f} with their mean, {resample:+.3f} ± "
            "{resample_se:.3f} with another window's. Asked of all three: two errors; the smallest "
            "has {value:.1f}.",
            label="conjecture",
            values=named(gaps),
            holds=atleast(min(map(sure, gaps.values())), 2),
        ),
        made(
            "gated.measures_agree",
            "Whichever measure decides (two errors), it names the same route for a head: true for "
            "{value} of {heads} heads over {n} measures, heads that stay open included. Heads by "
            "the loss: {loss}; by KL: {kl}; by the length of the first-order write: {first}.",
            label="conjecture",
            values={
                "heads": heads,
                "n": len(more),
                "loss": conflict["loss, zero"],
                "kl": conflict["KL, zero"],
                "first": conflict["first-order length"],
            },
            holds=equal(agree, heads),
        ),
    ]


def _composition(d: Data) -> list[dict]:
    scores, agree, sizes = d["scores"], d["promised and realised"], d["sizes"]
    above = {
        k: sum(a > b for a, b in zip(*(_list(scores[k][x]) for x in ("score", "turned, high")),
                                     strict=True))
        for k in ("gate", "content")
    }  # fmt: skip
    spread, chance = (
        {
            k: [num(x[what][k]) for n, x in sizes.items() if n.startswith("head")]
            for k in ("gate", "content")
        }
        for what in ("channels", "channels, random")
    )
    return [
        made(
            "gated.weight_scores",
            "By weights alone, {gate} of {heads} heads compose with the gate more than in any of "
            "{turns} turned streams, {content} with the content. By chance {chance:.1f} of all "
            "{both} would; {bound} or more were asked for, and there are {value}.",
            label="measurement",
            values={
                **above,
                "heads": d["heads"],
                "turns": scores["turns"],
                "both": 2 * d["heads"],
                "chance": 2 * d["heads"] / (scores["turns"] + 1),
            },
            holds=atleast(sum(above.values()), 4),
        ),
        made(
            "gated.weights_foretell",
            "Weights foretell which channels a head reaches. Rank correlation over all heads and "
            "channels, promised by the weights with realised on text: gate {gate:.2f}, content "
            "{content:.2f}; with another head's weights {gate2:.2f} and {content2:.2f}. How open a "
            "channel is on text gives {gate3:.2f} and {content3:.2f}, and for random writes as "
            "long {gate5:.2f} and {content5:.2f}; weights and openness together {gate4:.2f} and "
            "{content4:.2f}. Asked of the weights: {bound}.",
            label="conjecture",
            values={
                "gate": num(agree["gate"]["weights"]),
                "content": num(agree["content"]["weights"]),
                "gate2": num(agree["gate"]["another head's weights"]),
                "content2": num(agree["content"]["another head's weights"]),
                "gate3": num(agree["gate"]["openness of the channel"]),
                "content3": num(agree["content"]["openness of the channel"]),
                "gate4": num(agree["gate"]["weights and openness"]),
                "content4": num(agree["content"]["weights and openness"]),
                "gate5": num(agree["gate"]["openness, random writes"]),
                "content5": num(agree["content"]["openness, random writes"]),
            },
            holds=atleast(min(num(agree[k]["weights"]) for k in agree), 0.5),
        ),
        made(
            "gated.few_channels",
            "A head speaks to a few channels. In effective number (participation of squared "
            "realised composition) the gates that a head reaches are {gate:.0f} of {all} in the "
            "mean over heads, the content channels {content:.0f}; random writes as long reach "
            "{gate_r:.0f} and {content_r:.0f}. The narrowest case has "
            "{least:.0%} of all channels, the widest {value:.0%}; {bound:.0%} or less was asked.",
            label="conjecture",
            values={
                "gate": sum(spread["gate"]) / d["heads"],
                "content": sum(spread["content"]) / d["heads"],
                "gate_r": sum(chance["gate"]) / d["heads"],
                "content_r": sum(chance["content"]) / d["heads"],
                "all": d["channels wide"],
                "least": min(map(min, spread.values())) / d["channels wide"],
            },
            holds=atmost(max(map(max, spread.values())) / d["channels wide"], 0.1),
        ),
    ]


def _list(x: Any) -> list:
    return x.tolist() if hasattr(x, "tolist") else list(x)
