"""The start files of hosted machines: what can be checked of them without such a machine."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import hosted
import pytest
from colab_like import RECORDED, machine, packages_of, wheel
from colab_like import hosted as run_hosted
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PAGE = (ROOT / "docs" / "hosted.md").read_text(encoding="utf-8")
BINDER = (ROOT / ".binder" / "environment.yml").read_text(encoding="utf-8")
CONTAINER = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
DOCKERFILE = (ROOT / ".devcontainer" / "dockerfile").read_text(encoding="utf-8")
SCRIPTS = ["postBuild", "start"]


def dependency(name):
    return next(r for r in map(Requirement, PROJECT["dependencies"]) if r.name == name)


def pinned(name):
    return hosted.pins()[name].split("==")[1]


def cell():
    """The code of Colab's first cell."""
    found = re.findall(r"```python\n(.*?)```", PAGE.split("## Colab")[1], re.DOTALL)
    return found[0]


# ---- Binder and the dev container ----------------------------------------------------------------


def test_binders_torch_ends_at_the_pinned_version_and_starts_where_the_project_does():
    asked = Requirement(re.search(r"- (pytorch-cpu.*)", BINDER)[1].replace("pytorch-cpu", "torch"))
    ends = {s.operator: s.version for s in asked.specifier}
    starts = {s.operator: s.version for s in dependency("torch").specifier}
    assert ends == {">=": starts[">="], "<=": pinned("torch")}
    assert "channels" not in BINDER and "pip:" not in BINDER


