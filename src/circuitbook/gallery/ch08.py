"""Figures and tables of chapter 08: toys that store more features than they have dimensions."""

import numpy as np

from circuitbook import plots
from circuitbook.gallery.survival import box

NAMES = {"S0.0": "S = 0", "S0.7": "S = 0.7", "S0.9": "S = 0.9", "linear_S0.9": "S = 0.9, no ReLU"}
CHANGES = ("head coordinates R", "stream coordinates G", "W_U + c 1ᵀ", "constant per query")
MESSAGES = (
    "probabilities", "words whose own message wins", "own score minus the mean echo",
    "leverage of messages", "own score, raw", "D of messages", "cosines between messages",
    "D of W_U's columns",
)  # fmt: skip
READERS = {"shortest": "shortest code", "greedy": "greedy, told k", "own": "the toy's read-out"}


@plots.figure
def five_in_two(r):
    """The columns of W for the best of three starts, in their two dimensions."""

    def draw(name):
        def panel(ax):
            W = np.array(r["runs"][name]["best"]["W"])
            for i, (x, y) in enumerate(W.T):
                colour, marker = plots.COLOURS[i], plots.MARKERS[i]
                ax.plot([0, x], [0, y], color=colour)
                ax.plot([x], [y], color=colour, marker=marker, label=f"feature {i + 1}", ls="none")
            ax.set(xlim=(-1.35, 1.35), ylim=(-1.35, 1.35), aspect="equal")
            ax.set(xlabel="hidden unit 1 (weight)", ylabel="hidden unit 2 (weight)")
            stored = r["runs"][name]["best"]["represented"]
            ax.set_title(f"{NAMES[name]}: {stored} stored")

        return panel

    def legend(ax):
        draw("linear_S0.9")(ax)
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))

    told = "; ".join(
        f"{NAMES[n]}: {r['runs'][n]['best']['represented']} stored, lengths "
        + ", ".join(f"{v:.2f}" for v in r["runs"][n]["best"]["norms"])
        for n in NAMES
    )
    low, high = min(r["runs"]["S0.9"]["best"]["gaps"]), max(r["runs"]["S0.9"]["best"]["gaps"])
    return plots.panels(
        [*(draw(n) for n in list(NAMES)[:3]), legend],
        columns=4,
        alt=f"Directions of five features in two dimensions. {told}. The gaps of the five at "
        f"S = 0.9 are {low:.1f} to {high:.1f} degrees.",
        size=(11, 3.2),
    )


@plots.figure
def starts_spread(r):
    """The loss of every start, sorted, beside the closed form of each plan."""

    def draw(name):
        def panel(ax):
            run = r["runs"][name]
            loss = np.array(run["loss"])
            share = (np.arange(len(loss)) + 0.5) / len(loss)
            ax.plot(loss, share, ".", color=plots.COLOURS[0], label="one start")
            ax.plot([run["best"]["loss"]], [share[np.searchsorted(loss, run["best"]["loss"])]],
                    "s", color=plots.COLOURS[3], label="best of three")  # fmt: skip
            if run["floor"] is not None:
                ax.axvline(
                    run["floor"], color="#555555", linestyle="--", label="closed form", zorder=5
                )
            low = min(loss.min(), run["best"]["loss"], run["floor"] or np.inf)
            pad = max(0.12 * (loss.max() - low), 0.05 * loss.max())
            ax.set_xlim(low - pad, loss.max() + pad)
            ax.set(xlabel="loss (squared error, summed)", ylabel="share of starts at or below")
            ax.set_title(NAMES[name])
            ax.locator_params(axis="x", nbins=4)

        return panel

    def first(ax):
        draw("S0.0")(ax)
        ax.legend(loc="lower right")

    P = r["pentagon"]
    told = "; ".join(
        f"{NAMES[n]}: {r['runs'][n]['loss'][0]:.4f} to {r['runs'][n]['loss'][-1]:.4f}, best of "
        f"three {r['runs'][n]['best']['loss']:.4f}"
        for n in NAMES
    )
    return plots.panels(
        [first, *(draw(n) for n in list(NAMES)[1:])],
        columns=2,
        alt=f"Losses of {P['of']} starts at each setting. {told}. {P['hits']} of {P['of']} "
        f"starts at S = 0.9 end in a pentagon.",
        size=(9.5, 6),
    )


