"""Toys trained as one batch, beside the same toys trained one start after another.

    python bench/toys.py [--threads 1] [--starts 64] [--steps 300] [--size 512]

Five features in two dimensions at S = 0.9, importances 0.9^i: the runs of chapter 08. Three ways,
the same starts, the same stream of inputs, the same number of steps of Adam with the same rates:

- batch: `circuitbook.superposition.toy.train_toys`, all starts at once;
- one by one: the same function, a call for each start;
- plain loop: one start after another by autograd and `torch.optim.Adam`, as one would write it.

Same process, same threads. The slower two train the first eight starts only, and their time is
counted for all. Losses are read by one function on one fixed sample.

Bounds: the batch is at least 5 times faster than either, and the losses of the first eight starts
are equal to 1e-5. Exit status 1 when missed.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from circuitbook.superposition import study, toy
from circuitbook.superposition.batch import Params

N, M, P, LR, FEW = 5, 2, 0.1, 0.01, 8
MIN_SPEEDUP, MAX_ERROR = 5.0, 1e-5


def plain_loop(start: Params, importance: Tensor, steps: int, size: int) -> Params:
    """One toy by autograd, on the stream that the batch sees."""
    W, b = (w[0].clone().requires_grad_() for w in start)
    optimiser = torch.optim.Adam([W, b], lr=LR)
    stream = toy.gen(1000)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = LR * (1 + math.cos(math.pi * step / steps)) / 2
        x = toy.sparse_inputs(torch.rand(N, size, generator=stream), P)
        out = (W.T @ (W @ x) + b[:, None]).relu()
        loss = ((out - x).square() * importance[:, None]).sum() / size
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return Params(W.detach()[None], b.detach()[None])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--starts", type=int, default=64)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--size", type=int, default=512)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.threads == 1 else time.perf_counter
    starts, importance = toy.starts(args.starts, M, N), study.importance(N).float()
    few = [Params(starts.W[i : i + 1], starts.b[i : i + 1]) for i in range(FEW)]

    def ours(start: Params) -> Params:
        toys = toy.train_toys(
            N, M, P, importance=importance, start=start, steps=args.steps, size=args.size, lr=LR,
            samples=1,
        )  # fmt: skip
        return Params(toys.W, toys.b)

    def timed(run: Callable[[], list[Params]]) -> tuple[Params, float]:
        begin = clock()
        found = run()
        spent = clock() - begin
        return Params(*(torch.cat(x) for x in zip(*found, strict=True))), spent

    ours(few[0])  # warm-up
    plain_loop(few[0], importance, 5, args.size)
    batch, spent = timed(lambda: [ours(starts)])
    alone, alone_spent = timed(lambda: [ours(s) for s in few])
    loop, loop_spent = timed(
        lambda: [plain_loop(s, importance, args.steps, args.size) for s in few]
    )
    batch = Params(batch.W[:FEW], batch.b[:FEW])
    scale = args.starts / FEW
    print(f"{args.starts} starts, {args.steps} steps of {args.size}, threads {args.threads}")
    print(f"one batch: {spent:.2f} s")
    losses = [toy.toy_loss(*p, P, importance)[0] for p in (batch, alone, loop)]
    ok = True
    for name, seconds, loss in (
        ("one by one", alone_spent * scale, losses[1]),
        ("plain loop", loop_spent * scale, losses[2]),
    ):
        error = (loss - losses[0]).abs().max().item()
        print(f"{name}: {seconds:.2f} s (of {FEW} starts, for all)")
        print(f"  times faster: {seconds / spent:.1f} (bound >= {MIN_SPEEDUP:.0f})")
        print(f"  largest difference of losses: {error:.1e} (bound <= {MAX_ERROR:.0e})")
        ok = ok and seconds / spent >= MIN_SPEEDUP and error <= MAX_ERROR
    print("ok" if ok else "MISSED. If other programs are running, close them and try again.")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
