"""l_e = direct + heads: who decides which experts a token gets, and what the experts are used for.

The router is linear and has no bias, so its logits are a sum over the parts of the stream, exactly.
Selection is not linear: it asks which logits are largest. What decides is the margin between the
weakest selected and the strongest unselected expert, and differences between experts in general:
a number added to all logits of a position changes nothing. So logits are centred over experts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.conditional.reads import mixed_values
from circuitbook.conditional.routes import chosen, margin
from circuitbook.model import Transformer
from circuitbook.neurons.contexts import words_of
from circuitbook.probe import clustered_mean

DEAD = 0.1  # an expert is dead when it gets less than this share of what an even load would give
SEEN = 30  # a word is asked about when it stands in the text at least so often


class Routing(NamedTuple):
    """Router logits part by part on every token of held-out text but BOS."""

    names: tuple[str, ...]  # "direct", "head 0.0", …
    parts: Float[Tensor, "part n expert"]
    token: Int[Tensor, " n"]
    doc: Int[Tensor, " n"]
    k: int

    @property
    def logits(self) -> Float[Tensor, "n expert"]:
        """The router's logits: the sum of the parts."""
        return self.parts.sum(0)

    def heads_at_mean(self, but: tuple[int, ...] = ()) -> Float[Tensor, "n expert"]:
        """Logits with every head's part at its mean over the text, except the heads named."""
        heads = self.parts[1:]
        mean = heads.mean(1, keepdim=True).expand_as(heads).clone()
        mean[list(but)] = heads[list(but)]
        return self.parts[0] + mean.sum(0)


@torch.no_grad()
def router_parts(
    model: Transformer,
    tokens: Int[Tensor, "window pos"],
    doc: Int[Tensor, " window"],
    mixed: Iterable[tuple[Tensor, Tensor]] | None = None,
) -> Routing:
    """`Routing` of a one-layer mixture. mixed: as in `read_parts`. ValueError for another block."""
    if not model.cfg.n_experts:
        raise ValueError("this model has no router: it needs n_experts > 0")
    block = model.blocks[0]
    direct = model.W_E @ block.mlp.W_router  # [d_vocab, expert]
    heads = block.attn.W_O @ block.mlp.W_router  # [head, d_head, expert]
    rows = [
        torch.cat([direct[piece][None], torch.einsum("wphk,hke->hwpe", z, heads)])[:, :, 1:]
        for piece, z in mixed or mixed_values(model, tokens)
    ]
    names = ("direct", *(f"head 0.{h}" for h in range(model.cfg.n_heads)))
    token = tokens[:, 1:].flatten().to(direct.device)
    document = doc.repeat_interleave(tokens.shape[1] - 1).to(direct.device)
    return Routing(names, torch.cat(rows, 1).flatten(1, 2), token, document, model.cfg.top_k)


# ---- how much each expert is used ---------------------------------------------------------------


def load(logits: Float[Tensor, "n expert"], k: int) -> dict[str, Any]:
    """Share of the selections that goes to each expert, and how even that is (1: all alike)."""
    share = chosen(logits, k).double().mean(0) / k
    entropy = -torch.special.xlogy(share, share).sum() / torch.tensor(float(len(share))).log()
    return {
        "share": share,
        "evenness": entropy,
        "least": share.min() * len(share),
        "most": share.max() * len(share),
        "dead": int((share * len(share) < DEAD).sum()),
    }


def set_ids(logits: Float[Tensor, "n expert"], k: int) -> Int[Tensor, " n"]:
    """A number for each selected set; equal sets, equal numbers."""
    power = 2 ** torch.arange(logits.shape[-1], device=logits.device)
    return (chosen(logits, k) * power).sum(-1)


# ---- what the experts are used for --------------------------------------------------------------


def lifts(
    token: Int[Tensor, " n"], picked: Tensor, d_vocab: int, seen: int = SEEN
) -> tuple[Tensor, Tensor]:
    """(words, lift [word, expert]): P(e selected | word) / P(e selected), of words seen often.

    picked: [n, expert], True where selected.
    """
    counts = torch.bincount(token, minlength=d_vocab)
    words = (counts >= seen).nonzero().flatten()
    hits = torch.zeros(d_vocab, picked.shape[1], dtype=torch.double, device=token.device)
    hits.index_add_(0, token, picked.double())
    rate = picked.double().mean(0).clamp_min(1e-12)
    return words, hits[words] / counts[words, None] / rate


def information(token: Int[Tensor, " n"], sets: Int[Tensor, " n"]) -> tuple[float, float]:
    """(I(word; set), H(set)) in nats, plug-in: too large in a small sample, so read it beside the
    same with the sets shuffled."""
    _, word = token.unique(return_inverse=True)
    _, which = sets.unique(return_inverse=True)
    columns = int(which.max()) + 1

    def entropy(x: Tensor) -> float:
        p = torch.bincount(x).double() / len(x)
        return -torch.special.xlogy(p, p).sum().item()

    joint = entropy(word * columns + which)
    return entropy(word) + entropy(which) - joint, entropy(which)


