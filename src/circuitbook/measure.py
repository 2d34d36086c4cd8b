"""A chapter's evidence is a function of its lesson: `make all` runs every lesson and times it.

One line per chapter. A chapter that fails does not stop the others; the exit code says so at the
end. What a lesson prints goes to build/logs/. Whether there is anything to measure is decided by
circuitbook.results; this file is the loop around it. It never imports torch.

    python -m circuitbook.measure [chapter ...]     measure what is missing or stale, into build/
    python -m circuitbook.measure --accept          make the new results and times the evidence
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from circuitbook import compare, paths, results

LAST_LINES = 12


def times_path(*, accepted: bool = False) -> Path:
    """Seconds per chapter: measured on this machine, or kept with the evidence."""
    if paths.models() == "published":  # beside the results themselves, not among the course's times
        return paths.BUILD / "published" / "times.json"
    return (paths.RESULTS if accepted else paths.BUILD) / "times.json"


def cores() -> int:
    """The number of processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def note_time(chapter: str, seconds: float) -> None:
    """Keep the wall time of a measurement; a number of seconds is evidence of nothing else."""
    path = times_path()
    kept = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"chapters": {}}
    kept["cores"] = cores()
    kept["chapters"][chapter] = round(seconds, 1)
    results.write(path, json.dumps(kept, indent=1, sort_keys=True) + "\n")


def output(chapter: str) -> Path:
    """The file that measuring this chapter writes under today's switches."""
    return results.quick_path(chapter) if paths.quick() else results.built_path(chapter)


def version(path: Path) -> tuple[int, int] | None:
    """What changes when a file is replaced, or None when there is none."""
    return (path.stat().st_ino, path.stat().st_mtime_ns) if path.is_file() else None


def measure(chapter: str) -> bool:
    """Measure one chapter if need be; print one line; False if its lesson failed."""
    log = times_path().parent / "logs" / f"{chapter}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    before, start = version(output(chapter)), time.perf_counter()
    print(f"{chapter:<24} ", end="", flush=True)
    command = [sys.executable, "-m", "circuitbook.results", "measure", chapter]
    # A picture window would wait for a reader who is not there.
    environment = {**os.environ, "MPLBACKEND": "agg"}
    with open(log, "w", encoding="utf-8") as file:
        done = subprocess.run(
            command,
            cwd=paths.ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    seconds = time.perf_counter() - start
    if done.returncode:
        print(f"FAILED after {seconds:.1f} s. The end of {log.relative_to(paths.ROOT)}:")
        lines = log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
        print("\n".join(f"    {line}" for line in lines[-LAST_LINES:]), flush=True)
        return False
    measured = version(output(chapter)) != before
    print(f"{'measured' if measured else 'nothing new to measure'}, {seconds:.1f} s", flush=True)
    if measured and not paths.quick():
        note_time(chapter, seconds)
    return True


def accept() -> int:
    """Make this machine's results the committed evidence, and its times with them."""
    status = compare.main(["accept"])
    if status == 0 and paths.models() == "course" and times_path().is_file():
        results.write(times_path(accepted=True), times_path().read_text(encoding="utf-8"))
    return status


def main(arguments: list[str] | None = None) -> int:
    """The command line; 1 if any chapter failed."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["--accept"]:
        return accept()
    known = compare.chapters()
    wanted = arguments or known
    unknown = [chapter for chapter in wanted if chapter not in known]
    if unknown:
        print(f"no such chapter: {', '.join(unknown)}; there are {', '.join(known) or 'none'}")
        return 2
    if not wanted:
        print("no lessons in scripts/ yet: nothing to measure")
    return 0 if all([measure(chapter) for chapter in wanted]) else 1


if __name__ == "__main__":
    sys.exit(main())
