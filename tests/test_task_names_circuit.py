"""The search backwards and its readings, on small models whose answer another way gives too."""

import numpy as np
import pytest
import torch

from circuitbook import zoo
from circuitbook.circuits import ablation, direct, nodes
from circuitbook.config import Config
from circuitbook.cut import Cut, cut_paths, run
from circuitbook.model import Transformer
from circuitbook.tasks import names, names_circuit, names_study
from circuitbook.tasks.names import N_CTX, VOCAB

SMALL = Config(n_layers=3, d_model=24, n_heads=2, d_head=8, n_ctx=N_CTX, d_vocab=len(VOCAB))
F64 = torch.float64


def random_model(seed=0):
    model = Transformer(SMALL, seed=seed).to(F64).requires_grad_(False)
    for name, p in model.named_parameters():
        p.mul_(3.0 if "W_" in name else 1.0)
    return model


def prompts_for(model, layouts=4, each=2, seed=0, split="unseen"):
    return names_circuit.make(
        model, names_circuit.layouts_of(split, layouts, seed), each, seed, split, reference=6
    )


def test_stand_ins_are_means_over_renamed_prompts_of_the_same_layout():
    model = random_model()
    data = prompts_for(model, layouts=1)
    layouts = data.p.layout
    assert (layouts[::2] == layouts[1::2]).all() and len(layouts) == 2 * len(names.KINDS)
    # the same means, by hand, from the same draws
    rng = np.random.default_rng(0)
    p = names.prompts(len(layouts), rng, "unseen", layouts)
    others = names.prompts(6 * len(layouts) // 2, rng, "unseen", layouts[::2].repeat(6, axis=0))
    renamed = names.renamed(p, rng, "unseen")
    width = data.tokens.shape[1]
    assert (p.tokens[:, :width] == data.tokens.numpy()).all()
    assert (renamed[:, :width] == data.renamed.numpy()).all()
    reference = torch.from_numpy(names.renamed(others, rng, "unseen")[:, :width])
    z = ablation.writes(model, reference)[0][1].unflatten(0, (-1, 6)).mean(1)
    torch.testing.assert_close(data.mean.z[1], z.repeat_interleave(2, 0))
    torch.testing.assert_close(data.resample.z[1], ablation.writes(model, data.renamed)[0][1])


def test_the_search_agrees_with_edges_cut_one_by_one():
    model = random_model(1)
    data = prompts_for(model)
    found = names_circuit.find(model, data, 0.0)
    assert found.heads == nodes.nodes_of(model)  # with share 0 everybody joins
    n = torch.arange(len(data.tokens))
    at, io, s = data.question

    def lead(logits):
        return logits[n, at, io] - logits[n, at, s]

    whole = lead(model(data.tokens))
    # into the logits: the change of the direct term
    renamed = direct.attribute(model, data.renamed, data.question).terms
    clean = direct.attribute(model, data.tokens, data.question).terms
    for head in nodes.nodes_of(model):
        name = nodes.node_name(head)
        torch.testing.assert_close(found.ways[head]["logits"], clean[name] - renamed[name])
    # into one input of all heads of layer 2: zero cut of these edges, plus the renamed write
    z, sender = ablation.writes(model, data.renamed)[0], (1, 1)
    w = torch.einsum("bpe,ed->bpd", z[1][:, :, 1], model.W_O[sender])
    for way in ("q", "k", "v"):
        edges = [(sender, (2, h), way) for h in range(2)]

        def add(x, hook, w=w):
            return x + w[:, :, None]

        extra = Cut(((f"blocks.2.hook_{way}_input", add),))
        again = lead(run(model, data.tokens, cut_paths(model, edges) + extra)[0])
        torch.testing.assert_close(found.ways[sender][way], whole - again, rtol=1e-9, atol=1e-9)


def test_a_share_that_nobody_reaches_finds_nobody():
    model = random_model(1)
    found = names_circuit.find(model, prompts_for(model), 1e9)
    assert found.heads == [] and set(found.ways) == set(nodes.nodes_of(model))
    assert all(set(w) == {"logits"} for w in found.ways.values())


def test_attention_is_read_from_the_right_places():
    model = random_model()
    data = prompts_for(model)
    heads = [(0, 1), (2, 0)]
    seen = names_circuit.attention(model, data.tokens, data.p, heads)
    p = data.p
    for layer, head in heads:
        pattern = run(model, data.tokens, names=[f"blocks.{layer}.attn.hook_pattern"])[1]
        pattern = pattern[f"blocks.{layer}.attn.hook_pattern"][:, head]
        row = seen[f"{layer}.{head}"]
        for i in range(len(p.end)):
            tokens = data.tokens[i].tolist()
            where_io, first_s = tokens.index(p.io[i]), tokens.index(p.s[i])
            second_s = tokens.index(p.s[i], first_s + 1)
            assert float(row["END"]["IO"][i]) == pytest.approx(
                float(pattern[i, p.end[i], where_io])
            )
            assert float(row["END"]["S1"][i]) == pytest.approx(float(pattern[i, p.end[i], first_s]))
            assert float(row["S2"]["S1"][i]) == pytest.approx(float(pattern[i, second_s, first_s]))
            assert row["END"]["third 1"][i].isnan() == (p.others[i] < 0)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_repair_is_an_identity(dtype):
    model = random_model(2).to(dtype)
    data = prompts_for(model)
    r = names_study.repair(model, data, nodes.nodes_of(model))
    assert r["error"] < (1e-4 if dtype == torch.float32 else 1e-11)
    last = [r["cuts"][f"2.{h}"] for h in range(2)]
    assert all(abs(c["made_up"][0]) < 1e-4 for c in last)  # nobody reads the last layer
    assert any(abs(c["made_up"][0]) > 0.01 for n, c in r["cuts"].items() if n.startswith("0."))
    assert r["terms"][r["strongest"]] == max(r["terms"][f"2.{h}"] for h in range(2))


def test_accuracy_counts_all_words_or_the_names_there():
    p = names.prompts(60, np.random.default_rng(0))
    answers = torch.zeros(60, len(VOCAB))
    answers[torch.arange(60), torch.from_numpy(p.io)] = 1.0
    absent = [next(i for i in names.name_pool("unseen") if i not in row) for row in p.tokens]
    answers[:10, 1] = 2.0  # not a name
    answers[torch.arange(10, 20), torch.tensor(absent[10:20])] = 2.0  # a name that is not there
    answers[torch.arange(20, 30), torch.from_numpy(p.s)[20:30]] = 2.0
    found = names_study.accuracy_of(answers, p)
    assert found["all words"][0] == 0.5 and found["names there"][0] == pytest.approx(50 / 60)
    assert found["io over s"] == pytest.approx(50 / 60)
    assert found["difference"][0] == pytest.approx((50 * 1 - 10 * 1) / 60)


def test_composition_cuts_all_edges_of_one_input_at_once():
    model = random_model(3)
    data = prompts_for(model)
    heads = nodes.nodes_of(model)
    found = names_study.composition(model, data, heads)
    assert set(found) == {"layer 1", "layer 2"}
    F = ablation.whole(model, data.tokens, data.metric).mean().item()
    alone = names_study.composition(model, data, [(0, 0), (1, 1)])["layer 1"]
    edge = names_study.drawn_edges(model, data, [(0, 0), (1, 1)])
    for into in "qkv":
        assert alone[into][0] == pytest.approx(edge[f"0.0 → 1.1 {into}"][0], abs=1e-9)
        assert abs(alone[into][0] * F) > 1e-6
    # values enter the last layer's writes linearly, so two writers cost what each costs, added
    heads = [(0, 0), (1, 0), (2, 1)]
    both = names_study.composition(model, data, heads)["layer 2"]["v"][0]
    edge = names_study.drawn_edges(model, data, heads)
    each = [edge[f"{w} → 2.1 v"][0] for w in ("0.0", "1.0")]
    assert both == pytest.approx(sum(each), abs=1e-9) and min(map(abs, each)) > 1e-9


def test_the_bundled_model_names_unseen_people_in_unseen_templates():
    model = zoo.load(names_study.ROLE)
    found = names_study.accuracy(model, names.prompts(600, np.random.default_rng(11), "unseen"))
    assert found["all words"][0] >= 0.93  # 0.95 is asked of 2,000 prompts; this is a smaller draw
    assert found["all words"][0] <= found["names there"][0] <= 1


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (F64, 1e-12)])
def test_the_bundled_model_is_a_sum_of_its_terms(dtype, limit):
    model = zoo.load(names_study.ROLE, dtype=dtype)
    data = prompts_for(model, layouts=1)
    terms = direct.attribute(model, data.tokens, data.question)
    error = (sum(terms.terms.values()) - terms.total).abs().max() / terms.total.abs().max()
    assert error <= limit
    whole = ablation.whole(model, data.tokens, data.metric)
    torch.testing.assert_close(whole, terms.total, rtol=1e-4, atol=1e-4)
    assert names_study.repair(model, data, [(1, 1), (2, 5)])["error"] <= 10 * limit
