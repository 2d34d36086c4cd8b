"""`python -m circuitbook.views [--check] [name ...]`: measure the views' data, or compare it.

python -m circuitbook.views            write results/views/*.json
python -m circuitbook.views --check    measure again and compare with what is committed
"""

import argparse
import sys
import time

from circuitbook import results
from circuitbook.corpus import TextError
from circuitbook.views import envelope, latents, neurons, spectrum, tokenrows
from circuitbook.views.envelope import View
from circuitbook.zoo import WeightsError

# Near ties may change places between machines, so ids of words are looked at one by one; what is
# drawn or counted near a threshold may move by a position or two.
_UNITS = {
    "units.*.values.*": ("closed_form", 2e-3),
    "units.*.histogram.counts.*": ("closed_form", 3),
    "units.*.documents": ("closed_form", 1),
    "units.*.positions": ("closed_form", 3),
}
_SHOW = {"contexts": 10, "examples": 3, "around": 10, "bins": 24, "words": 10, "seed": 2026}

VIEWS = {
    view.name: view
    for view in (
        View("tokens", tokenrows.compute, {"k": 8}, tokenrows.ROLES, {}),
        View(
            "copying",
            spectrum.compute,
            {"frequent": 1000, "random": 100, "seed": 0},
            spectrum.ROLES,
            {"*.values.*": ("closed_form", 1e-3), "*.top1*": ("closed_form", 3e-3)},
        ),
        View("neurons", neurons.compute, {**_SHOW, "drawn": 10}, neurons.ROLES, _UNITS),
        View(
            "latents", latents.compute, {**_SHOW, "drawn": 20}, (latents.NAME, latents.ROLE), _UNITS
        ),
    )
}


def say(view: View, check: bool) -> bool:
    """Measure one view and write or compare it; one line, and True when all is well."""
    start = time.perf_counter()
    fresh = envelope.measure(view)
    took = f"{time.perf_counter() - start:.0f} s"
    if not check:
        text = envelope.text(fresh)
        results.write(view.path, text)
        print(f"views/{view.name}: measured, {len(text.encode()) / 1e6:.2f} MB, {took}")
        return True
    wrong = envelope.differences(view, fresh)
    reason = envelope.stale(view)
    for line in wrong[: envelope.SHOWN]:
        print(f"  {line}")
    if len(wrong) > envelope.SHOWN:
        print(f"  … and {len(wrong) - envelope.SHOWN} more")
    state = f"{len(wrong)} numbers differ" if wrong else "agrees"
    print(f"views/{view.name}: {state}, {took}" + (f" (out of date: {reason})" if reason else ""))
    return not wrong and not reason


def main(arguments: list[str]) -> int:
    """0 when every view was written, or agrees; 1 with a line for each that does not."""
    parser = argparse.ArgumentParser(prog="python -m circuitbook.views", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(VIEWS))
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.names if name not in VIEWS]
    if unknown:
        print(f"No view is called {unknown[0]!r}. Choose from {', '.join(VIEWS)}.", file=sys.stderr)
        return 2
    try:
        fine = [say(VIEWS[name], asked.check) for name in asked.names or VIEWS]
    except FileNotFoundError as error:
        print(f"Views: {error}. Run `python -m circuitbook.views` first.", file=sys.stderr)
        return 1
    except (TextError, WeightsError, ValueError) as error:
        print(f"Views: {error}", file=sys.stderr)
        return 1
    return 0 if all(fine) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
