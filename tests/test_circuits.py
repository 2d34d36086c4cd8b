"""Circuit tools: they agree with other code, sums are sums, and wrong input is refused."""

import pytest
import torch
from small_model import TINY, gen, model_of, tokens_of

from circuitbook import cut, fold
from circuitbook.circuits import ablation, direct, faithful, metrics, nodes, patching
from circuitbook.circuits.edges import before, edge_effects, edge_name, receivers_of

GELU = TINY.replace(d_mlp=12, act="gelu")
GPT = TINY.replace(
    d_mlp=12, act="gelu_new", norm="layernorm", positions="standard", pos_kind="learned",
    attn_bias=True, unembed_bias=True,
)  # fmt: skip
MODELS = {"attention only": TINY, "gelu": GELU, "gpt2's kind": GPT}
AT, RIGHT, WRONG = torch.tensor([9, 8, 9, 7]), torch.arange(1, 5), torch.arange(6, 10)
QUESTION = direct.Question(AT, RIGHT, WRONG)
METRIC = metrics.logit_difference(*QUESTION)


def setting(name, dtype=torch.float64):
    config = MODELS[name]
    tokens = tokens_of(config, n=4)
    return model_of(config, dtype), tokens, tokens.flip(0)


def asked(model, tokens, change=None):
    logits = cut.run(model, tokens, change)[0][torch.arange(4), AT]
    return logits.gather(1, RIGHT[:, None])[:, 0] - logits.gather(1, WRONG[:, None])[:, 0]


def near(a, b, dtype=torch.float64):
    bound = 1e-11 if dtype == torch.float64 else 2e-4
    return (a - b).abs().max() <= bound * max(1.0, b.abs().max().item())


# ---------------------------------------------------------------- stand-ins and F


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", MODELS)
def test_ablations_agree_with_the_older_code(name, dtype):
    model, tokens, _ = setting(name, dtype)
    partner = cut.other_window(4, gen(1))
    standins = {
        "zero": ablation.zero(model, tokens),
        "mean": ablation.mean(model, tokens),
        "resample": ablation.resample(model, tokens[partner]),
    }
    sets = [[(0, 1)], [(0, 0), (1, 1)], [(1, 0)]]
    for kind, standin in standins.items():
        ours = ablation.without(model, tokens, METRIC, standin, sets)
        for row, heads in zip(ours, sets, strict=True):
            old = cut.ablate_heads(model, tokens, heads, kind, generator=gen(1))
            assert near(row, asked(model, tokens, old), dtype)


@pytest.mark.parametrize("name", MODELS)
def test_everything_kept_is_the_model_bit_for_bit(name):
    model, tokens, others = setting(name)
    keep = nodes.masks(model, [nodes.nodes_of(model)])
    whole = ablation.whole(model, tokens, METRIC)
    for standin in (ablation.zero(model, tokens), ablation.resample(model, others)):
        assert torch.equal(ablation.evaluate(model, tokens, METRIC, standin, keep)[0], whole)
    assert near(whole, asked(model, tokens))


def test_many_sets_in_one_batch_are_as_one_by_one():
    model, tokens, others = setting("gelu")
    keep = torch.rand(9, 2, 3, generator=gen(5)) < 0.5
    keep = torch.cat([keep, keep[:2]])
    standin = ablation.resample(model, others)
    together = ablation.evaluate(model, tokens, METRIC, standin, keep)
    for row, one in zip(together, keep, strict=True):
        alone = ablation.evaluate(model, tokens, METRIC, standin, one[None], at_once=1)[0]
        assert near(row, alone)
    assert (together[0] - together[2]).abs().max() > 1e-3


def test_all_nodes_resampled_differ_from_the_other_prompt_by_the_embedding_only():
    model, tokens, others = setting("attention only")
    none = ablation.value(model, tokens, METRIC, ablation.resample(model, others), [])
    way = model.W_U.T[RIGHT] - model.W_U.T[WRONG]
    own, other = (model.W_E[t[torch.arange(4), AT]] for t in (tokens, others))
    assert near(none - asked(model, others), ((own - other) * way).sum(-1))


def test_a_mean_by_role_averages_where_the_role_stands():
    model, tokens, others = setting("gelu")
    roles, reference = torch.randint(0, 4, (2, 4, 10), generator=gen(2))
    standin = ablation.mean(model, others, reference_roles=reference, roles=roles)
    z, mlp = ablation.writes(model, others)
    for mine, source in ((standin.z[1], z[1]), (standin.mlp[0], mlp[0])):
        for i, t in ((0, 3), (2, 7)):
            assert near(mine[i, t], source[reference == roles[i, t]].mean(0))
    same = torch.arange(10).expand(4, -1)
    by_position = ablation.mean(model, others, reference_roles=same, roles=same)
    assert near(by_position.z[0][2], ablation.mean(model, others).z[0][0])
    with pytest.raises(ValueError, match="no reference prompt"):
        ablation.mean(model, others, reference_roles=same, roles=same + 1)
    with pytest.raises(ValueError, match="or neither"):
        ablation.mean(model, others, roles=roles)


