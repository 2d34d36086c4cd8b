"""In-context learning: how much better the guesses are late in a text than early in the same text.

loss_k is the loss of the k-th token after BOS. The published score is loss_500 - loss_50; single
tokens are noisy, so the broad score takes the mean over tokens 491 to 510 minus that over 41 to 60.
Windows lie inside one document. Errors are clustered by document, differences paired by window.
Source: Olsson et al. 2022, "In-context Learning and Induction Heads".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook import fast, tokenizer, vocabulary
from circuitbook.model import Transformer
from circuitbook.probe import clustered_mean, paired_difference
from circuitbook.results import bound

EARLY, LATE = (41, 60), (491, 510)
SINGLE = (50, 500)
EDGES = (
    1, 2, 3, 5, 8, 13, 21, 31, 41, 61, 81, 101, 131, 161, 201, 241, 291, 341, 391, 441, 491, 511,
)  # fmt: skip


def indices(length: int = 512, every: int = 6) -> Int[Tensor, " chosen"]:
    """The k at which losses are computed: the first 12, every sixth, and both broad ranges."""
    top = length - 1
    ranges = [range(a, b + 1) for a, b in (EARLY, LATE)]
    chosen = {
        *range(1, 13),
        *range(every, top + 1, every),
        *SINGLE,
        *(k for r in ranges for k in r),
    }
    return torch.tensor(sorted(k for k in chosen if k <= top))


def scored() -> Int[Tensor, " chosen"]:
    """The k that both scores need, and no others."""
    ranges = [torch.arange(a, b + 1) for a, b in (EARLY, LATE)]
    return torch.cat([torch.tensor(SINGLE), *ranges]).unique()


@torch.no_grad()
def readings(
    model: Transformer,
    tokens: Int[Tensor, "n pos"],
    k: Int[Tensor, " chosen"],
    part: int = 5,
    entropy: bool = False,
) -> Float[Tensor, "kind n chosen"]:
    """-log p(token k_i), and with `entropy` also that of the whole guess, -sum p log p; in nats.

    k counts after BOS; no logits are made elsewhere. Models without norm go through the trainer's
    pass in their own precision, which skips what the mask hides: the same function to rounding, in
    half the time.
    """
    course = model.cfg.norm == "none" and model.cfg.positions == "shortformer"
    params, out = dict(model.named_parameters()), []
    for piece in tokens.split(part):
        piece = piece.to(model.W_E.device)
        if course:
            x = fast.hidden_stream(model.cfg, params, piece, model.W_pos, model.W_E.dtype)
        else:
            x = model.stream(piece)
        logits = model.unembed(x[:, k - 1])
        total = logits.logsumexp(-1)
        rows = [total - logits.gather(-1, piece[:, k, None])[..., 0]]
        if entropy:
            p = (logits - total[..., None]).exp()
            rows.append(total - (p * logits).sum(-1))
        out.append(torch.stack(rows).cpu())
    return torch.cat(out, 1)


def losses(
    model: Transformer, tokens: Int[Tensor, "n pos"], k: Int[Tensor, " chosen"], part: int = 5
) -> Float[Tensor, "n chosen"]:
    """loss[:, i] = -log p(token k_i) in nats, k counted after BOS."""
    return readings(model, tokens, k, part)[0]


class Scores(NamedTuple):
    """Per window: losses at tokens 50 and 500, mean losses of the two broad ranges."""

    at_50: Float[Tensor, " n"]
    at_500: Float[Tensor, " n"]
    early: Float[Tensor, " n"]
    late: Float[Tensor, " n"]

    @property
    def single(self) -> Tensor:
        """loss_500 - loss_50."""
        return self.at_500 - self.at_50

    @property
    def broad(self) -> Tensor:
        """Mean of loss_491 ... loss_510 minus mean of loss_41 ... loss_60."""
        return self.late - self.early


def scores(loss: Float[Tensor, "n chosen"], k: Int[Tensor, " chosen"]) -> Scores:
    """Both scores of each window, from the losses at the chosen indices k."""
    x = loss.double()

    def mean(low: int, high: int) -> Tensor:
        wanted = (k >= low) & (k <= high)
        if int(wanted.sum()) != high - low + 1:
            raise ValueError(f"losses are needed at every k from {low} to {high}")
        return x[:, wanted].mean(-1)

    at = [mean(i, i) for i in SINGLE]
    return Scores(*at, mean(*EARLY), mean(*LATE))


def by_index(
    loss: Float[Tensor, "n chosen"], k: Int[Tensor, " chosen"], doc: Int[Tensor, " n"]
) -> dict[str, list[float]]:
    """Mean loss and its error in bins of the token's index, with the mean index of each bin."""
    out: dict[str, list[float]] = {"index": [], "loss": [], "se": []}
    for low, high in zip(EDGES[:-1], EDGES[1:], strict=True):
        inside = (k >= low) & (k < high)
        if inside.any():
            level = clustered_mean(loss[:, inside].double().mean(-1), doc)
            out["index"].append(k[inside].double().mean().item())
            out["loss"].append(level.mean)
            out["se"].append(level.se)
    return out


