"""The tables of docs/teachers-guide.md: what each chapter costs, and ten weeks of it.

Each function of TABLES gives (header, rows). Points, minutes and times are read from the lessons
and from the accepted times, so only the plan itself, WEEKS, is written by hand.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from _lesson import Exercise, Lesson, LessonError

from circuitbook import measure, paths

Table = tuple[list[str], list[list[str]]]


@dataclass(frozen=True)
class Week:
    """Chapters that are read for one class, and the exercises that count."""

    chapters: tuple[str, ...]
    graded: tuple[str, ...]


# Chapter 10 comes after the series: a course of ten weeks leaves it out, or takes it for a project.
WEEKS = (
    Week(
        ("00", "01"),
        ("01.centred_contribution", "01.which_numbers_move", "01.city_coordinate"),
    ),
    Week(("02",), ("02.copying_score", "02.fooling_head", "02.what_a_score_says")),
    Week(("03",), ("03.virtual_head", "03.term_and_cut", "03.last_digit")),
    Week(("04",), ("04.best_triple", "04.bug_pair", "04.three_cures")),
    Week(("05",), ("05.k_score", "05.blind_pair", "05.two_pairs")),
    Week(("06",), ("06.honest_score", "06.key_cut", "06.value_cut")),
    Week(("07",), ("07.pre_activation_parts", "07.windows_needed", "07.clean_list")),
    Week(
        ("08",),
        ("08.two_plans", "08.feature_dimensionality", "08.two_codes", "08.full_room"),
    ),
    Week(("09",), ("09.honest_loss", "09.edges_into", "09.perfect_sum")),
    Week(("11",), ("11.smallest_circuit", "11.counterexample", "11.the_circuit")),
)


def _minutes(lesson: Lesson) -> int:
    found = re.match(r"\d+", lesson.head["Reading"])
    if not found:
        raise LessonError(f"{lesson.name}: Reading: {lesson.head['Reading']!r} names no minutes")
    return int(found[0])


def _seconds() -> dict[str, float]:
    with paths.model_set("course"):
        path = measure.times_path(accepted=True)
    return json.loads(path.read_text(encoding="utf-8"))["chapters"] if path.is_file() else {}


def _worth(exercises: tuple[Exercise, ...]) -> list[int]:
    """Number, points and minutes of some exercises."""
    return [len(exercises), sum(e.points for e in exercises), sum(e.minutes for e in exercises)]


def _told(exercises: tuple[Exercise, ...]) -> str:
    number, points, minutes = _worth(exercises)
    return f"{number}: {points} points, {minutes} min" if number else "–"


def chapters(lessons: list[Lesson]) -> Table:
    """Chapter by chapter: minutes to read, seconds to compute, what the exercises are worth."""
    header = ["", "Chapter", "Read (min)", "Compute (s)", "Exercises in code", "In words"]
    seconds, rows = _seconds(), []
    for lesson in lessons:
        cells = [lesson.number, lesson.title.partition(":")[0], str(_minutes(lesson))]
        cells.append(str(round(seconds.get(lesson.name, 0)) or "–"))
        rows.append([*cells, _told(lesson.exercises), _told(lesson.written)])
    time = sum(round(seconds.get(lesson.name, 0)) for lesson in lessons)
    code, words = (
        tuple(e for lesson in lessons for e in getattr(lesson, kind))
        for kind in ("exercises", "written")
    )
    total = ["", "all", str(sum(map(_minutes, lessons))), str(time)]
    return header, [*rows, [*total, _told(code), _told(words)]]


def weeks(lessons: list[Lesson]) -> Table:
    """Week by week: what is read, which exercises count, and what they are worth."""
    header = ["Week", "Chapters", "Read (min)", "Graded exercises", "Points", "Minutes"]
    known = {lesson.number: lesson for lesson in lessons}
    rows, total = [], [0, 0, 0]
    for number, week in enumerate(WEEKS, 1):
        read = sum(_minutes(_known(known, chapter)) for chapter in week.chapters)
        _, points, minutes = _worth(tuple(_exercise(known, name) for name in week.graded))
        names = ", ".join(f"`{name}`" for name in week.graded)
        rows.append([str(number), ", ".join(week.chapters), str(read), names,
                     str(points), str(minutes)])  # fmt: skip
        total = [a + b for a, b in zip(total, (read, points, minutes), strict=True)]
    return header, [*rows, ["all", "", str(total[0]), "", str(total[1]), str(total[2])]]


def _known(lessons: dict[str, Lesson], number: str) -> Lesson:
    if number not in lessons:
        raise LessonError(f"tools/_teaching.py plans chapter {number}, and there is none")
    return lessons[number]


def _exercise(lessons: dict[str, Lesson], name: str) -> Exercise:
    lesson = _known(lessons, name[:2])
    for exercise in lesson.exercises + lesson.written:
        if exercise.name == name:
            return exercise
    raise LessonError(f"tools/_teaching.py plans {name}, and {lesson.name} has no such exercise")


TABLES: dict[str, Callable[[list[Lesson]], Table]] = {"costs": chapters, "weeks": weeks}
