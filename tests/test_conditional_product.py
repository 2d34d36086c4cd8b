"""The product of a realised pass and its routes, in every kind of model."""

import pytest
import torch
from small_model import TINY, gen, model_of, tokens_of

from circuitbook.bases import relative_change
from circuitbook.conditional import product, route_groups
from circuitbook.conditional.product import Route
from circuitbook.conditional.spots import Spots

KINDS = {
    "gelu": {"d_mlp": 24, "act": "gelu"},
    "relu": {"d_mlp": 24, "act": "relu"},
    "swiglu": {"d_mlp": 24, "act": "swiglu"},
    "bilinear": {"d_mlp": 24, "act": "bilinear"},
    "mixture": {"d_mlp": 12, "act": "gelu", "n_experts": 4, "top_k": 2},
    "switch": {"d_mlp": 12, "act": "swiglu", "n_experts": 3, "top_k": 1},
    "normed": {"d_mlp": 24, "act": "gelu_new", "norm": "layernorm", "positions": "standard",
               "attn_bias": True, "unembed_bias": True},
}  # fmt: skip


def model(kind, dtype=torch.float64, layers=2):
    return model_of(TINY.replace(**KINDS[kind], n_layers=layers), dtype=dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_routes_and_product_give_the_logits_and_parallel_sublayers_do_not(kind, dtype):
    e = product.errors(model(kind, dtype), tokens_of())
    limit = 1e-4 if dtype == torch.float32 else 1e-11
    assert e["routes"] < limit and e["product"] < limit
    assert e["parallel"] > 1e-2
    assert e["token routes"] == ((1 + 2) * 2) ** 2


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_number_of_routes(layers):
    done = product.record(model("gelu", layers=layers), tokens_of(n=1, length=4))
    found = product.routes(done)
    token = [r for r in found.routes if r.source == "token"]
    assert len(set(token)) == len(token) == 6**layers
    constant = [r for r in found.routes if r.source == "constant"]
    # the MLP of block l starts a route that has 6 ways through each later block
    assert len(set(constant)) == len(constant) == sum(6**k for k in range(layers))
    assert all(r.path[0].startswith("MLP") for r in constant)


def by_hand(m, tokens, path):
    """One route of a model without norm, step by step with dense matrices."""
    _, cache = m.run_with_cache(tokens)
    x, one = m.W_E[tokens], 1.0
    for word in path:
        if word.startswith("MLP"):
            l = int(word[-1])
            mlp, pre = m.blocks[l].mlp, cache[f"blocks.{l}.mlp.hook_pre"]
            gain = torch.special.ndtr(pre)
            x = (((x @ mlp.W_in + one * mlp.b_in) * gain) @ mlp.W_out) + one * mlp.b_out
        else:
            l, h = map(int, word.split("."))
            A, attn = cache[f"blocks.{l}.attn.hook_pattern"][:, h], m.blocks[l].attn
            x = A @ x @ (attn.W_V[h] @ attn.W_O[h])
        one = 0.0
    return x


def test_single_routes_by_hand():
    m, tokens = model("gelu"), tokens_of()
    found = product.routes(product.record(m, tokens))
    paths = route_groups.grouped(found, found.writes.flatten(1), lambda r: r.path)
    for path in [(), ("0.1",), ("MLP 0",), ("0.0", "MLP 0", "1.1", "MLP 1"), ("MLP 0", "1.0"),
                 ("0.1", "1.1"), ("MLP 1",)]:  # fmt: skip
        want = by_hand(m, tokens, path).flatten()
        assert torch.allclose(paths[path], want, atol=1e-10), path
    wrong = by_hand(m, tokens, ("0.1",)) @ m.blocks[0].mlp.W_in @ m.blocks[0].mlp.W_out
    assert not torch.allclose(paths[("0.1", "MLP 0")], wrong.flatten(), atol=1e-2)  # no gains


def test_chosen_positions_are_those_of_all():
    done = product.record(model("normed"), tokens_of())
    at = torch.tensor([[1, 7], [0, 9], [4, 5]])
    some, every = product.routes(done, at), product.routes(done)
    assert some.routes == every.routes
    assert torch.allclose(some.writes, product.pick(every.writes, at), atol=1e-11)
    u = torch.randn(3, 2, 16, generator=gen(), dtype=torch.float64)
    total = some.toward(u).sum(0)
    last = (product.pick(done.last, at) * u).sum(-1).flatten()
    assert torch.allclose(total, last, atol=1e-10)


@pytest.mark.parametrize("kind", ["gelu", "swiglu", "normed"])
def test_four_routes_of_one_block(kind):
    done = product.record(model(kind), tokens_of())
    for content in (1.0, 0.0) if kind == "swiglu" else (1.0,):
        first = product.four_routes(done, 0, content)
        after = done.steps[2].read  # what block 1 reads
        assert relative_change(after, sum(first.values())) < 1e-12
        lost = {k: v for k, v in first.items() if k != "B A X"}
        assert relative_change(after, sum(lost.values())) > 1e-2


def test_gated_models_have_many_exact_products():
    done = product.record(model("swiglu"), tokens_of())
    a, b = (product.routes(done, content=c).writes for c in (1.0, 0.0))
    assert relative_change(a.sum(0), b.sum(0)) < 1e-11  # one sum
    assert relative_change(a, b) > 0.1  # other summands
    halves = product.product(done, content=0.5).apply(done.start)
    assert relative_change(done.last, halves) < 1e-12


def test_a_product_moves_information_and_has_no_matrix_per_position():
    done = product.record(model("gelu"), tokens_of())
    whole = product.product(done)
    assert whole.moves and set(whole.frozen) == {"patterns", "MLP gains"} and whole.one == 1
    with pytest.raises(ValueError, match="between positions"):
        whole.matrix()


# ---- groups --------------------------------------------------------------------------------------


def test_names_and_groups():
    r = Route("token", ("0.1", "MLP 0", "1.3"))
    assert r.heads == ("0.1", "1.3") and r.mlps == ("MLP 0",)
    assert route_groups.by_depth(r) == "2 heads, MLP 0"
    assert route_groups.by_depth(Route("token", ())) == "no head, no MLP"
    assert route_groups.by_depth(Route("constant", ("MLP 0", "1.3"))) == "bias row of MLP 0"
    assert route_groups.before_and_after(r, "1.3") == ("head, MLP 0", "direct")
    assert route_groups.before_and_after(Route("token", ("1.3", "MLP 1")), "1.3") == (
        "token",
        "MLP 1",
    )
    assert route_groups.before_and_after(Route("token", ("1.2",)), "1.3") is None
    assert (
        route_groups.before_and_after(Route("constant", ("MLP 0", "1.3")), "1.3")[0] == "bias row"
    )


def test_groups_add_up():
    m, tokens = model("gelu"), tokens_of(n=4)
    spots = Spots(tokens, torch.tensor([[2, 6], [3, 5], [1, 8], [4, 7]]), torch.arange(4))
    found = route_groups.text_study(m, spots)
    logits = m(tokens)
    centred = logits - logits.mean(-1, keepdim=True)
    rows = torch.arange(4)[:, None]
    mean = centred[rows, spots.at, spots.following()].mean().item()
    assert found["logit"][0] == pytest.approx(mean, abs=1e-10)
    for key in ("by depth", "by steps"):
        assert sum(v[0] for v in found[key].values()) == pytest.approx(mean, abs=1e-10)
    assert found["routes"] == 36 and found["constant"] == 7 and found["cancel"] > 1
    two = sum(v[0] for k, v in found["by depth"].items() if k.startswith("2 heads"))
    assert sum(map(sum, found["pairs"])) == pytest.approx(two, abs=1e-10)


def test_groups_of_five_routes_by_hand():
    paths = ((), ("0.1", "MLP 0", "1.0"), ("0.1", "1.0", "MLP 1"), ("0.0", "MLP 0", "MLP 1"))
    routes = [Route("token", path) for path in paths] + [Route("constant", ("MLP 0", "1.1"))]
    found = product.Routes(routes, torch.zeros(5, 1, 1, 3, dtype=torch.float64))
    toward = torch.tensor([[1.0], [2.0], [4.0], [8.0], [16.0]], dtype=torch.float64)

    def sums(key):
        groups = route_groups.grouped(found, toward, key)
        return {name: value.item() for name, value in groups.items()}

    assert sums(route_groups.by_steps) == {"0 MLPs": 1, "1 MLPs": 22, "2 MLPs": 8}
    assert sums(route_groups.by_depth) == {
        "no head, no MLP": 1, "2 heads, MLP 0": 2, "2 heads, MLP 1": 4,
        "1 head, MLP 0 + MLP 1": 8, "bias row of MLP 0": 16,
    }  # fmt: skip
    pairs = route_groups.pairs(found, toward, 2)  # row: the head of layer 0
    assert pairs.tolist() == [[0, 0], [6, 0]]


def test_what_cancels_by_chance():
    """n equal routes add up to n, with random signs to about sqrt(n); a single one, to itself."""
    middle, low, high = route_groups.chance(torch.ones(401, 3, dtype=torch.float64))
    assert 20 < middle < 45 and low < middle < high  # 401 / (20 |N(0, 1)|): the median is 30
    one = torch.zeros(5, 3, dtype=torch.float64)
    one[2] = torch.tensor([1.0, 2.0, 3.0])
    assert route_groups.chance(one) == (1.0, 1.0, 1.0)


@pytest.mark.weights
@pytest.mark.parametrize("role", ["gelu-2l", "relu-1l", "gelu-1l"])
def test_trained_models(role):
    from circuitbook import zoo

    tokens = torch.randint(1, 4096, (1, 12), generator=gen(5))
    tokens[:, 0] = 0
    for dtype, limit in ((torch.float32, 1e-4), (torch.float64, 1e-11)):
        e = product.errors(zoo.load(role, device="cpu", dtype=dtype), tokens)
        assert e["routes"] < limit and e["product"] < limit and e["parallel"] > 1e-2
    assert e["token routes"] == (324 if role == "gelu-2l" else 18)
