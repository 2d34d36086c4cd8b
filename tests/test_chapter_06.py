"""Chapter 06: taught functions by brute force, acceptance with mutants, its evidence."""

import json
from pathlib import Path

import pytest
import saved
import torch
from small_model import gen, model_of

from circuitbook import cut, probe, spine
from circuitbook.induction import circuit, handbuilt, repeats

ch06 = pytest.importorskip("circuitbook.taught.ch06", reason="run tools/derive.py taught")
ROOT = Path(__file__).resolve().parent.parent
CHAPTER = "06_induction"
WEIGHTS = pytest.mark.weights
WORDS = torch.arange(10, 510)


def batch_of(n, seed=0, words=WORDS, **more):
    return probe.repeated_batch(words, n, generator=gen(seed), **more)


def trained(role="attn-only-2l", **more):
    from circuitbook import zoo

    return zoo.load(role, device="cpu", **more)


def frequent_batch(n):
    from circuitbook import curves

    return batch_of(n, seed=3, words=curves.Bench.frequent(500))


# ---- taught functions ---------------------------------------------------------------------------


@pytest.mark.parametrize("gap", [(3, 9), (4, 4)])
def test_fixed_offset_scores_are_those_of_the_heads(gap):
    batch = batch_of(6, copies=3, block=5, gap=gap)
    scores = ch06.fixed_offset_scores(batch.tokens)
    assert len(scores) == batch.tokens.shape[1] - 1
    for d in (1, 4, 8, 9, 13, 20):
        head = probe.synthetic_pattern("fixed_offset", batch.tokens, offset=d)
        want = probe.prefix_matching_score(head, batch.tokens).mean().item()
        assert scores[d - 1].item() == pytest.approx(want, abs=1e-6)
    assert scores[8 - 1] != scores[9 - 1] or gap == (3, 9)  # mutant: one offset off


def test_virtual_qk_is_the_dense_table():
    E, V, O, Q, K = (
        torch.randn(*shape, generator=gen(i), dtype=torch.float64)
        for i, shape in enumerate([(30, 12), (12, 4), (4, 12), (12, 4), (12, 4)])
    )
    A, B = ch06.virtual_qk(E, V, O, Q, K)
    dense = E @ (Q @ K.mT) @ (E @ (V @ O)).mT / 2
    dense = dense - dense.mean(1, keepdim=True)
    torch.testing.assert_close(A @ B, dense, rtol=0, atol=1e-11)
    assert (B @ torch.ones(30, dtype=torch.float64)).abs().max() < 1e-11
    query = (E @ (V @ O)) @ (Q @ K.mT) @ E.mT / 2  # mutant: the earlier head feeds the query
    assert (A @ B - (query - query.mean(1, keepdim=True))).abs().max() > 0.1
    assert (A @ B - dense.mT).abs().max() > 0.1  # mutant: rows are keys


# ---- acceptance (a): controls, and the index conventions ---------------------------------------


def test_controls():
    jittered, even = (batch_of(64, gap=g) for g in ((16, 79), (16, 16)))
    scores = repeats.control_scores(jittered, ch06.fixed_offset_scores)
    assert scores["fixed offset, best"] <= 0.05 and scores["ideal"] >= 0.95
    for name in (*repeats.CONTROLS, "one too far"):
        assert scores[name] <= 0.1, name
    fooled = repeats.control_scores(even, ch06.fixed_offset_scores)
    assert fooled["fixed offset, best"] == pytest.approx(1.0)  # mutant: no jitter
    assert fooled["ideal"] >= 0.95


def by_hand(pattern, tokens, shift):
    """The score in plain loops; shift 1 is the convention, 0 and 2 are off by one."""
    total, queries = 0.0, 0
    for t in range(len(tokens)):
        keys = [j for j in range(1, t) if j - shift >= 0 and tokens[j - shift] == tokens[t]]
        if keys:
            total, queries = total + sum(pattern[t, j].item() for j in keys), queries + 1
    return total / queries


