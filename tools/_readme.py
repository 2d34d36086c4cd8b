"""The README's tables are made of the lessons' heads, the claims, the times and the sources.

Each table stands between `<!-- derive:chapters -->` and `<!-- /derive:chapters -->`.
"""

import json
import re
from collections.abc import Callable, Sequence

import _teaching
from _lesson import Exercise, Lesson, LessonError

from circuitbook import compare, measure, paths, results, sources
from circuitbook.claims import LABELS


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in lines)


PLAN = {
    "00": ("The models", "–"),
    "01": ("Residual stream", "Part 1"),
    "02": ("QK and OV", "Part 2"),
    "03": ("Path expansion", "Part 3"),
    "04": ("Skip-trigrams", "Part 4"),
    "05": ("Composition", "Part 5"),
    "06": ("Induction", "Part 6"),
    "07": ("MLP neurons and in-context learning", "Part 7"),
    "08": ("Superposition", "Part 7"),
    "09": ("Sparse autoencoders and Aunt Sally", "Part 7"),
    "10": ("Conditional paths", "beyond"),
    "11": ("Circuit gallery", "beyond"),
}


WORK = ("Exercises in code", "Written exercises")


def work(exercises: Sequence[Exercise]) -> str:
    """How many exercises these are and what they are worth together: "4 (10 points)"."""
    points = sum(e.points for e in exercises)
    return f"{len(exercises)} ({points} point{'s' * (points != 1)})" if exercises else "–"


def chapters(lessons: list[Lesson]) -> str:
    """Number, title, part of the series, reading time, exercises in code and written ones."""
    rows = []
    for lesson in lessons:
        link = f"[{lesson.title}](notebooks/{lesson.name}.ipynb)"
        head = lesson.head
        rows.append(
            [
                lesson.number,
                link,
                head["Series"],
                head["Reading"],
                head.get("CPU", "–"),
                work(lesson.exercises),
                work(lesson.written),
            ]
        )
    built = {lesson.number for lesson in lessons}
    if "00" in built:  # the course itself, not a test's toy
        rows += [
            [number, f"{title} (planned)", part, "–", "–", "–", "–"]
            for number, (title, part) in PLAN.items()
            if number not in built
        ]
    return _table(["", "Chapter", "Series", "Reading", "CPU", *WORK], rows)


def _claims_of(lesson: Lesson) -> list[dict]:
    path = paths.RESULTS / "course" / f"{lesson.name}.json"
    return results.read(path)["claims"] if path.is_file() else []


def claims(lessons: list[Lesson]) -> str:
    """How many claims each chapter makes, by kind of evidence, and which do not hold."""
    rows = []
    for lesson in lessons:
        made = _claims_of(lesson)
        if made:
            counts = [sum(c["label"] == label for c in made) or "–" for label in LABELS]
            refused = ", ".join(f"`{c['id']}`" for c in made if not c["holds"]) or "–"
            rows.append([lesson.number, len(made), *counts, refused])
    cells = [[str(cell) for cell in row] for row in rows]
    return _table(["", "Claims", *LABELS, "does not hold"], cells)


def ledger(lessons: list[Lesson]) -> str:
    """The page results/claims.md: every committed claim with its label and state."""
    rows = [
        [
            lesson.number,
            f"`{c['id']}`",
            c["label"],
            "yes" if c["holds"] else "**no**",
            c["sentence"],
        ]
        for lesson in lessons
        for c in _claims_of(lesson)
    ]
    head = (
        "# Every claim of the course\n\n"
        "Built from the results beside this page; the sentences get their numbers from there. "
        "The README says what the kinds of evidence mean. Claims that fail stay in.\n\n"
    )
    return head + _table(["", "Claim", "Evidence", "Holds", "In words"], rows) + "\n"


def times(lessons: list[Lesson]) -> str:
    """Seconds that each chapter's measurement took, as kept with the evidence."""
    with paths.model_set("course"):  # the README tells about these, whatever MODELS is
        path = measure.times_path(accepted=True)
    if not path.is_file():
        return "Not measured yet."
    kept = json.loads(path.read_text(encoding="utf-8"))
    rows = [
        [lesson.number, lesson.title, f"{kept['chapters'][lesson.name]:.0f} s"]
        for lesson in lessons
        if lesson.name in kept["chapters"]
    ]
    return _table(["", "Chapter", f"Measured on {kept['cores']} cores in"], rows)


