"""The lesson's own rules, the cutting out of answers, and the taught modules."""

import sys

import _taught
import derive
import pytest
from _lesson import LessonError, lessons, read
from _strip import BEGIN, END, clear, has_marker, mark

# ---- answers ------------------------------------------------------------------------------------

STOP = "raise NotImplementedError()"
CASES = {
    "a function": ("def f(x):\n    # solution\n    return x\n", f"def f(x):\n    {STOP}\n"),
    "code after it stays": (
        "def f(x):\n    a = 1\n    # solution\n    b = 2\n    return a + b\n\n\nkeep = 1",
        f"def f(x):\n    a = 1\n    {STOP}\n\n\nkeep = 1",
    ),
    "a cell with magics": (
        "%%time\n!ls\ndef f(x):\n    # solution\n    return x",
        f"%%time\n!ls\ndef f(x):\n    {STOP}",
    ),
    "a nested function": (
        "def f(x):\n    def g(y):\n        # solution\n        return y\n    return g(x)",
        f"def f(x):\n    def g(y):\n        {STOP}\n    return g(x)",
    ),
    "inside an if, the else stays": (
        "def f(x):\n    if x:\n        # solution\n        return 1\n    else:\n        return 2",
        f"def f(x):\n    if x:\n        {STOP}\n    else:\n        return 2",
    ),
    "a text that reaches to the margin": (
        'def f(x):\n    # solution\n    a = """\nleft\n# not here\n"""\n    return a\nkeep = 1',
        f"def f(x):\n    {STOP}\nkeep = 1",
    ),
    "brackets that reach to the margin": (
        "def f(x):\n    # solution\n    return (\nx\n)\nkeep = 1",
        f"def f(x):\n    {STOP}\nkeep = 1",
    ),
    "comments go with the block, those outside stay": (
        "def f(x):\n    # solution\n    # in\n    return x\n    # end\n\n# outer\nkeep = 1",
        f"def f(x):\n    {STOP}\n\n# outer\nkeep = 1",
    ),
    "two answers": (
        "def f(x):\n    # solution\n    return x\ndef g(x):\n    # solution\n    return x",
        f"def f(x):\n    {STOP}\ndef g(x):\n    {STOP}",
    ),
    "at the margin": ("a = 1\n# solution\nb = 2\nc = 3", f"a = 1\n{STOP}"),
    "deeper code in the answer": (
        "def f(x):\n    # solution\n    for i in x:\n        if i:\n            i\n    return x\n",
        f"def f(x):\n    {STOP}\n",
    ),
}
NO_MARKERS = [
    'x = """\n# solution\n"""',
    "x = '# solution'",
    "x = 1  # solution",
    "# solutions\nx = 1",
    "def f():\n    # the solution\n    return 1",
]


@pytest.mark.parametrize("case", CASES)
def test_answers_are_cut_out_exactly(case):
    source, expected = CASES[case]
    marked = mark(source)
    assert clear(marked, STOP) == expected
    assert has_marker(source) and not has_marker(marked)
    kept = [s for s in marked.split("\n") if s.strip() not in (BEGIN, END)]
    assert kept == [s for s in source.split("\n") if s != "# solution".rjust(len(s))]


@pytest.mark.parametrize("source", NO_MARKERS)
def test_what_is_no_marker(source):
    assert not has_marker(source)
    assert clear(mark(source)) == source


def test_what_students_get_in_place_of_an_answer():
    source = "def f(x):\n    # solution\n    return x\n\n\nkeep = 1"
    assert mark(source) == (
        "def f(x):\n    ### BEGIN SOLUTION\n    return x\n    ### END SOLUTION\n\n\nkeep = 1"
    )
    stub = "    # YOUR CODE HERE\n    raise NotImplementedError()"
    assert clear(mark(source)) == f"def f(x):\n{stub}\n\n\nkeep = 1"
    hidden = "x = 1\n### BEGIN HIDDEN TESTS\nsecret\n### END HIDDEN TESTS\ny = 2"
    assert clear(hidden) == "x = 1\ny = 2"


# ---- rules --------------------------------------------------------------------------------------

