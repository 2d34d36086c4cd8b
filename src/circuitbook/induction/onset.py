"""When one curve changes: rises that are larger than their noise, and bumps of a loss. No torch.

Every rule is stated and is the same for all curves, so that a curve without a change can say so:

* A quantity RISES when its end is above its start by a least amount and by 4 times its noise.
* Its crossings (10 %, 50 %, 90 % of the way) are read off the best non-decreasing fit.
* The rise is ABRUPT when a quarter of it or more falls into some tenth of the run (steady drift
  has a tenth of it there), when at most half of it came before, and when that tenth does not open
  the run (a curve that only flattens is quickest at its beginning).
* A BUMP: the fall of the loss, on log-log axes, slows down, quickens and slows down again.

The bump is that of Olsson et al. 2022; the rules are this course's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

END = 3  # points averaged at each end of a curve
NOISES = 4.0
TENTH = 0.1
ABRUPT = 0.25  # share of the rise inside the quickest tenth of the run
QUIET = 0.5  # at most this share of the rise may come before it
BUMP = 4.0  # standard errors

# ---------------------------------------------------------------- rises


def isotonic(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """The non-decreasing sequence nearest to `values` in least squares.

    Found by pooling adjacent violators: neighbours in the wrong order get their common mean.
    """
    means: list[float] = []
    sizes: list[int] = []
    for value in np.asarray(values, dtype=float):
        means.append(float(value))
        sizes.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            total = sizes[-2] + sizes[-1]
            means[-2] = (means[-2] * sizes[-2] + means[-1] * sizes[-1]) / total
            sizes[-2] = total
            del means[-1], sizes[-1]
    return np.repeat(means, sizes)


def noise_of(values: Sequence[float] | np.ndarray) -> float:
    """Standard deviation of one point, from differences of neighbours: 1.4826 MAD / sqrt(2).

    The median keeps a few large steps, which are the signal, from counting as noise.
    """
    steps = np.diff(np.asarray(values, dtype=float))
    return float(1.4826 * np.median(np.abs(steps - np.median(steps))) / np.sqrt(2))


def crossing(tokens: np.ndarray, fit: np.ndarray, level: float) -> float:
    """Token count at which a non-decreasing fit first reaches `level`, linear between snapshots."""
    after = int(np.argmax(fit >= level))
    if fit[after] < level:
        raise ValueError(f"the fit ends at {fit[-1]:.4g} and never reaches {level:.4g}")
    if after == 0:
        return float(tokens[0])
    low, high = fit[after - 1], fit[after]
    share = (level - low) / (high - low)
    return float(tokens[after - 1] + share * (tokens[after] - tokens[after - 1]))


def rise(
    tokens: Sequence[float] | np.ndarray,
    values: Sequence[float] | np.ndarray,
    *,
    least: float,
    draws: int = 100,
) -> dict[str, Any]:
    """Whether, when and how abruptly a curve rises; give -values for one that falls.

    tokens: increasing token counts; values: one for each. Returns "from", "to" (median of the
    first and mean of the last three), "noise", "rises", "abrupt", and, when it rises, else None:
    "t10", "t50", "t90" (tokens), "t50_range" (5 % and 95 % of the crossings when the residuals are
    drawn again), "quickest" (start and end of the tenth of the run with the largest rise) and
    "in_quickest", "before_quickest" (shares of the rise). ValueError for fewer than 8 points.
    """
    t, y = np.asarray(tokens, dtype=float), np.asarray(values, dtype=float)
    if t.shape != y.shape or t.ndim != 1 or len(t) < 8 or (np.diff(t) <= 0).any():
        raise ValueError(
            f"needs at least 8 values at increasing token counts, got {y.shape} at {t.shape}"
        )
    start, end, noise = float(np.median(y[:END])), float(y[-END:].mean()), noise_of(y)
    out: dict[str, Any] = {"from": start, "to": end, "noise": noise}
    out["rises"] = bool(end - start >= max(least, NOISES * noise))
    if not out["rises"]:
        names = ("t10", "t50", "t90", "t50_range", "quickest", "in_quickest", "before_quickest")
        return {**out, "abrupt": False, **dict.fromkeys(names)}
    fit = np.clip(isotonic(y), start, end)  # so that it runs from 0 % to 100 %
    for share in (10, 50, 90):
        out[f"t{share}"] = crossing(t, fit, start + share / 100 * (end - start))
    generator = np.random.default_rng(0)
    middle, again = (start + end) / 2, []
    for _ in range(draws):
        noisy = fit + generator.choice(y - isotonic(y), len(y))
        again.append(crossing(t, np.clip(isotonic(noisy), start, end), middle - 1e-9))
    out["t50_range"] = [float(x) for x in np.percentile(again, [5, 95])] if again else None
    begin = np.linspace(t[0], t[-1] - TENTH * (t[-1] - t[0]), 181)
    begin_fit = np.interp(begin, t, fit)
    gain = np.interp(begin + TENTH * (t[-1] - t[0]), t, fit) - begin_fit
    best = int(gain.argmax())
    out["quickest"] = [float(begin[best]), float(begin[best] + TENTH * (t[-1] - t[0]))]
    out["in_quickest"] = float(gain[best] / (end - start))
    out["before_quickest"] = float((begin_fit[best] - start) / (end - start))
    late_enough = begin[best] - t[0] >= TENTH / 2 * (t[-1] - t[0])
    out["abrupt"] = bool(
        out["in_quickest"] >= ABRUPT and out["before_quickest"] <= QUIET and late_enough
    )
    return out


# ---------------------------------------------------------------- the loss


def local_slope(
    tokens: np.ndarray, loss: np.ndarray, span: float = 1.5
) -> tuple[np.ndarray, np.ndarray]:
    """(s, standard error) with s(t) = - d ln loss / d ln tokens: 1 % more text, s % less.

    Least squares over the points between t / span and t * span; NaN where that leaves the curve or
    holds fewer than five points. The error takes the noise of one point from all windows together.
    """
    x_all, y_all = np.log(tokens), np.log(loss)
    slope, spread_x = np.full(len(x_all), np.nan), np.full(len(x_all), np.nan)
    reach, variances = np.log(span) + 1e-12, []
    for i, here in enumerate(x_all):
        near = np.abs(x_all - here) <= reach
        inside = here - x_all[0] >= reach and x_all[-1] - here >= reach
        if not inside or near.sum() < 5:
            continue
        x, y = x_all[near] - x_all[near].mean(), y_all[near] - y_all[near].mean()
        slope[i], spread_x[i] = -(x @ y) / (x @ x), x @ x
        residual = y + slope[i] * x
        variances.append(residual @ residual / (near.sum() - 2))
    return slope, np.sqrt(np.mean(variances or [np.nan]) / spread_x)


def bump(
    tokens: Sequence[float] | np.ndarray,
    loss: Sequence[float] | np.ndarray,
    until: float | None = None,
    against: Sequence[float] | np.ndarray | None = None,
) -> dict[str, Any]:
    """Whether the fall of the loss slows down, then quickens, then slows down again.

    There is a bump when the local slope s rises from some valley to some later peak by at least 4
    standard errors and afterwards loses half of that rise again; of all such pairs the surest is
    told. A power law has constant s: no bump (noise alone makes one in about 2 runs of 100).
    Nothing after `until` tokens is used: give the count where the learning rate begins to fall,
    for that quickens the fall too.
    against: the loss of a control model at the same tokens. Then s is the slope of loss / against,
    and the ups and downs of the common text, which hide a small bump, cancel.
    Returns "found", "valley", "peak" (tokens), "slope_valley", "slope_peak", "errors" (the rise in
    standard errors), "tokens" and "slope" (the curve itself).
    """
    t, y = np.asarray(tokens, dtype=float), np.asarray(loss, dtype=float)
    y = y if against is None else y / np.asarray(against, dtype=float)
    keep = (t > 0) & (t <= (until or np.inf))
    t, (s, e) = t[keep], local_slope(t[keep], y[keep])
    known = ~np.isnan(s)
    t, s, e = t[known], s[known], e[known]
    if len(s) < 3:
        raise ValueError(f"{len(s)} slopes are too few to look for a bump: give a longer curve")
    up = np.triu(s[None] - s[:, None], 1)  # [valley, peak]
    lost = s - np.minimum.accumulate(s[::-1])[::-1]  # what s loses again after each peak
    sure = up / np.sqrt(e[None] ** 2 + e[:, None] ** 2 + 1e-24) * (lost >= up / 2)
    low, peak = np.unravel_index(sure.argmax(), sure.shape)
    return {
        "found": bool(sure[low, peak] >= BUMP),
        "valley": float(t[low]),
        "peak": float(t[peak]),
        "slope_valley": float(s[low]),
        "slope_peak": float(s[peak]),
        "errors": float(sure[low, peak]),
        "tokens": t.tolist(),
        "slope": s.tolist(),
    }
