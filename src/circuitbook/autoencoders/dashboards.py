"""A latent's dashboard: where it fires, which words drive it, which words it writes.

Written words are those whose centred logit rises most when the latent is on at its strongest:
the latent's row of W_dec through W_out and W_U. Direct inputs are the words that turn it on most by
themselves: the MLP is fed with the word's embedding alone, with no head's write. There may be
none.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook import vocabulary
from circuitbook.autoencoders.contexts import PLACES, Minds, Peaks
from circuitbook.autoencoders.sae import Dictionary
from circuitbook.corpus import Windows
from circuitbook.model import Transformer

BEFORE, AFTER = 9, 3  # tokens shown around the one where a latent fires


@torch.no_grad()
def written(
    model: Transformer, dictionary: Dictionary, which: Int[Tensor, " some"]
) -> Float[Tensor, "some d_vocab"]:
    """Centred logits that one unit of each latent adds: W_dec W_out W_U minus the row's mean."""
    logits = dictionary.W_dec[which] @ model.blocks[0].mlp.W_out @ model.unembed.W_U
    return logits - logits.mean(1, keepdim=True)


@torch.no_grad()
def by_word(
    model: Transformer, dictionary: Dictionary, which: Int[Tensor, " some"]
) -> Float[Tensor, "some d_vocab"]:
    """Activation of each latent when the MLP reads one word's embedding and nothing else.

    After the choice of the k largest: a word that other latents claim does not turn this one on.
    """
    mlp = model.blocks[0].mlp
    neurons = mlp.act(model.embed.W_E @ mlp.W_in + mlp.b_in)  # [d_vocab, d_mlp]
    return dictionary.encode(neurons)[:, which].T


def context(texts: list[str], tokens: Int[Tensor, " pos"], at: int) -> list[str]:
    """[text before, the token, text after]."""
    words = [texts[t] for t in tokens.tolist()]
    first = max(1, at - BEFORE)
    return ["".join(words[first:at]), words[at], "".join(words[at + 1 : at + 1 + AFTER])]


def dashboard(
    model: Transformer,
    dictionary: Dictionary,
    which: list[int],
    found: Minds,
    top: Peaks,
    fired: Float[Tensor, " latent"],
    windows: Windows,
    *,
    contexts: int = 5,
    words: int = 8,
) -> list[dict[str, Any]]:
    """One entry for each latent, small enough to be saved."""
    texts, tokens = vocabulary.texts(), torch.as_tensor(windows.tokens)
    chosen = torch.tensor(which)
    lifts, drives = written(model, dictionary, chosen), by_word(model, dictionary, chosen)
    entries = []
    for row, latent in enumerate(which):
        highest = float(top.value[:, latent].max())
        up, by = lifts[row].topk(words), drives[row].topk(words)
        shown = [
            (int(found.window[i, latent]), int(found.at[i, latent]))
            for i in range(min(contexts, len(found.at)))
        ]
        entries.append(
            {
                "latent": latent,
                "fires": float(fired[latent]),
                "highest": highest,
                "share": float(found.share[latent]),
                "place": PLACES[int(found.place[latent])],
                "word": texts[int(found.token[latent])],
                "writes": [texts[t] for t in up.indices.tolist()],
                "lifts": [round(highest * v, 3) for v in up.values.tolist()],
                "inputs": [texts[t] for t, v in zip(by.indices.tolist(), by.values) if v > 0],
                "drives": [round(v, 3) for v in by.values.tolist() if v > 0],
                "contexts": [context(texts, tokens[w], at) for w, at in shown],
                "values": [round(float(top.value[w, latent]), 3) for w, _ in shown],
                "sources": [f"{windows.source[w]}: {windows.names[w]}" for w, _ in shown],
            }
        )
    return entries
