"""The trainer: a recipe and a stream of tokens in, snapshots and one weight file out.

A run can be killed at any moment. It goes on from its last checkpoint to the same bytes: the order
of the text is a function of the step, and nothing is drawn from a global generator. A checkpoint
of another recipe or text, or one that cannot be read, is not used: the run says so and begins at
step 0, which gives the same bytes later. On a CPU each model trains on one thread and several
models run side by side, which is both faster and exactly repeatable; on CUDA they run one after
another, with the deterministic kernels that torch has.

Needs torch, numpy and safetensors only, once the token file exists.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from circuitbook import fast, optim, paths, tasks
from circuitbook.recipes import RECIPES, Recipe, recipe
from circuitbook.weightfile import manifest_entry, up_to_date, write_weights

CHECKPOINT_EVERY = 200
BOS = 0


def batch(tokens: np.ndarray, rec: Recipe, step: int) -> tuple[Tensor, Tensor]:
    """(inputs, targets) of one step, int64 [windows, n_ctx]: BOS and the text shifted by one.

    Each epoch cuts the stream at another offset and shuffles the windows; both are drawn from
    (data_seed, epoch), so step 1,000 is the same whether or not a run was interrupted. A recipe
    with a task draws its own prompts, and its targets are -1 where a position does not count.
    """
    if rec.task:
        inputs, answers = tasks.batch(rec, step)
        return torch.from_numpy(inputs), torch.from_numpy(answers)
    length, per_step = rec.config.n_ctx, rec.windows
    per_epoch = (len(tokens) // length - 1) // per_step
    if per_epoch < 1:
        raise ValueError(f"{len(tokens)} tokens are too few for one step of this recipe.")
    epoch, place = divmod(step, per_epoch)
    rng = np.random.default_rng([rec.data_seed, epoch])
    offset = int(rng.integers(length))
    order = rng.permutation(per_epoch * per_step)
    rows = order[place * per_step : (place + 1) * per_step]
    text = np.stack([tokens[offset + r * length : offset + (r + 1) * length] for r in rows])
    targets = torch.from_numpy(text.astype(np.int64))
    start = torch.full((per_step, 1), BOS, dtype=torch.int64)
    return torch.cat([start, targets[:, :-1]], dim=1), targets


def rate(rec: Recipe, step: int) -> float:
    """The share of the peak rate at a step: linear warm-up, flat, linear decay to zero."""
    decay = max(1, round(rec.decay_share * rec.steps))
    return min(1.0, (step + 1) / rec.warmup, (rec.steps - step) / decay)


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, so two runs never write the same role.

    Raises RuntimeError when another process trains this role.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(
                f"Another process is training {folder.name}. Wait for it, or stop it first."
            ) from None
        yield


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    write(scratch)
    os.replace(scratch, path)


def _clear_scratch(folder: Path) -> None:
    """Remove the half-written files of a killed run; only for the holder of the folder's lock."""
    for path in [*folder.glob(".*.pt.*"), *folder.glob("snapshots/.*")]:
        path.unlink()


def snapshot_path(folder: Path, step: int) -> Path:
    """Where the weights after `step` steps are kept (half precision)."""
    return folder / "snapshots" / f"step-{step:06d}.safetensors"


