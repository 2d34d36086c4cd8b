"""Grade notebooks: python -m circuitbook.grade SOURCE SUBMISSION [--variant N] [--json OUT].

SOURCE: a notebook of assignments/source, or that folder. SUBMISSION: a student's notebook, or a
folder with a file for each student, or with a folder for each student (student/02_qk_ov.ipynb).
"""

import argparse
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from circuitbook.grade import RULE, ExerciseReport, GradeError, Limits, Report, grade_notebook
from circuitbook.grade.client import isolation, refuse_open
from circuitbook.grade.report import shown
from circuitbook.grade.source import exercise_name, exercises, lesson, text, variant, written

MAX_FILE = 20  # MB of one submitted notebook
MAX_PARTS = 300_000  # brackets in it: each may become a list or a dict, of almost a kB


def main(given: list[str] | None = None) -> int:
    """The command. 0: everything was graded; 1: something could not be; 2: nothing could."""
    asked = _arguments().parse_args(given)
    limits = Limits(wall=asked.timeout, law=asked.law, memory=asked.memory)
    try:
        sources = read_sources(asked.source)
        files = submissions(asked.submission)
        if asked.submission.is_dir() and not asked.trust:
            refuse_open(limits)
        for source in sources.values() if asked.variant is None else ():
            if exercises(source):
                variant(source)  # says what to do where none is named, before anything runs
        with ThreadPoolExecutor(asked.jobs) as pool:
            reports = list(
                pool.map(lambda f: grade_file(f, sources, asked.variant, limits), files.values())
            )
        graded = dict(zip(files, reports, strict=True))
        if asked.json:
            write(asked.json, graded)
    except (GradeError, OSError) as error:
        print(f"grade: {shown(error)}", file=sys.stderr)
        return 2
    for name, report in graded.items():
        print(summary(name, report))
    if any(e.status in ("wrong", "partly right") for r in graded.values() for e in _of(r)):
        print(RULE)
    for line in twice(graded):
        print(shown(line))
    return int(any(r.error for r in graded.values()))


def _of(report: Report) -> list[ExerciseReport]:
    return list(report.exercises.values())


def twice(graded: dict[str, Report]) -> list[str]:
    """Who handed one chapter in more than once, where each student has a folder."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, report in graded.items():
        folder, _, file = name.rpartition("/")
        if folder and report.lesson:
            found.setdefault((folder, report.lesson), []).append(file)
    return [
        f"note: {folder} has {len(files)} notebooks of {chapter} ({', '.join(files)}). Each has "
        "its own result here; say which one counts"
        for (folder, chapter), files in found.items()
        if len(files) > 1
    ]


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m circuitbook.grade",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", type=Path, metavar="SOURCE")
    parser.add_argument("submission", type=Path, metavar="SUBMISSION")
    parser.add_argument("--variant", type=_number, help="of the hidden draws; default: SOURCE's")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all marks to this file")
    default = Limits()
    parser.add_argument("--timeout", type=_seconds, default=default.wall, metavar="S",
                        help="seconds for a notebook (%(default)g)")  # fmt: skip
    parser.add_argument("--law", type=_seconds, default=default.law, metavar="S",
                        help="seconds for one law (%(default)g)")  # fmt: skip
    parser.add_argument("--memory", type=_number, default=default.memory, metavar="MB",
                        help="memory beyond Python's own (%(default)d)")  # fmt: skip
    parser.add_argument("--jobs", type=_number, default=max(1, min(8, os.cpu_count() or 1)),
                        help="notebooks at a time (%(default)d)")  # fmt: skip
    parser.add_argument("--trust", action="store_true",
                        help="grade a folder also where answers cannot be shut in")  # fmt: skip
    return parser


def _number(word: str) -> int:
    if not word.isascii() or not word.isdigit():
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number from 0 on")
    return int(word)


def _seconds(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number of seconds")
    return value


# ---- files --------------------------------------------------------------------------------------


def read(path: Path) -> NotebookNode:
    """The notebook of a file; cells may be in any state. Errors: GradeError in one line."""
    name = shown(path.name)
    try:
        if path.is_symlink() or not path.is_file():  # a link could lead to another's work
            raise GradeError(f"{name} is not a file of its own")
        data = path.read_bytes() if path.stat().st_size <= MAX_FILE * 1e6 else None
    except OSError as error:
        raise GradeError(f"{name} cannot be read ({error.strerror})") from None
    if data is None:
        raise GradeError(f"{name} is larger than {MAX_FILE} MB: clear its outputs and save it")
    if data.count(b"{") + data.count(b"[") > MAX_PARTS:
        raise GradeError(f"{name} has too many parts to be read: clear its outputs and save it")
    try:
        book = json.loads(data)
        cells = book["cells"] if "cells" in book else nbformat.convert(_node(book), 4)["cells"]
        if not isinstance(cells, list) or not all(isinstance(c, dict) for c in cells):
            raise ValueError
        metadata = book.get("metadata", {})
        return _node({"cells": cells, "metadata": metadata if isinstance(metadata, dict) else {}})
    except Exception:  # a file can be broken in many ways, and nbformat has names for most
        raise GradeError(f"{name} is not a notebook: save it again from Jupyter") from None


def _node(book: dict) -> NotebookNode:
    return nbformat.from_dict(book)


def read_sources(path: Path) -> dict[str, NotebookNode]:
    """lesson -> source, of one notebook or of a folder of them."""
    if not path.exists():
        raise GradeError(f"there is no {path}; SOURCE is a notebook of assignments/source")
    files = sorted(path.glob("*.ipynb")) if path.is_dir() else [path]
    found = {p.stem: read(p) for p in files}
    if not found:
        raise GradeError(f"there is no notebook in {path}")
    if not any(exercises(book) for book in found.values()):
        raise GradeError(f"{path} has no exercises, so there is nothing to grade")
    return {lesson(book) or stem: book for stem, book in found.items()}


def submissions(path: Path) -> dict[str, Path]:
    """name -> file, for one notebook, or for all below a folder (no hidden ones)."""
    if not path.exists():
        raise GradeError(f"there is no {path}; SUBMISSION is a notebook or a folder of them")
    if not path.is_dir():
        return {path.name: path}
    files = [
        p for p in sorted(path.rglob("*.ipynb"))
        if not any(part.startswith(".") for part in p.relative_to(path).parts)
    ]  # fmt: skip
    if not files:
        raise GradeError(f"there is no notebook in {path}")
    return {p.relative_to(path).as_posix(): p for p in files}


def _source_of(book: NotebookNode, path: Path, sources: dict[str, NotebookNode]) -> NotebookNode:
    """The assignment that a notebook answers: by its own word, its exercises, its file's name."""
    cells = [text(c) for c in book["cells"] if c.get("cell_type") == "code"]
    chapters = {exercise_name(c)[:2] for c in cells} - {""}
    if len(sources) == 1:
        (name, source), *_ = sources.items()
        own = chapters or {lesson(book)[:2]} - {""}
        wanted = {e.name[:2] for e in exercises(source)}
        if own and not own & wanted:
            raise GradeError(
                f"{shown(path.name)}: this notebook is chapter {', '.join(sorted(own))}, "
                f"and SOURCE is {name}"
            )
        return source
    names = [n for n in sources if n == lesson(book)] or [n for n in sources if n[:2] in chapters]
    names = names or [n for n in sources if n in path.name]
    if len(names) != 1:
        raise GradeError(
            f"{shown(path.name)}: name the file after its chapter, like 02_qk_ov.ipynb"
        )
    return sources[names[0]]


