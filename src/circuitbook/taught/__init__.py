"""What the lessons teach, by name: `from circuitbook.taught import copying_score`.

Generated from the lessons in scripts/; do not edit.
"""

import importlib
from typing import Any

_HOME = {
    "token_losses": "ch00",
    "read_off": "ch01",
    "readable_share": "ch01",
    "polar": "ch01",
    "UPDATES": "ch01",
    "basis_gap": "ch01",
    "excess_kurtosis": "ch01",
    "change_head_coordinates": "ch02",
    "second_direction": "ch02",
    "thin_svd": "ch02",
    "keep_directions": "ch02",
    "position_scores": "ch02",
    "frozen_stream": "ch03",
    "streams_by_order": "ch03",
    "strongest_triples": "ch04",
    "boosts": "ch04",
    "both_sides_term": "ch05",
    "rotated_score": "ch05",
    "SLIP_X": "ch05",
    "SLIP_Y": "ch05",
    "overlap_parts": "ch05",
    "fixed_offset_scores": "ch06",
    "virtual_qk": "ch06",
    "neuron_terms": "ch07",
    "whiten": "ch07",
    "agreement": "ch07",
    "DRAW_SEED": "ch07",
    "DRAWN": "ch07",
    "read_back": "ch08",
    "toy_gradient": "ch08",
    "sae_forward": "ch09",
    "naive_loss": "ch09",
    "best_match": "ch09",
    "top_k_code": "ch09",
    "reason_terms": "ch09",
    "two_operators": "ch10",
    "four_routes": "ch10",
    "path_integral": "ch10",
    "share_recovered": "ch11",
    "completeness_gap": "ch11",
    "node_worth": "ch11",
}


def __getattr__(name: str) -> Any:
    """The taught object of this name, from the chapter that teaches it."""
    if name not in _HOME:
        raise AttributeError(f"no lesson teaches {name!r}; taught are {', '.join(_HOME)}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
