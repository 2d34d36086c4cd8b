"""A notebook is its lesson plus outputs; the same lesson gives the same bytes.

Cell ids come from the chapter and the cell's place, no timing is kept, and outputs that change from
run to run (addresses, folders of this machine, warnings) are refused.
"""

import hashlib
import json
import os
import re
import tempfile
from pathlib import Path

import nbformat
from _lesson import Cell, Lesson, LessonError
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from traitlets.config import Config

from circuitbook import paths, results
from circuitbook.codehash import imported, module_file, reached_modules, tree_text

MAX_OUTPUT = 1_000_000
_REFUSED = ("text/html", "application/javascript", "application/vnd.jupyter.widget-view+json")
_VIEW = ("scrolled", "collapsed", "jupyter")
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


# ---- cells --------------------------------------------------------------------------------------


def notebook(lesson: Lesson, cells: list[NotebookNode], edition: str) -> NotebookNode:
    """Cells as a notebook of this lesson, with no more metadata than it needs."""
    # Only these keys: a jupytext entry would pair a student's copy with the answers.
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "circuitbook": {"lesson": lesson.name, "edition": edition},
    }
    book = new_notebook(cells=cells, metadata=metadata)
    book.nbformat_minor = 5
    return book


def node(lesson: Lesson, cell: Cell, source: str) -> NotebookNode:
    """A cell of the lesson with this text; its id comes from its place."""
    make = new_code_cell if cell.kind == "code" else new_markdown_cell
    metadata = {"tags": list(cell.tags)} if cell.tags else {}
    return make(source, metadata=metadata, id=f"{lesson.number}-{cell.index:03d}")


def plain(lesson: Lesson) -> NotebookNode:
    """The lesson as a notebook without outputs."""
    return notebook(lesson, [node(lesson, c, c.source) for c in lesson.cells], "lesson")


def text(book: NotebookNode) -> str:
    """The file's text."""
    nbformat.validate(book)
    return nbformat.writes(book) + "\n"


# ---- what a built notebook depends on -----------------------------------------------------------