@plots.figure
def echoes(r):
    """The overlaps of the pentagon, and what each feature hears when the first one is on."""
    E = r["echo"]

    def grid(ax):
        names = [str(i + 1) for i in range(5)]
        plots.heatmap(E["gram"], signed=True, x_ticks=names, y_ticks=names, x_label="feature on",
                      y_label="feature that hears it", title="WᵀW of the pentagon",
                      colour_label="heard, before the bias", ax=ax)  # fmt: skip

    def heard(ax):
        plots.bars({"before bias and ReLU": E["before"], "after": E["after"]},
                   groups=[str(i + 1) for i in range(5)], x_label="feature",
                   y_label="what it hears of feature 1 at one", title="The bias as a filter",
                   ax=ax)  # fmt: skip
        ax.axhline(0, color="#555555", linewidth=0.8)
        ax.legend(loc="upper right")

    def told(key):
        return ", ".join(f"{v:.2f}" for v in E[key])

    return plots.panels(
        [grid, heard],
        alt=f"When feature 1 is on at one, features 1 to 5 hear {told('before')} before the bias "
        f"and {told('after')} after bias and ReLU. Without the biases the loss is "
        f"{E['without_bias']:.4f} instead of {E['loss']:.4f}.",
        size=(10, 3.8),
    )


@plots.figure
def phase_border(r):
    """How much of the second feature trained toys store, and the derived border."""
    B = r["border"]
    ratio, p = np.array(B["ratio"]), np.array(B["p"])
    fig, ax = plots.canvas(size=(7, 4.2))
    step = p[1] - p[0]
    second = np.array(B["second"])
    second[-1, -1] = (
        np.nan
    )  # always on, equally important: every split of the length costs the same
    image = ax.imshow(
        second, aspect="auto", origin="lower", cmap="cividis", vmin=0, vmax=1,
        extent=(p[0] - step / 2, p[-1] + step / 2, ratio[0] - 0.05, ratio[-1] + 0.05),
    )  # fmt: skip
    fig.colorbar(image, ax=ax).set_label("|W₂| / |W₁| of the best trained start")
    fine = np.linspace(0.05, 1.05, 100)
    ax.plot(4 * fine / (2 + 5 * fine), fine, color="white", linewidth=4)
    ax.plot(4 * fine / (2 + 5 * fine), fine, color=plots.COLOURS[3], label="derived: 4r/(2+5r)")
    ax.plot(B["trained"], ratio, "s", color="white", markeredgecolor="black", markersize=6,
            label="trained: stores both up to here")  # fmt: skip
    ax.set(xlabel="p, the probability that a feature is on", ylabel="r = I₂/I₁")
    ax.set(ylim=(0.05, 1.05), xlim=(0, 1.02))
    ax.set_title("Two features in one number")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, -0.3), ncols=2)
    ax.grid(visible=False)
    told = "; ".join(
        f"r {a:.1f}: derived {b:.2f}, trained {c:.2f}"
        for a, b, c in list(zip(ratio, B["predicted"], B["trained"], strict=True))[::3]
    )
    third = (second > 0.1) & (second < 0.6)
    return plots.Figure(
        fig,
        f"The largest p at which both features are stored. {told}. Beyond it, for r near one, "
        f"{third.sum()} settings store the second feature at {second[third].min():.2f} to "
        f"{second[third].max():.2f} of the length of the first.",
    )


