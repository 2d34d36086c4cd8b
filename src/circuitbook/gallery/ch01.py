"""Figures of chapter 01, drawn from its saved result alone."""

from circuitbook import plots

NORMAL_TAIL = 0.158655  # share of a normal distribution below minus one standard deviation


@plots.figure
def stream_contributions(r):
    """What each part writes towards the right name, against the mean and against its rivals."""
    centred, named = r["centred"], r["named"]
    order = sorted(centred, key=lambda n: (not n.startswith("emb"), n))
    top = max(named, key=lambda n: named[n][0])
    total = sum(x for x, _ in centred.values())
    writer, reader = r["pair"]
    return plots.bars(
        {
            "above the mean of all words": [centred[n][0] for n in order],
            "above the mean of rival names": [named[n][0] for n in order],
        },
        groups=order,
        horizontal=True,
        x_label="contribution to the right name's logit (logits)",
        y_label="part of the stream",
        title=f"Who writes the name? Mean over prompts; pair: {writer}, {reader}",
        size=(8.0, 6.4),
        alt=f"Two bars for each of {len(order)} parts. They sum to {total:.2f} logits above the "
        f"mean word. Against rival names the largest is {top} with {named[top][0]:.2f}; {reader} "
        f"writes {named[reader][0]:.2f} and {writer} {named[writer][0]:.2f}.",
    )


@plots.figure
def stream_overlaps(r):
    """Share of positions at which each head writes against the stream that it is added to."""
    shares = {name.removeprefix("head "): x for name, x in r["against"].items()}
    low, high = min(shares, key=shares.get), max(shares, key=shares.get)
    return plots.bars(
        shares,
        baseline=NORMAL_TAIL,
        x_label="head (layer.head)",
        y_label="share of positions",
        title="How often a head writes against the stream; dashed: random directions",
        size=(8.0, 3.2),
        alt=f"Share of positions where a head's write has a cosine below minus {r['chance']:.4f} "
        f"with its stream: from {shares[low]:.0%} ({low}) to {shares[high]:.0%} ({high}); random "
        f"directions {NORMAL_TAIL:.0%}.",
    )


@plots.figure
def stream_effects(r):
    """Direct against total effect of each head: on the prompts' name and on held-out loss."""
    heads = list(r["against"])
    effects, (writer, reader) = r["effects"]["mean"], r["pair"]
    at = heads.index(writer)
    lies = "the last layer lies on it"
    if "position" in r["centred"]:  # a model with LayerNorm: a removal moves the final scale too
        lies = "on text the last layer lies on it, on prompts it does up to the final scale"

    def groups(direct, total):
        out, words = {}, {}
        for layer in sorted({n.split()[1].split(".")[0] for n in heads}):
            mine = [i for i, n in enumerate(heads) if n.split()[1].startswith(f"{layer}.")]
            out[f"layer {layer}"] = ([direct[i] for i in mine], [total[i] for i in mine])
            words[f"layer {layer}"] = [
                heads[i].removeprefix("head ") if heads[i] in (writer, reader) else "" for i in mine
            ]
        return out, words

    def panel(direct, total, unit, title):
        points, words = groups(direct, total)
        return lambda ax: plots.scatter(
            points,
            labels=words,
            diagonal=True,
            ax=ax,
            x_label=f"direct effect ({unit})",
            y_label=f"total effect ({unit})",
            title=title,
        )

    return plots.panels(
        [
            panel(
                [r["centred"][n][0] for n in heads],
                [r["fall"][n][0] for n in heads],
                "logits",
                "Name prompts, write removed",
            ),
            panel(effects["direct"], effects["total"], "nats", "Held-out text, write at its mean"),
        ],
        size=(10.0, 4.2),
        alt=f"Each head's direct effect against its total effect, with the line of equality; "
        f"{lies}. The pair's {writer}: {effects['direct'][at]:.3f} nats direct and "
        f"{effects['total'][at]:.3f} total on held-out text.",
    )


