"""Figures of chapter 06: controls, repeats, the corner plot, cuts, growth, by hand."""

import numpy as np

from circuitbook import plots
from circuitbook.gallery.tables06 import own

INPUTS = ("query", "key", "value")
GREY = {"color": "#999999", "alpha": 0.12, "zorder": 0}
KINDS = (
    "uniform", "first", "previous", "duplicate", "fixed offset, best", "one too far", "ideal",
)  # fmt: skip
HAND_CUTS = ("whole", "without 0.0", "without 1.0", *INPUTS)


@plots.figure
def induction_controls(r):
    """Prefix matching of heads whose rule is known, with jittered and with equal gaps."""
    jit, even = r["controls"]["jittered gaps"], r["controls"]["equal gaps"]
    told = "; ".join(f"{k}: {jit[k]:.2f} and {even[k]:.2f}" for k in KINDS)

    def draw(ax):
        plots.bars(
            {name: [scores[k] for k in KINDS] for name, scores in r["controls"].items()},
            groups=KINDS,
            horizontal=True,
            x_label="prefix matching (share of attention)",
            y_label="head whose rule is known",
            title="Heads whose rule is known, and the ideal head",
            ax=ax,
        )
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))

    return plots.panels(
        [draw],
        columns=1,
        alt=f"Prefix matching of known heads, with jittered and with equal gaps. {told}.",
        size=(8.5, 3.6),
    )


@plots.figure
def repeat_curves(r):
    """Loss of the right token by place in the block and copy, and the median rank by copy."""
    two, roles = r["repeats"]["attn-only-2l"], list(r["repeats"])
    copies = ("first copy", "second", "third", "fourth")[: len(two["by_place"])]

    def loss(ax):
        plots.lines(
            dict(zip(copies, two["by_place"], strict=True)),
            x=np.arange(2, 2 + len(two["by_place"][0])),
            x_label="place in the block",
            y_label="loss (nats)",
            title="attn-only-2l: loss of the right word",
            ax=ax,
        )
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))

    def rank(ax):
        plots.lines(
            {role: r["repeats"][role]["rank"] for role in roles},
            x=np.arange(1, 1 + len(copies)),
            log_y=True,
            x_label="copy",
            y_label="median rank of the right word (1 is best)",
            title="Rank by copy",
            ax=ax,
        )
        ax.set_xticks(range(1, 1 + len(copies)))
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))

    told = "; ".join(
        f"{role}: {' → '.join(f'{x:.0f}' for x in r['repeats'][role]['rank'])}" for role in roles
    )
    losses = " → ".join(f"{x:.1f}" for x in two["loss"])
    return plots.panels(
        [loss, rank],
        alt=f"Left: mean loss of the two-layer model by copy, {losses} nats. "
        f"Right: median rank by copy. {told}.",
        size=(11, 3.7),
    )


@plots.figure
def resting_pattern(r):
    """The induction head on a short repeat: attention, and attention weighted by what is moved."""
    shown, head = r["example"], r["pair"][1]

    def heat(key, title):
        return lambda ax: plots.heatmap(
            shown[key],
            x_ticks=shown["tokens"],
            y_ticks=shown["tokens"],
            limit=1.0,
            x_label="key",
            y_label="query",
            colour_label="share of the row",
            title=title,
            digits=1,
            ax=ax,
        )

    rest = r["resting"]
    return plots.panels(
        [heat("pattern", f"Head {head}: attention"), heat("moved", "weighted by what is moved")],
        alt=f"Head {head} on a block of six words, three words of filler, and the block again. "
        f"In the larger test the start token gets {rest['attention, no match']:.2f} of the "
        f"attention where nothing matches and {rest['attention, match']:.2f} where something does; "
        f"weighted by the length of what is moved, {rest['moved, no match']:.2f} and "
        f"{rest['moved, match']:.2f}.",
        size=(11, 5.0),
    )


