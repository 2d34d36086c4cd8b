"""Sparse dictionaries of directions: by hand, on toy models, and on real activations."""
