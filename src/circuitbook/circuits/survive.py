"""Which circuit numbers survive a change of the weights that keeps every probability?"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from circuitbook import spine, zoo
from circuitbook.circuits import ablation
from circuitbook.circuits.course_pair import Asked, prompts
from circuitbook.circuits.direct import attribute
from circuitbook.circuits.metrics import at_position, logit_difference
from circuitbook.circuits.nodes import Node, masks, node_name, nodes_of
from circuitbook.circuits.patching import path_patch
from circuitbook.curves import Bench
from circuitbook.cut import Cut
from circuitbook.induction.circuit import moved, under
from circuitbook.model import Transformer


def numbers(
    model: Transformer, asked: Asked, pair: tuple[Node, Node], shift: Cut | None = None
) -> dict[str, Tensor]:
    """Quantities that people print about a circuit, W_U as it is; some of them should move."""
    tokens, (at, right, wrong) = asked.tokens, asked.question
    difference = logit_difference(at, right, wrong)
    raw = at_position(at, lambda logits, rows: logits.gather(-1, right[rows, None])[:, 0])
    with under(model, shift or Cut()):
        mean = ablation.mean(model, asked.others)
        sets = masks(model, [nodes_of(model), [], list(pair)])
        ends = {
            name: ablation.evaluate(model, tokens, metric, stand, sets).mean(1)
            for name, metric, stand in (
                ("mean", difference, mean),
                ("zero", difference, ablation.zero(model, tokens)),
                ("raw", raw, mean),
            )
        }
        key = path_patch(model, tokens, asked.others, [pair[0]], [(*pair[1], "k")], difference)
        terms = attribute(model, tokens, asked.question).terms
        z = ablation.writes(model, tokens)[0][pair[1][0]][:, :, pair[1][1]]
    write = z @ model.W_O[pair[1]]  # [prompt, pos, d_model]
    column = model.W_U.T[right]
    own = write[torch.arange(len(at)), at]

    def recovered(F: Tensor) -> Tensor:
        return (F[2] - F[1]) / (F[0] - F[1])

    return {
        "logit difference": ends["mean"][0],
        "recovered by the pair, mean": recovered(ends["mean"]),
        "recovered by the pair, zero": recovered(ends["zero"]),
        "key path of the pair": key[0],
        "reader's term in the difference": terms[node_name(pair[1])],
        "recovered, one raw logit": recovered(ends["raw"]),
        "reader's term in one raw logit": (own * column).sum(-1),
        "size of the reader's write": own.norm(dim=-1),
    }


def survival(
    model: Transformer,
    asked: Asked,
    pair: tuple[Node, Node],
    change_heads: Callable[..., tuple[Tensor, ...]],
) -> dict[str, dict[str, float]]:
    """`moved` for what is said of a circuit on prompts."""
    return moved(lambda new, shift: numbers(new, asked, pair, shift), model, change_heads)


def box(
    change_heads: Callable[..., tuple[Tensor, ...]], frequent: int, seed: int
) -> dict[str, dict[str, float]]:
    """`survival` of the pair of `attn-only-2l` on eight prompts; rounding (1e-8) counts as 0."""
    words, gen = Bench.frequent(frequent), torch.Generator().manual_seed(seed)
    exact = zoo.load("attn-only-2l", dtype=torch.float64, center=False, device="cpu")
    pair = spine.heads_pair(zoo.load("attn-only-2l"))
    moves = survival(exact, prompts(words, 8, gen), pair, change_heads)
    return {k: {q: m if m > 1e-8 else 0.0 for q, m in row.items()} for k, row in moves.items()}
