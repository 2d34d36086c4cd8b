"""Path expansion: multiply out, then count: what chapter 03 teaches, for later chapters to use.

Generated from scripts/03_path_expansion.py; do not edit.
"""

import torch


def frozen_stream(x, patterns, W_V, W_O):
    """x → x + Σ_h A_h x W_V W_O, layer after layer: linear in x, because the patterns are given.

    x [batch, pos, d_model].  patterns: one [batch, head, pos, key] for each layer.
    W_V [layer, head, d_model, d_head], W_O [layer, head, d_head, d_model].
    """
    for A, V, O in zip(patterns, W_V, W_O):
        x = x + (A @ (x[:, None] @ V) @ O).sum(1)
    return x


def streams_by_order(model, tokens, patterns):
    """Run k adds what the layers computed in run k - 1, so its last stream holds orders 0 … k.

    patterns: one [batch, head, pos, key] for each layer. Returns n_layers + 1 streams.
    What a layer adds without any head, its bias, is there from the first run on.
    Source: Elhage et al. 2021, for models without MLPs; a norm needs its scales held as well.
    """
    noted = {}

    def swap(new, hook):
        b_O = model.blocks[hook.layer()].attn.b_O
        old = noted.get(hook.name, torch.zeros_like(new) if b_O is None else b_O.expand_as(new))
        noted[hook.name] = new
        return old

    def hold(A):
        return lambda pattern, hook: A

    hooks = [(f"blocks.{l}.attn.hook_pattern", hold(A)) for l, A in enumerate(patterns)]
    hooks += [(f"blocks.{l}.hook_attn_out", swap) for l in range(model.cfg.n_layers)]
    with model.hooks(fwd_hooks=hooks):
        return [model.stream(tokens) for _ in range(model.cfg.n_layers + 1)]
