"""Chapter 00: the losses it takes, the controls it runs, the claims it keeps."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from circuitbook import claims, corpus, curves, paths, probe, zoo
from circuitbook.config import Config
from circuitbook.model import Transformer
from circuitbook.taught.ch00 import token_losses

CHAPTER = "00_models"
IDS = {
    "models.loss_falls_with_depth",
    "models.2l_previous_token_head",
    "models.2l_induction_head",
    "models.2l_copies_repeats",
    "models.1l_has_no_induction",
    "models.1l_copying_heads",
    "models.icl_two_layers_more",
}


@pytest.fixture(scope="module")
def evidence() -> dict:
    return json.loads((paths.RESULTS / "course" / f"{CHAPTER}.json").read_text())


def test_token_losses_belong_to_the_token_that_is_predicted():
    """A model that copies its input has no loss where the text repeats itself, k counted from 1."""
    cfg = Config(n_layers=0, d_model=8, d_vocab=8, n_ctx=8)
    model = Transformer(cfg, seed=0)
    with torch.no_grad():
        model.embed.W_E.copy_(torch.eye(8))
        model.unembed.W_U.copy_(100 * torch.eye(8))  # predicts the current token again
    windows = torch.tensor([[0, 3, 3, 5, 5]])
    losses = token_losses(model, windows)
    assert losses.shape == (1, 4)
    right = losses[0] < 1e-3
    assert right.tolist() == [False, True, False, True]  # loss_2 and loss_4, not loss_1 and loss_3


def test_losses_do_not_depend_on_how_windows_are_split():
    model = Transformer(Config(n_layers=1, d_model=16, n_heads=2, d_head=8, d_vocab=11), seed=1)
    windows = torch.randint(1, 11, (9, 12), generator=torch.Generator().manual_seed(0))
    alone = torch.cat([token_losses(model, w[None]) for w in windows])
    torch.testing.assert_close(token_losses(model, windows), alone, atol=1e-6, rtol=0)


def test_every_fixed_claim_is_there_and_its_state_follows_from_its_numbers(evidence):
    found = {c["id"]: c for c in evidence["claims"]}
    assert set(found) >= IDS
    for claim in found.values():
        assert claims.recheck(claim) == "", claim["id"]


def test_the_claims_hold(evidence):
    failing = [c["id"] for c in evidence["claims"] if not c["holds"]]
    assert failing == []


def test_scores_in_the_evidence_are_those_of_the_bundled_weights(evidence):
    """The heads are measured again on fewer sequences; another weight file would not agree."""
    repeats = probe.repeated_batch(
        curves.Bench.frequent(), 16, generator=torch.Generator().manual_seed(5)
    )
    model = zoo.load("attn-only-2l", device="cpu")
    first, second = evidence["data"]["pair"]
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in (0, 1)]
    _, cache = model.run_with_cache(repeats.tokens, names_filter=lambda n: n in names)
    prefix = probe.prefix_matching_score(cache[names[1]], repeats.tokens).mean(0)
    saved = np.asarray(evidence["data"]["prefix_matching"]["attn-only-2l"][1])
    assert int(prefix.argmax()) == second == int(saved.argmax())
    assert abs(prefix[second].item() - saved[second]) < 0.1


def test_depth_helps_on_other_windows_too(evidence):
    """Losses on windows of another seed agree with the evidence within four standard errors."""
    held_out = corpus.heldout_windows(16, seed=9)
    windows = torch.from_numpy(held_out.tokens)
    mean = {}
    for role in ("attn-only-0l", "attn-only-2l"):
        losses = token_losses(zoo.load(role, device="cpu"), windows)
        mean[role] = losses.mean().item()
    saved = evidence["data"]["loss"]
    asked = saved["attn-only-0l"]["mean"] - saved["attn-only-2l"]["mean"]
    assert abs((mean["attn-only-0l"] - mean["attn-only-2l"]) - asked) < 0.25


def test_a_swapped_weight_file_is_seen(evidence, monkeypatch):
    """Mutant: the one-layer model under the two-layer model's evidence fails the comparison."""
    model = zoo.load("attn-only-1l", device="cpu")
    windows = torch.from_numpy(corpus.heldout_windows(16, seed=9).tokens)
    other = token_losses(model, windows).mean().item()
    right = token_losses(zoo.load("attn-only-2l", device="cpu"), windows).mean().item()
    assert other - right > 0.05


def test_figures_are_drawn_from_the_evidence_without_torch(tmp_path):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from circuitbook import results, gallery\n"
        f"r = results.load('{CHAPTER}')\n"
        "for name, draw in gallery.figures('00').items():\n"
        "    shown = draw(r)\n"
        "    assert len(shown.alt) > 40, name\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_claims_and_means_agree_with_the_rest_of_the_evidence(evidence):
    """An edit of one number that keeps its own claim consistent contradicts the data beside it."""
    data, found = evidence["data"], {c["id"]: c for c in evidence["claims"]}
    claimed = found["models.2l_previous_token_head"]["test"]["value"]
    assert claimed == max(data["previous_token"]["attn-only-2l"][0])
    for role, saved in data["loss"].items():
        assert abs(float(np.mean(saved["bins"])) - saved["mean"]) < 0.02, role
