"""Drawings of chapter 09: what a read side shows, what a reason side shows, and the controls."""

import numpy as np

from circuitbook import plots

SWAPS = {
    "none": "as it is",
    "first": "first title",
    "last": "last title",
    "both": "both titles",
}
# The last two only where positions stand in the stream and there are biases.
CLASSES = ("neither", "query side", "key side", "both", "position", "bias")


def _models(a):
    return dict(a["roles"])


def read_sides(r):
    """The edges into the name's lead over its rivals by source token, and its own edge by path."""
    a = r["aunt"]
    tokens = [t if t.lower() != "<|bos|>" else "BOS" for t in a["tokens"]]
    models = {"one layer": a["roles"]["attn-only-1l"], "two layers": a["roles"]["attn-only-2l"]}
    at = a["places"][0][1]
    there = all(np.argmax(m["read"]["edges"]) == at for m in models.values())
    others = {name: m["read"].get("others", {}) for name, m in models.items()}
    rest = {name: sum(np.sum(x) for x in o.values()) for name, o in others.items() if o}
    not_drawn = "\nnot drawn: positions and biases, " if rest else ""
    not_drawn += ", ".join(f"{name} {x:.2f} in all" for name, x in rest.items())

    def edges(ax):
        plots.bars(
            {name: m["read"]["edges"] for name, m in models.items()},
            groups=tokens,
            x_label="token that is read (the last one also by the direct path)" + not_drawn,
            y_label="edge into the name's lead",
            title='What a graph shows: the lead of "Sally" over other names was read at "Sally"'
            if there
            else 'What a graph shows: where the lead of "Sally" over other names was read',
            ax=ax,
        )
        ax.axhline(0, color="#555555", linewidth=0.8)
        ax.set_ylim(top=1.15 * ax.get_ylim()[1])
        ax.legend(loc="upper center", ncols=2)

    def paths(ax):
        rows = [(path, value) for m in models.values() for path, value in m["read"]["paths"][:4]]
        blank = [0.0] * len(rows)
        plots.bars(
            {
                name: [
                    *blank[: 4 * k],
                    *(v for _, v in rows[4 * k : 4 * k + 4]),
                    *blank[4 * k + 4 :],
                ]
                for k, name in enumerate(models)
            },
            groups=[path for path, _ in rows],
            horizontal=True,
            x_label="edge from the name itself into its lead, mean over prompts",
            y_label="path",
            title="Through which heads?",
            ax=ax,
        )
        for bar in ax.patches:  # one bar stands at each tick, so it may stand in its middle
            middle = round(bar.get_y() + bar.get_height() / 2)
            bar.set(y=middle - 0.3, height=0.6)

    told = "; ".join(
        f"{name}: {m['read']['edges'][at]:.2f} from the name, {m['read']['edges'][-1]:.2f} from "
        f"the last token, strongest path {m['read']['paths'][0][0]} with "
        f"{m['read']['paths'][0][1]:.2f}"
        + "".join(f", {np.sum(x):.2f} from all of {kind}" for kind, x in others[name].items())
        for name, m in models.items()
    )
    return plots.panels(
        [edges, paths],
        columns=1,
        alt="Edges into the logit of the name minus the mean of its rivals, series' prompt; paths "
        f"from the name, mean over prompts. {told}.",
        size=(9, 8),
    )


def reason_sides(r):
    """The score at (last title, name): by class in every model, by pair of sources in one."""
    a = r["aunt"]
    models, two = _models(a), a["roles"]["attn-only-2l"]
    sources, kinds = two["reason"]["sources"], [c for c in CLASSES if c in two["reason"]["classes"]]

    def value(m, c):
        return m["reason"]["classes"][c][0]

    def classes(ax):
        plots.bars(
            {c: [value(m, c) for m in models.values()] for c in kinds},
            groups=list(models),
            x_label="model (its head that looks at the name)",
            y_label="score minus its mean over keys",
            title="Which side came through the first layer?",
            ax=ax,
        )
        ax.axhline(0, color="#555555", linewidth=0.8)
        ax.set_ylim(top=(1.25 if len(kinds) == 4 else 1.5) * ax.get_ylim()[1])
        ax.set_xticks(
            range(len(models)), labels=[f"{n}\n{m['head']}" for n, m in models.items()], fontsize=8
        )
        ax.legend(ncols=2 if len(kinds) == 4 else 3, loc="upper left")

    def pairs(ax):
        plots.heatmap(
            np.round(two["reason"]["matrix"], 1) + 0.0,  # no minus zero
            x_ticks=sources,
            y_ticks=sources,
            signed=True,
            digits=1,
            x_label="key source, at the name",
            y_label="query source, at the last title",
            title=f"Head {two['head']} of attn-only-2l",
            colour_label="score minus its mean over keys",
            ax=ax,
        )
        ax.tick_params(axis="x", rotation=50)

    m = np.array(two["reason"]["matrix"])
    i, j = np.unravel_index(np.abs(m).argmax(), m.shape)
    told = "; ".join(
        f"{n}: " + ", ".join(f"{c} {value(x, c):.2f}" for c in kinds) for n, x in models.items()
    )
    return plots.panels(
        [classes, pairs],
        alt=f"The score of the head that looks at the name, split by source. {told}. In "
        f"attn-only-2l the largest pair is {sources[i]} asking, {sources[j]} answering: "
        f"{m[i, j]:.2f}.",
        size=(11, 4.4),
    )


