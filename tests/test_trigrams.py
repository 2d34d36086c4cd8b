"""The search for skip-trigrams against brute force, and what text says about them."""

from types import SimpleNamespace

import numpy as np
import own_peak
import pytest
import torch
from trigram_toys import a_text, gen, random_head, slow_count, tables, toy, trained

from circuitbook import scan
from circuitbook.skip_trigrams import trigrams, triple_controls, triple_study, triple_text
from circuitbook.skip_trigrams.triple_text import Text

ch04 = pytest.importorskip("circuitbook.taught.ch04", reason="run tools/derive.py taught")
WEIGHTS = pytest.mark.weights


# ---- acceptance (a): the search equals brute force ----------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("k", [1, 40, 700])
def test_search_is_brute_force_on_random_factors(k, dtype):
    head = random_head(dtype=dtype)
    found = trigrams.search(head, k)
    QK, OV = tables(head)
    strength, *_ = ch04.strongest_triples(QK, OV, k)
    tol = 1e-9 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(found.strength, strength, rtol=tol, atol=tol)
    torch.testing.assert_close(found.qk, QK[found.destination, found.source], rtol=tol, atol=tol)
    torch.testing.assert_close(found.ov, OV[found.source, found.output], rtol=tol, atol=tol)
    assert len(set(zip(*(x.tolist() for x in found[:3]), strict=True))) == k
    assert bool((found.qk > 0).all()) and bool((found.ov > 0).all())


def test_mutant_without_the_sign_check_lists_what_nobody_looks_at(monkeypatch):
    head = random_head()
    QK, OV = tables(head)
    _, s, d, _ = ch04.strongest_triples(QK, OV, 50, positive=False)
    assert bool((QK[d, s] < QK.mean(1)[d]).any())
    assert not bool((trigrams.search(head, 50).qk < 0).any())
    # Brute force without signs is the search on the tables and on their mirror images together.
    mirrored = trigrams.Head(
        scan.Factors(-head.qk.A, head.qk.B), scan.Factors(-head.ov.A, head.ov.B), head.ids
    )
    both = torch.cat([trigrams.search(x, 50).strength for x in (head, mirrored)])
    want = ch04.strongest_triples(QK, OV, 50, positive=False)[0]
    torch.testing.assert_close(both.sort(descending=True).values[:50], want)
    # In the search itself: few tokens, so that the list reaches the negative entries.
    few = random_head(n=4, d=3, seed=3)
    QK, OV = tables(few)
    n = sum(int((QK[:, s] > 0).sum() * (OV[s] > 0).sum()) for s in range(4))
    assert len(trigrams.search(few, 64).qk) == n
    monkeypatch.setattr(trigrams, "_positive", lambda qk, ov: torch.ones_like(qk, dtype=torch.bool))
    found = trigrams.search(few, 64)
    assert len(found.qk) > n and bool((found.qk < 0).any())


@pytest.mark.parametrize("where", ["random", pytest.param("trained", marks=WEIGHTS)])
def test_search_check(where, monkeypatch):
    model = toy() if where == "random" else trained()
    n = min(model.cfg.d_vocab - 1, 256)
    some = 1 + torch.randperm(model.cfg.d_vocab - 1, generator=gen(2))[:n].sort().values

    def check():
        brute = ch04.strongest_triples
        return [triple_study.search_check(model, h, some, 20, brute) for h in (0, 1)]

    checked = check()
    assert max(error for error, _ in checked) <= 1e-9 and sum(below for _, below in checked) >= 1
    honest = trigrams.row_maxima  # mutant: bounds of another table miss the best sources
    monkeypatch.setattr(trigrams, "row_maxima", lambda A, B: honest(A.flip(0), B))
    assert max(error for error, _ in check()) > 1e-6


def test_search_across_tiles_sources_and_floors():
    head = random_head(n=1100, d=4)  # more than one tile, more sources than one batch
    found = trigrams.search(head, 300, per_source=2)
    QK, OV = tables(head)
    best = (QK.amax(0).relu() * OV.amax(1).relu()).sort(descending=True)
    assert found.source[0] == best.indices[0]
    assert found.strength[0].item() == pytest.approx(best.values[0].item(), rel=1e-12)
    assert found.source.bincount().max() == 2
    by_hand = []
    for s in range(1100):
        a, b = QK[:, s].topk(2).values, OV[s].topk(2).values
        by_hand.append(torch.outer(a, b).flatten()[[0, 1, 2]].topk(2).values)
    want = torch.cat(by_hand).sort(descending=True).values[:300]
    torch.testing.assert_close(found.strength, want, rtol=1e-12, atol=1e-12)
    qk, ov = trigrams.entries(head, found.source, found.destination, found.output)
    torch.testing.assert_close(qk * ov, found.strength)
    with pytest.raises(ValueError, match="at least 1"):
        trigrams.search(head, 0)


