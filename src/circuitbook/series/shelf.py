"""What a model set has on its shelf is what its chapters saved; everything else is a clear line.

The committed page is made of committed evidence alone, so that it is the same on every machine.
With RECOMPUTE=1 this machine's own measurement is read first, with QUICK=1 its rehearsal.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from circuitbook import paths, results

__all__ = ["Missing", "NoResults", "Saved", "Shelf", "folders"]


class Missing(LookupError):
    """There is no value, and the message says why in words that a reader can use."""


def folders(models: str) -> list[Path]:
    """Where the results of a model set are looked for, best first; today's switches decide."""
    own = paths.BUILD / "results" / models
    evidence = paths.RESULTS / models
    if paths.quick():
        return [paths.BUILD / "quick" / models, evidence]
    return [own, evidence] if paths.recompute() else [evidence]


class NoResults(Missing):
    """The chapter has no results at all."""


class Saved:
    """The results of one chapter: its data, and the numbers inside its claims."""

    def __init__(self, envelope: dict) -> None:
        self.name: str = envelope["chapter"]
        self.data: dict = envelope["data"]
        self.claims: dict[str, dict] = {c["id"]: c for c in envelope["claims"]}
        self._random = results.random_weights(envelope["made_with"])
        self._other_text = bool(envelope["made_with"].get("local_text"))

    def unjudged(self, text: bool) -> str:
        """Why a number of it is shown and not judged, or "". text: whether it hangs on the text."""
        if self._random:
            return "stand-in files with random weights"
        return "measured on another text" if text and self._other_text else ""

    def series(self, id: str) -> Any:
        """What the chapter saved under data["series"][id]."""
        if id not in self.data.get("series", {}):
            raise Missing(f"chapter {self.name[:2]} saved no value for it")
        return self.data["series"][id]


class Shelf:
    """The saved chapters of one model set, "course" or "published", each read once."""

    def __init__(self, models: str) -> None:
        self.models = models
        self._read: dict[str, Saved | None] = {}

    def chapter(self, number: str) -> Saved:
        """The results of chapter `number` ("07").

        Errors: NoResults if there are none; ValueError, with the file's name, if it is damaged.
        """
        if number not in self._read:
            found = [p for f in folders(self.models) for p in sorted(f.glob(f"{number}_*.json"))]
            self._read[number] = Saved(results.read(found[0])) if found else None
        saved = self._read[number]
        if saved is None:
            raise NoResults(f"chapter {number} has no results yet: run make all")
        return saved

    def value(self, number: str, take: Callable[[Saved], Any]) -> Any:
        """take(results of the chapter).

        Errors: Missing, also when the chapter saved something of another shape.
        """
        saved = self.chapter(number)
        try:
            return take(saved)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            said = f"{type(error).__name__}: {error}"
            raise Missing(f"chapter {number} saved it in another form ({said})") from None
