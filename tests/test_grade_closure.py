"""Unusual but honest notebooks: what an answer needs is found and runs as in the notebook."""

import textwrap
import time

import pytest
import torch
from nbformat.v4 import new_code_cell, new_notebook
from test_grade_collect import CHECK, DOUBLE, HEAD, PLAIN, RIGHT, SOURCE, collected, run

from circuitbook.grade import closure
from circuitbook.grade.collect import collect


def answered(text):
    """The answer in a notebook whose cells are parted by lines of `--`."""
    cells = [c.strip("\n") for c in textwrap.dedent(text).split("--\n")]
    answer, notes = collected(*cells)
    assert notes == []
    return answer


# ---- what changes an object without binding its name --------------------------------------------


@pytest.mark.parametrize(
    "cells",
    [
        "CFG = {}\n--\nCFG['p'] = 2",
        "CFG = {'p': 1}\nCFG['p'] += 1",
        "two = 2\nCFG = {}\nCFG['p'] = two",
        "CFG = {}\nfor k in 'p':\n    CFG[k] = 2",
        "CFG = {}\nif True:\n    CFG.update(p=2)",
        "CFG = {'p': 1}\nwith open('/dev/null') as f:\n    CFG['p'] = 2",
        "CFG = {'p': 2, 'q': 1}\ndel CFG['q']\nassert_it = 1/0",
        "CFG = {}\ndef fill(table, n):\n    table['p'] = n\nfill(CFG, 2)",
        "CFG = {}\ndef fill(table):\n    table.setdefault('p', 2)\nfill(CFG)",
        "def setup():\n    global CFG\n    CFG = {'p': 2}\nsetup()",
        "CFG = {'p': 1}\ndef up():\n    global CFG\n    CFG = {'p': CFG['p'] + 1}\n--\nup()",
        "CFG = {'p': 2}\nfor p in ['p']:\n    print(p)\nif not CFG:\n    CFG = {}",
    ],
)
def test_a_table_is_filled(cells):
    answer = answered(cells + "\n--\ndef double(x):\n    return CFG['p'] * x")
    assert run(answer)(3) == 6 and not any("left out" in n for n in answer.notes)


@pytest.mark.parametrize(
    "cells",
    [
        "P = []\nP.append(2)\n--\ndef double(x):\n    return P[0] * x",
        "class Cfg: pass\nCfg.p = 2\n--\ndef double(x):\n    return Cfg.p * x",
        "class Cfg: pass\nc = Cfg()\nsetattr(c, 'p', 2)\n--\ndef double(x):\n    return c.p * x",
        "import random\nP = [2, 2]\nrandom.shuffle(P)\n--\ndef double(x):\n    return P[1] * x",
        "import torch as t\nT = t.zeros(2)\nfor i in range(2): T[i] = i + 1\n--\n"
        "def double(x):\n    return T[1] * x",
        "import torch\nT = torch.zeros(2)\ntorch.nn.init.ones_(T)\n--\n"
        "def double(x):\n    return T.sum() * x",
        "import numpy as np\nM = np.zeros((1, 1))\nnp.fill_diagonal(M, 2)\n--\n"
        "def double(x):\n    return M[0, 0] * x",
        "def double(x):\n    return double.by * x\ndouble.by = 2",
        "def double(x):\n    return P[0] * x\n--\nP.append(2)\n--\nP = []\nP.append(2)",
    ],
)
def test_an_object_is_changed(cells):
    assert run(answered(cells))(3) == 6


def test_setters_of_modules_are_kept(monkeypatch):
    import sys

    seen = []
    monkeypatch.setattr(sys, "setrecursionlimit", seen.append)
    monkeypatch.setattr(torch, "set_default_dtype", seen.append)
    cells = [
        "import sys, torch as t",
        "sys.setrecursionlimit(5000)\nt.set_default_dtype(t.float64)",
    ]
    run(collected(*cells, RIGHT)[0])
    assert seen == [5000, torch.float64]


