"""Codings of equal L0, single-mindedness on units with known answers, dashboards, steering."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_sae import draw, gen, random_dictionary, some_tokens, toy_model

from circuitbook import corpus, results
from circuitbook.autoencoders import (
    codings,
    contexts,
    dashboards,
    latent_moves,
    quality,
    sae,
    steer,
)

# ---- codings


def test_top_coordinates_are_the_best_of_their_basis():
    x, mean = draw(50, 8), draw(8, seed=1)
    basis = torch.linalg.qr(draw(8, 8, seed=2))[0].T
    for B in (None, basis):
        out = codings.top_coordinates(x, mean, B, 3)
        c = (x - mean) if B is None else (x - mean) @ B.T
        assert (((out - mean) if B is None else (out - mean) @ B.T).abs() > 1e-9).sum(1).max() <= 3
        missed = (x - out).square().sum(1)
        best = c.square().sort(1).values[:, :5].sum(1)  # what the five smallest leave behind
        torch.testing.assert_close(missed, best)
        torch.testing.assert_close(codings.top_coordinates(x, mean, B, 8), x)


def test_top_of_the_write_keeps_the_write_and_not_the_neurons():
    x, mean, W_out = draw(30, 12), draw(12, seed=1), draw(12, 5, seed=2)
    _, components = codings.principal((x - mean) @ W_out)
    back = torch.linalg.pinv(W_out)
    whole = codings.top_of_the_write(x, mean, W_out, back, components, 5)
    torch.testing.assert_close(whole @ W_out, x @ W_out)  # the write in full
    assert (whole - x).norm() > 0.1 * x.norm()  # from other neurons
    some = codings.top_of_the_write(x, mean, W_out, back, components, 2)
    c = ((some - mean) @ W_out) @ components.T
    assert ((c.abs() > 1e-9).sum(1) == 2).all()
    true = ((x - mean) @ W_out) @ components.T
    assert torch.equal(
        c.abs().topk(2).indices.sort().values, true.abs().topk(2).indices.sort().values
    )


def test_principal_directions():
    x = draw(4000, 3) * torch.tensor([3.0, 1.0, 0.2], dtype=torch.float64)
    turn = torch.linalg.qr(draw(3, 3, seed=5))[0]
    mean, rows = codings.principal(x @ turn + 2)
    torch.testing.assert_close(mean, torch.full((3,), 2.0, dtype=torch.float64), atol=0.2, rtol=0)
    assert ((rows @ turn.T).diagonal().abs() > 0.99).all()  # in the order of their variance


def test_pursuit_finds_a_sparse_sum_and_is_never_worse_than_its_first_guess():
    directions = codings.random_directions(200, 60, seed=1).double()
    assert (directions.norm(dim=1) - 1).abs().max() < 1e-6
    mean = draw(60, seed=2)
    at = torch.randint(200, (40, 3), generator=gen(3))
    true = torch.tensor([3.0, -2.0, 1.5], dtype=torch.float64)
    x = mean + (true[None, :, None] * directions[at]).sum(1)
    out = codings.pursuit(x, mean, directions, 6)
    assert (x - out).norm() < 0.05 * (x - mean).norm()
    one = codings.pursuit(x, mean, directions, 1)
    dots = (x - mean) @ directions.T
    best = dots.abs().max(1).values
    torch.testing.assert_close(
        (x - one).square().sum(1), (x - mean).square().sum(1) - best.square(), rtol=1e-4, atol=1e-4
    )
    noise = draw(100, 60, seed=4)
    missed = [(noise - codings.pursuit(noise, mean, directions, k)).norm() for k in (1, 4, 16)]
    assert missed[0] > missed[1] > missed[2]


def test_examples_are_rows_of_other_text():
    x, mean = draw(9, 5), draw(5, seed=1)
    rows = codings.examples(x, mean, 4, seed=2)
    assert rows.shape == (4, 5) and codings.examples(x, mean, 20, seed=2).shape == (9, 5)
    unit = torch.nn.functional.normalize(x - mean, dim=1)
    assert ((rows @ unit.T).max(1).values > 1 - 1e-12).all()
    # a row that is itself an example needs one number
    out = codings.pursuit(x, mean, codings.examples(x, mean, 9, seed=2), 1)
    torch.testing.assert_close(out, x, rtol=1e-4, atol=1e-4)


# ---- single-mindedness


WINDOWS, LENGTH, N = 60, 50, 12


def text():
    """Every word of ten equally often, in an order of chance; BOS first."""
    tokens = torch.randint(1, 11, (WINDOWS, LENGTH), generator=gen(4))
    tokens[:, 0] = 0
    return tokens


def judge(x, tokens, n=N):
    return contexts.minds(contexts.peaks(x.float()), tokens, n)


def test_units_with_known_answers():
    tokens = text()
    here, before = tokens[:, 1:], tokens[:, :-1]
    noise = torch.rand(here.shape, generator=gen(5))
    either = torch.where(here == 4, 1.0, 0.0) + torch.where(here == 7, 1.0, 0.0)
    units = torch.stack(
        [
            (here == 4) + 0.1 * noise,  # one word under it
            (before == 7) + 0.1 * noise,  # one word before it
            either * (1 + 0.5 * noise),  # two words, alike
            noise,  # none
        ],
        dim=2,
    )
    found = judge(units, tokens)
    assert found.share[0] == 1 and found.place[0] == 1 and found.token[0] == 4
    assert found.share[1] == 1 and found.place[1] == 0 and found.token[1] == 7
    assert 0.5 <= found.share[2] <= 0.85
    assert found.share[3] <= 0.5  # one of ten words, at the better of two places
    # the floor: where every word is another one, the share is 1 in n
    spread = torch.arange(1, WINDOWS * LENGTH + 1).view(WINDOWS, LENGTH)
    assert judge(units, spread).share[3] == pytest.approx(1 / N)


def test_adversarial_units():
    """A word repeated in one window, one huge activation, a loud unit: none looks single-minded."""
    tokens = text()
    here = tokens[:, 1:]
    noise = torch.rand(here.shape, generator=gen(6))
    one_window = noise.clone()
    one_window[3][here[3] == 5] += 100  # fires on one word, and only in one document
    outlier = noise.clone()
    at = (here == 5).nonzero()[0]
    outlier[at[0], at[1]] = 1e6
    loud = noise * 1e3
    found = judge(torch.stack([one_window, outlier, loud, noise], 2), tokens)
    assert (found.share <= 0.5).all()
    assert found.share[2] == found.share[3]  # only the order of the activations counts
    # weighting by strength would be fooled by both of the first two
    flat = outlier.flatten().topk(N)
    weights = torch.zeros(11).index_add_(0, here.flatten()[flat.indices], flat.values)
    assert weights.max() / weights.sum() > 0.99


def test_rare_units_are_set_apart_and_codes_agree_with_dense():
    tokens = text()
    x = torch.rand(WINDOWS, LENGTH - 1, 6, generator=gen(7))
    kept = sae.top_k(x.flatten(0, 1), 2)
    value, latent = x.flatten(0, 1).topk(2)
    c = quality.Codes(value, latent)
    dense = contexts.peaks(kept.unflatten(0, (WINDOWS, -1)))
    short = contexts.code_peaks(c, WINDOWS, 6, block=7)
    assert torch.equal(dense.value, short.value) and torch.equal(dense.at, short.at)
    rare = torch.zeros(WINDOWS, LENGTH - 1, 1)
    rare[: N - 1, 3] = 1.0
    assert judge(rare, tokens).enough[0] == 0
    rare[N - 1, 3] = 1.0
    assert judge(rare, tokens).enough[0] == 1
    with pytest.raises(ValueError, match="windows"):
        contexts.minds(dense, tokens, WINDOWS + 1)


def test_most_common_and_above():
    words = torch.tensor([[3, 1, 2], [3, 2, 2], [5, 1, 7], [5, 9, 8]])
    count, word = contexts.most_common(words)
    assert count.tolist() == [2, 2, 2] and word.tolist() == [3, 1, 2]
    a, b = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 2.0])
    assert contexts.above(a, b) == pytest.approx((0 + 0.5 + 1) / 3)
    assert contexts.above(a, a) == 0.5
    assert contexts.spread(a)["quartiles"][1] == 2


# ---- dashboards and steering


@pytest.fixture(scope="module")
def toy():
    model, tokens = toy_model(torch.float64), some_tokens(12, 24)
    d = sae.unit_rows(random_dictionary(40, 30, 40, k=5))
    seen = quality.read(model, tokens, torch.arange(12) // 2)
    return SimpleNamespace(
        model=model, d=d, seen=seen, c=quality.codes(d, seen.post.flatten(0, 1)), tokens=tokens
    )


def test_written_words_are_what_steering_adds(toy):
    """In a one-layer model the added logits are the table's row, at every position."""
    which = torch.tensor([4])
    table = dashboards.written(toy.model, toy.d, which)[0]
    assert abs(table.mean()) < 1e-12
    mlp, found = toy.model.blocks[0].mlp, []
    for added in (0.0, 2.5):
        post = toy.seen.post + added * toy.d.W_dec[4]
        found.append(toy.model.unembed(toy.seen.mid + post @ mlp.W_out + mlp.b_out))
    moved = found[1] - found[0]
    moved = moved - moved.mean(-1, keepdim=True)
    torch.testing.assert_close(moved, (2.5 * table).expand_as(moved), rtol=0, atol=1e-10)


