"""Drawings of chapter 10: finite changes, a head's three routes, four patching methods."""

import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from circuitbook import plots

GREY = "#555555"
LINEAR, DECADES = 0.02, (-1, -0.1, 0, 0.1, 1, 10)  # of the axes of `methods`, in logits
ROUTES = ("value", "query", "key")
METHODS = {
    "activation": "activation patching",
    "attribution": "attribution patching (first order)",
    "integrated": "integrated gradients",
    "direct": "path patching, straight to the logits",
}
BLOCKS = {"gelu-1l": "GELU", "swiglu-1l": "SwiGLU", "relu-1l": "ReLU"}


def convergence(r):
    """Relative error of the midpoint rule by steps: smooth, kinked, and with jumps in the way."""
    f = r["finite"]
    e, steps = f["experts"], f["steps"]
    series = {f"{word}, {role}": f["blocks"][role]["errors"] for role, word in BLOCKS.items()}
    series |= {"experts, moe-1l": e["errors"], "the same, jumps added": e["without_jumps"]}

    def draw(ax):
        plots.lines(
            series, x=steps, log_x=True, log_y=True, x_label="steps of the midpoint rule",
            y_label="what it misses (share of the change)",
            title="Sums of small changes against the finite change", ax=ax,
        )  # fmt: skip
        ax.axhline(e["floor"], color=GREY, linestyle="--", linewidth=0.9)
        ax.annotate("sum of the jumps", (steps[-1], e["floor"]), (0, -5), va="top", ha="right",
                    fontsize=9, textcoords="offset points", color=GREY)  # fmt: skip
        # The slopes to look for, anchored below the data.
        k = np.array([steps[2], steps[-1]], dtype=float)
        low = 0.4 * min(min(v) for v in series.values())
        for power, words in ((1, "1/steps"), (2, "1/steps²")):
            y = low * (k / k[-1]) ** -power
            ax.plot(k, y, color=GREY, linestyle=":", linewidth=1.2)
            ax.annotate(words, (k[0], y[0]), (-4, 0), ha="right", va="center", fontsize=9,
                        textcoords="offset points", color=GREY)  # fmt: skip
        ax.set_xticks(steps, labels=[str(s) for s in steps])
        ax.minorticks_off()

    last = "; ".join(f"{n} {v[-1]:.1e}" for n, v in series.items())
    return plots.panels(
        [draw],
        columns=1,
        alt=f"Relative error of the midpoint rule against its number of steps, both logarithmic. "
        f"At {steps[-1]} steps: {last}. The line of the experts stays at the dashed floor, "
        f"{e['floor']:.2f}, the sum of the jumps.",
        size=(8.6, 4.4),
    )


def attention_routes(r):
    """Size of a head's value, query and key routes, for two directions in two models."""
    models = r["attnjac"]["models"]

    def panel(role, writer, words):
        row = models[role]["table"][writer]
        heads = [f"1.{h}" for h in range(len(row["missed"]))]

        def draw(ax):
            plots.bars(
                dict(zip(ROUTES, row["size"], strict=True)), groups=heads,
                x_label="reading head", y_label="size of the change (rms norm)",
                title=f"{role}: along {words}", ax=ax,
            )  # fmt: skip
            top = np.max(row["size"])
            ax.set_ylim(0, 1.28 * top)
            for i, missed in enumerate(row["missed"]):
                ax.text(i, 1.0 * max(x[i] for x in row["size"]) + 0.02 * top, f"{missed:.0%}",
                        ha="center", va="bottom", fontsize=8, color=GREY)  # fmt: skip
            ax.legend(loc="upper left", ncols=3)

        return draw

    shown = [(role, w, words) for role in models for w, words in (
        ("embedding", "the embedding"),
        (models[role]["pair"][0], f"what {models[role]['pair'][0]} wrote"))]  # fmt: skip
    told = []
    for role, writer, words in shown:
        reader = int(models[role]["pair"][1].split(".")[1])
        sizes = [x[reader] for x in models[role]["table"][writer]["size"]]
        parts = ", ".join(f"{n} {x:.2f}" for n, x in zip(ROUTES, sizes, strict=True))
        told.append(f"{role} along {words}: {parts}")
    return plots.panels(
        [panel(*x) for x in shown],
        alt="Root mean square size of the value, query and key routes of every second-layer head, "
        "with the share that frozen patterns miss written above. For the induction head: "
        + "; ".join(told) + ".",
        title="Percent: what frozen patterns miss of the whole change (query and key together)",
        size=(11, 6.8),
    )  # fmt: skip


