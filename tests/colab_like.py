"""A Python that has what a hosted notebook's machine had, by name and version alone; no network.

RECORDED is from the list of packages that Colab publishes for its GPU machines, February 2026
(Python 3.12): those that lessons need, those that these need, and the notebook's own.
"""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pip

ROOT = Path(__file__).resolve().parent.parent
RECORDED = dict(
    line.split("==")
    for line in """
    accelerate==1.12.0 aiohttp==3.13.3 beartype==0.22.9 click==8.3.1 contourpy==1.3.3
    cycler==0.12.1 datasets==4.0.0 dill==0.3.8 einops==0.8.2 filelock==3.24.3 fonttools==4.61.1
    fsspec==2025.3.0 gitpython==3.1.46 hf-xet==1.3.0 httpx==0.28.1 huggingface-hub==1.4.1
    ipykernel==6.17.1 ipython==7.34.0 jinja2==3.1.6 jupytext==1.19.1 kiwisolver==1.4.9
    matplotlib==3.10.0 multiprocess==0.70.16 nbclient==0.10.4 nbconvert==7.17.0 nbformat==5.10.4
    networkx==3.6.1 numpy==2.0.2 packaging==26.0 pandas==2.2.2 pillow==11.3.0 platformdirs==4.9.2
    plotly==5.24.1 protobuf==5.29.6 psutil==5.9.5 pyarrow==18.1.0 pydantic==2.12.3
    pyparsing==3.3.2 python-dateutil==2.9.0.post0 pytz==2025.2 pyyaml==6.0.3 regex==2025.11.3
    requests==2.32.4 rich==13.9.4 safetensors==0.7.0 sentencepiece==0.2.1 sentry-sdk==2.53.0
    setuptools==75.2.0 six==1.17.0 sympy==1.14.0 tokenizers==0.22.2 torch==2.10.0+cu128
    tqdm==4.67.3 traitlets==5.7.1 transformers==5.0.0 triton==3.6.0 typeguard==4.5.1
    typer==0.24.1 typing-extensions==4.15.0 tzdata==2025.3 wandb==0.25.0 xxhash==3.6.0
    """.split()
)


def _folder(name, version):
    return f"{name.replace('-', '_')}-{version}"


def _metadata(name, version, needs=()):
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    return "\n".join([*lines, *(f"Requires-Dist: {need}" for need in needs), ""])


def machine(path, packages):
    """The executable of a Python that holds pip and these packages, of which only the names."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(path)
    place = next(path.glob("lib/python3*/site-packages"))
    os.symlink(Path(pip.__file__).parent, place / "pip")
    for name, version in packages.items():
        info = place / f"{_folder(name, version)}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(_metadata(name, version))
        (info / "INSTALLER").write_text("pip\n")
        files = ("METADATA", "INSTALLER", "RECORD")  # all of them, or pip would leave some behind
        (info / "RECORD").write_text("".join(f"{info.name}/{name},,\n" for name in files))
    return path / "bin" / "python"


def wheel(folder, name, version, needs=()):
    """A package without contents, in a folder that pip searches instead of an index."""
    folder.mkdir(exist_ok=True)
    info = f"{_folder(name, version)}.dist-info"
    with zipfile.ZipFile(folder / f"{_folder(name, version)}-py3-none-any.whl", "w") as file:
        file.writestr(f"{info}/METADATA", _metadata(name, version, needs))
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any"
        )
        file.writestr(f"{info}/RECORD", "")


def hosted(python, wheels, tool=ROOT / "tools" / "hosted.py"):
    """Run tools/hosted.py there; pip may take packages from the folder `wheels` only."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON"))}
    only = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}
    return subprocess.run(
        [str(python), str(tool)], env=clean | only, capture_output=True, text=True, cwd=wheels
    )


def packages_of(python):
    """Name → version of every package there."""
    code = "import importlib.metadata as m; print([(d.name, d.version) for d in m.distributions()])"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    return dict(eval(done.stdout))


if __name__ == "__main__":  # a resolver's dry run by hand, with the real index
    print(machine(Path(sys.argv[1]), RECORDED))
