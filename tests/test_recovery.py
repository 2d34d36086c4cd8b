"""The toy half of chapter 09: hand cases, the trainer, matching and baselines, on known answers."""

from dataclasses import replace

import pytest
import torch

from circuitbook.autoencoders import baselines, fit, hand, recovery, repoint, sae
from circuitbook.superposition import toy

ch09 = pytest.importorskip("circuitbook.taught.ch09", reason="run tools/derive.py taught")
TINY = fit.Setting(latents=16, steps=24, batch=256, on=0.1)


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=gen(seed), dtype=dtype)


def some(latents=16, d=6, seed=0, dtype=torch.float64):
    """A dictionary with rows of many lengths, some latents on and some off."""
    E, b, c = (
        draw(d, latents, seed=seed),
        draw(latents, seed=seed + 1) - 0.5,
        draw(d, seed=seed + 3),
    )
    D = draw(latents, d, seed=seed + 2) * torch.linspace(0.2, 3, latents)[:, None].double()
    return sae.Dictionary(*(p.to(dtype) for p in (E, b, D, c)))


def weights(d):
    return d.W_enc, d.b_enc, d.W_dec, d.b_dec


# ---- by hand ------------------------------------------------------------------------------------


def test_the_published_example():
    h = hand.by_hand()
    assert h["f"].tolist() == pytest.approx([0.4, 0.0], abs=1e-12)
    assert h["x_hat"].flatten().tolist() == pytest.approx([0.24, 0.32, 0, 0], abs=1e-12)
    assert h["err"].tolist() == pytest.approx([0.01, 0.0025], abs=1e-12)
    assert h["l1_part"].tolist() == pytest.approx([0.2, 0.0], abs=1e-12)
    f, copy = ch09.sae_forward(torch.tensor(hand.INPUTS).double(), *weights(hand.one_latent()))
    torch.testing.assert_close(f[:, 0], h["f"])
    torch.testing.assert_close(copy, h["x_hat"])


@pytest.mark.parametrize("dtype, limit", [(torch.float32, 1e-6), (torch.float64, 1e-13)])
def test_rescaling_law(dtype, limit):
    dictionary, x = some(dtype=dtype), draw(40, 6, seed=9, dtype=dtype)
    case = hand.cheat(dictionary, x, 0.3, ch09.naive_loss)
    right, wrong = case["with the length"], case["without it"]
    assert max(abs(v / right[0] - 1) for v in right) <= limit
    assert all(a > b for a, b in zip(wrong, wrong[1:])) and wrong[-1] > case["error"]
    assert wrong[-1] - case["error"] == pytest.approx((wrong[0] - case["error"]) / 100, rel=1e-3)
    moved = hand.stretched(dictionary, 7.0)
    torch.testing.assert_close(moved(x), dictionary(x), rtol=20 * limit, atol=20 * limit)


def test_the_naive_loss_is_the_right_one_at_length_one():
    d, x = sae.unit_rows(some()), draw(30, 6, seed=4)
    naive = ch09.naive_loss(x, *weights(d), 0.7).mean()
    torch.testing.assert_close(naive, sae.loss(d, x, x, 0.7))
    long = hand.stretched(d, 3.0)
    assert abs(ch09.naive_loss(x, *weights(long), 0.7).mean() - naive) > 1e-2


def test_the_cheapest_value_is_half_the_penalty_less():
    a = torch.linspace(0, 2, 41).double()
    torch.testing.assert_close(hand.best_value(a, 0.3), (a - 0.15).clamp_min(0), atol=1e-9, rtol=0)
    wrong = (a - 0.3).clamp_min(0)  # mutant: the whole penalty
    assert (hand.best_value(a, 0.3) - wrong).abs().max() > 0.1


def test_cheapest_codes_cannot_be_made_cheaper():
    D, x = draw(9, 5), draw(12, 5, seed=1)
    f = hand.best_codes(x, D, 0.4, steps=20_000)
    slope = 2 * (f @ D - x) @ D.T + 0.4 * D.norm(dim=1)
    assert slope[f > 0].abs().max() < 1e-6 and slope[f == 0].min() > -1e-6
    E = torch.linalg.qr(draw(5, 5, seed=2)).Q * torch.linspace(0.5, 3, 5).double()[:, None]
    alone = (x @ torch.nn.functional.normalize(E).T - 0.2).clamp_min(0) / E.norm(dim=1)
    torch.testing.assert_close(hand.best_codes(x, E, 0.4), alone, atol=1e-9, rtol=0)


