"""A measurement is kept with its recipe: the same config, code and weights give the saved numbers.

`r = measured("02_qk_ov", compute, Config())` reads the saved result when it was made with this
config, this code and these weights; otherwise it runs `compute(cfg)` and saves what it returns.

| file                                  | written by                     | meaning                |
|---------------------------------------|--------------------------------|------------------------|
| results/<models>/<chapter>.json       | ACCEPT=1 or `make accept` only | the committed evidence |
| build/results/<models>/<chapter>.json | measured(), on this machine    | your own measurement   |
| build/quick/<models>/<chapter>.json   | measured() under QUICK=1       | a rehearsal            |

Floats are kept to six significant digits, keys are sorted, there is no clock and no host name:
the same machine twice gives the same bytes. This module never imports torch.
"""

import dataclasses
import importlib.metadata
import json
import math
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from circuitbook import paths
from circuitbook.claims import bound, round6
from circuitbook.codehash import code_hash

__all__ = [
    "Result", "accept", "bound", "built_path", "evidence_path", "load", "measured", "note_random",
    "note_weights", "plain", "quick_path", "random_weights", "read", "stale", "write",
]  # fmt: skip

SCHEMA = 1
_PACKAGES = ("numpy", "tokenizers", "torch", "transformer-lens")
_weights: dict[str, str] = {}
_random: list[bool] = []


class Result(dict):
    """The saved data of a chapter, read like a dict: r["loss"]. Also .claims, .chapter, .config."""

    def __init__(self, envelope: Mapping[str, Any], source: Path | None = None) -> None:
        super().__init__(envelope["data"])
        self.chapter: str = envelope["chapter"]
        self.config: dict = envelope["config"]
        self.made_with: dict = envelope["made_with"]
        self.kinds: dict = envelope["kinds"]
        self.claims: dict[str, dict] = {c["id"]: c for c in envelope["claims"]}
        self.source = source

    def __missing__(self, key: object) -> Any:
        raise KeyError(f"{self.chapter} saved no {key!r}; it has {', '.join(sorted(self))}")

    def __repr__(self) -> str:  # short: a result at the end of a cell must not print every number
        return f"<results of {self.chapter}: {', '.join(sorted(self)) or 'nothing'}>"


# ---- plain data ---------------------------------------------------------------------------------


def plain(value: Any, where: str = "data") -> Any:
    """`value` as JSON data: arrays and tensors become lists, floats get six significant digits.

    Errors: ValueError for NaN or infinity, TypeError for what JSON cannot hold; both say where.
    """
    if hasattr(value, "tolist"):  # numpy and torch, without importing either
        value = value.tolist()
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} is {value}: results must be finite. Find where it arises.")
        return round6(value)
    if isinstance(value, Mapping):
        out = {}
        for key, item in value.items():
            if isinstance(key, bool) or not isinstance(key, str | int):
                raise TypeError(f"{where} has the key {key!r}: use strings or whole numbers")
            if str(key) in out:
                raise TypeError(f"{where} has the key {key!r} twice, once as a number")
            out[str(key)] = plain(item, f"{where}.{key}")
        return out
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}.{i}") for i, item in enumerate(value)]
    hint = " (save the real and the imaginary part)" if isinstance(value, complex) else ""
    raise TypeError(f"{where} is a {type(value).__name__}, which JSON cannot hold{hint}")


def _config(cfg: Any) -> dict:
    if dataclasses.is_dataclass(cfg) and not isinstance(cfg, type):
        cfg = cfg.to_dict() if hasattr(cfg, "to_dict") else dataclasses.asdict(cfg)
    if not isinstance(cfg, Mapping):
        raise TypeError(f"cfg must be a dataclass or a dict, not {type(cfg).__name__}")
    return plain(cfg, "config")


# ---- provenance ---------------------------------------------------------------------------------


def note_weights(role: str, sha256: str) -> None:
    """Remember that this run used the weights of `role`; called by zoo.load for every load."""
    if _weights.setdefault(role, sha256) != sha256:
        raise RuntimeError(f"the weights of {role} changed while this run was using them: restart")


def note_random() -> None:
    """Remember that this run used a published file that says of itself: random weights."""
    _random.append(True)


def random_weights(made_with: Mapping[str, Any]) -> bool:
    """True for a result made with stand-in files of random weights: it shows that things run."""
    return bool(made_with.get("random_weights"))


