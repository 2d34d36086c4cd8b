"""Figures of chapter 10: routes, what is held, shares and effects, finite changes, two reads."""

import circuitbook.gallery.finite10 as finite10
import circuitbook.gallery.gated10 as gated10
import circuitbook.gallery.operators10 as operators10
from circuitbook import plots


@plots.figure
def route_groups(r):
    """The next token's logit by groups of routes, and by pairs of heads."""
    return operators10.route_groups(r)


@plots.figure
def frozen_levels(r):
    """Removal of heads with more and less held, against the model run again."""
    return operators10.frozen_levels(r)


@plots.figure
def shares_against_effect(r):
    """Shares of single parts against what their removal does."""
    return operators10.shares_against_effect(r)


@plots.figure
def attention_routes(r):
    """First-order change through values, queries and keys, head by head."""
    return finite10.attention_routes(r)


@plots.figure
def convergence(r):
    """Error of the path integral against the number of steps."""
    return finite10.convergence(r)


@plots.figure
def four_methods(r):
    """Three methods against activation patching, and what each costs."""
    return finite10.methods(r)


@plots.figure
def first_order_fails(r):
    """One head's write moved by degrees, and the straight line that one slope draws."""
    return finite10.first_order_fails(r)


@plots.figure
def gate_or_content(r):
    """What heads wrote, taken from the gate's read or from the content's."""
    return gated10.gate_and_content(r)


@plots.figure
def gate_composition(r):
    """What weights say about heads and channels, and what text makes of it."""
    return gated10.composition(r)


@plots.figure
def expert_words(r):
    """How much each expert is used, and for which words."""
    return gated10.expert_use(r)


@plots.figure
def who_routes(r):
    """Whose part makes the router's logits vary, and whose absence moves the selection."""
    return gated10.who_routes(r)


@plots.figure
def router_or_experts(r):
    """What heads wrote, taken from the router's read or from the experts'."""
    return gated10.router_and_experts(r)


@plots.figure
def routed_otherwise(r):
    """Loss when other experts are chosen, or the same with other weights."""
    return gated10.other_routings(r)


@plots.figure
def conditional_survives(r):
    """What each change of the weights moves of shares, slopes and operators."""
    return operators10.operator_survival(r)


@plots.figure
def pair_through_the_mlp(r):
    """Every way through the induction head for the name, straight on and through the MLP."""
    return operators10.reader_ways(r)
