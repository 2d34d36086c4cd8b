"""What grading gives back: points, laws in words, notes. No draw, no expected value, no traceback.

A Report is plain data: `report.plain()` can be written as JSON.
"""

from dataclasses import dataclass, field

from circuitbook.checks.floors import FLOORS

__all__ = ["RULE", "ExerciseReport", "Law", "Limits", "Report", "earned", "shown"]

RULE = (
    "Half of an exercise's points are for its laws, half for obeying all of them; "
    "laws that a constant answer also obeys earn nothing."
)


def shown(text: object) -> str:
    """What others wrote, in one line of printable letters: no new line, no terminal's command."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))


@dataclass(frozen=True)
class Limits:
    """How much one submission may use; whoever goes beyond loses the law that runs, no more.

    wall, law: seconds of waiting for the whole submission, and for one law. memory: MB above what
    Python with torch takes. written: MB in the scratch folder. processes: at once, with threads.
    message: MB that an answer may return. crashes: per exercise that leave its other laws a chance.
    isolation: "auto", or "plain" for the little that works without Linux' namespaces.
    """

    wall: float | int = 300.0
    law: float | int = 20.0
    memory: int = 2048
    written: int = 64
    processes: int = 32
    message: int = 128
    crashes: int = 1
    isolation: str = "auto"


@dataclass(frozen=True)
class Law:
    """One law of an exercise: does the answer obey it, and in what words is a failure told?"""

    sentence: str
    passed: bool
    hint: str = ""
    problem: str = ""

    def words(self) -> str:
        """The law for a student to read."""
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """The same, line by line; a problem, which may quote the student's code, is one of them."""
        if self.passed:
            return [f"✓ {self.sentence}"]
        return [f"✗ {self.sentence}"] + [f"  {shown(t)}" for t in (self.problem, self.hint) if t]


def earned(possible: float | int, passed: int, laws: int, floor: int = 0) -> float:
    """The points for `passed` of `laws` laws, rounded to 2 decimals: see RULE.

    floor: how many laws an answer without a thought obeys; circuitbook.checks.floors has them.
    """
    if not 0 <= floor < laws:
        raise ValueError(f"an exercise needs at least one law above its floor, not {laws}, {floor}")
    above = max(0, passed - floor) / (laws - floor)
    return round(possible * (above / 2 + (passed == laws) / 2), 2)


@dataclass
class ExerciseReport:
    """The marks of one exercise. `error`: why it could not run at all, in words, or "".

    found: the source text of the student's cell, also where nothing in it could be run, or None.
    """

    name: str
    possible: float | int
    laws: list[Law] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: str = ""
    answered: bool = True
    found: str | None = None

    @property
    def passed(self) -> int:
        """How many laws the answer obeys."""
        return sum(law.passed for law in self.laws)

    @property
    def points(self) -> float:
        """Points earned."""
        answered = self.answered and self.laws
        floor = FLOORS.get(self.name, 0)
        return earned(self.possible, self.passed, len(self.laws), floor) if answered else 0.0

    @property
    def status(self) -> str:
        """One of: right, partly right, wrong, no answer, not graded."""
        if not self.answered:
            return "no answer"
        if not self.laws:
            return "not graded"
        if self.passed == len(self.laws):
            return "right"
        return "partly right" if self.passed > FLOORS.get(self.name, 0) else "wrong"

    def plain(self) -> dict:
        """The same as JSON-able data."""
        return {
            "points": self.points,
            "possible": self.possible,
            "status": self.status,
            "laws_passed": self.passed,
            "laws": [vars(law) | {} for law in self.laws],
            "notes": list(self.notes),
            "error": self.error,
            "found": self.found,
        }


@dataclass
class Report:
    """The marks of one submission. `error`: why nothing could be graded, in words, or "".

    by_hand: the points of answers in words, which people mark; they are not in `possible`.
    """

    lesson: str
    exercises: dict[str, ExerciseReport] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    isolation: dict = field(default_factory=dict)
    error: str = ""
    by_hand: dict[str, float] = field(default_factory=dict)

    @property
    def points(self) -> float:
        """Points earned in all exercises."""
        return round(sum((e.points for e in self.exercises.values()), 0.0), 2)

    @property
    def possible(self) -> float | int:
        """Points of all exercises."""
        return sum(e.possible for e in self.exercises.values())

    def plain(self) -> dict:
        """The same as JSON-able data."""
        return {
            "lesson": self.lesson,
            "points": self.points,
            "possible": self.possible,
            "exercises": {name: e.plain() for name, e in self.exercises.items()},
            "notes": list(self.notes),
            "isolation": dict(self.isolation),
            "error": self.error,
            "by_hand": dict(self.by_hand),
        }

    @classmethod
    def of(cls, plain: dict) -> "Report":
        """The report that `plain()` was made of."""
        exercises = {
            name: ExerciseReport(
                name,
                e["possible"],
                [Law(**law) for law in e["laws"]],
                e["notes"],
                e["error"],
                e["status"] != "no answer",
                e["found"],
            )
            for name, e in plain["exercises"].items()
        }
        rest = (plain[key] for key in ("notes", "isolation", "error", "by_hand"))
        return cls(plain["lesson"], exercises, *rest)
