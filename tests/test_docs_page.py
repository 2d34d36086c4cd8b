"""docs/: its tables come from results/noise.json and from the code, never from a keyboard."""

import json
import re
from pathlib import Path

import _readme
import pytest
from _lesson import LessonError

from circuitbook import compare

HERE = Path(__file__).resolve().parent.parent
PAGE = HERE / "docs" / "will-my-numbers-match.md"
MARKS = "".join(f"<!-- derive:{n} -->\n<!-- /derive:{n} -->\n" for n in ("kinds", "noise"))


def toy_noise():
    """Two numbers of each kind, one of which moved."""
    row = {"numbers": 2, "moved": 1, "median": 3e-6, "largest": 4e-5, "outside": 0}
    still = row | {"moved": 0, "largest": 0.0}
    kinds = {kind: dict(row) for kind in _readme.WORDS} | {"exact": still}
    found = {"kinds": kinds, "claims": 9, "claims that changed": 1}
    return {
        "chapters": 3,
        "conditions": {"two threads": found},
        "float32 against float64": {"mean loss": 5e-7},
    }


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with a measured noise and nothing else."""
    monkeypatch.setenv("CIRCUITBOOK_ROOT", str(tmp_path))
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "noise.json").write_text(json.dumps(toy_noise()))
    return tmp_path


def test_tables_are_filled_from_the_measurement(project):
    text = _readme.fill_page(MARKS, "page.md")
    assert "| two threads | closed form | 2 | 1 | 4e-05 | 0 |" in text
    assert "| two threads | exact | 2 | 0 | – | 0 |" in text and "From 3 chapters" in text
    assert "| two threads | claims | 9 | 1 | – | 1 |" in text
    assert _readme.fill_page(text, "page.md") == text, "filling twice changes nothing"
    noise = toy_noise()
    noise["conditions"]["two threads"]["kinds"]["readout"]["largest"] = 0.7
    (project / "results" / "noise.json").write_text(json.dumps(noise))
    assert "| two threads | readout | 2 | 1 | 0.7 | 0 |" in _readme.fill_page(text, "page.md")


def test_the_tolerances_in_words_are_those_of_the_code(project, monkeypatch):
    text = _readme.fill_page(MARKS, "page.md")
    assert "may differ by 1e-05 (the difference itself, not a share)" in text
    assert "| Moved | Largest, as a share | Outside its tolerance |" in text
    monkeypatch.setattr(compare, "READOUT", 0.25)
    assert "may differ by 25.0%" in _readme.fill_page(MARKS, "page.md")
    assert tuple(_readme.WORDS) == compare.KINDS


def test_a_missing_measurement_or_mark_is_said(project):
    with pytest.raises(LessonError, match=r"page.md needs <!-- derive:kinds -->"):
        _readme.fill_page(MARKS.replace("<!-- /derive:kinds -->", ""), "page.md")
    (project / "results" / "noise.json").unlink()
    with pytest.raises(LessonError, match=r"results/noise.json is missing"):
        _readme.fill_page(MARKS, "page.md")


def test_the_committed_page_holds_no_typed_number():
    outside = re.sub(
        r"<!-- derive:(\w+) -->.*?<!-- /derive:\1 -->", "", PAGE.read_text(), flags=re.S
    )
    prose = re.sub(r"`[^`]*`|^\d+\. |float\d+", "", outside, flags=re.M)
    assert re.findall(r"\d+", prose) == []
    text = PAGE.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (PAGE.parent / link).exists(), link


def test_the_noise_of_two_runs_is_counted_kind_by_kind(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE / "bench"))
    import noise

    old = {"n": 3, "p": 0.5, "q": 0.25, "word": "a", "toy": 1.0, "small": 1e-9}
    new = {"n": 3, "p": 0.5001, "q": 0.25, "word": "b", "toy": 2.0, "small": 3e-9}
    kinds = {"n": "exact", "toy": "stochastic"}
    found = noise.summary(compare.compare(new, old, kinds))
    assert found["readout"] == {
        "numbers": 3, "moved": 2, "outside": 0,
        "median": pytest.approx((1e-4 / 0.5001 + 2e-4) / 2),
        "largest": pytest.approx(2e-4),  # 2e-9 of 1e-5, not 2 of 3
    }  # fmt: skip
    assert found["exact"]["numbers"] == 2 and found["exact"]["outside"] == 1
    assert found["exact"]["moved"] == 1 and found["exact"]["largest"] == 0.0
    assert found["stochastic"]["largest"] == 0.5 and found["stochastic"]["outside"] == 0
    assert found["closed_form"] == dict.fromkeys(found["closed_form"], 0)
    lost = noise.summary(compare.compare({"n": 3}, {"n": 3, "p": 1.0}, {}))
    assert lost["other shape"] == {"numbers": 1}
