"""Chapter 08: what the lesson teaches, and the evidence beside the bounds that were asked."""

import json

import pytest
import saved
import torch

from circuitbook.superposition import batch, closed_forms, geometry, study, toy
from circuitbook.superposition.batch import Params

ch08 = pytest.importorskip("circuitbook.taught.ch08", reason="run tools/derive.py taught")
CHAPTER = "08_superposition"


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=toy.gen(seed), dtype=torch.float64)


# ---- what the lesson teaches --------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_taught_read_out_and_gradient_are_the_instruments(dtype):
    W, b = draw(2, 5).to(dtype), draw(5, seed=1).to(dtype)
    x = toy.sparse_inputs(torch.rand(5, 30, generator=toy.gen(2)), 0.5).to(dtype)
    I = study.importance(5).to(dtype)
    limit = 1e-5 if dtype == torch.float32 else 1e-12
    for relu in (True, False):
        got, want = ch08.read_back(W, b, x, relu), batch.read_out(W[None], b[None], x, relu)[0]
        torch.testing.assert_close(got, want, rtol=0, atol=limit)
    dW, db = ch08.toy_gradient(W, b, x, I)
    want = batch.gradient(Params(W[None], b[None]), x, I[:, None] / 30)
    torch.testing.assert_close(dW, want.W[0], rtol=0, atol=10 * limit)
    torch.testing.assert_close(db, want.b[0], rtol=0, atol=10 * limit)


# ---- the evidence -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def evidence():
    return saved.rechecked(CHAPTER, 30)


def test_best_of_three_meets_the_closed_forms(evidence):
    data, _ = evidence
    runs, floors = data["runs"], closed_forms.series_floors(study.importance(5).tolist())
    for name, (low, high), stored in (
        ("S0.0", (-0.01, 0.01), 2),
        ("S0.7", (-0.02, 0.005), 4),
        ("linear_S0.9", (-0.01, 0.01), 2),
    ):
        best = runs[name]["best"]
        assert runs[name]["floor"] == pytest.approx(floors[name], rel=1e-5)
        assert low <= best["loss"] / floors[name] - 1 <= high, name
        assert best["represented"] == stored == sum(v > 0.5 for v in best["norms"])
        assert best["loss"] >= runs[name]["least"] == min(runs[name]["loss"])
    best = runs["S0.9"]["best"]
    assert best["represented"] == 5 and all(abs(g - 72) <= 3 for g in best["gaps"])
    W = torch.tensor(best["W"], dtype=torch.float64)
    assert geometry.is_pentagon(W)
    loss, se = toy.toy_loss(W[None], torch.tensor([best["bias"]]), 0.1, study.importance(5))
    assert loss.item() == pytest.approx(best["loss"], abs=5 * se.item() + 2e-5)


def test_the_distribution_over_starts(evidence):
    data, by_id = evidence
    P = data["pentagon"]
    assert P["of"] >= 20 and P["low"] <= P["hits"] / P["of"] <= P["high"]
    assert P["high"] - P["low"] <= 0.25
    assert P["hits"] <= data["runs"]["S0.9"]["stored"][5]
    assert 69 <= P["gaps"][0] and P["gaps"][1] <= 75 and P["loss"] < P["others"]
    for run in data["runs"].values():
        assert len(run["loss"]) == sum(run["stored"]) == P["of"]
        assert run["loss"] == sorted(run["loss"]) and run["se"] < 0.003 * run["least"]
    assert by_id["superposition.batch_is_alone"]["holds"]
    sparser = data["runs"]["S0.7"]
    assert sparser["best"]["loss"] <= 1.005 * sparser["least"] < sparser["median"] / 1.02


