"""The sentences of chapter 07 about cuts, in-context learning, units and the pair.

Bounds as in `evidence`: the plan's where they are called asked or allowed.
"""

from __future__ import annotations

from circuitbook import paths
from circuitbook.claims import all_of, atleast, atmost, claim, equal
from circuitbook.neurons.evidence import (
    Data,
    algebra_claims,
    count_claims,
    neuron_claims,
    num,
    silence_claims,
    sure,
)


def claims(d: Data) -> list[dict]:
    """All claims of the chapter, in the order of the lesson."""
    parts = (count_claims, algebra_claims, silence_claims, neuron_claims, ablation_claims,
             context_claims, unit_claims, pair_claims)  # fmt: skip
    return [c for part in parts for c in part(d)]


WITH_NORM = (
    " That is with the final norm's scale frozen, which divides both. The numbers below run the "
    "scale again: the fall of these logits then differs by {again:.1%} in the mean."
)


def ablation_claims(d: Data) -> list[dict]:
    """Neurons taken away where they fire."""
    a, e = d["ablation"], d["earlier"]
    least = min(sure(x) for x in a["more"].values())
    share = min(num(x) for x in a["neurons where own falls more"].values())
    control = max(a["controls"], key=lambda name: a["controls"][name][0])
    return [
        claim(
            "neurons.logit_is_algebra",
            "In the last layer the fall of a neuron's own words, as centred logits, is its "
            "activation above its mean times its boost, to {limit} of the largest: the sign was "
            "never in doubt." + (WITH_NORM if "scale run again" in a else ""),
            label="identity",
            values={
                "limit": f"{d['identities']['ablated logit']['limit']:.0e}",
                **({"again": a["scale run again"]} if "scale run again" in a else {}),
            },
            holds=equal(d["identities"]["ablated logit"]["ok"], True),
        ),
        claim(
            "neurons.words_fall",
            "Hold a neuron of `gelu-1l` at its mean where it fires: its own ten words together "
            "lose {own:.2f} ± {se:.3f} nats of log-probability, over {n} neurons and {k} firings. "
            "That they lose is nearly certain from how they were chosen. The best control, "
            "{control}, gives {other:.3f}. Each control falls less by {least:.0f} paired standard "
            "errors or more, and in at least {share:.1%} of neurons.",
            label="intervention",
            values={
                "own": a["own"][0],
                "se": a["own"][1],
                "n": a["neurons"],
                "k": a["positions"],
                "control": control,
                "other": a["controls"][control][0],
                "least": least,
                "share": share,
            },
            holds=all_of(atleast(least, 2), atleast(share, 0.5)),
        ),
        claim(
            "neurons.loss_where_it_fires",
            "What was open: over all these firings the same ablation raises the loss by "
            "{loss:.4f} ± {loss_se:.4f} nats, and it does so, in the mean of a neuron's firings, "
            "for {value:.0%} of neurons. Where one of its words is the next token the loss rises "
            "by {right:.2f} ± {right_se:.2f}, where none is by {wrong:.4f} ± {wrong_se:.4f}.",
            label="intervention",
            values={
                "loss": a["loss"][0],
                "loss_se": a["loss"][1],
                "value": num(a["neurons that lower the loss"]),
                "right": a["loss where right"][0],
                "right_se": a["loss where right"][1],
                "wrong": a["loss where wrong"][0],
                "wrong_se": a["loss where wrong"][1],
            },
            holds=all_of(
                atleast(sure(a["loss"]), 2), atleast(num(a["neurons that lower the loss"]), 0.5)
            ),
        ),
        claim(
            "neurons.earlier_layer",
            "In the first layer of `gelu-2l`, {n} drawn neurons that fire there: their words lose "
            "{direct:.2f} ± {direct_se:.2f} nats when the write leaves the last stream only, "
            "{total:.2f} ± {total_se:.2f} when the neuron is held at its mean and layer 1 is run "
            "again. {value:.0%} of them lower their words in total.",
            label="intervention",
            values={
                "n": e["neurons"],
                "direct": e["direct"][0],
                "direct_se": e["direct"][1],
                "total": e["total"][0],
                "total_se": e["total"][1],
            },
            holds=atleast(e["neurons that lower"], 0.5),
        ),
    ]


