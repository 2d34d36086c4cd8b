"""Grade a folder of notebooks with nbgrader, each in a sandbox of its own.

    make grade SUBMISSIONS=FOLDER [WRITTEN=marks.csv] [SOURCE=assignments/source] [OUT=build/grade]
                                  [TRUST=1]

FOLDER holds STUDENT/02_qk_ov.ipynb or STUDENT_02_qk_ov.ipynb; nothing in it is changed. Where there
are several files of one student for one chapter, only one with just that name counts, and the exit
status is 1 until the others are gone. OUT becomes a course folder of nbgrader: gradebook.db,
feedback/ for the students, grades.csv, and everything that JupyterLab with nbgrader's extension
opens. Marks for written answers come from WRITTEN, a table with the columns student, exercise,
points, comment, or are given in nbgrader's formgrader. Called again, only what is new or changed is
graded, and earlier marks stay. Where answers cannot be shut in and could delete your own files,
nothing is graded without TRUST=1 (--trust).
"""

import argparse
import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from circuitbook import paths


def main(argv: list[str] | None = None) -> int:
    """The command line; 1 when something could not be graded at all, or is not clear."""
    parser = argparse.ArgumentParser(
        prog="python tools/grade.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    env = os.environ.get
    parser.add_argument("submissions", nargs="?", type=Path, default=env("SUBMISSIONS") or None)
    parser.add_argument("--written", type=Path, default=env("WRITTEN") or None)
    parser.add_argument(
        "--source", type=Path, default=env("SOURCE") or paths.ASSIGNMENTS / "source"
    )
    parser.add_argument("--to", type=Path, default=env("OUT") or paths.BUILD / "grade")
    parser.add_argument("--trust", action="store_true", default=env("TRUST") == "1",
                        help="go on also where answers cannot be shut in")  # fmt: skip
    args = parser.parse_args(argv)
    if args.submissions is None:
        print("Say what to grade: make grade SUBMISSIONS=FOLDER", file=sys.stderr)
        return 1
    try:
        import nbgrader  # noqa: F401  only teachers need it
    except ImportError:
        print("nbgrader is missing: pip install -c constraints.txt -e .[teach]", file=sys.stderr)
        return 1
    from _course import CourseError
    from _submissions import SubmissionError

    from circuitbook.grade import GradeError
    from circuitbook.grade.report import shown

    try:
        return grade(args.submissions, args.written, args.source, args.to, args.trust)
    except (CourseError, SubmissionError) as error:
        print(shown(error), file=sys.stderr)
        return 1
    except GradeError as error:
        print(shown(error), file=sys.stderr)
        return 1


def grade(submissions: Path, written: Path | None, source: Path, to: Path, trust: bool) -> int:
    """Generate, autograde, feedback, table: all of nbgrader's steps for one folder."""
    from _course import Course
    from _submissions import find, read_marks

    from circuitbook.grade import Limits
    from circuitbook.grade.client import refuse_open
    from circuitbook.grade.report import shown

    course = Course(source, to, submissions)
    found, passed, unclear = find(submissions, course.chapters, course.ungraded)
    marks = read_marks(written, course.written()) if written else []
    failed = unclear
    if not trust:
        refuse_open(Limits())
    for chapter in sorted({one.chapter for one in found}):
        course.prepare(chapter)
    new, held = [], []
    for one in found:
        try:
            new += [one] if course.take(one) else []
            held.append(one)
        except Exception as error:  # such as a name too long for a folder; the others go on
            failed.append(f"{one.student}, {one.chapter}: {type(error).__name__}: {error}")
    print(f"{len(found)} submissions, {len(new)} of them new or changed", flush=True)
    with ThreadPoolExecutor(max(1, min(8, os.cpu_count() or 1))) as pool:
        loose = {note for notes in pool.map(course.run, new) for note in notes}
    for one in new:
        why = course.grade(one)
        if why:
            failed.append(f"{one.student}, {one.chapter}: {why}")
        notes = [] if why else course.notes(one)
        told = shown(notes[0]) if len(notes) == 1 else f"{len(notes)} notes"
        state = "failed" if why else "graded"
        print(f"{state}  {one.student}  {one.chapter}{f'  ({told})' if notes else ''}", flush=True)
    unknown = course.give(marks)
    course.feedback(held)
    print("\n" + course.summary())
    for text in sorted(loose):
        print(f"on this system: {shown(text)}")
    for text in [*passed, *unknown]:
        print(f"passed over: {shown(text)}")
    for text in course.kept(found):
        print(f"kept from an earlier call, not in {submissions} now: {text}")
    for text in failed:
        print(f"not graded: {shown(text)}")
    print(f"\n{to}/grades.csv has every mark, {to}/feedback/ a page for each student.")
    return 1 if failed else 0


if __name__ == "__main__":
    logging.getLogger().setLevel(logging.ERROR)
    raise SystemExit(main())
