"""Chapter 10 on models of the published kind: LayerNorm, positions in the stream, biases."""

import dataclasses

import pytest
import torch
from small_model import gen

from circuitbook import fold
from circuitbook.bases import relative_change
from circuitbook.conditional import (
    levels,
    operators,
    product,
    route_groups,
    shares,
)
from circuitbook.conditional.operators import GAINS, PATTERNS, SCALES, inner, of_stream
from circuitbook.conditional.spots import Spots, read_by_mlp
from circuitbook.config import Config
from circuitbook.model import Transformer

BOTH = pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
CONFIG = Config(
    n_layers=2, d_model=32, n_heads=4, d_head=8, d_mlp=64, act="gelu", n_ctx=64, d_vocab=110,
    norm="layernorm", positions="standard", pos_kind="learned", attn_bias=True, unembed_bias=True,
)  # fmt: skip
HEADS = [(0, h) for h in range(4)]


def published(layers=2, dtype=torch.float64, attn_only=False, seed=0):
    """A random model with gains and biases, made ready as a published one is."""
    config = CONFIG.replace(n_layers=layers)
    if attn_only:
        config = config.replace(d_mlp=0, act="none")
    model = Transformer(config, seed=seed).to(torch.float64).requires_grad_(False)
    for i, (name, p) in enumerate(model.named_parameters()):
        draw = torch.randn(p.shape, generator=gen(i), dtype=torch.float64)
        p.copy_(3 * p if "W_" in name else (name.endswith(".w") + 0.3 * draw))
    folded = fold.fold_value_biases(fold.center_writing_weights(fold.fold_layer_norm(model)))
    ready = fold.center_unembed(folded).requires_grad_(False)
    assert torch.allclose(
        ready(tokens()).log_softmax(-1), model(tokens()).log_softmax(-1), atol=1e-9
    )
    return ready.to(dtype)


def tokens(n=3, length=12):
    out = torch.randint(1, CONFIG.d_vocab, (n, length), generator=gen(3))
    out[:, 0] = 0
    return out


def spots_of(n=5):
    at = torch.stack([torch.randperm(10, generator=gen(i))[:3] + 1 for i in range(n)])
    return Spots(tokens(n), at, torch.arange(n))


# ---- routes --------------------------------------------------------------------------------------


@BOTH
def test_routes_and_product_give_the_logits(dtype, limit):
    e = product.errors(published(dtype=dtype), tokens())
    assert e["routes"] < limit and e["product"] < limit
    assert e["parallel"] > 1e-2
    assert e["token routes"] == e["position routes"] == ((1 + 4) * 2) ** 2


def sum_of(model, keep=lambda route: True):
    """Logits of the kept routes' sum, the final scale held."""
    done = product.record(model, tokens())
    found = product.routes(done)
    kept = [i for i, r in enumerate(found.routes) if keep(r)]
    last = operators.held(model.ln_final, done.last)
    return model.unembed(last.apply(found.writes[kept].sum(0)))


@pytest.mark.parametrize("lost", ["position", "heads", "MLP", "scale of a layer", "unembedding"])
def test_a_sum_without_one_thing_misses(lost, monkeypatch):
    model = published()
    right = model(tokens())
    assert relative_change(right, sum_of(model)) < 1e-10
    if lost == "scale of a layer":
        honest = operators.norm_forward

        def unscaled(x, *a, **k):
            op = honest(x, *a, **k)
            return dataclasses.replace(op, act=lambda y: y - y.mean(-1, keepdim=True))

        monkeypatch.setattr(operators, "norm_forward", unscaled)
        wrong = sum_of(model)
    elif lost == "unembedding":
        wrong = sum_of(model) - model.unembed.b_U
    elif lost == "position":
        wrong = sum_of(model, lambda r: r.source != "position")
    else:
        wrong = sum_of(model, lambda r: r.source != "constant" or not r.path[0].startswith(lost))
    assert relative_change(right, wrong) > 1e-2


def test_single_routes_by_hand():
    m = published()
    _, cache = m.run_with_cache(tokens())
    found = product.routes(product.record(m, tokens()))
    by_name = dict(zip(found.routes, found.writes, strict=True))
    start = {"token": m.W_E[tokens()], "position": m.W_pos[:12].expand(3, -1, -1)}
    paths = [(), ("0.1",), ("MLP 0",), ("0.3", "MLP 0", "1.2", "MLP 1"), ("0.1", "1.1")]
    for source, x0 in start.items():
        for path in paths:
            x = x0
            for word in path:
                l = int(word.split(".")[0].split()[-1])
                block, where = m.blocks[l], "ln2" if word.startswith("MLP") else "ln1"
                x = (x - x.mean(-1, keepdim=True)) / cache[f"blocks.{l}.{where}.hook_scale"]
                if where == "ln2":
                    gain = torch.special.ndtr(cache[f"blocks.{l}.mlp.hook_pre"])
                    x = (x @ block.mlp.W_in * gain) @ block.mlp.W_out
                else:
                    h, A = int(word.split(".")[1]), cache[f"blocks.{l}.attn.hook_pattern"]
                    x = A[:, h] @ x @ block.attn.W_V[h] @ block.attn.W_O[h]
            assert torch.allclose(by_name[product.Route(source, path)], x, atol=1e-10), path


