"""Figures of chapter 09: recovery in toys, a dictionary on real activations, graphs, Aunt Sally."""

import circuitbook.gallery.aunt09 as aunt09
import circuitbook.gallery.graph09 as graph09
import circuitbook.gallery.sae09 as sae09
import circuitbook.gallery.toys09 as toys09
from circuitbook import plots
from circuitbook.gallery.survival import box

CHANGES = ("head coordinates R", "stream coordinates G", "W_U + c 1ᵀ", "constant per query")


@plots.figure
def price_of_length(r):
    """The loss while the decoder grows, with and without its length; and how short values fall."""
    return toys09.price_of_length(r)


@plots.figure
def features_found(r):
    """Features found in every toy, and how near other directions come."""
    return toys09.features_found(r)


@plots.figure
def what_was_lost(r):
    """Lost features beside spare latents, toy by toy."""
    return toys09.what_was_lost(r)


@plots.figure
def latents_moved(r):
    """Features found when spare latents are carried elsewhere."""
    return toys09.latents_moved(r)


@plots.figure
def dictionary_frontier(r):
    """Loss recovered against the number of latents that are on."""
    return sae09.frontier(r)


@plots.figure
def single_minds(r):
    """How single-minded latents, neurons and random directions are."""
    return sae09.single_minded(r)


@plots.figure
def best_latents(r):
    """Ten latents with the cleanest contexts."""
    return sae09.dashboards(r, "best")


@plots.figure
def random_latents(r):
    """Ten latents of a seeded draw."""
    return sae09.dashboards(r, "random")


@plots.figure
def latent_steered(r):
    """Probability and loss against the dose of one latent."""
    return sae09.steering(r)


@plots.figure
def graph_of_god(r):
    """The pruned attribution graph of a verse."""
    return graph09.graph_picture(r, "God")


@plots.figure
def graph_of_sally(r):
    """The pruned attribution graph of the Aunt Sally prompt."""
    return graph09.graph_picture(r, "Sally")


@plots.figure
def graph_predictions(r):
    """What a graph says about a node, and what the model does."""
    return graph09.graph_predictions(r)


@plots.figure
def graph_leaves(r):
    """Where all influence ends, prompt by prompt."""
    return graph09.graph_leaves(r)


@plots.figure
def hidden_step(r):
    """One first-layer latent turned down, at every level of freezing."""
    return graph09.hidden_step(r)


@plots.figure
def read_sides(r):
    """From where the logit of the name comes, with patterns held."""
    return aunt09.read_sides(r)


@plots.figure
def reason_sides(r):
    """What makes the head's score at the name."""
    return aunt09.reason_sides(r)


@plots.figure
def title_controls(r):
    """Attention and probability when titles are exchanged."""
    return aunt09.title_controls(r)


@plots.figure
def reason_cuts(r):
    """Edges into the head cut one at a time."""
    return aunt09.reason_cuts(r)


@plots.figure
def latents_survive(r):
    """What each change of the weights moves of a latent of the MLP's neurons."""
    return sae09.survives(r)


@plots.figure
def dictionary_survives(r):
    """What each change of the weights moves of a graph, a score and a dictionary."""
    quantities = tuple(r["moves"][CHANGES[0]])
    order = sorted(quantities, key=lambda q: sum(bool(r["moves"][c][q]) for c in CHANGES))
    return box(
        r["moves"],
        CHANGES,
        order,
        y_label="what people print about it",
        about="number about a graph, a score or a dictionary",
        size=(8.6, 4.4),
    )