def test_a_value_is_read_as_it_was_at_that_place():
    answer = answered("""
        base = 2
        def make(n):
            return n * base
        table = [make(n) for n in range(5)]
        CFG = {'p': 0}
        half = CFG['p']
        CFG['p'] = 1/0 if half else 7
        --
        base = 50
        def double(x):
            return table[x] + half
    """)
    assert run(answer)(3) == 6


def test_a_function_that_was_kept_reads_what_is_there_when_it_is_called():
    answer = answered("""
        k = 1
        def double(x):
            return k * x
        kept = [double]
        k = 2
        def double(x):
            return kept[0](x)
    """)
    assert run(answer)(3) == 6


def test_loops_over_the_same_letter_do_not_pull_each_other_in():
    cells = "T = {}\nfor i in range(9):\n    print(1 / 0)\nfor i in range(5):\n    T[i] = 2 * i"
    assert run(answered(cells + "\n--\ndef double(x):\n    return T[x]"))(3) == 6


def test_what_only_shows_or_writes_stays_behind_and_what_may_have_mattered_is_told():
    answer = answered("""
        import os
        T = [2]
        print(T)
        T2 = []
        T2.append(1 / 0)
        os.replace(T, T)
        T.extend(nowhere)
        --
        def double(x):
            return T[0] * x
        --
        print(double(2))
        display(T)
    """)
    assert run(answer)(3) == 6
    assert [n for n in answer.notes if "left out" in n] == [
        "left out, of cell 1: os.replace(T, T)",
        "left out, of cell 1: T.extend(nowhere)",
    ]


# ---- display, earlier answers, stars ------------------------------------------------------------


def test_display_is_there_as_in_jupyter():
    answer = answered("def double(x):\n    display(x, clear=True)\n    return 2 * x")
    assert run(answer)(3) == 6 and answer.notes == [
        "the answer was found in another cell, number 1"
    ]
    own = "shown = []\ndef display(x):\n    shown.append(x)\n--\n"
    own += "def double(x):\n    display(x)\n    return 2 * shown[0]"
    assert run(answered(own))(3) == 6


@pytest.mark.parametrize(
    "wrapper",
    [
        "def double(*a):\n    return old(*a)",
        "double = lambda *a: old(*a)",
        "import functools\n@functools.wraps(old)\ndef double(*a):\n    return old(*a)",
        "def double(x, then=old):\n    return then(x)",
    ],
)
def test_a_wrapper_of_an_earlier_answer(wrapper):
    answer, _ = collected(HEAD + PLAIN, "old = double", HEAD + wrapper, STUB_LATER)
    assert run(answer)(3) == 6 and answer.notes == []
    answer, _ = collected(HEAD + PLAIN, "import functools\ndouble = functools.cache(double)")
    assert run(answer)(3) == 6


STUB_LATER = "def double(x):\n    raise NotImplementedError"


def test_an_earlier_answer_that_nothing_uses_is_not_run():
    answer, _ = collected(HEAD + "double = 1 / 0", RIGHT)
    assert run(answer)(3) == 6


def test_deleting_the_function_afterwards_takes_nothing_away():
    assert run(answered(PLAIN + "\n--\ndel double"))(3) == 6


@pytest.mark.parametrize("name", ["sum([x, x], 0)", "prod(tensor([2, x]))"])
def test_star_imports_of_installed_packages_are_kept_in_their_place(name):
    body = f"def double(x):\n    x = tensor(x) if False else x\n    return {name}"
    stars = "from torch import *\nfrom nowhere_at_all import *\nfrom builtins import sum\n"
    assert run(answered(stars.replace("from nowhere_at_all import *\n", "") + body))(3) == 6
    dims = "def double(x):\n    return sum(torch.tensor([[x, x]]), dim=1)"
    first = "from builtins import sum\nimport torch\nfrom torch import *\n"
    assert run(answered(first + dims))(3) == 6


