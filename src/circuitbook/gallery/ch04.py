"""Figures and tables of chapter 04: kinds, effects with controls, bugs, where tables fail."""

import re

import numpy as np

from circuitbook import plots

ARMS = {
    "true": "the triple as listed",
    "random source": "random source",
    "shuffled destination": "shuffled destination",
    "shuffled OV": "shuffled OV",
}
CHANGES = ("head coordinates R", "stream coordinates G", "W_U + c 1ᵀ", "constant per query")
ENTRIES = ("QK entry", "OV entry", "strength")
PARTS = ("token × token", "token × position", "position × token", "position × position")
PARTS += ("bias × token", "bias × position")  # where queries have a bias


def visible(text):
    """A token for a table or a figure: blanks as marks, long runs shortened, no raw newlines."""
    shown = re.sub("␣{4,}", lambda blanks: f"␣×{len(blanks[0])}", plots.token(text))
    shown = re.sub(" {4,}", lambda blanks: f"␣×{len(blanks[0])}", shown)
    return shown if shown.isprintable() else shown.encode("unicode_escape").decode()


def triple(words):
    """source … destination → output, readable."""
    source, destination, output = map(visible, words)
    return f"{source} … {destination} → {output}"


def _counted(r):
    """The text whose counts are drawn: published models never saw the one that stands for it."""
    course = r.made_with["models"] == "course"
    return "training text" if course else "validation text"


def _groups(r):
    return [f"head {h}" for h in range(len(r["met"]))]


def _with_intervals(ax, rows, groups, *, x_label, y_label, title):
    """Points with their intervals, side by side by group: name -> [value, low, high] a group."""
    for i, (name, values) in enumerate(rows.items()):
        value, low, high = np.asarray(values, dtype=float).T
        at = np.arange(len(groups)) + (i - (len(rows) - 1) / 2) * 0.18
        ax.errorbar(
            at,
            value,
            yerr=[(value - low).clip(0), (high - value).clip(0)],
            fmt=plots.MARKERS[i],
            color=plots.COLOURS[i],
            label=name,
            capsize=2,
            markersize=5,
            linestyle="none",
        )
    ax.axhline(0, color="#555555", linewidth=0.8)
    ax.set_xticks(range(len(groups)), labels=groups)
    ax.set_xlim(-0.5, len(groups) - 0.5)
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)
    ax.set_title(title)
    bottom, top = ax.get_ylim()
    ax.set_ylim(bottom, top + 0.22 * (top - bottom))  # room for the legend
    ax.legend(ncols=len(rows), loc="upper center", fontsize=8)
    ax.grid(visible=False, axis="x")


@plots.figure
def kinds_by_head(r):
    """How many of each head's listed triples are of each kind."""
    kinds = r["kinds"]
    names = sorted(kinds, key=lambda k: -sum(kinds[k]))
    total = max(sum(map(sum, kinds.values())), 1)
    told = "; ".join(f"{k}: {sum(kinds[k]) / total:.0%}" for k in names)
    return plots.heatmap(
        [kinds[k] for k in names],
        x_ticks=_groups(r),
        y_ticks=names,
        x_label="head of attn-only-1l",
        y_label="kind, by a program on the strings",
        title="The strongest skip-trigrams of each head, by kind",
        colour_label="triples",
        digits=0,
        size=(8.5, 4.0),
        alt=f"Kinds of the {total} listed triples, all heads together. {told}.",
    )


@plots.figure
def raised_by_head(r):
    """Change of the predicted output's centred logit in the running model, with three controls."""
    m, groups = r["model"], [*_groups(r), "all"]
    rows = {label: [*m[arm], m["all"][arm]] for arm, label in ARMS.items()}
    told = "; ".join(f"{label} {row[-1][0]:.2f}" for label, row in rows.items())
    fig, ax = plots.canvas(size=(9.5, 4.2))
    _with_intervals(
        ax,
        rows,
        groups,
        x_label="head whose table named the triple (bars: 95 % by document)",
        y_label="change of the output's\ncentred logit",
        title="Putting the source before the destination, in real contexts",
    )
    return plots.Figure(
        fig,
        f"Mean change of the predicted output's centred logit when an earlier token is replaced. "
        f"All heads: {told}. {min(m['n'])} or more triples a head.",
    )


