"""Figures of chapter 00: losses by index, the heads, the evidence ladder, growth in training."""

from __future__ import annotations

from functools import partial

from circuitbook import plots

# The model without heads comes last, so that a model has one colour in every panel.
MAIN = ("attn-only-1l", "attn-only-2l", "gelu-1l", "gelu-2l", "attn-only-0l")
RUNGS = (
    "whole model",
    "cut its write to the query",
    "cut its write to the value",
    "cut another head's write to the key (worst)",
    "cut its write to the key",
    "remove it everywhere, run again",
)


def _title(r, course, plain):
    """A conclusion over figures of our own models; of others, only what is drawn."""
    return course if r.made_with["models"] == "course" else plain


@plots.figure
def loss_by_index(r):
    """Held-out loss against the place in the window, in means over 16 tokens."""
    curves = {role: r["loss"][role]["bins"] for role in MAIN if role in r["loss"]}
    n = len(curves["attn-only-1l"])
    how_many = {4: "four", 5: "five"}[len(curves)]
    ends = ", ".join(f"{role} {bins[-1]:.2f}" for role, bins in curves.items())
    return plots.lines(
        {role: ([8 + 16 * i for i in range(n)], bins) for role, bins in curves.items()},
        x_label="index of the predicted token (means over 16 tokens)",
        y_label="held-out loss (nats)",
        title=_title(
            r, "A second layer helps most late in the window", "Loss by place in the window"
        ),
        alt=f"Loss against token index for {how_many} models. In the last bin: {ends} nats.",
    )


@plots.figure
def head_map(r):
    """Previous-token against prefix-matching score for every head of four models."""
    groups = {}
    for role, layers in r["previous_token"].items():
        for layer, previous in enumerate(layers):
            prefix = r["prefix_matching"][role][layer]
            groups[f"{role}, layer {layer}"] = (previous, prefix)
    first, second = r["pair"]
    pair = r["previous_token"]["attn-only-2l"][0][first]
    matches = r["prefix_matching"]["attn-only-2l"][1]
    match, rest = sorted(matches)[-1:-3:-1]
    return plots.scatter(
        groups,
        x_label="previous-token score (share of attention)",
        y_label="prefix-matching score (share of attention)",
        title=_title(r, "Two kinds of heads stand out", "Heads by two scores"),
        alt=(
            f"Every head as a point. In attn-only-2l head 0.{first} puts {pair:.2f} of its "
            f"attention on the previous token and head 1.{second} matches prefixes with "
            f"{match:.2f}; the next head of that model reaches {rest:.2f} on prefix matching."
        ),
    )


@plots.figure
def evidence_ladder(r):
    """What is left of the induction head's prefix matching after each cut of the pair's edges."""
    rungs = r["ladder"]
    first, second = r["pair"]
    parts = "; ".join(f"{name}: {rungs[name]:.2f}" for name in RUNGS)
    return plots.bars(
        {name: rungs[name] for name in RUNGS},
        horizontal=True,
        size=(9, 3.6),
        x_label=f"prefix matching of head 1.{second} (share of attention)",
        y_label=f"what is cut (its: head 0.{first})",
        title=_title(r, "One edge carries the behaviour", "Prefix matching after each cut"),
        alt=f"Prefix matching of head 1.{second} of attn-only-2l after each cut. {parts}.",
    )


def _curves(r, ax, key, roles, label, reduce=None):
    series = {}
    for role in roles:
        data = r["curves"][role]
        values = data[key] if reduce is None else [reduce(v) for v in data[key]]
        millions = [t / 1e6 for t in data["tokens"]]
        series[role] = (millions, values)
    return plots.lines(
        series, x_label="training tokens (millions)", y_label=label, ax=ax, title="", alt=""
    )


@plots.figure
def growth(r):
    """Loss, head scores and the effect of a repeat against training tokens."""
    deep = MAIN[:-1]
    two = r["curves"]["attn-only-2l"]
    at = {
        name: next(
            (t / 1e6 for t, v in zip(two["tokens"], values, strict=True) if v >= level), None
        )
        for name, values, level in (
            ("previous", [v[0] for v in two["previous_token"]], 0.35),
            ("prefix", [v[1] for v in two["prefix_matching"]], 0.2),
        )
    }

    def moment(name):
        return f"after {at[name]:.1f} million tokens" if at[name] is not None else "never"

    return plots.panels(
        [
            partial(_panel, r, "loss", MAIN, "held-out loss (nats)", None),
            partial(_panel, r, "previous_token", deep, "best previous-token score", 0),
            partial(_panel, r, "prefix_matching", deep, "best prefix-matching score", -1),
            partial(_panel, r, "repeat_loss_drop", MAIN, "loss drop at a repeat (nats)", None),
        ],
        columns=2,
        title="The previous-token head comes first",
        alt=(
            "Four panels against training tokens. In attn-only-2l the best previous-token score "
            f"passes 0.35 {moment('previous')} and the best prefix-matching score passes 0.2 "
            f"{moment('prefix')}."
        ),
    )


def _panel(r, key, roles, label, layer, ax):
    return _curves(r, ax, key, roles, label, None if layer is None else lambda v: v[layer])