def test_direct_inputs_are_activations_by_single_words(toy):
    drives = dashboards.by_word(toy.model, toy.d, torch.tensor([4, 9]))
    mlp = toy.model.blocks[0].mlp
    for word in (1, 33):
        x = mlp.act(toy.model.W_E[word] @ mlp.W_in + mlp.b_in)
        torch.testing.assert_close(drives[:, word], toy.d.encode(x)[[4, 9]])


def test_a_dashboard_shows_the_strongest_contexts(toy, monkeypatch):
    names = [f"<{i}>" for i in range(70)]
    monkeypatch.setattr("circuitbook.vocabulary.texts", lambda: names)
    top = contexts.code_peaks(toy.c, 12, 30)
    found = contexts.minds(top, toy.tokens, 4)
    fired = torch.full((30,), 0.1)
    names_of = [f"n{i}" for i in range(12)]
    windows = corpus.Windows(np.asarray(toy.tokens), np.arange(12), ["s"] * 12, names_of)
    show = dashboards.dashboard
    entry = show(toy.model, toy.d, [7], found, top, fired, windows, contexts=3, words=4)[0]
    window, at = int(top.value[:, 7].argmax()), int(top.at[top.value[:, 7].argmax(), 7])
    assert entry["contexts"][0][1] == f"<{int(toy.tokens[window, at])}>"
    assert entry["sources"][0] == f"s: n{window}" and entry["highest"] == float(
        top.value[:, 7].max()
    )
    lifts = dashboards.written(toy.model, toy.d, torch.tensor([7]))[0]
    assert entry["writes"] == [f"<{int(i)}>" for i in lifts.topk(4).indices]
    assert entry["lifts"][0] == pytest.approx(entry["highest"] * float(lifts.max()), abs=1e-3)
    assert contexts_of(names, 2) == ["<5>", "<6>", "<7><8><9>"]


