"""Attribution graphs: edges sum for any dictionary; influence on graphs with known answers."""

from dataclasses import replace

import pytest
import torch
from attribution_toys import DEEP, GELU, prompt, random_transcoders, small, trained
from small_model import TINY, model_of

from circuitbook import cut, gauge
from circuitbook.attribution import graph as graphs
from circuitbook.attribution import label, prune
from circuitbook.attribution.graph import Graph, Node
from circuitbook.attribution.switch import replay

SALLY = "I always loved visiting Aunt Sally. Whenever I was feeling sad, Aunt"
TRAINED = [
    pytest.param(("trained", name), id=f"trained {name}", marks=pytest.mark.weights)
    for name in ("float32", "float64")
]
CASES = [
    *(((c, k), name) for c in ("two", "deep") for k in (6, 0) for name in ("float32", "float64")),
]


def limit(dtype):
    return 1e-11 if dtype == torch.float64 else 1e-5


def whole(model, transcoders, tokens, answer=7):
    frozen = graphs.freeze(model, transcoders, tokens)
    return frozen, graphs.build(model, transcoders, frozen, answer)


@pytest.fixture(scope="module")
def toy():
    """(model, transcoders, frozen, graph) in float64."""
    model, transcoders = small()
    return model, transcoders, *whole(model, transcoders, prompt())


# ---- sums ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind,name", CASES)
def test_edges_sum_for_any_dictionary(kind, name):
    config, dtype = {"two": GELU, "deep": DEEP}[kind[0]], getattr(torch, name)
    model, transcoders = small(config, dtype, k=kind[1])
    frozen, g = whole(model, transcoders, prompt(config))
    assert graphs.sum_error(g) <= limit(dtype)
    assert g.nodes[-1] == Node("logit", config.n_layers, 11, 7)
    logits = model(frozen.tokens[None])[0, -1]
    assert g.value[-1].item() == pytest.approx((logits[7] - logits.mean()).item(), abs=1e-4)
    for l in range(config.n_layers):  # a latent that is on is its own pre-activation
        at = g.of("latent", l)
        f = torch.stack([frozen.f[l][g.nodes[i].pos, g.nodes[i].index] for i in at])
        assert (f - g.value[at]).abs().max() <= limit(dtype) * 10 and (f > 0).all()


@pytest.mark.parametrize("case", TRAINED)
def test_edges_sum_in_the_course_model(case):
    dtype = getattr(torch, case[1])
    model, transcoders = trained(dtype)
    from circuitbook import tokenizer

    tok = tokenizer.load()
    tokens = torch.tensor(tok.encode(SALLY))
    if dtype == torch.float64:
        tokens = tokens[:10]
    g = whole(model, transcoders, tokens, tok.token(" Sally"))[1]
    assert graphs.sum_error(g) <= limit(dtype)
    assert min(len(g.of("latent", l)) for l in (0, 1)) > 100


def test_each_part_of_the_sum_is_needed(toy):
    model, transcoders, frozen, g = toy
    for kind in ("token", "latent", "error", "biases"):
        left = g.edges.clone()
        left[:, g.of(kind)] = 0
        assert graphs.sum_error(g._replace(edges=left)) > 1e-2, kind
    # mutants: a transposed map, one layer's heads forgotten, a column in place of a row
    honest = graphs.back_through_heads

    def swapped(model, pattern, layer, G, scale):
        attn = model.blocks[layer].attn
        z = torch.einsum("tpd,hde->thpe", G, attn.W_V)
        moved = torch.einsum("hpk,thpe->thke", pattern, z)
        return G + torch.einsum("thke,hed->tkd", moved, attn.W_O)

    mutants = {
        "swapped": swapped,
        "no heads": lambda model, pattern, layer, G, scale: (
            G if layer else honest(model, pattern, layer, G, scale)
        ),
        "column": lambda model, pattern, layer, G, scale: honest(
            model, pattern.mT, layer, G, scale
        ),
        "no skip": lambda model, pattern, layer, G, scale: (
            honest(model, pattern, layer, G, scale) - G
        ),
    }
    for name, wrong in mutants.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(graphs, "back_through_heads", wrong)
            bad = graphs.build(model, transcoders, frozen, 7)
        assert graphs.sum_error(bad) > 1e-2, name


