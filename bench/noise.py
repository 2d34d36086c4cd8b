"""How far do the course's numbers move from one machine to another? Measured, kind by kind.

    python bench/noise.py [chapter ...]

measures every chapter with small samples (QUICK=1) under four conditions on this machine: one
thread, one thread again, two threads, and one thread with torch's plain vector instructions
(ATEN_CPU_CAPABILITY=default). Each run is compared with the first, number by number, under the
tolerance of its kind. Beside it, some readings of one model in float32 and in float64. Writes
results/noise.json, from which docs/will-my-numbers-match.md is filled. Needs about 15 minutes of an
idle machine; times are not compared, so a busy one only takes longer.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from circuitbook import compare, compose, corpus, cut, paths, probe, results, scan, zoo
from circuitbook.curves import Bench

BASE = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
CONDITIONS = {
    "one thread": BASE,
    "the same again": BASE,
    "two threads": {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"},
    "other vector instructions": BASE | {"ATEN_CPU_CAPABILITY": "default"},
}
FLOOR = 1e-5  # below it a difference is compared with this, not with the number itself


def measure(chapter: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """The envelope of a chapter's rehearsal under an environment."""
    env = {**os.environ, **environment, "QUICK": "1", "RECOMPUTE": "force", "MPLBACKEND": "agg"}
    script = paths.SCRIPTS / f"{chapter}.py"
    subprocess.run(
        [sys.executable, str(script)], cwd=paths.ROOT, env=env, check=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return results.read(paths.BUILD / "quick" / "course" / f"{chapter}.json")


def gap(verdict: compare.Verdict) -> float:
    """|new - old| as a share of the larger, or of FLOOR; infinite where a word differs."""
    pair = (verdict.new, verdict.old)
    if not all(isinstance(x, int | float) and not isinstance(x, bool) for x in pair):
        return 0.0 if verdict.new == verdict.old else float("inf")
    return abs(pair[0] - pair[1]) / max(abs(pair[0]), abs(pair[1]), FLOOR)


def summary(verdicts: list[compare.Verdict]) -> dict[str, dict[str, Any]]:
    """Kind -> how many numbers, how many moved, how far, and how many left their tolerance."""
    out = {}
    for kind in compare.KINDS:
        mine = [v for v in verdicts if v.kind == kind]
        moved = sorted(g for g in map(gap, mine) if g > 0)
        finite = [g for g in moved if g != float("inf")]
        out[kind] = {
            "numbers": len(mine),
            "moved": len(moved),
            "median": statistics.median(finite) if finite else 0.0,
            "largest": max(finite, default=0.0),
            "outside": sum(not v.ok for v in mine),
        }
    lost = [v for v in verdicts if v.kind not in compare.KINDS]
    return out | ({"other shape": {"numbers": len(lost)}} if lost else {})


def readings(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """What chapters read from the two-layer model, in one number format."""
    model = zoo.load("attn-only-2l", device="cpu", dtype=dtype)
    tokens = torch.from_numpy(corpus.heldout_windows(8).tokens)
    batch = probe.repeated_batch(Bench.frequent(), 8, generator=torch.Generator().manual_seed(0))
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in (0, 1)]
    _, cache = cut.run(model, batch.tokens, names=names)
    factors = [
        scan.ov_factors(model.W_E, model.W_V[1, h], model.W_O[1, h], model.W_U)
        for h in range(model.cfg.n_heads)
    ]
    return {
        "loss of one token (nats)": model(tokens, return_type="loss_per_token"),
        "mean loss (nats)": model(tokens, return_type="loss_per_token").mean(),
        "attention pattern": cache[names[1]],
        "prefix matching": probe.prefix_matching_score(cache[names[1]], batch.tokens).mean(0),
        "copying score": torch.stack([scan.copying_score(A, B) for A, B in factors]),
        "K-composition score": compose.pair_scores(
            model.W_V[0], model.W_O[0], model.W_K[1], model.W_Q[1].mT
        ),
    }


def formats() -> dict[str, float]:
    """Reading -> largest |float32 - float64|, in the reading's own unit."""
    single, double = readings(torch.float32), readings(torch.float64)
    return {name: (single[name].double() - x).abs().max().item() for name, x in double.items()}


def main(chapters: list[str]) -> int:
    """Measure, compare, write."""
    chapters = chapters or compare.chapters()
    with ThreadPoolExecutor(2) as pool:  # two chapters at a time: only times would notice
        runs = {
            name: dict(
                zip(chapters, pool.map(measure, chapters, [env] * len(chapters)), strict=True)
            )
            for name, env in CONDITIONS.items()
        }
    first = runs.pop("one thread")
    found = {}
    for name, run in runs.items():
        verdicts, changed, claims = [], 0, 0
        for chapter, envelope in run.items():
            old = first[chapter]
            verdicts += compare.compare(envelope["data"], old["data"], envelope["kinds"])
            before = {c["id"]: c["holds"] for c in old["claims"]}
            claims += len(before)
            changed += sum(c["holds"] != before[c["id"]] for c in envelope["claims"])
        found[name] = {
            "kinds": summary(verdicts), "claims": claims, "claims that changed": changed
        }  # fmt: skip
        print(name, json.dumps(found[name]), flush=True)
    kept = {"chapters": len(chapters), "conditions": found, "float32 against float64": formats()}
    text = json.dumps(results.plain(kept), indent=1, sort_keys=True) + "\n"
    results.write(Path(paths.RESULTS) / "noise.json", text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
