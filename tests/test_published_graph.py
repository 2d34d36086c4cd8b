"""Attribution graphs with norms, biases and positions in the stream; random transcoders; exact."""

from dataclasses import replace

import pytest
import torch
from attribution_toys import random_transcoders
from small_model import gen, model_of

from circuitbook import cut, gauge
from circuitbook.attribution import graph as graphs
from circuitbook.attribution import held, prune, switch
from circuitbook.attribution.graph import Node
from circuitbook.config import Config

TWO = Config(
    2, d_model=32, n_heads=4, d_head=8, d_mlp=40, n_ctx=40, d_vocab=120, act="gelu",
    norm="layernorm_pre", positions="standard", pos_kind="learned", attn_bias=True,
    unembed_bias=True,
)  # fmt: skip
KINDS = {
    "two": TWO,
    "three": replace(TWO, n_layers=3),
    "unfolded": replace(TWO, norm="layernorm"),
    "late positions": replace(TWO, positions="shortformer"),
    "no norm": replace(TWO, norm="none"),
}
CASES = [*((kind, "float64") for kind in KINDS), ("two", "float32"), ("three", "float32")]
ANSWER, LENGTH = 7, 12


def limit(dtype):
    return 1e-10 if dtype == "float64" else 1e-5


def given(kind="two", dtype="float64", k=6):
    """(model, transcoders, tokens): biases that matter, gains near one."""
    model = model_of(KINDS[kind], getattr(torch, dtype), seed=4, scale=2.0)
    for name, p in model.named_parameters():
        last = name.rsplit(".", 1)[-1]
        if last == "w":
            p.add_(1)
        elif last[0] == "b":
            p.mul_(5)
    tokens = torch.randperm(model.cfg.d_vocab, generator=gen(3))[:LENGTH]
    return model, random_transcoders(model, k=k), tokens


def whole(model, transcoders, tokens):
    frozen = graphs.freeze(model, transcoders, tokens)
    return frozen, graphs.build(model, transcoders, frozen, ANSWER)


@pytest.fixture(scope="module")
def toy():
    """(model, transcoders, frozen, graph) in float64."""
    model, transcoders, tokens = given()
    return model, transcoders, *whole(model, transcoders, tokens)


# ---- sums ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind,dtype,k", [*((*c, 6) for c in CASES), ("two", "float64", 0), ("three", "float32", 0)]
)
def test_edges_sum_for_any_dictionary(kind, dtype, k):
    model, transcoders, tokens = given(kind, dtype, k)
    frozen, g = whole(model, transcoders, tokens)
    assert graphs.sum_error(g) <= limit(dtype)
    logits = model(tokens[None])[0, -1]
    want = (logits[ANSWER] - logits.mean()).item()
    assert g.value[-1].item() == pytest.approx(want, abs=1e-4 if dtype == "float32" else 1e-10)
    assert g.edges[-1].sum().item() == pytest.approx(want, rel=1e-3, abs=1e-4)
    standard = model.cfg.positions == "standard"
    assert len(g.of("position")) == (LENGTH if standard else 0)
    for l in range(model.cfg.n_layers):  # a latent that is on is its own pre-activation
        at = g.of("latent", l)
        f = torch.stack([frozen.f[l][g.nodes[i].pos, g.nodes[i].index] for i in at])
        assert (f - g.value[at]).abs().max() <= limit(dtype) * 10 and (f > 0).all()


def test_each_part_of_the_sum_is_needed(toy):
    model, transcoders, frozen, g = toy
    for kind in ("token", "position", "latent", "error", "biases"):
        left = g.edges.clone()
        left[:, g.of(kind)] = 0
        assert graphs.sum_error(g._replace(edges=left)) > 1e-2, kind
    s = frozen.scales

    def ones(scales):
        return [torch.ones_like(x) for x in scales]

    mutants = {  # a scale forgotten, or taken at the reader's place and not where it reads
        "attention": s._replace(attn=ones(s.attn)),
        "one layer": s._replace(attn=[s.attn[0], *ones(s.attn[1:])]),
        "MLP": s._replace(mlp=ones(s.mlp)),
        "last": s._replace(last=torch.ones_like(s.last)),
        "place": s._replace(attn=[x[-1:].expand_as(x) for x in s.attn]),
    }
    for name, wrong in mutants.items():
        bad = graphs.build(model, transcoders, frozen._replace(scales=wrong), ANSWER)
        assert graphs.sum_error(bad) > 1e-2, name


