"""An answer is right when it obeys the laws, not when it equals the solution's code.

A checker is a generator of laws, kept in circuitbook/checks/chNN.py:

    @checker("02.copying_score")
    def _(fn):
        yield "a head that writes back what it reads scores one", lambda: near(fn(eye, eye), 1.0)
        yield "twice the head, the same score", lambda: near(fn(v, 2 * o), fn(v, o)), "Divide by …"

Each item is (sentence, test[, hint]). The test is called after the sentence is known, so that an
error inside the learner's function can be told in words. Failing words never show expected values.
"""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

__all__ = ["check", "checker", "names", "near"]

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
            if problem is not None:
                words.append(f"Your function stopped with {type(problem).__name__}: {problem}")
            raise AssertionError("\n".join(words))
        print(f"✓ {sentence}")
        passed += 1
    if not passed:
        raise RuntimeError(f"the checker of {name} has no law")
    print(f"{name}: all {passed} checks passed")
