"""Hand-built models: exact on what they are made for, broken by each cut that should do it."""

import functools

import pytest
import torch

from circuitbook import probe
from circuitbook.cut import cut_path, run
from circuitbook.induction import handbuilt

WORDS, CTX = 24, 48
BLIND = 1 / (WORDS + 1)  # what equal logits score


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


@functools.cache
def sequences(n=96):
    return handbuilt.repeated_distinct(n, WORDS, CTX, gen())


@functools.cache
def built(kind="k", dtype=torch.float32, places="sinusoidal"):
    if kind == "pointer":
        return handbuilt.pointer_model(WORDS, CTX, dtype=dtype)
    return handbuilt.induction_model(WORDS, CTX, composition=kind, places_kind=places, dtype=dtype)


def pattern_of(model, tokens, layer, cut=None):
    name = f"blocks.{layer}.attn.hook_pattern"
    return run(model, tokens, cut, [name])[1][name]


# ---------------------------------------------------------------- material


def test_sequences_repeat_distinct_words():
    tokens, periods = handbuilt.repeated_distinct(300, 64, 128, gen())
    assert tokens.shape == (300, 128) and (tokens[:, 0] == 0).all()
    assert periods.min() == 3 and periods.max() == 64  # half the context
    for row, period in zip(tokens.tolist(), periods.tolist()):
        block = row[1 : 1 + period]
        assert len(set(block)) == period and min(block) >= 1 and max(block) <= 64
        assert all(row[t] == row[t - period] for t in range(1 + period, 128))
    again = handbuilt.repeated_distinct(300, 64, 128, gen())
    assert torch.equal(tokens, again.tokens)
    with pytest.raises(ValueError, match="no period fits"):
        handbuilt.repeated_distinct(2, 10, 4, gen())


def test_scored_predictions_begin_at_the_repeats_second_token():
    # <|bos|> A B C A B C: the second A cannot be foretold, B, C can; logits 4 and 5 predict them.
    scored = handbuilt._scored(torch.tensor([[0, 1, 2, 3, 1, 2, 3]]), torch.tensor([3]))
    assert scored.tolist() == [[False, False, False, False, True, True]]


def test_chance_is_one_over_the_period():
    tokens, periods = sequences()
    same = periods == periods[0]
    level = handbuilt.chance_level(tokens[same], periods[same])
    assert level == pytest.approx(1 / periods[0].item())
    assert BLIND < handbuilt.chance_level(tokens, periods) < 0.2


def test_a_flat_model_scores_one_over_the_vocabulary_and_a_short_sequence_is_refused():
    model = handbuilt.induction_model(WORDS, CTX)
    model.unembed.W_U.zero_()
    assert handbuilt.continuation_accuracy(model, *sequences()) == pytest.approx(BLIND)
    tokens, periods = sequences()
    with pytest.raises(ValueError, match="no prediction"):
        handbuilt.continuation_accuracy(model, tokens[:, :4], periods)


@pytest.mark.parametrize("kind", ["sinusoidal", "one-hot"])
def test_a_shift_is_a_matrix(kind):
    p, back = handbuilt.places(kind, 128)
    assert torch.allclose(p[1:] @ back, p[:-1], atol=1e-12)
    assert not torch.allclose(p[1:] @ back.T, p[:-1], atol=0.1)  # the wrong direction
    assert torch.allclose(p[:-1] @ back.T, p[1:], atol=1e-12)
    orthogonal = torch.allclose(back @ back.T, torch.eye(len(back)).double(), atol=1e-12)
    assert orthogonal == (kind == "sinusoidal")  # a rotation; the one-hot shift loses p_0


# ---------------------------------------------------------------- induction by K-composition


def test_a_thousand_sequences_without_an_error():
    tokens, periods = handbuilt.repeated_distinct(1000, 64, 128, gen(1))
    model = handbuilt.induction_model(64, 128)
    assert handbuilt.continuation_accuracy(model, tokens, periods) == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("places", ["sinusoidal", "one-hot"])
def test_the_head_needs_both_layers_and_the_key(dtype, places):
    model = built("k", dtype, places)
    assert model.W_E.dtype == model.W_pos.dtype == dtype
    found = handbuilt.contrast(model, *sequences())
    assert found["whole"] == found["query"] == found["value"] == 1.0
    for name in ("without 0.0", "without 1.0", "key"):
        assert found[name] == pytest.approx(BLIND)


def test_q_composition_in_its_place_is_worse_than_chance():
    found = handbuilt.contrast(built("q"), *sequences())
    assert found["whole"] < handbuilt.chance_level(*sequences())
    assert found["whole"] == 0.0  # it repeats the word before
    with pytest.raises(ValueError, match="composition"):
        handbuilt.induction_model(WORDS, CTX, composition="v")


def test_heads_score_as_what_they_are():
    pool = torch.arange(1, WORDS + 1)
    batch = probe.repeated_batch(pool, 8, copies=3, block=6, gap=(3, 8), generator=gen())
    model = built()
    first, second = (pattern_of(model, batch.tokens, layer) for layer in (0, 1))
    assert probe.previous_token_score(first).min() > 1 - 1e-5
    assert probe.prefix_matching_score(second, batch.tokens).min() > 1 - 1e-5
    assert probe.duplicate_token_score(second, batch.tokens).max() < 1e-5
    unmatched = ~probe.after_earlier_copies(batch.tokens).any(-1)
    assert second[:, 0, :, 0][unmatched].min() > 1 - 1e-5  # nothing to find: rest on <|bos|>
    cut = cut_path(model, (0, 0), (1, 0), "k")
    after = pattern_of(model, batch.tokens, 1, cut)
    assert probe.prefix_matching_score(after, batch.tokens).max() < 1e-5
    value = pattern_of(model, batch.tokens, 1, cut_path(model, (0, 0), (1, 0), "v"))
    assert torch.equal(value, second)  # a cut into values cannot move a pattern


