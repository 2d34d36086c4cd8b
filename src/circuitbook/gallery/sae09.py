"""Pictures of chapter 09's autoencoder: what it recovers, how single-minded it is, steering."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from circuitbook import plots
from circuitbook.gallery.survival import box

KINDS = ("latents", "neurons", "random directions", "latents, shuffled")
CODINGS = {
    "neurons": "largest neurons",
    "PCA": "largest components",
    "writes": "components of the write",
    "random": "random directions",
    "examples": "other activations",
}


def _short(word: str, most: int = 10) -> str:
    """A token made visible, cut where it is long."""
    shown = plots.token(word)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def frontier(r: Mapping[str, Any]) -> plots.Figure:
    """Loss recovered and variance kept against L0: penalties, TopK, other codings."""
    d = r["sae"]
    curve = sorted((row for row in d["frontier"] if row["penalty"]), key=lambda row: row["l0"])
    short = [row for row in d["frontier"] if not row["penalty"]]
    groups = {
        "standard, short runs": curve,
        "TopK, short run": short,
        "TopK, the bundled one": [d["quality"]],
        **{
            f"{word} (no training)": [{"l0": d["k"], **d["baselines"][name]}]
            for name, word in CODINGS.items()
        },
    }

    def draw(key, label):
        def panel(ax):
            for i, (name, rows) in enumerate(groups.items()):
                if key == "variance_kept" and name.startswith(CODINGS["writes"]):
                    continue  # it keeps the write and not the neurons
                x, y = ([row[k] for row in rows] for k in ("l0", key))
                style = {"color": plots.COLOURS[i], "marker": plots.MARKERS[i]}
                ax.plot(x, y, label=name, linestyle="-" if i == 0 else "", markersize=7, **style)
            for row in curve if key == "recovered" else ():
                ax.annotate(
                    f"λ {row['penalty']:g}",
                    (row["l0"], row[key]),
                    (4, -11),
                    textcoords="offset points",
                    fontsize=8,
                )
            ax.set_xscale("log")
            ax.set_xlim(min(20, curve[0]["l0"] * 0.8), curve[-1]["l0"] * 1.5)
            ticks = [t for t in (10, 20, 40, 80, 160, 320) if ax.get_xlim()[0] <= t]
            ax.set_xticks(ticks, labels=[str(t) for t in ticks])
            ax.minorticks_off()
            ax.set_xlabel("L0: latents (or numbers) on, mean over positions")
            ax.set_ylabel(label)
            ax.axhline(1, color="#555555", linewidth=0.8, linestyle="--")
            ax.set_ylim(None, 1.03)
            if key == "recovered":
                ax.legend(loc="lower right", fontsize=8)

        return panel

    q = d["quality"]
    told = ", ".join(
        f"{word} {d['baselines'][name]['recovered']:.0%}" for name, word in CODINGS.items()
    )
    return plots.panels(
        [
            draw("recovered", "loss recovered (zero ablation 0, model 1)"),
            draw("variance_kept", "variance of the neurons kept"),
        ],
        alt=f"Loss recovered and variance kept against the number of latents on. The bundled "
        f"autoencoder recovers {q['recovered']:.0%} at {q['l0']:.0f}; without training, at as many "
        f"numbers: {told}. Standard ones trained briefly run from {curve[0]['recovered']:.0%} at "
        f"{curve[0]['l0']:.0f} to {curve[-1]['recovered']:.0%} at {curve[-1]['l0']:.0f}.",
        size=(11, 4.4),
    )


def single_minded(r: Mapping[str, Any]) -> plots.Figure:
    """How many of the n strongest positions hold the same word, for each kind of unit."""
    m = r["sae"]["minds"]
    n = m["n"]

    def panel(ax):
        at = np.arange(1, n + 1)
        for i, kind in enumerate(KINDS):
            counts = np.array(m["counts"][kind], dtype=float)
            share = counts[::-1].cumsum()[::-1] / counts.sum()
            ax.plot(at, share, color=plots.COLOURS[i], marker=plots.MARKERS[i], label=kind)
        ax.set_xticks(at)
        ax.set_xlabel(f"one word stands at so many of a unit's {n} strongest positions, or more")
        ax.set_ylabel("share of units")
        ax.set_ylim(0, 1.03)
        ax.legend()

    medians = ", ".join(f"{k} {m['kinds'][k]['quartiles'][1]:.0%}" for k in KINDS)
    return plots.panels(
        [panel],
        alt=f"Share of units for which one word stands at a given number of their {n} strongest "
        f"positions. Medians: {medians}. A random latent beats a random neuron "
        f"{m['above']['neurons']:.0%} of the time.",
        size=(7.5, 4.2),
    )


def _dose(r: Mapping[str, Any], key: str, label: str, scale: float, title: str):
    s = r["sae"]["steer"]
    x = np.array([0.0, *s["doses"]])

    def panel(ax):
        start = scale * s["before"] if key == "p" else 0.0
        error = "rise_se" if key == "p" else "loss_se"
        for i, kind in enumerate(("latent", "random directions", "other latents")):
            y = np.array([start, *(scale * v for v in s[kind][key])])
            e = np.array([0.0, *(scale * v for v in s[kind][error])])
            name = f"latent {s['index']}" if i == 0 else f"{kind}, mean of several"
            ax.plot(x, y, color=plots.COLOURS[i], marker=plots.MARKERS[i], label=name)
            ax.fill_between(x, y - e, y + e, color=plots.COLOURS[i], alpha=0.2, linewidth=0)
        ax.axvline(1, color="#555555", linewidth=0.8, linestyle="--")
        ax.set_xlabel("dose (1: the highest activation seen in the text)")
        ax.set_ylabel(label)
        ax.set_title(title)
        ax.legend(loc="upper left")

    return panel


def steering(r: Mapping[str, Any]) -> plots.Figure:
    """The written words' probability and the loss against the dose of one latent."""
    s = r["sae"]["steer"]
    at = s["doses"].index(1.0)
    heading = "It writes " + ", ".join(_short(w) for w in s["written"][:4]) + " …"
    label = f"probability of the {len(s['written'])} words (%)"
    return plots.panels(
        [
            _dose(r, "p", label, 100, heading),
            _dose(r, "loss", "rise of the loss (nats)", 1, "What it costs"),
        ],
        alt=f"Latent {s['index']} added at every position. At the highest activation seen, its "
        f"written words go from {s['before']:.1%} to {s['latent']['p'][at]:.1%} and the loss rises "
        f"by {s['latent']['loss'][at]:.2f} nats; at {s['doses'][-1]:g} times that, "
        f"{s['latent']['p'][-1]:.0%} and {s['latent']['loss'][-1]:.1f} nats.",
        size=(11, 4),
    )


