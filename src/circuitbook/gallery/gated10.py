"""Pictures of chapter 10's blocks that select: gate and content, router and experts."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from circuitbook import plots

KINDS = {
    "zero": "nothing in its place",
    "mean": "its mean",
    "resample": "another window's",
    "random": "control: random direction off",
    "elsewhere": "control: another's write off",
}
GATED = {"select": "gate only", "content": "content only", "both": "both"}
MIXED = {"select": "router only", "content": "experts only", "both": "both"}


def _points(
    rows: Mapping[str, Mapping[str, Any]],
    names: Mapping[str, str],
    x_label: str,
    y_label: str,
    title: str,
    legend: bool = True,
    scale: float = 1.0,
    first: int = 0,
) -> Callable:
    """A panel: a row for each name, a marker for each series, two standard errors either way.

    first: the marker and colour to begin with.
    """

    def draw(ax):
        shown = [key for key in names if any(key in row for row in rows.values())]
        step = 0.6 / max(1, len(shown))
        for i, key in enumerate(shown):
            have = [n for n in rows if key in rows[n]]
            at = np.array([list(rows).index(n) for n in have])
            mean = scale * np.array([rows[n][key][0] for n in have])
            error = 2 * scale * np.array([rows[n][key][1] for n in have])
            ax.errorbar(
                mean, at + (i - (len(shown) - 1) / 2) * step, xerr=error,
                fmt=plots.MARKERS[first + i], color=plots.COLOURS[first + i],
                capsize=2, markersize=5, linewidth=1, label=names[key],
            )  # fmt: skip
        ax.axvline(0, color="#555555", linewidth=0.8)
        ax.set_yticks(range(len(rows)), labels=list(rows))
        ax.set_ylim(len(rows) - 0.5, -0.5)
        ax.set_xlabel(x_label)
        ax.set_ylabel(y_label)
        ax.set_title(title)
        if legend:
            ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=len(shown), fontsize=8)

    return draw


def _heads(cuts: Mapping[str, Any], key: str | None = None) -> dict[str, Any]:
    """Rows of the single heads, with nothing in the write's place."""
    rows = {n: c["zero"] for n, c in cuts.items() if n.startswith("head")}
    return rows if key is None else {n: row[key] for n, row in rows.items()}


def _told(rows: Mapping[str, Any], names: Mapping[str, str], digits: int = 3) -> str:
    return "; ".join(
        f"{n}: " + ", ".join(f"{names[k]} {row[k][0]:.{digits}f}" for k in names if k in row)
        for n, row in rows.items()
    )


def _reads(d: Mapping[str, Any], names: Mapping[str, str], what: str) -> plots.Figure:
    two = {k: names[k] for k in ("select", "content")}
    together = {KINDS[k]: row for k, row in d["cuts"]["all heads"].items()}
    single = "part whose write is missing"
    bars = "(two standard errors)"
    return plots.panels(
        [
            _points(_heads(d["cuts"]), two, f"rise of the loss (nats)\n{bars}", single,
                    "One head, the loss"),
            _points(_heads(d["cuts"], "kl"), two, f"KL from the whole model (nats)\n{bars}", single,
                    "One head, the prediction"),
            _points(together, names, f"rise of the loss (nats)\n{bars}", "what stands there",
                    "All heads together"),
        ],
        columns=3,
        alt=f"{what}: rise of the loss when only one read of the block misses a head's write. All "
        f"heads: {_told(together, names)}. One head, KL: {_told(_heads(d['cuts'], 'kl'), two, 4)}.",
        size=(12.5, 4.6),
    )  # fmt: skip


def gate_and_content(r: Mapping[str, Any]) -> plots.Figure:
    """Cutting what the gate reads, or what the content reads, head by head and all together."""
    return _reads(r["gated"], GATED, "SwiGLU")


def router_and_experts(r: Mapping[str, Any]) -> plots.Figure:
    """Cutting what the router reads, or what the experts read, head by head and all together."""
    return _reads(r["experts"], MIXED, "Mixture of experts")


