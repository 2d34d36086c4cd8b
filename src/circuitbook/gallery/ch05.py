"""Figures and tables of chapter 05: terms of a score, pairs of heads, scores against cuts."""

import numpy as np

from circuitbook import plots
from circuitbook.gallery.survival import box

CLASSES = ("neither", "query side", "key side", "both")
INPUTS = {"q": "query", "k": "key", "v": "value"}
CHANGES = ("head coordinates R", "stream coordinates G", "W_U + c 1ᵀ", "constant per query")
QUANTITIES = (
    "probabilities",
    "effect of the K-cut on the pattern",
    "effect of the V-cut on probabilities",
    "covariance share of the pair's term",
    "eigenvalue score of the virtual table",
    "logits",
    "raw share of the pair's term",
    "K-composition score",
    "score of the rotated product",
)


def _heads(layer, n=8):
    return [f"{layer}.{h}" for h in range(n)]


def _pair(r):
    h1, h2 = r["pair"]
    return h1, h2, f"0.{h1}", f"1.{h2}"


@plots.figure
def score_classes(r):
    """Covariance shares of the four classes for every second-layer head, on text and repeats."""
    h2, reader = _pair(r)[1], _pair(r)[3]

    def draw(where, title):
        def panel(ax):
            shares = r["shares"][where]
            plots.bars(
                {name: shares[name] for name in CLASSES},
                groups=_heads(1),
                x_label="second-layer head",
                y_label="share of the variation over keys",
                title=title,
                ax=ax,
            )
            top = max(max(shares[c]) for c in CLASSES)
            ax.set_ylim(min(0, *(min(shares[c]) for c in CLASSES)) - 0.05, top * 1.25)
            ax.axhline(0, color="#555555", linewidth=0.8)
            ax.legend(ncols=4, loc="upper center")

        return panel

    told = ", ".join(f"{c} {r['shares']['repeats'][c][h2]:.0%}" for c in CLASSES)
    return plots.panels(
        [draw("text", "On held-out text"), draw("repeats", "On repeated tokens")],
        columns=1,
        alt=f"What makes the scores of second-layer heads vary over keys, by class. Head {reader} "
        f"on repeats: {told}.",
        size=(9, 7),
    )


@plots.figure
def composition_tables(r):
    """Q-, K- and V-scores of all pairs, beside what random pairs reach."""
    high = max(max(max(row) for row in r["scores"][c]) for c in INPUTS)
    h1, h2, writer, reader = _pair(r)

    def draw(c):
        def panel(ax):
            plots.heatmap(
                [[100 * s for s in row] for row in r["scores"][c]],
                x_ticks=_heads(1),
                y_ticks=_heads(0),
                limit=100 * high,
                digits=0,
                x_label="reader",
                y_label="writer",
                title=f"{c.upper()}-composition ({INPUTS[c]})",
                colour_label="score (hundredths)",
                ax=ax,
            )

        return panel

    above = {
        c: sum(
            s > b
            for row, base in zip(r["scores"][c], r["baseline"]["high"][i], strict=True)
            for s, b in zip(row, base, strict=True)
        )
        for i, c in enumerate(INPUTS)
    }
    told = "; ".join(f"{c.upper()}: {n} of 64 pairs above their baseline" for c, n in above.items())
    return plots.panels(
        [draw(c) for c in INPUTS],
        columns=3,
        alt=f"Composition scores of every writer and reader. {told}. The pair {writer} to {reader} "
        f"has a K-score of {r['scores']['k'][h1][h2]:.3f}.",
        size=(11, 3.9),
    )


@plots.figure
def slip(r):
    """The K-score of every pair, right and with the factors turned round."""
    h1, h2, writer, reader = _pair(r)
    right, turned = np.array(r["scores"]["k"]), np.array(r["rotated"][1])
    rest = np.ones_like(right, dtype=bool)
    rest[h1, h2] = rest[r["wide"], h2] = False
    return plots.scatter(
        {
            "other pairs": (right[rest], turned[rest]),
            f"{writer} to {reader}": ([right[h1, h2]], [turned[h1, h2]]),
            f"0.{r['wide']} to {reader}": ([right[r["wide"], h2]], [turned[r["wide"], h2]]),
        },
        x_label="K-composition score",
        y_label="with the factors turned round",
        title="A cyclic rotation keeps eigenvalues, not sizes",
        log_x=True,
        log_y=True,
        alt=f"Right score against the slip for 64 pairs. {writer} to {reader}: "
        f"{right[h1, h2]:.3f} and {turned[h1, h2]:.3f}; 0.{r['wide']} to {reader}: "
        f"{right[r['wide'], h2]:.3f} and {turned[r['wide'], h2]:.3f}; all others at most "
        f"{right[rest].max():.3f} and {turned[rest].max():.3f}.",
        size=(6.4, 4),
    )