def test_the_pythons_are_ones_that_the_project_takes():
    for text in (re.search(r"- python=([0-9.]+)", BINDER)[1],
                 re.search(r"^FROM python:([0-9.]+)-", DOCKERFILE, re.MULTILINE)[1]):  # fmt: skip
        assert Version(text) in SpecifierSet(PROJECT["requires-python"])
        assert f"Programming Language :: Python :: {text}" in PROJECT["classifiers"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_binders_scripts_can_run(name):
    path = ROOT / ".binder" / name
    assert path.read_bytes().startswith(b"#!/bin/bash\n") and b"\r" not in path.read_bytes()
    assert os.access(path, os.X_OK)
    subprocess.run(["bash", "-n", str(path)], check=True)
    for tool in re.findall(r"^python (\S+\.py)", path.read_text(), re.MULTILINE):
        assert (ROOT / tool).is_file(), f"{name} runs {tool}"
    if name == "postBuild":
        assert "set -euo pipefail" in path.read_text(), "or Binder would not notice a failure"


@pytest.mark.parametrize(
    "limit, threads", [(None, "2"), ("1.0", "1"), ("4", "4"), ("0.5", "1"), ("", "2"), ("x", "1")]
)
def test_a_session_takes_as_many_threads_as_it_has_cores(limit, threads):
    clean = {k: v for k, v in os.environ.items() if k not in ("CPU_LIMIT", "OMP_NUM_THREADS")}
    done = subprocess.run(
        [str(ROOT / ".binder" / "start"), "sh", "-c", "echo $OMP_NUM_THREADS $DEVICE $1", "-", "a"],
        env=clean if limit is None else clean | {"CPU_LIMIT": limit},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == f"{threads} cpu a\n" and not done.stderr


def test_the_container_names_what_exists():
    assert (ROOT / ".devcontainer" / CONTAINER["build"]["dockerfile"]).is_file()
    assert re.search(rf"useradd .*\b{CONTAINER['remoteUser']}$", DOCKERFILE, re.MULTILINE)
    assert 8888 in CONTAINER["forwardPorts"] and "8888" in CONTAINER["portsAttributes"]
    extensions = CONTAINER["customizations"]["vscode"]["extensions"]
    assert {"ms-python.python", "ms-toolsai.jupyter"} <= set(extensions)
    settings = CONTAINER["customizations"]["vscode"]["settings"]
    assert settings["python.defaultInterpreterPath"].endswith("/.venv/bin/python")


def test_every_make_target_that_is_named_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    scripts = [(ROOT / ".binder" / name).read_text() for name in SCRIPTS]
    named = set(
        re.findall(r"[`\"(]make ([a-z-]+)", "\n".join([json.dumps(CONTAINER), PAGE, *scripts]))
    )
    assert {"setup", "lab"} <= named <= targets


def test_the_files_that_the_page_names_exist():
    for name in re.findall(r"`((?:\.binder|tools|tests|\.devcontainer)/[^`]+)`", PAGE):
        assert (ROOT / name).is_file(), name
    assert PAGE.count("*Not tried here:*") == 3, "each way says what could not be tried"


# ---- Colab's first cell --------------------------------------------------------------------------


def test_the_cell_parses_and_leaves_all_installing_to_one_program():
    tree = ast.parse(cell())
    assert "pip" not in cell() and "hosted.py" in cell() and "!" not in cell()
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "run"]
    assert len(calls) == 2
    code = [n for n in ast.walk(tree) if isinstance(n, ast.Import)]
    assert {a.name for n in code for a in n.names} <= {
        *sys.stdlib_module_names,
        "torch",
        "circuitbook",
    }


def in_a_fresh_kernel(home):
    """Run cell.py there, at home in that folder."""
    return subprocess.run(
        [sys.executable, "cell.py"], cwd=home, env=os.environ | {"HOME": str(home)},
        capture_output=True, text=True,
    )  # fmt: skip


def test_the_cell_runs_twice_in_a_folder_that_was_cloned_before(tmp_path):
    """With this repository as the address, and a program in the place of hosted.py."""
    remote = tmp_path / "remote"
    (remote / "tools").mkdir(parents=True)
    (remote / "tools" / "hosted.py").write_text("print('nothing was missing')")
    (remote / "src" / "circuitbook").mkdir(parents=True)
    (remote / "src" / "circuitbook" / "__init__.py").write_text("__version__ = 'of the clone'")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(remote)]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], check=True)
    text = cell().replace('= "REPOSITORY"', f"= {remote.as_uri()!r}")
    (tmp_path / "cell.py").write_text(f"for _ in range(2):\n    exec({text!r}, {{}})\n")
    done = in_a_fresh_kernel(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Circuitbook of the clone with torch") == 2
    assert done.stdout.count("Cloning") == 1 and done.stdout.count("nothing was missing") == 2


def test_the_cell_says_when_the_address_is_missing(tmp_path):
    (tmp_path / "cell.py").write_text(cell())
    done = in_a_fresh_kernel(tmp_path)
    assert done.returncode and "RuntimeError: Write the address of the course" in done.stderr


# ---- what is installed ---------------------------------------------------------------------------


def offline_index(folder):
    """Packages that would tempt pip to move what is there: newer ones, and needs that pull them."""
    names = {hosted.normal(Requirement(line).name) for line in hosted.needed()}
    for name in (names | {"transformers"}) - {"transformer-lens"}:
        wheel(folder, name, pinned(name))
    wheel(folder, "jaxtyping", "99.0")
    return folder


def test_on_colab_packages_are_added_and_none_is_lowered_or_moved(tmp_path):
    index = offline_index(tmp_path / "index")
    wheel(index, "transformer_lens", pinned("transformer-lens"), ["torch>=2.6", "numpy>=1.26"])
    python = machine(tmp_path / "colab", RECORDED)
    done = run_hosted(python, index)
    assert done.returncode == 0, done.stdout + done.stderr
    after = packages_of(python)
    added = {hosted.normal(n): v for n, v in after.items() if hosted.normal(n) not in RECORDED}
    assert {n: v for n, v in after.items() if hosted.normal(n) in RECORDED} == RECORDED
    wanted = {name: pinned(name) for name in ("jaxtyping", "transformer-lens")}
    assert added == wanted
    assert "Added: jaxtyping" in done.stdout and "Raised" not in done.stdout
    again = run_hosted(python, index)
    assert again.returncode == 0 and "nothing was missing" in again.stdout


def test_what_transformer_lens_needs_newer_is_raised_and_nothing_else(tmp_path):
    index = offline_index(tmp_path / "index")
    needs = ["torch>=2.6", "transformers>=5.9.0"]  # as its versions since 3.9 say
    wheel(index, "transformer_lens", pinned("transformer-lens"), needs)
    python = machine(tmp_path / "colab", RECORDED)
    done = run_hosted(python, index)
    assert done.returncode == 0, done.stdout + done.stderr
    after = {hosted.normal(n): v for n, v in packages_of(python).items()}
    moved = {name for name, version in RECORDED.items() if after[name] != version}
    assert after["jaxtyping"] == pinned("jaxtyping")
    assert moved == {"transformers"} and Version(after["transformers"]) >= Version("5.9.0")
    assert "Raised: transformers 5.0.0 →" in done.stdout


def test_a_need_that_would_move_numpy_is_refused_and_nothing_changes(tmp_path):
    index = offline_index(tmp_path / "index")
    wheel(index, "transformer_lens", pinned("transformer-lens"), ["numpy>=2.4"])
    python = machine(tmp_path / "colab", RECORDED)
    done = run_hosted(python, index)
    assert done.returncode == 1 and "Nothing was changed" in done.stderr
    assert "numpy" in done.stderr and packages_of(python) == RECORDED


def test_what_was_recorded_is_inside_the_projects_ranges():
    for line in hosted.needed():
        need = Requirement(line)
        have = RECORDED.get(hosted.normal(need.name))
        assert have is None or need.specifier.contains(have), f"{need} but Colab has {have}"
    declared = {hosted.normal(Requirement(line).name) for line in PROJECT["dependencies"]}
    assert declared >= hosted.HOST, "each exception is a dependency of the project"


def test_lessons_import_nothing_that_is_left_to_the_host():
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]
    loaded = set()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                loaded |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                loaded.add(node.module.split(".")[0])
    assert "transformer_lens" in loaded and len(files) > 100
    assert not loaded & hosted.HOST
