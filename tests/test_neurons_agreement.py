"""Agreement of contexts of chapter 07: its definition, mutants, and the level of chance."""

import pytest
import torch
from small_model import gen

from circuitbook import gauge
from circuitbook.neurons import contexts, draw

ch07 = pytest.importorskip("circuitbook.taught.ch07", reason="run tools/derive.py taught")

# ---- agreement ----------------------------------------------------------------------------------


def by_pairs(x, fires, doc):
    """The definition in plain loops, for one neuron."""
    top = total = 0.0
    for i in range(len(x)):
        for j in range(len(x)):
            if doc[i] != doc[j]:
                weight = (fires[i, 0] * fires[j, 0]).item()
                top += weight * torch.cosine_similarity(x[i], x[j], dim=0).item()
                total += weight
    return top / total if total else 0.0


def test_agreement_is_its_definition():
    x = torch.randn(30, 5, generator=gen(), dtype=torch.float64) + 0.5
    fires = torch.randn(30, 4, generator=gen(1), dtype=torch.float64).clamp_min(0)
    fires[:, 3] = 0
    fires[:4, 3] = 1.0  # only in document 0
    doc = torch.arange(30) // 6
    ours = ch07.agreement(x, fires, doc)
    want = [by_pairs(x, fires[:, [i]], doc) for i in range(4)]
    torch.testing.assert_close(ours, torch.tensor(want, dtype=torch.float64))
    assert ours[3] == 0
    torch.testing.assert_close(ch07.agreement(x, 7 * fires, doc), ours)
    torch.testing.assert_close(ch07.agreement(3 * x, fires, doc), ours)


def projects_out(x, fires, doc):
    mean = torch.nn.functional.normalize((fires.mT @ x)[0], dim=0)
    return ch07.agreement(x - torch.outer(x @ mean, mean), fires, doc)


def forgets_documents(x, fires, doc):
    return ch07.agreement(x, fires, torch.arange(len(x)))


def counts_firings_alike(x, fires, doc):
    return ch07.agreement(x, torch.ones_like(fires), doc)


@pytest.mark.parametrize("seed", [0, 1])
def test_synthetic_neurons_and_the_mutants(seed):
    right = contexts.synthetic_scores(ch07.agreement, seed)
    inside = {n: x["low"] <= x["score"] <= x["high"] for n, x in right.items()}
    assert all(inside.values()), right
    assert right["one document"]["bare"] > 0.8
    for mutant, caught in (
        (projects_out, "one topic, read along it"),
        (projects_out, "random direction"),
        (forgets_documents, "one document"),
        (counts_firings_alike, "one topic"),
    ):
        x = contexts.synthetic_scores(mutant, seed)[caught]
        assert not x["low"] <= x["score"] <= x["high"], mutant.__name__


def test_whitening_is_the_same_in_all_coordinates():
    x = (
        torch.randn(300, 6, generator=gen(), dtype=torch.float64)
        @ torch.randn(6, 6, generator=gen(1), dtype=torch.float64)
        + 2
    )
    white, back = ch07.whiten(x)
    torch.testing.assert_close(white.T @ white / 300, torch.eye(6).double())
    k = torch.randn(6, generator=gen(2), dtype=torch.float64)
    centred = x - x.mean(0)
    torch.testing.assert_close(white @ (back @ k), centred @ k)
    other = ch07.whiten(x @ gauge.invertible(6, 6, generator=gen(3)))[0]
    torch.testing.assert_close(other @ other.T, white @ white.T, rtol=0, atol=1e-8)


def test_random_directions_fire_as_often():
    along = torch.randn(500, 3, generator=gen())
    fires = contexts.above_rate(along, torch.tensor([40, 0, 499]))
    assert (fires > 0).sum(0).tolist() == [40, 0, 499]
    kept = along[:, 0].topk(40)
    assert (fires[kept.indices, 0] > 0).all()
    torch.testing.assert_close(fires[:, 0].max(), along[:, 0].max() - along[:, 0].topk(41)[0][-1])


def test_the_chance_level_is_that_of_equal_rates():
    share = torch.rand(400, generator=gen())
    score = share + 0.1 * torch.randn(400, generator=gen(1))  # chance grows with the rate
    level = draw.chance_level(share, score, near=41)
    assert 0.02 < (score > level).double().mean() < 0.09
    i = int((share - 0.5).abs().argmin())
    near = (share.argsort().argsort() - share.argsort().argsort()[i]).abs() <= 20
    assert level[i] == pytest.approx(torch.quantile(score[near].double(), 0.95).item())
    assert (level[share > 0.9].mean() - level[share < 0.1].mean()) > 0.6
