"""A lesson is a list of cells; its rules are checked when it is read.

Only scripts/NN_name.py is written by hand. Tags: `save` (taught functions), `exercise` (one
function whose answer opens at a line `# solution`), `draw` (right after an exercise's check, a
picture of its answer), `written` (a question that is answered in words; the model answer follows in
a cell tagged `solution`), `solution` (the cell vanishes for students), `core` and `extension` (for
the reader).
"""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import jupytext
from _strip import has_marker, quiet_magics

TAGS = {"save", "exercise", "draw", "written", "solution", "core", "extension"}
NAME = re.compile(r"\d\d_[a-z0-9_]+")
HEAD_KEYS = {"Series", "Reading", "CPU"}
_WORTH = (
    r"(?P<name>\d\d\.[a-z0-9_]+) points=(?P<points>[1-9]\d*) "
    r"minutes=(?P<minutes>[1-9]\d*) difficulty=(?P<difficulty>[1-5])"
)
_EXERCISE = re.compile(f"# exercise: {_WORTH}")
_WRITTEN = re.compile(f"<!-- written: {_WORTH} -->")


class LessonError(Exception):
    """A lesson breaks a rule; the message says where and what to do."""


@dataclass(frozen=True)
class Exercise:
    """The line `# exercise: 02.name points=3 minutes=15 difficulty=2`, or `<!-- written: … -->`."""

    name: str
    points: int
    minutes: int
    difficulty: int

    @property
    def function(self) -> str:
        """The name of the learner's function: the part after the chapter."""
        return self.name.partition(".")[2]


@dataclass(frozen=True)
class Cell:
    """One cell: its place, "code" or "markdown", its text, its tags, its exercise if it has one.

    question: what a markdown cell tagged `written` is worth.
    """

    index: int
    kind: str
    source: str
    tags: tuple[str, ...]
    exercise: Exercise | None = None
    question: Exercise | None = None


@dataclass(frozen=True)
class Lesson:
    """One chapter: name "02_qk_ov", what its head says, and its cells."""

    name: str
    title: str
    head: dict[str, str]
    cells: tuple[Cell, ...]
    source: str

    @property
    def number(self) -> str:
        """Two digits."""
        return self.name[:2]

    @property
    def exercises(self) -> tuple[Exercise, ...]:
        """The exercises in code, in the order of the lesson."""
        return tuple(c.exercise for c in self.cells if c.exercise)

    @property
    def written(self) -> tuple[Exercise, ...]:
        """The exercises that are answered in words, in the order of the lesson."""
        return tuple(c.question for c in self.cells if c.question)

    def drawing(self, exercise: Exercise) -> Cell | None:
        """The cell that draws this exercise's answer, if there is one."""
        drawn = (c for c in self.cells if "draw" in c.tags and _uses(c, exercise.function))
        return next(drawn, None)

    @property
    def measures(self) -> bool:
        """Whether the lesson has evidence of its own."""
        return any("measured(" in c.source for c in self.cells if c.kind == "code")


def lessons(scripts: Path) -> list[Lesson]:
    """All lessons in a folder, by number."""
    found = [read(p) for p in sorted(scripts.glob("[0-9][0-9]_*.py"))]
    numbers = [lesson.number for lesson in found]
    twice = {n for n in numbers if numbers.count(n) > 1}
    if twice:
        raise LessonError(f"two lessons have the number {', '.join(sorted(twice))}")
    return found


def read(path: Path) -> Lesson:
    """The lesson in a script; LessonError when it breaks a rule."""
    source = path.read_text(encoding="utf-8")
    name = path.stem
    if not NAME.fullmatch(name):
        raise LessonError(f"{path.name}: lessons are called like 02_qk_ov.py")
    notebook = jupytext.reads(source, fmt={"extension": ".py", "format_name": "percent"})
    cells = tuple(_cell(name, i, c) for i, c in enumerate(notebook.cells))
    title, head = _head(name, cells)
    lesson = Lesson(name, title, head, cells, source)
    _check_exercises(lesson)
    return lesson


def _cell(name: str, index: int, cell: dict) -> Cell:
    where = f"{name}, cell {index} ({cell.source.strip().splitlines()[:1]})"
    tags = tuple(cell.metadata.get("tags", ()))
    unknown = set(tags) - TAGS
    if unknown:
        raise LessonError(f"{where}: unknown tag {', '.join(unknown)}; known: {', '.join(TAGS)}")
    if cell.cell_type not in {"code", "markdown"}:
        raise LessonError(f"{where}: cells are code or markdown, not {cell.cell_type}")
    exercise = question = None
    if cell.cell_type == "code":
        try:
            ast.parse(quiet_magics(cell.source))
        except SyntaxError as error:
            raise LessonError(f"{where}: {error}") from None
        marked = has_marker(cell.source)
        if marked and "exercise" not in tags:
            raise LessonError(f"{where}: a line '# solution' needs the tag exercise on its cell")
        if "exercise" in tags:
            exercise = _exercise(where, name, cell.source)
            if not marked:
                raise LessonError(f"{where}: its answer must open at a line '# solution'")
    elif {"exercise", "save", "draw"} & set(tags):
        raise LessonError(f"{where}: exercise, save and draw are tags of code cells")
    if "written" in tags:
        question = _question(where, name, cell)
    elif "<!-- written:" in cell.source:
        raise LessonError(f"{where}: a line '<!-- written: … -->' needs the tag written")
    return Cell(index, cell.cell_type, cell.source, tags, exercise, question)