@pytest.mark.parametrize("what", ["heads_bias", "offset", "norm_bias"])
def test_each_bias_is_needed(monkeypatch, what):
    model, transcoders, tokens = given("unfolded")
    frozen = graphs.freeze(model, transcoders, tokens)
    none = {
        "heads_bias": lambda *_: None,
        "offset": lambda *_: 0.0,
        "norm_bias": lambda norm, like: torch.zeros_like(like),
    }[what]
    honest = graphs.build(model, transcoders, frozen, ANSWER)
    monkeypatch.setattr(graphs, what, none)
    bad = graphs.build(model, transcoders, frozen, ANSWER)._replace(value=honest.value)
    assert graphs.sum_error(honest) <= 1e-10 and graphs.sum_error(bad) > 1e-3


def test_the_mean_of_the_stream_is_no_part(toy):
    """A norm takes the mean away: what writes along all-ones has no edge anywhere."""
    model, transcoders, frozen, g = toy
    lifted = gauge.with_weights(model, W_E=model.W_E + 3.0)
    f2, g2 = whole(lifted, transcoders, frozen.tokens)
    assert torch.allclose(g2.edges, g.edges, atol=1e-9)
    plain, t, tokens = given("no norm")  # where there is no norm it is read like any direction
    old, new = (
        whole(m, t, tokens)[1] for m in (plain, gauge.with_weights(plain, W_E=plain.W_E + 3))
    )
    assert abs(old.value[-1] - new.value[-1]) > 1e-2


def test_no_edge_goes_against_time_or_up_the_layers(toy):
    g = toy[-1]
    for t, s in g.edges.nonzero().tolist():
        a, b = g.nodes[s], g.nodes[t]
        assert a.layer < b.layer and (a.kind == "biases" or a.pos <= b.pos)
        assert b.kind in ("latent", "logit")
    assert {n.kind for n in g.nodes} == {*graphs.KINDS, graphs.POSITION}
    assert g.nodes[-1] == Node("logit", 2, LENGTH - 1, ANSWER)


def test_influence_ends_at_leaves_and_positions_are_some(toy):
    shares = prune.leaf_shares(toy[-1])
    assert set(shares) == {"tokens", "positions", "biases", "errors 0", "errors 1"}
    assert sum(shares.values()) == pytest.approx(1, abs=1e-12) and min(shares.values()) > 0


def test_a_cut_of_keys_moves_no_edge_when_patterns_are_held(toy):
    model, transcoders, frozen, g = toy
    k_cut, tokens = cut.cut_path(model, (0, 1), (1, 2), "k"), frozen.tokens
    clean = graphs.freeze(model, transcoders, tokens, cut.Cut())
    hold = cut.freeze_patterns(model, tokens[None])
    still = graphs.freeze(model, transcoders, tokens, k_cut + hold)
    a, b = (graphs.build(model, transcoders, f, ANSWER) for f in (clean, still))
    assert torch.equal(a.edges, b.edges)
    again = graphs.freeze(model, transcoders, tokens, k_cut)
    assert (again.patterns[1] - frozen.patterns[1]).abs().max() > 1e-3
    assert graphs.sum_error(graphs.build(model, transcoders, again, ANSWER)) <= 1e-10


# ---- the graph as a prediction ------------------------------------------------------------------


@pytest.mark.parametrize("kind,dtype", CASES)
def test_replay_without_a_change_is_the_model(kind, dtype):
    model, transcoders, tokens = given(kind, dtype)
    frozen = graphs.freeze(model, transcoders, tokens)
    free, after = (switch.replay(model, transcoders, frozen, gates=g) for g in ("free", "held"))
    assert (free.last - after.last).abs().max() <= limit(dtype) * frozen.last.abs().max()
    assert (after.last[0] - frozen.last).abs().max() <= limit(dtype) * frozen.last.abs().max()
    right, rank, p = switch.logit_of(model, after, ANSWER)
    logits = model(tokens[None])[0, -1]
    assert right.item() == pytest.approx((logits[ANSWER] - logits.mean()).item(), abs=1e-4)
    assert p.item() == pytest.approx(logits.softmax(0)[ANSWER].item(), rel=1e-3)
    assert rank.item() == 1 + int((logits > logits[ANSWER]).sum())


