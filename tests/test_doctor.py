"""The doctor tells apart what is there, what is not there yet, and what is broken."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from circuitbook import doctor, measure
from circuitbook.published import disk
from circuitbook.published.pins import ALL, MODELS
from circuitbook.recipes import RECIPES
from circuitbook.sources import SOURCES

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A small project of our own, whole but for the environment and the text."""
    for switch in ("DEVICE", "MODELS", "QUICK", "CIRCUITBOOK_CACHE", "CIRCUITBOOK_TEXT",
                   "HF_HUB_OFFLINE"):  # fmt: skip
        monkeypatch.delenv(switch, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("CIRCUITBOOK_ROOT", str(tmp_path))
    (tmp_path / "tools").mkdir()
    for name in ("constraints.txt", "pyproject.toml", "tools/environment.py"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    for folder in ("scripts", "weights", "results/course", "build"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "weights" / "tokenizer.json").write_text("{}")
    listed = {}
    for role in RECIPES:
        data = role.encode()
        (tmp_path / "weights" / f"{role}.safetensors").write_bytes(data)
        listed[role] = {"sha256": hashlib.sha256(data).hexdigest()}
    (tmp_path / "weights" / "MANIFEST.json").write_text(json.dumps({"models": listed}))
    (tmp_path / "scripts" / "01_first.py").write_text("")
    claims = [{"holds": True}, {"holds": False}]
    (tmp_path / "results" / "course" / "01_first.json").write_text(json.dumps({"claims": claims}))
    return tmp_path


class FullDisk:
    """A disk with nothing left on it."""

    free = 0


def steps(report):
    return {one["run"]: one for one in report["steps"]}


def test_what_is_not_there_yet_is_a_step_and_no_fault(project):
    report = doctor.collect()
    assert not report["broken"] and doctor.main([]) == 0
    assert set(steps(report)) == {"make setup", "make text (needs a network once)"}
    assert [row["state"] for row in report["results"]] == ["present, 1 of 2 claims hold"]


def test_the_page_ends_with_numbered_steps(project, capsys):
    assert doctor.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3] == "Next steps"
    assert lines[-2].startswith("  1. ") and lines[-2].endswith("Do: make setup")


def test_untrained_models_are_one_step(project):
    (project / "weights" / "MANIFEST.json").write_text("{}")
    report = doctor.collect()
    assert not report["broken"]
    assert min(RECIPES) in steps(report)["make weights (hours)"]["what"]


@pytest.mark.parametrize(
    "name, run",
    [
        ("weights/gelu-1l.safetensors", "git checkout weights"),
        ("weights/MANIFEST.json", "git checkout weights"),
        ("results/course/01_first.json", "git checkout results"),
    ],
)
def test_a_damaged_file_is_a_fault(project, name, run, capsys):
    (project / name).write_bytes(b"{ half a fi")
    report = doctor.collect()
    assert steps(report)[run]["broken"]
    assert doctor.main([]) == 1
    assert "BROKEN" in capsys.readouterr().out


def test_a_listed_file_that_is_gone_is_a_fault(project):
    (project / "weights" / "attn-only-2l.safetensors").unlink()
    assert doctor.main(["--json"]) == 1


def test_a_damaged_text_archive_is_told_from_a_missing_one(project):
    archives = project / ".cache" / "archives"
    archives.mkdir(parents=True)
    (archives / SOURCES[0].filename).write_bytes(b"truncated")
    rows, found = doctor.text()
    assert [row["state"] for row in rows] == ["damaged"] + ["missing"] * (len(SOURCES) - 1)
    assert found[0]["run"].endswith("; make text") and SOURCES[0].filename in found[0]["run"]


def test_every_source_shows_its_licence_and_its_authors(project):
    page = doctor.page(doctor.collect())
    for source in SOURCES:
        assert f"{source.name} {source.version}" in page
        assert source.licence in page and source.attribution in page


def cached(project, name):
    """Put plain files into the hub cache, whole by their first and last bytes; gives one."""
    pin = ALL[name]
    base = project / "hub" / f"{pin.kind}s--{pin.repository.replace('/', '--')}"
    (base / "refs").mkdir(parents=True)
    (base / "refs" / "main").write_text(pin.revision or "a" * 40)
    for file in pin.files:
        path = base / "snapshots" / (pin.revision or "a" * 40) / file
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "{" + " " * 1_499_998 + "}"
        path.write_bytes(text.encode() if path.suffix == ".json" else b"\x80" * 1_500_000)
    return path


def test_published_models_are_told_from_the_disk_alone(project, monkeypatch):
    def forbidden(*_, **__):
        raise AssertionError("the network was asked")

    monkeypatch.setattr("socket.socket", forbidden)
    rows, steps_ = doctor.published()
    assert {row["state"] for row in rows} == {"missing"} and not steps_  # none is required
    cached(project, "gelu-1l")
    cached(project, "gelu-2l")
    page = doctor.page(doctor.collect())
    row = "gelu-1l        cached               3.0 MB  NeelNanda/GELU_1L512W_C4_Code@bddc0e3"
    assert f"{row}  (pinned, unverified, MIT)" in page
    assert "GELU_2L512W_C4_Code@aaaaaaa  (unverified)" in page
    assert "unverified: a plain copy, and no hash on record" in page
    assert f"in {project / 'hub'}" in page
    missing = [name for name in ALL if name not in ("gelu-1l", "gelu-2l")]
    total = sum(ALL[name].megabytes for name in missing)
    assert f"To download, about {total:,.0f} MB: {', '.join(missing)}" in page
    assert len(MODELS) == 5


def test_published_models_are_a_step_where_they_are_asked_for(project, monkeypatch):
    monkeypatch.setenv("MODELS", "published")
    report = doctor.collect()
    what = steps(report)["make published (needs a network once)"]["what"]
    assert "about 1,408 MB" in what and not report["broken"]


def test_a_damaged_published_file_is_a_fault_where_it_cannot_be_fetched(project, monkeypatch):
    path = cached(project, "gpt2")  # whose hashes are on record
    for models, offline, broken in (("course", "", False), ("published", "", False),
                                    ("published", "1", True)):  # fmt: skip
        monkeypatch.setenv("MODELS", models)
        monkeypatch.setenv("HF_HUB_OFFLINE", offline)
        run = "unset HF_HUB_OFFLINE, then make published" if offline else "make published"
        one = steps(doctor.collect())[run]
        assert f"{path.name} of openai-community/gpt2@607a30d is not the pinned" in one["what"]
        assert one["broken"] == broken


def test_what_is_locked_and_known_of_published_files_is_said(project, monkeypatch):
    cached(project, "gelu-2l")
    disk.lock(disk.look(ALL["gelu-2l"]))
    told = "GELU_2L512W_C4_Code@aaaaaaa  (locked, unchanged)"
    assert told in doctor.page(doctor.collect())


def test_a_damaged_stand_in_is_made_again_and_not_fetched(project, monkeypatch):
    path = cached(project, "gelu-2l")
    note = {"gelu-2l": {"revision": "a" * 40, "sha256": {path.name: "0" * 64}}}
    (project / "hub" / disk.STAND_IN).write_text(json.dumps(note))
    monkeypatch.setenv("MODELS", "published")
    report = doctor.collect()
    assert report["broken"] and not [run for run in steps(report) if "published" in run]
    assert steps(report)[disk.STAND_IN_AGAIN]["what"] == "the stand-in is not whole."
    said = [s["what"] for s in report["steps"] if s["broken"]]
    assert len(said) == 1 and said[0].startswith(f"{path.name} of NeelNanda/GELU_2L512W_C4_Code@aa")
    (project / "hub" / disk.STAND_IN).write_text('{"gelu-2l": {}}')
    report = doctor.collect()
    assert disk.STAND_IN_AGAIN in steps(report) and "make published" not in steps(report)


def test_a_text_of_ones_own_is_not_missing(project, monkeypatch):
    for name in ("test.raw", "valid.raw"):
        (project / name).write_text("")
    monkeypatch.setenv("CIRCUITBOOK_TEXT", str(project / "test.raw"))
    page = doctor.page(doctor.collect())
    row = (
        f"text           local                0.0 MB  {project / 'test.raw'}  (a file of your own)"
    )
    assert row in page and "To download" in page and ", text" not in page
    (project / "valid.raw").unlink()
    (one,) = [s for s in doctor.published()[1] if "CIRCUITBOOK_TEXT" in s["run"]]
    assert "there is no validation.raw or valid.raw in" in one["what"] and not one["broken"]


def test_mps_is_seen_and_never_used(project, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    found, wrong = doctor.device()
    assert (found["used"], found["mps"], wrong) == ("cpu", True, [])
    assert "never used" in "\n".join(doctor._device_lines(found))


def test_cuda_asked_for_and_absent_is_a_fault(project, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("DEVICE", "cuda")
    report = doctor.collect()
    assert report["broken"] and steps(report)["make doctor DEVICE=auto"]["broken"]


def test_little_memory_and_disk_are_said(project, monkeypatch):
    monkeypatch.setattr(doctor, "memory", lambda: 2 * doctor.GIB)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: FullDisk())
    said = " ".join(one["what"] for one in doctor.machine()[1])
    assert "4 GiB of memory" in said and "3 GiB of disk" in said


@pytest.mark.parametrize(
    "limit, wanted", [("1073741824", 1 << 30), ("9" * 18, None), ("max", None)]
)
def test_a_containers_limit_counts_where_it_is_lower(monkeypatch, limit, wanted):
    class Limit(type(Path())):
        def read_text(self, *_, **__):
            assert str(self) == "/sys/fs/cgroup/memory.max"
            return limit + "\n"

    monkeypatch.setattr(doctor, "Path", Limit)
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert doctor.memory() == (wanted or whole)


@pytest.mark.parametrize(("models", "warned"), [("course", False), ("published", True)])
def test_the_published_models_need_more_memory(project, monkeypatch, models, warned):
    monkeypatch.setattr(doctor, "memory", lambda: 5 * doctor.GIB)
    monkeypatch.setenv("MODELS", models)
    assert any("6 GiB of memory" in one["what"] for one in doctor.machine()[1]) == warned


def test_another_version_than_the_pinned_one_is_said(project, monkeypatch):
    pinned = doctor.pins()
    assert pinned["torch"] == "2.13.0" and "transformer-lens" in pinned
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: pinned[name] + "+cpu")
    assert all(row["same"] for row in doctor.packages()[0])
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: "0.1")
    assert not any(row["same"] for row in doctor.packages()[0])


