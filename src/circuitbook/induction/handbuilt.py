"""Models that continue repeated text, written from matrices: nothing here is trained.

Token 0 is <|bos|>, tokens 1 ... n_tokens are words. A word is a row of the code matrix C (the
identity by default). The stream is cut into blocks of coordinates, each with one meaning:

    place     where am I           W_pos; only `pointer_model` has it in the stream
    word      which word           C[token], zero at <|bos|>
    bos, one  1 at <|bos|>; 1 everywhere, so that a query can ask for something fixed
    before    the word before me   written by layer 0 of `induction_model`
    at        a place              written by layer 0 of `pointer_model`
    out       the next word        written by the last layer, read by W_U

Each layer has one head. Where nothing matches it looks at <|bos|>, which carries no word.

d_head limits how many words can be told apart exactly. The scores between words form a matrix of
rank at most d_head, and "one on the diagonal, zero elsewhere" has rank n_tokens. So the code has
n_tokens coordinates and d_head is larger by at least one (for <|bos|>). With a shorter code words
are random directions and their scores overlap. To be right more often than wrong a head needs less:
a margin between the right word and the others, which a large gain can stretch.

Sources: Elhage et al. 2021 (induction by K-composition, pointer arithmetic); Olsson et al. 2022
(smeared keys).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.config import Config
from circuitbook.cut import Cut, ablate_heads, cut_path, run
from circuitbook.model import Transformer

LEAK = 1e-8  # attention that may stay on wrong keys; the gains follow from it
CERTAINTY = 10.0  # logit of a word that is copied with full attention
TIE = 1e-3  # logits nearer than this count as equal
WAVES, BASE = 16, 200.0  # of sinusoidal places: wavelengths run from 2 pi to about 2 pi * BASE
AT_ONCE = 32  # sequences in one run

# ---------------------------------------------------------------- parts


def places(kind: str, n_ctx: int) -> tuple[Float[Tensor, "n_ctx p"], Float[Tensor, "p p"]]:
    """(rows p_t, matrix B) with p_t B = p_(t-1) for every t >= 1: a shift is a fixed matrix.

    "sinusoidal": p_t holds sin(w t), cos(w t) for 16 frequencies w. B turns each pair by -w: it is
    a rotation, and B^T steps forward. "one-hot": p_t is a row of the identity, and B moves its one
    by a column (p_0 B = 0). Float64. ValueError for another kind.
    """
    if kind == "one-hot":
        ones = torch.ones(n_ctx - 1, dtype=torch.float64)
        return torch.eye(n_ctx, dtype=torch.float64), torch.diag(ones, -1)
    if kind != "sinusoidal":
        raise ValueError(f"places must be 'sinusoidal' or 'one-hot', got {kind!r}")
    w = BASE ** (-torch.arange(WAVES, dtype=torch.float64) / WAVES)  # [wave]
    angle = torch.arange(n_ctx, dtype=torch.float64)[:, None] * w  # [n_ctx, wave]
    c, s = w.cos(), w.sin()
    turns = torch.stack([torch.stack([c, s], -1), torch.stack([-s, c], -1)], 1)  # [wave, 2, 2]
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1), torch.block_diag(*turns)


def word_codes(n_tokens: int, d_code: int | None = None) -> Float[Tensor, "n_tokens d_code"]:
    """C with C C^T = 1 when d_code = n_tokens (the default): exactly separable words.

    A smaller d_code gives random unit rows (always the same ones), which overlap. Float64.
    """
    d_code = n_tokens if d_code is None else d_code
    if not 2 <= d_code <= n_tokens:
        raise ValueError(f"d_code must lie between 2 and n_tokens = {n_tokens}, got {d_code}")
    if d_code == n_tokens:
        return torch.eye(n_tokens, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(n_tokens, d_code, generator=generator, dtype=torch.float64)
    return rows / rows.norm(dim=1, keepdim=True)


class _Plan:
    """A model under construction: named blocks of the stream, and zero weights to fill."""

    def __init__(self, n_layers: int, n_ctx: int, C: Tensor, d_head: int, **sizes: int) -> None:
        n_tokens, d_code = C.shape
        sizes = {"word": d_code, "bos": 1, "one": 1, "out": d_code, **sizes}
        starts = [0, *torch.tensor(list(sizes.values())).cumsum(0).tolist()]
        self.at = {name: slice(a, b) for name, a, b in zip(sizes, starts, starts[1:])}
        self.cfg = Config(
            n_layers, starts[-1], 1, d_head, n_ctx=n_ctx, d_vocab=n_tokens + 1, pos_kind="learned"
        )
        shapes = Transformer(self.cfg, seed=None).state_dict()
        self.state = {k: torch.zeros(v.shape, dtype=torch.float64) for k, v in shapes.items()}
        W_E, W_U = self.state["embed.W_E"], self.state["unembed.W_U"]
        W_E[0, self.at["bos"]] = 1.0
        W_E[:, self.at["one"]] = 1.0
        W_E[1:, self.at["word"]] = C
        W_U[self.at["out"], 1:] = CERTAINTY * C.T

    def read(self, layer: int, into: str, block: str, M: Tensor | float, first: int = 0) -> None:
        """W_into (Q, K or V) sends this block through M to the head's coordinates from `first`."""
        rows = self.at[block]
        M = torch.as_tensor(M, dtype=torch.float64).reshape(rows.stop - rows.start, -1)
        if into == "Q":  # the model divides scores by sqrt(d_head); gains here are after that
            M = M * math.sqrt(self.cfg.d_head)
        self.state[f"blocks.{layer}.attn.W_{into}"][0, rows, first : first + M.shape[1]] += M

    def copy(self, layer: int, source: str, target: str, M: Tensor) -> None:
        """The head reads `source` of the key through M and writes it to `target`: W_V and W_O."""
        self.read(layer, "V", source, M)
        rows = self.at[target]
        n = rows.stop - rows.start
        self.state[f"blocks.{layer}.attn.W_O"][0, :n, rows] = torch.eye(n, dtype=torch.float64)

    def model(self, dtype: torch.dtype, positions: str = "shortformer") -> Transformer:
        """The transformer with these weights, ready to run."""
        state = {k: v.to(dtype) for k, v in self.state.items()}
        made = Transformer.from_state_dict(self.cfg.replace(positions=positions), state)
        return made.eval().requires_grad_(False)


