"""A head's derivative in three routes, against automatic gradients of the model's attention."""

import functools
import inspect

import pytest
import torch
from small_model import TINY, gen, model_of, tokens_of

from circuitbook import cut, probe
from circuitbook.conditional import attention_jacobian, attention_study
from circuitbook.conditional.attention_jacobian import Head, heads_write, routes, weights

ROLES = ("attn-only-2l", "gelu-2l")
LIMIT = {torch.float32: 1e-5, torch.float64: 1e-10}
trained = pytest.mark.parametrize(
    "role", ["random", *(pytest.param(r, marks=pytest.mark.weights) for r in ROLES)]
)


@functools.cache
def load(role, dtype):
    if role == "random":
        return model_of(dtype=dtype)
    from circuitbook import zoo

    return zoo.load(role, dtype=dtype, device="cpu")


def setting(role, dtype, layer):
    """(model, x, dx, place): what a layer reads of random tokens, and a random direction."""
    model = load(role, dtype)
    tokens = tokens_of(model.cfg, n=2, length=14)
    name = f"blocks.{layer}.hook_resid_pre"
    x = cut.run(model, tokens, names=[name])[1][name]
    dx = torch.randn(x.shape, generator=gen(5)).to(x) * x.std()
    return model, x, dx, model.W_pos[: x.shape[1]]


def gap(got, want):
    return ((got - want).abs().max() / want.abs().max()).item()


def by_gradient(model, layer, x, dx, place):
    """The three routes summed over heads, each input of the model's own attention moved alone."""
    attn, inputs = model.blocks[layer].attn, [x + place, x + place, x]
    moved = []
    for i in range(3):

        def alone(y, i=i):
            return attn(*(y if j == i else z for j, z in enumerate(inputs)))

        moved.append(torch.func.jvp(alone, (inputs[i],), (dx,))[1])
    return dict(zip(("query", "key", "value"), moved, strict=True))


@trained
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_route_is_the_derivative_by_its_input(role, dtype):
    for layer in (0, 1):
        model, x, dx, place = setting(role, dtype, layer)
        found = routes(x, dx, place, weights(model, layer))
        want = by_gradient(model, layer, x, dx, place)
        for name in attention_jacobian.ROUTES:
            assert gap(getattr(found, name).sum(1), want[name]) <= LIMIT[dtype], name
        assert gap(found.total().sum(1), sum(want.values())) <= LIMIT[dtype]


@trained
def test_the_heads_written_here_are_the_models(role):
    model, x, _, place = setting(role, torch.float64, 1)
    want = model.blocks[1].attn(x + place, x + place, x)
    assert gap(heads_write(x, place, weights(model, 1)).sum(1), want) <= 1e-12
    one = heads_write(x, place, weights(model, 1, [1]))
    assert torch.allclose(one[:, 0], heads_write(x, place, weights(model, 1))[:, 1])


SOURCE = inspect.getsource(attention_jacobian)
MUTANTS = {
    "softmax mean dropped": ("ds - (pattern * ds).sum(-1, keepdim=True)", "ds"),
    "no square root": ("ds = ds / w.W_Q.shape[-1] ** 0.5", "ds = ds"),
    "K without transpose": ("q @ dk.mT", "dk @ q.mT"),
    "query moved by W_K": ("(dq @ k.mT)", "(dk @ k.mT)"),
    "value not projected back": ("pattern @ dv @ w.W_O", "dv @ w.W_O"),
    "positions forgotten": ("x if place is None else x + place", "x"),
    "no mask": (".masked_fill(later, -torch.inf)", ""),
}


@pytest.mark.parametrize("mutant", MUTANTS)
@trained
def test_a_mistake_in_the_derivative_shows(role, mutant):
    old, new = MUTANTS[mutant]
    assert SOURCE.count(old) == 1
    broken = {"__name__": "broken"}
    exec(SOURCE.replace(old, new), broken)
    model, x, dx, place = setting(role, torch.float64, 1)
    want = sum(by_gradient(model, 1, x, dx, place).values())
    head = broken["Head"](*weights(model, 1))
    assert gap(broken["routes"](x, dx, place, head).total().sum(1), want) > 1e-2


def test_what_cannot_move_a_pattern_has_no_query_and_no_key_route():
    """A score that rises by the same for all keys of a query leaves the softmax alone."""
    model, x, dx, place = setting("random", torch.float64, 1)
    same = dx[:, :1].expand_as(dx).contiguous()
    found = routes(x, same, place, weights(model, 1))
    assert found.key.abs().max() <= 1e-12 * found.value.abs().max()
    assert found.query.abs().max() > 1e-2 * found.value.abs().max()


def test_nothing_reads_the_future_and_the_derivative_is_linear():
    model, x, dx, place = setting("random", torch.float64, 1)
    w = weights(model, 1)
    late = dx.clone()
    late[:, :9] = 0
    for y in routes(x, late, place, w):
        assert torch.all(y[:, :, :9] == 0)
        assert y[:, :, 9:].abs().max() > 0
    a, b = routes(x, 2 * dx - 3 * late, place, w), routes(x, dx, place, w)
    c = routes(x, late, place, w)
    for p, q, r in zip(a, b, c, strict=True):
        assert torch.allclose(p, 2 * q - 3 * r, atol=1e-12)


def test_a_head_that_looks_at_all_alike_has_a_value_route_only():
    model, x, dx, place = setting("random", torch.float64, 1)
    w = weights(model, 1)
    blind = Head(torch.zeros_like(w.W_Q), w.W_K, w.W_V, w.W_O)
    found = routes(x, dx, place, blind)
    assert torch.all(found.missed() == 0)
    mean = (dx.cumsum(1) / torch.arange(1, dx.shape[1] + 1)[:, None])[:, None]
    assert torch.allclose(found.value, mean @ w.W_V @ w.W_O, atol=1e-12)


