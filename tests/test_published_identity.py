"""What a result says it was made with: the card of a published model, and the run's one hash."""

import json
import re

import pytest
import test_published_files as toy

from circuitbook.published import cards, disk, fetch, provenance
from circuitbook.published.pins import MODELS

files, cache = toy.files, toy.cache  # the fixtures


@pytest.mark.parametrize("role", toy.ROLES)
def test_a_card_says_what_the_files_say(cache, role):
    card, place = cards.short_card(role), fetch.folder(MODELS[role])
    told = json.loads((place / "config.json").read_text())
    names = {
        "layers": ("n_layers", "n_layer"), "width": ("d_model", "n_embd"),
        "heads": ("n_heads", "n_head"),
    }  # fmt: skip
    for shown, keys in names.items():
        assert card[shown] == next(told[k] for k in keys if k in told), shown
    assert len({card[shown] for shown in names}) == 3 or role == "gpt2"  # 12 layers of 12 heads
    mlp = role.startswith("g")
    assert card["neurons"] == (4 * card["width"] if mlp else 0)
    weights = place / ("model.safetensors" if role == "gpt2" else "model_final.pth")
    assert card["file (bytes)"] == weights.stat().st_size
    assert card["revision"] == place.name[:12]
    state = toy.load_file(weights) if role == "gpt2" else toy.state_of(role)
    buffer = re.compile(r"\.attn\.(mask|IGNORE|bias|masked_bias)$")
    sizes = sum(x.numel() for name, x in state.items() if not buffer.search(name))
    tied = state["wte.weight"].numel() if role == "gpt2" else 0  # W_U is counted beside W_E
    assert card["parameters"] == sizes + tied


def own_text(place, monkeypatch, lines):
    """A text of the reader's own, both splits."""
    for name in ("wiki.test.raw", "wiki.valid.raw"):
        (place / name).write_text("".join(line or "\n" for line in lines))
    monkeypatch.setenv("CIRCUITBOOK_TEXT", str(place / "wiki.test.raw"))


def test_a_text_of_ones_own_is_part_of_the_identity(cache, tmp_path, monkeypatch):
    hubs = provenance.identity()
    assert hubs is not None and hubs == provenance.identity()
    own_text(tmp_path, monkeypatch, toy.LINES)
    own = provenance.identity()
    own_text(tmp_path, monkeypatch, toy.LINES * 2)
    assert len({hubs, own, provenance.identity()}) == 3


def test_with_a_text_of_ones_own_the_hubs_is_not_needed(cache, tmp_path, monkeypatch):
    look = disk.look

    def without_text(pin):
        found = look(pin)
        if pin.name != "text":
            return found
        return disk.dataclasses.replace(found, missing=pin.files)

    monkeypatch.setattr(disk, "look", without_text)
    assert provenance.identity() is None
    own_text(tmp_path, monkeypatch, toy.LINES)
    assert provenance.identity() is not None