class Run:
    """One training run: weights, optimiser state, loss history, step."""

    def __init__(self, rec: Recipe, folder: Path, device: str = "cpu", text: str = "") -> None:
        self.rec, self.folder, self.device = rec, folder, device
        self.text = text  # the sha256 of the training tokens
        start = fast.init(rec.config, rec.seed, embed_std=rec.embed_std)
        self.params = {n: p.to(device).requires_grad_() for n, p in start.items()}
        self.optimizers = optim.build(self.params, rec.to_dict())
        self.peaks = [[g["lr"] for g in o.param_groups] for o in self.optimizers]
        self.w_pos = fast.sinusoid(rec.config).float().to(device)
        self.step, self.losses, self.seconds = 0, [], 0.0

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.pt"

    def _read_checkpoint(self) -> tuple[dict | None, str]:
        """(what was saved, "") when it belongs to this run and is whole; else (None, why not)."""
        if not self.checkpoint.is_file():
            return None, ""
        try:
            saved = torch.load(self.checkpoint, map_location=self.device, weights_only=True)
        except Exception as error:  # torch raises many kinds for a damaged file
            return None, f"its checkpoint cannot be read ({type(error).__name__})"
        if saved["recipe"] != self.rec.sha256():
            return None, "its checkpoint is of another recipe"
        if saved.get("text", self.text) != self.text:
            return None, "its checkpoint is of another text"
        lost = [n for n in self.rec.snapshots if n <= saved["step"]]
        lost = [n for n in lost if not snapshot_path(self.folder, n).is_file()]
        if lost:
            return None, f"its snapshots of steps {lost} are gone"
        return saved, ""

    def restore(self) -> str:
        """Go on from the checkpoint, if there is one of this very recipe and text.

        Returns why a checkpoint that is there was not used, or "".
        """
        saved, trouble = self._read_checkpoint()
        if saved is None:
            return trouble
        with torch.no_grad():
            for name, value in saved["params"].items():
                self.params[name].copy_(value)
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.step, self.losses = saved["step"], saved["losses"]
        self.seconds = saved["seconds"]
        return ""

    def save(self) -> None:
        """Write the checkpoint whole or not at all.

        Raises:
            FloatingPointError: a weight is not finite; the checkpoint before this one is kept.
        """
        bad = [n for n, p in self.params.items() if not bool(p.detach().isfinite().all())]
        if bad:
            raise FloatingPointError(f"{', '.join(bad)} not finite after step {self.step}")
        state = {
            "recipe": self.rec.sha256(),
            "text": self.text,
            "params": {n: p.detach() for n, p in self.params.items()},
            "optimizers": [o.state_dict() for o in self.optimizers],
            "step": self.step,
            "losses": self.losses,
            "seconds": self.seconds,
        }
        _replace(self.checkpoint, lambda path: torch.save(state, path))

    def half(self) -> dict[str, Tensor]:
        """The weights as they are stored: float16, on the CPU."""
        return {n: p.detach().half().cpu().contiguous() for n, p in self.params.items()}

    def advance(self, tokens: np.ndarray) -> float:
        """One step; returns its mean loss in nats."""
        share = rate(self.rec, self.step)
        for optimizer, peaks in zip(self.optimizers, self.peaks, strict=True):
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * share
        inputs, targets = (t.to(self.device) for t in batch(tokens, self.rec, self.step))
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        dtype = getattr(torch, self.rec.precision)
        uneven: list[Tensor] = []
        loss = fast.loss(self.rec.config, self.params, inputs, targets, self.w_pos, dtype, uneven)
        whole = loss + self.rec.balance * sum(uneven) if self.rec.balance else loss
        whole.backward()
        if self.rec.clip:
            torch.nn.utils.clip_grad_norm_(list(self.params.values()), self.rec.clip)
        for optimizer in self.optimizers:
            optimizer.step()
        self.step += 1
        self.losses.append(round(loss.item(), 4))
        return self.losses[-1]

    def snapshot(self) -> None:
        """Keep the present weights, if the recipe wants a snapshot at this step."""
        if self.step in self.rec.snapshots:
            path = snapshot_path(self.folder, self.step)
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(path, lambda scratch: save_file(self.half(), scratch))


def text_sha256(tokens: np.ndarray) -> str:
    """The sha256 of a stream of tokens; that of the course text is `corpus.corpus_sha256()`."""
    return hashlib.sha256(np.ascontiguousarray(tokens)).hexdigest()


def _progress(name: str, state: Run, done: int, elapsed: float) -> str:
    """One line: where the run is and how long it takes at the pace of this process."""
    rec = state.rec
    pace = elapsed / done
    left = round(pace * (rec.steps - state.step))
    speed = rec.windows * rec.config.n_ctx / max(pace, 1e-9)
    return (
        f"{name}: step {state.step:,} of {rec.steps:,}, loss {np.mean(state.losses[-100:]):.3f} "
        f"nats, {speed:,.0f} tokens/s, {left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"
    )


def run(
    rec: Recipe, tokens: np.ndarray, folder: Path, *, device: str = "cpu", name: str = "model"
) -> Run:
    """Train to the recipe's last step, from the checkpoint if there is one.

    Raises:
        FloatingPointError: the loss is not a number; the checkpoint before it is kept.
    """
    state = Run(rec, folder, device, text_sha256(tokens))
    trouble = state.restore()
    if trouble or state.step:
        print(f"{name}: {trouble or 'goes on'}; from step {state.step:,}", flush=True)
    if state.step == 0:
        state.snapshot()
    before, first, begun = state.seconds, state.step, time.monotonic()
    while state.step < rec.steps:
        try:
            if not np.isfinite(loss := state.advance(tokens)):
                raise FloatingPointError(f"the loss became {loss} at step {state.step}")
            state.snapshot()
            elapsed = time.monotonic() - begun
            state.seconds = before + elapsed
            if state.step % CHECKPOINT_EVERY == 0 or state.step == rec.steps:
                state.save()
        except FloatingPointError as error:
            raise FloatingPointError(
                f"{name}: {error}. The last checkpoint is kept in {folder}. "
                f"Lower the rates of the recipe, or change its seed."
            ) from None
        done = state.step - first
        if done == 10 or state.step % 100 == 0 or state.step == rec.steps:
            print(_progress(name, state, done, elapsed), flush=True)
    return state


