"""The files of the published track: what is here, what is not, and how to get it.

python -m circuitbook.published fetch  [name ...]    download what is missing, check the rest
python -m circuitbook.published status [name ...]    say what is here; asks the disk only
"""

from __future__ import annotations

import argparse
import sys

from circuitbook import paths
from circuitbook.published import disk, fetch, status, text
from circuitbook.published.pins import ALL, TEXT, Pin


def main(arguments: list[str] | None = None) -> int:
    """The command line; 1 when something could not be had, 130 when it was stopped by hand."""
    try:
        return _main(arguments)
    except KeyboardInterrupt:
        said = "Stopped. Finished files are kept; run `make published` again for the rest."
        print(f"\n{said}", file=sys.stderr)
        return 130


def _fetch(pin: Pin) -> None:
    """All files of a pin; for the text, a local one is enough."""
    if pin.name == TEXT.name and text.local():
        text.documents()  # says what is wrong with it
        return
    fetch.sweep(pin)
    fetch.folder(pin)


def _main(arguments: list[str] | None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m circuitbook.published",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=("fetch", "status"))
    parser.add_argument("name", nargs="*", help=f"of {', '.join(ALL)}; all without")
    args = parser.parse_args(arguments)
    unknown = [name for name in args.name if name not in ALL]
    if unknown:
        print(f"no pin is called {', '.join(unknown)}; there are {', '.join(ALL)}", file=sys.stderr)
        return 2
    names = args.name or list(ALL)
    pins = [ALL[name] for name in names]
    try:
        told = status.rows(pins)
    except disk.PublishedError as error:
        print(error, file=sys.stderr)
        return 1
    if disk.stand_in():
        print(f"{disk.hub_cache()} holds stand-in files with random weights, not the models.")
    if args.command == "status":
        print("\n".join(status.lines(told)))
        print(status.summary(told))
        return 0
    print(status.summary(told), file=sys.stderr, flush=True)
    failed = 0
    with paths.model_set("published"):  # this command is the asking
        for name, pin in zip(names, pins, strict=True):
            try:
                _fetch(pin)
            except disk.PublishedError as error:  # go on with the others
                print(f"{name}: {error}", file=sys.stderr)
                failed += 1
                if isinstance(error, fetch.HubAway):
                    break
    print("\n".join(status.lines(status.rows(pins))))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
