"""The optimisers: Muon for the matrices between streams, AdamW for embeddings; pure ones for twins.

Muon replaces a matrix update by the nearest matrix with equal singular values (Newton-Schulz), so
it commutes with a rotation of the stream. Adam divides each coordinate by its own scale, so it does
not. Chapter 01 measures the difference; its twins are trained with one optimiser alone.
Source: Keller Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5


def orthogonalise(update: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """U diag(about 1) Vᵀ for update = U diag(s) Vᵀ, batched: [..., rows, cols], products in dtype.

    Five steps of an odd polynomial push every singular value into roughly [0.7, 1.2]; one below
    about 1/300 of the matrix's norm falls short of that.
    """
    tall = update.shape[-2] > update.shape[-1]
    x = update.to(dtype)
    x = x.mT if tall else x
    exact = x.to(torch.promote_types(dtype, torch.float32))
    x = x / (torch.linalg.matrix_norm(exact, keepdim=True).to(dtype) + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(update.dtype)


class Muon(torch.optim.Optimizer):
    """Momentum, Nesterov step, then an orthogonalised update of rms size `lr` times a shape factor.

    Head stacks [head, d_model, d_head] are taken as one matrix [d_model, head * d_head]; W_O
    [head, d_head, d_model] as [head * d_head, d_model]: the matrix that acts on the stream. Which
    axis is the stream is told by its size, so heads must be narrower than the stream. The stacks
    in `experts` are no such matrix: each expert's own is taken alone.

    Raises ValueError for a square stack, where the two readings cannot be told apart.
    """

    def __init__(
        self,
        params: list[Tensor],
        lr: float,
        momentum: float,
        weight_decay: float,
        experts: Sequence[Tensor] = (),
    ) -> None:
        for p in params:
            if p.ndim not in (2, 3) or (p.ndim == 3 and p.shape[1] == p.shape[2]):
                raise ValueError(
                    f"Muon takes matrices and head stacks whose d_head is smaller than d_model; "
                    f"got shape {tuple(p.shape)}."
                )
        groups = [{"params": params, "apart": False}]
        if experts:
            groups.append({"params": list(experts), "apart": True})
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @staticmethod
    def _matrix(tensor: Tensor, d_model: int) -> Tensor:
        if tensor.ndim == 2:
            return tensor
        reads = tensor.shape[1] == d_model
        return tensor.transpose(0, 1).flatten(1) if reads else tensor.flatten(0, 1)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """One update of every parameter; matrices of equal shape are orthogonalised together."""
        for group in self.param_groups:
            stacks: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = {}
            for p in group["params"]:
                state = self.state[p]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(p)
                state["momentum"].lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp(state["momentum"], group["momentum"])
                d_model = max(p.shape[1], p.shape[-1]) if p.ndim == 3 else 0
                matrix = update if group["apart"] else self._matrix(update, d_model)
                stacks.setdefault(tuple(matrix.shape), []).append((p, matrix))
            for shape, pairs in stacks.items():
                news = orthogonalise(torch.stack([m for _, m in pairs]))
                size = group["lr"] * max(1.0, shape[-1] / shape[-2]) ** 0.5
                for (p, _), new in zip(pairs, news, strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_(new if group["apart"] else self._back(new, p), alpha=-size)

    @staticmethod
    def _back(matrix: Tensor, p: Tensor) -> Tensor:
        if p.ndim == 2:
            return matrix
        if p.shape[1] > p.shape[2]:  # [head, d_model, d_head]
            return matrix.unflatten(1, (p.shape[0], p.shape[2])).transpose(0, 1)
        return matrix.unflatten(0, (p.shape[0], p.shape[1]))


def build(params: dict[str, Tensor], recipe: dict) -> list[torch.optim.Optimizer]:
    """The optimisers of a recipe: `muon` (with AdamW for the rest), `adam`, or `sgd`.

    Raises ValueError for another name, and for Muon on heads as wide as the stream or wider.
    """
    kind = recipe["optimizer"]
    every = list(params.values())
    if kind == "adam":
        return [torch.optim.Adam(every, lr=recipe["lr"], betas=(0.9, 0.95), eps=1e-8)]
    if kind == "sgd":
        return [torch.optim.SGD(every, lr=recipe["lr"], momentum=0.9)]
    if kind != "muon":
        raise ValueError(f"optimizer must be muon, adam or sgd; got {kind!r}")
    shape = recipe["config"]
    if shape["n_layers"] and shape["d_head"] >= shape["d_model"]:
        raise ValueError(
            f"Muon needs heads narrower than the stream; got d_head={shape['d_head']}, "
            f"d_model={shape['d_model']}. Use optimizer='adam' or narrower heads."
        )
    matrices = {n for n, p in params.items() if n.startswith("blocks.") and ".W_" in n}
    stacked = {n for n in matrices if ".mlp." in n and params[n].ndim == 3}
    inner = [p for n, p in params.items() if n in matrices - stacked]
    outer = [p for n, p in params.items() if n not in matrices]
    experts = [p for n, p in params.items() if n in stacked]
    embeddings = torch.optim.AdamW(
        outer, lr=recipe["embed_lr"], betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0
    )
    if not inner:
        return [embeddings]
    return [embeddings, Muon(inner, recipe["lr"], 0.95, recipe["weight_decay"], experts)]