@plots.figure
def stream_virtual_weights(r):
    """Virtual-weight scores from the heads of layer 0 into the keys of the last layer's heads."""
    scores, (writer, reader) = r["virtual"], [n.removeprefix("head ") for n in r["pair"]]
    flat = [x for row in scores for x in row]
    here = scores[int(writer.split(".")[1])][int(reader.split(".")[1])]
    rank = 1 + sum(x > here for x in flat)
    return plots.heatmap(
        scores,
        x_ticks=[f"{reader.split('.')[0]}.{h}" for h in range(len(scores[0]))],
        y_ticks=[f"0.{h}" for h in range(len(scores))],
        colour_label="score (0 to 1)",
        digits=3,
        x_label="reader of keys (last layer)",
        y_label="writer (layer 0)",
        title=f"Virtual weights; random {r['chance']:.4f}; the pair is {writer} → {reader}",
        size=(7.4, 4.6),
        alt=f"Scores from {min(flat):.3f} to {max(flat):.3f}. The pair {writer} to {reader} has "
        f"{here:.3f}, rank {rank} of {len(flat)}; random weights have {r['chance']:.4f}.",
    )


@plots.figure
def stream_kurtosis(r):
    """Excess kurtosis of the twins' streams in their own and in random bases."""
    twins, theory = r["twins"], r["kurtosis_theory"]
    places = [p for p in next(iter(twins.values())) if p != "loss"]
    values, errors = {}, {}
    for name, twin in twins.items():
        for place in places:
            for basis in ("own", "random"):
                key = f"{name} twin, {place}, {basis}"
                values[key], errors[key] = twin[place][basis], twin[place][f"{basis}_se"]
    said = ", ".join(f"{key} {v:.2f}" for key, v in values.items())
    return plots.bars(
        values,
        errors=errors,
        horizontal=True,
        baseline=theory,
        x_label="excess kurtosis over coordinates (0: Gaussian)",
        y_label="twin, place, basis",
        title=f"Do coordinates stand out? Dashed: theory for random bases, {theory:.3f}",
        size=(8.4, 3.8),
        alt=f"Excess kurtosis, own basis beside random ones: {said}.",
    )


@plots.figure
def stream_bigrams(r):
    """Tables of pairs: log-probabilities against the text's, and losses between two entropies."""
    tables, text = r["tables"], r["points"]["text"]
    named = dict(zip(tables, ("no layer", "one layer", "two layers")))
    first, *_, last = named

    def points(ax):
        plots.scatter(
            {named[role]: (text, r["points"][role]) for role in (last, first)},
            diagonal=True,
            ax=ax,
            x_label="log p(b | a) in the text (nats)",
            y_label="log q(b | a) of the table W_E W_U (nats)",
            title=f"{len(text)} frequent pairs",
        )

    def losses(ax):
        heights = {named[role]: table["loss"] for role, table in tables.items()}
        plots.bars(
            heights,
            ax=ax,
            x_label="model",
            y_label="loss of W_E W_U as a table (nats)",
            title="The direct path as a table of pairs",
        )
        for y, word in ((r["H1"], "entropy of\nsingle tokens"), (r["H2"], "entropy of\npairs")):
            ax.axhline(y, color="#000000", linestyle="--", linewidth=1)
            ax.annotate(word, (len(heights) - 0.5, y), (2, 4), textcoords="offset points")
        ax.set_xlim(-0.6, len(heights) + 0.4)
        ax.set_ylim(0, 1.2 * max(r["H1"], *heights.values()))

    loss = ", ".join(f"{word} {tables[role]['loss']:.2f}" for role, word in named.items())
    fit = ", ".join(f"{word} {tables[role]['correlation']:.2f}" for role, word in named.items())
    return plots.panels(
        [points, losses],
        size=(10.0, 4.2),
        alt=f"Left: log-probabilities of frequent pairs in the table W_E W_U against the text; "
        f"correlations: {fit}. Right: loss of the table in nats: {loss}; entropy of pairs "
        f"{r['H2']:.2f}, of single tokens {r['H1']:.2f}.",
    )
