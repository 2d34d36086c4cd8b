"""Latents turned down: where the graph must be right to rounding, and where it need not be."""

import pytest
import torch
from attribution_toys import DEEP, GELU, prompt, small, trained

from circuitbook import cut
from circuitbook.attribution import claims, prune, study, switch
from circuitbook.attribution import graph as graphs
from circuitbook.attribution.claims import agreement

CASES = [(c, n) for c in ("two", "deep") for n in ("float32", "float64")]


def everything(config=GELU, dtype=torch.float64, k=6):
    model, transcoders = small(config, dtype, k)
    frozen = graphs.freeze(model, transcoders, prompt(config))
    return model, transcoders, frozen, graphs.build(model, transcoders, frozen, 7)


@pytest.fixture(scope="module")
def toy():
    return everything()


def logit(model, after):
    return switch.logit_of(model, after, 7)[0]


@pytest.mark.parametrize("gates", ["held", "free"])
@pytest.mark.parametrize("name,dtype", CASES)
def test_replay_without_a_change_is_the_model(name, dtype, gates):
    config = {"two": GELU, "deep": DEEP}[name]
    model, transcoders, frozen, _ = everything(config, getattr(torch, dtype))
    after = switch.replay(model, transcoders, frozen, gates=gates)
    close = 1e-11 if dtype == "float64" else 1e-5
    assert (after.last[0] - frozen.last).abs().max() <= close * frozen.last.abs().max()
    for l, pre in enumerate(after.pre):
        want = frozen.read[l] @ transcoders[l].W_enc + transcoders[l].b_enc
        assert (pre[0] - want).abs().max() <= close * want.abs().max()


@pytest.mark.parametrize("name,dtype", CASES)
def test_total_effect_is_what_the_frozen_replay_does(name, dtype):
    config = {"two": GELU, "deep": DEEP}[name]
    model, transcoders, frozen, g = everything(config, getattr(torch, dtype))
    some = g.of("latent")[::7]
    nodes = [g.nodes[i] for i in some]
    effect = switch.total_effect(g)[some]
    for factor in (0.0, -1.0, 0.5):
        after = switch.replay(model, transcoders, frozen, nodes, [factor] * len(nodes))
        fall = g.value[-1] - logit(model, after)
        close = 1e-10 if dtype == "float64" else 1e-4
        assert (fall - (1 - factor) * effect).abs().max() <= close * g.value[-1].abs()
    assert (effect - g.edges[-1, some]).abs().max() > 1e-3  # paths through latents count


