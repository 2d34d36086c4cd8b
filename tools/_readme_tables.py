"""The README's tables that no lesson holds: planned chapters, text sources, measured times.

Each function gives a header and rows; tools/_readme.py puts them between the marks.
"""

import json

from circuitbook import doctor, measure
from circuitbook.sources import attribution_table

# Number → (title, part of the series). A chapter leaves this list by getting a lesson.
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


def planned(numbers: set[str]) -> list[list[str]]:
    """Rows (number, title, part) of the chapters that have no lesson yet."""
    return [
        [n, f"{title} (planned)", part] for n, (title, part) in PLAN.items() if n not in numbers
    ]


def sources() -> tuple[list[str], list[list[str]]]:
    """What the models learned from, under which licence, and whose work it is."""
    keys = ("source", "what", "licence", "attribution")
    return ["Source", "What", "Licence", "By"], [
        [row[k] for k in keys] for row in attribution_table()
    ]


def times() -> tuple[list[str], list[list[str]]]:
    """Seconds or minutes of each chapter and of each training, from the committed evidence."""
    rows, path = [], measure.times_path(accepted=True)
    cores = "–"
    if path.is_file():
        kept = json.loads(path.read_text(encoding="utf-8"))
        cores = str(kept["cores"])
        rows = [[f"measuring chapter {name[:2]}", doctor.duration(seconds), cores]
                for name, seconds in sorted(kept["chapters"].items())]  # fmt: skip
    trained = doctor.training_seconds()
    rows += [[f"training {role}", doctor.duration(seconds), "1"] for role, seconds in trained]
    return ["What", "Time", "Cores"], rows or [["nothing was measured yet", "–", "–"]]
