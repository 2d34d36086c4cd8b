"""What figures say of themselves when the models are not ours: no conclusion, no training text."""

import json
import subprocess
import sys

import saved

from circuitbook import paths

CONCLUSIONS = {
    "A second layer helps most late in the window", "Two kinds of heads stand out",
    "One edge carries the behaviour",
}  # fmt: skip


DRAW = """
import json, sys
sys.modules["torch"] = None
import matplotlib.figure
import matplotlib.text
from pathlib import Path
from circuitbook import gallery, results

words, save, found = [], matplotlib.figure.Figure.savefig, {}

def listen(fig, *args, **kwargs):
    words.extend(t.get_text() for t in fig.findobj(matplotlib.text.Text))
    save(fig, *args, **kwargs)

matplotlib.figure.Figure.savefig = listen
envelope = results.read(Path(sys.argv[1]))
for models in ("course", "published"):
    envelope["made_with"]["models"] = models
    for name in sys.argv[2:]:
        words.clear()
        alt = getattr(gallery, name)(results.Result(envelope)).alt
        found.setdefault(models, {})[name] = [*words, alt]
print(json.dumps(found))
"""


def told(chapter, *names):
    """(course, published): figure -> all that it says, its words and its alt text last."""
    code = [sys.executable, "-c", DRAW, str(saved.evidence(chapter)), *names]
    done = subprocess.run(code, capture_output=True, text=True, cwd=paths.ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return found["course"], found["published"]


def test_titles_of_chapter_00_conclude_only_over_our_own_models():
    names = "loss_by_index", "head_map", "evidence_ladder"
    ours, theirs = told("00_models", *names)
    for name in names:
        assert len(CONCLUSIONS & set(ours[name])) == 1, name
        assert not CONCLUSIONS & set(theirs[name]), name
        assert ours[name][-1] == theirs[name][-1]  # the alt text is numbers in both


def test_figures_of_chapter_03_name_all_that_is_frozen():
    names = "paths_by_order", "paths_frozen_or_rerun"
    ours, theirs = told("03_path_expansion", *names)
    for found, held, other in (
        (ours, "patterns frozen", "scales"),
        (theirs, "patterns and norm scales frozen", "patterns frozen"),
    ):
        assert held in found[names[0]][-1] and f"{held}: change of" in " ".join(found[names[1]])
        assert not any(other in said for said in (found[names[0]][-1], *found[names[1]]))


def test_bug_squares_do_not_call_a_text_training_text_that_was_not():
    ours, theirs = (" ".join(x["bug_squares"]) for x in told("04_skip_trigrams", "bug_squares"))
    assert "training text: count" in ours and "validation" not in ours
    assert "validation text: count" in theirs and "training" not in theirs
