"""Finite changes as sums of small ones: rules, orders, whole models."""

import pytest
import torch
from small_model import TINY, gen, model_of, tokens_of

from circuitbook.circuits.metrics import logit_difference
from circuitbook.conditional import finite, finite_claims, finite_study
from circuitbook.conditional.radial import small_block

STEPS = (4, 8, 16, 32, 64)


@pytest.mark.parametrize(
    ("name", "degree"), [("midpoint", 1), ("trapezoid", 1), ("gauss", 2 * finite.ORDER - 1)]
)
def test_rules_are_exact_up_to_their_degree_and_no_further(name, degree):
    for steps in (1, 3):
        t, w = finite.rule(steps, name)
        assert abs(float(w.sum()) - 1) <= 1e-14
        for power in range(degree + 1):
            assert abs(float((w * t**power).sum()) - 1 / (power + 1)) <= 1e-14
    t, w = finite.rule(1, name)
    assert abs(float((w * t ** (degree + 1)).sum()) - 1 / (degree + 2)) > 1e-12


def test_bad_rules_are_refused():
    for call in (lambda: finite.rule(0), lambda: finite.rule(4, "simpson")):
        with pytest.raises(ValueError, match="needs steps"):
            call()


def ends(n=6, d=16, seed=1):
    x = torch.randn(2, n, d, generator=gen(seed), dtype=torch.float64)
    return x[0], x[1]


@pytest.mark.parametrize("act", ["gelu", "swiglu", "bilinear"])
def test_a_smooth_block_is_the_integral_of_its_jacobian(act):
    f = finite.rows(small_block(act, bias=True))
    x0, x1 = ends()
    got = finite.integral(f, x0, x1, 8, "gauss")
    change = f(x1) - f(x0)
    assert (got - change).norm() <= 1e-11 * change.norm()
    half = finite.integral(f, x0, x1, 8, "gauss", ends=(0.25, 0.75))
    middle = f(torch.lerp(x0, x1, 0.75)) - f(torch.lerp(x0, x1, 0.25))
    assert (half - middle).norm() <= 1e-11 * middle.norm()


def test_pieces_and_batches_do_not_matter():
    f = finite.rows(small_block("gelu", bias=True))
    x0, x1 = ends()
    want = finite.integral(f, x0, x1, 12)
    assert torch.allclose(finite.integral(f, x0, x1, 12, at_once=7), want, atol=1e-13)
    assert torch.allclose(finite.integral(f, x0[2], x1[2], 12), want[2], atol=1e-13)
    a, b = (finite.integral(f, x0, x1, 6, ends=e) for e in ((0.0, 0.5), (0.5, 1.0)))
    assert torch.allclose(a + b, want, atol=1e-13)


@pytest.mark.parametrize("act", ["gelu", "swiglu"])
@pytest.mark.parametrize("name", ["midpoint", "trapezoid"])
def test_smooth_blocks_are_of_second_order(act, name):
    f = finite.rows(small_block(act, bias=True))
    e = finite.errors(f, *ends(), STEPS, lambda f, a, b, k: finite.integral(f, a, b, k, name))
    assert 3.7 <= finite.fall(e) <= 4.3


def test_kinks_make_it_first_order():
    f = finite.rows(small_block("relu", bias=True))
    falls = [finite.fall(finite.errors(f, *ends(8, seed=s), STEPS)) for s in range(3)]
    assert all(1.5 <= x <= 2.8 for x in falls)
    assert finite.fall([8.0, 4.0, 2.0]) == 2.0


def test_a_wrong_sum_does_not_come_nearer():
    """Left ends instead of midpoints are of first order; one end's Jacobian never gets there."""
    f = finite.rows(small_block("gelu", bias=True))

    def left(f, x0, x1, steps):
        x = [torch.lerp(x0, x1, k / steps) for k in range(steps)]
        return sum(torch.func.jvp(f, (y,), (x1 - x0,))[1] for y in x) / steps

    def first(f, x0, x1, steps):
        return torch.func.jvp(f, (x0,), (x1 - x0,))[1]

    x0, x1 = ends()
    assert 1.8 <= finite.fall(finite.errors(f, x0, x1, STEPS, left)) <= 2.2
    assert finite.errors(f, x0, x1, (64,), first)[0] > 0.05
    assert finite.errors(f, x0, x1, (64,))[0] < 1e-3


def test_what_is_missing_is_taken_off():
    f = finite.rows(small_block("gelu", bias=True))
    x0, x1 = ends()
    size = (f(x1) - f(x0)).norm(dim=-1, keepdim=True)
    off = torch.ones_like(x0) / 4 * size  # every row is off by its own size
    found = finite.errors(f, x0, x1, (64,), missing=off)[0]
    assert abs(found - 1) < 1e-3


# ---- whole models --------------------------------------------------------------------------------


def task(model):
    tokens = tokens_of(model.cfg, n=6)
    right, wrong = torch.tensor([3, 4, 5]), torch.tensor([6, 7, 8])
    return tokens[:3], tokens[3:], logit_difference(torch.full((3,), 9), right, wrong)


def value(model, tokens, metric):
    return metric(model, model.stream(tokens), torch.arange(len(tokens)))


