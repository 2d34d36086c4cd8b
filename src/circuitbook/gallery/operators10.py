"""Drawings of chapter 10's first part: routes, shares, the levels of "frozen"."""

import numpy as np

from circuitbook import plots
from circuitbook.gallery.survival import box

GREY = "#555555"
LOOK = {"no MLP": (0, ""), "MLP 0": (1, "//"), "MLP 1": (2, ".."), "MLP 0 + MLP 1": (3, "xx")}


WAYS = {"token": "the token", "head": "a head of layer 0", "head, MLP 0": "a head, then MLP 0",
        "bias row": "MLP 0's bias row", "position": "the position",
        "bias of the heads": "b_O of layer 0"}  # fmt: skip


def _order(name):
    heads, _, mlps = name.partition(", ")
    return list(LOOK).index(mlps), ("no head", "1 head", "2 heads").index(heads)


def route_groups(r):
    """What routes of each kind give the next token's logit, and which pairs of heads carry most."""
    o = r["operators"]["routes"]["gelu-2l"]
    groups = {k: v for k, v in o["by depth"].items() if not k.startswith("bias")}
    names = sorted(groups, key=_order) + [k for k in o["by depth"] if k.startswith("bias")]
    told = {n: o["by depth"][n] for n in names}

    def bars(ax):
        for i, (name, (mean, se)) in enumerate(told.items()):
            colour, hatch = LOOK.get(name.partition(", ")[2], (7, ""))
            ax.barh(i, mean, xerr=se, color=plots.COLOURS[colour], hatch=hatch, edgecolor="white",
                    capsize=3)  # fmt: skip
        ax.set_yticks(range(len(told)), labels=list(told))
        ax.invert_yaxis()
        ax.axvline(0, color=GREY, linewidth=0.8)
        ax.grid(visible=False, axis="y")
        ax.set_xlabel("centred logit of the next token (bar: one SE)")
        ax.set_title(f"{o['routes']} routes in {len(told)} groups: sum {o['logit'][0]:.1f}")

    def pairs(ax):
        plots.heatmap(
            o["pairs"],
            x_ticks=[f"1.{h}" for h in range(len(o["pairs"]))],
            y_ticks=[f"0.{h}" for h in range(len(o["pairs"]))],
            signed=True,
            colour_label="mean logit",
            title="Routes through two heads",
            x_label="second head",
            y_label="first head",
            ax=ax,
        )

    best = np.unravel_index(np.argmax(o["pairs"]), np.shape(o["pairs"]))
    listed = "; ".join(f"{n} {m:.2f}" for n, (m, _) in told.items())
    return plots.panels(
        [bars, pairs],
        alt=f"Left: mean contribution to the next token's centred logit by group of routes: "
        f"{listed}. Right: by pair of heads; the largest is 0.{best[0]} then 1.{best[1]} with "
        f"{np.max(o['pairs']):.2f}.",
        size=(11, 4.6),
    )


def reader_ways(r):
    """How the induction head's write for the name reached it, and how it went on."""
    o = r["operators"]["reader"]
    name = o["pair"][1]
    ways = o["ways"]
    before = list(dict.fromkeys(w.split(f" → {name}")[0] for w in ways))
    after = list(dict.fromkeys(w.split(" → ")[-1] for w in ways))
    fig, ax = plots.canvas(size=(8 if len(before) < 6 else 11, 3.6))
    for j, end in enumerate(after):
        where = np.arange(len(before)) + (j - (len(after) - 1) / 2) * 0.4
        rows = [ways.get(f"{b} → {name} → {end}", [0.0, 0.0]) for b in before]
        m, se = np.transpose(rows)
        label = "straight to the logits" if end == "direct" else f"on through {end}"
        ax.bar(where, m, 0.4, yerr=se, capsize=3, color=plots.COLOURS[j], hatch=("", "//")[j % 2],
               edgecolor="white", label=label)  # fmt: skip
    ax.set_xticks(range(len(before)), labels=[WAYS.get(b, b) for b in before])
    ax.axhline(0, color=GREY, linewidth=0.8)
    ax.grid(visible=False, axis="x")
    ax.set_xlabel(f"what head {name} read through its values")
    ax.set_ylabel("logit of the name (bar: one SE)")
    ax.set_title(f"Name prompts: every way through the induction head {name}")
    ax.legend()
    top = max(ways, key=lambda w: abs(ways[w][0]))
    listed = "; ".join(f"{w} {m:.2f}" for w, (m, _) in ways.items())
    return plots.Figure(fig, f"Logit of the name by way: {listed}. The largest is {top}.")


SHARES = ("forward", "forward, content", "forward, gate", "Jacobian")


