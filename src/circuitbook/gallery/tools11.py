"""Drawings of chapter 11: nodes and edges of planted circuits, criteria beside random sets."""

import numpy as np

from circuitbook import plots

KINDS = {
    "zero": "cut to zero",
    "mean": "cut to the mean",
    "resample": "resampled",
    "direct": "direct term",
}
TITLES = {
    "induction": "Induction, and a constant head",
    "conjunction": "Two heads and an MLP",
    "backup": "A head and its backup",
}


def planted_nodes(models):
    """What four methods say of every node of the planted models, in the answer's logits."""

    def draw(name):
        m = models[name]

        def panel(ax):
            nodes = list(m["table"]["mean"])
            marked = [f"{v} *" if v in m["nodes"] else v for v in nodes]
            plots.bars(
                {words: [m["table"][k][v] for v in nodes] for k, words in KINDS.items()},
                groups=marked,
                horizontal=True,
                x_label="worth of the node (logits)",
                y_label="node (* planted)",
                title=TITLES[name],
                ax=ax,
            )
            if name != "backup":
                ax.get_legend().remove()
            else:
                ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))

        return panel

    def told(name):
        m = models[name]
        interesting = [*m["nodes"], *m["constant"]]
        return f"{TITLES[name]}: " + "; ".join(
            f"{v} " + ", ".join(f"{words} {m['table'][k][v]:.1f}" for k, words in KINDS.items())
            for v in interesting
        )

    return plots.panels(
        [draw(name) for name in models],
        columns=3,
        alt="Worth of every node of three planted models by four methods, in logits. "
        + ". ".join(told(name) for name in models)
        + ". All other nodes are at zero.",
        size=(12, 4.6),
    )


def edge_rows(models, through):
    """One row for each planted model and stand-in: edges tested, found, and the best impostor."""
    rows = []
    for name, m in models.items():
        for kind, e in m["edges"].items():
            rows.append(_edge_row(name, kind, "frozen", e))
    rows.append(_edge_row("conjunction", "mean", "recomputed", through))
    return rows


def _edge_row(name, kind, mlps, e):
    known = ", ".join(f"{edge} {x:+.1f}" for edge, x in e["known"].items())
    return {
        "model": name,
        "stand-in": kind,
        "MLPs on the way": mlps,
        "edges tested": e["edges"],
        "planted edges: worth (logits)": known,
        "strongest other (share of the weakest planted)": e["share"] if e["share"] > 1e-6 else 0.0,
    }


def criteria_panels(groups, titles):
    """The three criteria of several circuits (name -> criteria dict), each among its random sets.

    A row of panels: faithfulness, completeness, minimality; a strip of dots for every circuit.
    """
    names = list(groups)
    panels = (
        ("faithfulness", "recovered", "share of the effect recovered", "Faithfulness: near 1"),
        ("completeness", "gap", "largest gap found (share of the effect)", "Completeness: near 0"),
        ("minimality", "least", "worth of the least needed node (share)", "Minimality: above 0"),
    )

    def draw(key, own, label, title):
        def panel(ax):
            for i, name in enumerate(names):
                values = np.sort(np.array(groups[name][key]["random"]))
                spread = ((np.arange(len(values)) * 0.618) % 1 - 0.5) * 0.5  # no dot on another
                ax.scatter(
                    values, i + spread, s=14, color=plots.COLOURS[0], marker="o", alpha=0.5,
                    label="random sets of its size" if i == 0 else None,
                )  # fmt: skip
                ax.scatter(
                    [groups[name][key][own]], [i], s=110, color=plots.COLOURS[1], marker="D",
                    edgecolor="black", zorder=3, label="the circuit" if i == 0 else None,
                )  # fmt: skip
                if key == "minimality":
                    ax.scatter(
                        [groups[name][key]["best outside"]], [i], s=60, marker="^",
                        color=plots.COLOURS[2], edgecolor="black", zorder=3,
                        label="best node outside" if i == 0 else None,
                    )  # fmt: skip
            ax.axvline({"faithfulness": 1.0}.get(key, 0.0), color="#777777", linestyle=":")
            words = [titles[n] if key == "faithfulness" else "" for n in names]
            ax.set_yticks(range(len(names)), labels=words)
            ax.set_ylim(-0.6, len(names) - 0.4)
            ax.invert_yaxis()
            ax.set_xlabel(label)
            ax.set_ylabel("circuit" if key == "faithfulness" else "")
            ax.set_title(title)
            if key == "minimality":
                ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))

        return panel

    def told(name):
        c = groups[name]
        f, k, m = (c[x] for x in ("faithfulness", "completeness", "minimality"))
        return (
            f"{titles[name]} ({c['size']} nodes, {c['sets']} random sets): recovers "
            f"{f['recovered']:.2f} and beats {f['beats']:.0%} of the random sets; gap "
            f"{k['gap']:.2f}, beats {k['beats']:.0%}; least needed node {m['least']:.2f}, beats "
            f"{m['beats']:.0%}, best node outside {m['best outside']:.2f}"
        )

    return plots.panels(
        [draw(*p) for p in panels],
        columns=3,
        alt="Circuits among random sets of equal size, by three criteria. "
        + ". ".join(told(n) for n in names)
        + ".",
        size=(12, 1.6 + 0.8 * len(names)),
    )