@pytest.mark.parametrize("more", [{}, {"d_mlp": 12, "act": "gelu"}])
def test_a_whole_model_is_the_integral_of_its_gradient(more):
    model = model_of(TINY.replace(**more), scale=2.0)
    tokens, others, metric = task(model)
    change = value(model, others, metric) - value(model, tokens, metric)
    got = finite.whole_model(model, tokens, others, metric, 16, "gauss")
    assert torch.allclose(got, change, rtol=1e-7)
    few = finite.whole_model(model, tokens, others, metric, 16, "gauss", rows_at_once=5)
    assert torch.allclose(few, got, rtol=1e-12)
    assert not torch.allclose(
        finite.whole_model(model, tokens, others, metric, 1), change, rtol=1e-3
    )


def test_the_slope_along_the_embeddings_is_the_slope():
    model = model_of()
    tokens, others, metric = task(model)
    which, h = torch.tensor([2, 0]), 1e-6
    t = torch.tensor([0.3, 0.8], dtype=torch.float64)
    f, slope = finite.along(model, tokens, others, metric, t, which)
    up, down = (finite.along(model, tokens, others, metric, t + s * h, which)[0] for s in (1, -1))
    assert torch.allclose((up - down) / (2 * h), slope, rtol=1e-6)
    end = finite.along(model, tokens, others, metric, torch.ones(3).double(), torch.arange(3))[0]
    assert torch.allclose(end, value(model, others, metric))
    assert torch.allclose(f[1], finite.along(model, tokens, others, metric, t[1:], which[1:])[0])
    assert not model.hook_embed.fwd_hooks


@pytest.mark.weights
def test_pairs_of_states_are_what_the_mlp_reads():
    from circuitbook import corpus, zoo

    model = zoo.load("gelu-1l", device="cpu")
    x0, x1 = finite.state_pairs(model, 2, seed=5, length=32)
    again = finite.state_pairs(model, 2, seed=5, length=32)
    assert torch.equal(x0, again[0]) and torch.equal(x1, again[1])
    tokens = torch.from_numpy(corpus.heldout_windows(4, length=32, seed=5).tokens)
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens, names_filter="blocks.0.hook_resid_mid")
    states = cache["blocks.0.hook_resid_mid"]
    for i, x in enumerate((x0[0], x1[0], x0[1], x1[1])):
        assert (states[i, 8:] - x).abs().amax(-1).min() <= 1e-6


# ---- what is judged ------------------------------------------------------------------------------


def data():
    block = {"errors": [0.4, 0.1], "fall": 4.0}
    radial = dict.fromkeys(
        (*finite_claims.SAME, *finite_claims.OTHER, "swiglu against half and half")
    )
    for name in radial:
        same = name in finite_claims.SAME
        radial[name] = {"operator": 1e-15 if same else 0.5, "output": 1e-15, "difference": 1e-15}
    return {
        "steps": [1, 2],
        "pairs": 4,
        "blocks": {"gelu-1l": block, "swiglu-1l": block, "relu-1l": block | {"fall": 2.1}},
        "experts": {"errors": [0.5, 0.4], "floor": 0.4, "at_floor": 0.004, "gap": 1e-14,
                    "crossings": [1, 2, 0, 1], "crossed": 3},
        "whole": {r: {"errors": [0.1, 0.001]} for r in ("attn-only-2l", "gelu-2l")},
        "whole_steps": [2, 4],
        "whole_experts": {"left": 1e-12, "crossings": [1, 0], "crossed": 1, "jumps": [0.2, 0.0],
                          "change": 1.0},
        "radial": radial,
        "radial_trained": {"stays": 0.9, "row": 1e-16},
    }  # fmt: skip


BREAKS = {
    "finite.order_smooth": lambda d: d["blocks"]["swiglu-1l"].update(fall=2.0),
    "finite.order_kinks": lambda d: d["blocks"]["relu-1l"].update(fall=4.0),
    "finite.whole_model": lambda d: d["whole"]["gelu-2l"].update(errors=[0.1, 0.02]),
    "finite.jumps_are_the_gap": lambda d: d["experts"].update(gap=1e-6),
    "finite.floor": lambda d: d["experts"].update(at_floor=0.02),
    "finite.whole_experts": lambda d: d["whole_experts"].update(crossed=0),
    "finite.radial_is_forward": lambda d: d["radial_trained"].update(row=1e-3),
    "finite.radial_is_not": lambda d: d["radial"]["gelu, bias stays"].update(operator=0.01),
    "finite.radial_output": lambda d: d["radial"]["experts, no bias"].update(difference=1e-3),
}


@pytest.mark.parametrize("broken", [None, *BREAKS])
def test_claims_fail_when_they_should(broken):
    d = data()
    d["blocks"] = {k: dict(v) for k, v in d["blocks"].items()}
    if broken:
        BREAKS[broken](d)
    made = finite_claims.claims(d)
    assert sorted(c["id"] for c in made) == sorted(BREAKS)
    assert [c["id"] for c in made if not c["holds"]] == ([broken] if broken else [])


def test_rounding_errors_are_not_kept():
    saved = finite_claims.kept(data())
    assert saved["experts"]["gap"] == {"limit": 1e-9, "ok": True}
    assert saved["radial"]["relu, no bias"] == dict.fromkeys(
        ("operator", "output", "difference"), 0
    )
    assert saved["radial"]["swiglu against gate"]["operator"] == 0.5
    assert finite_study.DOUBLINGS == (16, 32, 64, 128)
