"""Phase changes in synthetic training curves whose answers are known, and in the bundled ones."""

import json
import subprocess
import sys

import numpy as np
import pytest

from circuitbook.induction import phase

STEPS = np.arange(0, 2001, 40)  # 51 snapshots
PER_STEP = 1000
RUN = STEPS[-1] * PER_STEP
TIMES = {"previous_token": 0.5e6, "k_composition": 0.7e6, "prefix_matching": 1.0e6}
WRITER, READER = 2, 1


def s_curve(middle, width=4e4, tokens=None):
    tokens = STEPS * PER_STEP if tokens is None else tokens
    return 1 / (1 + np.exp(-(tokens - middle) / width))


def curves_of(layers, times=TIMES, seed=0, early_rival=True, noise=0.004):
    """Curves in the saved form: 3 heads a layer; two layers have a planted phase change."""
    rng = np.random.default_rng(seed)
    tokens = STEPS * PER_STEP

    def scores(base, target, head):
        table = base + noise * rng.random((len(STEPS), 3))
        table[:, head] += target
        return table

    change = s_curve(times["prefix_matching"]) if layers == 2 else 0 * tokens
    loss = 5 * (1 + tokens / 1e5) ** -0.1 - 0.5 * change
    first = scores(0.05, 0.85 * s_curve(times["previous_token"]), WRITER)
    if early_rival:  # another head leads for a while and falls back
        first[:, 0] += 0.3 * s_curve(0.1e6) * (1 - s_curve(0.8e6))
    last = scores(0.01, 0.5 * change, READER)
    rows = []
    for i, step in enumerate(STEPS.tolist()):
        windows = rng.normal(size=(40, 1)) * 0.1
        row = {
            "step": step,
            "loss": float(loss[i]),
            "icl": float(-0.3 * change[i] + noise * rng.normal()),
            "token_losses": (loss[i] + windows + np.zeros((1, 13))).flatten().tolist(),
        }
        if layers:
            blocks = [first, last] if layers == 2 else [first]
            row["previous_token"] = [block[i].tolist() for block in [first, 0 * first][:layers]]
            row["prefix_matching"] = [(0 * block[i] + 0.01).tolist() for block in blocks]
            if layers == 2:
                row["prefix_matching"][1] = last[i].tolist()
                k = 0.06 + 0.0005 * rng.random((3, 3))
                k[WRITER, READER] += 0.1 * s_curve(times["k_composition"])[i]
                row["k_composition"] = (k * (step > 0)).tolist()  # nothing is written at the start
        rows.append(row)
    fine = (np.arange(200) + 0.5) * RUN / 200
    drop = 0.5 * s_curve(times["prefix_matching"], 8e4, fine) if layers == 2 else 0
    text = np.exp(0.003 * np.random.default_rng(99).normal(size=200))  # the same for all runs
    training = text * (5 * (1 + fine / 1e5) ** -0.1 - drop)
    return {
        "tokens_per_step": PER_STEP,
        "training_loss": {"steps_per_point": 10, "mean": training.tolist()},
        "snapshots": rows,
    }


# ---------------------------------------------------------------- one run


def test_training_loss_stands_at_the_middle_of_each_stretch():
    tokens, loss = phase.training_loss(
        {"tokens_per_step": 100, "training_loss": {"steps_per_point": 4, "mean": [3.0, 2.0]}}
    )
    assert tokens.tolist() == [200, 600] and loss.tolist() == [3, 2]


def test_the_pair_is_that_of_the_end_and_is_followed_back():
    curves = curves_of(2)
    assert phase.pair(curves) == (WRITER, READER)
    assert phase.pair(curves_of(1))[0] == WRITER and phase.pair(curves_of(0)) is None
    traced = phase.trace(curves)
    early = traced["previous_token"][1][6]  # the rival leads here
    assert early < 0.1 < max(curves["snapshots"][6]["previous_token"][0])
    tokens, k = traced["k_composition"]
    assert tokens[0] == STEPS[1] * PER_STEP and (k > 0).all()  # the zero of the start is no score
    assert "loss_gap" not in traced and set(phase.trace(curves_of(0))) == {"loss", "icl"}


def test_gaps_rise_when_the_run_draws_ahead():
    traced = phase.trace(curves_of(2), curves_of(1))
    assert traced["loss_gap"][1][-1] == pytest.approx(0.5, abs=1e-3)
    assert traced["icl_gap"][1][-1] > 0.25
    other = curves_of(1)
    other["snapshots"] = other["snapshots"][1:]
    with pytest.raises(ValueError, match="different steps"):
        phase.trace(curves_of(2), other)