def _made_with(code: str) -> dict:
    torch = sys.modules.get("torch")
    packages = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    marked: dict[str, Any] = {"random_weights": True} if _random else {}
    if paths.models() == "published":
        from circuitbook.published import provenance

        marked |= {"published": provenance.identity() or "", "local_text": provenance.local_text()}
    return marked | {
        "code": code,
        "weights": dict(_weights),
        "models": paths.models(),
        "packages": packages,
        "device": paths.device() if torch else "cpu",
        "dtype": str(torch.get_default_dtype()).removeprefix("torch.") if torch else "float64",
        "threads": torch.get_num_threads() if torch else 1,
    }


def _manifest() -> dict[str, str]:
    """role → sha256, from weights/MANIFEST.json (roles at the top or under "models")."""
    path = paths.WEIGHTS / "MANIFEST.json"
    if not path.is_file():
        return {}
    entries = json.loads(path.read_text(encoding="utf-8"))
    for key in ("models", "roles", "weights"):
        if isinstance(entries.get(key), dict):
            entries = entries[key]
            break
    return {k: v["sha256"] for k, v in entries.items() if isinstance(v, dict) and "sha256" in v}


def stale_weights(made_with: Mapping[str, Any]) -> str:
    """Why the weights that a result was made with are not today's, or "" if they are."""
    now = _manifest()
    for role, sha256 in made_with["weights"].items():
        if "@" in role:
            continue  # published weights carry their own pinned revision
        if now.get(role) != sha256:
            return f"the weights of {role} changed"
    return ""


def stale(envelope: Mapping[str, Any], config: Mapping[str, Any], code: str) -> str:
    """Why a saved result does not answer for this config and code, or "" if it does."""
    if envelope.get("schema") != SCHEMA:
        return "it was saved in another format"
    if envelope["config"] != config:
        return "the config changed"
    if envelope["made_with"]["code"] != code:
        return "the code changed"
    if envelope["made_with"]["models"] != paths.models():
        return "it was made with the other model set"
    if paths.models() == "published":
        from circuitbook.published import provenance

        here, then = provenance.identity(), envelope["made_with"].get("published")
        if here is not None and here != then:
            return "it was made on other published files"
    return stale_weights(envelope["made_with"])


# ---- files --------------------------------------------------------------------------------------


def evidence_path(chapter: str) -> Path:
    """The committed evidence of a chapter."""
    return paths.RESULTS / paths.models() / f"{chapter}.json"


def built_path(chapter: str) -> Path:
    """This machine's own measurement of a chapter."""
    return paths.BUILD / "results" / paths.models() / f"{chapter}.json"


def quick_path(chapter: str) -> Path:
    """The rehearsal of a chapter under QUICK=1."""
    return paths.BUILD / "quick" / paths.models() / f"{chapter}.json"