def experts_in_words(routing: Routing, d_vocab: int, shown: int = 8) -> dict[str, Any]:
    """Each expert's words by lift, beside the sets of other windows, and I(word; set).

    By chance: the sets in their order, moved on by half the text, so that words and sets still
    come in clusters as in documents. Only words seen at least `SEEN` times count.
    """
    logits, k = routing.logits, routing.k
    picked, sets = chosen(logits, k), set_ids(logits, k)
    deal = torch.arange(len(sets), device=sets.device).roll(len(sets) // 2)
    words, lift = lifts(routing.token, picked, d_vocab)
    _, chance = lifts(routing.token, picked[deal], d_vocab)
    often = torch.isin(routing.token, words)
    mutual, entropy = information(routing.token[often], sets[often])
    shuffled, _ = information(routing.token[often], sets[deal][often])
    rows, counts = [], torch.bincount(routing.token, minlength=d_vocab)
    for e in range(logits.shape[-1]):  # words of equal lift: the more frequent one first
        order = (lift[:, e] + 1e-9 * counts[words]).topk(min(shown, len(words))).indices
        rows.append({
            "expert": e, "words": words_of(words[order]), "lift": lift[order, e],
            "by chance": chance[:, e].topk(min(shown, len(words))).values,
        })  # fmt: skip
    return {
        "words asked": len(words),
        "experts": rows,
        "information": mutual,
        "information, shuffled": shuffled,
        "entropy of the sets": entropy,
        "explained": (mutual - shuffled) / entropy,
    }


# ---- who decides --------------------------------------------------------------------------------


def _shares(parts: Tensor, doc: Tensor, seed: int, draws: int = 400) -> dict[str, Any]:
    """Cov(part, sum) / Var(sum) for parts [part, n, column], columns added up; they sum to 1.

    Intervals: documents drawn with replacement, from their sums.
    """
    _, index = doc.unique(return_inverse=True)
    n_docs = int(index.max()) + 1
    x = parts.double()
    total = x.sum(0)

    def by_doc(v: Tensor) -> Tensor:  # [..., n, column] -> [..., doc, column]
        out = v.new_zeros(*v.shape[:-2], n_docs, v.shape[-1])
        return out.index_add_(-2, index, v)

    size = torch.bincount(index).double()
    sums = by_doc(x), by_doc(x * total), by_doc(total[None])[0], by_doc(total.square()[None])[0]

    def share(times: Tensor) -> Tensor:
        n = (times * size).sum()
        px, pxy, pt, ptt = (torch.einsum("d,...dc->...c", times, s) / n for s in sums)
        return (pxy - px * pt).sum(-1) / (ptt - pt.square()).sum()

    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(n_docs, (draws, n_docs), generator=generator)
    ones = torch.ones(n_docs, dtype=torch.double)
    many = torch.stack([share(torch.bincount(d, minlength=n_docs).double()) for d in drawn])
    low, high = many.quantile(torch.tensor([0.025, 0.975]).double(), dim=0)
    return {"share": share(ones), "low": low, "high": high}


def border_parts(routing: Routing) -> Float[Tensor, "part n one"]:
    """Each part of the margin l_a - l_b: a the weakest selected expert, b the strongest other."""
    order = routing.logits.topk(routing.k + 1, dim=-1).indices
    a, b = order[:, routing.k - 1], order[:, routing.k]
    at = torch.arange(len(a), device=a.device)
    return (routing.parts[:, at, a] - routing.parts[:, at, b])[..., None]


def who_decides(routing: Routing, seed: int) -> dict[str, Any]:
    """Shares of the router's variance and of the margin's, and what each part's absence changes."""
    parts, names = routing.parts, routing.names
    centred = parts - parts.mean(-1, keepdim=True)
    rest, sets = border_parts(routing), set_ids(routing.logits, routing.k)
    gap = margin(routing.logits, routing.k)
    changed = {}
    for i, name in enumerate((*names, "all heads")):
        part = parts[1:].sum(0) if name == "all heads" else parts[i]
        less = {"zero": part, "mean": part - part.mean(0)}
        changed[name] = {
            kind: list(clustered_mean(
                (set_ids(routing.logits - gone, routing.k) != sets).double(), routing.doc)[:2])
            for kind, gone in less.items()
        }  # fmt: skip
    border = _shares(rest, routing.doc, seed)
    return {
        "names": list(names),
        "logits": _shares(centred, routing.doc, seed),
        "margin": border,
        "mean margin": rest[..., 0].mean(1),
        "margins": torch.quantile(gap.double(), torch.tensor([0.1, 0.5, 0.9]).double()),
        "set changes": changed,
    }


def foretold(routing: Routing, d_vocab: int, seed: int) -> dict[str, list[float]]:
    """Share of positions of unseen documents whose selected set is named right, way by way.

    Learned from the other half of the documents: the most common set of all, of each word, of each
    word with the words shuffled. From the weights, with nothing learned but the heads' means: the
    set that the token's own logits select, alone and with one head's true part.
    """
    generator = torch.Generator().manual_seed(seed)
    documents = routing.doc.unique()
    order = documents[torch.randperm(len(documents), generator=generator).to(documents.device)]
    learn = torch.isin(routing.doc, order[: len(order) // 2])
    names, sets = set_ids(routing.logits, routing.k).unique(return_inverse=True)
    common = torch.bincount(sets[learn]).argmax()

    def by_word(token: Tensor) -> Tensor:
        table = torch.zeros(d_vocab, len(names), dtype=torch.double, device=sets.device)
        table.index_put_((token, sets[learn]), torch.ones(len(token)).to(table), accumulate=True)
        best = table.argmax(-1)
        best[table.sum(-1) == 0] = common
        return best[routing.token]

    words = routing.token[learn]
    deal = torch.randperm(len(words), generator=generator).to(words.device)
    right = {
        "one set for all": sets == common,
        "the word's most common set": by_word(words) == sets,
        "the same, words shuffled": by_word(words[deal]) == sets,
    }
    true = set_ids(routing.logits, routing.k)
    right["the word's own logits"] = set_ids(routing.heads_at_mean(), routing.k) == true
    for h, name in enumerate(routing.names[1:]):
        right[f"… and {name}"] = set_ids(routing.heads_at_mean((h,)), routing.k) == true
    test = ~learn
    return {
        name: list(clustered_mean(ok[test].double(), routing.doc[test])[:2])
        for name, ok in right.items()
    }
