"""The published track as a reader runs it: fetch everything once, then work without a network."""

import hashlib
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import _readme
import pytest
from stand_in_hub import CLIENT, StandInHub, published

from circuitbook import plots, results
from circuitbook.attribution import page
from circuitbook.gallery import __main__ as gallery
from circuitbook.published import disk
from circuitbook.published.pins import Pin
from circuitbook.series import __main__ as series
from circuitbook.series import shelf


@pytest.mark.parametrize("names", [{}, {"HF_HOME": "{}/h"}, {"XDG_CACHE_HOME": "{}/x"},
                                   {"HF_HOME": "{}/h", "HUGGINGFACE_HUB_CACHE": "{}/old"},
                                   {"HF_HUB_CACHE": "~/c", "HF_HOME": "{}/h"}])  # fmt: skip
def test_the_cache_is_where_the_client_has_it(tmp_path, names):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    environment |= {name: value.format(tmp_path) for name, value in names.items()}
    code = "from circuitbook.published import disk; import huggingface_hub.constants as c\n"
    code += "print(disk.hub_cache(), c.HF_HUB_CACHE, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True,
                          text=True)  # fmt: skip
    ours, theirs = done.stdout.split()
    assert ours == theirs


def test_bytes_that_the_client_keeps_in_its_shared_store(project, tmp_path, monkeypatch):
    """Another program may have fetched a file in chunks: then two links lead to the bytes."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    data, store = b"weights" * 1000, tmp_path / "hub" / "blobs" / "ab" / ("ab" * 32)
    pin = Pin("toy", "them/Toy", "model", "1" * 40, ("model_final.pth",))
    blob = disk.repository_folder(pin) / "blobs" / hashlib.sha256(data).hexdigest()
    path = disk.snapshot(pin, pin.revision) / "model_final.pth"
    results.write(store, data.decode())
    for link, target in ((blob, store), (path, blob)):
        link.parent.mkdir(parents=True)
        link.symlink_to(os.path.relpath(target, link.parent))
    assert disk.look(pin).whole
    store.write_bytes(data[::-1])
    assert "sha256" in disk.look(pin).damaged["model_final.pth"]
    disk.remove(path)
    assert not any(p.is_file() or p.is_symlink() for p in (path, blob, store))


# ---- all of it together --------------------------------------------------------------------------

ALL_PINS = """
import dataclasses, json, sys
from circuitbook.published import pins
told = json.loads(sys.argv.pop(1))
for name in list(pins.ALL):
    pins.ALL[name] = dataclasses.replace(pins.ALL[name], **told[name])
    if name in pins.MODELS:
        pins.MODELS[name] = pins.ALL[name]
pins.TOKENIZER, pins.TEXT = pins.ALL["tokenizer"], pins.ALL["text"]
"""
FETCH = "from circuitbook.published.__main__ import main; sys.exit(main(sys.argv[1:]))"
USE = """
import torch
from circuitbook import corpus, results, tokenizer, zoo
tok = tokenizer.load()
windows = corpus.heldout_windows(4, length=64)
for role in ("attn-only-1l", "attn-only-2l", "gelu-1l", "gelu-2l"):
    model = zoo.load(role)
    assert model(torch.tensor(windows.tokens)).isfinite().all(), role