@pytest.mark.parametrize("kind,dtype", CASES)
def test_total_effect_is_what_the_frozen_replay_does(kind, dtype):
    model, transcoders, tokens = given(kind, dtype)
    frozen, g = whole(model, transcoders, tokens)
    some = g.of("latent")[::7]
    nodes, effect = [g.nodes[i] for i in some], switch.total_effect(g)
    for factor in (0.0, -1.0):
        after = switch.replay(model, transcoders, frozen, nodes, [factor] * len(nodes))
        fall = g.value[-1] - switch.logit_of(model, after, ANSWER)[0]
        close = (1e-9 if dtype == "float64" else 1e-4) * max(1.0, g.value[-1].abs().item())
        assert (fall - (1 - factor) * effect[some]).abs().max() <= close
    assert (effect[some] - g.edges[-1, some]).abs().max() > 1e-3  # paths through latents count
    leaves = [i for kind in ("token", "position", "error", "biases") for i in g.of(kind)]
    total = effect[leaves].sum().item()
    assert total == pytest.approx(g.value[-1].item(), rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("kind,dtype", CASES)
def test_an_edge_switched_off_moves_its_node_by_the_edge(kind, dtype):
    model, transcoders, tokens = given(kind, dtype)
    frozen, g = whole(model, transcoders, tokens)
    some = switch.strongest_edges(g, 10)
    some = [(s, t) for s, t in some if g.nodes[t].layer - g.nodes[s].layer == 1]
    found, before = switch.edges_off(model, transcoders, frozen, g, some), g.value.abs().max()
    assert len(some) >= 3
    assert (found["edge"] - found["patterns held"]).abs().max() <= limit(dtype) * before
    assert (found["edge"] - found["re-run"]).abs().max() > 1e-3  # patterns and scales do move


def test_patterns_alone_are_not_enough_with_a_norm(monkeypatch):
    model, transcoders, tokens = given()
    frozen, g = whole(model, transcoders, tokens)
    some = switch.strongest_edges(g, 10)
    monkeypatch.setattr(switch, "hold_scales", lambda *_: cut.Cut())  # mutant: scales follow
    found = switch.edges_off(model, transcoders, frozen, g, some)
    assert (found["edge"] - found["patterns held"]).abs().max() > 1e-3


def test_held_scales_make_the_model_linear_in_a_write():
    model, _, tokens = given()
    hold = cut.freeze_patterns(model, tokens[None]) + held.hold_scales(model, tokens[None])
    assert len(hold.hooks) == 2 + len(held.scale_names(model)) == 2 + 5
    d, name = torch.randn(32, generator=gen(6), dtype=torch.float64), "blocks.1.hook_mlp_out"

    def change(times):
        push = cut.Cut(((name, lambda x, hook: x + times * d),))
        return cut.run(model, tokens[None], push + hold)[0]

    base, one, three = (change(t) for t in (0.0, 1.0, 3.0))
    assert torch.allclose(three - base, 3 * (one - base), atol=1e-10)
    assert torch.allclose(base, model(tokens[None]), atol=1e-10)
    free = [cut.run(model, tokens[None], cut.Cut(((name, lambda x, hook, t=t: x + t * d),)))[0]
            for t in (1.0, 3.0)]  # fmt: skip
    assert (free[1] - base - 3 * (free[0] - base)).abs().max() > 1e-2


def test_what_cannot_be_a_graph_is_refused():
    model, transcoders, tokens = given()
    with pytest.raises(ValueError, match="as many transcoders"):
        graphs.freeze(model, transcoders[:1], tokens)
    other = model_of(replace(TWO, d_mlp=0, act="none"))
    with pytest.raises(ValueError, match="needs MLPs"):
        graphs.freeze(other, transcoders, tokens)
