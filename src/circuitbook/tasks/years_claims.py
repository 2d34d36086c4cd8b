"""Claims of the greater-than part; ids `years.*`.

The bounds of `years.solved`, `years.no_shortcut` and of the two circuits were set beforehand; that
model and rules count by their worst kind of prompt came after, as rules of place are exact where YY
is the only year. That the MLP matters for the question "below" alone was found by looking; those
bounds came after.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from circuitbook.claims import all_of, atleast, atmost, bound, claim
from circuitbook.tasks.years_neurons import EDGE
from circuitbook.tasks.years_rules import KINDS

IGNORING = ("best set of years", "always 99", "the mean answer", "fixed place from the end",
            "fixed place from the start", "first year seen", "last year seen")  # fmt: skip


def _claim(id: str, text: str, label: str, holds: dict, **values: Any) -> dict:
    return claim(id, text, label=label, holds=holds, values=values)


def claims(d: Mapping[str, Any]) -> list[dict]:
    """All claims of the part, from what `years_study.study` returned."""
    return [*task_claims(d), *circuit_claims(d), *mlp_claims(d)]


def task_claims(d: Mapping[str, Any]) -> list[dict]:
    """Solved on unseen sentences, and not by a rule of place: one score for model and rules."""
    own, rules = d["accuracy"]["heldout"], d["rules"]
    blind = {name: rules[name]["worst"] for name in IGNORING}
    best = max(blind, key=lambda name: blind[name])
    full = max(IGNORING, key=lambda name: rules[name]["right"])
    constant = rules["always 99"]
    return [
        _claim(
            "years.solved",
            "On sentences and combinations never trained on, the model judges {decisions:.1%} of "
            "the years next to the cut-off correctly and puts {gap:.3f} more probability above it "
            "than below. By kind: {kinds}.",
            "measurement",
            all_of(atleast(own["decisions"], 0.95), atleast(own["gap"], 0.9)),
            decisions=own["decisions"], gap=own["gap"],
            kinds=", ".join(f"{kind} {own[kind]:.1%}" for kind in KINDS),
        ),
        _claim(
            "years.no_shortcut",
            "Every rule that does not find YY fails in one kind of prompt at least: there the best "
            "(“{name}”) judges {best:.1%} correctly, where the model's worst kind has {own:.1%}.",
            "measurement",
            all_of(atmost(blind[best], 0.6), atleast(own["worst"] - blind[best], 0.3)),
            best=blind[best], name=best, own=own["worst"],
        ),
        _claim(
            "years.right_in_full",
            "The model beats every rule on prompts with all {asked} decisions right as well: it "
            "has {own:.0%} of them, and “{name}” has {rule:.0%}, being exact wherever no other "
            "year stands before YY.",
            "conjecture",
            atleast(own["right"] - rules[full]["right"], 0.0),
            asked=2 * d["sizes"]["near"], own=own["right"], name=full,
            rule=rules[full]["right"],
        ),
        _claim(
            "years.always_late",
            "`Always 99` has a perfect probability difference ({gap:.2f}) and {decisions:.0%} of "
            "the decisions: that difference alone cannot show that anything was read.",
            "measurement",
            all_of(atleast(constant["gap"], 0.99), atmost(constant["decisions"], 0.6)),
            gap=constant["gap"], decisions=constant["decisions"],
        ),
    ]  # fmt: skip


def circuit_claims(d: Mapping[str, Any]) -> list[dict]:
    """A small set of nodes does it, and other sets of its size do not."""
    out = []
    words = {"mean": "the mean of the layout", "resample": "prompts that rule hardly any year out"}
    for question, kinds in d["criteria"].items():
        for kind, c in kinds.items():
            f = c["faithfulness"]
            out.append(
                _claim(
                    f"years.faithful_{question}_{kind}",
                    "“{question}”: with {words} in place of everything else, {nodes} ({size} of "
                    "{cells} cells) keep {recovered:.0%} of the cut-off and come nearer to the "
                    "whole than {beats:.0%} of {sets} other sets of equal size.",
                    "intervention",
                    all_of(atleast(f["recovered"], 0.8), atleast(f["beats"], 0.95)),
                    question=question, words=words[kind], nodes=", ".join(c["nodes"]),
                    size=c["size"], cells=d["cells"], recovered=f["recovered"],
                    beats=f["beats"], sets=c["sets"],
                )
            )  # fmt: skip
    return out


def mlp_claims(d: Mapping[str, Any]) -> list[dict]:
    """What the MLPs are for: nothing in one question, the turn in the other."""
    near = {q: d["ablation"][q]["clean"]["near"]["mean"] for q in ("above", "below")}
    gone = {q: {k: d["ablation"][q][k]["all MLPs"]["near"] for k in ("mean", "01")} for q in near}
    kept = min(gone["above"].values()) / near["above"]
    most = max(gone["below"].values())
    one = d["ablation"]["below"]["mean"][d["turning"]]["near"]
    steps, n = d["steps"]["above"], d["neurons"]
    r = d["repair"]["below"]["MLP"]
    value = {q: d["value steps"][q]["parts"] for q in near}
    up = min(value[q]["embedding"] for q in near)
    down, other = (-value[q].get(d["turning"], 0.0) for q in ("below", "above"))
    own, chance = (x["steppy"] / max(1, x["moving"]) for x in (n, n["random"]))
    return [
        _claim(
            "years.head_alone",
            "“Above” needs no MLP: without them {kept:.0%} of the near gap ({near:.2f}) is left, "
            "whichever of the two stand-ins is used.",
            "intervention",
            atleast(kept, 0.9),
            kept=kept, near=near["above"],
        ),
        _claim(
            "years.mlp_turns",
            "“Below” does: without MLPs its near gap falls from {near:.2f} to {most:.2f} or less, "
            "and with the mean in place of {turning} alone to {one:.2f}: the model then answers "
            "the other question.",
            "intervention",
            all_of(atleast(near["below"], 0.5), atmost(most, 0.0), atmost(one, 0.0)),
            near=near["below"], most=most, turning=d["turning"], one=one,
        ),
        _claim(
            "years.steps_sum",
            "The steps that embedding, heads and MLPs write sum to the step of the logits, and the "
            "steps of what a head's values are made of sum to the head's (its pattern frozen).",
            "identity",
            bound(
                max(x["error"] for k in ("steps", "value steps") for x in d[k].values()), 1e-6
            ),
        ),
        _claim(
            "years.heads_write_the_step",
            "The heads write {heads:.2f} of the {total:.2f} nats by which the years above the "
            "cut-off are raised over those below; for a shuffled YY the step is {shuffled:.2f}.",
            "measurement",
            all_of(
                atleast(sum(v for k, v in steps["parts"].items() if "." in k), steps["total"] / 2),
                atmost(abs(steps["shuffled"]), steps["total"] / 4),
            ),
            heads=sum(v for k, v in steps["parts"].items() if "." in k),
            total=steps["total"], shuffled=steps["shuffled"],
        ),
        _claim(
            "years.through_the_value",
            "The head carries two steps. What it reads of the embedding raises the years above YY "
            "by {up:.1f} nats for both questions; what it reads of {turning} lowers them by "
            "{down:.1f} when a year below is asked for, and by {other:.1f} when not (patterns "
            "frozen).",
            "measurement",
            all_of(atleast(up, 1.0), atleast(down, up), atmost(abs(other), up / 2)),
            up=up, down=down, other=round(other, 1) + 0.0, turning=d["turning"],
        ),
        _claim(
            "years.direct_is_not_effect",
            "For “below”, {node} writes {predicted:.2f} nats of the logit difference itself, and "
            "putting its mean there costs {actual:.2f}.",
            "intervention",
            atleast(r["actual"]["mean"] - r["predicted"]["mean"], 3 * r["difference"]["se"]),
            node=r["node"], predicted=r["predicted"]["mean"], actual=r["actual"]["mean"],
        ),
        _claim(
            "years.threshold_neurons",
            "{steppy} of the {moving} neurons of {turning} that move at YY are better described "
            "by one threshold ({edge} years or more from either end) than by a line, and well; of "
            "random ones {random} of {other}.",
            "conjecture",
            atleast(own, 2 * chance + 0.1),
            steppy=n["steppy"], moving=n["moving"], turning=d["turning"],
            edge=EDGE, random=n["random"]["steppy"], other=n["random"]["moving"],
        ),
    ]  # fmt: skip