def shares_against_effect(r):
    """Each linear share of a part beside what removing it costs; a point is a part at a place."""
    o = r["operators"]["shares"]
    roles = list(o)

    def totals(role):
        t = o[role]["totals"]
        return f"MLP writes {t['M']:.1f} logits, effects sum to {t['sum']['effect']:.1f}"

    def panel(role):
        def draw(ax):
            p = o[role]["points"]
            groups = {n: (p["effect"], p[n]) for n in SHARES if n in p}
            limit = float(np.quantile(np.abs([v for g in groups.values() for v in g]), 0.98))
            for i, (name, (x, y)) in enumerate(groups.items()):
                j = SHARES.index(name)
                rank, low, high = o[role]["agreement"][name]["rank correlation"]
                ax.scatter(x, y, s=14, alpha=0.6, color=plots.COLOURS[(0, 0, 2, 1)[j]],
                           marker=plots.MARKERS[(0, 0, 2, 1)[j]],
                           label=f"{name}: rank {rank:.2f} ({low:.2f} to {high:.2f}), "
                                 f"sum {o[role]['totals']['sum'][name]:.1f}",
                           zorder=2 + (i == 0))  # fmt: skip
            ax.axline((0, 0), slope=1, color=GREY, linestyle="--", linewidth=0.8)
            ax.axhline(0, color=GREY, linewidth=0.6)
            ax.axvline(0, color=GREY, linewidth=0.6)
            ax.set_xlim(-limit, limit)
            ax.set_ylim(-limit, limit * 1.45)  # room for the legend above the points
            ax.set_xlabel("effect of removal (logits)")
            ax.set_ylabel("share (logits)")
            same = "forward" in p and np.allclose(p["forward"], p["Jacobian"], atol=2e-3)
            head = role + (": one mark on top of the other" if same else "")
            ax.set_title(f"{head}\n{totals(role)}", fontsize=9)
            ax.legend(loc="upper left", fontsize=8)

        return draw

    listed = "; ".join(
        f"{role}: "
        + ", ".join(
            f"{n} {a['rank correlation'][0]:.2f} (sum {o[role]['totals']['sum'][n]:.1f})"
            for n, a in o[role]["agreement"].items()
            if n in SHARES
        )
        for role in roles
    )
    return plots.panels(
        [panel(role) for role in roles],
        alt="Shares of single parts against the effect of removing them, with the line where both "
        f"agree; the outermost 2 % of the values lie outside. Rank correlations, and in brackets "
        f"the mean sum over parts in logits: {listed}. "
        f"{'; '.join(f'{role}: {totals(role)}' for role in roles)}.",
        title="A point is one part at one position; the outermost 2 % of the values lie outside",
        columns=2,
        size=(10, 4.2 * ((len(roles) + 1) // 2)),
    )


def frozen_levels(r):
    """How far each meaning of "frozen" is from the model that is run again."""
    o = r["operators"]["levels"]
    rows = [(model, name, v) for model, d in o.items() for name, v in d["levels"].items()]
    fig, (left, right) = plots.canvas(1, 2, size=(11, 0.4 * len(rows) + 1.6), sharey=True)
    models = list(o)
    for i, (model, name, v) in enumerate(rows):
        c = models.index(model)
        for ax, key in ((left, "off"), (right, "rank correlation")):
            value, low, high = v[key]
            fill = "white" if "slopes" in name else plots.COLOURS[c]
            ax.errorbar(value, i, xerr=[[value - low], [high - value]], capsize=3, mfc=fill,
                        fmt=plots.MARKERS[c], color=plots.COLOURS[c], markersize=7)  # fmt: skip
    left.set_yticks(range(len(rows)), labels=[f"{m}: {n}" for m, n, _ in rows])
    left.invert_yaxis()
    left.set_xlim(left=0)
    for fill, label in ((GREY, "values held"), ("white", "slopes held: first order")):
        left.plot([], [], "o", mfc=fill, color=GREY, markersize=7, label=label)
    fig.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    left.set_xlabel("mean |held − re-run| / mean |re-run|")
    left.set_title("Error of the held answer")
    right.axvline(0, color=GREY, linewidth=0.8)
    right.set_xlabel("rank correlation with the re-run")
    right.set_title("Does it rank the heads alike?")
    listed = "; ".join(
        f"{m}, {n}: off {v['off'][0]:.0%}, rank {v['rank correlation'][0]:.2f}" for m, n, v in rows
    )
    return plots.Figure(
        fig, f"Removal of heads with different things held, against the re-run. {listed}."
    )


def operator_survival(r):
    """Which change of the weights moves which of this part's numbers."""
    moves = r["operators"]["survive"]
    # The last two are other functions; the second is there for models with LayerNorm.
    changes = [c for c in moves if c not in ("neurons rotated", "invertible G, not free")]
    return box(
        moves,
        changes,
        list(moves[changes[0]]),
        y_label="number",
        about="number of this part",
        size=(10, 4.2),
    )
