"""What a latent reads and writes, in words: tokens by its weights, and where it fires in text.

    writes   the tokens whose logits its decoder row raises most: W_dec[i] W_U, centred
    reads    the tokens that excite it most when they stand there themselves: W_E W_enc[:, i]
    fires    the share of held-out positions at which it is on, and where it is on most

Reading and writing are weights alone and see the direct path only; a latent may well be excited
through heads, by tokens elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook import tokenizer
from circuitbook.attribution.graph import Transcoder
from circuitbook.cut import run
from circuitbook.model import Transformer


@torch.no_grad()
def activations(
    model: Transformer,
    transcoders: Sequence[Transcoder],
    windows: Int[Tensor, "window pos"],
    wanted: Sequence[Sequence[int]],
) -> list[Float[Tensor, "window pos wanted"]]:
    """f of the wanted latents of each layer, on windows of text (BOS positions set to 0)."""
    names = [f"blocks.{l}.hook_resid_mid" for l in range(model.cfg.n_layers)]
    out: list[list[Tensor]] = [[] for _ in names]
    for some in windows.split(16):
        cache = run(model, some, names=names)[1]
        for l, name in enumerate(names):
            f = transcoders[l].encode(model.blocks[l].ln2(cache[name]))[..., list(wanted[l])]
            f[:, 0] = 0
            out[l].append(f)
    return [torch.cat(f) for f in out]


def top_tokens(scores: Float[Tensor, " d_vocab"], n: int = 3) -> list[str]:
    """The n tokens of largest score, readable."""
    tok = tokenizer.load()
    return [tok.text(i) for i in scores.topk(n).indices.tolist()]


def reads_and_writes(
    model: Transformer, transcoder: Transcoder, index: int, n: int = 3
) -> dict[str, list[str]]:
    """{"reads": …, "writes": …}: the top tokens of W_E W_enc[:, i] and of W_dec[i] W_U, centred."""
    reads = model.W_E @ transcoder.W_enc[:, index]
    writes = transcoder.W_dec[index] @ model.W_U
    return {
        "reads": top_tokens(reads - reads.mean(), n),
        "writes": top_tokens(writes - writes.mean(), n),
    }


def contexts(
    f: Float[Tensor, "window pos"], windows: Int[Tensor, "window pos"], n: int = 2, before: int = 4
) -> list[str]:
    """The n strongest places in different windows: a few tokens, up to the one where it fires."""
    tok = tokenizer.load()
    best, at = f.max(1)
    out = []
    for w in best.argsort(descending=True, stable=True)[:n].tolist():
        if best[w] > 0:
            p = int(at[w])
            out.append(tok.decode(windows[w, max(1, p - before) : p + 1].tolist()))
    return out


def describe(
    model: Transformer,
    transcoders: Sequence[Transcoder],
    windows: Int[Tensor, "window pos"],
    wanted: Sequence[Sequence[int]],
) -> dict[str, dict[str, Any]]:
    """ "l.i" -> reads, writes, fires (share of positions), where (contexts), for wanted latents."""
    found = activations(model, transcoders, windows, wanted)
    return {
        f"{l}.{i}": reads_and_writes(model, transcoders[l], i)
        | {
            "fires": round((found[l][:, 1:, at] > 0).double().mean().item(), 6),
            "where": contexts(found[l][..., at], windows),
        }
        for l in range(len(transcoders))
        for at, i in enumerate(wanted[l])
    }
