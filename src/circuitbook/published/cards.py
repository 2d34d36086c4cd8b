"""The card of a published model: what its files say, and no more.

How long it was trained, and on how much text, is not in its files, so it is not on its card.
"""

from __future__ import annotations

from circuitbook.published import fetch, models
from circuitbook.published.pins import MODELS


def short_card(role: str) -> dict[str, int | str]:
    """Sizes of the model as it was trained, its file, and the commit that the file is from."""
    model = models.raw(role)
    cfg, pin = model.cfg, MODELS[role]
    weights = next(name for name in pin.files if name.startswith("model"))
    return {
        "layers": cfg.n_layers,
        "width": cfg.d_model,
        "heads": cfg.n_heads,
        "neurons": cfg.d_mlp,
        "parameters": sum(p.numel() for p in model.parameters()),
        "file (bytes)": (fetch.folder(pin) / weights).stat().st_size,
        "revision": fetch.commit(pin)[:12],
    }
