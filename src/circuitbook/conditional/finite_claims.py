"""The sentences about finite changes, with the bounds that decide whether they hold."""

from __future__ import annotations

from typing import Any

from circuitbook.claims import all_of, atleast, atmost, between, bound, claim
from circuitbook.conditional.own import marked, told

EXACT, CURVED, RADIAL = 1e-9, 1e-6, 1e-12  # limits of identities in float64
# Allowed falls of the error at a doubling: order 2 gives 4, order 1 gives 2 on average, since
# where a kink falls between two nodes is chance.
SECOND, FIRST = (3.5, 4.5), (1.5, 2.8)
SAME = ("relu, no bias", "relu, bias as a row", "gelu, no bias", "gelu, bias as a row",
        "bilinear against half and half")  # fmt: skip
OTHER = ("relu, bias stays", "gelu, bias stays", "swiglu against content", "swiglu against gate",
         "bilinear against content", "bilinear against gate", "experts, no bias")  # fmt: skip


def kept(d: dict[str, Any]) -> dict[str, Any]:
    """The data as it is saved: rounding errors become a limit and a verdict, or zero."""
    e, w = d["experts"], d["whole_experts"]

    def number(x: float) -> float:
        return x if abs(x) > EXACT else 0.0

    return d | {
        "experts": e | {"gap": bound(e["gap"], EXACT)},
        "whole_experts": w | {"left": bound(w["left"], CURVED)},
        "radial": {n: {k: number(x) for k, x in row.items()} for n, row in d["radial"].items()},
        "radial_trained": {k: number(x) for k, x in d["radial_trained"].items()},
    }


def claims(d: dict[str, Any]) -> list[dict]:
    """All claims, from the data before `kept`."""
    jumps = _jumps(d)
    only = ("finite.order_kinks", *(c["id"] for c in jumps))
    return marked([*_order(d), *jumps, *_radial(d)], *only)


def _order(d: dict[str, Any]) -> list[dict]:
    fall = {role: row["fall"] for role, row in d["blocks"].items()}
    whole = d["whole"]
    return [
        claim(
            "finite.order_smooth",
            "Between two states of held-out text the midpoint rule's error falls by {gelu:.2f} at "
            "each doubling of the steps in the MLP of `gelu-1l` and by {swiglu:.2f} in that of "
            "`swiglu-1l`. {low} to {high} were allowed; second order gives {four}."
            + told("swiglu-1l"),
            label="measurement",
            values={"gelu": fall["gelu-1l"], "swiglu": fall["swiglu-1l"], "low": SECOND[0],
                    "high": SECOND[1], "four": 4},
            holds=all_of(*(between(fall[r], *SECOND) for r in ("gelu-1l", "swiglu-1l"))),
        ),
        claim(
            "finite.order_kinks",
            "In `relu-1l`, whose Jacobian jumps at every kink, it falls by {value:.2f} only. "
            "{low} to {high} were allowed.",
            label="measurement",
            holds=between(fall["relu-1l"], *FIRST),
        ),
        claim(
            "finite.whole_model",
            "From a prompt whose match is broken to the whole prompt, embeddings moved on a "
            "straight line, {n} steps miss {attn:.2%} of the change of the logit difference in "
            "`attn-only-2l` and {gelu:.2%} in `gelu-2l`; one percent was allowed.",
            label="approximation",
            values={"n": d["whole_steps"][-1], "attn": whole["attn-only-2l"]["errors"][-1],
                    "gelu": whole["gelu-2l"]["errors"][-1]},
            holds=all_of(*(atmost(row["errors"][-1], 0.01) for row in whole.values())),
        ),
    ]  # fmt: skip


def _jumps(d: dict[str, Any]) -> list[dict]:
    e, w = d["experts"], d["whole_experts"]
    return [
        claim(
            "finite.jumps_are_the_gap",
            "In `moe-1l` the selection of experts changes {n} times on {lines} lines between "
            "states of text. The change minus the integral, taken piece by piece, is the sum of "
            "the jumps, the weight times the two experts' difference, to {limit} in float64.",
            label="identity",
            values={"n": sum(e["crossings"]), "lines": len(e["crossings"]),
                    "limit": f"{EXACT:.0e}"},
            holds=all_of(bound(e["gap"], EXACT), atleast(e["crossed"], 1)),
        ),
        claim(
            "finite.floor",
            "Without the jumps the midpoint rule never gets there: at {steps} steps it misses "
            "{missed:.0%} of the change of `moe-1l`. The sum of the jumps is {floor:.0%} of the "
            "change, and it is what is missed, to {off:.1%} (one percent was allowed).",
            label="measurement",
            values={"steps": d["steps"][-1], "missed": e["errors"][-1], "floor": e["floor"],
                    "off": e["at_floor"]},
            holds=atmost(e["at_floor"], 0.01),
        ),
        claim(
            "finite.whole_experts",
            "The same for `moe-1l` as a whole, from one text to another: the stream runs on a "
            "curve, the selection at the last position changes {n} times in {m} pairs, and "
            "integral and jumps give the change of the logit difference to {limit} of the jumps. "
            "The jumps are {share:.0%} of the change in size.",
            label="identity",
            values={"n": sum(w["crossings"]), "m": len(w["crossings"]), "limit": f"{CURVED:.0e}",
                    "share": sum(map(abs, w["jumps"])) / len(w["jumps"]) / w["change"]},
            holds=all_of(bound(w["left"], CURVED), atleast(w["crossed"], 1)),
        ),
    ]  # fmt: skip


def _radial(d: dict[str, Any]) -> list[dict]:
    table, trained = d["radial"], d["radial_trained"]
    apart = {name: table[name]["operator"] for name in OTHER}
    return [
        claim(
            "finite.radial_is_forward",
            "The mean Jacobian on the ray from zero is the forward operator for two matrices with "
            "a pointwise function between them, without biases or with biases as a row, and for a "
            "bilinear block it is half of one and half of the other: to {limit} in {n} random "
            "blocks, and in `gelu-1l` with its biases as a row. The mean is taken over Jacobians "
            "on the ray; only for ReLU, whose slopes jump, by a formula.",
            label="identity",
            values={"limit": f"{RADIAL:.0e}", "n": len(SAME)},
            holds=all_of(*(bound(table[name]["operator"], RADIAL) for name in SAME),
                         bound(trained["row"], RADIAL)),
        ),
        claim(
            "finite.radial_is_not",
            "It is another matrix when biases stay in place ({relu:.0%} away for ReLU, {gelu:.0%} "
            "for GELU, {trained:.0%} in `gelu-1l` on text), for SwiGLU ({content:.0%} from the "
            "content operator, {gate:.0%} from the gate operator, {half:.0%} from half of each), "
            "and for experts ({experts:.0%}). {bound:.0%} was asked of each but the half.",
            label="measurement",
            values={
                "relu": apart["relu, bias stays"],
                "gelu": apart["gelu, bias stays"],
                "trained": trained["stays"],
                "content": apart["swiglu against content"],
                "gate": apart["swiglu against gate"],
                "half": table["swiglu against half and half"]["operator"],
                "experts": apart["experts, no bias"],
                "bound": 0.1,
            },
            holds=all_of(*(atleast(x, 0.1) for x in (*apart.values(), trained["stays"]))),
        ),
        claim(
            "finite.radial_output",
            "All of them send the state to the block's output minus its output at zero, to "
            "{limit}: equal outputs do not make equal operators.",
            label="identity",
            values={"limit": f"{EXACT:.0e}"},
            holds=all_of(*(bound(row["difference"], EXACT) for row in table.values())),
        ),
    ]  # fmt: skip
