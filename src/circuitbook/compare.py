"""Two runs agree when each number lies inside the tolerance of its kind.

| kind        | spelling in `kinds`                   | two values agree when                    |
|-------------|---------------------------------------|------------------------------------------|
| exact       | "exact"                               | they are equal                           |
| closed_form | "closed_form" or ("closed_form", tol) | abs difference <= tol (1e-5)             |
| readout     | "readout", ("readout", rel[, floor])  | <= rel (1e-3) of the larger, or <= floor |
| statistic   | ("statistic", "path.to.se")           | abs difference <= the stated error       |
|             | ("statistic", 0.05)                   | <= that share of the larger              |
| stochastic  | "stochastic"                          | always; only the shape is compared       |

`kinds` maps a pattern of dotted paths to a kind: {"loss.*": ("statistic", "loss_se.*")}. `*` stands
for any part of the path; of the patterns that match, the one with the most other letters is taken
(saved results keep no order); without one a number is a readout and a word or a truth value is
exact. In an error's path, `*` is what the pattern's `*` matched.

    python -m circuitbook.results measure|compare|claims|accept [chapter ...]
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from circuitbook import paths, results
from circuitbook.claims import line, recheck
from circuitbook.codehash import imported, module_file, reached_modules, tree_text

__all__ = ["Verdict", "chapters", "compare", "main", "plain_kinds"]

KINDS = ("exact", "closed_form", "readout", "statistic", "stochastic")
CLOSED_FORM, READOUT = 1e-5, 1e-3  # what is allowed where a chapter states nothing


@dataclass(frozen=True)
class Verdict:
    """The comparison of one saved number."""

    path: str
    kind: str
    ok: bool
    new: Any
    old: Any
    allowed: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.new!r} now, {self.old!r} before ({self.kind}{self.allowed})"


def plain_kinds(kinds: Mapping[str, Any]) -> dict[str, list]:
    """`kinds` as it is saved: pattern → [kind, argument, …]; refuses unknown kinds."""
    out: dict[str, list] = {}
    for pattern, spec in kinds.items():
        spec = [spec] if isinstance(spec, str) else list(spec)
        if not spec or spec[0] not in KINDS:
            raise ValueError(f"kinds[{pattern!r}]: {spec} is not one of {', '.join(KINDS)}")
        if spec[0] == "statistic" and len(spec) != 2:
            raise ValueError(f"kinds[{pattern!r}]: write ('statistic', 'path.to.se') or a share")
        out[pattern] = spec
    return out


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        items: Any = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        yield path, value
        return
    for key, item in items:
        yield from _leaves(item, f"{path}.{key}" if path else str(key))


def _match(pattern: str, path: str) -> tuple[str, ...] | None:
    regex = "(.*)".join(re.escape(part) for part in pattern.split("*"))
    found = re.fullmatch(regex, path)
    return found.groups() if found else None


def _error_at(template: str, groups: tuple[str, ...], leaves: Mapping[str, Any]) -> float:
    where = template
    for group in groups:
        where = where.replace("*", group, 1)
    if where not in leaves:
        raise KeyError(f"the standard error {where!r} (from {template!r}) is not in the results")
    return abs(leaves[where])


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _verdict(path: str, new: Any, old: Any, kinds: Mapping[str, list], errors: list) -> Verdict:
    spec, groups = ["readout"] if _number(old) else ["exact"], ()
    for pattern in sorted(kinds, key=lambda p: (p.count("*") - len(p), p)):
        found = _match(pattern, path)
        if found is not None:
            spec, groups = kinds[pattern], found
            break
    kind, args = spec[0], spec[1:]
    if kind == "stochastic":
        return Verdict(path, kind, _number(new) == _number(old), new, old)
    if not (_number(new) and _number(old)):
        kind = "exact"
    if kind == "exact":
        return Verdict(path, kind, type(new) is type(old) and new == old, new, old)
    larger = max(abs(new), abs(old))
    if kind == "closed_form":
        allowed = args[0] if args else CLOSED_FORM
    elif kind == "readout":
        allowed = max((args[0] if args else READOUT) * larger, args[1] if len(args) > 1 else 1e-5)
    elif isinstance(args[0], str):
        allowed = max(_error_at(args[0], groups, leaves) for leaves in errors)
    else:
        allowed = args[0] * larger
    ok = abs(new - old) <= allowed * (1 + 1e-9)
    return Verdict(path, kind, ok, new, old, f", allowed {allowed:.3g}")


def compare(
    new: Mapping[str, Any], old: Mapping[str, Any], kinds: Mapping[str, Any] | None = None
) -> list[Verdict]:
    """A verdict for every number, word and truth value of two data dicts, in the order of `old`.

    A value that only one side has is a disagreement.
    """
    kinds = plain_kinds(kinds or {})
    a, b = dict(_leaves(new)), dict(_leaves(old))
    out = [
        _verdict(path, a[path], value, kinds, [a, b])
        if path in a
        else Verdict(path, "missing", False, None, value)
        for path, value in b.items()
    ]
    return out + [Verdict(p, "new", False, v, None) for p, v in a.items() if p not in b]


# ---- the command --------------------------------------------------------------------------------


def chapters() -> list[str]:
    """Names of all chapters: the numbered lessons in scripts/, in order."""
    return sorted(p.stem for p in paths.SCRIPTS.glob("[0-9][0-9]_*.py"))


def _compare_chapter(chapter: str) -> bool:
    new_path, old_path = results.built_path(chapter), results.evidence_path(chapter)
    if not new_path.is_file():
        print(f"{chapter}: not measured on this machine")
        return True
    if not old_path.is_file():
        print(f"{chapter}: measured, but there is no committed evidence yet (make accept)")
        return True
    new, old = results.read(new_path), results.read(old_path)
    verdicts = compare(new["data"], old["data"], new["kinds"])
    states = [{c["id"]: c["holds"] for c in e["claims"]} for e in (new, old)]
    verdicts += compare(*states, {"*": "exact"})
    bad = [v for v in verdicts if not v.ok]
    counts = Counter(v.kind for v in verdicts)
    summary = ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()))
    word = f"{len(bad)} DISAGREE" if bad else "agrees with the committed evidence"
    print(f"{chapter}: {word} ({summary})")
    for verdict in bad[:12]:
        print(f"    {verdict}")
    if len(bad) > 12:
        print(f"    … and {len(bad) - 12} more")
    for name in ("config", "code", "weights", "device", "packages"):
        was, now = (e["config"] if name == "config" else e["made_with"][name] for e in (old, new))
        if was != now:
            print(f"    note: the {name} differs from that of the committed evidence")
    return not bad


def _claims_chapter(chapter: str, seen: set[str]) -> tuple[int, list[str]]:
    """Print a chapter's claims; their number, and what must not stay so."""
    try:
        result = results.load(chapter)
    except FileNotFoundError:
        print(f"{chapter}: no results yet")
        return 0, []
    print(f"{chapter}: {len(result.claims)} claims")
    wrong = []
    reason = results.stale_weights(result.made_with)
    if reason:
        print(f"    OUT OF DATE: {reason}; run `make all`, look, then `make accept`")
        wrong.append(f"{chapter} out of date")
    for id, c in result.claims.items():
        print(f"    {id} {line(c)}")
        # On the published models a claim made for ours may well fail: a finding. Not an identity.
        ours = paths.models() == "course" or c["label"] == "identity" or "models" in c
        if not c["holds"] and c["label"] != "conjecture" and ours:
            wrong.append(id)
        problem = recheck(c) or ("another chapter has this id" if id in seen else "")
        if problem:
            print(f"        NOT AS SAVED BY A LESSON: {problem}")
            wrong.append(f"{id} ({problem})")
        seen.add(id)
    return len(result.claims), wrong


