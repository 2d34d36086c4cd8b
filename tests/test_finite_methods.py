"""Four patching methods: definitions, identities between them, counted costs, and the tasks."""

import inspect

import numpy as np
import pytest
import torch
from small_model import TINY, gen, model_of, tokens_of

from circuitbook import tokenizer
from circuitbook.circuits import patching
from circuitbook.circuits.metrics import logit_difference
from circuitbook.circuits.nodes import MLP, nodes_of
from circuitbook.conditional import finite, methods, methods_claims, methods_study
from circuitbook.conditional.methods_study import Task

WITH_MLP = TINY.replace(d_mlp=12, act="gelu")


def setting(config=TINY, dtype=torch.float64, scale=2.0):
    """(model, tokens, others, metric) of three random prompt pairs."""
    model = model_of(config, dtype, scale=scale)
    tokens = tokens_of(config, n=6)
    right, wrong = torch.tensor([3, 4, 5]), torch.tensor([6, 7, 8])
    return model, tokens[:3], tokens[3:], logit_difference(torch.full((3,), 9), right, wrong)


def value(model, tokens, metric):
    return metric(model, model.stream(tokens), torch.arange(len(tokens)))


def effects(model, tokens, others, metric):
    return patching.patch_nodes(model, tokens, others, metric) - value(model, tokens, metric)


configs = pytest.mark.parametrize("config", [TINY, WITH_MLP], ids=["heads", "mlps"])


# ---- attribution patching ------------------------------------------------------------------------


@configs
def test_attribution_is_the_slope_of_activation_patching(config):
    """Move each write a little towards the other run: the change is eps times the attribution."""
    model, tokens, others, metric = setting(config)
    task = Task(tokens, others, torch.tensor([3, 4, 5]), torch.tensor([6, 7, 8]))
    found = methods.attribution_patching(model, tokens, others, metric)
    eps = 1e-6
    for i, node in enumerate(nodes_of(model)):
        low, high = methods_study.dose(model, task, 1, node, [-eps, eps])
        assert abs((high - low) / (2 * eps) - found[i, 1]) <= 1e-6 * found.abs().max()


@configs
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_first_order_is_exact_where_the_logits_are_linear(config, dtype):
    model, tokens, others, metric = setting(config, dtype)
    limit = 1e-12 if dtype == torch.float64 else 1e-5
    first = methods.attribution_patching(model, tokens, others, metric)
    truth = effects(model, tokens, others, metric)
    scale = truth.abs().max()
    exact = [methods_study.linear_by_construction(model, n) for n in nodes_of(model)]
    assert sum(exact) == (1 if config.d_mlp else 2)
    for i, linear in enumerate(exact):
        off = (first[i] - truth[i]).abs().max() / scale
        assert off <= limit if linear else off > 1e-3


def test_attribution_of_chosen_nodes_and_of_equal_runs():
    model, tokens, others, metric = setting(WITH_MLP)
    every = methods.attribution_patching(model, tokens, others, metric)
    two = methods.attribution_patching(model, tokens, others, metric, [(1, MLP), (0, 1)])
    assert torch.equal(two[0], every[5]) and torch.equal(two[1], every[1])
    assert torch.all(methods.attribution_patching(model, tokens, tokens, metric) == 0)
    # Every row is its own run: the other prompts do not change a number.
    alone = methods.attribution_patching(
        model, tokens[:1], others[:1], lambda m, s, rows: metric(m, s, rows)
    )
    assert torch.allclose(alone[:, 0], every[:, 0], rtol=1e-10)


# ---- integrated gradients ------------------------------------------------------------------------


@configs
def test_shares_of_every_stream_add_up(config):
    model, tokens, others, metric = setting(config)
    change = value(model, others, metric) - value(model, tokens, metric)
    left = []
    for steps in (8, 16, 32):
        found = methods.integrated_gradients(model, tokens, others, metric, steps=steps)
        assert list(found.sums) == methods.streams(model)
        assert torch.allclose(found.ends[1] - found.ends[0], change, rtol=1e-12)
        left.append(max((s - change).abs().max().item() for s in found.sums.values()))
    assert left[2] <= 1e-2 * change.abs().max()
    assert 2.5 <= left[1] / left[2] <= 6  # second order, as any smooth integral
    names = methods.streams(model)
    heads, per = TINY.n_heads, TINY.n_heads + bool(config.d_mlp)
    first = 1 + heads
    assert [len(found.shares[n]) for n in names] == (
        [first, 1 + per, 1 + per + heads, 1 + 2 * per] if config.d_mlp else [first, first + heads]
    )