@plots.figure
def corner_plot(r):
    """Copying against matching for every pair; and the virtual table's diagonal by writer."""
    v, (first, last), (writer, reader) = r["virtual"], r["heads"], r["pair"]
    eigen, i, p = np.array(v["eigen"]), last.index(reader), first.index(writer)
    others = [(a, b) for a, b in np.ndindex(*eigen.shape) if a != p]
    inside = [eigen[p, b] >= 0.8 and v["ov"][b] >= 0.8 for b in range(len(last))]
    outside = ["" if yes else head for yes, head in zip(inside, last, strict=True)]
    named = ", ".join(head for yes, head in zip(inside, last, strict=True) if yes)

    def corner(ax):
        plots.scatter(
            {
                "other first-layer heads": (
                    [v["ov"][b] for _, b in others],
                    [eigen[a, b] for a, b in others],
                ),
                f"through {writer}": (v["ov"], eigen[p]),
                "the pair": ([v["ov"][i]], [eigen[p, i]]),
            },
            labels={f"through {writer}": outside},
            x_label="second head copies (eigenvalue score)",
            y_label="it matches what the first moved (eigenvalue score)",
            title=f"Every pair of heads; in the corner: {named or 'none'}",
            ax=ax,
        )
        ax.set_xlim(-1.1, 1.25)
        ax.set_ylim(-1.1, 1.25)
        ax.legend(loc="lower left")

    def diagonal(ax):
        shares = [row[i] for row in v["on_top"]]
        plots.bars(
            {**dict(zip(first, shares, strict=True)), "none": v["direct"][i]},
            x_label="first-layer head between",
            y_label="words on top of their own row (share)",
            title=f"Virtual QK table of {reader}",
            ax=ax,
        )
        ax.set_ylim(0, 1.05)

    both = sum(eigen[a, b] >= 0.8 and v["ov"][b] >= 0.8 for a, b in np.ndindex(*eigen.shape))
    shares = ", ".join(f"{h} {row[i]:.2f}" for h, row in zip(first, v["on_top"], strict=True))
    return plots.panels(
        [corner, diagonal],
        alt=f"Left: {eigen.size} pairs of heads by copying and matching; the pair {writer} and "
        f"{reader} stands at {v['ov'][i]:.2f} and {eigen[p, i]:.2f}, and {both} pairs have 0.8 or "
        f"more in both. Right: share of {v['words']} words on top of their own row through each "
        f"first-layer head: {shares}; through none {v['direct'][i]:.2f}.",
        size=(11, 4.6),
    )


@plots.figure
def edge_cuts(r):
    """Every first-layer head's edge into query, key and value of the induction head, cut."""
    first, (writer, reader), edges = r["heads"][0], r["pair"], r["edges"]
    p = first.index(writer)

    def heat(key, title, label):
        return lambda ax: plots.heatmap(
            np.round(edges[key], 2) + 0.0,
            x_ticks=INPUTS,
            y_ticks=first,
            signed=True,
            x_label=f"input of {reader} that loses the write",
            y_label="head whose write is cut",
            colour_label=label,
            title=title,
            ax=ax,
        )

    lost, rise = (
        ", ".join(f"{w} {x:.2f}" for w, x in zip(INPUTS, edges[k][p], strict=True))
        for k in ("prefix_lost", "rise")
    )
    rest = max(x for a, row in enumerate(edges["prefix_lost"]) if a != p for x in row)
    return plots.panels(
        [
            heat("prefix_lost", "Prefix matching lost", "share lost"),
            heat("rise", "Loss at the repeats", "rise (nats)"),
        ],
        alt=f"Cutting head {writer}'s write out of one input of head {reader}. Share of prefix "
        f"matching lost: {lost}. Rise of the loss in nats: {rise}. No cut of another head takes "
        f"more than {rest:.2f} of the prefix matching.",
        size=(10.5, 4.4),
    )


