"""How much faster the trainer is than a plain loop, and whether it learns the same.

    python bench/train.py [--threads 2] [--steps 60] [--role attn-only-2l]

Three loops on the same model, the same starting weights and the same batches, in turns of a few
steps (A B C A B C ...), so that a busy moment hits all of them:

    A  plain loop: float32, torch's own causal attention, all logits, `cross_entropy`, AdamW
    B  the trainer's arithmetic (circuitbook.fast) with the very AdamW of A
    C  the trainer: its arithmetic and its optimisers (circuitbook.train)

Speed: tokens per second of every turn, the median counts; the ratio C / A has the bound 1.8 on a
processor with bfloat16 instructions. Loss: A and B differ by arithmetic alone. Over the last third
of the steps the mean of |A - B| must stay below 0.03 nats, and the mean of A - B (a drift) below
0.015. C has other optimisers, so only its speed is judged; its losses are shown.

With one thread, time is this process's processor time, so other programs disturb it little. With
more it is wall time; then nothing else should run. Exit status 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from circuitbook import corpus, fast, train
from circuitbook.recipes import RECIPES, Recipe

MIN_RATIO, AIM = 1.8, 2.5
MAX_DIFFERENCE, MAX_DRIFT = 0.03, 0.015
LR, WARMUP = 2e-3, 20


def bfloat16_instructions() -> bool:
    """Does the processor multiply bfloat16 numbers by itself?"""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return any(flag in flags for flag in (" avx512_bf16", " amx_bf16", " bf16"))


def plain_loss(rec: Recipe, params: dict[str, Tensor], w_pos: Tensor, batch: tuple) -> Tensor:
    """The loss as one would write it at first: float32, every logit in one table."""
    cfg, (tokens, targets) = rec.config, batch
    x = F.embedding(tokens, params["embed.W_E"])  # [batch, pos, d_model]
    for layer in range(cfg.n_layers):
        at = f"blocks.{layer}."
        placed = x + w_pos
        q, k, v = (
            torch.einsum("bpd,hde->bhpe", source, params[f"{at}attn.{name}"])
            for source, name in ((placed, "W_Q"), (placed, "W_K"), (x, "W_V"))
        )
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + torch.einsum("bhpe,hed->bpd", z, params[f"{at}attn.W_O"])
        if cfg.d_mlp:
            x = x + fast.mlp(cfg, params, f"{at}mlp.", x, torch.float32)
    logits = x @ params["unembed.W_U"]
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class AdamLoop:
    """Any loss with AdamW on every parameter: loops A and B."""

    def __init__(self, rec: Recipe, loss: Callable[..., Tensor]) -> None:
        self.rec, self.loss, self.step, self.losses = rec, loss, 0, []
        start = fast.init(rec.config, rec.seed, embed_std=rec.embed_std)
        self.params = {name: p.requires_grad_() for name, p in start.items()}
        self.w_pos = fast.sinusoid(rec.config).float()
        self.optimizer = torch.optim.AdamW(
            self.params.values(), lr=LR, betas=(0.9, 0.95), weight_decay=0.0
        )

    def advance(self, tokens: np.ndarray) -> None:
        self.optimizer.param_groups[0]["lr"] = LR * min(1.0, (self.step + 1) / WARMUP)
        self.optimizer.zero_grad(set_to_none=True)
        batch = train.batch(tokens, self.rec, self.step)
        loss = self.loss(self.rec, self.params, self.w_pos, batch)
        loss.backward()
        self.optimizer.step()
        self.step += 1
        self.losses.append(loss.item())


def fast_loss(rec: Recipe, params: dict[str, Tensor], w_pos: Tensor, batch: tuple) -> Tensor:
    return fast.loss(rec.config, params, *batch, w_pos, getattr(torch, rec.precision))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=train.cores())
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--turn", type=int, default=4, help="steps before the next loop's turn")
    parser.add_argument("--role", choices=list(RECIPES), default="attn-only-2l")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.threads == 1 else time.perf_counter

    rec, tokens = RECIPES[args.role], corpus.train_tokens()
    loops = {
        "A plain": AdamLoop(rec, plain_loss),
        "B fast, AdamW": AdamLoop(rec, fast_loss),
        "C trainer": train.Run(rec, Path()),  # its `snapshot` and `save` are not called
    }
    per_step = rec.windows * rec.config.n_ctx
    print(
        f"{args.role}, {args.threads} threads, {args.steps} steps of {per_step:,} tokens, bfloat16 "
        f"instructions: {'yes' if bfloat16_instructions() else 'no'}, load {os.getloadavg()[0]:.1f}"
    )
    rates: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(-(-args.steps // args.turn)):
        for name, loop in loops.items():
            begun = clock()
            for _ in range(args.turn):
                loop.advance(tokens)
            if turn or args.steps <= args.turn:  # the first turn warms up
                rates[name].append(args.turn * per_step / (clock() - begun))
    middle = {name: statistics.median(found) for name, found in rates.items()}
    third = max(1, args.steps // 3)
    for name, loop in loops.items():
        shown = " ".join(f"{loop.losses[i]:.3f}" for i in range(0, len(loop.losses), third))
        print(f"{name:14} {middle[name]:8,.0f} tokens/s   loss {shown} {loop.losses[-1]:.3f}")

    a, b = (np.array(loops[name].losses) for name in ("A plain", "B fast, AdamW"))
    apart, drift = np.abs(a - b)[-third:].mean(), abs((a - b)[-third:].mean())
    ratio = middle["C trainer"] / middle["A plain"]
    print(f"trainer / plain loop: {ratio:.2f} (bound >= {MIN_RATIO}, aim {AIM})")
    print(f"arithmetic alone:     {middle['B fast, AdamW'] / middle['A plain']:.2f} (no bound)")
    print(
        f"loss, A against B, last {third} steps: mean difference {apart:.4f} nats (bound <= "
        f"{MAX_DIFFERENCE}), drift {drift:.4f} (bound <= {MAX_DRIFT})"
    )
    slow = ratio < MIN_RATIO and bfloat16_instructions()
    ok = not slow and apart <= MAX_DIFFERENCE and drift <= MAX_DRIFT
    print("ok" if ok else "MISSED. If other programs are running, close them and try again.")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
