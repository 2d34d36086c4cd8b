"""What nbgrader lacks: student code runs in circuitbook's sandbox, and broken notebooks are mended.

nbgrader's autograde has two passes. `Rebuild` opens the first one: it grades what was submitted,
and puts the answers it found into a fresh copy of the release, so that a deleted or edited cell
cannot stop what follows. `WriteMarks` takes the place of nbgrader's kernel in the second one.
"""

import csv
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import _assignment
import nbformat
from nbconvert.exporters import HTMLExporter
from nbconvert.preprocessors import CSSHTMLHeaderPreprocessor
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_output
from nbgrader import preprocessors as theirs
from nbgrader.plugins import ExportPlugin
from nbgrader.preprocessors import NbGraderPreprocessor
from nbgrader.utils import is_grade

from circuitbook import grade, results
from circuitbook.grade.report import shown
from circuitbook.grade.source import exercise_name

HERE = Path(__file__).resolve().parent
LONGEST = 20_000  # characters of an answer on its page
NOTHING = "- nothing unusual"
COLUMNS = (
    "student", "chapter", "exercise", "written", "points", "max", "needs_manual", "total",
    "total_max",
)  # fmt: skip
CONFIG = '''"""Written by `make grade`: student code runs in our sandbox, never in a kernel."""

import sys

sys.path.insert(0, {tools!r})
import _nbgrader

_nbgrader.configure(get_config())
'''


def configure(c: Any) -> None:
    """Put our steps into nbgrader's own configuration; the gradebook and the rest stay theirs."""
    c.CourseDirectory.course_id = "circuitbook"
    c.Autograde.sanitize_preprocessors = [
        Rebuild,
        theirs.ClearOutput,
        theirs.DeduplicateIds,
        theirs.OverwriteKernelspec,
        theirs.OverwriteCells,
        theirs.CheckCellMetadata,
    ]
    c.Autograde.autograde_preprocessors = [
        WriteMarks,
        theirs.LimitOutput,
        theirs.SaveAutoGrades,
        theirs.AssignLatePenalties,
        theirs.CheckCellMetadata,
    ]
    c.GenerateFeedback.exporter_class = FeedbackPage
    c.GenerateFeedback.preprocessors = [
        theirs.GetGrades,
        theirs.ClearHiddenTests,
        OnlyAnswers,
        CSSHTMLHeaderPreprocessor,
    ]
    pages = Path(theirs.__file__).parents[1] / "server_extensions" / "formgrader" / "templates"
    c.HTMLExporter.extra_template_basedirs = [str(HERE), str(pages)]
    c.ExportApp.plugin_class = Csv


# ---- grading ------------------------------------------------------------------------------------


class Rebuild(NbGraderPreprocessor):
    """The submission becomes the release with the answers that were found in it, and a note."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Grade what was submitted, then put its answers where nbgrader looks for them."""
        course = self.parent.parent.coursedir
        folder = course.format_path(
            course.source_directory, ".", resources["nbgrader"]["assignment"]
        )
        path = Path(folder) / f"{resources['nbgrader']['notebook']}.ipynb"
        source = nbformat.read(path, as_version=4)
        problem = nb.metadata.get("circuitbook", {}).get("problem", "")
        student = resources["nbgrader"]["student"]
        before = taken(Path(course.root), student, nb, source)
        report = before or grade.grade_notebook(nb, source)
        book = rebuilt(nb, source, report, problem)
        # as ASCII text: a message in it may hold halves of letters, which no file can
        book.metadata["circuitbook"]["report"] = json.dumps(report.plain())
        return book, resources


def _place(root: Path, student: str, nb: NotebookNode, source: NotebookNode) -> Path:
    both = [[[c.cell_type, c.source, c.metadata] for c in book.cells] for book in (nb, source)]
    same = json.dumps(both)  # the source's text also names the variant
    return root / "graded" / student / f"{hashlib.sha256(same.encode()).hexdigest()}.json"


def grade_before(root: Path, student: str, nb: NotebookNode, source: NotebookNode) -> grade.Report:
    """Grade ahead of nbgrader, which takes one notebook at a time; `Rebuild` finds the marks."""
    report = grade.grade_notebook(nb, source)
    results.write(_place(root, student, nb, source), json.dumps(report.plain()))
    return report


