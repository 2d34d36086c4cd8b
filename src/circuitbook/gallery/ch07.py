"""Figures of chapter 07: counts, silent MLPs, neurons, in-context learning, the pair."""

import textwrap

import numpy as np

from circuitbook import plots
from circuitbook.gallery.survival import box
from circuitbook.gallery.tables07 import visible

ROLES = ("attn-only-0l", "attn-only-1l", "attn-only-2l", "gelu-1l", "gelu-2l")
CHANGES = ("head coordinates R", "stream coordinates G", "W_U + c 1ᵀ", "constant per query")
WAYS = (
    "zero, re-run", "zero, patterns kept", "mean, re-run", "mean, patterns kept",
    "best affine map, re-run", "only MLP 1 to its mean", "only MLP 0 to its mean",
    "another model, without layers", "another model, trained without MLPs",
)  # fmt: skip
SHAPES = (
    "GELU, 4 d", "GELU, 2 d", "SwiGLU, 4 d", "SwiGLU, 8/3 d", "8 experts of 4 d, 2 used",
)  # fmt: skip


def _barred(values, title, x_label, y_label, errors=None, baseline=None, zero=True, **more):
    """A panel of horizontal bars: name → height, or name → (height, standard error)."""
    pairs = {k: x if isinstance(x, list | tuple) else (x, 0.0) for k, x in values.items()}

    def draw(ax):
        plots.bars(
            {k: x[0] for k, x in pairs.items()},
            errors={k: x[1] for k, x in pairs.items()} if errors else None,
            horizontal=True, baseline=baseline, x_label=x_label, y_label=y_label, title=title,
            ax=ax, **more,
        )  # fmt: skip
        if zero:
            ax.axvline(0, color="#555555", linewidth=0.8)

    return draw


def _shares(rows, first, second, title, y_label):
    """A panel of two shares for each row, with two thirds dashed."""

    def draw(ax):
        plots.bars(
            {words: [x[key] for x in rows.values()] for words, key in (first, second)},
            groups=list(rows),
            horizontal=True, baseline=2 / 3, x_label="MLP's share (dashed: two thirds)",
            y_label=y_label, title=title, ax=ax,
        )  # fmt: skip
        ax.set_xlim(0, 1)
        ax.legend(loc="upper left", bbox_to_anchor=(0.0, -0.18), ncols=2)

    return draw


@plots.figure
def mlp_shares(r):
    """The MLP's share of parameters, for shapes of one layer and for real configurations."""
    rows, both = r["params"], ("published", "course")
    shapes = {name: rows[f"one layer: {name}"] for name in SHAPES}
    named = [("gpt2", "published"), *((m, kind) for kind in both for m in ("gelu-1l", "gelu-2l"))]
    models = {f"{m} ({kind})": rows[f"{m}, {kind}"] for m, kind in named}
    whole = ("all parameters", "share")
    told = "; ".join(f"{name} {x['share']:.3f}" for name, x in shapes.items())
    real = "; ".join(f"{n} {x['share']:.3f} and {x['share of all']:.3f}" for n, x in models.items())
    return plots.panels(
        [
            _shares(shapes, whole, ("met by one token", "share, active"), "One layer, no biases",
                    "shape of one layer"),
            _shares(models, ("of the layers", "share"), ("embeddings counted", "share of all"),
                    "Real configurations", "model"),
        ],
        alt=f"Share of parameters in MLPs. One layer by shape: {told}. Models, of the layers and "
        f"with embeddings counted: {real}.",
        size=(11, 4.2),
    )  # fmt: skip


@plots.figure
def without_mlps(r):
    """Share of the loss that gelu-2l explains when its MLPs are silenced, by way of silencing."""
    shares = {name: r["without"][name]["explained"][0] for name in WAYS if name in r["without"]}
    rises = {name: r["without"][name]["rise"] for name in shares}
    label, title = "rise of the loss (nats, one standard error)", "Paired with the whole model"
    rise = _barred(rises, title, label, "", errors=True)

    def bare(ax):
        rise(ax)
        ax.set_yticklabels([])

    told = "; ".join(f"{name}: {x:.0%}, {rises[name][0]:+.2f} nats" for name, x in shares.items())
    return plots.panels(
        [
            _barred(
                shares, "0: word frequencies, 1: gelu-2l",
                "share of the loss explained (dashed: a third)", "what stands in for the MLPs",
                baseline=1 / 3,
            ),
            bare,
        ],
        alt=f"How much of its loss gelu-2l explains with its MLPs silenced, and the rise of the "
        f"loss. {told}.",
        size=(11, 4.0),
    )  # fmt: skip


