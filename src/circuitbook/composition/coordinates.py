"""A pair of heads in other coordinates: which of its numbers move, and how far.

In a basis G of the stream W_OV becomes G^-1 W_OV G and W_QK becomes G^-1 W_QK G^-T. Writer and
reader still meet as G G^-1, so the model does what it did. Frobenius norms count entries, and those
move.

LayerNorm takes the stream's mean away and divides by the length of the rest. That leaves fewer G,
turns about the all-ones direction and shears along it (`gauge.is_free`), and a shear is enough: it
adds (x . v) 1 to what heads write, nobody reads that, and ||W_OV|| grows. Scores of folded models
are those of centred writing weights, and that is a convention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook import bases, compose, corpus, gauge, paths, spine, zoo
from circuitbook.claims import all_of, atmost, bound
from circuitbook.composition import bilinear, edges
from circuitbook.composition.bilinear import DIRECT
from circuitbook.composition.pairs import Thin, reader, scores, virtual_eigenvalue_score, writer
from circuitbook.model import Transformer


def stretch(one: Thin, two: Thin, condition: float = 10.0) -> Float[Tensor, " d_model"]:
    """g with 1 <= g <= condition that makes ||M1 diag(g)|| ||diag(1/g) M2|| large: a low score.

    Coordinates where the writer is strong and the reader weak get the long unit; the best cut of
    that order is taken. Only the side where the two meet is looked at, so this is a recipe, not the
    lowest score there is.
    """
    a = (torch.linalg.qr(one[0].double())[1] @ one[1].double()).square().sum(0)
    b = (two[0].double() @ torch.linalg.qr(two[1].double().mT)[1].mT).square().sum(1)
    order = (a / b).argsort(descending=True)
    a, b, c = a[order], b[order], condition**2
    size = (c * a.cumsum(0) + a.sum() - a.cumsum(0)) * (b.cumsum(0) / c + b.sum() - b.cumsum(0))
    g = torch.ones_like(a)
    g[order[: int(size.argmax()) + 1]] = condition
    return g


def favouring(one: Thin, two: Thin) -> Float[Tensor, "d_model d_model"]:
    """G with ||M1 G|| ||G^-1 M2|| = the nuclear norm of M1 M2, the least there is: a high score.

    M1 = X R and M2 = L Y (thin), X (R L) Y = P S Q^T. G = [L C, N] with R N = 0 gives M1 G =
    [X R L C, 0] and G^-1 M2 = [C^-1 Y; 0]. C = (X R L)^-1 P sqrt(S) makes them P sqrt(S) and
    sqrt(S) Q^T. Again only the side where the two meet: in the whole stream the outer sides change
    too. Needs R L invertible. float64.
    """
    R, L = one[1].double(), two[0].double()
    X, Y = torch.linalg.qr(one[0].double())[1], torch.linalg.qr(two[1].double().mT)[1].mT
    P, S, _ = torch.linalg.svd(X @ R @ L @ Y)
    LC = L @ torch.linalg.solve(X @ R @ L, P * S.sqrt())
    N = torch.linalg.svd(R)[2][len(R) :].mT  # what the writer never writes to
    size = torch.linalg.svdvals(LC).log().mean().exp()  # as long as the others, on average
    return torch.cat([LC, size * N], 1)


def shear_against(one: Thin, length: float = 2.0) -> Float[Tensor, "d_model d_model"]:
    """I + v 1^T, v the strongest direction of M1 = X R at this length: a low score with LayerNorm.

    M1 of rank r with centred rows gets ||M1 + M1 v 1^T||^2 = ||M1||^2 + d length^2 s_1^2, and s_1^2
    is at least ||M1||^2 / r: the score falls at least by sqrt(1 + length^2 d / r). float64.
    """
    X = torch.linalg.qr(one[0].double())[1]
    v = torch.linalg.svd(X @ one[1].double(), full_matrices=False)[2][0]
    return gauge.shear((v - v.mean()) * length)


SHRINK = 1e-3  # the new length of one coordinate


def other_coordinates(
    model: Transformer, tokens: Int[Tensor, "n pos"], pair: tuple[int, int]
) -> dict[str, Any]:
    """The key scores of all pairs in other coordinates of one model, in float64.

    "stretched": a diagonal against the pair. "favoured": made for the pair with the lowest score.
    "shrunk": the first coordinate becomes SHRINK of its length. Then W_QK has one entry that grows
    like 1/SHRINK^2 and W_OV a row that grows like 1/SHRINK; their product grows like the former
    only, so all scores fall like SHRINK. logits: the largest change, of the largest logit.
    """
    h1, h2 = pair
    before = scores(model).k
    low = divmod(int(before.argmin()), model.cfg.n_heads)
    shrunk = torch.ones(model.cfg.d_model, dtype=torch.float64)
    shrunk[0] = SHRINK
    changes = {
        "stretched": torch.diag(stretch(writer(model, h1), reader(model, h2, "k"))),
        "favoured": favouring(writer(model, low[0]), reader(model, low[1], "k")),
        "shrunk": torch.diag(shrunk),
    }
    models = {name: gauge.change_stream(model, G) for name, G in changes.items()}
    logits = model(tokens)
    moved = [(m(tokens) - logits).abs().max() / logits.abs().max() for m in models.values()]
    tables = {name: scores(m).k for name, m in models.items()}
    return {"before": before, **tables, "low": list(low), "logits": max(moved).item()}


@torch.no_grad()
def box_numbers(
    model: Transformer,
    tokens: Int[Tensor, " pos"],
    pair: tuple[int, int],
    rotated: Callable[..., Tensor],
    key_shift: Float[Tensor, " d_head"] | None = None,
) -> dict[str, Tensor]:
    """What people print about a pair (writer, reader), for one window, W_U as it is.

    `key_shift` is added to every key of the reader: a constant for each query. With a norm the cuts
    of this box hold the scale of the reader's input.
    """
    h1, h2 = pair
    eigenvalue = virtual_eigenvalue_score(model, h1, h2)
    window = bilinear.take_apart(model, tokens)
    r, w = edges.readers(model, window), bilinear.reads(model, window)[DIRECT + h1]
    shift = 0.0 if key_shift is None else key_shift.to(r.k)
    score = r.q[h2] @ (r.k[h2] + shift).mT / model.cfg.d_head**0.5
    part = r.q[h2] @ (w @ model.W_K[1, h2]).mT / model.cfg.d_head**0.5
    whole = bilinear.centre(score)
    pattern, after = bilinear.causal(score), bilinear.causal(score - part)
    one, two = writer(model, h1), reader(model, h2, "k")
    other = rotated(*one, *two)
    moved, W_O = pattern - after, model.W_O[1, h2]
    last = r.last - r.write[h2] + pattern @ r.v[h2] @ W_O  # with this pattern, shifted or not
    silent = last - pattern @ (w @ model.W_V[1, h2]) @ W_O  # the V-cut
    logits, less = model.unembed(model.ln_final(torch.stack([last, silent])))
    return {
        "logits": logits,
        "probabilities": logits.softmax(-1),
        "effect of the K-cut on the pattern": moved,
        "effect of the V-cut on probabilities": less.softmax(-1) - logits.softmax(-1),
        "covariance share of the pair's term": (bilinear.centre(part) * whole).sum()
        / whole.square().sum(),
        "raw share of the pair's term": (part * score).tril().sum() / score.tril().square().sum(),
        "eigenvalue score of the virtual table": torch.tensor(eigenvalue),
        "K-composition score": compose.pair_scores(*(x[None] for x in (*one, *two)))[0, 0],
        "score of the rotated product": torch.as_tensor(other),
    }


def survival(
    model: Transformer,
    tokens: Int[Tensor, " pos"],
    pair: tuple[int, int],
    rotated: Callable[..., Tensor],
    seed: int = 0,
) -> dict[str, dict[str, float]]:
    """change of the weights -> quantity -> movement, of the largest value. For float64.

    G: `stretch` against the pair; with LayerNorm `shear_against` its writer, then a random turn
    about the all-ones direction.
    """
    generator, d = torch.Generator().manual_seed(seed), model.cfg
    if d.norm == "none":
        G = torch.diag(stretch(writer(model, pair[0]), reader(model, pair[1], "k")))
    else:
        turn = gauge.free_turn(d.d_model, torch.Generator().manual_seed(seed + 1))
        G = shear_against(writer(model, pair[0])) @ turn
    R = gauge.invertible(d.d_head, d.d_head, generator=generator)
    c = torch.randn(d.d_model, generator=generator).to(model.W_E) * model.W_U.std()
    k0 = torch.randn(d.d_head, generator=generator)
    old = box_numbers(model, tokens, pair, rotated)
    changed = {
        "head coordinates R": bases.change_heads(model, R),
        "stream coordinates G": gauge.change_stream(model, G),
        "W_U + c 1ᵀ": bases.shift_unembed(model, c),
    }
    new = {k: box_numbers(m, tokens, pair, rotated) for k, m in changed.items()}
    new["constant per query"] = box_numbers(model, tokens, pair, rotated, k0)
    return {change: gauge.movement(old, numbers) for change, numbers in new.items()}


def criticism(windows: int) -> dict[str, Any]:
    """`other_coordinates` of the course's own two-layer model, which has no norm; and its "pair".

    In the course's model set, whatever MODELS says: LayerNorm allows no stretch, only a shear.
    """
    with paths.model_set("course"):
        model = zoo.load("attn-only-2l")
        (_, h1), (_, h2) = spine.heads_pair(model)
        tokens = torch.from_numpy(corpus.heldout_windows(windows).tokens[:1, :64]).to(
            model.W_E.device
        )
        exact = zoo.load("attn-only-2l", dtype=torch.float64)
        return other_coordinates(exact, tokens, (h1, h2)) | {"pair": (h1, h2)}


def stream_claim(
    G: dict[str, float], eigenvalue: float, before: Any, after: Any | None
) -> dict[str, Any]:
    """What may be said of the pair under a change of the stream's coordinates: text, values, holds.

    G: its row of `survival`. before, after: the K-score; after is None with LayerNorm. There it
    follows from the movement, as a shear only lengthens what a head with centred weights writes.
    """
    kept = ("logits", "effect of the K-cut on the pattern", "eigenvalue score of the virtual table")
    largest = max(G[name] for name in kept)
    which = "(diagonal, entries one or ten)"
    if after is None:
        after = before * (1 - G["K-composition score"])
        which = (
            "that LayerNorm cannot see (a shear, `x + (x · v) 1`, then a turn about the all-ones)"
        )
    text = (
        f"New stream coordinates {which} keep the logits, the cut's effect "
        "and the eigenvalue score ({eigen:.4f}) within {limit:g}. They take the K-score of the pair"
        " from {before:.3f} to {value:.3f}."
    )
    values = {"eigen": eigenvalue, "limit": 1e-6, "before": before, "value": after}
    holds = all_of(bound(largest, 1e-6), atmost(after / before, 0.7))
    return {"text": text, "values": values, "holds": holds}
