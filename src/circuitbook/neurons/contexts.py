"""Where a neuron fires: on which share of the text, how strongly, and in what company.

One pass over held-out windows keeps what the MLP reads; activations are made for a slice of neurons
at a time, so that no table of all tokens by all neurons is held.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook import tokenizer
from circuitbook.model import Transformer
from circuitbook.neurons.expansion import seen

FIRES = 0.1  # a neuron fires on a token when its activation is above this, as in Part 7
SLICE = 128  # neurons at a time


class Text(NamedTuple):
    """Positions of held-out text that a neuron can be asked about; BOS is left out."""

    read: Float[Tensor, "n d_model"]  # what the MLP reads: the stream, after its norm if it has one
    token: Int[Tensor, " n"]
    following: Int[Tensor, " n"]  # the next token
    doc: Int[Tensor, " n"]
    window: Int[Tensor, " n"]
    place: Int[Tensor, " n"]  # k: it is the k-th token of its window
    stream: Float[Tensor, "n d_model"]  # the stream itself, to which the MLP adds


@torch.no_grad()
def read_text(
    model: Transformer,
    tokens: Int[Tensor, "window pos"],
    doc: Int[Tensor, " window"],
    layer: int = 0,
) -> Text:
    """What the MLP of a layer reads on every token but BOS and the last, which nothing follows."""
    name = f"blocks.{layer}.hook_resid_mid"
    stream = seen(model, tokens, [name])[name][:, 1:-1].flatten(0, 1)
    read = model.blocks[layer].ln2(stream.to(model.W_E.device)).cpu()
    n, length = tokens.shape[0], tokens.shape[1] - 2
    return Text(
        read,
        tokens[:, 1:-1].flatten(),
        tokens[:, 2:].flatten(),
        doc.repeat_interleave(length),
        torch.arange(n).repeat_interleave(length),
        torch.arange(1, length + 1).repeat(n),
        stream,
    )


Whiten = Callable[[Tensor], tuple[Tensor, Tensor]]


def without_ones(model: Transformer, whiten: Whiten) -> Whiten:
    """LayerNorm's output has mean zero, so its covariance has no inverse: d - 1 coordinates have.

    Gives whiten of x Q, the columns of Q an orthonormal basis of what is orthogonal to the all-ones
    direction; without a norm, `whiten` itself. Inner products of whitened contexts, and so every
    agreement, do not depend on the basis.
    """
    if model.cfg.norm == "none":
        return whiten
    d = model.cfg.d_model
    frame = torch.eye(d, dtype=torch.float64)
    frame[:, 0] = 1
    Q = torch.linalg.qr(frame)[0][:, 1:]
    return lambda x: whiten(x @ Q.to(x))


def activations(
    model: Transformer, read: Float[Tensor, "n d_model"], neurons: slice | Tensor, layer: int = 0
) -> Float[Tensor, "n chosen"]:
    """phi(x k + b) of some neurons, x what their MLP reads (`Text.read`)."""
    mlp = model.blocks[layer].mlp
    return mlp.act(read @ mlp.W_in[:, neurons] + mlp.b_in[neurons])


class Survey(NamedTuple):
    """Statistics of every neuron over the text."""

    share: Float[Tensor, " d_mlp"]  # of tokens on which it fires
    maximum: Float[Tensor, " d_mlp"]
    mean: Float[Tensor, " d_mlp"]  # activation, what a mean ablation puts there
    documents: Int[Tensor, " d_mlp"]  # in which it fires
    agreement: Float[Tensor, " d_mlp"]  # of its contexts, see the lesson
    random: Float[Tensor, " d_mlp"]  # agreement of a random direction that fires as often
    top_token: Float[Tensor, " d_mlp"]  # share of its firing that falls on its best token
    right: Float[Tensor, " d_mlp"]  # share of its firings followed by one of its own words
    strongest: Int[Tensor, "k d_mlp"]  # positions of the largest activations
    firing: list[Tensor]  # positions where it fires, drawn at random


@torch.no_grad()
def survey(
    model: Transformer,
    text: Text,
    whiten: Callable[[Tensor], tuple[Tensor, Tensor]],
    agreement: Callable[[Tensor, Tensor, Tensor], Tensor],
    words: Int[Tensor, "d_mlp k"],
    *,
    layer: int = 0,
    strongest: int = 400,
    firing: int = 16,
    seed: int = 0,
) -> Survey:
    """All statistics in one pass over slices of neurons; the two functions are the lesson's.

    words: the words that each neuron writes most. firing: so many positions where the neuron fires
    are drawn, each alike, with this seed. Positions must be grouped by document, as `read_text` has
    them when the windows are.
    """
    mlp, x = model.blocks[layer].mlp, whiten(text.read)[0]
    chance = torch.Generator().manual_seed(seed + 1)
    somewhere = torch.randn(x.shape[1], mlp.W_in.shape[1], generator=chance).to(x)
    documents = text.doc.unique_consecutive(return_inverse=True)[1]
    which = torch.zeros(int(documents.max()) + 1, len(documents), dtype=x.dtype)
    which[documents, torch.arange(len(documents))] = 1.0
    lottery = torch.rand(len(x), generator=torch.Generator().manual_seed(seed))
    rows: list[tuple[Tensor, ...]] = []
    drawn: list[Tensor] = []
    for start in range(0, mlp.W_in.shape[1], SLICE):
        part = slice(start, start + SLICE)
        a = activations(model, text.read, part, layer)
        fires, excess = (a > FIRES).to(a), (a - FIRES).clamp_min(0)
        mine = a.new_zeros(model.cfg.d_vocab, a.shape[1]).scatter_(0, words[part].mT, 1.0)
        by_token = a.new_zeros(mine.shape).index_add_(0, text.token, excess)
        rows.append((
            fires.mean(0), a.max(0).values, a.mean(0), (which @ fires > 0).sum(0),
            agreement(x, excess, documents),
            agreement(x, above_rate(x @ somewhere[:, part], fires.sum(0).long()), documents),
            by_token.max(0).values / excess.sum(0).clamp_min(1e-30),
            (mine[text.following] * fires).sum(0) / fires.sum(0).clamp_min(1),
            a.topk(min(strongest, len(a)), dim=0).indices.T,
        ))  # fmt: skip
        for column in fires.T.contiguous():
            where = column.nonzero().flatten()
            drawn.append(where[lottery[where].argsort()[:firing]])
    parts = [torch.cat(column) for column in zip(*rows, strict=True)]
    return Survey(*parts[:-1], parts[-1].T, drawn)


def above_rate(
    along: Float[Tensor, "n chosen"], counts: Int[Tensor, " chosen"]
) -> Float[Tensor, "n chosen"]:
    """A direction read above a threshold that lets it fire on `counts` positions; 0 elsewhere."""
    n = len(along)
    floor = [
        torch.kthvalue(column, max(1, n - c)).values
        for column, c in zip(along.T.contiguous(), counts.tolist(), strict=True)
    ]
    return (along - torch.stack(floor)).clamp_min(0)


def perfect_detectors(
    text: Text,
    whiten: Callable[[Tensor], tuple[Tensor, Tensor]],
    agreement: Callable[[Tensor, Tensor, Tensor], Tensor],
    least: float,
    documents: int,
    most: int = 128,
) -> Float[Tensor, " token"]:
    """Agreement of detectors that fire on all copies of one token and on nothing else.

    Tokens: the most frequent ones that make up `least` of the text and stand in so many documents.
    """
    x, doc = whiten(text.read)[0], text.doc.unique_consecutive(return_inverse=True)[1]
    ids, counts = text.token.unique(return_counts=True)
    ids = ids[counts.argsort(descending=True, stable=True)][:most]
    fires = (text.token[:, None] == ids).to(x)
    seen_in = torch.zeros(int(doc.max()) + 1, len(ids), dtype=x.dtype).index_add_(0, doc, fires)
    wanted = (fires.mean(0) >= least) & ((seen_in > 0).sum(0) >= documents)
    return agreement(x, fires[:, wanted], doc)


# ---------------------------------------------------------------- synthetic neurons


def synthetic(seed: int = 0, n: int = 6000, d: int = 32) -> dict[str, dict[str, Any]]:
    """Neurons whose answer is known: name -> x [n, d], fires [n, 1], want; and doc [n].

    Streams are white Gaussian noise with topics planted in them. "want" is the range in which the
    agreement must lie, from the construction alone. "one topic, read along it" is the natural case:
    the direction that the neuron reads is the topic, and a score that projects this direction out
    sees nothing. "one document" fools a score that forgets documents. "random direction" agrees by
    selection alone: squared mean cosine of a firing with the direction, 0.19 for a threshold of 2
    in 32 dimensions. It is the level that a neuron must pass.
    """
    g = torch.Generator().manual_seed(seed)
    doc = torch.arange(n) // (n // 20)
    turn = torch.arange(n) % 2
    base = torch.randn(n, d, generator=g, dtype=torch.float64)
    topics = torch.linalg.qr(torch.randn(d, d, generator=g, dtype=torch.float64))[0][:, :3]
    pick = torch.rand(n, generator=g)
    far = 4 * d**0.5

    def planted(share: float, *which: int) -> tuple[Tensor, Tensor]:
        x, on = base.clone(), pick < share
        for i, topic in enumerate(which):
            mine = on & (turn % len(which) == i)
            x[mine] += far * topics[:, topic]
        return x, on.double()[:, None]

    one, two = planted(0.05, 0), planted(0.05, 0, 1)
    opposite_x, opposite = planted(0.05, 0)
    turned = (turn == 1) & (opposite[:, 0] > 0)
    opposite_x[turned] -= 2 * far * topics[:, 0]
    k = torch.randn(d, 1, generator=g, dtype=torch.float64)
    k = k / k.norm()
    along = (one[0] @ topics[:, :1] - far / 2).clamp_min(0)
    selected = (base @ k - 2).clamp_min(0)
    one_text = planted(0.4, 0)
    single = (one_text[1][:, 0] > 0) & (doc == 3)
    alone = base.clone()
    alone[single] += far * topics[:, 0]
    noise = (pick < 0.05).double()[:, None]
    cosine = far**2 / (far**2 + d)  # of two noisy copies of one topic
    return {
        "one topic": {"x": one[0], "fires": one[1], "want": (0.9 * cosine, 1.0)},
        "one topic, read along it": {"x": one[0], "fires": along, "want": (0.9 * cosine, 1.0)},
        "two topics": {"x": two[0], "fires": two[1], "want": (0.42, 0.52)},
        "a topic and its opposite": {"x": opposite_x, "fires": opposite, "want": (-0.05, 0.05)},
        "at random": {"x": base, "fires": noise, "want": (-0.02, 0.02)},
        "random direction": {"x": base, "fires": selected, "want": (0.15, 0.23)},
        "one document": {
            "x": alone, "fires": single.double()[:, None], "want": (-0.001, 0.001),
        },
    } | {"doc": doc}  # fmt: skip


def synthetic_scores(
    agreement: Callable[[Tensor, Tensor, Tensor], Tensor], seed: int = 0
) -> dict[str, dict[str, float]]:
    """For each synthetic neuron: its score, the range asked, and what a bare mean cosine says."""
    made = synthetic(seed)
    doc = made.pop("doc")
    out = {}
    for name, s in made.items():
        score = agreement(s["x"], s["fires"], doc).item()
        unit = s["x"] / s["x"].norm(dim=1, keepdim=True)
        a = s["fires"][:, 0]
        pairs = a.sum() ** 2 - a.square().sum()
        bare = ((a @ unit).square().sum() - a.square().sum()) / pairs
        low, high = s["want"]
        out[name] = {"score": score, "low": low, "high": high, "bare": bare.item()}
    return out


# ---------------------------------------------------------------- for reading


def words_of(ids: Tensor) -> list[str]:
    """The tokens as text, a blank at the ends kept."""
    tok = tokenizer.load()
    return [tok.text(int(i)) for i in ids]


def spots(
    text: Text,
    tokens: Int[Tensor, "window pos"],
    positions: Int[Tensor, " k"],
    values: Float[Tensor, " k"],
    kinds: list[str],
    names: list[str],
    n: int = 5,
    before: int = 7,
) -> list[dict[str, Any]]:
    """The strongest contexts, one from each document: text before, token, next, source."""
    tok, known, out = tokenizer.load(), set(), []
    for p, value in zip(positions.tolist(), values.tolist(), strict=True):
        if int(text.doc[p]) in known or len(out) == n:
            continue
        known.add(int(text.doc[p]))
        w, k = int(text.window[p]), int(text.place[p])
        out.append({
            "activation": value,
            "before": tok.decode(tokens[w, max(1, k - before) : k].tolist()),
            "token": tok.text(int(text.token[p])),
            "next": tok.text(int(text.following[p])),
            "source": f"{kinds[w]}: {names[w]}",
        })  # fmt: skip
    return out


def card(
    model: Transformer,
    text: Text,
    tokens: Tensor,
    found: Survey,
    written: Any,
    read: Any,
    by_head: Any,
    neuron: int,
    kinds: list[str],
    names: list[str],
) -> dict[str, Any]:
    """Everything that the lesson prints about one neuron.

    written, read: `tables.Top`; by_head: (head of each neuron, what is read through it).
    """
    heads, attended = by_head
    where = found.strongest[:, neuron]
    values = activations(model, text.read[where], torch.tensor([neuron]))[:, 0]
    shown = 6
    return {
        "neuron": neuron,
        "share": found.share[neuron],
        "maximum": found.maximum[neuron],
        "agreement": found.agreement[neuron],
        "documents": found.documents[neuron],
        "writes": [words_of(written.ids[neuron, :shown]), written.values[neuron, :shown]],
        "reads": [words_of(read.ids[neuron, :shown]), read.values[neuron, :shown]],
        "head": heads[neuron],
        "reads by head": [words_of(attended.ids[neuron, :shown]), attended.values[neuron, :shown]],
        "contexts": spots(text, tokens, where, values, kinds, names),
    }


def mix_of(sources: list[str]) -> dict[str, int]:
    """Windows by kind of document."""
    kinds, counts = np.unique(sources, return_counts=True)
    return dict(zip(kinds.tolist(), counts.tolist(), strict=True))
