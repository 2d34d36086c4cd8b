"""The trainer of dictionaries: repeatable, interruptible, and it finds a planted dictionary."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_sae import TOY, gen, toy_model

from circuitbook import fast, paths, weightfile, zoo
from circuitbook import recipes as models
from circuitbook.autoencoders import activations, bundle, sae, steps, train
from circuitbook.autoencoders import recipes as dictionaries
from circuitbook.autoencoders.recipes import Recipe

WIDE = replace(TOY, n_ctx=16)
TEXT = np.random.default_rng(0).integers(1, 70, 20_000).astype(np.uint16)
SMALL = Recipe("toy", 0, "neurons", 60, chunks=3, k=4, windows=32)


@pytest.fixture
def toy(project, monkeypatch):
    """A toy role with random weights, its text, and two recipes for dictionaries of it."""
    monkeypatch.setitem(models.RECIPES, "toy", models.Recipe(WIDE, steps=10))
    monkeypatch.setattr("circuitbook.corpus.corpus_sha256", lambda: "c" * 64)
    monkeypatch.setattr("circuitbook.corpus.train_tokens", lambda: TEXT)
    known = {"sae-toy": SMALL, "coder-toy": replace(SMALL, site="mlp", k=5)}
    for name in ("RECIPES", "SWEEP"):
        monkeypatch.setattr(dictionaries, name, known if name == "RECIPES" else {})
        monkeypatch.setattr(train, name, known if name == "RECIPES" else {}, raising=False)
    monkeypatch.setattr(bundle, "RECIPES", known)
    params = {n: p for n, p in toy_model().state_dict().items() if n in fast.shapes(WIDE)}
    weights = {n: p.half() for n, p in params.items()}
    weightfile.write_weights("toy", weights, models.recipe("toy"), "c" * 64)
    weightfile.manifest_entry("toy", models.recipe("toy"), "c" * 64, seconds=1, device="cpu")
    monkeypatch.setattr(train, "judge", lambda d, role: {"l0": float(d.k)})
    return known


def test_training_rows_are_the_models_own(toy):
    model = zoo.load("toy")
    for site in activations.SITES:
        x, y = activations.training_rows(model, "toy", 0, site, TEXT, windows=8, seed=3, chunk=1)
        again = activations.training_rows(model, "toy", 0, site, TEXT, windows=8, seed=3, chunk=1)
        assert torch.equal(x, again[0]) and torch.equal(y, again[1])
        assert x.shape[0] == 8 * 15  # BOS's position is left out
        cut = replace(models.recipe("toy"), windows=8, data_seed=3)
        from circuitbook.train import batch

        reads, writes = activations.hooks(site, 0)
        rows = activations.rows_of(model, batch(TEXT, cut, 1)[0], reads, writes)
        order = torch.randperm(120, generator=torch.Generator().manual_seed(3 * 1_000_003 + 1))
        for mine, theirs in ((x, rows[0][order]), (y, rows[-1][order])):
            assert (mine - theirs).norm() < 0.02 * theirs.norm()  # bfloat16
    with pytest.raises(ValueError, match="neurons"):
        activations.hooks("heads", 0)


def run(tmp_path, name, rec=SMALL, sha=""):
    folder = tmp_path / name
    return train.run(name, rec, TEXT, folder, sha), folder


def same(a, b):
    return all(torch.equal(a.params[n], b.params[n]) for n in a.params)


def test_a_killed_run_goes_on_to_the_same_bytes(toy, tmp_path, monkeypatch):
    whole, _ = run(tmp_path, "whole")
    again, _ = run(tmp_path, "again")
    assert same(whole, again) and len(whole.curve) == 3
    monkeypatch.setattr(train, "CHECKPOINT_EVERY", 1)
    advance = train.Run.advance

    def dies(self):
        if self.chunk == 2:
            raise KeyboardInterrupt
        return advance(self)

    monkeypatch.setattr(train.Run, "advance", dies)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "killed")
    monkeypatch.setattr(train.Run, "advance", advance)
    state = train.Run(SMALL, tmp_path / "killed", TEXT)
    assert state.restore() and state.chunk == 2
    rest, folder = run(tmp_path, "killed")
    assert same(whole, rest) and rest.curve == whole.curve
    # of another recipe, another model or damaged: not used
    for rec, sha in ((replace(SMALL, seed=5), ""), (SMALL, "another model")):
        assert not train.Run(rec, folder, TEXT, sha).restore()
    (folder / "checkpoint.pt").write_bytes(b"no")
    assert not train.Run(SMALL, folder, TEXT).restore()
    other, _ = run(tmp_path, "other", replace(SMALL, seed=5))
    assert not same(whole, other)


def test_the_saved_formula_is_the_trained_one(toy, tmp_path):
    """Mean and size are folded into the weights: no subtraction is left over."""
    for name, rec in toy.items():
        state, _ = run(tmp_path, name, rec)
        d = state.dictionary()
        x, y = state.data(7)
        xs, _ = state.normal(x, y)
        f = sae.top_k((xs @ state.params["E"].T + state.params["b_enc"]).relu(), rec.k)
        out = f @ state.params["D"] + state.params["b_dec"]
        theirs = out * state.scale["y"] + state.mean["y"]
        assert (d(x) - theirs).norm() < 1e-3 * theirs.norm()
        torch.testing.assert_close(d.W_dec.norm(dim=1), torch.ones(60))
        missed = (y - d(x)).square().sum() / (y - y.mean(0)).square().sum()
        assert missed < 0.7 and state.curve[-1]["l0"] == pytest.approx(rec.k, abs=0.2)


@pytest.mark.parametrize("rec", [{"k": 3}, {"k": 0, "penalty": 0.4}])
def test_a_planted_dictionary_is_found(toy, tmp_path, monkeypatch, rec):
    """40 directions in 20 dimensions, three on at a time: most come back."""
    true = torch.nn.functional.normalize(torch.randn(40, 20, generator=gen(1)), dim=1)

    def data(self, chunk):
        g = torch.Generator().manual_seed(1000 + chunk)
        at = torch.rand(4096, 40, generator=g).argsort(1)[:, :3]
        size = 0.5 + torch.rand(4096, 3, generator=g)
        x = (size[..., None] * true[at]).sum(1)
        return x, x

    monkeypatch.setattr(train.Run, "data", data)
    planted = Recipe("toy", 0, "neurons", 80, chunks=20, rate=1e-2, dead_after=8192, **rec)
    state, _ = run(tmp_path, "planted", planted)
    rows = state.dictionary().W_dec
    best = (true @ rows.T).max(1).values
    assert best.median() > 0.97 and (best > 0.9).float().mean() > 0.9
    assert state.curve[-1]["l0"] < 7 and state.curve[-1]["unexplained"] < 0.3
    shuffled = true[:, torch.randperm(20, generator=gen(2))]  # a shuffled truth is not found
    assert (shuffled @ rows.T).max(1).values.median() < 0.65


def test_dead_latents_are_revived(toy, tmp_path):
    """Latents too weak for the k largest move only if they are known to be dead."""
    state = train.Run(replace(SMALL, dead_after=100), tmp_path, TEXT)
    state.begin()
    state.params["E"][:10], state.params["b_enc"][:10] = 0.0, 1e-6
    state.silent[:5] = 10_000
    x, y = state.normal(*state.data(0))
    fired = steps.gradients(state.params, x, y, 4, 0.0).fired
    assert (fired[:10] == 0).all() and (fired[10:] > 0).any()
    state.optimizer.param_groups[0]["lr"] = 1e-2
    state._step(x, y, 0.0)
    moved = state.params["E"][:10].norm(dim=1)
    assert (moved[:5] > 0).all() and (moved[5:] == 0).all()
    assert (state.silent[fired > 0] == 0).all() and (state.silent[:5] > 10_000).all()


def test_the_command_bundles_once(toy, monkeypatch, capsys):
    monkeypatch.setattr(train, "sweep", lambda: None)
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    try:
        assert train.main(["all"]) == 0
        assert "sae-toy" in capsys.readouterr().out
        data = weightfile.weight_path("sae-toy").read_bytes()
        assert bundle.load("coder-toy").W_dec.shape == (60, 24)
        kept = json.loads(weightfile.curves_path("sae-toy").read_text())
        assert kept["stored"] == {"float": {"l0": 4.0}, "int8": {"l0": 4.0}}
        assert len(kept["curve"]) == 3
        assert train.main(["sae-toy"]) == 0
        assert "up to date" in capsys.readouterr().out
        weightfile.weight_path("sae-toy").unlink()
        assert train.main(["sae-toy"]) == 0  # from the finished run's checkpoint
        assert weightfile.weight_path("sae-toy").read_bytes() == data
        state = paths.BUILD / "train" / "sae-toy" / "checkpoint.pt"
        assert torch.load(state, weights_only=True)["sha"].endswith("c" * 64)
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(strict)


def test_sweep_keeps_short_runs_beside_the_curve(toy, monkeypatch, capsys):
    train.train_one("sae-toy")
    short = {f"toy-{p:g}": replace(SMALL, k=0, penalty=p, chunks=1) for p in (0.1, 0.3)}
    monkeypatch.setattr(train, "SWEEP", short)
    train.sweep("sae-toy")
    rows = bundle.measured("sae-toy")["frontier"]
    assert [row["penalty"] for row in rows] == [0.1, 0.3]
    assert all(row["tokens"] == 32 * 511 for row in rows)
    capsys.readouterr()
    train.sweep("sae-toy")
    assert "up to date" in capsys.readouterr().out
    assert "curve" in bundle.measured("sae-toy")
