"""Rises and bumps: planted ones are found where they were planted, curves without one say so."""

import numpy as np
import pytest

from circuitbook.induction import onset

TOKENS = np.arange(50) * 1e5  # a run of 4.9 million tokens
MIDDLE, WIDTH = 2.0e6, 1.5e5
SEEDS = 40


def logistic(t=TOKENS, middle=MIDDLE, width=WIDTH):
    return 1 / (1 + np.exp(-(t - middle) / width))


def noisy(y, size, seed):
    return y + size * np.random.default_rng(seed).normal(size=len(y))


# ---------------------------------------------------------------- parts


def test_isotonic_hand_cases():
    assert onset.isotonic([1.0, 3.0, 2.0, 4.0]).tolist() == [1, 2.5, 2.5, 4]
    assert onset.isotonic([3.0, 2.0, 1.0]).tolist() == [2, 2, 2]
    assert onset.isotonic([1.0, 2.0, 2.0, 5.0]).tolist() == [1, 2, 2, 5]


def test_isotonic_is_the_nearest_non_decreasing_sequence():
    y = noisy(logistic(), 0.3, 1)
    fit = onset.isotonic(y)
    assert (np.diff(fit) >= 0).all() and fit.sum() == pytest.approx(y.sum())
    rng, best = np.random.default_rng(2), ((y - fit) ** 2).sum()
    for size in (1e-3, 1e-2, 1e-1):
        for _ in range(50):
            other = np.sort(fit + size * rng.normal(size=len(fit)))
            assert ((y - other) ** 2).sum() >= best


def test_noise_is_seen_through_a_jump():
    found = [onset.noise_of(noisy(10 * (TOKENS > 2e6), 0.1, seed)) for seed in range(SEEDS)]
    assert np.mean(found) == pytest.approx(0.1, rel=0.15)  # the jump of 10 does not count
    assert onset.noise_of(np.arange(9.0)) == 0  # nor does a slope


def test_crossing_by_hand():
    t, fit = np.array([0.0, 10.0, 20.0]), np.array([0.0, 0.0, 1.0])
    assert onset.crossing(t, fit, 0.25) == 12.5
    assert onset.crossing(t, fit, 0.0) == 0.0
    with pytest.raises(ValueError, match="never reaches"):
        onset.crossing(t, fit, 2.0)


# ---------------------------------------------------------------- rises


def test_a_planted_logistic_is_found_where_it_is():
    found = onset.rise(TOKENS, 0.01 + 0.6 * logistic(), least=0.1)
    assert found["rises"] and found["abrupt"]
    step = TOKENS[1] - TOKENS[0]
    assert found["t50"] == pytest.approx(MIDDLE, abs=step / 4)
    assert found["t10"] == pytest.approx(MIDDLE - WIDTH * np.log(9), abs=step / 4)
    assert found["t90"] == pytest.approx(MIDDLE + WIDTH * np.log(9), abs=step / 4)
    low, high = found["quickest"]
    assert low < MIDDLE < high and high - low == pytest.approx(TOKENS[-1] / 10)
    assert (found["from"], found["to"]) == pytest.approx((0.01, 0.61), abs=1e-3)


def test_noise_moves_the_crossing_little_and_the_range_says_how_much():
    inside, misses = 0, []
    for seed in range(SEEDS):
        found = onset.rise(TOKENS, noisy(0.6 * logistic(), 0.02, seed), least=0.1)
        assert found["rises"] and found["abrupt"]
        misses.append(found["t50"] - MIDDLE)
        low, high = found["t50_range"]
        inside += low <= MIDDLE <= high
    assert np.abs(misses).max() < 6e4 and abs(np.mean(misses)) < 1e4
    assert inside >= 0.6 * SEEDS  # a residual bootstrap is a little short of its 90 %


def test_flat_noise_does_not_rise():
    for seed in range(SEEDS):
        found = onset.rise(TOKENS, noisy(0 * TOKENS, 0.1, seed), least=0.05)
        assert not found["rises"] and not found["abrupt"] and found["t50"] is None


def test_noisy_monotone_drift_rises_but_is_not_abrupt():
    for seed in range(SEEDS):
        found = onset.rise(TOKENS, noisy(TOKENS / TOKENS[-1], 0.04, seed), least=0.1)
        assert found["rises"] and not found["abrupt"]
        assert found["t50"] == pytest.approx(TOKENS[-1] / 2, rel=0.2)


