"""Tables of chapter 07, as rows for `plots.table`: synthetic neurons, the draw, contexts."""

import re

from circuitbook import plots

WORDS = 4  # so many words of a neuron fit on a line


def synthetic_rows(r):
    """Made-up neurons: their score, what their construction asks, and what a bare cosine says."""
    return [
        {
            "neuron": name,
            "agreement (cosine)": x["score"],
            "asked, least (cosine)": x["low"],
            "asked, most (cosine)": x["high"],
            "bare mean cosine (cosine)": x["bare"],
        }
        for name, x in sorted(r["synthetic"].items(), key=lambda item: -item[1]["high"])
    ]


def visible(word):
    """A token made visible, long runs of blanks counted."""
    return re.sub("␣{3,}", lambda run: f"␣×{len(run[0])}", plots.token(word))


def _line(spot):
    """One context: the text before, then the token on which the neuron fires in brackets."""
    before = re.sub(r"\s*\n\s*", " ⏎ ", spot["before"])
    return f"…{before[-24:]} [{visible(spot['token'])}]"


def drawn_rows(r):
    """The drawn neurons, in the order of the draw: numbers, strongest contexts, written words."""
    return [
        {
            "neuron": x["neuron"],
            "fires on (%)": 100 * x["share"],
            "largest (activation)": x["maximum"],
            "agreement (cosine)": x["agreement"],
            "strongest contexts": "  ".join(
                f"{_line(s)} ({s['source'].split(':')[0]})" for s in x["contexts"][:2]
            ),
            "direct inputs": ", ".join(visible(w) for w in x["reads"][0][:WORDS]),
            "writes": ", ".join(visible(w) for w in x["writes"][0][:WORDS]),
        }
        for x in r["cards"]["drawn"]
    ]


def statistics_rows(r):
    """The drawn neurons' means beside all neurons: five statistics, and how far off the draw is."""
    return [
        {
            "statistic": name,
            "draw (mean)": x["drawn mean"],
            "all (mean)": x["mean"],
            "all (spread)": x["sd"],
            "all (median)": x["quartiles"][2],
            "off (standard errors)": x["off"],
        }
        for name, x in r["draw"]["statistics"].items()
    ]


def context_rows(r):
    """Strongest contexts of the two cleanest and the two most mixed neurons, with their sources."""
    return [
        {
            "neuron": f"{x['neuron']}, {kind}",
            "activation (no unit)": s["activation"],
            "context": _line(s),
            "next": visible(s["next"]),
            "source": s["source"] if len(s["source"]) <= 48 else s["source"][:47] + "…",
        }
        for kind, cards in (("clean", "cleanest"), ("mixed", "most mixed"))
        for x in r["cards"][cards][:2]
        for s in x["contexts"]
    ]
