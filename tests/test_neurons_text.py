"""Neurons on text, ablations and in-context learning of chapter 07: brute force and mutants."""

import pytest
import torch
from neuron_hooks import falls
from small_model import TINY, gen, model_of, tokens_of
from test_neurons_agreement import by_pairs

from circuitbook import cut, probe
from circuitbook.neurons import ablate, context_learning, contexts, draw, pair, survive, tables

ch07 = pytest.importorskip("circuitbook.taught.ch07", reason="run tools/derive.py taught")
MLP = TINY.replace(d_mlp=20, act="gelu")
ONE = MLP.replace(n_layers=1)
TEXT = pytest.mark.text

# ---- the survey ---------------------------------------------------------------------------------


def text_of(model, n=24, config=ONE):
    tokens = tokens_of(config, n=n, length=14)
    doc = torch.arange(n) // 3
    return tokens, doc, contexts.read_text(model, tokens, doc)


def test_the_text_is_in_step_with_the_tokens():
    model = model_of(ONE)
    tokens, doc, text = text_of(model)
    i = 5 * 12 + 3  # window 5, fourth place: BOS is left out
    assert (text.window[i], text.place[i], text.doc[i]) == (5, 4, doc[5])
    assert text.token[i] == tokens[5, 4] and text.following[i] == tokens[5, 5]
    name = "blocks.0.mlp.hook_post"
    post = cut.run(model, tokens, names=[name])[1][name]
    ours = contexts.activations(model, text.read, slice(0, 20))
    torch.testing.assert_close(ours.view(24, 12, 20), post[:, 1:-1])


def test_the_survey_is_its_definitions():
    model = model_of(ONE)
    tokens, doc, text = text_of(model)
    words = tables.most_written(model, 0, 4).ids
    found = contexts.survey(
        model, text, ch07.whiten, ch07.agreement, words, strongest=5, firing=6, seed=1
    )
    a = contexts.activations(model, text.read, slice(None))
    for n in (0, 7, 19):
        on = a[:, n] > 0.1
        assert found.share[n] == pytest.approx(on.double().mean().item())
        assert found.maximum[n] == a[:, n].max()
        assert found.mean[n] == pytest.approx(a[:, n].mean().item())
        assert found.documents[n] == len(text.doc[on].unique())
        hits = torch.isin(text.following[on], words[n]).double()
        assert found.right[n] == pytest.approx(hits.mean().item())
        mass = torch.zeros(24).double().index_add(0, text.token[on], a[on, n] - 0.1)
        assert found.top_token[n] == pytest.approx((mass.max() / mass.sum()).item())
        assert torch.equal(
            found.strongest[:, n].sort().values, a[:, n].topk(5).indices.sort().values
        )
        assert on[found.firing[n]].all() and len(found.firing[n]) == min(6, int(on.sum()))
    white = ch07.whiten(text.read)[0]
    fires = (a[:, [7]] - 0.1).clamp_min(0)
    want = by_pairs(white[:60], fires[:60], text.doc[:60])
    part = ch07.agreement(white[:60], fires[:60], text.doc[:60])
    assert part.item() == pytest.approx(want, abs=1e-9)
    whole = ch07.agreement(white, fires, text.doc)
    assert found.agreement[7] == pytest.approx(whole.item(), abs=1e-9)
    perfect = contexts.perfect_detectors(text, ch07.whiten, ch07.agreement, 0.0, 2, most=3)
    counts = torch.bincount(text.token)
    top = (text.token == counts.argmax()).double()[:, None]
    assert any(abs(ch07.agreement(white, top, text.doc) - x) < 1e-9 for x in perfect)


def test_the_draw_was_not_chosen():
    assert draw.drawn(ch07.DRAW_SEED, 14, 1024) == ch07.DRAWN
    assert len(set(ch07.DRAWN)) == 14 and draw.drawn(ch07.DRAW_SEED + 1, 14, 1024) != ch07.DRAWN


def test_the_draw_beside_all():
    x = torch.arange(100).float()
    b = draw.beside(x, tuple(range(90, 100)))
    assert b["drawn mean"] == 94.5 and b["mean"] == 49.5 and b["off"] > 4  # chosen, not drawn
    fair = [abs(draw.beside(x, draw.drawn(s, 10, 100))["off"].item()) for s in range(40)]
    assert sum(o <= 2 for o in fair) >= 34
    top, low = draw.extremes(x, x < 50, 3)
    assert top == [49, 48, 47] and low == [0, 1, 2]
    with pytest.raises(ValueError, match="needed"):
        draw.extremes(x, x < 3, 2)
    assert draw.rank_correlation(x, x.exp()) == pytest.approx(1.0)
    assert draw.rank_correlation(x, -x) == pytest.approx(-1.0)


