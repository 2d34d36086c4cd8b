"""All composition scores at gpt2's shape, beside TransformerLens' own function on the same weights.

    python bench/composition.py [--threads 1] [--repeats 3] [--layers 12]

Random weights of gpt2's shape: 12 layers of 12 heads, d_model 768, d_head 64, 144 heads. Q-, K- and
V-scores of all 144 x 144 pairs, by `circuitbook.compose.composition_scores` and by
`transformer_lens.utils.composition_scores` (FactoredMatrix, all pairs broadcast: what
`all_composition_scores` of both majors calls). Where the installed version keeps the function
elsewhere it is found there. Same process, same threads, same weights.

Time only: the pairs that cannot compose (same or earlier layer) are computed by both and masked by
neither. Ours runs `--repeats` times and its median counts. Theirs runs once, layer of readers by
layer of readers, because all pairs at once need several gigabytes there; the sum counts.

Bounds: at least 10 times faster, values equal to 1e-5. Exit status 1 when missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from transformer_lens import FactoredMatrix

from circuitbook import compose

D_MODEL, D_HEAD, HEADS = 768, 64, 12
MIN_SPEEDUP, MAX_ERROR = 10.0, 1e-5


def lens_function() -> tuple[str, Callable[..., Tensor]]:
    """TransformerLens' score of factored matrices, and the name it has in this version."""
    try:
        from transformer_lens.utilities import composition_scores

        return "transformer_lens.utilities.composition_scores", composition_scores
    except ImportError:
        from transformer_lens.utils import composition_scores

        return "transformer_lens.utils.composition_scores", composition_scores


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--layers", type=int, default=12)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    clock = time.process_time if args.threads == 1 else time.perf_counter

    g, n = torch.Generator().manual_seed(0), args.layers * HEADS
    W_Q, W_K, W_V = torch.randn(3, n, D_MODEL, D_HEAD, generator=g) / D_MODEL**0.5
    W_O = torch.randn(n, D_HEAD, D_MODEL, generator=g) / D_HEAD**0.5
    name, theirs = lens_function()

    def ours() -> tuple[list[Tensor], float]:
        start = clock()
        scores = compose.composition_scores(W_V, W_O, W_Q, W_K, W_V, W_O)
        return list(scores), clock() - start

    def lens() -> tuple[list[Tensor], float]:
        readers = ((W_Q, W_K.mT), (W_K, W_Q.mT), (W_V, W_O))
        out, spent = [], 0.0
        for left, right in readers:
            rows = []
            for part in torch.arange(n).split(HEADS):
                start = clock()
                rows.append(
                    theirs(FactoredMatrix(W_V, W_O), FactoredMatrix(left[part], right[part]))
                )
                spent += clock() - start
            out.append(torch.cat(rows, 1))
        return out, spent

    ours()  # warm-up
    runs = [ours() for _ in range(args.repeats)]
    mine, median = runs[0][0], statistics.median(t for _, t in runs)
    reference, spent = lens()
    error = max((a - b).abs().max().item() for a, b in zip(mine, reference, strict=True))
    print(f"{n} heads of {D_HEAD} in {D_MODEL}, {3 * n * n} scores, threads {args.threads}")
    print(f"compose.composition_scores: {median:.3f} s (median of {args.repeats})")
    print(f"{name}: {spent:.3f} s")
    print(f"times faster: {spent / median:.1f} (bound >= {MIN_SPEEDUP:.0f})")
    print(f"largest difference: {error:.1e} (bound <= {MAX_ERROR:.0e})")
    ok = spent / median >= MIN_SPEEDUP and error <= MAX_ERROR
    print("ok" if ok else "MISSED. If other programs are running, close them and try again.")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