def shuffled_windows(
    tokens: Int[Tensor, "n pos"], generator: torch.Generator, across: bool = False
) -> Int[Tensor, "n pos"]:
    """The same tokens in random order, BOS kept first: inside each window, or across all windows.

    Inside a window the words of the document stay together, only their order goes. Across windows
    nothing that an earlier word could foretell is left.
    """
    out, body = tokens.clone(), tokens[:, 1:]
    if across:
        flat = body.flatten()
        out[:, 1:] = flat[torch.randperm(len(flat), generator=generator)].view(body.shape)
    else:
        order = torch.rand(body.shape, generator=generator).argsort(-1)
        out[:, 1:] = body.gather(1, order)
    return out


def exchanged(tokens: Int[Tensor, "n pos"]) -> Int[Tensor, "n pos"]:
    """The same windows with tokens 40 to 60 and 490 to 510 in each other's place.

    One more than is scored on either side: the token before the first comes along.
    """
    out, (early, late) = tokens.clone(), (slice(a - 1, b + 1) for a, b in (EARLY, LATE))
    out[:, early], out[:, late] = tokens[:, late], tokens[:, early]
    return out


def controls(
    models: Mapping[str, Transformer],
    tokens: Int[Tensor, "n pos"],
    doc: Int[Tensor, " n"],
    generator: torch.Generator,
) -> dict[str, Any]:
    """The broad score of each model on text whose order is destroyed, in two ways.

    Each shuffled text is read twice, the second time with its early and late tokens exchanged: an
    order as likely as the first. The mean of both scores has less noise, and what a token costs for
    itself cancels: a model that sees one token only is at 0. Errors: by document for windows
    shuffled inside themselves, by window for words drawn from all. "depth": two layers minus one,
    paired. "entropy": late minus early entropy of the model's own guesses, in nats, likewise. Says
    nothing of a model without layers where there is none.
    """
    k = torch.cat([torch.arange(a, b + 1) for a, b in (EARLY, LATE)])
    half = EARLY[1] - EARLY[0] + 1
    out: dict[str, Any] = {"windows": len(tokens), "entropy": {}}
    for name, across in (("inside windows", False), ("across windows", True)):
        text = shuffled_windows(tokens, generator, across)
        clusters = torch.arange(len(tokens)) if across else doc
        found, bold = {}, {}
        for role, model in models.items():
            both = [readings(model, t, k, entropy=True).double() for t in (text, exchanged(text))]
            read = torch.stack(both).mean(0)
            found[role], bold[role] = read[..., half:].mean(-1) - read[..., :half].mean(-1)
        for kept, scored in ((out, found), (out["entropy"], bold)):
            kept[name] = {
                role: list(clustered_mean(x, clusters)[:2])
                for role, x in scored.items()
                if role != "attn-only-0l"
            }
        if "attn-only-0l" in found:
            luck = found["attn-only-0l"].abs().max().item()
            out[f"{name}, zero layers"] = bound(luck, 1e-4)
        if "attn-only-2l" in found:
            depth = paired_difference(found["attn-only-2l"], found["attn-only-1l"], clusters)
            out[f"{name}, depth"] = list(depth[:2])
    return out