def test_which_key_is_the_token_after_the_earlier_copy():
    tokens = batch_of(1, copies=3, block=6, gap=(3, 5)).tokens
    pattern = torch.rand(1, 1, *tokens.shape[1:] * 2, generator=gen(1)).double().tril()
    got = probe.prefix_matching_score(pattern, tokens).item()
    right, copy_itself, too_far = (by_hand(pattern[0, 0], tokens[0], s) for s in (1, 0, 2))
    assert got == pytest.approx(right, abs=1e-12)
    assert abs(got - copy_itself) > 1e-3 and abs(got - too_far) > 1e-3
    shifted = pattern.roll((1, 1), (-2, -1))  # mutant: BOS counted twice
    assert abs(probe.prefix_matching_score(shifted, tokens).item() - right) > 1e-3


def test_the_published_stripe_is_one_diagonal():
    batch = probe.published_batch("2x50", WORDS, 2, generator=gen())
    head = probe.synthetic_pattern("fixed_offset", batch.tokens, offset=49)
    assert probe.stripe_score(head, 50).min() == 1  # the impostor passes
    late = probe.synthetic_pattern("fixed_offset", batch.tokens, offset=50)
    assert probe.stripe_score(late, 50).max() == 0


# ---- acceptance (b), (c): trained heads, with random weights as the mutant ----------------------


def test_random_weights_have_no_circuit():
    model = model_of(scale=1.0)
    batch = batch_of(4, words=torch.arange(1, 24), copies=2, block=4, gap=(1, 4))
    assert circuit.readout(model, batch).prefix.mean(0).max() < 0.3
    assert abs(circuit.readout(model, batch).drop().mean()) < 0.5


@WEIGHTS
def test_best_head_and_the_one_layer_model():
    batch = frequent_batch(6)
    two = circuit.readout(trained(), batch).prefix.mean(0)
    assert two.max() >= 0.3
    one = circuit.readout(trained("attn-only-1l"), batch)
    assert one.prefix.mean(0).max() <= 0.05
    fresh = batch.tokens.clone()  # mutant: nothing repeats, scored as if it did
    for row, at in zip(fresh, circuit.copy_positions(batch), strict=True):
        unused = WORDS[~torch.isin(WORDS, row)]
        row[at[1:].flatten()] = unused[: at[1:].numel()]
    name = "blocks.1.attn.hook_pattern"
    pattern = cut.run(trained(), fresh, names=[name])[1][name]
    assert probe.prefix_matching_score(pattern, batch.tokens).mean(0).max() < 0.05


@WEIGHTS
@pytest.mark.parametrize("role", ["attn-only-2l", "gelu-2l"])
def test_the_key_edge_carries_the_pair(role):
    model, batch = trained(role), frequent_batch(4)
    pair = spine.heads_pair(model, 16)
    found = repeats.key_query_value(model, batch, pair)
    assert found["lost"]["key"] >= 0.8 and found["lost"]["query"] <= 0.2
    assert found["pattern_moved"] == 0 and found["lost"]["value"] == 0
    scores = repeats.previous_scores(model, batch.tokens)
    least = (0, int(scores.argmin()))  # mutant: the edge of a head that looks elsewhere
    other = circuit.readout(model, batch, cut.cut_path(model, least, pair[1], "k"))
    clean = circuit.readout(model, batch)
    h = pair[1][1]
    assert other.prefix[:, h].mean() >= 0.8 * clean.prefix[:, h].mean()


@WEIGHTS
def test_float64_says_the_same():
    batch = frequent_batch(2)
    single, double = (trained(dtype=d) for d in (torch.float32, torch.float64))
    pair = spine.heads_pair(single, 16)
    rows = [repeats.key_query_value(m, batch, pair)["lost"]["key"] for m in (single, double)]
    assert rows[0] == pytest.approx(rows[1], abs=1e-4)


@WEIGHTS
def test_the_virtual_table_has_its_diagonal_through_the_right_head():
    from circuitbook import curves

    model = trained()
    (_, p), (_, i) = spine.heads_pair(model, 16)
    found = repeats.virtual_tables(model, curves.Bench.frequent(60), ch06.virtual_qk)
    assert found["on_top"][p, i] >= 0.5 and found["words"] == 60
    assert max(found["on_top"][h, i] for h in range(8) if h != p) <= 0.25

    def transposed(E, V, O, Q, K):  # mutant: the earlier head feeds the query
        A = E @ V @ (O @ Q)
        B = (E @ K).mT
        return A, B - B.mean(-1, keepdim=True)

    mutant = repeats.virtual_tables(model, curves.Bench.frequent(60), transposed)
    assert mutant["on_top"][p, i] < found["on_top"][p, i] / 2