def test_what_the_biases_do(evidence):
    data, _ = evidence
    E, Z, I = data["echo"], data["pairs_bias"], study.importance(5)
    best = {name: data["runs"][name]["best"] for name in ("S0.7", "S0.9")}
    assert all(b < -0.1 for b in best["S0.9"]["bias"]) and len(Z["biases"]) == 4
    assert all(b > 0 for b in Z["biases"]) and set(Z["biases"]) <= set(best["S0.7"]["bias"])
    assert max(Z["cosines"]) <= -0.99  # two opposite pairs
    for name, p, part, cut in (("S0.9", 0.1, 0, False), ("S0.9", 0.1, 1, True)):
        W = torch.tensor(best[name]["W"], dtype=torch.float64)
        b = torch.zeros(5) if cut else torch.tensor(best[name]["bias"])
        on, off = study.loss_by_state(W, b, p)
        assert (E["on"][part], E["off"][part]) == pytest.approx((on, off), rel=2e-3)
        whole = E["without_bias"] if cut else E["loss"]
        assert on + off == pytest.approx(whole, rel=2e-3)
    W = torch.tensor(best["S0.7"]["W"], dtype=torch.float64)
    b = torch.where(W.norm(dim=0) > 0.5, 0, torch.tensor(best["S0.7"]["bias"]))
    loss, se = toy.toy_loss(W[None], b[None], 0.3, I, samples=4096)
    assert loss.item() == pytest.approx(Z["without"], abs=1e-5 + 4 * se.item())
    assert Z["without"] > Z["loss"] == best["S0.7"]["loss"]
    scaled = toy.toy_loss(
        E["factor"] * torch.tensor(best["S0.9"]["W"])[None], torch.zeros(1, 5), 0.1, I, samples=4096
    )[0]
    assert E["loss"] < scaled.item() < E["without_bias"]
    assert scaled.item() == pytest.approx(E["rescaled"], rel=2e-3)


def test_series_numbers_lie_inside_their_tolerances(evidence):
    data, _ = evidence
    ours = data["series"]
    series = {
        "part7.toy.S0.0": (0.183, 0.02),
        "part7.toy.S0.7": (0.1019, 0.03),
        "part7.toy.S0.9": (0.0217, 0.05),
        "part7.toy.linear_S0.9": (0.0676, 0.03),
        "part7.toy40": (0.1525, 0.06),
    }
    for name, (loss, part) in series.items():
        assert abs(ours[name]["loss"] / loss - 1) <= part, name
    stored = [ours[name]["represented"] for name in series]
    assert stored == [2, 4, 5, 2, 40]
    echo = ours["part7.toy.S0.9.echo"]
    for got, want in (("neighbours_of_feature_1", (0.35, 0.38)), ("leak_after_bias", (0.14, 0.18))):
        assert all(abs(a - b) <= 0.05 for a, b in zip(echo[got], want, strict=True))
    low, high = ours["part7.toy.S0.9"]["gap_degrees"]
    assert abs(low - 71) <= 3 and abs(high - 73) <= 3
    out = ours["part7.toy_one_dim"]["out"]
    assert out == [[0.7, 0.0], [0.0, 0.4], [pytest.approx(0.3), 0.0]]
    assert json.dumps(sorted(ours)) == json.dumps(
        sorted([*series, "part7.toy.S0.9.echo", "part7.toy_one_dim"])
    )


