"""Figures of chapter 11: planted circuits, the course's pair, names, greater-than."""

import circuitbook.gallery.names11 as names11
import circuitbook.gallery.tools11 as tools11
import circuitbook.gallery.years11 as years11
from circuitbook import plots
from circuitbook.gallery.survival import box

CHANGES = ("head coordinates R", "stream coordinates G", "W_U + c 1ᵀ", "constant per query")
QUANTITIES = (
    "logit difference", "recovered by the pair, mean", "recovered by the pair, zero",
    "key path of the pair", "reader's term in the difference", "recovered, one raw logit",
    "reader's term in one raw logit", "size of the reader's write",
)  # fmt: skip


@plots.figure
def planted_nodes(r):
    """What three cuts and the direct term say of every node of the planted models."""
    return tools11.planted_nodes(r["planted"]["models"])


@plots.figure
def circuit_paths(r):
    """Paths into the induction head, and how many heads are enough."""
    return tools11.pair_picture(r["course_pair"])


@plots.figure
def circuit_criteria(r):
    """Faithfulness, completeness, minimality of the circuits beside random sets."""
    groups, titles = {}, {}
    for key, words, found in (
        ("planted", "planted pair", r["planted"]["criteria"]),
        ("pair", "the pair", r["course_pair"]["criteria"]["pair"]),
        ("grown", "grown set", r["course_pair"]["criteria"]["grown"]),
        ("names", "names", r["names"]["tests"]),
        ("above", "years above", r["years"]["criteria"]["above"]["resample"]),
        ("below", "years below", r["years"]["criteria"]["below"]["resample"]),
    ):
        groups[key], titles[key] = found, words
    return tools11.criteria_panels(groups, titles)


@plots.figure
def names_skill(r):
    """Accuracy on unseen names and templates beside rules of position."""
    return names11.skill(r["names"])


@plots.figure
def names_circuit(r):
    """The heads of the name circuit and the edges that were measured."""
    return names11.circuit(r["names"])


@plots.figure
def names_attention(r):
    """Where the heads of the name circuit look."""
    return names11.attention(r["names"])


@plots.figure
def names_standins(r):
    """What the name circuit recovers under three stand-ins."""
    return names11.standins(r["names"])


@plots.figure
def names_repair(r):
    """Direct terms of the name circuit beside what cuts cost."""
    return names11.repair(r["names"])


@plots.figure
def years_skill(r):
    """The year model on four splits, and rules that ignore the year."""
    return years11.skill(r["years"])


@plots.figure
def years_maps(r):
    """What heads and MLPs say of each answer year, for each year asked."""
    return years11.maps(r["years"])


@plots.figure
def years_removals(r):
    """What is left of the cut-off when a node is cut."""
    return years11.removals(r["years"])


@plots.figure
def years_neurons(r):
    """Neurons as functions of the year."""
    return years11.neurons(r["years"])


@plots.figure
def circuit_survival(r):
    """Which circuit numbers survive a change of the weights that keeps every probability."""
    return box(
        r["moves"],
        CHANGES,
        QUANTITIES,
        y_label="number about the pair",
        about="number about the pair of heads",
        size=(9, 4.2),
    )


def edge_rows(r):
    """Every edge of the planted models: what path patching finds, for plots.table."""
    return tools11.edge_rows(r["planted"]["models"], r["planted"]["through"])


def induction_rows(r):
    """One row for each model's induction head, and what the larger ones need, for plots.table."""
    rows = [
        {
            "model": role,
            "layers": x["layers"],
            "heads": x["heads"],
            "previous-token head": x["previous-token head"],
            "induction head": x["induction head"],
            "prefix matching (share)": x["prefix matching"],
            "copying (eigenvalue score)": x["copying"],
            "matching after the K-cut (share)": x["after the K-cut"],
            "after another head's K-cut (least share)": min(x["after other cuts"]),
        }
        for role, x in r["induction"].items()
    ]
    needs = dict.fromkeys(rows[0], "")
    for name in ("published two layers", "gpt2"):
        if name not in r["induction"]:
            rows.append({**needs, "model": name, "induction head": "needs the published models"})
    return rows


def literature_rows(r):
    """The published circuits on gpt2, or what is needed to run them, for plots.table."""
    g = r["gpt2"]
    if not g["there"]:
        return [
            {"circuits of the literature on gpt2": "not measured", "what is needed": g["needs"]}
        ]
    return [
        {"task": task, "quantity": name, "value (task units)": value}
        for task in ("names", "years")
        for name, value in g[task].items()
        if isinstance(value, int | float)
    ]