@plots.figure
def drawn_neurons(r):
    """All neurons by firing rate and agreement, beside random directions; draw and extremes."""
    share, score, chance = (np.array(r["all"][k]) for k in ("share firing", "agreement", "random"))
    ok, a, drawn = np.array(r["all"]["allowed"]), r["agreement"], np.array(r["draw"]["neurons"])
    ends = {n: [x["neuron"] for x in r["cards"][n]] for n in ("cleanest", "most mixed")}

    def points(ids):
        ids = np.array(ids)[share[ids] > 0]  # silent neurons have no place on a log axis
        return 100 * share[ids], score[ids]

    rest = np.flatnonzero(ok)
    groups = {"ranked": points(rest), "rare (not ranked)": points(np.flatnonzero(~ok))}
    groups |= {"random directions": (100 * share[rest], chance[rest]), "the draw": points(drawn)}
    groups |= {f"{k} (shown later)": points(v) for k, v in ends.items()}

    def scatter(ax):
        plots.scatter(
            groups,
            log_x=True,
            x_label="fires on (% of tokens)",
            y_label="agreement of contexts (cosine)",
            title="Neurons of gelu-1l; dashed: median perfect detector",
            ax=ax,
        )
        for i in (0, 2):
            ax.collections[i].set_alpha(0.35)
            ax.collections[i].set_sizes([10])
        ax.collections[3].set_sizes([60])
        ax.collections[3].set_edgecolor("black")
        ax.axhline(a["perfect"][2], color="#555555", linestyle="--", linewidth=0.8)
        ax.legend(loc="upper left", bbox_to_anchor=(0.0, -0.16), ncols=3, fontsize=8)

    def spread(ax):
        plots.histogram(
            {"ranked neurons": score[rest], "random directions": chance[rest],
             "the draw": score[drawn]},
            bins=np.linspace(-0.05, 0.4, 46),
            x_label="agreement of contexts (cosine)",
            y_label="share of neurons",
            title="How many agree how much",
            ax=ax,
        )  # fmt: skip

    told = ", ".join(f"{n} at {score[n]:.2f}" for n in drawn)
    return plots.panels(
        [scatter, spread],
        alt=f"Agreement of contexts of {len(rest)} ranked neurons against firing rate: mean "
        f"{score[rest].mean():.3f}, median {a['quartiles'][2]:.3f}; random directions: median "
        f"{a['random'][2]:.3f}; perfect detectors of one token: {a['perfect'][2]:.2f}. Silent "
        f"neurons ({a['silent']}) are left out. The drawn neurons: {told}.",
        size=(11, 4.4),
    )


@plots.figure
def clean_and_mixed(r):
    """What the cleanest and the most mixed neuron write and read, as bars of words."""

    def panel(card, key, label, title):
        shown, values = [visible(w) for w in card[key][0]], card[key][1]
        shown = [w if shown.count(w) == 1 else f"{w} ({i})" for i, w in enumerate(shown)]
        return _barred(dict(zip(shown, values, strict=True)), title, label, "word", zero=False)

    draws, told = [], []
    for kind in ("cleanest", "most mixed"):
        card = r["cards"][kind][0]
        name = f"neuron {card['neuron']}, {kind}"
        draws.append(panel(card, "reads", "pre-activation it adds", f"{name}: direct inputs"))
        through = f"through head 0.{card['head']}"
        unit = "pre-activation it adds,\nat an attention of 1"
        draws.append(panel(card, "reads by head", unit, f"{card['neuron']}: {through}"))
        fall, rise = (card["held"][k] for k in ("its words fall", "loss rises"))
        lost = f"held at its mean: its ten words lose {fall:.2f} nats, loss {rise:+.3f}"
        unit = "centred logit for one unit\n" + textwrap.fill(lost, 34)
        draws.append(panel(card, "writes", unit, f"{card['neuron']}: it writes"))
        told.append(
            f"{name}: agreement {card['agreement']:.2f}, fires on {card['share']:.2%}, "
            f"reads {', '.join(map(visible, card['reads'][0][:3]))}, {through} "
            f"{', '.join(map(visible, card['reads by head'][0][:3]))}, "
            f"writes {', '.join(map(visible, card['writes'][0][:3]))}; {lost}"
        )
    told = f"Words of two neurons. {'; '.join(told)}."
    return plots.panels(draws, alt=told, columns=3, size=(13, 6.4))


