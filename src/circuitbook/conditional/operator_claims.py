"""What the first part of chapter 10 asserts, sentence by sentence, with its kind of evidence."""

from __future__ import annotations

from typing import Any

from circuitbook.claims import all_of, atleast, atmost, between, bound, claim
from circuitbook.conditional.level_claims import level_claims, survival_claims
from circuitbook.conditional.own import NORM_INCLUDED, ROLES, marked, only, told, with_norm

Data = dict[str, Any]
OURS = ("shares.gelu_has_no_degree", "shares.two_operators_two_answers", "shares.mixture_levels",
        "shares.relu_forward_is_jacobian", "shares.relu_is_no_cure")  # fmt: skip


def claims(d: Data, errors: Data) -> list[dict]:
    """All claims of this part."""
    made = [
        *operator_claims(d, errors),
        *route_claims(d, errors),
        *share_claims(d, errors),
        *level_claims(d, errors),
        *survival_claims(d),
    ]
    ours = OURS[:3] if errors["relu"] is None else OURS
    return marked(made, *ours)


def operator_claims(d: Data, errors: Data) -> list[dict]:
    """The identities: x B + bias = M(x), dx J = dM, and Euler's degrees."""
    random, trained = errors["random"], errors["trained"]
    both = [*random.values(), *trained.values()]
    e, zero = errors["euler"], d["zero"]["gelu"]
    table = d["euler"]["random"]
    lines = d["euler"]["trained"]
    biased = {role: v["bias"] for role, v in lines.items() if not role.endswith(NORM_INCLUDED)}
    least, gated = min(biased, key=biased.get), lines["swiglu-1l"]
    return [
        claim(
            "routes.operator_gives_the_block",
            "At the x that selected it, the forward operator gives the block's output: {n} random "
            "blocks and {m} trained ones, every forward operator that a block has. To {f64} in "
            "float64; in float32 to {f32}, or to twice the block's own rounding if that is more."
            + with_norm(" A norm before the MLP belongs to the block, its scale held.")
            + told(*ROLES),
            label="identity",
            holds=all_of(
                bound(max(b["float64"] for b in both), 1e-12),
                bound(max(b["float32"] for b in both), 1e-6),
            ),
            values={"n": len(random), "m": len(trained), "f64": "1e-12", "f32": "1e-6"},
        ),
        claim(
            "routes.jacobian_is_the_derivative",
            "The Jacobian operator moves a small change as automatic differentiation does, for the "
            "same {n} random and {m} trained blocks."
            + with_norm(" Where there is a norm, its scale answers the change."),
            label="identity",
            holds=bound(max(b["Jacobian"] for b in both), 1e-10),
            values={"n": len(random), "m": len(trained)},
        ),
        claim(
            "routes.gain_at_zero_is_a_choice",
            "A GELU neuron that reads `+1` and `-1` writes nothing, whatever its gain at zero is. "
            "With the limit of the gain its first input has the share {share}; with a gain of zero "
            "it has none, though a neuron that is almost at zero gives it {near:.3f}.",
            label="identity",
            holds=all_of(
                bound(zero["output"], 1e-15), bound(zero["near"] - zero["by phi'(0)"], 1e-3)
            ),
            values={"share": zero["by phi'(0)"], "near": zero["near"]},
        ),
        claim(
            "shares.euler_degrees",
            "Where a block has a degree, xJ is that many times F: one for ReLU without biases, "
            "two for a bilinear block, and for LayerNorm exactly n eps over s squared, which is "
            "at most {limit} of the output. ReLU with biases gives F minus its bias row.",
            label="identity",
            holds=all_of(
                bound(e["LayerNorm, plain"], 1e-4),
                *(bound(e[k], 1e-12) for k in ("relu", "relu, biases", "bilinear", "LayerNorm")),
            ),
            values={"limit": 1e-4},
        ),
        claim(
            "shares.gelu_has_no_degree",
            "A GELU block without biases has no degree: the best single ratio of xJ to F is "
            "{ratio:.2f}, and it leaves {rest:.0%} of F over; for SwiGLU they are {ratio2:.2f} "
            "and {rest2:.0%}.",
            label="measurement",
            holds=all_of(
                atleast(table["gelu"]["rest"], 0.05), atleast(table["swiglu"]["rest"], 0.05)
            ),
            values={
                "ratio": table["gelu"]["ratio"], "rest": table["gelu"]["rest"],
                "ratio2": table["swiglu"]["ratio"], "rest2": table["swiglu"]["rest"],
            },
        ),
        claim(
            "shares.a_bias_row_is_left",
            "In every trained block the shares of the forward operator leave a part of F to its "
            "bias row: {least:.0%} of F or more in length, on average over positions (the "
            "shortest in {role}). How much depends on the operator: in `swiglu-1l` the content "
            "operator leaves {content:.0%}, the gate operator {gate:.0%}."
            + told(*ROLES),
            label="measurement",
            holds=all_of(atleast(biased[least], 0.1), atleast(gated["bias, gate"], 0.1)),
            values={
                "least": biased[least], "role": least, "content": gated["bias"],
                "gate": gated["bias, gate"],
            },
        ),
    ]  # fmt: skip