def test_a_curve_that_only_flattens_is_not_abrupt():
    for seed in range(SEEDS):
        y = noisy(1 - np.exp(-TOKENS / 4e5), 0.01, seed)
        found = onset.rise(TOKENS, y, least=0.1)
        assert found["rises"] and not found["abrupt"]


def test_small_and_falling_curves_do_not_rise():
    assert not onset.rise(TOKENS, 0.09 * logistic(), least=0.1)["rises"]
    assert not onset.rise(TOKENS, -logistic(), least=0.1)["rises"]
    assert onset.rise(TOKENS, 0.11 * logistic(), least=0.1)["abrupt"]


def test_rise_refuses_what_it_cannot_judge():
    for t, y in ((TOKENS[:7], TOKENS[:7]), (TOKENS[::-1], TOKENS), (TOKENS, TOKENS[1:])):
        with pytest.raises(ValueError, match="at least 8 values"):
            onset.rise(t, y, least=0.1)


# ---------------------------------------------------------------- the loss

FINE = (np.arange(200) + 0.5) * 1e5  # 20 million tokens
DROP = 5e6


def power(exponent=0.1):
    return 6 * (FINE / 1e5) ** -exponent


def with_drop(exponent=0.05):
    return power(exponent) - 0.4 * logistic(FINE, DROP, 7e5)


def jitter(size, seed):
    return np.exp(size * np.random.default_rng(seed).normal(size=len(FINE)))


def test_slope_of_a_power_law_is_its_exponent():
    slope, error = onset.local_slope(FINE, power(0.13))
    known = ~np.isnan(slope)
    assert known.sum() > 100 and np.allclose(slope[known], 0.13) and (error[known] < 1e-9).all()
    assert np.isnan(slope[0]) and np.isnan(slope[-1])  # its window would leave the curve


def test_the_error_of_a_slope_is_right():
    i, found = 100, []
    for seed in range(400):
        slope, error = onset.local_slope(FINE, power() * jitter(0.01, seed))
        found.append((slope[i] - 0.1, error[i]))
    miss, error = np.array(found).T
    assert miss.std() == pytest.approx(error.mean(), rel=0.12)


def test_a_planted_drop_is_a_bump_and_is_found_where_it_is():
    for seed in range(SEEDS):
        found = onset.bump(FINE, with_drop() * jitter(0.005, seed))
        assert found["found"] and found["peak"] == pytest.approx(DROP, rel=0.25)
        assert found["valley"] < found["peak"] and found["slope_valley"] < found["slope_peak"]


def test_power_laws_and_curves_that_flatten_have_no_bump():
    for size in (0, 0.005, 0.02):
        wrong = sum(onset.bump(FINE, power() * jitter(size, s))["found"] for s in range(SEEDS))
        assert wrong <= 2  # about 2 in 100 by noise alone
        flat = 3 + power(0.3)
        assert sum(onset.bump(FINE, flat * jitter(size, s))["found"] for s in range(SEEDS)) <= 2


def test_what_comes_after_until_does_not_count():
    late = power() - 0.5 * logistic(FINE, 9e6, 5e5)  # say, a rate that begins to fall at 8 million
    assert onset.bump(FINE, late)["found"]
    assert not onset.bump(FINE, late, until=7.5e6)["found"]
    early = onset.bump(FINE, with_drop(), until=1.2e7)
    assert early["found"] and max(early["tokens"]) <= 1.2e7


def test_a_control_on_the_same_text_uncovers_a_hidden_bump():
    alone = under_control = 0
    for seed in range(SEEDS):
        text = jitter(0.06, seed)  # hard and easy stretches, the same for both models
        model, control = with_drop() * text * jitter(0.003, 1000 + seed), power(0.02) * text
        alone += onset.bump(FINE, model)["found"]
        under_control += onset.bump(FINE, model, against=control)["found"]
    assert under_control == SEEDS and alone < SEEDS / 2


def test_bump_refuses_a_short_curve():
    with pytest.raises(ValueError, match="too few"):
        onset.bump(FINE[:6], power()[:6])
