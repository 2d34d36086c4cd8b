"""The course's pair passes one of thousands of messages through a head's few dimensions.

The previous-token head writes, for the token t before it, the message W_E[t] W_OV: rank 32. The
induction head asks for it with the query of token t. What other tokens' messages add to that score
is the echo. Everything here is read from weights; tokens are the frequent words of the course.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook import bases, cut, gauge, paths, spine, zoo
from circuitbook.composition.coordinates import stretch
from circuitbook.composition.pairs import reader, writer
from circuitbook.curves import Bench
from circuitbook.cut import Cut
from circuitbook.model import Transformer
from circuitbook.superposition import geometry, toy

NUMBERS = (
    "probabilities", "words whose own message wins", "own score minus the mean echo",
    "own score, raw", "leverage of messages", "D of messages", "cosines between messages",
    "D of W_U's columns",
)  # fmt: skip


def messages(
    model: Transformer, head: int, words: Int[Tensor, " word"]
) -> Float[Tensor, "word d_model"]:
    """What the first layer's `head` writes for each word, centred over the words (float64).

    Centred: a part that all messages share tells nobody apart, and softmax ignores it. With
    LayerNorm each message is also divided by a scale of its place, which is left out here: an
    approximation, the same for all words.
    """
    out = model.W_E[words].double() @ model.W_V[0, head].double() @ model.W_O[0, head].double()
    return out - out.mean(0)


def score_table(
    model: Transformer, pair: tuple[int, int], words: Int[Tensor, " word"],
    sent: Float[Tensor, "word d_model"] | None = None,
    k0: Float[Tensor, " d_head"] | None = None,
) -> Float[Tensor, "query message"]:  # fmt: skip
    """What a query of the last layer's head gets from each word's message, before the softmax.

    sent: what arrives instead of the messages of head pair[0]. k0: added to every key.
    """
    sent = messages(model, pair[0], words) if sent is None else sent
    query = model.W_E[words].double() @ model.W_Q[-1, pair[1]].double()
    key = sent @ model.W_K[-1, pair[1]].double()
    key = key if k0 is None else key + k0.to(key)
    return query @ key.T / model.cfg.d_head**0.5


def heard(table: Float[Tensor, "query message"]) -> float:
    """The share of queries that hear the message of their own word loudest."""
    return (table.argmax(1) == torch.arange(len(table))).double().mean().item()


def nearest(sent: Float[Tensor, "d word"]) -> float:
    """The median over columns of the largest |cosine| with another column."""
    cos = geometry.unit(sent).T @ geometry.unit(sent)
    return cos.fill_diagonal_(0).abs().amax(1).median().item()


def study(
    model: Transformer, pair: tuple[int, int], words: Int[Tensor, " word"]
) -> dict[str, float | int]:
    """How many messages share how many dimensions, and whether the right one is heard.

    Controls: other writers for the same reader; the word's own embedding as the key; other readers
    of the same writer; as many random directions in as many dimensions.
    """
    sent = messages(model, pair[0], words).T  # columns are directions
    rank = int((torch.linalg.svdvals(sent) > 1e-9 * sent.norm()).sum())
    table = score_table(model, pair, words)
    table = table - table.mean(1, keepdim=True)
    own, spread = table.diagonal(), table.std(1)
    D, heads = geometry.dimensionality(sent), range(model.cfg.n_heads)
    writers = [heard(score_table(model, (h, pair[1]), words)) for h in heads if h != pair[0]]
    readers = {h: heard(score_table(model, (pair[0], h), words)) for h in heads if h != pair[1]}
    itself = model.W_E[words].double()
    other = max(readers, key=lambda h: readers[h])
    noise = torch.randn(rank, len(words), generator=toy.gen(2), dtype=torch.float64)
    tokens = geometry.dimensionality(model.W_E.T.double())
    return {
        "words": len(words), "rank": rank, "D": D.mean().item(), "sum_D": D.sum().item(),
        "least_D": D.min().item(), "most_D": D.max().item(),
        "nearest": nearest(sent), "nearest_random": nearest(noise), "wins": heard(table),
        "other_writers": max(writers), "other_reader": other, "other_reader_wins": readers[other],
        "readers": sum(v >= 0.5 for v in readers.values()),
        "itself": heard(score_table(model, pair, words, sent=itself - itself.mean(0))),
        "own": (own / spread).mean().item(),
        "tokens": model.cfg.d_vocab, "width": model.cfg.d_model,
        "token_D": tokens.mean().item(), "token_sum": tokens.sum().item(),
    }  # fmt: skip


def numbers(
    model: Transformer, tokens: Int[Tensor, "n pos"], pair: tuple[int, int],
    words: Int[Tensor, " word"], k0: Float[Tensor, " d_head"] | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """NUMBERS of one weight set; k0 is added to every key: query q's scores all move by q · k0."""
    sent, table = messages(model, pair[0], words).T, score_table(model, pair, words, k0=k0)
    centred = table - table.mean(1, keepdim=True)
    U, shift = model.W_U.double(), Cut()
    if k0 is not None:
        at = [f"blocks.{i}.attn.hook_k" for i in range(model.cfg.n_layers)]
        shift = Cut(tuple((name, lambda k, hook: k + k0.to(k)) for name in at))
    values = (
        cut.run(model, tokens, shift)[0].softmax(-1), torch.tensor(heard(table)),
        centred.diagonal(), table.diagonal(),
        geometry.leverage(sent), geometry.dimensionality(sent),
        geometry.unit(sent).T @ geometry.unit(sent), geometry.dimensionality(U),
    )  # fmt: skip
    return dict(zip(NUMBERS, values, strict=True))


def own_survival(prompt: int) -> dict[str, dict[str, float]]:
    """`survival` of the course's two-layer model, whatever today's model set.

    With LayerNorm most changes of the stream's coordinates change the function.
    """
    with paths.model_set("course"):
        model, words = zoo.load("attn-only-2l", dtype=torch.float64), Bench.frequent()
        first, second = spine.heads_pair(zoo.load("attn-only-2l"), 16)
        return survival(model, words[None, :prompt], (first[1], second[1]), words)


@torch.no_grad()
def survival(
    model: Transformer, tokens: Int[Tensor, "n pos"], pair: tuple[int, int],
    words: Int[Tensor, " word"], seed: int = 0,
) -> dict[str, dict[str, float]]:  # fmt: skip
    """change of the weights -> number -> movement, of the largest value. For a float64 model."""
    generator, d = torch.Generator().manual_seed(seed), model.cfg
    G = torch.diag(stretch(writer(model, pair[0]), reader(model, pair[1], "k")))
    R = gauge.invertible(d.d_head, d.d_head, generator=generator)
    c = torch.randn(d.d_model, generator=generator).to(model.W_E) * model.W_U.std()
    k0 = torch.randn(d.d_head, generator=generator, dtype=torch.float64)
    old = numbers(model, tokens, pair, words)
    changed = {
        "head coordinates R": bases.change_heads(model, R),
        "stream coordinates G": gauge.change_stream(model, G),
        "W_U + c 1ᵀ": bases.shift_unembed(model, c),
    }
    new = {k: numbers(m, tokens, pair, words) for k, m in changed.items()}
    new["constant per query"] = numbers(model, tokens, pair, words, k0)
    return {change: gauge.movement(old, values) for change, values in new.items()}
