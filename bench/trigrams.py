"""How much longer the skip-trigram search takes than the two matrix products it cannot avoid.

    python bench/trigrams.py [--threads 1] [--heads 8] [--vocab 48262] [--k 1000]

Random weights of the published shape (48,262 x 512, 8 heads of 64). For each head, in the same
process with the same threads: one full QK product and one full OV product without any reduction
(the faster of two ways to cut them: the search's own tiles, and slabs of 1,024 rows by the whole
vocabulary), right after the search. The search includes its factors' centring and both passes.
Ratio = search / (QK product + OV product); the median over heads counts.

Bounds: ratio <= 2, peak process memory < 3 GB. Exit status 1 when missed. Every head's best triple
is checked against the product of its source's two maxima.

With one thread (the default) time is this process's processor time, so that other programs disturb
the answer little. With more threads it is wall time; then nothing else should be running.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
from scan import peak_bytes, seconds  # bench/scan.py, beside this file

from circuitbook import scan
from circuitbook.skip_trigrams import trigrams

D_MODEL, N_HEADS, D_HEAD = 512, 8, 64
MAX_RATIO, MAX_BYTES = 2.0, 3e9


def full_product(
    A: torch.Tensor, B: torch.Tensor, columns: int, out: torch.Tensor
) -> Callable[[], None]:
    """All of A B, tile by tile, nothing kept: the work that no search avoids."""
    tiles = [B[:, c : c + columns].contiguous() for c in range(0, B.shape[1], columns)]

    def work() -> None:
        for rows in A.split(scan.ROWS):
            for tile in tiles:
                torch.mm(rows, tile, out=out[: len(rows) * tile.shape[1]].view(len(rows), -1))

    return work


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--heads", type=int, default=N_HEADS, help=f"how many of the {N_HEADS}")
    parser.add_argument("--vocab", type=int, default=48262)
    parser.add_argument("--k", type=int, default=1000)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    clock = time.process_time if args.threads == 1 else time.perf_counter

    g = torch.Generator().manual_seed(0)
    W_E = torch.randn(args.vocab, D_MODEL, generator=g)
    W_U = torch.randn(D_MODEL, args.vocab, generator=g)
    shapes = (D_MODEL, D_HEAD), (D_MODEL, D_HEAD), (D_MODEL, D_HEAD), (D_HEAD, D_MODEL)
    out = torch.empty(scan.ROWS * args.vocab)
    ids = torch.arange(args.vocab)
    ratios = []
    print(f"threads {args.threads}, vocabulary {args.vocab}, k {args.k}")
    for h in range(min(args.heads, N_HEADS)):
        W_Q, W_K, W_V, W_O = (torch.randn(s, generator=g) / s[0] ** 0.5 for s in shapes)
        start = clock()
        qk = scan.qk_factors(W_E, W_Q, W_K)
        head = trigrams.Head(qk, scan.ov_factors(W_E, W_V, W_O, W_U), ids)
        found = trigrams.search(head, args.k)
        elapsed = clock() - start
        ways = []
        for columns in (scan.COLUMNS, args.vocab):
            parts = [full_product(A, B, columns, out) for A, B in (head.qk, head.ov)]
            ways.append(sum(seconds(part, clock) for part in parts))
        ratios.append(elapsed / min(ways))
        s = found.source[0]
        best = (head.qk.A @ head.qk.B[:, s]).max() * (head.ov.A[s] @ head.ov.B).max()
        if abs(best - found.strength[0]) > 1e-3 * best or len(found.qk) != args.k:
            print(f"head {h}: the search gave a wrong answer")
            return 1
        print(
            f"head {h}: search {elapsed:.1f} s, QK + OV products {min(ways):.1f} s "
            f"(tiles {ways[0]:.1f}, slabs {ways[1]:.1f}), ratio {ratios[-1]:.2f}",
            flush=True,
        )
    ratio, memory = statistics.median(ratios), peak_bytes()
    print(f"search / (QK + OV products): {ratio:.2f} (bound <= {MAX_RATIO:.0f})")
    print(f"peak process memory:         {memory / 1e9:.2f} GB (bound < {MAX_BYTES / 1e9:.0f})")
    ok = ratio <= MAX_RATIO and memory < MAX_BYTES
    print("ok" if ok else "MISSED. If other programs are running, close them and try again.")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