@plots.figure
def sticky_shares(r):
    """Shares of a dimension against sparsity, and their histogram beside random directions."""
    L, S = r["large"], r["small"]
    lines = {"2/3": 2 / 3, "1/2": 1 / 2, "2/5": 2 / 5, "3/8": 3 / 8}

    def sweep(ax):
        D, length = np.array(L["D"]), np.array(L["length"])
        x = np.repeat(np.array(L["inverse"])[:, None], D.shape[1], 1)
        stored = length > 0.5
        plots.scatter({"stored feature": (x[stored], D[stored])}, log_x=True,
                      x_label="1/(1 - S), inputs for each one that has the feature",
                      y_label="D, share of a dimension", title="60 features in 12 dimensions",
                      ax=ax)  # fmt: skip
        for name, at in lines.items():
            ax.axhline(at, color="#555555", linestyle="--", linewidth=0.8)
            above = {"va": "top", "xytext": (0, -2)} if name == "3/8" else {"xytext": (0, 2)}
            ax.annotate(name, (15.5, at), textcoords="offset points", ha="right", **above)
        ax.set_ylim(0, 1)
        ax.set_xticks([1, 2, 5, 10], labels=["1", "2", "5", "10"])

    def counts(ax):
        D, length = np.array(S["D"]), np.array(S["length"])
        chance = np.array(S["random_D"])[length > 0.5]  # the same lengths
        plots.histogram({"trained toys": D[length > 0.5], "random angles": chance},
                        bins=np.arange(-0.01, 1.03, 0.02), x_label="D, share of a dimension",
                        y_label="share of features", title="8 features in 2 dimensions",
                        ax=ax)  # fmt: skip
        top = ax.get_ylim()[1]
        for name, at in lines.items():
            ax.axvline(at, color="#555555", linestyle="--", linewidth=0.8)
            left = {"ha": "right", "xytext": (-3, 0)} if name == "3/8" else {"xytext": (3, 0)}
            ax.annotate(name, (at, 0.97 * top), textcoords="offset points", **left)

    told = ", ".join(f"{name} {S['near'][name]:.0%} ({S['random'][name]:.0%})" for name in lines)
    last = np.median(np.array(L["D"][-1])[np.array(L["length"][-1]) > 0.5])
    return plots.panels(
        [sweep, counts],
        alt=f"Left: D of stored features over sparsity, with a plateau at a half and then a slide "
        f"down to a median of {last:.2f}. Right: share of features within a hundredth of a value, "
        f"trained (and at random angles): {told}.",
        size=(10.5, 4),
    )


@plots.figure
def levels(r):
    """Loss and shares of a dimension of one start while it learns."""
    L = r["levels"]
    D = np.array(L["D"])

    def loss(ax):
        plots.lines({"loss": L["loss"]}, x=L["steps"], x_label="step",
                    y_label="loss (squared error, summed)", title="Loss", ax=ax)  # fmt: skip

    def shares(ax):
        plots.lines({f"feature {i + 1}": D[:, i] for i in range(D.shape[1])}, x=L["steps"],
                    x_label="step", y_label="D, share of a dimension", title="Shares",
                    ax=ax)  # fmt: skip
        ax.set_ylim(-0.05, 1.05)

    jumps = sum(j > 0.05 for j in L["jumps"])
    return plots.panels(
        [loss, shares],
        alt=f"Start {L['run']} while it learns: the loss goes from {L['loss'][0]:.3f} to "
        f"{L['loss'][-1]:.3f}, with one fall of {L['jumps'][0]:.0%} after a rest; inside it the "
        f"shares move by {L['moves'][0]:.2f} in all, in rest by {L['calm'][0]:.2f} in the median. "
        f"{jumps} of {len(L['jumps'])} starts have such a late fall.",
        size=(10.5, 3.8),
    )


@plots.figure
def company(r):
    """Cosine of partners, sorted over pairs, for three kinds of company at two densities."""

    def draw(p):
        def panel(ax):
            kinds = r["pairs"][p]
            plots.lines(
                {
                    k: ((np.arange(len(v["cosine"])) + 0.5) / len(v["cosine"]), v["cosine"])
                    for k, v in kinds.items()
                },
                x_label="share of pairs at or below", y_label="cosine of partners",
                title=f"p = {p}", zero=True, ax=ax,
            )  # fmt: skip
            ax.set_ylim(-1.1, 1.1)
            ax.legend(loc="center left", bbox_to_anchor=(0.0, 0.27))

        return panel

    def share(v, low, high):
        return sum(low <= c <= high for c in v["cosine"]) / len(v["cosine"])

    told = "; ".join(
        f"p {p}: "
        + ", ".join(
            f"{k} {share(v, -1.1, -0.9):.0%} and {share(v, 0.9, 1.1):.0%}" for k, v in kinds.items()
        )
        for p, kinds in r["pairs"].items()
    )
    return plots.panels(
        [draw(p) for p in r["pairs"]],
        alt=f"Cosine of partners, of every pair in the starts that store all four features. Shares "
        f"of pairs below -0.9 (opposite) and above 0.9 (merged): {told}.",
        size=(10.5, 4),
    )


