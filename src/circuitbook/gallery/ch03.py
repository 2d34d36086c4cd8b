"""Figures and tables of chapter 03: orders, single terms, virtual heads, what freezing hides."""

import numpy as np
from matplotlib.patches import Rectangle

from circuitbook import plots

PLANTED = ("direct path", "one head", "virtual head", "cancelling pair")
MILLI = 1000  # virtual heads are drawn in thousandths of a nat


def _held(r):
    """What the frozen sums hold: in models with LayerNorm the norms' scales too."""
    course = r.made_with["models"] == "course"
    return "patterns frozen" if course else "patterns and norm scales frozen"


def _terms(r, virtual):
    """(names, added, removed) of heads or of virtual heads; each number is [gain, se] in nats."""
    two = r["two"]
    rows = zip(two["names"], two["added"], two["removed"], strict=True)
    return zip(*[row for row in rows if (" → " in row[0]) == virtual], strict=True)


def _head_room(ax, pairs, factor):
    """Room for a legend above the bars, also where every bar hangs below zero."""
    top, low = max(m + s for m, s in pairs), min(m - s for m, s in pairs)
    ax.set_ylim(top=factor * top if top > 0 else (1 - factor) * low)


@plots.figure
def paths_by_order(r):
    """Loss by order for the trained and the planted models, and layers counted first or second."""
    loss = {"one layer": r["one"]["orders"], "two layers": r["two"]["orders"]}
    first, second = r["two"]["first"], r["two"]["second"]
    step = r["two"]["steps"][1]

    def planted(ax):
        plots.bars(
            {
                f"orders 0 … {k}" if k else "order 0": [
                    r["planted"][n]["orders"][k] for n in PLANTED
                ]
                for k in range(3)
            },
            groups=PLANTED,
            x_label="planted model",
            y_label="loss (nats a token)",
            title="Controls: the answer is known",
            ax=ax,
        )
        ax.set_xticks(range(len(PLANTED)), labels=[n.replace(" ", "\n") for n in PLANTED])
        ax.set_ylim(0, 4.0)  # room for the legend
        ax.legend(loc="upper center", ncols=3, fontsize=8)

    def trained(ax):
        plots.lines(
            {k: [m for m, _ in v] for k, v in loss.items()},
            errors={k: [s for _, s in v] for k, v in loss.items()},
            x_label="orders up to",
            y_label="loss (nats a token)",
            title="Trained models, held-out text",
            ax=ax,
        )
        ax.set_xticks(range(3))
        for name, v in loss.items():
            for k, (m, _) in enumerate(v):
                at = (22, 2) if name == "one layer" else (0, -14) if k else (-22, 0)
                ax.annotate(f"{m:.2f}", (k, m), at, textcoords="offset points", ha="center")
        ax.margins(0.2, 0.18)
        ax.legend(loc="upper right")

    def layers(ax):
        groups = ("layer 0 heads", "layer 1 heads", "virtual heads")
        for i, (name, pairs) in enumerate(
            {"counted first": first, "after the other": second}.items()
        ):
            m, s = zip(*pairs, strict=True)
            at = np.arange(2) + (i - 0.5) * 0.36
            ax.bar(at, m, 0.36, yerr=s, capsize=3, label=name, color=plots.COLOURS[i],
                   hatch=("", "//")[i], edgecolor="white")  # fmt: skip
        ax.bar(2, step[0], 0.36, yerr=step[1], capsize=3, label="after both",
               color=plots.COLOURS[2], hatch="..", edgecolor="white")  # fmt: skip
        ax.set_xticks(range(3), labels=groups)
        ax.set_ylabel("fall of the loss (nats a token)")
        ax.set_xlabel("terms that are added")
        ax.set_title("Two layers: who is counted first")
        ax.legend(loc="upper right")
        _head_room(ax, (*first, *second), 1.3)

    told = "; ".join(f"{k}: " + ", ".join(f"{m:.2f}" for m, _ in v) for k, v in loss.items())
    return plots.panels(
        [planted, trained, layers],
        columns=3,
        alt=f"Loss in nats with terms up to order 0, 1, 2, {_held(r)}. {told}. "
        f"Planted models: "
        + "; ".join(
            f"{k} {', '.join(f'{x:.2f}' for x in r['planted'][k]['orders'])}" for k in PLANTED
        )
        + f". Right: layer 0's heads gain {first[0][0]:.2f} when counted first and "
        f"{second[0][0]:.2f} second, layer 1's {first[1][0]:.2f} and {second[1][0]:.2f}, the "
        f"virtual heads {step[0]:.2f} after both.",
        size=(13, 4.2),
    )