# ---- ablations ----------------------------------------------------------------------------------


def test_partners_fire_as_often_and_are_others():
    share = torch.rand(200, generator=gen())
    allowed = share > 0.2
    partner = ablate.partners(share, allowed)
    ids = allowed.nonzero().flatten()
    assert (partner[~allowed] == -1).all() and allowed[partner[ids]].all()
    assert (partner[ids] != ids).all()
    rank = torch.empty(200, dtype=torch.long)
    rank[ids[share[ids].argsort()]] = torch.arange(len(ids))
    assert (rank[partner[ids]] - rank[ids]).abs().max() <= 8
    for n in (3, 4, 9):  # few neurons: still others, never themselves
        few = torch.zeros(200, dtype=torch.bool)
        few[ids[:n]] = True
        mates = ablate.partners(share, few)
        assert (mates[ids[:n]] != ids[:n]).all() and few[mates[ids[:n]]].all()


def test_words_as_frequent():
    counts = torch.tensor([5, 100, 101, 99, 4, 6, 1000, 0])
    words = torch.tensor([[1, 2], [7, 6]])
    same = ablate.as_frequent(words, counts)
    assert not any(set(a) & set(b) for a, b in zip(words.tolist(), same.tolist(), strict=True))
    assert all(len(set(row)) == 2 for row in same.tolist())
    assert set(same[0].tolist()) <= {6, 7, 3, 4}


def study_of(model, k=4):
    tokens, doc, text = text_of(model)
    words = tables.most_written(model, 0, k).ids
    found = contexts.survey(model, text, ch07.whiten, ch07.agreement, words, firing=5)
    allowed = found.share > 0.02
    partner = ablate.partners(found.share, allowed)
    common = ablate.as_frequent(words, torch.bincount(text.token, minlength=24))
    effects = ablate.effects(model, text, found, words, common, partner, rows=17)
    return tokens, text, words, found, allowed, partner, common, effects


def test_effects_are_those_of_runs_with_a_hook():
    model = model_of(ONE)
    tokens, text, words, found, allowed, partner, common, e = study_of(model)
    place = torch.cat([found.firing[i] for i in allowed.nonzero().flatten().tolist()])
    clean = model(tokens).log_softmax(-1)
    for i in range(0, len(e.neuron), 9):
        n, p = int(e.neuron[i]), int(place[i])
        w, t = int(text.window[p]), int(text.place[p])

        def fall(neuron, ids, w=w, t=t):
            change = ablate.ablation(0, neuron, found.mean[neuron])
            again = cut.run(model, tokens[[w]], change)[0].log_softmax(-1)[0, t]
            return (clean[w, t, ids].logsumexp(0) - again[ids].logsumexp(0)).item()

        q = int(partner[n])
        assert e.own[i].item() == pytest.approx(fall(n, words[n]), abs=1e-9)
        assert e.other_words[i].item() == pytest.approx(fall(n, words[q]), abs=1e-9)
        assert e.common_words[i].item() == pytest.approx(fall(n, common[n]), abs=1e-9)
        assert e.partner[i].item() == pytest.approx(fall(q, words[n]), abs=1e-9)
        assert e.loss[i].item() == pytest.approx(fall(n, text.following[[p]]), abs=1e-9)
        assert bool(e.right[i]) == bool((words[n] == text.following[p]).any())
        assert bool(e.other_right[i]) == bool((words[q] == text.following[p]).any())
    torch.testing.assert_close(e.logit, e.algebra)
    zero = found._replace(mean=torch.zeros_like(found.mean))  # mutant: to zero, not to the mean
    other = ablate.effects(model, text, zero, words, common, partner)
    assert (other.own - e.own).abs().max() > 1e-3


def test_a_neuron_that_writes_nothing_lowers_nothing():
    model = model_of(ONE)
    model.blocks[0].mlp.W_out.zero_()
    e = study_of(model)[-1]
    assert max(x.abs().max() for x in (e.own, e.partner, e.loss, e.other_words)) < 1e-12