def test_shortfall_of_a_dictionary_that_shrinks_by_design():
    truth = torch.eye(5).double() * torch.tensor([1.0, 2, 0.5, 1, 3]).double()
    eye, zero = torch.eye(5).double(), torch.zeros(5).double()
    d = sae.Dictionary(eye, zero - 0.25, eye, zero)
    got = hand.shortfall(d, truth, [0.1, 0.5, 1.0], 0.3)
    want = torch.tensor([0.1, 0.25, 0.25]).double().expand(5, 3)
    torch.testing.assert_close(got.encoder, want, atol=1e-7, rtol=0)
    want = torch.tensor([0.1, 0.15, 0.15]).double().expand(5, 3)
    torch.testing.assert_close(got.best, want, atol=1e-7, rtol=0)


# ---- the trainer --------------------------------------------------------------------------------


def one_step(dictionary, setting, h):
    """The lane's own gradient (of the mean loss) at `dictionary` on the rows h."""
    lane = fit.Lane(dictionary, setting)
    columns = torch.zeros(h.shape[1] + 2, len(h))
    columns[: h.shape[1]], columns[h.shape[1]] = h.T, 1
    lane.step(columns)
    d, c = h.shape[1], -2 / len(h)
    return {
        "W_enc": lane.d_enc[:d] * c,
        "b_enc": lane.d_enc[d] * c,
        "W_dec": lane.d_D.T * c,
        "b_dec": lane.d_bias * c,
    }, lane


@pytest.mark.parametrize("penalty", [0.0, 0.3])
def test_gradients_are_those_of_the_loss(penalty):
    start, h = some(dtype=torch.float32), draw(256, 6, seed=5, dtype=torch.float32)
    got, _ = one_step(start, replace(TINY, penalty=penalty), h)
    leaves = [p.clone().requires_grad_() for p in weights(start)]
    with torch.enable_grad():
        sae.loss(sae.Dictionary(*leaves), h, h, penalty).backward()
    for name, leaf in zip(got, leaves):
        size = leaf.grad.abs().max()
        assert (got[name] - leaf.grad).abs().max() <= 2e-5 * size, name
    if penalty:  # mutant: the length left out of the gradient
        with torch.enable_grad():
            fixed = [p.clone().requires_grad_() for p in weights(start)]
            ch09.naive_loss(h, *fixed, penalty).mean().backward()
        assert (got["W_dec"] - fixed[2].grad).abs().max() > 1e-2


def test_steps_are_those_of_adam():
    start, setting = some(dtype=torch.float32), replace(TINY, rate=0.01)
    leaves = [p.clone().requires_grad_() for p in weights(start)]
    adam, lane = torch.optim.Adam(leaves, lr=0.01, eps=1e-12), fit.Lane(start, setting)
    for t in range(6):
        h = draw(256, 6, seed=20 + t, dtype=torch.float32)
        columns = torch.cat([h.T, torch.ones(1, 256), torch.zeros(1, 256)])
        lane.step(columns)
        with torch.enable_grad():
            adam.zero_grad()
            sae.loss(sae.Dictionary(*leaves), h, h, setting.penalty).backward()
            adam.step()
    for got, want in zip(weights(lane.dictionary()), leaves):
        torch.testing.assert_close(got, want.detach(), atol=2e-4, rtol=1e-3)