def _worth(where: str, name: str, found: re.Match) -> Exercise:
    got = found.groupdict()
    exercise = Exercise(got.pop("name"), **{k: int(v) for k, v in got.items()})
    if not exercise.name.startswith(f"{name[:2]}."):
        raise LessonError(f"{where}: {exercise.name} carries another chapter's number")
    return exercise


def _question(where: str, name: str, cell: dict) -> Exercise:
    first, _, rest = cell.source.strip().partition("\n")
    found = _WRITTEN.fullmatch(first.strip())
    if cell.cell_type != "markdown" or not found or not rest.strip():
        raise LessonError(
            f"{where}: a written exercise is a markdown cell with a first line like '<!-- written: "
            "02.why_two points=2 minutes=5 difficulty=2 -->'; then comes the question"
        )
    if rest.count("<!-- written:"):
        raise LessonError(f"{where}: one question in a cell")
    return _worth(where, name, found)


def _exercise(where: str, name: str, source: str) -> Exercise:
    lines = [line for line in source.splitlines() if line.startswith("# exercise:")]
    found = _EXERCISE.fullmatch(lines[0].strip()) if len(lines) == 1 else None
    if not found:
        raise LessonError(
            f"{where}: an exercise has one line like "
            "'# exercise: 02.copying_score points=3 minutes=15 difficulty=2'"
        )
    exercise = _worth(where, name, found)
    functions = [
        n.name for n in ast.parse(quiet_magics(source)).body if isinstance(n, ast.FunctionDef)
    ]
    if functions != [exercise.function]:
        raise LessonError(f"{where}: the cell must define one function, {exercise.function}")
    return exercise


def _head(name: str, cells: tuple[Cell, ...]) -> tuple[str, dict[str, str]]:
    lines = [line.strip() for line in cells[0].source.splitlines()] if cells else []
    lines = [line for line in lines if line]
    title = re.fullmatch(rf"# {name[:2]} · (.+)", lines[0]) if lines else None
    if not title or len(lines) < 2 or cells[0].kind != "markdown":
        raise LessonError(
            f"{name}: the first cell is markdown and starts with '# {name[:2]} · Title' and then "
            "'Series: Part 2 · Reading: 75 minutes · CPU: 1 minute'"
        )
    head = dict(re.findall(r"(\w+): ([^·]+?)(?: ·|$)", lines[1]))
    if not {"Series", "Reading"} <= set(head) <= HEAD_KEYS:
        raise LessonError(
            f"{name}: the head needs Series: … · Reading: … (· CPU: …), not {lines[1]!r}"
        )
    return title[1], head


def _uses(cell: Cell, function: str) -> bool:
    tree = ast.walk(ast.parse(quiet_magics(cell.source)))
    return any(isinstance(n, ast.Name) and n.id == function for n in tree)


def _check_exercises(lesson: Lesson) -> None:
    """Only its check and its drawing may use an exercise's function, or a student's copy stops."""
    for exercise in lesson.exercises:
        checked = None
        for cell in lesson.cells:
            if cell.kind != "code" or cell.exercise == exercise or "solution" in cell.tags:
                continue
            if not _uses(cell, exercise.function):
                continue
            if "draw" in cell.tags and checked == cell.index - 1:
                continue
            call = f"check({exercise.name!r}, {exercise.function})"
            tree = ast.parse(quiet_magics(cell.source))
            if [ast.unparse(n) for n in tree.body] != [call]:
                raise LessonError(
                    f"{lesson.name}, cell {cell.index} uses {exercise.function}, an exercise's "
                    f"function; only a cell that holds {call} and nothing else may do that, and "
                    "right after it one cell tagged draw"
                )
            checked = cell.index
        if checked is None:
            raise LessonError(f"{lesson.name}: no cell checks {exercise.name}")
    names = [e.name for e in lesson.exercises + lesson.written]
    if len(set(names)) != len(names):
        raise LessonError(f"{lesson.name}: two exercises share a name: {names}")
    _check_cells(lesson)


def _check_cells(lesson: Lesson) -> None:
    for cell in lesson.cells:
        where = f"{lesson.name}, cell {cell.index}"
        if "draw" in cell.tags:
            drawn = [e.name for e in lesson.exercises if _uses(cell, e.function)]
            if len(drawn) != 1 or {"save", "exercise", "solution"} & set(cell.tags):
                raise LessonError(
                    f"{where}: a cell tagged draw draws the answer of one exercise, right after "
                    f"its check; this one uses {drawn or 'none'}"
                )
        if cell.question:
            after = lesson.cells[cell.index + 1 : cell.index + 2]
            if not after or after[0].kind != "markdown" or "solution" not in after[0].tags:
                raise LessonError(
                    f"{where}: after {cell.question.name} comes its model answer, a markdown cell "
                    "tagged solution"
                )
            if {"save", "exercise", "solution"} & set(cell.tags):
                raise LessonError(f"{where}: a question is for students; take its other tags away")
