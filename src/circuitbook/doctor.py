"""A machine is ready when each thing the course needs is present, whole and of the pinned version.

`make doctor` prints what there is, what will be slow, and one next step for each thing missing.
`--json` gives the same as data. The exit code is 0 unless something required is broken: a thing
that is merely not there yet (the environment, the text) is a next step, not a fault.

Runs before set-up too, so it needs nothing but the standard library; torch is asked only if it is
installed.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from circuitbook import paths
from circuitbook.measure import cores, times_path
from circuitbook.recipes import RECIPES

KEY_PACKAGES = (
    "torch", "numpy", "transformer-lens", "safetensors", "tokenizers", "jupyterlab", "jupytext",
    "nbclient", "matplotlib", "plotly", "pandas", "datasets",
)  # fmt: skip
GIB = 2**30
LOW_MEMORY = {"course": 4, "published": 6}  # GiB; a whole published run peaked at 5.1
LOW_DISK = 3 * GIB


def step(what: str, run: str, *, broken: bool = False) -> dict[str, Any]:
    """One thing to do: what is missing, the command or action, and whether that is a fault."""
    return {"what": what, "run": run, "broken": broken}


# ---- the machine ---------------------------------------------------------------------------------


def memory() -> int | None:
    """Bytes of memory this process may use: the machine's, or its container's limit if lower."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):  # no such limit here, or the word "max"
        return total
    return min(total, limit)


