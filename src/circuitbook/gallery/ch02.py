"""Figures and tables of chapter 02: copying, spectra, offsets, and what survives a change."""

import re

import numpy as np

from circuitbook import plots
from circuitbook.gallery.survival import box

ROLES = {"attn-only-1l": "one layer", "attn-only-2l": "two layers", "gelu-1l": "one layer + MLP"}
PLANTED = ("copies", "anti-copies", "turns", "random", "three topics")
CHANGES = ("head coordinates R", "stream coordinates G", "W_U + c 1ᵀ", "constant per query")
QUANTITIES = (
    "probabilities",
    "attention pattern",
    "score − row mean",
    "copying score, centred W_U",
    "self top-1 share",
    "eigenvalues of W_OV (sum)",
    "logits",
    "raw attention score",
    "copying score, raw W_U",
    "effective rank of W_OV",
    "size of W_OV",
    "size of W_V",
)
PASS_SCORE, PASS_TOP10 = 0.9, 0.3  # as in circuitbook.heads, which needs torch


@plots.figure
def control_heads(r):
    """Both copying tests on heads whose answer is known."""
    score, top1, top10 = zip(*(r["controls"][name] for name in PLANTED), strict=True)
    told = "; ".join(
        f"{name}: score {s:.2f}, top-1 {a:.0%}" for name, s, a in zip(PLANTED, score, top1)
    )
    return plots.bars(
        {"eigenvalue score": score, "own row, top-1": top1, "own row, top-10": top10},
        groups=PLANTED,
        x_label="planted head",
        y_label="score (−1 to 1) or share of tokens",
        title="Two copying tests on heads that we built",
        alt=f"Two copying tests on five planted heads. {told}.",
        size=(7.5, 3.6),
    )


@plots.figure
def spectra_and_rank(r):
    """Singular values of all heads, and the loss when only some directions are kept."""
    ranks, two = r.config["ranks"], r["ranks"]
    n = len(r["random"]["values"])

    def spectrum(ax):
        shown = {}
        for which in ("QK", "OV"):
            rows = np.concatenate([r["spectra"][k][which] for k in r["spectra"]])
            shown[f"W_{which}, median head"] = np.median(rows, 0)
        shown["Gaussian factors"] = r["random"]["values"]
        plots.lines(
            shown,
            x=np.arange(1, n + 1),
            x_label="singular value, from the largest",
            y_label="size (largest = 1)",
            title="Spectra",
            ax=ax,
        )

    def loss(ax):
        shown, errors = {}, {}
        for which in ("QK", "OV"):
            for how in ("strongest", "random"):
                name = f"W_{which}, {how}"
                shown[name] = [*two[f"{which}_{how}"], 0.0]  # all directions: an identity
                errors[name] = [*two[f"{which}_{how}_se"], 0.0]
        plots.lines(
            shown,
            x=[*ranks, n],
            errors=errors,
            zero=True,
            x_label="directions kept in every head",
            y_label="extra loss (nats a token)",
            title="Two layers: loss against rank",
            ax=ax,
        )

    at = len(ranks) - 1
    kept = "; ".join(
        f"{w} {two[f'{w}_strongest'][at]:.2f} (random {two[f'{w}_random'][at]:.2f})"
        for w in ("QK", "OV")
    )
    return plots.panels(
        [spectrum, loss],
        alt=f"Left: the median head's singular values fall to "
        f"{np.median([x[-1] for k in r['spectra'] for x in r['spectra'][k]['QK']]):.2f} of the "
        f"largest for W_QK and to "
        f"{np.median([x[-1] for k in r['spectra'] for x in r['spectra'][k]['OV']]):.2f} for W_OV. "
        f"Right: extra loss of the two-layer model, in nats. With no direction: "
        f"QK {two['QK_strongest'][0]:.2f}, OV {two['OV_strongest'][0]:.2f}. "
        f"With {ranks[at]} of {n}: {kept}.",
        size=(10, 3.7),
    )


@plots.figure
def attention_by_offset(r):
    """Mean attention by head and offset, and the previous-token head with positions alone."""
    two, pair = r["offsets"]["attn-only-2l"], r["pair"]
    names = r["copying"]["attn-only-2l"]["head"]
    h, i = pair["previous"], pair["induction"]

    def heat(which, title, **look):
        return lambda ax: plots.heatmap(
            two[which],
            y_ticks=names,
            x_label="offset (tokens back)",
            y_label="head (layer.head)",
            title=title,
            ax=ax,
            **look,
        )

    score = {
        "signed": True,
        "limit": 15,
        "colour_label": "score − row mean\n(±15 and more: full)",
    }
    look = {"limit": 0.3, "colour_label": "mean attention\n(0.3 and more: brightest)"}

    def line(ax):
        plots.lines(
            {
                f"{names[h]}, text": two["text"][h],
                f"{names[h]}, positions alone": two["alone"][h],
                f"{names[i]}, text": two["text"][i],
            },
            x_label="offset (tokens back)",
            y_label="mean attention",
            title="The pair that we follow",
            ax=ax,
        )
        ax.set_ylim(-0.04, 1.35)  # room for the legend
        ax.set_xticks(range(0, len(two["text"][h]), 2))
        ax.legend(loc="upper right")

    return plots.panels(
        [
            heat("text", "Attention on held-out text", **look),
            heat("alone", "Attention, positions alone", **look),
            heat("score", "Score of positions", **score),
            line,
        ],
        alt=f"Mean attention of the {len(names)} heads of the two-layer model by offset. "
        f"Head {names[h]} puts {two['text'][h][1]:.2f} one token back on text, and "
        f"{two['alone'][h][1]:.2f} when only positions count; on the token itself "
        f"{two['text'][h][0]:.2f} and {two['alone'][h][0]:.2f}. Induction head {names[i]} puts "
        f"{two['text'][i][1]:.2f} one token back on text. The positional score of head {names[h]} "
        f"is {two['score'][h][1]:.1f} above its row mean one token back, "
        f"{two['score'][h][2]:.1f} two back.",
        size=(11, 8.2),
    )


