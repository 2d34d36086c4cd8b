"""What chapter 10 says about levels of "frozen", and about what survives other weights."""

from __future__ import annotations

from typing import Any

from circuitbook.claims import all_of, atleast, bound, claim
from circuitbook.conditional.gauges import GENERAL
from circuitbook.conditional.own import only, with_norm

Data = dict[str, Any]


def level_claims(d: Data, errors: Data) -> list[dict]:
    """The four meanings of frozen, beside the model that is run again."""
    two, mix, normed = (
        d["levels"][k]["levels"] for k in ("gelu-2l", "moe-1l", "LayerNorm, random")
    )
    all_held, patterns = next(v for n, v in two.items() if "slopes" not in n), two["patterns"]
    real = "nearer by" in d["levels"]["gelu-2l"] and any("norm scales" in n for n in two)
    offs, nested = (
        [level["off"][0] for name, level in levels.items() if "slopes" not in name]
        for levels in (mix, two if real else normed)
    )
    source = d["levels"]["gelu-2l" if real else "LayerNorm, random"]
    scales = source["nearer by"]["patterns"]
    which = (
        "In `gelu-2l`"
        if real
        else "In a LayerNorm model with random weights, its matrices {times:.0f} times their usual "
        "initial size"
    )
    held = "patterns, norm scales and MLP gains" if real else "patterns and MLP gains"
    return [
        claim(
            "shares.held_pass_is_its_routes",
            f"With {held} of `gelu-2l` held, removing a head of layer 0 takes away "
            "exactly the routes that pass it.",
            label="identity",
            holds=bound(errors["held"], 1e-4),
        ),
        claim(
            "shares.held_gains_mislead",
            f"Removing heads of layer 0 of `gelu-2l` (zero): with {held} held the "
            "answer is off by {a:.0%} of the re-run's size and ranks it with {r:.2f} "
            "({r1:.2f} to {r2:.2f}); with only patterns held it is off by {b:.0%} and ranks it "
            "with {s:.2f} ({s1:.2f} to {s2:.2f}). Recomputed in the re-run: everything.",
            label="intervention",
            holds=all_of(
                atleast(patterns["rank correlation"][1], all_held["rank correlation"][2]),
                atleast(all_held["off"][1], patterns["off"][2]),
            ),
            values={
                "a": all_held["off"][0], "b": patterns["off"][0],
                **dict(zip(("r", "r1", "r2"), all_held["rank correlation"], strict=True)),
                **dict(zip(("s", "s1", "s2"), patterns["rank correlation"], strict=True)),
            },
        ),
        claim(
            "shares.mixture_levels",
            "In `moe-1l` the answer comes nearer to the re-run as less is held: off by {a:.0%} "
            "with expert set, expert weights and gains held, {b:.0%} with set and weights, {c:.0%} "
            "with the set alone.",
            label="conjecture",
            holds=all_of(atleast(offs[0], offs[1]), atleast(offs[1], offs[2])),
            values=dict(zip("abc", offs, strict=True)),
        ),
        claim(
            "shares.norm_scales_matter",
            which + ", holding patterns, scales and gains is off by {a:.0%} of the re-run's "
            "size, patterns and scales {b:.0%}, patterns alone {c:.0%}. Letting the scales answer "
            "brings it nearer by {by:.0%} of that size ({low:.0%} to {high:.0%}, paired).",
            label="intervention",
            holds=atleast(scales[1], 0),
            values=dict(zip("abc", nested, strict=True))
            | dict(zip(("by", "low", "high"), scales, strict=True))
            | ({} if real else {"times": d["setting"]["times"]}),
        ),
    ]  # fmt: skip


def survival_claims(d: Data) -> list[dict]:
    """Does it survive?"""
    moves = d["survive"]
    kept = ("forward share", "Jacobian share", "effect")
    same = ("head coordinates R", "stream coordinates G", "W_U + c 1ᵀ", "neurons reordered")
    return [
        claim(
            "shares.survive",
            "Forward share, Jacobian share and effect, towards a centred unembedding, survive "
            "coordinates of heads and stream, a shift of the unembedding and another order of the "
            "neurons."
            + with_norm(
                " LayerNorm leaves the stream turns about the all-ones direction and shears along "
                "it, `x + (x · v) 1`; an invertible change that is not free is another function "
                "and moves the logits by {other:.0%} of their largest value."
            ),
            label="identity",
            holds=bound(max(moves[c][q] for c in same for q in kept), 1e-8),
            values=only({"other": moves[GENERAL]["logits"] if GENERAL in moves else None}),
        ),
        claim(
            "shares.operator_is_coordinates",
            "The matrix B itself does not survive stream coordinates: it moves by {move:.0%} of "
            "its largest entry, and its trace does not move.",
            label="measurement",
            holds=all_of(
                atleast(moves["stream coordinates G"]["operator B(x)"], 0.1),
                bound(moves["stream coordinates G"]["trace of B(x)"], 1e-8),
            ),
            values={"move": moves["stream coordinates G"]["operator B(x)"]},
        ),
        claim(
            "shares.hidden_rotation_is_another_model",
            "Rotating the hidden layer is not a change of coordinates: the logits move by "
            "{move:.0%} of their largest value.",
            label="measurement",
            holds=atleast(moves["neurons rotated"]["logits"], 0.1),
            values={"move": moves["neurons rotated"]["logits"]},
        ),
    ]