HEAD = "# %% [markdown]\n# # 97 · Rules\n# Series: Part 1 · Reading: 5 minutes\n\n"
EXERCISE = (
    '# %% tags=["exercise"]\n# exercise: 97.f points=1 minutes=2 difficulty=3\n'
    "def f(x):\n    # solution\n    return x\n\n"
)
CHECK = '# %%\ncheck("97.f", f)\n\n'
DRAW = '# %% tags=["draw"]\nplots.bars(f(2))\n\n'
LINE = "<!-- written: 97.why points=2 minutes=5 difficulty=2 -->"
ASK = f'# %% [markdown] tags=["written", "core"]\n# {LINE}\n# Why?\n\n'
MODEL = '# %% [markdown] tags=["solution"]\n# Because.\n\n'


def lesson(project, text, name="97_rules"):
    path = project / "scripts" / f"{name}.py"
    path.write_text(text)
    return read(path)


def test_a_good_lesson_is_read(project):
    got = lesson(project, HEAD + EXERCISE + CHECK)
    assert (got.title, got.number, got.head) == (
        "Rules", "97", {"Series": "Part 1", "Reading": "5 minutes"},
    )  # fmt: skip
    assert [e.name for e in got.exercises] == ["97.f"] and got.exercises[0].points == 1
    assert not got.measures and not got.written


def test_questions_and_drawings_are_read(project):
    got = lesson(project, HEAD + EXERCISE + CHECK + DRAW + ASK + MODEL)
    assert [(q.name, q.points, q.minutes, q.difficulty) for q in got.written] == [
        ("97.why", 2, 5, 2)
    ]
    assert [e.name for e in got.exercises] == ["97.f"]  # the two kinds are counted apart
    assert "plots.bars" in got.drawing(got.exercises[0]).source


