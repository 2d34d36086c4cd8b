"""Full-vocabulary questions about one head, answered without ever holding the whole table.

A head's table over the vocabulary is T = A B with thin A [rows, d_head] and B [d_head, columns].
At 48,262 tokens T is 9 GB; A and B are 12 MB each. The scans below compute T in tiles that stay in
the processor's cache, reduce each tile at once, and forget it.

Why the answer does not depend on the chunk size. Matrix products of different shapes may round
differently. So every tile has the same shape, ROWS x COLUMNS, and row i always sits in slot
i mod ROWS of its tile, whatever `chunk` is; empty slots are zero. Each row then meets the same
arithmetic in every run. `chunk` only says how many rows are asked for at a time. A multiple of ROWS
wastes nothing.

Tables ignore position: they say what a head does with tokens, not where it looks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

with suppress(ModuleNotFoundError):  # annotations are text here
    from jaxtyping import Complex, Float, Int

ROWS, COLUMNS = 1024, 1024  # one float32 tile is 4 MB and stays in the shared cache
BLOCK = 16  # columns per block of `top_k`; small, since k blocks per row are computed twice

Ids = Tensor | None


# ---------------------------------------------------------------- factors


class Factors(NamedTuple):
    """T = A B, never formed; leading axes (heads) are allowed."""

    A: Float[Tensor, "*heads rows d_head"]
    B: Float[Tensor, "*heads d_head columns"]


def ov_factors(
    W_E: Float[Tensor, "d_vocab d_model"],
    W_V: Float[Tensor, "*heads d_model d_head"],
    W_O: Float[Tensor, "*heads d_head d_model"],
    W_U: Float[Tensor, "d_model d_vocab"],
    *,
    centre: bool = True,
) -> Factors:
    """W_E W_OV W_U = A B with A = W_E W_V, B = W_O W_U; row = source token, column = output.

    Centring subtracts each W_U row's mean over the vocabulary. That changes no probability, and
    without it the eigenvalues, ranks and boosts depend on an arbitrary c in W_U + c 1^T. It is done
    on B, which is the same thing: W_O (W_U - mean) = W_O W_U - its own row mean.
    `centre=False` exists to show the trap. With LayerNorm folded and frozen, a row is divided by
    its token's scale and by the reader's: one positive number a row, which moves no rank in it.
    Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (OV circuit).
    """
    B = W_O @ W_U
    return Factors(W_E @ W_V, B - B.mean(-1, keepdim=True) if centre else B)


def qk_factors(
    W_E: Float[Tensor, "d_vocab d_model"],
    W_Q: Float[Tensor, "*heads d_model d_head"],
    W_K: Float[Tensor, "*heads d_model d_head"],
    *,
    b_Q: Float[Tensor, "*heads d_head"] | None = None,
    b_K: Float[Tensor, "*heads d_head"] | None = None,
    centre: bool = True,
) -> Factors:
    """W_E W_QK W_E^T / sqrt(d_head) = A B with A = W_E W_Q / sqrt(d_head), B = (W_E W_K)^T.

    Row = query (destination) token, column = key (source) token. Rows are centred over the keys:
    the softmax cannot see a constant per query, so raw rows of different queries do not compare.
    The centred row is what is left. b_Q adds to every row what the head looks for whoever asks;
    b_K only adds a constant per query. With LayerNorm give rows as a head reads them
    (`inputs.alone`): a key's own scale orders the keys, so it may not be left out here.
    Source: Elhage et al. 2021 (QK circuit).
    """
    B = (W_E @ W_K if b_K is None else W_E @ W_K + b_K[..., None, :]).mT
    q = W_E @ W_Q if b_Q is None else W_E @ W_Q + b_Q[..., None, :]
    A = q * W_Q.shape[-1] ** -0.5
    return Factors(A, B - B.mean(-1, keepdim=True) if centre else B)


def eigenvalues(
    A: Float[Tensor, "*heads d_vocab d_head"], B: Float[Tensor, "*heads d_head d_vocab"]
) -> Complex[Tensor, "*heads d_head"]:
    """The nonzero eigenvalues of A B (d_vocab x d_vocab) are those of B A (d_head x d_head).

    If A B x = l x with l != 0, then B A (B x) = l (B x) and B x != 0. Computed in float64 (the
    eigenvalues of a real matrix that is not symmetric can be sensitive). Largest modulus first.
    Raises ValueError unless the table is square.
    """
    if A.shape[-2] != B.shape[-1]:
        raise ValueError(
            f"eigenvalues need a square table, got {A.shape[-2]} rows and {B.shape[-1]} columns"
        )
    values = torch.linalg.eigvals(B.double() @ A.double())
    return values.gather(-1, values.abs().argsort(-1, descending=True))


def copying_score(
    A: Float[Tensor, "*heads d_vocab d_head"], B: Float[Tensor, "*heads d_head d_vocab"]
) -> Float[Tensor, "*heads"]:
    """score = sum(Re l) / sum(|l|) over the eigenvalues l of A B: 1 when all are positive.

    Between -1 and 1. Pass factors from `ov_factors`, whose W_U is centred. Positive eigenvalues say
    that sets of tokens raise themselves on average; read it beside `self_rank`, which asks each
    token. A zero table has score 0. Float64.
    Source: Elhage et al. 2021 (eigenvalue test for copying).
    """
    values = eigenvalues(A, B)
    total = values.abs().sum(-1)
    return torch.where(total > 0, values.real.sum(-1) / total.clamp_min(1e-300), 0.0)


# ---------------------------------------------------------------- tiles


def _check(A: Tensor, B: Tensor, chunk: int) -> None:
    if A.ndim != 2 or B.ndim != 2 or A.shape[1] != B.shape[0]:
        raise ValueError(
            f"one head at a time: A [rows, d_head] and B [d_head, columns], "
            f"got {tuple(A.shape)} and {tuple(B.shape)}"
        )
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    if not (bool(A.isfinite().all()) and bool(B.isfinite().all())):
        raise ValueError("A or B holds NaN or infinity: every comparison with it would be silent")


def _ids(ids: Ids, size: int, name: str, device: torch.device) -> Tensor:
    """The chosen ids as a tensor; all of them when none are given."""
    if ids is None:
        return torch.arange(size, device=device)
    ids = torch.as_tensor(ids, device=device).flatten().long()
    if ids.numel() == 0 or int(ids.min()) < 0 or int(ids.max()) >= size:
        raise ValueError(f"{name} must be ids between 0 and {size - 1}, and at least one")
    if name == "columns" and bool((ids.diff() <= 0).any()):
        raise ValueError("columns must be distinct and ascending, so that ties go to the lower id")
    return ids


def _row_tiles(
    A: Tensor, rows: Tensor, chunk: int
) -> Iterator[tuple[int, int, slice, Tensor, Tensor]]:
    """Yield (lo, hi, slots, tile [ROWS, d_head], ids [ROWS]): rows lo..hi-1 sit in these slots.

    Slots outside hold zero rows and id 0. The two buffers are reused.
    """
    tile = A.new_zeros(ROWS, A.shape[1])
    ids = rows.new_zeros(ROWS)
    for start in range(0, len(rows), chunk):
        stop = min(start + chunk, len(rows))
        lo = start
        while lo < stop:
            hi = min(stop, (lo // ROWS + 1) * ROWS)
            slots = slice(lo % ROWS, lo % ROWS + hi - lo)
            tile.zero_()
            ids.zero_()
            ids[slots] = rows[lo:hi]
            tile[slots] = A[rows[lo:hi]]
            yield lo, hi, slots, tile, ids
            lo = hi


def _column_tiles(B: Tensor, block: int = 1) -> Tensor:
    """[tiles, d_head, COLUMNS], zero-padded; column s*(COLUMNS/block) + b is id b*block + s.

    With block > 1 the members of a block of consecutive ids lie a constant stride apart, so that
    the maximum over a block runs along whole vector registers.
    """
    d, n = B.shape
    padded = B.new_zeros(d, -(-n // COLUMNS) * COLUMNS)
    padded[:, :n] = B
    tiles = padded.view(d, -1, COLUMNS // block, block)
    return tiles.permute(1, 0, 3, 2).reshape(-1, d, COLUMNS)


# ---------------------------------------------------------------- scans


@torch.no_grad()
def self_rank(
    A: Float[Tensor, "n_rows d_head"],
    B: Float[Tensor, "d_head n_columns"],
    *,
    rows: Ids = None,
    columns: Ids = None,
    chunk: int = 4096,
) -> Int[Tensor, " chosen"]:
    """rank_i = 1 + number of columns j != i with T[i, j] >= T[i, i].

    Where a token stands in its own row; 1 is best. Ties count against the token. `rows`: ids of the
    rows to look at (such as frequent tokens), in the order of the answer. `columns`: distinct
    ascending ids that compete; the row's own id is never counted as its own rival. Ids are token
    ids: T must be square over the vocabulary.

    Cost per entry: the product (2 d_head operations), one comparison and one addition. Memory: the
    factors, a copy of B, and tiles of 4 MB. The result does not depend on `chunk`, ties included.
    """
    _check(A, B, chunk)
    if A.shape[0] != B.shape[1]:
        raise ValueError(
            f"row i must have a column i, got {A.shape[0]} rows and {B.shape[1]} columns"
        )
    rows = _ids(rows, A.shape[0], "rows", A.device)
    chosen = None if columns is None else _ids(columns, B.shape[1], "columns", A.device)
    tiles = _column_tiles(B if chosen is None else B[:, chosen])
    n_columns = B.shape[1] if chosen is None else len(chosen)
    edges = torch.arange(0, len(tiles) * COLUMNS + 1, COLUMNS, device=A.device)
    out = A.new_empty(ROWS, COLUMNS)
    square = A.new_empty(ROWS, ROWS)
    rank = torch.empty(len(rows), dtype=torch.long, device=A.device)
    for lo, hi, slots, tile, ids in _row_tiles(A, rows, chunk):
        own = torch.mm(tile, B[:, ids], out=square).diagonal().clone().unsqueeze(1)
        # Where each row's own column lies, sorted, so that each tile finds its few with no search.
        place = ids if chosen is None else torch.searchsorted(chosen, ids).clamp_max(n_columns - 1)
        present = torch.ones_like(ids, dtype=torch.bool) if chosen is None else chosen[place] == ids
        slot = present.nonzero().squeeze(1)
        order = place[slot].argsort()
        slot, place = slot[order], place[slot[order]]
        bounds = torch.searchsorted(place, edges).tolist()
        ahead = torch.zeros(ROWS, dtype=torch.float64, device=A.device)
        for c, columns_c in enumerate(tiles):
            table = torch.mm(tile, columns_c, out=out)
            first, last = bounds[c], bounds[c + 1]
            if last > first:
                table[slot[first:last], place[first:last] - c * COLUMNS] = -torch.inf
            if (c + 1) * COLUMNS > n_columns:
                table = table[:, : n_columns - c * COLUMNS]
            ahead += table.ge_(own).sum(1)  # ones and zeros: exact in float32
        rank[lo:hi] = 1 + ahead[slots].long()
    return rank


def self_shares(rank: Int[Tensor, " chosen"], ks: tuple[int, ...] = (1, 10)) -> dict[int, float]:
    """share_k = fraction of tokens whose rank in their own row is at most k."""
    return {k: (rank <= k).double().mean().item() for k in ks}


class Top(NamedTuple):
    """The k largest entries of each row, largest first, equal values by ascending id."""

    values: Float[Tensor, "chosen k"]
    ids: Int[Tensor, "chosen k"]


def _top(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row, by value and then by index, which torch.topk does not promise."""
    n = values.shape[1]
    value, index = values.topk(min(k + 1, n), 1)
    if n > k:  # a tie across the border: which index was taken is arbitrary, so sort those rows
        tied = (value[:, k - 1] == value[:, k]).nonzero().squeeze(1)
        value, index = value[:, :k].clone(), index[:, :k].clone()
        if len(tied):
            best, at = values[tied].sort(dim=1, descending=True, stable=True)
            value[tied], index[tied] = best[:, :k], at[:, :k]
    index, order = index.sort(1)
    value, order = value.gather(1, order).sort(dim=1, descending=True, stable=True)
    return value, index.gather(1, order)