def test_codes_are_sparse_uniform_independent_and_repeatable():
    codes = fit.Codes(400_000, 0.05, gen(1))
    first = codes.draw().clone()
    second = codes.draw().clone()
    for x in (first, second):
        on = x > 0
        assert on.float().mean().item() == pytest.approx(0.05, abs=0.002)
        assert x[on].mean().item() == pytest.approx(0.5, abs=0.01)
        assert (on[1:] & on[:-1]).float().mean().item() == pytest.approx(0.0025, abs=4e-4)
    assert not torch.equal(first > 0, second > 0)  # fresh, and the old places are cleared
    again = fit.Codes(400_000, 0.05, gen(1))
    assert torch.equal(again.draw(), first) and torch.equal(again.draw(), second)
    few = fit.Codes(30, 0.5, gen(2))
    assert max(int((few.draw() > 0).sum()) for _ in range(50)) > 15  # the tail is not cut off


def test_starts_are_unit_directions_drawn_independently():
    d, other = fit.start(6, TINY, 3), fit.start(6, TINY, 4)
    torch.testing.assert_close(d.W_dec.norm(dim=1), torch.ones(16))
    torch.testing.assert_close(d.W_enc.norm(dim=0), torch.ones(16))
    assert not torch.equal(d.W_enc, d.W_dec.T) and not torch.equal(d.W_dec, other.W_dec)
    again = fit.start(6, replace(TINY, repoint="missing"), 3)
    assert all(torch.equal(a, b) for a, b in zip(weights(d), weights(again)))


def test_lanes_do_not_meet_and_threads_do_not_matter():
    W = draw(3, 6, 12, dtype=torch.float32)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        together = fit.train(W, TINY)
        assert torch.get_num_threads() == 2
        torch.set_num_threads(1)
        alone = fit.train(W[1:2], TINY, [fit.Lane(fit.start(6, TINY, 1), TINY)])[0]
    finally:
        torch.set_num_threads(before)
    for a, b in zip(weights(together[1]), weights(alone)):
        assert torch.equal(a, b)
    with pytest.raises(ValueError, match="use at least 6"):
        fit.train(W, replace(TINY, latents=4))


def test_it_finds_what_is_there_to_find():
    W = torch.linalg.qr(draw(8, 8, dtype=torch.float32)).Q[None]
    setting = fit.Setting(
        8, 0.1, steps=2400, batch=256, rate=5e-3, on=0.1, repoint="missing", every=80, until=1600
    )
    learned = fit.train(W, setting)[0]
    assert ch09.best_match(W[0].T, learned.W_dec).median() > 0.99
    x = fit.Codes(8 * 4096, 0.1, gen(3)).draw().view(4096, 8)
    got = recovery.reading(W[0], learned, x, 0.1, ch09.best_match)
    assert got["variance"] > 0.8 and got["median"] > 0.99
    assert 0.02 <= hand.shortfall(learned, W[0], [0.8], 0.1).encoder.median() <= 0.08  # half of 0.1


def test_spare_latents_are_the_idle_and_the_repeated():
    D = torch.eye(5).index_add_(0, torch.tensor([4]), torch.tensor([[1.0, 0, 0, 0, -0.9]]))
    d = sae.Dictionary(torch.eye(5), torch.zeros(5), D, torch.zeros(5))  # row 4 is nearly row 0
    f = torch.rand(1000, 5, generator=gen(1))
    f[:, 4] *= 0.5
    f[5:, 3] = 0  # on for 0.5 % of the inputs
    assert repoint.spare_latents(d, f).tolist() == [False, False, False, True, True]
    f[:, 4] *= 4  # now row 0 is the weaker of the twins
    assert repoint.spare_latents(d, f).tolist() == [True, False, False, True, False]


def test_error_shows_what_is_missing_and_chance_does_not():
    truth = torch.linalg.qr(draw(8, 8, dtype=torch.float32)).Q
    h = fit.Codes(8 * 8000, 0.08, gen(2)).draw().view(8000, 8) @ truth
    without = torch.full((8,), -0.1).index_fill_(0, torch.tensor([3, 5]), -9.0)
    d = sae.Dictionary(truth.T.clone(), without, truth, torch.zeros(8))
    found = repoint.missing_directions(h, h - d(h), 2)
    assert ch09.best_match(truth[[3, 5]], found).min() > 0.9
    assert (found[0] @ found[1]).abs() <= repoint.APART
    chance = repoint.blind_directions(h, h - d(h), 2)
    assert ch09.best_match(truth[[3, 5]], chance).max() < 0.9
    torch.testing.assert_close(chance.norm(dim=1), torch.ones(2))


