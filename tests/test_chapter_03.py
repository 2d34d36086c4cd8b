"""Chapter 03: taught functions against brute force, what freezing hides, its evidence."""

from pathlib import Path

import pytest
import saved
import torch
from small_model import TINY, gen, model_of, tokens_of

from circuitbook import cut
from circuitbook.expansion import expand, frozen, importance, pathchecks

ch03 = pytest.importorskip("circuitbook.taught.ch03", reason="run tools/derive.py taught")
ROOT = Path(__file__).resolve().parent.parent
CHAPTER = "03_path_expansion"
WEIGHTS = pytest.mark.weights


def trained(dtype=torch.float32, layers=2):
    from circuitbook import zoo

    return zoo.load(f"attn-only-{layers}l", dtype=dtype, device="cpu")


@pytest.fixture(params=["random", pytest.param("trained", marks=WEIGHTS)])
def model_and_tokens(request):
    if request.param == "random":
        return model_of(), tokens_of()
    from circuitbook import corpus

    tokens = torch.from_numpy(corpus.heldout_windows(2).tokens)[:, :96]
    return trained(), tokens


# ---- taught functions ----------------------------------------------------------------------------


def test_frozen_stream_is_the_models_stream(model_and_tokens):
    model, tokens = model_and_tokens
    ran, x = expand.record(model, tokens), model.W_E[tokens]
    got = ch03.frozen_stream(x, ran.patterns, model.W_V, model.W_O)
    assert (got - model.stream(tokens)).abs().max() <= 1e-5 * got.abs().max()
    backwards = ch03.frozen_stream(x, ran.patterns[::-1], model.W_V, model.W_O)  # mutant: A1 A2
    assert (backwards - model.stream(tokens)).abs().max() >= 1e-2 * got.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_frozen_is_linear_and_free_is_not(model_and_tokens, dtype):
    model, tokens = model_and_tokens
    held, free = pathchecks.linearity_gaps(model.to(dtype), tokens, ch03.frozen_stream)
    assert held <= (1e-5 if dtype == torch.float32 else 1e-12)
    assert free >= 0.1

    def thawed(x, patterns, W_V, W_O):  # mutant: the pattern follows x
        weights = [(x @ x.mT).tril().softmax(-1)[:, None] for _ in patterns]
        return ch03.frozen_stream(x, weights, W_V, W_O)

    assert pathchecks.linearity_gaps(model, tokens, thawed)[0] > 1e-2


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_papers_runs_hold_the_orders(layers):
    model, tokens = model_of(TINY.replace(n_layers=layers)), tokens_of()
    assert pathchecks.procedure_gap(model, tokens, ch03.streams_by_order) < 1e-12
    ran = expand.record(model, tokens)
    streams = ch03.streams_by_order(model, tokens, ran.patterns)
    assert len(streams) == layers + 1
    torch.testing.assert_close(streams[0], model.W_E[tokens])
    torch.testing.assert_close(streams[-1], model.stream(tokens))

    def hasty(model, tokens, patterns):  # mutant: starts from what the untouched model writes
        return ch03.streams_by_order(model, tokens, patterns)[1:] + [model.stream(tokens)]

    assert pathchecks.procedure_gap(model, tokens, hasty) > 1e-2


@WEIGHTS
def test_the_papers_runs_on_trained_weights():
    from circuitbook import corpus

    tokens = torch.from_numpy(corpus.heldout_windows(1).tokens)[:, :128]
    assert pathchecks.procedure_gap(trained(), tokens, ch03.streams_by_order) <= 1e-5


def test_flattening_and_the_mixed_product():
    true, wrong = pathchecks.tensor_product_gaps(gen())
    assert true <= 1e-12 and wrong >= 1e-2


# ---- what freezing hides -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spine_parts():
    """(float64 model, every sixth name prompt, the pair found in float32)."""
    from circuitbook import spine

    p = spine.name_prompts()
    few = spine.Prompts(p.tokens[::6], p.answer[::6], p.names[::6], p.female[::6])
    assert 0 < sum(few.female) < len(few.female) > 6
    return trained(torch.float64), few, spine.heads_pair(trained(), n=8)


@WEIGHTS
def test_terms_of_a_name_add_up(spine_parts):
    model, prompts, _ = spine_parts
    terms = frozen.name_terms(model, prompts)
    assert len(terms) == 81 and "direct" in terms
    total = sum(terms.values())
    whole = frozen.last_named(model, prompts, model.stream(prompts.tokens))
    torch.testing.assert_close(total, whole, rtol=0, atol=1e-10)
    logits = model(prompts.tokens)[:, -1]
    same = [j for j, f in enumerate(prompts.female) if f == prompts.female[0]]
    i, rivals = 0, same[1:]
    by_hand = logits[i, prompts.answer[i]] - logits[i, prompts.answer[rivals]].mean()
    assert whole[i].item() == pytest.approx(by_hand.item(), abs=1e-9)


