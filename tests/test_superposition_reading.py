"""Instruments of chapter 08: sweeps, reading back, room, networks for |x|, messages of the pair."""

import itertools
import math

import pytest
import torch

from circuitbook import cut
from circuitbook.config import Config
from circuitbook.model import Transformer
from circuitbook.superposition import closed_forms, computing, messages, recovery, sweeps, toy

TOY = Config(2, d_model=24, n_heads=3, d_head=6, n_ctx=40, d_vocab=70)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=toy.gen(seed), dtype=torch.float64)


# ---- sweeps -------------------------------------------------------------------------------------


def test_the_trained_border_lies_above_the_derived_one():
    ratio, p = torch.tensor([0.3, 0.8]).double(), torch.arange(1, 11).double() / 10
    found = sweeps.phase_border(ratio, p, steps=500, points=8)
    assert found.predicted.tolist() == pytest.approx([12 / 35, 3.2 / 6])
    assert (found.trained >= found.predicted - 0.1).all() and (found.trained < 0.8).all()
    assert (found.second[:, 0] > 0.9).all() and (found.second[:, -1] < 0.1).all()


@pytest.mark.parametrize("r", [0.2, 1.0])
def test_both_plans_cost_the_same_at_the_border_only(r):
    def apart(p):
        plans = sweeps.plans_by_chance(p, r, 100_000, seed=1)
        (a, e), (b, f) = plans["pair"], plans["first alone"]
        return (a - b) / math.hypot(e, f)

    p = closed_forms.border(r)
    assert abs(apart(p)) < 3
    assert apart(0.6 * p) < -5 and apart(min(1.0, 1.6 * p)) > 5
    pair = sweeps.plans_by_chance(p, r, 100_000)["pair"]
    assert abs(pair[0] - closed_forms.opposite_pair([1.0, r], p)) < 4 * pair[1]


def test_the_third_plan_gains_what_it_says():
    """W = [0.93, -0.45], b = [0.21, 0.49] at r = 1, p = 0.8, against sampled inputs."""
    r, p = torch.tensor([1.0]).double(), torch.tensor([0.8]).double()
    found = sweeps.phase_border(r, p, steps=800)
    assert 0.3 < found.second.item() < 0.6 and 0.005 < found.gain.item() < 0.03
    x = toy.sparse_inputs(torch.rand(2, 400_000, generator=toy.gen(1), dtype=torch.float64), 0.8)
    W, b = torch.tensor([[0.93, -0.45]]).double(), torch.tensor([0.21, 0.49]).double()
    loss = ((W.T @ (W @ x) + b[:, None]).relu() - x).square().sum(0).mean().item()
    assert loss == pytest.approx(0.1054, abs=4e-4)
    least = closed_forms.dropped([1.0], 0.8)
    assert least < closed_forms.opposite_pair([1.0, 1.0], 0.8)
    assert found.gain.item() == pytest.approx(1 - loss / least, abs=5e-3)


def test_who_comes_with_whom():
    for kind in sweeps.KINDS:
        x = sweeps.paired_inputs(kind, 0.2, 50_000, toy.gen(3)) > 0
        assert (x.double().mean(1) - 0.2).abs().max() < 0.01
        both = (x[0] & x[1]).double().mean().item()
        want = {"come together": 0.2, "independent": 0.04, "never together": 0.0}[kind]
        assert both == pytest.approx(want, abs=0.005)
        assert (x[0] & x[2]).double().mean().item() == pytest.approx(0.04, abs=0.005)


def test_company_shapes_the_geometry():
    found = sweeps.pair_geometry(0.3, instances=12, steps=700, size=128)
    assert found["never together"]["opposite"].double().mean() > 0.5
    assert found["come together"]["opposite"].double().mean() < 0.3
    assert found["never together"]["partner"].shape[1] == 2


def test_a_jump_is_a_fall_after_a_rest():
    t = torch.arange(60).double()
    curves = {
        "steady": 1 - t / 80,
        "rests for good": 0.5 + 0.5 * torch.exp(-t),
        "rests, then falls": 0.5 + 0.5 * torch.exp(-t) - 0.2 * torch.sigmoid(2 * (t - 40)),
        "falls at once": 0.5 + 0.5 * torch.exp(-t / 3),
    }
    loss = torch.stack(list(curves.values()), 1)
    run = sweeps.Levels(list(range(60)), loss, torch.zeros(60, 4, 3))
    found, place, fall, move = run.late_jump()
    jump = dict(zip(curves, found.tolist(), strict=True))
    assert torch.equal(fall.gather(0, place[None])[0] * (found > 0), found)
    assert move.shape == fall.shape == (55, 4)
    assert jump["rests, then falls"] > 0.3
    assert all(v < 0.02 for k, v in jump.items() if k != "rests, then falls")
    assert run.moves().shape == (59, 4) and (run.falls() >= -1e-12).all()


