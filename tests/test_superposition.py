"""Instruments of chapter 08: the toy, its batched trainer, its loss, and what W is read for."""

import math

import pytest
import torch

from circuitbook.superposition import batch, closed_forms, geometry, record, recovery, study, toy
from circuitbook.superposition.batch import Params

DTYPES = [torch.float32, torch.float64]


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=toy.gen(seed), dtype=torch.float64).to(dtype)


def loss_by_hand(W, b, x, factor, relu):
    z = W.mT @ (W @ x) + b[..., None]
    return (((z.relu() if relu else z) - x).square() * factor).sum()


# ---- the trainer --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_the_gradient_by_hand_is_autograds(dtype, relu, own):
    W, b = draw(3, 2, 5, dtype=dtype).requires_grad_(), draw(3, 5, seed=1, dtype=dtype)
    b.requires_grad_()
    x = toy.sparse_inputs(torch.rand(*((3,) if own else ()), 5, 40, generator=toy.gen(2)), 0.5)
    x, factor = x.to(dtype), draw(5, 1, seed=3, dtype=dtype).exp() / 40
    loss_by_hand(W, b, x, factor, relu).backward()
    got = batch.gradient(Params(W.detach(), b.detach()), x, factor, relu)
    limit = 1e-5 if dtype == torch.float32 else 1e-12
    assert (got.W - W.grad).abs().max() <= limit * W.grad.abs().max()
    assert (got.b - b.grad).abs().max() <= limit * b.grad.abs().max()
    h = W.detach() @ x
    g = (batch.read_out(W.detach(), b.detach(), x, relu) - x) * 2 * factor
    once = h @ g.mT  # mutants: W used once only; the mask forgotten
    assert (once - W.grad).abs().max() > 1e-2 * W.grad.abs().max()
    if relu:
        assert (g.sum(-1) - b.grad).abs().max() > 1e-2 * b.grad.abs().max()


@pytest.mark.parametrize("dtype", DTYPES)
def test_steps_are_adams(dtype):
    first = Params(draw(1, 2, 4, dtype=dtype), draw(1, 4, seed=1, dtype=dtype))
    x = toy.sparse_inputs(torch.rand(4, 64, generator=toy.gen(2)), 0.5).to(dtype)
    factor = torch.ones(4, 1, dtype=dtype) / 64
    got = batch.train(first, lambda s: lambda part: (x, factor), 64, steps=40, lr=0.01).params
    W, b = first.W[0].clone().requires_grad_(), first.b[0].clone().requires_grad_()
    optimiser = torch.optim.Adam([W, b], lr=0.01)
    for step in range(40):
        optimiser.param_groups[0]["lr"] = 0.01 * (1 + math.cos(math.pi * step / 40)) / 2
        optimiser.zero_grad()
        loss_by_hand(W[None], b[None], x, factor, True).backward()
        optimiser.step()
    limit = 1e-4 if dtype == torch.float32 else 1e-8
    assert (got.W[0] - W).abs().max() < limit and (got.b[0] - b).abs().max() < limit


@pytest.mark.parametrize("p", [[0.1] * 5, [0.1, 0.3, 1.0, 0.2, 0.5]])
def test_together_and_alone_end_alike(p, monkeypatch):
    how = {"steps": 150, "size": 64, "importance": study.importance(5), "samples": 64}
    together = toy.train_toys(5, 2, torch.tensor(p), instances=5, **how)
    for i in range(5):
        first = toy.starts(5, 2, 5)
        start = Params(first.W[i : i + 1], first.b[i : i + 1])
        alone = toy.train_toys(5, 2, p[i], start=start, **how)
        assert abs(alone.loss[0] - together.loss[i]).item() <= 1e-5
        assert (alone.W[0] - together.W[i]).abs().max() <= 1e-4
    other = toy.train_toys(5, 2, torch.tensor(p), instances=5, **{**how, "data_seed": 7})
    assert (other.W - together.W).abs().max() > 1e-3  # mutant: another stream
    monkeypatch.setattr(batch, "CACHED", 2 * 5 * 64)  # two instances at a time, the last one alone
    pieces = toy.train_toys(5, 2, torch.tensor(p), instances=5, **how)
    assert (pieces.loss - together.loss).abs().max() <= 1e-5


def test_few_starts_are_the_first_of_many():
    few, many = toy.starts(3, 2, 5, seed=4), toy.starts(40, 2, 5, seed=4)
    assert torch.equal(few.W, many.W[:3])
    assert (many.b == 0).all()
    assert toy.starts(500, 3, 10).W.square().sum(1).mean().item() == pytest.approx(0.3, rel=0.05)


