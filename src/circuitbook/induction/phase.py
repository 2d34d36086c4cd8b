"""When things change during training, from the curves of the snapshots (`zoo.curves`). No torch.

A PHASE CHANGE is an abrupt rise of prefix matching (see `onset.py` for the rules). It
lasts from its 10 % to its 90 % crossing of the way from its first to its final value.

Source: Olsson et al. 2022 (phase change, bump of the loss, PCA of per-token losses).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from circuitbook.induction.onset import bump, rise

WINDOWS = 40  # windows behind the saved per-token losses, as in circuitbook.curves
# What counts as a rise at all: half way from nothing to the least that a head is named for
# (scores), half the score of unrelated matrices of the course's shape (K-composition), nats.
LEAST = {
    "previous_token": 0.1,
    "prefix_matching": 0.1,
    "k_composition": 0.03,
    "loss_gap": 0.05,
    "icl_gap": 0.05,
}


# ---------------------------------------------------------------- one run


def training_loss(curves: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, loss): means of the training loss over short stretches, at their middle token."""
    saved = curves["training_loss"]
    size = saved["steps_per_point"] * curves["tokens_per_step"]
    loss = np.asarray(saved["mean"], dtype=float)
    return (np.arange(len(loss)) + 0.5) * size, loss


def pair(curves: Mapping[str, Any]) -> tuple[int, int] | None:
    """(h1, h2): the heads with the best final scores; None for a model without heads.

    h1 has the best previous-token score of the first layer, h2 the best prefix matching of the last
    (in a one-layer model both are heads of the same layer).
    """
    last = curves["snapshots"][-1]
    if "previous_token" not in last:
        return None
    return int(np.argmax(last["previous_token"][0])), int(np.argmax(last["prefix_matching"][-1]))


