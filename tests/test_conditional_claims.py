"""Chapter 10's claims about operators hold on numbers that deserve it and fail on the others."""

import copy

import pytest

from circuitbook.claims import recheck
from circuitbook.conditional import operator_claims as made
from circuitbook.conditional.operator_study import as_bounds

GOOD = {"float32": 2e-7, "float64": 1e-15, "Jacobian": 1e-14}
LINE = {"ratio": 1.2, "spread": 0.1, "rest": 0.2, "bias": 0.3}
SURE = {"off": [0.3, 0.2, 0.4], "rank correlation": [0.9, 0.85, 0.95]}
POOR = {"off": [1.5, 1.2, 1.8], "rank correlation": [0.0, -0.1, 0.1]}


def errors():
    row = {"routes": 1e-15, "product": 1e-15}
    return {
        "random": {"gelu": dict(GOOD)},
        "trained": {"gelu-1l": dict(GOOD)},
        "product": {"gelu-2l": {"float64": dict(row)}},
        "euler": {"relu": 0.0, "relu, biases": 1e-15, "bilinear": 0.0, "LayerNorm": 1e-15,
                  "LayerNorm, plain": 1e-5},
        "held": 1e-6, "rerun": 1e-6, "shares": {"gelu-1l": 1e-7}, "relu": None,
    }  # fmt: skip


FALLS = ("falling", "others")


def data():
    bend = {"neurons": 0.9} | {k: {"better than forward": [0.2, 0.1, 0.3]} for k in FALLS}
    agree = {
        "off": [0.4, 0.3, 0.5],
        "rank correlation": [0.6, 0.5, 0.7], "signs differ": [0.2, 0.1, 0.3],
        "signs differ, control": 0.4, "better than forward": [0.2, 0.1, 0.3],
    }  # fmt: skip
    same = dict.fromkeys(("forward share", "Jacobian share", "effect", "trace of B(x)"), 0.0)
    keeps = ("head coordinates R", "stream coordinates G", "W_U + c 1ᵀ", "neurons reordered")
    survive = {c: same | {"operator B(x)": 0.0, "logits": 0.0} for c in keeps}
    survive["stream coordinates G"] = survive["stream coordinates G"] | {"operator B(x)": 1.8}
    survive["neurons rotated"] = {"logits": 7.0}
    names = ("forward", "Jacobian", "content against gate")
    return {
        "setting": {"positions": 200, "documents": 38, "times": 3.0},
        "zero": {"gelu": {"by phi'(0)": 0.5, "by zero": 0.0, "near": 0.5, "output": 0.0}},
        "euler": {"random": {"gelu": LINE, "swiglu": LINE}, "trained": {
            "gelu-1l": LINE, "swiglu-1l": LINE | {"bias, gate": 0.5}}},
        "parallel": {"gelu-2l": 26.0},
        "routes": {"gelu-2l": {"routes": 324, "logit": [10.0, 0.4], "cancel": 5.0,
            "cancel by chance": [7.0, 3.0, 12.0], "cancel, groups": 3.0, "by steps": {
            f"{k} MLPs": [v, 0.1] for k, v in enumerate((9.0, 0.5, 0.5))}}},
        "reader": {"pair": ["0.5", "1.7"], "ways": {"token → 1.7 → direct": [4.0, 0.2],
                                                    "head → 1.7 → direct": [-0.2, 0.1]}},
        "shares": {r: {"agreement": dict.fromkeys(names, agree), "curve": bend}
                   for r in ("gelu-1l", "swiglu-1l")},
        "levels": {
            "gelu-2l": {"levels": {"patterns + MLP gains": POOR, "patterns": SURE}},
            "moe-1l": {"levels": {"abc"[i]: {"off": [o, 0, 1]} for i, o in enumerate((3, 2, 1))}},
            "LayerNorm, random": {"levels": dict.fromkeys("abc", SURE),
                                  "nearer by": {"patterns": [0.1, 0.05, 0.15]}},
        },
        "survive": survive,
    }  # fmt: skip


def verdicts(d, e):
    found = made.claims(d, e)
    assert all(recheck(c) == "" for c in found)
    return {c["id"]: c["holds"] for c in found}


def test_all_hold_on_good_numbers_and_say_them():
    found = verdicts(data(), errors())
    assert all(found.values()) and len(found) >= 20
    with_relu = errors() | {"relu": 1e-7}
    d = data()
    d["shares"]["relu-1l"] = d["shares"]["gelu-1l"]
    assert {"shares.relu_forward_is_jacobian", "shares.relu_is_no_cure"} <= set(
        verdicts(d, with_relu)
    )