def methods(r):
    """Three methods against activation patching on two tasks, and what each costs."""
    m = r["methods"]
    role = "attn-only-2l"
    run = m["runs"]
    # Drawn from large to small, hollow under full: many points coincide.
    marks = {
        "direct": {"marker": "^", "s": 130, "facecolor": "none", "edgecolor": plots.COLOURS[2]},
        "integrated": {"marker": "s", "s": 60, "facecolor": "none", "edgecolor": plots.COLOURS[3]},
        "attribution": {"marker": "o", "s": 20, "color": plots.COLOURS[0]},
    }

    def against(task):
        one = run[role][task]
        x = np.array(one["effects"]["activation"])

        def draw(ax):
            for w, look in marks.items():
                ax.scatter(x, one["effects"][w], linewidth=1.3, **look)
            ax.axline((0, 0), (1, 1), color=GREY, linestyle="--", linewidth=0.8, zorder=0)
            for scale in (ax.set_xscale, ax.set_yscale):
                scale("symlog", linthresh=LINEAR, linscale=0.4)
            for axis in (ax.xaxis, ax.yaxis):
                axis.set_major_locator(FixedLocator(DECADES))
                axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
                axis.set_minor_locator(NullLocator())
            low = min(min(one["effects"][w]) for w in METHODS)
            ax.set(xlim=(1.5 * min(low, -LINEAR), 20), ylim=(1.5 * min(low, -LINEAR), 20))
            ax.set_xlabel("activation patching (logits)")
            ax.set_ylabel("the method (logits)")
            ax.set_title(f"{task}: heads of {role}")
            # The writer is named at its first-order point, the reader above its own.
            for n, way, shift in zip(one["pair"], ("attribution", "direct"), ((6, -3), (-4, 9)),
                                     strict=True):  # fmt: skip
                at = one["nodes"].index(n)
                if abs(x[at]) > 0.1 * x.max():
                    ax.annotate(n, (x[at], one["effects"][way][at]), shift, fontsize=9,
                                textcoords="offset points")  # fmt: skip

        return draw

    def price(ax):
        passes = run["gelu-2l"]["match broken"]["passes"]
        names = list(METHODS)
        forward, backward = ([passes[n][i] for n in names] for i in (0, 1))
        y = np.arange(len(names))
        ax.barh(y, forward, color=plots.COLOURS[0], label="forward")
        ax.barh(y, backward, left=forward, color=plots.COLOURS[1], hatch="//", edgecolor="white",
                label="backward")  # fmt: skip
        ax.set_yticks(y, labels=[METHODS[n].replace(", ", ",\n").replace(" (", "\n(")
                                 for n in names])  # fmt: skip
        ax.invert_yaxis()
        ax.grid(visible=False, axis="y")
        ax.set_xlabel("passes for each prompt, all components")
        ax.set_title("what it costs (gelu-2l)")
        ax.legend(loc="lower right")

    def key(ax):
        ax.axis("off")
        for w, look in marks.items():
            ax.scatter([], [], linewidth=1.3, label=METHODS[w], **look)
        ax.plot([], [], color=GREY, linestyle="--", label="as activation patching says")
        ax.legend(loc="center", title="a point is a head, mean over prompts;\naxes are linear "
                  f"within ±{LINEAR}", alignment="left")  # fmt: skip

    writer = run[role]["match broken"]["writer"]
    passes = run["gelu-2l"]["match broken"]["passes"]
    cost = "; ".join(f"{METHODS[n]} {f:.0f} forward and {b:.0f} backward"
                     for n, (f, b) in ((n, passes[n]) for n in METHODS))  # fmt: skip
    return plots.panels(
        [against("name exchanged"), against("match broken"), key, price],
        alt=f"Effects of single heads by method against activation patching in {role}. With the "
        f"match broken, head {run[role]['match broken']['pair'][0]} restores "
        f"{writer['activation'][0]:.2f} logits; first order says {writer['attribution'][0]:.2f}, "
        f"integrated gradients {writer['integrated'][0]:.2f}, straight to the logits "
        f"{abs(writer['direct'][0]):.2f}. Passes for each prompt: {cost}.",
        size=(11, 7.2),
    )  # fmt: skip


def first_order_fails(r):
    """The answer's lead as one write is put back by degrees, and the slope at the start."""
    case = r["methods"]["cases"]["largest"]
    t, y = np.array(case["t"]), np.array(case["metric"])
    verdict = "the slope knows nothing of the step"
    if r.made_with["models"] == "published":
        verdict = "slope and step"

    def draw(ax):
        line = y[0] + t * case["first_order"]
        plots.lines(
            {"the model, run again": y, "first order at the start": line},
            x=t, x_label=f"share of head {case['node']}'s write that is put back",
            y_label=f"logit of “{case['right'].strip()}” minus “{case['wrong'].strip()}”",
            title=f"Head {case['node']} on the worst prompt: {verdict}",
            ax=ax,
        )  # fmt: skip
        ax.axhline(0, color=GREY, linewidth=0.8)
        ax.annotate(f"{case['truth']:+.2f}", (1, y[-1]), (-12, 0), textcoords="offset points",
                    ha="right", va="center", fontsize=9)  # fmt: skip
        ax.annotate(f"{case['first_order']:+.2f}", (1, line[-1]), (0, 6),
                    textcoords="offset points", ha="right", fontsize=9)  # fmt: skip

    half = t[np.argmax(y - y[0] >= (y[-1] - y[0]) / 2)]
    return plots.panels(
        [draw],
        columns=1,
        alt=f"The logit difference rises by {case['truth']:.2f} as the write of head "
        f"{case['node']} is put back; half of that is reached only at {half:.2f} of the write. The "
        f"straight line of first order rises by {case['first_order']:.2f}.",
        size=(7.6, 4.0),
    )
