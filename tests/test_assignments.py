"""Assignments come from the lessons alone: nothing leaks to students, and nbgrader agrees."""

import base64
import contextlib
import io
import json
import re
import shutil
import sys
from pathlib import Path

import _assignment
import _notebook
import _target
import derive
import jupytext.cli
import nbformat
import pytest
from matplotlib.image import imread
from nbgrader.apps import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from nbgrader.nbgraderformat import MetadataValidator
from nbgrader.utils import compute_checksum
from traitlets.config import Config

from circuitbook.gallery.__main__ import same_picture

COURSE = derive.lessons(Path(__file__).resolve().parent.parent / "scripts")
NAME = "97_asked"
TEXT = """# %% [markdown]
# # 97 · Asked
# Series: Part 0 · Reading: 5 minutes

# %%
import numpy as np

from circuitbook import plots
from circuitbook.check import check, checker, near


# %%
def twice(x):
    return 2 * x


@checker("97.line")
def laws(fn):
    yield "two numbers", lambda: len(fn(2)) == 2
    yield "it starts at zero", lambda: near(fn(3)[0], 0)


@checker("97.text")
def more_laws(fn):
    yield "it takes a word", lambda: fn("a")


# %% tags=["exercise"]
# exercise: 97.line points=3 minutes=10 difficulty=2
def line(n):
    \"\"\"n numbers from 0 on.\"\"\"
    # solution
    the_secret = twice(np.arange(n))
    return the_secret / 2


# %%
check("97.line", line)

# %% tags=["draw"]
top = line(4)
plots.bars(
    {str(i): float(v) for i, v in enumerate(top)}, x_label="place", y_label="number", title="Line",
    alt=f"Four bars that rise [by one] to {top[-1]:.0f}.",
)

# %% tags=["exercise"]
%%time
# exercise: 97.text points=1 minutes=2 difficulty=1
def text(x):
    # solution
    return "# solution" + x  # another secret


# %%
check("97.text", text)

# %% [markdown] tags=["written", "core"]
# <!-- written: 97.why points=2 minutes=5 difficulty=3 -->
# Why is it **straight**?

# %% [markdown] tags=["solution"]
# The model says: equal steps. One point for each word.

# %% tags=["solution"]
print("a third secret")
"""
SECRETS = ("the_secret", "another secret", "a third secret", "The model says", "marks(", "BEGIN ")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The assignments of one lesson, built by the first test that asks; the others copy them."""
    return tmp_path_factory.mktemp("asked") / "assignments"


@pytest.fixture
def asked(project, built):
    """A project with one lesson that has a cell of each kind, and its assignments."""
    (project / "scripts" / f"{NAME}.py").write_text(TEXT)
    if built.exists():
        shutil.copytree(built, project / "assignments")
        return project
    assert derive.main(["assignments"]) == 0
    shutil.copytree(project / "assignments", built)
    return project


def opened(project, edition, name=NAME):
    return nbformat.read(project / "assignments" / edition / f"{name}.ipynb", as_version=4)


def named(book):
    """nbgrader's cells by their names."""
    metas = [(c.metadata.get("nbgrader", {}).get("grade_id"), c) for c in book.cells]
    return {name: cell for name, cell in metas if name}


def joined(book):
    return "\n".join(c.source for c in book.cells)


# ---- teachers -----------------------------------------------------------------------------------


def test_the_source_is_one_that_nbgrader_takes(asked):
    book = opened(asked, "source")
    MetadataValidator().validate_nb(book)
    cells = named(book)
    assert list(cells) == [
        "answer-97-line", "check-97-line", "test-97-line", "answer-97-text", "check-97-text",
        "test-97-text", "question-97-why", "written-97-why",
    ]  # fmt: skip
    metas = {n: c.metadata.nbgrader for n, c in cells.items()}
    kinds = {n: (meta.grade, meta.solution, meta.locked) for n, meta in metas.items()}
    assert kinds["answer-97-line"] == (False, True, False)
    assert kinds["check-97-line"] == kinds["question-97-why"] == (False, False, True)
    assert kinds["test-97-line"] == (True, False, True)
    assert kinds["written-97-why"] == (True, True, False)
    worth = {n: meta.points for n, meta in metas.items() if "points" in meta}
    assert worth == {"test-97-line": 3, "test-97-text": 1, "written-97-why": 2}