def test_errors_say_what_to_do():
    model, x, dx, place = setting("random", torch.float64, 1)
    with pytest.raises(ValueError, match="one shape"):
        routes(x, dx[:1], place, weights(model, 1))


# ---- what the study reads ------------------------------------------------------------------------


def repeats(n=4):
    return probe.repeated_batch(
        torch.arange(1, TINY.d_vocab), n, copies=2, block=4, gap=(2, 4), generator=gen(1)
    )


def test_the_table_on_a_small_model():
    model, tokens = model_of(), tokens_of()
    found = attention_study.table(model, tokens, 1, gen(0))
    names = ["embedding", "head 0.0", "head 0.1"]
    assert list(found) == [x for n in names for x in (n, f"random as {n}")]
    x, writes = attention_study.directions(model, tokens, 1)
    assert torch.allclose(x, sum(writes.values()))
    made = routes(x, writes["head 0.1"], model.W_pos[:10], weights(model, 1))
    rms = made.missed()[:, :, 1:].square().sum(-1).mean((0, 2)).sqrt()
    whole = made.total()[:, :, 1:].square().sum(-1).mean((0, 2)).sqrt()
    assert torch.allclose(found["head 0.1"]["missed"], rms / whole)
    u = attention_study.next_token(model, tokens)
    logits = model.unembed(u)  # only to have the shape; u itself is checked by its definition
    assert logits.shape[-1] == TINY.d_vocab and torch.all(u[:, -1] == 0)
    centred = model.W_U - model.W_U.mean(-1, keepdim=True)
    assert torch.allclose(u[0, 2], centred[:, tokens[0, 3]])


def test_random_directions_are_as_long():
    w = torch.randn(2, 5, 16, generator=gen(0), dtype=torch.float64)
    other = attention_study.like(w, gen(1))
    assert torch.allclose(other.norm(dim=-1), w.norm(dim=-1))
    assert (torch.nn.functional.cosine_similarity(other, w, dim=-1).abs() < 0.9).all()


def test_first_order_and_cut_agree_along_values_and_for_small_writes():
    """Values: exactly. Keys and queries: when the write is small against the stream."""
    model, batch = model_of(TINY.replace(n_ctx=64)), repeats()
    found = attention_study.pair_routes(model, batch, (0, 1), (1, 0))
    assert torch.allclose(found.routes["value"], found.cut["value"], atol=1e-10)
    assert (found.routes["key"] - found.cut["key"]).abs().max() > 1e-3
    model.blocks[0].attn.W_O[1] *= 1e-6
    tiny = attention_study.pair_routes(model, batch, (0, 1), (1, 0))
    for name in attention_jacobian.ROUTES:
        first, gone = tiny.routes[name], tiny.cut[name]
        assert (first - gone).abs().max() <= 1e-2 * first.abs().max() > 0, name


def test_other_writes_are_made_as_long():
    model, batch = model_of(TINY.replace(n_ctx=64)), repeats()
    found = attention_study.pair_routes(model, batch, (0, 1), (1, 0))
    assert list(found.others) == ["head 0.0"]
    model.blocks[0].attn.W_O[0] *= 7.0  # a longer rival: made as long, so only later layers differ
    x, writes = attention_study.directions(model, batch.tokens, 1)
    want = writes["head 0.0"] / writes["head 0.0"].norm(dim=-1, keepdim=True)
    want = want * writes["head 0.1"].norm(dim=-1, keepdim=True)
    u = attention_study.next_token(model, batch.tokens)
    made = routes(x, want, model.W_pos[: x.shape[1]], weights(model, 1, [0]))
    rows = torch.arange(len(batch.tokens))[:, None]
    read = (made.key[:, 0] * u).sum(-1)[rows, batch.second[:, :-1]].mean(-1)
    again = attention_study.pair_routes(model, batch, (0, 1), (1, 0))
    assert torch.allclose(again.others["head 0.0"]["key"], read)


def pair_data(key=2.0, query=0.1, cut=1.8, other=0.3, missed=0.5):
    row = {"missed": [missed, 0.6], "size": [[1, 1]] * 3, "logit": [[1, 1]] * 3}
    first = {"key": [key, 0.1], "query": [query, 0.1], "value": [0.0, 0.0]}
    gone = {"key": [cut, 0.1], "query": [0.2, 0.1], "value": [0.0, 0.0]}
    model = {
        "pair": ["head 0.4", "head 1.7"],
        "table": {"embedding": row, "random as embedding": row},
        "routes": {"routes": first, "cut": gone, "others": {"head 0.1": {"key": [other, 0.1]}}},
    }
    return {
        "models": dict.fromkeys(ROLES, model),
        "identities": {"float32": {"limit": 1e-5, "ok": True}},
    }


@pytest.mark.parametrize(
    ("change", "fails"),
    [
        ({}, ()),
        ({"query": 1.5}, ("attnjac.pair_key",)),
        ({"other": 1.5}, ("attnjac.pair_key",)),
        ({"cut": 0.3}, ("attnjac.pair_cut",)),
        ({"missed": 0.05}, ("attnjac.frozen_misses",)),
    ],
)
def test_claims_fail_when_they_should(change, fails):
    made = attention_study.claims(pair_data(**change))
    assert len(made) == 8
    for c in made:
        assert c["holds"] is not c["id"].startswith(fails) if fails else c["holds"], c["id"]
