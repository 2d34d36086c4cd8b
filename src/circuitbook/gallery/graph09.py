"""Drawings of chapter 09: pruned attribution graphs, and their predictions against the model."""

import numpy as np
from matplotlib.lines import Line2D

from circuitbook import plots
from circuitbook.attribution.layout import place, widest

KINDS = {
    "token": ("token", 7, "s"),
    "latent": ("latent of a transcoder", 0, "o"),
    "error": ("error: not explained", 1, "D"),
    "biases": ("biases", 4, "P"),
    "logit": ("logit of the answer", 2, "^"),
}
PLATE = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 0.4}
UP, DOWN = plots.COLOURS[0], plots.COLOURS[3]


THICK = {"logit": 3.6, "latent": 2.2}  # points of the widest edge into such a node


def graph_picture(r, name="God"):
    """One pruned attribution graph: positions on x, layers on y, signed edges.

    Edges into the logit are far larger than edges into latents: widths have a scale for each.
    """
    g, latents = r["graph"]["prompts"][name], r["graph"]["latents"]
    at, nodes, edges = place(g), g["nodes"], g["edges"]
    top = widest(g)

    def draw(ax):
        for s, t, w in zip(edges["source"], edges["target"], edges["weight"], strict=True):
            kind = nodes["kind"][t]
            size = (abs(w) / top[kind]) ** 0.5
            ax.plot(
                [at.x[s], at.x[t]],
                [at.y[s] + 0.15, at.y[t] - 0.2],
                color=UP if w > 0 else DOWN,
                linestyle="-" if w > 0 else "--",
                linewidth=0.3 + (THICK[kind] - 0.3) * size,
                alpha=0.2 + 0.65 * size,
                zorder=1,
            )
        for low, high, words in at.bands:
            ax.axhspan(low - 0.35, high + 0.35, color="#F3F3F3", zorder=0)
            ax.text(0.05, high + 0.1, words, va="top", fontsize=9, color="#444444")
        ax.vlines(
            at.borders[1:-1], -0.2, at.height - 1.4, color="#CCCCCC", linewidth=0.6, zorder=0.5
        )
        for kind, (_, colour, marker) in KINDS.items():
            mine = [i for i, k in enumerate(nodes["kind"]) if k == kind]
            ax.scatter(
                [at.x[i] for i in mine],
                [at.y[i] for i in mine],
                s=40 if kind == "token" else 90,
                marker=marker,
                color=plots.COLOURS[colour],
                edgecolor="white",
                zorder=2,
            )
        for i, kind in enumerate(nodes["kind"]):
            if kind == "latent":
                ax.text(at.x[i], at.y[i] - 0.24, nodes["index"][i], ha="center", va="top",
                        fontsize=6.5, zorder=3,
                        bbox=PLATE)  # fmt: skip
        for x, text in zip(at.columns, g["tokens"], strict=True):
            shown = "BOS" if text == "<|bos|>" else plots.token(text)
            ax.text(x, -0.25, shown, ha="right" if len(g["tokens"]) > 10 else "center", va="top",
                    fontsize=9, rotation=60 if len(g["tokens"]) > 10 else 0,
                    rotation_mode="anchor", parse_math=False)  # fmt: skip
        logit = nodes["kind"].index("logit")
        ax.text(at.x[logit] - 0.5, at.y[logit], f"{plots.token(g['answer'])}  {g['logit']:.1f}",
                ha="right", va="center", fontsize=10, parse_math=False)  # fmt: skip
        ax.text(0.5, -0.25, "biases", ha="center", va="top", fontsize=9)
        ax.set_xlim(0, at.width)
        ax.set_ylim(-1.9 if len(g["tokens"]) > 10 else -0.8, at.height)
        ax.set_xticks([])
        ax.set_yticks([])
        ax.grid(visible=False)
        ax.spines[["left", "bottom"]].set_visible(False)
        ax.set_xlabel("position in the prompt")
        ax.set_ylabel("layer")
        ax.set_title(
            f"{plots.token(g['answer'])} after “… {''.join(g['tokens'][-4:]).strip()}”: "
            f"{len(edges['weight'])} of {g['whole']['edges']:,} edges",
            parse_math=False,
        )
        marks = [
            Line2D(
                [], [], color=plots.COLOURS[c], marker=m, linestyle="", markersize=8, label=words
            )
            for kind, (words, c, m) in KINDS.items()
            if kind in nodes["kind"]
        ]
        marks += [
            Line2D([], [], color=UP, label="edge that helps", linewidth=2),
            Line2D(
                [], [], color=DOWN, label="edge that works against", linewidth=2, linestyle="--"
            ),
        ]
        marks += [
            Line2D([], [], color=UP, label=f"into {words}: this wide = {top[kind]:.2f}",
                   linewidth=THICK[kind])
            for kind, words in (("logit", "the logit"), ("latent", "a latent"))
        ]  # fmt: skip
        ax.legend(
            handles=marks,
            loc="upper left",
            bbox_to_anchor=(1.0, 1.0),
            fontsize=8,
            title="width: root of the size,\na scale for each kind of edge",
            title_fontsize=8,
        )

    order = np.argsort([-abs(w) for w in edges["weight"]])[:4]

    def word(i):
        kind, l, p = nodes["kind"][i], nodes["layer"][i], nodes["pos"][i]
        token = plots.token(g["tokens"][p])
        if kind == "latent":
            writes = ", ".join(map(plots.token, latents[f"{l}.{nodes['index'][i]}"]["writes"]))
            return f"latent {l}.{nodes['index'][i]} at {token} (writes {writes})"
        return {"token": f"token {token}", "error": f"error of layer {l} at {token}"}.get(
            kind, kind
        )

    told = "; ".join(
        f"{word(edges['source'][e])} to {word(edges['target'][e])} {edges['weight'][e]:.2f}"
        for e in order
    )
    inner = sum(k in ("latent", "error") for k in nodes["kind"])
    return plots.panels(
        [draw],
        alt=f"Attribution graph for {g['answer']!r} with {inner} latents and errors. Largest "
        f"edges: {told}. Edges kept into the logit sum to {g['whole']['into_logit'][0]:.2f}, "
        f"dropped ones to {g['whole']['into_logit'][1]:.2f}. Largest edge into a latent: "
        f"{top['latent']:.2f}.",
        size=(12, 6.2),
    )