def test_repointing_moves_spare_latents_and_nothing_else():
    d = fit.start(6, TINY, 0)
    dead = replace(d, b_enc=torch.zeros(16).index_fill_(0, torch.tensor([2, 7]), -50.0))
    lane = fit.Lane(dead, TINY)
    h = draw(4000, 6, seed=3, dtype=torch.float32)
    lane.first += 1
    moved = lane.repoint(h, "missing")
    got, others = lane.dictionary(), [j for j in range(16) if j not in (2, 7)]
    spare = repoint.spare_latents(dead, dead.encode(h)).nonzero().flatten().tolist()
    assert spare[:1] == [2] and 7 in spare and moved == len(spare) and lane.moved == [moved]
    kept = [j for j in others if j not in spare]
    assert torch.equal(got.W_dec[kept], dead.W_dec[kept])
    assert torch.equal(got.W_enc[:, kept], dead.W_enc[:, kept])
    torch.testing.assert_close(got.W_enc[:, spare], got.W_dec[spare].T)
    assert (got.b_enc[spare] == 0).all() and (lane.first[:, spare] == 0).all()
    assert (lane.first[:, kept] == 1).all()


# ---- matching -----------------------------------------------------------------------------------


def test_matching_knows_planted_answers():
    truth = draw(12, 6)
    order = torch.randperm(12, generator=gen(2))
    learned = truth[order] * torch.linspace(0.1, 4, 12)[:, None].double()
    torch.testing.assert_close(ch09.best_match(truth, learned), torch.ones(12).double())
    assert ch09.best_match(truth[:1], -truth[:1]).item() == pytest.approx(-1)
    hand_made = ch09.best_match(torch.tensor([[1.0, 0]]), torch.tensor([[1.0, 1], [-3, 0]]))
    assert hand_made.item() == pytest.approx(0.5**0.5)


def test_one_direction_alone_can_be_fooled():
    truth = torch.eye(6).double()
    one_feature = truth[:1].expand(6, 6)  # adversarial: every latent is the same feature
    assert ch09.best_match(one_feature, truth).min() == 1
    assert ch09.best_match(truth, one_feature).median() == 0
    counts = recovery.sharing(truth, one_feature, torch.full((6,), 0.05))
    assert counts == {
        "shared": 5, "spare": 5, "idle": 0, "doubled": 5, "lost": 5, "crowded": 5,
    }  # fmt: skip


def test_sharing_counts_lost_features_and_spare_latents():
    truth, learned, rate = torch.eye(5).double(), torch.eye(5).double(), torch.full((5,), 0.05)
    none = dict.fromkeys(("shared", "spare", "idle", "doubled", "lost", "crowded"), 0)
    assert recovery.sharing(truth, learned, rate) == none
    learned[0] = torch.tensor([1.0, 1, 0, 0, 0])  # serves features 0 and 1
    learned[1] = torch.tensor([0, 0, 0.2, 0, 3])  # nobody's: a double of latent 4
    learned[3] = torch.tensor([0, 0, 0.3, 1, 0])  # tilted
    counts = {"shared": 1, "spare": 1, "idle": 0, "doubled": 1, "lost": 3, "crowded": 2}
    assert recovery.sharing(truth, learned, rate) == counts
    rate[1] = 0.001  # a double may be idle too
    assert recovery.sharing(truth, learned, rate) == counts | {"idle": 1}
    learned[1] = torch.tensor([0, 0, 1.0, 1, -1])
    assert recovery.sharing(truth, learned, rate) == counts | {"idle": 1, "doubled": 0}
    wide = torch.cat([learned, -torch.eye(5).double()[:3]])  # more latents than features
    more = recovery.sharing(truth, wide, torch.full((8,), 0.05))
    assert (more["shared"], more["spare"]) == (1, 4)


def test_a_threshold_is_a_length_of_the_input():
    d = sae.unit_rows(some())
    t = recovery.threshold(d)
    torch.testing.assert_close(recovery.threshold(hand.stretched(d, 5.0)), t)
    rows = d.W_dec * t[:, None]  # inputs along the rows, just long enough
    torch.testing.assert_close(d.pre(rows).diagonal(), torch.zeros(16).double(), atol=1e-9, rtol=0)