def taken(root: Path, student: str, nb: NotebookNode, source: NotebookNode) -> grade.Report | None:
    """The marks that were made before, once: whoever grades again runs the code again."""
    path = _place(root, student, nb, source)
    if not path.is_file():
        return None
    report = grade.Report.of(json.loads(path.read_text(encoding="utf-8")))
    path.unlink()
    return report


def rebuilt(
    nb: NotebookNode, source: NotebookNode, report: grade.Report, problem: str = ""
) -> NotebookNode:
    """The release with the student's answers, and on top what the grader noticed."""
    book = _assignment.release(source)
    known = {c.source.strip() for c in book.cells} | {"", problem}
    words, stray = in_words(nb, known)
    for cell in book.cells:
        ours = cell.metadata.get("circuitbook", {})
        if ours.get("kind") == "code":
            one = report.exercises[ours["name"]]
            cell.source = _harmless(_as_written(nb, one, known) or cell.source)
        elif ours.get("kind") == "written":
            said = words.get(cell.metadata.nbgrader.grade_id) or stray or cell.source
            cell.source = only_words(_harmless(said))
    notes = [report.error, *report.notes]
    for name, one in report.exercises.items():
        notes += [f"`{name}`: {note}" for note in [*one.notes, one.error] if note]
    notes = [problem] if problem else notes
    told = [f"- {only_words(shown(note))}" for note in notes if note]
    lines = ["**Notes of the grader**", "", *(told or [NOTHING])]
    note = new_markdown_cell("\n".join(lines), metadata={"circuitbook": {"kind": "note"}})
    note.id = "grader-note"
    book.cells.insert(0, note)
    return book


def _as_written(nb: NotebookNode, one: grade.ExerciseReport, known: set[str]) -> str:
    """What the student wrote for an exercise, also where it is no answer; "" where nothing is."""
    place, function = f"answer-{one.name.replace('.', '-')}", one.name.partition(".")[2]
    gives = re.compile(rf"^(async )?(def {function}\b|{function}\s*[:=])", re.M)
    own = [
        c.source for c in nb.cells if c.cell_type == "code" and c.source.strip() not in known
        and (
            exercise_name(c.source) == one.name or gives.search(c.source)
            or c.metadata.get("nbgrader", {}).get("grade_id") == place
        )
    ]  # fmt: skip
    return one.found or (own or [""])[-1]  # the grader found none if it could not start


_MATHS = re.compile(r"\$\$.+?\$\$|\$[^$\n]+\$|\\begin\{(\w+\*?)\}.+?\\end\{\1\}", re.S)
_OPENS = re.compile(
    r"<(?=[A-Za-z/!?])|\](?=[(:\[])|!(?=\[)|\\(?=(?:href|style|require)(?![A-Za-z]))"
)


def only_words(text: str) -> str:
    """Markdown in which no tag, link or picture can begin, and that looks as it was written.

    A gap that cannot be seen stands behind each letter that would open one; in maths, where it
    would be a sign, a space. So whoever shows it may take other parts for maths or for code.
    """
    parts, at = [], 0
    for maths in _MATHS.finditer(text):
        parts += [_OPENS.sub("\\g<0>\u200b", text[at : maths.start()])]
        parts += [_OPENS.sub(r"\g<0> ", maths[0])]
        at = maths.end()
    return "".join([*parts, _OPENS.sub("\\g<0>\u200b", text[at:])])


def _harmless(text: str) -> str:
    """Student words cannot open one of nbgrader's regions, nor make a page that nobody can open."""
    text = re.sub(r"(BEGIN|END) (HIDDEN TESTS|SOLUTION|MARK SCHEME)", r"\1-\2", text)
    return text if len(text) <= LONGEST else text[:LONGEST] + "\n# … the rest is not shown"


