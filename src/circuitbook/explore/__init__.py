"""One prompt, looked at by hand: an attention view for notebooks, with the picture beside it.

    from circuitbook.explore import explore
    explore("I always loved visiting Aunt Sally. Whenever I was feeling sad, Aunt")

All numbers are computed here, by torch. The view only shows them: it opens no network connection
and needs no extension, in JupyterLab, VS Code or a hosted notebook. Where scripts do not run, the
picture is shown instead. Course notebooks are saved without HTML, so lessons do not call this.
"""

from __future__ import annotations

import base64
import functools
from typing import Any

from circuitbook import zoo
from circuitbook.cut import Head
from circuitbook.explore import page, picture, prompts, reading
from circuitbook.explore.reading import Reading
from circuitbook.model import Transformer
from circuitbook.plots import Figure

__all__ = ["View", "explore"]


class View:
    """What `explore` returns; a notebook shows it when it is the last thing in a cell.

    reading: the numbers. figure: the static picture with its alt text. html: the whole view.
    """

    def __init__(self, read: Reading, head: Head) -> None:
        self.reading, self.head = read, head

    @functools.cached_property
    def figure(self) -> Figure:
        return picture.draw(self.reading, self.head)

    @functools.cached_property
    def html(self) -> str:
        return page.build(self.reading, self.head, self.figure)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict, dict]:
        data = {
            "text/html": self.html,
            "image/png": base64.b64encode(self.figure.png).decode("ascii"),
            "text/plain": repr(self),
        }
        return data, {"image/png": {"alt": self.figure.alt}}

    def __repr__(self) -> str:
        return f"Attention view: {self.figure.alt}"


def explore(prompt: Any, model: Any = "attn-only-2l", layer: Any = None, head: Any = None) -> View:
    """Attention, next-token probabilities and every part's share of a logit, for one prompt.

    prompt: one text; or its tokens, as strings or as ids. A prompt and token strings are opened
    by the begin-of-sequence token; ids are taken as they are. model: a role of today's model set,
    or a model of yours. layer, head: the head shown first; by default the one that adds most to the
    likeliest next token.

    Raises ValueError or TypeError: an empty or too long prompt, ids outside the vocabulary, no such
    head. KeyError: an unknown role. Each says what to do.
    """
    # Types are checked by hand rather than by annotation: these are errors that a reader meets.
    name = model if isinstance(model, str) else "your model"
    if isinstance(model, str):
        model = zoo.load(model)
    elif not isinstance(model, Transformer):
        raise TypeError(
            f"model must be a role such as 'attn-only-2l' or a circuitbook Transformer, "
            f"not {type(model).__name__}"
        )
    tokens = prompts.read(prompt, model, name)
    wanted = reading.choice(model, layer, head)
    read = reading.read(model, tokens, name)
    return View(read, reading.best(read, wanted))