def test_groups_add_up_to_the_centred_logit():
    m, spots = published(), spots_of()
    found = route_groups.text_study(m, spots)
    logits = m(spots.tokens)
    centred = logits - logits.mean(-1, keepdim=True)
    rows = torch.arange(5)[:, None]
    mean = centred[rows, spots.at, spots.following()].mean().item()
    assert found["logit"][0] == pytest.approx(mean, abs=1e-10)
    depth, bias = found["by depth"], found["by depth"][route_groups.UNEMBEDDING][0]
    assert abs(bias) > 1e-3
    assert sum(v[0] for v in depth.values()) == pytest.approx(mean, abs=1e-10)
    for key in ("by steps", "sources"):
        assert sum(v[0] for v in found[key].values()) == pytest.approx(mean - bias, abs=1e-10)
    assert set(found["sources"]) == {"token", "position", "constant"}
    assert found["routes"] == 100 and found["bias routes"] == 20 + 2
    two = sum(v[0] for k, v in depth.items() if k.startswith("2 heads"))
    assert sum(map(sum, found["pairs"])) == pytest.approx(two, abs=1e-10)


def test_ways_to_a_reader_know_positions_and_biases():
    way = route_groups.before_and_after
    assert way(product.Route("position", ("1.3", "MLP 1")), "1.3") == ("position", "MLP 1")
    assert way(product.Route("position", ("0.1", "1.3")), "1.3") == ("head", "direct")
    assert way(product.Route("constant", ("heads 0", "1.3")), "1.3")[0] == "bias of the heads"
    assert way(product.Route("constant", ("MLP 0", "1.3")), "1.3")[0] == "bias row"


# ---- shares --------------------------------------------------------------------------------------


@BOTH
def test_parts_and_directions(dtype, limit):
    m, spots = published(dtype=dtype), spots_of()
    read = read_by_mlp(m, spots)
    name = "blocks.1.hook_resid_mid"
    mid = m.run_with_cache(spots.tokens, names_filter=name)[1][name]
    assert relative_change(product.pick(mid, spots.at).flatten(0, 1), read.x) < limit
    assert {"position", "bias 0", "bias 1", "MLP 0"} < set(read.names)
    lost = read.writes[[n != "position" for n in read.names]].sum(0)
    assert relative_change(read.x, lost) > 1e-2
    last = read.x + m.blocks[1].mlp(m.blocks[1].ln2(read.x[None]))[0]
    logits = m(spots.tokens)
    right = (logits - logits.mean(-1, keepdim=True)).gather(-1, spots.tokens.roll(-1, 1)[..., None])
    right = product.pick(right, spots.at).flatten()
    found = (last * read.u).sum(-1)
    assert relative_change(right, found + spots.constant(m)) < 10 * limit
    assert relative_change(right, found) > 1e-2  # the unembedding's bias forgotten
    raw = (last * spots.direction(m).flatten(0, 1)).sum(-1) + spots.constant(m)
    assert relative_change(right, raw) > 1e-2  # the final scale forgotten


@BOTH
def test_forward_and_jacobian_of_norm_and_mlp(dtype, limit):
    m, spots = published(1, dtype), spots_of()
    x, mlp = read_by_mlp(m, spots).x, of_stream(m.blocks[0])
    op, J = operators.forward(mlp, "gelu", x), operators.jacobian(mlp, "gelu", x)
    y = mlp(x[None])[0]
    assert relative_change(y, op.apply(x)) < limit and set(op.frozen) == {SCALES, GAINS}
    dx = torch.randn(x.shape, generator=gen(5)).to(x)
    dy = torch.func.jvp(lambda v: mlp(v[None])[0], (x,), (dx,))[1]
    assert relative_change(dy, dx @ J) < 10 * limit
    held = operators.held(mlp.norm, x) @ operators.jacobian(inner(mlp), "gelu", mlp.norm(x))
    assert relative_change(dy, dx @ held) > 1e-2  # n^T n / d forgotten
    unscaled = operators.forward(inner(mlp), "gelu", x)  # the norm forgotten
    assert relative_change(y, unscaled.apply(x)) > 1e-2
    assert relative_change(y, x @ op) > 1e-2  # the bias row forgotten