def test_one_other_version_in_an_environment_that_is_ready_is_a_step(project, monkeypatch):
    other = doctor.pins() | {"torch": "2.0"}
    monkeypatch.setattr(doctor.importlib.metadata, "version", other.get)
    ready = subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *_, **__: ready)
    (found,) = doctor.packages()[1]
    assert found["what"] == "not the pinned version: torch"
    assert found["run"].endswith("-m pip install -c constraints.txt -e '.[dev,site,teach]'")
    monkeypatch.setattr(doctor.importlib.metadata, "version", doctor.pins().get)
    assert doctor.packages()[1] == []


def test_times_come_from_this_machine_first(project):
    measure.note_time("01_first", 12.34)
    kept = {"cores": 2, "chapters": {"01_first": 99.0, "02_second": 5.0}}
    (project / "results" / "times.json").write_text(json.dumps(kept))
    assert doctor.times() == [
        {"what": "chapter 01_first", "seconds": 12.3, "where": "on this machine"},
        {"what": "chapter 02_second", "seconds": 5.0, "where": "where the evidence was made"},
    ]
    (project / "build" / "times.json").unlink()
    listed = json.loads((project / "weights" / "MANIFEST.json").read_text())["models"]
    listed["gelu-1l"]["trained"] = {"seconds": 3600}
    (project / "weights" / "MANIFEST.json").write_text(json.dumps(listed))
    assert [(row["what"], row["seconds"]) for row in doctor.times()] == [
        ("chapter 01_first", 99.0),
        ("chapter 02_second", 5.0),
        ("training gelu-1l (make weights)", 3600.0),
    ]


def test_it_runs_before_set_up_without_any_package():
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-S", "-m", "circuitbook.doctor", "--json"]  # -S: standard library
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    report = json.loads(done.stdout)
    assert all(row["installed"] is None for row in report["packages"])
    assert report["device"]["used"] is None and len(report["text"]) == len(SOURCES)
