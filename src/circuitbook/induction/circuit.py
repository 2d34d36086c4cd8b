"""The induction circuit under the knife: which edges carry it, and what goes when it goes.

A head is a pair (layer, head). `readout` is the one way in which a model is asked about repeats:
it runs the model under a `Cut` and reads patterns of the last layer and losses at the copies.
Every run switches the per-head copies on, so what a cut does not touch is the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook import compose, cut, gauge, probe, scan
from circuitbook.cut import Cut, Head
from circuitbook.induction import ratio
from circuitbook.model import Transformer
from circuitbook.probe import Estimate, RepeatedBatch, paired_difference
from circuitbook.stream import heads_of

EARLY, LATE = (41, 60), (491, 510)  # the broad in-context learning score, as in probe


# ---------------------------------------------------------------- reading a model at repeats


def copy_positions(batch: RepeatedBatch) -> Int[Tensor, "n copies block"]:
    """Where every copy of the block stands: 1 + c * block + the filler before copy c."""
    n, block = batch.first.shape
    filler = torch.cat([torch.zeros(n, 1, dtype=torch.long), batch.gap.cumsum(1)], 1)
    starts = 1 + block * torch.arange(filler.shape[1]) + filler
    return starts[..., None] + torch.arange(block)


@contextmanager
def under(model: Transformer, change: Cut) -> Iterator[None]:
    """The model with a cut in place and per-head copies on, as `cut.run` has it; undone after."""
    before = model.use_attn_result, model.use_split_qkv_input
    model.set_use_attn_result(True)
    model.set_use_split_qkv_input(True)
    try:
        with torch.no_grad(), model.hooks(fwd_hooks=list(change.hooks)):
            yield
    finally:
        model.set_use_attn_result(before[0])
        model.set_use_split_qkv_input(before[1])


class Readout(NamedTuple):
    """What a model does with repeats, a row for each sequence."""

    prefix: Float[Tensor, "n head"]  # prefix matching of the last layer's heads
    loss: Float[Tensor, "n copies pairs"]  # of the block's tokens but the first, nats
    rank: Int[Tensor, "n copies pairs"]  # of the right token; 1 is best, ties count against

    def drop(self) -> Float[Tensor, " n"]:
        """Mean loss at the first copy minus mean loss at all later ones, paired by token."""
        return self.loss[:, 0].mean(-1) - self.loss[:, 1:].mean((-2, -1))

    def again(self) -> Float[Tensor, " n"]:
        """Mean loss at the later copies."""
        return self.loss[:, 1:].mean((-2, -1))


def readout(
    model: Transformer, batch: RepeatedBatch, change: Cut | None = None, part: int = 4
) -> Readout:
    """Prefix matching, loss and rank under a cut, `part` sequences at a time.

    Logits are computed only where a block's token is predicted. A cut that holds the batch's mean,
    another window or frozen patterns belongs to the whole batch: give part=len(batch.tokens).
    """
    kept: dict[str, Tensor] = {}
    watch = (f"blocks.{model.cfg.n_layers - 1}.attn.hook_pattern", _keep(kept, "pattern"))
    rows = []
    with under(model, (change or Cut()) + Cut((watch,))):
        pieces = zip(batch.tokens.split(part), copy_positions(batch).split(part), strict=True)
        for tokens, where in pieces:
            tokens, where = tokens.to(model.W_E.device), where.to(model.W_E.device)
            at, row = where[..., 1:], torch.arange(len(tokens), device=where.device)[:, None, None]
            x = model.stream(tokens)[row, at - 1]  # [n, copies, pairs, d_model]
            logits = model.unembed(x.flatten(0, 1)).unflatten(0, x.shape[:2])
            right = logits.gather(-1, tokens[row, at].unsqueeze(-1))
            loss, rank = logits.logsumexp(-1) - right[..., 0], (logits >= right).sum(-1)
            prefix = probe.prefix_matching_score(kept["pattern"], tokens)
            rows.append((prefix.cpu(), loss.cpu(), rank.cpu()))
    return Readout(*(torch.cat(x) for x in zip(*rows, strict=True)))


def _keep(kept: dict[str, Tensor], name: str) -> Any:
    def look(value: Tensor, hook: object) -> None:
        kept[name] = value

    return look


def estimate(values: Float[Tensor, " n"], other: Tensor | float = 0.0) -> Estimate:
    """mean and error of values - other over sequences; each sequence is one independent draw."""
    return paired_difference(values, torch.zeros_like(values) + other, torch.arange(len(values)))


def induction_heads(clean: Readout, *also: int, floor: float = 0.1) -> list[int]:
    """The last layer's heads whose prefix matching is above what any control head may score.

    Give the pair's reader in `also`: it is then among them even in a model without such heads.
    """
    scores = clean.prefix.mean(0).tolist()
    return [h for h, s in enumerate(scores) if s >= floor or h in also]


# ---------------------------------------------------------------- edges


def edge_effects(
    model: Transformer, batch: RepeatedBatch, reader: Head, writers: Sequence[Head]
) -> dict[str, list[list[float]]]:
    """What each writer's edge into the reader's query, key, value is worth: [writer][q, k, v].

    "prefix_lost": share of the reader's prefix matching that is lost. "rise", "rise_se": rise of
    the loss at later copies. Cut: the direct edge, to zero; what comes after is run again.
    """
    clean, h = readout(model, batch), reader[1]
    out: dict[str, list] = {"prefix_lost": [], "rise": [], "rise_se": []}
    for writer in writers:
        runs = [readout(model, batch, cut.cut_path(model, writer, reader, i)) for i in cut.INPUTS]
        kept = [(x.prefix[:, h].mean() / clean.prefix[:, h].mean()).item() for x in runs]
        rises = [estimate(x.again(), clean.again()) for x in runs]
        out["prefix_lost"].append([1 - k for k in kept])
        out["rise"].append([x.mean for x in rises])
        out["rise_se"].append([x.se for x in rises])
    return out


def pattern_movement(
    model: Transformer, tokens: Int[Tensor, "batch pos"], change: Cut, head: Head
) -> float:
    """max |A with the cut - A without| of one head: exactly 0 when the cut cannot reach it."""
    name = f"blocks.{head[0]}.attn.hook_pattern"
    a, b = (cut.run(model, tokens, c, names=[name])[1][name][:, head[1]] for c in (change, Cut()))
    return (a - b).abs().max().item()


def through_mlp(
    model: Transformer, writer: Head, reader: Head, into: str, *, direct: bool, mediated: bool
) -> Cut:
    """The edge writer -> reader's q, k or v, directly, through the MLPs between, or both; to zero.

    w is what the writer wrote. With one MLP M between, which reads m (the stream after the writer's
    layer attended), the reader's input holds w and M(m). direct: x - w. mediated: x - [M(m) -
    M(m - w)], the MLP's answer to w being there. both: x - w - [M(m) - M(m - w)]. Everyone else,
    and the reader's other inputs, still see the MLP's true output. LayerNorm's scales are
    recomputed: before M for m - w, before the head for what is left of x.
    Raises ValueError unless the writer is in the layer just before the reader, with an MLP in it.
    """
    (l1, h1), (l2, h2) = writer, reader
    if l2 != l1 + 1 or model.cfg.attn_only:
        raise ValueError("needs a writer one layer before the reader, and an MLP between them")
    block, kept = model.blocks[l1], {}

    def remove(x: Tensor, hook: object) -> Tensor:
        w, m = kept.pop("w")[:, :, h1], kept.pop("m")
        gone = w if direct else torch.zeros_like(w)
        if mediated:
            gone = gone + block.mlp(block.ln2(m)) - block.mlp(block.ln2(m - w))
        x = x.clone()
        x[:, :, h2] -= gone
        return x

    ways = [n for n, on in (("direct edge", direct), (f"through MLP {l1}", mediated)) if on]
    return Cut(
        (
            (f"blocks.{l1}.attn.hook_result", _keep(kept, "w")),
            (f"blocks.{l1}.hook_resid_mid", _keep(kept, "m")),
            (f"blocks.{l2}.hook_{into}_input", remove),
        ),
        cut=(f"{l1}.{h1} -> {cut.INPUTS[into]} of {l2}.{h2}, {' and '.join(ways)} (zero)",),
        recomputed=(f"{cut.INPUTS[into]} of {l2}.{h2}, what follows, all later layers",),
    )


def mlp_edges(
    model: Transformer, batch: RepeatedBatch, writer: Head, reader: Head
) -> dict[str, dict[str, float]]:
    """name -> share of prefix matching kept, rise of the loss: edges with an MLP between them."""
    clean, h = readout(model, batch), reader[1]
    ways = {"direct": (True, False), "through the MLP": (False, True), "both": (True, True)}
    out = {}
    for into, word in cut.INPUTS.items():
        for way, (direct, mediated) in ways.items():
            change = through_mlp(model, writer, reader, into, direct=direct, mediated=mediated)
            now = readout(model, batch, change)
            rise = estimate(now.again(), clean.again())
            kept = now.prefix[:, h].mean() / clean.prefix[:, h].mean()
            out[f"{word}, {way}"] = {"kept": kept.item(), "rise": rise.mean, "rise_se": rise.se}
    return out


# ---------------------------------------------------------------- whole heads


def only(model: Transformer, tokens: Tensor, keep: Sequence[Head], kind: str = "zero") -> Cut:
    """All heads but `keep` are silenced: their writes are replaced, later layers are run again."""
    return cut.ablate_heads(model, tokens, [h for h in heads_of(model) if h not in keep], kind)


def in_context(
    model: Transformer, windows: Int[Tensor, "n pos"], change: Cut | None = None
) -> Float[Tensor, " n"]:
    """The broad in-context learning score of each window: late mean loss minus early mean loss.

    As `probe.in_context_scores`, but logits are computed only at the tokens that count.
    """
    k = torch.cat([torch.arange(a, b + 1) for a, b in (EARLY, LATE)])
    scores = []
    with torch.no_grad(), model.hooks(fwd_hooks=list((change or Cut()).hooks)):
        for window in windows.split(1):
            window = window.to(model.W_E.device)
            logits = model.unembed(model.stream(window)[:, k - 1])[0]
            loss = logits.logsumexp(-1) - logits.gather(-1, window[0, k, None])[:, 0]
            early, late = loss.double().split([EARLY[1] - EARLY[0] + 1, LATE[1] - LATE[0] + 1])
            scores.append((late.mean() - early.mean()).cpu())
    return torch.stack(scores)


def other_sets(n_heads: int, chosen: Sequence[int], n: int, seed: int = 0) -> list[list[int]]:
    """n seeded draws of as many heads as `chosen`, from the other heads of the layer."""
    others, rng = [h for h in range(n_heads) if h not in chosen], np.random.default_rng(seed)
    size = min(len(chosen), len(others))
    return [sorted(rng.choice(others, size, replace=False).tolist()) for _ in range(n)]


def icl_study(
    two: Transformer,
    one: Transformer,
    windows: Int[Tensor, "n pos"],
    doc: Int[Tensor, " n"],
    chosen: Sequence[int],
    draws: int = 3,
) -> dict[str, Any]:
    """How much in-context learning goes with the induction heads, or with random heads beside them.

    gain = ICL of one layer minus ICL of two (positive: two layers use the context more). lost = ICL
    after the ablation minus before, on the same windows; errors by document. Cut: the heads' writes
    (last layer, so nothing after them but the unembedding), to zero.
    """
    last = two.cfg.n_layers - 1

    def without(heads: Sequence[int]) -> Tensor:
        change = cut.ablate_heads(two, windows[:1], [(last, h) for h in heads])
        return in_context(two, windows, change)

    whole, shallow, cut_down = in_context(two, windows), in_context(one, windows), without(chosen)
    sets = other_sets(two.cfg.n_heads, chosen, draws)
    controls = [without(s) for s in sets]
    pairs = {
        "gain": (shallow, whole),
        "lost": (cut_down, whole),
        "lost, random": (torch.stack(controls).mean(0), whole),
        "more than random": (cut_down, torch.stack(controls).mean(0)),
    }
    found = {name: paired_difference(a, b, doc) for name, (a, b) in pairs.items()}
    levels = {"two layers": whole, "one layer": shallow, "without induction heads": cut_down}
    names = ["without " + ", ".join(f"{last}.{h}" for h in s) for s in sets]
    levels |= dict(zip(names, controls, strict=True))
    each = [paired_difference(x, whole, doc) for x in controls]
    return {
        "level": {k: probe.clustered_mean(x, doc)[:2] for k, x in levels.items()},
        "difference": {k: x[:2] for k, x in found.items()},
        "sets": names,
        "random": [x[:2] for x in each],
        "share": ratio(found["lost"].mean, found["gain"].mean),
        "random_share": [ratio(x.mean, found["gain"].mean) for x in each],
    }


# ---------------------------------------------------------------- what a pattern shows


def shown(
    model: Transformer, tokens: Int[Tensor, "n pos"], head: Head
) -> tuple[Float[Tensor, "n pos key"], Float[Tensor, "n pos key"]]:
    """(pattern, value-weighted pattern) of one head: A[t, j], and A[t, j] |v_j W_O| by rows to one.

    The second counts what is moved, not where the head looks. Source: Kobayashi et al. 2020.
    """
    at, h = f"blocks.{head[0]}.attn.hook_", head[1]
    cache = cut.run(model, tokens, names=[at + "pattern", at + "v"])[1]
    pattern = cache[at + "pattern"][:, h]
    size = (cache[at + "v"][:, :, h] @ model.W_O[head]).norm(dim=-1)
    moved = pattern * size[:, None]
    return pattern, moved / moved.sum(-1, keepdim=True).clamp_min(1e-30)


def resting(model: Transformer, batch: RepeatedBatch, head: Head) -> dict[str, float]:
    """Attention to the start token, bare and value-weighted, where a match exists and where not."""
    tokens = batch.tokens.to(model.W_E.device)
    has = probe.after_earlier_copies(tokens).any(-1)
    has_not = ~has
    has_not[:, :2] = False  # the first two queries have nowhere else to look
    out = {}
    for name, table in zip(("attention", "moved"), shown(model, tokens, head), strict=True):
        for when, mask in (("no match", has_not), ("match", has)):
            out[f"{name}, {when}"] = table[:, :, 0][mask].mean().item()
    return out


# ---------------------------------------------------------------- what survives


def _shift_keys(model: Transformer, k0: Float[Tensor, " d_head"]) -> Cut:
    """k + k0 for every key of every head: each query's scores all move by q . k0."""

    def add(k: Tensor, hook: object) -> Tensor:
        return k + k0.to(k)

    return Cut(tuple((f"blocks.{i}.attn.hook_k", add) for i in range(model.cfg.n_layers)))


