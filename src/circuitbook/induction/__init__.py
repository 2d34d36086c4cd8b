"""Chapter 06: the circuit and its cuts, how it grew, models written by hand, the sentences."""


def ratio(part: float, whole: float) -> float:
    """part / whole, and 0 where the whole is exactly 0: a pair that does nothing has no shares."""
    return part / whole if whole else 0.0