def test_the_source_has_answers_hidden_tests_and_model_answers(asked):
    cells = named(opened(asked, "source"))
    assert "    ### BEGIN SOLUTION\n    the_secret" in cells["answer-97-line"].source
    assert cells["check-97-line"].source == 'check("97.line", line)'
    test = cells["test-97-line"].source.splitlines()
    assert test[0].startswith("# Hidden tests") and test[1] == "### BEGIN HIDDEN TESTS"
    call = f'marks("97.line", line, variant={_assignment.PUBLIC_VARIANT}, points=3)'
    assert test[-2:] == [call, "### END HIDDEN TESTS"]
    assert cells["written-97-why"].source.startswith("The model says")
    assert cells["answer-97-line"].metadata.circuitbook == {
        "kind": "code", "name": "97.line", "points": 3, "minutes": 10, "difficulty": 2,
    }  # fmt: skip


def test_everybody_sees_what_the_exercises_are_worth(asked):
    for edition in ("source", "release", "solutions"):
        sheet = opened(asked, edition).cells[1].source
        assert "| `97.line` | in code | 3 | 10 | 2 |" in sheet
        assert "| `97.why` | in words | 2 | 5 | 3 |" in sheet and "| all | | 6 | 17 | |" in sheet


def test_the_solutions_hold_every_answer_and_no_hidden_test(asked):
    book = opened(asked, "solutions")
    for secret in ("the_secret", "another secret", "a third secret", "The model says"):
        assert secret in joined(book)
    text = json.dumps(book)
    assert "nbgrader" not in text and str(_assignment.PUBLIC_VARIANT) not in text
    assert "**Written exercise 97.why** · 2 points · about 5 minutes\n\nWhy" in joined(book)


# ---- students -----------------------------------------------------------------------------------


def test_a_release_holds_nothing_that_students_must_not_see(asked):
    text = json.dumps(opened(asked, "release"), ensure_ascii=False)
    for secret in (*SECRETS, str(_assignment.PUBLIC_VARIANT), "jupytext"):
        assert secret not in text, secret
    cells = named(opened(asked, "release"))
    assert cells["answer-97-text"].source.startswith("%%time\n")  # a magic does not hide an answer
    assert cells["answer-97-text"].source.endswith(
        "# YOUR CODE HERE\n    raise NotImplementedError()"
    )
    assert cells["test-97-line"].source.count("\n") == 0
    assert cells["written-97-why"].source == "YOUR ANSWER HERE"
    assert "Why is it **straight**?" in cells["question-97-why"].source


@pytest.mark.parametrize("lesson", COURSE, ids=[x.name for x in COURSE])
def test_no_release_of_the_course_leaks(lesson):
    drawn = ("alt", b"", {})
    source = _assignment.source(lesson, lambda *a: drawn)
    book = _assignment.release(source)
    text, code = json.dumps(book, ensure_ascii=False), joined(book)
    for word in ("BEGIN ", "# solution", "marks(", str(_assignment.PUBLIC_VARIANT), "jupytext"):
        assert word not in text, word
    for cell in lesson.cells:
        if "solution" in cell.tags:
            assert cell.source not in code
    after = [c.source.partition("### BEGIN SOLUTION\n")[2] for c in source.cells]
    answers = [text.partition("### END")[0].rstrip() for text in after if text]
    assert len(answers) == len(lesson.exercises)
    assert not [a for a in answers if a in code]
    assert all(not c.get("outputs") for c in book.cells)


def stops(book, *calls):
    """The ids of cells that call an exercise: its check, and what draws its answer."""
    return [c.id for c in book.cells
            if c.source.startswith(calls) or "draw" in c.metadata.get("tags", ())]  # fmt: skip


def test_a_release_runs_to_its_end_and_stops_only_where_an_answer_is_missing(asked):
    book = opened(asked, "release")
    expected = stops(book, "check(")
    assert len(expected) == 3 and _notebook.run_student(book) == expected


