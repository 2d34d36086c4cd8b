"""Shares, effects, levels of "frozen", and what survives: on blocks where the answer is known."""

import pytest
import torch
from gated_toys import lasting
from small_model import TINY, gen, model_of, tokens_of

from circuitbook.bases import relative_change
from circuitbook.conditional import gauges, levels, product, shares
from circuitbook.conditional.gates import gate, slope
from circuitbook.conditional.operators import EXPERT_SET, EXPERTS, GAINS, PATTERNS, SCALES
from circuitbook.conditional.spots import Spots, read_by_mlp

ONE = TINY.replace(n_layers=1)
MLPS = {
    "gelu": {"d_mlp": 24, "act": "gelu"},
    "relu": {"d_mlp": 24, "act": "relu"},
    "swiglu": {"d_mlp": 24, "act": "swiglu"},
    "mixture": {"d_mlp": 12, "act": "gelu", "n_experts": 4, "top_k": 2},
    "switch": {"d_mlp": 12, "act": "gelu", "n_experts": 4, "top_k": 1},
}


def model(kind, config=ONE, **more):
    return model_of(config.replace(**MLPS[kind], **more))


def spots_of(n=5, seed=0):
    at = torch.stack([torch.randperm(8, generator=gen(seed + i))[:3] for i in range(n)])
    return Spots(tokens_of(n=n), at, torch.arange(n))


def test_spots():
    spots = spots_of()
    assert spots.n == 15 and spots.doc_of_each().tolist() == [i for i in range(5) for _ in "abc"]
    assert spots.following()[2, 1] == spots.tokens[2, spots.at[2, 1] + 1]
    m = model("gelu")
    u = spots.direction(m)
    logits = m(spots.tokens)
    last = m.stream(spots.tokens)[3, spots.at[3, 0]]
    centred = logits[3, spots.at[3, 0]] - logits[3, spots.at[3, 0]].mean()
    assert (last @ u[3, 0]).item() == pytest.approx(centred[spots.following()[3, 0]].item())


@pytest.mark.parametrize("layers", [1, 2])
def test_parts_are_what_the_mlp_reads(layers):
    m, spots = model("gelu", TINY.replace(n_layers=layers)), spots_of()
    read = read_by_mlp(m, spots)
    name = f"blocks.{layers - 1}.hook_resid_mid"
    mid = m.run_with_cache(spots.tokens, names_filter=name)[1][name]
    want = mid[torch.arange(5)[:, None], spots.at].flatten(0, 1)
    assert relative_change(want, read.x) < 1e-12
    assert len(read.names) == len(read.writes) == (3 if layers == 1 else 6)
    with pytest.raises(ValueError, match="no MLP"):
        read_by_mlp(model_of(ONE), spots)


@pytest.mark.parametrize("kind", MLPS)
def test_forward_shares_and_their_bias_row_are_the_output(kind):
    m, spots = model(kind), spots_of()
    read = read_by_mlp(m, spots)
    found = shares.all_shares(m, read)
    total = shares.totals(m, read, found)
    assert max(total["error"].values()) < 1e-12
    assert set(total["error"]) == {n for n in found if n.startswith("forward")}
    assert all(abs(b) > 1e-3 for b in total["bias row"].values())


def test_all_three_are_one_number_where_the_block_is_linear():
    m, spots = model("relu"), spots_of()
    m.blocks[0].mlp.b_in.fill_(1e3)  # every neuron is on, whatever is removed
    found = shares.all_shares(m, read_by_mlp(m, spots))
    for name in ("forward", "Jacobian"):
        assert torch.allclose(found[name], found["effect"], atol=1e-8)
        assert shares.pooled(found[name], found["effect"]) == pytest.approx(1)
        assert shares.disagree(found[name], found["effect"]) == 0


def test_relu_has_one_linear_share_and_gelu_two():
    spots = spots_of()
    relu, gelu = (shares.all_shares(m, read_by_mlp(m, spots)) for m in map(model, ("relu", "gelu")))
    assert relative_change(relu["forward"], relu["Jacobian"]) < 1e-12
    assert relative_change(relu["forward"], relu["effect"]) > 1e-2  # neurons cross zero
    assert relative_change(gelu["forward"], gelu["Jacobian"]) > 1e-2


def test_the_jacobian_share_is_the_effect_of_a_small_part():
    m, spots = model("gelu"), spots_of()
    read = read_by_mlp(m, spots)
    small = read._replace(writes=1e-5 * read.writes)
    found = shares.all_shares(m, small)
    assert relative_change(found["Jacobian"], found["effect"]) < 1e-3
    assert relative_change(found["forward"], found["effect"]) > 1e-2