def pair_numbers(
    model: Transformer, batch: RepeatedBatch, pair: tuple[Head, Head], shift: Cut | None = None
) -> dict[str, Tensor]:
    """Quantities that people print about the pair, W_U as it is, under a shift of the keys."""
    (l1, h1), (l2, h2), shift = *pair, shift or Cut()
    whole = readout(model, batch, shift)
    key_cut = readout(model, batch, shift + cut.cut_path(model, *pair, "k"))
    at = f"blocks.{l2}.attn.hook_"
    cache = cut.run(model, batch.tokens, shift, names=[at + "attn_scores", at + "v"])[1]
    match = probe.after_earlier_copies(batch.tokens)
    write = model.W_V[l1, h1] @ model.W_O[l1, h1] @ model.W_K[l2, h2]
    A = model.W_E @ model.W_Q[l2, h2]
    raw = scan.ov_factors(model.W_E, model.W_V[l2, h2], model.W_O[l2, h2], model.W_U, centre=False)
    return {
        "prefix matching": whole.prefix[:, h2],
        "loss at the repeats": whole.loss[:, 1:],
        "prefix matching left by the K-cut": key_cut.prefix[:, h2],
        "virtual QK: eigenvalue score": scan.copying_score(A, (model.W_E @ write).mT),
        "raw score at the match": cache[at + "attn_scores"][:, h2][match],
        "K-composition score": compose.pair_scores(
            model.W_V[l1, h1, None], model.W_O[l1, h1, None],
            model.W_K[l2, h2, None], model.W_Q[l2, h2, None].mT,
        ),
        "size of what it moves": (cache[at + "v"][:, :, h2] @ model.W_O[l2, h2]).norm(dim=-1),
        "OV copying score, raw W_U": scan.copying_score(*raw),
    }  # fmt: skip


