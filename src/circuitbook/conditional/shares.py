"""Three questions about one part x_c of what an MLP reads, and three different numbers.

    forward share    x_c B(x) . u             how much of this output travels on x_c, gains held
    Jacobian share   x_c J(x) . u             how fast the output grows if x_c grows a little
    effect           [M(x) - M(x - x_c)] . u  what is lost when x_c is taken away (intervention)

u is a direction of the output; here the centred unembedding of the next token, so all three are
logits. The first two are linear in x_c and add up, to x B and to x J. The third does not add up.
For a linear M all three are one number. Cut in the third: x_c, set to zero, in what this MLP alone
reads; recomputed: the MLP; held: all else, so what x_c does to the logit directly is not in it.

Where a norm stands before the MLP, M is both. The forward share then also holds the norm's scale
(x_c P/s B), the Jacobian share lets it answer, and the effect computes it again. u reads the last
stream through the final norm, whose scale is held in all three.

Source: the three questions are those of the calculus that this chapter works out; the first-order
one is attribution patching (Syed et al. 2023) with a zero baseline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from circuitbook import tokenizer
from circuitbook.conditional.gates import gate, slope
from circuitbook.conditional.operators import Normed, forward, held, inner, jacobian, of_stream
from circuitbook.conditional.product import pick
from circuitbook.conditional.spots import Read, Spots, read_by_mlp
from circuitbook.cut import ablate_heads
from circuitbook.model import Transformer
from circuitbook.neurons.draw import rank_correlation

# name of a forward share -> `content` of its operator; a plain MLP has the first, a gated one two
FORWARD = {"forward": 1.0, "forward, content": 1.0, "forward, gate": 0.0}


def effects(mlp: nn.Module, read: Read) -> Float[Tensor, "part n"]:
    """[M(x) - M(x - x_c)] . u for each part c."""
    gone = mlp(read.x[None]) - mlp(read.x - read.writes)  # [part, n, d_model]
    return (gone * read.u).sum(-1)


def linear(read: Read, operator: Any) -> Float[Tensor, "part n"]:
    """x_c B . u for each part, for a forward operator or a Jacobian alike."""
    return ((read.writes @ operator) * read.u).sum(-1)


def all_shares(model: Transformer, read: Read) -> dict[str, Float[Tensor, "part n"]]:
    """ "forward" (two for a gated MLP), "Jacobian" and "effect" of every part at every position."""
    mlp, act = of_stream(model.blocks[-1]), model.cfg.act
    ways = [n for n in FORWARD if ("," in n) == model.cfg.gated]
    out = {w: linear(read, forward(mlp, act, read.x, content=FORWARD[w])) for w in ways}
    return out | {
        "Jacobian": linear(read, jacobian(mlp, act, read.x)),
        "effect": effects(mlp, read),
    }


def totals(model: Transformer, read: Read, shares: dict[str, Tensor]) -> dict[str, Any]:
    """What the shares add up to, per position and then averaged, beside M . u and its bias row.

    "M": mean of M(x) . u. "bias row": one for each forward operator. "M, size": mean |M . u|. Sums
    and sizes are in logits. "off": mean |sum - M . u| / mean |M . u|.
    """
    mlp, act = of_stream(model.blocks[-1]), model.cfg.act
    whole = (mlp(read.x[None])[0] * read.u).sum(-1)
    size = whole.abs().mean().item()
    out: dict[str, Any] = {
        "M": whole.mean().item(),
        "M, size": size,
        "sum": {name: s.sum(0).mean().item() for name, s in shares.items()},
        "off": {n: (s.sum(0) - whole).abs().mean().item() / size for n, s in shares.items()},
        "bias row": {},
        "error": {},
    }
    for name, content in FORWARD.items():
        if name in shares:
            bias = (forward(mlp, act, read.x, content=content).bias * read.u).sum(-1)
            out["bias row"][name] = bias.mean().item()
            gap = shares[name].sum(0) + bias - whole
            out["error"][name] = (gap.abs().max() / whole.abs().max()).item()
    return out


def off(a: Float[Tensor, "part n"], b: Float[Tensor, "part n"]) -> float:
    """mean |a - b| / mean |b|: 0 when a says what b says, 1 for an a that is zero."""
    return ((a - b).abs().mean() / b.abs().mean()).item()


Statistic = Callable[[Tensor, Tensor], float]


def disagree(a: Float[Tensor, "part n"], b: Float[Tensor, "part n"]) -> float:
    """Share of (part, position) pairs whose signs differ, among the half where |b| is larger."""
    large = b.abs() >= b.abs().flatten().quantile(0.5)
    return (a.sign() != b.sign())[large].double().mean().item()


def pooled(a: Float[Tensor, "part n"], b: Float[Tensor, "part n"]) -> float:
    """Rank correlation over all parts and positions together."""
    return rank_correlation(a.flatten(), b.flatten())


def bootstrap(
    statistic: Statistic,
    a: Float[Tensor, "row n"],
    b: Float[Tensor, "part n"],
    doc: Int[Tensor, " n"],
    draws: int = 200,
    seed: int = 0,
) -> list[float]:
    """[value, low, high]: the statistic, and its middle 95 % when documents are drawn again."""
    rng = np.random.default_rng(seed)
    where = [torch.nonzero(doc == d)[:, 0] for d in doc.unique()]
    again = []
    for _ in range(draws):
        some = torch.cat([where[i] for i in rng.integers(0, len(where), len(where))])
        again.append(statistic(a[:, some], b[:, some]))
    return [statistic(a, b), *np.quantile(again, [0.025, 0.975]).tolist()]


def compare(
    shares: dict[str, Tensor], doc: Int[Tensor, " n"], names: list[str]
) -> dict[str, dict[str, Any]]:
    """Each linear share against the effect: rank correlation and sign disagreement, intervals.

    The control compares a share with the effect of the same part at a position of other text: what
    is left there belongs to the part as such, not to the position. "better than forward" is a
    paired difference: both rank correlations on the same documents drawn again.
    """
    heads = [i for i, n in enumerate(names) if n.startswith("head")]
    other = torch.roll(torch.arange(len(doc)), len(doc) // 2)  # far away: another document
    pairs = {n: (shares[n], shares["effect"]) for n in shares if n != "effect"}
    if "forward, gate" in shares:
        pairs["content against gate"] = (shares["forward, content"], shares["forward, gate"])
    out = {
        n: {
            "rank correlation": bootstrap(pooled, a, b, doc),
            "signs differ": bootstrap(disagree, a, b, doc),
            "off": bootstrap(off, a, b, doc),
            "rank correlation, control": pooled(a, b[:, other]),
            "signs differ, control": disagree(a, b[:, other]),
            "rank correlation, heads": bootstrap(pooled, a[heads], b[heads], doc),
        }
        for n, (a, b) in pairs.items()
    }
    first = next(iter(pairs))
    both = torch.cat([shares[first], shares["Jacobian"]])
    out["Jacobian"]["better than forward"] = bootstrap(paired, both, shares["effect"], doc)
    return out


def paired(both: Float[Tensor, "two_parts n"], effect: Float[Tensor, "part n"]) -> float:
    """Rank correlation of the second half of `both` with the effect, minus that of the first."""
    a, b = both.chunk(2)
    return pooled(b, effect) - pooled(a, effect)


def curve(
    mlp: nn.Module, act: str, read: Read, shares: dict[str, Tensor], doc: Int[Tensor, " n"]
) -> dict[str, Any]:
    """Forward shares again, the slope in place of the gain for some neurons only.

    "falling": where phi falls as z grows (for GELU below about -0.75), so that gain and slope have
    opposite signs. "others": for all but these. "neurons": the share of neurons that fall. Behind a
    norm its scale is held, and "all" says what all slopes together do so: the Jacobian share also
    lets the scale answer.
    """
    x, writes, normed = read.x, read.writes, isinstance(mlp, Normed)
    if normed:
        norm, mlp = held(mlp.norm, x), inner(mlp)
        x, writes = norm.apply(x), writes @ norm
    z = x @ mlp.W_in + (0.0 if mlp.b_in is None else mlp.b_in)
    gain, rate = gate(act, z), slope(act, z)
    falls, into, out = rate < 0, writes @ mlp.W_in, read.u @ mlp.W_out.T
    found: dict[str, Any] = {"neurons": falls.double().mean().item()}
    ways = {"falling": falls, "others": ~falls}
    if normed:
        ways["all"] = torch.ones_like(falls)
    for name, where in ways.items():
        mixed = (into * (torch.where(where, rate, gain) * out)).sum(-1)
        both, effect = torch.cat([shares["forward"], mixed]), shares["effect"]
        found[name] = {
            "rank correlation": bootstrap(pooled, mixed, effect, doc),
            "signs differ": bootstrap(disagree, mixed, effect, doc),
            "better than forward": bootstrap(paired, both, effect, doc),
        }
    return found


def rerun_gap(model: Transformer, spots: Spots, read: Read, effect: Tensor) -> float:
    """In a one-layer model, removing a head's write everywhere = its direct effect + `effect`.

    Cut: the head's write (zero), by the course's own ablation. Recomputed: everything after, which
    here is the MLP (with its norm; the final norm's scale is held). The largest |difference| over
    heads and positions, over the largest change.
    """
    if model.cfg.n_layers != 1:
        raise ValueError("later layers would answer too: this identity needs one layer")
    size, gap = 0.0, 0.0
    for h in range(model.cfg.n_heads):
        cut = ablate_heads(model, spots.tokens, [(0, h)])
        clean, gone = (stream_at(model, spots, hooks, False) for hooks in ([], list(cut.hooks)))
        moved = clean - gone
        change = (moved * read.u).sum(-1)
        c = read.names.index(f"head 0.{h}")
        due = (read.writes[c] * read.u).sum(-1) + effect[c]
        gap, size = (
            max(gap, (change - due).abs().max().item()),
            max(size, change.abs().max().item()),
        )
    return gap / size


@torch.no_grad()
def stream_at(
    model: Transformer, spots: Spots, hooks: list, normed: bool = True
) -> Float[Tensor, "n d_model"]:
    """What the unembedding reads at the drawn positions, under hooks; no logits are computed.

    normed=False: the last stream before the final norm.
    """
    kept: list[Tensor] = []
    top = f"blocks.{model.cfg.n_layers - 1}.hook_resid_post"
    with model.hooks(fwd_hooks=[*hooks, (top, lambda x, hook: kept.append(x))]):
        last = model.stream(spots.tokens)
    return pick(last if normed else kept[0], spots.at).flatten(0, 1)


def worked_cases(
    shares: dict[str, Tensor], read: Read, spots: Spots, k: int = 3, before: int = 10
) -> list[dict[str, Any]]:
    """The k positions where forward share and effect of one part differ most in sign.

    Ranked by the smaller of the two sizes, at most one case for each window and each part: these
    are extremes, no sample. Each with the text before it, the next token and all three numbers.
    """
    first = next(n for n in shares if n.startswith("forward"))
    a, b = shares[first], shares["effect"]
    size = torch.minimum(a.abs(), b.abs()).masked_fill(a.sign() == b.sign(), 0.0)
    words, per, seen, out = tokenizer.load(), spots.at.shape[1], set(), []
    for flat in size.flatten().argsort(descending=True).tolist():
        c, i = divmod(flat, size.shape[1])
        window, t = i // per, int(spots.at.flatten()[i])
        if size[c, i] == 0 or len(out) == k:
            break
        if {window, read.names[c]} & seen:
            continue
        seen |= {window, read.names[c]}
        ids = spots.tokens[window, max(1, t - before) : t + 1].tolist()
        out.append(
            {
                "part": read.names[c],
                "text": words.decode(ids),
                "next": words.decode([int(spots.tokens[window, t + 1])]),
                "numbers": {n: s[c, i].item() for n, s in shares.items()},
            }
        )
    return out


def study(model: Transformer, spots: Spots, points: int = 300) -> dict[str, Any]:
    """Shares, totals, agreement, worked cases and a sample of points, for one model."""
    read = read_by_mlp(model, spots)
    shares = all_shares(model, read)
    doc = spots.doc_of_each()
    generator = torch.Generator().manual_seed(0)
    some = torch.randperm(shares["effect"].numel(), generator=generator)[:points]
    out = {
        "parts": read.names,
        "documents": len(doc.unique()),
        "positions": len(doc),
        "mean": {
            n: dict(zip(read.names, s.mean(1).tolist(), strict=True)) for n, s in shares.items()
        },
        "totals": totals(model, read, shares),
        "agreement": compare(shares, doc, read.names),
        "cases": worked_cases(shares, read, spots),
        "points": {n: [round(v, 3) for v in s.flatten()[some].tolist()] for n, s in shares.items()},
    }
    if model.cfg.act in ("gelu", "gelu_new") and not model.cfg.n_experts:
        out["curve"] = curve(of_stream(model.blocks[-1]), model.cfg.act, read, shares, doc)
    if model.cfg.n_layers == 1:
        few = Spots(*(x[:8] for x in spots))
        small = read_by_mlp(model, few)
        effect = effects(of_stream(model.blocks[-1]), small)
        out["rerun gap"] = rerun_gap(model, few, small, effect)
    return out
