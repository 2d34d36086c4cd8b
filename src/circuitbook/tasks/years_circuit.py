"""What the years model is asked: is the cut-off where it should be, and which nodes put it there.

`near_gap` is the metric of all interventions here. P(> YY) - P(<= YY) would not do: an answer that
ignores YY and prefers late years already has much of it. Around the cut-off there is no such
advantage, since a given year stands as often above it as below.

A node counts at a role: at YY, at the end, at the marker, or elsewhere. So a circuit is a table of
cells [layer, slot, role]. There are few: a circuit of one head has seven rivals, so all of them are
listed, and "better than all" is then little evidence (1 in 8 by chance).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from circuitbook.circuits import ablation, nodes
from circuitbook.circuits.criteria import cell_name
from circuitbook.circuits.faithful import Runner
from circuitbook.circuits.metrics import Metric, at_position
from circuitbook.model import Transformer
from circuitbook.probe import clustered_mean
from circuitbook.tasks import years

ROLES = ("elsewhere", "YY", "the end", "the marker")  # "from" or "between" before YY
Cells = Bool[Tensor, "layer slot role"]


class Setting(NamedTuple):
    """Prompts with everything that the tools of circuits/ ask for."""

    prompts: years.Prompts
    split: str  # "below" asks for a year below YY, all others for one above
    roles: Int[Tensor, "n pos"]
    near: Metric
    gap: Metric
    mean: ablation.Standin
    other: ablation.Standin  # the write with YY = 01 (for "below" 98): hardly any year is ruled out
    twin: ablation.Standin  # the write on the same layout with another noun, century and YY


def near_gap(at: Int[Tensor, " prompt"], yy: Int[Tensor, " prompt"]) -> Metric:
    """(P above - P below) / (P above + P below) over the NEAR years on each side of the cut-off.

    Above: YY+1 ... YY+NEAR, below: YY-NEAR+1 ... YY. 1 for a perfect cut-off; an answer that
    ignores YY scores what its slope over ten years is worth. Needs NEAR <= YY + 1 <= 100 - NEAR.
    """

    def read(logits: Tensor, rows: Tensor) -> Float[Tensor, " n"]:
        cut = yy.to(logits.device)[rows][:, None]
        each = torch.arange(years.NEAR, device=cut.device)
        pick = torch.cat([cut + 1 + each, cut - each], -1) + years.YEAR_0  # [n, 2 NEAR]
        p = logits.gather(-1, pick).softmax(-1)  # the others cancel in the quotient
        return p[:, : years.NEAR].sum(-1) - p[:, years.NEAR :].sum(-1)

    return at_position(at, read)


def other_way(metric: Metric) -> Metric:
    """Minus the metric."""

    def negated(model: Transformer, stream: Tensor, rows: Tensor) -> Tensor:
        return -metric(model, stream, rows)

    return negated


def middle(
    n: int, rng: np.random.Generator, split: str = "heldout", skeleton: int | None = None
) -> years.Prompts:
    """n prompts whose YY has NEAR years on both sides."""
    drawn = years.prompts(2 * n + 20, rng, split, skeleton)
    keep = (drawn.yy >= years.NEAR) & (drawn.yy <= 99 - years.NEAR)
    return years.Prompts(*(field[keep][:n] for field in drawn))


def setting(
    model: Transformer, n: int, seed: int, split: str = "heldout", reference: int = 2000
) -> Setting:
    """n prompts of a split, the metrics, and the stand-ins; means over `reference` other prompts.

    The mean is taken layout by layout (opener and body) and position by position.
    """
    rng = np.random.default_rng(seed)
    given = middle(n, rng, split)
    roles = torch.zeros_like(given.tokens)
    rows = torch.arange(n)
    roles[rows, given.year_at], roles[rows, given.end] = 1, 2
    roles[rows, given.year_at - 2] = 3
    ref = years.prompts(reference, rng, split)
    twins = torch.cat([years.prompts(1, rng, split, int(k)).tokens for k in given.skeleton])
    lost = set(given.skeleton.tolist()) - set(ref.skeleton.tolist())
    if lost:
        raise ValueError(f"no reference prompt has the layouts {sorted(lost)}: ask for more")
    place = torch.arange(years.N_CTX)
    # a number for each layout and position, so that one call takes all the means
    mean = ablation.mean(
        model,
        ref.tokens,
        reference_roles=ref.skeleton[:, None] * years.N_CTX + place,
        roles=given.skeleton[:, None] * years.N_CTX + place,
    )
    # below YY means not above YY - 1
    below = split == "below"
    near, gap = (make(given.end, given.yy - int(below)) for make in (near_gap, years.year_gap))
    free = years.with_year(given, years.LAST if below else years.FIRST)
    return Setting(
        given,
        split,
        roles,
        other_way(near) if below else near,
        other_way(gap) if below else gap,
        mean,
        ablation.resample(model, free.tokens),
        ablation.resample(model, twins),
    )


class CellRunner(Runner):
    """A Runner of tables [set, layer, slot, role]; a table without roles means all of them."""

    def per_prompt(self, sets: Bool[Tensor, "set layer slot *role"]) -> Float[Tensor, "set prompt"]:
        if sets.ndim == 3:
            sets = sets[..., None].expand(*sets.shape, len(ROLES))
        return super().per_prompt(sets)


def runner(model: Transformer, at: Setting, standin: ablation.Standin) -> CellRunner:
    """F of tables of cells on these prompts, with near_gap."""
    return CellRunner(model, at.prompts.tokens, at.near, standin, roles=at.roles)


def everything(model: Transformer) -> Cells:
    """All cells."""
    shape = model.cfg.n_layers, nodes.slots(model), len(ROLES)
    return torch.ones(shape, dtype=torch.bool)


def kinds(model: Transformer) -> Int[Tensor, "layer slot role"]:
    """0 for the cells of heads, 1 for those of MLPs: random circuits have as many of each."""
    table = torch.zeros(everything(model).shape, dtype=torch.long)
    table[:, model.cfg.n_heads :] = 1
    return table


def find_circuit(F: Runner, share: float = 0.9) -> Cells:
    """The cells left when cells are dropped one by one, the least missed first.

    Dropping goes on while F stays at `share` of the way from F of nothing to F of all. What is
    left depends on the order and is not unique. At most |cells|^2 / 2 passes.
    """
    table = everything(F.model)
    none, whole = F(torch.stack([~table, table])).tolist()
    floor = none + share * (whole - none)
    while table.any():
        cells = [tuple(c) for c in table.nonzero().tolist()]
        tried = table.repeat(len(cells), 1, 1, 1)
        for row, cell in zip(tried, cells, strict=True):
            row[cell] = False
        values = F(tried)
        best = int(values.argmax())
        if values[best] < floor:
            break
        # all cells that are not missed at all go together, if F allows it
        idle = values >= values[best] - 0.002 * abs(whole - none)
        several = table.clone()
        for cell, gone in zip(cells, idle.tolist(), strict=True):
            several[cell] &= not gone
        table = several if several.any() and F(several[None]).item() >= floor else tried[best]
    return table


def name_cells(model: Transformer, table: Cells) -> list[str]:
    """The cells in words: "1.2 at the end"."""
    return [cell_name(model, tuple(c), ROLES) for c in table.nonzero().tolist()]


# ---------------------------------------------------------------- who writes the step


class Maps(NamedTuple):
    """Logits by YY and answer year, centred: no year's own mean over YY is left in them."""

    parts: dict[str, Float[Tensor, "yy year"]]  # the parts sum to the total
    total: Float[Tensor, "yy year"]
    yy: Int[Tensor, " yy"]
    scale: float  # the largest logit before centring, to compare errors with


