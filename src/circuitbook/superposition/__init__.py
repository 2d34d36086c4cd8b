"""Chapter 08: toy models of superposition, trained many at once, and what can be read from them."""