BAD = {
    "no head": ("# %%\n1\n", "first cell"),
    "another number": (HEAD.replace("97 ·", "96 ·"), "first cell"),
    "no reading time": (HEAD.replace("Reading", "Writing"), "head needs Series"),
    "an unknown tag": (HEAD + '# %% tags=["slow"]\n1\n', "unknown tag slow"),
    "a syntax error": (HEAD + "# %%\n1 +\n", "cell 1"),
    "a marker outside": (HEAD + "# %%\ndef f():\n    # solution\n    return 1\n", "needs the tag"),
    "no marker": (HEAD + EXERCISE.replace("# solution", "pass") + CHECK, "# solution"),
    "no exercise line": (HEAD + EXERCISE.replace("points", "marks") + CHECK, "one line like"),
    "another chapter's": (HEAD + EXERCISE.replace("97.f", "96.f") + CHECK, "another chapter"),
    "another function": (HEAD + EXERCISE.replace("def f", "def g") + CHECK, "one function, f"),
    "no check": (HEAD + EXERCISE, "no cell checks 97.f"),
    "used elsewhere": (HEAD + EXERCISE + CHECK + "# %%\ny = f(2)\n", "uses f"),
    "more in the check": (HEAD + EXERCISE + CHECK.replace("f)", "f)\nz = 1"), "nothing else"),
    "twice": (HEAD + EXERCISE + EXERCISE + CHECK, "uses f|share a name"),
    "drawn by markdown": (HEAD + '# %% [markdown] tags=["draw"]\n# x\n', "code cells"),
    "drawn before its check": (HEAD + EXERCISE + DRAW + CHECK, "uses f"),
    "drawn later": (HEAD + EXERCISE + CHECK + "# %%\n1\n\n" + DRAW, "uses f"),
    "drawn twice": (HEAD + EXERCISE + CHECK + DRAW + DRAW, "uses f"),
    "a drawing of nothing": (HEAD + EXERCISE + CHECK + DRAW.replace("f(2)", "2"), "uses none"),
    "a drawing saved": (
        HEAD + EXERCISE + CHECK + DRAW.replace('"draw"', '"draw", "save"'),
        "draws the answer of one",
    ),
    "a question without its line": (HEAD + ASK.replace("written:", "asked:") + MODEL, "first line"),
    "a question's line without its tag": (HEAD + ASK.replace('"written", ', "") + MODEL, "tag wri"),
    "a line and no question": (HEAD + ASK.replace("# Why?\n", "") + MODEL, "comes the question"),
    "worth nothing": (HEAD + ASK.replace("points=2", "points=0") + MODEL, "first line"),
    "a question of another chapter": (HEAD + ASK.replace("97.", "96.") + MODEL, "another chapter"),
    "a question in code": (HEAD + '# %% tags=["written"]\n1\n\n' + MODEL, "markdown cell"),
    "no model answer": (HEAD + ASK, "model answer"),
    "a model answer that students see": (HEAD + ASK + MODEL.replace("solution", "core"), "model"),
    "a model answer in code": (HEAD + ASK + MODEL.replace(" [markdown]", ""), "model answer"),
    "a question that vanishes": (
        HEAD + ASK.replace('"core"', '"solution"') + MODEL,
        "is for students",
    ),
    "two questions in one": (HEAD + ASK[:-1] + f"# {LINE}\n\n" + MODEL, "one question"),
    "a question asked twice": (HEAD + ASK + MODEL + ASK + MODEL, "share a name"),
    "one name for two kinds": (
        HEAD + EXERCISE + CHECK + ASK.replace("97.why", "97.f") + MODEL,
        "share a name",
    ),
    "markdown saved": (HEAD + '# %% [markdown] tags=["save"]\n# x\n', "code cells"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_lesson_that_breaks_a_rule_is_refused(project, case):
    text, words = BAD[case]
    with pytest.raises(LessonError, match=words):
        lesson(project, text)


def test_names_and_numbers_of_lessons(project):
    with pytest.raises(LessonError, match="called like"):
        lesson(project, HEAD, "97_Rules")
    (project / "scripts" / "97_Rules.py").unlink()
    lesson(project, HEAD)
    lesson(project, HEAD, "97_twice")
    with pytest.raises(LessonError, match="number 97"):
        lessons(project / "scripts")


def test_a_broken_rule_is_an_exit_status(project, capsys):
    (project / "scripts" / "97_rules.py").write_text(HEAD + EXERCISE)
    assert derive.main(["taught"]) == 1
    assert "no cell checks" in capsys.readouterr().err
    assert derive.main(["taught", "96_none"]) == 1


# ---- taught -------------------------------------------------------------------------------------

IMPORTS = (
    "# %%\nimport os\nimport math as m\nfrom collections import OrderedDict, deque\n"
    "from circuitbook.claims import round6\nimport numpy as np\n\n"
)


def save(code):
    return f'# %% tags=["save"]\n{code}\n\n'


def test_a_taught_module_has_what_it_uses_and_no_more(project):
    first = (
        "# why\ndef f(x: np.ndarray, d=deque()):\n    y = m.sqrt(x)\n    return round6(g(y)) + K"
    )
    last = "import sys\nL = sys\n\n\n@m.wraps\ndef g(x):\n    return [len(i) for i in x]"
    code = save("K = 3") + save(first) + save(last)
    text, names = _taught.module(lesson(project, HEAD + IMPORTS + code))
    lines = text.splitlines()
    assert names == ["K", "f", "L", "g"]
    assert [line for line in lines if "import" in line] == [
        "import math as m",
        "import sys",
        "from collections import deque",
        "import numpy as np",
        "from circuitbook.claims import round6",
    ]
    assert "Generated from scripts/97_rules.py; do not edit." in text
    assert text.index("# why") < text.index("def f") and "@m.wraps\ndef g" in text
    compile(text, "ch97.py", "exec")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def f(x):\n    return x + cfg", "cfg"),
        ("f = 1\nf = 2", "twice"),
        ("print(1)", "nothing that runs"),
        ("for i in []:\n    pass", "nothing that runs"),
        ("%time\nx = 1", "plain Python"),
    ],
)
def test_what_cannot_be_taught(project, code, words):
    with pytest.raises(LessonError, match=words):
        _taught.module(lesson(project, HEAD + IMPORTS + save(code)))


def test_one_name_is_taught_once(project):
    with pytest.raises(LessonError, match="f is taught in ch01 and ch02"):
        _taught.package({"ch01": ["f"], "ch02": ["g", "f"]})


def test_taught_functions_are_imported_by_name(toy, monkeypatch):
    import circuitbook

    assert derive.main(["taught"]) == 0
    for name in [n for n in sys.modules if n.startswith("circuitbook.taught")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(circuitbook, "__path__", [str(toy / "src" / "circuitbook")])
    try:
        from circuitbook.taught import SCALE, ch98, eigenvalue_score

        assert SCALE == 2.0 and ch98.eigenvalue_score is eigenvalue_score
        assert eigenvalue_score([[2.0, 0.0], [0.0, 1.0]]) == 1.0
        with pytest.raises(ImportError):
            from circuitbook.taught import nothing  # noqa: F401  (not there)
    finally:
        for name in [n for n in sys.modules if n.startswith("circuitbook.taught")]:
            del sys.modules[name]
        vars(circuitbook).pop("taught", None)
