"""The environment is a function of constraints.txt, pyproject.toml and the Python version.

`make setup` runs this file with whatever Python it has, so it uses the standard library alone.

    environment.py setup VENV    create VENV and install, or return at once when it is current
    environment.py browser VENV  add what the site's tests drive a browser with (160 MB)
    environment.py ready VENV    fail with a clear line when VENV is missing or stale
    environment.py work          copy the student notebooks to work/, never over an existing file
    environment.py clean         delete what was built; keep the environment and the text

A stamp in VENV holds the hash of all three. It is written last, so an interrupted install is taken
up again. Time stamps play no part: a clone or a checkout moves them.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STAMP = "circuitbook-stamp"
BROWSER_STAMP = "circuitbook-browser"


def wanted(version):
    """Return the hash of what the environment is made from, for this Python version."""
    digest = hashlib.sha256(version.encode())
    for name in ("constraints.txt", "pyproject.toml"):
        # Line ends may differ between checkouts; the packages do not.
        digest.update(name.encode() + (ROOT / name).read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()


def minor():
    """Return this Python's version as pip's wheels see it, such as 3.12."""
    return "{}.{}".format(*sys.version_info[:2])


def python_in(venv):
    """Return the path of the environment's own Python."""
    return venv / "bin" / "python"


def made_with(venv):
    """Return the Python version of an existing environment, such as 3.12, or None."""
    found = sorted(path.name[len("python") :] for path in venv.glob("lib/python3.*"))
    whole = (venv / "pyvenv.cfg").exists() and python_in(venv).exists()
    return found[0] if whole and len(found) == 1 else None


def stamped(venv, stamp=STAMP):
    """Return the hash written at the end of the last finished install, or None."""
    try:
        return (venv / stamp).read_text().strip()
    except OSError:
        return None


def fail(*lines):
    """Leave with a message on stderr."""
    sys.exit("\n".join(lines))


def create(venv):
    """Create the environment, or make it anew when it is broken or of another Python."""
    if os.name == "nt":
        fail("Circuitbook runs on Linux and macOS. On Windows use WSL and start again there.")
    try:
        import ensurepip  # noqa: F401  Debian splits it off; venv fails halfway without it
        import venv as builder
    except ImportError:
        fail(
            "This Python cannot create virtual environments.",
            f"On Debian or Ubuntu: apt install python{minor()}-venv. Then run make again.",
        )
    if venv.is_dir() and any(venv.iterdir()):
        if not (venv / "pyvenv.cfg").exists():
            fail(f"{venv} is not a virtual environment. Move it away first.")
        print("Making the environment anew: it is broken or of another Python version.")
        shutil.rmtree(str(venv))
    print(f"Creating {venv.name} with Python {minor()}.", flush=True)
    builder.EnvBuilder(with_pip=True, symlinks=True).create(str(venv))


def setup(venv):
    """Create the environment and install into it, unless it is current."""
    if made_with(venv) != minor():
        create(venv)
    if stamped(venv) != wanted(minor()):
        print(
            "Installing the packages of constraints.txt. The first time takes minutes.", flush=True
        )
        install(venv, "dev,site,teach", STAMP)


def browser(venv):
    """Install what drives a browser, unless it is there already."""
    if stamped(venv, BROWSER_STAMP) != wanted(made_with(venv)):
        print("Installing what the site's tests need. The first time takes a minute.", flush=True)
        install(venv, "browser", BROWSER_STAMP)


def install(venv, extras, stamp):
    """Install the project with some extras; leave a stamp when all of it is there."""
    command = [str(python_in(venv)), "-m", "pip", "install", "--disable-pip-version-check"]
    command += ["-c", "constraints.txt", "-e", f".[{extras}]"]
    if subprocess.call(command, cwd=str(ROOT)):
        fail(
            "",
            "The install did not finish. Nothing is lost: run `make setup` again and it goes on.",
            "If the network is the trouble, the lines above name the package it could not get.",
        )
    temporary = venv / (stamp + ".tmp")
    temporary.write_text(wanted(made_with(venv)) + "\n")
    os.replace(str(temporary), str(venv / stamp))


def ready(venv):
    """Say what to run when the environment is missing or stale; install nothing."""
    version = made_with(venv)
    if version is None or stamped(venv) is None:
        fail("There is no finished environment yet. Run: make setup")
    if stamped(venv) != wanted(version):
        fail("constraints.txt or pyproject.toml changed since the last install. Run: make setup")


def work():
    """Copy each built lesson to work/ unless the learner already has a file of that name."""
    source = ROOT / "assignments" / "release"
    if not source.is_dir():
        source = ROOT / "notebooks"
    copied = 0
    for path in sorted(source.rglob("*.ipynb")) if source.is_dir() else []:
        target = ROOT / "work" / path.relative_to(source)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(path), str(target))
            copied += 1
    (ROOT / "work").mkdir(exist_ok=True)
    print(f"Notebooks newly copied to work/: {copied}. Your own files there were left alone.")


def clean():
    """Delete build/ and the tools' caches. The environment, the text and work/ stay."""
    for name in ("build", ".pytest_cache", ".ruff_cache"):
        shutil.rmtree(str(ROOT / name), ignore_errors=True)
    for top in ("src", "scripts", "tools", "tests", "bench"):
        for cache in list((ROOT / top).rglob("__pycache__")):
            shutil.rmtree(str(cache), ignore_errors=True)
    print("Deleted build/ and caches. Kept .venv, the text and work/.")


def main(arguments):
    """Run the command named first."""
    command, rest = (arguments + [""])[0], arguments[1:]
    if command in ("setup", "browser", "ready") and len(rest) == 1:
        steps = {"setup": setup, "browser": browser, "ready": ready}
        steps[command](Path(os.path.abspath(rest[0])))
    elif command in ("work", "clean") and not rest:
        {"work": work, "clean": clean}[command]()
    else:
        fail(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
