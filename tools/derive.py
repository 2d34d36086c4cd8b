"""Everything but scripts/NN_name.py is derived from it; this builds it, or finds what has drifted.

    python tools/derive.py all|taught|notebooks|assignments|readme [--check] [--force] [chapter ...]
    python tools/derive.py assignments --variant N --to FOLDER

| what        | is                                                                            |
|-------------|-------------------------------------------------------------------------------|
| taught      | src/circuitbook/taught/: the functions of `save` cells                        |
| notebooks   | notebooks/: the lessons with outputs, run from the committed evidence         |
| assignments | assignments/: release/ for students, source/ for teachers, solutions/         |
| readme      | the tables of README.md and docs/ between derive marks, and results/claims.md |

--check writes nothing, starts no kernel, and fails on any drift, also on an output edited by hand.
A notebook is run again only when something that it depends on has changed, or with --force.
Under QUICK=1 or MODELS=published notebooks go to build/, never to notebooks/.
--variant N --to FOLDER writes a source and a release with hidden draws of your own, which nobody
can read in this repository.
"""

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import _assignment
import _notebook
import _readme
import _target
import _taught
from _lesson import Lesson, LessonError, lessons
from nbclient.exceptions import CellExecutionError

from circuitbook import paths, results

PARTS = ("taught", "notebooks", "assignments", "readme")


def taught_folder() -> Path:
    """Where the taught package lives: in the project, beside the other modules."""
    return paths.ROOT / "src" / "circuitbook" / "taught"


def notebooks_folder() -> Path:
    """notebooks/, or a folder in build/ for a rehearsal and for the published models."""
    if paths.quick():
        return paths.BUILD / "quick" / paths.models() / "notebooks"
    return (
        paths.NOTEBOOKS if paths.models() == "course" else paths.BUILD / "published" / "notebooks"
    )


def texts(part: str, all_lessons: list[Lesson]) -> Iterator[tuple[Path, str]]:
    """Every file of a part (all but notebooks) with the text that it should have."""
    if part == "taught":
        names: dict[str, list[str]] = {}
        for lesson in all_lessons:
            made = _taught.module(lesson)
            if made:
                yield taught_folder() / f"ch{lesson.number}.py", made[0]
                names[f"ch{lesson.number}"] = made[1]
        yield taught_folder() / "__init__.py", _taught.package(names)
    elif part == "assignments":
        for lesson in all_lessons:
            yield from assignment(lesson, paths.ASSIGNMENTS)
    elif part == "readme":
        path = paths.ROOT / "README.md"
        if not path.is_file():
            raise LessonError("there is no README.md")
        yield path, _readme.fill(path.read_text(encoding="utf-8"), all_lessons)
        yield paths.RESULTS / "claims.md", _readme.ledger(all_lessons)
        for page in sorted((paths.ROOT / "docs").glob("*.md")):
            yield page, _readme.fill_page(page.read_text(encoding="utf-8"), page.name, all_lessons)


def assignment(
    lesson: Lesson, folder: Path, variant: int = _assignment.PUBLIC_VARIANT
) -> Iterator[tuple[Path, str]]:
    """A chapter's files in a folder of assignments; the solutions only with the public variant."""
    file = f"{lesson.name}.ipynb"
    target = partial(_target.target, paths.ASSIGNMENTS / "release" / file)
    source = _assignment.source(lesson, target, variant)
    yield folder / "release" / file, _notebook.text(_assignment.release(source))
    yield folder / "source" / file, _notebook.text(source)
    if variant == _assignment.PUBLIC_VARIANT:
        yield folder / "solutions" / file, _notebook.text(_assignment.solutions(lesson, target))


def private(all_lessons: list[Lesson], wanted: set[str], variant: int, folder: Path) -> None:
    """Write assignments with another hidden variant, outside of the committed ones."""
    if variant < 1 or variant == _assignment.PUBLIC_VARIANT:
        raise LessonError(f"--variant takes a positive number other than {variant}: keep it secret")
    folder = folder.resolve()
    if folder.is_relative_to(paths.ASSIGNMENTS.resolve()):
        raise LessonError(f"{folder} is committed: take --to a folder outside of assignments/")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LessonError(f"--to {folder} cannot be a folder ({error})") from None
    for lesson in all_lessons:
        if lesson.name in wanted:
            for path, text in assignment(lesson, folder, variant):
                results.write(path, text)
    print(f"wrote {folder}/source (keep it to yourself) and {folder}/release (for students)")


