"""The gallery draws every figure from saved results alone, and notices a foreign picture."""

import io
import json
import subprocess
import sys
from typing import ClassVar

import pytest
from matplotlib.image import imread

from circuitbook import codehash, display, gallery, results
from circuitbook.compare import chapters
from circuitbook.gallery.__main__ import main, source, stamped

MODULE = '''
"""Figures of the toy."""

from circuitbook import plots
from circuitbook.plots import figure


@plots.figure
def toy_scores(r):
    scores = {str(i): v for i, v in enumerate(r["score"])}
    alt = f"The best is head {r['best']}, of three."
    return plots.bars(scores, x_label="head", y_label="score", title="Scores", alt=alt)


def not_a_figure(r):
    return 1
'''


@pytest.fixture
def drawn(toy, monkeypatch, tmp_path):
    """The toy project with a saved result and a gallery module of its own."""
    folder = tmp_path / "gallery"
    folder.mkdir()
    (folder / "ch98.py").write_text(MODULE)
    monkeypatch.setattr(gallery, "__path__", [*gallery.__path__, str(folder)])
    gallery._all.cache_clear()
    real = codehash.module_file
    own = {"circuitbook.gallery.ch98": folder / "ch98.py"}
    for module in (codehash, sys.modules["circuitbook.gallery.__main__"]):
        monkeypatch.setattr(module, "module_file", lambda name: own.get(name) or real(name))
    results.measured("98_toy", lambda cfg: {"data": {"score": [1, 3, 2], "best": 1}}, {})
    yield toy / "figures" / "course"
    gallery._all.cache_clear()
    sys.modules.pop("circuitbook.gallery.ch98", None)
    vars(gallery).pop("ch98", None)


def test_figures_are_found_by_name(drawn):
    assert list(gallery.figures("98")) == ["toy_scores"]
    assert gallery.toy_scores({"score": [1.0], "best": 0}).alt == "The best is head 0, of three."
    with pytest.raises(AttributeError, match="no figure 'nothing'"):
        _ = gallery.nothing
    assert gallery.figures("96") == {}


def test_a_figure_of_random_weights_says_so(drawn):
    class Saved(dict):
        made_with: ClassVar = {"random_weights": True}

    numbers = {"score": [1.0, 2.0], "best": 1}
    plain, marked = gallery.toy_scores(numbers), gallery.toy_scores(Saved(numbers))
    assert marked.alt == f"Random{display.RANDOM.removeprefix('random')}. {plain.alt}"
    assert display.RANDOM in json.dumps(marked.plotly) and "random" not in json.dumps(plain.plotly)
    small, large = (imread(io.BytesIO(f.png))[..., :3] for f in (plain, marked))
    assert large.shape[0] == small.shape[0] + int(display.DPI * 0.22)  # it grew, nothing is hidden
    line = large[-int(display.DPI * 0.22) :].reshape(-1, 3)
    red = line[line.min(1) < 0.9]
    assert len(red) > 200 and (red[:, 0] >= red[:, 1]).all() and (red[:, 0] > red[:, 2] + 0.1).any()
    assert gallery.toy_scores(numbers).png == plain.png


def test_a_name_is_used_once(drawn, tmp_path):
    (tmp_path / "gallery" / "ch99.py").write_text(MODULE)
    with pytest.raises(ImportError, match="toy_scores"):
        _ = gallery.toy_scores
    sys.modules.pop("circuitbook.gallery.ch99", None)
    vars(gallery).pop("ch99", None)


def test_figures_are_drawn_once_with_their_alt_text(drawn, capsys):
    assert main(["--check"]) == 1 and not drawn.exists()
    assert main([]) == 0
    assert "1 figures, 1 drawn" in capsys.readouterr().out
    path = drawn / "98_toy_scores.png"
    first = path.read_bytes()
    assert json.loads((drawn / "alt.json").read_text()) == {
        path.name: "The best is head 1, of three."
    }
    before = path.stat().st_mtime_ns
    assert main([]) == 0 and path.stat().st_mtime_ns == before
    assert main(["--check"]) == 0
    path.unlink()
    assert main([]) == 0 and path.read_bytes() == first  # the same bytes again


@pytest.mark.parametrize("what", ["picture", "alt", "mark", "result", "orphan", "code"])
def test_drift_is_found_and_mended(drawn, capsys, monkeypatch, tmp_path, what):
    assert main([]) == 0
    path, alts = drawn / "98_toy_scores.png", drawn / "alt.json"
    if what == "picture":
        other = gallery.toy_scores({"score": [3.0, 1.0], "best": 0}).png
        mark = source("98_toy", results.load("98_toy"))
        path.write_bytes(stamped(other, mark))
    elif what == "alt":
        alts.write_text(json.dumps({path.name: "Something else is said."}))
    elif what == "mark":
        path.write_bytes(gallery.toy_scores(results.load("98_toy")).png)
    elif what == "result":
        again = {"data": {"score": [1, 3, 2.01], "best": 1}}
        results.measured("98_toy", lambda cfg: again, {})
    elif what == "orphan":
        (drawn / "97_old.png").write_bytes(path.read_bytes())
    else:
        code = tmp_path / "gallery" / "ch98.py"
        code.write_text(code.read_text().replace('title="Scores"', 'title="Points"'))
    assert main(["--check"]) == 1
    name = "97_old.png" if what == "orphan" else path.name
    assert name in capsys.readouterr().err
    if what in {"picture", "alt"}:  # made by hand: only a new drawing mends it
        path.unlink()
    assert main([]) == 0
    if what != "code":  # the module in memory is still the old one
        assert main(["--check"]) == 0
    assert [p.name for p in sorted(drawn.iterdir())] == [path.name, "alt.json"]


def test_a_rehearsal_does_not_touch_the_figures(drawn, monkeypatch):
    monkeypatch.setenv("QUICK", "1")
    results.measured("98_toy", lambda cfg: {"data": {"score": [1, 3, 2], "best": 1}}, {})
    assert main([]) == 0
    assert not drawn.exists()


def test_all_committed_figures_are_drawn_without_torch(monkeypatch):
    for name in ("CIRCUITBOOK_ROOT", "QUICK", "MODELS", "RECOMPUTE"):
        monkeypatch.delenv(name, raising=False)
    if not any(results.evidence_path(name).is_file() for name in chapters()):
        pytest.skip("no evidence was accepted yet")
    code = (
        "import sys; from circuitbook.gallery.__main__ import main; status = main(['--check']); "
        "assert not {'torch', 'transformer_lens'} & set(sys.modules); sys.exit(status)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