def pair_picture(p):
    """Left: worth of every path into the induction head. Right: what a growing set recovers."""
    inputs = {"q": "query", "k": "key", "v": "value"}
    table = np.array([p["paths"][i] for i in inputs]).T
    writer, reader = p["pair"]
    sizes = [len(nodes) for nodes, _ in p["steps"]]
    shares = [share for _, share in p["steps"]]

    def heat(ax):
        plots.heatmap(
            np.round(table, 2) + 0.0,
            x_ticks=list(inputs.values()),
            y_ticks=p["heads"],
            signed=True,
            x_label=f"input of {reader} that gets the twin's write",
            y_label="head whose write is swapped",
            colour_label="logit difference lost",
            title="Paths into the induction head",
            ax=ax,
        )

    def growth(ax):
        groups = p["criteria"]
        for i, name in enumerate(("pair", "grown")):
            values = np.array(groups[name]["faithfulness"]["random"])
            x = groups[name]["size"] + ((np.arange(len(values)) * 0.618) % 1 - 0.5) * 0.3
            ax.scatter(x, values, s=12, alpha=0.5, color="#777777", marker="o",
                       label="random sets" if i == 0 else None)  # fmt: skip
        plots.lines(
            {
                "pair, then heads found on other prompts": (
                    np.array(sizes, dtype=float),
                    np.array(shares),
                )
            },
            x_label="heads in the set",
            y_label="share of the effect recovered",
            title="How many heads are enough?",
            ax=ax,
        )
        for nodes, share in p["steps"][1:]:
            ax.annotate(f"with {nodes[-1]}", (len(nodes), share), xytext=(6, -16),
                        textcoords="offset points", ha="center", fontsize=9)  # fmt: skip
        ax.axhline(1.0, color="#777777", linestyle=":")
        ax.set_xticks(sizes)
        ax.set_xlim(min(sizes) - 0.4, max(sizes) + 0.4)
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))

    best = np.unravel_index(np.abs(table).argmax(), table.shape)
    told = ", ".join(f"{len(nodes)} heads {share:.2f}" for nodes, share in p["steps"])
    return plots.panels(
        [heat, growth],
        alt=f"Left: logit difference lost when a first-layer head's write, taken from the twin "
        f"prompt, reaches one input of {reader}. The largest is {p['heads'][best[0]]} into the "
        f"{list(inputs.values())[best[1]]}, {table[best]:.2f}. Right: share recovered by a growing "
        f"set from the pair {writer}, {reader}: {told}; random sets beside it.",
        size=(11.5, 4.0),
    )
