"""Drawings of the greater-than task: skill beside rules, logit maps, removals, neurons."""

import numpy as np

from circuitbook import plots

STANDINS = {
    "mean": "mean of the layout",
    "01": "YY that rules nothing out",
    "twin": "another prompt",
    "zero": "zero",
}


def skill(d):
    """Years near the cut-off judged right: the model on four splits, and rules without it."""
    splits = {
        "train": "model, training sentences",
        "templates": "model, new sentences",
        "combinations": "model, new combinations",
        "heldout": "model, both new",
    }
    rules = {name: x for name, x in d["rules"].items() if "ceiling" not in name}
    rows = {words: d["accuracy"][split] for split, words in splits.items()}
    rows |= {f"rule: {name}": x for name, x in rules.items()}
    best = max(rules, key=lambda name: rules[name]["worst"])
    return plots.bars(
        {
            "worst kind of prompt": [x["worst"] for x in rows.values()],
            "all prompts": [x["decisions"] for x in rows.values()],
        },
        groups=list(rows),
        horizontal=True,
        baseline=0.5,
        x_label=f"share of the {2 * d['sizes']['near']} years around the cut-off judged right",
        y_label="who answers",
        title="The cut-off is read, not guessed: every rule of place fails in one kind",
        alt="Share of the years around the cut-off judged right in the worst of three kinds of "
        "prompt (YY alone; another year before it; others only after it), and in all; dashed: "
        "half. "
        + ", ".join(f"{w} {x['worst']:.0%} and {x['decisions']:.0%}" for w, x in rows.items())
        + f". The best rule in its worst kind is “{best}”.",
        size=(9, 5.6),
    )


def maps(d):
    """What the head's values carry for each answer year and YY: two questions, part by part."""
    tables = {q: m["tables"] for q, m in d["maps"].items()}
    shown = ["embedding", d["turning"], "all"]
    limit = max(
        float(np.percentile(np.abs(np.array(t[n])), 99)) for t in tables.values() for n in shown
    )
    words = {"all": "all it reads"} | {n: f"read of {n}" for n in shown[:2]}

    def size(question, name):
        v = d["value steps"][question]
        return v["total"] if name == "all" else v["parts"][name]

    def draw(question, name):
        def panel(ax):
            m = d["maps"][question]
            plots.heatmap(
                tables[question][name],
                x_label="answer year",
                y_label="YY of the prompt",
                title=f"“{question}”, {words[name]}: {size(question, name):+.1f} nats",
                signed=True,
                limit=limit,
                colour_label="logit, centred (nats)",
                ax=ax,
            )
            at = range(0, len(m["year"]), 8)
            ax.set_xticks(list(at), labels=[str(m["year"][i]) for i in at])
            at = range(0, len(m["yy"]), 8)
            ax.set_yticks(list(at), labels=[str(m["yy"][i]) for i in at])
            cut = np.interp(m["yy"], m["year"], np.arange(len(m["year"])))
            ax.plot(cut, np.arange(len(m["yy"])), color="black", linewidth=1, linestyle="--")

        return panel

    pairs = [(q, n) for q in tables for n in shown]
    return plots.panels(
        [draw(q, n) for q, n in pairs],
        columns=3,
        alt="What the last head adds to the logit of every answer year, by YY, centred; dashed: "
        "answer year = YY. Step over the cut-off: "
        + ", ".join(f"“{q}”, {words[n]}, {size(q, n):+.1f} nats" for q, n in pairs)
        + ".",
        size=(13, 7.6),
    )


def removals(d):
    """What is left of the cut-off when one node, all heads or all MLPs are cut, by stand-in."""

    def draw(question):
        a = d["ablation"][question]
        nodes = list(a["mean"])

        def panel(ax):
            plots.bars(
                {words: [a[kind][n]["near"] for n in nodes] for kind, words in STANDINS.items()},
                groups=nodes,
                baseline=a["clean"]["near"]["mean"],
                x_label="what is cut",
                y_label="near gap left (share)",
                title=f"“{question}”",
                ax=ax,
            )
            ax.tick_params(axis="x", rotation=30)
            ax.axhline(0, color="#555555", linewidth=0.8)
            ax.set_ylim(-1.0, 1.25)
            if question == "above":
                ax.get_legend().remove()
            else:
                ax.legend(loc="upper center", ncols=4, fontsize=8)

        return panel

    def told(question):
        a = d["ablation"][question]
        nodes = (d["turning"], "all MLPs", "all heads")
        return f"“{question}” whole {a['clean']['near']['mean']:.2f}; " + "; ".join(
            f"without {n} " + ", ".join(f"{a[k][n]['near']:.2f} ({w})" for k, w in STANDINS.items())
            for n in nodes
        )

    return plots.panels(
        [draw(q) for q in d["ablation"]],
        alt="Near gap left when nodes are cut; dashed: the whole model; below zero the model "
        "answers the other question. " + ". ".join(told(q) for q in d["ablation"]) + ".",
        size=(14, 5),
    )


def neurons(d):
    """The six neurons that write most: their activation as a function of YY."""
    n = d["neurons"]

    def draw(name):
        def panel(ax):
            x = n["shown"][name]
            ax.plot(n["yy"], x["activation"], color=plots.COLOURS[0])
            ax.set_title(f"neuron {name}: one step explains {x['step share']:.0%}")
            ax.set_xlabel("YY")
            ax.set_ylabel("activation")

        return panel

    return plots.panels(
        [draw(name) for name in n["shown"]],
        columns=3,
        alt=f"Mean activation at {n['place']} by YY of the six neurons of MLP {n['layer']} that "
        "write most. One step explains "
        + ", ".join(f"{x['step share']:.0%}" for x in n["shown"].values())
        + f" of their variance. Of {n['moving']} neurons that move, {n['steppy']} are thresholds; "
        f"of {n['random']['moving']} random ones, {n['random']['steppy']}.",
        size=(11, 5.6),
    )
