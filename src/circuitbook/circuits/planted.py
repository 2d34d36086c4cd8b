"""Circuits that are known, because they were written by hand: the controls of every tool.

`induction`    previous-token head -> keys of an induction head -> logits, and one head that adds
               the same to every prompt's answer (zero ablation takes it for a part, mean does not).
`conjunction`  two heads -> an MLP that fires when both brought their feature -> logits.
`backup`       a head that copies the answer; a later head copies it when it is not there yet.

All of them stand among idle heads (`plan.with_idle_heads`). `Planted.edges` are all the edges
(node to node, node to logits) on which the answer depends.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from circuitbook.circuits.direct import Question
from circuitbook.circuits.metrics import Metric, logit_difference
from circuitbook.circuits.nodes import MLP, Node
from circuitbook.circuits.patching import Receiver
from circuitbook.circuits.plan import GAIN, Plan, with_idle_heads
from circuitbook.induction import handbuilt
from circuitbook.model import Transformer

Edge = tuple[Node, "Receiver | None"]  # None: the logits
WORDS, CTX = 16, 24  # of the planted induction model: half of the words are never in a prompt
CODE = 10.0  # logit of a word that is copied with full attention


class Planted(NamedTuple):
    """A model, its circuit, and prompts on which it is asked for."""

    model: Transformer
    nodes: list[Node]  # the circuit
    edges: list[Edge]
    constant: list[Node]  # not in the circuit, but they add the same to every prompt's answer
    tokens: Int[Tensor, "prompt pos"]
    others: Int[Tensor, "prompt pos"]  # same layout, other answer: to resample and to average
    question: Question

    @property
    def metric(self) -> Metric:
        """Logit of the right token minus that of a wrong one."""
        return logit_difference(*self.question)


def induction(n: int, generator: torch.Generator, idle: int = 3) -> Planted:
    """Layer 0 writes the word before; layer 1 looks for it with its query word, and copies.

    Prompts: a block of distinct words, repeated until the text is full; asked at the last place.
    Right: the word after the earlier copies. Wrong: a word that is in no prompt. Head "constant" of
    layer 0 rests on BOS and adds CODE / 2 to the logits of all words that are in prompts.
    """
    plan_model = handbuilt.induction_model(WORDS, CTX, dtype=torch.float64)
    plain, constant = _add_constant_head(plan_model)
    model, where = with_idle_heads(plain, idle, generator)
    first, second = (0, where[0][0]), (1, where[1][0])
    half = WORDS // 2
    tokens, _ = handbuilt.repeated_distinct(n, half, CTX, generator)
    others, _ = handbuilt.repeated_distinct(n, half, CTX, generator)
    at = torch.full((n,), CTX - 2)
    wrong = torch.randint(half + 1, WORDS + 1, (n,), generator=generator)
    return Planted(
        model,
        [first, second],
        [(first, (*second, "k")), (second, None)],
        [(0, where[0][constant])],
        tokens,
        others,
        Question(at, tokens[:, -1], wrong),
    )


def _add_constant_head(model: Transformer) -> tuple[Transformer, int]:
    """A second head in each layer; in layer 0 it writes BOS' bit to all words of the first half."""
    cfg, state = model.cfg.replace(n_heads=2), {}
    for name, w in model.state_dict().items():
        state[name] = torch.cat([w, torch.zeros_like(w)]) if ".attn." in name else w.clone()
    bit = int(((model.W_E[0] == 1) & (model.W_E[1:] == 0).all(0)).nonzero()[0])
    one = int((model.W_E == 1).all(0).nonzero()[0])
    at = "blocks.0.attn.W_"
    state[at + "Q"][1, one, 0] = GAIN * cfg.d_head**0.5
    state[at + "K"][1, bit, 0] = 1.0
    state[at + "V"][1, bit, 0] = 1.0
    # W_U = CERTAINTY C^T on the block `out`: half of its codes, at half size
    out = model.W_U[:, 1 : 1 + WORDS // 2].sum(1)
    state[at + "O"][1, 0] = out / out.abs().max() * CODE / 2 / handbuilt.CERTAINTY
    return Transformer.from_state_dict(cfg, state).eval().requires_grad_(False), 1


YES, NO = 7, 8  # 0 BOS, 1 A on, 2 A off, 3 B on, 4 B off, 5 filler, 6 "answer now"


def conjunction(n: int, generator: torch.Generator, idle: int = 3, length: int = 10) -> Planted:
    """A head brings A's bit, another B's; a neuron fires for a + b > 1 and writes "yes".

    Prompts hold A on, B on, fillers, in any order. In the others A or B is off (never both on).
    A second neuron reads a alone, and writes to coordinates that nobody reads.
    """
    blocks = {"A": 1, "B": 1, "on": 1, "now": 1, "a": 1, "b": 1, "out": 1, "lost": 1, "one": 1}
    plan = Plan(blocks, 1, 2, 2, d_mlp=2, act="relu", n_ctx=length, d_vocab=9)
    for token, bits in (
        (0, {}),
        (1, {"A": 1.0, "on": 1.0}),
        (2, {"A": 1.0}),
        (3, {"B": 1.0, "on": 1.0}),
        (4, {"B": 1.0}),
        (5, {}),
        (6, {"now": 1.0}),
    ):
        plan.embed(token, one=1.0, **bits)
    for head, (block, target) in enumerate((("A", "a"), ("B", "b"))):
        plan.compare(0, head, "now", block, GAIN)
        plan.copy(0, head, "on", target)
    plan.neuron(0, 0, {"a": 2.0, "b": 2.0}, -3.0, {"out": CODE})
    plan.neuron(0, 1, {"a": 2.0}, 0.0, {"lost": CODE})
    plan.unembed("out", YES, 1.0)
    plan.unembed("one", NO, CODE / 2)
    model, where = with_idle_heads(plan.model(), idle, generator)
    heads = [(0, h) for h in where[0]]

    def prompts(a: Tensor, b: Tensor) -> Tensor:
        order = torch.rand(n, length - 2, generator=generator).argsort(-1)
        words = torch.full((n, length - 2), 5)
        words[:, 0], words[:, 1] = torch.where(a, 1, 2), torch.where(b, 3, 4)
        body = words.gather(1, order)
        return torch.cat([torch.zeros(n, 1), body, torch.full((n, 1), 6)], 1).long()

    coin = torch.rand(n, generator=generator) < 0.5
    on = torch.ones(n, dtype=torch.bool)
    at, answer = torch.full((n,), length - 1), torch.full((n,), YES)
    return Planted(
        model,
        [*heads, (0, MLP)],
        [*((h, (0, MLP, "in")) for h in heads), ((0, MLP), None)],
        [],
        prompts(on, on),
        prompts(coin, ~coin),
        Question(at, answer, torch.full((n,), NO)),
    )


def backup(
    n: int, generator: torch.Generator, idle: int = 3, names: int = 16, length: int = 12
) -> Planted:
    """Layer 0 copies the prompt's name; layer 1 copies it if the stream does not hold it yet.

    Layer 1 scores a name by 1 - (what stands in `out`) . (the name's code), against 1/2 for BOS.
    So it rests while the first head works, whatever the name is, and steps in when that head writes
    nothing, a mean, or another name. The edge between them inhibits: a stand-in that reaches the
    second head's query alone wakes it up, and the answer is copied twice. In the untouched model
    its edge to the logits carries nothing, so `edges` does not hold it.
    """
    blocks = {"code": names, "out": names, "name": 1, "now": 1, "bos": 1}
    size = names + 2
    plan = Plan(blocks, 2, 1, size, n_ctx=length, d_vocab=names + 3)
    filler, now = names + 1, names + 2
    plan.embed(0, bos=1.0)
    plan.embed(now, now=1.0)
    for i in range(names):
        code = torch.eye(names)[i]
        plan.embed(1 + i, code=code, name=1.0)
        plan.unembed("out", 1 + i, CODE * code)
    for layer in (0, 1):
        plan.compare(layer, 0, "now", "name", GAIN)
        plan.compare(layer, 0, "now", "bos", GAIN / 2)
        plan.copy(layer, 0, "code", "out")
    plan.compare(1, 0, "out", "code", -GAIN)
    model, where = with_idle_heads(plan.model(), idle, generator)
    first = (0, where[0][0])

    def prompts(name: Tensor) -> Tensor:
        tokens = torch.full((n, length), filler)
        spot = torch.randint(1, length - 1, (n,), generator=generator)
        tokens[:, 0], tokens[:, -1] = 0, now
        tokens[torch.arange(n), spot] = name
        return tokens

    right = torch.randint(1, names + 1, (n,), generator=generator)
    shift, more = (torch.randint(1, names // 2, (n,), generator=generator) for _ in "ab")
    wrong, other = 1 + (right - 1 + shift) % names, 1 + (right - 1 + shift + more) % names
    question = Question(torch.full((n,), length - 1), right, wrong)
    second = (1, where[1][0])
    return Planted(
        model,
        [first, second],
        [(first, None), (first, (*second, "q"))],
        [],
        prompts(right),
        prompts(other),
        question,
    )


ALL = {"induction": induction, "conjunction": conjunction, "backup": backup}
