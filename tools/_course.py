"""A course folder of nbgrader's, made and kept in step with what was handed in."""

import contextlib
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

import _nbgrader
import nbformat
from _submissions import Mark, Submission, opened
from nbformat import NotebookNode
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.apps import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from traitlets.config import Config, PyFileConfigLoader

from circuitbook import results
from circuitbook.grade.source import GradeError, exercises, variant


class CourseError(Exception):
    """Grading cannot go on; the message says why, and what to do."""


class Course:
    """The folder `to`: nbgrader_config.py, gradebook.db, source/, submitted/, feedback/, …"""

    def __init__(self, source: Path, to: Path, sent: Path) -> None:
        self.source, self.root = source.resolve(), to.resolve()
        if not self.source.is_dir():
            raise CourseError(f"{source} is not a folder of assignments: run `make assignments`")
        names = [p.stem for p in sorted(self.source.glob("[0-9][0-9]_*.ipynb"))]
        self.chapters = [c for c in names if self._cells(c, "points")]
        self.ungraded = [c for c in names if c not in self.chapters]  # they have no exercise
        if not self.chapters:
            raise CourseError(f"{source} holds no assignment with exercises")
        for chapter in self.chapters:
            self._has_tests(chapter)
        for other in (source, sent):  # nbgrader's copies would be taken for what was handed in
            one, two = self.root, other.resolve()
            if one == two or one in two.parents or two in one.parents:
                raise CourseError(f"{to} and {other} may not lie in each other: take another OUT")
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CourseError(f"{to} cannot be a folder ({error}): take another OUT") from None
        config = self.root / "nbgrader_config.py"
        results.write(config, _nbgrader.CONFIG.format(tools=str(_nbgrader.HERE)))
        c = Config(PyFileConfigLoader(config.name, path=str(self.root)).load_config())
        c.CourseDirectory.root = str(self.root)
        # nbgrader calls alembic by name, also when the environment was not activated
        here = str(Path(sys.executable).parent)
        if here not in os.environ["PATH"].split(os.pathsep):
            os.environ["PATH"] = here + os.pathsep + os.environ["PATH"]
        # nbgrader's own code makes its database library say this, and nobody can do anything
        warnings.filterwarnings("ignore", "Object of type <Submitted", RuntimeWarning)
        logging.getLogger("traitlets").setLevel(logging.CRITICAL)
        self.api = NbGraderAPI(CourseDirectory(config=c), config=c)
        self.renewed: set[str] = set()

    def _cells(self, chapter: str, key: str) -> dict[str, dict]:
        metas = (cell.metadata.get("nbgrader", {}) for cell in self._read(chapter).cells)
        return {m["grade_id"]: m for m in metas if key in m}

    def _read(self, chapter: str) -> NotebookNode:
        path = self.source / f"{chapter}.ipynb"
        try:
            return nbformat.read(path, as_version=4)
        except Exception as error:  # nbformat has many ways to say that a file is broken
            why = f"{type(error).__name__}: run `make assignments`"
            raise CourseError(f"{path} is not a notebook ({why})") from None

    def _has_tests(self, chapter: str) -> None:
        """Say so at once where hidden tests are missing, as in the students' copies."""
        book = self._read(chapter)
        try:
            if exercises(book):
                variant(book)
        except GradeError:
            raise CourseError(
                f"{self.source} has no hidden tests for {chapter}: SOURCE is the teachers' folder, "
                "like assignments/source"
            ) from None

    def written(self) -> dict[str, float]:
        """Written exercise → what it is worth."""
        found = {}
        for chapter in self.chapters:
            for name, meta in self._cells(chapter, "points").items():
                if name.startswith("written-"):
                    found[_exercise(name)] = float(meta["points"])
        return found

    def prepare(self, chapter: str) -> None:
        """Make nbgrader know the assignment as it is in `source` today."""
        text = (self.source / f"{chapter}.ipynb").read_text(encoding="utf-8")
        kept = self.root / "source" / chapter / f"{chapter}.ipynb"
        release = self.root / "release" / chapter / f"{chapter}.ipynb"
        if kept.is_file() and kept.read_text(encoding="utf-8") == text and release.is_file():
            return
        before = kept.read_bytes() if kept.is_file() else None
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(text, encoding="utf-8")
        done = self.api.generate_assignment(chapter)
        if not done["success"]:
            kept.unlink() if before is None else kept.write_bytes(before)
            raise CourseError(
                f"{chapter} in {self.source} cannot become an assignment in {self.root}: "
                f"{_why(done)}. If its exercises changed since then, take another OUT"
            )
        self.renewed.add(chapter)

    def _place(self, step: str, one: Submission) -> Path:
        return self.root / step / one.student / one.chapter / f"{one.chapter}.ipynb"

    def take(self, one: Submission) -> bool:
        """Copy a submission into the course; whether it is new, or changed, or its tests did."""
        text = nbformat.writes(opened(one.path)) + "\n"
        sent = self._place("submitted", one)
        same = sent.is_file() and sent.read_text(encoding="utf-8") == text
        if same and self._place("autograded", one).is_file() and one.chapter not in self.renewed:
            return False
        results.write(sent, text)
        return True

    def run(self, one: Submission) -> list[str]:
        """Run the answers of a submission that was taken; what could not be enforced, in words."""
        with contextlib.suppress(Exception):  # nbgrader's step tries again, and tells what is wrong
            sent = nbformat.read(self._place("submitted", one), as_version=4)
            source = self._read(one.chapter)
            return list(
                _nbgrader.grade_before(self.root, one.student, sent, source).isolation["notes"]
            )
        return []

    def grade(self, one: Submission) -> str:
        """Let nbgrader grade a submission that was taken; why it could not, or ""."""
        done = self.api.autograde(one.chapter, one.student, force=True)
        graded = self._place("autograded", one).is_file()
        return "" if done["success"] and graded else _why(done)

    def notes(self, one: Submission) -> list[str]:
        """What the grader noticed about a graded submission."""
        book = nbformat.read(self._place("autograded", one), as_version=4)
        text = next((c.source for c in book.cells if c.id == "grader-note"), "")
        return [s[2:] for s in text.splitlines() if s.startswith("- ") and s != _nbgrader.NOTHING]

    def give(self, marks: Iterable[Mark]) -> list[str]:
        """Enter marks for written answers; those whose answer is not there, in words."""
        unknown = []
        with self._gradebook() as book:
            for mark in marks:
                chapter = next(c for c in self.chapters if c[:2] == mark.exercise[:2])
                name = f"written-{mark.exercise.replace('.', '-', 1)}"
                try:
                    one = book.find_grade(name, chapter, chapter, mark.student)
                    comment = book.find_comment(name, chapter, chapter, mark.student)
                except MissingEntry:
                    unknown.append(f"{mark.student} has a mark for {mark.exercise}, but no answer")
                    continue
                one.manual_score, one.needs_manual_grade = mark.points, False
                if mark.comment:
                    comment.manual_comment = mark.comment
            book.db.commit()
        return unknown

    def feedback(self, found: Iterable[Submission]) -> None:
        """A page for each graded submission, and the table of all marks."""
        for one in found:
            if self._place("autograded", one).is_file():
                done = self.api.generate_feedback(one.chapter, one.student, force=True)
                if not done["success"]:
                    print(f"no feedback for {one.student}, {one.chapter}: {_why(done)}")
        with self._gradebook() as book:
            table = _nbgrader.Csv()
            table.to = str(self.root / "grades.csv")
            table.export(book)

    def kept(self, found: Iterable[Submission]) -> list[str]:
        """Marks of earlier calls whose notebook is not handed in any more, by chapter."""
        now = {(one.student, one.chapter) for one in found}
        with self._gradebook() as book:
            before = sorted((s.assignment.name, s.student.id) for a in book.assignments
                            for s in a.submissions)  # fmt: skip
        gone: dict[str, list[str]] = {}
        for chapter, student in before:
            if (student, chapter) not in now:
                gone.setdefault(chapter, []).append(student)
        return [f"{chapter}: {', '.join(students)}" for chapter, students in gone.items()]

    def summary(self) -> str:
        """One line for each student and chapter."""
        with self._gradebook() as book:
            rows = _nbgrader.rows(book)
        totals: dict[tuple[str, str], list[dict]] = {}
        for row in rows:
            totals.setdefault((row["student"], row["chapter"]), []).append(row)
        lines = []
        for (student, chapter), own in totals.items():
            waiting = sum(row["needs_manual"] == "yes" for row in own)
            line = f"{student}  {chapter}  {own[0]['total']:g} of {own[0]['total_max']:g} points"
            lines.append(line + (f", {waiting} to be marked by hand" if waiting else ""))
        return "\n".join(lines)

    def _gradebook(self) -> Gradebook:
        return Gradebook(f"sqlite:///{self.root / 'gradebook.db'}", "circuitbook")


def _exercise(name: str) -> str:
    return name.partition("-")[2].replace("-", ".", 1)


def _why(done: dict) -> str:
    """The first error in nbgrader's log, in one line."""
    text = str(done.get("log") or "") + str(done.get("error") or "")
    errors = re.findall(r"^\s*(?:\w+\.)*(\w*(?:Error|Exception): .*)$", text, re.M)
    return (errors or ["nbgrader does not say why"])[0].strip()[:300]
