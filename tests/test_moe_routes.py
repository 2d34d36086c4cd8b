"""Router and experts: the routes of a mixture, its borders, who decides, and cuts of one read."""

import pytest
import torch
from gated_toys import block_of, draw, small
from small_model import gen, tokens_of

from circuitbook import cut
from circuitbook.conditional import (
    gate_cuts,
    local,
    moe,
    reads,
    route_checks,
    routes,
    routing,
    selection,
    swiglu,
)

SHAPES = [("gelu", 5, 2), ("gelu", 5, 1), ("swiglu", 5, 2), ("relu", 4, 3)]


def gap(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


def jacobian(f, x):
    return torch.autograd.functional.jacobian(f, x).T


@pytest.mark.parametrize("shape", SHAPES)
def test_routes_of_the_module_add_up(shape):
    for dtype, limit in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        mlp, x = block_of(*shape, dtype=dtype), draw(12, dtype=dtype)
        found = routes.matrices(mlp, shape[0], x)
        wanted = {"content", "router"} | ({"gate"} if shape[0] == "swiglu" else set())
        assert set(found) == wanted
        whole = jacobian(lambda v, mlp=mlp: mlp(v[None, None])[0, 0], x)
        assert gap(sum(found.values()), whole) < limit
        assert gap(found["router"], whole) > 1e-2


def test_every_router_against_its_definition():
    assert len(route_checks.BLOCKS) == 12
    assert max(route_checks.errors(2).values()) < 1e-12
    assert min(route_checks.mistakes(2).values()) > 1e-2


@pytest.mark.parametrize("kind", routes.ROUTERS)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_weights_and_their_slopes(kind, k):
    logits, change = draw(6, 5), draw(6, 5, seed=2)
    pi = routes.router_weights(logits, k, kind)
    assert torch.equal((pi > 0).sum(-1), torch.full((6,), k))
    assert torch.equal(pi > 0, logits >= logits.topk(k).values[:, -1:])
    if kind.endswith("renormalised"):
        torch.testing.assert_close(pi.sum(-1), torch.ones(6).double())
    else:
        assert pi.sum(-1).max() < 1 if kind == "softmax" else pi.max() < 1
    step = 1e-6
    up, down = (routes.router_weights(logits + s * change, k, kind) for s in (step, -step))
    routes.check_margin(logits, step * change, k)
    slope = routes.weight_change(logits, change, k, kind)
    if k == 1 and kind == "renormalised":
        assert torch.equal(slope, torch.zeros_like(slope))  # the router cannot even learn
    elif k == 1 and kind == "sigmoid renormalised":
        assert slope.abs().max() < 1e-15
    else:
        assert gap(slope, (up - down) / (2 * step)) < 1e-8
    sums = slope.sum(-1).abs().max()
    assert sums < 1e-12 if kind.endswith("renormalised") else sums > 1e-3
    with pytest.raises(ValueError, match="sigmoid renormalised"):
        routes.router_weights(logits, k, "hard")


def test_own_router_is_the_modules():
    for k in (1, 2, 3):
        mlp, x = block_of("gelu", 5, k), draw(4, 12)
        module = mlp.route((x @ mlp.W_router)[None])[0]
        assert torch.equal(gate_cuts.own_weights(mlp, x), module)


def test_shared_writes_do_not_pass_the_router_and_biases_do():
    mlp, x = block_of("gelu", 5, 2), draw(12)
    before = routes.matrices(mlp, "gelu", x)["router"]
    everywhere, one = block_of("gelu", 5, 2), block_of("gelu", 5, 2)
    everywhere.b_out += draw(12, seed=9)
    one.b_out[:] = 0
    assert gap(routes.matrices(everywhere, "gelu", x)["router"], before) < 1e-12
    assert gap(routes.matrices(one, "gelu", x)["router"], before) > 1e-2
    switch = routes.matrices(mlp, "gelu", x, "softmax")["router"]
    assert gap(routes.matrices(everywhere, "gelu", x, "softmax")["router"], switch) > 1e-2


def test_margin_and_refusal():
    logits = torch.tensor([[3.0, 1.0, 2.5, 0.0], [1.0, 1.0, 0.5, 0.2]]).double()
    torch.testing.assert_close(routes.margin(logits, 2), torch.tensor([1.5, 0.5]).double())
    torch.testing.assert_close(routes.margin(logits, 1), torch.tensor([0.5, 0.0]).double())
    with pytest.raises(ValueError, match="left out"):
        routes.margin(logits, 4)
    routes.check_margin(logits, torch.full((2, 4), 7.0).double(), 2)  # the same for all: no move
    move = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, 0.06, 0.0, 0.0]]).double()
    with pytest.raises(routes.RoutingError, match=r"1 of 2 .* times smaller"):
        routes.check_margin(logits, move, 2)
    routes.check_margin(logits, move / 2, 2)
    with pytest.raises(routes.RoutingError):
        routes.check_margin(logits, move * 0 + 1e-30 * torch.arange(4), 1)  # a tie


