"""The loop over the chapters: one line each, on after a failure, times kept, nothing done twice."""

import json
import textwrap

import pytest

from circuitbook import measure, paths

LESSON = """
    import os
    from circuitbook.results import measured

    def compute(cfg):
        return {"data": {"number": 1.5, "picture": os.environ["MPLBACKEND"]}, "claims": []}

    r = measured("01_good", compute, {"n": 1})
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Three lessons, the second of which stops with an error."""
    for switch in ("MODELS", "QUICK", "RECOMPUTE", "ACCEPT", "EVIDENCE"):
        monkeypatch.delenv(switch, raising=False)
    monkeypatch.setenv("DEVICE", "cpu")
    monkeypatch.setenv("CIRCUITBOOK_ROOT", str(tmp_path))
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "01_good.py").write_text(textwrap.dedent(LESSON))
    (scripts / "02_bad.py").write_text("print('before')\nraise ValueError('a wrong turn')\n")
    (scripts / "03_good.py").write_text(textwrap.dedent(LESSON).replace("01_good", "03_good"))
    return tmp_path


def test_it_goes_on_after_a_failure_and_says_so_at_the_end(project, capsys):
    assert measure.main([]) == 1
    out = capsys.readouterr().out
    assert [line.split()[1] for line in out.splitlines() if line[:2].isdigit()] == [
        "measured,",
        "FAILED",
        "measured,",
    ]
    assert "ValueError: a wrong turn" in out and "build/logs/02_bad.log" in out
    assert "before" in (project / "build" / "logs" / "02_bad.log").read_text()


def test_the_second_time_nothing_is_measured(project, capsys):
    assert measure.main(["01_good"]) == 0
    saved = measure.version(measure.output("01_good"))
    times = measure.times_path().read_bytes()
    capsys.readouterr()
    assert measure.main(["01_good"]) == 0
    assert "nothing new to measure" in capsys.readouterr().out
    assert measure.version(measure.output("01_good")) == saved
    assert measure.times_path().read_bytes() == times


def test_the_switches_are_passed_on_and_a_rehearsal_keeps_no_times(project, monkeypatch):
    monkeypatch.setenv("QUICK", "1")
    assert measure.main(["01_good"]) == 0
    saved = json.loads((paths.BUILD / "quick" / "course" / "01_good.json").read_text())
    assert saved["data"] == {"number": 1.5, "picture": "agg"}
    assert not (paths.BUILD / "results").exists()
    assert not measure.times_path().exists()


def test_accepting_takes_results_and_times_together(project, capsys):
    (project / "scripts" / "02_bad.py").unlink()
    assert measure.main([]) == 0
    assert not (project / "results").exists(), "measuring never writes evidence"
    assert measure.main(["--accept"]) == 0
    assert (project / "results" / "course" / "01_good.json").is_file()
    kept = json.loads(measure.times_path(accepted=True).read_text())
    assert set(kept["chapters"]) == {"01_good", "03_good"} and kept["cores"] >= 1


def test_an_unknown_chapter_is_named_with_the_known_ones(project, capsys):
    assert measure.main(["07_nothing"]) == 2
    assert "no such chapter: 07_nothing; there are 01_good" in capsys.readouterr().out
