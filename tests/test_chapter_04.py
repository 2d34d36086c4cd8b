"""Chapter 04: the running model, bugs with their mutants, copying, and its evidence."""

from pathlib import Path

import numpy as np
import pytest
import saved
import torch
from trigram_toys import a_text, gen, planted_model, slow_count, toy, trained

from circuitbook import gauge
from circuitbook.skip_trigrams import bug_pairs, copying, trigrams, triple_runs, triple_study
from circuitbook.skip_trigrams.triple_text import Text

ch04 = pytest.importorskip("circuitbook.taught.ch04", reason="run tools/derive.py taught")
ROOT = Path(__file__).resolve().parent.parent
CHAPTER = "04_skip_trigrams"
WEIGHTS = pytest.mark.weights


# ---- the running model --------------------------------------------------------------------------


def test_read_is_the_model():
    model, text = toy(), a_text()
    ends = triple_runs.contexts(text, np.array([5, 9, 5]), 12, np.random.default_rng(0))
    assert ends.tokens.shape == (3, 12) and ends.tokens[:, -1].tolist() == [5, 9, 5]
    assert bool((ends.tokens[:, 0] == 0).all())
    place, outputs = torch.tensor([3, 4, 10]), torch.tensor([[1, 2], [3, 4], [60, 61]])
    out = triple_runs.read(model, ends.tokens, place, outputs)
    logits = model(ends.tokens)[:, -1]
    centred = (logits - logits.mean(-1, keepdim=True)).gather(1, outputs)
    torch.testing.assert_close(out.logit, centred)
    torch.testing.assert_close(out.log_prob, logits.log_softmax(-1).gather(1, outputs))
    _, cache = model.run_with_cache(ends.tokens)
    pattern = cache["blocks.0.attn.hook_pattern"][:, :, -1]
    want = pattern[torch.arange(3), :, place]
    torch.testing.assert_close(out.attention, want)
    assert torch.equal(out.first.bool(), want == pattern.amax(-1))
    W_U = model.W_U - model.W_U.mean(1, keepdim=True)
    direct = (model.W_E[ends.tokens[:, -1]] @ W_U).gather(1, outputs)
    torch.testing.assert_close(out.part.sum(1) + direct, out.logit)
    torch.testing.assert_close(out.direct, direct)
    with pytest.raises(ValueError, match="add up"):
        triple_runs.read(toy(d_mlp=30, act="gelu"), ends.tokens, place, outputs)
    with pytest.raises(ValueError, match="never stands"):
        triple_runs.contexts(text, np.array([0]), 12, np.random.default_rng(0))


def test_put_and_places():
    tokens, place = torch.arange(12).view(2, 6), triple_runs.places_before(2, (1, 3), 6)
    assert place.tolist() == [4, 2]
    new = triple_runs.put(tokens, place, torch.tensor([77, 88]))
    assert new.tolist() == [[0, 1, 2, 3, 77, 5], [6, 7, 88, 9, 10, 11]] and tokens[0, 4] == 4
    with pytest.raises(ValueError, match="gaps"):
        triple_runs.places_before(2, (5,), 6)  # would replace the begin-of-sequence token


@pytest.mark.parametrize("where", ["random", pytest.param("trained", marks=WEIGHTS)])
def test_score_shares_sum_to_one(where):
    model = toy() if where == "random" else trained()
    tokens = torch.randint(1, model.cfg.d_vocab, (2, 40), generator=gen(3))
    shares = triple_runs.score_shares(model, tokens)
    assert shares.shape == (model.cfg.n_heads, 4)
    torch.testing.assert_close(shares.sum(1), torch.ones_like(shares[:, 0]))
    blind = gauge.with_weights(model, W_pos=torch.zeros_like(model.W_pos))
    shares = triple_runs.score_shares(blind, tokens)
    torch.testing.assert_close(shares[:, 0], torch.ones_like(shares[:, 0]))
    assert shares[:, 1:].abs().max() < 1e-6


