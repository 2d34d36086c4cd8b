"""A dictionary lives in coordinates. Carry it along and the graph stays; its lengths do not.

In stream coordinates G the model's stream is x G. A transcoder that reads x and writes into x comes
along as W_enc → G⁻¹W_enc, W_dec → W_dec G, b_dec → b_dec G. Latents and edges are then the same
numbers. The length of a decoder row and the cosine of two rows are not: they count coordinates. A
dictionary *trained* in the other coordinates would therefore pay another price for its latents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from circuitbook import bases, gauge, spine, zoo
from circuitbook.attribution import graph
from circuitbook.aunt_sally import forward, prompts, reason
from circuitbook.autoencoders import bundle
from circuitbook.autoencoders.sae import Dictionary
from circuitbook.claims import atleast, claim
from circuitbook.cut import Cut, run
from circuitbook.model import Transformer

CHANGES = ("head coordinates R", "stream coordinates G", "W_U + c 1ᵀ", "constant per query")
# What should move: quantity -> the changes that move it. Everything else should survive.
PREDICTED: dict[str, tuple[str, ...]] = {
    "probabilities": (),
    "latents": (),
    "edges into the logit, centred": (),
    "edges into latents": (),
    "score at the name, minus its mean": (),
    "share of the key side": (),
    "edges into the logit, raw": ("W_U + c 1ᵀ",),
    "score at the name, raw": ("constant per query",),
    "length of decoder rows": ("stream coordinates G",),
    "cosine of two decoder rows": ("stream coordinates G",),
}
SURVIVES = 1e-8


def carried(t: Dictionary, G: Float[Tensor, "d_model d_model"]) -> Dictionary:
    """The same transcoder for a stream x G: what reads gets G⁻¹ in front, what writes G behind."""
    G = G.to(t.W_enc)
    back = torch.linalg.inv(G)
    return replace(t, W_enc=back @ t.W_enc, W_dec=t.W_dec @ G, b_dec=t.b_dec @ G)


@torch.no_grad()
def numbers(
    model: Transformer,
    transcoders: Sequence[Dictionary],
    head: int,
    key_shift: Float[Tensor, " d_head"] | None = None,
) -> dict[str, Tensor]:
    """What people print about a graph and about a reason, on the spine's Sally prompt.

    head: of the last layer. key_shift is added to every key of every head, in the running model: a
    query's scores then all move by the same amount.
    """

    def shifted(k: Tensor, hook: object) -> Tensor:
        return k + key_shift.to(k)

    layers = range(model.cfg.n_layers)
    places = [f"blocks.{l}.attn.hook_k" for l in layers]
    change = None if key_shift is None else Cut(tuple((name, shifted) for name in places))
    frame, row = prompts.frames()[0], prompts.row_of("Sally")
    tokens, answer = frame.tokens[row], int(frame.answer[row])
    frozen = graph.freeze(model, transcoders, tokens, change)
    built = graph.build(model, transcoders, frozen, answer)
    # Uncentred, an edge into the logit also holds what its source writes along the mean of W_U.
    here = frozen.f[1][-1].nonzero().flatten()
    writes = frozen.f[1][-1, here, None] * transcoders[1].W_dec[here]
    name = f"blocks.{layers[-1]}.attn.hook_attn_scores"
    score = run(model, tokens[None], change, [name])[1][name][0, head, -1]
    score = score - score.mean(), score
    seen = forward.forward(model, tokens[None], change)
    sources, d = reason.parts(model, tokens[None], seen), reason.DIRECT
    relative = reason.terms(model, sources, head, frame.name)[1][0]
    rows = transcoders[0].W_dec[:2]
    return {
        "probabilities": (frozen.last @ model.W_U).softmax(-1),
        "latents": torch.stack([f.sum() for f in frozen.f]),
        "edges into the logit, centred": built.edges[-1],
        "edges into latents": built.edges[built.of("latent", 1)],
        "score at the name, minus its mean": score[0][frame.name],
        "share of the key side": relative[:d, d:].sum() / score[0][frame.name],
        "edges into the logit, raw": writes @ model.W_U[:, answer],
        "score at the name, raw": score[1][frame.name],
        "length of decoder rows": transcoders[0].W_dec.norm(dim=1),
        "cosine of two decoder rows": torch.cosine_similarity(rows[0], rows[1], dim=0),
    }


def survival(
    model: Transformer, transcoders: Sequence[Dictionary], head: int, seed: int = 0
) -> dict[str, dict[str, float]]:
    """change of the weights -> quantity -> movement, of the largest value. For float64, raw W_U."""
    g, d = torch.Generator().manual_seed(seed), model.cfg
    R = gauge.invertible(d.d_head, d.d_head, generator=g)
    G = gauge.invertible(d.d_model, d.d_model, generator=g)
    c = torch.randn(d.d_model, generator=g).to(model.W_E) * model.W_U.std()
    k0 = torch.randn(d.d_head, generator=g)
    along = [carried(t, G) for t in transcoders]
    old = numbers(model, transcoders, head)
    new = {
        CHANGES[0]: numbers(bases.change_heads(model, R), transcoders, head),
        CHANGES[1]: numbers(gauge.change_stream(model, G), along, head),
        CHANGES[2]: numbers(bases.shift_unembed(model, c), transcoders, head),
        CHANGES[3]: numbers(model, transcoders, head, k0),
    }
    moves = {change: gauge.movement(old, found) for change, found in new.items()}
    return {
        change: {q: m if m > SURVIVES else 0.0 for q, m in row.items()}
        for change, row in moves.items()
    }


def right_predictions(moves: Mapping[str, Mapping[str, float]]) -> tuple[int, int]:
    """(how many predictions of PREDICTED came true, how many there are)."""
    hits = [
        (moves[change][q] > 0) == (change in movers)
        for q, movers in PREDICTED.items()
        for change in CHANGES
    ]
    return sum(hits), len(hits)


def study(role: str = "gelu-2l") -> tuple[dict[str, dict[str, float]], list[dict]]:
    """(moves, claims) of the chapter's box, in float64 with W_U as trained."""
    model = zoo.load(role, dtype=torch.float64, center=False, device="cpu")
    names = [f"transcoder-{role}-{l}" for l in range(model.cfg.n_layers)]
    transcoders = [bundle.load(name).to(torch.float64) for name in names]
    head = spine.heads_pair(zoo.load(role))[1][1]
    moves = survival(model, transcoders, head)
    right, of = right_predictions(moves)
    length = moves["stream coordinates G"]["length of decoder rows"]
    said = claim(
        "saes.survival",
        "Of {of} predictions about which number survives which change, {value} are right. In other "
        "stream coordinates, with the transcoders carried along, no latent and no edge moves, but "
        "decoder rows change their length by up to {length:.0%} of the longest.",
        label="identity",
        values={"of": of, "length": length},
        holds=atleast(right, of),
    )
    return moves, [said]
