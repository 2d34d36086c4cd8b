"""Direct attribution: at the last stream a logit difference is a sum, one term for each write.

F(M) = sum over parts of (write at the answering position) . (W_U[:, right] - W_U[:, wrong]).

With a final norm the sum holds for the scale of the clean run (frozen), after the norm's gain and
bias are folded into W_U (circuitbook.fold); without one nothing is frozen. The sum is an identity.
It does not follow that a term is what its node is worth: when the node is cut, later nodes may
write something else. `self_repair` measures that, and splits it by node, again as an identity:

    actual drop = predicted drop - sum over the other parts of what their term gained.

Sources: Elhage et al. 2021; Wang et al. 2023 (backup name movers); McGrath et al. 2023 ("The Hydra
Effect"); Rushing & Nanda 2024 (self-repair).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.circuits.ablation import Standin, standin_hooks, write_names
from circuitbook.circuits.nodes import MLP, Node, masks, node_name
from circuitbook.model import Transformer


class Question(NamedTuple):
    """Where each prompt is answered, with which token, against which."""

    at: Int[Tensor, " prompt"]
    right: Int[Tensor, " prompt"]
    wrong: Int[Tensor, " prompt"]


class Terms(NamedTuple):
    """terms: part -> [prompt]; total [prompt]: the logit difference itself."""

    terms: dict[str, Tensor]
    total: Float[Tensor, " prompt"]
    scale: Float[Tensor, "prompt 1"] | None  # of the final norm


@torch.no_grad()
def attribute(
    model: Transformer,
    tokens: Int[Tensor, "prompt pos"],
    question: Question,
    hooks: Sequence[tuple[str, Callable]] = (),
    scale: Float[Tensor, "prompt 1"] | None = None,
) -> Terms:
    """The logit difference as a sum over embedding, heads and MLPs ("1.3", "MLP 0"), per prompt.

    "bias" holds what belongs to no write: b_O of all layers, position in the stream, b_U.
    hooks: of a run under a cut. scale: of the final norm, held at another run's value (then the
    terms sum to this run's total only if the scales agree). One forward pass.
    Raises ValueError for a norm with gain and bias: fold it first.
    """
    if model.cfg.norm == "layernorm":
        raise ValueError("fold the norms first (circuitbook.fold), so that their gain is in W_U")
    n, (z_names, mlp_names) = torch.arange(len(tokens), device=model.W_E.device), write_names(model)
    tokens = tokens.to(model.W_E.device)
    at, right, wrong = (x.to(model.W_E.device) for x in question)
    with model.hooks(fwd_hooks=list(hooks)):
        logits, cache = model.run_with_cache(
            tokens,
            return_type="logits",
            names_filter=lambda name: name in {*z_names, *mlp_names, *_FIXED},
        )
    way = model.W_U.T[right] - model.W_U.T[wrong]  # [prompt, d_model]
    if model.cfg.norm != "none":
        way = way - way.mean(-1, keepdim=True)  # the norm subtracts each stream's mean
        scale = cache["ln_final.hook_scale"][n, at] if scale is None else scale
        way = way / scale
    terms = {"embedding": (cache["hook_embed"][n, at] * way).sum(-1)}
    rest = torch.zeros_like(terms["embedding"])
    if model.cfg.positions == "standard":
        rest = rest + (cache["hook_pos_embed"][n, at] * way).sum(-1)
    if model.cfg.unembed_bias:
        rest = rest + model.unembed.b_U[right] - model.unembed.b_U[wrong]
    for layer, block in enumerate(model.blocks):
        z = cache[z_names[layer]][n, at]  # [prompt, head, d_head]
        each = torch.einsum("phe,hed,pd->ph", z, block.attn.W_O, way)
        terms |= {node_name((layer, h)): each[:, h] for h in range(model.cfg.n_heads)}
        if model.cfg.attn_bias:
            rest = rest + way @ block.attn.b_O
        if mlp_names:
            terms[node_name((layer, MLP))] = (cache[mlp_names[layer]][n, at] * way).sum(-1)
    terms["bias"] = rest
    total = logits[n, at, right] - logits[n, at, wrong]
    return Terms(terms, total, scale)


_FIXED = ("hook_embed", "hook_pos_embed", "ln_final.hook_scale")


class Repair(NamedTuple):
    """What the direct terms promise for a cut, what it costs, and who made up the difference."""

    predicted: Float[Tensor, " prompt"]  # the cut nodes' own terms, minus those of their stand-ins
    actual: Float[Tensor, " prompt"]  # F(M) - F(M without K)
    gained: dict[str, Tensor]  # part -> [prompt], the others' terms with the cut minus without it
    frozen: Float[Tensor, " prompt"]  # what a frozen final norm leaves out; 0 without a norm

    @property
    def share(self) -> float:
        """1 - actual / predicted, of the means: 0 no repair, 1 all repaired, below 0 made worse."""
        return 1 - (self.actual.mean() / self.predicted.mean()).item()


def self_repair(
    model: Transformer,
    tokens: Int[Tensor, "prompt pos"],
    question: Question,
    standin: Standin,
    cut: Sequence[Node],
) -> Repair:
    """Direct attribution against ablation of the same nodes, with the same stand-in.

    Cut: the nodes' writes, at all positions. Recomputed: everything after. In the terms, the final
    norm's scale is that of the clean run. Two forward passes.
    """
    clean = attribute(model, tokens, question)
    rows = torch.arange(len(tokens), device=model.W_E.device)
    keep = ~masks(model, [cut]).to(rows.device).expand(len(rows), -1, -1)  # [prompt, layer, slot]
    hooks = standin_hooks(model, standin, keep[..., None].transpose(-1, -2), rows)
    after = attribute(model, tokens, question, hooks, clean.scale)
    names = {node_name(node) for node in cut}
    change = {name: after.terms[name] - clean.terms[name] for name in clean.terms}
    predicted = -sum(change[name] for name in names)
    gained = {name: x for name, x in change.items() if name not in names}
    actual = clean.total - after.total
    return Repair(predicted, actual, gained, actual - predicted + sum(gained.values()))