def test_the_last_stream_needs_one_step_and_agrees_with_the_direct_path():
    model, tokens, others, metric = setting(WITH_MLP)
    found = methods.integrated_gradients(model, tokens, others, metric, steps=1)
    direct = patching.path_patch(
        model, tokens, others, nodes_of(model), None, metric, mlps="frozen"
    ) - value(model, tokens, metric)
    last = found.shares["blocks.1.hook_resid_post"]  # embedding first, then nodes in order
    assert torch.allclose(last[1:], direct, atol=1e-11)
    assert torch.allclose(found.own[-1], direct[-1], atol=1e-11)


@configs
def test_a_line_that_moves_one_write_alone_gives_activation_patching(config):
    """The fundamental theorem, through the model: the integral of the dose curve's slope."""
    model, tokens, others, metric = setting(config)
    task = Task(tokens, others, torch.tensor([3, 4, 5]), torch.tensor([6, 7, 8]))
    truth = effects(model, tokens, others, metric)
    t, w = finite.rule(4, "gauss")
    eps = 1e-5
    for i in (0, 1):
        node = nodes_of(model)[i]
        up, down = (
            methods_study.dose(model, task, 2, node, (t + s * eps).tolist()) for s in (1, -1)
        )
        total = (w * (up - down) / (2 * eps)).sum()
        assert abs(total - truth[i, 2]) <= 1e-5 * truth.abs().max()


def test_pieces_of_a_batch_do_not_matter():
    model, tokens, others, metric = setting(WITH_MLP)
    want = methods.integrated_gradients(model, tokens, others, metric, steps=5)
    few = methods.integrated_gradients(model, tokens, others, metric, steps=5, at_once=25)
    assert torch.allclose(few.own, want.own, rtol=1e-10)


# ---- what it costs -------------------------------------------------------------------------------


@configs
def test_passes_are_counted(config):
    """As each docstring promises, for n nodes and s streams; hooks are gone afterwards."""
    model, tokens, others, metric = setting(config)
    n, s, steps = len(nodes_of(model)), len(methods.streams(model)), 4
    promised = {
        "activation": (1 + n, 0),
        "direct": (2 + n, 0),
        "attribution": (2, 1),
        "integrated": (2 + steps * s, steps * s),
    }
    task = Task(tokens, others, torch.tensor([3, 4, 5]), torch.tensor([6, 7, 8]))
    ran = methods_study.four_ways(model, task, steps)
    assert {k: tuple(v) for k, v in ran["passes"].items()} == promised
    assert all(x > 0 for x in ran["seconds"].values())
    assert not model.embed._forward_hooks and not model.unembed._backward_hooks
    with methods.counting(model) as count:
        value(model, tokens[:2], metric)
        with torch.no_grad():
            model(tokens)
    assert (count.forward, count.backward) == (5, 0)


def test_the_model_is_left_as_it_was():
    model, tokens, others, metric = setting(WITH_MLP)
    before = model(tokens)
    methods.integrated_gradients(model, tokens, others, metric, steps=2)
    methods.attribution_patching(model, tokens, others, metric)
    assert torch.equal(model(tokens), before)
    assert all(not point.fwd_hooks for point in model.hook_dict.values())
    assert not any(p.requires_grad for p in model.parameters())


# ---- mistakes ------------------------------------------------------------------------------------