def orphans(part: str, all_lessons: list[Lesson]) -> list[Path]:
    """Derived files whose lesson is gone."""
    names = {lesson.name for lesson in all_lessons}
    if part == "taught":
        numbers = {f"ch{x.number}" for x in all_lessons if any("save" in c.tags for c in x.cells)}
        return [p for p in sorted(taught_folder().glob("ch*.py")) if p.stem not in numbers]
    folders = {
        "notebooks": [notebooks_folder()],
        "assignments": [paths.ASSIGNMENTS / e for e in ("release", "source", "solutions")],
    }.get(part, [])
    return [p for f in folders for p in sorted(f.glob("*.ipynb")) if p.stem not in names]


def show(path: Path) -> str:
    """A path as seen from the project."""
    return path.relative_to(paths.ROOT).as_posix()


def check(part: str, all_lessons: list[Lesson], wanted: set[str]) -> list[str]:
    """What has drifted in one part, in words."""
    bad = [f"{show(p)}: its lesson is gone" for p in orphans(part, all_lessons)]
    if part == "notebooks":
        for lesson in all_lessons:
            path = notebooks_folder() / f"{lesson.name}.ipynb"
            if lesson.name not in wanted:
                continue
            why = _notebook.problem(lesson, path) or _evidence_problem(lesson)
            if why:
                bad.append(f"{show(path)}: {why}")
        return bad
    for path, text in texts(part, all_lessons):
        if not path.is_file():
            bad.append(f"{show(path)}: it was never built")
        elif path.read_text(encoding="utf-8") != text:
            bad.append(f"{show(path)}: it is not what the lessons give")
    return bad


def _evidence_problem(lesson: Lesson) -> str:
    path = results.evidence_path(lesson.name)
    if not lesson.measures or paths.quick():
        return ""
    if not path.is_file():
        return "its results were never accepted (make accept)"
    return results.stale_weights(results.read(path)["made_with"])


def build(part: str, all_lessons: list[Lesson], wanted: set[str], force: bool) -> None:
    """Write what is missing or has drifted in one part; leave the rest untouched."""
    for path in orphans(part, all_lessons):
        path.unlink()
        print(f"removed {show(path)}")
    if part != "notebooks":
        for path, text in texts(part, all_lessons):
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                results.write(path, text)
                print(f"wrote {show(path)}")
        return
    failed = []
    for lesson in all_lessons:
        path = notebooks_folder() / f"{lesson.name}.ipynb"
        why = "asked for" if force else _notebook.problem(lesson, path)
        if lesson.name not in wanted or not why:
            continue
        print(f"running {show(path)} ({why})", flush=True)
        try:
            results.write(path, _notebook.text(_notebook.execute(lesson)))
        except (CellExecutionError, LessonError) as error:  # go on with the other chapters
            failed.append(f"{show(path)} was not built:\n{str(error).rstrip()[-2000:]}")
    if failed:
        raise LessonError("\n".join(failed))


def main(argv: list[str] | None = None) -> int:
    """The command line; 1 on drift or on a lesson that breaks a rule."""
    parser = argparse.ArgumentParser(
        prog="python tools/derive.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("part", choices=["all", *PARTS])
    parser.add_argument("--check", action="store_true", help="only say what has drifted")
    parser.add_argument("--force", action="store_true", help="run every notebook again")
    parser.add_argument("--variant", type=int, help="assignments with hidden draws of your own")
    parser.add_argument("--to", type=Path, help="the folder for them")
    parser.add_argument("chapter", nargs="*", help="limit the notebooks to these chapters")
    args = parser.parse_args(argv)
    try:
        all_lessons = lessons(paths.SCRIPTS)
        names = {lesson.name for lesson in all_lessons}
        wanted = set(args.chapter) or names
        if wanted - names:
            raise LessonError(f"no such chapter: {', '.join(sorted(wanted - names))}")
        if (args.variant is None) != (args.to is None) or (args.to and args.part != "assignments"):
            raise LessonError("private assignments: derive.py assignments --variant N --to FOLDER")
        if args.to:
            private(all_lessons, wanted, args.variant, args.to)
            return 0
        parts = PARTS if args.part == "all" else [args.part]
        if not args.check:
            for part in parts:
                build(part, all_lessons, wanted, args.force)
            return 0
        bad = [line for part in parts for line in check(part, all_lessons, wanted)]
    except LessonError as error:
        print(error, file=sys.stderr)
        return 1
    for line in bad:
        print(line)
    print(f"{len(bad)} drifted: run `make lessons`" if bad else "all derived files are up to date")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
