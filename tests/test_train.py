"""A run killed at any moment ends in the same bytes; what can go wrong says what to do."""

import multiprocessing
import random
import re
import time

import numpy as np
import pytest
import torch
from train_toy import settled, stream, tiny  # noqa: F401  settled is a fixture

from circuitbook import paths, train


def files(folder):
    """Everything a finished run leaves, by name: the snapshots' bytes and the loss history."""
    found = {p.name: p.read_bytes() for p in sorted((folder / "snapshots").glob("*"))}
    saved = torch.load(folder / "checkpoint.pt", weights_only=True)
    return {**found, "losses": saved["losses"], "step": saved["step"]}


# ---- the text's order


def test_batch_opens_with_bos_and_shifts_by_one():
    tokens = stream()
    inputs, targets = train.batch(tokens, tiny(), 7)
    assert inputs.shape == targets.shape == (2, 40) and inputs.dtype == torch.int64
    assert (inputs[:, 0] == 0).all() and (inputs[:, 1:] == targets[:, :-1]).all()
    text = tokens.tobytes()
    assert all(row.numpy().astype(np.uint16).tobytes() in text for row in targets)


def test_an_epoch_repeats_nothing_and_the_next_is_cut_elsewhere():
    tokens = np.arange(1, 2003, dtype=np.uint16)  # every token says where it stands
    rec = tiny()
    per_epoch = (len(tokens) // 40 - 1) // 2
    epochs = []
    for epoch in range(3):
        steps = range(epoch * per_epoch, (epoch + 1) * per_epoch)
        seen = torch.cat([train.batch(tokens, rec, step)[1].flatten() for step in steps])
        assert len(seen.unique()) == len(seen) == per_epoch * 80 > 0.9 * len(tokens)
        epochs.append(seen)
    assert len({int(e.min()) % 40 for e in epochs}) > 1
    assert not torch.equal(epochs[0], epochs[1])


def test_order_is_a_function_of_step_and_data_seed_alone():
    tokens = stream()
    later = train.batch(tokens, tiny(), 130)
    assert all(torch.equal(a, b) for a, b in zip(later, train.batch(tokens, tiny(seed=5), 130)))
    assert not torch.equal(later[1], train.batch(tokens, tiny(data_seed=1), 130)[1])
    with pytest.raises(ValueError, match="100 tokens are too few"):
        train.batch(tokens[:100], tiny(), 0)


def test_rate():
    rec = tiny(steps=100, warmup=10, decay_share=0.4)
    rates = [train.rate(rec, step) for step in range(100)]
    assert rates[0] == 0.1 and rates[9:61] == [1.0] * 52
    assert rates[80] == 0.5 and rates[99] == pytest.approx(1 / 40)


# ---- resuming


def test_learning_happens():
    """On a stream that repeats, the loss falls far below that of the frequencies."""
    tokens = np.tile(np.arange(1, 17, dtype=np.uint16), 400)
    rec = tiny(steps=40)
    state = train.Run(rec, paths.BUILD)  # writes nothing
    losses = [state.advance(tokens) for _ in range(40)]
    assert losses[0] == pytest.approx(np.log(64), abs=0.02) and losses[-1] < 1.0


def test_the_same_bytes_twice(tmp_path):
    for name in "ab":
        train.run(tiny(), stream(), tmp_path / name)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert len(files(tmp_path / "a")["losses"]) == 24


def _run_slowly(folder):
    advance = train.Run.advance

    def slowly(self, tokens):
        time.sleep(0.03)  # 24 steps outlast the longest wait below
        return advance(self, tokens)

    train.Run.advance, train.CHECKPOINT_EVERY = slowly, 4
    train.run(tiny(), stream(), folder)


def test_killed_at_random_moments_and_resumed(tmp_path):
    """kill -9, many times, in the midst of whatever the run does; then let it finish."""
    train.run(tiny(), stream(), tmp_path / "whole")
    folder, rng = tmp_path / "killed", random.Random(0)
    fork, kills = multiprocessing.get_context("fork"), 0
    for attempt in range(60):
        process = fork.Process(target=_run_slowly, args=(folder,))
        process.start()
        process.join(timeout=rng.uniform(0.02, 0.4) if attempt < 59 else None)
        if process.exitcode == 0:
            break
        kills += process.is_alive()
        process.kill()
        process.join()
    assert process.exitcode == 0 and kills >= 1
    found, wanted = files(folder), files(tmp_path / "whole")
    assert {name: found[name] for name in wanted} == wanted
    halves = set(found) - set(wanted)  # what was being written when the kill came
    assert all(name.startswith(".") for name in halves)


@pytest.mark.parametrize("stop", [1, 5, 12, 23])
def test_stopped_after_any_step_and_resumed(tmp_path, monkeypatch, stop, capsys):
    """Also when the stop falls between a snapshot and its checkpoint."""
    monkeypatch.setattr(train, "CHECKPOINT_EVERY", 3)
    train.run(tiny(), stream(), tmp_path / "whole")
    advance = train.Run.advance

    def stopping(self, tokens):
        if self.step == stop:
            raise KeyboardInterrupt
        return advance(self, tokens)

    with monkeypatch.context() as patch:
        patch.setattr(train.Run, "advance", stopping)
        with pytest.raises(KeyboardInterrupt):
            train.run(tiny(), stream(), tmp_path / "cut")
    capsys.readouterr()
    train.run(tiny(), stream(), tmp_path / "cut")
    assert files(tmp_path / "cut") == files(tmp_path / "whole")
    assert f"from step {stop // 3 * 3}" in capsys.readouterr().out or stop < 3


def test_a_finished_run_does_nothing(tmp_path, monkeypatch):
    train.run(tiny(), stream(), tmp_path)
    before = files(tmp_path)
    monkeypatch.setattr(train.Run, "advance", None)
    assert train.run(tiny(), stream(), tmp_path).step == 24
    assert files(tmp_path) == before


def _truncate(folder):
    data = (folder / "checkpoint.pt").read_bytes()
    (folder / "checkpoint.pt").write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (_truncate, "checkpoint cannot be read"),
        (lambda f: (f / "checkpoint.pt").write_bytes(b""), "checkpoint cannot be read"),
        (lambda f: (f / "snapshots/step-000004.safetensors").unlink(), r"steps \[4\] are gone"),
    ],
)
def test_a_useless_checkpoint_is_named_and_the_run_begins_anew(tmp_path, capsys, harm, said):
    train.run(tiny(), stream(), tmp_path)
    before = files(tmp_path)
    harm(tmp_path)
    capsys.readouterr()
    train.run(tiny(), stream(), tmp_path)
    assert re.search(f"{said}.*from step 0", capsys.readouterr().out)
    assert files(tmp_path) == before