def bfloat16() -> bool | None:
    """Whether the processor multiplies bfloat16 matrices by itself; None when it does not say."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return None
    return bool(re.search(r"\b(avx512_bf16|amx_bf16|bf16)\b", flags))


def machine() -> tuple[dict[str, Any], list[dict]]:
    """Python, cores, memory and disk, with a next step where one of them is short."""
    found = {
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "environment": sys.prefix != sys.base_prefix,
        "cores": cores(),
        "memory_bytes": memory(),
        "disk_free_bytes": shutil.disk_usage(paths.ROOT).free,
        "bfloat16": bfloat16(),
    }
    steps = []
    if platform.system() == "Windows":
        steps.append(step("Windows itself is not supported", "install WSL and work inside it"))
    low = LOW_MEMORY[paths.models()]
    if found["memory_bytes"] is not None and found["memory_bytes"] < low * GIB:
        steps.append(step(f"less than {low} GiB of memory", "close other programs; use QUICK=1"))
    if found["disk_free_bytes"] < LOW_DISK:
        steps.append(step("less than 3 GiB of disk free", "free some space before make setup"))
    return found, steps


def device() -> tuple[dict[str, Any], list[dict]]:
    """What DEVICE asks for and what it becomes here."""
    found: dict[str, Any] = {"asked": os.environ.get("DEVICE") or "auto", "used": None}
    try:
        import torch
    except ImportError:
        return found, []  # the environment's own step says what to do
    except Exception as error:  # a broken build raises many kinds
        return found, [step(f"torch cannot be imported: {error}", "make setup", broken=True)]
    found["torch"] = torch.__version__
    found["cuda"] = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    found["mps"] = bool(torch.backends.mps.is_available())
    try:
        found["used"] = paths.device()
    except (RuntimeError, ValueError) as error:
        return found, [step(str(error), "make doctor DEVICE=auto", broken=True)]
    return found, []


# ---- the environment -----------------------------------------------------------------------------


def pins() -> dict[str, str]:
    """Package name → pinned version, from constraints.txt."""
    text = (paths.ROOT / "constraints.txt").read_text(encoding="utf-8")
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def packages() -> tuple[list[dict[str, Any]], list[dict]]:
    """Installed and pinned version of the packages that matter most."""
    pinned, rows, steps = pins(), [], []
    for name in KEY_PACKAGES:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = None
        # "2.13.0+cpu" is the CPU build of 2.13.0.
        same = version is not None and version.split("+")[0] == pinned.get(name)
        rows.append({"name": name, "installed": version, "pinned": pinned.get(name), "same": same})
    ready = subprocess.run(
        [sys.executable, str(paths.ROOT / "tools" / "environment.py"), "ready", ".venv"],
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
    )
    if ready.returncode:
        steps.append(step(ready.stderr.strip().split(" Run:")[0].rstrip("."), "make setup"))
    elif not all(row["same"] for row in rows):
        names = ", ".join(row["name"] for row in rows if not row["same"])
        run = f"{sys.executable} -m pip install -c constraints.txt -e '.[dev,site,teach]'"
        steps.append(step(f"not the pinned version: {names}", run))
    return rows, steps


# ---- what is present -----------------------------------------------------------------------------


def sha256(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def text() -> tuple[list[dict[str, Any]], list[dict]]:
    """Each pinned text source with licence, attribution, and whether its archive is here whole."""
    try:
        from circuitbook.sources import SOURCES, archive_folder
    except ImportError:
        return [], [step("the list of text sources cannot be read", "git status", broken=True)]
    rows, steps = [], []
    for source in SOURCES:
        path = archive_folder() / source.filename
        state = "missing"
        if path.is_file():
            state = "present" if sha256(path) == source.sha256 else "damaged"
        if state == "damaged":
            steps.append(step(f"{path} is not the pinned file", f"rm '{path}'; make text"))
        fields = ("name", "version", "description", "licence", "attribution")
        rows.append({**{name: getattr(source, name) for name in fields}, "state": state})
    if any(row["state"] == "missing" for row in rows):
        steps.append(step("some of the text is not here yet", "make text (needs a network once)"))
    return rows, steps


def manifest() -> dict[str, dict]:
    """Role → entry, from weights/MANIFEST.json (at the top, or under one heading)."""
    path = paths.WEIGHTS / "MANIFEST.json"
    if not path.is_file():
        return {}
    entries = json.loads(path.read_text(encoding="utf-8"))
    for key in ("models", "roles", "weights"):
        if isinstance(entries.get(key), dict):
            entries = entries[key]
            break
    return {role: entry for role, entry in entries.items() if isinstance(entry, dict)}


def weights() -> tuple[list[dict[str, Any]], list[dict]]:
    """The tokenizer and the weights of each role: present, missing or damaged."""
    rows, steps = [], []
    try:
        listed = manifest()
    except ValueError as error:
        return [], [step(f"weights/MANIFEST.json: {error}", "git checkout weights", broken=True)]
    tokenizer = paths.WEIGHTS / "tokenizer.json"
    rows.append({"name": "tokenizer", "state": "present" if tokenizer.is_file() else "missing"})
    if not tokenizer.is_file():
        steps.append(step("the tokenizer is missing", "git checkout weights", broken=True))
    for role in sorted({*RECIPES, *listed}):
        entry = listed.get(role)
        if entry is None:
            rows.append({"name": role, "state": "not trained"})
            continue
        path = paths.WEIGHTS / entry.get("file", f"{role}.safetensors")
        state = "missing"
        if path.is_file():
            state = "present" if sha256(path) == entry.get("sha256") else "damaged"
        if state != "present":
            where = "weights/" + path.name
            steps.append(step(f"{where} is {state}", "git checkout weights", broken=True))
        rows.append({"name": role, "state": state})
    untrained = [row["name"] for row in rows if row["state"] == "not trained"]
    if untrained:
        steps.append(step(f"not trained yet: {', '.join(untrained)}", "make weights (hours)"))
    return rows, steps


def results() -> tuple[list[dict[str, Any]], list[dict]]:
    """Each lesson and whether its committed evidence is there and can be read."""
    rows, steps = [], []
    for script in sorted(paths.SCRIPTS.glob("[0-9][0-9]_*.py")):
        path = paths.RESULTS / "course" / f"{script.stem}.json"
        state = "missing"
        if path.is_file():
            try:
                claims = json.loads(path.read_text(encoding="utf-8"))["claims"]
                state = f"present, {sum(c['holds'] for c in claims)} of {len(claims)} claims hold"
            except (ValueError, KeyError, TypeError) as error:
                state = "damaged"
                what = f"results/course/{path.name} cannot be read ({type(error).__name__})"
                steps.append(step(what, "git checkout results", broken=True))
        else:
            steps.append(step(f"{script.stem} has no committed results", "make all"))
        rows.append({"name": script.stem, "state": state})
    return rows, steps


def published() -> tuple[list[dict[str, Any]], list[dict]]:
    """The series' own models, tokenizer and text in the hub client's cache; asks the disk only."""
    from circuitbook.published import disk, status

    wanted = os.environ.get("MODELS", "").strip().lower() == "published"
    try:
        rows = status.rows()
    except disk.PublishedError as error:
        run = disk.STAND_IN_AGAIN if disk.stand_in() else "make published"
        return [], [step(str(error), run, broken=wanted)]
    steps, made = [], disk.stand_in()  # a stand-in is never fetched
    for row in rows:
        for file, why in row["damaged"].items():
            what = f"{file} of {row['where']} is not the {'written' if made else 'pinned'} file"
            unset = f"unset {disk.offline()}, then " if disk.offline() else ""
            run = disk.STAND_IN_AGAIN if made else f"{unset}make published"
            steps.append(step(f"{what} ({why})", run, broken=wanted and (made or bool(unset))))
        if row["fault"]:
            run = "name another file in CIRCUITBOOK_TEXT, or unset it"
            steps.append(step(row["fault"].split(". ")[0], run, broken=wanted))
    if wanted and status.to_come(rows):
        what = "the stand-in is not whole" if made else "the series' models are not all here"
        run = disk.STAND_IN_AGAIN if made else "make published (needs a network once)"
        steps.append(step(f"{what}. {'' if made else status.summary(rows)}".strip(), run))
    return rows, steps


def _published_lines(rows: list[dict[str, Any]]) -> list[str]:
    from circuitbook.published import disk, status

    lines = [f"Published models (the series' own, for `make published`), in {disk.hub_cache()}"]
    if disk.stand_in():
        lines.append("  stand-in files: the right formats, random weights")
    return [*lines, *status.lines(rows), f"  {status.summary(rows)}"] if rows else lines


# ---- what will be slow ---------------------------------------------------------------------------


def training_seconds() -> list[tuple[str, float]]:
    """(role, seconds) of every training that the manifest knows; none where it cannot be read."""
    try:
        listed = manifest()
    except ValueError:
        return []
    known = {role: entry.get("trained", {}).get("seconds") for role, entry in listed.items()}
    return sorted((role, float(seconds)) for role, seconds in known.items() if seconds)


def times() -> list[dict[str, Any]]:
    """What took how long: the chapters, here or where the evidence was made, and the training."""
    elsewhere, known = "where the evidence was made", {}
    for place, path in (
        (elsewhere, times_path(accepted=True)),
        ("on this machine", times_path()),  # what was timed here comes first
    ):
        if path.is_file():
            chapters = json.loads(path.read_text(encoding="utf-8"))["chapters"]
            known |= {chapter: (seconds, place) for chapter, seconds in chapters.items()}
    rows = [{"what": f"chapter {chapter}", "seconds": seconds, "where": place}
            for chapter, (seconds, place) in sorted(known.items())]  # fmt: skip
    return rows + [{"what": f"training {role} (make weights)", "seconds": s, "where": elsewhere}
                   for role, s in training_seconds()]  # fmt: skip


# ---- all together --------------------------------------------------------------------------------


def collect() -> dict[str, Any]:
    """Everything the doctor knows, as plain data; `steps` in the order in which to take them."""
    report: dict[str, Any] = {}
    steps: list[dict] = []
    for name, look in (
        ("machine", machine),
        ("packages", packages),
        ("device", device),
        ("text", text),
        ("weights", weights),
        ("published", published),
        ("results", results),
    ):
        report[name], found = look()
        steps += found
    report["times"] = times()
    report["steps"] = steps
    report["broken"] = any(s["broken"] for s in steps)
    return report


def _gib(count: int | None) -> str:
    return "unknown" if count is None else f"{count / GIB:.1f} GiB"


def duration(seconds: float) -> str:
    """A time to read: seconds up to two minutes, then minutes."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _device_lines(found: dict[str, Any]) -> list[str]:
    if found["used"] is None:
        return [f"  asked for {found['asked']}; what it becomes is known once torch is installed"]
    lines = [f"  {found['used']} (DEVICE={found['asked']})"]
    lines.append(f"  CUDA: {found['cuda'] or 'none'}")
    if found["mps"]:
        lines.append("  MPS is here, but is never used: it has given wrong numbers without a word.")
    return lines


