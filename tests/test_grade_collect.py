"""Answers are found by name, whatever a student did to the notebook, with what they need."""

import grade_books
import pytest
from nbformat import from_dict
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from circuitbook.grade import source as sources
from circuitbook.grade.collect import collect
from circuitbook.grade.source import Exercise, GradeError, exercises, helpers, variant
from circuitbook.grade.statements import Unreadable, statements

HEAD = "# exercise: 97.double points=2 minutes=5 difficulty=1\n"
STUB = HEAD + 'def double(x):\n    """Twice x."""\n    raise NotImplementedError("97.double")'
RIGHT = HEAD + "def double(x):\n    return times * x"
DOUBLE = Exercise("97.double", "double", 2.0)
MARKS = 'marks("97.double", double, variant=5)'
HIDDEN = f"print(1)\n### BEGIN HIDDEN TESTS\n{MARKS}\n### END HIDDEN TESTS"
PLAIN = "def double(x):\n    return 2 * x"


def _test_cell(text):
    meta = {"nbgrader": {"grade_id": "test-97-double", "grade": True}}
    return new_code_cell(text, metadata=meta)


SOURCE = new_notebook(
    cells=[
        new_code_cell("import math\nfrom math import floor, ceil\ntimes = 2"),
        new_code_cell("def helper(x):\n    return floor(x) + lesson_only\nlesson_only = 100"),
        new_code_cell(RIGHT),  # its first line says what it is; tags may be lost
        new_code_cell('check("97.double", double)'),
        _test_cell(HIDDEN),
        new_code_cell("secret = 1", metadata={"tags": ["solution"]}),
    ]
)
CHECK = 'check("97.double", double)'


def collected(*cells, source=SOURCE, whole=True):
    """(answer, notes on the notebook) for code cells, with the test cells added if `whole`."""
    book = new_notebook(cells=[new_code_cell(c) for c in cells])
    if whole:
        book.cells += [new_code_cell(CHECK), _test_cell("print(1)")]
    answers, notes = collect(book, source, [DOUBLE])
    return answers["97.double"], notes


def run(answer):
    """The collected function, made in an empty module."""
    space = {"__name__": "answer"}
    exec(compile(answer.code, "answer", "exec", dont_inherit=True), space)
    return space["double"]


# ---- what students do ---------------------------------------------------------------------------


def test_an_answer_in_its_place_needs_no_note():
    answer, notes = collected("import math\ntimes = 2", RIGHT)
    assert run(answer)(4) == 8 and answer.notes == [] and notes == []


def test_what_the_student_lacks_comes_from_the_lesson():
    answer, _ = collected(HEAD + "def double(x):\n    return helper(x) + ceil(0.5)")
    assert run(answer)(1.5) == 102
    assert "import math" not in answer.code and "floor" in answer.code, "only what is needed"


def test_no_answer_comes_from_the_lesson():
    answer, _ = collected("def other(x):\n    return double(x)")
    assert answer.code == ""
    answer, _ = collected(HEAD + "def double(x):\n    return secret * x")
    with pytest.raises(NameError):
        run(answer)(1)


@pytest.mark.parametrize("body", ["raise NotImplementedError", "pass", "...", '"""Words."""'])
def test_a_stub_is_no_answer(body):
    answer, _ = collected(HEAD + f"def double(x):\n    {body}")
    assert answer.code == "" and answer.notes == []


def test_a_deleted_answer_is_told():
    answer, _ = collected("x = 1")
    assert answer.code == "" and "deleted" in answer.notes[0]


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (HEAD + "def double(x):\n    return 2 * * x", "your cell does not parse: line 3"),
        ("def double(x):\n    return (2 * x", "your cell does not parse: line 2"),
        (HEAD + PLAIN.replace("double", "my_double"), "your cell defines my_double, not double"),
        (HEAD + "print(2 * 2)", "your cell defines no function double"),
    ],
)
def test_a_cell_that_holds_no_answer_is_shown_with_the_reason(cell, words):
    answer, _ = collected("x = 1", cell)
    assert answer.code == "" and answer.found == cell and answer.why.startswith(words)
    assert answer.notes == [answer.why]


