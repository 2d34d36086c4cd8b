"""Add to a hosted machine's Python what the lessons lack; lower nothing that it has.

    python tools/hosted.py

Binder's and Colab's machines come with a Jupyter of their own, and Colab's with torch and numpy,
some of it imported already. Another version of such a package breaks the running notebook. So each
package that is there stays at its version, and pip may only add. What is added takes its version
from constraints.txt, unless the packages that are there cannot live with that one. If that cannot
be, the few libraries of RAISED may go up. They hold no compiled arrays, and no kernel starts with
them.

Standard library alone, because it runs before anything is installed.
"""

import importlib.metadata
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The host has brought these, or lessons do without them: they only show and build notebooks.
HOST = {"ipykernel", "jupyterlab", "jupytext", "nbclient", "nbconvert", "plotly", "traitlets"}

# TransformerLens asks for newer ones than some hosts have.
RAISED = {"hf-xet", "huggingface-hub", "safetensors", "tokenizers", "transformers"}


def normal(name):
    """Return a package's name as the index spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def present():
    """Return name → version of every package of this Python."""
    found = {}
    for package in importlib.metadata.distributions():
        if package.name:  # a half-deleted package has none
            found.setdefault(normal(package.name), package.version)
    return found


def pins():
    """Return name → line of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {normal(line.split("==")[0]): line for line in lines if "==" in line}


def needed():
    """Return what a lesson imports: the project's dependencies without the host's."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    every = data["project"]["dependencies"]
    return [line for line in every if normal(re.split(r"[<>=!~ ;\[]", line)[0]) not in HOST]


def install(constraints):
    """Run pip under these lines; return whether it came to its end."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keep.txt"
        path.write_text("\n".join(constraints) + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
        command += ["--no-cache-dir", "--quiet", "-c", str(path), *needed()]
        return subprocess.call(command) == 0


def tries(before):
    """Yield the constraints to try, the strictest first."""
    keep = [f"{name}=={version}" for name, version in sorted(before.items())]
    rise = [f"{n}>={v}" if n in RAISED else f"{n}=={v}" for n, v in sorted(before.items())]
    ours = [line for name, line in pins().items() if name not in before]
    yield keep + ours
    print("That does not fit together. Trying with newer libraries of the model hub.", flush=True)
    yield rise + ours
    print("Nor does that. Trying other versions of what is added.", flush=True)
    yield rise


def main():
    """Install, then say what was added and make sure that nothing else moved."""
    before = present()
    print(f"{len(before)} packages are here.", flush=True)
    if not any(install(constraints) for constraints in tries(before)):
        sys.exit("Nothing was changed. The lines above name the package that does not fit.")
    after = present()
    moved = {n: f"{n} {v} → {after.get(n)}" for n, v in before.items() if after.get(n) != v}
    if other := [text for name, text in moved.items() if name not in RAISED]:
        sys.exit(f"These packages changed: {', '.join(other)}. Restart the kernel before going on.")
    added = [f"{name} {after[name]}" for name in sorted(after.keys() - before.keys())]
    print("Added: " + (", ".join(added) or "nothing was missing") + ".")
    if moved:
        print("Raised: " + ", ".join(moved.values()) + ". Restart the kernel if it uses them.")


if __name__ == "__main__":
    main()