def test_what_is_kept_on_the_way():
    data = toy.independent(4, torch.full((2,), 0.5), torch.ones(4), 32, 0)
    first = toy.starts(2, 2, 4)
    run = batch.train(first, data, 32, steps=10, lr=0.01, keep=(0, 5, 10), final=1.0, bias=False)
    assert run.steps == [0, 5, 10] and torch.equal(run.kept[0].W, first.W)
    assert torch.equal(run.kept[2].W, run.params.W)
    assert not torch.equal(run.kept[0].W, run.kept[1].W)
    assert (run.params.b == 0).all()  # bias=False: b stays where it was
    assert (run.kept[1].W - first.W).abs().max() <= 0.051  # five steps of at most the rate


# ---- inputs and the loss ------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.05, 0.3, 1.0])
def test_inputs_are_on_as_often_as_they_should(p):
    x = toy.sparse_inputs(torch.rand(1, 400_000, generator=toy.gen(1), dtype=torch.float64), p)[0]
    on = x[x > 0]
    assert (x >= 0).all() and (x <= 1).all()
    assert len(on) / len(x) == pytest.approx(p, abs=4 * (p / len(x)) ** 0.5)
    assert on.mean().item() == pytest.approx(0.5, abs=5 / len(on) ** 0.5)
    tenths = torch.histc(on, 10, 0, 1) / len(on)
    assert (tenths - 0.1).abs().max() < 5 * (0.1 / len(on)) ** 0.5
    assert x.var().item() == pytest.approx(closed_forms.variance(p), rel=0.03)


@pytest.mark.parametrize(("n", "k"), [(5, 0), (5, 2), (5, 5), (40, 3)])
def test_inputs_with_exactly_k_on(n, k):
    x = toy.inputs_with(n, k, 512, seed=3)
    assert ((x > 0).sum(0) == k).all() and x.max() <= 1
    if 0 < k:
        assert x.sum(0).mean().item() == pytest.approx(k / 2, abs=0.05)
        assert ((x > 0).double().mean(1) - k / n).abs().max() < (0.01 if n == 5 else 0.06)
    assert sum(toy.number_on(n, 0.3)) == pytest.approx(1)


def test_the_loss_of_plans_that_can_be_written_down():
    I = study.importance(5)
    two = torch.zeros(1, 2, 5)
    two[0, 0, 0] = two[0, 1, 1] = 1
    for p in (1.0, 0.3, 0.1):
        b = torch.full((1, 5), p / 2)
        b[0, :2] = 0
        for relu in (True, False):
            loss, se = toy.toy_loss(two, b, p, I, relu=relu)
            want = closed_forms.dropped(I[2:].tolist(), p)
            assert loss.item() == pytest.approx(want, abs=1e-4 + 4 * se.item())
    pairs = torch.zeros(1, 2, 5)
    pairs[0, 0, 0], pairs[0, 0, 1], pairs[0, 1, 2], pairs[0, 1, 3] = 1, -1, 1, -1
    b = torch.tensor([[0, 0, 0, 0, 0.15]])
    loss, se = toy.toy_loss(pairs, b, 0.3, I, samples=8192)
    assert loss.item() == pytest.approx(closed_forms.series_floors(I.tolist())["S0.7"], abs=3e-4)
    linear, _ = toy.toy_loss(pairs, b, 0.3, I, relu=False)
    assert linear.item() > 2 * loss.item()  # mutant: the ReLU left out


def test_the_loss_agrees_with_plain_sampling_and_knows_its_error():
    W, b, I = (
        draw(6, 3, 12, seed=2) / 3,
        -0.1 * torch.rand(6, 12, generator=toy.gen(3)),
        draw(12).exp(),
    )
    p = torch.tensor([0.05, 0.1, 0.2, 0.3, 0.5, 1.0])
    loss, se = toy.toy_loss(W, b, p, I, samples=512)
    for i in range(6):
        v = torch.rand(12, 100_000, generator=toy.gen(10 + i), dtype=torch.float64)
        x = toy.sparse_inputs(v, p[i].double())
        error = (batch.read_out(W[i : i + 1], b[i : i + 1].double(), x)[0] - x).square()
        each = (error * I[:, None]).sum(0)
        noise = (each.var() / len(each) + se[i] ** 2).sqrt()
        assert abs(loss[i] - each.mean()) < 4 * noise + 1e-3 * each.mean()
    assert (se > 0).all()


