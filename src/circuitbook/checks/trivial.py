"""Answers that hold no thought, and how many laws of an exercise the luckiest of them obeys.

That number is the exercise's floor: marks start above it, so that `return 0.0` earns nothing.
python -m circuitbook.checks.trivial writes all floors to circuitbook/checks/floors.py.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from circuitbook import check

__all__ = ["ANSWERS", "VARIANTS", "floor", "floors", "main", "passes", "text"]

VARIANTS = (0, 1, 2)  # luck may hang on the draws: the floor is the most in any of these
CHAPTERS = [f"{n:02d}" for n in range(1, 12)]
# Laws that take a second each; they are asked only of answers that could still be the luckiest.
HUGE = {
    "six million tokens are no problem, because the table is never built",
    "27 billion triples are no problem",
    "no d by d matrix is built",
}
HEAD = '''"""How many laws of each exercise an answer without a thought obeys: these earn nothing.

Made by `python -m circuitbook.checks.trivial`; behind each number stands one such answer.
"""

FLOORS = {'''

_CONSTANTS: list[Any] = [
    None, True, False, 0, 1, 0.0, 0.5, 1.0, -1.0, float("inf"), "", [], (), {}, set(),
    (0, 0), (1, 0), (1, 1), (0, 0, 0), (0.0, 1.0), (1.0, 0.0), [0.5, 0.5], ([], []), ([], 100),
]  # fmt: skip


def _tensors(given: Iterable[Any]) -> list[torch.Tensor]:
    """All tensors among the arguments, also those in a list, a tuple or a dict."""
    found: list[torch.Tensor] = []
    for value in given:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif hasattr(value, "dtype") and hasattr(value, "shape"):
            found.append(torch.as_tensor(value))
        elif isinstance(value, dict):
            found += _tensors(value.values())
        elif isinstance(value, list | tuple):
            found += _tensors(value)
    return found


def _like(make: Callable, which: int) -> Callable:
    return lambda *given: make(_tensors(given)[which])


def _times(n: int) -> Callable:
    return lambda first, *_: (first,) * n


def _eyes(n: int) -> Callable:
    """Identities of the size that the first argument asks for: a number, a matrix, a list."""

    def answer(first: Any, *_: Any) -> Any:
        table = first[0] if isinstance(first, list) else first
        size = table if isinstance(table, int) else len(table)
        eye = torch.eye(size, dtype=torch.float64)
        return (eye,) * n if n else eye

    return answer


def _diagonal(period: int, copies: int) -> torch.Tensor:
    """Each place looks at itself, in as many copies of a block."""
    return torch.eye(1 + period * copies, dtype=torch.float64)


def _rows(make: Callable) -> Callable:
    """`make` of [rows of the first tensor, columns of the last]."""

    def answer(*given: Any) -> torch.Tensor:
        tensors = _tensors(given)
        return make(len(tensors[0]), tensors[-1].shape[-1], dtype=torch.float64)

    return answer


def _square(*given: Any) -> torch.Tensor:
    """Every query sees the keys up to its own alike."""
    n = len(_tensors(given)[0])
    table = torch.ones(n, n, dtype=torch.float64).tril()
    return table / table.sum(-1, keepdim=True)


def _answers() -> Iterator[tuple[str, Callable]]:
    for value in _CONSTANTS:
        yield f"return {value!r}", lambda *given, value=value, **more: value
    for k, word in enumerate(("first", "second", "third")):
        yield f"the {word} argument itself", lambda *given, k=k: given[k]
    yield "the last argument itself", lambda *given: given[-1]
    for k, word in enumerate(("first", "second", "third", "fourth", "fifth")):
        yield f"zeros like the {word} tensor", _like(torch.zeros_like, k)
    yield "zeros like the last tensor", _like(torch.zeros_like, -1)
    yield "ones like the first tensor", _like(torch.ones_like, 0)
    yield "a half for each column", _like(lambda x: torch.full(x.shape[-1:], 0.5).double(), 0)
    yield "one for each column", _like(lambda x: torch.ones(x.shape[-1]).double(), 0)
    yield "zero for each column", _like(lambda x: torch.zeros(x.shape[-1]).double(), 0)
    yield "an empty list and the whole", lambda first, *_: ([], first)
    for n in (2, 3, 4):
        yield f"the first {n} arguments", lambda *given, n=n: given[:n]
        yield f"the first argument {n} times", _times(n)
        yield f"{n} identities", _eyes(n)
    yield "two zeros like the first tensor", _like(lambda x: (0 * x, 0 * x), 0)
    yield "two ones like the first tensor's columns", _like(lambda x: (0 * x[0] + 1,) * 2, 0)
    yield "an identity", _eyes(0)
    yield "a diagonal", _diagonal
    yield "even attention", _square
    yield "zeros, rows of the first by columns of the last tensor", _rows(torch.zeros)
    yield "the second argument as a list, and 100", lambda f, nodes, *_: (list(nodes), 100)
    yield "the second argument as a list, and 90", lambda f, nodes, *_: (list(nodes), 90)
    for value in (None, 1.0):
        yield f"{value} under each name", lambda given, *_, v=value: dict.fromkeys(given, v)
    yield "asks once and says 0", lambda ask, words, *_: 0.0 * ask(words[None, :20]).sum().item()


ANSWERS: dict[str, Callable] = dict(_answers())


def passes(name: str, fn: Callable, number: int = 0, huge: bool = True) -> int:
    """How many laws of an exercise `fn` obeys in one variant, with or without the huge ones."""
    found = 0
    with check.variant(number):
        for sentence, test, *_ in check.laws_of(name)(fn):
            if huge or sentence not in HUGE:
                try:
                    found += bool(test())
                except Exception:  # whatever a law makes of such an answer, it does not obey it
                    continue
    return found


def floor(name: str) -> tuple[int, str]:
    """(the most laws of an exercise that any of ANSWERS obeys in any of VARIANTS, which answer)."""
    slow = sum(sentence in HUGE for sentence, *_ in check.laws_of(name)(None))
    cases = [(number, words) for number in VARIANTS for words in ANSWERS]
    quick = {case: passes(name, ANSWERS[case[1]], case[0], huge=False) for case in cases}
    best, luckiest = 0, ""
    for number, words in sorted(cases, key=quick.__getitem__, reverse=True):
        if quick[number, words] + slow <= best:
            break  # with all huge laws it would not get further
        found = passes(name, ANSWERS[words], number) if slow else quick[number, words]
        if found > best:
            best, luckiest = found, words
    return best, luckiest


def floors(chapters: Iterable[str] = CHAPTERS) -> dict[str, tuple[int, int, str]]:
    """exercise -> (its floor, its number of laws, the answer that got so far)."""
    found = {}
    for chapter in chapters:
        for name in check.names(chapter):
            most, words = floor(name)
            found[name] = most, check.count(name), words
    return found


def text(found: dict[str, tuple[int, int, str]]) -> str:
    """The module that holds the floors."""
    lines = [HEAD]
    for name, (most, of, words) in found.items():
        lines.append(f'    "{name}": {most},  # of {of}{f": {words}" if words else ""}')
    return "\n".join([*lines, "}", ""])


def main() -> None:
    """Write the floors of all exercises beside this file."""
    Path(__file__).with_name("floors.py").write_text(text(floors()), encoding="utf-8")


if __name__ == "__main__":
    main()