def in_words(nb: NotebookNode, known: set[str]) -> tuple[dict[str, str], str]:
    """(grade_id → the answer in words, all that the student wrote in words anywhere).

    An answer is known by its cell's name, or stands right after its question. The second is shown
    where an answer is missing, so that nothing is lost. known: what the release says itself.
    """
    found: dict[str, list[str]] = {}
    every: list[str] = []
    asked = ""
    for cell in nb.cells:
        name = str(cell.metadata.get("nbgrader", {}).get("grade_id", ""))
        question = re.search(r"^\*\*Written exercise (\d\d)\.([a-z0-9_]+)\*\*", cell.source)
        key = asked if cell.cell_type == "markdown" and not question else ""
        key = name if name.startswith("written-") else key
        asked = f"written-{question[1]}-{question[2]}" if question else ""
        if cell.source.strip() in known:
            continue
        if cell.cell_type == "markdown":
            every.append(cell.source)
        if key and cell.source not in found.get(key, []):
            found.setdefault(key, []).append(cell.source)
    stray = "\n\n".join(["*Found elsewhere in the notebook:*", *every]) if every else ""
    return {key: "\n\n".join(parts) for key, parts in found.items()}, stray


class WriteMarks(NbGraderPreprocessor):
    """Number and sentences of our report become the outputs of the graded cells; nothing runs."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Write the outputs that nbgrader reads the marks from."""
        report = grade.Report.of(json.loads(nb.metadata["circuitbook"].pop("report")))
        marks = {f"test-{n.replace('.', '-')}": one for n, one in report.exercises.items()}
        for cell in nb.cells:
            one = marks.get(cell.metadata.get("nbgrader", {}).get("grade_id", ""))
            if one is not None and cell.cell_type == "code":
                text = new_output("stream", name="stdout", text=sentences(one))
                points = {"text/plain": repr(float(one.points))}
                cell.outputs = [text, new_output("execute_result", data=points)]
            elif is_grade(cell) and cell.cell_type == "code":  # no output would be full marks
                none = "this exercise was not graded"
                cell.outputs = [new_output("error", ename="NotGraded", evalue=none)]
        return nb, resources


def sentences(one: grade.ExerciseReport) -> str:
    """What a student reads below a hidden test."""
    lines = [law.words() for law in one.laws]
    lines += [shown(one.error)] if one.error else []
    lines.append(f"{one.points:g} of {one.possible:g} points ({one.status})")
    return "\n".join(lines) + "\n"


class OnlyAnswers(NbGraderPreprocessor):
    """Feedback shows questions, answers, marks and notes, and not the whole chapter again."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Leave out every cell that was neither answered nor marked."""
        kept = []
        for cell in nb.cells:
            kind = cell.metadata.get("circuitbook", {}).get("kind")
            name = cell.metadata.get("nbgrader", {}).get("grade_id", "check")
            if kind in {"note", "written"}:  # also those of a course made before
                cell.source = only_words(cell.source)
            if kind == "note" or not name.startswith("check"):
                kept.append(cell)
        nb.cells = kept
        return nb, resources


class FeedbackPage(HTMLExporter):
    """nbgrader's page, whose table of contents names the exercises (tools/feedback/)."""

    def _template_file_default(self) -> str:
        return "marks.html.j2"


# ---- the table ----------------------------------------------------------------------------------


class Csv(ExportPlugin):
    """One row for each student, chapter and exercise."""

    def export(self, gradebook: Any) -> None:
        """Write the table to `--to`, by default grades.csv."""
        with Path(self.to or "grades.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows(gradebook))


def rows(gradebook: Any) -> list[dict]:
    """The table's rows, by student and chapter, exercises in the order of the chapter."""
    found = []
    for assignment in sorted(gradebook.assignments, key=lambda a: a.name):
        for sent in sorted(assignment.submissions, key=lambda s: s.student.id):
            for book in sent.notebooks:
                order = [c.name for c in book.notebook.source_cells]
                for one in sorted(book.grades, key=lambda g: order.index(g.name)):
                    kind, _, rest = one.name.partition("-")
                    values = (
                        sent.student.id, assignment.name, rest.replace("-", ".", 1),
                        "yes" if kind == "written" else "no", round(one.score, 2), one.max_score,
                        "yes" if one.needs_manual_grade else "no", round(book.score, 2),
                        book.max_score,
                    )  # fmt: skip
                    found.append(dict(zip(COLUMNS, values, strict=True)))
    return sorted(found, key=lambda row: (row["student"], row["chapter"]))