def level(s: Scores, doc: Int[Tensor, " n"]) -> dict[str, Any]:
    """Mean losses of tokens 50 and 500, and both scores with their errors, clustered."""
    return {
        "loss_50": s.at_50.mean(), "loss_500": s.at_500.mean(),
        "single": list(clustered_mean(s.single, doc)[:2]),
        "broad": list(clustered_mean(s.broad, doc)[:2]),
    }  # fmt: skip


def compare(s: Mapping[str, Scores], doc: Int[Tensor, " n"]) -> dict[str, Any]:
    """Levels of every model, and paired differences between models, for both scores."""
    pairs = {
        "second layer, no MLP": ("attn-only-2l", "attn-only-1l"),
        "second layer, with MLPs": ("gelu-2l", "gelu-1l"),
        "MLP, one layer": ("gelu-1l", "attn-only-1l"),
        "MLPs, two layers": ("gelu-2l", "attn-only-2l"),
        "first layer": ("attn-only-1l", "attn-only-0l"),
    }
    out: dict[str, Any] = {"differences": {}}
    out["levels"] = {role: level(x, doc) for role, x in s.items()}
    for name, (a, b) in pairs.items():
        if not {a, b} <= set(s):
            continue
        out["differences"][name] = {
            kind: list(paired_difference(getattr(s[a], kind), getattr(s[b], kind), doc)[:2])
            for kind in ("single", "broad")
        }
    return out


# ---------------------------------------------------------------- how many windows it takes


def needed(difference: Float[Tensor, " n"], doc: Int[Tensor, " n"], z: float = 2.0) -> float:
    """n such that the mean is z standard errors from 0: N (z se / mean)^2, se clustered.

    A projection: more windows of the same mix of documents, whose error falls as 1 / sqrt(n).
    """
    found = clustered_mean(difference, doc)
    return len(difference) * (z * found.se / found.mean) ** 2


def needed_range(
    difference: Float[Tensor, " n"],
    doc: Int[Tensor, " n"],
    generator: torch.Generator,
    draws: int = 400,
) -> tuple[float, float]:
    """(low, high): 95 % of `needed` when the documents are drawn again with replacement."""
    which = doc.unique(return_inverse=True)[1]
    rows = [(which == g).nonzero().flatten() for g in range(int(which.max()) + 1)]
    found = []
    for _ in range(draws):
        pick = torch.randint(len(rows), (len(rows),), generator=generator).tolist()
        x = torch.cat([difference[rows[g]] for g in pick])
        again = torch.cat([torch.full_like(rows[g], i) for i, g in enumerate(pick)])
        found.append(needed(x, again) / len(x) * len(difference))
    low, high = torch.quantile(torch.tensor(found), torch.tensor([0.025, 0.975])).tolist()
    return low, high


def detected(
    difference: Float[Tensor, " n"],
    doc: Int[Tensor, " n"],
    sizes: tuple[int, ...],
    generator: torch.Generator,
    draws: int = 200,
) -> list[float]:
    """For each n: share of random sets of n windows whose mean lies below -2 of its own errors.

    Sets are drawn without replacement: ask for half of the windows at most, or all sets are nearly
    the same set. A set of as many windows as `needed` says sees it about every second time.
    """
    out = []
    for n in sizes:
        hits = 0
        for _ in range(draws):
            pick = torch.randperm(len(difference), generator=generator)[:n]
            found = clustered_mean(difference[pick], doc[pick])
            hits += found.mean < -2 * found.se
        out.append(hits / draws)
    return out


def by_hand() -> dict[str, Any]:
    """Three texts: losses at tokens 50 and 500, and the score, as in Part 7."""
    at_50, at_500 = [5.0, 4.0, 6.0], [4.5, 3.2, 5.8]
    loss = torch.zeros(3, 500, dtype=torch.float64)
    loss[:, [49, 499]] = torch.tensor([at_50, at_500], dtype=torch.float64).T
    score = (loss[:, 499] - loss[:, 49]).mean().item()
    return {"at_50": at_50, "at_500": at_500, "score": score}