def test_readings_of_a_perfect_and_of_a_useless_dictionary():
    W = torch.linalg.qr(draw(6, 6, dtype=torch.float32)).Q
    x = toy.sparse_inputs(torch.rand(2000, 6, generator=gen(1)), 0.2)
    perfect = sae.Dictionary(W.clone(), torch.full((6,), -1e-5), W.T.clone(), torch.zeros(6))
    got = recovery.reading(W, perfect, x, 0.0, ch09.best_match)
    assert got["variance"].item() == pytest.approx(1, abs=1e-6) and got["found"] == 6
    assert got["loss"].item() == pytest.approx(0, abs=1e-6) and got["shared"] == 0
    assert got["latents_on"].item() == pytest.approx((x > 0).float().sum(1).mean().item(), rel=1e-3)
    h = x @ W.T
    silent = replace(perfect, b_enc=torch.full((6,), -9.0), b_dec=h.mean(0))
    got = recovery.reading(W, silent, x, 0.0, ch09.best_match)
    assert got["variance"].item() == pytest.approx(0, abs=1e-6) and got["dead"] == 6
    raw = 1 - (h - h.mean(0)).square().sum() / h.square().sum()  # mutant: mean not subtracted
    assert raw > 0.1


# ---- baselines ----------------------------------------------------------------------------------


def test_pca_finds_axes_and_ica_finds_mixtures():
    scale = torch.tensor([3.0, 2.0, 1.5, 1.0, 0.5])
    Q = torch.linalg.qr(draw(5, 5, dtype=torch.float32)).Q
    gaussian = draw(20_000, 5, seed=1, dtype=torch.float32) * scale @ Q.T
    found = ch09.best_match(Q.T, baselines.both_ways(baselines.pca(gaussian)))
    assert found.min() > 0.99
    M = draw(5, 5, seed=4, dtype=torch.float32)  # directions that are not at right angles
    sources = toy.sparse_inputs(torch.rand(20_000, 5, generator=gen(3)), 0.1)
    h = sources @ M
    good = ch09.best_match(M, baselines.both_ways(baselines.ica(h, gen(5))))
    assert good.min() > 0.98
    assert ch09.best_match(M, baselines.both_ways(baselines.pca(h))).min() < 0.95


def test_cluster_centres_find_features_that_are_often_alone():
    truth = torch.nn.functional.normalize(draw(9, 6, dtype=torch.float32))
    x = torch.eye(9).repeat(60, 1) * (0.1 + torch.rand(540, 9, generator=gen(1)))
    h = torch.cat([x @ truth, torch.zeros(50, 6)])  # one feature at a time, and nothing
    best = [
        ch09.best_match(truth, baselines.cluster_centres(h, 9, gen(s))).sort().values
        for s in range(5)
    ]
    assert max(int((b > 0.999).sum()) for b in best) >= 7
    crowd = toy.sparse_inputs(torch.rand(4000, 9, generator=gen(2)), 0.9) @ truth  # never alone
    assert ch09.best_match(truth, baselines.cluster_centres(crowd, 9, gen(3))).median() < 0.9
    assert torch.isfinite(baselines.cluster_centres(h[:12], 9, gen(4))).all()


def test_shuffled_truth_keeps_lengths_and_scores_as_random():
    truth = draw(40, 10, dtype=torch.float32)
    spoiled = baselines.shuffled(truth, gen(1))
    torch.testing.assert_close(spoiled.norm(dim=1), truth.norm(dim=1))
    torch.testing.assert_close(spoiled.sort(1).values, truth.sort(1).values)
    assert ch09.best_match(truth, truth).min() > 0.999
    chance = ch09.best_match(truth, baselines.random_directions(40, 10, gen(2))).median()
    assert abs(ch09.best_match(spoiled, truth).median() - chance) < 0.06
    torch.testing.assert_close(
        ch09.best_match(truth, baselines.both_ways(baselines.units(10))),
        torch.nn.functional.normalize(truth).abs().amax(1),
    )