def test_three_numbers_about_a_part():
    m, spots = published(1), spots_of()
    read = read_by_mlp(m, spots)
    found = shares.all_shares(m, read)
    totals = shares.totals(m, read, found)
    assert max(totals["error"].values()) < 1e-12
    # Slopes through a norm sum to nothing; shares sum to the write less its bias row.
    assert abs(totals["sum"]["Jacobian"]) < 1e-3 * totals["M, size"]
    assert abs(totals["sum"]["forward"]) > 1e-2 * totals["M, size"]
    small = shares.all_shares(m, read._replace(writes=1e-5 * read.writes))
    assert relative_change(small["Jacobian"], small["effect"]) < 1e-3
    assert relative_change(small["forward"], small["effect"]) > 1e-2
    effect = found["effect"]
    assert shares.rerun_gap(m, spots, read, effect) < 1e-10
    assert shares.rerun_gap(m, spots, read, -effect) > 0.1


def test_the_rerun_needs_the_final_scale(monkeypatch):
    m, spots = published(1), spots_of()
    read = read_by_mlp(m, spots)
    honest = shares.stream_at
    monkeypatch.setattr(shares, "stream_at", lambda m, s, hooks, normed: honest(m, s, hooks, True))
    raw = read._replace(u=spots.direction(m).flatten(0, 1))
    effect = shares.effects(of_stream(m.blocks[0]), read)
    assert shares.rerun_gap(m, spots, raw, effect) > 1e-2


def test_gain_or_slope_behind_a_norm():
    m, spots = published(1), spots_of()
    read, mlp = read_by_mlp(m, spots), of_stream(m.blocks[0])
    found = shares.all_shares(m, read)
    out = shares.curve(mlp, "gelu", read, found, spots.doc_of_each())
    assert set(out) == {"neurons", "falling", "others", "all"} and 0 < out["neurons"] < 1
    held = operators.held(mlp.norm, read.x) @ operators.jacobian(
        inner(mlp), "gelu", mlp.norm(read.x)
    )
    rank = shares.pooled(shares.linear(read, held), found["effect"])
    assert out["all"]["rank correlation"][0] == pytest.approx(rank, abs=1e-9)
    assert rank != pytest.approx(shares.pooled(found["Jacobian"], found["effect"]), abs=1e-6)


def test_euler_of_a_normed_block_is_zero():
    from circuitbook.conditional.operator_study import trained_euler

    m, spots = published(1), spots_of()
    alone, both = trained_euler(m, spots), trained_euler(m, spots, True)
    assert abs(both["ratio"]) < 1e-3 and alone["ratio"] > 0.3
    assert alone["bias"] == pytest.approx(both["bias"])


# ---- levels --------------------------------------------------------------------------------------


@BOTH
def test_with_everything_held_a_removal_is_the_sum_of_its_routes(dtype, limit):
    m, spots = published(dtype=dtype), spots_of()
    what = next(iter(levels.levels_of(m).values()))
    assert what == (PATTERNS, SCALES, GAINS)
    done = product.record(m, spots.tokens)
    found = product.routes(done, spots.at)
    toward = found.toward(product.direction(done, spots.direction(m), spots.at))
    through = torch.stack([
        sum(t for r, t in zip(found.routes, toward, strict=True) if f"0.{h}" in r.path)
        for _, h in HEADS
    ])  # fmt: skip
    assert relative_change(through, levels.removals(m, spots, HEADS, what)) < 10 * limit
    for less in ((PATTERNS, GAINS), (PATTERNS, SCALES), (SCALES, GAINS), ()):
        assert relative_change(through, levels.removals(m, spots, HEADS, less)) > 1e-2


def test_first_order_lets_norms_answer():
    m, spots = published(1), spots_of()
    read, block = read_by_mlp(m, spots), m.blocks[0]
    rate = levels.removals(m, spots, HEADS, (levels.NORM_SLOPES, levels.SLOPES))
    u = spots.direction(m).flatten(0, 1)

    def top(x):
        return m.ln_final(x + block.mlp(block.ln2(x[None]))[0])

    for row, (_, h) in zip(rate, HEADS, strict=True):
        w = read.writes[read.names.index(f"head 0.{h}")]
        want = (torch.func.jvp(top, (read.x,), (w,))[1] * u).sum(-1)
        assert torch.allclose(row, want, atol=1e-10)
    held = levels.removals(m, spots, HEADS, (SCALES, levels.SLOPES))
    assert relative_change(rate, held) > 1e-2


def test_holding_changes_nothing_while_nothing_is_removed():
    m, spots = published(), spots_of()
    clean = shares.stream_at(m, spots, [])
    every = [*levels.levels_of(m).values(), (PATTERNS, levels.NORM_SLOPES, levels.SLOPES)]
    for what in every:
        held = shares.stream_at(m, spots, list(levels.hold(m, spots, what).hooks))
        assert relative_change(clean, held) < 1e-12
    names = list(levels.compare(m, spots, HEADS, first_order=True)["levels"])
    assert names[0] == "patterns + norm slopes + MLP slopes" and len(names) == 5