def test_the_sign_of_the_effect_is_that_of_a_removal():
    m, spots = model("gelu"), spots_of()
    read = read_by_mlp(m, spots)
    effect = shares.effects(m.blocks[0].mlp, read)
    mlp = m.blocks[0].mlp
    c, i = 1, 4
    lost = (mlp(read.x[None, i : i + 1]) - mlp((read.x - read.writes[c])[None, i : i + 1]))[0, 0]
    assert effect[c, i].item() == pytest.approx((lost @ read.u[i]).item())
    assert shares.rerun_gap(m, spots, read, effect) < 1e-12
    assert shares.rerun_gap(m, spots, read, -effect) > 0.1  # mutant: added instead of removed
    with pytest.raises(ValueError, match="one layer"):
        shares.rerun_gap(model("gelu", TINY), spots, read, effect)


# ---- statistics ----------------------------------------------------------------------------------


def test_disagreement_looks_at_the_larger_effects_only():
    effect = torch.tensor([[4.0, -3.0, 0.1, -0.2]])
    assert shares.disagree(torch.tensor([[1.0, -1.0, -1.0, 1.0]]), effect) == 0
    assert shares.disagree(torch.tensor([[-1.0, -1.0, 0.1, -0.2]]), effect) == 0.5


def test_intervals_know_documents():
    a = torch.randn(4, 60, generator=gen())
    b = a + 0.3 * torch.randn(4, 60, generator=gen(1))
    doc = torch.arange(20).repeat_interleave(3)
    value, low, high = shares.bootstrap(shares.pooled, a, b, doc)
    assert low < value < high and value == shares.pooled(a, b) and high - low < 0.2
    whole = shares.bootstrap(shares.pooled, a, b, torch.zeros(60, dtype=torch.long))
    assert whole[1] == pytest.approx(whole[2])  # one document drawn again is the same document


def test_agreement_beats_its_control_and_the_difference_is_paired():
    effect = torch.randn(6, 40, generator=gen())
    near = effect + 0.1 * torch.randn(6, 40, generator=gen(1))
    far = effect + 2.0 * torch.randn(6, 40, generator=gen(2))
    names = ["embedding", *(f"head 0.{h}" for h in range(5))]
    given = {"forward": far, "Jacobian": near, "effect": effect}
    found = shares.compare(given, torch.arange(40), names)
    row = found["Jacobian"]
    assert row["rank correlation"][0] > 0.9 > abs(row["rank correlation, control"]) + 0.5
    assert row["better than forward"][1] > 0.2 and row["signs differ, control"] > 0.3
    assert row["rank correlation, heads"][0] == pytest.approx(shares.pooled(near[1:], effect[1:]))


def test_worked_cases_are_opposite_and_of_different_parts():
    m, spots = model("gelu"), spots_of()
    read = read_by_mlp(m, spots)
    found = shares.all_shares(m, read)
    cases = shares.worked_cases(found, read, spots._replace(tokens=spots.tokens))
    assert cases
    for case in cases:
        assert case["numbers"]["forward"] * case["numbers"]["effect"] < 0
    assert len({c["part"] for c in cases}) == len(cases)


# ---- levels --------------------------------------------------------------------------------------


def normed():
    more = {"norm": "layernorm", "positions": "standard", "attn_bias": True}
    return model("gelu", TINY, **more)


HEADS = [(0, 0), (0, 1)]


@pytest.mark.parametrize("kind", ["gelu", "relu", "swiglu", "mixture", "switch", "normed"])
def test_with_everything_held_a_removal_is_the_sum_of_its_routes(kind):
    m, spots = normed() if kind == "normed" else model(kind, TINY), spots_of()
    what = next(iter(levels.levels_of(m).values()))
    done = product.record(m, spots.tokens)
    found = product.routes(done, spots.at)
    if kind == "normed":  # the last norm is one more linear map
        from circuitbook.conditional.operators import norm_forward

        # A removal also takes what b_V and the norm's bias send through the head: no part here.
        m.blocks[0].attn.b_V.zero_()
        m.blocks[0].ln1.b.zero_()
        done = product.record(m, spots.tokens)
        found = product.routes(done, spots.at)
        last = product.pick(done.last, spots.at)
        scale = norm_forward(last, m.ln_final.eps, gain=m.ln_final.w)
        found = found._replace(writes=found.writes @ scale)
    toward = found.toward(spots.direction(m))
    through = torch.stack([
        sum(t for r, t in zip(found.routes, toward, strict=True) if f"0.{h}" in r.path)
        for _, h in HEADS
    ])  # fmt: skip
    assert relative_change(through, levels.removals(m, spots, HEADS, what)) < 1e-11
    assert relative_change(through, levels.removals(m, spots, HEADS, what[:-1])) > 1e-2
    assert relative_change(through, levels.removals(m, spots, HEADS, ())) > 1e-2


def test_levels_of_each_kind_of_model():
    assert list(levels.levels_of(model("gelu", TINY)).values()) == [
        (PATTERNS, GAINS), (PATTERNS, levels.SLOPES), (PATTERNS,), (),
    ]  # fmt: skip
    assert list(levels.levels_of(model("swiglu")).values()) == [(GAINS,), ()]
    assert (EXPERT_SET, EXPERTS, GAINS) in levels.levels_of(model("mixture")).values()
    assert (PATTERNS, SCALES) in levels.levels_of(normed()).values()
    with pytest.raises(ValueError, match="cannot hold"):
        levels.hold(model("gelu"), spots_of(), ["gains"])