def inputs(lesson: Lesson) -> str:
    """A hash of the lesson's code and of every module of ours that can shape its outputs."""
    others = frozenset(
        f"circuitbook.{kind}.{path.stem}"
        for kind in ("gallery", "checks")
        for path in module_file(f"circuitbook.{kind}").parent.glob("ch*.py")
        if path.stem != f"ch{lesson.number}"
    )
    code = "\n".join(c.source for c in lesson.cells if c.kind == "code")
    start = imported("\n".join(line for line in code.split("\n") if line[:1] not in "%!"))
    own = (f"circuitbook.{kind}.ch{lesson.number}" for kind in ("gallery", "checks"))
    start |= {name for name in own if module_file(name)}
    names = reached_modules(start, others | {"circuitbook.measure", "circuitbook.doctor"})
    parts = [lesson.source]
    parts += [name + tree_text(module_file(name).read_text(encoding="utf-8")) for name in names]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def evidence(lesson: Lesson) -> str:
    """A hash of the committed evidence of this chapter and of the chapters it names.

    The published models' notebooks are made of this machine's own results where there are any.
    """
    folders = [paths.RESULTS / paths.models()]
    if paths.models() == "published":
        folders.append(paths.BUILD / "results" / "published")
    parts = []
    for path in sorted(p for f in folders for p in f.glob("[0-9][0-9]_*.json")):
        if path.stem == lesson.name or f'"{path.stem}"' in lesson.source:
            parts.append(path.stem + path.read_text(encoding="utf-8"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest() if parts else "none"


def outputs_hash(book: NotebookNode) -> str:
    """A hash of all outputs and execution counts."""
    kept = [(c.execution_count, c.outputs) for c in book.cells if c.cell_type == "code"]
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def problem(lesson: Lesson, path: Path) -> str:
    """Why the built notebook at `path` is not what the lesson and the evidence give, or ""."""
    if not path.is_file():
        return "it was never built"
    try:
        book = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
        stored = book.metadata["circuitbook"]
        if text(book) != path.read_text(encoding="utf-8"):
            return "its file was edited"
        if outputs_hash(book) != stored["outputs"]:
            return "its outputs were edited"
        expected = plain(lesson)
        for ours, theirs in zip(expected.cells, book.cells, strict=True):
            for key in _VIEW:  # how a cell is displayed is not what it says
                theirs.metadata.pop(key, None)
            if any(ours[k] != theirs[k] for k in ("id", "cell_type", "source", "metadata")):
                return f"cell {ours.id} is not that of the lesson"
    except (KeyError, ValueError, AttributeError, nbformat.ValidationError) as error:
        return f"its file is not a notebook of ours ({type(error).__name__}: {error})"
    if stored["inputs"] != inputs(lesson):
        return "the lesson, or a module that it uses, changed"
    if stored["evidence"] != evidence(lesson):
        return "the committed evidence changed"
    expected.metadata["circuitbook"] |= {k: stored[k] for k in ("inputs", "evidence", "outputs")}
    return "" if expected.metadata == book.metadata else "its metadata was edited"


# ---- running ------------------------------------------------------------------------------------


def _environment(**more: str) -> dict[str, str]:
    fixed = {"DEVICE": "cpu", "RECOMPUTE": "0", "ACCEPT": "0", "PYTHONHASHSEED": "0"}
    # tqdm wants widgets and says so when it is imported in a kernel; nobody shows a bar here.
    warn = "default,ignore:IProgress not found"
    quiet = {"TQDM_DISABLE": "1", "MPLBACKEND": "agg", "PYTHONWARNINGS": warn}
    return {**os.environ, **fixed, **quiet, "CIRCUITBOOK_ROOT": str(paths.ROOT), **more}


def _run(book: NotebookNode, allow: list[str], env: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory(prefix="cb-") as folder:  # short: such paths have a limit
        # Talk to the kernel through files of this machine where there are such; no network socket.
        local = {"transport": "ipc", "ip": f"{folder}/k"} if os.name == "posix" else {}
        NotebookClient(
            book,
            timeout=1200,
            kernel_name="python3",
            record_timing=False,
            coalesce_streams=True,
            allow_error_names=allow,
            resources={"metadata": {"path": str(paths.ROOT)}},
            config=Config({"KernelManager": local}),
        ).execute(env=env)


def execute(lesson: Lesson) -> NotebookNode:
    """The lesson's notebook, run in a fresh kernel from the committed evidence, ready to write."""
    book = plain(lesson)
    committed = results.evidence_path(lesson.name).is_file()
    only = committed and not paths.quick()
    _run(book, [], _environment(EVIDENCE="only" if only else "any"))
    book.metadata["language_info"] = {"name": "python"}  # without the interpreter's version
    for cell in book.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", ()):
            _refuse(f"{lesson.name}, cell {cell.id}", output)
    book.metadata["circuitbook"] |= {
        "inputs": inputs(lesson),
        "evidence": evidence(lesson),
        "outputs": outputs_hash(book),
    }
    return book


def run_student(book: NotebookNode) -> list[str]:
    """Run a student's notebook to its end; the ids of cells that stopped at NotImplementedError.

    Any other error stops the run and is raised.
    """
    _run(book, ["NotImplementedError"], _environment())
    return [
        cell.id
        for cell in book.cells
        if any(o.output_type == "error" for o in cell.get("outputs", ()))
    ]


def _refuse(where: str, output: NotebookNode) -> None:
    size = len(json.dumps(output))
    if size > MAX_OUTPUT:
        raise LessonError(f"{where}: an output of {size:,} bytes; at most {MAX_OUTPUT:,} are kept")
    if output.output_type == "stream" and output.name == "stderr":
        raise LessonError(f"{where} wrote to stderr (a warning?): {output.text[:300]!r}")
    data = output.get("data", {})
    for kind in _REFUSED:
        if kind in data:
            raise LessonError(f"{where} shows {kind}. Show tables with plots.table(frame).")
    if "image/png" in data and not output.metadata.get("image/png", {}).get("alt"):
        raise LessonError(f"{where} shows a picture without alt text: draw it in the gallery")
    words = output.get("text", "") + json.dumps({k: v for k, v in data.items() if "image" not in k})
    if found := _ADDRESS.search(words):
        raise LessonError(f"{where} prints a memory address ({found[0]}), which changes each run")
    if "Wall time:" in words:
        raise LessonError(f"{where} prints a time, which changes each run: take %time out")
    for folder in {str(paths.ROOT), str(Path.home())} - {"/"}:
        if folder in words:
            raise LessonError(f"{where} prints a folder of this machine: {folder}")