@WEIGHTS
def test_one_word_is_replaced():
    from circuitbook import spine, tokenizer

    prompts, words = spine.name_prompts(), tokenizer.load()
    titles = {words.token(" Aunt"), words.token(" Uncle")}
    for what in ("name", "title"):
        new = frozen.with_other_word(prompts, what)
        changed = new != prompts.tokens
        assert (changed.sum(1) == 1).all()
        at = changed.int().argmax(1)
        place = (prompts.tokens == prompts.answer[:, None]).int().argmax(1)
        assert torch.equal(at, place - int(what == "title"))
        word = new.gather(1, at[:, None])[:, 0]
        if what == "title":
            assert set(word.tolist()) == titles
        else:
            same = dict(zip(prompts.answer.tolist(), prompts.female, strict=True))
            assert [same[w] for w in word.tolist()] == prompts.female
    with pytest.raises(ValueError, match="title"):
        frozen.with_other_word(prompts, "verb")


@WEIGHTS
def test_frozen_prediction_is_a_run_with_its_patterns_held(spine_parts):
    model, prompts, _ = spine_parts
    for what in ("name", "title"):
        found = frozen.frozen_and_rerun(model, prompts, what)
        hold = cut.freeze_patterns(model, prompts.tokens)
        at = "blocks.1.hook_resid_post"
        _, cache = cut.run(model, found.tokens, hold, [at])
        before = frozen.last_named(model, prompts, model.stream(prompts.tokens))
        held = frozen.last_named(model, prompts, cache[at]) - before
        torch.testing.assert_close(found.frozen, held, rtol=0, atol=1e-10)
        again = frozen.last_named(model, prompts, model.stream(found.tokens)) - before
        torch.testing.assert_close(found.rerun, again, rtol=0, atol=1e-10)
        assert (found.frozen - found.rerun).abs().max() > 1e-3


@WEIGHTS
def test_pair_cuts_and_the_term(spine_parts):
    model, prompts, pair = spine_parts
    cuts = frozen.pair_cuts(model, prompts, pair)
    term = frozen.name_terms(model, prompts)[importance.path_name(pair)]
    torch.testing.assert_close(cuts["v"], term, rtol=0, atol=1e-10)  # a V-cut is minus its term
    assert (cuts["k"] - term).abs().max() > 1e-3


@WEIGHTS
def test_what_survives(spine_parts):
    from circuitbook import corpus

    model, _, pair = spine_parts
    tokens = torch.from_numpy(corpus.heldout_windows(1).tokens)[:, :32]
    table = frozen.survival(model, tokens, pair, gen())
    rows = {name: dict(zip(frozen.NUMBERS, row, strict=True)) for name, row in table.items()}
    assert all(row["loss by order"] == 1 for row in rows.values())
    assert all(row["centred logits of a virtual head"] == 1 for row in rows.values())
    assert rows["W_U + c 1ᵀ"]["its raw logits"] == 0
    assert rows["stream, invertible G"]["length of its write"] == 0
    assert rows["head coordinates R"]["length of its z"] == 0
    assert rows["constant per query"]["raw attention scores"] == 0


# ---- the evidence --------------------------------------------------------------------------------


def test_claims_follow_from_their_numbers():
    data, by_id = saved.rechecked(CHAPTER, 15)
    two = data["two"]
    assert len(two["names"]) == len(two["removed"]) == len(two["added"]) == 80
    virtual = [x for n, x in zip(two["names"], two["removed"], strict=True) if "→" in n]
    beyond = sum(abs(m) > data["looks"] * s for m, s in virtual)
    assert len(virtual) == 64 and by_id["paths.many_looks"]["test"]["value"] == beyond
    (zero, _), (one, _), (whole, _) = two["orders"]
    assert by_id["paths.heads_matter"]["values"]["step"] == pytest.approx(zero - one, abs=1e-4)
    step = by_id["paths.virtual_heads_together"]["values"]["step"]
    assert step == pytest.approx(one - whole, abs=1e-4)
    shared = two["first"][1][0] - two["second"][1][0]
    assert two["shared"][0] == pytest.approx(shared, abs=1e-4)
    named = data["named"]
    total = sum(mean for mean, _, _ in named.values())
    assert by_id["paths.pair_on_names"]["values"]["total"] == pytest.approx(total, abs=1e-3)
    assert data["path"] in named and all(x[2] >= abs(x[0]) - 1e-6 for x in named.values())


def test_the_committed_evidence_counts_enough_tokens():
    assert saved.rechecked(CHAPTER, 1)[0]["tokens"] >= 100_000


def test_figures_need_no_torch():
    more = """
rows = ch03.strongest_rows(r)
costs = [row["removed: cost (nats)"] for row in rows]
assert len(rows) == 8 and costs == sorted(costs, reverse=True)
"""
    saved.draw_without_torch(CHAPTER, 5, more)