def dashboards(r: Mapping[str, Any], kind: str = "best") -> plots.Figure:
    """Ten latents as a page: three contexts of each, and what it writes."""
    boards = r["sae"][kind]

    def line(board):
        def panel(ax):
            ax.set_axis_off()
            word = f"{board['share']:.0%} {_short(board['word'])}"
            where = "before it" if board["place"] == "previous token" else "at it"
            head = f"latent {board['latent']} · fires {board['fires']:.2%} · {word} {where}"
            wrote = " ".join(_short(w) for w in board["writes"][:6])
            text = {"parse_math": False, "fontsize": 8, "transform": ax.transAxes, "va": "top"}
            text["in_layout"] = False
            ax.text(0, 1.0, head, weight="bold", **text)
            ax.text(0, 0.78, f"writes: {wrote}", color="#555555", **text)
            for i, (before, token, after) in enumerate(board["contexts"][:3]):
                y = 0.56 - 0.22 * i
                cuts = (slice(-24, None), slice(0, 18), slice(0, 12))
                parts = [re.sub(" {5,}", "    ", part) for part in (before, token, after)]
                shown = [plots.token(p)[cut] for p, cut in zip(parts, cuts, strict=True)]
                ax.text(0.46, y, shown[0], ha="right", family="monospace", **text)
                loud = {"weight": "bold", "color": "#B04A00", "family": "monospace"}
                ax.text(0.47, y, shown[1], **loud, **text)
                gap = 0.47 + 0.0175 * len(shown[1]) + 0.01
                ax.text(gap, y, shown[2], family="monospace", **text)

        return panel

    told = "; ".join(f"{b['latent']}: {_short(b['word'])} {b['share']:.0%}" for b in boards)
    m = r["sae"]["minds"]
    which = f"Ten of {m['kinds']['latents']['n']} latents, drawn blindly"
    if kind == "best":
        full = m["counts"]["latents"][-1]
        which = f"Ten of {full} latents with one word at all {m['n']} positions, the most active"
        if full < len(boards):
            which = "The ten most single-minded latents"
    return plots.panels(
        [line(b) for b in boards],
        columns=2,
        title=f"{which}. Contexts and written words",
        alt=f"{which}, each with the token most common at its strongest positions and the share "
        f"that it has there. {told}.",
        size=(11, 8.5),
    )


def survives(r: Mapping[str, Any]) -> plots.Figure:
    """Which number about a latent moves under which change that keeps every probability."""
    moves = r["sae"]["moves"]
    quantities = list(next(iter(moves.values())))
    return box(
        moves,
        list(moves),
        quantities,
        y_label="number",
        about="number about a latent",
        size=(9, 3.8),
    )


def dashboard_rows(r: Mapping[str, Any], kind: str = "best") -> list[dict[str, Any]]:
    """One row for each latent, for `plots.table`."""
    return [
        {
            "latent": b["latent"],
            "fires (%)": 100 * b["fires"],
            "highest (activation)": b["highest"],
            "one word (%)": round(100 * b["share"]),
            "the word": _short(b["word"]),
            "stands": "before" if b["place"] == "previous token" else "at it",
            "writes": " ".join(_short(w) for w in b["writes"][:5]),
            "turned on by": " ".join(_short(w) for w in b["inputs"][:5]) or "no word alone",
            "source of the strongest": b["sources"][0],
        }
        for b in r["sae"][kind]
    ]
