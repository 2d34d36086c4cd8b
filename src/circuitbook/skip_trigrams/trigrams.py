"""The strongest [source] … [destination] → [output] of a head, over the whole vocabulary, exactly.

strength(s, d, o) = QK[d, s] x OV[s, o], both centred, both positive. There are d_vocab^3 triples.
Three facts make the search cheap.

1. For one source s the best triple is (max of column s of QK) x (max of row s of OV). So a source's
   bound is attained: it is the strength of a real triple.
2. So the k-th largest bound is a floor for the k-th best strength, and only the at most k sources
   whose bound reaches it can hold one of the k best triples.
3. In a source, the k best products of two falling lists a and b lie where (i+1)(j+1) <= k.

Pass 1 takes the maxima: two products of thin factors in tiles that are reduced at once. Pass 2
opens the few sources of fact 2. No d_vocab x d_vocab table is ever held.

Why centred, why positive: a constant per query changes no pattern, so QK rows of different queries
compare only after each row's mean over the keys is gone. And a negative score times a negative
boost is a large number that predicts nothing: nobody looks there.
Source: Elhage et al. 2021 (skip-trigrams). The tables hold no position. With LayerNorm a token is
read at the scale that it has alone, an approximation where positions are in the stream too, and
the final scale is left out of OV: see `inputs`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from circuitbook import inputs, names, scan, tokenizer
from circuitbook.model import Transformer
from circuitbook.scan import COLUMNS, ROWS, Factors

BATCH = 64  # sources opened at once in pass 2
SLACK = 1e-5  # tiles of other shapes round differently: bounds are trusted to this share


class Head(NamedTuple):
    """One head's centred tables over the allowed tokens, as thin factors; ids: token of each row.

    qk: row = destination, column = source.  ov: row = source, column = output.
    """

    qk: Factors
    ov: Factors
    ids: Int[Tensor, " allowed"]


class Triples(NamedTuple):
    """Triples, strongest first. Token ids; qk and ov are the centred entries."""

    source: Int[Tensor, " k"]
    destination: Int[Tensor, " k"]
    output: Int[Tensor, " k"]
    qk: Float[Tensor, " k"]
    ov: Float[Tensor, " k"]

    @property
    def strength(self) -> Float[Tensor, " k"]:
        """QK x OV."""
        return self.qk * self.ov

    def take(self, chosen: Tensor) -> Triples:
        """The triples at these places, or under this mask."""
        return Triples(*(x[chosen] for x in self))


@torch.no_grad()
def head_tables(
    model: Transformer, layer: int, head: int, allowed: Int[Tensor, " allowed"]
) -> Head:
    """Factors of a head's tables, centred over the whole vocabulary, then cut to allowed tokens.

    The frequency floor must not move the centre: what softmax sees does not depend on it.
    """
    qk, ov = (f(model, layer, head) for f in (inputs.qk_factors, inputs.ov_factors))
    allowed = allowed.to(model.W_E.device)
    parts = [Factors(A[allowed], B[:, allowed].contiguous()) for A, B in (qk, ov)]
    return Head(*parts, allowed)


def frequent_tokens(
    counts: Integer[np.ndarray, " d_vocab"], floor: int, bos: int | None = None
) -> Int[Tensor, " n"]:
    """Ids of the tokens that occur at least `floor` times; never `bos`, which marks texts' ends.

    bos: by default that of today's tokenizer; 0 for the course's own, not for the published one.
    Raises ValueError when no token is left.
    """
    ids = np.flatnonzero(counts >= floor)
    ids = ids[ids != (tokenizer.load().bos if bos is None else bos)]
    if not len(ids):
        raise ValueError(f"no token occurs {floor} times: lower the frequency floor")
    return torch.from_numpy(ids)


def some_tokens(
    counts: Integer[np.ndarray, " d_vocab"],
    floor: int,
    n: int,
    seed: int = 0,
    bos: int | None = None,
) -> Int[Tensor, " some"]:
    """n of the frequent tokens, drawn by a seed; all of them when they are fewer."""
    ids = frequent_tokens(counts, floor, bos)
    drawn = np.random.default_rng(seed).choice(len(ids), min(n, len(ids)), replace=False)
    return ids[torch.from_numpy(drawn)]


@torch.no_grad()
def row_maxima(
    A: Float[Tensor, "rows d_head"], B: Float[Tensor, "d_head columns"]
) -> Float[Tensor, " rows"]:
    """max over j of (A B)[i, j], in tiles of ROWS x COLUMNS that are reduced at once."""
    scan._check(A, B, 1)
    tiles = [B[:, c : c + COLUMNS].contiguous() for c in range(0, B.shape[1], COLUMNS)]
    out = A.new_empty(ROWS * COLUMNS)
    best = A.new_full((A.shape[0],), -torch.inf)
    here = A.new_empty(ROWS)
    for lo in range(0, A.shape[0], ROWS):
        rows = A[lo : lo + ROWS]
        n = len(rows)
        for tile in tiles:
            table = torch.mm(rows, tile, out=out[: n * tile.shape[1]].view(n, -1))
            torch.amax(table, 1, out=here[:n])
            torch.maximum(best[lo : lo + n], here[:n], out=best[lo : lo + n])
    return best


def _positive(qk: Tensor, ov: Tensor) -> Tensor:
    """Looks there, and raises it."""
    return (qk > 0) & (ov > 0)


def _most(values: Tensor, other: Tensor, floor: float, k: int) -> tuple[Tensor, Tensor]:
    """The entries of each row that may still matter: value x (the row's best other) >= floor."""
    n = int((values * other[:, None] >= floor).sum(1).max())
    return values.topk(max(1, min(n, k)), 1)


@torch.no_grad()
def search(head: Head, k: int, *, per_source: int | None = None) -> Triples:
    """The k strongest triples of a head, equal to brute force over all of them; strongest first.

    per_source: keep at most so many for one source, so that one loud source does not fill the list.
    Fewer than k come back when fewer have QK > 0 and OV > 0. Equal strengths: any of them.
    Memory: the factors, one tile, and BATCH rows. Raises ValueError for k or per_source below 1.
    """
    most = per_source or k
    if k < 1 or most < 1:
        raise ValueError(f"k and per_source must be at least 1, got {k} and {per_source}")
    (A_q, B_k), (A_v, B_o), ids = head
    keys, outputs = B_k.T.contiguous(), B_o
    queries = A_q.T.contiguous()  # [d_head, n]: keys @ queries has one row for each source
    looked, raised = row_maxima(keys, queries), row_maxima(A_v, outputs)
    bound = looked.clamp_min(0) * raised.clamp_min(0)
    order = bound.argsort(descending=True)
    # With fewer than k sources, fact 2 says nothing: all of them are opened to the bottom.
    floor = bound[order[k - 1]].item() * (1 - SLACK) if k <= len(order) else 0.0
    order = order[(bound[order] >= floor) & (bound[order] > 0)]
    best: list[Tensor] = []
    for sources in order.split(BATCH) if len(order) else ():
        q, d = _most(keys[sources] @ queries, raised[sources], floor, k)
        v, o = _most(A_v[sources] @ outputs, looked[sources], floor, k)
        i, j = torch.meshgrid(*(torch.arange(x.shape[1]) for x in (q, v)), indexing="ij")
        near = (i + 1) * (j + 1) <= most
        i, j = i[near].to(q.device), j[near].to(q.device)
        qk, ov = q[:, i], v[:, j]
        product = (qk * ov).masked_fill(~_positive(qk, ov), -torch.inf)
        value, at = product.topk(min(most, product.shape[1]), 1)
        row = torch.arange(len(sources), device=q.device)[:, None].expand_as(at)
        found = (value, sources[:, None].expand_as(at), d[row, i[at]], o[row, j[at]])
        found = torch.stack([x.flatten().double() for x in (*found, qk[row, at], ov[row, at])])
        found = torch.cat([*best, found[:, found[0] > 0]], 1)
        best = [found[:, found[0].argsort(descending=True, stable=True)[:k]]]
        if best[0].shape[1] == k:
            floor = max(floor, best[0][0, -1].item() * (1 - SLACK))
    if not best:
        nothing, no_value = ids[:0], A_q[:0, 0]
        return Triples(nothing, nothing, nothing, no_value, no_value)
    _, *where, qk, ov = best[0]
    return Triples(*(ids[x.long()] for x in where), qk.to(A_q.dtype), ov.to(A_q.dtype))


@torch.no_grad()
def entries(
    head: Head,
    source: Int[Tensor, " n"],
    destination: Int[Tensor, " n"],
    output: Int[Tensor, " n"],
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """(QK[d, s], OV[s, o]) of given triples of allowed tokens, one by one; no table."""
    s, d, o = (torch.searchsorted(head.ids, x) for x in (source, destination, output))
    qk = (head.qk.A[d] * head.qk.B.T[s]).sum(-1)
    return qk, (head.ov.A[s] * head.ov.B.T[o]).sum(-1)


# ---------------------------------------------------------------- kinds, by a stated program

KINDS = (
    "copying", "whitespace and dedents", "brackets and punctuation", "digits", "names",
    "code idioms", "phrases", "word pieces",
)  # fmt: skip
_NAMES = {name for name, _ in names.NAMES}
_CODE = re.compile(
    r"[_=<>{}\[\]`\\/]|\(|^\s*(def|class|self|cls|import|from|return|try|except|elif|else|lambda|"
    r"isinstance|None|True|False|raise|assert|print|args|kwargs|str|int|obj|attr|property)$"
)


def kind(source: str, destination: str, output: str) -> str:
    """The first rule that fits, in the order of KINDS; a program's answer, not a judgement.

    copying: the output is the source, up to blanks and capitals.  whitespace: the output is blank.
    brackets and punctuation: the output has no letter and no digit.  digits: it is a digit.
    names: a capitalised word of three letters or more after a blank, one of the course's names, or
    four capitals.
    code idioms: one of the three has a mark of code or is a word of Python.  phrases: output and
    source are words with their blanks.  word pieces: all the rest.
    """
    s, o = source.strip(), output.strip()
    if s and s.lower() == o.lower():
        return "copying"
    if not o:
        return "whitespace and dedents"
    if not any(c.isalnum() for c in o):
        return "brackets and punctuation"
    if o.isdigit():
        return "digits"
    if any(_CODE.search(x) for x in (source, destination, output)):
        return "code idioms"
    if o in _NAMES or re.fullmatch(r" [A-Z][a-z]{2,}|[A-Z]{4,}", output):
        return "names"
    if output.startswith(" ") and source.startswith(" "):
        return "phrases"
    return "word pieces"