def test_paired_losses_by_hand():
    a = {"tokens_per_step": 7, "snapshots": [{"step": 2, "token_losses": [1.0, 1.0, 2.0, 2.0]}]}
    b = {"tokens_per_step": 7, "snapshots": [{"step": 2, "token_losses": [2.0, 2.0, 5.0, 5.0]}]}
    found = phase.paired_losses(a, b, windows=2)  # windows differ by 1 and by 3
    assert found == {"tokens": [14], "gap": [2.0], "se": [1.0]}


def test_events_are_found_at_their_times_and_in_their_order():
    found = phase.events(curves_of(2), shallow=curves_of(1), no_heads=curves_of(0))
    assert found["pair"] == [WRITER, READER]
    for name, time in TIMES.items():
        assert found["rises"][name]["t50"] == pytest.approx(time, abs=2e4)
        assert found["rises"][name]["abrupt"]
    assert found["rises"]["loss_gap"]["t50"] == pytest.approx(TIMES["prefix_matching"], abs=2e4)
    assert found["bump"]["found"]
    assert found["bump"]["peak"] == pytest.approx(TIMES["prefix_matching"], rel=0.15)
    order = [name for name in found["order"] if name in TIMES]
    assert order == list(TIMES)
    assert [name for name in found["order_begun"] if name in TIMES] == list(TIMES)
    change = found["phase_change"]
    half = 4e4 * np.log(9)
    assert change["found"] and "abruptly" in change["why"]
    assert change["start"] == pytest.approx(TIMES["prefix_matching"] - half, abs=2e4)
    assert change["end"] == pytest.approx(TIMES["prefix_matching"] + half, abs=2e4)


def test_other_times_give_another_order():
    times = {"previous_token": 1.4e6, "k_composition": 0.4e6, "prefix_matching": 0.8e6}
    found = phase.events(curves_of(2, times))
    order = [name for name in found["order"] if name in times]
    assert order == ["k_composition", "prefix_matching", "previous_token"]


@pytest.mark.parametrize("layers", [0, 1])
def test_runs_without_a_phase_change_say_so(layers):
    for seed in range(5):
        found = phase.events(
            curves_of(layers, seed=seed), shallow=curves_of(1), no_heads=curves_of(0)
        )
        change = found["phase_change"]
        assert not change["found"] and change["start"] is None is change["end"]
        assert change["why"] == (
            "prefix matching does not rise" if layers else "the model has no heads"
        )
        assert not found["bump"]["found"] and "prefix_matching" not in found["order"]
        json.dumps(found, allow_nan=False)


def test_steady_drift_of_prefix_matching_is_no_phase_change():
    for seed in range(10):
        curves = curves_of(2, seed=seed)
        rng = np.random.default_rng(seed)
        for row in curves["snapshots"]:
            drift = 0.5 * row["step"] / STEPS[-1] + 0.02 * rng.normal()
            row["prefix_matching"][1][READER] = drift
        found = phase.events(curves)["phase_change"]
        assert not found["found"] and "steadily" in found["why"]


# ---------------------------------------------------------------- several runs


def heads_alone(curves):
    """The events of a run without the bump, which stands at the time of prefix matching."""
    found = phase.events(curves)
    return {**found, "order": [name for name in found["order"] if name in TIMES]}


def test_spread_over_seeds():
    later = {name: time * 1.2 for name, time in TIMES.items()}
    runs = [heads_alone(curves_of(2, times, seed=s)) for s, times in enumerate((TIMES, later))]
    found = phase.spread(runs)
    assert found["same_order"] and set(TIMES) <= set(found["all"])
    for name, time in TIMES.items():
        entry = found["times"][name]
        assert entry["runs"] == 2 and entry["ratio"] == pytest.approx(1.2, abs=0.06)
        assert entry["low"] == pytest.approx(time, abs=2e4)
    swapped = {**TIMES, "previous_token": 1.6e6}
    mixed = phase.spread([runs[0], heads_alone(curves_of(2, swapped))])
    assert not mixed["same_order"]
    partly = phase.spread([runs[0], phase.events(curves_of(1))])
    assert partly["times"]["prefix_matching"]["runs"] == 1
    assert "prefix_matching" not in partly["all"]


# ---------------------------------------------------------------- the path of the losses


def path_with_corner(n=21, corner=10, angle=90.0):
    """Unit steps along one line, then along another that is turned by `angle` degrees."""
    turn = np.radians(angle)
    steps = [[1.0, 0.0]] * corner + [[np.cos(turn), np.sin(turn)]] * (n - 1 - corner)
    return np.vstack([[0.0, 0.0], np.cumsum(steps, 0)])