assert zoo.load("gpt2").cfg.n_layers == 12
print(model.cfg.norm, tok.encode("\\n   ", bos=False), windows.source)
assert (windows.tokens[:, 0] == tok.bos).all()
print(results.random_weights(results._made_with("")))
"""


def test_first_run_then_offline_run_of_everything(project, tmp_path):
    """Fetch all pins as `make published` does; then load and measure with the hub away."""
    served, told = published()
    environment = {k: v for k, v in os.environ.items() if k not in CLIENT}
    environment |= {
        "NO_PROXY": "127.0.0.1", "HF_HUB_CACHE": str(tmp_path / "hub"), "MODELS": "published",
        "CIRCUITBOOK_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1",
    }  # fmt: skip

    def run(code, *arguments, **more):
        return subprocess.run(
            [sys.executable, "-c", ALL_PINS + code, json.dumps(told), *arguments], text=True,
            env=environment | more, capture_output=True, cwd=tmp_path,
        )  # fmt: skip

    with StandInHub(served) as hub:
        first = run(FETCH, "fetch", HF_ENDPOINT=hub.url)
        assert first.returncode == 0, first.stderr
        assert first.stdout.count(" cached ") == 7 and first.stdout.count(", verified") == 7
        assert first.stderr.count("Fetching ") == 7 and "about 1,408 MB" in first.stderr
        asked = len(hub.requests)
        again = run(FETCH, "fetch", HF_ENDPOINT=hub.url)
        assert again.returncode == 0 and "Nothing to download." in again.stderr
        assert len(hub.requests) == asked
    used = run(USE, HF_HUB_OFFLINE="1", HF_ENDPOINT=hub.url)
    assert used.returncode == 0, used.stderr
    assert used.stdout.splitlines() == [
        f"layernorm_pre [477] {['WikiText-103'] * 4}",
        "True",
    ]
    locked = tmp_path / "cache" / "published" / "lock.json"
    assert not locked.exists()  # files that say "random weights" never become the pin


def test_course_mode_opens_no_connection_and_never_comes_to_the_fetching():
    """TransformerLens imports the hub's client by itself; the course does not use it."""
    code = """
import socket, sys
def forbidden(*_, **__):
    raise AssertionError("a connection was opened")
socket.socket.connect = socket.getaddrinfo = forbidden
from circuitbook import corpus, tokenizer, vocabulary, zoo
zoo.load("attn-only-1l"), tokenizer.load(), vocabulary.texts()
print([name for name in sys.modules if name == "circuitbook.published.fetch"])
"""
    environment = {k: v for k, v in os.environ.items() if k not in {"MODELS", "QUICK"}}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True,
                          text=True)  # fmt: skip
    assert done.stdout.strip() == "[]", done.stderr


# ---- where it all goes ---------------------------------------------------------------------------


def test_figures_of_this_machine_stay_in_build(project, monkeypatch):
    monkeypatch.setenv("MODELS", "published")
    evidence, built = results.evidence_path("05_x"), results.built_path("05_x")
    assert gallery.folder_for(evidence, "05_x") == project / "figures" / "published"
    assert gallery.folder_for(built, "05_x") == project / "build" / "published" / "figures"
    assert page.page_path(built).parent == project / "build" / "published" / "figures"
    monkeypatch.setenv("QUICK", "1")
    assert gallery.folder_for(built, "05_x") == project / "build/quick/figures/published"
    monkeypatch.setenv("MODELS", "course")
    monkeypatch.delenv("QUICK")
    for path in (results.evidence_path("05_x"), results.built_path("05_x")):
        assert gallery.folder_for(path, "05_x") == project / "figures" / "course"


def test_figures_of_both_places_are_drawn_and_cleared(project, monkeypatch, capsys):
    monkeypatch.setenv("MODELS", "published")
    for name in ("01_here", "02_accepted"):
        (project / "scripts" / f"{name}.py").write_text("")
        envelope = {"schema": 1, "chapter": name, "config": {}, "made_with": {}, "kinds": {},
                    "data": {}, "claims": []}  # fmt: skip
        results.write(results.built_path(name), json.dumps(envelope))
    results.write(results.evidence_path("02_accepted"), json.dumps(envelope))
    drawn = plots.bars(
        {"a": 1.0}, x_label="x", y_label="y", title="A bar", alt="One bar of height one."
    )
    monkeypatch.setattr(gallery, "figures", lambda number: {f"bar{number}": lambda r: drawn})
    old = project / "build" / "published" / "figures" / "01_old.png"
    results.write(old, "old")
    assert [gallery.main(["--check"]), gallery.main([]), gallery.main(["--check"])] == [1, 0, 0]
    found = sorted(path.relative_to(project).as_posix() for path in project.rglob("*.png"))
    assert found == ["build/published/figures/01_bar01.png", "figures/published/02_bar02.png"]


def test_the_readme_keeps_the_times_of_the_course(project, monkeypatch):
    (project / "results").mkdir()
    for path, seconds in (("results", 12), ("build/published", 99)):
        kept = {"cores": 2, "chapters": {"01_x": seconds}}
        results.write(project / path / "times.json", json.dumps(kept))
    lesson = SimpleNamespace(name="01_x", number="01", title="X")
    for models in ("course", "published"):
        monkeypatch.setenv("MODELS", models)
        assert "| 12 s |" in _readme.times([lesson])


def test_the_page_of_the_series_is_committed_only_from_evidence(project, monkeypatch):
    for models in ("course", "published"):
        monkeypatch.setenv("MODELS", models)
        monkeypatch.delenv("RECOMPUTE", raising=False)
        assert series.files()["md"] == project / "results" / "comparison.md"
        assert shelf.folders("published") == [project / "results" / "published"]
        monkeypatch.setenv("RECOMPUTE", "1")  # as in `make all`
        assert series.files()["md"] == project / "build" / "comparison.md"
