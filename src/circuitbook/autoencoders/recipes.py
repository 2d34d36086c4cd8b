"""How the course's dictionaries are trained: a recipe decides every bit, given model and text."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Recipe:
    """How a dictionary is trained; with the model's weights and the text it decides every bit."""

    role: str  # whose activations
    layer: int
    site: str  # "neurons" (an autoencoder) or "mlp" (a transcoder)
    latents: int
    chunks: int  # of 16 steps each
    k: int = 0  # TopK; 0: ReLU and a penalty
    penalty: float = 0.0  # lambda, in the trainer's coordinates
    rate: float = 1e-3  # Adam's
    warm: float = 0.05  # share of the run in which lambda rises from 0
    decay: float = 0.3  # share of the run in which the rate falls to 0
    dead_after: int = 250_000  # rows without firing, after which a latent counts as dead
    dead_share: float = 1 / 32  # weight of the dead latents' own loss (TopK)
    windows: int = 64  # of text in one chunk
    seed: int = 0
    data_seed: int = 9

    def to_dict(self) -> dict:
        """Plain JSON data."""
        return asdict(self)

    def sha256(self) -> str:
        """A hash of the recipe."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    @property
    def rows(self) -> int:
        """How many tokens the dictionary is trained on."""
        return self.chunks * self.windows * 511


RECIPES: dict[str, Recipe] = {
    "transcoder-gelu-2l-0": Recipe("gelu-2l", 0, "mlp", 2048, chunks=80, k=16),
    "transcoder-gelu-2l-1": Recipe("gelu-2l", 1, "mlp", 2048, chunks=80, k=24),
    "sae-gelu-1l": Recipe("gelu-1l", 0, "neurons", 4096, chunks=150, k=32),
}

# Shorter runs with other penalties, and one TopK run of their length: measured, not bundled.
SHORT = 16
SWEEP: dict[str, Recipe] = {
    f"sae-gelu-1l-penalty-{penalty:g}": Recipe(
        "gelu-1l", 0, "neurons", 4096, chunks=SHORT, penalty=penalty
    )
    for penalty in (0.05, 0.1, 0.2, 0.3, 0.5)
} | {"sae-gelu-1l-short": Recipe("gelu-1l", 0, "neurons", 4096, chunks=SHORT, k=32)}