@torch.no_grad()
def top_k(
    A: Float[Tensor, "n_rows d_head"],
    B: Float[Tensor, "d_head n_columns"],
    k: int = 10,
    *,
    rows: Ids = None,
    columns: Ids = None,
    chunk: int = 4096,
) -> Top:
    """The k largest T[i, j] of every row i, T = A B, order by value and then by column id.

    First pass: keep only the largest entry of every block of 16 consecutive columns. The k best
    columns lie in the k blocks with the largest maxima (ties: lower block first): a column outside
    would be beaten by one column of each. Second pass: compute those k blocks again and choose.
    For `-A` the answer is the k smallest. For QK tables rows are queries and columns keys.

    `rows`, `columns`: ids to look at (columns distinct and ascending). The answer holds original
    ids. It does not depend on `chunk`, ties included. Raises ValueError when k does not fit.
    """
    _check(A, B, chunk)
    rows = _ids(rows, A.shape[0], "rows", A.device)
    names = _ids(columns, B.shape[1], "columns", A.device)
    if columns is not None:
        B = B[:, names]
    n = B.shape[1]
    if not 1 <= k <= n:
        raise ValueError(f"k must be between 1 and the {n} columns, got {k}")
    tiles = _column_tiles(B, BLOCK)
    n_blocks, per_tile = -(-n // BLOCK), COLUMNS // BLOCK
    kb, member = min(k, n_blocks), torch.arange(BLOCK, device=A.device)
    blocks = B.new_zeros(n_blocks * BLOCK, B.shape[0])
    blocks[:n] = B.T
    blocks = blocks.view(n_blocks, -1)  # [block, member * d_head]: the second pass reads whole rows
    out = A.new_empty(ROWS, COLUMNS)
    maxima = A.new_empty(ROWS, len(tiles) * per_tile)
    again = A.new_empty(ROWS * kb, blocks.shape[1])
    top = Top(A.new_empty(len(rows), k), rows.new_empty(len(rows), k))
    for lo, hi, slots, tile, _ in _row_tiles(A, rows, chunk):
        for c, columns_c in enumerate(tiles):
            table = torch.mm(tile, columns_c, out=out).view(ROWS, BLOCK, per_tile)
            if (c + 1) * COLUMNS > n:  # padding columns must not win
                absent = member[:, None] + BLOCK * torch.arange(per_tile, device=A.device)
                table.masked_fill_(absent >= n - c * COLUMNS, -torch.inf)
            torch.amax(table, 1, out=maxima[:, c * per_tile : (c + 1) * per_tile])
        _, best = _top(maxima[slots, :n_blocks], kb)
        best = best.sort(1).values  # ascending blocks: candidates in order of id
        # Product and sum entry by entry: equal columns get equal values wherever they stand.
        found = torch.index_select(blocks, 0, best.flatten(), out=again[: best.numel()])
        found = found.view(len(best), kb * BLOCK, -1).mul_(tile[slots, None, :]).sum(-1)
        ids = (best.unsqueeze(-1) * BLOCK + member).flatten(1)
        value, at = _top(found.masked_fill_(ids >= n, -torch.inf), k)
        top.values[lo:hi] = value
        top.ids[lo:hi] = names[ids.gather(1, at)]
    return top
