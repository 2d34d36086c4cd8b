"""Skip-trigram bugs: what one head cannot say, found by program where the text does say it.

A head sends one message per source. For a source s, destinations d1, d2 and outputs o1, o2 its
boosts are A(d, s) x OV[s, o]: a table of rank one, determinant zero. So if OV prefers o1 to o2, it
does so at both destinations. A text can prefer o1 after s … d1 and o2 after s … d2.
Source: Elhage et al. 2021 (keep … in mind, keep … at bay).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Integer, Num
from torch import Tensor

from circuitbook import heads
from circuitbook.expansion import expand
from circuitbook.model import Transformer
from circuitbook.skip_trigrams import triple_runs
from circuitbook.skip_trigrams.trigrams import Head
from circuitbook.skip_trigrams.triple_text import Text, log_odds

ODDS, LIFT, CELL = 10.0, 2.0, 8  # odds ratio asked of the text; odds lift by the source; counts
CONTEXT = 24  # tokens of a held-out context
PUSHED, TRIED = 40, 8  # own cells of a source that are crossed; crossings whose lift is looked up


class Bug(NamedTuple):
    """One source, two destinations, two outputs, of one head; counts [destination, output]."""

    head: int
    source: int
    destinations: tuple[int, int]
    outputs: tuple[int, int]
    counts: tuple[tuple[int, int], tuple[int, int]]
    push: float  # smallest QK x smallest OV of the four: what the table says of the worst cell


def cells(text: Text, source: int, least: int = CELL) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(destination, output, count) of all source … destination → output seen at least so often."""
    at = text.after(source)
    pair, count = np.unique(
        text.tokens[at].astype(np.int64) * text.d_vocab + text.follows[at], return_counts=True
    )
    pair, count = pair[count >= least], count[count >= least]
    return *np.divmod(pair, text.d_vocab), count


def smoothed_odds(counts: Num[np.ndarray, "... 2 2"]) -> Float[np.ndarray, ...]:
    """(n11 + 1/2)(n22 + 1/2) / ((n12 + 1/2)(n21 + 1/2))."""
    n = counts + 0.5
    return n[..., 0, 0] * n[..., 1, 1] / (n[..., 0, 1] * n[..., 1, 0])


