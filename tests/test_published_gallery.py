"""Chapter 11 on the published models: GPT-2's rows, on stand-in files of its format."""

import pytest
import stand_in_hub
import torch

from circuitbook import paths, results, zoo
from circuitbook.circuits import gpt2_path, gpt2_series
from circuitbook.circuits.gpt2_prompts import local_encoder
from circuitbook.induction import public
from circuitbook.published import fetch, pins
from circuitbook.series.reference import entries


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A hub cache of small stand-ins with words of the course text, made once."""
    folder = tmp_path_factory.mktemp("hub")
    stand_in_hub.stand_in.write(folder, "small")
    (folder / "cache").mkdir()
    for place in paths.CACHE.glob("[!.]*"):  # the course's text is read, too
        if place.name != "published":  # what is noted of files of a hub is this test's own
            (folder / "cache" / place.name).symlink_to(place)
    return folder / "hub"


@pytest.fixture
def published(hub, monkeypatch):
    """MODELS=published on those files, without a network; marks of the run are forgotten after."""
    for name, value in (
        ("HF_HUB_CACHE", str(hub)),
        ("CIRCUITBOOK_CACHE", str(hub.parent / "cache")),
        ("HF_HUB_OFFLINE", "1"),
        ("MODELS", "published"),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(results, "_random", [])
    monkeypatch.setattr(results, "_weights", {})


def numbers(x):
    """All numbers inside."""
    if isinstance(x, dict):
        return [n for v in x.values() for n in numbers(v)]
    return [n for v in x for n in numbers(v)] if isinstance(x, list) else [x]


def test_every_entry_about_gpt2_gets_a_number(published):
    path = gpt2_path.published_study(n=8, n_random=2)
    found = gpt2_series.study(path, words=300)
    wanted = {e.id: e.value for e in entries() if e.id.startswith(("heads.gpt2", "gallery."))}
    assert set(found["series"]) == set(wanted)
    for id, value in found["series"].items():
        assert set(value) <= set(wanted[id]), id  # the same names, lists of heads left out
        assert all(isinstance(n, float) for n in numbers(value)), id
    names, repair = path["names"], found["series"]["gallery.ioi.self_repair"]
    fall = repair["clean"] - repair["three_name_movers_mean_ablated"]
    assert fall == pytest.approx(names["repair"]["actual"])
    assert 0 <= found["series"]["gallery.ioi"]["io_preferred"] <= 1
    assert list(found["induction"]) == [
        "attn-only-2l", "gelu-2l", "published two layers", "published two layers with MLPs", "gpt2",
    ]  # fmt: skip
    assert found["induction"]["gpt2"]["layers"] == 12
    assert results._random, "stand-in files must be marked"


def test_head_scores_are_those_of_a_loop(published):
    model = zoo.load("gpt2")
    scores = gpt2_series.head_scores(model, start=7)
    low, high = public.REPEATED
    block = torch.randint(
        min(low, 2200), min(high, 4400), (public.SEQUENCES, public.BLOCK),
        generator=torch.Generator().manual_seed(public.SEED),
    )  # fmt: skip
    tokens = torch.cat([torch.full((len(block), 1), 7), block, block], 1)[:3]
    _, cache = model.run_with_cache(tokens, names_filter="blocks.5.attn.hook_pattern")
    A = cache["blocks.5.attn.hook_pattern"][:, 1]
    n = tokens.shape[1]
    previous = sum(A[:, t, t - 1] for t in range(1, n)) / (n - 1)
    stripe = sum(A[:, t, t - public.BLOCK + 1] for t in range(public.BLOCK + 1, n)) / public.BLOCK
    own, second, _ = public.behaviour(model, tokens)
    assert own[5, 1].item() == pytest.approx(previous.mean().item(), rel=1e-5)
    assert second[5, 1].item() == pytest.approx(stripe.mean().item(), rel=1e-5)
    assert len(scores["induction"]) == 144 and scores["prev_token"]["5.1"] > 0


def test_words_are_tokens_of_both(published):
    encode = local_encoder(fetch.folder(pins.MODELS["gpt2"]))
    words = gpt2_series.common_words(encode, 20)
    assert 0 < len(words) <= 20 and len(set(words.tolist())) == len(words)
    assert set(words.tolist()) <= set(range(4400))


def test_course_mode_has_its_two_rows_and_no_series(monkeypatch):
    monkeypatch.delenv("MODELS", raising=False)
    found = gpt2_series.study({"there": False}, words=300)
    assert set(found) == {"induction"} and list(found["induction"]) == ["attn-only-2l", "gelu-2l"]
    assert paths.models() == "course"