def route_claims(d: Data, errors: Data) -> list[dict]:
    """The product and its routes."""
    products, two = errors["product"], d["routes"]["gelu-2l"]
    off = {"float32": 1e-4, "float64": 1e-11}
    sums = [
        bound(max(e["routes"], e["product"]), off[k])
        for row in products.values()
        for k, e in row.items()
    ]
    steps, reader = two["by steps"], d["reader"]["ways"]
    straight = f"token → {d['reader']['pair'][1]} → direct"
    rest = max(abs(v[0]) for w, v in reader.items() if w != straight)
    luck, low, high = two["cancel by chance"]
    return [
        claim(
            "routes.sum_to_the_logits",
            "The {n} routes of `gelu-2l` in the homogeneous coordinate add up to its logits, and "
            "so do those of the one-layer models. So do those of a LayerNorm model with random "
            "weights, when the scales of this pass are held in all norms, the final one too."
            + with_norm(
                " The routes of `gelu-1l` and `gelu-2l` begin at the token and at its position; "
                "{more} more of `gelu-2l` begin in an attention bias, and the unembedding's bias "
                "is added at the end."
            )
            + told(*ROLES),
            label="identity",
            holds=all_of(*sums, between(two["routes"], 324, 324)),
            values={"n": two["routes"]} | only({"more": two.get("bias routes")}),
        ),
        claim(
            "routes.parallel_is_another_model",
            "With both sublayers reading the same stream, no route from a head into the MLP of its "
            "own block and B evaluated too early, the logits of `gelu-2l` are off by {off:.1f} "
            "times their largest value; in the model where it matters least they are off by "
            "{least:.2f}." + told(*ROLES),
            label="measurement",
            holds=atleast(min(d["parallel"].values()), 0.01),
            values={"off": d["parallel"]["gelu-2l"], "least": min(d["parallel"].values())},
        ),
        claim(
            "routes.they_cancel",
            "The routes' sizes add up to {cancel:.1f} times the logit that they make. With a "
            "random sign for each route it would be {luck:.1f} ({low:.1f} to {high:.1f}), and "
            "to lie within that range was asked: no more cancels than chance would cancel. The "
            "ratio depends on how finely the sum is cut: for the groups of the figure it is "
            "{groups:.1f}.",
            label="measurement",
            holds=between(two["cancel"], low, high),
            values={
                "cancel": two["cancel"], "luck": luck, "low": low, "high": high,
                "groups": two["cancel, groups"],
            },
        ),
        claim(
            "routes.without_mlp",
            "Of a mean centred logit of {logit:.2f} for the next token, routes that pass no MLP "
            "make {none:.2f}, those with one nonlinear step {one:.2f} and with two {two:.2f} "
            "(standard errors {a:.2f}, {b:.2f}, {c:.2f})."
            + with_norm(" What is missing is the unembedding's bias."),
            label="measurement",
            holds=atleast(steps["0 MLPs"][0] / two["logit"][0], 0.5),
            values={
                "logit": two["logit"][0], "none": steps["0 MLPs"][0], "one": steps["1 MLPs"][0],
                "two": steps["2 MLPs"][0], "a": steps["0 MLPs"][1], "b": steps["1 MLPs"][1],
                "c": steps["2 MLPs"][1],
            },
        ),
        claim(
            "routes.reader_copies_past_the_mlp",
            "On the name prompts the induction head {reader} writes {value:.2f} ± {se:.2f} logits "
            "for the name on the way {way}, which passes no MLP; no other way through it is "
            "larger than {next:.2f}.",
            label="measurement",
            holds=atleast(reader[straight][0] / rest, 2),
            values={
                "reader": d["reader"]["pair"][1], "value": reader[straight][0],
                "se": reader[straight][1], "way": f"`{straight}`", "next": rest,
            },
        ),
    ]  # fmt: skip