def test_a_star_import_of_nowhere_matters_only_where_it_is_needed():
    assert run(answered("from nowhere_at_all import *\n" + PLAIN))(3) == 6
    needed = answered("from nowhere_at_all import *\ndef double(x):\n    return twice(x)")
    with pytest.raises(ModuleNotFoundError, match="nowhere_at_all"):
        run(needed)


# ---- magics, NUL, the course's own functions ----------------------------------------------------


@pytest.mark.parametrize(
    ("before", "text"),
    [
        ("%matplotlib inline\nx = '''\n%keep\n'''", "\n%keep\n"),
        ("x = '''it's\n!keep # \"'''\n!ls", "it's\n!keep # \"'''"[:-3]),
        ('!pip install "one\nx = """\n%keep\n"""', "\n%keep\n"),
        ("!pip install \\\n  one \\\n  two\nx = 'a\\\n%keep'", "a%keep"),
        ("!ls {\n# it's ''' a comment (\nx = ('a'\n'b'\n)", "ab"),
        ("%time y = 1\nx = (9\n% 5)", 4),
        ("?print\nx = f'{3}' + \"'''\"\n%time", "3'''"),
    ],
)
def test_only_a_line_that_starts_a_statement_is_a_magic(before, text):
    answer = answered(f"{before}\n--\ndef double(n):\n    return x")
    assert run(answer)(0) == text


def test_a_nul_is_taken_out():
    answer, notes = collected(RIGHT.replace("return", "# a\x00b\n    return"))
    assert run(answer)(3) == 6 and notes == []


def test_line_ends_of_any_system():
    text = RIGHT.replace("return", "é = 'é'; r = '''a\n'''\n    return")
    for end in ("\r\n", "\r"):
        assert run(collected(f"é = 1; times = 2; b = 'é'\n{text}".replace("\n", end))[0])(3) == 6


@pytest.mark.parametrize(
    "cell",
    [
        "from circuitbook import scan\ndef double(x):\n    return scan.copying_score(x)",
        "from circuitbook.scan import copying_score as c\ndef double(x):\n    return c(x)",
        "import circuitbook as cb\ndouble = lambda x: cb.scan.copying_score(x)",
        "from circuitbook import scan\ndef f(x):\n    return scan.copying_score(x)\ndouble = f",
    ],
)
def test_the_use_of_the_course_s_own_functions_is_told(cell):
    answer, _ = collected(HEAD + cell)
    assert answer.notes == ["it calls circuitbook.scan.copying_score"]
    ours = new_notebook(cells=[*SOURCE.cells, new_code_cell(HEAD + cell)])
    book = new_notebook(cells=[new_code_cell(HEAD + cell), new_code_cell(CHECK)])
    told = collect(book, ours, [DOUBLE])[0]["97.double"].notes
    assert not any("it calls" in n for n in told), "the source's answer calls it as well"


# ---- notebooks made to be slow ------------------------------------------------------------------


@pytest.mark.parametrize(
    "cell",
    [
        "".join(f"v{n} = v{n + 1}\n" for n in range(2000)) + "double = v0\nv2000 = 5",
        "x = 1\n" + "x += 1\n" * 3000 + "def double(n):\n    return x",
        "T = []\n" + "T.append(T)\n" * 3000 + "def double(n):\n    return T",
        "%a\nx = (" + "'''\\" * 20_000 + "\n",
        '%a\nx = ("' + '\\"' * 100_000 + "\n",
    ],
)
def test_no_notebook_keeps_the_collector_busy(cell):
    start = time.process_time()
    answer, _ = collected(cell)
    assert time.process_time() - start < 20 and not answer.why.startswith("it hangs")


def test_a_tangle_is_given_up_with_a_word(monkeypatch):
    monkeypatch.setattr(closure, "_MAX_STEPS", 200)
    calls = "+".join(f"f{k}()" for k in range(20))
    cells = [f"def f{n}(): return {calls}" for n in range(20)]
    cells += [HEAD + "def double(x):\n    return f0()"]
    answer, _ = collected(*cells)
    assert answer.code == "" and answer.why == "it hangs together with too many other statements"
    assert answer.notes == [answer.why] and answer.found == cells[-1]
