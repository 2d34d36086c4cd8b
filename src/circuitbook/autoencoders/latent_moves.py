"""Which numbers about a latent belong to the model's function, and which to our coordinates.

Five changes keep every probability: new head coordinates, new stream coordinates, W_U + c 1^T, a
constant on all scores of a query, and a rotation of the space of the neurons behind the
nonlinearity (W_out and the dictionary turn with it). A number survives a change when it does not
move.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook import bases, fold, gauge
from circuitbook.autoencoders.sae import Dictionary
from circuitbook.model import Transformer

CHANGES = (
    "head coordinates R",
    "stream coordinates G",
    "W_U + c 1ᵀ",
    "constant per query",
    "neurons turned",
)
SURVIVES = 1e-8
PREDICTED = {  # what moves what; everything else survives
    "words it writes (raw)": "W_U + c 1ᵀ",
    "length of its write in the stream": "stream coordinates G",
    "neurons' activations": "neurons turned",
}


def numbers(
    model: Transformer,
    dictionary: Dictionary,
    turn: Float[Tensor, "d_mlp d_mlp"],
    tokens: Int[Tensor, "batch pos"],
    which: int,
    constants: bool = False,
) -> Mapping[str, Tensor]:
    """The numbers in question; `turn` rotates the neurons' space behind the nonlinearity."""
    found: dict[str, Tensor] = {}
    generator = torch.Generator().manual_seed(0)

    def shift(scores: Tensor, hook: object) -> Tensor:
        more = torch.randn(*scores.shape[:-1], 1, generator=generator, dtype=torch.float64)
        return scores + more if constants else scores

    def keep(post: Tensor, hook: object) -> None:
        found["post"] = post[:, 1:]

    hooks = [("blocks.0.attn.hook_attn_scores", shift), ("blocks.0.mlp.hook_post", keep)]
    with torch.no_grad():
        model.run_with_hooks(tokens, fwd_hooks=hooks)
        mlp, post = model.blocks[0].mlp, found["post"] @ turn
        write = dictionary.W_dec[which] @ turn.T @ mlp.W_out
        lifts = write @ model.unembed.W_U
        centred = write @ fold.center_unembed(model).unembed.W_U
        words = mlp.act(model.embed.W_E @ mlp.W_in + mlp.b_in) @ turn
        drives = words @ dictionary.W_enc[:, which] + dictionary.b_enc[which]
    return {
        "latents' activations": dictionary.encode(post),
        "words that turn it on": drives,
        "words it writes (centred)": centred,
        "words it writes (raw)": lifts,
        "length of its write in the stream": write.norm()[None],
        "neurons' activations": post,
    }


def moves(
    model: Transformer, dictionary: Dictionary, tokens: Int[Tensor, "batch pos"], which: int
) -> dict[str, dict[str, float]]:
    """moves[change][number]: the largest move over the largest entry; 0 where it survives.

    In float64. R and G are invertible with condition 10.
    """
    g = torch.Generator().manual_seed(5)
    model, d = copy.deepcopy(model).double(), dictionary.to(torch.float64)
    c, width = model.cfg, d.W_dec.shape[1]
    eye = torch.eye(width, dtype=torch.float64)
    R = gauge.invertible(c.d_head, c.d_head, condition=10.0, generator=g)
    G = gauge.invertible(c.d_model, c.d_model, condition=10.0, generator=g)
    shift = torch.randn(c.d_model, generator=g)
    Q = bases.rotation(width, g)
    turned = Dictionary(Q.T @ d.W_enc, d.b_enc, d.W_dec @ Q, d.b_dec @ Q, d.k)
    before = numbers(model, d, eye, tokens, which)
    after = {
        "head coordinates R": numbers(bases.change_heads(model, R), d, eye, tokens, which),
        "stream coordinates G": numbers(gauge.change_stream(model, G), d, eye, tokens, which),
        "W_U + c 1ᵀ": numbers(bases.shift_unembed(model, shift), d, eye, tokens, which),
        "constant per query": numbers(model, d, eye, tokens, which, constants=True),
        "neurons turned": numbers(model, turned, Q, tokens, which),
    }
    out: dict[str, dict[str, float]] = {}
    for change, found in after.items():
        apart = {name: bases.relative_change(before[name], found[name]) for name in before}
        out[change] = {name: a if a > SURVIVES else 0.0 for name, a in apart.items()}
    return out


def right(found: Mapping[str, Mapping[str, float]]) -> tuple[int, int]:
    """(how many predictions hold, of how many): a number moves where PREDICTED says, only there."""
    hits = [
        (moved > 0) == (PREDICTED.get(name) == change)
        for change, row in found.items()
        for name, moved in row.items()
    ]
    return sum(hits), len(hits)