def share_claims(d: Data, errors: Data) -> list[dict]:
    """Three questions about one part, on the same positions."""
    s, n = d["shares"], d["setting"]
    gelu, gated = s["gelu-1l"]["agreement"], s["swiglu-1l"]["agreement"]
    forward, rate = gelu["forward"]["rank correlation"], gelu["Jacobian"]["rank correlation"]
    gain = gelu["Jacobian"]["better than forward"]
    signs, control = gelu["forward"]["signs differ"], gelu["forward"]["signs differ, control"]
    two, bend = gated["content against gate"], s["gelu-1l"]["curve"]
    fall, other = (bend[k]["better than forward"] for k in ("falling", "others"))
    whole = bend["all"]["better than forward"] if "all" in bend else gain
    others = {role: row["agreement"] for role, row in s.items() if role != "gelu-1l"}
    rates = {role: next(iter(row.values()))["signs differ"][0] for role, row in others.items()}
    spelled = ", ".join(f"{{x{i}:.0%}} in `{role}`" for i, role in enumerate(rates))
    out = [
        claim(
            "shares.forward_adds_up",
            "Forward shares and their bias row add up to the MLP's output at each of the {n} drawn "
            "positions ({documents} documents), in all {m} models, for both operators of SwiGLU."
            + with_norm(" The scale of the norm before the MLP is held.")
            + told("relu-1l", "swiglu-1l"),
            label="identity",
            holds=bound(max(errors["shares"].values()), 1e-5),
            values={"n": n["positions"], "documents": n["documents"], "m": len(s)},
        ),
        claim(
            "shares.removal_is_direct_plus_effect",
            "In the one-layer models, removing a head's write and running the model again costs "
            "what the write does directly plus its effect through the MLP."
            + with_norm(" The final norm's scale is held.")
            + told("relu-1l", "swiglu-1l"),
            label="identity",
            holds=bound(errors["rerun"], 1e-4),
        ),
        claim(
            "shares.jacobian_is_nearer_than_forward",
            "In `gelu-1l` the forward share of a part ranks its effect with {a:.2f} "
            "({a1:.2f} to {a2:.2f}), the Jacobian share with {b:.2f} ({b1:.2f} to {b2:.2f}); the "
            "paired difference is {g:.2f} ({g1:.2f} to {g2:.2f}). Effect: the part set to zero in "
            "what the MLP reads, the MLP recomputed, all else held."
            + with_norm(
                " The norm before the MLP is recomputed with it; the forward share holds its "
                "scale, the Jacobian share lets it answer."
            ),
            label="intervention",
            holds=atleast(gain[1], 0),
            values=dict(
                zip(("a", "a1", "a2", "b", "b1", "b2", "g", "g1", "g2"), forward + rate + gain,
                    strict=True)
            ),
        ),
        claim(
            "shares.signs_differ",
            "In `gelu-1l`, among the half of all cases (a part at a position) with the larger "
            "effects, forward share and effect have opposite signs in {x:.0%} ({low:.0%} to "
            "{high:.0%}); against effects at positions of other text it is {control:.0%}. It "
            "differs widely between models: "
            + spelled
            + " (SwiGLU by content)."
            + told("relu-1l", "swiglu-1l"),
            label="intervention",
            holds=all_of(atleast(signs[1], 0.05), atmost(signs[2], control)),
            values=dict(zip(("x", "low", "high", "control"), [*signs, control], strict=True))
            | {f"x{i}": rate for i, rate in enumerate(rates.values())},
        ),
        claim(
            "shares.curve_is_one_reason",
            "At {n:.0%} of the neurons and positions in `gelu-1l` the curve falls as its input "
            "grows. Put the slope in place of the gain there alone, and the share ranks the effect "
            "better by {fall:.2f} ({f1:.2f} to {f2:.2f}); in all other neurons alone, by "
            "{other:.2f} ({o1:.2f} to {o2:.2f}); in all neurons, by {all:.2f}. The interval of the "
            "first was asked to lie above zero."
            + with_norm(
                " The norm's scale is held in all of them; where it answers too, as in the "
                "Jacobian share, the gain is {norm:.2f}."
            ),
            label="intervention",
            holds=atleast(fall[1], 0),
            values=only({"norm": gain[0] if "all" in bend else None})
            | {
                "n": bend["neurons"], "fall": fall[0], "f1": fall[1], "f2": fall[2],
                "other": other[0], "o1": other[1], "o2": other[2], "all": whole[0],
            },
        ),
        claim(
            "shares.two_operators_two_answers",
            "Both forward operators of `swiglu-1l` are exact, and the shares that they give rank "
            "the same parts with only {r:.2f} ({r1:.2f} to {r2:.2f}); their signs differ in "
            "{x:.0%} of the larger cases.",
            label="measurement",
            holds=all_of(
                atmost(two["rank correlation"][2], 0.8), atleast(two["signs differ"][1], 0.05)
            ),
            values=dict(
                zip(("r", "r1", "r2", "x"), [*two["rank correlation"], two["signs differ"][0]],
                    strict=True)
            ),
        ),
    ]  # fmt: skip
    if errors["relu"] is not None:
        agree = s["relu-1l"]["agreement"]["forward"]
        out += [
            claim(
                "shares.relu_forward_is_jacobian",
                "In `relu-1l` forward share and Jacobian share of every part are one number.",
                label="identity",
                holds=bound(errors["relu"], 1e-5),
            ),
            claim(
                "shares.relu_is_no_cure",
                "Removing a part is still another question for ReLU, as neurons cross zero: in "
                "`relu-1l` share and effect differ by {off:.0%} of the mean effect ({low:.0%} to "
                "{high:.0%}), and in sign in {signs:.0%} of the larger cases. The share ranks "
                "effects with {r:.2f}. A tenth was asked of the first.",
                label="intervention",
                holds=atleast(agree["off"][1], 0.1),
                values=dict(zip(("off", "low", "high"), agree["off"], strict=True))
                | {"signs": agree["signs differ"][0], "r": agree["rank correlation"][0]},
            ),
        ]
    return out