@plots.figure
def paths_heads(r):
    """Every path through one head: gain when added to the direct path, loss when removed."""
    names, added, removed = _terms(r, virtual=False)
    names, x = list(names), np.arange(len(names))
    fig, ax = plots.canvas(size=(9, 3.8))
    for i, (label, pairs) in enumerate(
        {"added to the direct path": added, "removed from all terms": removed}.items()
    ):
        m, s = np.array(pairs).T
        ax.bar(x + (i - 0.5) * 0.4, m, 0.4, yerr=s, capsize=2, label=label,
               color=plots.COLOURS[i], hatch=("", "//")[i], edgecolor="white")  # fmt: skip
    ax.axhline(0, color="#555555", linewidth=0.8)
    ax.set_xticks(x, labels=names)
    ax.set_xlabel("head on the path (layer.head)")
    ax.set_ylabel("nats a token, with standard error")
    ax.set_title("Paths through one head: two questions, two answers")
    _head_room(ax, (*added, *removed), 1.25)
    ax.legend(loc="upper left", ncols=2)
    most = {w: max(zip(v, names, strict=True)) for w, v in (("a", added), ("r", removed))}
    return plots.Figure(
        fig,
        f"{len(names)} paths through one head. Added to the direct path, {most['a'][1]} gains "
        f"most, {most['a'][0][0]:.3f} nats; removed from all terms, {most['r'][1]} is missed most, "
        f"{most['r'][0][0]:.3f} nats. The smallest cost when removed is "
        f"{min(m for m, _ in removed):+.4f}.",
    )


@plots.figure
def paths_virtual_heads(r):
    """The virtual heads as a square: cost of removing each, and the same in standard errors."""
    names, _, removed = _terms(r, virtual=True)
    mean, se = np.array(removed).T
    early = list(dict.fromkeys(n.split(" → ")[0] for n in names))
    late = list(dict.fromkeys(n.split(" → ")[1] for n in names))
    at = {n: (early.index(n.split(" → ")[0]), late.index(n.split(" → ")[1])) for n in names}
    cost, ratio = np.zeros((2, len(early), len(late)))
    for name, m, s in zip(names, mean, se, strict=True):
        cost[at[name]], ratio[at[name]] = MILLI * m, m / s

    def square(matrix, title, label, digits):
        def panel(ax):
            plots.heatmap(
                matrix,
                signed=True,
                x_ticks=late,
                y_ticks=early,
                x_label="second head",
                y_label="first head",
                title=title,
                colour_label=label,
                digits=digits,
                ax=ax,
            )
            i, j = at[r["path"]]
            ax.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, lw=2.4, ec="#111111"))

        return panel

    top = int(np.argmax(mean))
    sure = sum(abs(m) > r["looks"] * s for m, s in removed)
    i, j = at[r["path"]]
    return plots.panels(
        [
            square(cost, "Cost of removing one virtual head", "thousandths of a nat", 1),
            square(ratio, "The same, in standard errors", "mean / standard error", 1),
        ],
        alt=f"{len(names)} virtual heads, first head by second head. The dearest is {names[top]}, "
        f"{MILLI * mean[top]:.1f} thousandths of a nat. "
        f"{sure} lie beyond {r['looks']} standard errors. "
        f"The pair of the course, {r['path']}, is framed: {cost[i, j]:.1f} thousandths, "
        f"{ratio[i, j]:.1f} standard errors.",
        size=(12, 4.6),
    )