@plots.figure
def text_by_head(r):
    """Excess rates in held-out text, as pairs and as triples, with two shuffles."""
    t, groups = r["text"], [*_groups(r), "all"]
    labels = {
        "true": "as listed",
        "shuffled destination": "shuffled destination",
        "shuffled OV": "shuffled OV",
    }
    fig, axes = plots.canvas(2, 1, (9.5, 7.4))
    told = []
    for ax, unit in zip(np.ravel(axes), ("pairs", "triples"), strict=True):
        rows = {
            label: (100 * np.asarray(t[unit][arm], dtype=float)).tolist()
            for arm, label in labels.items()
        }
        _with_intervals(
            ax,
            rows,
            groups,
            x_label="head (bars: 95 % by document)",
            y_label="rate after the source − rate after\na control source (points of %)",
            title=f"Counted as {unit}: {t[unit]['places'][-1]:,} places in held-out text",
        )
        value, low, high = rows["as listed"][-1]
        shuffled = rows["shuffled OV"][-1]
        told.append(
            f"{unit}, all heads: {value:.1f} points ({low:.1f} to {high:.1f}); shuffled OV "
            f"{shuffled[0]:.1f} ({shuffled[1]:.1f} to {shuffled[2]:.1f})"
        )
    return plots.Figure(
        fig, f"How much oftener the output follows, inside documents. {'. '.join(told)}."
    )


@plots.figure
def bug_squares(r, most=3):
    """For a few bugs: the head's 2 x 2 boosts beside the text's 2 x 2 counts."""
    if not r["bugs"]:
        fig, ax = plots.canvas(size=(6.0, 2.0))
        ax.text(0.5, 0.5, "No bug was found in this text.", ha="center", va="center")
        ax.set_axis_off()
        return plots.Figure(fig, "No bug was found in this text, so there is no square to show.")
    shown = r["bugs"][:1]  # the largest push, then what the text says most often, other heads first
    for bug in sorted(r["bugs"], key=lambda b: -min(b["counts"][0][0], b["counts"][1][1])):
        if len(shown) < most and bug["head"] not in [b["head"] for b in shown]:
            shown.append(bug)
    fig, axes = plots.canvas(2, len(shown), (3.6 * len(shown), 6.4))
    axes = np.reshape(axes, (2, len(shown)))
    told = []
    for column, bug in zip(axes.T, shown, strict=True):
        ds, os_ = ([visible(x) for x in bug[k]] for k in ("destinations", "outputs"))
        source = visible(bug["source"])
        boost, counts = np.asarray(bug["boost"]), np.asarray(bug["counts"])
        for ax, table, what, digits, look in (
            (column[0], boost, f"head {bug['head']}: boost (logits)", 2, "Reds"),
            (column[1], counts, f"{_counted(r)}: count", 0, "Blues"),
        ):
            ax.imshow(table, cmap=look, vmin=0, vmax=1.6 * table.max(), aspect="auto")
            for (i, j), value in np.ndenumerate(table):
                ax.text(j, i, f"{value:.{digits}f}", ha="center", va="center", fontsize=11)
            ax.set_xticks((0, 1), labels=os_, parse_math=False)
            ax.set_yticks((0, 1), labels=ds, parse_math=False)
            ax.set_xlabel("output")
            ax.set_ylabel("destination")
            ax.set_title(f"{source} …\n{what}", parse_math=False, fontsize=10)
            ax.grid(visible=False)
        told.append(
            f"after {source}: head {bug['head']} boosts {boost[0, 0]:.2f}, {boost[0, 1]:.2f} at "
            f"{ds[0]} and {boost[1, 0]:.2f}, {boost[1, 1]:.2f} at {ds[1]}; the text counts "
            f"{counts[0, 0]}, {counts[0, 1]} and {counts[1, 0]}, {counts[1, 1]}"
        )
    return plots.Figure(
        fig,
        "Bug pairs as squares, rows are destinations and columns outputs; the head's rows are "
        f"multiples of each other, the text's are not. {'. '.join(told)}.",
    )