SOURCE = inspect.getsource(methods)
MUTANTS = {
    "the wrong run's gradient": ("slopes(model, tokens, metric, rows, [*",
                                 "slopes(model, others, metric, rows, [*"),
    "activation, not its change": ("(moved[n] - found.at[n]) * g", "moved[n] * g"),
    "cut at every hook": ("new if new.requires_grad else new", "new if False else new"),
    "left ends": ("(part // n + 0.5) / steps", "(part // n) / steps"),
    "no line": ("torch.lerp(x0[row], x1[row], t)", "x1[row]"),
    "sum, not mean": ("mean[name] = total / steps", "mean[name] = total"),
    "rows of a step mixed": ("row = part % n", "row = part // steps % n"),
    "embedding left out": ("if k == \"embedding\" or names", "if k != \"embedding\" and names"),
    "later writes counted": ("<= names.index(name)", "<= names.index(name) + 1"),
    "one head's W_O for all": ("z[:, :, head] @ W_O", "z[:, :, head] @ block.attn.W_O[0]"),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mistake_shows(mutant):
    """Either first order is not the slope, or shares do not add up, or it cannot run."""
    old, new = MUTANTS[mutant]
    assert SOURCE.count(old) == 1, mutant
    broken = {"__name__": methods.__name__}  # dataclasses look their module up
    exec(SOURCE.replace(old, new), broken)
    model, tokens, others, metric = setting(WITH_MLP)
    args = (model, tokens, others, metric)
    change = value(model, others, metric) - value(model, tokens, metric)
    try:
        first = broken["attribution_patching"](*args)
        sums = broken["integrated_gradients"](*args, steps=32).sums.values()
    except (RuntimeError, KeyError, ValueError):
        return

    def off(sums):
        return max((s - change).abs().max() / change.abs().max() for s in sums)

    right = methods.integrated_gradients(*args, steps=32).sums.values()
    want = methods.attribution_patching(*args)  # itself checked against the dose curve's slope
    assert off(sums) > 5 * off(right) or (first - want).abs().max() > 1e-2 * want.abs().max()


# ---- the tasks -----------------------------------------------------------------------------------


def test_names_are_exchanged_and_nothing_else():
    task = methods_study.exchanged_names(24)
    differ = task.tokens != task.others
    assert torch.equal(differ.sum(-1), torch.ones(24, dtype=torch.long))
    place = differ.int().argmax(-1)
    rows = torch.arange(24)
    assert torch.equal(task.others[rows, place], task.right)
    assert torch.equal(task.tokens[rows, place], task.wrong)
    assert len({*task.right.tolist(), *task.wrong.tolist()}) == 48  # no name in two pairs
    tok = tokenizer.load()
    titles = [tok.decode([int(x)]) for x in task.tokens[:, -1]]
    assert {" Aunt", " Uncle"} == set(titles) and 8 <= titles.count(" Aunt") <= 16
    with pytest.raises(ValueError, match="pairs of names"):
        methods_study.exchanged_names(60)


def test_the_match_is_broken_at_one_place():
    task = methods_study.broken_match(20, seed=1)
    differ = task.tokens != task.others
    rows, place = torch.arange(20), differ.int().argmax(-1)
    assert torch.equal(differ.sum(-1), torch.ones(20, dtype=torch.long))
    last = task.others[:, -1]
    assert torch.equal(task.others[rows, place], last)  # the earlier copy of the last word
    assert torch.equal(task.others[rows, place + 1], task.right)  # and what followed it
    assert ((task.others == last[:, None]).sum(-1) == 2).all()
    assert ((task.tokens == last[:, None]).sum(-1) == 1).all()
    new = task.tokens[rows, place]
    assert ((task.others == new[:, None]).sum(-1) == 0).all()
    for x in (task.tokens, task.others):  # both answers stand in both texts once
        for word in (task.right, task.wrong):
            assert ((x == word[:, None]).sum(-1) == 1).all()
    assert len(place.unique()) > 5  # no fixed distance
    again = methods_study.broken_match(20, seed=1)
    assert torch.equal(again.tokens, task.tokens)


def test_the_metric_is_read_at_the_end():
    model = model_of(TINY)
    tokens = tokens_of(TINY)
    task = Task(tokens, tokens, torch.tensor([3, 4, 5]), torch.tensor([6, 7, 8]))
    logits = model(tokens)[:, -1]
    rows = torch.arange(3)
    want = logits[rows, task.right] - logits[rows, task.wrong]
    assert torch.allclose(methods_study.logit_of(model, task, tokens), want)


# ---- agreement -----------------------------------------------------------------------------------


def test_agreement_on_made_up_numbers():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(6, 200)) + np.arange(6)[:, None]
    change = truth.sum(0)
    draws = methods_study.bootstrap(200, 300, seed=1)
    same = methods_study.agreement(truth, truth, change, draws)
    assert same == {"rank": [1, 1, 1], "error": [0, 0, 0], "worst": [0, 0, 0]}
    half = methods_study.agreement(truth / 2, truth, change, draws)
    assert half["rank"] == [1, 1, 1] and np.allclose(half["error"], 0.5)
    flipped = methods_study.agreement(-truth, truth, change, draws)
    assert flipped["rank"][0] == -1 and np.isclose(flipped["error"][0], 2)
    noisy = methods_study.agreement(truth + rng.normal(size=truth.shape), truth, change, draws)
    assert noisy["error"][1] < noisy["error"][0] < noisy["error"][2]
    one = truth.copy()
    one[5] += 3  # one node is wrong by three
    worst = methods_study.agreement(one, truth, change, draws)["worst"][0]
    assert np.isclose(worst, 3 / np.abs(change).mean())