def test_a_fourth_axis_cuts_at_places_or_roles():
    model, tokens, others = setting("attention only")
    standin = ablation.resample(model, others)
    keep = torch.ones(1, 2, 2, 10, dtype=torch.bool)
    keep[0, 0, 1, 4:6] = False
    ours = ablation.evaluate(model, tokens, METRIC, standin, keep)[0]

    def replace(z, hook):
        z = z.clone()
        z[:, 4:6, 1] = standin.z[0][:, 4:6, 1]
        return z

    by_hand = cut.Cut((("blocks.0.attn.hook_z", replace),))
    assert near(ours, asked(model, tokens, by_hand))
    roles = torch.zeros(4, 10, dtype=torch.long)
    roles[:, 4:6] = 1
    by_role = torch.ones(1, 2, 2, 2, dtype=torch.bool)
    by_role[0, 0, 1, 1] = False
    assert near(ablation.evaluate(model, tokens, METRIC, standin, by_role, roles=roles)[0], ours)
    assert (ours - asked(model, tokens)).abs().max() > 1e-3


# ---------------------------------------------------------------- patching


@pytest.mark.parametrize("name", MODELS)
def test_activation_patching_is_the_run_with_one_write_of_the_other(name):
    model, tokens, others = setting(name)
    all_nodes = nodes.nodes_of(model)
    ours = patching.patch_nodes(model, tokens, others, METRIC)
    for row, (layer, at) in zip(ours, all_nodes, strict=True):
        mlp = at == nodes.MLP
        where = f"blocks.{layer}." + ("hook_mlp_out" if mlp else "attn.hook_z")
        other = cut.run(model, others, names=[where])[1][where]

        def replace(value, hook, at=at, mlp=mlp, other=other):
            if mlp:
                return other
            value = value.clone()
            value[:, :, at] = other[:, :, at]
            return value

        assert near(row, asked(model, tokens, cut.Cut(((where, replace),))))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ["attention only", "gelu"])
def test_a_path_with_frozen_mlps_is_one_edge_cut(name, dtype):
    model, tokens, _ = setting(name, dtype)
    others = tokens[cut.other_window(4, gen(1))]
    for into in "qkv":
        receiver = (1, 0, into)
        ours = patching.path_patch(
            model, tokens, others, [(0, 1)], [receiver], METRIC, mlps="frozen"
        )[0]
        change = cut.cut_path(model, (0, 1), (1, 0), into, "resample", generator=gen(1))
        assert near(ours, asked(model, tokens, change), dtype)
        assert (ours - asked(model, tokens)).abs().max() > 0.1


def test_mlps_on_the_way_are_recomputed_or_frozen():
    model, tokens, others = setting("gelu")
    to = [(1, 0, "k")]
    way = [
        patching.path_patch(model, tokens, others, [(0, 1)], to, METRIC, mlps=m)
        for m in ("recomputed", "frozen")
    ]
    assert (way[0] - way[1]).abs().max() > 1e-2
    cache = cut.run(model, tokens, names=None)[1]
    z = ablation.resample(model, others).z[0]
    new = z[:, :, 1] @ model.W_O[0, 1] - cache["blocks.0.attn.hook_z"][:, :, 1] @ model.W_O[0, 1]
    mid = cache["blocks.0.hook_resid_mid"] + new
    x = mid + model.blocks[0].mlp(mid)  # by hand: what layer 1 reads when the MLP answers
    k = (x + model.W_pos[:10]) @ model.W_K[1, 0]

    def deliver(value, hook):
        value = value.clone()
        value[:, :, 0] = k
        return value

    assert near(way[0][0], asked(model, tokens, cut.Cut((("blocks.1.attn.hook_k", deliver),))))


@pytest.mark.parametrize("name", MODELS)
def test_paths_to_everything_are_the_whole_patch(name):
    model, tokens, others = setting(name)
    everywhere = [r for r in receivers_of(model) if r is not None and before((0, 1), r)]
    through = patching.path_patch(
        model, tokens, others, [(0, 1)], everywhere, METRIC, mlps="frozen"
    )[0]
    direct_only = patching.path_patch(model, tokens, others, [(0, 1)], None, METRIC, mlps="frozen")[
        0
    ]
    whole = patching.patch_nodes(model, tokens, others, METRIC, [(0, 1)])[0]
    assert (whole - through).abs().max() > 1e-3 and (whole - direct_only).abs().max() > 1e-3
    last = patching.path_patch(model, tokens, others, [(1, 1)], None, METRIC, mlps="recomputed")[0]
    assert near(last, patching.patch_nodes(model, tokens, others, METRIC, [(1, 1)])[0])


