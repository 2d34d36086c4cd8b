"""Chapter 09: why the model says "Sally", seen from the values and seen from the scores."""