# ---- acceptance (e): by hand (the models have tests of their own) -----------------------------


def test_hand_built_models_as_the_lesson_calls_them():
    tokens, periods = handbuilt.repeated_distinct(48, 64, 128, gen())
    chance = handbuilt.chance_level(tokens, periods)
    whole = handbuilt.contrast(handbuilt.induction_model(), tokens, periods)
    assert whole["whole"] == 1 and whole["query"] == 1 and whole["value"] == 1
    assert max(whole[x] for x in ("key", "without 0.0", "without 1.0")) <= chance
    mutant = handbuilt.contrast(handbuilt.induction_model(composition="q"), tokens, periods)
    assert mutant["whole"] <= chance
    for on, bound in ((True, 1.0), (False, chance)):
        model, hooks = handbuilt.smeared_model(smear=on)
        share = handbuilt.continuation_accuracy(model, tokens, periods, hooks)
        assert share == 1 if on else share <= bound


# ---- the evidence -------------------------------------------------------------------------------


def test_claims_follow_from_their_numbers():
    d, by_id = saved.rechecked(CHAPTER, 25)
    (first, last), (writer, reader) = d["heads"], d["pair"]
    p, i = first.index(writer), last.index(reader)
    lost = d["edges"]["prefix_lost"]
    assert by_id["induction.query_cut"]["test"]["value"] == pytest.approx(lost[p][0], abs=1e-6)
    worst = max(lost[h][1] for h in range(len(first)) if h != p)
    assert by_id["induction.no_second_helper"]["test"]["value"] == pytest.approx(worst, abs=1e-6)
    tenth = d["repeats"]["attn-only-2l"]["rank"]
    assert by_id["induction.rank_tenth"]["holds"] == (tenth[-1] <= tenth[0] / 10)
    gap = d["icl"]["difference"]
    assert d["icl"]["share"] == pytest.approx(gap["lost"][0] / gap["gain"][0], rel=1e-4)
    assert d["virtual"]["ov"][i] <= 1 and set(d["induction"]) <= set(last)


def test_trial_refuses_a_circuit_that_is_not_there():
    """The verdicts turn when the numbers do: the same data with the edges exchanged must fail."""
    import numpy as np

    from circuitbook.induction import trial

    d = saved.rechecked(CHAPTER, 1)[0]
    d["moves"] = {
        k: d["moves"][k]
        for k in ("head coordinates R", "stream coordinates G", "W_U + c 1ᵀ", "constant per query")
    }
    holds = {c["id"]: c["holds"] for c in trial.claims(d)}
    assert holds["induction.key_cut"] and holds["induction.loss_cuts"]
    swapped = json.loads(json.dumps(d))
    swapped["edges"]["prefix_lost"] = np.array(d["edges"]["prefix_lost"])[:, [1, 0, 2]].tolist()
    swapped["hand"]["K-composition"], swapped["hand"]["pointer"] = (
        d["hand"]["pointer"],
        d["hand"]["K-composition"],
    )
    swapped["icl"]["share"], swapped["icl"]["random_share"] = 0.2, [0.5]
    for role in swapped["growth"]["events"].values():
        role["found"] = not role["found"]
    after = {c["id"]: c["holds"] for c in trial.claims(swapped)}
    for name in ("key_cut", "query_cut", "pointer", "icl_lost", "phase_change"):
        assert not after[f"induction.{name}"], name


def test_figures_need_no_torch():
    more = """
from circuitbook.gallery import tables06
assert len(tables06.evidence_rows(r)) == 10 and len(tables06.removal_rows(r)) == 5
assert len(tables06.survival_rows(r)) == 8 and tables06.protocol_rows(r)
"""
    saved.draw_without_torch(CHAPTER, 9, more)