@plots.figure
def carrying_directions(r):
    """Which pairs of singular directions hold the squared score."""
    d = r["directions"]
    _, _, writer, reader = _pair(r)

    def grid(ax):
        plots.heatmap(
            100 * np.array(d["top"]),
            x_label="direction that the key reads (0: strongest)",
            y_label="direction that is written",
            title=f"{writer} to keys of {reader}",
            colour_label="% of the squared score",
            digits=1,
            ax=ax,
        )

    def curve(ax):
        plots.lines(
            {f"{writer} to {reader}": d["pair"], "two random heads": d["random"]},
            x=range(1, len(d["pair"]) + 1),
            x_label="pairs of directions, largest part first",
            y_label="share of the squared score",
            title="How many directions?",
            ax=ax,
        )
        ax.set_ylim(0, 1.05)

    n = len(d["pair"])
    return plots.panels(
        [grid, curve],
        alt=f"Left: parts of the squared score by direction; the largest of the eight strongest is "
        f"{100 * np.max(d['top']):.1f} %. Right: {n} pairs of directions hold {d['pair'][-1]:.0%} "
        f"for {writer} to {reader} and {d['random'][-1]:.0%} for random heads.",
        size=(10.5, 4),
    )


@plots.figure
def score_against_effect(r):
    """Score against the change of the pattern (Q, K), and against the loss (all), edge by edge."""
    h1, h2, writer, reader = _pair(r)
    E, rank = r["effects"], r["rank"]

    def draw(effect, inputs, label, title, log=False):
        def panel(ax):
            groups = {}
            for i, c in enumerate(INPUTS):
                if c in inputs:
                    groups[INPUTS[c]] = (np.ravel(r["scores"][c]), np.ravel(E[effect][i]))
            plots.scatter(
                groups,
                x_label="composition score (0 to 1)",
                y_label=label,
                title=title,
                log_y=log,
                ax=ax,
            )
            at = (r["scores"]["k"][h1][h2], E[effect][1][h1][h2])
            ax.annotate(f"{writer} to {reader}", at, (-48, 9), textcoords="offset points")
            ax.legend(loc="upper center" if log else "upper left", ncols=3)
            if log:
                ax.set_ylim(top=ax.get_ylim()[1] * 3)
            else:
                ax.axhline(0, color="#555555", linewidth=0.8)
                low, high = ax.get_ylim()
                ax.set_ylim(low, high + 0.15 * (high - low))

        return panel

    def told(name):
        rho, low, high = rank[name]
        return f"{name} {rho:.2f} ({low:.2f} to {high:.2f})"

    return plots.panels(
        [
            draw("pattern", "qk", "change of the pattern (0 to 1)", "Effect on the pattern", True),
            draw("loss", "qkv", "rise of the loss (nats a token)", "Effect on held-out loss"),
        ],
        alt=f"Score against the effect of cutting an edge. Rank correlations with intervals: "
        f"{told('K pattern')}, {told('Q pattern')}, {told('all loss')}. The edge {writer} to the "
        f"keys of {reader} raises the loss by {E['loss'][1][h1][h2]:.3f} nats.",
        size=(10.5, 4),
    )


def disagreement_rows(r, n=3):
    """The query and key edges whose rank by score and by effect differ most, for plots.table."""
    E = r["effects"]
    score = np.array([r["scores"]["q"], r["scores"]["k"]])
    effect, spread, visible = (np.array(E[k][:2]) for k in ("pattern", "spread", "visible"))
    place = [x.ravel().argsort().argsort() for x in (score, effect)]
    gap = (place[0] - place[1]).reshape(score.shape)
    order = gap.ravel().argsort()
    rows = []
    for which, chosen in (
        ("high score, small effect", order[::-1][:n]),
        ("the reverse", order[:n]),
    ):
        for flat in chosen:
            c, i, j = np.unravel_index(flat, score.shape)
            rows.append(
                {
                    "kind": which,
                    "edge": f"0.{i} → {'query key'.split()[c]} of 1.{j}",
                    "score (0 to 1)": float(score[c, i, j]),
                    "pattern change (0 to 1)": float(effect[c, i, j]),
                    "visible share (0 to 1)": float(visible[c, i, j]),
                    "spread (score units)": float(spread[c, i, j]),
                    "size of the write (norm)": float(E["write"][i]),
                    "reader (nats)": float(E["reader"][j]),
                }
            )
    return rows