def composition(r: Mapping[str, Any]) -> plots.Figure:
    """Weight-only scores of heads with both reads, and what foretells realised composition."""
    d = r["gated"]
    s, agree = d["scores"], d["promised and realised"]
    heads = [n for n in d["sizes"] if n.startswith("head 0")]
    routes = {"gate": "gate", "content": "content"}

    def scores(ax):
        for i, k in enumerate(routes):
            at = np.arange(len(heads)) + (i - 0.5) * 0.25
            ax.plot(at, s[k]["score"], plots.MARKERS[i], color=plots.COLOURS[i], label=k)
            low = np.array(s[k]["turned"])
            high = np.array(s[k]["turned, high"]) - low
            ax.errorbar(
                at, low, yerr=[0 * high, high], fmt="_", color="#777777", capsize=3,
                label="stream turned: mean to highest" if i == 0 else None,
            )  # fmt: skip
        ax.axhline(s["1/sqrt(d)"], color="#555555", linestyle="--", linewidth=0.8, label="1/√d")
        ax.set_xticks(range(len(heads)), labels=[n.removeprefix("head ") for n in heads])
        ax.set_xlabel("head")
        ax.set_ylabel("composition score (from weights)")
        ax.set_title("What weights promise")
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=8)

    ways = list(agree["gate"])

    def foretold(ax):
        plots.bars(
            {k: [agree[k][w] for w in ways] for k in routes}, groups=ways, horizontal=True,
            x_label="rank correlation with realised composition", y_label="foretold from",
            title="All heads, all channels", ax=ax,
        )  # fmt: skip
        ax.set_xlim(-0.05, 1)
        ax.axvline(0, color="#555555", linewidth=0.8)
        ax.legend(loc="lower right")

    def spread(ax):
        plots.bars(
            {k: [d["sizes"][n]["channels"][k] / d["channels wide"] for n in heads] for k in routes},
            groups=[n.removeprefix("head ") for n in heads], x_label="head",
            y_label="channels reached (effective share)", title="How many channels", ax=ax,
        )  # fmt: skip
        for i, k in enumerate(routes):
            by = [d["sizes"][n]["channels, random"][k] / d["channels wide"] for n in heads]
            at = np.arange(len(heads)) + (i - 0.5) * 0.4
            label = None if i else "random write as long"
            ax.plot(at, by, "_", color="#222222", markersize=9, label=label)
        ax.set_ylim(0, 1.15)
        ax.legend(loc="upper center", ncols=3, fontsize=8)

    told = "; ".join(
        f"{w}: gate {agree['gate'][w]:.2f}, content {agree['content'][w]:.2f}" for w in ways
    )
    mean, chance = (
        {k: np.mean([d["sizes"][n][what][k] for n in heads]) / d["channels wide"] for k in routes}
        for what in ("channels", "channels, random")
    )
    return plots.panels(
        [scores, foretold, spread],
        columns=3,
        alt=f"Composition scores of {len(heads)} heads with gate (highest "
        f"{max(s['gate']['score']):.3f}) and content (highest {max(s['content']['score']):.3f}); "
        f"1/√d is {s['1/sqrt(d)']:.4f}. Rank correlation with realised composition, {told}. A head "
        f"reaches {mean['gate']:.0%} of the gates and {mean['content']:.0%} of the content "
        f"channels in effective number; a random write as long {chance['gate']:.0%} and "
        f"{chance['content']:.0%}.",
        size=(12.5, 4.2),
    )


def expert_use(r: Mapping[str, Any]) -> plots.Figure:
    """Share of the selections of each expert, and the words that it is selected for."""
    d = r["experts"]
    share, rows, n = d["load"]["share"], d["words"]["experts"], d["experts"]

    def load(ax):
        plots.bars(
            {str(e): 100 * x for e, x in enumerate(share)}, baseline=100 / n, x_label="expert",
            y_label="share of the selections (%)", title="Load (dashed: even)", ax=ax,
        )  # fmt: skip

    def words(ax):
        ax.set_axis_off()
        ax.set_title("Words by lift (P selected at this word / at any word)")
        style = {"transform": ax.transAxes, "va": "center", "fontsize": 8.5, "parse_math": False}
        for i, row in enumerate(rows):
            y = 1 - (i + 0.6) / len(rows)
            lift, chance = row["lift"][0], row["by chance"][0]
            shown = "  ".join(plots.token(w)[:12] for w in row["words"])
            ax.text(0.0, y, f"{row['expert']}", weight="bold", **style)
            ax.text(0.05, y, f"up to ×{lift:.1f} (by chance ×{chance:.1f})", **style)
            ax.text(0.42, y, shown, family="monospace", **style)

    told = "; ".join(
        f"{row['expert']}: {100 * share[row['expert']]:.1f} %, "
        + ", ".join(plots.token(w) for w in row["words"][:3])
        for row in rows
    )
    return plots.panels(
        [load, words],
        alt=f"Load and words of {n} experts over {d['tokens routed']} tokens. {told}.",
        size=(12.5, 4.0),
    )