def page(report: dict[str, Any]) -> str:
    """The report as a page to read: facts first, the next steps last."""
    m = report["machine"]
    lines = ["Machine"]
    lines.append(f"  {m['system']}, Python {m['python']}, {m['cores']} cores")
    lines.append(
        f"  {_gib(m['memory_bytes'])} memory, {_gib(m['disk_free_bytes'])} of disk free here"
    )
    lines += ["Device", *_device_lines(report["device"]), "Packages (installed, pinned)"]
    for row in report["packages"]:
        mark = "" if row["same"] else "   <- differs"
        lines.append(f"  {row['name']:<18} {row['installed'] or 'none':<14} {row['pinned']}{mark}")
    lines.append("Models")
    lines += [f"  {row['name']:<18} {row['state']}" for row in report["weights"]]
    lines += _published_lines(report["published"])
    lines.append("Results of the chapters")
    lines += [f"  {row['name']:<24} {row['state']}" for row in report["results"]]
    lines.append("Text (fetched, never part of this repository)")
    for row in report["text"]:
        lines.append(f"  {row['name']} {row['version']}: {row['state']}")
        lines.append(f"      {row['description']}")
        lines.append(f"      licence: {row['licence']}. By: {row['attribution']}")
    lines.append("What takes long")
    slow = [f"  {row['what']}: {duration(row['seconds'])} {row['where']}"
            for row in report["times"]]  # fmt: skip
    lines += slow or ["  nothing was timed yet; `make all` writes its times down"]
    if m["cores"] < 2:
        lines.append("  This machine has one core: expect about twice these times.")
    if m["bfloat16"] is False:
        lines.append("  This processor has no bfloat16 instructions: training is slower here.")
    lines.append("Next steps")
    for number, one in enumerate(report["steps"], 1):
        word = "BROKEN: " if one["broken"] else ""
        lines.append(f"  {number}. {word}{one['what']}. Do: {one['run']}")
    if not report["steps"]:
        lines.append("  none: everything is here. Try `make lab`, or `make all`.")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """`python -m circuitbook.doctor [--json]`; 1 when something required is broken."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if set(arguments) - {"--json"}:
        print("usage: python -m circuitbook.doctor [--json]", file=sys.stderr)
        return 2
    report = collect()
    if "--json" in arguments:
        print(json.dumps(report, indent=1))
    else:
        print(page(report))
    return int(report["broken"])


if __name__ == "__main__":
    sys.exit(main())