def test_tokens_and_errors_have_a_total_effect_too(toy):
    model, transcoders, frozen, g = toy
    effect = switch.total_effect(g)
    leaves = g.of("token") + g.of("error") + g.of("biases")
    # All that enters at the bottom, along all paths, is the logit.
    assert effect[leaves].sum().item() == pytest.approx(g.value[-1].item(), abs=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_edge_switched_off_moves_its_node_by_the_edge(dtype):
    model, transcoders, frozen, g = everything(dtype=getattr(torch, dtype))
    some = switch.strongest_edges(g, 10)
    found = switch.edges_off(model, transcoders, frozen, g, some)
    close = 1e-11 if dtype == "float64" else 1e-5
    assert (found["edge"] - found["patterns held"]).abs().max() <= close * found[
        "before"
    ].abs().max()
    assert (found["edge"] - found["re-run"]).abs().max() > 1e-3  # patterns do move
    size = found["edge"].abs()
    assert (size[:-1] >= size[1:]).all()
    latents = g.of("latent")
    inner = g.edges[latents][:, latents].abs()
    assert size[0] == inner.max()


@pytest.mark.weights
def test_an_edge_switched_off_in_the_course_model():
    from circuitbook import tokenizer

    model, transcoders = trained(torch.float32)
    tok = tokenizer.load()
    tokens = torch.tensor(tok.encode("I am the LORD thy"))
    frozen = graphs.freeze(model, transcoders, tokens)
    g = graphs.build(model, transcoders, frozen, tok.token(" God"))
    some = switch.strongest_edges(g, 8)
    found = switch.edges_off(model, transcoders, frozen, g, some)
    assert (found["edge"] - found["patterns held"]).abs().max() <= 1e-5
    assert agreement(found["edge"], found["re-run"]) > 0.9
    nodes = [g.nodes[s] for s, _ in some]
    levels = switch.all_levels(model, transcoders, frozen, nodes, [0.0] * 8)
    assert tuple(levels) == switch.LEVELS
    _, rank, p = switch.logit_of(
        model, switch.replay(model, transcoders, frozen), tok.token(" God")
    )
    logits = model(tokens[None])[0, -1]
    assert p.item() == pytest.approx(logits.softmax(0)[tok.token(" God")].item(), abs=1e-5)
    assert rank.item() == 1


def test_only_the_chosen_row_and_place_change(toy):
    model, transcoders, frozen, g = toy
    a, b = (g.nodes[i] for i in g.of("latent", 0)[3:5])
    after = switch.run_scaled(model, transcoders, frozen, [a, b], [1.0, 0.0], hold_patterns=True)
    assert (after.last[0] - frozen.last).abs().max() < 1e-12
    assert (after.last[1] - frozen.last).abs().max() > 1e-4
    base = frozen.read[1] @ transcoders[1].W_enc + transcoders[1].b_enc
    before = slice(0, b.pos)  # nothing earlier can know
    assert (after.pre[1][1, before] - base[before]).abs().max() < 1e-12
    assert torch.equal(after.pre[0][1], after.pre[0][0])


def test_the_last_layer_agrees_at_every_level(toy):
    model, transcoders, frozen, g = toy
    last = [i for i in g.of("latent", 1) if g.nodes[i].pos == len(frozen.tokens) - 1]
    nodes = [g.nodes[i] for i in last]
    levels = switch.all_levels(model, transcoders, frozen, nodes, [0.0] * len(nodes))
    falls = torch.stack([g.value[-1] - logit(model, x) for x in levels.values()])
    assert (falls - g.edges[-1, last]).abs().max() < 1e-10  # so it is no test of a graph
    first = [g.nodes[i] for i in g.of("latent", 0)]
    levels = switch.all_levels(model, transcoders, frozen, first, [0.0] * len(first))
    falls = torch.stack([g.value[-1] - logit(model, x) for x in levels.values()])
    assert (falls[1:] - falls[0]).abs().amax(1).min() > 1e-3


def test_mutants_of_the_switch(toy):
    model, transcoders, frozen, g = toy
    some = switch.strongest_edges(g, 6)
    nodes, factors = [g.nodes[s] for s, _ in some], [0.0] * 6
    honest = switch.edges_off(model, transcoders, frozen, g, some)

    def moved(fall):
        return (honest["edge"] - fall).abs().max() > 1e-3

    # the write is doubled, or taken away at another place
    for wrong_factor, shift in ((2.0, 0), (0.0, -1)):
        wrong = [n._replace(pos=n.pos + shift) for n in nodes]
        after = switch.run_scaled(
            model, transcoders, frozen, wrong, [wrong_factor] * 6, hold_patterns=True
        )
        targets = [g.nodes[t] for _, t in some]
        now = torch.stack([after.pre[1][r, t.pos, t.index] for r, t in enumerate(targets)])
        assert moved(honest["before"] - now)
    with pytest.raises(ValueError, match="neighbouring"):
        switch.edges_off(model, transcoders, frozen, g, [(g.of("latent", 0)[0], len(g.nodes) - 1)])
    with pytest.raises(ValueError, match="gates"):
        switch.replay(model, transcoders, frozen, nodes, factors, gates="open")


def test_agreement_knows_scale_and_sign():
    assert agreement([1, 2, -1], [2, 4, -2]) == pytest.approx(1)
    assert agreement([1, 2, -1], [-1, -2, 1]) == pytest.approx(-1)
    assert agreement([1, 0], [0, 1]) == 0
    assert agreement([1, 1.0], [2, 3]) == pytest.approx(5 / 26**0.5)  # not centred


# ---- what else moves the logit ------------------------------------------------------------------


def test_a_held_write_stays_and_a_removed_write_is_a_latent_off(toy):
    model, transcoders, frozen, g = toy
    node = next(g.nodes[i] for i in g.of("latent", 0) if g.nodes[i].pos == 5)
    common = (model, transcoders, frozen, [node], [0.0])
    free = switch.run_scaled(*common, hold_patterns=False)
    held = switch.hold_write(transcoders, frozen, 1)
    restored = switch.run_scaled(*common, hold_patterns=False, also=held)
    names = ["blocks.1.hook_resid_mid", "blocks.1.hook_mlp_out"]
    off = switch.scale_latents(transcoders, frozen, [node], [0.0])
    mid, free_write = (
        x[0, -1] for x in cut.run(model, frozen.tokens[None], off, names)[1].values()
    )
    clean = cut.run(model, frozen.tokens[None], names=names)[1][names[1]][0, -1]
    assert (restored.last[0] - mid - clean).abs().max() < 1e-10
    assert (free.last[0] - mid - free_write).abs().max() < 1e-10
    assert (restored.last - free.last).abs().max() > 1e-4
    write = frozen.f[0][node.pos, node.index] * transcoders[0].W_dec[node.index]
    assert (switch.run_without(model, frozen, node, write[None]) - free.last).abs().max() < 1e-10
    some = switch.random_writes(write, 4)
    assert torch.allclose(some.norm(dim=1), write.norm().expand(4))
    assert torch.equal(some, switch.random_writes(write, 4))
    assert (some @ some.T / write.norm() ** 2 - torch.eye(4)).abs().max() < 0.9


def test_the_rows_own_write_is_told_apart():
    model, transcoders, frozen, g = everything()
    b = study.Built("toy", 7, frozen, g, prune.prune(g, 16, 60))
    n, last = len(g.of("latent", 0)), len(frozen.tokens) - 1
    found, _ = study.nodes_off(model, transcoders, b, n)
    ends = [name.endswith(f"@ {last}") for name in found["node"]]
    skip, direct, again = (torch.tensor(found[k]) for k in ("skip", "direct", "re-run"))
    assert any(ends) and [x != 0 for x in skip.tolist()] == ends
    assert (direct - skip).abs().max() > 1e-3  # heads carry latents of all positions
    # Without heads and MLP above, the row's own write is all that there is, at every level.
    bare = everything()[0]
    with torch.no_grad():
        bare.blocks[1].attn.W_O.zero_()
        for name, weight in bare.blocks[1].mlp.named_parameters():
            if "out" in name:
                weight.zero_()
    frozen = graphs.freeze(bare, transcoders, frozen.tokens)
    g = graphs.build(bare, transcoders, frozen, 7)
    b = study.Built("bare", 7, frozen, g, prune.prune(g, 16, 60))
    found, _ = study.nodes_off(bare, transcoders, b, n)
    for level in ("direct", "patterns held", "re-run"):
        assert torch.allclose(torch.tensor(found[level]), torch.tensor(found["skip"]), atol=2e-4)


def switched(predicted, skip, again, direct=None):
    """The verdict of graph.prediction_holds for effects given by hand."""
    nodes = {"predicted": predicted, "skip": skip, "re-run": again, "latents free": predicted,
             "patterns held": predicted, "direct": direct or skip}  # fmt: skip
    edge = {"edge": [1.0], "re-run": [1.0], "before": [2.0], "source": ["a"], "target": ["b"]}
    d = {"edges_off": {"toy": edge}, "nodes_off": {"toy": nodes}}
    found = claims._switched(d, {"edge": 0.0, "replay": 0.0})
    return {c["id"]: c["holds"] for c in found}["graph.prediction_holds"]


def test_a_prediction_does_not_live_on_the_rows_own_write():
    skip = [3.0, -2.0, 4.0, 1.0, -5.0, 2.0, 6.0, -3.0]
    path = [0.5, 0.3, -0.4, 0.2, 0.6, -0.3, 0.1, -0.2]
    other = [-0.2, 0.4, 0.1, -0.5, 0.1, 0.2, -0.3, 0.3]
    few = [0.1, -0.1, 0.1, -0.1, 0.1, 0.1, -0.1, 0.1]

    def plus(a, b):
        return [x + y for x, y in zip(a, b, strict=True)]

    direct, predicted = plus(skip, few), plus(skip, path)
    assert switched(predicted, skip, predicted, direct)
    assert agreement(predicted, plus(skip, other)) > 0.9  # what the row writes hides the miss
    poor = plus(skip, [-6 * x for x in other])  # so that the edge alone is no better
    assert agreement(poor, plus(skip, other)) < agreement(predicted, plus(skip, other))
    assert not switched(predicted, skip, plus(skip, other), poor)
    # nor does it hold where the edge alone says more than all paths
    assert not switched(predicted, skip, plus(skip, plus(path, few)), plus(skip, plus(path, few)))


def test_a_hidden_step_must_beat_random_writes():
    level = {"logit": [9.0, 7.0], "p": [0.9, 0.5]}
    h = {"node": "0.1 @ 2", "factors": [1.0, 0.0], "total": 1.0, "direct": 0.6, "restored": 1.0,
         "random": [0.3, -1.5], "all held": level, "patterns held": level, "re-run": level,
         "followers": {"re-run": [0.1, 0.2]}}  # fmt: skip

    def holds(**change):
        return claims._hidden({"hidden": {"toy": h | change}}, {})[0]["holds"]

    assert holds()
    assert not holds(random=[0.3, -2.5])  # a random write that raises as much is as strong
    assert not holds(restored=2.4)  # nothing went through the second MLP
