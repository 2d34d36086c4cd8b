"""How close the full-vocabulary scan comes to the machine's float32 matrix-product rate.

    python bench/scan.py [--threads 1] [--heads 2] [--vocab 48262]

Random weights of the published shape (48,262 x 512, 8 heads of 64). For each head: its factors,
then the rank of every token in its own row over the whole vocabulary, in slices of rows. Around
every slice, in the same process with the same threads: a large square product (the machine's rate)
and the scan's own tiles without any reduction (what the thin shape alone allows). The ratio of a
slice is taken against the square products just before and after it; the median over slices counts.

Bounds: scan rate / square rate >= 0.70, peak process memory < 2 GB. Exit status 1 when missed.
Rates count 2 * d_head operations per table entry; the factors' time is charged, their operations
are not.

With one thread (the default) time is this process's processor time, so that other programs disturb
the answer little. With more threads it is wall time; then nothing else should be running.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable

import torch

from circuitbook import scan

D_MODEL, N_HEADS, D_HEAD = 512, 8, 64
SQUARE, SLICE = 2048, 8192
MIN_RATIO, MAX_BYTES = 0.70, 2e9


def seconds(work: Callable[[], object], clock: Callable[[], float], repeats: int = 1) -> float:
    """Median time of `work`; the caller warms up."""
    times = []
    for _ in range(repeats):
        start = clock()
        work()
        times.append(clock() - start)
    return statistics.median(times)


def peak_bytes() -> int:
    """Largest resident size of this process so far (kilobytes on Linux, bytes on macOS)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--heads", type=int, default=2, help=f"how many of the {N_HEADS} to scan")
    parser.add_argument("--vocab", type=int, default=48262)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    clock = time.process_time if args.threads == 1 else time.perf_counter

    g = torch.Generator().manual_seed(0)
    W_E = torch.randn(args.vocab, D_MODEL, generator=g)
    W_U = torch.randn(D_MODEL, args.vocab, generator=g)
    W_V = torch.randn(N_HEADS, D_MODEL, D_HEAD, generator=g) / D_MODEL**0.5
    W_O = torch.randn(N_HEADS, D_HEAD, D_MODEL, generator=g) / D_HEAD**0.5
    square, square_out = torch.randn(SQUARE, SQUARE, generator=g), torch.empty(SQUARE, SQUARE)
    thin = torch.randn(scan.ROWS, D_HEAD, generator=g), torch.randn(D_HEAD, scan.COLUMNS)
    thin_out = torch.empty(scan.ROWS, scan.COLUMNS)
    slices = [s for s in torch.arange(args.vocab).split(SLICE) if len(s) == SLICE] or [
        torch.arange(args.vocab)
    ]

    def square_rate() -> float:
        return 2 * SQUARE**3 / seconds(lambda: torch.mm(square, square, out=square_out), clock, 3)

    def tile_rate() -> float:
        entries = scan.ROWS * scan.COLUMNS
        return 2 * D_HEAD * entries / seconds(lambda: torch.mm(*thin, out=thin_out), clock, 101)

    def measure(work: Callable[..., object], label: str, heads: int) -> tuple[float, float]:
        """Median ratio to the square product and to the bare tiles; one printed line per head."""
        ratios, bare = [], []
        for h in range(heads):
            factors = scan.ov_factors(W_E, W_V[h], W_O[h], W_U)
            start = clock()
            factors = scan.ov_factors(W_E, W_V[h], W_O[h], W_U)
            factor_time = (clock() - start) / len(slices)
            work(*factors, rows=slices[0][: scan.ROWS])
            before, rates, machine, tiles = square_rate(), [], [], []
            for rows in slices:
                start = clock()
                work(*factors, rows=rows)
                elapsed = clock() - start + factor_time
                after = square_rate()
                rates.append(2 * D_HEAD * args.vocab * len(rows) / elapsed)
                machine.append((before + after) / 2)
                tiles.append(tile_rate())
                before = after
            ratios += [r / m for r, m in zip(rates, machine, strict=True)]
            bare += [r / t for r, t in zip(rates, tiles, strict=True)]
            print(
                f"head {h}, {label}: {statistics.median(rates) / 1e9:.1f} GFLOP/s"
                f"   square product {statistics.median(machine) / 1e9:.1f}"
                f"   bare tiles {statistics.median(tiles) / 1e9:.1f}",
                flush=True,
            )
        return statistics.median(ratios), statistics.median(bare)

    print(f"threads {args.threads}, vocabulary {args.vocab}, tile {scan.ROWS} x {scan.COLUMNS}")
    square_rate(), tile_rate()  # warm-up
    ratio, bare = measure(scan.self_rank, "self rank", min(args.heads, N_HEADS))
    memory = peak_bytes()
    top_ratio, _ = measure(scan.top_k, "top 10", 1)
    with_top = peak_bytes()
    print(f"self rank / square product: {ratio:.3f} (bound >= {MIN_RATIO:.2f})")
    print(f"self rank / bare tiles:     {bare:.3f} (no bound)")
    print(f"top 10 / square product:    {top_ratio:.3f} (no bound)")
    print(
        f"peak process memory:        {memory / 1e9:.2f} GB, with the top 10 "
        f"{with_top / 1e9:.2f} GB (bound < {MAX_BYTES / 1e9:.0f})"
    )
    ok = ratio >= MIN_RATIO and with_top < MAX_BYTES
    print("ok" if ok else "MISSED. If other programs are running, close them and try again.")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