def test_the_parts_of_the_loss_are_the_loss():
    W, b, I = draw(2, 5) / 2, 0.1 * draw(5, seed=1), study.importance(5)
    for p in (0.1, 0.6):
        on, off = study.loss_by_state(W, b, p)
        whole, _ = toy.toy_loss(W[None], b[None], p, I, samples=4096)
        assert on + off == pytest.approx(whole.item(), rel=1e-6)
        x = toy.sparse_inputs(torch.rand(5, 200_000, generator=toy.gen(3)).double(), p)
        error = (batch.read_out(W, b, x) - x).square() * I[:, None]
        assert (error * (x > 0)).sum(0).mean().item() == pytest.approx(on, rel=0.03)
    zero = study.loss_by_state(0 * W, 0 * b, 0.3)
    assert zero[0] == pytest.approx(I.sum().item() * 0.1, rel=1e-3) and zero[1] == 0


# ---- closed forms -------------------------------------------------------------------------------


def test_closed_forms_are_the_known_numbers():
    floors = closed_forms.series_floors(study.importance(5).tolist())
    assert floors["S0.0"] == pytest.approx(0.18293, abs=1e-5)
    assert floors["linear_S0.9"] == pytest.approx(0.06768, abs=1e-5)
    assert floors["S0.7"] == pytest.approx(0.1024, abs=1e-4)
    assert closed_forms.border(1.0) == pytest.approx(4 / 7)
    for r in (0.1, 0.5, 1.0):
        p = closed_forms.border(r)
        alone, pair = closed_forms.dropped([r], p), closed_forms.opposite_pair([1.0, r], p)
        assert alone == pytest.approx(pair, abs=1e-12)
        assert 2 * r / (1 + r) > p + 1e-3  # mutant: the dropped feature answered by zero


def test_the_grid_integrates():
    x, rows = closed_forms.quadrature(24)
    assert (rows.sum(1) - 1).abs().max() < 1e-12 and (x >= 0).all() and (x <= 1).all()
    none, one, both = rows
    assert (none @ x.T).abs().max() == 0
    assert ((one @ x.T) - 0.25).abs().max() < 1e-12  # the feature that is on may be the other one
    assert ((one @ x.T.square()) - 1 / 6).abs().max() < 1e-12
    assert ((one @ x.T**7) - 1 / 16).abs().max() < 1e-12
    assert (both @ x.min(0).values.square()).item() == pytest.approx(1 / 6, abs=1e-3)


def test_the_hand_case():
    got = torch.tensor(study.hand_case(), dtype=torch.float64)
    want = torch.tensor([[0.7, 0], [0, 0.4], [0.3, 0]], dtype=torch.float64)
    assert (got - want).abs().max() < 1e-12


# ---- shares, lengths, angles --------------------------------------------------------------------

TETRAHEDRON = torch.tensor([[1.0, 1, -1, -1], [1, -1, 1, -1], [1, -1, -1, 1]]).double()
SHAPES = {
    "orthogonal": (torch.eye(3).double(), 1.0),
    "pair": (torch.tensor([[2.0, -2.0]]).double(), 1 / 2),
    "pentagon": (recovery.pentagon(1.1), 2 / 5),
    "tetrahedron": (TETRAHEDRON, 3 / 4),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shares_of_known_shapes(name):
    W, share = SHAPES[name]
    n = W.shape[1]
    assert geometry.dimensionality(W).tolist() == pytest.approx([share] * n)
    assert geometry.leverage(W).tolist() == pytest.approx([share] * n)
    extra = torch.cat([W, torch.zeros(len(W), 1).double()], 1)
    assert geometry.dimensionality(extra).tolist() == pytest.approx([share] * n + [0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 3, 9), (4, 6, 4), (2, 8, 30)])
def test_shares_are_bounded(dtype, shape):
    W = draw(*shape, seed=5, dtype=dtype)
    W[0, -1] = 0  # a dimension that nothing uses
    D, lever = geometry.dimensionality(W), geometry.leverage(W)
    limit = 1e-4 if dtype == torch.float32 else 1e-9
    assert (D <= lever + limit).all() and (D.sum(-1) <= shape[1] + limit).all()
    assert (lever.sum(-1) - torch.linalg.matrix_rank(W)).abs().max() < 10 * limit
    gram = W.mT @ W
    want = gram.diagonal(dim1=-2, dim2=-1) ** 2 / gram.square().sum(-1)
    torch.testing.assert_close(D, want, rtol=10 * limit, atol=limit)
    mixed = geometry.mixed_dimensionality(W)
    assert (mixed - D).abs().max() > 1e-2  # mutant


