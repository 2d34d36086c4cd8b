"""Chapter 10: nonlinear blocks as linear operators that the input selects, and what that buys."""
