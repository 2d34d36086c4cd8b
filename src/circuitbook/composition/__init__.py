"""Chapter 05: scores as bilinear terms, every edge cut alone, pairs and coordinates."""
