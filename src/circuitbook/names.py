"""The words that must be one token each: given names, days, months, and the prompts' words."""

from __future__ import annotations

_FEMALE = (
    "Mary Sally Susan Sue Anna Emma Elizabeth Linda Margaret Sarah Karen Nancy Lisa Helen Laura "
    "Alice Ruth Jane Kate Lucy Julia Rose Martha Polly Clara Grace Emily Diana"
).split()
_MALE = (
    "John James Robert Michael William David Richard Joseph Thomas Charles Daniel Matthew "
    "Anthony Mark Paul Steven Andrew George Edward Peter Henry Simon Martin Adam Tom Jack Sam "
    "Frank"
).split()

# (name, is female): a renamed edition says "Aunt" or "Uncle" by it.
NAMES: list[tuple[str, bool]] = [(n, True) for n in _FEMALE] + [(n, False) for n in _MALE]

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = (
    "January February March April May June July August September October November December"
).split()
PROMPT_WORDS = (
    "Aunt Uncle store shop market garden gave give drink went said told asked smiled friend "
    "letter book house mind bay keep hand table Mr Mrs Dr"
).split()

SINGLE_TOKENS: list[str] = [
    " " + word for word in [n for n, _ in NAMES] + DAYS + MONTHS + PROMPT_WORDS
]