def title_controls(r):
    """Attention to the name and its probability when titles are exchanged, all models."""
    models = _models(r["aunt"])

    def draw(what, label, title):
        def panel(ax):
            plots.bars(
                {n: [m["swap"][s][what][0] for s in SWAPS] for n, m in models.items()},
                groups=list(SWAPS.values()),
                x_label="what is exchanged: Aunt against Uncle",
                y_label=label,
                title=title,
                ax=ax,
            )
            ticks = [t for t in ax.get_yticks() if t <= ax.get_ylim()[1]]
            ax.set_ylim(0, 1.35 * ax.get_ylim()[1])
            ax.set_yticks(ticks)
            ax.legend(ncols=2, loc="upper center")

        return panel

    def line(what, m):
        return ", ".join(f"{SWAPS[s]} {m['swap'][s][what][0]:.2f}" for s in SWAPS)

    told = "; ".join(
        f"{n}: attention {line('attention', m)}, lead over rivals {line('named', m)}"
        for n, m in models.items()
    )
    return plots.panels(
        [
            draw("attention", "attention from the last title", "Attention to the name"),
            draw("named", "logit minus mean of rivals", "The name's lead over its rivals"),
        ],
        alt=f"Exchanging Aunt and Uncle at one title or both, means over prompts. {told}.",
        size=(11, 4.2),
    )


def reason_cuts(r):
    """Attention to the name after one edge into the reader is cut, in the two-layer models."""
    models = {n: m for n, m in r["aunt"]["roles"].items() if "cuts" in m}
    reason = all(
        m["cuts"]["key"]["attention"][0] <= m["cuts"]["none"]["attention"][0] / 2
        for m in models.values()
    )
    order = [("key", "key"), ("patched", "key, from the\nother prompt"), ("query", "query"),
             ("value", "value")]  # fmt: skip

    def worst(m, start="0."):
        """The attention that is farthest from the uncut one, up or down."""
        some = [m["cuts"][c]["attention"][0] for c in m["cuts"] if c.startswith(start)]
        return max(some, key=lambda x: abs(x - m["cuts"]["none"]["attention"][0]))

    labels = ["nothing", *(words for _, words in order), "key, as large,\nfarthest rotation",
              "key, farthest\nother head"]  # fmt: skip
    fig, ax = plots.canvas(size=(9, 4))
    plots.bars(
        {
            n: [
                m["cuts"]["none"]["attention"][0],
                *(m["cuts"][c]["attention"][0] for c, _ in order),
                worst(m, "turned"),
                worst(m),
            ]
            for n, m in models.items()
        },
        groups=labels,
        x_label="edge cut, previous-token head into later head (farthest: moves attention most)",
        y_label="attention to the name",
        title="One edge carries the reason" if reason else "Which edge carries the reason?",
        ax=ax,
    )
    ax.set_ylim(0, 1.2)
    ax.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    ax.legend(ncols=3, loc="upper center")
    ax.set_xticks(range(len(labels)), labels=labels, rotation=0, ha="center", fontsize=8)
    told = "; ".join(
        f"{n}: "
        + ", ".join(
            f"{words} {m['cuts'][c]['attention'][0]:.2f}"
            for c, words in (
                ("none", "whole"),
                ("key", "key"),
                ("patched", "key patched"),
                ("query", "query"),
            )
        )
        + f", the random rotation that moves it most {worst(m, 'turned'):.2f}, the other head that "
        f"moves it most {worst(m):.2f}"
        for n, m in models.items()
    )
    return plots.Figure(fig, f"Attention to the name after one edge is cut. {told}.")