def test_borders_shares_and_sweeps(evidence):
    data, by_id = evidence
    B = data["border"]
    for r, p, trained in zip(B["ratio"], B["predicted"], B["trained"], strict=True):
        assert p == pytest.approx(4 * r / (2 + 5 * r), rel=1e-5) and trained >= p
    value = min(t - p for t, p in zip(B["trained"], B["predicted"], strict=True))
    assert by_id["superposition.trained_border"]["test"]["value"] == pytest.approx(value, abs=1e-6)
    second, gain = torch.tensor(B["second"]), torch.tensor(B["gain"])
    third = (second > 0.1) & (second < 0.6)
    third[-1, -1] = False  # there every split of the length costs the same
    assert (
        gain.min() > -1e-3
        and third.sum() == by_id["superposition.trained_border"]["values"]["third"]
    )
    assert third[-1].any() and 0.005 < gain[third].max() < 0.1
    D = torch.tensor(data["small"]["D"])
    assert D.max() <= 1 + 1e-6 and (D.sum(-1) <= 2 + 1e-5).all()
    assert max(map(sum, data["large"]["D"])) <= 12 + 1e-5
    assert 0.99 * 2 <= D.sum(-1).min().item() == pytest.approx(data["small"]["sum"][0], abs=1e-4)
    assert 0.99 * 12 <= min(map(sum, data["large"]["D"]))
    chance = torch.tensor(data["small"]["random_D"])[torch.tensor(data["small"]["length"]) > 0.5]
    assert ((chance - 0.375).abs() <= 0.01).double().mean().item() == pytest.approx(
        data["small"]["random"]["3/8"], abs=0.02
    )
    stored = D[torch.tensor(data["small"]["length"]) > 0.5]
    half = ((stored - 0.5).abs() <= 0.01).double().mean().item()
    assert data["small"]["near"]["1/2"] == pytest.approx(half, abs=0.02)
    L = data["levels"]
    jumps = sum(j > 0.05 for j in L["jumps"])
    assert jumps >= 1 and L["jumps"] == sorted(L["jumps"], reverse=True)
    assert min(L["moves"][:jumps]) > L["calm"][1] > L["calm"][0]
    assert abs(L["correlation"][2]) < 0.3 < L["correlation"][0]  # the late part says nothing
    for p, kinds in data["pairs"].items():
        for kind, row in kinds.items():
            assert len(row["cosine"]) == 2 * row["of"] and row["merged"][1] <= row["merged"][0]
            pairs = sum(c > 0.9 for c in row["cosine"])
            assert pairs == sum(row["merged"]), (p, kind)
    assert data["recovery"]["toy"]["shortest"][0] == 1.0
    room = data["room"]
    assert all(a < b for a, b in zip(room["packed"], room["packed"][1:], strict=False))


def test_forty_in_ten_and_its_baselines(evidence):
    data, by_id = evidence
    F = data["forty"]
    assert F["represented"] == [40] * len(F["represented"])
    W = torch.tensor(F["W"], dtype=torch.float64)
    assert (W.abs() > 0.3).sum(1).tolist() == F["features_per_unit"]
    best = (geometry.unit(W)).abs().amax(0).sort(descending=True).values
    assert F["cosines"]["hidden units"] == pytest.approx(best.tolist(), abs=1e-5)
    assert F["loss"][0] < 0.5 * F["linear"] < F["nothing"]
    low, high = F["random_range"]
    assert low < F["median"]["random axes"] < high and high - low < 0.1
    assert max(*F["units"], F["median"]["principal axes of h"]) <= high
    assert F["units"][0] == pytest.approx(F["median"]["hidden units"], abs=1e-5)
    assert all(abs(v - 0.25) < 0.01 for v in F["D"]) and len(F["D"]) == 40
    values = torch.linalg.eigvalsh(W @ W.T)
    assert F["spread"] == pytest.approx([values[0].item(), values[-1].item()], rel=1e-4)
    assert len(data["codes"][0]) == 40
    x, y = (torch.tensor(c, dtype=torch.float64) for c in data["codes"])
    assert (W @ (x - y)).abs().max() < 1e-4 and int((x > 0).sum() + (y > 0).sum()) <= 11


def test_what_moves_in_the_box(evidence):
    moves = evidence[0]["moves"]["toy"]
    assert all(m[k] == 0 for m in moves.values() for k in ("outputs", "loss", "leverages"))
    assert moves["rotation R"]["D_i"] == 0 < moves["invertible G, undone"]["D_i"]
    assert set(moves["units permuted, signs flipped"].values()) == {0}
    pair = evidence[0]["moves"]["pair"]
    assert all(m["probabilities"] == 0 for m in pair.values())
    assert [k for k, v in pair["constant per query"].items() if v] == ["own score, raw"]
    M = evidence[0]["messages"]
    assert M["wins"] >= 0.5 > 0.05 > max(M["other_writers"], M["itself"])
    assert M["least_D"] < M["D"] < M["most_D"] and M["sum_D"] <= M["rank"]


def test_figures_need_no_torch():
    more = """
from circuitbook.gallery.tables08 import toy_survival_rows
rows = toy_survival_rows(r)
assert len(rows) == 8 and rows[0]["rotation R"] == "survives"
"""
    saved.draw_without_torch(CHAPTER, 12, more)
