"""The three criteria beside random sets: what is compared, and what it is compared with."""

import pytest
import torch
from small_model import TINY, gen, model_of, tokens_of

from circuitbook import probe
from circuitbook.circuits import ablation, criteria, faithful, metrics, nodes

AT, RIGHT, WRONG = torch.tensor([9, 8, 9, 7]), torch.arange(1, 5), torch.arange(6, 10)
METRIC = metrics.logit_difference(AT, RIGHT, WRONG)


def small():
    config = TINY.replace(d_mlp=12, act="gelu")
    tokens = tokens_of(config, n=4)
    return model_of(config, torch.float64), tokens, tokens.flip(0)


class Prompted(faithful.Runner):
    """F as an explicit function of sets; prompt i adds its own constant, which cancels."""

    def __init__(self, model, value):
        self.model, self.value = model, value

    def __call__(self, sets):
        return torch.tensor([float(self.value(*row.flatten().tolist())) for row in sets])

    def per_prompt(self, sets):
        return self(sets)[:, None] + torch.arange(4.0)


def test_criteria_compare_without_the_empty_set_and_with_nodes_outside():
    """a answers; c takes over when a is gone; b adds a half; d a quarter."""
    model = model_of(TINY.replace(n_layers=2, n_heads=2))

    F = Prompted(model, lambda a, b, c, d: max(a, c) + 0.5 * b + 0.25 * d)
    C = nodes.masks(model, [[(0, 0), (0, 1)]])[0]
    others = nodes.random_masks(model, [(0, 0), (0, 1)], 5, gen(), fewer=True)
    found = criteria.criteria(F, C, others)
    span = 1.75
    assert found["faithfulness"]["recovered"] == pytest.approx(1.5 / span)
    # |F(C - K) - F(M - K)| over non-empty K: a gone, c speaks in the model: 1 + 1/4
    assert found["completeness"]["gap"] == pytest.approx(1.25 / span)
    for K, gap in zip(others, found["completeness"]["random"], strict=True):
        tried = [k for k in faithful.subsets(K) if k.any()]
        wanted = max((F((K & ~k)[None]) - F(~k[None])).abs().item() for k in tried)
        assert gap == pytest.approx(wanted / span)
    assert found["minimality"]["nodes"] == pytest.approx({"0.0": 1 / span, "0.1": 0.5 / span})
    outside = found["minimality"]["outside"]
    assert outside == pytest.approx({"1.0": 1 / span, "1.1": 0.25 / span})
    assert found["faithfulness"]["se"] == pytest.approx(0, abs=1e-12)
    spoiled = Prompted(model, lambda *cells: float(all(cells[:2])))  # both needed, no stand-in
    same = criteria.criteria(spoiled, C, others)
    assert same["completeness"]["gap"] == 0 and same["minimality"]["outside"] == {
        "1.0": 0.0, "1.1": 0.0,
    }  # fmt: skip


def test_the_empty_set_is_faithfulness_and_does_not_count_as_completeness():
    model = model_of(TINY.replace(n_layers=2, n_heads=2))
    F = Prompted(model, lambda a, b, c, d: float(a and b and c))  # without c the circuit is dumb
    C = nodes.masks(model, [[(0, 0), (0, 1)]])[0]
    found = criteria.criteria(F, C, nodes.random_masks(model, [(0, 0), (0, 1)], 3, gen()))
    assert found["faithfulness"]["recovered"] == 0
    assert found["completeness"]["gap"] == 0 and found["completeness"]["searched"] == 1


def test_errors_of_criteria_are_clustered():
    model, tokens, others = small()
    F = faithful.Runner(model, tokens, METRIC, ablation.resample(model, others))
    C = nodes.masks(model, [[(0, 0)]])[0]
    rest = nodes.random_masks(model, [(0, 0)], 2, gen(), fewer=True)
    two = torch.arange(len(tokens)) % 2
    a, b = (criteria.criteria(F, C, rest, cluster=x)["faithfulness"]["se"] for x in (None, two))
    gap = F.per_prompt(torch.stack([C, torch.ones_like(C)])).double()
    gap = gap[0] - gap[1]
    none, all_of = F(torch.stack([torch.zeros_like(C), torch.ones_like(C)])).tolist()
    assert a == pytest.approx((gap.std() / len(gap) ** 0.5).item() / abs(all_of - none))
    assert b == pytest.approx(probe.clustered_mean(gap, two).se / abs(all_of - none))
    assert a != pytest.approx(b)
    outside = criteria.criteria(F, C, rest)["minimality"]["outside"]
    assert {"0.0", "MLP 0"}.isdisjoint(outside) and "0.1" in outside  # rivals of the same kind