def test_the_cell_of_an_answer_is_shown_as_it_stands():
    assert collected("x = 1", RIGHT)[0].found == RIGHT
    assert collected(STUB)[0].found == STUB and collected(STUB)[0].why == ""
    assert collected("x = 1")[0].found is None
    broken, _ = collected(STUB + " (", PLAIN)
    assert broken.found == PLAIN and run(broken)(2) == 4 and broken.why == ""


@pytest.mark.parametrize(("cells", "number"), [([STUB, PLAIN], 2), ([PLAIN, STUB], 1)])
def test_a_stub_loses_against_an_answer_before_or_after_it(cells, number):
    answer, _ = collected(*cells)
    assert run(answer)(2) == 4
    assert answer.notes == [f"the answer was found in another cell, number {number}"]


def test_of_two_answers_the_last_is_taken():
    answer, _ = collected(*(HEAD + f"def double(x):\n    return {n}" for n in (3, 4)))
    assert run(answer)(1) == 4 and answer.notes == ["2 definitions; the last was taken"]


def test_a_copied_answer_is_told():
    answer, _ = collected(RIGHT, RIGHT)
    assert run(answer)(1) == 2 and answer.notes == ["the answer stands in 2 cells"]


def test_an_answer_split_over_cells():
    cells = ["def half(x):\n    return third(x) / 2", RIGHT.replace("times * x", "4 * half(x)")]
    cells += [
        "def third(x):\n    return unit * x",
        "unit = 1",
        "unit += 1",
        "unit += 1",
        "unit *= 2",
    ]
    assert run(collected(*cells)[0])(1) == 12


def test_a_loop_that_changes_a_name_comes_after_its_start():
    cells = ["total = 5", "for i in range(3):\n    total += i"]
    answer, _ = collected(*cells, HEAD + "def double(x):\n    return total + i")
    assert run(answer)(0) == 10


def test_reordered_cells_run_in_the_order_of_need():
    cells = ["table = [make(n) for n in range(3)]", "def make(n):\n    return n * base", "base = 7"]
    assert run(collected(*cells, HEAD + "def double(x):\n    return table[x]")[0])(2) == 14


def test_functions_that_call_each_other():
    answer, _ = collected(
        HEAD + "def double(x):\n    return 0 if x == 0 else 2 + minus(x)",
        "def minus(x):\n    return double(x - 1)",
    )
    assert run(answer)(3) == 6


def test_side_effects_stay_behind():
    answer, _ = collected("print('hello')\nopen('/etc/passwd')\nz = 1/0", RIGHT, "times = 2")
    assert run(answer)(1) == 2 and "open" not in answer.code


@pytest.mark.parametrize(
    "cell",
    [
        "double = lambda x: 2 * x",
        "twice = lambda x: 2 * x\ndouble = twice",
        "from functools import partial\nfrom operator import mul\ndouble = partial(mul, 2)",
        "def double(*args, k=2, **more):\n    return k * args[0]",
        "import functools\n@functools.cache\n@functools.lru_cache(\n    maxsize=None)\n" + PLAIN,
        "class Twice:\n    def __call__(self, x):\n        return 2 * x\ndouble = Twice()",
        "if True:\n    def double(x):\n        return 2 * x",
        "try:\n    import nowhere\nexcept ImportError:\n    nowhere = None\n"
        "def double(x):\n    return 2 * x if nowhere is None else 0",
        "from math import *\ndef double(x):\n    return trunc(2.5) * x",
        "from __future__ import annotations\ndef double(x: Unknown) -> Strange:\n    return 2 * x",
        "count = 0\ndef double(x):\n    global count\n    count += 1\n    return (count + 1) * x",
        "a = 1; b = 1; double = lambda x: (a + b) * x",
        "def double(x):\n    def inner():\n        return times\n    return inner() * x",
        "(double := lambda x: 2 * x)",
        "def double(x, k=times):\n    return k * x",
    ],
)
def test_ways_to_write_it(cell):
    answer, notes = collected(HEAD + cell)
    assert run(answer)(3) == 6 and notes == []


def test_local_names_do_not_pull_in_cells():
    answer, _ = collected("r = 1/0\nx = 1/0", HEAD + "def double(x):\n    r = 2\n    return r * x")
    assert run(answer)(1) == 2 and "1/0" not in answer.code


# ---- magics and cells that cannot be read -------------------------------------------------------


