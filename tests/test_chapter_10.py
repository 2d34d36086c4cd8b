"""Chapter 10: taught functions beside the instruments, and what its evidence says."""

import math

import pytest
import saved
import torch
from small_model import gen

from circuitbook.conditional import operators
from circuitbook.config import Config
from circuitbook.mlp import make_mlp

ch10 = pytest.importorskip("circuitbook.taught.ch10", reason="run tools/derive.py taught")
CHAPTER = "10_conditional_paths"
LEAST = 70
GELU = torch.nn.functional.gelu
DTYPES = pytest.mark.parametrize(
    ("dtype", "close"), [(torch.float32, 1e-5), (torch.float64, 1e-12)]
)


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=gen(seed), dtype=torch.float64).to(dtype)


def gated_block(dtype, bias=0.0):
    """A random SwiGLU block of the course, its biases as large as told."""
    cfg = Config(n_layers=1, d_model=16, n_heads=2, d_head=8, d_mlp=24, act="swiglu", n_ctx=8)
    mlp = make_mlp(cfg).requires_grad_(False).to(dtype)
    for i, (name, p) in enumerate(mlp.named_parameters()):
        p.copy_(draw(*p.shape, seed=i, dtype=dtype) * (bias if name.startswith("b_") else 1.0))
    return mlp


# ---- taught functions ---------------------------------------------------------------------------


@DTYPES
def test_both_operators_give_the_output_and_are_those_of_the_instrument(dtype, close):
    mlp, x = gated_block(dtype), draw(16, seed=9, dtype=dtype)
    content, gate = ch10.two_operators(x, mlp.W_gate, mlp.W_in, mlp.W_out)
    y = mlp(x[None, None])[0, 0]
    for B, share in ((content, 1.0), (gate, 0.0)):
        assert (x @ B - y).norm() <= close * y.norm()
        theirs = operators.forward(mlp, "swiglu", x[None], content=share).matrix()[0]
        assert (B - theirs).norm() <= close * B.norm()
    assert (content - gate).norm() > 0.1 * content.norm()  # they are two
    swapped = ch10.two_operators(x, mlp.W_in, mlp.W_gate, mlp.W_out)[0]  # mutant
    assert (x @ swapped - y).norm() > 1e-2 * y.norm()


@DTYPES
def test_four_routes_sum_to_the_block_and_side_by_side_does_not(dtype, close):
    x, A = draw(5, 8, dtype=dtype), draw(5, 5, seed=1, dtype=dtype).exp().tril()
    A = A / A.sum(1, keepdim=True)
    W_OV, W_in, W_out = (
        draw(*s, seed=i + 2, dtype=dtype) for i, s in enumerate([(8, 8), (8, 12), (12, 8)])
    )
    found = ch10.four_routes(x, A, W_OV, W_in, W_out, torch.special.ndtr)
    after = x + A @ x @ W_OV
    block = after + GELU(after @ W_in) @ W_out
    assert list(found) == ["straight", "head", "MLP", "head, then MLP"]
    assert (sum(found.values()) - block).norm() <= close * block.norm()
    assert torch.equal(found["straight"], x)
    held = torch.special.ndtr(after @ W_in)
    assert (found["MLP"] - (x @ W_in * held) @ W_out).norm() <= close * block.norm()
    beside = after + GELU(x @ W_in) @ W_out  # mutant: gains at x, no fourth route
    assert (beside - block).norm() > 1e-2 * block.norm()


def test_the_path_integral_ends_where_it_should_and_how_fast():
    W_in, W_out = draw(4, 30), draw(30, 4, seed=1)
    x0, x1 = draw(4, seed=2), draw(4, seed=3)
    with pytest.raises(TypeError):
        ch10.path_integral(lambda x: x, x0, x1)
    error = {}
    for steps in (16, 32, 64):
        got = ch10.path_integral(lambda x: GELU(x @ W_in) @ W_out, x0, x1, steps)
        error[steps] = (got - (GELU(x1 @ W_in) - GELU(x0 @ W_in)) @ W_out).norm().item()
    assert error[32] == pytest.approx(error[16] / 4, rel=0.1)
    assert error[64] == pytest.approx(error[32] / 4, rel=0.1)
    linear = ch10.path_integral(lambda x: x @ W_in, x0, x1, 1)
    torch.testing.assert_close(linear, (x1 - x0) @ W_in)
    backwards = ch10.path_integral(lambda x: x @ W_in, x1, x0, 1)  # mutant: the ends exchanged
    assert (backwards - linear).norm() > linear.norm()


def test_the_integral_of_slopes_cannot_see_a_jump():
    outputs = draw(2, 3)

    def step(x):
        return outputs[0] * x if x < 0.3 else outputs[1] * x

    x0, x1 = torch.zeros(()).double(), torch.ones(()).double()
    missed = step(x1) - step(x0) - ch10.path_integral(step, x0, x1, 5000)
    torch.testing.assert_close(missed, 0.3 * (outputs[1] - outputs[0]), atol=1e-3, rtol=0)
    assert math.isclose(missed.norm(), 0.3 * (outputs[1] - outputs[0]).norm(), rel_tol=0.01)


# ---- the evidence -------------------------------------------------------------------------------