def _inputs(script: Path) -> str:
    """A hash of all that a lesson's measurement can depend on, without running the lesson."""
    source = script.read_text(encoding="utf-8")
    parts = [tree_text(source), os.environ.get("DEVICE") or "auto", paths.models()]
    for name in reached_modules(imported(source)):
        parts.append(tree_text(module_file(name).read_text(encoding="utf-8")))
    manifest = paths.WEIGHTS / "MANIFEST.json"
    if manifest.is_file():
        parts.append(manifest.read_text(encoding="utf-8"))
    if paths.models() == "published":
        from circuitbook.published import provenance

        parts.append(provenance.identity() or "")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _measure_chapter(chapter: str) -> bool:
    """Run a lesson with RECOMPUTE=1, unless nothing that it depends on has changed."""
    script = paths.SCRIPTS / f"{chapter}.py"
    out = results.quick_path(chapter) if paths.quick() else results.built_path(chapter)
    stamp = out.with_suffix(".stamp")
    inputs = _inputs(script)
    fresh = out.is_file() and stamp.is_file() and stamp.read_text(encoding="utf-8") == inputs
    if fresh and not paths.force():
        print(f"{chapter}: nothing changed, not measured again", flush=True)
        return True
    print(f"{chapter}: running the lesson", flush=True)
    env = {**os.environ, "RECOMPUTE": "force" if paths.force() else "1"}
    done = subprocess.run([sys.executable, str(script)], cwd=paths.ROOT, env=env, check=False)
    if done.returncode:
        print(f"{chapter}: the lesson stopped with an error (see above)", flush=True)
        return False
    if out.is_file():  # a lesson without measured() has nothing to stamp
        results.write(stamp, inputs)
    return True


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m circuitbook.results",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=["measure", "compare", "claims", "accept"])
    parser.add_argument("chapter", nargs="*", help="default: every chapter")
    args = parser.parse_args(argv)
    known = chapters()
    wanted = args.chapter or known
    unknown = [c for c in wanted if c not in known]
    if unknown:
        print(f"no such chapter: {', '.join(unknown)}; there are {', '.join(known)}")
        return 2
    if args.command == "measure":
        return 0 if all([_measure_chapter(c) for c in wanted]) else 1
    if args.command == "compare":
        if paths.quick():
            print("QUICK=1: small samples are not compared with the evidence")
            return 0
        return 0 if all([_compare_chapter(c) for c in wanted]) else 1
    if args.command == "accept":
        if paths.quick():
            print("QUICK=1: a quick run is not evidence, nothing accepted")
            return 2
        try:
            for c in wanted:
                results.acceptable(c)  # all of them, before the first is copied
        except (ValueError, FileNotFoundError) as error:
            print(f"nothing accepted: {error}", file=sys.stderr)
            return 1
        for c in wanted:
            state = "now the committed evidence" if results.accept(c) else "already the same"
            print(f"{c}: {state}")
        return 0
    seen: set[str] = set()
    found = [_claims_chapter(c, seen) for c in wanted]
    failed = [id for _, ids in found for id in ids]
    total = sum(n for n, _ in found)
    print(f"{total} claims, " + (f"to look at: {', '.join(failed)}" if failed else "all in order"))
    if paths.quick():
        print("QUICK=1: these states come from small samples and decide nothing")
        return 0
    return 1 if failed or not total else 0