def test_the_study_of_effects():
    model = model_of(ONE)
    _, text, words, found, allowed, _, _, e = study_of(model)
    ids = allowed.nonzero().flatten()
    base = ablate.base_rates(text, words, 24)
    first = torch.isin(text.following, words[0]).double().mean().item()
    assert base[0].item() == pytest.approx(first, abs=1e-6)
    s = ablate.study(e, base, ids)
    assert s["own"][0] == pytest.approx(e.own.mean().item()) and s["positions"] == len(e.own)
    more = s["more"]["words as frequent"][0]
    assert more == pytest.approx((e.own - e.common_words).mean().item())
    mine = [e.own[e.neuron == n].mean() > e.partner[e.neuron == n].mean() for n in ids]
    want = sum(map(bool, mine)) / len(ids)
    assert s["neurons where own falls more"]["the partner ablated"].item() == pytest.approx(want)
    assert s["algebra gap"] < 1e-9
    worse = [e.loss[e.neuron == n].mean() > 0 for n in ids]
    share = sum(map(bool, worse)) / len(ids)
    one = ablate.of_one(e, int(ids[0]))["held"]
    assert one["loss rises"] == pytest.approx(e.loss[e.neuron == ids[0]].mean().item())
    assert ablate.of_one(e, 999) == {}
    assert s["neurons that lower the loss"].item() == pytest.approx(share)


def test_one_layer_earlier_by_hooks():
    model, tokens = model_of(MLP), tokens_of(MLP, n=6, length=12)
    neurons, doc = (2, 9, 15), torch.arange(6) // 2
    found = ablate.earlier_layer(model, tokens, doc, neurons, k=3)
    shown = falls(model, tokens, neurons, tables.most_written(model, 0, 3).ids)
    for mine, want in zip(found["by neuron"], shown, strict=True):
        assert mine == pytest.approx(want, abs=1e-9)  # direct, total
    assert any(abs(a - b) > 1e-3 for a, b in found["by neuron"])  # direct is not total


# ---- in-context learning ------------------------------------------------------------------------


def test_losses_at_chosen_indices():
    k = torch.tensor([1, 2, 7, 13])
    for config in (TINY, MLP, TINY.replace(norm="layernorm", positions="standard")):
        model, tokens = model_of(config, torch.float32), tokens_of(config, n=7, length=14)
        want = model(tokens, return_type="loss_per_token")[:, k - 1]
        ours = context_learning.losses(model, tokens, k, part=3)
        torch.testing.assert_close(ours, want, rtol=1e-5, atol=1e-4)
        assert (ours - model(tokens, return_type="loss_per_token")[:, k % 13]).abs().max() > 0.01


