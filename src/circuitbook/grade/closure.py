"""An answer with everything it needs of the notebook, in an order that runs.

Statements keep the notebook's order. Only what runs before the names that it reads exist, because
the cells were moved, makes its providers come first.
"""

import ast
import builtins
import importlib.util
from bisect import bisect_left
from collections import defaultdict

from circuitbook.grade.effects import changes_an_argument, dotted, effects, origins
from circuitbook.grade.statements import Statement, statements

__all__ = ["Closure", "Tangled"]

_GIVEN = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__"}
# Jupyter gives it to every notebook; nobody looks here.
_JUPYTER = "def display(*objects, **options):\n    return None"
_SHOWS = {"print", "display", "check", "len", "type", "help"}  # change nothing that they are given
_MAX_STEPS = 300_000  # far more than any answer needs; a hostile notebook stops here
_MAYBE = ast.If | ast.For | ast.While | ast.Try | ast.With | ast.Match  # may bind, or not


class Tangled(Exception):
    """Too many statements hang together; the message says so."""


class Closure:
    """The statements of a lesson and a student; a place is a statement's number in `all`."""

    def __init__(self, own: list[Statement], lesson: list[Statement], exercises: set[str]):
        self.all = [*statements(_JUPYTER, 0), *lesson, *own]
        self.first = len(self.all) - len(own)  # the first that is the student's
        self.end = len(self.all)
        self.imported = origins(self.all)
        functions = {s.node.name: s for s in self.all if isinstance(s.node, ast.FunctionDef)}
        changing = {n: changes_an_argument(s.node) for n, s in functions.items()}
        self.effects = [effects(s, self.imported, changing) for s in self.all]
        self.defs: dict[str, list[int]] = defaultdict(list)
        self.touched: dict[str, list[int]] = defaultdict(list)
        self.binds: list[frozenset[str]] = []
        for place, statement in enumerate(self.all):
            # A call of the student's `setup()` binds what that function calls global.
            helpers = self.effects[place].calls - exercises
            self.binds.append(statement.binds.union(*(functions[f].announces for f in helpers)))
            for name in self.binds[place]:
                if not statement.is_stub and (place >= self.first or name not in exercises):
                    self.defs[name].append(place)
            for name in self.effects[place].touches:
                self.touched[name].append(place)
        for name, places in self.defs.items():
            if places[-1] >= self.first:  # no name mixes the student's code with the lesson's
                self.defs[name] = places[bisect_left(places, self.first) :]
        self.stars = [p for p in range(self.first, self.end) if self.all[p].is_star]

    def of(self, name: str) -> tuple[list[Statement], list[str]]:
        """(what makes `name`, in order; notes on what was left out). Errors: Tangled."""
        self.steps, self.unknown, self.left = 0, set(), set()
        setters = [p for p in range(self.first, self.end) if self._can_run(p, sets_up=True)]
        chosen = self._select([*self._makers(name, self.end), *setters])
        known = not self.unknown
        chosen |= {p for p in self.stars if not known or _installed(self.all[p].node)}
        chosen = {p for p in chosen if not self.all[p].is_future}
        futures = [s for s in self.all[self.first :] if s.is_future]
        code = [*futures, *(self.all[p] for p in self._ordered(chosen))]
        return code, self._left_out(chosen)

    def _select(self, wanted: list[int]) -> set[int]:
        """The places wanted, and all that they need; a function needs it when it is called."""
        waiting = [(p, self.end) for p in wanted]
        seen = set(waiting)
        while waiting:
            place, called = waiting.pop()
            statement = self.all[place]
            reads = [(n, place) for n in statement.now] + [(n, called) for n in statement.later]
            for name, when in reads:
                for maker in self._makers(name, when):
                    # What is read now may be a function that is kept, and called later.
                    new = {(maker, when), (maker, self.end)} - seen
                    seen |= new
                    waiting += new
                    self._count(1)
        return {place for place, _ in seen}

    def _makers(self, name: str, when: int) -> list[int]:
        """What gives `name` the value that it has at a place: its definition and later changes."""
        defs = self.defs.get(name, [])
        if not defs:
            if name not in _GIVEN:
                self.unknown.add(name)
            return []
        last = bisect_left(defs, when) - 1
        if last < 0:  # the cells were moved: it is defined below
            last, when = len(defs) - 1, self.end
        start = last
        while start and isinstance(self.all[defs[start]].node, _MAYBE):
            start -= 1
        touched = self.touched.get(name, [])
        at = bisect_left(touched, when) - 1
        while at >= 0 and touched[at] > defs[start]:
            self._count(1)
            if self._can_run(touched[at]):  # the earlier ones come with it, as it reads the name
                return [*defs[start : last + 1], touched[at]]
            at -= 1
        return defs[start : last + 1]

    def _can_run(self, place: int, *, sets_up: bool = False) -> bool:
        """Whether a statement that only changes something finds all names that it reads."""
        if sets_up and not self.effects[place].sets_up:
            return False
        statement = self.all[place]
        absent = {n for n in statement.needs if n not in self.defs} - _GIVEN - statement.binds
        if absent and not self.stars:
            self.left.add(place)
            return False
        return True

    def _count(self, steps: int) -> None:
        self.steps += steps
        if self.steps > _MAX_STEPS:
            raise Tangled("it hangs together with too many other statements")

    def _ordered(self, chosen: set[int]) -> list[int]:
        """The places in the notebook's order, with makers first where the cells were moved."""
        order, bound, begun, done = [], set(), set(), set()
        makers, later = defaultdict(list), defaultdict(set)  # of a name, in this selection
        for place in sorted(chosen):
            for name in self.binds[place] | self.effects[place].touches:
                makers[name].append(place)
                later[name] |= self.all[place].later
        waiting = sorted(chosen, reverse=True)
        while waiting:
            place = waiting[-1]
            if place in begun:
                waiting.pop()
                if place not in done:
                    done.add(place)
                    order.append(place)
                    bound |= self.binds[place]
                continue
            begun.add(place)
            missing = self._missing(place, makers, later, bound)
            waiting += sorted(missing - begun, reverse=True)
        return order

    def _missing(
        self, place: int, makers: dict[str, list[int]], later: dict[str, set[str]], bound: set[str]
    ) -> set[int]:
        """What must come before a statement: makers of names that it reads and nothing has bound.

        What it calls reads names as well.
        """
        names = list(self.all[place].now)
        seen, missing = set(names), set()
        while names:
            name = names.pop()
            if name not in bound:
                missing |= {*makers.get(name, []), *(self.stars if name in self.unknown else [])}
            more = later.get(name, set()) - seen
            self._count(1 + len(more))
            seen |= more
            names += more
        return missing

    def _left_out(self, chosen: set[int]) -> list[str]:
        """A note on each statement that may have mattered."""
        values = {
            n for p in chosen for n in self.all[p].binds
            if not (self.all[p].is_function or self.all[p].is_import)
            and not isinstance(self.all[p].node, ast.ClassDef)
        }  # fmt: skip
        for place in range(self.first, self.end):
            node = self.all[place].node
            call = node.value if isinstance(node, ast.Expr) else None
            if place in chosen or not isinstance(call, ast.Call):
                continue
            function = dotted(call.func, self.imported)
            shows = function.rpartition(".")[2] in _SHOWS or function.startswith("matplotlib.")
            if self.effects[place].unclear & values and not shows:
                self.left.add(place)
        told = [(self.all[p].cell, self.all[p].text.strip().splitlines()[0][:60])
                for p in sorted(self.left)]  # fmt: skip
        return [f"left out, of cell {cell}: {line}" for cell, line in told]


def _installed(node: ast.stmt) -> bool:
    """Whether a star import's package is here; only its first name is looked up, nothing runs."""
    first = (getattr(node, "module", "") or "").partition(".")[0]
    try:
        return bool(first) and not node.level and importlib.util.find_spec(first) is not None
    except (ValueError, ImportError):
        return False
