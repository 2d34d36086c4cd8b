"""The measurements of chapter 04: lists of triples, in text, in the running model, where they fail.

Every list is ranked by the weights alone, over tokens that are frequent in the training text and
destinations that occur in the held-out text, which judges it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from circuitbook import gauge, heads, inputs, probe, scan
from circuitbook.claims import atleast
from circuitbook.model import Transformer
from circuitbook.skip_trigrams import trigrams, triple_runs, triple_text
from circuitbook.skip_trigrams.trigrams import KINDS, Triples
from circuitbook.skip_trigrams.triple_text import Contrast, Text, contrast, gain

MOVES = 8  # permutations of the destinations, for the control that moves them
WIDE = 3  # control sources: so many next rarer, and so many next commoner
MEET = 5  # meetings of source and destination in held-out text that a row of the table needs


class Listed(NamedTuple):
    """One head's tables and its list of triples, with what the controls need (numpy, token ids)."""

    head: trigrams.Head
    triples: Triples
    pairs: Integer[np.ndarray, "pairs 2"]  # distinct sources with their predicted-top output
    controls: dict[int, np.ndarray]  # source -> sources of like frequency: from the same list,
    # or from all allowed tokens when the list is too short for that


def listed(
    model: Transformer, head: int, counts: np.ndarray, text: Text, floor: int, k: int, length: int
) -> Listed:
    """The k strongest triples of a head, at most two a source, whose destination has a context.

    floor: training count of every token.  A destination needs one held-out place with
    length - 2 tokens before it, or the model could not be asked about it; so more than k are
    searched for.
    """
    tables = trigrams.head_tables(model, 0, head, trigrams.frequent_tokens(counts, floor))
    found = trigrams.search(tables, k + k // 2, per_source=2)
    ids = found.destination.tolist()
    can = {d: len(triple_runs.endings(text, d, length)) > 0 for d in set(ids)}
    triples = found.take(torch.tensor([can[d] for d in ids], dtype=torch.bool))
    triples = triples.take(torch.arange(min(k, len(triples.qk))))
    sources = np.unique(triples.source.cpu().numpy())
    at = torch.searchsorted(tables.ids, torch.from_numpy(sources).to(tables.ids))
    top = scan.top_k(*tables.ov, 1, rows=at).ids[:, 0] if len(at) else at
    pairs = np.stack([sources, tables.ids[top].cpu().numpy()], 1)
    pool = sources if len(sources) > 2 * WIDE else tables.ids.cpu().numpy()
    near = triple_text.neighbours(counts[pool], wide=WIDE)
    like = {int(s): pool[n] for s, n in zip(pool, near, strict=True)}
    return Listed(tables, triples, pairs, {int(s): like[int(s)] for s in sources})


def _row(found: Contrast, columns: slice = slice(0, 1)) -> list[float]:
    return list(gain(found, columns))


def search_check(
    model: Transformer, head: int, tokens: Int[Tensor, " n"], k: int, brute: Any
) -> tuple[float, int]:
    """(largest difference of the k best strengths from brute force, triples only signs keep out).

    On the tables of a few tokens. `brute(QK, OV, k, positive=...)` as chapter 04 teaches it. The
    second number counts the triples of its list without sign check whose QK is below its row mean.
    """
    tokens = tokens.to(model.W_E.device)
    qk, ov = (f(model, 0, head, tokens=tokens) for f in (inputs.qk_factors, inputs.ov_factors))
    QK, OV = (f.A @ f.B for f in (qk, ov))
    places = torch.arange(len(tokens), device=tokens.device)
    found = trigrams.search(trigrams.Head(qk, ov, places), k)
    strength = brute(QK, OV, k)[0]
    again = QK[found.destination, found.source] * OV[found.source, found.output]
    error = max((x - strength).abs().max().item() for x in (found.strength, again))
    _, s, d, _ = brute(QK, OV, k, positive=False)
    return error, int((QK[d, s] < 0).sum())


def in_text(
    found: Listed, text: Text, wanted: int, shuffles: int, seed: int
) -> dict[str, dict[str, Contrast]]:
    """Contrasts of a head: "triples" and "pairs" by arm.

    pairs: the destinations are the `wanted` ones with the highest QK[d, s] of each source.
    Columns of "true": the output; then `shuffles` shuffles of the outputs over the rows.
    """
    rng = np.random.default_rng(seed)
    s, d, o = (x.cpu().numpy() for x in found.triples[:3])
    ids = found.head.ids.cpu().numpy()
    sources, top = found.pairs.T
    columns = found.head.qk.A @ found.head.qk.B[:, np.searchsorted(ids, sources)]
    mask = np.zeros((len(sources), text.d_vocab), dtype=bool)
    best = columns.topk(min(wanted, len(ids)), 0).indices.T.cpu().numpy()
    np.put_along_axis(mask, ids[best], True, 1)
    out = {}
    for name, (rows, where, output) in {
        "triples": (s, d.tolist(), o),
        "pairs": (sources, list(mask), top),
    }.items():
        shuffled = [output[rng.permutation(len(output))] for _ in range(shuffles)]
        outputs = np.stack([output, *shuffled], 1)
        rows = [int(x) for x in rows]
        control = [found.controls[x].tolist() for x in rows]
        moved = [[where[i] for i in rng.permutation(len(where))] for _ in range(MOVES)]
        elsewhere = [contrast(text, rows, control, other, outputs[:, :1]) for other in moved]
        out[name] = {
            "true": contrast(text, rows, control, where, outputs),
            "shuffled destination": sum(elsewhere[1:], elsewhere[0]),
        }
    return out


def text_rows(by_head: Sequence[dict[str, dict[str, Contrast]]]) -> dict[str, dict[str, list]]:
    """unit -> arm -> [value, low, high] for every head and, last, for all heads together."""
    out: dict[str, dict[str, list]] = {}
    for unit in ("triples", "pairs"):
        arms = {arm: [h[unit][arm] for h in by_head] for arm in by_head[0][unit]}
        arms = {arm: [*rows, sum(rows[1:], rows[0])] for arm, rows in arms.items()}
        out[unit] = {arm: [_row(x) for x in rows] for arm, rows in arms.items()}
        out[unit]["shuffled OV"] = [_row(x, slice(1, None)) for x in arms["true"]]
        out[unit]["rates"] = [list(x.rates()) for x in arms["true"]]
        out[unit]["places"] = [x.n for x in arms["true"]]
    return out


def in_model(
    model: Transformer,
    found: Listed,
    head: int,
    text: Text,
    gaps: Sequence[int],
    length: int,
    seed: int,
) -> dict[str, Any]:
    """What the source does in the running model, by arm; one real context for each triple.

    "sums": arm -> (sum of values, number of contexts) of every document, for `pooled`.

    Values are changes of the output's centred logit when the token `gap` places before the
    destination is replaced. "first": share of contexts where the head looks nowhere more than at
    the source; "by_gap": the true arm, that share and the change, for each gap.
    """
    rng = np.random.default_rng(seed)
    s, d, o = found.triples[:3]
    n = len(s)
    if not n:  # a head without any positive pair of entries has nothing to be asked
        nothing = np.zeros(text.n_docs), np.zeros(text.n_docs)
        still = {arm: list(triple_text.NOTHING_RUN) for arm in ARMS}
        by_gap = {what: [0.0] * len(gaps) for what in ("first", "change")}
        zeros = dict.fromkeys(("rises", "own_head", "first", "attention"), 0.0)
        return still | zeros | {"sums": dict.fromkeys(ARMS, nothing), "n": 0, "by_gap": by_gap}
    ends = triple_runs.contexts(text, d.cpu().numpy(), length, rng)
    place = triple_runs.places_before(n, gaps, length)
    like = [int(rng.choice(found.controls[int(x)])) for x in s]
    control = torch.tensor(like, dtype=torch.long)
    other_ov, other = (torch.from_numpy(rng.permutation(n)) for _ in range(2))
    swapped = triple_runs.Contexts(ends.tokens[other], ends.doc[other.numpy()])
    asked = torch.stack([o, o[other_ov]], 1).cpu()

    def change(tokens: Tensor, source: Tensor) -> triple_runs.Readout:
        before = triple_runs.read(model, tokens, place, asked)
        after = triple_runs.read(model, triple_runs.put(tokens, place, source), place, asked)
        logit, log_prob, part = (a - b for a, b in zip(after[:3], before[:3], strict=True))
        direct = after.direct - before.direct  # zero without norm: the last token stays
        return triple_runs.Readout(logit, log_prob, part, after.attention, after.first, direct)

    s = s.cpu()
    true, drawn, moved = change(ends.tokens, s), change(ends.tokens, control), change(swapped[0], s)
    values = {
        "true": (true.logit[:, 0], ends.doc),
        "shuffled OV": (true.logit[:, 1], ends.doc),
        "shuffled destination": (moved.logit[:, 0], swapped.doc),
        "random source": (drawn.logit[:, 0], ends.doc),
        "true, log p": (true.log_prob[:, 0], ends.doc),
        "true − random source": (true.logit[:, 0] - drawn.logit[:, 0], ends.doc),
    }
    sums = {
        arm: tuple(np.bincount(doc, w, text.n_docs) for w in (x.double().cpu().numpy(), np.ones(n)))
        for arm, (x, doc) in values.items()
    }
    out: dict[str, Any] = {arm: _mean_of(*x) for arm, x in sums.items()}
    gap = (length - 1 - place).numpy()
    own = true.part[:, head, 0]
    out |= {
        "sums": sums,
        "n": n,
        "rises": (true.logit[:, 0] > 0).double().mean(),
        "own_head": _share(own.sum(), true.logit[:, 0].sum()),
        "first": true.first[:, head].mean(),
        "attention": true.attention[:, head].mean(),
        "by_gap": {
            "first": [_average(true.first[:, head][gap == g]) for g in gaps],
            "change": [_average(true.logit[:, 0][gap == g]) for g in gaps],
        },
    }
    return out


ARMS = (
    "true", "shuffled OV", "shuffled destination", "random source", "true, log p",
    "true − random source",
)  # fmt: skip


def _average(x: Tensor) -> Tensor:
    """The mean; 0 of nothing: a list shorter than the gaps leaves some gaps without a context."""
    return x.mean() if len(x) else x.sum()


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole; 0 where there is no whole to share."""
    return part / whole if float(whole) else 0.0 * part


def _mean_of(sums: np.ndarray, weight: np.ndarray) -> list[float]:
    """The mean with its interval by document, from sums and counts of every document."""
    if not weight.any():
        return list(triple_text.NOTHING_RUN)
    return list(triple_text.bootstrap(sums[None], weight))


def pooled(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All heads' rows of `in_model` together; documents are drawn once for all heads."""
    out: dict[str, Any] = {}
    for arm in rows[0]["sums"]:
        out[arm] = _mean_of(*(sum(row["sums"][arm][i] for row in rows) for i in (0, 1)))
    out["own_head"] = sum(r["own_head"] * r["true"][0] * r["n"] for r in rows) / sum(
        r["true"][0] * r["n"] for r in rows
    )
    out["by_gap"] = {
        k: np.mean([[float(x) for x in r["by_gap"][k]] for r in rows], 0) for k in rows[0]["by_gap"]
    }
    return out


def readable(
    lists: Sequence[Listed], names: Sequence[str], text: Text, each: int
) -> tuple[dict[str, list[int]], list[dict[str, Any]]]:
    """(kind -> triples of each head, rows of the table): `each` strongest of every kind, by rule.

    Only triples whose source and destination meet MEET times or more in the held-out text, or there
    would be nothing to compare with. One row for a source and for an output within a kind.
    """
    kinds: dict[str, list[int]] = {k: [0] * len(lists) for k in KINDS}
    every = []
    for h, found in enumerate(lists):
        for s, d, o, qk, ov in zip(*(x.tolist() for x in found.triples), strict=True):
            which = trigrams.kind(names[s], names[d], names[o])
            kinds[which][h] += 1
            every.append((which, qk * ov, h, s, d, o, qk, ov))
    rows = []
    for which in KINDS:
        used: set[tuple[str, int]] = set()
        for _, _, h, s, d, o, qk, ov in sorted(
            (x for x in every if x[0] == which), key=lambda x: -x[1]
        ):
            if len(used) >= 2 * each:
                break
            if ("s", s) in used or ("o", o) in used:
                continue
            n, hits, n0, hits0, odds = triple_text.log_odds(text, s, d, o)
            if n < MEET:
                continue
            used |= {("s", s), ("o", o)}
            rows.append(
                {
                    "kind": which,
                    "head": h,
                    "triple": [names[s], names[d], names[o]],
                    "qk": qk,
                    "ov": ov,
                    "with": [hits, n],
                    "without": [hits0, n0],
                    "log_odds": odds,
                }
            )
    return kinds, rows


def shares(model: Transformer, windows: Int[Tensor, "window pos"]) -> dict[str, Any]:
    """{"shares": `score_shares`}; with LayerNorm also by how much a position moves a token's scale,
    which the token tables leave out (mean over text, as a share of the scale alone)."""
    out: dict[str, Any] = {"shares": triple_runs.score_shares(model, windows)}
    normed = model.cfg.norm != "none"
    return out | ({"scale_moves": inputs.scale_share(model, windows)} if normed else {})


def shares_claim(d: dict[str, Any]) -> dict[str, Any]:
    """What chapter 04 may say of `shares`: text, values and test."""
    parts = np.asarray(d["shares"])
    token, bias = parts[:, 0], " or a bias" if parts.shape[1] > 4 else ""
    text = (
        "Of the variation of a head's scores on text, the token-token part makes {low:.0%} to "
        "{high:.0%}; the rest holds a position"
        f"{bias}. {{value}} of {{n}} heads are below one half."
    )
    values = {"low": token.min(), "high": token.max(), "n": len(token)}
    if "scale_moves" in d:
        text += " A position moves its token's scale by {moves:.0%}; token tables leave that out."
        values["moves"] = d["scale_moves"]
    return {"text": text, "values": values, "holds": atleast(int((token < 0.5).sum()), 1)}


def meetings(found: Listed, text: Text) -> int:
    """How many of a head's listed triples have their source before their destination in the text
    MEET times or more."""
    s, d = (x.cpu().numpy() for x in found.triples[:2])
    n = [(text.tokens[text.after(int(a))] == b).sum() for a, b in zip(s, d, strict=True)]
    return int((np.asarray(n) >= MEET).sum())


def induction_list(
    model: Transformer,
    windows: Int[Tensor, "window pos"],
    words: Int[Tensor, " words"],
    counts: np.ndarray,
    names: Sequence[str],
    floor: int,
    k: int,
) -> dict[str, Any]:
    """Share of copying among the k strongest triples of the induction head's token tables.

    words: what the head's prefix-matching score is measured on (course protocol).
    "chance": the same share after every source got another source's output, mean over shuffles.
    """
    repeats = probe.repeated_batch(words, 8, generator=torch.Generator().manual_seed(0)).tokens
    pair = heads.spine_pair(model, windows, repeats.to(model.W_E.device))
    layer, head = divmod(pair["induction"], model.cfg.n_heads)
    tables = trigrams.head_tables(model, layer, head, trigrams.frequent_tokens(counts, floor))
    s, d, o = (x.tolist() for x in trigrams.search(tables, k, per_source=2)[:3])
    rng = np.random.default_rng(0)

    def share(outputs: Sequence[int]) -> float:
        kinds = [trigrams.kind(names[a], names[b], names[c]) for a, b, c in zip(s, d, outputs)]
        return kinds.count("copying") / max(len(kinds), 1)

    chance = np.mean([share([o[i] for i in rng.permutation(len(o))]) for _ in range(20)])
    return {"head": f"{layer}.{head}", "n": len(s), "copying": share(o), "chance": chance}


@torch.no_grad()
def survival(
    model: Transformer, triples: Triples, head: int, change_heads: Any, seed: int = 0
) -> dict[str, dict[str, float]]:
    """change -> quantity -> movement, for entries of given triples (`gauge`). float64, raw W_U.

    The four changes of `gauge.survival`; the constant per query is a vector added to every key.
    """
    generator, d_head = torch.Generator().manual_seed(seed), model.cfg.d_head
    R = gauge.invertible(*model.W_Q.shape[:2], d_head, d_head, generator=generator).to(model.W_E)
    G = gauge.free_change(model, generator)
    c = torch.randn(model.cfg.d_model, 1, generator=generator).to(model.W_E) * model.W_U.std()
    k0 = torch.randn(d_head, 1, generator=generator).to(model.W_E)
    turned = gauge.turn_heads(model, change_heads, R)
    s, d, o = triples[:3]

    def numbers(m: Transformer, shift: Float[Tensor, "d_head 1"] | float = 0.0) -> dict:
        at, out = (0, head), {}
        for name, centre in (("raw", False), ("centred", True)):
            A, B = inputs.qk_factors(m, *at, centre=False)
            B = B + shift
            B = B - B.mean(-1, keepdim=True) if centre else B
            out[f"QK entry, {name}"] = (A[d] * B.T[s]).sum(-1)
            A, B = inputs.ov_factors(m, *at, centre=centre)
            out[f"OV entry, {name}"] = (A[s] * B.T[o]).sum(-1)
            out[f"strength, {name}"] = out[f"QK entry, {name}"] * out[f"OV entry, {name}"]
        return out

    old = numbers(model)
    new = {
        "head coordinates R": numbers(turned),
        "stream coordinates G": numbers(gauge.change_stream(model, G)),
        "W_U + c 1ᵀ": numbers(gauge.with_weights(model, W_U=model.W_U + c)),
        "constant per query": numbers(model, k0),
    }
    return {change: gauge.movement(old, x) for change, x in new.items()}