def test_doses_end_at_both_runs_and_the_worst_case_is_the_worst():
    model, tokens, others, metric = setting(WITH_MLP)
    task = Task(tokens, others, torch.tensor([3, 4, 5]), torch.tensor([6, 7, 8]))
    before, truth = value(model, tokens, metric), effects(model, tokens, others, metric)
    curve = methods_study.dose(model, task, 1, (0, 1), [0.0, 0.5, 1.0])
    assert torch.allclose(curve[[0, 2]] - before[1], torch.stack([truth[1, 1] * 0, truth[1, 1]]))
    first = methods.attribution_patching(model, tokens, others, metric)
    case = methods_study.worst_case(model, task, points=5)
    gap = (first - truth).abs()[:-1]  # the last MLP is linear by construction
    i, prompt = divmod(int(gap.argmax()), 3)
    assert case["node"] == ["0.0", "0.1", "MLP 0", "1.0", "1.1"][i]
    assert np.isclose(case["truth"], truth[i, prompt].item())
    assert np.isclose(case["metric"][-1] - case["metric"][0], case["truth"])
    assert len(case["t"]) == 5 and case["cells"] == 15
    signs = methods_study.worst_case(model, task, points=3, signed=True)
    opposite = (first * truth < 0)[:-1]
    assert case["opposite"] == int(opposite.sum())
    if signs:
        assert signs["truth"] * signs["first_order"] < 0
        size = torch.minimum(first.abs(), truth.abs())[:-1][opposite]
        assert np.isclose(min(abs(signs["truth"]), abs(signs["first_order"])), size.max())


def runs():
    def one(worst, writer, edges):
        agree = {w: {"worst": [worst, 0, 1], "error": [0.5, 0.4, 0.6], "rank": [0.9, 0.8, 1.0]}
                 for w in ("attribution", "integrated")}  # fmt: skip
        return {
            "incomplete": 0.002, "agreement": agree, "writer": writer, "edges": edges,
            "integrated_better": [0.1, 0.2], "pair": ["0.4", "1.7"], "free": [True, False],
        }  # fmt: skip

    writer = {"activation": [2.0, 0.1], "attribution": [0.2, 0.1], "break": [2.0, 0.1],
              "attribution, other end": [4.0, 0.3], "direct": [0.01, 0.01]}  # fmt: skip
    edges = {"key": [1.6, 0.1], "query": [0.0, 0.0], "value": [-0.05, 0.0],
             "rival": {"0.1": [0.1, 0.1], "0.2": [-0.2, 0.1]}, "key, MLPs answer": [1.0, 0.1],
             "key, MLPs against": [0.6, 0.1]}  # fmt: skip
    return {
        methods_claims.CONTENT: one(0.01, dict(writer), dict(edges)),
        methods_claims.REASON: one(0.8, dict(writer), dict(edges)),
    }


BREAKS = {
    "methods.integrated_complete": lambda t: t["name exchanged"].update(incomplete=0.02),
    "methods.content_is_linear": lambda t: t["name exchanged"]["agreement"]["attribution"].update(
        worst=[0.2, 0, 1]
    ),
    "methods.first_order_saturates": lambda t: t["match broken"]["writer"].update(
        attribution=[1.5, 0.1]
    ),
    "methods.integrated_is_nearer": lambda t: t["match broken"].update(
        integrated_better=[-0.1, 0.2]
    ),
    "methods.ranks_hide_it": lambda t: t["match broken"]["agreement"]["attribution"].update(
        rank=[0.9, 0.7, 1]
    ),
    "methods.pair_by_paths": lambda t: t["match broken"]["edges"].update(value=[-0.5, 0.1]),
    "methods.pair_by_paths_with": lambda t: t["match broken"]["edges"].update(
        rival={"0.2": [-0.9, 0.1]}
    ),
    "methods.mlp_works_against": lambda t: t["match broken"]["edges"].update(
        {"key, MLPs against": [0.1, 0.1]}
    ),
    "methods.worst_case": None,
}


@pytest.mark.parametrize("broken", [None, *BREAKS])
def test_claims_fail_when_they_should(broken):
    case = {"cells": 10, "node": "0.4", "tokens": ["", " a"], "right": " b", "first_order": 0.1,
            "truth": 6.0}  # fmt: skip
    tasks = {r: runs() for r in ("attn-only-2l", "gelu-2l")}
    d = {"steps": 8, "cases": {"largest": case}, "runs": tasks}
    if broken == "methods.worst_case":
        case["truth"] = 0.5
    elif broken:
        BREAKS[broken](d["runs"]["gelu-2l"])
    made = methods_claims.claims(d)
    assert len(made) == 9
    failed = [c["id"] for c in made if not c["holds"]]
    assert len(failed) == (broken is not None)
    assert all(name.startswith(broken) for name in failed)


def test_random_models_do_not_depend_on_the_global_generator():
    torch.manual_seed(1)
    a = methods_study.broken_match(4, seed=2).tokens
    torch.manual_seed(2)
    assert torch.equal(a, methods_study.broken_match(4, seed=2).tokens)
    assert gen(0).initial_seed() == 0