# ---- local, until capacity ---------------------------------------------------------------------


def test_capacity_by_hand():
    pi = torch.tensor([[0.6, 0.4, 0.0], [0.7, 0.0, 0.3], [0.2, 0.8, 0.0]])
    got = local.with_capacity(pi, 2)
    assert torch.equal(got, torch.tensor([[0.6, 0.4, 0.0], [0.7, 0.0, 0.3], [0.0, 0.8, 0.0]]))
    assert torch.equal(local.with_capacity(pi, 3), pi)
    assert local.even_capacity(64, 8, 2) == 16 and local.even_capacity(10, 8, 2, 1.25) == 4
    with pytest.raises(ValueError, match="capacity=0"):
        local.with_capacity(pi, 0)


@pytest.mark.parametrize("shape", [("gelu", 5, 2), ("gelu", 5, 1), ("swiglu", 0, 0)])
def test_no_position_reaches_another(shape):
    mlp, x, other = block_of(*shape), draw(40, 12), draw(40, 12, seed=3)
    assert not local.reached(mlp, x, other).any()
    if shape[1]:
        assert local.reached(mlp, x, other, 0.5).any()  # with full experts it does
        assert not local.reached(mlp, x, other, float(shape[1])).any()  # room for everybody


# ---- who decides --------------------------------------------------------------------------------