@pytest.mark.parametrize("kind", ["k", "pointer"])
def test_a_word_that_recurs_inside_the_period_is_a_coin_toss(kind):
    # A B A C A B A C: after A, B and C match alike. One half at the A's, all right elsewhere.
    tokens = torch.tensor([[0, 1, 2, 1, 3, 1, 2, 1, 3, 1, 2, 1, 3, 1, 2, 1, 3]])
    share = handbuilt.continuation_accuracy(built(kind), tokens, torch.tensor([4]))
    assert share < 1.0
    logits = run(built(kind), tokens)[0][0].softmax(-1)
    at_b_and_c = [t for t in range(9, 16) if tokens[0, t] != 1]
    assert (logits[at_b_and_c].argmax(-1) == 1).all()
    both = logits[13][[2, 3]]  # an A that three B's and three C's have followed
    assert both.sum() > 0.9 and both.min() > 0.45


def test_a_repeated_word_halves_the_vote():
    tokens = torch.tensor([[0, 1, 2, 1, 3, 1, 2]])  # at the third A one B and one C came after A
    model = built()
    logits = run(model, tokens)[0][0, 5]
    assert logits[2].item() == pytest.approx(logits[3].item(), abs=1e-3)
    assert logits[2].item() == pytest.approx(handbuilt.CERTAINTY / 2, abs=1e-3)


# ---------------------------------------------------------------- how many words a head can hold


def test_scores_between_words_have_rank_at_most_d_head():
    for d_code in (6, WORDS):
        C = handbuilt.word_codes(WORDS, d_code)
        assert torch.allclose(C.norm(dim=1), torch.ones(WORDS).double())
        assert torch.linalg.matrix_rank(C @ C.T) == d_code
        short_of_exact = (C @ C.T - torch.eye(WORDS).double()).norm().item()
        # no matrix of rank r is nearer to the identity than sqrt(n - r) (Eckart and Young)
        assert short_of_exact >= (WORDS - d_code) ** 0.5 - 1e-9
        assert (short_of_exact < 1e-12) == (d_code == WORDS)
    with pytest.raises(ValueError, match="d_code"):
        handbuilt.word_codes(WORDS, WORDS + 1)


def test_a_code_too_short_confuses_words():
    whole = handbuilt.continuation_accuracy(built(), *sequences())
    short = handbuilt.induction_model(WORDS, CTX, d_code=2)
    assert whole == 1.0 and handbuilt.continuation_accuracy(short, *sequences()) < 0.9


# ---------------------------------------------------------------- pointer arithmetic


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pointer_arithmetic_continues_and_lives_in_the_query(dtype):
    found = handbuilt.contrast(built("pointer", dtype), *sequences())
    assert found["whole"] == found["key"] == found["value"] == 1.0
    for name in ("without 0.0", "without 1.0", "query"):
        assert found[name] == pytest.approx(BLIND)


def test_pointer_heads_are_a_duplicate_head_and_an_induction_pattern():
    pool = torch.arange(1, WORDS + 1)
    batch = probe.repeated_batch(pool, 8, copies=3, block=6, gap=(3, 8), generator=gen())
    first, second = (pattern_of(built("pointer"), batch.tokens, layer) for layer in (0, 1))
    assert probe.duplicate_token_score(first, batch.tokens).min() > 1 - 1e-5
    assert probe.previous_token_score(first).max() < 1e-5
    assert probe.prefix_matching_score(second, batch.tokens).min() > 1 - 1e-5
    unmatched = ~probe.after_earlier_copies(batch.tokens).any(-1)
    assert second[:, 0, :, 0][unmatched].min() > 1 - 1e-5  # no pointer: rest on <|bos|>


# ---------------------------------------------------------------- smeared keys, one layer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_layer_with_smeared_keys(dtype):
    tokens, periods = sequences()
    model, hooks = handbuilt.smeared_model(WORDS, CTX, dtype=dtype)
    assert model.cfg.n_layers == 1
    assert handbuilt.continuation_accuracy(model, tokens, periods, hooks) == 1.0
    assert probe.prefix_matching_score(pattern_of(model, tokens, 0, hooks), tokens).min() > 0.999
    plain, none = handbuilt.smeared_model(WORDS, CTX, smear=False, dtype=dtype)
    assert not none.hooks and torch.equal(plain.W_E, model.W_E)
    assert handbuilt.continuation_accuracy(plain, tokens, periods, none) == 0.0
    top = run(plain, tokens)[0][:, 1:].argmax(-1)
    assert torch.equal(top, tokens[:, 1:])  # it repeats the word it stands on


def test_smear_by_hand_and_the_range_that_works():
    model, _ = handbuilt.smeared_model(3, 8)
    tokens = torch.tensor([[0, 1, 2, 3]])
    keys = "blocks.0.attn.hook_k"
    before = run(model, tokens, names=[keys])[1][keys][0, :, 0]
    after = run(model, tokens, handbuilt.smear_keys(0.0), [keys])[1][keys][0, :, 0]
    assert torch.equal(after[0], before[0])
    assert torch.allclose(after[1:], (before[1:] + before[:-1]) / 2)
    with pytest.raises(ValueError, match="no margin"):
        handbuilt.smeared_model(3, 8, a=0.0)


def test_a_cut_may_be_made_for_each_batch():
    tokens, periods = sequences()
    made = []

    def cut(part):
        made.append(len(part))
        return cut_path(built(), (0, 0), (1, 0), "k", "mean")

    share = handbuilt.continuation_accuracy(built(), tokens, periods, cut)
    assert made == [32, 32, 32] and share < 0.2