def contexts_of(names, at):
    return dashboards.context(names, torch.tensor([0, 5, 6, 7, 8, 9, 10]), at)


def test_steering_against_a_run_with_a_hook(toy):
    words = torch.tensor([3, 8])
    row, highest = toy.d.W_dec[4], 3.0
    controls = {"random": codings.random_directions(3, 40, 1).double() * 7}
    out = steer.doses(toy.model, toy.seen, row, highest, words, controls, (0.5, 2.0))

    def run(added):
        def hook(post, hook):
            return torch.cat([post[:, :1], post[:, 1:] + added], 1)

        logits = toy.model.run_with_hooks(toy.tokens, fwd_hooks=[("blocks.0.mlp.hook_post", hook)])
        log_p = logits[:, 1:-1].log_softmax(-1)
        loss = -log_p.gather(-1, toy.tokens[:, 2:, None]).mean()
        return log_p[..., words].exp().sum(-1).mean().item(), loss.item()

    plain = run(torch.zeros(40, dtype=torch.float64))
    assert out["before"] == pytest.approx(plain[0])
    for i, dose in enumerate((0.5, 2.0)):
        p, loss = run(dose * highest * row)
        assert out["latent"]["p"][i] == pytest.approx(p)
        assert out["latent"]["loss"][i] == pytest.approx(loss - plain[1], abs=1e-9)
    # controls are brought to the row's length
    unit = controls["random"][0] / controls["random"][0].norm()
    one = steer.doses(toy.model, toy.seen, row, highest, words, {"r": 9 * unit[None]}, (2.0,))
    assert one["r"]["p"][0] == pytest.approx(run(2.0 * highest * unit * row.norm())[0])