def context_claims(d: Data) -> list[dict]:
    """In-context learning."""
    icl = d["icl"]
    gap, c = icl["differences"], icl["controls"]
    deep, deep_mlp = gap["second layer, no MLP"], gap["second layer, with MLPs"]
    mlp = {name: gap[name]["broad"] for name in ("MLP, one layer", "MLPs, two layers")}
    depth = min(abs(deep["broad"][0]), abs(deep_mlp["broad"][0]))
    controls = ("inside windows", "across windows")
    worst = {name: _worst(c[name]) for name in controls}
    bold = c["entropy"]["across windows"]
    beyond = {
        "inside": c["inside windows"]["attn-only-2l"],
        "one": c["inside windows"]["attn-only-1l"],
        "across": c["across windows"]["attn-only-2l"],
        "other": c["across windows"]["attn-only-1l"],
    }
    need = icl["needed"]["second layer, no MLP"]
    return [
        claim(
            "neurons.icl_depth",
            "With a second layer the broad score is lower by {mean:.2f} ± {se:.2f} nats, with MLPs "
            "by {mlp:.2f} ± {mlp_se:.2f} ({n} windows of {docs} documents, paired). Two standard "
            "errors were asked of the first: {value:.1f}.",
            label="measurement",
            values={
                "mean": -deep["broad"][0],
                "se": deep["broad"][1],
                "mlp": -deep_mlp["broad"][0],
                "mlp_se": deep_mlp["broad"][1],
                "n": icl["windows"],
                "docs": icl["documents"],
                "value": -sure(deep["broad"]),
            },
            holds=all_of(atleast(-sure(deep["broad"]), 2), atleast(-sure(deep_mlp["broad"]), 2)),
        ),
        claim(
            "neurons.icl_mlp",
            "Models with MLPs score higher, so worse, by {one:.3f} ± {one_se:.3f} nats with one "
            "layer and by {two:.3f} ± {two_se:.3f} with two; models with a second layer score "
            "lower by {depth:.2f} or more. Each model had a training of its own.",
            label="measurement",
            values={
                "one": mlp["MLP, one layer"][0],
                "one_se": mlp["MLP, one layer"][1],
                "two": mlp["MLPs, two layers"][0],
                "two_se": mlp["MLPs, two layers"][1],
                "depth": depth,
            },
            holds=atmost(max(abs(x[0]) for x in mlp.values()), depth / 2),
        ),
        claim(
            "neurons.single_is_noisy",
            "To bring the gap between two layers and one to two standard errors, the broad score "
            "needs about {broad:.0f} windows like these ({low:.0f} to {high:.0f} in {level:.0%} "
            "of new draws of the documents). Were their gap the same, the single tokens would need "
            "{value:.1f} times as many. Their own gap is {own:.1f} standard errors: too near zero "
            "for a number of its own.",
            label="measurement",
            values={**need, "level": 0.95, "own": abs(sure(deep["single"]))},
            holds=atleast(num(need["times"]), 2),
        ),
        claim(
            "neurons.shuffled_inside",
            "With the words of each window in random order, the plan asked for a score within two "
            "standard errors of zero. The farthest of {n} models is at {mean:+.2f} ± {se:.2f} nats "
            "({role}); two layers minus one is {depth:+.2f} ± {depth_se:.2f}.",
            label="conjecture",
            values=_farthest(c, "inside windows"),
            holds=atmost(abs(sure(worst["inside windows"][1])), 2),
        ),
        claim(
            "neurons.shuffled_across",
            "With the words of all windows mixed, the plan's bound again, two standard errors of "
            "zero: no document is left to learn from. The farthest of {n} models is at {mean:+.2f} "
            "± {se:.2f} nats ({role}); two layers minus one is {depth:+.2f} ± {depth_se:.2f}.",
            label="conjecture",
            values=_farthest(c, "across windows"),
            holds=atmost(abs(sure(worst["across windows"][1])), 2),
        ),
        _no_context(icl),
        claim(
            "neurons.words_without_order",
            "Shuffled inside, the score of `attn-only-2l` is {inside:+.2f} ± {inside_se:.2f} nats "
            "and that of `attn-only-1l` {one:+.2f} ± {one_se:.2f}; mixed across, {across:+.2f} ± "
            "{across_se:.2f} and {other:+.2f} ± {other_se:.2f}. Expected: two layers gain from "
            "words without order, by two standard errors, and from mixed words they do not.",
            label="conjecture",
            values={
                f"{name}{end}": x[i]
                for name, x in beyond.items()
                for i, end in enumerate(("", "_se"))
            },
            holds=all_of(
                atmost(sure(beyond["inside"]), -2), atmost(abs(sure(beyond["across"])), 2)
            ),
        ),
        claim(
            "neurons.learns_the_disorder",
            "On mixed words the guesses of `attn-only-2l` are less bold late than early: their "
            "entropy changes by {mean:+.2f} ± {se:.2f} nats, that of `gelu-2l` by {mlp:+.2f} ± "
            "{mlp_se:.2f}. A rise by two standard errors was expected of the first.",
            label="conjecture",
            values={
                "mean": bold["attn-only-2l"][0],
                "se": bold["attn-only-2l"][1],
                "mlp": bold["gelu-2l"][0],
                "mlp_se": bold["gelu-2l"][1],
            },
            holds=atleast(sure(bold["attn-only-2l"]), 2),
        ),
    ]


def _no_context(icl: Data) -> dict:
    """The model without layers; where the set has none, the course's on the course's text."""
    here, c = "attn-only-0l" in icl["levels"], icl["controls"]
    null = (icl["levels"]["attn-only-0l"] if here else icl["layerless"])["broad"]
    with paths.model_set(paths.models() if here else "course"):
        return claim(
            "neurons.no_context",
            "The model without layers cannot learn from a context. On the text its score is "
            "{mean:+.2f} ± {se:.2f} nats; two standard errors are allowed. On both controls, read "
            "in both orders, it is zero to {limit}, as it must be.",
            label="measurement",
            values={
                "mean": null[0],
                "se": null[1],
                "limit": f"{c['inside windows, zero layers']['limit']:.0e}",
            },
            holds=all_of(
                atmost(abs(sure(null)), 2),
                *(equal(x["ok"], True) for name, x in c.items() if name.endswith("zero layers")),
            ),
        )