def test_a_planted_skip_trigram_in_the_running_model():
    """Search, text and model agree on a head that we wrote: 2 … 1 → 3."""
    model, rng = planted_model(), np.random.default_rng(0)
    documents = []
    for _ in range(30):
        x = rng.integers(4, 16, size=200)
        x[14::25] = 1  # destinations; the source stands nowhere, until it is put there
        documents.append(x)
    text = Text(documents, 16, 8)
    head = trigrams.head_tables(model, 0, 0, torch.arange(1, 16))
    best = trigrams.search(head, 1)
    assert [x.item() for x in best[:3]] == [2, 1, 3]
    found = triple_study.Listed(head, best, np.array([[2, 3]]), {2: np.array([5, 6])})
    out = triple_study.in_model(model, found, 0, text, (2,), 12, 0)
    assert out["true"][0] > 3 and out["first"] == 1 and abs(out["random source"][0]) < 0.7
    assert out["own_head"].item() == pytest.approx(1)


# ---- acceptance (b): bugs -----------------------------------------------------------------------


def test_crossings_by_hand():
    d, o = np.array([1, 1, 2, 2, 3]), np.array([7, 8, 7, 8, 9])
    count = np.array([40, 1, 0, 30, 5])
    ds, os_, table = bug_pairs.crossings(d, o, count)
    assert ds.tolist() == [[1, 2]] and os_.tolist() == [[7, 8]]
    assert table.tolist() == [[[40, 1], [0, 30]]]
    weak = np.array([40, 20, 20, 30, 5])  # odds ratio below ten
    assert not len(bug_pairs.crossings(d, o, weak)[0])
    one_sided = np.array([90, 1, 50, 40, 5])  # o = 7 is commoner at both destinations
    assert not len(bug_pairs.crossings(d, o, one_sided)[0])
    assert bug_pairs.smoothed_odds(np.array([[9, 0], [0, 9]])) == pytest.approx(9.5**2 / 0.25)


def test_cells_count_the_text():
    text = a_text(vocab=8, seed=5)
    d, o, count = bug_pairs.cells(text, 3, least=2)
    for x, y, n in list(zip(d, o, count, strict=True))[:12]:
        assert slow_count(text, 3, {x}, y)[1].sum() == n


@pytest.mark.parametrize("where", ["random", pytest.param("trained", marks=WEIGHTS)])
def test_the_boost_table_has_no_determinant(where):
    model = toy() if where == "random" else trained()
    tokens = torch.randint(1, model.cfg.d_vocab, (2, 4, 14), generator=gen(4))
    tokens[:, :, 9] = 33
    tokens[0, :, -1], tokens[1, :, -1] = 20, 21
    table = bug_pairs.boost_table(model, tokens, 9, 1, [40, 41])
    assert bug_pairs.determinant(table) <= 1e-6
    _, cache = model.run_with_cache(tokens.flatten(0, 1))
    A = cache["blocks.0.attn.hook_pattern"][:, 1, -1, 9].view(2, 4).mean(1)
    W_U = model.W_U - model.W_U.mean(1, keepdim=True)
    message = model.W_E[33] @ model.W_V[0, 1] @ model.W_O[0, 1] @ W_U[:, [40, 41]]
    torch.testing.assert_close(table, ch04.boosts(A, message), rtol=1e-6, atol=1e-8)
    # mutant: a second place keeps its message, and the table gets a second rank
    tokens[0, :, 5], tokens[1, :, 5] = 50, 51
    two = bug_pairs.boost_table(model, tokens, 9, 1, [40, 41], also=[5])
    assert bug_pairs.determinant(two) > 1e-4


def bug_text():
    """keep (2) … in (1) mind (3), keep … at (4) bay (5); both destinations alone are harmless."""
    rng, documents = np.random.default_rng(0), []
    for _ in range(40):
        x = rng.integers(6, 16, size=200)
        for at in range(5, 190, 12):
            d, o = ((1, 3), (4, 5))[rng.integers(2)]
            if rng.random() < 0.5:
                x[at], x[at + 3], x[at + 4] = 2, d, o
            else:
                x[at + 3] = d
        documents.append(x)
    return Text(documents, 16, 6)


def bug_model():
    """The planted head also looks from token 4, and its message raises 3 and 5."""
    model = planted_model()
    Q, O = model.W_Q.clone(), model.W_O.clone()
    Q[0, 0, 4, 2], O[0, 0, 2, 5] = 30.0, 3.0
    return gauge.with_weights(model, W_Q=Q, W_O=O)