# ---------------------------------------------------------------- units that compare


def byte_lengths() -> Int[Tensor, " d_vocab"]:
    """How many bytes of text each token of today's tokenizer stands for; BOS has none."""
    tok = tokenizer.load()
    sizes = [len(tok._backend.id_to_token(i)) for i in range(tok.vocab_size)]
    sizes[tok.bos] = 0
    return torch.tensor(sizes)  # the byte-level alphabet has one character for each byte


def kinds_of(sources: list[str], tokens: Int[Tensor, "n pos"]) -> list[str]:
    """The kind of document of each window: its source, or if all have one, how many digits it has.

    One digit is a token of one byte, so the windows of one source, put in thirds by their share of
    digits, still differ in bytes a token.
    """
    if len(set(sources)) > 1:
        return sources
    texts = vocabulary.texts()
    digit = torch.tensor([t.strip().isdigit() for t in texts])
    order = digit[tokens].double().mean(1).argsort(stable=True).argsort(stable=True)
    thirds = (3 * order / len(tokens)).long().tolist()
    return [("few digits", "some digits", "many digits")[i] for i in thirds]


def unit_losses(
    loss: Mapping[str, Tensor], tokens: Int[Tensor, "n pos"], k: Tensor, kinds: list[str]
) -> dict[str, dict[str, Any]]:
    """kind of document -> model -> (nats a token, bits a byte), over the tokens at the indices k.

    bits a byte = sum of losses / ln 2 / number of bytes of those tokens.
    """
    sizes = byte_lengths()[tokens[:, k]].double()
    out: dict[str, dict[str, Any]] = {}
    for kind in ("all", *sorted(set(kinds))):
        rows = torch.tensor([kind in ("all", x) for x in kinds])
        per_token = sizes[rows].mean().item()
        out[kind] = {
            "windows": int(rows.sum()), "bytes a token": per_token,
            "nats a token": {role: x[rows].double().mean().item() for role, x in loss.items()},
            "bits a byte": {
                role: (x[rows].double().mean() / math.log(2) / per_token).item()
                for role, x in loss.items()
            },
        }  # fmt: skip
    return out


def two_alphabets(
    training: np.ndarray, windows: Int[Tensor, "n pos"], d_vocab: int
) -> dict[str, dict[str, float]]:
    """One text in two alphabets, guessed from symbol frequencies alone: bytes, and the tokenizer's.

    Frequencies (plus one) come from training text, losses from held-out windows. Per symbol the
    byte model looks better; per byte it is not.
    """
    tok, out = tokenizer.load(), {}
    body = windows[:, 1:].numpy()
    texts = [tok.decode(row.tolist()).encode() for row in body]
    bytes_there = np.frombuffer(b"".join(texts), dtype=np.uint8)
    learned = np.frombuffer(tok.decode(training.tolist()).encode(), dtype=np.uint8)
    size = byte_lengths().numpy()[body].sum()
    for name, train, held, n in (
        ("bytes", learned, bytes_there, 256), ("tokens", training, body.ravel(), d_vocab)
    ):  # fmt: skip
        counts = np.bincount(train, minlength=n) + 1.0
        log_p = np.log(counts / counts.sum())
        nats = -log_p[held]
        out[name] = {
            "nats a symbol": float(nats.mean()),
            "bits a byte": float(nats.sum() / math.log(2) / (len(held) if n == 256 else size)),
        }
    return out


def series(compared: Mapping[str, Any]) -> dict[str, Any]:
    """part7.icl.<role> -> our counterpart on the course's models; errors are standard errors."""
    out: dict[str, Any] = {"part7.icl_by_hand": by_hand()}
    for role, x in compared["levels"].items():
        if role == "attn-only-0l":
            continue
        out[f"part7.icl.{role}"] = series_row(x)
    return out


def series_row(x: Mapping[str, Any]) -> dict[str, Any]:
    """One model's `level` under the names of the series."""
    return {
        "loss_50": x["loss_50"], "loss_500": x["loss_500"], "score": x["single"][0],
        "plus_minus": x["single"][1], "broad": x["broad"][0],
    }  # fmt: skip
