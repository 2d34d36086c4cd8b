"""The menu: it lists itself, refuses what it does not know, and never trains behind one's back."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
GUARDS = {"python", "ready"}
SWITCHES = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "DEVICE", "MODELS", "QUICK", "PYTHON", "VENV")


def make(*arguments, path=None):
    """Run make as a user would, not as a child of the make that runs these tests."""
    environment = {k: v for k, v in os.environ.items() if k not in SWITCHES}
    if path:
        environment["PATH"] = f"{path}{os.pathsep}{environment['PATH']}"
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )


def script(path, text):
    """Write a program to stand in for another one."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def environment():
    """tools/environment.py as a module."""
    spec = importlib.util.spec_from_file_location("environment", ROOT / "tools" / "environment.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def targets():
    return set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


def test_help_is_the_default_and_lists_every_target():
    done = make()
    assert done.returncode == 0
    assert done.stdout == make("help").stdout
    for target in targets() - GUARDS:
        assert re.search(rf"^  make {target} +\S", done.stdout, re.MULTILINE), target


def test_every_target_is_phony():
    phony = MAKEFILE.replace("\\\n", " ").split(".PHONY:")[1].splitlines()[0].split()
    assert set(phony) == targets()
    assert "%" not in re.sub(r"%-11s|%s", "", MAKEFILE), "a pattern rule could delete a JSON file"


@pytest.mark.parametrize(
    "target", ["all", "published", "test", "figures", "lessons", "check", "lab"]
)
def test_nothing_but_weights_trains(target):
    assert "train" not in make("-n", target).stdout
    assert "train" in make("-n", "weights").stdout


@pytest.mark.parametrize("target", ["figures", "lessons", "check"])
def test_these_neither_install_nor_fetch(target, tmp_path):
    commands = make("-n", target).stdout
    assert "corpus" not in commands and "environment.py setup" not in commands
    done = make(target, f"VENV={tmp_path / 'none'}")
    assert done.returncode != 0
    assert "Run: make setup" in done.stderr


def test_all_measures_before_it_draws_and_compares():
    commands = make("-n", "all").stdout
    order = ["setup", "corpus fetch", "derive.py taught", "circuitbook.measure"]
    order += ["circuitbook.gallery", "attribution.page", "derive.py all", "results compare"]
    order += ["circuitbook.series", "results claims"]
    places = [commands.index(word) for word in order]
    assert places == sorted(places)


def test_published_is_all_of_it_after_fetching_what_it_needs():
    commands = make("-n", "published").stdout
    order = ["environment.py setup", "corpus fetch", "circuitbook.published fetch"]
    places = [commands.index(word) for word in [*order, "circuitbook.measure"]]
    assert places == sorted(places)
    assert make("-n", "all", "MODELS=published").stdout in commands  # the same, by its other name
    assert "circuitbook.published" not in make("-n", "all").stdout


@pytest.mark.parametrize("target", ["test", "text", "weights", "check", "figures", "doctor"])
def test_nothing_else_asks_the_hub(target):
    assert "published fetch" not in make("-n", target, "MODELS=published").stdout


@pytest.mark.parametrize("target", ["text", "weights"])
def test_the_course_text_and_its_models_are_made_whatever_models_says(tmp_path, target):
    (tmp_path / "bin").mkdir()
    said = tmp_path / "said"
    script(tmp_path / "bin" / "python", f'echo "$MODELS $@" >> {said}')
    assert make(target, "MODELS=published", f"VENV={tmp_path}").returncode == 0
    steps = [line for line in said.read_text().splitlines() if " -m circuitbook." in line]
    assert steps and all(line.startswith("course ") for line in steps)


def test_the_models_set_reaches_every_step_of_published(tmp_path):
    (tmp_path / "bin").mkdir()
    said = tmp_path / "said"
    script(tmp_path / "bin" / "python", f'echo "$MODELS $@" >> {said}')
    assert make("published", f"VENV={tmp_path}").returncode == 0
    lines = said.read_text().splitlines()
    steps = [line for line in lines if "circuitbook." in line or "derive.py" in line]
    text, *steps = steps  # the text is that of the course, for the parts on its models
    assert text == "course -m circuitbook.corpus fetch" and len(steps) == 9
    assert all(line.startswith("published ") for line in steps)


def test_without_the_published_files_nothing_is_measured(tmp_path):
    (tmp_path / "bin").mkdir()
    said = tmp_path / "said"
    fails = 'case "$@" in *circuitbook.published*) exit 1;; esac'
    script(tmp_path / "bin" / "python", f'echo "$@" >> {said}; {fails}')
    assert make("published", f"VENV={tmp_path}").returncode != 0
    assert "measure" not in said.read_text()


def test_compare_shows_this_machines_numbers_of_the_published_models():
    assert "RECOMPUTE=1" in make("-n", "compare", "MODELS=published").stdout
    assert "RECOMPUTE" not in make("-n", "compare").stdout


def test_all_goes_on_after_a_failure_and_reports_it(tmp_path):
    (tmp_path / "bin").mkdir()
    said = tmp_path / "said"
    script(
        tmp_path / "bin" / "python", f'echo "$@" >> {said}; case "$@" in *measure*) exit 1;; esac'
    )
    done = make("all", f"VENV={tmp_path}")
    assert done.returncode != 0
    assert "claims" in said.read_text().splitlines()[-1]


@pytest.mark.parametrize(
    "setting, words",
    [
        ("DEVICE=tpu", "DEVICE=auto, DEVICE=cpu or DEVICE=cuda"),
        ("MODELS=mine", "MODELS=course or MODELS=published"),
        ("QUICK=yes", "QUICK=1"),
    ],
)
def test_an_unknown_setting_is_named_with_the_known_ones(setting, words):
    done = make("check", setting)
    assert done.returncode != 0
    assert f"{setting} is not known" in done.stderr and words in done.stderr


def test_an_old_python_is_refused_in_one_clear_line(tmp_path):
    old = script(tmp_path / "python3", "exit 1")  # what `sys.version_info < (3, 11)` comes to
    for arguments in ([f"PYTHON={old}"], ["PYTHON=no-such-python"]):
        done = make("setup", f"VENV={tmp_path / 'venv'}", *arguments)
        assert done.returncode != 0
        assert "Circuitbook needs Python 3.11 or later" in done.stderr
        assert "make setup PYTHON=python3.12" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_ci_fails_when_any_step_fails(tmp_path):
    script(tmp_path / "chromium", "exit 0")
    for step in ("lint", "test", "test-site"):
        script(tmp_path / "make", f'[ "$1" != {step} ]')
        environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
        assert subprocess.run(["bash", ".ci/run"], cwd=ROOT, env=environment).returncode != 0
    script(tmp_path / "make", "exit 0")
    assert subprocess.run(["bash", ".ci/run"], cwd=ROOT, env=environment).returncode == 0
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_ci_without_a_browser_says_so_and_passes(tmp_path):
    for name in ("dirname", "id", "bash"):  # a machine that has nothing else
        (tmp_path / name).symlink_to(shutil.which(name))
    script(tmp_path / "make", "exit 0")
    environment = {**os.environ, "PATH": str(tmp_path)}
    command = [str(tmp_path / "bash"), ".ci/run"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0
    assert "not tried in a browser" in done.stderr


# ---- tools/environment.py ------------------------------------------------------------------------


@pytest.fixture
def project(environment, monkeypatch, tmp_path):
    """A project of two files and an environment that looks finished."""
    (tmp_path / "constraints.txt").write_text("numpy==2.0\n")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    (venv / "lib" / f"python{environment.minor()}").mkdir(parents=True)
    (venv / "pyvenv.cfg").write_text("home = somewhere\n")
    (venv / environment.STAMP).write_text(environment.wanted(environment.minor()))
    return tmp_path


def test_a_current_environment_is_left_alone_whatever_the_clock_says(environment, project):
    os.utime(project / "constraints.txt", (2_000_000_000, 2_000_000_000))
    (project / "pyproject.toml").write_bytes(b"[project]\r\n")  # a checkout with other line ends
    environment.ready(project / "venv")
    environment.setup(project / "venv")  # would call pip otherwise


def test_a_changed_pin_is_noticed_by_content(environment, project):
    times = (project / "constraints.txt").stat()
    (project / "constraints.txt").write_text("numpy==2.1\n")
    os.utime(project / "constraints.txt", ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(SystemExit, match="changed since the last install. Run: make setup"):
        environment.ready(project / "venv")


def test_an_unfinished_install_is_not_taken_for_a_finished_one(environment, project, monkeypatch):
    (project / "venv" / environment.STAMP).unlink()
    with pytest.raises(SystemExit, match="no finished environment yet. Run: make setup"):
        environment.ready(project / "venv")
    monkeypatch.setattr(environment.subprocess, "call", lambda *a, **k: 1)
    with pytest.raises(SystemExit, match="run `make setup` again"):
        environment.setup(project / "venv")
    assert environment.stamped(project / "venv") is None


def test_another_python_version_makes_another_environment(environment, project, monkeypatch):
    made = []
    monkeypatch.setattr(environment, "minor", lambda: "3.99")
    monkeypatch.setattr(environment, "create", lambda venv: made.append(venv))
    monkeypatch.setattr(environment.subprocess, "call", lambda *a, **k: 0)
    environment.setup(project / "venv")
    assert made == [project / "venv"]


def test_a_folder_that_is_no_environment_is_never_deleted(environment, project):
    precious = project / "thesis"
    precious.mkdir()
    (precious / "chapter.txt").write_text("years of work")
    with pytest.raises(SystemExit, match="not a virtual environment"):
        environment.setup(precious)
    assert (precious / "chapter.txt").exists()


def test_the_learners_copy_is_never_written_over(environment, project):
    release = project / "assignments" / "release"
    release.mkdir(parents=True)
    for name in ("01.ipynb", "02.ipynb"):
        (release / name).write_text("new")
    (project / "work").mkdir()
    (project / "work" / "01.ipynb").write_text("my answers")
    environment.work()
    assert (project / "work" / "01.ipynb").read_text() == "my answers"
    assert (project / "work" / "02.ipynb").read_text() == "new"


def test_jupyterlab_gets_what_a_reader_adds():
    """As root it starts with --allow-root alone, and it says so itself."""
    assert "root_dir=work --allow-root" in make("-n", "lab", "LAB_ARGS=--allow-root").stdout
