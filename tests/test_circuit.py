"""The knife: readouts against brute force, cuts against algebra, planted circuits as controls."""

import pytest
import torch
from small_model import gen, model_of

from circuitbook import cut, probe
from circuitbook.config import Config
from circuitbook.induction import circuit, handbuilt, repeats
from circuitbook.taught import change_head_coordinates

SMALL = Config(n_layers=2, d_model=16, n_heads=2, d_head=8, n_ctx=64, d_vocab=40)
MLP = SMALL.replace(d_mlp=24, act="gelu")
PAIR = (0, 1), (1, 0)


def batch_of(n=3, copies=3, block=5, gap=(2, 4), pool=40, seed=0):
    ids = torch.arange(1, pool)
    return probe.repeated_batch(ids, n, copies=copies, block=block, gap=gap, generator=gen(seed))


def test_copies_stand_where_they_are_said_to_stand():
    batch = batch_of()
    where = circuit.copy_positions(batch)
    assert torch.equal(where[:, 0], batch.first) and torch.equal(where[:, 1], batch.second)
    rows = torch.arange(len(where))[:, None, None]
    copies = batch.tokens[rows, where]
    assert (copies == copies[:, :1]).all()
    assert not (batch.tokens[rows, where - 1][:, :, 0] == copies[:, :1, 0]).any()  # mutant: shifted


@pytest.mark.parametrize("config", [SMALL, MLP])
def test_readout_is_the_brute_force_one(config):
    model, batch = model_of(config), batch_of()
    got = circuit.readout(model, batch, part=2)
    logits, cache = model.run_with_cache(batch.tokens)
    prefix = probe.prefix_matching_score(cache["blocks.1.attn.hook_pattern"], batch.tokens)
    torch.testing.assert_close(got.prefix, prefix, rtol=0, atol=1e-12)
    effect = probe.repeat_effect(logits, batch.tokens, batch.first, batch.second)
    torch.testing.assert_close(got.loss[:, 0], effect.loss_first, rtol=0, atol=1e-10)
    torch.testing.assert_close(got.loss[:, 1], effect.loss_second, rtol=0, atol=1e-10)
    assert torch.equal(got.rank[:, 1], effect.rank_second)
    third = circuit.copy_positions(batch)[:, 2, 1:]
    rows = torch.arange(3)[:, None]
    log_p = logits.log_softmax(-1)[rows, third - 1]
    right = batch.tokens[rows, third].unsqueeze(-1)
    torch.testing.assert_close(got.loss[:, 2], -log_p.gather(-1, right)[..., 0], rtol=0, atol=1e-10)
    mutant = logits.log_softmax(-1)[rows, third]  # mutant: logits at the token itself
    assert (got.loss[:, 2] + mutant.gather(-1, right)[..., 0]).abs().max() > 0.1
    assert model.use_attn_result is False and model.use_split_qkv_input is False


def test_drop_and_again_by_hand():
    loss = torch.tensor([[[4.0, 6.0], [1.0, 2.0], [3.0, 2.0]]])
    seen = circuit.Readout(torch.zeros(1, 1), loss, torch.zeros(1, 3, 2).long())
    assert seen.drop().item() == 3.0 and seen.again().item() == 2.0


def test_errors_are_over_sequences():
    found = circuit.estimate(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0.0, 0.0, 0.0]))
    assert found.mean == 3.0 and found.se == pytest.approx(2 / 3**0.5) and found.n_clusters == 3


# ---- planted circuits: the knife must find what was put there ------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("model", "carrier"), [("induction_model", 1), ("pointer_model", 0)])
def test_edges_of_planted_circuits(model, carrier, dtype):
    planted = getattr(handbuilt, model)(dtype=dtype)
    batch = batch_of(n=6, copies=2, block=8, gap=(2, 9), pool=65)
    found = circuit.edge_effects(planted, batch, (1, 0), [(0, 0)])
    lost, rise = found["prefix_lost"][0], found["rise"][0]
    assert lost[carrier] > 0.95 and rise[carrier] > 3
    assert all(abs(lost[i]) < 1e-3 for i in range(3) if i != carrier)  # mutant: the other edge
    assert circuit.readout(planted, batch).prefix.mean() > 0.95


def test_a_value_cut_cannot_move_the_pattern():
    model, tokens = model_of(SMALL), batch_of().tokens
    assert circuit.pattern_movement(model, tokens, cut.cut_path(model, *PAIR, "v"), PAIR[1]) == 0
    for into in "qk":
        change = cut.cut_path(model, *PAIR, into)
        assert circuit.pattern_movement(model, tokens, change, PAIR[1]) > 1e-3


# ---- the edge through the MLP --------------------------------------------------------------------


def key_pattern(model, keys, queries, place, head):
    q = (queries + place) @ model.W_Q[1, head]
    k = (keys + place) @ model.W_K[1, head]
    scores = q @ k.mT / model.cfg.d_head**0.5
    hidden = torch.ones(scores.shape[-2:]).triu(1).bool()
    return scores.masked_fill(hidden, -torch.inf).softmax(-1)