def test_no_positive_triples_no_answer():
    A = torch.ones(5, 1).double()
    head = trigrams.Head(scan.Factors(A, -A.T), scan.Factors(A, A.T), torch.arange(5))
    assert len(trigrams.search(head, 3).qk) == 0


def test_tables_are_centred_before_the_floor():
    model, allowed = toy(), torch.arange(1, 70, 3)
    head = trigrams.head_tables(model, 0, 1, allowed)
    QK = model.W_E @ model.W_Q[0, 1] @ (model.W_E @ model.W_K[0, 1]).T / 6**0.5
    OV = model.W_E @ model.W_V[0, 1] @ model.W_O[0, 1] @ model.W_U
    for got, raw in zip(tables(head), (QK, OV), strict=True):
        want = (raw - raw.mean(1, keepdim=True))[allowed][:, allowed]
        torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
    counts = np.array([9, 5, 4, 5])
    assert trigrams.frequent_tokens(counts, 5).tolist() == [1, 3]  # never token 0
    with pytest.raises(ValueError, match="lower"):
        trigrams.frequent_tokens(counts, 99)


def test_the_token_that_marks_texts_ends_is_left_out_whatever_its_id(monkeypatch):
    counts = np.array([9, 5, 4, 5])
    assert trigrams.frequent_tokens(counts, 5, 3).tolist() == [0, 1]  # 0 is a word there
    assert trigrams.some_tokens(counts, 4, 9, bos=1).sort().values.tolist() == [0, 2, 3]
    monkeypatch.setattr(trigrams.tokenizer, "load", lambda: SimpleNamespace(bos=3))
    assert trigrams.frequent_tokens(counts, 5).tolist() == [0, 1]  # today's tokenizer
    assert trigrams.some_tokens(counts, 5, 9).sort().values.tolist() == [0, 1]


def test_no_square_table_is_ever_held():
    """24,000 tokens: one table would be 2.3 GB. (bench/trigrams.py does the published 48,262.)"""
    code = """
import torch
from circuitbook import scan
from circuitbook.skip_trigrams import trigrams
torch.set_num_threads(1)
g = torch.Generator().manual_seed(0)
A, B, C, D = (torch.randn(24000, 16, generator=g) for _ in range(4))
head = trigrams.Head(scan.Factors(A, B.T), scan.Factors(C, D.T), torch.arange(24000))
found = trigrams.search(head, 500)
assert len(found.qk) == 500
"""
    assert own_peak.of(code) < 1.2e9


def test_row_maxima():
    A, B = torch.randn(1500, 5, generator=gen()), torch.randn(5, 1300, generator=gen(1))
    torch.testing.assert_close(trigrams.row_maxima(A, B), (A @ B).amax(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ((" Sally", " Aunt", "Sally"), "copying"),
        ((" if", ":", "\n        "), "whitespace and dedents"),
        (("[", "x", '"]'), "brackets and punctuation"),
        ((" May", ",", "1"), "digits"),
        ((" Aunt", " said", " Sally"), "names"),
        ((" try", ":", " except"), "code idioms"),
        ((" neither", " good", " nor"), "phrases"),
        ((" conc", "er", "ned"), "word pieces"),
    ],
)
def test_kinds(words, kind):
    assert trigrams.kind(*words) == kind


def test_planted_tables():
    QK, OV = triple_controls.planted_tables(40)
    value, s, d, o = (x[0].item() for x in ch04.strongest_triples(QK, OV, 1))
    assert (s, d, o) == (7, 11, 13) and value > 10
    _, s, d, o = (x[0].item() for x in ch04.strongest_triples(QK, OV, 1, positive=False))
    assert (s, d, o) == (21, 20, 22)


# ---- text ---------------------------------------------------------------------------------------