def test_taking_away_is_what_it_says(toy):
    words, latent = torch.tensor([3, 8, 20]), int(toy.c.latent.flatten().mode().values)
    out = steer.taken_away(toy.model, toy.seen, toy.d.W_dec, toy.c, latent, words)
    f = toy.d.encode(toy.seen.post.flatten(0, 1))
    assert out["n"] == int((f[:, latent] > 0).sum())
    mlp = toy.model.blocks[0].mlp

    def odds(f):  # the model's own neurons, minus the latent's write
        post = toy.seen.post.flatten(0, 1) - f[:, [latent]] * toy.d.W_dec[latent]
        last = toy.seen.mid.flatten(0, 1) + post @ mlp.W_out + mlp.b_out
        p = toy.model.unembed(last[None])[0].softmax(-1)[:, words].sum(1)
        return (p / (1 - p)).log()

    at = f[:, latent] > 0
    own = (odds(f) - odds(torch.zeros_like(f)))[at].mean()
    assert out["own"][0] == pytest.approx(own.item())
    # the control: the strongest of the others, which is not the latent itself
    rest = f[at].clone()
    rest[:, latent] = 0
    value, other = rest.max(1)
    post = toy.seen.post.flatten(0, 1)[at]
    mid = toy.seen.mid.flatten(0, 1)[at]
    last = mid + (post - value[:, None] * toy.d.W_dec[other]) @ mlp.W_out + mlp.b_out
    p = toy.model.unembed(last[None])[0].softmax(-1)[:, words].sum(1)
    gone = (p / (1 - p)).log() - odds(torch.zeros_like(f))[at]
    assert out["other"][0] == pytest.approx(gone.mean().item())
    assert out["apart"][0] == pytest.approx(out["own"][0] - out["other"][0])


# ---- what survives


def test_what_moves_and_what_survives(toy):
    found = latent_moves.moves(toy.model, toy.d, toy.tokens[:2], 4)
    assert set(found) == set(latent_moves.CHANGES)
    hits, of = latent_moves.right(found)
    assert hits == of == 30
    # and a dictionary that stays behind when the neurons turn does lose its latents
    turned = found["neurons turned"]
    assert turned["latents' activations"] == 0 and turned["neurons' activations"] > 0.1


# ---- the study on the bundled autoencoder


@pytest.mark.slow
@pytest.mark.weights
@pytest.mark.text
def test_study_of_the_bundled_autoencoder():
    """A small sample gives the right picture: far above every coding of equal L0."""
    from circuitbook.autoencoders import study

    data, claims = study.study(windows=16, judged=4, n=4)
    q, others = data["quality"], data["baselines"]
    assert 0.9 <= q["recovered"] < 1 and q["l0"] <= 40 and 0.85 < q["variance_kept"] < 1
    assert q["full"] < q["loss"] < q["mean"] < q["zero"]
    assert all(row["recovered"] < q["recovered"] for row in others.values())
    assert others["random"]["recovered"] < others["examples"]["recovered"]
    assert len(data["best"]) == len(data["random"]) == 10
    holds = {c["id"]: c["holds"] for c in claims}
    for name in ("formulas", "recovered", "beats_equal_l0", "rotation", "survival", "steered"):
        assert holds[f"latents.{name}"], name
    assert len(json.dumps(results.plain(data))) < 60_000