def test_an_edge_and_paths_are_what_a_token_takes_away():
    model, transcoders = small()
    tokens = torch.randperm(GELU.d_vocab - 1)[:11] + 1  # distinct: each has a row of its own
    tokens = torch.cat([torch.zeros(1, dtype=torch.int64), tokens])
    frozen, g = whole(model, transcoders, tokens)
    clean, latents = replay(model, transcoders, frozen), g.of("latent", 0)
    targets = g.of("latent", 1)[::9]
    share = g.edges[targets][:, latents] / g.value[latents]
    want = g.edges[targets][:, : len(tokens)] + share @ g.edges[latents][:, : len(tokens)]
    for j, token in enumerate(tokens.tolist()):
        W_E = model.W_E.clone()
        W_E[token] = 0
        after = replay(gauge.with_weights(model, W_E=W_E), transcoders, frozen)
        for t, path in zip(targets, want[:, j]):
            n = g.nodes[t]
            at = (0, n.pos, n.index)
            assert (clean.pre[1][at] - after.pre[1][at]).item() == pytest.approx(
                path.item(), abs=1e-9
            )


def test_no_edge_goes_against_time_or_up_the_layers(toy):
    g = toy[-1]
    order = {"token": -1, "biases": -1}
    for t, s in g.edges.nonzero().tolist():
        a, b = g.nodes[s], g.nodes[t]
        assert order.get(a.kind, a.layer) < b.layer
        assert a.kind == "biases" or a.pos <= b.pos
        assert b.kind in ("latent", "logit")
    kinds = {n.kind for n in g.nodes}
    assert kinds == set(graphs.KINDS)


def test_begin_of_sequence_has_no_latents(toy):
    _, transcoders, frozen, g = toy
    assert all(n.pos > 0 for n in g.nodes if n.kind == "latent")
    assert (transcoders[0].encode(frozen.read[0])[0] > 0).any()  # it would have had some
    assert len(g.of("error", 0)) == len(frozen.tokens)


def test_a_perfect_transcoder_leaves_no_error_and_a_dead_one_leaves_all():
    model, transcoders = small()
    blank = [replace(t, b_enc=t.b_enc - 1e3) for t in transcoders]
    frozen, g = whole(model, blank, prompt())
    assert not g.of("latent") and graphs.sum_error(g) <= 1e-11
    relu = model_of(replace(GELU, act="relu", mlp_bias=True), seed=4, scale=2.0)
    exact = [
        type(transcoders[0])(b.mlp.W_in, b.mlp.b_in, b.mlp.W_out, b.mlp.b_out, 0)
        for b in relu.blocks
    ]
    frozen, g = whole(relu, exact, prompt())
    assert max(e[1:].abs().max().item() for e in frozen.error) < 1e-12
    assert graphs.sum_error(g) <= 1e-11
    assert g.edges[:, [i for i in g.of("error") if g.nodes[i].pos]].abs().max() < 1e-11


def test_patterns_are_taken_as_given():
    model, transcoders = small()
    tokens = prompt()
    k_cut = cut.cut_path(model, (0, 1), (1, 2), "k")
    frozen, g = whole(model, transcoders, tokens)
    held = graphs.freeze(
        model, transcoders, tokens, k_cut + cut.freeze_patterns(model, tokens[None])
    )
    assert torch.equal(graphs.build(model, transcoders, held, 7).edges, g.edges)
    again = graphs.freeze(model, transcoders, tokens, k_cut)
    assert (again.patterns[1] - frozen.patterns[1]).abs().max() > 1e-3
    assert graphs.sum_error(graphs.build(model, transcoders, again, 7)) <= 1e-11


def test_what_cannot_be_a_graph_is_refused():
    model, transcoders = small()
    with pytest.raises(ValueError, match="as many transcoders"):
        graphs.freeze(model, transcoders[:1], prompt())
    for wrong in (TINY, replace(TINY, norm="layernorm_pre", positions="standard")):
        other = model_of(wrong)
        with pytest.raises(ValueError, match="needs MLPs"):
            graphs.freeze(other, random_transcoders(other), prompt(wrong))


# ---- influence and pruning ----------------------------------------------------------------------


def by_hand():
    """token a -> latent (3), token b -> latent (-1); latent -> logit (6), error -> logit (2)."""
    nodes = [
        Node("token", -1, 0),
        Node("token", -1, 1),
        Node("biases", -1, 0),
        Node("latent", 0, 1, 4),
        Node("error", 0, 1),
        Node("logit", 1, 1, 9),
    ]
    edges = torch.zeros(6, 6, dtype=torch.float64)
    edges[3, 0], edges[3, 1], edges[5, 3], edges[5, 4] = 3.0, -1.0, 6.0, 2.0
    return Graph(nodes, edges, edges.sum(1))