def test_a_late_or_empty_sender_changes_nothing_and_places_limit_it():
    model, tokens, others = setting("gelu")
    clean = asked(model, tokens)

    def patched(senders, receivers, **more):
        return patching.path_patch(model, tokens, others, senders, receivers, METRIC, **more)

    assert near(patched([(1, 0)], [(0, 1, "q")])[0], clean)
    assert near(patched([[]], [(1, 1, "v"), (1, "mlp", "in")])[0], clean)
    nowhere = torch.zeros(4, 10, dtype=torch.bool)
    assert near(patched([(0, 1)], [(1, 0, "v")], sender_at=nowhere)[0], clean)
    assert near(patched([(0, 1)], [(1, 0, "v")], receiver_at=nowhere)[0], clean)
    assert near(
        patched([(0, 1)], [(1, 0, "v")], receiver_at=~nowhere)[0],
        patched([[(0, 1)]], [(1, 0, "v")])[0],
    )
    assert not model.use_hook_mlp_in
    with pytest.raises(ValueError, match="unknown receiver"):
        patched([(0, 1)], [(1, 0, "z")])
    with pytest.raises(ValueError, match="unknown setting"):
        patched([(0, 1)], None, mlps="cut")
    with pytest.raises(ValueError, match="no node"):
        patched([(0, 9)], None)


def test_the_table_of_edges_holds_each_edge_once():
    model, tokens, others = setting("gelu")
    effects = edge_effects(model, tokens, ablation.resample(model, others), METRIC)
    # into MLP 0: 2 heads; into 2 x 3 inputs of layer 1: 3 nodes; into MLP 1: 5; to the logits: 6
    assert len(effects) == 2 + 18 + 5 + 6
    one = effects[(0, 1), (1, 0, "k")]
    change = patching.path_patch(
        model, tokens, others, [(0, 1)], [(1, 0, "k")], METRIC, mlps="frozen"
    )[0]
    assert near(one, asked(model, tokens) - change)
    names = [edge_name(e) for e in effects]
    assert len(set(names)) == len(names) and "0.1 → 1.0 k" in names and "MLP 1 → logits" in names


# ---------------------------------------------------------------- direct terms and repair


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", MODELS)
def test_direct_terms_sum_to_the_logit_difference(name, dtype):
    model, tokens, _ = setting(name, torch.float64)
    if name == "gpt2's kind":
        with pytest.raises(ValueError, match="fold the norms"):
            direct.attribute(model, tokens, QUESTION)
        model = fold.process(model)
    model = model.to(dtype)
    found = direct.attribute(model, tokens, QUESTION)
    assert near(sum(found.terms.values()), asked(model, tokens), dtype)
    assert len(found.terms) == 2 + len(nodes.nodes_of(model))
    assert max(x.abs().max() for x in found.terms.values()) > 0.1


@pytest.mark.parametrize("name", MODELS)
def test_repair_is_an_identity_by_node(name):
    model, tokens, others = setting(name)
    model = fold.process(model) if name == "gpt2's kind" else model
    standin = ablation.resample(model, others)
    found = direct.self_repair(model, tokens, QUESTION, standin, [(0, 1)])
    whole = ablation.whole(model, tokens, METRIC)
    cut_away = ablation.without(model, tokens, METRIC, standin, [[(0, 1)]])[0]
    assert near(found.actual, whole - cut_away)
    frozen = 0 if name != "gpt2's kind" else found.frozen
    assert near(found.actual, found.predicted - sum(found.gained.values()) + frozen)
    assert near(found.gained["0.0"], torch.zeros(4))  # same layer: it cannot know
    assert found.gained["1.0"].abs().max() > 1e-3
    late = direct.self_repair(model, tokens, QUESTION, standin, [(1, 1)])
    if name == "attention only":
        assert abs(late.share) <= 1e-9  # nothing comes after it


# ---------------------------------------------------------------- sets and criteria


