"""Every bundled model's recipe: its config, optimiser, text order and length. Data, no code to run.

All roles of a family see the same text in the same order and the same number of tokens. A recipe is
stored in the weight file that it made; a changed recipe makes the file stale.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field

from circuitbook.config import Config


@dataclass(frozen=True)
class Recipe:
    """How one role is trained. Rates are peaks: warm-up is linear, the last part decays to zero."""

    config: Config
    seed: int = 0  # of the starting weights; the text order has its own
    data_seed: int = 0
    optimizer: str = "muon"
    lr: float = 0.02
    embed_lr: float = 0.01
    weight_decay: float = 0.01
    embed_std: float = 0.1
    steps: int = 4800
    windows: int = 8  # a step is this many windows of n_ctx tokens
    clip: float = 0.0  # largest norm of the whole gradient; 0: no limit
    task: str = ""  # a miniature task of circuitbook.tasks instead of the course text
    balance: float = 0.0  # weight of a mixture's unevenness (fast.uneven) in what is minimised
    warmup: int = 50
    decay_share: float = 0.4
    precision: str = "bfloat16"
    snapshots: tuple[int, ...] = field(default_factory=tuple)

    @property
    def tokens(self) -> int:
        """How many tokens the model is trained on."""
        return self.steps * self.windows * self.config.n_ctx

    def to_dict(self) -> dict:
        """Plain JSON data, as stored in the weight file."""
        plain = asdict(self)
        plain["config"] = self.config.to_dict()
        plain["snapshots"] = list(self.snapshots)
        for name in ("clip", "task", "balance"):  # not said where not used
            if not plain[name]:
                del plain[name]
        return plain

    def sha256(self) -> str:
        """A hash of the recipe; two equal recipes train to the same bytes on the same machine."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()


def snapshot_steps(steps: int, every: int = 100) -> tuple[int, ...]:
    """Log-spaced early (1, 2, 4, …, 64), then every `every` steps, the last step included."""
    early = [0] + [2**i for i in range(7)]
    return tuple(sorted({*early, *range(every, steps, every), steps} & set(range(steps + 1))))


def _main(n_layers: int, d_mlp: int = 0, **more: object) -> Recipe:
    config = Config(n_layers=n_layers, d_mlp=d_mlp, act="gelu" if d_mlp else "none")
    return Recipe(config, snapshots=snapshot_steps(4800), **more)


def _block(act: str, d_mlp: int, **more: object) -> Recipe:
    """One layer with another nonlinear block; text, length and rates of the main family."""
    experts = {"n_experts": 8, "top_k": 2} if more else {}
    return Recipe(Config(n_layers=1, d_mlp=d_mlp, act=act, **experts), **more)


def _twin(optimizer: str, lr: float, steps: int) -> Recipe:
    """One of a pair that differs in the optimiser alone. Clipping the whole gradient's norm keeps
    SGD from diverging and commutes with rotations, so it favours no basis."""
    config = Config(n_layers=2, d_model=128, n_heads=4, n_ctx=128)
    return Recipe(
        config, optimizer=optimizer, lr=lr, embed_std=0.3, steps=steps, windows=32, clip=1.0
    )


# fmt: off
RECIPES: dict[str, Recipe] = {
    "attn-only-0l": _main(0),
    "attn-only-1l": _main(1),
    # Two starts, same text. The one whose induction head came out stronger is the course's model;
    # the other shows what of a circuit and of its growth depends on the start.
    "attn-only-2l": _main(2, seed=1),
    "attn-only-2l-again": _main(2, seed=0),
    "gelu-1l": _main(1, 1024),
    "gelu-2l": _main(2, 1024),
    # Chapter 10: relu-1l and swiglu-1l have about as many parameters as gelu-1l (SwiGLU has three
    # matrices, so two thirds of the width), moe-1l uses half of that for any one token.
    "relu-1l": _block("relu", 1024),
    "swiglu-1l": _block("swiglu", 672),
    "moe-1l": _block("gelu", 256, balance=0.1),
    # Chapter 11, with vocabularies of their own: len(VOCAB) and N_CTX of circuitbook.tasks.
    # >>> names-task
    "names-task": Recipe(
        Config(n_layers=3, d_model=96, n_heads=6, d_head=16, n_ctx=40, d_vocab=265),
        task="names", lr=0.01, embed_lr=0.005, decay_share=0.6, steps=4500, windows=64,
    ),
    # <<< names-task
    # >>> years-task
    # One head in a layer, so that no two heads can share the two questions between them.
    "years-task": Recipe(
        Config(n_layers=2, d_model=64, n_heads=1, d_head=32, d_mlp=256, act="gelu", n_ctx=26,
               d_vocab=202),
        task="years", embed_std=0.5, embed_lr=0.012, steps=9000, windows=64, decay_share=0.7,
        precision="float32",
    ),
    # <<< years-task
    # Same start, text and steps; chapter 01 asks that their losses be near.
    "twin-sgd": _twin("sgd", 1.0, 1800),
    "twin-adam": _twin("adam", 0.002, 1800),
}
# fmt: on


def recipe(role: str) -> Recipe:
    """The recipe of a role.

    Raises KeyError with the known roles.
    """
    if role not in RECIPES:
        raise KeyError(f"There is no role {role!r}. Roles: {', '.join(RECIPES)}.")
    return RECIPES[role]
