"""An answer is right when it obeys the laws, not when it equals the solution's code.

A checker is a generator of laws, kept in circuitbook/checks/chNN.py:

    @checker("02.copying_score")
    def _(fn):
        yield "a head that writes back what it reads scores one", lambda: near(fn(eye, eye), 1.0)
        yield "twice the head, the same score", lambda: near(fn(v, 2 * o), fn(v, o)), "Divide by …"

Each item is (sentence, test[, hint]). The generator never calls `fn`; only the tests do, so that
the laws can be listed and counted without an answer, and an error inside the learner's function can
be told in words. Sentences and hints are fixed words: they never show an expected value or a draw.

Graded work is checked by the same laws on other draws: `with variant(number): laws(name, fn)`.

`fn` may stand in for a function in another process. So laws hand it, and take from it, nothing but
None, bool, int, float, complex, str, lists, tuples, dicts, sets, torch tensors (plain ones: no
graph, no subclass), numpy arrays, torch generators, functions, `circuitbook.model.Transformer`, and
functools.partial of a function in circuitbook.checks.maps, which is rebuilt there because learners
differentiate it. What fn changes in its arguments is not changed here, but for generators: a law
that forbids it uses `untouched`. Errors of the stand-in itself are `Stopped`; a missing answer is
NotImplementedError.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from circuitbook.checks.draws import current, draw, numpy_generator, torch_generator, variant

__all__ = [
    "Law", "Stopped", "check", "checker", "count", "draw", "laws", "laws_of", "listed",
    "names", "near", "numpy_generator", "torch_generator", "untouched", "variant",
]  # fmt: skip

NO_ANSWER = "there is no answer yet"

_checkers: dict[str, Callable] = {}


def checker(name: str) -> Callable[[Callable], Callable]:
    """Register a generator of laws as the checker of exercise `name`, e.g. "02.copying_score"."""

    def register(laws: Callable) -> Callable:
        known = _checkers.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (
            laws.__module__,
            laws.__qualname__,
        ):
            raise ValueError(f"two checkers are called {name!r}")
        _checkers[name] = laws
        return laws

    return register


def laws_of(name: str) -> Callable:
    """The generator of laws of exercise `name`: a function of the answer."""
    chapter = name.partition(".")[0]
    module = f"circuitbook.checks.ch{chapter}"
    if name not in _checkers and chapter.isdigit() and importlib.util.find_spec(module):
        importlib.import_module(module)
    if name not in _checkers:
        raise KeyError(f"there is no exercise {name!r}; known in its chapter: {names(chapter)}")
    return _checkers[name]


def names(chapter: str) -> list[str]:
    """The names of all registered exercises of a chapter, e.g. names("02")."""
    module = f"circuitbook.checks.ch{chapter}"
    if importlib.util.find_spec(module):
        importlib.import_module(module)
    return sorted(n for n in _checkers if n.partition(".")[0] == chapter)


def near(a: Any, b: Any, tol: float | int = 1e-6) -> bool:
    """True when a and b have one shape and |a - b| <= tol everywhere; NaN is never near.

    a, b: numbers, nested lists, numpy arrays or torch tensors.
    """
    a, b = (x.tolist() if hasattr(x, "tolist") else x for x in (a, b))
    if isinstance(b, list | tuple):
        same = isinstance(a, list | tuple) and len(a) == len(b)
        return same and all(near(x, y, tol) for x, y in zip(a, b, strict=True))
    if isinstance(a, list | tuple) or not (_is_number(a) and _is_number(b)):
        return False
    return bool(abs(a - b) <= tol)  # false for NaN


def untouched(fn: Callable | None, test: Callable[[], Any]) -> Callable[[], bool]:
    """The test of a law that says "… is left as it was": fn came back, and `test` holds.

    A function in another process changes nothing here; its stand-in says whether a call `changed`
    its arguments there.
    """

    def holds() -> bool:
        left = bool(test())
        return left and getattr(fn, "came_back", True) and not getattr(fn, "changed", False)

    return holds


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float | complex)


def check(name: str, fn: Callable) -> None:
    """Test the learner's `fn` by the laws of exercise `name`; print each law that it obeys.

    Errors: AssertionError in words a learner can use; NotImplementedError while there is no answer.
    """
    watched = _Watched(fn)
    laws = laws_of(name)(watched)
    passed = 0
    while True:
        sentence, ok, hint, problem = "it runs on a small case", False, [], None
        watched.forget()
        try:
            sentence, test, *hint = next(laws)
            ok = bool(test())
        except StopIteration:
            break
        except Exception as error:  # whatever a learner's code does becomes one readable line
            problem = error
        # Raised outside the except block: a chained traceback would show the checker's own numbers.
        if isinstance(problem, NotImplementedError):
            raise NotImplementedError(f"{name} has no answer yet")
        if not ok:
            words = [f"{name}: not yet. This should be true: {sentence}.", *hint]
            if told := _told(problem, watched):
                words.append(told[0].upper() + told[1:])
            raise AssertionError("\n".join(words))
        print(f"✓ {sentence}")
        passed += 1
    if not passed:
        raise RuntimeError(f"the checker of {name} has no law")
    print(f"{name}: all {passed} checks passed")


class Law(NamedTuple):
    """One law and what became of it; `problem` says why when no false or true came back."""

    sentence: str
    hint: str | None
    passed: bool
    problem: str | None


class Stopped(Exception):
    """A function could not be tested; the message is a sentence that a learner may read.

    Raised by a stand-in for a function, and by laws. It never holds anything that was drawn.
    """


def listed(name: str) -> list[tuple[str, Callable[[], Any], str | None]]:
    """The laws of exercise `name` as (sentence, test, hint), without an answer to test."""

    def nobody(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"the checker of {name} calls the answer outside of its tests")

    found = [_item(law) for law in laws_of(name)(nobody)]
    if not found:
        raise RuntimeError(f"the checker of {name} has no law")
    return found


def _item(law: tuple) -> tuple[str, Callable[[], Any], str | None]:
    sentence, test, *hint = law
    return sentence, test, hint[0] if hint else None


def count(name: str) -> int:
    """How many laws exercise `name` has: the same in every variant, known without an answer."""
    return len(listed(name))


def laws(name: str, fn: Callable) -> Iterator[Law]:
    """Test `fn` by every law of exercise `name`, and go on after one that fails.

    The variant is the one in force when this is called. In a variant other than 0 a learner's own
    error message is left out, for it could repeat what was drawn.
    """
    return _laws(name, fn, current(), listed(name))


def _laws(name: str, fn: Callable, number: int, expected: list) -> Iterator[Law]:
    watched = _Watched(fn)
    with variant(number):
        generator = laws_of(name)(watched)
    for sentence, _, hint in expected:
        watched.forget()
        with variant(number):
            try:
                law = next(generator, None)
                passed = law is not None and bool(law[1]())
                problem = "not reached" if law is None else None if passed else _told(None, watched)
            except Exception as error:  # as in check: one readable line, whatever it was
                passed, problem = False, _told(error, watched)
        yield Law(sentence, hint, passed, problem)


class _Watched:
    """The answer, and what its last call came to: a law may stop at a value that is no good."""

    def __init__(self, fn: Callable):
        self.fn = fn
        self.came_back = False  # at least once, in any law so far
        self.forget()

    def forget(self) -> None:
        """Before the next law."""
        self.returned: list[Any] = []  # the last value, if any
        self.raised: BaseException | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            value = self.fn(*args, **kwargs)
        except BaseException as error:
            self.raised = error
            raise
        self.returned, self.raised = [value], None
        self.came_back = True
        return value

    @property
    def changed(self) -> bool:
        """Whether a call changed its arguments where only a stand-in can know it."""
        return getattr(self.fn, "changed", False)


def _told(error: Exception | None, watched: _Watched) -> str | None:
    """Why a law failed, where more can be said than that it did. No value, only types and shapes.

    An error of the law's own means that it could not use what the answer returned.
    """
    if isinstance(error, NotImplementedError):
        return NO_ANSWER
    if isinstance(error, Stopped):
        return str(error)
    own = error is not None and error is watched.raised
    if watched.returned and not own:
        (value,) = watched.returned
        return None if error is None and value is not None else f"it returned {_kind(value)}"
    if error is None:
        return None
    kind = type(error).__name__ if type(error).__module__ == "builtins" else "an error"
    whose = "your function" if own else "the check"
    if current():
        return f"{whose} stopped with {kind}"
    try:
        return f"{whose} stopped with {kind}: {error}"[:300]
    except Exception:  # an error whose own words fail
        return f"{whose} stopped with {kind}"


def _kind(value: Any) -> str:
    """A value's type and size in words; in a hidden variant no size, for it could tell a draw."""
    if value is None:
        return "None"
    if type(value).__module__ in ("torch", "numpy") and hasattr(value, "shape"):
        word = {"Tensor": "a tensor", "ndarray": "an array"}.get(type(value).__name__, "a number")
        return word if current() else f"{word} of shape {tuple(value.shape)}"
    word = {"str": "text", "int": "whole number", "float": "number", "bool": "truth value"}
    kind = type(value).__name__ if type(value).__module__ == "builtins" else "object"
    kind = word.get(kind, kind)
    sized = isinstance(value, str | list | tuple | dict | set) and not current()
    many = f" of length {len(value)}" if sized else ""
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}{many}"
