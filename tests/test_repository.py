"""What is true of every file of the project: names, sizes, secrets, dependencies, no network."""

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
UPPER_CASE = {
    "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "LICENSE-TEXT", "Makefile",
    "CITATION.cff", ".binder/postBuild",
    "weights/MANIFEST.json",
}  # fmt: skip
WINDOWS_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?")
# In pieces, so that this file does not hold what it looks for.
MACHINE = [
    "/opt/" + "pypi",
    "/work/" + "main",
    "/work/" + "shared",
    "/tmp/" + "plan",
    "/root/" + ".",
]
REGISTRIES = ["py" + "pi.org", "python" + "hosted", "npm" + "js.org", "download.py" + "torch"]
SECRETS = re.compile(
    r"\bhf_[A-Za-z0-9]{30,}|\bsk-[A-Za-z0-9_-]{20,}|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{36}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|(?i:api|secret|access|auth)[_-]?(?i:key|token)['\"]?\s*[:=]\s*['\"][A-Za-z0-9_\-+/]{16,}['\"]"
)
REMOTE_SCRIPT = re.compile(
    r"<script[^>]*\bsrc\s*=\s*[\\'\"]*(https?:)?//|<link[^>]*\bhref\s*=\s*[\\'\"]*(https?:)?//[^>]*css"
    r"|\bcdn\.|jsdelivr\.|unpkg\.com|cdnjs\.|@import\s+url",
    re.IGNORECASE,
)


@cache
def files():
    """Every file that is in the repository or would be added to it."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    names = sorted({name.decode() for name in listed.split(b"\0") if name})
    return [name for name in names if (ROOT / name).is_file()]


@cache
def contents():
    """Name → text, of every file that is text."""
    found = {}
    for name in files():
        data = (ROOT / name).read_bytes()
        if b"\0" not in data[:8192]:
            found[name] = data.decode("utf-8")
    return found


def python_files(*folders):
    return [name for name in files() if name.startswith(folders) and name.endswith(".py")]


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pins():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {normal(requirement.name): requirement for requirement in found}


# ---- names and sizes -----------------------------------------------------------------------------


def test_every_name_can_be_cloned_anywhere():
    for name in set(files()) - UPPER_CASE:
        assert re.fullmatch(r"[a-z0-9._/-]+", name), f"{name}: lower-case ASCII names only"
    for name in files():
        assert len(name) <= 120, f"{name} is longer than 120 characters"
        for part in name.split("/"):
            assert not WINDOWS_RESERVED.fullmatch(part.lower()), f"{name}: reserved on Windows"
            assert not part.endswith((".", " ")), f"{name}: Windows drops the last character"
    assert len({name.lower() for name in files()}) == len(files()), "names differ only by case"


def test_no_program_file_is_longer_than_400_lines():
    long = {}
    scripts = [name for name in files() if name.startswith("site/") and name.endswith(".js")]
    folders = ("src/", "scripts/", "tools/", "tests/", "bench/", "site/")
    for name in python_files(*folders) + scripts:
        lines = contents()[name].count("\n")
        if lines > 400 and not name.startswith("src/circuitbook/taught"):  # taught is generated
            long[name] = lines
    assert not long, "split these files at their joints"


def test_nothing_heavy_and_no_text_is_in_the_repository():
    from circuitbook.sources import SOURCES

    archives = {source.filename for source in SOURCES}
    for name in files():
        path, size = ROOT / name, (ROOT / name).stat().st_size
        assert path.name not in archives, f"{name}: the text is fetched, never committed"
        assert not name.endswith((".whl", ".gz", ".zip", ".npy", ".npz", ".db", ".parquet", ".pth"))
        assert size < 100_000 or not name.endswith(".txt"), f"{name} looks like a text"
        assert size < 5_000_000 or name.endswith(".safetensors"), f"{name} is {size:,} bytes"


# ---- what must not be inside ---------------------------------------------------------------------


def test_no_file_holds_a_secret():
    for name, text in contents().items():
        found = SECRETS.search(text)
        assert not found, f"{name} holds what looks like a key: {found[0][:12]}…"


@pytest.mark.parametrize(
    "planted",
    ["hf_" + "a1B2" * 9, "sk-" + "x" * 30, "AKIA" + "Q" * 16, "api_key" + ' = "' + "0f" * 16 + '"',
     "-----BEGIN RSA " + "PRIVATE KEY-----", '"auth_token"' + ': "' + "Zz09" * 5 + '"'],
)  # fmt: skip
def test_a_planted_secret_is_found(planted):
    assert SECRETS.search(f"before {planted} after")
    assert SECRETS.search(json.dumps({"outputs": [planted]}).replace('\\"', '"'))


def test_no_file_names_this_machine_or_a_registry():
    for name, text in contents().items():
        for word in MACHINE + REGISTRIES:
            assert word not in text, f"{name} names {word}"


def test_nothing_uses_what_newer_packages_dropped():
    gone = "pkg_" + "resources"
    for name in python_files("src/", "scripts/", "tools/", "tests/", "bench/"):
        assert gone not in contents()[name], f"{name}: use importlib.metadata"


def test_notebooks_load_nothing_from_elsewhere():
    for name, text in contents().items():
        if name.endswith((".ipynb", ".html", ".svg")):
            found = REMOTE_SCRIPT.search(text)
            assert not found, f"{name} loads something from a network: {found[0]}"
    assert REMOTE_SCRIPT.search(r'"<script src=\"https://a.example/plotly.js\"></script>"')


def test_every_lint_exception_says_why():
    for name in python_files("src/", "scripts/", "tools/", "tests/", "bench/"):
        for number, line in enumerate(contents()[name].splitlines(), 1):
            found = re.search(r"# noqa: ?[A-Z0-9, ]*[0-9](.*)", line)
            assert not found or found[1].strip(), f"{name}:{number}: say why, after the rule"
    rules = (ROOT / "pyproject.toml").read_text(encoding="utf-8").split("ignore = [", 1)[1]
    rules = rules.split("[tool.pytest", 1)[0]
    for line in rules.splitlines():
        if re.match(r'\s+"[A-Z]+\d*",', line):
            assert "#" in line, f"pyproject.toml: {line.strip()} needs its reason on its line"


# ---- the documents -------------------------------------------------------------------------------


def test_every_make_target_that_is_named_exists():
    targets = set(re.findall(r"^([a-z]+):", contents()["Makefile"], re.MULTILINE))
    pages = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *python_files("src/", "scripts/")]
    named = {page: re.findall(r"(?:^|[`'\"(]|: )make ([a-z]+)\b", contents()[page], re.M)
             for page in pages}  # fmt: skip
    assert {"all", "test"} <= set(named["README.md"])
    for page, words in named.items():
        assert set(words) <= targets, f"{page} names {sorted(set(words) - targets)}"


def test_the_pages_point_at_files_that_exist():
    for page in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)|src=\"([^\"]+)\"", contents()[page]):
            target = link[0] or link[1]
            if not target.startswith(("http://", "https://")):
                assert (ROOT / target).exists(), f"{page} points at {target}, which is not there"


# ---- dependencies --------------------------------------------------------------------------------


def imported(name):
    """Top-level names that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(contents()[name])):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize(
    "folders, extras",
    [
        (("src/", "scripts/"), []),
        (("tools/",), ["site", "teach"]),
        (("tests/", "bench/"), ["dev", "site", "teach"]),
        (("site/",), ["browser", "site"]),
    ],
)
def test_every_imported_package_is_declared(folders, extras):
    declared = list(project()["dependencies"])
    for extra in extras:
        declared += project()["optional-dependencies"][extra]
    declared = {normal(Requirement(line).name) for line in declared} | {"circuitbook"}
    provides = importlib.metadata.packages_distributions()
    local = {Path(name).stem for name in python_files("tests/", "tools/", "bench/", "site/")} | {
        "__main__"
    }
    for name in python_files(*folders):
        own = {"sae_lens"} if name == "tools/sae_lens_check.py" else {"pip"}  # what makes the rest
        for module in imported(name) - set(sys.stdlib_module_names) - local - own:
            packages = {normal(package) for package in provides.get(module, [module])}
            assert packages & declared, f"{name} imports {module}: declare it in pyproject.toml"


