"""The README's tables are made of the lessons' heads and of the committed claims.

Each table stands between `<!-- derive:chapters -->` and `<!-- /derive:chapters -->`.
"""

import re

from _lesson import Lesson, LessonError

from circuitbook import paths, results


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in lines)


def chapters(lessons: list[Lesson]) -> str:
    """Number, title, part of the series, reading time, exercises and their points."""
    rows = []
    for lesson in lessons:
        points = sum(e.points for e in lesson.exercises)
        work = f"{len(lesson.exercises)} ({points} points)" if lesson.exercises else "–"
        link = f"[{lesson.title}](notebooks/{lesson.name}.ipynb)"
        head = lesson.head
        rows.append(
            [lesson.number, link, head["Series"], head["Reading"], head.get("CPU", "–"), work]
        )
    return _table(["", "Chapter", "Series", "Reading", "CPU", "Exercises"], rows)


def claims(lessons: list[Lesson]) -> str:
    """Every committed claim with its label and state."""
    rows = []
    for lesson in lessons:
        path = paths.RESULTS / "course" / f"{lesson.name}.json"
        if not path.is_file():
            continue
        for c in results.read(path)["claims"]:
            state = "yes" if c["holds"] else "**no**"
            rows.append([lesson.number, f"`{c['id']}`", c["label"], state, c["sentence"]])
    return _table(["", "Claim", "Evidence", "Holds", "In words"], rows)


def fill(text: str, lessons: list[Lesson]) -> str:
    """The README's text with its tables as they should be."""
    for name, table in (("chapters", chapters(lessons)), ("claims", claims(lessons))):
        start, end = f"<!-- derive:{name} -->", f"<!-- /derive:{name} -->"
        if text.count(start) != 1 or text.count(end) != 1 or text.index(start) > text.index(end):
            raise LessonError(
                f"README.md needs the lines {start} and {end}, once and in this order"
            )
        pattern = f"{re.escape(start)}.*?{re.escape(end)}"
        filled = f"{start}\n{table}\n{end}"
        text = re.sub(pattern, lambda _, filled=filled: filled, text, flags=re.DOTALL)
    return text