@pytest.mark.parametrize(("direct", "mediated"), [(True, False), (False, True), (True, True)])
def test_the_edge_through_the_mlp_by_hand(direct, mediated):
    model, tokens = model_of(MLP), batch_of().tokens
    _, cache = cut.run(model, tokens, names=None)
    w, m = cache["blocks.0.attn.hook_result"][:, :, 1], cache["blocks.0.hook_resid_mid"]
    x, place = cache["blocks.1.hook_resid_pre"], model.W_pos[: tokens.shape[1]]
    mlp = model.blocks[0].mlp
    gone = direct * w + mediated * (mlp(m) - mlp(m - w))
    change = circuit.through_mlp(model, *PAIR, "k", direct=direct, mediated=mediated)
    name = "blocks.1.attn.hook_pattern"
    got = cut.run(model, tokens, change, names=[name])[1][name]
    torch.testing.assert_close(
        got[:, 0], key_pattern(model, x - gone, x, place, 0), rtol=0, atol=1e-11
    )
    torch.testing.assert_close(got[:, 1], cache[name][:, 1], rtol=0, atol=0)  # nobody else is cut
    wrong = key_pattern(model, x - gone, x - gone, place, 0)  # mutant: the query is cut as well
    assert (got[:, 0] - wrong).abs().max() > 1e-3
    if direct and not mediated:
        plain = cut.run(model, tokens, cut.cut_path(model, *PAIR, "k"), names=[name])[1][name]
        torch.testing.assert_close(got, plain, rtol=0, atol=1e-12)


def test_through_mlp_refuses_what_it_cannot_mean():
    with pytest.raises(ValueError, match="MLP between"):
        circuit.through_mlp(model_of(SMALL), *PAIR, "k", direct=True, mediated=True)
    with pytest.raises(ValueError, match="one layer before"):
        circuit.through_mlp(model_of(MLP), (1, 0), (1, 1), "k", direct=True, mediated=True)


def test_all_nine_edges_are_reported():
    found = circuit.mlp_edges(model_of(MLP), batch_of(), *PAIR)
    assert len(found) == 9
    values = [x["kept"] for name, x in found.items() if name.startswith("value")]
    assert values == [1.0, 1.0, 1.0]


# ---- whole heads, in-context learning ------------------------------------------------------------


def test_only_keeps_what_it_is_told_to_keep():
    model, batch = model_of(SMALL), batch_of()
    everyone = [(layer, h) for layer in range(2) for h in range(2)]
    same = circuit.readout(model, batch, circuit.only(model, batch.tokens, everyone))
    torch.testing.assert_close(same.loss, circuit.readout(model, batch).loss, rtol=0, atol=1e-12)
    alone = circuit.readout(model, batch, circuit.only(model, batch.tokens, PAIR))
    others = cut.ablate_heads(model, batch.tokens, [(0, 0), (1, 1)])
    torch.testing.assert_close(alone.loss, circuit.readout(model, batch, others).loss)
    assert (alone.loss - same.loss).abs().max() > 1e-3


def long_model(seed=0):
    return model_of(SMALL.replace(n_ctx=512, d_model=8, d_head=4), seed=seed)


def windows_of(n=4):
    tokens = torch.randint(1, 40, (n, 512), generator=gen(5))
    tokens[:, 0] = 0
    return tokens


def test_in_context_score_equals_the_probe():
    model, windows = long_model(), windows_of()
    want = probe.in_context_scores(model(windows, return_type="loss_per_token"))
    torch.testing.assert_close(circuit.in_context(model, windows), want, rtol=0, atol=1e-12)
    late = probe.in_context_scores(
        model(windows, return_type="loss_per_token"), (40, 59), (490, 509)
    )
    assert (late - want).abs().max() > 1e-4  # mutant: indices one too small


def test_icl_study_adds_up():
    two, one, windows = long_model(), long_model(1), windows_of()
    found = circuit.icl_study(two, one, windows, torch.arange(4), [1], draws=2)
    gap = found["difference"]
    assert found["share"] == pytest.approx(gap["lost"][0] / gap["gain"][0])
    assert gap["more than random"][0] == pytest.approx(gap["lost"][0] - gap["lost, random"][0])
    assert gap["gain"][0] == pytest.approx(
        found["level"]["one layer"][0] - found["level"]["two layers"][0]
    )
    assert found["sets"] == ["without 1.0"] * 2  # the only other head there is
    removed = circuit.in_context(two, windows, cut.ablate_heads(two, windows[:1], [(1, 1)]))
    assert found["level"]["without induction heads"][0] == pytest.approx(removed.mean().item())


def test_random_sets_are_of_one_size_and_leave_the_chosen_alone():
    sets = circuit.other_sets(8, [4, 6], 5, seed=1)
    assert len(sets) == 5 and all(len(set(s)) == 2 and not {4, 6} & set(s) for s in sets)
    assert sets == circuit.other_sets(8, [4, 6], 5, seed=1)
    assert len({tuple(s) for s in circuit.other_sets(8, [4, 6], 9)}) > 1


