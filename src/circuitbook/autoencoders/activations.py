"""What a model holds at its MLP while it reads text: the data that a dictionary is trained on.

Training rows come from the training text, in windows cut as when the model itself was trained: the
begin-of-sequence token and a run of text. The position of that token is left out. It looks the
same in every window, and its activations are unlike all others.

Two sites are known. "neurons" reads and predicts the MLP's neurons after the nonlinearity
(`mlp.hook_post`). "mlp" reads what the MLP reads (`hook_resid_mid`; these models have no LayerNorm)
and predicts what it writes (`hook_mlp_out`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook import fast, train
from circuitbook.model import Transformer
from circuitbook.recipes import recipe

SITES = ("neurons", "mlp")


def hooks(site: str, layer: int) -> tuple[str, str]:
    """(what the dictionary reads, what it predicts), as names of hooks.

    Raises ValueError for an unknown site.
    """
    if site not in SITES:
        raise ValueError(f"unknown site {site!r}: choose one of {SITES}")
    at = f"blocks.{layer}."
    if site == "neurons":
        return f"{at}mlp.hook_post", f"{at}mlp.hook_post"
    return f"{at}hook_resid_mid", f"{at}hook_mlp_out"


@torch.no_grad()
def grab(
    model: Transformer, tokens: Int[Tensor, "batch pos"], *names: str
) -> dict[str, Float[Tensor, "batch pos width"]]:
    """The activations at the named hooks in the model's own precision, without its logits."""
    found: dict[str, Tensor] = {}

    def keep(value: Tensor, hook: object) -> None:
        found[hook.name] = value

    with model.hooks(fwd_hooks=[(name, keep) for name in dict.fromkeys(names)]):
        model.stream(tokens)
    return found


@torch.no_grad()
def training_rows(
    model: Transformer,
    role: str,
    layer: int,
    site: str,
    text: np.ndarray,
    *,
    windows: int,
    seed: int,
    chunk: int,
) -> tuple[Float[Tensor, "row d_in"], Float[Tensor, "row d_out"]]:
    """(read, target) of one chunk of training text, rows shuffled: a function of (seed, chunk).

    Chunk number c holds `windows` windows, drawn as the model's trainer draws a step of that
    size. A run that was interrupted sees the same rows in the same order. Products are
    in bfloat16, twice as fast; what is measured later is computed in float32 elsewhere.

    A model whose last MLP writes nothing ends in the stream that this MLP reads: that is how
    `resid_mid` is had from the trainer's own forward pass.
    """
    cut = replace(recipe(role), windows=windows, data_seed=seed)
    tokens, _ = train.batch(text, cut, chunk)
    params, at = dict(model.state_dict()), f"blocks.{layer}.mlp."
    silent = {f"{at}{name}": torch.zeros_like(params[f"{at}{name}"]) for name in ("W_out", "b_out")}
    below = replace(cut.config, n_layers=layer + 1)
    w_pos = fast.sinusoid(below).float()
    mids = [
        fast.hidden_stream(below, {**params, **silent}, piece, w_pos, torch.bfloat16)[:, 1:]
        for piece in tokens.split(8)
    ]
    mid = torch.cat([m.float().flatten(0, 1) for m in mids])
    generator = torch.Generator().manual_seed(seed * 1_000_003 + chunk)
    mid = mid[torch.randperm(mid.shape[0], generator=generator)]
    if site == "neurons":
        product = mid.bfloat16() @ params[f"{at}W_in"].bfloat16()
        post = fast.ACTIVATIONS[below.act](product.float() + params[f"{at}b_in"])
        return post, post
    return mid, fast.mlp(below, params, at, mid.bfloat16(), torch.bfloat16).float()


def rows_of(
    model: Transformer, tokens: Int[Tensor, "batch pos"], *names: str, block: int = 2
) -> tuple[Float[Tensor, "row width"], ...]:
    """One matrix for each hook: a row for every position but the first of every window."""
    parts: dict[str, list[Tensor]] = {name: [] for name in names}
    for piece in tokens.split(block):
        found = grab(model, piece, *names)
        for name in parts:
            parts[name].append(found[name][:, 1:].flatten(0, 1))
    return tuple(torch.cat(parts[name]) for name in names)