@pytest.mark.parametrize("kind", ["gelu", "mixture", "switch"])
def test_holding_changes_nothing_while_nothing_is_removed(kind):
    m, spots = model(kind, TINY), spots_of()
    clean = shares.stream_at(m, spots, [])
    for what in levels.levels_of(m).values():
        held = shares.stream_at(m, spots, list(levels.hold(m, spots, what).hooks))
        assert relative_change(clean, held) < 1e-12


def test_nothing_held_is_the_ablation_of_the_course():
    from circuitbook.cut import ablate_heads, logit_change

    m, spots = model("gelu", TINY), spots_of()
    fall = levels.removals(m, spots, [(0, 1)], ())[0]
    moved = -logit_change(m, spots.tokens, ablate_heads(m, spots.tokens, [(0, 1)]))
    moved = moved - moved.mean(-1, keepdim=True)
    rows = torch.arange(5)[:, None]
    assert torch.allclose(fall, moved[rows, spots.at, spots.following()].flatten(), atol=1e-10)


def test_slopes_are_the_first_order_of_the_rerun_mlp():
    m, spots = model("gelu"), spots_of()
    read = read_by_mlp(m, spots)
    found = shares.all_shares(m, read)["Jacobian"][1:]
    direct = (read.writes[1:] * read.u).sum(-1)
    rate = levels.removals(m, spots, HEADS, (levels.SLOPES,))
    assert torch.allclose(rate, direct + found, atol=1e-10)


def test_an_expert_set_that_is_held_is_not_left():
    m, spots = model("mixture"), spots_of()
    seen = []
    m.blocks[0].mlp.hook_expert_weights.add_hook(lambda w, hook: seen.append(w > 0) or None)
    try:
        levels.removals(m, spots, HEADS, (EXPERT_SET,))
        m(spots.tokens)
    finally:
        m.reset_hooks()
    clean = seen[-1]
    assert len(seen) >= 4 and clean.sum(-1).eq(2).all()


def test_comparison_with_the_rerun():
    a, b = torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 2.0]])
    assert levels.off(a, b) == 0.25 and levels.off(b, b) == 0 and levels.off(0 * b, b) == 1
    assert levels.nearer(torch.cat([0 * b, a]), b) == 0.75
    m, spots = model("gelu", TINY), spots_of()
    found = levels.compare(m, spots, HEADS)
    assert found["heads"] == ["head 0.0", "head 0.1"] and "re-run" not in found["levels"]
    assert set(found["mean"]) == set(found["levels"]) | {"re-run"}
    least = {k: v["off"][0] for k, v in found["levels"].items()}
    assert list(found["nearer by"]) == ["patterns"]
    gap = least["patterns + MLP gains"] - least["patterns"]
    assert found["nearer by"]["patterns"][0] == pytest.approx(gap)


def test_gain_or_slope_by_neuron():
    """Both halves of the exchange together are the Jacobian share; each moves the share alone."""
    m, spots = model_of(ONE.replace(**MLPS["gelu"])), spots_of()
    read, mlp = read_by_mlp(m, spots), m.blocks[-1].mlp
    found = shares.all_shares(m, read)
    seen = []

    def keep(statistic, a, b, doc):
        seen.append(a)
        return [0.0, 0.0, 0.0]

    old, shares.bootstrap = shares.bootstrap, keep
    try:
        part = shares.curve(mlp, "gelu", read, found, spots.doc_of_each())["neurons"]
    finally:
        shares.bootstrap = old
    moved = sum(seen[i] - found["forward"] for i in (0, 3))
    assert torch.allclose(moved, found["Jacobian"] - found["forward"], atol=1e-10)
    z = read.x @ mlp.W_in + mlp.b_in
    assert part == pytest.approx((z < -0.7518).double().mean().item()) and 0 < part < 1
    gains = torch.where(z < -0.7518, slope("gelu", z), gate("gelu", z))
    want = ((read.writes @ mlp.W_in * gains) @ mlp.W_out * read.u).sum(-1)
    assert torch.allclose(seen[0], want, atol=1e-10)
    assert (want - found["forward"]).abs().max() > 1e-6


# ---- does it survive? ----------------------------------------------------------------------------


def test_what_survives(monkeypatch):
    m, hidden = model_of(ONE.replace(**MLPS["gelu"])), []
    honest = gauges.change_hidden
    monkeypatch.setattr(
        gauges, "change_hidden", lambda model, Q: hidden.append(Q) or honest(model, Q)
    )
    moves = gauges.survival(m, spots_of())
    order, turn = hidden
    assert ((order == 0) | (order == 1)).all() and (order.sum(0) == 1).all()
    assert (order.sum(1) == 1).all() and order.trace() < len(order) / 2, "neurons do move"
    assert turn.abs().max() < 0.99
    lasting(moves)