def _gain(margin: float, n_ctx: int) -> float:
    """How much scores must grow so that all wrong keys together keep at most LEAK of a row."""
    return math.log(n_ctx / LEAK) / margin


# ---------------------------------------------------------------- models


def induction_model(
    n_tokens: int = 64,
    n_ctx: int = 128,
    *,
    composition: str = "k",
    places_kind: str = "sinusoidal",
    d_code: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Transformer:
    """Layer 0 copies the word before; layer 1 looks where "the word before" is the current word.

    Head 0.0 (previous token): q = p_t B, k = p_j, so its scores p_(t-1) . p_j are largest at
    j = t-1. Positions only. It writes C[token t-1] to `before`.
    Head 1.0 (induction): q reads `word`, k reads `before`: K-composition, the scores are 1 where
    token j-1 is token t and 0 elsewhere, 1/2 at <|bos|>. It copies the word of j to `out`.

    composition="q" is the mutant: q reads `before` and k reads `word`. It looks for copies of the
    word before the current one and never finds what follows.
    On `repeated_distinct` sequences it is right on every scored prediction. A word that recurs
    inside the period has two matches, and no head of this kind can choose.
    d_head = max(d_place, d_code + 1); see the module's text and `word_codes` for d_code.
    """
    if composition not in ("k", "q"):
        raise ValueError(f"composition must be 'k' or 'q', got {composition!r}")
    C, (p, back) = word_codes(n_tokens, d_code), places(places_kind, n_ctx)
    c = C.shape[1]
    plan = _Plan(2, n_ctx, C, max(p.shape[1], c + 1), place=p.shape[1], before=c)
    plan.state["pos_embed.W_pos"][:, plan.at["place"]] = p
    alike = p @ p.T
    margin = (alike.diagonal()[:, None] - alike).fill_diagonal_(math.inf).min().item()
    plan.read(0, "Q", "place", _gain(margin, n_ctx) * back)
    plan.read(0, "K", "place", torch.eye(len(back)))
    plan.copy(0, "word", "before", torch.eye(c))
    query, key = ("word", "before") if composition == "k" else ("before", "word")
    _match_or_rest(plan, 1, query, key, gain=_gain(0.5, n_ctx), rest=0.5)
    plan.copy(1, "word", "out", torch.eye(c))
    return plan.model(dtype)


def _match_or_rest(
    plan: _Plan, layer: int, query: str, key: str, *, gain: float, rest: float
) -> None:
    """Score = gain (query block . key block), and gain * rest at <|bos|> whatever the query is."""
    size = plan.at[query].stop - plan.at[query].start
    plan.read(layer, "Q", query, gain * torch.eye(size))
    plan.read(layer, "K", key, torch.eye(size))
    plan.read(layer, "Q", "one", gain * rest, first=plan.cfg.d_head - 1)
    plan.read(layer, "K", "bos", 1.0, first=plan.cfg.d_head - 1)


def pointer_model(
    n_tokens: int = 64, n_ctx: int = 128, *, dtype: torch.dtype = torch.float32
) -> Transformer:
    """Layer 0 copies the PLACE of the earlier copy; layer 1 looks one place further on.

    The other way to continue a repeat: pointer arithmetic, by Q-composition of positions.
    Head 0.0 (duplicate token): score 1 for the same word, minus 1 for the same place, so the word
    itself scores 0 and its earlier copies 1. It writes their place (their mean, if several) to
    `at`; for <|bos|>, where it rests, nothing.
    Head 1.0: q = at . B^T (one step forward), k = place, and it copies the word found there.
    The key holds nothing that layer 0 wrote: cutting 0.0 -> key of 1.0 changes nothing, cutting
    0.0 -> query ends it. In `induction_model` it is the other way round.

    positions="standard", one-hot: a value can carry a place only when the stream holds it. With
    m earlier copies the right keys score 1/m, so the gain is as large as a full context needs.
    """
    C, (p, back) = word_codes(n_tokens), places("one-hot", n_ctx)
    plan = _Plan(2, n_ctx, C, n_tokens + n_ctx + 1, place=n_ctx, at=n_ctx)
    plan.state["pos_embed.W_pos"][:, plan.at["place"]] = p
    one = torch.eye(n_ctx, dtype=torch.float64)
    gain = _gain(0.5, n_ctx)
    _match_or_rest(plan, 0, "word", "word", gain=gain, rest=0.5)
    plan.read(0, "Q", "place", -gain * one, first=n_tokens)
    plan.read(0, "K", "place", one, first=n_tokens)
    not_bos = one.clone()
    not_bos[0, 0] = 0.0
    plan.copy(0, "place", "at", not_bos)
    least = 2 / n_ctx  # a full context holds fewer than n_ctx / 2 earlier copies of a word
    gain = _gain(least / 2, n_ctx)
    plan.read(1, "Q", "at", gain * back.T)
    plan.read(1, "K", "place", one)
    plan.read(1, "Q", "one", gain * least / 2, first=plan.cfg.d_head - 1)
    plan.read(1, "K", "bos", 1.0, first=plan.cfg.d_head - 1)
    plan.copy(1, "word", "out", torch.eye(n_tokens))
    return plan.model(dtype, positions="standard")


def smear_keys(a: float) -> Cut:
    """k_j becomes s k_j + (1 - s) k_(j-1) with s = sigmoid(a), in all heads of layer 0.

    Position 0 keeps its key. One number a head is all that is added to the architecture.
    Source: Olsson et al. 2022 ("smeared keys", where a is trained).
    """
    s = 1 / (1 + math.exp(-a))

    def smear(k: Tensor, hook: object) -> Tensor:
        mixed = s * k  # [batch, key, head, d_head]
        mixed[:, 1:] += (1 - s) * k[:, :-1]
        mixed[:, 0] = k[:, 0]
        return mixed

    return Cut(
        (("blocks.0.attn.hook_k", smear),),
        recomputed=(f"keys of layer 0, mixed with the key before (own share {s:.2f}), and after",),
    )


def smeared_model(
    n_tokens: int = 64,
    n_ctx: int = 128,
    smear: bool = True,
    *,
    a: float = -1.1,
    dtype: torch.dtype = torch.float32,
) -> tuple[Transformer, Cut]:
    """One layer does induction when its keys are smeared: score 1-s after a copy, s at the copy.

    Returns (model, hooks); run the model under the hooks: `continuation_accuracy(model, tokens,
    periods, hooks)`. The head matches word with word. With the smear the key after an earlier copy
    holds more of that copy (1 - s) than the copy's own key does (s < 1/2), so the head looks there
    and copies. smear=False returns the same weights with no hooks: the best match is then the
    current word itself, and the model repeats it. ValueError for an `a` that leaves no margin.
    """
    s, rest = 1 / (1 + math.exp(-a)), 0.5
    # The right key scores 1 - s. Its rivals: <|bos|> (rest), and position 1 when the block's first
    # word comes again, s + (1 - s) rest. With no match <|bos|> must beat position 1, (1 - s) rest,
    # and the word itself, s.
    margin = min(1 - s - rest, (1 - s) * (1 - rest) - s, s * rest, rest - s)
    if margin <= 0:
        raise ValueError(f"a = {a} (own share {s:.2f}) leaves no margin: choose about -1.1")
    C = word_codes(n_tokens)
    plan = _Plan(1, n_ctx, C, n_tokens + 1)
    _match_or_rest(plan, 0, "word", "word", gain=_gain(margin, n_ctx), rest=rest)
    plan.copy(0, "word", "out", torch.eye(n_tokens))
    return plan.model(dtype), smear_keys(a) if smear else Cut()


# ---------------------------------------------------------------- sequences and scores


class Repeats(NamedTuple):
    """Sequences that repeat a block of distinct words until the context is full."""

    tokens: Int[Tensor, "n n_ctx"]
    periods: Int[Tensor, " n"]


def repeated_distinct(
    n: int, n_tokens: int, n_ctx: int, generator: torch.Generator, *, min_period: int = 3
) -> Repeats:
    """<|bos|>, then a block of distinct words again and again: token[t + period] = token[t].

    Periods are uniform over min_period ... min(n_tokens, n_ctx // 2), words over 1 ... n_tokens.
    Below 3 "the word before" and "the word after" are the same. ValueError if no period fits.
    """
    longest = min(n_tokens, n_ctx // 2)
    if not 1 <= min_period <= longest:
        raise ValueError(
            f"no period fits: min_period = {min_period}, longest = min(n_tokens, n_ctx // 2) "
            f"= {longest}"
        )
    periods = torch.randint(min_period, longest + 1, (n,), generator=generator)
    order = torch.rand(n, n_tokens, generator=generator).argsort(-1)
    tokens = torch.zeros(n, n_ctx, dtype=torch.long)
    tokens[:, 1:] = 1 + order.gather(1, torch.arange(n_ctx - 1) % periods[:, None])
    return Repeats(tokens, periods)


def _scored(tokens: Tensor, periods: Tensor) -> Tensor:
    """True where logits[:, t] predict a token of a repeat that the text foretells. [n, pos - 1]

    The block is at 1 ... period. The repeat's first token (period + 1) is foretold by nothing, so
    targets are period + 2 onwards and the predictions stand at t = period + 1 onwards.
    """
    return torch.arange(tokens.shape[1] - 1) > periods[:, None]


@torch.no_grad()
def continuation_accuracy(
    model: Transformer,
    tokens: Int[Tensor, "n pos"],
    periods: Int[Tensor, " n"],
    cut: Cut | Callable[[Tensor], Cut] | None = None,
) -> float:
    """Share of predictions, from the repeat's second token on, whose top word is the right one.

    Words that tie for the top (within 1e-3) share the point, so equal logits score 1 / d_vocab and
    never all or nothing by an accident of sorting. Sequences run 32 at a time: pass a `cut` that
    does not depend on the batch (kind "zero"), or a function from tokens to a Cut.
    ValueError when no prediction is left to score.
    """
    won, count = 0.0, 0
    for part, scored in zip(tokens.split(AT_ONCE), _scored(tokens, periods).split(AT_ONCE)):
        now = cut(part) if callable(cut) else cut
        logits = run(model, part, now)[0][:, :-1][scored]  # [prediction, d_vocab]
        right = logits.gather(-1, part[:, 1:][scored][:, None])
        floor = logits.max(-1, keepdim=True).values - TIE
        tied = (logits >= floor).sum(-1, keepdim=True).double()  # [prediction, 1]
        won += ((right >= floor) / tied).sum().item()
        count += len(right)
    if not count:
        raise ValueError("no prediction to score: the sequences end before their second repeat")
    return won / count


def chance_level(tokens: Int[Tensor, "n pos"], periods: Int[Tensor, " n"]) -> float:
    """Share right of a guess among the block's words, order unknown: mean of 1/period.

    The mean runs over the predictions that `continuation_accuracy` scores. A model that does not
    know the block either scores 1 / d_vocab, which is less.
    """
    scored = _scored(tokens, periods).sum(-1).double()  # predictions of each sequence
    return (scored / periods).sum().item() / scored.sum().item()


def contrast(
    model: Transformer, tokens: Int[Tensor, "n pos"], periods: Int[Tensor, " n"]
) -> dict[str, float]:
    """Continuation accuracy of a two-layer hand-built model, whole and under five interventions.

    Keys: "whole"; "without 0.0", "without 1.0" (the head's write set to zero, all after
    recomputed); "query", "key", "value" (0.0's write removed from that input of 1.0 only).
    """
    writer, reader = (0, 0), (1, 0)
    cuts = {"whole": None}
    for head in (writer, reader):
        cuts[f"without {head[0]}.{head[1]}"] = ablate_heads(model, tokens, [head])
    for name in ("query", "key", "value"):
        cuts[name] = cut_path(model, writer, reader, name[0])
    return {name: continuation_accuracy(model, tokens, periods, c) for name, c in cuts.items()}
