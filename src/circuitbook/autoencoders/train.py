"""The trainer of the course's dictionaries: a model's activations in, one weight file out.

It works in coordinates where the inputs have mean 0 and unit mean square length, and the targets
too; the result is written back into the plain formula of `sae.Dictionary`. A killed run goes on
from its last checkpoint to the same bytes: the rows of a step are a function of the step, and
nothing is drawn from a global generator. One thread.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from circuitbook import corpus, paths, zoo
from circuitbook.autoencoders import bundle, quality, steps
from circuitbook.autoencoders.activations import training_rows
from circuitbook.autoencoders.recipes import RECIPES, SWEEP, Recipe
from circuitbook.autoencoders.sae import Dictionary, unit_rows
from circuitbook.train import only_one

PARTS = 16  # steps that one chunk of text is cut into
CHECKPOINT_EVERY = 20  # chunks


class Run:
    """One training run: parameters, Adam's state, how long each latent has been silent."""

    def __init__(self, rec: Recipe, folder: Path, text: np.ndarray, sha: str = "") -> None:
        self.rec, self.folder, self.text = rec, folder, text
        self.sha = f"{rec.sha256()} {sha}"  # recipe, and the model's and the text's hashes
        self.model = zoo.load(rec.role, device="cpu")
        self.chunk, self.seconds, self.curve = 0, 0.0, []

    def data(self, chunk: int) -> tuple[Tensor, Tensor]:
        """The rows of one chunk, in the model's own units."""
        r = self.rec
        return training_rows(
            self.model,
            r.role,
            r.layer,
            r.site,
            self.text,
            windows=r.windows,
            seed=r.data_seed,
            chunk=chunk,
        )

    def begin(self) -> None:
        """Coordinates from the first chunk; each latent starts as one row of it."""
        x, y = self.data(0)
        self.mean = {"x": x.mean(0), "y": y.mean(0)}
        self.scale = {
            "x": float((x - self.mean["x"]).square().sum(1).mean().sqrt()),
            "y": float((y - self.mean["y"]).square().sum(1).mean().sqrt()),
        }
        x, y = self.normal(x, y)
        generator = torch.Generator().manual_seed(self.rec.seed)
        at = torch.randperm(x.shape[0], generator=generator)[: self.rec.latents]
        self.params = {
            "E": torch.nn.functional.normalize(x[at], dim=1),
            "b_enc": torch.zeros(self.rec.latents),
            "D": torch.nn.functional.normalize(y[at], dim=1),
            "b_dec": torch.zeros(y.shape[1]),
        }
        if not self.rec.k:  # each latent begins on for 2 % of the rows, not for half of them
            p = steps.pre(x[:4096], self.params["E"], self.params["b_enc"])
            self.params["b_enc"] = -p.sort(0).values[round(0.98 * p.shape[0])]
        self._fit_size(x[:1024], y[:1024])
        self.silent = torch.zeros(self.rec.latents, dtype=torch.int64)
        self.optimizer = torch.optim.Adam(list(self.params.values()), lr=0.0, fused=True)

    def _fit_size(self, x: Tensor, y: Tensor) -> None:
        """Make the encoder smaller, so that the first outputs have the best size."""
        zero = self.params["b_dec"]
        pairs = steps.on(steps.pre(x, self.params["E"], self.params["b_enc"]), self.rec.k)
        f = torch.zeros(x.shape[0], self.rec.latents)
        f[pairs.row, pairs.latent] = pairs.value
        out = f @ self.params["D"] + zero
        size = float((out * y).sum() / out.square().sum())
        self.params["E"] *= size
        self.params["b_enc"] *= size

    def normal(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(read, target) in the trainer's coordinates."""
        out = (x - self.mean["x"]) / self.scale["x"]
        return out, out if y is x else (y - self.mean["y"]) / self.scale["y"]

    def advance(self) -> dict:
        """One chunk of text, 16 steps; returns the mean of what was seen."""
        total, r = self.rec.chunks * PARTS, self.rec
        x, y = self.normal(*self.data(self.chunk))
        seen = []
        for part, (xs, ys) in enumerate(zip(x.chunk(PARTS), y.chunk(PARTS), strict=True)):
            step = self.chunk * PARTS + part
            share = min(1.0, (step + 1) / 100, (total - step) / (r.decay * total))
            self.optimizer.param_groups[0]["lr"] = r.rate * share
            penalty = r.penalty * min(1.0, (step + 1) / (r.warm * total))
            seen.append(self._step(xs, ys, penalty))
        self.chunk += 1
        names = ("unexplained", "l0", "dead")
        row = {n: round(float(np.mean([s[n] for s in seen])), 5) for n in names}
        self.curve.append({"rows": self.chunk * r.windows * 511, **row})
        return self.curve[-1]

    def _step(self, x: Tensor, y: Tensor, penalty: float) -> dict[str, float]:
        k, dead = self.rec.k, self.silent > self.rec.dead_after
        p = steps.pre(x, self.params["E"], self.params["b_enc"])
        revived = p[:, dead] if k and bool(dead.any()) else None
        g = steps.gradients(self.params, x, y, k, penalty, p)
        grads = {"E": g.E, "b_enc": g.b_enc, "D": g.D, "b_dec": g.b_dec}
        if revived is not None:
            self._revive(grads, x, g.error, revived, dead)
        if k:
            grads["D"] = steps.without_radial(grads["D"], self.params["D"])
        for name, value in self.params.items():
            value.grad = grads[name]
        self.optimizer.step()
        if k:
            self.params["D"].div_(self.params["D"].norm(dim=1, keepdim=True))
        self.silent = torch.where(g.fired > 0, 0, self.silent + x.shape[0])
        square = (y - y.mean(0)).square().sum()
        return {
            "unexplained": float(g.error.square().sum() / square),
            "l0": float(g.fired.sum()) / x.shape[0],
            "dead": float(dead.float().mean()),
        }

    def _revive(self, grads: dict, x: Tensor, error: Tensor, p: Tensor, dead: Tensor) -> None:
        """Dead latents are trained to write what is missing: -error (Gao et al. 2024, AuxK)."""
        few = {n: self.params[n][dead] for n in ("E", "b_enc", "D")}
        few["b_dec"] = torch.zeros(error.shape[1])
        g = steps.gradients(few, x, -error, min(2 * self.rec.k, int(dead.sum())), 0.0, p)
        for name in ("E", "b_enc", "D"):
            grads[name][dead] += self.rec.dead_share * getattr(g, name)

    def dictionary(self) -> Dictionary:
        """The parameters in the model's own units, rows of W_dec of length 1."""
        up, down = self.scale["y"], self.scale["y"] / self.scale["x"]
        W_enc = self.params["E"].T * down
        plain = Dictionary(
            W_enc,
            self.params["b_enc"] * up - self.mean["x"] @ W_enc,
            self.params["D"],
            self.params["b_dec"] * up + self.mean["y"],
            self.rec.k,
        )
        return unit_rows(plain)

    # ---- going on after an interruption ------------------------------------------------------

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.pt"

    def save(self) -> None:
        """Write the checkpoint whole or not at all.

        Raises FloatingPointError when a parameter is not finite; the one before is kept.
        """
        if not all(bool(p.isfinite().all()) for p in self.params.values()):
            raise FloatingPointError(f"parameters not finite after chunk {self.chunk}: lower rate")
        state = {
            "sha": self.sha,
            "params": self.params,
            "optimizer": self.optimizer.state_dict(),
            **{n: getattr(self, n) for n in ("mean", "scale", "silent", "chunk", "curve")},
            "seconds": self.seconds,
        }
        scratch = self.checkpoint.with_name(f".checkpoint.{os.getpid()}")
        torch.save(state, scratch)
        os.replace(scratch, self.checkpoint)

    def restore(self) -> bool:
        """Go on from the checkpoint if there is one of this very recipe, model and text."""
        if not self.checkpoint.is_file():
            return False
        try:
            saved = torch.load(self.checkpoint, weights_only=True)
        except Exception:  # torch raises many kinds for a damaged file
            return False
        if saved["sha"] != self.sha:
            return False
        for name in ("mean", "scale", "silent", "chunk", "curve", "seconds"):
            setattr(self, name, saved[name])
        self.params = saved["params"]
        self.optimizer = torch.optim.Adam(list(self.params.values()), lr=0.0, fused=True)
        self.optimizer.load_state_dict(saved["optimizer"])
        return True


def run(name: str, rec: Recipe, text: np.ndarray, folder: Path, sha: str = "") -> Run:
    """Train to the recipe's last chunk, from the checkpoint if there is one."""
    state = Run(rec, folder, text, sha)
    with only_one(folder):
        if not state.restore():
            state.begin()
        before, first, begun = state.seconds, state.chunk, time.monotonic()
        while state.chunk < rec.chunks:
            row = state.advance()
            elapsed = time.monotonic() - begun
            state.seconds = before + elapsed
            if state.chunk % CHECKPOINT_EVERY == 0 or state.chunk == rec.chunks:
                state.save()
            left = round(elapsed / (state.chunk - first) * (rec.chunks - state.chunk))
            if state.chunk % 5 == 0 or state.chunk == rec.chunks:
                print(
                    f"{name}: chunk {state.chunk} of {rec.chunks}, {row}, {left} s left", flush=True
                )
    return state


def judge(dictionary: Dictionary, role: str) -> dict:
    """What `quality.score` says on 64 held-out windows; needs a one-layer model."""
    model, text = zoo.load(role, device="cpu"), corpus.heldout_windows(64, seed=11)
    seen = quality.read(model, torch.as_tensor(text.tokens), torch.as_tensor(text.doc))
    full, zero = (quality.losses(model, seen, way) for way in (None, torch.zeros_like))
    found = quality.score(model, seen, dictionary, full, zero)
    return {key: round(value, 6) for key, value in found.items()}


def train_one(name: str) -> None:
    """Train a dictionary of `RECIPES` and write its weight file, curve and manifest entry."""
    rec = RECIPES[name]
    if not bundle.trouble(name, rec):
        print(f"{name}: up to date", flush=True)
        return
    state = run(name, rec, corpus.train_tokens(), paths.BUILD / "train" / name, source(rec))
    whole = state.dictionary()
    measured = {"curve": state.curve}
    if rec.site == "neurons":
        eight = bundle.unpack(bundle.pack(whole), rec.k)
        measured["stored"] = {
            kind: judge(d, rec.role) for kind, d in (("float", whole), ("int8", eight))
        }
    path = bundle.write(name, whole, rec, seconds=round(state.seconds), measured=measured)
    print(f"{name}: {path.stat().st_size:,} bytes", flush=True)


def sweep(name: str = "sae-gelu-1l") -> None:
    """Train the shorter runs of `SWEEP` and keep what they score beside the curve of `name`."""
    kept = bundle.measured(name)
    wanted = {each: rec.sha256() for each, rec in SWEEP.items()}
    if kept.get("sweep") == wanted:
        print(f"{name}: the shorter runs are up to date", flush=True)
        return
    rows = []
    for each, rec in SWEEP.items():
        state = run(each, rec, corpus.train_tokens(), paths.BUILD / "train" / each, source(rec))
        scored = judge(state.dictionary(), rec.role)
        rows.append({"penalty": rec.penalty, "k": rec.k, "tokens": rec.rows, **scored})
    bundle.write_measured(name, {**kept, "sweep": wanted, "frontier": rows})


def source(rec: Recipe) -> str:
    """The sha256 of the model's weight file and of the training text."""
    made_from = bundle.provenance(rec)
    return f"{made_from['model_sha256']} {made_from['corpus_sha256']}"


def main(arguments: list[str]) -> int:
    """`python -m circuitbook.autoencoders.train all` or some names: train what is out of date."""
    parser = argparse.ArgumentParser(
        prog="circuitbook.autoencoders.train", description=main.__doc__
    )
    parser.add_argument("names", nargs="+", choices=["all", *RECIPES])
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        with paths.model_set("course"):
            for name in RECIPES if "all" in options.names else options.names:
                train_one(name)
            if "all" in options.names:
                sweep()
    except (corpus.TextError, zoo.WeightsError, FloatingPointError, RuntimeError) as error:
        print(f"dictionaries: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