@plots.figure
def icl_after_ablation(r):
    """In-context learning scores, whole and without some heads of the last layer."""
    gap = r["icl"]["difference"]
    names = {"gain": "one layer", "lost": "without induction heads"}
    bars = {words: gap[k][0] for k, words in names.items()}
    errors = {words: gap[k][1] for k, words in names.items()}
    for name, (mean, se) in zip(r["icl"]["sets"], r["icl"]["random"], strict=True):
        bars[name], errors[name] = mean, se
    told = "; ".join(f"{k}: {x:+.2f} ± {errors[k]:.2f}" for k, x in bars.items())
    return plots.bars(
        bars,
        errors=errors,
        horizontal=True,
        x_label="score minus that of the whole two-layer model (nats)",
        y_label="model (last bars: random heads)",
        title="In-context learning lost, paired by window",
        alt=f"In-context learning score minus that of the whole two-layer model, in nats, with one "
        f"standard error; higher is worse. {told}.",
        size=(8, 3.8),
    )


@plots.figure
def mlp_edges(r):
    """gelu-2l: prefix matching kept and loss, with the direct edge, the MLP's, or both cut."""
    ways = ("direct", "through the MLP", "both")

    def draw(key, title, label):
        return lambda ax: plots.bars(
            {way: [r["mlp"][f"{w}, {way}"][key] for w in INPUTS] for way in ways},
            groups=INPUTS,
            x_label="input that loses the write",
            y_label=label,
            title=title,
            ax=ax,
        ).legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))

    told = "; ".join(
        f"{name}: kept {x['kept']:.2f}, rise {x['rise']:+.2f}" for name, x in r["mlp"].items()
    )
    pair = " → ".join(r["sizes"]["gelu-2l"]["pair"])
    return plots.panels(
        [draw("kept", pair, "share of matching kept"), draw("rise", "Loss", "rise (nats)")],
        alt=f"Edges of the pair {pair} in gelu-2l, cut directly, through the MLP, or both. {told}.",
        size=(11, 3.6),
    )


TRACES = {
    "previous_token": "previous-token score",
    "k_composition": "K-composition score",
    "prefix_matching": "prefix matching",
    "icl": "in-context learning score (nats)",
}


def deepest_first(item):
    """The one-layer run last, so that the two-layer runs have one colour in all panels."""
    return item[0] == "attn-only-1l", item[0]


@plots.figure
def phase_change(r):
    """Loss and four scores against tokens seen, for every two-layer run and the one-layer run."""
    grown, million = r["growth"], 1e6
    windows = [e["window"] for e in grown["events"].values() if e["found"]]
    seen_label = f"tokens seen (millions{own(r, 'induction.phase_change')})"

    def draw(key, label):
        def panel(ax):
            plots.lines(
                {
                    role: (np.array(t[key][0]) / million, t[key][1])
                    for role, t in sorted(grown["traces"].items(), key=deepest_first)
                    if key in t
                },
                x_label=seen_label,
                y_label=label,
                title=label.split(" (")[0],
                ax=ax,
            )
            for low, high in windows:
                span = ax.axvspan(low / million, high / million, **GREY)
            if key != "prefix_matching" and ax.get_legend():
                ax.get_legend().remove()  # one legend serves all panels
            if key == "loss" and windows:
                ax.legend([span], ["phase change, each run"])

        return panel

    def gap(ax):
        plots.lines(
            {k: (np.array(g["tokens"]) / million, g["gap"]) for k, g in grown["gap"].items()},
            errors={k: g["se"] for k, g in grown["gap"].items()},
            zero=True,
            x_label=seen_label,
            y_label="one layer's loss minus this (nats)",
            title="How far two layers are ahead",
            ax=ax,
        )

    def loss(ax):
        draw("loss", "held-out loss (nats)")(ax)
        ax.set_ylim(top=2 * min(min(t["loss"][1]) for t in grown["traces"].values()))

    told = "; ".join(
        f"{name.replace('_', ' ')} {low / million:.1f} to {high / million:.1f}"
        for name, (low, high) in grown["times"].items()
    )
    seen = ", ".join(
        f"{role}: {e['window'][0] / million:.1f} to {e['window'][1] / million:.1f}"
        if e["found"]
        else f"{role}: none"
        for role, e in grown["events"].items()
    )
    bumps = sum(e["bump"] for e in grown["events"].values())
    return plots.panels(
        [loss, gap, *(draw(k, label) for k, label in TRACES.items())],
        columns=3,
        alt=f"Six curves against millions of tokens seen. Phase change (shaded): {seen}. Half-way "
        f"points over the two-layer runs, in millions of tokens: {told}. Runs with a bump in the "
        f"loss: {bumps} of {len(grown['events'])}.",
        size=(11, 6.4),
    )


