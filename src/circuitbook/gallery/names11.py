"""Drawings of chapter 11's name task: skill, circuit, three stand-ins, attention, self-repair.

Each takes what `circuitbook.tasks.names_study.study` returned.
"""

import re

import numpy as np

from circuitbook import plots

INPUTS = {"q": "query", "k": "key", "v": "value"}
STYLE = {"q": ("#0072B2", "-"), "k": ("#009E73", "--"), "v": ("#E69F00", ":"), "": ("#000000", "-")}
LEAST_DRAWN = 0.02  # edges below this share are not drawn; the picture says so


def skill(d):
    """Accuracy by split beside what rules of position get right on the same prompts."""
    s = d["skill"]
    split = {k: v["all words"] for k, v in s["splits"].items()}
    rules = sorted(s["rules"].items(), key=lambda kv: kv[1])

    def model(ax):
        plots.bars(
            {k: v[0] for k, v in split.items()},
            errors={k: v[1] for k, v in split.items()},
            horizontal=True,
            baseline=0.95,
            x_label="share right, of all words",
            y_label="names and templates",
            title="The model",
            ax=ax,
        )
        ax.set_xlim(0, 1.08)

    def other(ax):
        plots.bars(
            dict(rules),
            horizontal=True,
            baseline=0.6,
            x_label="share right, unseen names and templates",
            y_label="rule",
            title="Rules without the insight, and the ceiling",
            ax=ax,
        )
        ax.set_xlim(0, 1.05)

    best = rules[-2]
    told = ", ".join(f"{k} {v[0]:.3f}" for k, v in split.items())
    return plots.panels(
        [model, other],
        alt=f"Share of prompts answered right by the model: {told}. Of the rules of position the "
        f"best is {best[0]!r} with {best[1]:.2f}; the name that occurs once is right in "
        f"{s['rules']['the name that occurs once']:.2f}.",
        size=(11, 4.2),
        gridspec_kw={"width_ratios": [1, 1.3]},
    )


def _edges(d):
    """(sender, receiver or "logits", input or "", share) of the edges that are drawn."""
    out = []
    for name, (share, _) in d["edges"].items():
        sender, to, into = re.fullmatch(r"(\S+) → (\S+?)(?: ([qkv]))?", name).groups()
        if abs(share) >= LEAST_DRAWN:
            out.append((sender, to, into or "", share))
    return out


def circuit(d):
    """The heads by layer, and every measured edge that matters, by input and size."""
    heads = d["circuit"]["heads"]
    layers = d["layers"]
    at, empty = {"logits": (0.0, layers)}, []
    for layer in range(layers):
        mine = [h for h in heads if h.startswith(f"{layer}.")]
        if not mine:
            empty.append(layer)
        for i, h in enumerate(mine):
            at[h] = (i - (len(mine) - 1) / 2, layer)
    fig, ax = plots.canvas(size=(9, 5.4))
    edges = _edges(d)
    largest = max(abs(e[3]) for e in edges)
    bend = {"q": -0.12, "k": 0.0, "v": 0.12, "": 0.0}
    for sender, to, into, share in sorted(edges, key=lambda e: abs(e[3])):
        colour, line = STYLE[into]
        ax.annotate(
            "",
            xy=at[to],
            xytext=at[sender],
            arrowprops={
                "arrowstyle": "-|>",
                "color": colour if share > 0 else "#CC79A7",
                "linestyle": line,
                "linewidth": 0.6 + 5 * abs(share) / largest,
                "alpha": 0.75,
                "shrinkA": 15,
                "shrinkB": 15,
                "connectionstyle": f"arc3,rad={bend[into]}",
            },
        )
    for name, (x, y) in at.items():
        box = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": "#444444"}
        ax.text(x, y, name, ha="center", va="center", bbox=box, fontsize=10)
    for layer in empty:
        ax.text(0, layer, "no head of this layer", ha="center", va="center", color="#555555")
    for into, label in (*INPUTS.items(), ("", "logits")):
        colour, line = STYLE[into]
        ax.plot([], [], color=colour, linestyle=line, linewidth=2.5, label=f"into {label}")
    if any(e[3] < 0 for e in edges):
        ax.plot([], [], color="#CC79A7", linewidth=2.5, label="works against the answer")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    xs = [x for x, _ in at.values()]
    ax.set_xlim(min(xs) - 0.7, max(xs) + 0.7)
    ax.set_ylim(-0.4, layers + 0.4)
    ax.set_yticks(range(layers + 1), labels=[*(f"layer {k}" for k in range(layers)), "logits"])
    ax.set_xticks([])
    ax.grid(visible=False)
    ax.set_title("Edges cut one at a time (width: fall of IO − S)")
    strongest = sorted(edges, key=lambda e: -abs(e[3]))[:4]
    told = "; ".join(
        f"{s} into {INPUTS.get(i, '')} {t}: {v:.0%}".replace("  ", " ") for s, t, i, v in strongest
    )
    return plots.Figure(
        fig,
        f"Heads of the circuit by layer: {', '.join(heads)}. Edges that carry at least "
        f"{LEAST_DRAWN:.0%} of the answer's lead are drawn; the strongest are {told}.",
    )