def test_influence_by_hand():
    g = by_hand()
    assert prune.influence(g.edges).tolist() == [0.5625, 0.1875, 0, 0.75, 0.25, 0]
    assert prune.leaf_shares(g) == {"tokens": 0.75, "biases": 0.0, "errors 0": 0.25}
    both = prune.edge_influence(g.edges, prune.influence(g.edges))
    assert both[3].tolist() == [0.5625, 0.1875, 0, 0, 0, 0] and both[5, 3] == 0.75
    # mutants: signed shares, shares of the source's column, direct edges only
    signed = g.edges / g.edges.sum(1, keepdim=True).where(g.edges.sum(1, keepdim=True) != 0, 1)
    assert (signed[5, 3] * signed[3, 0]).item() == 1.125
    assert prune.influence(g.edges.mT)[0] != 0.5625


def test_influence_is_the_series_and_ends_in_leaves(toy):
    g = toy[-1]
    S = prune.shares(g.edges)
    inverse = torch.linalg.inv(torch.eye(len(S), dtype=S.dtype) - S)
    want = (inverse - torch.eye(len(S), dtype=S.dtype))[-1]
    assert torch.allclose(prune.influence(g.edges), want, atol=1e-12)
    assert sum(prune.leaf_shares(g).values()) == pytest.approx(1, abs=1e-12)
    scaled = g.edges.clone()
    scaled[g.of("latent", 1)[0]] *= 7  # a row's size says nothing, its shares do
    assert torch.allclose(prune.influence(scaled), want, atol=1e-12)


def test_pruning_says_what_it_drops(toy):
    g = toy[-1]
    everything = prune.prune(g, 10_000, 1_000_000)
    score = prune.influence(g.edges)
    assert everything.node_share == pytest.approx(1) and everything.edge_share == pytest.approx(1)
    few = prune.prune(g, 10, 30)
    inner = [i for i, n in enumerate(g.nodes) if n.kind in ("latent", "error") and few.keep[i]]
    assert 0 < len(inner) <= 10 and int(few.edges.sum()) <= 30
    assert few.edges[:, ~few.keep].sum() == 0 and few.edges[~few.keep].sum() == 0
    assert sum(few.into_logit) == pytest.approx(g.value[-1].item(), abs=1e-10)
    kept = (g.edges * few.edges).sum(1)
    assert torch.allclose(kept + few.dropped, g.edges.sum(1), atol=1e-12)
    all_inner = torch.tensor([n.kind in ("latent", "error") for n in g.nodes])
    assert few.node_share == pytest.approx((score[inner].sum() / score[all_inner].sum()).item())
    for i in inner:  # every kept node leads somewhere
        assert few.edges[:, i].any()
    assert min(score[i] for i in inner) > 0
    strongest = (score * all_inner).argsort(descending=True)[:10]  # tokens take no place
    wide = prune.prune(g, 10, 1_000_000).keep & all_inner
    assert wide.nonzero()[:, 0].tolist() == sorted(strongest.tolist())
    shares = [prune.prune(g, n, 200).node_share for n in (2, 8, 20)]
    assert shares == sorted(shares)


def test_a_node_that_leads_nowhere_is_pruned():
    g = by_hand()
    assert prune.prune(g, 5, 10).keep.tolist() == [True] * 6
    only = prune.prune(g, 5, 1)  # the strongest edge alone: latent -> logit
    assert only.edges.nonzero().tolist() == [[5, 3]]
    assert only.keep.tolist() == [True, True, True, True, False, True]
    assert only.into_logit == (6.0, 2.0)


# ---- labels -------------------------------------------------------------------------------------


@pytest.mark.weights
def test_labels_of_planted_latents():
    from circuitbook import tokenizer

    model, transcoders = trained(torch.float32)
    tok = tokenizer.load()
    aunt, god = tok.token(" Aunt"), tok.token(" God")
    W_enc, b_enc = torch.zeros(256, 2), torch.zeros(2)
    W_dec = torch.zeros(2, 256)
    W_enc[:, 0] = torch.linalg.solve(model.W_E.T @ model.W_E, model.W_E[aunt])
    W_dec[0] = torch.linalg.solve(model.W_U @ model.W_U.T, model.W_U[:, god])
    planted = replace(transcoders[0], W_enc=W_enc, b_enc=b_enc, W_dec=W_dec, k=1)
    told = label.reads_and_writes(model, planted, 0)
    assert told["reads"][0] == " Aunt" and told["writes"][0] == " God"


def test_contexts_are_the_strongest_places_and_stop_there():
    f = torch.zeros(3, 6)
    f[1, 4], f[2, 2] = 5.0, 3.0
    from circuitbook import tokenizer

    tok = tokenizer.load()
    ids = torch.tensor(tok.encode("the house and the garden"))[:6].repeat(3, 1)
    found = label.contexts(f, ids, n=3, before=2)
    assert found == [tok.decode(ids[1, 2:5].tolist()), tok.decode(ids[2, 1:3].tolist())]
