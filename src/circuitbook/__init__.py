"""Circuitbook: transformer circuits, reproduced by hand.

The course is in scripts/ (to edit) and notebooks/ (to read). This package holds what the lessons
call: the model, the trained weights, the instruments, the figures and the checks.
"""

__version__ = "0.1.0"