def texts() -> str:
    """Every pinned text source with its licence and whom it is by."""
    header = ["Text", "Package", "Licence", "By"]
    rows = [
        [s.description, f"`{s.name}` {s.version}", s.licence, s.attribution]
        for s in sources.SOURCES
    ]
    return _table(header, rows)


WORDS = {
    "exact": "Counts, names, yes or no. Two values must be equal.",
    "closed_form": "Follows from algebra. The two may differ by {closed_form:g} (the difference "
    "itself, not a share), or by a tolerance that the chapter states for this number.",
    "readout": "Read from fixed weights in one run. They may differ by {readout:.1%} of the "
    "larger one, or by a tolerance that the chapter states for this number. Near zero, that is "
    "a smallest difference.",
    "statistic": "A mean over texts or prompts. They may differ by one standard error.",
    "stochastic": "The outcome of a training run. Only its shape is compared; claims judge it.",
}


def kinds() -> str:
    """The five kinds of numbers and when two values of a kind agree."""
    limits = {"closed_form": compare.CLOSED_FORM, "readout": compare.READOUT}
    rows = [[kind.replace("_", " "), words.format(**limits)] for kind, words in WORDS.items()]
    return _table(["Kind", "When two values agree"], rows)


# A difference below a fixed tolerance is a large share of a number near zero, and still inside.
FAR = ("Largest, as a share", "Outside its tolerance")


def _noise() -> dict:
    path = paths.RESULTS / "noise.json"
    if not path.is_file():
        raise LessonError("results/noise.json is missing: git checkout it, or bench/noise.py")
    return json.loads(path.read_text(encoding="utf-8"))


def noise() -> str:
    """Condition by condition and kind by kind: how many numbers moved, how far, how many left."""
    rows = []
    for name, found in _noise()["conditions"].items():
        for kind in WORDS:
            n = found["kinds"][kind]
            rows.append(
                [
                    name,
                    kind.replace("_", " "),
                    f"{n['numbers']:,}",
                    f"{n['moved']:,}",
                    f"{n['largest']:.1g}" if n["moved"] else "–",
                    str(n["outside"]),
                ]
            )
        changed = found["claims that changed"]
        rows.append([name, "claims", f"{found['claims']:,}", str(changed), "–", str(changed)])
    many = f"From {_noise()['chapters']} chapters, with small samples:\n\n"
    return many + _table(["Condition", "Kind", "Numbers", "Moved", *FAR], rows)


def formats() -> str:
    """Largest difference of a reading between float32 and float64."""
    rows = [[name, f"{x:.1g}"] for name, x in _noise()["float32 against float64"].items()]
    return _table(["Reading", "Largest difference"], rows)


def fill_page(text: str, name: str, lessons: Sequence[Lesson] = ()) -> str:
    """A page of docs/ with its tables as they should be."""
    made = {"kinds": lambda _: kinds(), "noise": lambda _: noise(), "formats": lambda _: formats()}
    made |= {k: lambda ls, f=f: _table(*f(ls)) for k, f in _teaching.TABLES.items()}
    made = {k: v for k, v in made.items() if f"derive:{k} " in text}
    return _fill(text, made, list(lessons), name)


def fill(text: str, lessons: list[Lesson]) -> str:
    """The README's text with its tables as they should be; chapters and claims must be there."""
    made = {"chapters": chapters, "claims": claims, "times": times, "sources": lambda _: texts()}
    return _fill(text, made, lessons, "README.md")


def _fill(text: str, made: dict[str, Callable], lessons: list[Lesson], page: str) -> str:
    for name, table in made.items():
        start, end = f"<!-- derive:{name} -->", f"<!-- /derive:{name} -->"
        if name in {"times", "sources"} and start not in text and end not in text:
            continue
        if text.count(start) != 1 or text.count(end) != 1 or text.index(start) > text.index(end):
            raise LessonError(f"{page} needs {start} and {end}, once and in this order")
        pattern = f"{re.escape(start)}.*?{re.escape(end)}"
        filled = f"{start}\n{table(lessons)}\n{end}"
        text = re.sub(pattern, lambda _, filled=filled: filled, text, flags=re.DOTALL)
    return text