def trace(
    curves: Mapping[str, Any], against: Mapping[str, Any] | None = None
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """name -> (tokens, values) for loss, icl and, with heads, the scores of the pair of heads.

    The pair is that of the last snapshot, followed back: the same heads at all times, not the best
    of each time. K-composition is left out where it is exactly 0 (heads that do not write yet have
    no score). against: another run on the same windows; adds "loss_gap" and "icl_gap", its value
    minus this run's, so that a rise means that this run draws ahead.
    """
    rows = curves["snapshots"]
    tokens = np.array([row["step"] for row in rows], dtype=float) * curves["tokens_per_step"]

    def of(read: Any, source: Sequence[Mapping[str, Any]] = rows) -> np.ndarray:
        return np.array([read(row) for row in source], dtype=float)

    out = {name: (tokens, of(lambda row, name=name: row[name])) for name in ("loss", "icl")}
    if heads := pair(curves):
        h1, h2 = heads
        out["previous_token"] = tokens, of(lambda row: row["previous_token"][0][h1])
        out["prefix_matching"] = tokens, of(lambda row: row["prefix_matching"][-1][h2])
        if "k_composition" in rows[-1]:
            k = of(lambda row: row["k_composition"][h1][h2])
            out["k_composition"] = tokens[k > 0], k[k > 0]
    if against is not None:
        other = against["snapshots"]
        if [row["step"] for row in other] != [row["step"] for row in rows]:
            raise ValueError(
                "the two runs have snapshots at different steps: compare equal recipes"
            )
        for name in ("loss", "icl"):
            theirs = of(lambda row, name=name: row[name], other)
            out[f"{name}_gap"] = tokens, theirs - out[name][1]
    return out


def paired_losses(
    curves: Mapping[str, Any], against: Mapping[str, Any], windows: int = WINDOWS
) -> dict[str, list[float]]:
    """Loss of `against` minus loss of this run on the kept tokens, with its error, by snapshot.

    The kept tokens are the same in every run: 13 in each of 40 windows. The error is that of the
    mean over windows. Returns "tokens", "gap", "se".
    """
    gap, se = [], []
    for mine, other in zip(curves["snapshots"], against["snapshots"], strict=True):
        difference = np.subtract(other["token_losses"], mine["token_losses"])
        by_window = difference.reshape(windows, -1).mean(1)
        gap.append(float(by_window.mean()))
        se.append(float(by_window.std(ddof=1) / np.sqrt(windows)))
    tokens = [float(row["step"] * curves["tokens_per_step"]) for row in curves["snapshots"]]
    return {"tokens": tokens, "gap": gap, "se": se}


def events(
    curves: Mapping[str, Any],
    *,
    shallow: Mapping[str, Any] | None = None,
    no_heads: Mapping[str, Any] | None = None,
    until: float | None = None,
) -> dict[str, Any]:
    """What changed in one training run, when, and in which order. All counts are tokens.

    shallow: curves of the one-layer model (for the gaps of loss and in-context learning).
    no_heads: curves of the zero-layer model on the same text in the same order, the control of the
    bump. until: where the learning rate begins to fall (for the bump alone).
    Returns "pair" (see `pair`), "rises" (name -> `rise`), "bump" (`bump`), "phase_change" ("found",
    "start", "end", "quickest", "why"), "order": what rose, by its 50 % crossing, and "loss_bump",
    if there is one, by its peak; and "order_begun": the same by 10 % crossings and the valley. The
    two need not agree: what begins first need not be half done first.
    """
    traced = trace(curves, shallow)
    rises = {k: rise(*traced[k], least=least) for k, least in LEAST.items() if k in traced}
    tokens, loss = training_loss(curves)
    control = None if no_heads is None else training_loss(no_heads)[1]
    found = bump(tokens, loss, until, control)
    times = {name: r["t50"] for name, r in rises.items() if r["rises"]}
    if found["found"]:
        times["loss_bump"] = found["peak"]
    begun = {name: r["t10"] for name, r in rises.items() if r["rises"]}
    if found["found"]:
        begun["loss_bump"] = found["valley"]
    prefix = rises.get("prefix_matching")
    if prefix is None:
        why = "the model has no heads"
    elif not prefix["rises"]:
        why = "prefix matching does not rise"
    elif not prefix["abrupt"]:
        why = "prefix matching rises, but steadily or from the beginning"
    else:
        why = "prefix matching rises abruptly after a quiet stretch"
    happened = prefix is not None and prefix["abrupt"]
    heads = pair(curves)
    return {
        "pair": None if heads is None else list(heads),
        "rises": rises,
        "bump": found,
        "phase_change": {
            "found": happened,
            "start": prefix["t10"] if happened else None,
            "end": prefix["t90"] if happened else None,
            "quickest": prefix["quickest"] if happened else None,
            "why": why,
        },
        "order": sorted(times, key=lambda name: (times[name], name)),
        "order_begun": sorted(begun, key=lambda name: (begun[name], name)),
    }


# ---------------------------------------------------------------- several runs


def spread(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The range over runs (seeds) of every event's time, given the `events` of each.

    Returns "times": name -> {"low", "high" (tokens), "ratio", "runs" (how many have it)}, "all":
    the events that every run has, and "same_order": whether these come in one order in all runs.
    """
    times: dict[str, list[float]] = {}
    for run in runs:
        for name in run["order"]:
            at = run["bump"]["peak"] if name == "loss_bump" else run["rises"][name]["t50"]
            times.setdefault(name, []).append(at)
    common = [name for name in runs[0]["order"] if len(times[name]) == len(runs)]
    orders = {tuple(name for name in run["order"] if name in common) for run in runs}
    return {
        "times": {
            name: {"low": min(t), "high": max(t), "ratio": max(t) / min(t), "runs": len(t)}
            for name, t in times.items()
        },
        "all": common,
        "same_order": len(orders) == 1,
    }


def turns(points: np.ndarray, reach: float) -> np.ndarray:
    """Angle in degrees by which a path turns at each point, NaN near its ends. points: [n, k].

    It is the angle between "here minus the last earlier point at least `reach` away" and "the first
    later point at least `reach` away minus here". Jitter much smaller than `reach` does not count.
    """
    angle = np.full(len(points), np.nan)
    for i, here in enumerate(points):
        far = np.linalg.norm(points - here, axis=1) >= reach
        if not far[:i].any() or not far[i + 1 :].any():
            continue
        before = here - points[np.flatnonzero(far[:i])[-1]]
        after = points[i + 1 + np.flatnonzero(far[i + 1 :])[0]] - here
        cosine = before @ after / (np.linalg.norm(before) * np.linalg.norm(after))
        angle[i] = np.degrees(np.arccos(np.clip(cosine, -1, 1)))
    return angle


def token_loss_pca(
    runs: Mapping[str, Mapping[str, Any]],
    k: int = 2,
    *,
    since: float = 0.0,
    reach: float = 0.2,
    smooth: int = 2,
) -> dict[str, Any]:
    """The first k principal components of per-token losses; a point is a snapshot of a run.

    runs: role -> curves. All snapshots from `since` tokens on enter one centred matrix [snapshot,
    kept token]; its right singular vectors are the components. Each component's sign is such that
    its sum over tokens is not negative.
    Returns "share" (of the variance, k numbers) and "runs": role -> "tokens", "coordinates" [n][k],
    "turn" (degrees or None, see `turns`), "peak" ("tokens" and "angle" of the sharpest turn, or
    None). For the turn each point is averaged with `smooth` neighbours on either side, and `reach`
    is a share of the largest distance in the run. A run that has come to rest turns at random.
    ValueError when k is larger than the data allow.
    """
    rows, tokens = {}, {}
    for role, curves in runs.items():
        at = np.array([r["step"] for r in curves["snapshots"]], float) * curves["tokens_per_step"]
        kept = np.array([r["token_losses"] for r in curves["snapshots"]], float)
        rows[role], tokens[role] = kept[at >= since], at[at >= since]
    X = np.concatenate(list(rows.values()))
    if not 1 <= k <= min(X.shape[0] - 1, X.shape[1]):
        raise ValueError(f"k = {k} components do not fit {X.shape[0]} snapshots")
    mean = X.mean(0)
    _, sizes, V = np.linalg.svd(X - mean, full_matrices=False)
    V = V[:k] * np.where(V[:k].sum(1) < 0, -1.0, 1.0)[:, None]
    out: dict[str, Any] = {"share": (sizes[:k] ** 2 / (sizes**2).sum()).tolist(), "runs": {}}
    for role, losses in rows.items():
        points = (losses - mean) @ V.T  # [snapshot, k]
        n = len(points)
        path = np.array([points[max(0, i - smooth) : i + smooth + 1].mean(0) for i in range(n)])
        size = np.linalg.norm(path[:, None] - path[None], axis=-1).max()
        angle = turns(path, reach * size)
        best = int(np.nanargmax(angle)) if not np.isnan(angle).all() else None
        out["runs"][role] = {
            "tokens": tokens[role].tolist(),
            "coordinates": points.tolist(),
            "turn": [None if np.isnan(a) else float(a) for a in angle],
            "peak": None
            if best is None
            else {"tokens": float(tokens[role][best]), "angle": float(angle[best])},
        }
    return out
