"""A project with made-up results of chapters 07-09, near the published numbers, and real ones."""

import json
import shutil
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
NAMES = {"07": "07_toy", "08": "08_toy", "09": "09_toy"}
SHARES = {"gelu-1l": 0.666504, "gelu-2l": 0.666504, "gpt2": 0.666558}


def reference():
    """The reference file as it stands in the repository."""
    path = HERE / "results" / "reference" / "series.json"
    return json.loads(path.read_text(encoding="utf-8"))


def chapter_of(id):
    """The toy chapter that saves an id under data["series"], or None."""
    if not id.startswith("part7") or "frobenius" in id:
        return None
    if "toy" in id:
        return "08"
    return "09" if "sae" in id or "aunt" in id else "07"


def values():
    """Chapter → {id: value}: what was published, with the digits that a print leaves out."""
    found = {number: {} for number in NAMES}
    for entry in reference()["entries"]:
        number = chapter_of(entry["id"])
        if number:
            found[number][entry["id"]] = entry["value"]
    for model, share in SHARES.items():
        found["07"][f"part7.params.{model}.mlp_share"] = share
    return found


def write(root, models, number, series):
    """The results file of one toy chapter."""
    envelope = {
        "schema": 1, "chapter": NAMES[number], "config": {}, "made_with": {}, "kinds": {},
        "data": {"series": series}, "claims": [],
    }  # fmt: skip
    path = root / "results" / models / f"{NAMES[number]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(envelope), encoding="utf-8")
    return path


def fill(root):
    """Results of all chapters in `root`: real ones up to 06, made-up ones after."""
    shutil.copytree(HERE / "results" / "reference", root / "results" / "reference")
    for number in ("02", "03", "05", "06"):
        for path in (HERE / "results" / "course").glob(f"{number}_*.json"):
            (root / "results" / "course").mkdir(parents=True, exist_ok=True)
            shutil.copy(path, root / "results" / "course")
    for number, series in values().items():
        write(root, "course", number, series)


def change(root, id, edit, models="course"):
    """Change one saved value: edit(value) returns the new one."""
    number = chapter_of(id)
    path = root / "results" / models / f"{NAMES[number]}.json"
    series = json.loads(path.read_text(encoding="utf-8"))["data"]["series"]
    series[id] = edit(series[id])
    write(root, models, number, series)


def change_reference(root, edit):
    """Change the reference file of a toy project: edit(list of entries) in place."""
    path = root / "results" / "reference" / "series.json"
    kept = json.loads(path.read_text(encoding="utf-8"))
    edit(kept["entries"])
    path.write_text(json.dumps(kept), encoding="utf-8")


def status(capsys, *arguments):
    """(exit status, what was printed, what went to stderr) of the command."""
    from circuitbook.series import __main__ as command

    code = command.main(list(arguments))
    said = capsys.readouterr()
    return code, said.out, said.err
