"""Curve values on hand-sized cases, and against the plain model's hooks."""

import json
import math

import numpy as np
import pytest
import torch

from circuitbook import curves, fast, probe, recipes, train, weightfile
from circuitbook.config import Config
from circuitbook.model import Transformer
from circuitbook.recipes import Recipe

SMALL = Config(
    n_layers=2, d_model=32, n_heads=4, d_head=8, d_mlp=24, act="gelu", n_ctx=512, d_vocab=400
)


def weights(cfg=SMALL, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randn(s, generator=generator) * 0.3 for n, s in fast.shapes(cfg).items()}


@pytest.fixture(scope="module")
def bench():
    rng = np.random.default_rng(0)
    windows = rng.integers(1, 400, (5, 512))
    windows[:, 0] = 0
    return curves.Bench(windows, np.array([0, 0, 1, 1, 2]), torch.arange(1, 300))


def test_frequent_words_by_hand():
    texts = ["<|bos|>", " the", "the", " a1", " cat", " ", " dog", " é", "<0xC3>", " The"]
    counts = np.array([99, 5, 99, 99, 7, 99, 5, 1, 99, 0])
    # blank and letters only; the most frequent first, ties by id; pieces and digits are out
    assert curves.frequent_words(counts, texts, 10).tolist() == [4, 1, 6, 7, 9]
    assert curves.frequent_words(counts, texts, 2).tolist() == [4, 1]


@pytest.mark.text
def test_the_courses_frequent_words():
    from circuitbook import tokenizer

    words = [tokenizer.load().text(int(v)) for v in curves.Bench.frequent(200)]
    assert len(set(words)) == 200 and all(w[0] == " " and w[1:].isalpha() for w in words)
    assert {" the", " of", " and"} <= set(words[:5])


def test_window_losses_index_convention():
    """Column k-1 is loss_k = -log p(token k | BOS, tokens 1 ... k-1), from logits[k-1]."""
    params, w_pos = weights(), fast.sinusoid(SMALL).float()
    tokens = torch.randint(1, 400, (5, 9), generator=torch.Generator().manual_seed(0))
    tokens[:, 0] = 0
    losses = curves.window_losses(SMALL, params, tokens, w_pos)
    assert losses.shape == (5, 8)
    model = Transformer.from_state_dict(SMALL, params)
    torch.testing.assert_close(losses, model(tokens, return_type="loss_per_token").detach())
    logits = curves.logits_of(SMALL, params, tokens[:, :3], w_pos)  # sees BOS and tokens 1, 2
    by_hand = -logits[4, 2].log_softmax(-1)[tokens[4, 3]]
    assert losses[4, 2].item() == pytest.approx(by_hand.item(), abs=1e-3)


@pytest.mark.parametrize("more", [{}, {"d_mlp": 0, "act": "none"}, {"n_layers": 1}])
def test_patterns_are_the_models_own(more):
    cfg = SMALL.replace(**more)
    params = weights(cfg)
    tokens = torch.randint(400, (2, 70), generator=torch.Generator().manual_seed(1))
    found = curves.patterns(cfg, params, tokens, fast.sinusoid(cfg).float())
    _, cache = Transformer.from_state_dict(cfg, params).run_with_cache(tokens)
    assert len(found) == cfg.n_layers
    for layer, pattern in enumerate(found):
        wanted = cache[f"blocks.{layer}.attn.hook_pattern"]
        torch.testing.assert_close(pattern, wanted, atol=1e-5, rtol=0)


def test_measure_agrees_with_the_plain_model(bench):
    params = weights()
    row = curves.measure(SMALL, params, bench)
    model = Transformer.from_state_dict(SMALL, params)
    losses = model(bench.windows, return_type="loss_per_token").detach()
    assert row["loss"] == pytest.approx(losses.mean().item(), abs=1e-4)
    assert row["loss_se"] > 0
    # loss_by_index: the mean over 16 indices, the tail that fills no bin left out
    assert len(row["loss_by_index"]) == 511 // 16
    assert row["loss_by_index"][3] == pytest.approx(losses[:, 48:64].mean().item(), abs=1e-4)
    # loss_491..510 minus loss_41..60, where loss_k stands in column k-1
    icl = losses[:, 490:510].mean() - losses[:, 40:60].mean()
    assert row["icl"] == pytest.approx(icl.item(), abs=1e-3)
    assert row["token_losses"][1] == pytest.approx(losses[0, curves.TOKEN_STRIDE].item(), abs=1e-4)
    assert len(row["token_losses"]) == 5 * math.ceil(511 / curves.TOKEN_STRIDE)
    text = bench.windows[:, : curves.PATTERN_LENGTH]
    _, cache = model.run_with_cache(text)
    previous = probe.previous_token_score(cache["blocks.1.attn.hook_pattern"]).mean(0)
    torch.testing.assert_close(torch.tensor(row["previous_token"][1]), previous)
    assert np.shape(row["prefix_matching"]) == (2, 4)
    assert np.shape(row["k_composition"]) == (4, 4)
    for key in ("repeat_loss_drop", "repeat_rank_first", "repeat_rank_second"):
        assert isinstance(row[key], float)


def test_measure_of_models_without_layers(bench):
    flat = SMALL.replace(n_layers=0, d_mlp=0, act="none")
    row = curves.measure(flat, weights(flat), bench)
    assert "previous_token" not in row and "k_composition" not in row
    assert row["loss"] > 0


def test_rounding_keeps_plain_numbers():
    assert curves._rounded({"a": [1.2345678, 3], "b": {"c": 1e-9 / 3}, "d": "x"}) == {
        "a": [1.2346, 3],
        "b": {"c": 3.3333e-10},
        "d": "x",
    }
    assert isinstance(curves._rounded(3), int)


@pytest.fixture
def finished(project, monkeypatch, bench):
    """A finished little run and the bench it is measured on."""
    cfg = SMALL.replace(d_model=16, n_heads=2)
    rec = Recipe(cfg, steps=4, windows=1, warmup=1, snapshots=(0, 4))
    monkeypatch.setitem(recipes.RECIPES, "toy", rec)
    monkeypatch.setattr(curves.Bench, "course", lambda: bench)
    tokens = np.random.default_rng(0).integers(1, 400, 2000).astype(np.uint16)
    state = train.run(rec, tokens, project / "run")
    return rec, project / "run", state


def test_write_gives_the_same_plain_bytes_twice(finished):
    rec, folder, state = finished
    path = curves.write("toy", rec, folder, state.losses)
    data = path.read_bytes()
    assert curves.write("toy", rec, folder, state.losses).read_bytes() == data
    assert path == weightfile.curves_path("toy")
    assert [p.name for p in path.parent.iterdir()] == ["toy.json"]
    found = json.loads(data)
    assert [row["step"] for row in found["snapshots"]] == [0, 4]
    assert found["recipe_sha256"] == rec.sha256() and found["tokens_per_step"] == 512
    assert found["snapshots"][0]["loss"] == pytest.approx(math.log(400), abs=1e-3)
    assert len(found["training_loss"]["mean"]) == 4
    assert all(len(repr(x).replace("-", "").replace("0.", "")) <= 9 for x in numbers(found))


def numbers(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [x for v in value for x in numbers(v)]
    return [value] if isinstance(value, float) else []


def test_a_snapshot_that_is_no_number_is_not_written(finished, monkeypatch):
    rec, folder, state = finished
    monkeypatch.setattr(curves, "measure", lambda *_: {"loss": math.nan})
    with pytest.raises(ValueError, match="not JSON compliant"):
        curves.write("toy", rec, folder, state.losses)
    assert not weightfile.curves_path("toy").exists()