@torch.no_grad()
def logit_maps(model: Transformer, per_year: int, seed: int, split: str = "heldout") -> Maps:
    """What each part writes for each answer year at the end, as a function of YY.

    parts: "embedding", heads, MLPs; means over `per_year` layouts for each YY = 1 ... 98. Each map
    loses its mean over YY (a liking for some years, whatever YY is) and its mean over years (which
    softmax ignores). No norm, no biases of attention: the sum is exact.
    """
    rng = np.random.default_rng(seed)
    yy = torch.arange(years.FIRST, years.LAST + 1)
    base = years.prompts(per_year, rng, split)
    tokens, rows, end = _every_year(base, yy)
    heads, mlps = ablation.write_names(model)
    names = ["hook_embed", *heads, *mlps]
    logits, cache = model.run_with_cache(tokens, return_type="logits", names_filter=names)
    W_U = model.W_U[:, years.YEARS]

    def table(write: Tensor) -> Tensor:
        return _centred((write @ W_U).view(len(yy), per_year, 100).mean(1))

    parts = {"embedding": table(cache["hook_embed"][rows, end])}
    for layer, block in enumerate(model.blocks):
        z = cache[heads[layer]][rows, end]  # [n, head, d_head]
        for h in range(model.cfg.n_heads):
            parts[f"{layer}.{h}"] = table(z[:, h] @ block.attn.W_O[h])
        if mlps:
            parts[f"MLP {layer}"] = table(cache[mlps[layer]][rows, end])
    total = logits[rows, end][:, years.YEARS].view(len(yy), per_year, 100).mean(1)
    scale = total.abs().max().item()
    return Maps(parts, _centred(total), yy, scale)