@pytest.mark.parametrize("angle", [0.0, 30.0, 90.0, 180.0])
def test_turns_measure_a_planted_corner(angle):
    found = phase.turns(path_with_corner(angle=angle), reach=2.0)
    assert found[10] == pytest.approx(angle, abs=1e-4)
    assert np.isnan(found[[0, 1, 19, 20]]).all() and found[5] == pytest.approx(0, abs=1e-4)


def test_a_turn_is_measured_near_by_not_from_the_beginning():
    after = path_with_corner(12, 0, 180.0)[1:] + path_with_corner()[-1]
    found = phase.turns(np.vstack([path_with_corner(), after]), reach=2.0)
    assert found[20] == pytest.approx(90, abs=1e-4)  # from the start it would be 135


def test_small_jitter_is_no_turn():
    rng = np.random.default_rng(0)
    straight = path_with_corner(angle=0.0) + 0.05 * rng.normal(size=(21, 2))
    assert np.nanmax(phase.turns(straight, reach=4.0)) < 10
    standing = np.repeat(path_with_corner(5, 4, 0.0), 4, axis=0)  # four snapshots at each place
    assert np.nanmax(phase.turns(standing, reach=1.0)) < 1e-3


def runs_along(paths, noise=0.0, tokens=60):
    rng = np.random.default_rng(5)
    plane = np.linalg.qr(rng.normal(size=(tokens, 2)))[0].T  # two orthonormal directions
    out = {}
    for role, path in paths.items():
        losses = 4 + path @ plane + noise * rng.normal(size=(len(path), tokens))
        rows = [{"step": i, "token_losses": row.tolist()} for i, row in enumerate(losses)]
        out[role] = {"tokens_per_step": 100, "snapshots": rows}
    return out


def test_pca_recovers_a_planted_plane_and_its_corner():
    paths = {"bent": 3 * path_with_corner(), "straight": 3 * path_with_corner(angle=0.0)}
    for noise in (0.0, 0.1):
        found = phase.token_loss_pca(runs_along(paths, noise), 2, smooth=1)
        assert sum(found["share"]) == pytest.approx(1, abs=1e-9 if noise == 0 else 0.05)
        for role, path in paths.items():
            got = np.array(found["runs"][role]["coordinates"])
            apart = np.linalg.norm(got[:, None] - got[None], axis=-1)
            wanted = np.linalg.norm(path[:, None] - path[None], axis=-1)
            assert np.abs(apart - wanted).max() < (1e-9 if noise == 0 else 1.0)
        peak = found["runs"]["bent"]["peak"]
        assert peak["tokens"] == pytest.approx(1000, abs=100)
        assert peak["angle"] == pytest.approx(90, abs=20)
        assert found["runs"]["straight"]["peak"]["angle"] < 10
    json.dumps(found, allow_nan=False)


def test_pca_is_joint_and_can_leave_out_the_beginning():
    paths = {"a": path_with_corner(), "b": path_with_corner() + 7.0}
    found = phase.token_loss_pca(runs_along(paths), 2, since=500.0)
    assert found["runs"]["a"]["tokens"] == list(range(500, 2001, 100))
    a, b = (np.array(found["runs"][role]["coordinates"]) for role in "ab")
    assert np.linalg.norm(b - a, axis=1) == pytest.approx(7 * 2**0.5)  # one origin for both
    assert np.concatenate([a, b]).mean(0) == pytest.approx(0, abs=1e-9)
    with pytest.raises(ValueError, match="components do not fit"):
        phase.token_loss_pca(runs_along(paths), 61)


# ---------------------------------------------------------------- the saved curves


def test_windows_are_those_of_the_curves_and_no_torch_is_needed():
    from circuitbook import curves

    assert phase.WINDOWS == curves.WINDOWS
    code = "import sys, circuitbook.induction.phase; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.weights
def test_bundled_curves_can_be_read():
    from circuitbook import zoo

    runs = {role: zoo.curves(role) for role in ("attn-only-0l", "attn-only-1l", "attn-only-2l")}
    shallow, none = runs["attn-only-1l"], runs["attn-only-0l"]
    for role, curves in runs.items():
        found = phase.events(curves, shallow=shallow, no_heads=none, until=1e7)
        json.dumps(found, allow_nan=False)
        assert (found["pair"] is None) == (role == "attn-only-0l")
        gap = phase.paired_losses(curves, shallow)
        assert len(gap["gap"]) == len(curves["snapshots"])
    pca = phase.token_loss_pca(runs, since=3e5)
    assert 0 < pca["share"][1] <= pca["share"][0] < 1
