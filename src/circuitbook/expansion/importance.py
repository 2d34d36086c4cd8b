"""How much a path matters: the loss with it and without it, all patterns frozen.

With patterns frozen the last stream is a plain sum of terms (:mod:`.expand`), so any of them
can be added or taken away without running the model again. Two questions for each term:

    added     loss(direct path) - loss(direct path + term)   what it does as the first one there
    removed   loss(all terms - term) - loss(all terms)       what is lost when only it goes

They differ because terms share work, and because the softmax is not linear. Losses are in nats a
token. Nothing is run again: what a term did for later queries and keys stays in the patterns.

With LayerNorm the scales are frozen too, and the logits of a term are (z / s) (W_O P W_U), s the
final scale of the whole run. A term is a path of heads: token, position and bias sources that pass
the same heads are one term. So two layers of eight heads have 81 terms with biases or without, and
the term of order 0, called the direct path, is all that no head has moved: token, position, the
layers' biases, and the unembedding's bias.

Source: Elhage et al. 2021 (estimating the importance of individual terms).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.config import Config
from circuitbook.expansion import expand
from circuitbook.model import Transformer
from circuitbook.probe import paired_difference

ROWS = 256  # rows of logits in hand at once: 4 MB at 4,096 words
ENTRIES = 2**21  # of a table in hand, so fewer rows at a large vocabulary


class TermLosses(NamedTuple):
    """Mean loss of every window for some sums of terms; `names` are those of the single terms."""

    orders: Float[Tensor, "window order"]  # all terms of order 0 ... k
    layers: Float[Tensor, "window layer"]  # direct path + that layer's terms of order 1
    names: list[str]
    added: Float[Tensor, "window term"]  # direct path + the term
    removed: Float[Tensor, "window term"]  # all terms - the term


def path_name(path: tuple[tuple[int, int], ...]) -> str:
    """((0, 5), (1, 4)) -> "0.5 → 1.4"; the direct path has no name."""
    return " → ".join(f"{l}.{h}" for l, h in path)


def _rows(n: int, d_vocab: int) -> Iterator[slice]:
    rows = min(ROWS, max(16, ENTRIES // d_vocab))
    return (slice(a, min(a + rows, n)) for a in range(0, n, rows))


class _Scorer:
    """-log softmax at the right tokens of (base + sign * inside @ out), one buffer for all calls.

    Base rows are log-probabilities, so the largest exponent is that of the term alone.
    """

    def __init__(self, targets: Tensor, like: Tensor):
        self.targets, self.buffer = targets, torch.empty_like(like)

    def __call__(self, base: Tensor, inside: Tensor, out: Tensor, sign: float) -> Tensor:
        buffer = torch.addmm(base, inside, out, alpha=sign, out=self.buffer[: len(base)])
        right = buffer.gather(1, self.targets)[:, 0]
        total = buffer.exp_().sum(1).log_()
        if not bool(total.isfinite().all()):  # beyond what exp can hold: the slow, safe way
            total = torch.addmm(base, inside, out, alpha=sign).logsumexp(1)
        return (total - right).double().sum()


@torch.no_grad()
def term_losses(
    model: Transformer,
    tokens: Int[Tensor, "window pos"],
    first: int = 0,
    single: bool = True,
) -> TermLosses:
    """Losses of orders, layers and single terms, window by window, with patterns and scales frozen.

    Predictions made at positions `first` ... n-2 count. single=False leaves single terms out.
    Cost: two exponentials of a table of logits for each term and window. Memory: a few tables of
    some rows of logits, and a d_head x d_vocab matrix for each head.
    Raises ValueError for a model with MLPs.
    """
    cfg = model.cfg
    W_U, read_U = model.W_U, expand.read_weights(model.ln_final, model.W_U)
    heads = [(l, h) for l in range(cfg.n_layers) for h in range(cfg.n_heads)]
    outs = {(l, h): model.W_O[l, h] @ read_U for l, h in heads if single}
    rows = [_one_window(model, w, W_U, outs, first, single) for w in tokens.split(1)]
    names, *columns = zip(*rows, strict=True)
    orders, layers, added, removed = (torch.stack(x) for x in columns)
    return TermLosses(orders, layers, names[0], added, removed)


def _one_window(
    model: Transformer, window: Tensor, W_U: Tensor, outs: dict, first: int, single: bool
) -> tuple[list[str], Tensor, Tensor, Tensor, Tensor]:
    # One window: the terms once, then every sum of them, a chunk of rows at a time.
    span, layers = slice(first, window.shape[1] - 1), model.cfg.n_layers
    ran = expand.record(model, window)
    scale = None if ran.last_scale is None else ran.last_scale[0, span]
    terms = list(expand.expand(model, window, ran, direct=True))
    insides: dict[tuple, Tensor] = {}
    for t in terms:
        if t.order and single:
            z = t.inside[0, span] if scale is None else t.inside[0, span] / scale
            insides[t.path] = insides[t.path] + z if t.path in insides else z
    sums = expand.gather(terms, lambda t: (t.order, t.path[0][0] if t.order == 1 else -1))
    parts = {k: expand.read(model.ln_final, x[0, span], scale) for k, x in sums.items()}
    always = expand.unembed_bias(model)
    targets = window[0, first + 1 :, None]
    count = len(targets)
    orders, by_layer = torch.zeros(layers + 1).double(), torch.zeros(layers).double()
    added, removed = torch.zeros(2, len(insides)).double()
    for at in _rows(count, W_U.shape[1]):
        score = _Scorer(targets[at], parts[0, -1].new_empty(at.stop - at.start, W_U.shape[1]))
        none, nothing = (
            parts[0, -1].new_zeros(at.stop - at.start, 1),
            W_U.new_zeros(1, W_U.shape[1]),
        )
        tables = {k: x[at] @ W_U for k, x in parts.items()}
        tables[0, -1] += always
        direct = total = tables[0, -1]
        for l in range(layers):
            by_layer[l] += score((direct + tables[1, l]).log_softmax(1), none, nothing, 1.0)
        orders[0] += score(direct.log_softmax(1), none, nothing, 1.0)
        for order in range(1, layers + 1):
            total = total + sum(x for (k, _), x in tables.items() if k == order)
            base = total.log_softmax(1)
            orders[order] += score(base, none, nothing, 1.0)
        direct = direct.log_softmax(1)
        for i, (path, z) in enumerate(insides.items()):
            added[i] += score(direct, z[at], outs[path[-1]], 1.0)
            removed[i] += score(base, z[at], outs[path[-1]], -1.0)
    names = [path_name(path) for path in insides]
    return names, *(x / count for x in (orders, by_layer, added, removed))


class Effect(NamedTuple):
    """A mean difference of losses in nats, and its standard error by document."""

    mean: float
    se: float


def gain(before: Tensor, after: Tensor, doc: Int[Tensor, " window"]) -> Effect:
    """loss before - loss after, paired by window: positive when the change helps the model."""
    return Effect(*paired_difference(before.cpu(), after.cpu(), doc)[:2])


def study(losses: TermLosses, doc: Int[Tensor, " window"]) -> dict:
    """Means and standard errors: losses by order, gains by layer, and both questions by term.

    layers: for each layer its terms of order 1, as [gain, se]. "first": added to the direct path;
    "second": added when the other layer's terms of order 1 are there. "shared": first - second,
    the same for both layers. (The last two for two-layer models.)
    """
    zero = torch.zeros(len(losses.orders), dtype=torch.float64)
    n = losses.orders.shape[1]
    out = {
        "orders": [gain(x, zero, doc) for x in losses.orders.T],
        "steps": [gain(losses.orders[:, k], losses.orders[:, k + 1], doc) for k in range(n - 1)],
        "first": [gain(losses.orders[:, 0], x, doc) for x in losses.layers.T],
        "names": losses.names,
        "added": [gain(losses.orders[:, 0], x, doc) for x in losses.added.T],
        "removed": [gain(x, losses.orders[:, -1], doc) for x in losses.removed.T],
    }
    if losses.layers.shape[1] == 2:
        direct, one = losses.orders[:, 0], losses.orders[:, 1]
        zeroth, first = losses.layers.T
        out["second"] = [gain(first, one, doc), gain(zeroth, one, doc)]
        # What a layer gains as the first one minus what it gains as the second: one number for both
        out["shared"] = gain(direct + one, zeroth + first, doc)
    return out


# ---------------------------------------------------------------- models with known answers

PLANTED = ("direct path", "one head", "virtual head", "cancelling pair")


def planted(kind: str, n_tokens: int = 12, n_ctx: int = 24) -> tuple[Transformer, Tensor]:
    """(model, [16, n_ctx] tokens): two layers of one head, in which one path does all the work.

    The stream has a block of coordinates for the token, one for each head's write, and one-hot
    positions. "direct path": the next token is the current one. "one head": it is the one before
    (period 2), which the first head brings. "virtual head": it is the one two before (period 3);
    the first head brings it one step, the second brings the first head's write another step.
    "cancelling pair": as "one head", but the second head writes minus what the first one wrote, so
    added alone the first head looks perfect, and the whole model knows nothing.
    Score positions from 3 on: earlier ones have nothing to look back at.
    """
    if kind not in PLANTED:
        raise ValueError(f"unknown kind {kind!r}: choose one of {PLANTED}")
    V, n = n_tokens, n_ctx
    blocks = [slice(i * V, (i + 1) * V) for i in range(3)]  # token, first write, second write
    place, eye = slice(3 * V, 3 * V + n), torch.eye(V)
    sizes = {"d_model": 3 * V + n, "n_heads": 1, "d_head": n, "n_ctx": n, "d_vocab": V}
    model = Transformer(Config(2, pos_kind="learned", **sizes), seed=None).requires_grad_(False)
    model.embed.W_E[:, blocks[0]] = eye
    model.pos_embed.W_pos[:, place] = 20 * torch.eye(n)
    back = (1, 0) if kind == "cancelling pair" else (1, 1)
    writes = {"direct path": (), "one head": (1.0,), "virtual head": (1.0, 1.0)}
    for layer, gain_ in enumerate(writes.get(kind, (1.0, -1.0))):
        attn = model.blocks[layer].attn
        attn.W_V[0, blocks[layer], :V] = eye
        attn.W_O[0, :V, blocks[layer + 1]] = gain_ * eye
    for layer, steps in enumerate(back):
        attn = model.blocks[layer].attn
        attn.W_Q[0, place, :n] = torch.eye(n)
        attn.W_K[0, place, :n] = torch.eye(n).roll(steps, 1)
    for block in {"direct path": (0,), "one head": (1,), "virtual head": (2,)}.get(kind, (1, 2)):
        model.unembed.W_U[blocks[block]] = 12 * eye
    period = {"direct path": 1, "virtual head": 3}.get(kind, 2)
    generator = torch.Generator().manual_seed(0)
    starts = torch.stack([torch.randperm(V, generator=generator)[:period] for _ in range(16)])
    return model, starts.repeat(1, n)[:, :n]


def planted_losses() -> dict[str, dict[str, list[float]]]:
    """Mean losses of the planted models by order, and with the first head added, or removed."""
    out = {}
    for kind in PLANTED:
        losses = term_losses(*planted(kind), first=3)
        head = losses.names.index("0.0")
        rows = {
            "orders": losses.orders,
            "first head": torch.stack([losses.added[:, head], losses.removed[:, head]], 1),
        }
        out[kind] = {name: x.mean(0).tolist() for name, x in rows.items()}
    return out