def test_sticky_shares_are_counted_among_stored_features():
    W = torch.zeros(1, 2, 6)
    W[0, :, :5], W[0, 0, 5] = recovery.pentagon().float(), 0.1
    D = torch.tensor([[0.4, 0.4, 0.405, 0.5, 0.7, 0.4]])
    near = sweeps.near_sticky(D, W)
    assert near["2/5"] == pytest.approx(0.6) and near["1/2"] == pytest.approx(0.2)
    assert near["2/3"] == 0


def test_levels_and_sweeps_return_what_they_say():
    run = sweeps.levels(5, 2, 0.1, torch.ones(5), starts=3, steps=40, size=32, every=20)
    assert run.steps == [0, 20, 40] and run.loss.shape == (3, 3) and run.D.shape == (3, 3, 5)
    assert (run.loss[-1] < run.loss[0]).all()
    W, D = sweeps.dimension_sweep(4, 2, torch.tensor([1.0, 5.0]), starts=3, steps=30, size=32)
    assert W.shape == (2, 3, 2, 4) and D.shape == (2, 3, 4)


# ---- reading back -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 5), (3, 4), (10, 40)])
def test_two_codes_with_one_shadow(shape):
    W = draw(*shape)
    x, y = recovery.same_shadow(W)
    assert (W @ (x - y)).abs().max() < 1e-12 and (x - y).abs().max() > 0.5
    assert (x >= 0).all() and (y >= 0).all()
    assert int((x > 0).sum() + (y > 0).sum()) <= shape[0] + 1
    with pytest.raises(ValueError, match="may be a basis"):
        recovery.same_shadow(W.T)


def test_the_shortest_code_is_the_shortest():
    """Against all basic solutions: some shortest code uses at most m features."""
    W = torch.nn.functional.normalize(draw(3, 8), dim=0)
    x, _ = recovery.codes(8, 2, 12, 1)
    h = x @ W.T
    got = recovery.sparse_decode(W, h, 6000)
    best = torch.full((len(h),), torch.inf, dtype=torch.float64)
    for support in itertools.combinations(range(8), 3):
        part = torch.linalg.solve(W[:, support], h.T).T
        length = torch.where((part >= -1e-9).all(1), part.sum(1), torch.inf)
        best = torch.minimum(best, length)
    assert (got @ W.T - h).abs().max() < 1e-6 and (got >= 0).all()
    assert (got.sum(1) - best).abs().max() < 1e-3
    assert (x.sum(1) - best > 1e-3).any()  # sometimes the true code is not the shortest


def test_reading_back_from_orthogonal_directions_is_easy():
    W = torch.linalg.qr(draw(6, 6))[0]
    for k in (1, 3, 6):
        got = recovery.recovery(W, torch.zeros(6), k, 40)
        assert got == recovery.Recovered(1.0, 1.0, 1.0)
    x, which = recovery.codes(6, 3, 40, 0)
    assert ((x > 0).sum(1) == 3).all() and x[x > 0].min() > 0.2
    assert torch.equal(which.sort(1).values, (x > 0).nonzero()[:, 1].view(40, 3))
    found = recovery.greedy_decode(W, x @ W.T, 3)
    assert torch.equal(found.sort(1).values, which.sort(1).values)


def test_half_of_the_features_is_not_enough():
    pair = torch.tensor([[1.0, -1.0]])
    assert recovery.recovery(pair, torch.zeros(2), 1, 30).own == 1.0
    assert recovery.recovery(pair, torch.zeros(2), 2, 30).own == 0.0  # they cancel, one is left


def test_greedy_is_not_bribed_by_length():
    W = torch.tensor([[1.0, 3.0], [0.0, 3.0]]).double()
    assert recovery.greedy_decode(W, torch.tensor([[1.0, 0.0]]).double(), 1).tolist() == [[0]]


def test_greedy_takes_no_direction_twice_and_refits():
    W = torch.tensor([[1.0, 0.0, 0.8], [0.0, 1.0, 0.6]]).double()
    h = torch.tensor([[1.0, 1.0]]).double()
    assert set(recovery.greedy_decode(W, h, 2)[0].tolist()) == {2, 1}
    W = torch.nn.functional.normalize(draw(4, 9), dim=0)
    taken = recovery.greedy_decode(W, draw(20, 4, seed=1), 4)
    assert all(len(set(row)) == 4 for row in taken.tolist())


def test_wilson_intervals():
    assert recovery.wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert recovery.wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert recovery.wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)


# ---- room ---------------------------------------------------------------------------------------


