"""Chapter 09: the attribution graph of a prompt, with transcoders in place of the MLPs."""