def test_scores_are_the_published_ones():
    loss = torch.randn(9, 511, generator=gen(), dtype=torch.float64)
    k = context_learning.indices()
    s = context_learning.scores(loss[:, k - 1], k)
    torch.testing.assert_close(s.broad, probe.in_context_scores(loss))
    torch.testing.assert_close(s.single, probe.in_context_scores(loss, (50, 50), (500, 500)))
    late = context_learning.scores(loss[:, k % 511], k)  # mutant: columns shifted by one
    assert (late.single - s.single).abs().max() > 0.1
    with pytest.raises(ValueError, match="every k"):
        context_learning.scores(loss[:, :60], torch.arange(1, 61))
    assert context_learning.by_hand()["score"] == pytest.approx(-0.5, abs=1e-12)
    shown = context_learning.by_index(loss[:, k - 1], k, torch.arange(9) // 2)
    assert shown["loss"][0] == pytest.approx(loss[:, 0].mean().item())
    assert len(shown["index"]) == len(context_learning.EDGES) - 1 and shown["index"][-1] > 490


def test_shuffling_keeps_what_it_should():
    tokens = torch.randint(1, 50, (8, 40), generator=gen())
    tokens[:, 0] = 0
    inside = context_learning.shuffled_windows(tokens, gen(1))
    across = context_learning.shuffled_windows(tokens, gen(1), across=True)
    assert (inside[:, 0] == 0).all() and (across[:, 0] == 0).all()
    assert torch.equal(inside.sort(1).values, tokens.sort(1).values)
    assert not torch.equal(across.sort(1).values, tokens.sort(1).values)
    assert torch.equal(across.flatten().sort().values, tokens.flatten().sort().values)
    whole = torch.arange(512).expand(3, -1)
    turned = context_learning.exchanged(whole)
    assert torch.equal(turned[0, 40:61], whole[0, 490:511])
    assert torch.equal(turned[0, 490:511], whole[0, 40:61])
    rest = [i for i in range(512) if not (40 <= i <= 60 or 490 <= i <= 510)]
    assert torch.equal(turned[:, rest], whole[:, rest])
    assert torch.equal(context_learning.exchanged(turned), whole)
    same = torch.arange(40).expand(8, -1)
    alone = context_learning.shuffled_windows(same, gen(2))
    assert len({tuple(row) for row in alone.tolist()}) == 8  # each window has an order of its own
    assert (inside != tokens).double().mean() > 0.5 and inside.data_ptr() != tokens.data_ptr()


def test_how_many_windows():
    doc = torch.arange(400) // 4
    x = -0.5 + torch.randn(400, generator=gen(), dtype=torch.float64)
    need = context_learning.needed(x, doc)
    assert need == pytest.approx(16, rel=0.5)  # (2 sd / mean)^2
    shared = -0.5 + torch.randn(100, generator=gen(1), dtype=torch.float64).repeat_interleave(4)
    assert context_learning.needed(shared, doc) > 2.5 * need  # mutant: documents forgotten
    low, high = context_learning.needed_range(x, doc, gen(3), draws=100)
    assert low < need < high < 3 * need
    sizes = (10, 40, 160, 400)
    seen = context_learning.detected(x, doc, sizes, gen(2), draws=60)
    assert seen == sorted(seen) and seen[0] < 0.6 and seen[-1] == 1
    none = context_learning.detected(x - x.mean(), doc, sizes, gen(2), draws=60)
    assert none[-1] == 0 and max(none) < 0.25
    up = context_learning.detected(-x, doc, sizes, gen(2), draws=20)
    assert max(up) <= 0.05  # the sign counts


@TEXT
def test_bytes_of_tokens():
    from circuitbook import corpus, tokenizer

    windows = corpus.heldout_windows(6)
    tok, sizes = tokenizer.load(), context_learning.byte_lengths()
    for row in windows.tokens:
        text = tok.decode(row[1:].tolist())
        if "�" not in text:  # a window may begin inside a character
            assert sizes[torch.from_numpy(row)].sum() == len(text.encode())
    assert sizes[tok.bos] == 0
    tokens, k = torch.from_numpy(windows.tokens), torch.tensor([1, 5])
    loss = {"m": torch.ones(6, 2) * 3}
    units = context_learning.unit_losses(loss, tokens, k, ["a", "b"] * 3)
    part = sizes[tokens[::2][:, k]].double().mean().item()
    assert units["a"]["nats a token"]["m"] == 3 and units["a"]["windows"] == 3
    assert units["a"]["bits a byte"]["m"] == pytest.approx(3 / 0.6931472 / part, rel=1e-6)


# ---- the pair, and what survives ----------------------------------------------------------------


def test_edges_into_the_mlp_are_those_of_a_hook():
    model, tokens = model_of(MLP), tokens_of(MLP, n=6, length=12)
    k, doc = torch.arange(1, 12), torch.arange(6) // 2
    found = pair.edges_into_mlp(model, tokens, doc, k)
    name = "blocks.0.attn.hook_result"
    write = cut.run(model, tokens, names=[name])[1][name]
    clean = model(tokens, return_type="loss_per_token").mean()
    model.set_use_hook_mlp_in(True)
    for h in range(2):
        w = write[:, :, h]
        hook = ("blocks.0.hook_mlp_in", lambda x, hook, w=w: x - w + w.mean(0))
        again = model.run_with_hooks(tokens, return_type="loss_per_token", fwd_hooks=[hook])
        rise = found[f"head 0.{h}"]["rise"][0]
        assert rise == pytest.approx((again.mean() - clean).item(), abs=1e-9)
    model.set_use_hook_mlp_in(False)


def test_readers_count_shares():
    model, tokens = model_of(MLP), tokens_of(MLP, n=6)
    found = pair.readers(model, tokens, ((0, 1), (1, 0)))
    assert sum(x.item() for x in found["parts"].values()) == pytest.approx(1.0)
    assert set(found["readers"]) == {"token", "head 0.0", "head 0.1"} and found["neurons"] == 20
    assert 0 <= found["readers"]["head 0.1"] <= 20


@pytest.mark.weights
@TEXT
def test_what_survives():
    from circuitbook import corpus, zoo

    model = zoo.load("gelu-1l", dtype=torch.float64, center=False, device="cpu")
    tokens = torch.from_numpy(corpus.heldout_windows(2).tokens)[:, :300]
    moves = survive.survival(model, tokens, ch07.whiten, ch07.agreement)
    G, c = moves["stream coordinates G"], moves["W_U + c 1ᵀ"]
    safe = (
        "probabilities",
        "activations",
        "agreement of its contexts",
        "input times output, k · v",
    )
    assert not any(row[q] for row in moves.values() for q in safe)
    assert min(G["cosine of k and v"], G["length of the bare mean context"]) > 0.01
    assert c["what it writes, raw"] > 0.01 and c["what it writes, centred"] == 0
    hidden = survive.hidden_bases(model, tokens[:1, :100])
    assert hidden["turned"] > 1 and hidden["renumbered"] < 1e-9