@torch.no_grad()
def value_maps(model: Transformer, per_year: int, seed: int, split: str = "heldout") -> Maps:
    """The map of the last layer's heads, split by what their values were made of.

    A head writes A X W_V W_O, and X is embedding + heads + MLPs of the layers before. With the
    pattern of this run (frozen) and without a norm each part adds its own map; they sum to the
    heads' map. Values hold no position.
    """
    rng = np.random.default_rng(seed)
    yy = torch.arange(years.FIRST, years.LAST + 1)
    base = years.prompts(per_year, rng, split)
    tokens, rows, end = _every_year(base, yy)
    last, heads_at = model.cfg.n_layers - 1, ablation.write_names(model)
    pattern = f"blocks.{last}.attn.hook_pattern"
    names = ["hook_embed", *(f"blocks.{l}.hook_attn_out" for l in range(last)), *heads_at[1][:last]]
    _, cache = model.run_with_cache(
        tokens, return_type="logits", names_filter=[*names, pattern, heads_at[0][last]]
    )
    attn, A = model.blocks[last].attn, cache[pattern][rows, :, end]  # A [n, head, key]

    def table(z: Tensor) -> Tensor:  # z [n, head, d_head]
        write = torch.einsum("nhe,hed->nd", z, attn.W_O)
        return _centred((write @ model.W_U[:, years.YEARS]).view(len(yy), per_year, 100).mean(1))

    labels = ["embedding", *(f"heads {l}" for l in range(last)), *(f"MLP {l}" for l in range(last))]
    parts = {
        label: table(torch.einsum("nhk,nkd,hde->nhe", A, cache[name], attn.W_V))
        for label, name in zip(labels, names, strict=True)
    }
    total = table(cache[heads_at[0][last]][rows, end])
    return Maps(parts, total, yy, total.abs().max().item())


def _every_year(base: years.Prompts, yy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(tokens, row numbers, ends) of the prompts once for each YY, year by year."""
    n = len(base.tokens)
    tokens = base.tokens.repeat(len(yy), 1)
    rows = torch.arange(len(tokens))
    tokens[rows, base.year_at.repeat(len(yy))] = years.YEAR_0 + yy.repeat_interleave(n)
    return tokens, rows, base.end.repeat(len(yy))


def _centred(table: Tensor) -> Tensor:
    """Without its mean over YY, then without its mean over answer years."""
    table = table - table.mean(0, keepdim=True)
    return table - table.mean(1, keepdim=True)


def step(table: Float[Tensor, "yy year"], yy: Int[Tensor, " yy"]) -> Float[Tensor, " kept"]:
    """Mean logit of the NEAR years above the cut-off minus that of the NEAR years up to it, by YY.

    Linear in the table, so the steps of parts sum to the step of their sum. Only YY that have NEAR
    years on both sides.
    """
    kept = (yy >= years.NEAR) & (yy <= 99 - years.NEAR)
    rows, cut = table[kept], yy[kept][:, None]
    each = torch.arange(years.NEAR)
    return (rows.gather(1, cut + 1 + each) - rows.gather(1, cut - each)).mean(1)


# ---------------------------------------------------------------- neurons


def best_step(
    activation: Float[Tensor, "yy neuron"],
) -> tuple[Float[Tensor, " neuron"], Int[Tensor, " neuron"], Float[Tensor, " neuron"]]:
    """(R2 of the best one-step function of YY, index of its first high YY, R2 of the best line).

    A step function takes one value below a threshold and another from it on; all thresholds are
    tried. R2 is the share of the variance over YY that it leaves explained; 0 for a constant.
    """
    x = activation.double()
    n = len(x)
    x = x - x.mean(0)
    total = x.pow(2).sum(0)
    below = x.cumsum(0)[:-1]  # sums over the first k = 1 ... n - 1 years
    k = torch.arange(1, n, dtype=torch.float64)[:, None]
    # with means a below and b above, k a^2 + (n - k) b^2 = below^2 (1/k + 1/(n-k)), as x sums to 0
    between = below.pow(2) * (1 / k + 1 / (n - k))
    found = between.max(0)
    t = torch.linspace(-1, 1, n, dtype=torch.float64)
    line = (t @ x).pow(2) / t.pow(2).sum()
    safe = total.clamp_min(1e-30)
    return found.values / safe, found.indices + 1, line / safe


def bodies(given: years.Prompts) -> Int[Tensor, " n"]:
    """The body of each prompt: the clusters of errors."""
    return torch.from_numpy(years.BODY)[given.skeleton]


def summary(values: Float[Tensor, " n"], cluster: Int[Tensor, " n"]) -> dict[str, Any]:
    """Mean and standard error, clustered by body, as floats."""
    return dict(zip(("mean", "se"), clustered_mean(values.cpu(), cluster)[:2], strict=True))
