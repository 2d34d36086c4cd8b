"""The published circuits' tools at GPT-2's exact size: time and peak memory of the whole path.

    python bench/gpt2_path.py [--prompts 8] [--random 20] [--threads 1]

Random weights of the exact shape and prompts of random ids, laid out as the real ones. With
MODELS=published: the published weights and their tokenizer. A second process does
the work, so that its peak memory is that of the path alone: loading, folding the norms, mean and
resample stand-ins, faithfulness beside random sets, path patching, self-repair, for both tasks.
The peak is "maximum resident set size", the interpreter and torch included.

Bounds: at most 8 GB and, on one core, 10 minutes of processor time. Exit status 1 when missed.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

MOST_BYTES, MOST_SECONDS = 8e9, 600.0


def work(args: argparse.Namespace) -> dict[str, float]:
    """The path itself; returns processor seconds of loading and of the tools, and the peak."""
    import numpy as np
    import torch

    from circuitbook import paths
    from circuitbook.circuits import gpt2, gpt2_path
    from circuitbook.model import Transformer

    torch.set_num_threads(args.threads)
    begun = time.process_time()
    loaded = begun
    if paths.models() == "published":
        found = gpt2_path.published_study(args.prompts, args.random)
    else:
        model = Transformer(gpt2.SMALL, seed=0).eval().requires_grad_(False)
        loaded = time.process_time()
        rng = np.random.default_rng(0)
        names, years = (
            gpt2_path.stand_in_batch(kind, args.prompts, rng, gpt2.SMALL.d_vocab)
            for kind in ("names", "years")
        )
        found = gpt2_path.path(model, names, years, n_random=args.random)
    done = time.process_time()
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux kilobytes
    return {
        "loading": loaded - begun,
        "tools": done - loaded,
        "peak": float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit),
        "logit difference": found["names"]["model"],
        "probability difference": found["years"]["model"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--random", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        print(json.dumps(work(args)))
        return 0
    command = [sys.executable, __file__, *sys.argv[1:], "--here"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return 1
    found = json.loads(done.stdout.splitlines()[-1])
    seconds = found["loading"] + found["tools"]
    print(f"GPT-2's shape, {args.prompts} prompts a task, {args.random} random sets")
    print(f"  load  {found['loading']:8.1f} s of processor time")
    print(f"  tools {found['tools']:8.1f} s of processor time, norms folded first")
    print(f"  peak  {found['peak'] / 1e9:8.2f} GB")
    ok = found["peak"] <= MOST_BYTES and (args.threads > 1 or seconds <= MOST_SECONDS)
    print(
        "within bounds" if ok else f"over the bounds of {MOST_BYTES / 1e9:.0f} GB, {MOST_SECONDS} s"
    )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