def who_routes(r: Mapping[str, Any]) -> plots.Figure:
    """Which part makes the router's logits vary, which the margin, and whose absence moves sets."""
    who = r["experts"]["deciders"]
    names = who["names"]

    def shares(ax):
        for i, (key, words) in enumerate({"logits": "all logits", "margin": "margin"}.items()):
            x = {k: 100 * np.array(who[key][k]) for k in ("share", "low", "high")}
            at = np.arange(len(names)) + (i - 0.5) * 0.25
            ax.errorbar(
                x["share"], at, xerr=[x["share"] - x["low"], x["high"] - x["share"]],
                fmt=plots.MARKERS[i], color=plots.COLOURS[i], capsize=2, label=words,
            )  # fmt: skip
        ax.set_yticks(range(len(names)), labels=["the word" if n == "direct" else n for n in names])
        ax.set_ylim(len(names) - 0.5, -0.5)
        ax.axvline(0, color="#555555", linewidth=0.8)
        ax.set_xlabel("share of the variance (%, 95 % interval)")
        ax.set_ylabel("part of the stream")
        ax.set_title("Who makes the router's logits vary")
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=8)

    rows = {
        "the word" if n == "direct" else n: {k: x[k] for k in ("zero", "mean")}
        for n, x in who["set changes"].items()
    }
    shown = {"mean": "held at its mean", "zero": "taken away"}
    changes = _points(rows, shown, "selected set changes (% of positions, two standard errors)",
                      "missing from the router", "Without this part",
                      scale=100.0, first=2)  # fmt: skip

    told = "; ".join(
        f"{n}: {100 * a:.0f} % of logits, {100 * b:.0f} % of the margin"
        for n, a, b in zip(names, who["logits"]["share"], who["margin"]["share"], strict=True)
    )
    both = who["set changes"]
    return plots.panels(
        [shares, changes],
        alt=f"Shares of the variance by part. {told}. Held at their mean, all heads change the set "
        f"at {both['all heads']['mean'][0]:.0%} of positions, the word at "
        f"{both['direct']['mean'][0]:.0%}.",
        size=(12.0, 4.4),
    )


def other_routings(r: Mapping[str, Any]) -> plots.Figure:
    """Loss when experts are chosen otherwise; set and weights apart; and by size of the margin."""
    d = r["experts"]
    ways = {n: {"rise": x} for n, x in d["routings"].items()}
    parts = d["set and weights"]
    split = {
        f"{'the word' if n == 'direct' else n}: {k}": {"rise": parts[n][k]}
        for n in parts
        for k in ("both", "set only", "weights only")
    }
    bins = d["by margin"]["bins"]
    quarters = {f"margin {b['from']:.2f} to {b['to']:.2f}": b for b in bins}
    one, label = {"rise": "rise"}, "rise of the loss (nats)\n(two standard errors)"
    told = "; ".join(f"{n} {x['rise'][0]:+.3f}" for n, x in (ways | split | quarters).items())
    return plots.panels(
        [
            _points(ways, one, label, "who is asked", "Experts chosen otherwise", legend=False),
            _points(
                split, one, label, "what follows", "The router misses a part (mean)", legend=False
            ),
            _points(
                quarters,
                one,
                label,
                "quarter of positions",
                "Runner-up for the weakest",
                legend=False,
            ),
        ],
        columns=3,
        alt=f"Rise of the loss in nats under other routings. {told}.",
        size=(13.0, 3.6),
    )


def likeness_rows(r: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The table selection / content for `plots.table`, each cost with its standard error."""

    def shown(value):
        pair = isinstance(value, list | tuple)
        return f"{value[0]:+.3f} ± {value[1]:.3f}" if pair else value

    rows = [{k: shown(v) for k, v in row.items()} for row in r["selection"]["rows"]]
    for row in rows:
        row["other positions reach"] = f"{row['other positions reach']:.0%} of writes"
    return rows


def measure_rows(r: Mapping[str, Any], which: str = "gated") -> list[dict[str, Any]]:
    """Which read is used more, measure by measure, for `plots.table`."""
    select = "gate" if which == "gated" else "router"
    return [
        {
            "measure": m,
            f"heads: {select}": x["select"],
            "heads: content": x["content"],
            "heads: undecided": x["neither"],
            f"all heads, {select} minus content": f"{x['all heads'][0]:+.3f} ± "
            f"{x['all heads'][1]:.3f}",
        }
        for m, x in r[which]["used more"].items()
    ]