def test_the_chance_that_two_directions_are_close():
    assert recovery.chance_of_overlap(2, 0.5) == pytest.approx(2 / 3, abs=1e-3)
    assert recovery.chance_of_overlap(3, 0.5) == pytest.approx(0.5, abs=1e-3)
    x = torch.nn.functional.normalize(draw(4000, 12), dim=1)
    close = ((x[:2000] * x[2000:]).sum(1).abs() > 0.3).double().mean().item()
    assert recovery.chance_of_overlap(12, 0.3) == pytest.approx(close, abs=0.04)


def test_counts_of_directions():
    n = recovery.before_first_overlap(20, 0.5, repeats=60, seed=0)
    assert 0.6 < n.median().item() / recovery.birthday(recovery.chance_of_overlap(20, 0.5)) < 1.6
    assert recovery.before_first_overlap(3, 1.1, repeats=2, seed=0, most=200).tolist() == [200] * 2
    assert recovery.before_first_overlap(1, 0.5, repeats=3, seed=0).tolist() == [1] * 3
    assert recovery.packed(1, 0.5, tries=500, seed=0) == 1
    assert 3 <= recovery.packed(2, 0.8, tries=2000, seed=0) <= 4
    assert recovery.packed(8, 0.5, tries=4000, seed=0) > 16
    k = torch.arange(2, 9)
    assert recovery.growth(k, (3 * (0.4 * k).exp())) == pytest.approx(0.4, abs=1e-6)


# ---- networks for |x| ---------------------------------------------------------------------------