def graph_leaves(r):
    """Where all influence on the logit ends; and the errors' share with worse dictionaries."""
    prompts, controls = r["graph"]["prompts"], r["graph"]["controls"]
    names = {"tokens": "tokens", "biases": "biases", "errors 0": "errors of layer 0",
             "errors 1": "errors of layer 1"}  # fmt: skip
    groups = [f"{plots.token(g['answer'])}" for g in prompts.values()]

    def draw(ax):
        plots.bars(
            {words: [g["leaves"][k] for g in prompts.values()] for k, words in names.items()},
            groups=groups,
            x_label="answer of the prompt",
            y_label="share of influence (sums to one)",
            title="Where the logit's influence comes from",
            ax=ax,
        )
        ax.set_ylim(0, 1.3)
        ax.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1.0])
        ax.legend(loc="upper right", ncols=2, fontsize=8)

    def wrong(g):
        return g["leaves"]["errors 0"] + g["leaves"]["errors 1"]

    def errors(ax):
        plots.bars(
            {
                "transcoders": [wrong(g) for g in prompts.values()],
                "decoder rows shuffled": [controls[n]["shuffled"] for n in prompts],
                "no latents": [controls[n]["no latents"] for n in prompts],
            },
            groups=groups,
            x_label="answer of the prompt",
            y_label="errors' share of influence",
            title="What is left unexplained",
            ax=ax,
        )
        ax.set_ylim(0, 1.3 * ax.get_ylim()[1])
        ax.legend(loc="upper left", fontsize=8)

    told = "; ".join(
        f"{g['answer']!r}: tokens {g['leaves']['tokens']:.0%}, biases {g['leaves']['biases']:.0%}, "
        f"errors {wrong(g):.0%} (shuffled {controls[n]['shuffled']:.0%}, no latents "
        f"{controls[n]['no latents']:.0%})"
        for n, g in prompts.items()
    )
    return plots.panels(
        [draw, errors],
        alt=f"Shares of influence on the logit by source. {told}.",
        size=(11, 4),
    )