def test_induction_heads_are_those_above_the_floor():
    seen = circuit.Readout(
        torch.tensor([[0.4, 0.0, 0.2], [0.4, 0.1, 0.1]]), *[torch.zeros(2, 2, 2)] * 2
    )
    assert circuit.induction_heads(seen) == [0, 2]


# ---- patterns ------------------------------------------------------------------------------------


def test_value_weighted_pattern_by_hand():
    model, tokens = model_of(SMALL), batch_of().tokens
    pattern, moved = circuit.shown(model, tokens, (1, 0))
    _, cache = model.run_with_cache(tokens)
    v = cache["blocks.1.attn.hook_v"][:, :, 0] @ model.W_O[1, 0]
    want = cache["blocks.1.attn.hook_pattern"][:, 0] * v.norm(dim=-1)[:, None]
    torch.testing.assert_close(moved, want / want.sum(-1, keepdim=True), rtol=0, atol=1e-12)
    torch.testing.assert_close(moved.sum(-1), torch.ones_like(moved[..., 0]))
    assert (moved - pattern).abs().max() > 1e-3
    rest = circuit.resting(model, batch_of(), (1, 0))
    assert all(0 <= x <= 1 for x in rest.values()) and len(rest) == 4


def test_a_hand_built_head_rests_on_the_start_and_moves_nothing_from_there():
    model, batch = (
        handbuilt.induction_model(),
        batch_of(n=4, copies=2, block=8, gap=(2, 5), pool=65),
    )
    rest = circuit.resting(model, batch, (1, 0))
    assert rest["attention, no match"] > 0.95 and rest["attention, match"] < 0.05
    assert rest["moved, match"] < 0.05


# ---- survival, and the bookkeeping ---------------------------------------------------------------


def test_what_survives_on_random_weights():
    model, batch = model_of(SMALL), batch_of(n=2)
    moves = circuit.survival(model, batch, PAIR, change_head_coordinates)
    safe = ("prefix matching", "loss at the repeats", "prefix matching left by the K-cut")
    for change, row in moves.items():
        assert all(row[q] < 1e-8 for q in (*safe, "virtual QK: eigenvalue score")), change
    assert moves["stream coordinates G"]["K-composition score"] > 0.01
    assert moves["constant per query"]["raw score at the match"] > 0.01

    def wrong(Q, K, V, O, R):  # mutant: keys are turned like queries
        q, _, v, o = change_head_coordinates(Q, K, V, O, R)
        return q, K @ R, v, o

    moved = circuit.survival(model, batch, PAIR, wrong)["head coordinates R"]
    assert moved["prefix matching"] > 1e-3


def test_key_query_value_agrees_with_the_edge_table():
    model, batch = model_of(SMALL), batch_of()
    row, table = (
        repeats.key_query_value(model, batch, PAIR),
        circuit.edge_effects(model, batch, PAIR[1], [PAIR[0]]),
    )
    for j, name in enumerate(("query", "key", "value")):
        assert row["lost"][name] == pytest.approx(table["prefix_lost"][0][j], abs=1e-12)
        assert row["rise"][name] == pytest.approx(table["rise"][0][j], abs=1e-12)
    assert row["pattern_moved"] == 0 and row["pair"] == ["0.1", "1.0"]


def test_whole_heads_on_random_weights():
    model, batch = model_of(SMALL), batch_of()
    found = repeats.whole_heads(model, batch, PAIR, [0])
    rerun = circuit.readout(model, batch, cut.ablate_heads(model, batch.tokens, [PAIR[0]]))
    clean = circuit.readout(model, batch)
    want = (rerun.again() - clean.again()).mean().item()
    assert found["previous-token head, re-run"]["rise"] == pytest.approx(want, abs=1e-12)
    kept = found["previous-token head, patterns kept"]
    assert kept["prefix"] == pytest.approx(clean.prefix[:, 0].mean().item(), abs=1e-12)
    assert kept["rise"] != pytest.approx(want, abs=1e-3)


def test_shuffled_copies_keep_the_words_and_lose_the_runs():
    batch = batch_of(n=4, copies=3, block=6, gap=(2, 5))
    mixed = repeats.shuffled_copies(batch)
    rows, where = torch.arange(4)[:, None, None], circuit.copy_positions(batch)
    before, after = batch.tokens[rows, where], mixed.tokens[rows, where]
    assert torch.equal(before.sort(-1).values, after.sort(-1).values)
    assert torch.equal(before[:, 0], after[:, 0])  # the first copy stays
    assert not torch.equal(before[:, 1:], after[:, 1:])
    others = torch.ones_like(batch.tokens, dtype=torch.bool)
    others[torch.arange(4)[:, None], where.flatten(1)] = False
    assert torch.equal(batch.tokens[others], mixed.tokens[others])
    matched = [probe.after_earlier_copies(b.tokens).any(-1).sum() for b in (batch, mixed)]
    assert matched[1] >= matched[0] - 4 * 2  # at most one query a copy: its key would be itself


def test_protocols_by_name():
    model = model_of(SMALL.replace(n_ctx=512, d_vocab=120))
    found = repeats.protocols(model, (1, 0), torch.arange(1, 120), batch_of())
    assert set(found) == {"course", "shuffled copies", "one repeat", "4x25", "2x50"}