def standins(d):
    """What the circuit recovers beside random sets of equal size, under three stand-ins."""
    t = d["tests"]
    rows = {
        "mean of\nrenamed prompts": (t["faithfulness"]["recovered"], t["faithfulness"]["random"]),
        "one renamed\nprompt": (t["resample"]["recovered"], t["resample"]["random"]),
        "zeros": (t["zero"]["recovered"], t["zero"]["random"]),
    }
    fig, ax = plots.canvas(size=(7.5, 4))
    rng = np.random.default_rng(0)
    for i, (own, others) in enumerate(rows.values()):
        x = i + rng.uniform(-0.18, 0.18, len(others))
        ax.plot(x, others, "o", color="#8A8A8A", alpha=0.5, label="" if i else "random set")
        ax.plot([i], [own], "D", color="#D55E00", markersize=9, label="" if i else "the circuit")
    ax.axhline(1, color="#555555", linestyle="--", linewidth=0.8)
    ax.axhline(0, color="#555555", linewidth=0.8)
    ax.set_xticks(range(len(rows)), labels=list(rows))
    ax.set_xlabel("what the heads outside write instead")
    ax.set_ylabel("share of the lead IO − S recovered")
    ax.set_title(f"{t['size']} heads, beside {t['sets']} random sets of as many")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    told = "; ".join(
        f"{k}: circuit {own:.2f}, random sets {min(o):.2f} to {max(o):.2f}".replace("\n", " ")
        for k, (own, o) in rows.items()
    )
    return plots.Figure(fig, f"Share of the lead that the circuit recovers. {told}.")


def attention(d):
    """Where the circuit's heads look from END, on the prompts and on renamed ones."""
    heads = list(d["attention"]["prompts"])
    places = list(d["attention"]["prompts"][heads[0]]["END"])

    def table(which):
        seen = d["attention"][which]
        return [[seen[h]["END"][p][0] for p in places] for h in heads]

    def draw(which, title):
        def panel(ax):
            plots.heatmap(
                np.array(table(which)),
                x_ticks=places,
                y_ticks=heads,
                limit=1.0,
                x_label="position looked at",
                y_label="head",
                title=title,
                colour_label="attention from END",
                ax=ax,
            )

        return panel

    told = "; ".join(
        f"{h}: most to {places[int(np.argmax(row))]} ({max(row):.2f})"
        for h, row in zip(heads, table("prompts"), strict=True)
    )
    return plots.panels(
        [draw("prompts", "As asked"), draw("renamed", "Nobody named twice (S2 is a new name)")],
        alt=f"Mean attention from the last word. {told}. Right: the same places when every mention "
        "has a new name.",
        size=(11, 0.9 + 0.42 * len(heads)),
    )


def repair(d):
    """What direct attribution promises for a cut, beside what the cut costs."""
    cuts = d["repair"]["cuts"]
    labels = list(cuts)
    fig, ax = plots.canvas(size=(10, 4))
    plots.bars(
        {
            "promised by its direct term": [c["predicted"][0] for c in cuts.values()],
            "measured when it is cut": [c["actual"][0] for c in cuts.values()],
        },
        groups=labels,
        x_label="heads whose write is replaced by its mean over renamed prompts",
        y_label="fall of the lead IO − S (logits)",
        title="Direct attribution against ablation",
        ax=ax,
    )
    ax.set_xticks(range(len(labels)), labels=labels, rotation=25, ha="right")
    ax.axhline(0, color="#555555", linewidth=0.8)
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    told = "; ".join(
        f"{k}: promised {c['predicted'][0]:.2f}, measured {c['actual'][0]:.2f}"
        for k, c in cuts.items()
    )
    return plots.Figure(fig, f"Fall of the lead when heads are cut. {told}.")
