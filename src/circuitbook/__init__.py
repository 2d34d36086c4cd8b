"""Circuitbook: transformer circuits, reproduced by hand.

The course is in scripts/ (to edit) and notebooks/ (to read). This package holds what the lessons
call: the model, the trained weights, the instruments, the figures and the checks.
"""

import sys
import warnings
from types import TracebackType

__version__ = "0.1.0"

# The first forward-mode derivative builds its rules with torch.jit.script, and torch says that this
# is deprecated. It is torch's own call: a reader can do nothing about it.
warnings.filterwarnings(
    "ignore", message=".*torch.jit.script. is deprecated", category=DeprecationWarning
)


_PLAIN = frozenset({"HubAway", "PublishedError", "TextError", "TokenError", "WeightsError"})


def _without_frames(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """A missing or damaged file says what to do; fifteen frames above it would hide that."""
    if kind.__name__ in _PLAIN and kind.__module__.startswith("circuitbook."):
        print(f"{kind.__name__}: {error}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


if sys.excepthook is sys.__excepthook__:  # a notebook and a debugger have hooks of their own
    sys.excepthook = _without_frames
