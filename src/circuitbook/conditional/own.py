"""Which roles of chapter 10 are the course's own in either model set, and how sentences say so.

The published models are attention-only and GELU. ReLU, SwiGLU and the mixture of experts have no
published counterpart: with MODELS=published they are still those of the course, on its own text.
"""

from __future__ import annotations

import contextlib
from typing import Any

from circuitbook import paths

ROLES = ("relu-1l", "swiglu-1l", "moe-1l")
NORM_INCLUDED = ", norm included"  # in the name of an Euler line


def set_of(role: str) -> contextlib.AbstractContextManager:
    """The model set in which this role is measured: the course's for `ROLES`, else today's."""
    return paths.model_set("course") if role in ROLES else contextlib.nullcontext()


def size(given: int, ours: int) -> int:
    """Sample size for the course's roles: beside published ones `ours`, that of their evidence.

    In the course's own run, and in a rehearsal, it is the one that is given.
    """
    return given if paths.models() == "course" or paths.quick() else ours


def told(*roles: str) -> str:
    """A sentence for a claim that sets published models beside the course's; "" in the course."""
    if paths.models() == "course":
        return ""
    named = " and ".join(f"`{role}`" for role in roles)
    return f" {named} {'are models' if len(roles) > 1 else 'is a model'} of the course."


def with_norm(text: str) -> str:
    """What a sentence says more of published models, which have LayerNorm; "" in the course."""
    return "" if paths.models() == "course" else text


def only(values: dict[str, Any]) -> dict[str, Any]:
    """The values that this model set has."""
    return {name: value for name, value in values.items() if value is not None}


def marked(claims: list[dict], *ids: str) -> list[dict]:
    """The claims, those with one of these ids marked as being about the course's models alone."""
    missing = set(ids) - {c["id"] for c in claims}
    if missing:
        raise KeyError(f"no claim is called {', '.join(sorted(missing))}")
    if paths.models() == "course":
        return claims
    return [c | {"models": "course"} if c["id"] in ids else c for c in claims]