def test_a_students_copy_may_stop_at_nothing_else(asked):
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
    with pytest.raises(Exception, match="ZeroDivisionError"):
        _notebook.run_student(book)


@pytest.mark.weights
@pytest.mark.text
@pytest.mark.slow
@pytest.mark.parametrize("name", ["06_induction", "08_superposition"])
def test_a_release_of_the_course_stops_only_at_its_exercises(name, monkeypatch):
    for switch in ("CIRCUITBOOK_ROOT", "QUICK", "MODELS", "RECOMPUTE"):
        monkeypatch.delenv(switch, raising=False)
    lesson = next(x for x in COURSE if x.name == name)
    book = _assignment.release(_assignment.source(lesson, lambda *a: ("alt", b"", {})))
    calls = [f'check("{e.name}", {e.function})' for e in lesson.exercises]
    expected = stops(book, *calls)
    assert len(expected) == len(calls) + 1
    assert _notebook.run_student(book) == expected


@pytest.mark.parametrize("paired", [False, True])
def test_opening_a_release_with_jupytext_brings_no_answer_back(asked, tmp_path, paired):
    book = opened(asked, "release")
    if paired:  # what it would do if we left jupytext's entry in: a control of this test
        book.metadata["jupytext"] = {"formats": "ipynb,../scripts//py:percent"}
    path = tmp_path / "release" / f"{NAME}.ipynb"
    for folder in ("release", "scripts"):
        (tmp_path / folder).mkdir()
    path.write_text(_notebook.text(book))
    (tmp_path / "scripts" / f"{NAME}.py").write_text(TEXT)
    with contextlib.suppress(ValueError, SystemExit):
        jupytext.cli.jupytext(["--sync", str(path)])
    assert ("the_secret" in path.read_text()) == paired
    assert list(path.parent.iterdir()) == [path]


# ---- nbgrader -----------------------------------------------------------------------------------


def generated(root, sources):
    """What `nbgrader generate_assignment` with no settings of ours makes of these notebooks."""
    config = Config()
    config.CourseDirectory.root = str(root)
    api = NbGraderAPI(CourseDirectory(config=config), config=config)
    for name, book in sources.items():
        folder = root / "source" / name
        folder.mkdir(parents=True)
        nbformat.write(book, folder / f"{name}.ipynb")
        done = api.generate_assignment(name)
        assert done["success"], done
        yield name, nbformat.read(root / "release" / name / f"{name}.ipynb", as_version=4)


@pytest.fixture
def alembic(monkeypatch):
    """nbgrader starts alembic by name, also where the environment was not activated."""
    here = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", here, prepend=":")


def test_nbgrader_makes_the_same_release_cell_for_cell(asked, alembic, tmp_path):
    target = ("A picture.", base64.b64encode(b"png"), {"target": "a", "picture": "b"})
    sources = {x.name: _assignment.source(x, lambda *a: target) for x in COURSE}
    sources[NAME] = opened(asked, "source")
    for name, theirs in generated(tmp_path / "course", sources):
        ours = _assignment.release(sources[name])
        assert [c.id for c in ours.cells] == [c.id for c in theirs.cells]
        for mine, its in zip(ours.cells, theirs.cells, strict=True):
            assert mine == its, mine.id
        # The only difference: what kind of notebook it says that it is.
        assert ours.metadata.circuitbook.pop("edition") == "release"
        assert theirs.metadata.circuitbook.pop("edition") == "source"
        assert ours.metadata == theirs.metadata


def test_a_checksum_is_nbgraders(asked):
    cells = named(opened(asked, "release"))
    for cell in cells.values():
        assert cell.metadata.nbgrader.checksum == compute_checksum(cell)
    assert len({c.metadata.nbgrader.checksum for c in cells.values()}) == len(cells)


# ---- pictures -----------------------------------------------------------------------------------


def picture(book):
    (found,) = [c for c in book.cells if c.get("attachments")]
    place = book.cells.index(found)
    (png,) = [base64.b64decode(d["image/png"]) for d in found.attachments.values()]
    return found, book.cells[place + 1], png