@plots.figure
def words_without_neuron(r):
    """Fall of the log-probability of words when a neuron is held at its mean, own and controls."""
    a = r["ablation"]
    bars = {"its own words": a["own"], **a["controls"]}
    bars["own words, partner held"] = bars.pop("the partner ablated")
    bars["own words, partner's write as long"] = bars.pop("the partner's write, as long")
    losses = {
        f"next: {k}": a[f"loss where {w}"] for k, w in (("its word", "right"), ("another", "wrong"))
    } | {"all firings": a["loss"]}
    told = "; ".join(f"{k} {x[0]:+.3f} ± {x[1]:.3f}" for k, x in (bars | losses).items())
    return plots.panels(
        [
            _barred(
                bars,
                "A neuron held at its mean",
                "fall of log-probability (nats)",
                "words watched",
                errors=True,
            ),
            _barred(
                losses,
                f"Its word is next: {a['right'][0]:.1%} of firings",
                "rise of the loss (nats)",
                "firings",
                errors=True,
            ),
        ],
        alt=f"Mean ablation of {a['neurons']} neurons at {a['positions']} firings, nats. {told}.",
        size=(11, 3.6),
    )


@plots.figure
def context_by_index(r):
    """Loss by index of the token for five models; and the broad score of each with its error."""
    curves, levels = r["icl"]["by_index"], r["icl"]["levels"]
    roles = [role for role in ROLES if role in levels]
    broad = {role: levels[role]["broad"] for role in roles}

    def loss(ax):
        plots.lines(
            {role: (np.array(curves[role]["index"]), curves[role]["loss"]) for role in roles},
            errors={role: curves[role]["se"] for role in roles},
            log_x=True,
            x_label="index of the token after BOS (mean of a bin)",
            y_label="loss (nats)",
            title="Loss by index",
            ax=ax,
        )
        ax.axvspan(41, 60, color="#999999", alpha=0.15, zorder=0)
        ax.axvspan(491, 510, color="#999999", alpha=0.25, zorder=0)
        ax.legend(loc="upper right", ncols=1)

    told = "; ".join(f"{role} {x[0]:+.2f} ± {x[1]:.2f}" for role, x in broad.items())
    label = "late minus early loss (nats, one standard error)"
    return plots.panels(
        [loss, _barred(broad, "Broad score; negative is better", label, "model", errors=True)],
        alt=f"Left: loss by index on {r['icl']['windows']} windows of {r['icl']['documents']} "
        f"documents; grey: tokens 41 to 60 and 491 to 510. Right: broad in-context learning "
        f"score: {told}.",
        size=(11, 4.2),
    )


@plots.figure
def windows_that_tell(r):
    """Share of random sets of windows that put two layers ahead, by size of the set."""
    names = {"broad": "broad score", "single": "single tokens 50 and 500"}

    def panel(pair, title):
        def draw(ax):
            plots.lines(
                {names[k]: r["icl"]["detected"][pair][k] for k in names},
                x=np.array(r["icl"]["sizes"]),
                x_label="windows in the set",
                y_label="sets that see it (share)",
                title=title,
                ax=ax,
            )
            ax.set_ylim(-0.05, 1.05)

        return draw

    pairs = {
        "second layer, no MLP": "attn-only-2l against attn-only-1l",
        "second layer, with MLPs": "gelu-2l against gelu-1l",
    }
    told = "; ".join(
        f"{title}: {r['icl']['needed'][p]['broad']:.0f}, and at the same gap "
        f"{r['icl']['needed'][p]['times']:.0f} times as many by single tokens"
        for p, title in pairs.items()
    )
    return plots.panels(
        [panel(p, title) for p, title in pairs.items()],
        alt=f"How often a random set of windows puts two layers ahead of one by two standard "
        f"errors. Windows needed by the broad score: {told}.",
        size=(11, 3.6),
    )


