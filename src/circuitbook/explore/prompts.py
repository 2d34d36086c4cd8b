"""A prompt is a list of token ids the model can read, each with a string to show for it."""

from __future__ import annotations

from typing import Any, NamedTuple

from circuitbook import plots, tokenizer
from circuitbook.model import Transformer
from circuitbook.tokenizer import BOS, Tokenizer

PADDING = 128  # rows that a published table may have beyond the tokenizer's last id
MOST = 320_000  # attention values in one view: two characters each, so that it stays below 1 MB
SHOWN_BOS = "BOS"


class Tokens(NamedTuple):
    """ids: the prompt. known: their tokenizer, or None. notes: what a reader must know of them."""

    ids: list[int]
    known: Tokenizer | None
    notes: list[str]


def read(text: Any, model: Transformer, name: str) -> Tokens:
    """The ids of a prompt, of a list of token strings, or of a list or tensor of ids.

    Raises ValueError or TypeError with one line that says what to do.
    """
    if not model.cfg.n_layers:
        raise ValueError(
            f"{name} has no attention heads, so there is nothing to show: take another"
        )
    given = text.tolist() if hasattr(text, "tolist") else text
    if isinstance(given, list | tuple) and given and isinstance(given[0], list | tuple):
        if len(given) != 1:
            raise ValueError(f"one prompt at a time: here are {len(given)}. Call explore for each")
        given = given[0]
    if not isinstance(given, str | list | tuple):
        raise TypeError(f"the prompt must be text or a list of tokens, not {type(text).__name__}")
    if not len(given):
        raise ValueError("the prompt is empty: give some text, or a list of tokens")
    if isinstance(given, str):
        known = _needed(model, name)
        ids = known.encode(given)
    elif all(isinstance(piece, str) for piece in given):
        known = _needed(model, name)
        ids = [known.token(piece) for piece in given]
        ids = ids if ids[0] == known.bos else [known.bos, *ids]
    elif all(isinstance(piece, int) and not isinstance(piece, bool) for piece in given):
        known, ids = _fitting(model), list(given)
    else:
        raise TypeError("a list of tokens holds strings or whole numbers (ids), and one kind only")
    _check(ids, model, name)
    return Tokens(ids, known, _notes(ids, known))


def _fitting(model: Transformer) -> Tokenizer | None:
    """Today's tokenizer, if the model can have been trained with it."""
    try:
        known = tokenizer.load()
    except (RuntimeError, ValueError, OSError):  # not fetched, or damaged: ids can still be shown
        return None
    return known if 0 <= model.cfg.d_vocab - known.vocab_size <= PADDING else None


def _needed(model: Transformer, name: str) -> Tokenizer:
    tokenizer.load()  # a missing file says itself what to do
    known = _fitting(model)
    if known is None:
        raise ValueError(
            f"{name} has {model.cfg.d_vocab:,} tokens, which is not the vocabulary of the course's "
            "tokenizer: give the prompt as a list of ids"
        )
    return known


def _check(ids: list[int], model: Transformer, name: str) -> None:
    """Refuse what the model cannot read or the view cannot hold."""
    cfg = model.cfg
    bad = next((i for i in ids if not 0 <= i < cfg.d_vocab), None)
    if bad is not None:
        raise ValueError(
            f"token id {bad} is outside the vocabulary of {name}: ids run from 0 to "
            f"{cfg.d_vocab - 1}"
        )
    if len(ids) > cfg.n_ctx:
        raise ValueError(
            f"the prompt has {len(ids)} tokens and {name} reads at most {cfg.n_ctx}: shorten it"
        )
    heads = cfg.n_layers * cfg.n_heads
    most = max(n for n in range(1, cfg.n_ctx + 1) if n == 1 or heads * n * (n + 1) // 2 <= MOST)
    if len(ids) > most:
        raise ValueError(
            f"the prompt has {len(ids)} tokens; with {heads} heads one view holds {most}: "
            "shorten it"
        )


def _notes(ids: list[int], known: Tokenizer | None) -> list[str]:
    if known is None:
        return ["The tokenizer of this model is not known here, so tokens are shown as ids."]
    if ids[0] != known.bos:
        return [f"This prompt does not begin with {BOS}, as every window of the training text did."]
    if known.bos in ids[1:]:
        return [f"This prompt holds {BOS} more than once; in training it stood at the start only."]
    return []


def shown(token: int, known: Tokenizer | None) -> str:
    """A token for reading: blanks and line ends visible, other invisible characters as numbers."""
    if known is None or token >= known.vocab_size:
        return f"id {token}"
    if token == known.bos:
        return SHOWN_BOS
    text = plots.token(known.text(token))
    return "".join(c if c.isprintable() else f"<U+{ord(c):04X}>" for c in text)