@plots.figure
def loss_paths(r):
    """Per-token losses of all snapshots on their first two principal components."""
    pca = r["growth"]["pca"]
    fig, ax = plots.canvas(size=(8.4, 4.2))
    paths = {k: np.array(x) for k, x in sorted(pca["path"].items(), key=deepest_first)}
    plots.lines(
        {role: (path[:, 0], path[:, 1]) for role, path in paths.items()},
        x_label=f"first component ({pca['share'][0]:.0%} of the variance)",
        y_label=f"second component ({pca['share'][1]:.0%})",
        title=f"Per-token losses of the snapshots{own(r, 'induction.turn')}",
        ax=ax,
    )
    told = []
    for line, (role, path) in zip(ax.get_lines(), paths.items(), strict=False):
        if peak := pca["peak"][role]:
            at = int(np.argmin(np.abs(np.array(pca["tokens"][role]) - peak["tokens"])))
            ax.plot(*path[at], marker="o", markersize=16, markerfacecolor="none", linestyle="",
                    markeredgewidth=2, markeredgecolor=line.get_color(),
                    label=f"its sharpest turn, at {peak['tokens'] / 1e6:.1f} M tokens")  # fmt: skip
            where = f"{peak['angle']:.0f} degrees at {peak['tokens'] / 1e6:.1f}"
            told.append(f"{role} turns by {where}")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), labelspacing=0.9)
    return plots.Figure(
        fig,
        f"Paths of {len(paths)} training runs on two principal components of per-token losses, "
        f"which hold {sum(pca['share']):.0%} of the variance. Sharpest turns, in millions of "
        f"tokens: {'; '.join(told) or 'none'}.",
    )


@plots.figure
def by_hand(r):
    """Share of foretold tokens that hand-built models continue, whole and under cuts."""
    hand = r["hand"]
    models = ("K-composition", "Q in place of K", "pointer")

    def two(ax):
        plots.bars(
            {name: [hand[name][c] for c in HAND_CUTS] for name in models},
            groups=[c if c in ("whole",) or "without" in c else f"{c} cut" for c in HAND_CUTS],
            x_label="two layers: what is cut",
            y_label="right top word (share)",
            title="Written from matrices",
            baseline=hand["chance"],
            ax=ax,
        )
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))

    def one(ax):
        plots.bars(
            {k: hand[k] for k in ("smeared", "not smeared")},
            x_label="one layer: keys",
            y_label="right top word (share)",
            title="Smeared keys",
            baseline=hand["chance"],
            ax=ax,
        )

    told = "; ".join(
        f"{name}: " + ", ".join(f"{c} {hand[name][c]:.2f}" for c in HAND_CUTS) for name in models
    )
    return plots.panels(
        [two, one],
        alt=f"Share of foretold tokens that are the top word; the dashed line is chance, "
        f"{hand['chance']:.2f}. {told}. One layer: smeared {hand['smeared']:.2f}, not smeared "
        f"{hand['not smeared']:.2f}.",
        size=(11, 3.7),
        width_ratios=(3, 1),
    )
