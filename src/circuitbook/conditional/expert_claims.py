"""The sentences about the mixture of experts, and about the table of selection and content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from circuitbook.claims import all_of, atleast, atmost, equal
from circuitbook.claims import claim as made
from circuitbook.conditional.gated_claims import REPLACED, Data, named, num, sure


def claims(d: Data, gated: Data, table: Data) -> list[dict]:
    """All claims about the mixture, in the order of the lesson."""
    return [*_identities(d, table), *_local(d), *_use(d), *_deciders(d), *_routing(d),
            *_routes(d), *_blind(d), *_border(d), *_likeness(d, gated, table)]  # fmt: skip


def _identities(d: Data, table: Data) -> list[dict]:
    mixtures = [x["ok"] for name, x in table["random blocks"].items() if "mixture" in name]
    wrong = {k: x for k, x in table["mistakes"].items() if "SiLU" not in k}
    shared, exact = d["shared"], d["exact"]
    return [
        made(
            "experts.routes",
            "Content route plus router route is the derivative of a mixture inside a routing "
            "region: within {limit:.0e} of autograd for {n} kinds of random mixtures and for the "
            "trained `moe-1l`. Left out, the router route costs {router:.2f} of the largest entry, "
            "the experts' biases {bias:.2f}, the mean of the softmax {mean:.2f} (least of the "
            "random blocks); in the trained one the route is {trained:.2f}.",
            label="identity",
            values={
                "limit": exact["sum"]["limit"],
                "n": len(mixtures),
                "router": wrong["no router route"],
                "bias": wrong["E without its bias"],
                "mean": wrong["softmax mean dropped"],
                "trained": d["without a route"]["without router"],
            },
            holds=all_of(
                equal(all(mixtures) and exact["sum"]["ok"], True),
                atleast(min(wrong.values()), 0.01),
                atleast(d["without a route"]["without router"], 0.01),
            ),
        ),
        made(
            "experts.shared_cancels",
            "Renormalised weights sum to one, so the router route ignores what all selected "
            "experts write alike: add {added:.2f} times an expert's length to all of them and it "
            "moves by less than {limit:.0e}; with a softmax over all experts by {switch:.2f}. With "
            "one expert selected and renormalised there is no router route at all.",
            label="identity",
            values={"added": shared["added"], "switch": shared["switch"],
                    "limit": exact["cancels"]["limit"]},
            holds=all_of(
                equal(exact["cancels"]["ok"] and exact["top-1 renormalised"]["ok"], True),
                atleast(shared["switch"], 0.01),
            ),
        ),
        made(
            "experts.logits_add_up",
            "The router is linear and has no bias: its logits are the token's own part plus one "
            "part for each head, to {limit:.0e}.",
            label="identity",
            values={"limit": exact["router logits"]["limit"]},
            holds=equal(exact["router logits"]["ok"], True),
        ),
    ]  # fmt: skip


def _local(d: Data) -> list[dict]:
    x = d["local"]
    return [
        made(
            "experts.local",
            "Change half of the positions and look at the others' writes, bit for bit: {still} of "
            "{n} move. Give each expert room for an even load only (capacity factor {factor:g}) "
            "and {moved} of them move: then a write depends on who else is in the batch.",
            label="identity",
            values={"n": x["positions"], "factor": x["factor"], "still": x["reached"],
                    "moved": x["reached, capacity"]},
            holds=all_of(equal(x["reached"], 0), atleast(x["reached, capacity"], 1)),
        )
    ]  # fmt: skip


def _use(d: Data) -> list[dict]:
    use, words = d["load"], d["words"]
    return [
        made(
            "experts.load",
            "Over {n} tokens the least used of {experts} experts gets {value:.2f} of an even "
            "share, the most used {most:.2f}; evenness (entropy against its maximum) {even:.3f}, "
            "{dead} dead. The training objective asked for an even load.",
            label="measurement",
            values={
                "n": d["tokens routed"],
                "experts": d["experts"],
                "most": num(use["most"]),
                "even": num(use["evenness"]),
                "dead": use["dead"],
            },
            holds=atleast(num(use["least"]), 0.1),
        ),
        made(
            "experts.words",
            "What the word says about the selected set: {value:.0%} of the set's entropy of "
            "{entropy:.2f} nats, over {n} frequent words, after {shuffled:.2f} nats are taken off "
            "that the sets of other windows, in their order, would show too.",
            label="measurement",
            values={
                "entropy": words["entropy of the sets"],
                "shuffled": words["information, shuffled"],
                "n": words["words asked"],
            },
            holds=atleast(words["explained"], 0.1),
        ),
    ]


def _deciders(d: Data) -> list[dict]:
    who, told = d["deciders"], d["foretold"]
    direct, border = (
        {k: num(who[x][k][0]) for k in ("share", "low", "high")} for x in ("logits", "margin")
    )
    moved = who["set changes"]
    best = max((k for k in told if k.startswith("…")), key=lambda k: told[k][0])
    word, shuffled = (told[k] for k in ("the word's most common set", "the same, words shuffled"))
    return [
        made(
            "experts.token_decides",
            "The token's own part makes {value:.0%} of the variance of the centred router logits "
            "({low:.0%} to {high:.0%}), and {margin:.0%} ({mlow:.0%} to {mhigh:.0%}) of the "
            "variance of the margin between the last expert in and the first one out, two that "
            "the logits themselves pick.",
            label="measurement",
            values={
                "low": direct["low"],
                "high": direct["high"],
                "margin": border["share"],
                "mlow": border["low"],
                "mhigh": border["high"],
            },
            holds=atleast(direct["share"], 0.5),
        ),
        made(
            "experts.heads_move_sets",
            "Hold the heads' part of the router's input at its mean: the selected set changes at "
            "{heads:.1%} ± {heads_se:.1%} of the positions; the token's part instead: {direct:.1%} "
            "± {direct_se:.1%}. One head alone moves {least:.1%} to {most:.1%}.",
            label="intervention",
            values={
                **named({k: moved[n]["mean"] for k, n in (("heads", "all heads"),
                                                           ("direct", "direct"))}),
                "least": min(num(x["mean"][0]) for n, x in moved.items() if "head 0" in n),
                "most": max(num(x["mean"][0]) for n, x in moved.items() if "head 0" in n),
            },
            holds=atleast(num(moved["all heads"]["mean"][0]), 0.1),
        ),
        made(
            "experts.foretold",
            "In unseen documents a word's most common set is right at {word:.1%} ± {word_se:.1%} "
            "of positions (words shuffled {chance:.1%} ± {chance_se:.1%}), the set of the word's "
            "own logits at {own:.1%} ± {own_se:.1%}; with the true part of {best} beside it "
            "{more:.1%} ± {more_se:.1%}.",
            label="measurement",
            values={
                **named({"word": word, "chance": shuffled, "own": told["the word's own logits"],
                         "more": told[best]}),
                "best": best.removeprefix("… and "),
            },
            holds=atleast(num(word[0]) - 2 * num(word[1]), num(shuffled[0]) + 2 * num(shuffled[1])),
        ),
    ]  # fmt: skip


def _routing(d: Data) -> list[dict]:
    r, parts = d["routings"], d["set and weights"]["all heads"]
    other = r["another position's routing"]
    second = r["runner-up for the weakest"]
    return [
        made(
            "experts.routing_matters",
            "Every position gets the routing of a position drawn at random, so the load stays as "
            "it was: the loss rises by {other:.3f} ± {other_se:.3f} nats. The most used experts "
            "for all: {fixed:.3f} ± {fixed_se:.3f}. The own experts with equal weights: "
            "{equal:.3f} ± {equal_se:.3f}. The strongest alone: {one:.3f} ± {one_se:.3f}.",
            label="intervention",
            values=named({
                "other": other,
                "fixed": r["the most used experts, always"],
                "equal": r["same experts, equal weights"],
                "one": r["the strongest expert alone"],
            }),
            holds=atleast(sure(other), 2),
        ),
        made(
            "experts.last_choice_matters",
            "The last choice is worth something: the strongest expert left out in place of the "
            "weakest selected one raises the loss by {second:.4f} ± {second_se:.4f} nats.",
            label="conjecture",
            values=named({"second": second}),
            holds=atleast(sure(second), 2),
        ),
        made(
            "experts.set_not_weights",
            "When the router misses the heads (mean), {both:.3f} ± {both_se:.3f} nats are lost. "
            "With the new set and the old weights (who stays keeps its own, who enters inherits) "
            "{set:.3f} ± {set_se:.3f}, with the old set and the new weights {weights:.3f} ± "
            "{weights_se:.3f}: what heads say to the router matters through the set. Asked of the "
            "difference: two errors; it has {value:.1f}.",
            label="conjecture",
            values=named({"both": parts["both"], "set": parts["set only"],
                          "weights": parts["weights only"]}),
            holds=atleast(sure(parts["set minus weights"]), 2),
        ),
    ]  # fmt: skip


def _turned(pair: Sequence[Any]) -> list[float]:
    """The same difference, the other way about."""
    return [-num(pair[0]), num(pair[1])]


def _routes(d: Data) -> list[dict]:
    cuts, against = d["cuts"]["all heads"], d["against"]
    gaps = {k: _turned(cuts[k]["select minus content"]) for k in REPLACED}
    random, other = (
        {r: against[r][c]["loss"] for r in ("select", "content")} for c in ("random", "elsewhere")
    )
    costs = {f"{r[0]}_{k}": cuts[k][r] for k in REPLACED for r in ("select", "content")}
    costs |= {f"b_{k}": cuts[k]["both"] for k in REPLACED}
    return [
        made(
            "experts.both_reads",
            "What all heads wrote is missed by the router only, the experts only, or both. The "
            "loss of `moe-1l` rises, with its mean in its place, by {s_mean:.3f} ± "
            "{s_mean_se:.3f}, {c_mean:.3f} ± {c_mean_se:.3f} and {b_mean:.3f} ± {b_mean_se:.3f} "
            "nats; with another window's by {s_resample:.3f} ± {s_resample_se:.3f}, "
            "{c_resample:.3f} ± {c_resample_se:.3f} and {b_resample:.3f} ± {b_resample_se:.3f}; "
            "with nothing by {s_zero:.3f} ± {s_zero_se:.3f}, {c_zero:.3f} ± {c_zero_se:.3f} and "
            "{b_zero:.3f} ± {b_zero_se:.3f} (direct edges only; recomputed: block and logits). The "
            "smallest for one read has {value:.1f} errors.",
            label="intervention",
            values=named(costs),
            holds=atleast(
                min(sure(cuts[k][r]) for k in REPLACED for r in ("select", "content")), 2
            ),
        ),
        made(
            "experts.more_than_any",
            "A disturbance as long in the same read costs less than the loss of the heads' own "
            "write. Own minus a random direction: router {router:+.3f} ± {router_se:.3f}, experts "
            "{content:+.3f} ± {content_se:.3f} nats. Own minus another window's, taken off while "
            "the own stays: router {router2:+.3f} ± {router2_se:.3f}, experts {content2:+.3f} ± "
            "{content2_se:.3f}. Asked of all four: two paired errors; the smallest has "
            "{value:.1f}.",
            label="conjecture",
            values=named({
                "router": random["select"], "content": random["content"],
                "router2": other["select"], "content2": other["content"],
            }),
            holds=atleast(min(map(sure, (*random.values(), *other.values()))), 2),
        ),
        made(
            "experts.content_used_more",
            "Earlier heads matter more for what the experts compute than for which experts "
            "compute. Experts minus router, rise of the loss with all heads cut: {zero:+.3f} ± "
            "{zero_se:.3f}, {mean:+.3f} ± {mean_se:.3f}, {resample:+.3f} ± {resample_se:.3f} nats "
            "(zero, mean, resample). Asked of all three: two errors; the smallest has {value:.1f}.",
            label="conjecture",
            values=named(gaps),
            holds=atleast(min(map(sure, gaps.values())), 2),
        ),
    ]  # fmt: skip


def _blind(d: Data) -> list[dict]:
    heads = d["set held"].values()
    free, held = ([num(x[k][0]) for x in heads] for k in ("free", "held"))
    past, no = ([num(x[k]) for x in heads] for k in ("moved past", "refused"))
    times = [a / max(b, 1e-12) for a, b in zip(free, held, strict=True)]
    off = max(num(x["off"]) for x in heads)
    least = min(sure(x["free minus held"]) for x in heads)
    return [
        made(
            "experts.first_order_is_blind",
            "The router misses one head's write (zero). With the selected set held, the block's "
            "write changes as the derivative says, but for {off:.0%} of the change at most, and "
            "the prediction moves by {h_low:.4f} to {h_high:.4f} nats (KL). With the set free it "
            "moves by {f_low:.4f} to {f_high:.4f}, for each head {t_low:.0f} to {t_high:.0f} times "
            "as far; least clear of {heads} heads: {least:.1f} paired errors. No wonder: at "
            "{n_low:.0%} to {n_high:.0%} of the positions a head moves differences of logits by "
            "more than the margin (`check_margin` asks for a tenth of it, and refuses {r_low:.0%} "
            "to {r_high:.0%}).",
            label="intervention",
            values={
                "off": off, "heads": len(free), "least": least,
                "h_low": min(held), "h_high": max(held), "f_low": min(free), "f_high": max(free),
                "n_low": min(past), "n_high": max(past), "r_low": min(no), "r_high": max(no),
                "t_low": min(times), "t_high": max(times),
            },
            holds=all_of(atleast(least, 2), atmost(off, 0.25)),
        ),
    ]  # fmt: skip


def _border(d: Data) -> list[dict]:
    first, last = d["by margin"]["bins"][0], d["by margin"]["bins"][-1]
    trend = d["by margin"]["largest minus smallest"]
    return [
        made(
            "experts.jump",
            "At the quarter of positions nearest to a border (margins below {margin:.3f}) the "
            "other choice would change the block's write by {value:.0%} ± {first_se:.0%} of its "
            "length; in the widest quarter by {last:.0%} ± {last_se:.0%}. A small margin is no "
            "small jump.",
            label="intervention",
            values={"margin": num(first["to"])}
            | named({"first": first["moved"], "last": last["moved"]}),
            holds=atleast(num(first["moved"][0]), 0.1),
        ),
        made(
            "experts.margin_is_worth",
            "The other choice costs more where the margin is large: {last:+.3f} ± {last_se:.3f} "
            "nats in the widest quarter, {first:+.3f} ± {first_se:.3f} in the narrowest. Asked of "
            "the difference: two errors; it has {value:.1f}.",
            label="conjecture",
            values=named({"last": last["rise"], "first": first["rise"]}),
            holds=atleast(sure(trend), 2),
        ),
    ]


def _likeness(d: Data, gated: Data, table: Data) -> list[dict]:
    attention = table["attention"]
    cuts = {"attention": attention["zero"], "gate": gated["cuts"]["all heads"]["zero"],
            "router": d["cuts"]["all heads"]["zero"]}  # fmt: skip
    reach = [row["other positions reach"] for row in table["rows"]]
    told = named({k: x["select"] for k, x in cuts.items()})
    told |= named({f"{k}_c": x["content"] for k, x in cuts.items()})
    return [
        made(
            "selection.same_knife",
            "The heads' writes taken from the selecting read, or from the content read (zero; "
            "direct edges only; recomputed: block and logits; in attention layer 1 reads the heads "
            "of layer 0, its patterns and the logits are recomputed): attention {attention:.3f} ± "
            "{attention_se:.3f} and {attention_c:.3f} ± {attention_c_se:.3f} nats, SwiGLU "
            "{gate:.3f} ± {gate_se:.3f} and {gate_c:.3f} ± {gate_c_se:.3f}, mixture {router:.3f} ± "
            "{router_se:.3f} and {router_c:.3f} ± {router_c_se:.3f}. Compare within a model, not "
            "between models.",
            label="intervention",
            values=told,
            holds=atleast(min(sure(x[r]) for x in cuts.values() for r in ("select", "content")), 2),
        ),
        made(
            "selection.not_forced",
            "Where the likeness ends: other positions reach {reach:.0%} of the writes of attention "
            "and {none:.0%} of those of gate and router; {below:.0%} of the gates are negative, no "
            "weight of the other two can be. All but the last share follows from the formulas.",
            label="identity",
            values={
                "reach": reach[0],
                "none": max(reach[1:]),
                "below": num(gated["gates"]["below zero"]),
            },
            holds=all_of(atleast(reach[0], 0.99), equal(int(1000 * max(reach[1:])), 0)),
        ),
    ]