def routed(seed=0, n=6, length=16):
    model, tokens = small("gelu", 5, 2, seed=seed), tokens_of(n=n, length=length)
    return model, tokens, moe.router_parts(model, tokens, torch.arange(n) // 2)


def test_router_logits_are_the_sum_of_their_parts():
    model, tokens, found = routed()
    name = "blocks.0.mlp.hook_router_logits"
    real = cut.run(model, tokens, names=[name])[1][name][:, 1:].flatten(0, 1)
    assert gap(found.logits, real) < 1e-12
    assert torch.equal(found.token, tokens[:, 1:].flatten()) and len(found.doc) == len(real)
    torch.testing.assert_close(
        found.parts[0], model.W_E[found.token] @ model.blocks[0].mlp.W_router
    )
    wanted = found.parts[0] + found.parts[1:].mean(1).sum(0)
    torch.testing.assert_close(found.heads_at_mean(), wanted)
    one = wanted - found.parts[2].mean(0) + found.parts[2]
    torch.testing.assert_close(found.heads_at_mean((1,)), one)
    with pytest.raises(ValueError, match="router"):
        moe.router_parts(small(), tokens, torch.arange(6))


def test_load_of_known_logits():
    even = torch.eye(4).double().repeat(5, 1)
    uses = moe.load(even, 1)
    assert uses["evenness"] == pytest.approx(1) and uses["dead"] == 0 and uses["least"] == 1
    one = torch.tensor([[9.0, 5.0, 1.0, 0.0]]).double().repeat(8, 1)
    uses = moe.load(one, 2)
    assert uses["dead"] == 2 and uses["most"] == 2 and uses["share"].tolist() == [0.5, 0.5, 0, 0]
    ids = moe.set_ids(torch.tensor([[1.0, 3, 2], [3, 1, 2], [5, 4, 0]]), 2)
    assert ids.tolist() == [6, 5, 3]


def test_lift_and_information_of_a_planted_router():
    token = torch.arange(4).repeat(60)
    picked = torch.nn.functional.one_hot(token % 2, 2).bool()
    words, lift = moe.lifts(token, picked, 6, seen=30)
    assert words.tolist() == [0, 1, 2, 3]
    torch.testing.assert_close(lift, torch.tensor([[2.0, 0], [0, 2], [2, 0], [0, 2]]).double())
    assert moe.lifts(token, picked, 6, seen=61)[0].numel() == 0
    mutual, entropy = moe.information(token, token % 2)
    assert mutual == pytest.approx(entropy) and entropy == pytest.approx(0.6931, abs=1e-3)
    dealt = (token % 2)[torch.randperm(240, generator=gen(1))]
    assert moe.information(token, dealt)[0] < 0.05


def test_shares_find_the_part_that_varies():
    doc = torch.arange(400) // 20
    big, small_part, still = draw(400, 3), 0.1 * draw(400, 3, seed=2), torch.ones(400, 3).double()
    got = moe._shares(torch.stack([big, small_part, still]), doc, 0)
    assert got["share"].sum() == pytest.approx(1) and got["share"][0] > 0.95
    assert abs(got["share"][2]) < 1e-12 and (got["low"] <= got["share"]).all()
    assert (got["high"] >= got["share"]).all() and got["high"][1] < 0.05
    x = torch.stack([big, small_part, still])
    total = x.sum(0)
    by_hand = [((p - p.mean(0)) * (total - total.mean(0))).sum() for p in x]
    wanted = torch.stack(by_hand) / ((total - total.mean(0)) ** 2).sum()
    torch.testing.assert_close(got["share"], wanted, atol=1e-12, rtol=0)


def test_margin_parts_add_up_to_the_margin():
    _, _, found = routed()
    parts = moe.border_parts(found)[..., 0]
    torch.testing.assert_close(parts.sum(0), routes.margin(found.logits, 2))
    who = moe.who_decides(found, 0)
    assert who["margin"]["share"].sum() == pytest.approx(1)
    assert who["logits"]["share"].sum() == pytest.approx(1)
    less = moe.set_ids(found.logits - found.parts[0], 2) != moe.set_ids(found.logits, 2)
    assert who["set changes"]["direct"]["zero"][0] == pytest.approx(less.double().mean().item())
    assert who["set changes"]["all heads"]["zero"][0] > 0


def test_a_set_made_by_words_is_foretold_and_a_shuffled_one_is_not():
    n, vocab = 3000, 20
    token = torch.randint(vocab, (n,), generator=gen(5))
    table = draw(vocab, 4) * 5
    none = torch.zeros(2, n, 4).double()
    parts = torch.cat([table[token][None], none])
    found = moe.Routing(("direct", "head 0.0", "head 0.1"), parts, token, torch.arange(n) // 100, 2)
    told = moe.foretold(found, vocab, 0)
    assert told["the word's most common set"][0] == 1 and told["the word's own logits"][0] == 1
    assert told["one set for all"][0] < 0.7
    assert told["the same, words shuffled"][0] < told["the word's most common set"][0] - 0.3
    parts[1] = draw(n, 4, seed=8) * 5  # now a head decides too
    told = moe.foretold(found, vocab, 0)
    assert told["the word's own logits"][0] < 0.9 and told["… and head 0.0"][0] == 1
    assert told["… and head 0.1"][0] == told["the word's own logits"][0]


def test_documents_that_were_learned_from_are_not_asked():
    doc = torch.arange(40).repeat_interleave(50)  # every document has a word and a set of its own
    parts = (draw(40, 4) * 5)[doc][None].repeat(2, 1, 1) / 2
    told = moe.foretold(moe.Routing(("direct", "head 0.0"), parts, doc, doc, 2), 40, 0)
    assert told["the word's most common set"] == told["one set for all"]
    assert told["one set for all"][0] < 0.7


# ---- other routings -----------------------------------------------------------------------------


def judged():
    model, tokens = small("gelu", 5, 2), tokens_of(n=8, length=16)
    found = reads.read_parts(model, tokens, torch.arange(8) // 2, 5)
    return model, gate_cuts.Judge(model, found)


def test_other_routings_are_what_they_say():
    _, judge = judged()
    own = gate_cuts.own_weights(judge.mlp, judge.x)
    ways = routing.other_routings(judge, 0)
    used = own > 0
    assert torch.equal(ways["same experts, equal weights"], used.double() / 2)
    alone = ways["the strongest expert alone"]
    assert torch.equal(alone.argmax(-1), own.argmax(-1)) and torch.equal(
        alone.sum(-1).unique(), torch.ones(1).double()
    )
    assert (ways["the most used experts, always"] > 0).sum(-1).unique().tolist() == [2]
    dealt = ways["another position's routing"]
    assert torch.equal((dealt > 0).sum((0, 1)), used.sum((0, 1)))  # the same load
    assert not torch.equal(dealt, own)
    other = ways["runner-up for the weakest"]
    assert torch.equal((other > 0).sum(-1).unique(), torch.tensor([2]))
    assert ((other > 0) & used).sum(-1).unique().tolist() == [1]
    kept = ((other > 0) & used).double().argmax(-1)
    assert torch.equal(kept, own.argmax(-1))


def test_set_and_weights_taken_apart():
    old = torch.tensor([[0.7, 0.3, 0.0, 0.0]]).double()
    new = torch.tensor([[0.0, 0.4, 0.6, 0.0]]).double()
    got = routing.old_weights_on_new_set(old, new)
    torch.testing.assert_close(got, torch.tensor([[0.0, 0.3, 0.7, 0.0]]).double())
    turned = torch.tensor([[0.4, 0.6, 0.0, 0.0]]).double()  # the same two: nothing may change
    assert torch.equal(routing.old_weights_on_new_set(old, turned), old)
    three = torch.tensor(
        [[0.6, 0.3, 0.1, 0.0, 0.0]]
    ).double()  # two leave, the larger to the larger
    got = routing.old_weights_on_new_set(three, torch.tensor([[0.0, 0.2, 0.0, 0.3, 0.5]]).double())
    assert torch.equal(got, torch.tensor([[0.0, 0.3, 0.0, 0.1, 0.6]]).double())
    _, judge = judged()
    row = routing.set_and_weights(judge, "all heads", "zero")
    gone = judge.reads.part("all heads")
    whole = judge.without(gone, "select").loss - judge.clean
    assert row["both"][0] == pytest.approx(whole.mean().item(), abs=1e-12)
    assert row["set minus weights"][0] == pytest.approx(row["set only"][0] - row["weights only"][0])


def test_the_derivative_is_the_cut_with_the_set_held():
    model, judge = judged()
    reads_, W = judge.reads, judge.mlp.W_router
    small_step = gate_cuts.Judge(model, reads_._replace(
        parts=torch.cat([reads_.parts[:1] + reads_.parts[1:].sum(0), 1e-4 * reads_.parts[1:]])
    ))  # fmt: skip
    near, far = routing.set_held(small_step), routing.set_held(judge)
    for name in reads_.names[1:]:
        assert near[name]["off"] < 1e-3 < far[name]["off"]  # a small step has no curvature
        assert near[name]["moved past"] <= near[name]["refused"] <= far[name]["refused"]
        change = reads_.part(name) @ W
        moved = change.amax(-1) - change.amin(-1)
        past = (routes.margin(judge.x @ W, 2) < moved).double().mean()
        assert far[name]["moved past"] == pytest.approx(past.item())
        row, w = far[name], reads_.part(name)
        pi, old = (gate_cuts.own_weights(judge.mlp, v) for v in (judge.x - w, judge.x))
        assert row["free"][0] == pytest.approx(judge.judge(
            gate_cuts.mixed(pi, judge.outs)).kl.mean().item())  # fmt: skip
        held = ((judge.x - w) @ W).exp() * (old > 0)
        held = judge.judge(gate_cuts.mixed(held / held.sum(-1, keepdim=True), judge.outs)).kl
        assert row["held"][0] == pytest.approx(held.mean().item())
        difference = row["free"][0] - row["held"][0]
        assert row["free minus held"][0] == pytest.approx(difference)


@pytest.mark.parametrize("shape", [("swiglu", 0, 0), ("gelu", 5, 2), ("swiglu", 5, 2)])
def test_controls_are_as_long_in_the_read(shape):
    mlp, w, other = block_of(*shape), draw(4, 3, 12), draw(4, 3, 12, seed=2)
    for route in ("select", "content"):
        same = gate_cuts.as_long(mlp, other, w, route)
        assert (torch.nn.functional.cosine_similarity(same, other, dim=-1) > 1 - 1e-12).all()
        if route == "content":
            names = ["W_in", "W_gate"] if shape[0] == "swiglu" and shape[1] else ["W_in"]
            W = [getattr(mlp, n) for n in names]
            W = torch.cat([e for m in W for e in (m if m.ndim == 3 else m[None])], 1)
        elif shape[1]:  # differences between experts, all pairs
            W = (mlp.W_router[:, :, None] - mlp.W_router[:, None]).flatten(1)
        else:
            W = mlp.W_gate
        assert gap((same @ W).norm(dim=-1), (w @ W).norm(dim=-1)) < 1e-12
        assert gap(same.norm(dim=-1), w.norm(dim=-1)) > 1e-2


def test_margin_bins_hold_all_positions_and_the_jump():
    _, judge = judged()
    got = routing.by_margin(judge, 4)
    logits = judge.x @ judge.mlp.W_router
    runner = gate_cuts.mixed(routing.runner_up(logits, 2), judge.outs)
    rise = (judge.losses(runner) - judge.losses(judge.whole)).mean().item()
    assert sum(b["rise"][0] for b in got["bins"]) / 4 == pytest.approx(rise, rel=1e-6)
    assert got["bins"][0]["margin"] < got["bins"][3]["margin"]
    difference = got["bins"][3]["rise"][0] - got["bins"][0]["rise"][0]
    assert got["largest minus smallest"][0] == pytest.approx(difference, rel=1e-6)


def test_jump_formula_at_a_tie():
    mlp, x = block_of("gelu", 5, 2), draw(12)
    order = (x @ mlp.W_router).topk(3).indices
    a, b = order[1].item(), order[2].item()
    d = mlp.W_router[:, a] - mlp.W_router[:, b]
    x = x - ((x @ d) / (d @ d)) * d  # now a and b are tied
    logits = x @ mlp.W_router
    assert set(logits.topk(3).indices.tolist()) >= {a, b}
    E = gate_cuts.experts(mlp, x)
    eps = 1e-9 * d / d.norm()
    jump = mlp((x + eps)[None, None])[0, 0] - mlp((x - eps)[None, None])[0, 0]
    pi = routing.softmax_on(logits, torch.zeros(5, dtype=torch.bool).index_fill(0, torch.stack(
        [logits.topk(1).indices[0], torch.tensor(a)]), True))[a]  # fmt: skip
    assert gap(jump, pi * (E[a] - E[b])) < 1e-6


# ---- attention with the same knife --------------------------------------------------------------


def test_attention_cut_is_the_cut_of_all_edges():
    from small_model import TINY, model_of

    model, tokens = model_of(TINY), tokens_of()
    k, heads = torch.tensor([2, 5, 8]), range(TINY.n_heads)
    names = ["blocks.0.hook_attn_out", "blocks.0.hook_resid_post"]
    write, entering = (cut.run(model, tokens, names=names)[1][n] for n in names)
    for route, inputs in (("select", "qk"), ("content", "v"), ("both", "qkv")):
        edges = [((0, a), (1, b), i) for a in heads for b in heads for i in inputs]
        slow = cut.run(model, tokens, cut.cut_paths(model, edges), return_type="loss_per_token")[0]
        fast = selection.window_losses(model, tokens, entering, k, write, route)
        assert gap(fast, slow[:, k - 1].mean(1)) < 1e-10
    clean = model(tokens, return_type="loss_per_token")[:, k - 1].mean(1)
    assert gap(selection.window_losses(model, tokens, entering, k), clean) < 1e-10
    assert gap(fast, clean) > 1e-3


def test_route_errors_on_a_model_see_a_missing_route():
    model, _ = judged()
    model.blocks[0].mlp.W_router.mul_(0.2)  # no weight near 0 or 1
    judge = gate_cuts.Judge(model, reads.read_parts(model, tokens_of(n=8, length=16),
                                                    torch.arange(8) // 2, 5))  # fmt: skip
    errors = swiglu.route_errors(model, judge.reads)
    assert errors["sum"] < 1e-10
    assert min(errors["without router"], errors["without content"]) > 1e-2
    assert swiglu.block_error(judge) < 1e-12
    shared = routing.shared_part(judge)
    assert shared["cancels"] < 1e-12 and shared["top-1 renormalised"] == 0
    assert min(shared["switch"], shared["bias left out"], shared["added"]) > 1e-2