def four_changes(
    model: Transformer, change_heads: Callable[..., tuple[Tensor, ...]]
) -> dict[str, tuple[Transformer, Cut | None]]:
    """change -> (model, hooks): four changes that keep every probability; R, G of condition 10.

    change_heads(W_Q, W_K, W_V, W_O, R) gives the four matrices in head coordinates R. With
    LayerNorm G is a turn about the all-ones direction and a shear along it (`gauge.free_change`).
    """
    generator, cfg = torch.Generator().manual_seed(0), model.cfg
    shape = (*model.W_Q.shape[:2], cfg.d_head, cfg.d_head)
    R = gauge.invertible(*shape, generator=generator).to(model.W_E)
    G = gauge.free_change(model, generator)
    c = torch.randn(cfg.d_model, 1, generator=generator).to(model.W_E) * model.W_U.std()
    k0 = torch.randn(cfg.d_head, generator=generator)
    return {
        "head coordinates R": (gauge.turn_heads(model, change_heads, R), None),
        "stream coordinates G": (gauge.change_stream(model, G), None),
        "W_U + c 1ᵀ": (gauge.with_weights(model, W_U=model.W_U + c), None),
        "constant per query": (model, _shift_keys(model, k0)),
    }


def moved(
    numbers: Callable[[Transformer, Cut | None], dict[str, Tensor]],
    model: Transformer,
    change_heads: Callable[..., tuple[Tensor, ...]],
) -> dict[str, dict[str, float]]:
    """change -> quantity -> largest movement, relative to the largest value, for `four_changes`.

    numbers(model, cut) gives the quantities. Use a float64 model with W_U as trained, or nothing
    can be told from rounding.
    """
    old = numbers(model, None)
    return {
        name: gauge.movement(old, numbers(new, shift))
        for name, (new, shift) in four_changes(model, change_heads).items()
    }


def survival(
    model: Transformer,
    batch: RepeatedBatch,
    pair: tuple[Head, Head],
    change_heads: Callable[..., tuple[Tensor, ...]],
) -> dict[str, dict[str, float]]:
    """`moved` for what is said of the pair on a batch of repeats."""
    return moved(lambda new, shift: pair_numbers(new, batch, pair, shift), model, change_heads)