@plots.figure
def forty_in_ten(r):
    """How many features move each unit, and the best cosine of each feature with some axis."""
    F = r["forty"]
    counts = F["features_per_unit"]

    def units(ax):
        plots.bars({str(i + 1): c for i, c in enumerate(counts)}, x_label="hidden unit",
                   y_label="features that move it (weight > 0.3)",
                   title="40 features, 10 units", ax=ax)  # fmt: skip

    def cosines(ax):
        plots.lines(F["cosines"], x=range(1, len(F["cosines"]["hidden units"]) + 1),
                    x_label="features, best matched first", y_label="best |cosine| with an axis",
                    title="Ten axes of three kinds", ax=ax)  # fmt: skip
        ax.set_ylim(0, 1.05)

    told = ", ".join(f"{k} {v:.2f}" for k, v in F["median"].items())
    low, high = F["random_range"]
    return plots.panels(
        [units, cosines],
        alt=f"Each of ten hidden units is moved by {min(counts)} to {max(counts)} of forty "
        f"features. Median best cosine of a feature: {told} ({low:.2f} to {high:.2f} in 95 % of "
        f"random bases); the largest with a unit is "
        f"{F['largest']['hidden units']:.2f}.",
        size=(10.5, 3.8),
    )


@plots.figure
def reading_back(r):
    """Shares of codes read back exactly, against the number of features that are on."""
    toy, noise = r["recovery"]["toy"], r["recovery"]["random"]
    series = {READERS[k]: toy[k] for k in READERS}
    series["shortest code, random W"] = noise["shortest"]
    ks = range(1, len(toy["own"]) + 1)
    told = "; ".join(
        f"{k} on: " + ", ".join(f"{name} {v[k - 1]:.0%}" for name, v in series.items())
        for k in (1, 3, 5)
    )
    return plots.lines(
        series,
        x=ks,
        x_label="features on, of 40 in 10 numbers",
        y_label="share of codes named exactly",
        title="What ten numbers say about forty features",
        alt=f"Share of inputs whose features are all named, and no others. {told}.",
        size=(8, 3.8),
    )


@plots.figure
def room(r):
    """Numbers of almost orthogonal directions against the dimension, on a logarithmic axis."""
    R = r["room"]

    def first(ax):
        plots.lines({"measured (median)": R["first"], "by the integral": R["expected"]}, x=R["n"],
                    x_label="dimensions", y_label="random directions", log_y=True,
                    title="Drawn until two clash", ax=ax)  # fmt: skip

    def packed(ax):
        plots.lines({"kept": R["packed"], "orthogonal: one each": R["wide"]}, x=R["wide"],
                    x_label="dimensions", y_label="directions", log_y=True,
                    title="Kept if they fit", ax=ax)  # fmt: skip
        ax.set_xticks(R["wide"])

    return plots.panels(
        [first, packed],
        alt=f"Directions with absolute cosines of at most one half. Left: {R['first'][0]:.0f} "
        f"random ones until two clash in {R['n'][0]} dimensions, {R['first'][-1]:.0f} in "
        f"{R['n'][-1]}. Right: {R['packed'][-1]} are kept in {R['wide'][-1]} dimensions.",
        size=(10, 3.6),
    )


@plots.figure
def shared_neurons(r):
    """Networks for |x|: loss beside the plan of dedicated neurons, and features of a neuron."""
    A = r["abs"]
    names = [f"{p:g}" for p in A["p"]]

    def loss(ax):
        for i, row in enumerate(A["ratio"]):
            ax.plot([i] * len(row), row, "o", color=plots.COLOURS[0])
        ax.axhline(1, color="#555555", linestyle="--")
        ax.annotate("two neurons a feature", (0.98, 1), (0, 3), textcoords="offset points",
                    xycoords=("axes fraction", "data"), ha="right")  # fmt: skip
        ax.set_xticks(range(len(names)), labels=names)
        ax.set(xlabel="p, the probability that a feature is on", title="Loss, four starts each")
        ax.set_ylabel("loss, in units of the plan's")

    def features(ax):
        means = [np.mean(row) for row in A["features"]]
        plots.bars(dict(zip(names, means, strict=True)), title="Features of a neuron",
                   x_label="p, the probability that a feature is on",
                   y_label="features served (mean)", ax=ax)  # fmt: skip

    told = "; ".join(
        f"p {n}: loss {np.mean(a):.2f} of the plan's, {np.mean(f):.1f} features a neuron"
        for n, a, f in zip(names, A["ratio"], A["features"], strict=True)
    )
    return plots.panels([loss, features], alt=f"Twenty absolute values, ten neurons. {told}.",
                        size=(10, 3.6))  # fmt: skip


@plots.figure
def messages_survive(r):
    """What each change of the language model's weights moves among numbers about messages."""
    return box(
        r["moves"]["pair"],
        CHANGES,
        MESSAGES,
        y_label="numbers about the messages",
        about="number about the messages",
        size=(8.6, 4.2),
    )
