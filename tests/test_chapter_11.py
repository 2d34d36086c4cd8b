"""Chapter 11: taught functions, planted circuits with mutants, the pair's prompts, its evidence."""

import json

import pytest
import saved
import torch
from small_model import gen, model_of

from circuitbook.circuits import faithful, nodes
from circuitbook.circuits.claims import claims

ch11 = pytest.importorskip("circuitbook.taught.ch11", reason="run tools/derive.py taught")
CHAPTER = "11_circuit_gallery"


# ---- taught functions ---------------------------------------------------------------------------


class Explicit(faithful.Runner):
    """F as a function of lists of nodes, in the form that the tools want."""

    def __init__(self, model, value):
        self.model, self.value = model, value

    def __call__(self, sets):
        rows = [self.value(nodes.members(self.model, row)) for row in sets]
        return torch.tensor(rows, dtype=torch.float64)


def drawn_game(model, seed=0):
    """A random number for each of the 16 sets of four heads."""
    values = torch.randn(16, generator=gen(seed), dtype=torch.float64)
    return lambda K: values[sum(1 << (2 * l + h) for l, h in K)].item()


def test_taught_criteria_are_those_of_the_tools():
    model = model_of()
    everyone, C = nodes.nodes_of(model), [(0, 0), (0, 1), (1, 1)]
    table = nodes.masks(model, [C])[0]
    for seed in range(5):
        value = drawn_game(model, seed)
        F = Explicit(model, value)
        share = ch11.share_recovered(value, C, everyone)
        assert share == pytest.approx(faithful.faithfulness(F, C).recovered, abs=1e-12)
        found = faithful.completeness(F, table)
        removed = nodes.members(model, found.removed)
        assert found.gap == pytest.approx(ch11.completeness_gap(value, C, everyone, removed))
        parts = [nodes.members(model, K) for K in faithful.subsets(table)]
        assert found.gap == pytest.approx(
            max(ch11.completeness_gap(value, C, everyone, K) for K in parts)
        )
        for v, worst in faithful.minimality(F, table).items():
            assert worst.gap == pytest.approx(max(ch11.node_worth(value, C, v, K) for K in parts))


# ---- the evidence -------------------------------------------------------------------------------


def test_evidence_and_figures():
    data, by_id = saved.rechecked(CHAPTER, least=25)
    assert (
        by_id["circuits.known_edges"]["holds"] and by_id["circuits.faithful_not_complete"]["holds"]
    )
    for name in ("names", "years", "planted", "course_pair", "moves", "gpt2"):
        assert data[name]
    for c in claims(data):  # sentences follow from the data, not only from saved claims
        assert c["sentence"] == by_id[c["id"]]["sentence"]
    saved.draw_without_torch(CHAPTER, least=12)
    assert "needs" in json.dumps(data["gpt2"]) or data["gpt2"]["there"]