def graph_predictions(r):
    """Edges and whole latents switched off: what the graph says against what the model does.

    Whole latents without what their row writes into the logit itself: that is the same everywhere.
    """
    edges, whole = r["graph"]["edges_off"], r["graph"]["nodes_off"]

    def tested(level):
        return np.concatenate([np.subtract(x[level], x["skip"]) for x in whole.values()])

    def square(ax):
        low, high = ax.get_xlim()
        bottom, top = ax.get_ylim()
        ax.axline((0, 0), slope=1, color="#555555", linestyle=":", linewidth=0.9)
        ax.set_xlim(low, high)
        ax.set_ylim(bottom, top)
        ax.legend(loc="upper left", fontsize=8)

    def each_edge(ax):
        plots.scatter(
            {name: (x["edge"], x["re-run"]) for name, x in edges.items()},
            x_label="edge = fall of its target with patterns held",
            y_label="fall when all is run again",
            title="One latent off, another latent's pre-activation",
            ax=ax,
        )
        square(ax)

    def each_node(ax):
        predicted = tested("predicted")
        plots.scatter(
            {
                words: (predicted, tested(level))
                for level, words in (
                    ("latents free", "latents decided anew"),
                    ("patterns held", "MLPs run, patterns held"),
                    ("re-run", "all run again"),
                )
            },
            x_label="fall of the logit that the graph predicts, without its row's own write",
            y_label="fall of the logit, without it",
            title="One first-layer latent off, the answer's logit",
            ax=ax,
        )
        square(ax)

    e = np.concatenate([x["edge"] for x in edges.values()])
    a = np.concatenate([x["re-run"] for x in edges.values()])
    p, q = tested("predicted"), tested("re-run")
    return plots.panels(
        [each_edge, each_node],
        alt=f"Predicted against measured, dotted line: equal. {len(e)} edges between latents: "
        f"largest {np.abs(e).max():.2f}, median difference {np.median(np.abs(a - e)):.3f}. "
        f"{len(p)} first-layer latents, without what their rows write into the logit "
        f"themselves: largest predicted fall of the logit {p.max():.2f}, measured there "
        f"{q[p.argmax()]:.2f}, median difference when all is run again "
        f"{np.median(np.abs(q - p)):.3f}.",
        size=(11, 4.4),
    )


def hidden_step(r):
    """One first-layer latent turned down: the answer's logit and probability at every level."""
    name = max(
        r["graph"]["hidden"],
        key=lambda n: abs(r["graph"]["hidden"][n]["total"] - r["graph"]["hidden"][n]["direct"]),
    )
    h, answer = r["graph"]["hidden"][name], r["graph"]["prompts"][name]["answer"]
    levels = {
        "all held": "all held (the graph)",
        "latents free": "latents decided anew",
        "patterns held": "MLPs run, patterns held",
        "re-run": "all run again",
    }
    off, start = h["factors"].index(0.0), h["re-run"]["logit"][0]

    def draw(what, label, title):
        def panel(ax):
            first = np.array(h["all held"][what])
            same = np.abs(first - h["latents free"][what]).max() <= 0.1 * np.ptp(first)
            note = {"latents free": " (nearly the same curve)"} if same else {}
            plots.lines(
                {words + note.get(k, ""): h[k][what] for k, words in levels.items()},
                x=h["factors"],
                x_label=f"latent {h['node'].split()[0]} times this",
                y_label=label,
                title=title,
                ax=ax,
            )
            ax.invert_xaxis()
            ax.axvline(0, color="#555555", linewidth=0.8, linestyle=":")
            if what == "logit":
                ax.scatter([0.03] * len(h["random"]), [start - x for x in h["random"]], s=12,
                           marker="_", color="#555555",
                           label=f"{len(h['random'])} random writes off", zorder=3)  # fmt: skip
                ax.scatter([0], [start - h["restored"]], s=60, marker="*", color="black", zorder=4,
                           label="off, second MLP's write restored")  # fmt: skip
            ax.legend(loc="lower left", fontsize=8)

        return panel

    told = ", ".join(f"{words} {h[k]['logit'][off]:.2f}" for k, words in levels.items())
    return plots.panels(
        [
            draw(
                "logit", "logit minus mean logit", f"Turning one latent down: {plots.token(answer)}"
            ),
            draw("p", "probability", "The same, as probability"),
        ],
        alt=f"Latent {h['node']} scaled from one to minus one. Switched off, the logit of "
        f"{answer!r} goes from {h['re-run']['logit'][0]:.2f} to: {told}. Re-run, its probability "
        f"goes from {h['re-run']['p'][0]:.2f} to {h['re-run']['p'][off]:.2f}. With the second "
        f"MLP's write restored the logit stays at {start - h['restored']:.2f}; random writes "
        f"as long leave it between {start - max(h['random']):.2f} and "
        f"{start - min(h['random']):.2f}.",
        size=(11, 4),
    )