def strongest_rows(r, n=8):
    """The n terms missed most, heads and virtual heads together, for plots.table."""
    two = r["two"]
    rows = sorted(
        zip(two["names"], two["added"], two["removed"], strict=True), key=lambda x: -x[2][0]
    )
    return [
        {
            "path": name,
            "removed: cost (nats)": round(out[0], 4),
            "± (nats)": round(out[1], 4),
            "added to direct: gain (nats)": round(into[0], 4),
        }
        for name, into, out in rows[:n]
    ]


@plots.figure
def paths_of_a_name(r):
    """The paths that write most for or against the right name, the pair's own among them."""
    named, path = r["named"], r["path"]
    order = sorted(named, key=lambda n: -abs(named[n][0]))
    shown = order[:9] + [n for n in ("direct", path) if n not in order[:9]]
    labels = {n: f"{n} (the pair)" if n == path else n for n in shown}
    values = {labels[n]: named[n][0] for n in shown}
    errors = {labels[n]: named[n][1] for n in shown}
    total = sum(x[0] for x in named.values())
    return plots.bars(
        values,
        errors=errors,
        horizontal=True,
        x_label="right name's lead over its rivals (logits, standard deviation over prompts)",
        y_label="path",
        title="Which path writes the name?",
        alt=f"Contribution of paths to the right name's logit above its rivals, {total:.2f} in "
        f"all. Largest: {order[0]} with {named[order[0]][0]:.2f}, then {order[1]} with "
        f"{named[order[1]][0]:.2f}. The direct path has {named['direct'][0]:.2f}, the pair's "
        f"virtual head {path} {named[path][0]:.3f}.",
        size=(8, 4.4),
    )


@plots.figure
def paths_frozen_or_rerun(r):
    """Change of the name's logit when one word is replaced: frozen sum against the model re-run."""
    changed = {
        f"another {what} in the first place": tuple(r["replaced"][what])
        for what in ("name", "title")
    }
    means = {k: (np.mean(x), np.mean(y)) for k, (x, y) in changed.items()}
    values = np.concatenate([np.concatenate(pair) for pair in changed.values()])
    low, high = values.min(), values.max()
    room = 0.08 * (high - low)

    def points(ax):
        plots.scatter(
            changed,
            diagonal=True,
            x_label=f"{_held(r)}: change of the name's lead (logits)",
            y_label="run again: change of the name's lead (logits)",
            title="One word replaced, one point a prompt",
            ax=ax,
        )
        ax.set_xlim(low - room, high + room)
        ax.set_ylim(low - room, high + 5 * room)
        ax.legend(loc="upper left")

    def edges(ax):
        cuts = r["cuts"]
        plots.bars(
            {w: cuts[k][0] for k, w in (("q", "query"), ("k", "key"), ("v", "value"))},
            errors={w: cuts[k][1] for k, w in (("q", "query"), ("k", "key"), ("v", "value"))},
            x_label=f"input of {r['pair'][1]} that loses {r['pair'][0]}",
            y_label="fall of the name's lead (logits, with standard deviation)",
            title="One edge cut, everything run again",
            ax=ax,
        )

    told = "; ".join(
        f"{k}: frozen {x:+.2f}, run again {y:+.2f} on average" for k, (x, y) in means.items()
    )
    cuts = ", ".join(
        f"{w} {r['cuts'][k][0]:.2f}" for k, w in (("q", "query"), ("k", "key"), ("v", "value"))
    )
    return plots.panels(
        [points, edges],
        alt=f"Change of the right name's logit over its rivals' when one word of the prompt is "
        f"replaced. {told}. Dashed: both agree. Right: fall of the logit when the pair's edge into "
        f"one input is cut: {cuts}.",
        size=(11, 4.4),
    )