def token_table(r, which):
    """The rows of one head's token tables, readable: for plots.table."""

    def visible(text):
        shown = re.sub("␣{4,}", lambda blanks: f"␣×{len(blanks[0])}", plots.token(text))
        return shown if shown.isprintable() else shown.encode("unicode_escape").decode()

    def join(tokens):
        return " · ".join(map(visible, tokens))

    return [
        {
            "token": visible(row["token"]),
            "own rank": row["own_rank"],
            "reading it raises": join(row["raises"]),
            "as a query it looks for": join(row["looks_for"]),
        }
        for row in r["tables"][which]
    ]


def copying_rows(r):
    """Every head with both tests and the scores without centring, for plots.table."""
    columns = {
        "score": "score (−1 to 1)",
        "top1": "top-1, frequent (share)",
        "top10": "top-10, frequent (share)",
        "all1": "top-1, all (share)",
        "all10": "top-10, all (share)",
        "as_trained": "raw W_U (−1 to 1)",
        "shifted": "W_U + c 1ᵀ (−1 to 1)",
    }
    rows = []
    for role in ROLES:
        table = r["copying"][role]
        for i, head in enumerate(table["head"]):
            numbers = {label: round(table[key][i], 3) for key, label in columns.items()}
            rows.append({"model": role, "head": head, **numbers})
    return rows


@plots.figure
def copying_heads(r):
    """Both copying tests for every head: eigenvalue score, and frequent words in their own row."""
    told = []

    def draw(role):
        table = r["copying"][role]
        score = sum(x >= PASS_SCORE for x in table["score"])
        tests = zip(table["score"], table["top10"], strict=True)
        both = sum(x >= PASS_SCORE and y >= PASS_TOP10 for x, y in tests)
        told.append(f"{role}: {score} of {len(table['score'])} pass the score, {both} pass both")

        def panel(ax):
            plots.bars(
                {
                    "eigenvalue score": table["score"],
                    "own row, top-1": table["top1"],
                    "own row, top-10": table["top10"],
                },
                groups=table["head"],
                x_label="head (layer.head)",
                y_label="score, or share of words",
                title=f"{role} ({ROLES[role]})",
                ax=ax,
            )
            for level, colour in ((PASS_SCORE, plots.COLOURS[0]), (PASS_TOP10, plots.COLOURS[2])):
                ax.axhline(level, color=colour, linestyle="--", linewidth=0.9)
            ax.set_ylim(min(0.0, *table["score"]) - 0.08, 1.25)
            ax.legend(ncols=3, loc="upper right")

        return panel

    return plots.panels(
        [draw(role) for role in ROLES],
        columns=1,
        alt=f"Every head by two copying tests, on frequent words; dashed lines are the pass marks "
        f"{PASS_SCORE} for the score and {PASS_TOP10} for the top-10. {'; '.join(told)}.",
        size=(9.5, 8.6),
    )


@plots.figure
def eigenvalue_plane(r):
    """Eigenvalues of three telling heads' OV circuits, each divided by its largest size."""
    names = sorted(r["plane"], key=lambda k: ("most" not in k, "lowest" in k))

    def draw(name):
        def panel(ax):
            head, why = name.split(": ")
            plots.plane(
                {head: r["plane"][name]},
                circle=1.0,
                x_label="real part (largest size = 1)",
                y_label="imaginary part",
                title=f"{head}\n{why}",
                ax=ax,
            )
            ax.set_xlim(-1.15, 1.15)
            ax.set_ylim(-1.15, 1.15)
            ax.set_aspect("equal", adjustable="box")

        return panel

    told = "; ".join(
        f"{name}: {sum(re > 0 for re, _ in r['plane'][name])} of {len(r['plane'][name])} "
        "have a positive real part"
        for name in names
    )
    return plots.panels(
        [draw(name) for name in names],
        columns=3,
        alt=f"Eigenvalues of three OV circuits in the complex plane. {told}.",
        size=(10.5, 4.0),
    )


@plots.figure
def survival_box(r):
    """What each change moves, and by how much of the largest value; else it survives."""
    return box(
        r["moves"],
        CHANGES,
        QUANTITIES,
        y_label="what people print",
        about="quantity",
        size=(8.0, 4.8),
    )


@plots.figure
def head_shapes(r):
    """Held-out loss of a tiny byte model for three head shapes, every seed."""
    shapes = sorted(r["shapes"], key=int)
    labels = [f"{n} × {256 // int(n)}" for n in shapes]
    seeds = {
        f"seed {s}": [r["shapes"][n][s] for n in shapes] for s in range(len(r["shapes"][shapes[0]]))
    }
    lowest = min(min(x) for x in seeds.values())
    told = "; ".join(
        f"{label}: {', '.join(f'{x:.3f}' for x in r['shapes'][n])}"
        for label, n in zip(labels, shapes, strict=True)
    )
    fig, ax = plots.canvas(size=(6, 3.4))
    plots.scatter(
        {name: (range(len(shapes)), y) for name, y in seeds.items()},
        x_label="heads × width of a head",
        y_label="held-out loss (nats a byte)",
        title=f"After {r.config['shape_steps']} steps",
        ax=ax,
    )
    ax.set_xticks(range(len(shapes)), labels=labels)
    ax.set_xlim(-0.5, len(shapes) - 0.5)
    return plots.Figure(
        fig, f"Held-out loss by head shape, in nats a byte, lowest {lowest:.3f}. {told}."
    )
