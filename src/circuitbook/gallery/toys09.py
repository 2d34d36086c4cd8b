"""Drawings of chapter 09's toy half: recovery, what was lost, the cheat, the price of λ."""

import numpy as np
from matplotlib.ticker import MaxNLocator

from circuitbook import plots

RIVALS = ("k-means", "ICA", "PCA", "units", "random", "shuffled truth")


def _counts(ax, ways, n, published, title):
    """Features found in every toy, one marker for each way; the published run as a line."""
    where = np.arange(len(next(iter(ways.values()))))
    step = 0.22 if len(ways) > 2 else 0.3
    for i, (name, counted) in enumerate(ways.items()):
        ax.plot(where + step * (i - (len(ways) - 1) / 2), counted, linestyle="none", markersize=7,
                label=name, color=plots.COLOURS[i], marker=plots.MARKERS[i])  # fmt: skip
    ax.axhline(published, color="#555555", linestyle="--", label="published run, plain")
    low = min(published, *(min(c) for c in ways.values()))
    ax.set_ylim(low - 1.5, n + 6)
    ax.set_yticks(range(low // 5 * 5, n + 1, 5))
    ax.set_xticks(where)
    ax.set_xlabel("toy model (number)")
    ax.set_ylabel("features found (cosine > 0.99)")
    ax.set_title(title)
    ax.legend(loc="upper center", ncols=2)


def features_found(r):
    """How many features plain runs and clusters found, and all best cosines of all rivals."""
    t = r["toys"]
    n, published = t["setting"]["latents"], 32
    plain, means = t["plain"]["found"], t["rivals"]["k-means"]["found"]

    def counts(ax):
        ways = {"plain autoencoder": plain, "k-means, as many centres": means}
        _counts(ax, ways, n, published, f"Features found in {len(plain)} toys")

    def curves(ax):
        series = {
            "plain autoencoder": np.ravel(t["plain"]["best"]),
            **{name: t["rivals"][name]["best"] for name in RIVALS},
        }
        share = {}
        for name, best in series.items():
            ordered = np.sort(np.asarray(best, dtype=float))[::-1]
            at = np.unique(np.linspace(0, len(ordered) - 1, 81).astype(int))
            share[name] = (100 * (at + 1) / len(ordered), ordered[at])
        plots.lines(
            share,
            x_label="features, best first (% of all toys' features)",
            y_label="best cosine",
            title="How near the nearest direction comes",
            ax=ax,
        )
        ax.set_ylim(0, 1.05)
        ax.legend(loc="lower left", ncols=2, fontsize=8)

    told = ", ".join(f"{name} {np.median(t['rivals'][name]['best']):.2f}" for name in RIVALS)
    return plots.panels(
        [counts, curves],
        alt=f"Left: of {n} features, plain runs find {min(plain)} to {max(plain)} in "
        f"{len(plain)} toys, cluster centres {min(means)} to {max(means)}; the published run found "
        f"{published}. Right: median best cosines of other directions: {told}.",
        size=(11, 4.2),
    )


def what_was_lost(r):
    """Lost features, crowded or tilted, beside the spare latents of every plain run."""
    p = r["toys"]["plain"]
    lost, crowded, spare, idle = (np.array(p[k]) for k in ("lost", "crowded", "spare", "idle"))
    where = np.arange(len(lost))
    fig, ax = plots.canvas(size=(8, 3.8))
    stacks = (
        (-0.2, crowded, 0 * crowded, 3, "", "lost: shares its latent"),
        (-0.2, lost - crowded, crowded, 1, "//", "lost: own latent, tilted"),
        (0.2, idle, 0 * idle, 0, "", "spare latent: hardly fires"),
        (0.2, spare - idle, idle, 5, "..", "spare latent: fires"),
    )
    for shift, height, bottom, colour, hatch, name in stacks:
        ax.bar(where + shift, height, 0.38, bottom=bottom, color=plots.COLOURS[colour],
               hatch=hatch, edgecolor="white", label=name)  # fmt: skip
    ax.set_xticks(where)
    ax.set_ylim(0, max(*lost, *spare, 1) * 1.45)
    ax.set_xlabel("toy model (number)")
    ax.set_ylabel("count")
    ax.set_title("What plain runs lose, and which latents they do not use")
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(loc="upper center", ncols=2)
    return plots.Figure(
        fig,
        f"In {len(lost)} plain runs {lost.sum()} features are lost: {crowded.sum()} share their "
        f"latent, {(lost - crowded).sum()} have a tilted one. Of {spare.sum()} spare latents "
        f"{idle.sum()} hardly fire.",
    )


def latents_moved(r):
    """Features found when spare latents are moved, and the plain run's loss above the mended."""
    t = r["toys"]
    n = t["setting"]["latents"]
    ways = {name: t[way]["found"] for name, way in (
        ("plain", "plain"), ("mended", "mended"), ("moved blindly", "blind"))}  # fmt: skip
    shared = np.array(t["plain"]["shared"])
    rise = np.array(t["plain"]["loss"]) - np.array(t["mended"]["loss"])

    def counts(ax):
        _counts(ax, ways, n, 32, "Same toys, same starts, three ways to train")

    def cost(ax):
        plots.scatter(
            {"one toy model": (shared, rise)},
            x_label="features without a latent of their own (count)",
            y_label="loss above the mended run's",
            title="What the plain run pays",
            ax=ax,
        )
        ax.axhline(0, color="#555555", linewidth=0.8)
        ax.set_xticks(range(0, int(max(*shared, 1)) + 1))
        if ax.get_legend():
            ax.get_legend().remove()

    told = ", ".join(f"{name} {min(c)} to {max(c)}" for name, c in ways.items())
    return plots.panels(
        [counts, cost],
        alt=f"Left: features found of {n} in {len(shared)} toys: {told}. Right: the plain run's "
        f"loss minus the mended run's, from {rise.min():.4f} with {shared[rise.argmin()]} features "
        f"that share to {rise.max():.4f} with {shared[rise.argmax()]}.",
        size=(11, 4),
    )


def price_of_length(r):
    """The loss while the decoder grows, with and without its length; and how short values fall."""
    t = r["toys"]
    c, s, half = t["cheat"]["trained"], t["shrinkage"], t["half_penalty"]

    def cheat(ax):
        plots.lines(
            {
                "length in the penalty": c["with the length"],
                "length left out": c["without it"],
                "error alone": [c["error"]] * len(c["stretch"]),
            },
            x=c["stretch"],
            log_x=True,
            x_label="decoder rows made longer by (factor)",
            y_label="loss (squared length of h)",
            title="The same autoencoder, rescaled",
            ax=ax,
        )
        ax.set_ylim(0, 1.35 * max(c["with the length"]))
        ax.legend(loc="upper right", ncols=1)
        for line in ax.get_lines():
            line.set_markevery(1)

    def short(ax):
        a = np.array(s["value"])
        middle, low, high = (np.array(s[k]) for k in ("median", "low", "high"))
        plots.lines(
            {"encoder, median": middle},
            x=a,
            x_label="length of a single feature in h",
            y_label="missing length",
            title="Every value comes back too short",
            ax=ax,
        )
        ax.fill_between(a, low, high, color=plots.COLOURS[0], alpha=0.2, label="middle 80 %")
        ax.plot(a, s["best"], color=plots.COLOURS[3], marker="s", label="cheapest latents")
        ax.axhline(half, color="#555555", linestyle="--", label="half of λ")
        ax.set_ylim(0, 1.6 * max(high.max(), half))
        ax.legend(loc="upper left", ncols=2)

    return plots.panels(
        [cheat, short],
        alt=f"Left: rescaled {c['stretch'][-1]:.0f} times, the loss stays "
        f"{c['with the length'][-1]:.3f} with the row's length in the penalty and falls from "
        f"{c['without it'][0]:.3f} to {c['without it'][-1]:.3f} without. Right: single features "
        f"come back {s['median'][-1]:.3f} too short at the greatest length, with the cheapest "
        f"latents {s['best'][-1]:.3f}; half of λ is {half:.2f}.",
        size=(10.5, 3.8),
    )