def test_constraints_pin_everything_exactly():
    for name, requirement in pins().items():
        assert re.fullmatch(r"==[^+*,]+", str(requirement.specifier)), f"{name}: one plain version"
    text = contents()["constraints.txt"]
    assert not re.search(r"file:|https?:|^-", text, re.MULTILINE), "names and versions only"
    assert "index" not in re.sub(r"#.*", "", text)
    assert str(pins()["torch"].specifier) == "==2.13.0"


def test_constraints_cover_what_is_declared_and_all_that_it_brings():
    extras = project()["optional-dependencies"]
    declared = sum((extras[name] for name in ("dev", "site", "teach")), project()["dependencies"])
    for line in extras["browser"]:  # installed for `make test-site` alone
        assert normal(Requirement(line).name) in pins(), f"constraints.txt has no line for {line}"
    queue, seen, pinned = [Requirement(line) for line in declared], set(), pins()
    environment = default_environment()
    while queue:
        requirement = queue.pop()
        name = normal(requirement.name)
        assert name in pinned, f"constraints.txt has no line for {name}"
        version = pinned[name].specifier.__str__().removeprefix("==")
        assert requirement.specifier.contains(version, prereleases=True), (
            f"{requirement} vs {version}"
        )
        for extra in {"", *requirement.extras} - {e for n, e in seen if n == name}:
            seen.add((name, extra))
            for line in importlib.metadata.requires(name) or []:
                needed = Requirement(line)
                if needed.marker is None or needed.marker.evaluate({**environment, "extra": extra}):
                    queue.append(needed)


# ---- the network ---------------------------------------------------------------------------------

IMPORT_ALL = """
import importlib, pkgutil, sys
watched = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.bind"}
opened = []
sys.addaudithook(lambda event, a: opened.append((event, a[1:])) if event in watched else None)
import circuitbook
for module in pkgutil.walk_packages(circuitbook.__path__, "circuitbook."):
    importlib.import_module(module.name)
"""
VERDICT = 'sys.exit(f"a socket was used: {opened}" if opened else 0)'


@pytest.mark.parametrize("control", ["", "import socket; socket.getaddrinfo('127.0.0.1', 1)\n"])
def test_no_socket_is_used_when_the_package_is_imported(control):
    code = (IMPORT_ALL.split("import circuitbook")[0] if control else IMPORT_ALL) + control
    command = [sys.executable, "-c", code + VERDICT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ("a socket was used" in done.stderr) == bool(control), done.stderr[-2000:]
    assert done.returncode == bool(control), done.stderr[-2000:]
