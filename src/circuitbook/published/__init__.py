"""The series' own models, tokenizer and text: what is pinned, fetched, and read."""