def dedicated_net(n, m, p):
    """Two neurons for each of the first m/2 features, the mean for the rest."""
    net = computing.Computers(torch.zeros(1, m, n), torch.zeros(1, n, m), torch.zeros(1, n))
    for i in range(m // 2):
        net.W1[0, 2 * i, i], net.W1[0, 2 * i + 1, i] = 1, -1
        net.W2[0, i, 2 * i] = net.W2[0, i, 2 * i + 1] = 1
    net.b[0, m // 2 :] = p / 2
    return net


@pytest.mark.parametrize("p", [1.0, 0.2])
def test_the_dedicated_plan_costs_what_it_says(p):
    net = dedicated_net(6, 4, p)
    loss, se = computing.loss(net, torch.tensor([p]), 40_000)
    assert abs(loss.item() - computing.dedicated(6, 4, p)) < 4 * se.item()
    assert computing.features_of_neurons(net).tolist() == [[1] * 4]
    whole = dedicated_net(3, 6, p)
    assert computing.loss(whole, torch.tensor([p]), 1000)[0].item() < 1e-12


def test_signed_inputs():
    v = torch.rand(2, 100_000, generator=toy.gen(1), dtype=torch.float64)
    x = computing.signed_inputs(torch.tensor(0.3).double(), v)
    assert (x != 0).double().mean().item() == pytest.approx(0.3, abs=0.01)
    assert (x > 0).double().mean().item() == pytest.approx(0.15, abs=0.01)
    assert x.abs()[x != 0].mean().item() == pytest.approx(0.5, abs=0.01)


def test_networks_learn_the_absolute_value():
    p = torch.full((4,), 0.5)
    net = computing.train(2, 8, p, steps=600, size=128)
    loss = computing.loss(net, p, 4000)[0]
    assert loss.min().item() < 0.01 and loss.median().item() < 0.05
    assert computing.dedicated(2, 0, 0.5) > 0.2  # what answering with the mean would cost


# ---- messages -----------------------------------------------------------------------------------


def small():
    model = Transformer(TOY, seed=1).double().eval().requires_grad_(False)
    for name, weight in model.named_parameters():
        weight.mul_(3.0 if "W_O" not in name else 8.0)
    return model


def trained():
    from circuitbook import zoo

    return zoo.load("attn-only-2l", dtype=torch.float64, device="cpu")


@pytest.fixture(params=["random", pytest.param("trained", marks=pytest.mark.weights)])
def any_model(request):
    return small() if request.param == "random" else trained()


def test_messages_are_the_heads_writes(any_model):
    words = torch.arange(1, 50)
    sent = messages.messages(any_model, 1, words)
    assert (sent.mean(0)).abs().max() < 1e-10
    assert torch.linalg.matrix_rank(sent) == any_model.cfg.d_head
    tokens = torch.tensor([[0, 7, 3]])
    write = cut.run(any_model, tokens, names=["blocks.0.attn.hook_result"])[1]
    x = any_model.W_E[tokens[0]]
    pattern = cut.run(any_model, tokens, names=["blocks.0.attn.hook_pattern"])[1]
    moved = pattern["blocks.0.attn.hook_pattern"][0, 1] @ x @ any_model.W_V[0, 1]
    want = write["blocks.0.attn.hook_result"][0, :, 1]
    torch.testing.assert_close(moved @ any_model.W_O[0, 1], want, rtol=0, atol=1e-9)
    got = messages.study(any_model, (1, 2), words)
    assert got["rank"] == any_model.cfg.d_head and got["sum_D"] <= got["rank"] + 1e-9
    assert 0 <= got["wins"] <= 1 and got["token_sum"] <= any_model.cfg.d_model + 1e-6


def test_a_score_is_the_virtual_weight_of_a_message(any_model):
    words = torch.arange(1, 30)
    table = messages.score_table(any_model, (0, 1), words)
    E = any_model.W_E[words]
    virtual = any_model.OV[0, 0].AB @ any_model.QK[1, 1].AB.T
    want = E @ (E @ virtual).T / any_model.cfg.d_head**0.5
    want = want - want.mean(1, keepdim=True)  # messages are centred over the words
    torch.testing.assert_close(table, want, rtol=0, atol=1e-8 * float(want.abs().max()))
    other = E @ (E @ any_model.OV[0, 0].AB @ any_model.QK[1, 1].AB).T  # mutant: transposed
    other = (other - other.mean(1, keepdim=True)) / any_model.cfg.d_head**0.5
    assert (other - table).abs().max() > 1e-2 * table.abs().max()


def test_what_survives_of_messages(any_model):
    words = torch.arange(1, 40)
    moves = messages.survival(any_model, words[None, :12], (0, 1), words)
    R, G, C, K = moves.values()
    exact = ("probabilities", "words whose own message wins", "leverage of messages")
    assert all(m[k] < 1e-7 for m in moves.values() for k in exact)
    assert all(m["own score minus the mean echo"] < 1e-7 for m in moves.values())
    assert max(R.values()) < 1e-7
    assert G["cosines between messages"] > 1e-2 and G["D of messages"] > 1e-3
    assert C["D of W_U's columns"] > 1e-2 and K["own score, raw"] > 1e-4
    k0 = draw(any_model.cfg.d_head, seed=3)
    plain, shifted = (messages.score_table(any_model, (0, 1), words, k0=k) for k in (None, k0))
    query = any_model.W_E[words] @ any_model.W_Q[-1, 1]
    want = (query @ k0 / any_model.cfg.d_head**0.5)[:, None].expand_as(plain)
    torch.testing.assert_close(shifted - plain, want, rtol=0, atol=1e-8 * float(plain.abs().max()))


def test_the_shift_of_keys_reaches_the_model(monkeypatch):
    """A shift of queries instead of keys is no symmetry: the probabilities see it."""
    model, words = small(), torch.arange(1, 20)
    tokens, k0 = words[None, :12], draw(TOY.d_head, seed=3)
    old = messages.numbers(model, tokens, (0, 1), words)["probabilities"]
    new = messages.numbers(model, tokens, (0, 1), words, k0)["probabilities"]
    assert (new - old).abs().max() < 1e-12
    seen = []

    def spy(model, tokens, shift):
        seen.extend(name for name, _ in shift.hooks)
        wrong = [(name.replace("hook_k", "hook_q"), hook) for name, hook in shift.hooks]
        return run(model, tokens, cut.Cut(tuple(wrong)))

    run = cut.run
    monkeypatch.setattr(cut, "run", spy)
    mutant = messages.numbers(model, tokens, (0, 1), words, k0)["probabilities"]
    assert len(seen) == TOY.n_layers and (mutant - old).abs().max() > 1e-4


def test_controls_of_messages():
    model, words = small(), torch.arange(1, 50)
    tables = {
        (w, q): messages.heard(messages.score_table(model, (w, q), words))
        for w in range(3)
        for q in range(3)
    }
    assert len(set(tables.values())) > 2
    for w, q in tables:
        got = messages.study(model, (w, q), words)
        assert got["wins"] == tables[w, q]
        assert got["other_writers"] == max(tables[h, q] for h in range(3) if h != w)
        assert got["other_reader_wins"] == max(tables[w, h] for h in range(3) if h != q)
        assert got["least_D"] <= got["D"] <= got["most_D"] <= 1
    assert messages.heard(torch.tensor([[0.0, 1.0], [0.0, 2.0]])) == 0.5
    assert messages.heard(torch.tensor([[1.0, 0.0], [3.0, 2.0]])) == 0.5
    uneven = torch.tensor([[5.0, 1.0, 1.0], [6.0, 7.0, 1.0], [6.0, 1.0, 1.0]])
    assert messages.heard(uneven) == pytest.approx(2 / 3)  # by columns it would be one third
    assert messages.heard(torch.eye(4)) == 1 and messages.heard(-torch.eye(4)) == 0
    star = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]).double()
    assert messages.nearest(star) == pytest.approx(0.5**0.5)
