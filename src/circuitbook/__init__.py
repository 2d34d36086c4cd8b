"""Circuitbook: transformer circuits, reproduced by hand.

The course is in scripts/ (to edit) and notebooks/ (to read). This package holds what the lessons
call: the model, the trained weights, the instruments, the figures and the checks.
"""

import warnings

__version__ = "0.1.0"

# The first forward-mode derivative builds its rules with torch.jit.script, and torch says that this
# is deprecated. It is torch's own call: a reader can do nothing about it.
warnings.filterwarnings(
    "ignore", message=".*torch.jit.script. is deprecated", category=DeprecationWarning
)