def test_what_an_answer_draws_is_shown_above_it(asked):
    for edition in ("release", "source", "solutions"):
        cell, after, png = picture(opened(asked, edition))
        assert "exercise: 97.line" in after.source
        assert "![Four bars that rise (by one) to 3.](attachment:97_line.png)" in cell.source
        assert imread(io.BytesIO(png)).std() > 0.05


def test_a_picture_is_drawn_again_only_when_its_code_changed(asked, monkeypatch, capsys):
    path = asked / "assignments" / "release" / f"{NAME}.ipynb"
    before, script = path.read_text(), asked / "scripts" / f"{NAME}.py"
    monkeypatch.setattr(_target, "draw", lambda *a: pytest.fail("it was drawn again"))
    script.write_text(TEXT.replace("Why is it", "Tell us why it is"))
    assert derive.main(["assignments"]) == 0 and path.read_text() != before
    monkeypatch.undo()
    monkeypatch.setenv("CIRCUITBOOK_ROOT", str(asked))
    first = picture(opened(asked, "release"))[2]
    script.write_text(TEXT.replace("return 2 * x", "return 4 * x"))
    assert derive.main(["assignments"]) == 0
    assert "rise (by one) to 6." in joined(opened(asked, "release"))
    assert picture(opened(asked, "release"))[2] != first


def test_an_edited_picture_is_found_and_mended(asked, capsys):
    path = asked / "assignments" / "release" / f"{NAME}.ipynb"
    before = path.read_text()
    book = opened(asked, "release")
    picture(book)[0].attachments["97_line.png"]["image/png"] = base64.b64encode(b"mine").decode()
    path.write_text(_notebook.text(book))
    assert derive.main(["assignments", "--check"]) == 1
    assert f"release/{NAME}.ipynb" in capsys.readouterr().out
    assert derive.main(["assignments"]) == 0 and path.read_text() == before


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("    alt=f", "    alt=g, f=f", "drawing stopped with|draws with g"),
        ("plots.bars(", "plots_bars(", "draws with plots_bars"),
        ("plots.bars(\n", "x = plots.bars(\n", "the last line"),
        ("plots.bars(\n", "str(\n", "drawing stopped with TypeError"),
        ("line(4)", "line(-4)", "drawing stopped with IndexError"),
    ],
)
def test_a_drawing_that_cannot_be_drawn_is_refused(asked, capsys, old, new, words):
    text = TEXT.replace(old, new)
    (asked / "scripts" / f"{NAME}.py").write_text(text)
    assert text != TEXT and derive.main(["assignments"]) == 1
    assert re.search(words, capsys.readouterr().err)


@pytest.mark.parametrize("name", ["06_induction", "08_superposition"])
def test_the_courses_pictures_are_what_the_answers_draw(name, tmp_path):
    root = Path(__file__).resolve().parent.parent
    lesson = next(x for x in COURSE if x.name == name)
    kept = picture(nbformat.read(root / "assignments" / "release" / f"{name}.ipynb", 4))
    again = picture(_assignment.source(lesson, lambda *a: _target.target(tmp_path / "none", *a)))
    assert again[0].source == kept[0].source and same_picture(again[2], kept[2])


# ---- private variants ---------------------------------------------------------------------------


def test_a_teachers_own_variant_stays_out_of_the_repository(asked, tmp_path, capsys):
    before = {p: p.read_bytes() for p in (asked / "assignments").rglob("*.ipynb")}
    assert derive.main(["assignments", "--variant", "8765", "--to", str(tmp_path / "own")]) == 0
    book = nbformat.read(tmp_path / "own" / "source" / f"{NAME}.ipynb", as_version=4)
    assert "variant=8765" in joined(book) and str(_assignment.PUBLIC_VARIANT) not in joined(book)
    release = tmp_path / "own" / "release" / f"{NAME}.ipynb"
    assert release.read_bytes() == before[asked / "assignments" / "release" / f"{NAME}.ipynb"]
    assert not (tmp_path / "own" / "solutions").exists()
    assert {p: p.read_bytes() for p in (asked / "assignments").rglob("*.ipynb")} == before
