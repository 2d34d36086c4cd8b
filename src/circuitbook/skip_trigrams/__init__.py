"""Chapter 04: the search over all triples, their check in the model and in the text, the bugs."""
