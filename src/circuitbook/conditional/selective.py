"""One study of everything that selects: the gate, the router, and attention beside them."""

from __future__ import annotations

from typing import Any

from circuitbook import paths
from circuitbook.claims import bound
from circuitbook.conditional import (
    expert_claims,
    gated_claims,
    route_checks,
    routing,
    selection,
    swiglu,
)

# What a small-step check of float64 may be off by, and the float32 readings of trained models.
EXACT, FLOAT32, LOGITS = 1e-10, 1e-6, 1e-5


def study(windows: int = 110, places: int = 10, seed: int = 10) -> dict[str, Any]:
    """{"gated", "experts", "selection", "claims"}: data of the three sections, and all claims.

    windows: held-out windows for the cuts, `places` positions of each. Rounding errors leave this
    function as limit and verdict only. About the course's models in either model set: no SwiGLU and
    no mixture is published, and the attention model set beside them learned from the same text.
    """
    with paths.model_set("course"):
        return _study(windows, places, seed)


def _study(windows: int, places: int, seed: int) -> dict[str, Any]:
    gated = swiglu.study(windows=windows, places=places, seed=seed)
    experts = routing.study(windows=windows, places=places, seed=seed)
    attention = selection.attention_costs(windows=max(24, windows // 3), seed=seed)
    random = route_checks.errors()
    for d, limits in (
        (gated, {"sum": EXACT, "block": FLOAT32}),
        (experts, {"sum": EXACT, "block": FLOAT32, "router logits": LOGITS}),
    ):
        errors = d.pop("errors")
        d["exact"] = {name: bound(errors.pop(name), limit) for name, limit in limits.items()}
        d["without a route"] = errors
    experts["exact"] |= {
        "cancels": bound(experts["shared"].pop("cancels"), LOGITS),
        "top-1 renormalised": bound(experts["shared"].pop("top-1 renormalised"), 0.0),
    }
    table = {
        "attention": attention,
        "rows": selection.rows(attention, gated, experts),
        "random blocks": {name: bound(x, EXACT) for name, x in random.items()},
        "mistakes": route_checks.mistakes(),
    }
    made = gated_claims.claims(gated, table) + expert_claims.claims(experts, gated, table)
    return {"gated": gated, "experts": experts, "selection": table, "claims": made}