def write(path: Path, text: str) -> None:
    """Replace `path` in one step: a killed run leaves the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read(path: Path) -> dict:
    """The envelope saved at `path`; a damaged file is an error that names it."""
    try:
        envelope = json.loads(path.read_text(encoding="utf-8"))
        missing = {"schema", "chapter", "config", "made_with", "kinds", "data", "claims"} - set(
            envelope
        )
    except (json.JSONDecodeError, UnicodeDecodeError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}). Restore it, or delete it and measure."
        ) from None
    if missing:
        raise ValueError(f"{path} lacks {', '.join(sorted(missing))}. Delete it and measure again.")
    return envelope


def _text(envelope: Mapping[str, Any]) -> str:
    return (
        json.dumps(envelope, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    )


def load(chapter: str) -> Result:
    """The saved result of a chapter, without asking whether the code has changed since.

    Under QUICK=1 the rehearsal; under RECOMPUTE=1 this machine's own; otherwise the evidence.
    """
    order = [evidence_path(chapter), built_path(chapter)]
    if paths.quick():
        order = [quick_path(chapter)]
    elif paths.recompute():
        order.reverse()
    for path in order:
        if path.is_file():
            return Result(read(path), path)
    script = f"scripts/{chapter}.py"
    raise FileNotFoundError(f"no results for {chapter} yet. Run `make all`, or python {script}.")


def acceptable(chapter: str) -> dict:
    """This machine's measurement, if it may become evidence.

    Raises FileNotFoundError when there is none, and ValueError for what is evidence of nothing:
    random weights, or a text of one's own.
    """
    new = built_path(chapter)
    if not new.is_file():
        raise FileNotFoundError(f"{chapter} was not measured here: run RECOMPUTE=1 make all first")
    envelope = read(new)
    if random_weights(envelope["made_with"]):
        raise ValueError(
            f"{chapter} was measured on stand-in files with random weights: never evidence. Fetch "
            "the published models with `make published`."
        )
    if envelope["made_with"].get("local_text"):
        raise ValueError(
            f"{chapter} was measured on a local text (CIRCUITBOOK_TEXT), which nobody else has: "
            "never evidence. Unset it and run `make published`."
        )
    return envelope


def accept(chapter: str) -> bool:
    """Make this machine's measurement the committed evidence; False if it already is.

    Raises as `acceptable`.
    """
    text, old = _text(acceptable(chapter)), evidence_path(chapter)
    if old.is_file() and old.read_text(encoding="utf-8") == text:
        return False
    write(old, text)
    return True


def _marked(c: dict) -> dict:
    """A claim, marked when it would need trained weights and this run had random ones."""
    plainly = not _random or c["label"] == "identity" or "models" in c
    return c if plainly else c | {"random_weights": True}


PUBLISHED = (
    "What follows was measured on the series' own models: LayerNorm, positions in the stream, "
    "biases,\na larger vocabulary. The text was written for the course's models. Where it states a "
    "size, tells\nwhat a head or a neuron does, or says that there is no norm, it speaks of those."
)
RANDOM = (
    "These are stand-in files with random weights. Identities must hold; nothing else is expected "
    "to."
)


def _introduced(result: Result) -> Result:
    """The result; a lesson on the published models first says what its text does not."""
    if paths.models() == "published":
        print(PUBLISHED)
        if random_weights(result.made_with):
            print(RANDOM)
    return result


# ---- the one call of a lesson -------------------------------------------------------------------


def measured(
    chapter: str,
    compute: Callable[[Any], dict],
    cfg: Any,
    *,
    kinds: Mapping[str, Any] | None = None,
) -> Result:
    """The result of `compute(cfg)`: saved if it was measured before, else measured and saved.

    compute returns {"data": {...}, "claims": [claim(...), ...]}, or the data with a key "claims".
    kinds: dotted-path pattern → tolerance kind, see circuitbook.compare.
    """
    from circuitbook.compare import plain_kinds

    config, code = _config(cfg), code_hash(compute)
    kept_kinds = plain_kinds(kinds or {})
    evidence, built = evidence_path(chapter), built_path(chapter)
    places = [evidence, built]
    if paths.quick():
        places = [quick_path(chapter)]
    elif paths.recompute():
        places = [built]
    why = "it was not measured before"
    for path in [] if paths.force() else places:
        if not path.is_file():
            continue
        envelope = read(path)
        reason = stale(envelope, config, code)
        if not reason and envelope["kinds"] != kept_kinds:
            reason = "the tolerance kinds changed"
        if not reason:
            if path == built and paths.accept():
                accept(chapter)
            return _introduced(Result(envelope, path))
        why = reason
        if path == evidence and paths.evidence_only():
            raise RuntimeError(
                f"{chapter}: the committed evidence is out of date ({reason}). "
                f"Run `make accept` once you have looked at the new numbers."
            )
    target = places[-1]
    print(f"measuring {chapter} ({why}) …", file=sys.stderr)
    out = compute(cfg)
    claims = [_marked(c) for c in out.get("claims", [])]
    data = {key: value for key, value in out.items() if key != "claims"}
    if set(data) == {"data"}:
        data = data["data"]
    ids = [c["id"] for c in claims]
    if len(set(ids)) != len(ids):
        raise ValueError(f"{chapter}: two claims share an id: {sorted(ids)}")
    envelope = {
        "schema": SCHEMA, "chapter": chapter, "config": config, "made_with": _made_with(code),
        "kinds": kept_kinds, "data": plain(data), "claims": plain(claims, "claims"),
    }  # fmt: skip
    write(target, _text(envelope))
    if target == built and paths.accept():
        accept(chapter)
    return _introduced(Result(read(target), target))


if __name__ == "__main__":
    from circuitbook.compare import main

    raise SystemExit(main())