def test_random_sets_are_different_and_of_one_size():
    model = model_of(TINY.replace(n_layers=4, n_heads=4, d_head=4, d_mlp=8, act="relu"))
    like = [(0, 1), (2, 3), (1, "mlp")]
    drawn = nodes.random_masks(model, like, 100, gen())
    assert len(drawn.unique(dim=0)) == 100
    assert bool((drawn[:, :, :4].sum((1, 2)) == 2).all())
    assert bool((drawn[:, :, 4].sum(1) == 1).all())
    assert not (drawn == nodes.masks(model, [like])[0]).flatten(1).all(1).any()
    share = drawn.double().mean(0)
    assert (share[:, :4] - 2 / 16).abs().max() < 0.12  # no head is favoured
    with pytest.raises(ValueError, match="15 other sets"):
        nodes.random_masks(model, [(0, 0)], 16, gen())
    assert len(nodes.random_masks(model, [(0, 0)], 16, gen(), fewer=True)) == 15
    assert nodes.members(model, nodes.masks(model, [like])[0]) == [(0, 1), (1, "mlp"), (2, 3)]
    few = nodes.random_masks(model, [(0, 0)], 3, gen(), among=[(3, 0), (3, 1), (3, 2)])
    assert bool(few[:, 3, :3].any(1).all())


class Toy(faithful.Runner):
    """F as an explicit function of sets, so that every maximum can be listed by hand."""

    def __init__(self, model, value):
        self.model, self.value = model, value

    def __call__(self, sets):
        return torch.tensor([float(self.value(*row.flatten().tolist())) for row in sets])


def test_completeness_finds_the_set_that_tells_circuit_from_model():
    model = model_of()
    F = Toy(model, lambda a, b, c, d: max(a, c) + b)  # c stands in for a
    C = nodes.masks(model, [[(0, 0), (0, 1)]])[0]  # a and b: faithful, not complete
    assert F(C[None]) == F(torch.ones(1, 2, 2).bool())
    for K in (None, faithful.random_subsets(C, 8, gen())):
        found = faithful.completeness(F, C, K)
        assert found.gap == 1.0 and nodes.members(model, found.removed)[0] == (0, 0)
    empty = torch.zeros(1, 2, 2, dtype=torch.bool)
    assert faithful.completeness(F, C, empty).gap == 0.0
    assert faithful.completeness(F, C, empty, search=True).gap == 1.0
    full = nodes.masks(model, [[(0, 0), (0, 1), (1, 0)]])[0]
    assert faithful.completeness(F, full).gap == 0.0


def test_minimality_needs_the_right_companions_removed():
    model = model_of()
    F = Toy(model, lambda a, b, c, d: max(a, c) + b)
    C = nodes.masks(model, [[(0, 0), (0, 1), (1, 0), (1, 1)]])[0]
    found = faithful.minimality(F, C)
    assert [found[v].gap for v in nodes.nodes_of(model)] == [1.0, 1.0, 1.0, 0.0]
    assert nodes.members(model, found[0, 0].removed)[0] != (0, 0)
    alone = faithful.minimality(F, C, torch.zeros(1, 2, 2, dtype=torch.bool))
    assert alone[0, 0].gap == 0.0  # the backup hides it


def test_a_runner_runs_each_set_once():
    model, tokens, others = setting("gelu")
    F = faithful.Runner(model, tokens, METRIC, ablation.resample(model, others))
    sets = torch.rand(6, 2, 3, generator=gen(4)) < 0.5
    first = F(torch.cat([sets, sets]))
    assert torch.equal(first[:6], first[6:]) and len(F.seen) == len(sets.unique(dim=0))
    assert near(first[:6], F.per_prompt(sets).mean(1))
    F.per_prompt = None  # a second run would fail
    assert torch.equal(F(sets), first[:6])
    with pytest.raises(TypeError):
        F(~sets)


def test_subsets_are_all_there():
    C = torch.tensor([[True, False], [True, True]])
    all_of_them = faithful.subsets(C)
    assert len(all_of_them.unique(dim=0)) == 8 and not (all_of_them & ~C).any()
    assert len(faithful.random_subsets(C, 8, gen())) == 8
    assert not (faithful.random_subsets(C, 3, gen()) & ~C).any()
    with pytest.raises(ValueError, match="draw some"):
        faithful.subsets(torch.ones(13, dtype=torch.bool))


def test_losses_and_log_probabilities_are_those_of_the_model():
    model, tokens, _ = setting("gelu")
    counts = torch.zeros(4, 10, dtype=torch.bool)
    counts[:, 5:8] = True
    loss = ablation.whole(model, tokens, metrics.next_token_loss(tokens, counts))
    per_token = model(tokens, return_type="loss_per_token")
    assert near(-loss, per_token[:, 4:7].mean(1))
    at = torch.full((4,), 6)
    one = ablation.whole(model, tokens, metrics.log_probability(at, tokens[:, 7]))
    assert near(-one, per_token[:, 6])
    with pytest.raises(ValueError, match="the stand-in is for"):
        short = ablation.zero(model, tokens[:, :5])
        ablation.value(model, tokens, METRIC, short, [])