def _worst(scores: Data) -> tuple[str, list[float]]:
    """The model whose score lies most standard errors from zero."""
    return max(scores.items(), key=lambda x: abs(sure(x[1])))


def _farthest(c: Data, name: str) -> dict:
    role, (mean, se) = _worst(c[name])
    depth = c[f"{name}, depth"]
    return {
        "n": len(c[name]),
        "role": role,
        "mean": mean,
        "se": se,
        "depth": depth[0],
        "depth_se": depth[1],
    }


def unit_claims(d: Data) -> list[dict]:
    """Units that compare."""
    two, units = d["icl"]["alphabets"], d["icl"]["units"]
    kinds = [k for k in units if k != "all"]
    role = "gelu-2l"
    by_token = sorted(kinds, key=lambda k: units[k]["nats a token"][role])
    by_byte = sorted(kinds, key=lambda k: units[k]["bits a byte"][role])
    return [
        claim(
            "neurons.units",
            "Guessed from frequencies alone, the same text costs {byte:.2f} nats a byte-symbol and "
            "{token:.2f} nats a token. In bits a byte it is {byte_bits:.2f} and {token_bits:.2f}: "
            "the order turns round.",
            label="measurement",
            values={
                "byte": two["bytes"]["nats a symbol"],
                "token": two["tokens"]["nats a symbol"],
                "byte_bits": two["bytes"]["bits a byte"],
                "token_bits": two["tokens"]["bits a byte"],
            },
            holds=all_of(
                atleast(two["tokens"]["nats a symbol"] - two["bytes"]["nats a symbol"], 0),
                atleast(two["bytes"]["bits a byte"] - two["tokens"]["bits a byte"], 0),
            ),
        ),
        claim(
            "neurons.bits",
            "In bits a byte `gelu-2l` reads {best} best ({low:.2f}) and {last} worst ({high:.2f}). "
            "From best to worst: {bytes}. By nats a token the order of these kinds is here the "
            "same.",
            label="measurement",
            values={
                "best": by_byte[0],
                "last": by_byte[-1],
                "low": units[by_byte[0]]["bits a byte"][role],
                "high": units[by_byte[-1]]["bits a byte"][role],
                "bytes": ", ".join(by_byte),
            },
            holds=equal(by_token == by_byte, True),
        ),
    ]


def pair_claims(d: Data) -> list[dict]:
    """The spine, with an MLP between its two heads."""
    p = d["pair"]
    head, edge = p["previous"], p["edges"]
    others = {h: x for h, x in edge.items() if h != head}
    rest = max(others, key=lambda h: others[h]["rise"][0])
    readers = p["readers"]["readers"]
    heads = [h for h in readers if h.startswith("head") and h != head]
    rival = max(heads, key=lambda h: readers[h])
    names = p["names"]
    total = sum(x[0] for x in names.values())
    return [
        claim(
            "neurons.pair_read",
            "In `gelu-2l` {value} of {n} neurons of `MLP 0` take a tenth or more of the "
            "variance of their pre-activation from {head}, the pair's first; {other} from {rival}.",
            label="measurement",
            values={
                "value": readers[head],
                "n": p["readers"]["neurons"],
                "head": head,
                "other": readers[rival],
                "rival": rival,
            },
            holds=atleast(readers[head], p["readers"]["neurons"] / 2),
        ),
        claim(
            "neurons.pair_edge",
            "Give `MLP 0` alone the mean of {head}'s write (at each position, over the {n} windows "
            "used) in place of the write, and run on: the loss rises by {rise:.3f} ± {se:.3f} "
            "nats. The next costly edge, from {rest}, is worth {other:.3f}.",
            label="intervention",
            values={
                "head": head,
                "n": p["windows"],
                "rise": edge[head]["rise"][0],
                "se": edge[head]["rise"][1],
                "rest": rest,
                "other": others[rest]["rise"][0],
            },
            holds=atleast(sure(edge[head]["rise"]), 2),
        ),
        claim(
            "neurons.pair_name",
            "On the name prompts the right name stands {total:.2f} logits above its rivals in "
            "`gelu-2l`. Direct parts only: its induction head, {reader}, writes {own:.2f} ± "
            "{own_se:.2f}, `MLP 1` {late:+.2f} ± {late_se:.2f}. The part of `MLP 0` says nothing: "
            "it writes nearly the same in all prompts, and the names take turns as rivals.",
            label="measurement",
            values={
                "total": total,
                "reader": p["induction"].split()[1],
                "own": names[p["induction"]][0],
                "own_se": names[p["induction"]][1],
                "late": names["MLP 1"][0],
                "late_se": names["MLP 1"][1],
            },
            holds=atleast(names[p["induction"]][0] / total, 0.25),
        ),
    ]