def test_shares_are_bounded_on_trained_toys():
    toys = toy.train_toys(8, 3, 0.2, instances=4, steps=300, size=64, samples=1)
    W = toys.W.double()
    D = geometry.dimensionality(W)
    assert (D <= geometry.leverage(W) + 1e-9).all() and (D.sum(-1) <= 3 + 1e-9).all()


def test_the_bounds_are_met_by_tight_frames_only():
    for W in (torch.eye(3).double(), recovery.pentagon(1.1), TETRAHEDRON):
        assert max(abs(v) for v in record.over(W[None])) < 1e-9
    uneven = torch.tensor([[1.0, 0, 0.5**0.5], [0, 1, 0.5**0.5]]).double()
    assert geometry.dimensionality(uneven).tolist() == pytest.approx([2 / 3, 2 / 3, 0.5])
    assert geometry.leverage(uneven).tolist() == pytest.approx([0.75, 0.75, 0.5])
    assert record.over(uneven)[1] == pytest.approx(-1 / 6)
    long = geometry.mixed_dimensionality(2 * uneven) - geometry.leverage(uneven)
    assert long.max() > 1  # mutant


def test_axes_of_the_baseline_are_orthonormal_as_units_are(monkeypatch):
    seen = []
    best = geometry.best_cosine
    monkeypatch.setattr(geometry, "best_cosine", lambda W, a: seen.append(a) or best(W, a))
    toys = toy.Toys(draw(2, 4, 12).float(), torch.zeros(2, 12), *torch.ones(2, 2))
    found = study.forty(toys, 0.2, draws=30)
    assert len(seen) >= 32
    assert all((a.mT @ a - torch.eye(4)).abs().max() < 1e-6 for a in seen)
    assert found["units"][0].item() == pytest.approx(
        found["median"]["hidden units"].item(), abs=1e-6
    )


def test_the_mixed_formula_counts_too_much():
    W = (12 / 5) ** 0.5 * torch.eye(5).double()
    assert geometry.mixed_dimensionality(W).sum().item() == pytest.approx(12)
    assert geometry.dimensionality(W).sum().item() == pytest.approx(5)
    assert geometry.mixed_dimensionality(2 * W).sum().item() == pytest.approx(48)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_rotation_keeps_shares_and_a_stretch_keeps_leverages_only(dtype):
    W, Q = draw(4, 9, dtype=dtype), torch.linalg.qr(draw(4, 4, seed=1))[0].to(dtype)
    G = torch.diag(torch.tensor([1.0, 2, 5, 10], dtype=dtype)) @ Q
    limit = 1e-5 if dtype == torch.float32 else 1e-10
    D, lever = geometry.dimensionality(W), geometry.leverage(W)
    assert (geometry.dimensionality(Q @ W) - D).abs().max() < limit
    assert (geometry.leverage(G @ W) - lever).abs().max() < 10 * limit
    assert (geometry.dimensionality(G @ W) - D).abs().max() > 0.05


def test_angles_units_and_axes():
    W = recovery.pentagon()
    assert geometry.gaps(W).tolist() == pytest.approx([72] * 5)
    assert geometry.gaps(W.flip(1)).sum().item() == pytest.approx(360)
    assert geometry.is_pentagon(W) and not geometry.is_pentagon(0.4 * W)
    bent = W.clone()
    bent[:, 0] = bent[:, 1] * 0.2 + bent[:, 0]
    assert not geometry.is_pentagon(bent)
    V = torch.tensor([[1.0, 0.2, -0.4], [0, 0.5, 0.3]])
    assert geometry.features_per_unit(V).tolist() == [2, 1]
    assert geometry.represented(V).tolist() == [True, True, False]
    axes = torch.tensor([[1.0], [0.0]])
    assert geometry.best_cosine(V, 7 * axes).tolist() == pytest.approx([1, 0.2 / 0.29**0.5, 0.8])
    W, p = draw(3, 12), 0.2
    x = toy.sparse_inputs(torch.rand(12, 200_000, generator=toy.gen(1)).double(), p)
    cov = torch.cov(W @ x)
    found = geometry.hidden_axes(W, p)
    turned = found.T @ cov @ found
    assert (turned - turned.diag().diag()).abs().max() < 0.03 * cov.abs().max()
    assert (turned.diag().diff() < 0).all()
