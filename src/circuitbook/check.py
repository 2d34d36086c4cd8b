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
differentiate it. What fn changes in its arguments must be changed here too. Errors of the stand-in
itself are `Stopped`; a missing answer is NotImplementedError.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from circuitbook.checks.draws import current, draw, numpy_generator, torch_generator, variant

__all__ = [
    "Law", "Stopped", "check", "checker", "count", "draw", "laws", "names", "near",
    "numpy_generator", "torch_generator", "variant",
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


def _find(name: str) -> Callable:
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


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float | complex)


def check(name: str, fn: Callable) -> None:
    """Test the learner's `fn` by the laws of exercise `name`; print each law that it obeys.

    Errors: AssertionError in words a learner can use; NotImplementedError while there is no answer.
    """
    laws = _find(name)(fn)
    passed = 0
    while True:
        sentence, ok, hint, problem = "it runs on a small case", False, [], None
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
            if isinstance(problem, Stopped):
                words.append(str(problem))
            elif problem is not None:
                words.append(f"Your function stopped with {type(problem).__name__}: {problem}")
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


def _listed(name: str) -> list[tuple[str, Callable[[], Any], str | None]]:
    def nobody(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"the checker of {name} calls the answer outside of its tests")

    found = [_item(law) for law in _find(name)(nobody)]
    if not found:
        raise RuntimeError(f"the checker of {name} has no law")
    return found


def _item(law: tuple) -> tuple[str, Callable[[], Any], str | None]:
    sentence, test, *hint = law
    return sentence, test, hint[0] if hint else None


def count(name: str) -> int:
    """How many laws exercise `name` has: the same in every variant, known without an answer."""
    return len(_listed(name))


def laws(name: str, fn: Callable) -> Iterator[Law]:
    """Test `fn` by every law of exercise `name`, and go on after one that fails.

    The variant is the one in force when this is called. In a variant other than 0 a learner's own
    error message is left out, for it could repeat what was drawn.
    """
    return _laws(name, fn, current(), _listed(name))


def _laws(name: str, fn: Callable, number: int, listed: list) -> Iterator[Law]:
    with variant(number):
        generator = _find(name)(fn)
    for sentence, _, hint in listed:
        with variant(number):
            try:
                law = next(generator, None)
                passed, problem = (False, "not reached") if law is None else (bool(law[1]()), None)
            except Exception as error:  # as in check: one readable line, whatever it was
                passed, problem = False, _told(error)
        yield Law(sentence, hint, passed, problem)


def _told(error: Exception) -> str:
    if isinstance(error, NotImplementedError):
        return NO_ANSWER
    if isinstance(error, Stopped):
        return str(error)
    kind = type(error).__name__ if type(error).__module__ == "builtins" else "an error"
    if current():
        return f"your function stopped with {kind}"
    try:
        return f"your function stopped with {kind}: {error}"[:300]
    except Exception:  # an error whose own words fail
        return f"your function stopped with {kind}"