def test_routes_add_up_to_the_logit_that_is_printed():
    data, by_id = saved.rechecked(CHAPTER, LEAST)
    for role, count in (("gelu-2l", 324), ("gelu-1l", 18)):
        found = data["operators"]["routes"][role]
        assert found["routes"] == count
        for grouping in ("by depth", "by steps"):
            total = sum(mean for mean, _ in found[grouping].values())
            assert total == pytest.approx(found["logit"][0], abs=1e-3), (role, grouping)
    two = data["operators"]["routes"]["gelu-2l"]
    assert by_id["routes.they_cancel"]["test"]["value"] == pytest.approx(two["cancel"], rel=1e-5)


def test_share_and_slope_of_relu_are_one_column_and_of_others_two():
    shares = saved.rechecked(CHAPTER, LEAST)[0]["operators"]["shares"]
    relu = shares["relu-1l"]["points"]
    assert max(abs(a - b) for a, b in zip(relu["forward"], relu["Jacobian"])) <= 2e-3  # 3 decimals
    gelu = shares["gelu-1l"]["points"]
    assert max(abs(a - b) for a, b in zip(gelu["forward"], gelu["Jacobian"])) > 0.1  # mutant
    for role, found in shares.items():
        totals = found["totals"]
        for name, row in totals["bias row"].items():
            assert totals["sum"][name] + row == pytest.approx(totals["M"], abs=1e-3), (role, name)
    gated = shares["swiglu-1l"]["totals"]["sum"]
    assert abs(gated["forward, content"] - gated["forward, gate"]) > 1e-3  # a choice


def test_the_error_of_the_experts_is_the_sum_of_their_jumps():
    finite = saved.rechecked(CHAPTER, LEAST)[0]["finite"]
    e = finite["experts"]
    assert e["errors"][-1] == pytest.approx(e["floor"], rel=0.05)
    assert e["without_jumps"][-1] < 0.1 * e["floor"]
    for role, low, high in (("gelu-1l", 3.5, 4.5), ("swiglu-1l", 3.5, 4.5), ("relu-1l", 1.4, 3)):
        at = [finite["steps"].index(k) for k in (16, 128)]
        first, last = (finite["blocks"][role]["errors"][i] for i in at)
        assert low <= (first / last) ** (1 / 3) <= high, role


def test_cuts_interact_as_their_parts_say_and_shares_sum_to_one():
    data = saved.rechecked(CHAPTER, LEAST)[0]
    for part in ("gated", "experts"):
        for name, kinds in data[part]["cuts"].items():
            for kind in ("zero", "mean", "resample"):
                row = kinds[kind]
                rest = row["both"][0] - row["select"][0] - row["content"][0]
                assert rest == pytest.approx(row["interaction"][0], abs=1e-5), (part, name, kind)
                gap = row["select"][0] - row["content"][0]
                assert gap == pytest.approx(row["select minus content"][0], abs=1e-5)
    deciders = data["experts"]["deciders"]
    for what in ("logits", "margin"):
        assert sum(deciders[what]["share"]) == pytest.approx(1, abs=1e-4)
    assert sum(data["experts"]["load"]["share"]) == pytest.approx(1, abs=1e-4)


def test_passes_were_counted_and_grow_with_the_components():
    methods = saved.rechecked(CHAPTER, LEAST)[0]["methods"]
    for tasks in methods["runs"].values():
        for run in tasks.values():
            forward, backward = run["passes"]["attribution"]
            assert forward <= 2 and backward == 1
            integrated = run["passes"]["integrated"]
            assert integrated[1] >= methods["steps"] and integrated[1] % methods["steps"] == 0
            assert run["passes"]["activation"][1] == 0
            assert run["passes"]["activation"][0] >= len(run["nodes"])
            free = [n for n, yes in zip(run["nodes"], run["free"], strict=True) if yes]
            assert run["pair"][0] in free  # what is exact by construction is no test
            effects = run["effects"]
            exact = [i for i, yes in enumerate(run["free"]) if not yes]
            for i in exact:
                assert effects["attribution"][i] == pytest.approx(
                    effects["activation"][i], abs=0.02
                )


def test_every_guess_has_a_row():
    from circuitbook.gallery import tables10

    data = saved.rechecked(CHAPTER, LEAST)[0]
    assert set(tables10.BLOCKS.values()) <= set(data["operators"]["euler"]["random"])
    rows = tables10.guess_rows(data, dict.fromkeys(tables10.BLOCKS, 7))
    by_name = {row["block"]: row for row in rows}
    for name, degree in (("ReLU, no biases", 1), ("bilinear, no biases", 2), ("LayerNorm", 0)):
        assert by_name[name]["xJ / F (ratio)"] == pytest.approx(degree, abs=1e-4)
        assert by_name[name]["your guess"] == 7 and by_name[name]["left over (% of F)"] < 0.01
    for name in ("GELU, no biases", "SwiGLU, no biases", "ReLU with biases"):
        assert by_name[name]["left over (% of F)"] > 1


def test_figures_need_no_torch():
    more = """
from circuitbook.gallery import gated10, tables10
assert len(gated10.likeness_rows(r)) == 3 and len(tables10.case_rows(r)) >= 4
"""
    saved.draw_without_torch(CHAPTER, 15, more)