def train_role(role: str, *, device: str = "cpu", force: bool = False) -> None:
    """Train one role and write `weights/<role>.safetensors`, its curves and its manifest entry.

    A finished run whose weight file is gone or damaged is only written out again. `force` throws a
    finished run away and trains anew; one that was interrupted goes on.
    """
    from circuitbook import corpus, curves  # the text and the instruments, only when needed

    rec = recipe(role)
    if rec.task:
        tokens = tasks.sample(rec.task)  # what it would be trained on, in place of the text
        corpus_hash = text_sha256(tokens)
    else:
        corpus_hash = corpus.corpus_sha256()
    if not force and up_to_date(role, rec, corpus_hash):
        print(f"{role}: up to date", flush=True)
        return
    folder = paths.BUILD / "train" / role
    if not rec.task:
        tokens = corpus.train_tokens()
    with only_one(folder):
        _clear_scratch(folder)
        if force:
            finished = Run(rec, folder, text=text_sha256(tokens))
            finished.restore()
            if finished.step == rec.steps:
                finished.checkpoint.unlink()
        state = run(rec, tokens, folder, device=device, name=role)
        if rec.snapshots:
            print(f"{role}: measuring {len(rec.snapshots)} snapshots", flush=True)
            curves.write(role, rec, folder, state.losses)
        write_weights(role, state.half(), rec, corpus_hash)
        manifest_entry(role, rec, corpus_hash, seconds=round(state.seconds), device=device)
    print(f"{role}: done", flush=True)


def cores() -> int:
    """How many processors this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # Linux has it, macOS has not
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def settle(device: str) -> None:
    """One thread on a CPU, and the deterministic kernels: what the same bytes twice depend on."""
    if device == "cpu":
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        return
    # cuBLAS is repeatable only with a fixed workspace, chosen before its first call. What has no
    # deterministic kernel warns and runs.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)


def train_all(roles: list[str], jobs: int, device: str, *, force: bool = False) -> int:
    """Train roles side by side, one single-threaded process each; returns how many failed."""
    waiting, running, failed = list(roles), {}, 0
    environment = dict(os.environ, OMP_NUM_THREADS="1") if device == "cpu" else dict(os.environ)
    try:
        while waiting or running:
            while waiting and len(running) < max(1, jobs):
                role = waiting.pop(0)
                command = [sys.executable, "-m", "circuitbook.train", role, "--device", device]
                command += ["--force"] if force else []
                running[role] = subprocess.Popen(command, env=environment)
            time.sleep(0.2)
            for role, process in list(running.items()):
                if process.poll() is not None:
                    failed += process.returncode != 0
                    del running[role]
    finally:  # after an interruption: no run is left behind
        for process in running.values():
            process.terminate()
            process.wait()
    return failed


@paths.model_set("course")  # whatever MODELS says, they learn from the course's text
def main(arguments: list[str]) -> int:
    """`python -m circuitbook.train all` or some roles: train what is not up to date."""
    parser = argparse.ArgumentParser(prog="circuitbook.train", description=main.__doc__)
    parser.add_argument("roles", nargs="+", choices=["all", *RECIPES])
    parser.add_argument("--jobs", type=int, default=cores(), help="how many side by side")
    parser.add_argument("--device", choices=["cpu", "cuda"], default=None)
    parser.add_argument("--force", action="store_true", help="train again what is up to date")
    options = parser.parse_args(arguments)
    name = " ".join(options.roles)
    try:
        device = options.device or paths.device()
        if "all" not in options.roles and len(options.roles) == 1:
            settle(device)
            train_role(options.roles[0], device=device, force=options.force)
            return 0
        roles = list(RECIPES) if "all" in options.roles else list(dict.fromkeys(options.roles))
        # the longest first, so that the last to finish is a short one
        roles.sort(key=lambda r: -RECIPES[r].tokens * (1 + RECIPES[r].config.n_layers))
        jobs = 1 if device == "cuda" else options.jobs
        return min(1, train_all(roles, jobs, device, force=options.force))
    except (RuntimeError, ValueError, OSError, FloatingPointError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{name}: stopped. The same command goes on from the last checkpoint.")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