@plots.figure
def shuffled_scores(r):
    """Broad score on shuffled and on mixed windows, read with early and late in both places."""
    c, label = r["icl"]["controls"], "late minus early loss (nats, two standard errors)"
    kinds = {
        "Words shuffled inside each window": "inside windows",
        "Words of all windows mixed": "across windows",
    }
    rows = [(title, c[kind]) for title, kind in kinds.items()]
    told = "; ".join(
        f"{title}: " + ", ".join(f"{i} {x[i][0]:+.2f} ± {x[i][1]:.2f}" for i in ROLES if i in x)
        for title, x in rows
    )
    return plots.panels(
        [
            _barred(
                {i: (x[i][0], 2 * x[i][1]) for i in ROLES if i in x}, title, label, "model", True
            )
            for title, x in rows
        ],
        alt=f"Broad score on {c['windows']} windows without order, inside left, mixed right. "
        f"{told}.",
        size=(11, 3.2),
        sharex=True,
    )


@plots.figure
def bits_a_byte(r):
    """Loss by kind of document, by token and by byte; and one text in two alphabets."""
    units, two = {k: x for k, x in r["icl"]["units"].items() if k != "all"}, r["icl"]["alphabets"]

    def panel(bars, groups, label, x_label, title):
        def draw(ax):
            plots.bars(bars, groups=groups, x_label=x_label, y_label=label, title=title, ax=ax)
            ax.set_ylim(top=1.3 * max(map(max, bars.values())))  # room for the legend

        return draw

    def by_kind(key, title):
        bars = {m: [x[key][m] for x in units.values()] for m in ("attn-only-1l", "gelu-2l")}
        return panel(bars, list(units), f"loss ({key})", "kind of document", title)

    alphabets = {k: [two[a][k] for a in two] for k in ("nats a symbol", "bits a byte")}
    words = ("alphabet, guessed by frequency", "One text, two alphabets")
    told = "; ".join(
        f"{kind} {x['nats a token']['gelu-2l']:.2f} nats a token, "
        f"{x['bits a byte']['gelu-2l']:.2f} bits a byte, {x['bytes a token']:.1f} bytes a token"
        for kind, x in units.items()
    )
    same = "; ".join(
        f"{a} {x['nats a symbol']:.2f} nats a symbol, {x['bits a byte']:.2f} bits a byte"
        for a, x in two.items()
    )
    return plots.panels(
        [
            by_kind("nats a token", "By token"),
            by_kind("bits a byte", "By byte"),
            panel(alphabets, list(two), "loss (unit in the legend)", *words),
        ],
        columns=3,
        alt=f"Loss of gelu-2l by kind of document. {told}. One text from frequencies: {same}.",
        size=(11, 3.6),
    )


@plots.figure
def neurons_survive(r):
    """Which change of the weights moves which number about neurons."""
    moves = r["moves"]
    quantities = sorted(
        moves[CHANGES[0]],
        key=lambda q: (sum(moves[c][q] > 0 for c in CHANGES), q != "probabilities"),
    )
    return box(
        moves, CHANGES, quantities, y_label="number about neurons", about="number", size=(9.5, 4.2)
    )


@plots.figure
def pair_and_mlp(r):
    """gelu-2l: what makes MLP 0's inputs vary, and what each head's edge into it is worth."""
    p = r["pair"]
    parts, readers, edges = p["readers"]["parts"], p["readers"]["readers"], p["edges"]

    def marked(values):
        return {f"{k} (pair)" if k == p["previous"] else k: x for k, x in values.items()}

    told = "; ".join(
        f"{k}: {x:.1%} of the variance, {readers[k]} readers"
        + (f", {edges[k]['rise'][0]:+.3f} nats" if k in edges else "")
        for k, x in parts.items()
    )
    return plots.panels(
        [
            _barred(marked(parts), "Inputs of MLP 0", "mean share of the variance", "part"),
            _barred(
                marked({k: x["rise"] for k, x in edges.items()}),
                "Only MLP 0 misses the write",
                "rise of the loss (nats)",
                "edge into MLP 0, cut to its mean",
                errors=True,
            ),
        ],
        alt=f"Who feeds MLP 0 of gelu-2l; the pair's first head is {p['previous']}. {told}.",
        size=(11, 3.8),
    )