@plots.figure
def copying_in_context(r):
    """A placed word's own logit by gap, and what the copying heads are worth on seen tokens."""
    c, gaps = r["copying"], r.config["gaps"]
    own, other = c["by_gap"]

    def by_gap(ax):
        plots.lines(
            {"the placed word": own, "another word": other},
            x=gaps,
            log_x=True,
            zero=True,
            x_label="gap between word and last token (tokens)",
            y_label="change of centred logit",
            title="A frequent word put into a context",
            ax=ax,
        )
        ax.set_xticks(gaps, labels=[str(g) for g in gaps])
        ax.minorticks_off()

    def losses(ax):
        rows = {
            f"{what} ({', '.join(str(h) for h in c[group])})": [
                c["loss"][group][k] for k in ("seen", "new")
            ]
            for what, group in (("copying heads", "copiers"), ("other heads", "others"))
        }
        _with_intervals(
            ax,
            rows,
            ["next token stood earlier", "next token is new"],
            x_label="tokens of held-out windows (bars: 95 % by document)",
            y_label="rise of the loss (nats)",
            title="These heads write their mean",
        )

    loss = c["loss"]["copiers"]
    return plots.panels(
        [by_gap, losses],
        alt=f"Left: change of the placed word's own logit from {own[0]:.2f} at gap {gaps[0]} to "
        f"{own[-1]:.2f} at gap {gaps[-1]}; another word's changes by at most "
        f"{max(map(abs, other)):.2f}. Right: without the copying heads the loss rises by "
        f"{loss['seen'][0]:.2f} nats on tokens seen earlier and {loss['new'][0]:.2f} on new ones.",
        size=(10.5, 4.0),
    )


@plots.figure
def where_tables_fail(r):
    """The rise and the head's looking by gap, and whose part of the score is token or position."""
    m, gaps, shares = r["model"], r.config["gaps"], np.asarray(r["shares"], dtype=float)

    def by_gap(ax):
        rows = {f"head {h}": row["first"] for h, row in enumerate(m["by_gap"])}
        plots.lines(
            rows,
            x=gaps,
            log_x=True,
            x_label="gap between source and destination (tokens)",
            y_label="share of contexts where the head\nlooks nowhere more than there",
            title="Does it look where the table says?",
            ax=ax,
        )
        ax.set_xticks(gaps, labels=[str(g) for g in gaps])
        ax.minorticks_off()

    def parts(ax):
        plots.heatmap(
            shares,
            x_ticks=PARTS[: shares.shape[1]],
            y_ticks=_groups(r),
            signed=True,
            limit=1.0,
            x_label="part of the score (query side × key side)",
            y_label="head",
            title="Share of the score's variation",
            colour_label="covariance share",
            ax=ax,
        )

    first = np.asarray([row["first"] for row in m["by_gap"]], dtype=float)
    return plots.panels(
        [by_gap, parts],
        alt=f"Left: the share of contexts in which the head looks most at the source, mean over "
        f"heads {first.mean(0)[0]:.2f} at gap {gaps[0]} and {first.mean(0)[-1]:.2f} at gap "
        f"{gaps[-1]}. Right: token × token makes {shares[:, 0].min():.0%} to "
        f"{shares[:, 0].max():.0%} of the variation of a head's scores, position × position "
        f"{shares[:, 3].min():.0%} to {shares[:, 3].max():.0%}.",
        size=(12, 4.6),
    )


def kind_table(r):
    """The strongest triples by kind with what held-out text says, for plots.table."""

    def share(hits, n):
        return f"{hits} of {n}"

    if not r["table"]:
        return [{"kind": "none of the listed triples meets often enough in this text"}]
    boost = "OV boost (logits)" if "scale_moves" not in r else "OV boost (logits × final scale)"
    return [
        {
            "kind": row["kind"],
            "head": row["head"],
            "source … destination → output": triple(row["triple"]),
            "centred QK (score)": row["qk"],
            boost: row["ov"],
            "with": share(*row["with"]),
            "without": share(*row["without"]),
            "log odds (nats)": row["log_odds"],
        }
        for row in r["table"]
    ]


def bug_table(r):
    """Every bug in a line: counts, and the running model's numbers, for plots.table."""
    out = [] if r["bugs"] else [{"head": "no bug was found in this text"}]
    for bug in r["bugs"]:
        (a, b), (c, d) = bug["counts"]
        wrong = bug["rise"][0][1], bug["rise"][1][0]
        out.append(
            {
                "head": bug["head"],
                "source": visible(bug["source"]),
                "destinations": " | ".join(map(visible, bug["destinations"])),
                "outputs": " | ".join(map(visible, bug["outputs"])),
                "text": f"{a}, {b} | {c}, {d}",
                "wrong one rises (nats)": " | ".join(f"{x:+.1f}" for x in wrong),
                "model's margin (logits)": " | ".join(f"{x:+.1f}" for x in bug["prefers"]),
                "direct path's (logits)": " | ".join(f"{x:+.1f}" for x in bug["direct"]),
            }
        )
    return out


def survival_table(r):
    """What each change of the weights moves, for plots.table."""
    return [
        {"quantity": q}
        | {c: f"moves {r['moves'][c][q]:.0%}" if r["moves"][c][q] else "survives" for c in CHANGES}
        for q in (f"{what}, {how}" for how in ("centred", "raw") for what in ENTRIES)
    ]
