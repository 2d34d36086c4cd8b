"""Every folder and every run-time switch of the course, read in one place.

Folders are looked up each time they are used, so a test can move the whole project with the
environment variable CIRCUITBOOK_ROOT. Switches are environment variables because a notebook's
kernel owns the command line. This module never imports torch.

| switch            | values            | meaning                                               |
|-------------------|-------------------|-------------------------------------------------------|
| DEVICE            | auto, cpu, cuda   | where models run; auto takes CUDA when it is there    |
| MODELS            | course, published | our small models, or the series' own (downloaded)     |
| QUICK             | 0, 1              | smaller samples, written to build/quick, no evidence  |
| RECOMPUTE         | 0, 1, force       | do not read committed evidence; force: nor build/     |
| ACCEPT            | 0, 1              | copy what was measured into the committed evidence    |
| EVIDENCE          | any, only         | only: stop when the committed evidence is out of date |
| CIRCUITBOOK_ROOT  | a folder          | the project, when it is not found by itself           |
| CIRCUITBOOK_CACHE | a folder          | fetched text, default .cache in the project           |
| CIRCUITBOOK_TEXT  | a file            | a local test split of WikiText-103 (published track)  |
"""

import contextlib
import contextvars
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "accept", "device", "evidence_only", "folder", "force", "inside_set", "model_set", "models",
    "quick", "recompute", "sizes",
]  # fmt: skip

_FOLDERS = {
    "SCRIPTS": "scripts",
    "NOTEBOOKS": "notebooks",
    "ASSIGNMENTS": "assignments",
    "RESULTS": "results",
    "FIGURES": "figures",
    "WEIGHTS": "weights",
    "BUILD": "build",
}


def _root() -> Path:
    asked = os.environ.get("CIRCUITBOOK_ROOT")
    if asked:
        root = Path(asked).expanduser().resolve()
        if not root.is_dir():
            raise NotADirectoryError(f"CIRCUITBOOK_ROOT={asked} is not a folder")
        return root
    # An editable install keeps this file inside the project; otherwise look upwards from here.
    here, cwd = Path(__file__).resolve(), Path.cwd().resolve()
    for place in (here.parents[2], cwd, *cwd.parents):
        if (place / "pyproject.toml").is_file() and (place / "scripts").is_dir():
            return place
    raise FileNotFoundError(
        "The course's folder was not found. Run from inside it, or set CIRCUITBOOK_ROOT to it."
    )


def folder(name: str) -> Path:
    """The folder called `name`: ROOT, SCRIPTS, NOTEBOOKS, ASSIGNMENTS, RESULTS, FIGURES, …"""
    if name == "ROOT":
        return _root()
    if name == "CACHE":
        asked = os.environ.get("CIRCUITBOOK_CACHE")
        return Path(asked).expanduser().resolve() if asked else _root() / ".cache"
    if name in _FOLDERS:
        return _root() / _FOLDERS[name]
    raise KeyError(f"no folder is called {name!r}; there are ROOT, CACHE, {', '.join(_FOLDERS)}")


def __getattr__(name: str) -> Path:
    """`paths.ROOT`, `paths.RESULTS`, … as attributes."""
    if name in {"ROOT", "CACHE", *_FOLDERS}:
        return folder(name)
    raise AttributeError(f"module 'circuitbook.paths' has no attribute {name!r}")


def _switch(name: str, allowed: tuple[str, ...]) -> str:
    value = os.environ.get(name, "").strip().lower() or allowed[0]
    if value not in allowed:
        raise ValueError(
            f"{name}={os.environ[name]!r} is not known. Use {name}={'|'.join(allowed)}."
        )
    return value


def device() -> str:
    """The device to compute on, "cpu" or "cuda", from DEVICE=auto|cpu|cuda.

    Apple's MPS is never chosen: it has given silently wrong numbers for such models.
    """
    wanted = _switch("DEVICE", ("auto", "cpu", "cuda"))
    if wanted == "cpu":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if wanted == "cuda":
        raise RuntimeError(
            "DEVICE=cuda was asked for, but torch sees no CUDA device. "
            "Use DEVICE=cpu (or auto), or install a CUDA build of torch; see the README."
        )
    return "cpu"


_MODEL_SETS = ("course", "published")
_inside: contextvars.ContextVar[str | None] = contextvars.ContextVar("model_set", default=None)


def models() -> str:
    """The model set, "course" or "published": that of `model_set` if inside one, else MODELS."""
    return _inside.get() or _switch("MODELS", _MODEL_SETS)


def inside_set() -> str | None:
    """The set of the `model_set` block that runs now, where it is not the one of MODELS."""
    inside = _inside.get()
    return None if inside == _switch("MODELS", _MODEL_SETS) else inside


@contextlib.contextmanager
def model_set(name: str) -> Iterator[None]:
    """Inside the block, models, tokenizer and text are those of this set, whatever MODELS says.

    For parts of a chapter that have no published counterpart: `with paths.model_set("course"):`.
    """
    if name not in _MODEL_SETS:
        raise ValueError(f"no model set is called {name!r}; there are {', '.join(_MODEL_SETS)}")
    token = _inside.set(name)
    try:
        yield
    finally:
        _inside.reset(token)


def sizes(*, quick: dict | None = None, published: dict | None = None) -> dict:
    """The fields of a lesson's Config that today's switches change: `Config(**sizes(quick=...))`.

    quick: under QUICK=1. published: with MODELS=published, whose models are larger. Both at once:
    the quick ones win.
    """
    chosen = dict(published or {}) if models() == "published" else {}
    return chosen | (quick or {}) if _switch("QUICK", ("0", "1")) == "1" else chosen


def quick() -> bool:
    """True when QUICK=1: small samples, and nothing that counts as evidence."""
    return _switch("QUICK", ("0", "1")) == "1"


def recompute() -> bool:
    """True when RECOMPUTE=1 or force: measure on this machine, do not read the evidence."""
    return _switch("RECOMPUTE", ("0", "1", "force")) != "0"


def force() -> bool:
    """True when RECOMPUTE=force: measure even if build/ already holds this measurement."""
    return _switch("RECOMPUTE", ("0", "1", "force")) == "force"


def accept() -> bool:
    """True when ACCEPT=1: what is measured becomes the committed evidence."""
    if _switch("ACCEPT", ("0", "1")) == "0":
        return False
    if quick():
        raise ValueError("ACCEPT=1 with QUICK=1: a quick run is not evidence. Drop one of them.")
    return True


def evidence_only() -> bool:
    """True when EVIDENCE=only: outdated evidence is an error, not a reason to measure again."""
    return _switch("EVIDENCE", ("any", "only")) == "only"