def test_contrast_is_the_sum_by_hand():
    text = a_text(vocab=12)
    mask = np.zeros(12, dtype=bool)
    mask[[3, 5, 7]] = True
    outputs = np.array([[4, 9], [6, 1]])
    found = triple_text.contrast(text, [2, 8], [[1, 10], [11]], [mask, 3], outputs)
    want = np.zeros((2, 2, text.n_docs))
    weight, places = np.zeros(text.n_docs), 0
    for row, (s, controls, wanted) in enumerate([(2, (1, 10), {3, 5, 7}), (8, (11,), {3})]):
        for one in wanted:  # a stratum is a document and a destination
            for column in (0, 1):
                n, hits = slow_count(text, s, {one}, outputs[row, column])
                others = [slow_count(text, c, {one}, outputs[row, column]) for c in controls]
                m, more = (sum(x) for x in zip(*others, strict=True))
                w = n * m / np.maximum(n + m, 1)
                want[0, column] += w * hits / np.maximum(n, 1)
                want[1, column] += w * more / np.maximum(m, 1)
            weight += w
            places += n.sum()
    np.testing.assert_allclose(found.true, want[0])
    np.testing.assert_allclose(found.control, want[1])
    np.testing.assert_allclose(found.weight, weight)
    assert found.n == places > 50
    both = found + found
    assert both.n == 2 * found.n and both.rates() == pytest.approx(found.rates())


def test_windows_stop_at_the_edge_of_a_document():
    text = Text([np.array([2, 9]), np.array([1, 3, 2, 1])], 10, 5)
    assert text.places(2).tolist() == [0, 2 + 6 + 2] and text.count(1) == 2
    assert text.after(2).tolist() == []  # token 9 ends its document; the last 1 has no next token
    assert triple_text.log_odds(text, 2, 1, 3)[:4] == (0, 0, 1, 1)
    assert triple_text.log_odds(text, 8, 1, 3)[:4] == (0, 0, 1, 1)  # a source that never stands
    with pytest.raises(ValueError, match="reach"):
        Text([np.array([1])], 5, 0)


def test_log_odds_by_hand():
    text = a_text(vocab=9, seed=3)
    n1, x1, n0, x0, odds = triple_text.log_odds(text, 2, 5, 7)
    n, hits = slow_count(text, 2, {5}, 7)
    everywhere = text.places(5)
    everywhere = everywhere[text.follows[everywhere] >= 0]
    assert (n1, x1) == (n.sum(), hits.sum()) and n1 + n0 == len(everywhere)
    assert x1 + x0 == (text.follows[everywhere] == 7).sum()
    a, b = n1 / len(everywhere), n0 / len(everywhere)
    by_hand = np.log((x1 + a) / (n1 - x1 + a)) - np.log((x0 + b) / (n0 - x0 + b))
    assert odds == pytest.approx(by_hand)


def test_no_hit_on_either_side_is_no_evidence():
    # One place with the source, many without, the output nowhere: a half for each cell would say 4.
    text = triple_text.Text([np.array([2, 5, 1] + [5, 1] * 60)], 9, 2)
    n1, x1, n0, x0, odds = triple_text.log_odds(text, 2, 5, 7)
    assert (n1, x1, n0, x0) == (1, 0, 60, 0) and abs(odds) < 0.8
    assert triple_text.log_odds(text, 8, 5, 7)[-1] == 0.0  # the source never stands there


def test_made_up_texts_and_the_naive_mutant():
    made = triple_controls.made_up_controls()
    assert made["rule"]["inside"] > 0.5 and made["rule"]["low"] > 0.4
    assert made["topic"]["low"] <= 0 <= made["topic"]["high"]
    assert made["topic"]["naive"] > 0.1  # the mutant: all documents in one pot
    with pytest.raises(ValueError, match="rule"):
        triple_controls.made_up_text("style")


def test_bootstrap():
    rng = np.random.default_rng(0)
    per_doc = rng.normal(1, 1, size=400)
    found = triple_text.mean_interval(np.repeat(per_doc, 3), np.repeat(np.arange(400), 3))
    assert found.value == pytest.approx(per_doc.mean())
    assert (found.high - found.low) / 4 == pytest.approx(0.05, rel=0.2)  # 1/sqrt(400), not 1200
    shuffles = rng.normal(0, 1, size=(50, 1)) * np.ones(20)
    wide = triple_text.bootstrap(shuffles, np.ones(20))
    assert wide.low < -1 and wide.high > 1  # the luck of the shuffle is in the interval
    with pytest.raises(ValueError, match="nothing to count"):
        triple_text.bootstrap(np.zeros((1, 3)), np.zeros(3))


def test_neighbours_are_matched_and_never_itself():
    frequency = np.array([50, 10, 40, 20, 30, 60, 70])
    near = triple_text.neighbours(frequency, wide=1)
    assert near.shape == (7, 2) and sorted(frequency[near[4]]) == [20, 40]
    assert all(i not in row for i, row in enumerate(near))
    assert sorted(frequency[near[1]]) == [20, 30]  # at the end the window moves inwards
    with pytest.raises(ValueError, match="at least"):
        triple_text.neighbours(frequency, wide=4)
