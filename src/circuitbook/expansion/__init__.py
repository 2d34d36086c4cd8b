"""Chapter 03: terms of the path expansion, what each is worth, what freezing hides."""
