"""Copying heads as the simplest learning from context: words that stood earlier may come again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from circuitbook import heads, stream
from circuitbook.model import Transformer
from circuitbook.skip_trigrams import triple_runs, triple_text
from circuitbook.skip_trigrams.triple_text import Text, mean_interval


def _mean(values: Tensor, doc: np.ndarray) -> triple_text.Interval:
    return mean_interval(values.double().cpu().numpy(), doc)


def words_placed(
    model: Transformer,
    words: Int[Tensor, " words"],
    text: Text,
    gaps: Sequence[int],
    length: int,
    n: int,
) -> dict[str, Any]:
    """A random frequent word put into real contexts: what happens to its own logit, and to another.

    by_head: each head's part of the word's own rise (they add up to it exactly, with no direct
    path: the last token stays; with LayerNorm the direct path moves too, with the final scale).
    by_gap: own and other.
    """
    rng = np.random.default_rng(0)
    word, other = (words[torch.from_numpy(rng.integers(len(words), size=n))] for _ in range(2))
    common = np.bincount(text.tokens[text.tokens >= 0], minlength=text.d_vocab)
    sure = min(100, common.max())  # in a long text, tokens that surely have contexts
    last = rng.choice(np.flatnonzero(common >= sure), size=n)
    last = [int(t) for t in last if len(triple_runs.endings(text, int(t), length))]
    n = len(last)
    word, other = word[:n].cpu(), other[:n].cpu()
    ends = triple_runs.contexts(text, np.asarray(last), length, rng)
    place, asked = triple_runs.places_before(n, gaps, length), torch.stack([word, other], 1)
    before = triple_runs.read(model, ends.tokens, place, asked)
    after = triple_runs.read(model, triple_runs.put(ends.tokens, place, word), place, asked)
    rise, gap = after.logit - before.logit, (length - 1 - place).numpy()
    return {
        "own": list(_mean(rise[:, 0], ends.doc)),
        "other": list(_mean(rise[:, 1], ends.doc)),
        "own_minus_other": list(_mean(rise[:, 0] - rise[:, 1], ends.doc)),
        "by_head": (after.part - before.part)[..., 0].mean(0),
        "by_gap": [[rise[:, i][gap == g].mean() for g in gaps] for i in (0, 1)],
    }


def copiers(model: Transformer, words: Int[Tensor, " words"]) -> list[int]:
    """Heads of the first layer that pass chapter 02's two tests of copying, best copier first.

    When none does, the head that puts most words in its own row's top-10.
    """
    at = [
        heads.two_copying_tests(model.W_E, model.W_V[0, h], model.W_O[0, h], model.W_U, words)
        for h in range(model.cfg.n_heads)
    ]
    order = sorted(range(len(at)), key=lambda h: -at[h][2])
    both = [h for h in order if at[h][0] >= heads.PASS_SCORE and at[h][2] >= heads.PASS_TOP10]
    return both or order[:1]


@torch.no_grad()
def loss_without(
    model: Transformer,
    tokens: Int[Tensor, "window pos"],
    doc: np.ndarray,
    groups: dict[str, list[int]],
) -> dict[str, dict[str, list[float]]]:
    """Rise of the loss when a group of heads writes its mean, on next tokens seen before and new.

    Mean over the windows, position by position; only layer, so nothing moves but the final norm,
    which is computed again. "seen": the next token stands earlier in the window. Intervals by
    document.
    """
    parts = stream.components(model, tokens)
    right = tokens[:, 1:]
    seen = (right[:, :, None] == tokens[:, None, :]).tril().any(-1)  # places 0 ... t

    def losses(last: Tensor) -> Tensor:
        rows = []
        for x, y in zip(last[:, :-1], right, strict=True):  # one window at a time
            logits = model.unembed(model.ln_final(x[None]))[0]
            rows.append(logits.logsumexp(-1) - logits.gather(-1, y[:, None])[:, 0])
        return torch.stack(rows)

    whole, out = losses(parts.last), {}
    _, index = np.unique(doc, return_inverse=True)
    for name, group in groups.items():
        writes = [parts.writes[stream.head_name((0, h))] for h in group]
        rise = losses(parts.last - sum(w - w.mean(0) for w in writes)) - whole
        out[name] = {}
        for which, mask in {"seen": seen, "new": ~seen}.items():
            sums = [(x * mask).double().sum(1).cpu().numpy() for x in (rise, mask)]
            sums = [np.bincount(index, x) for x in sums]
            out[name][which] = list(triple_text.bootstrap(sums[0][None], sums[1]))
    return out
