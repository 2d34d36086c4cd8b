"""Planted circuits: tools find what was planted and nothing else, and broken tools do not."""

import pytest
import torch
from small_model import gen

from circuitbook.circuits import ablation, controls, direct, patching, planted
from circuitbook.circuits.edges import edge_effects, strongest_other
from circuitbook.circuits.faithful import Runner, completeness
from circuitbook.circuits.nodes import MLP, masks, node_name, nodes_of
from circuitbook.circuits.plan import Plan, with_idle_heads
from circuitbook.induction import handbuilt

MADE = {name: make(8, gen()) for name, make in planted.ALL.items()}


@pytest.mark.parametrize("name", planted.ALL)
def test_the_planted_model_answers(name):
    p = MADE[name]
    difference = ablation.whole(p.model, p.tokens, p.metric)
    assert difference.min() > 4.9
    others = ablation.whole(p.model, p.others, p.metric)  # the same question, not the same answer
    assert others.mean() < difference.mean() / 2 + 0.1
    assert not torch.equal(p.tokens, p.others) and p.tokens.shape == p.others.shape


@pytest.mark.parametrize("kind", ["mean", "resample"])
@pytest.mark.parametrize("name", planted.ALL)
def test_known_edges_are_found_and_no_other(name, kind):
    p = MADE[name]
    found = edge_effects(p.model, p.tokens, controls.standins(p)[kind], p.metric)
    weakest, other = strongest_other(found, p.edges)
    assert weakest > 0.25 * ablation.whole(p.model, p.tokens, p.metric).mean()
    assert other <= 0.05 * weakest
    if name == "backup":
        inhibits = found[p.edges[1]].mean()
        assert inhibits < 0  # patched, the answer comes twice
    with pytest.raises(ValueError, match="not measured"):
        strongest_other({}, p.edges)


def test_mutants_of_the_tool_find_other_edges():
    p = MADE["conjunction"]
    standin = controls.standins(p)["mean"]
    weakest, other = strongest_other(
        edge_effects(p.model, p.tokens, standin, p.metric, mlps="recomputed"), p.edges
    )
    assert other > 0.5 * weakest  # mutant: MLPs answer on the way to the logits
    p = MADE["induction"]
    weakest, other = strongest_other(
        edge_effects(p.model, p.tokens, controls.standins(p)["zero"], p.metric), p.edges
    )
    assert other > 0.05 * weakest  # mutant: zero in place of mean meets the constant head
    writer, reader = p.nodes
    clean = ablation.whole(p.model, p.tokens, p.metric)
    unfrozen = clean - patching.patch_nodes(p.model, p.tokens, p.others, p.metric, [writer])[0]
    query = (
        clean
        - patching.path_patch(p.model, p.tokens, p.others, [writer], [(*reader, "q")], p.metric)[0]
    )
    assert query.abs().max() < 1e-9 < unfrozen.mean()  # mutant: others not frozen


def test_idle_heads_are_idle_and_work():
    plain = planted.backup(6, gen(), idle=0)
    crowded = MADE["backup"]
    tokens = plain.tokens
    model, where = with_idle_heads(plain.model, 3, gen(7))
    torch.testing.assert_close(model(tokens), plain.model(tokens), rtol=0, atol=1e-9)
    assert crowded.model.cfg.n_heads == model.cfg.n_heads == 4
    _, cache = model.run_with_cache(tokens)
    idle = [h for h in range(4) if h not in where[1]]
    z = cache["blocks.1.attn.hook_z"][:, :, idle]
    assert z.std(0).max() > 0.1  # they do write, and not the same on every prompt
    sinusoidal = handbuilt.induction_model(16, 24).cfg.replace(pos_kind="sinusoidal")
    with pytest.raises(ValueError, match="W_pos"):
        with_idle_heads(type(model)(sinusoidal), 1, gen())


@pytest.mark.parametrize("kind", ["zero", "mean", "resample"])
def test_planted_repair_is_detected(kind):
    p = MADE["backup"]
    found = direct.self_repair(
        p.model, p.tokens, p.question, controls.standins(p)[kind], p.nodes[:1]
    )
    assert found.predicted.mean() > 9 and abs(found.actual.mean()) < 0.5
    assert found.share > 0.95 and found.frozen.abs().max() < 1e-9
    helper = max(found.gained, key=lambda k: found.gained[k].mean().item())
    assert helper == node_name(p.nodes[1])
    p = MADE["induction"]  # control: nothing comes after the reader
    found = direct.self_repair(
        p.model, p.tokens, p.question, controls.standins(p)[kind], p.nodes[1:]
    )
    assert abs(found.share) < 1e-9 and found.actual.mean() > 8


def test_a_faithful_half_is_not_complete():
    p = MADE["backup"]
    F = Runner(p.model, p.tokens, p.metric, controls.standins(p)["mean"])
    half, both = masks(p.model, [p.nodes[:1], p.nodes])
    everything, nothing = F.of(nodes_of(p.model)), F.of([])
    assert F.of(p.nodes[:1]) - nothing > 0.99 * (everything - nothing)
    assert completeness(F, half).gap > 9 and completeness(F, both).gap < 1e-6
    found = completeness(F, half)
    assert bool(found.removed[p.nodes[0]])


def test_the_study_tells_what_the_models_are():
    d = controls.study(prompts=6, sets=12)
    induction = d["models"]["induction"]
    constant = induction["constant"][0]
    assert induction["table"]["zero"][constant] > 4 and induction["table"]["direct"][constant] > 4
    assert abs(induction["table"]["mean"][constant]) < 1e-6
    assert d["models"]["conjunction"]["nodes"][-1] == node_name((0, MLP))
    assert d["criteria"]["faithfulness"]["recovered"] > 0.99
    assert len(d["criteria"]["faithfulness"]["random"]) == 12
    assert d["half"]["first head"]["gap"] > 0.9
    assert d == controls.study(prompts=6, sets=12)  # the same bits twice


def test_a_plan_refuses_blocks_of_other_sizes():
    plan = Plan({"a": 2, "b": 3}, 1, 1, 4, n_ctx=4, d_vocab=3)
    with pytest.raises(ValueError, match="differ in size"):
        plan.compare(0, 0, "a", "b", 1.0)