def test_find_and_run_a_planted_bug():
    model, text = bug_model(), bug_text()
    tables_of = {0: trigrams.head_tables(model, 0, 0, torch.arange(1, 16))}
    found = bug_pairs.find(text, tables_of, {0: [2, 7]}, set(range(1, 16)), 5, 5)
    assert len(found) == 1
    bug = found[0]
    assert bug.source == 2 and sorted(zip(bug.destinations, bug.outputs)) == [(1, 3), (4, 5)]
    assert bug_pairs.smoothed_odds(np.array(bug.counts)) >= 10
    assert not bug_pairs.find(text, tables_of, {0: [2]}, set(range(1, 16)), 5, 0)
    numbers, determinant = bug_pairs.run(
        model, model, bug, text, np.random.default_rng(1), n=4, length=12
    )
    assert determinant <= 1e-9 and bool((numbers["boost"] > 0).all())
    assert numbers["own"][0] * numbers["own"][1] < 0  # right at one destination, wrong at the other
    # mutant: a head that raises one of the two outputs only has no bug
    O = model.W_O.clone()
    O[0, 0, 2, 5] = -3.0
    mended = gauge.with_weights(model, W_O=O)
    tables_of = {0: trigrams.head_tables(mended, 0, 0, torch.arange(1, 16))}
    assert not bug_pairs.find(text, tables_of, {0: [2]}, set(range(1, 16)), 5, 5)


# ---- copying, survival --------------------------------------------------------------------------


def test_loss_without_heads():
    model = toy()
    tokens = torch.randint(1, 70, (3, 20), generator=gen(6))
    doc = np.array([0, 1, 2])
    got = copying.loss_without(model, tokens, doc, {"all": [0, 1, 2], "one": [1]})
    from circuitbook import cut

    change = cut.ablate_heads(model, tokens, [(0, 1)], "mean")
    clean, without = (
        cut.run(model, tokens, c, return_type="loss_per_token")[0] for c in (None, change)
    )
    right = tokens[:, 1:]
    seen = torch.stack(
        [(tokens[:, : t + 1] == right[:, t : t + 1]).any(1) for t in range(right.shape[1])], 1
    )
    assert 0 < seen.sum() < seen.numel()
    for which, mask in (("seen", seen), ("new", ~seen)):
        want = (without - clean)[mask].mean().item()
        assert got["one"][which][0] == pytest.approx(want, abs=1e-8)


def test_survival_of_entries():
    from circuitbook.taught.ch02 import change_head_coordinates

    model = toy()
    found = trigrams.search(trigrams.head_tables(model, 0, 1, torch.arange(1, 70)), 20)
    moves = triple_study.survival(model, found, 1, change_head_coordinates)
    assert max(x for row in moves.values() for q, x in row.items() if "centred" in q) <= 1e-8
    assert moves["constant per query"]["QK entry, raw"] > 0.01  # the two uncentred mutants
    assert moves["W_U + c 1ᵀ"]["OV entry, raw"] > 0.01


# ---- the evidence -------------------------------------------------------------------------------


def test_claims_follow_from_their_numbers():
    d, by_id = saved.rechecked(CHAPTER, 18)
    assert by_id["trigrams.bugs"]["test"]["tests"][0]["value"] == len(d["bugs"]) >= 10
    for bug in d["bugs"]:  # acceptance (b), from the saved numbers
        b, n = np.array(bug["boost"]), np.array(bug["counts"], dtype=float)
        assert bug_pairs.determinant(torch.tensor(b)) <= 1e-4  # six digits are kept
        assert bug_pairs.smoothed_odds(n) >= 10 and n[0, 0] > n[0, 1] and n[1, 1] > n[1, 0]
    assert min(d["model"]["n"]) >= 500  # acceptance (c)
    assert d["text"]["pairs"]["true"][-1][1] > 0
    low, high = d["text"]["pairs"]["shuffled OV"][-1][1:]
    assert low <= 0 <= high


def test_figures_need_no_torch():
    more = """
assert len(ch04.kind_table(r)) >= 8 and len(ch04.bug_table(r)) >= 10
assert len(ch04.survival_table(r)) == 6
"""
    saved.draw_without_torch(CHAPTER, 5, more)