def crossings(
    d: Integer[np.ndarray, " n"],
    o: Integer[np.ndarray, " n"],
    count: Integer[np.ndarray, " n"],
    worth: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """([pairs, 2] destinations, [pairs, 2] outputs, counts [pairs, 2, 2]) that cross in the text.

    Two different destinations, two different outputs; each destination has an own output, seen at
    least CELL times after it and more often than the other's; the smoothed odds ratio is ODDS or
    more. Cells that are not listed count zero. worth: the cells that may be own (default: all).
    """
    common = count >= CELL
    first, second = (d[common], o[common]) if worth is None else worth
    ds, os_ = np.unique(first), np.unique(second)
    table = np.zeros((len(ds), len(os_)))
    near = np.isin(d, ds) & np.isin(o, os_)
    table[np.searchsorted(ds, d[near]), np.searchsorted(os_, o[near])] = count[near]
    row, column = np.searchsorted(ds, first), np.searchsorted(os_, second)
    i, j = np.triu_indices(len(row), 1)
    apart = (row[i] != row[j]) & (column[i] != column[j])
    i, j = i[apart], j[apart]
    rows, columns = np.stack([row[i], row[j]], -1), np.stack([column[i], column[j]], -1)
    tables = table[rows[:, :, None], columns[:, None, :]]
    good = (tables[:, 0, 0] > tables[:, 0, 1]) & (tables[:, 1, 1] > tables[:, 1, 0])
    good &= (tables[:, 0, 0] >= CELL) & (tables[:, 1, 1] >= CELL)
    good &= smoothed_odds(tables) >= ODDS
    return ds[rows[good]], os_[columns[good]], tables[good]


def find(
    text: Text,
    tables: Mapping[int, Head],
    sources: Mapping[int, Iterable[int]],
    usable: set[int],
    most: int,
    per_head: int,
) -> list[Bug]:
    """At most `most` bugs, largest push first, one for a source and `per_head` for a head.

    tables, sources: by head.  usable: tokens that may be destinations.  In every cell the head
    looks (QK > 0) and raises (OV > 0). In the text the source matters: it lifts the odds of each
    own output at its destination by LIFT or more.
    """
    candidates: list[Bug] = []
    seen: dict[int, tuple] = {}
    for h, table in tables.items():
        ids = table.ids.cpu().numpy()
        where = np.full(text.d_vocab, -1)
        where[ids] = np.arange(len(ids))
        may = np.isin(np.arange(text.d_vocab), list(usable)) & (where >= 0)
        for s in map(int, sources[h]):
            if s not in seen:
                seen[s] = cells(text, s, 1)
            d, o, count = seen[s]
            qk = (table.qk.A @ table.qk.B[:, where[s]]).cpu().numpy()
            ov = (table.ov.A[where[s]] @ table.ov.B).cpu().numpy()
            own = qk[where[d]] * ov[where[o]]  # what the table says of each cell
            fits = may[d] & (where[o] >= 0) & (qk[where[d]] > 0) & (ov[where[o]] > 0)
            worth = np.flatnonzero(fits & (count >= CELL))
            worth = worth[np.argsort(-own[worth], kind="stable")[:PUSHED]]
            ds, os_, counts = crossings(d[fits], o[fits], count[fits], worth=(d[worth], o[worth]))
            push = qk[where[ds]].min(-1) * ov[where[os_]].min(-1)
            for n in np.argsort(-push, kind="stable")[:TRIED]:
                table_n = tuple(tuple(int(x) for x in row) for row in counts[n])
                two = tuple(ds[n].tolist()), tuple(os_[n].tolist())
                candidates.append(Bug(h, s, *two, table_n, float(push[n])))
    found: dict[int, Bug] = {}
    room = dict.fromkeys(tables, per_head)
    for bug in sorted(candidates, key=lambda b: -b.push):  # the text last: slow
        if len(found) == most:
            break
        if bug.source in found or not room[bug.head]:
            continue
        own = zip(bug.destinations, bug.outputs, strict=True)
        if all(log_odds(text, bug.source, *cell)[-1] >= np.log(LIFT) for cell in own):
            found[bug.source] = bug
            room[bug.head] -= 1
    return list(found.values())


@torch.no_grad()
def boost_table(
    model: Transformer,
    tokens: Int[Tensor, "two n length"],
    place: int,
    head: int,
    outputs: Sequence[int],
    also: Sequence[int] = (),
) -> Float[Tensor, "destination output"]:
    """The head's boost of each output at each destination by the token at `place`, in real runs.

    The values of all other places are cut, the pattern stays (`heads.writes_from`); the write at
    the last position times the centred W_U, mean over contexts. tokens[i] end in destination i.
    also: further places whose values are kept (a second message: the table's rank rises). With
    LayerNorm the write is read at the final scale of the whole run, frozen: one number a context,
    so the rank stays one.
    """
    W_U = model.W_U[:, list(outputs)] - model.W_U.mean(1, keepdim=True)
    rows = []
    for batch in tokens:
        write = heads.writes_from(model, batch, 0, [place, *also])[:, head, -1]  # [n, d_model]
        scale = expand.record(model, batch).last_scale
        write = expand.read(model.ln_final, write, scale if scale is None else scale[:, -1])
        rows.append((write @ W_U).mean(0))
    return torch.stack(rows)


def determinant(table: Float[Tensor, "2 2"]) -> float:
    """|t11 t22 - t12 t21| / (|t11 t22| + |t12 t21|): zero for rank one, at most one."""
    right, wrong = (table[0, 0] * table[1, 1]).item(), (table[0, 1] * table[1, 0]).item()
    return abs(right - wrong) / max(abs(right) + abs(wrong), 1e-30)


def run(
    model: Transformer,
    exact: Transformer,
    bug: Bug,
    text: Text,
    rng: np.random.Generator,
    *,
    n: int = 8,
    length: int = CONTEXT,
    gap: int = 3,
) -> tuple[dict[str, Any], float]:
    """(numbers, determinant): the bug in the running model, mean over n contexts a destination.

    boost: the head's table. rise: change of log p when the source is put `gap` places before the
    destination. prefers: log p(own output) - log p(the other) at each destination, with the
    source; split in direct (all that no head wrote), own (this head) and the other heads.
    exact: the same model in float64.
    """
    asked = torch.tensor(bug.outputs).expand(n, 2)
    at = triple_runs.places_before(n, [gap], length)
    ends = [triple_runs.contexts(text, np.full(n, d), length, rng).tokens for d in bug.destinations]
    source = torch.full((n,), bug.source)
    with_source = [triple_runs.put(t, at, source) for t in ends]
    device = exact.W_E.device
    table = boost_table(
        exact, torch.stack(with_source).to(device), int(at[0]), bug.head, bug.outputs
    )
    out: dict[str, Any] = {"boost": table}
    rows: dict[str, list] = {"rise": [], "prefers": [], "direct": [], "own": [], "others": []}
    for i, (before, after) in enumerate(zip(ends, with_source, strict=True)):
        clean = triple_runs.read(model, before, at, asked)
        run = triple_runs.read(model, after, at, asked)
        own = 1 if i == 0 else -1  # o1 is right at d1, o2 at d2

        def difference(x: Tensor, sign: int = own) -> float:
            return sign * (x[..., 0] - x[..., 1]).mean().item()

        parts = run.part
        rows["rise"].append((run.log_prob - clean.log_prob).mean(0))
        rows["prefers"].append(difference(run.logit))
        rows["own"].append(difference(parts[:, bug.head]))
        rows["direct"].append(difference(run.direct))
        rows["others"].append(difference(parts.sum(1) - parts[:, bug.head]))
    return out | rows, determinant(table)


def rows(
    model: Transformer,
    exact: Transformer,
    tables: Mapping[int, Head],
    sources: Mapping[int, Iterable[int]],
    taught: Text,
    held_out: Text,
    names: Sequence[str],
    most: int,
    per_head: int,
) -> tuple[list[dict[str, Any]], float]:
    """(one row for each bug, largest determinant): found in `taught`, run in held-out contexts."""
    ids = next(iter(tables.values())).ids.tolist()
    usable = {t for t in ids if len(triple_runs.endings(held_out, t, CONTEXT)) >= 4}
    rng, out, worst = np.random.default_rng(0), [], 0.0
    for bug in find(taught, tables, sources, usable, most, per_head):
        numbers, size = run(model, exact, bug, held_out, rng, length=CONTEXT)
        worst = max(worst, size)
        words = {
            "source": names[bug.source],
            "destinations": [names[d] for d in bug.destinations],
            "outputs": [names[o] for o in bug.outputs],
        }
        odds = float(smoothed_odds(np.asarray(bug.counts, dtype=float)))
        out.append({"head": bug.head, **words, "counts": bug.counts, "odds": odds, **numbers})
    return out, worst