BROKEN = {  # claim -> which dict, the way to the number in it, and a value that must not pass
    "routes.operator_gives_the_block": ("e", "random", "gelu", "float64", 1e-11),
    "routes.jacobian_is_the_derivative": ("e", "trained", "gelu-1l", "Jacobian", 1e-9),
    "routes.gain_at_zero_is_a_choice": ("d", "zero", "gelu", "by phi'(0)", 0.0),
    "shares.euler_degrees": ("e", "euler", "bilinear", 1e-6),
    "shares.gelu_has_no_degree": ("d", "euler", "random", "gelu", LINE | {"rest": 0.0}),
    "shares.curve_is_one_reason": (
        "d",
        "shares",
        "gelu-1l",
        "curve",
        "falling",
        {"better than forward": [0.1, -0.1, 0.3]},
    ),
    "shares.a_bias_row_is_left": ("d", "euler", "trained", "gelu-1l", "bias", 0.01),
    "routes.sum_to_the_logits": ("d", "routes", "gelu-2l", "routes", 323),
    "routes.parallel_is_another_model": ("d", "parallel", "gelu-2l", 1e-3),
    "routes.they_cancel": ("d", "routes", "gelu-2l", "cancel", 1.1),
    "shares.relu_is_no_cure": ("d", "shares", "relu-1l", "agreement", "forward", "off", [0.09] * 3),
    "routes.without_mlp": ("d", "routes", "gelu-2l", "by steps", "0 MLPs", [1.0, 0.1]),
    "routes.reader_copies_past_the_mlp": ("d", "reader", "ways", "head → 1.7 → direct", [3.9, 1]),
    "shares.forward_adds_up": ("e", "shares", "gelu-1l", 1e-3),
    "shares.removal_is_direct_plus_effect": ("e", "rerun", 1e-2),
    "shares.held_pass_is_its_routes": ("e", "held", 1e-2),
    "shares.held_gains_mislead": ("d", "levels", "gelu-2l", "levels", "patterns", POOR),
    "shares.mixture_levels": ("d", "levels", "moe-1l", "levels", "c", {"off": [2.5, 0, 1]}),
    "shares.norm_scales_matter": (
        "d",
        "levels",
        "LayerNorm, random",
        "nearer by",
        "patterns",
        [0.1, -0.01, 0.2],
    ),
    "shares.survive": ("d", "survive", "head coordinates R", "effect", 1e-3),
    "shares.operator_is_coordinates": ("d", "survive", "stream coordinates G", "operator B(x)", 0),
    "shares.hidden_rotation_is_another_model": ("d", "survive", "neurons rotated", "logits", 0.0),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_fails_on_its_own_bad_number(name):
    d, e = copy.deepcopy(data()), errors()
    if "relu" in name:
        d["shares"]["relu-1l"] = copy.deepcopy(d["shares"]["gelu-1l"])
        e["relu"] = 1e-7
    which, *path, last, value = BROKEN[name]
    place = d if which == "d" else e
    for key in path:
        place = place[key]
    place[last] = value
    failed = [k for k, holds in verdicts(d, e).items() if not holds]
    assert failed == [name]


def test_intervals_that_overlap_settle_nothing():
    for key, name, bad in (
        ("better than forward", "shares.jacobian_is_nearer_than_forward", [0.1, -0.1, 0.3]),
        ("signs differ", "shares.signs_differ", [0.2, 0.1, 0.5]),
        ("rank correlation", "shares.two_operators_two_answers", [0.9, 0.8, 0.95]),
    ):
        d = copy.deepcopy(data())
        for role in d["shares"].values():
            for row in role["agreement"].values():
                row[key] = bad
        assert not verdicts(d, errors())[name]


def test_rounding_errors_are_kept_as_verdicts_only():
    found = as_bounds(errors())
    assert found["random"]["gelu"]["float64"] == {"limit": 1e-12, "ok": True}
    assert found["product"]["gelu-2l"]["float64"]["routes"] == {"limit": 1e-11, "ok": True}
    bad = errors()
    bad["trained"]["gelu-1l"]["float32"] = 1e-3
    assert not as_bounds(bad)["trained"]["gelu-1l"]["float32"]["ok"]