def grade_file(
    path: Path, sources: dict[str, NotebookNode], number: int | None, limits: Limits
) -> Report:
    """The marks of one file; a file that is no notebook has none, and says so."""
    try:
        book = read(path)
        source = _source_of(book, path, sources)
        report = grade_notebook(book, source, number, limits)
    except GradeError as error:
        return _unread(str(error), sources)
    except Exception as error:  # whatever it is, the others are graded
        return _unread(f"it could not be graded ({type(error).__name__}: {error})", sources)
    if not report.exercises:
        report.notes.append("this chapter has no exercises, so there is nothing to grade")
    return report


def _unread(why: str, sources: dict[str, NotebookNode]) -> Report:
    """No points for what is no notebook; where there is one assignment, for each exercise of it."""
    report = Report("", isolation=isolation(), error=why)
    if len(sources) == 1:
        (report.lesson, source), *_ = sources.items()
        report.by_hand = written(source)
        for e in exercises(source):
            report.exercises[e.name] = ExerciseReport(e.name, e.points, answered=False)
    return report


def write(path: Path, graded: dict[str, Report]) -> None:
    """All marks as one JSON file; the old one stays until the new one is whole."""
    reports = {name: report.plain() for name, report in graded.items()}
    isolation = next(iter(reports.values()))["isolation"]
    for report in reports.values():
        report.pop("isolation")
    data = {"isolation": isolation, "rule": RULE, "submissions": reports}
    fresh = path.with_name(path.name + ".new")
    words = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    try:  # half a letter, which a student's message may hold, is written as JSON's own \\uXXXX
        fresh.write_text(words, encoding="utf-8", errors="backslashreplace")
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def summary(name: str, report: Report) -> str:
    """A few lines to read: marks, and of each unfinished exercise the first law that fails."""
    marked = f"{report.points:g} of {report.possible:g} points"
    lines = [f"{shown(name)}: {marked if report.exercises else 'no points'}"]
    lines += [f"  {shown(report.error)}"] if report.error else []
    if report.by_hand:
        more = ", ".join(f"{n} ({p:g})" for n, p in report.by_hand.items())
        lines.append(f"  answers in words are marked by people, with further points: {more}")
    for e in report.exercises.values():
        lines.append(f"  {e.name:<24} {e.points:>5g} of {e.possible:g}  {e.status}")
        failed = next((law for law in e.laws if not law.passed), None)
        if e.answered and failed:
            lines += [f"      {shown(line)}" for line in failed.lines()]
        lines += [f"      note: {shown(note)}" for note in e.notes]
    lines += [f"  note: {shown(note)}" for note in report.notes]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