def virtual_rows(r, n=5):
    """The virtual heads that move most on text, with the effect of removing each."""
    E = r["effects"]
    size = np.array(E["size"][2])
    rows = []
    for flat in size.ravel().argsort()[::-1][:n]:
        i, j = divmod(int(flat), size.shape[1])
        rows.append(
            {
                "virtual head": f"0.{i} → 1.{j}",
                "mean size (norm)": float(size[i, j]),
                "V-score (0 to 1)": r["scores"]["v"][i][j],
                "loss without it (nats)": E["loss"][2][i][j],
                "error (nats)": E["loss_se"][2][i][j],
            }
        )
    return rows


@plots.figure
def composition_survives(r):
    """What each change of the weights moves, and by how much of the value."""
    return box(
        r["moves"],
        CHANGES,
        QUANTITIES,
        y_label="what people print about a pair",
        about="number about the pair",
        size=(8.6, 4.2),
    )


@plots.figure
def who_supplies_values(r):
    """What each second-layer head moves, by source: the token, or earlier heads' writes."""
    values = np.array(r["values"])
    heads = slice(2, 2 + len(r["several"]))  # position second; a bias, if there is one, at the end
    wide, chief = values[:, heads].sum(1), values[:, heads].argmax(1)
    groups = {"token": values[:, 0], "writes of earlier heads": wide}
    other = 1 - values[:, 0] - wide
    if np.abs(other).max() > 1e-4:  # positions in the stream, and biases
        groups["position and bias"] = other
    told = "; ".join(f"1.{j}: {w:.0%}, most by 0.{c}" for j, (w, c) in enumerate(zip(wide, chief)))
    fig, ax = plots.canvas(size=(7.5, 3.6))
    plots.bars(
        groups,
        groups=_heads(1),
        x_label="second-layer head",
        y_label="covariance share of its write",
        title="Who supplies what a head moves",
        ax=ax,
    )
    low, high = (end(*(end(v) for v in groups.values())) for end in (min, max))
    ax.set_ylim(min(0, low) * 1.1, 1.25 * max(high, 1))
    ax.legend(ncols=len(groups), loc="upper center")
    return plots.Figure(fig, f"Share of earlier heads' writes in what each head moves. {told}.")


@plots.figure
def composition_ladder(r):
    """The evidence ladder of the pair: what each rung got, in units of what it asked."""
    _, _, writer, reader = _pair(r)
    rungs = r["rungs"]
    fig, ax = plots.canvas(size=(9, 3.4))
    got = [row["got"] for row in rungs]
    for i, row in enumerate(rungs):
        colour = plots.COLOURS[2] if row["ok"] else plots.COLOURS[5]
        ax.barh(i, row["got"], color=colour, hatch="" if row["ok"] else "//", edgecolor="white")
        word = "passes" if row["ok"] else "FAILS: this rung cannot see it"
        ax.annotate(f"{row['got']:.2f}  {word}", (row["got"], i), (5, 0), va="center",
                    textcoords="offset points",
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip
    ax.axvline(1, color="#555555", linestyle="--")
    ax.set_yticks(range(len(rungs)), labels=[f"{row['rung']}\n{row['asked']}" for row in rungs])
    ax.invert_yaxis()
    ax.set_xlim(0, 1.45 * max(*got, 1.2))
    ax.set_xlabel("what the rung got, in units of what it asked (dashed: enough)")
    ax.set_ylabel("kind of evidence")
    all_pass = all(row["ok"] for row in rungs)
    ax.set_title(
        f"Head {writer} feeds the keys of head {reader}"
        if all_pass or r.made_with["models"] == "course"
        else f"Does head {writer} feed the keys of head {reader}?"
    )
    told = "; ".join(
        f"{row['rung']} {row['got']:.2f} ({'passes' if row['ok'] else 'fails'})" for row in rungs
    )
    return plots.Figure(fig, f"Four rungs of evidence for {writer} to keys of {reader}: {told}.")
