"""Chapter 06: the circuit and its cuts, how it grew, models written by hand, the sentences."""
