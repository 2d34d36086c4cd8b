"""What the result views show that no chapter saved: token rows, spectra, neurons and latents.

`python -m circuitbook.views` measures it into `results/views/`, `--check` compares with a fresh
measurement. Lessons do not import this package, so it is no part of any chapter's evidence.
"""
