"""The code hash moves with meaning, and only with meaning."""

import importlib.util
import itertools

import pytest

from circuitbook import codehash
from circuitbook.codehash import code_hash, reached_modules, tree_text

LESSON = '''
from dataclasses import dataclass
import functools
import math
from math import floor as whole
from circuitbook import names

SCALE = 3
TABLE = {"a": [1, 2]}
unused = 1


def inner(x):
    """What it is."""
    return x * SCALE  # a comment


def outer(f):
    @functools.wraps(f)
    def wrapped(*args):
        return f(*args)
    return wrapped


@outer
def helper(x, y=SCALE):
    return inner(x) + y


def only_in_a_method(x):
    return x + 100


@dataclass
class Pair:
    left: int = 1

    @property
    def double(self):
        return inner(self.left)

    def more(self):
        return whole(only_in_a_method(self.left))


def exercise(x):
    raise NotImplementedError


def compute(cfg):
    """Doc."""
    unused = [helper(v) for v in TABLE["a"]]
    return {"x": math.sqrt(Pair().double), "y": unused}


def reads_names(cfg):
    return names.__doc__
'''

_count = itertools.count()


@pytest.fixture
def hashed(tmp_path):
    def hash_of(source, function="compute"):
        path = tmp_path / f"lesson_{next(_count)}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location("lesson_for_hash", path)
        module = importlib.util.module_from_spec(spec)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(__import__("sys").modules, "lesson_for_hash", module)
            spec.loader.exec_module(module)
            return code_hash(getattr(module, function))

    return hash_of


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# a comment", "# another"),
        ("What it is.", "Said otherwise."),
        ("    return x * SCALE", "\n    return (x\n            * SCALE)"),
        ("unused = 1", "unused = 2"),
        ("    raise NotImplementedError", "    return x + 1"),
        ('"""Doc."""', '"""Other doc."""'),
    ],
)
def test_what_does_not_count(hashed, old, new):
    assert old in LESSON
    assert hashed(LESSON) == hashed(LESSON.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x * SCALE", "x + SCALE"),  # a function reached through another
        ("SCALE = 3", "SCALE = 4"),  # a constant
        ("[1, 2]", "[1, 3]"),  # a constant inside a dict
        ("return f(*args)", "return f(*args) + 1"),  # a decorator
        ("left: int = 1", "left: int = 2"),  # a field of a class
        ("inner(self.left)", "inner(self.left + 1)"),  # a property of a class
        ("math.sqrt", "math.exp"),  # another package's function
        ("import floor as", "import ceil as"),  # the same, by a name of the lesson
        ("x + 100", "x + 101"),  # a function that only a method reaches
        ('{"x": math', '{"z": math'),  # compute itself
    ],
)
def test_what_counts(hashed, old, new):
    assert old in LESSON
    assert hashed(LESSON) != hashed(LESSON.replace(old, new, 1))


def test_a_default_value_counts(hashed):
    changed = LESSON.replace("y=SCALE", "y=OTHER").replace("SCALE = 3", "SCALE = 3\nOTHER = 7")
    more = changed.replace("OTHER = 7", "OTHER = 8")
    assert hashed(changed) != hashed(more)


def test_a_module_of_ours_counts_with_what_it_imports(hashed, tmp_path, monkeypatch):
    files = {"circuitbook.names": tmp_path / "names.py", "circuitbook.deep": tmp_path / "deep.py"}
    files["circuitbook.names"].write_text('"""Doc."""\nfrom circuitbook import deep, results\n')
    files["circuitbook.deep"].write_text("A = 1\n")
    real = codehash.module_file
    monkeypatch.setattr(codehash, "module_file", lambda name: files.get(name) or real(name))
    assert reached_modules(["circuitbook.names"]) == ["circuitbook.deep", "circuitbook.names"]
    first = hashed(LESSON, "reads_names")
    files["circuitbook.names"].write_text("from circuitbook import deep, results  # same\n")
    assert hashed(LESSON, "reads_names") == first
    files["circuitbook.deep"].write_text("A = 2\n")
    assert hashed(LESSON, "reads_names") != first


def test_a_class_in_a_notebook_is_found(monkeypatch):
    import __main__

    monkeypatch.setattr(__main__, "In", ["", "class Config:\n    n = 1", "%%time"], raising=False)
    namespace = {"__name__": "__main__"}
    exec("class Config:\n    n = 1", namespace)
    assert "class Config" in codehash._source(namespace["Config"])
    with pytest.raises(OSError, match="Define it with def or class"):
        exec("class Lost:\n    n = 1", namespace)
        codehash._source(namespace["Lost"])


def test_tree_text_ignores_layout_only():
    assert tree_text('def f(a):\n    "doc"\n    return a') == tree_text(
        "def f( a ):  # c\n  return a"
    )
    assert tree_text("f(a, b)") != tree_text("f(b, a)")
    assert tree_text("x = 1") != tree_text("x = 1.0")