@pytest.mark.parametrize(
    "magic", ["%matplotlib inline", "!pip install x", "%%time", "?print", "print?", "files = !ls",
              "a = %pwd", "  %time x = 1", "%%capture out"],
)  # fmt: skip
def test_magics_are_left_out(magic):
    cell = f"{magic}\n{RIGHT}" if not magic.startswith(" ") else f"if True:\n{magic}\n{RIGHT}"
    answer, notes = collected(cell)
    assert run(answer)(2) == 4 and notes == []


def test_a_percent_sign_in_python_is_no_magic():
    answer, _ = collected(HEAD + "def double(x):\n    return (2 * x\n% 100)")
    assert run(answer)(51) == 2


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("def broken(:\n  pass", "invalid syntax"),
        ("%%bash\nrm -rf {", "Python cannot read it"),
        ("(" * 10_000, "Python cannot read it"),
        ("x = '" + "a" * 600_000 + "'", "characters"),
        ("return 5", "'return' outside function"),
    ],
)
def test_a_cell_that_cannot_be_read_is_skipped_with_a_note(cell, words):
    answer, notes = collected(cell, RIGHT)
    assert run(answer)(2) == 4
    assert len(notes) == 1 and notes[0].startswith("cell 1 was skipped") and words in notes[0]


def test_cells_of_any_shape():
    lines = {"cell_type": "code", "source": ["def double(x):\n", "    return 9"]}
    book = from_dict({"cells": [new_markdown_cell(PLAIN), {"cell_type": "raw"}, {}, lines]})
    answers, _ = collect(book, SOURCE, [DOUBLE])
    assert run(answers["97.double"])(1) == 9
    assert collect(from_dict({}), SOURCE, [DOUBLE])[0]["97.double"].code == ""


def test_statements_refuse_what_python_refuses():
    with pytest.raises(Unreadable, match="line 2"):
        statements("x = 1\ny = = 2", 1)


# ---- test cells ---------------------------------------------------------------------------------


def test_edited_and_deleted_tests_are_told_and_change_nothing():
    edited = new_notebook(cells=[new_code_cell(RIGHT), new_code_cell("check = print"),
                                 _test_cell("print('full marks')")])  # fmt: skip
    answers, _ = collect(edited, SOURCE, [DOUBLE])
    assert len(answers["97.double"].notes) == 2
    assert all("edited or deleted" in n for n in answers["97.double"].notes)
    assert run(answers["97.double"])(2) == 4
    assert len(collected(RIGHT, whole=False)[0].notes) == 2


def test_the_hidden_part_may_be_there_or_not():
    book = new_notebook(cells=[new_code_cell(RIGHT), new_code_cell(CHECK), _test_cell(HIDDEN)])
    assert collect(book, SOURCE, [DOUBLE])[0]["97.double"].notes == []


# ---- the source ---------------------------------------------------------------------------------


def test_the_source_tells_exercises_points_and_variant():
    assert exercises(SOURCE) == [DOUBLE] and variant(SOURCE) == 5
    assert all("double" not in c and "secret" not in c for c in helpers(SOURCE)[:2])
    assert not any("secret" in c or "times * x" in c for c in helpers(SOURCE))


def test_a_source_without_points_or_variant_says_what_to_do():
    bare = new_notebook(cells=[new_code_cell("# exercise: 97.double minutes=2\n")])
    with pytest.raises(GradeError, match="points=N"):
        exercises(bare)
    with pytest.raises(GradeError, match="--variant N"):
        variant(bare)
    twice = new_notebook(cells=[new_code_cell(RIGHT), new_code_cell(RIGHT)])
    with pytest.raises(GradeError, match="twice"):
        exercises(twice)


@pytest.mark.parametrize("chapter", ["02", "10"])
def test_a_real_release_and_its_source_agree(chapter):
    source = grade_books.source(chapter)
    wanted = sources.exercises(source)
    answers, notes = collect(grade_books.answered(chapter), source, wanted)
    assert notes == [] and len(wanted) >= 4
    assert all(a.code and a.notes == [] for a in answers.values())
    untouched, notes = collect(grade_books.release(chapter), source, wanted)
    assert notes == [] and all(a.code == "" and a.notes == [] for a in untouched.values())
