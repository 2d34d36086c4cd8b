"""What every miniature task keeps: sizes, seeds, where its targets stand, the trainer's use."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from circuitbook import fast, tasks, train
from circuitbook.recipes import RECIPES

ROLES = {rec.task: rec for rec in RECIPES.values() if rec.task}


def test_every_task_has_a_role():
    assert set(ROLES) == set(tasks.TASKS)
    with pytest.raises(KeyError, match="no task 'rhymes'. Tasks: names, years"):
        tasks.module("rhymes")


@pytest.mark.parametrize("task", tasks.TASKS)
def test_rows(task):
    """BOS first, PAD only at the end and never a target, targets where the text goes on."""
    rec, words = ROLES[task], tasks.module(task).VOCAB
    assert len(set(words)) == len(words)
    tokens, targets = tasks.batch(rec, 3)
    assert tokens.shape == targets.shape == (rec.windows, rec.config.n_ctx)
    assert tokens.dtype == targets.dtype == np.int64
    assert (tokens[:, 0] == tasks.BOS).all() and (tokens[:, 1:] != tasks.BOS).all()
    assert tokens.min() >= 0 and max(tokens.max(), targets.max()) < len(words)
    full = tokens == tasks.PAD
    assert (full[:, :-1] <= full[:, 1:]).all(), "after PAD comes PAD"
    counts = targets >= 0
    assert counts.any(1).all() and not (counts & full).any()
    assert (targets[counts] > tasks.PAD).all()
    inside = counts[:, :-1] & (tokens[:, 1:] != tasks.PAD)
    assert (targets[:, :-1][inside] == tokens[:, 1:][inside]).all()


@pytest.mark.parametrize("task", tasks.TASKS)
def test_a_step_is_a_function_of_seed_and_step(task):
    rec = ROLES[task]
    again = tasks.batch(rec, 7)
    for ours, theirs in zip(tasks.batch(rec, 7), again, strict=True):
        assert np.array_equal(ours, theirs)
    assert not np.array_equal(tasks.batch(rec, 8).tokens, again.tokens)
    assert not np.array_equal(tasks.batch(replace(rec, data_seed=1), 7).tokens, again.tokens)
    assert np.array_equal(tasks.sample(task), tasks.sample(task))


def test_sizes_that_do_not_fit_are_refused():
    rec = ROLES["names"]
    with pytest.raises(ValueError, match=r"recipe says d_vocab=9, .*sizes into it"):
        tasks.batch(replace(rec, config=rec.config.replace(d_vocab=9)), 0)


@pytest.mark.parametrize("task", tasks.TASKS)
def test_the_trainer_counts_the_targets_alone(task, tmp_path):
    """The loss is the mean cross-entropy over the positions with a target, by hand."""
    rec = replace(ROLES[task], windows=4, precision="float32")
    inputs, targets = train.batch(np.zeros(0, np.int64), rec, 0)
    run = train.Run(rec, tmp_path)
    generator = torch.Generator().manual_seed(0)
    params = {n: torch.randn(p.shape, generator=generator) / 8 for n, p in run.params.items()}
    loss = fast.loss(rec.config, params, inputs, targets, run.w_pos, torch.float32)
    x = fast.hidden_stream(rec.config, params, inputs, run.w_pos, torch.float32)
    logits = (x @ params["unembed.W_U"]).flatten(0, 1)
    wanted = F.cross_entropy(logits, targets.flatten(), ignore_index=-1)
    assert abs(loss.item() - wanted.item()) < 1e-4
    everywhere = F.cross_entropy(logits, targets.flatten().clamp_min(0))
    assert abs(loss.item() - everywhere.item()) > 1e-2, "the mask matters"
