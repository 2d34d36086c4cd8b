"""The sentences of the name task, as data: clauses, phrases, and the plain sentences beside them.

{A} and {B} are the two people in the order of their mention, {S} is the one of them who acts, {C}
and {c} are the two mentions of a third person. A prompt is an introduction, {S}, and an action that
ends before the answer; any introduction goes with any action.
"""

from __future__ import annotations

from collections.abc import Iterator

MORE_NAMES = tuple(
    "Olivia Sophie Hannah Ellen Irene Marta Nora Vera Zoe Eva Ida Lena Agnes Amelia Bella Carla "
    "Cora Daisy Edith Elsa Esther Fiona Greta Hilda Iris Judith Lydia Mabel Naomi Paula Rita "
    "Oscar Victor Felix Hugo Leo Max Noah Oliver Ralph Tim Walter Luke Aaron Albert Arthur Bruno "
    "Conrad Dennis Edgar Ernest Gilbert Harold Ivan Jacob Julian Karl Louis Marvin Nathan Otto "
    "Philip Rupert Stella".split()
)
PLACES = tuple(
    "shop garden school park market library kitchen office church harbour castle farm museum "
    "station theatre beach".split()
)
OBJECTS = tuple(
    "drink book key letter ring ball cake coat picture basket apple lamp map flute cup flower "
    "hat box stone rope".split()
)
OPENINGS = ("", "yesterday ,", "one day ,", "as we know ,")

INTROS = (
    "when {A} and {B} went to the {PLACE} ,",
    "then {A} and {B} had a long day at the {PLACE} .",
    "after {A} and {B} went home from the {PLACE} ,",
    "{A} met {B} at the {PLACE} .",
    "while {A} and {B} were at the {PLACE} ,",
    "{A} and {B} worked at the {PLACE} . later",
    "our friends {A} and {B} were in the {PLACE} and",
    "{A} saw {B} near the {PLACE} . soon",
    "before {A} and {B} left the {PLACE} ,",
    "at the {PLACE} {A} sat next to {B} .",
    "{A} came to the {PLACE} with {B} .",
    "because {A} and {B} were hungry ,",
    "in the {PLACE} there were {A} and {B} .",
    "{A} danced with {B} all night . in the end",
    "{A} , who was tired , walked with {B} to the {PLACE} .",
    "once {A} had talked to {B} about the {OBJECT} ,",
    "{A} and {B} shared a {OBJECT} .",
    "as {A} was a friend of {B} ,",
    "{A} looked at {B} across the {PLACE} . then",
    "{A} and {B} played in the {PLACE} until",
    "the {PLACE} was closed . there {A} and {B} slept , and",
    "a {OBJECT} was lost . {A} asked {B} for the {OBJECT} .",
    "{A} and {B} had a plan , but",
    "{A} sat in the {PLACE} . {B} came later .",
    "{A} was hungry and {B} was tired .",
    "{A} came home . then {B} came home .",
    "{A} slept . {B} did not .",
    "one night {A} and {B} left the {PLACE} and",
    "all day {A} and {B} worked . at night",
    "it was {A} who met {B} near the {PLACE} .",
    "{A} knew {B} from the {PLACE} .",
    "we saw {A} and then {B} in the {PLACE} .",
    "with {A} was {B} , and soon",
    "the letter from {A} to {B} was about the {PLACE} , so",
    "{A} waited for {B} at the {PLACE} . at last",
    "{A} lost the {OBJECT} of {B} . after that",
    "not far from the {PLACE} {A} and {B} met and",
    "{A} , {B} and the {OBJECT} were in the {PLACE} when",
    "there was a plan that {A} and {B} had , and",
    "{A} was in the {PLACE} and {B} was there too , so",
)
HELD_OUT_INTROS = (
    "{A} and {B} went to the {PLACE} . there",
    "while {A} sat with {B} in the {PLACE} ,",
    "in the {PLACE} {A} looked at {B} . later",
    "after a long night {A} and {B} left the {PLACE} and",
    "once {A} and {B} were friends ,",
    "{A} was in the {PLACE} . {B} was in the {PLACE} .",
    "because {A} talked to {B} all day , in the end",
    "the {OBJECT} was lost when {A} met {B} .",
)
# Every phrase of the held-out introductions occurs in training in another order. Not so here: no
# training sentence says "was at home". How much is lost is measured apart.
UNKNOWN_INTROS = ("{A} was at home . {B} was at home .",)
ACTIONS = (
    "gave a {OBJECT} to",
    "gave the {OBJECT} to",
    "brought a {OBJECT} for",
    "handed a {OBJECT} to",
    "made a {OBJECT} for",
    "sent the {OBJECT} to",
    "showed a {OBJECT} to",
    "threw the {OBJECT} to",
    "bought a {OBJECT} for",
    "passed the {OBJECT} to",
    "read about the {OBJECT} to",
    "cooked for",
    "told the news to",
    "sang for",
    "smiled at",
    "left the {PLACE} with",
    "wrote a letter to",
    "waved at",
    "was angry with",
    "was late and left with",
)
HELD_OUT_ACTIONS = (
    "bought the {OBJECT} for",
    "showed the {OBJECT} to",
    "handed one {OBJECT} to",
    "cooked all day for",
    "read the news to",
    "talked to",
    "left with",
    "brought the {OBJECT} to",
)
# Where a third person is named, twice. The first mention is {C}, the second {c}.
BEFORE = ("{C} slept and then {c} left .", "{C} slept . we all like {c} .")
BETWEEN = ("( {C} laughed , as {c} did not know )", "( so {C} said , and we asked {c} )")
AFTER = (", whom {C} saw and {c} knew ,", ", a friend of {C} who lived with {c} ,")
AROUND = (
    ("{C} slept .", ", whom {c} knew ,"),
    ("we all like {C} .", ", a friend of {c} ,"),
    ("{C} was at home .", ", who lived with {c} ,"),
)
# Where no third person stands: nothing, or this, so that lengths vary.
FILL_MID = ("", "( in winter )")
FILL_POST = ("", ", as always ,")
# Names also stand in these, all names alike; the last word is the answer.
ONE_NAME = (
    "{A} took the {OBJECT} . the {OBJECT} was for {A}",
    "one day {A} slept . then {A} left the {PLACE} . we all like to talk to {A}",
    "in the {PLACE} we saw {A} . the {OBJECT} was for {A}",
    "{A} laughed . later {A} was hungry and {A} cooked . we were angry with {A}",
    "yesterday we saw the {OBJECT} near {A} . we waved at {A}",
    "{A} was tired . we gave a {OBJECT} to {A}",
)
WHO_HAS = (
    "{A} has the {OBJECT} . {B} has the {OTHER} . so {A} has the {OBJECT}",
    "{A} has the {OTHER} . {B} has the {OBJECT} . so {B} has the {OBJECT}",
    "at the {PLACE} {A} has the {OBJECT} and {B} has the {OTHER} . as we know {A} has the {OBJECT}",
    "at the {PLACE} {A} has the {OTHER} and {B} has the {OBJECT} . as we know {B} has the {OBJECT}",
)


def every_text() -> Iterator[str]:
    """All sentences and phrases, for the vocabulary."""
    yield from (*OPENINGS, *INTROS, *HELD_OUT_INTROS, *UNKNOWN_INTROS, *ACTIONS, *HELD_OUT_ACTIONS)
    yield from (*BEFORE, *BETWEEN, *AFTER, *FILL_MID, *FILL_POST)
    yield from (part for pair in AROUND for part in pair)
    yield from (*ONE_NAME, *WHO_HAS)
