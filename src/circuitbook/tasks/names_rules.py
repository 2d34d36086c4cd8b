"""What rules without the model's insight get right: positions, mentions, recency, and a ceiling.

A rule of positions knows where names stand, not which of them are the same. The order of the two
people is a fair coin, so no such rule can be right much more often than in half of the prompts. The
rules that also compare names with the last one know a little more; the ceiling counts mentions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from circuitbook.tasks import names
from circuitbook.tasks.names import N_CTX, Prompts


class Mentions(NamedTuple):
    """The names of each prompt in the order of mention: where, and who; -1 after the last one."""

    at: Int[np.ndarray, "n mention"]
    who: Int[np.ndarray, "n mention"]

    @property
    def count(self) -> Int[np.ndarray, " n"]:
        """How many names are mentioned, repeats included."""
        return (self.at >= 0).sum(1)


def mentions(p: Prompts) -> Mentions:
    """Names found in the tokens alone, first to last."""
    found = names.is_name(p.tokens)
    order = np.argsort(~found, axis=1, kind="stable")[:, : len(names.MENTIONS)]
    there = np.take_along_axis(found, order, 1)
    at = np.where(there, order, -1)
    return Mentions(at, np.where(there, np.take_along_axis(p.tokens, order, 1), -1))


def _nth_last(m: Mentions, k: int) -> Int[np.ndarray, " n"]:
    place = m.count - k
    who = m.who[np.arange(len(place)), np.maximum(place, 0)]
    return np.where(place >= 0, who, -1)


def _other_than_last(m: Mentions, latest: bool) -> Int[np.ndarray, " n"]:
    """The first, or the latest, name that is not the last name mentioned."""
    last = _nth_last(m, 1)
    differs = (m.who != last[:, None]) & (m.who >= 0)
    place = differs.shape[1] - 1 - differs[:, ::-1].argmax(1) if latest else differs.argmax(1)
    return m.who[np.arange(len(last)), place]


def _newest(m: Mentions) -> Int[np.ndarray, " n"]:
    """The name whose first mention is the latest."""
    new = (m.who >= 0) & (_times_before(m) == 0)
    return m.who[np.arange(len(new)), new.shape[1] - 1 - new[:, ::-1].argmax(1)]


def _times_before(m: Mentions) -> Int[np.ndarray, "n mention"]:
    same = m.who[:, :, None] == m.who[:, None, :]
    return np.tril(same, -1).sum(2)


def once(m: Mentions) -> Int[np.ndarray, " n"]:
    """The name that is mentioned once: the ceiling."""
    times = (m.who[:, :, None] == m.who[:, None, :]).sum(2)
    return m.who[np.arange(len(times)), ((times == 1) & (m.who >= 0)).argmax(1)]


def _right(guess: Int[np.ndarray, " n"], p: Prompts) -> float:
    return float((guess == p.io).mean())


def fixed(p: Prompts) -> tuple[list[float], list[float]]:
    """Share right of "the token at position t" and of "the token t before the end", for every t."""
    rows, places = np.arange(len(p.end)), np.arange(N_CTX)
    start = [_right(p.tokens[:, t], p) for t in places]
    back = [_right(np.where(p.end >= t, p.tokens[rows, p.end - t], -1), p) for t in places]
    return start, back


# ---------------------------------------------------------------- a fitted rule of positions


def features(p: Prompts, m: Mentions) -> Float[torch.Tensor, "n mention feature"]:
    """What a mention's place is: position, distance to the end, number from either side, pair of
    (number, how many mentions); one-hot, float32. Never which name it is."""
    width, count = m.at.shape[1], m.count
    number = np.broadcast_to(np.arange(width), m.at.shape)
    behind = np.maximum(count[:, None] - 1 - number, 0)
    parts = [
        (np.maximum(m.at, 0), N_CTX),
        (np.maximum(p.end[:, None] - m.at, 0), N_CTX + 1),
        (number, width),
        (behind, width),
        (number * (width + 1) + count[:, None], width * (width + 1)),
    ]
    return torch.cat(
        [torch.nn.functional.one_hot(torch.from_numpy(np.array(x)), n) for x, n in parts], -1
    ).float()


def _scores(x: torch.Tensor, there: Bool[np.ndarray, "n mention"], w: torch.Tensor) -> torch.Tensor:
    return (x @ w).masked_fill(~torch.from_numpy(there), -torch.inf)


def fitted(train: Prompts, tests: dict[str, Prompts], steps: int = 60) -> dict[str, float]:
    """Share right of a softmax over mentions, linear in `features`, fitted to the training prompts.

    The best single place for each situation that a linear score of positions can tell apart.
    """
    m = mentions(train)
    x, there = features(train, m), m.at >= 0
    answer = torch.from_numpy((m.who == train.io[:, None]).argmax(1))
    w = torch.zeros(x.shape[-1], requires_grad=True)
    solver = torch.optim.LBFGS([w], max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        solver.zero_grad()
        loss = torch.nn.functional.cross_entropy(_scores(x, there, w), answer)
        loss = loss + 1e-4 * w.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        solver.step(closure)
    out = {}
    for name, p in tests.items():
        m = mentions(p)
        best = _scores(features(p, m), m.at >= 0, w.detach()).argmax(1).numpy()
        out[name] = _right(m.who[np.arange(len(best)), best], p)
    return out


def rules(p: Prompts, train: Prompts) -> dict[str, float]:
    """Share of the prompts p that each rule gets right; fitted rules are fitted to `train`.

    The two "best …" rules are chosen on p itself, which favours them.
    """
    m = mentions(p)
    start, back = fixed(p)
    out = {
        "best fixed position": max(start),
        "best fixed distance to the end": max(back),
        "first name": _right(m.who[:, 0], p),
        "second name": _right(m.who[:, 1], p),
        "third name": _right(m.who[:, 2], p),
        "last name": _right(_nth_last(m, 1), p),
        "last name but one": _right(_nth_last(m, 2), p),
        "last name but two": _right(_nth_last(m, 3), p),
        "newest name": _right(_newest(m), p),
        "first name that is not the last": _right(_other_than_last(m, latest=False), p),
        "latest name that is not the last": _right(_other_than_last(m, latest=True), p),
        "linear in positions, fitted": fitted(train, {"p": p})["p"],
    }
    return out | {"the name that occurs once": _right(once(m), p)}
