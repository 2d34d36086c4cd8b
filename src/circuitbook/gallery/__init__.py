"""Every figure of the course is a function of one saved result: `gallery.copying_scores(r)`.

The functions live in gallery/chNN.py, marked with `@plots.figure`; their names are unique in the
course. `python -m circuitbook.gallery` draws all of them from the saved results, without torch.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable


@functools.cache
def _all() -> dict[str, Callable]:
    found: dict[str, Callable] = {}
    for info in pkgutil.iter_modules(__path__):
        if not info.name.startswith("ch"):
            continue
        for name, draw in figures(info.name[2:]).items():
            if name in found:
                raise ImportError(f"two figures are called {name}: in ch{info.name[2:]} and before")
            found[name] = draw
    return found


def figures(number: str) -> dict[str, Callable]:
    """The figures of one chapter by name, in the order in which they are written: figures("02")."""
    try:
        module = importlib.import_module(f"{__name__}.ch{number}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.ch{number}":
            raise
        return {}
    own = {n: f for n, f in vars(module).items() if getattr(f, "is_figure", False)}
    return {n: f for n, f in own.items() if f.__module__ == module.__name__}


def __getattr__(name: str) -> Callable:
    """`gallery.name`: found in whichever chapter's module has it."""
    if name.startswith("_") or name not in _all():
        raise AttributeError(f"the gallery has no figure {name!r}; it has {', '.join(_all())}")
    return _all()[name]