def test_another_recipe_or_text_is_not_resumed(tmp_path, capsys):
    train.run(tiny(), stream(), tmp_path / "mixed")
    for name, rec, tokens in (
        ("recipe", tiny(lr=0.01), stream()),
        ("text", tiny(), stream(seed=1)),
    ):
        capsys.readouterr()
        train.run(rec, tokens, tmp_path / "mixed")
        assert f"of another {name}; from step 0" in capsys.readouterr().out
        train.run(rec, tokens, tmp_path / name)
        assert files(tmp_path / "mixed") == files(tmp_path / name)
        train.run(tiny(), stream(), tmp_path / "mixed")


# ---- trouble


def test_loss_that_is_no_number_stops_and_keeps_the_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(train, "CHECKPOINT_EVERY", 4)
    advance = train.Run.advance

    def spoiled(self, tokens):
        loss = advance(self, tokens)
        return float("nan") if self.step == 10 else loss

    monkeypatch.setattr(train.Run, "advance", spoiled)
    with pytest.raises(FloatingPointError, match="toy: the loss became nan at step 10.*kept in"):
        train.run(tiny(), stream(), tmp_path, name="toy")
    assert files(tmp_path)["step"] == 8
    assert not (tmp_path / "snapshots/step-000012.safetensors").exists()


def test_weights_that_are_no_numbers_are_not_saved(tmp_path):
    state = train.Run(tiny(), tmp_path)
    state.save()
    before = (tmp_path / "checkpoint.pt").read_bytes()
    with torch.no_grad():
        state.params["embed.W_E"][3, 3] = torch.inf
    with pytest.raises(FloatingPointError, match="embed.W_E not finite"):
        state.save()
    assert (tmp_path / "checkpoint.pt").read_bytes() == before


def test_only_one_run_at_a_time(tmp_path):
    folder = tmp_path / "attn-only-1l"
    with train.only_one(folder):
        with pytest.raises(RuntimeError, match="Another process is training attn-only-1l. Wait"):
            train.only_one(folder).__enter__()
    with train.only_one(folder):
        pass  # free again


def test_progress_says_the_time_left_at_the_present_pace():
    state = train.Run(tiny(steps=1000), paths.BUILD)
    state.step, state.losses, state.seconds = 500, [2.0] * 500, 9999.0  # slow long ago
    line = train._progress("toy", state, 100, 50.0)  # half a second a step in this process
    assert line == "toy: step 500 of 1,000, loss 2.000 nats, 160 tokens/s, 0:04:10 left"


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_cuda_trains_and_resumes(tmp_path, monkeypatch):
    train.settle("cuda")
    monkeypatch.setattr(train, "CHECKPOINT_EVERY", 5)
    for name in "ab":
        train.run(tiny(), stream(), tmp_path / name, device="cuda")
    assert files(tmp_path / "a") == files(tmp_path / "b")
    cpu = train.run(tiny(), stream(), tmp_path / "cpu")
    difference = np.subtract(files(tmp_path / "a")["losses"], cpu.losses)
    assert np.abs(difference).max() < 0.05
