"""Gate and content: the two routes of a gated MLP, and the cuts of one of them."""

import pytest
import torch
from gated_toys import block_of, draw, small
from small_model import gen, tokens_of

from circuitbook import cut
from circuitbook.conditional import gate_cuts, operators, reads, realised, routes, swiglu

GATED = ("swiglu", "bilinear")


def jacobian(mlp, x):
    """J[in, out] by autograd."""
    return torch.autograd.functional.jacobian(lambda v: mlp(v[None, None])[0, 0], x).T


def gap(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


@pytest.mark.parametrize("act", [*GATED, "relu", "gelu", "gelu_new"])
def test_routes_add_up_to_the_derivative(act):
    for dtype, limit in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        mlp = block_of(act, dtype=dtype)
        x = draw(12, dtype=dtype)
        found = routes.matrices(mlp, act, x)
        assert set(found) == ({"content", "gate"} if act in GATED else {"content"})
        assert gap(sum(found.values()), jacobian(mlp, x)) < limit


def test_each_route_is_the_derivative_of_its_own_branch():
    mlp, x = block_of(), draw(12)
    parts = routes.matrices(mlp, "swiglu", x)
    held = x.clone()

    def branch(select, content):
        return gate_cuts.two_reads(mlp, select[None], content[None])[0]

    gate = torch.autograd.functional.jacobian(lambda v: branch(v, held), x).T
    content = torch.autograd.functional.jacobian(lambda v: branch(held, v), x).T
    assert gap(parts["gate"], gate) < 1e-12 and gap(parts["content"], content) < 1e-12
    assert gap(parts["gate"], content) > 1e-1


def test_wrong_slope_of_the_gate_is_seen(monkeypatch):
    mlp, x = block_of(), draw(12)
    whole = jacobian(mlp, x)
    monkeypatch.setattr(routes, "slope", lambda act, z: z.sigmoid())  # SiLU' taken for sigma
    assert gap(sum(routes.matrices(mlp, "swiglu", x).values()), whole) > 1e-2


def test_content_route_is_an_exact_forward_operator_and_the_gate_route_is_not():
    mlp, x = block_of(), draw(12)
    parts = routes.matrices(mlp, "swiglu", x)
    content = operators.forward(mlp, "swiglu", x, content=1.0).matrix()
    by_gate = operators.forward(mlp, "swiglu", x, content=0.0).matrix()
    assert gap(parts["content"], content) < 1e-12
    assert gap(parts["gate"], by_gate) > 1e-2
    bilinear = block_of("bilinear")
    same = operators.forward(bilinear, "bilinear", x, content=0.0).matrix()
    assert gap(routes.matrices(bilinear, "bilinear", x)["gate"], same) < 1e-12  # there it is


def test_routes_act_on_many_changes_at_once():
    mlp, x, dx = block_of(), draw(5, 12), draw(3, 5, 12, seed=2)
    many = routes.routes(mlp, "swiglu", x, dx)
    one = routes.matrices(mlp, "swiglu", x[3])
    for name, y in many.items():
        assert gap(y[2, 3], dx[2, 3] @ one[name]) < 1e-12


# ---- reads and cuts ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_parts_are_all_that_the_block_reads(dtype):
    model, tokens = small(dtype=dtype), tokens_of(n=4, length=16)
    found = reads.read_parts(model, tokens, torch.tensor([0, 0, 1, 2]), 5)
    read = cut.run(model, tokens, names=["blocks.0.hook_resid_mid"])[1]["blocks.0.hook_resid_mid"]
    assert gap(found.x, read[:, found.place]) < (1e-12 if dtype == torch.float64 else 1e-6)
    assert torch.equal(found.token, tokens[:, found.place])
    assert torch.equal(found.following, tokens[:, found.place + 1])
    assert torch.equal(found.part("direct"), model.W_E[found.token])
    assert gap(found.part("all heads"), found.x - found.part("direct")) < 1e-5
    assert found.place.min() >= 2 and len(found.names) == 4
    with pytest.raises(KeyError, match="head 0.2"):
        found.part("head 1.0")


def test_two_layers_are_refused():
    from small_model import TINY, model_of

    with pytest.raises(ValueError, match="one-layer"):
        reads.read_parts(model_of(TINY), tokens_of(), torch.zeros(3).long(), 3)


def test_what_a_cut_takes_away():
    w = draw(4, 3, 12)
    assert torch.equal(reads.removed(w, "zero"), w)
    assert gap(w - reads.removed(w, "mean"), w.mean(0).expand_as(w)) < 1e-12
    other = w - reads.removed(w, "resample", gen(0))
    for i in range(4):
        assert not torch.equal(other[i], w[i])
        assert any(gap(other[i], w[j]) < 1e-12 for j in range(4) if j != i)
    for kind in ("random", "elsewhere"):
        r = reads.removed(w, kind, gen(7))
        assert gap(r.norm(dim=-1), w.norm(dim=-1)) < 1e-12
        cosine = torch.nn.functional.cosine_similarity(r, w, dim=-1)
        assert cosine.abs().max() < 0.95
    with pytest.raises(ValueError, match="manual_seed"):
        reads.removed(w, "resample")
    with pytest.raises(ValueError, match="zero"):
        reads.removed(w, "half")


@pytest.mark.parametrize("shape", [("swiglu", 0, 0), ("gelu", 4, 2), ("swiglu", 4, 1)])
@pytest.mark.parametrize("route", gate_cuts.ROUTES)
@pytest.mark.parametrize("kind", ["zero", "mean", "resample"])
def test_small_computation_equals_the_run_with_hooks(shape, route, kind):
    model, tokens = small(*shape), tokens_of(n=5, length=16)
    found = reads.read_parts(model, tokens, torch.arange(5), 6)
    judge = gate_cuts.Judge(model, found)
    gone = reads.removed(found.parts[[1, 3]].sum(0), kind, gen(4))
    fast = judge.without(gone, route).loss
    knife = gate_cuts.read_cut(model, [0, 2], route, kind, gen(4))
    slow = cut.run(model, tokens, knife, return_type="loss_per_token")[0][:, found.place].mean(1)
    assert gap(fast, slow) < 1e-10
    whole = cut.run(model, tokens, return_type="loss_per_token")[0][:, found.place].mean(1)
    assert gap(judge.clean, whole) < 1e-10
    assert gap(fast, whole) > 1e-4  # something was cut
    assert "direct edge only" in knife.describe() and kind in knife.describe()


def test_select_and_content_are_not_exchanged():
    mlp, x, y = block_of(), draw(7, 12), draw(7, 12, seed=5)
    g, u = y @ mlp.W_gate + mlp.b_gate, x @ mlp.W_in + mlp.b_in
    by_hand = (torch.nn.functional.silu(g) * u) @ mlp.W_out + mlp.b_out
    assert gap(gate_cuts.two_reads(mlp, y, x), by_hand) < 1e-12
    assert gap(gate_cuts.two_reads(mlp, x, x), mlp(x[None])[0]) < 1e-12
    assert gap(gate_cuts.two_reads(mlp, x, y), by_hand) > 1e-2
    with pytest.raises(ValueError, match="once"):
        gate_cuts.two_reads(block_of("gelu"), x, y)


def test_answers_against_plain_formulas():
    model, tokens = small(), tokens_of(n=4, length=16)
    found = reads.read_parts(model, tokens, torch.arange(4), 5)
    judge = gate_cuts.Judge(model, found)
    gone = found.part("all heads")
    answers = judge.without(gone, "content")
    clean = model(tokens)[:, found.place]
    write = gate_cuts.two_reads(model.blocks[0].mlp, found.x, found.x - gone)
    other = (found.x + write) @ model.W_U
    logp, logq = clean.log_softmax(-1), other.log_softmax(-1)
    assert gap(answers.kl, (logp.exp() * (logp - logq)).sum(-1).mean(1)) < 1e-10
    right = found.following[..., None]
    centred = [(z - z.mean(-1, keepdim=True)).gather(-1, right) for z in (clean, other)]
    assert gap(answers.logit, (centred[1] - centred[0]).abs()[..., 0].mean(1)) < 1e-10
    assert answers.kl.min() > 0
    zero = judge.without(torch.zeros_like(gone), "both")
    assert (zero.loss - judge.clean).abs().max() < 1e-12 and zero.kl.abs().max() < 1e-12
    last = (found.x + judge.whole).requires_grad_()
    loss = torch.nn.functional.cross_entropy(
        (last @ model.W_U).flatten(0, 1), found.following.flatten(), reduction="sum"
    )
    assert gap(judge.slope(), torch.autograd.grad(loss, last)[0]) < 1e-10


def test_costs_are_paired_and_add_up():
    model, tokens = small(), tokens_of(n=6, length=16)
    found = reads.read_parts(model, tokens, torch.tensor([0, 0, 1, 1, 2, 3]), 5)
    judge = gate_cuts.Judge(model, found)
    row = gate_cuts.costs(judge, "all heads", "zero", None)
    both = row["select"][0] + row["content"][0] + row["interaction"][0]
    assert abs(both - row["both"][0]) < 1e-12
    assert abs(row["select"][0] - row["content"][0] - row["select minus content"][0]) < 1e-12
    separate = (row["select"][1] ** 2 + row["content"][1] ** 2) ** 0.5
    assert row["select minus content"][1] != pytest.approx(separate, rel=1e-3)  # paired
    control = gate_cuts.costs(judge, "all heads", "random", gen(0))
    assert "both" not in control and "interaction" not in control


# ---- composition of heads with channels ----------------------------------------------------------


def judged(act="swiglu"):
    model, tokens = small(act), tokens_of(n=6, length=16)
    found = reads.read_parts(model, tokens, torch.tensor([0, 0, 1, 1, 2, 3]), 5)
    return model, gate_cuts.Judge(model, found)


def test_channels_add_up_to_the_routes():
    model, judge = judged()
    mlp, found = model.blocks[0].mlp, judge.reads
    unit = mlp.W_out / mlp.W_out.norm(dim=1, keepdim=True)
    moved = routes.routes(mlp, "swiglu", found.x, found.parts)
    for name, each in realised.channels(model, found).items():
        assert gap(each @ unit, moved[name]) < 1e-12
    gain = realised.gains(model, found)
    g, u = found.x @ mlp.W_gate + mlp.b_gate, found.x @ mlp.W_in + mlp.b_in
    sigma = g.sigmoid()
    by_hand = (u * sigma * (1 + g * (1 - sigma))).square().mean((0, 1)).sqrt()
    assert gap(gain["gate"], by_hand) < 1e-12
    assert gap(gain["content"], (g * sigma).square().mean((0, 1)).sqrt()) < 1e-12


def test_promised_and_scores_against_dense_matrices():
    model, _ = judged()
    attn, mlp = model.blocks[0].attn, model.blocks[0].mlp
    promise, scores = realised.promised(model), realised.scores(model, turns=200)
    for h in range(3):
        W_OV = attn.W_V[h] @ attn.W_O[h]
        for name, W in (("gate", mlp.W_gate), ("content", mlp.W_in)):
            dense = (W_OV @ W).norm(dim=0) * mlp.W_out.norm(dim=1)
            assert gap(promise[name][h], dense) < 1e-10
            score = (W_OV @ W).norm() / (W_OV.norm() * W.norm())
            assert gap(scores[name]["score"][h], score) < 1e-6
    assert scores["1/sqrt(d)"] == pytest.approx(12**-0.5)
    for name in ("gate", "content"):
        assert scores[name]["square"] == pytest.approx(1 / 12, rel=0.05)
        assert (scores[name]["turned, high"] > scores[name]["turned"]).all()


def test_study_of_composition():
    model, judge = judged()
    found = realised.study(model, judge)
    other = realised.channels(model, judge.reads, 2 * judge.reads.parts)
    for name, each in realised.channels(model, judge.reads).items():  # own gates, other writes
        assert gap(other[name], 2 * each) < 1e-12
    sizes = found["sizes"]
    w = judge.reads.part("head 0.1")
    moved = routes.routes(model.blocks[0].mlp, "swiglu", judge.x, w)["gate"]
    assert sizes["head 0.1"]["gate"][0] == pytest.approx(moved.norm(dim=-1).mean().item())
    first = -(moved * judge.slope()).sum(-1).mean().item()
    assert sizes["head 0.1"]["gate, loss"][0] == pytest.approx(first)
    small_step = judge.without(1e-5 * w, "select").loss - judge.clean
    assert small_step.mean().item() / 1e-5 == pytest.approx(first, rel=1e-3)
    for row in sizes.values():
        assert row["gate minus content"][0] == pytest.approx(row["gate"][0] - row["content"][0])
    for what in ("channels", "channels, random"):
        assert 1 <= sizes["head 0.0"][what]["gate"] <= 20 and what not in sizes["all heads"]
    for rows in found["promised and realised"].values():
        assert len(rows) == 5 and all(-1 <= x <= 1 for x in rows.values())


def test_used_more_counts_two_errors():
    def row(select, content, se):
        d = [select - content, se]
        return {"select minus content": d, "kl, select minus content": d}

    cuts = {"direct": {}, "head 0.0": row(3, 1, 0.5), "head 0.1": row(1, 3, 0.5),
            "head 0.2": row(1, 1.5, 0.5), "all heads": row(5, 1, 1)}  # fmt: skip
    cuts = {n: dict.fromkeys(swiglu.REPLACED, c) for n, c in cuts.items()}
    first = {"length": {n: [-1.0, 0.1] for n in cuts}}
    more = swiglu.used_more(cuts, first)
    assert len(more) == 7 and more["KL, mean"]["ways"] == [1, -1, 0]
    assert [more["loss, zero"][k] for k in ("select", "content", "neither")] == [1, 1, 1]
    assert more["length"]["content"] == 3 and more["loss, zero"]["all heads"] == [4, 1]


def test_what_neither_cut_does_alone():
    model, judge = judged()
    ratio, error = swiglu.in_neither(judge)
    mlp, x, less = judge.mlp, judge.x, judge.x - judge.reads.part("all heads")
    pre = [(v @ mlp.W_gate + mlp.b_gate, v @ mlp.W_in + mlp.b_in) for v in (x, less)]
    (g, u), (g2, u2) = pre
    silu = torch.nn.functional.silu
    rest = ((silu(g2) - silu(g)) * (u2 - u)) @ mlp.W_out  # the product of both changes
    both = (silu(g2) * u2 - silu(g) * u) @ mlp.W_out
    by_hand = (rest.norm(dim=-1).mean() / both.norm(dim=-1).mean()).item()
    assert ratio == pytest.approx(by_hand, rel=1e-10) and error > 0


def test_controls_are_paired_with_the_own_cut():
    _, judge = judged()
    found = swiglu.against_controls(judge, 3)
    generator = gen(3)
    w = judge.reads.part("all heads")
    other = reads.removed(w, "random", generator)
    for route, W in (("select", judge.mlp.W_gate), ("content", judge.mlp.W_in)):
        length = (w @ W).norm(dim=-1, keepdim=True) / (other @ W).norm(dim=-1, keepdim=True)
        a, b = (judge.without(v, route) for v in (w, other * length))
        row = found[route]["random"]
        assert row["loss"][0] == pytest.approx((a.loss - b.loss).mean().item())
        assert row["kl"][0] == pytest.approx((a.kl - b.kl).mean().item())
    costs = gate_cuts.costs(judge, "all heads", "random", gen(3))
    difference = judge.without(w, "select").loss.mean() - judge.clean.mean() - costs["select"][0]
    assert found["select"]["random"]["loss"][0] == pytest.approx(difference.item())
    carry = swiglu.gate_shares(judge)
    assert 1 <= carry["carry"][0] <= 20 and 0 < carry["below zero"] < 1 and carry["least"] > -0.3
